"""Scalar expressions over columns: their shape, their type, their value.

`nodes` are frozen trees, `types` infers Spark's result types, `evaluate` computes columns.
"""
