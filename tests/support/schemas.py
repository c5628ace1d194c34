"""Schemas as Spark's DDL writes them."""

from __future__ import annotations

from impctl.data.schema import Column, Schema, from_spark, other


def schema_of(columns: str) -> Schema:
    """`a int, m decimal(10,2)`: a comma with a blank behind it ends a column."""
    named = (column.rpartition(" ") for column in columns.split(", "))
    return Schema(
        tuple(Column(name.strip("`"), from_spark(kind) or other(kind)) for name, _, kind in named)
    )
