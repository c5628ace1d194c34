"""Scalar expressions over columns: frozen trees, Spark's result types, and values."""
