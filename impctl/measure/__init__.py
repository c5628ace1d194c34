"""Measures use cases of a workload. Law: a result is checked before it is timed."""
