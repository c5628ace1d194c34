"""Measures the figures of the papers and compares impctl with rivals; never installed."""
