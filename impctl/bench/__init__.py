"""Measuring and comparing: example and synthetic data, timings, records.

This room knows nothing of queries, tables or sketches; it makes data and numbers, others use them.
"""
