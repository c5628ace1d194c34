"""Rows as Arrow tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from impctl.data.schema import Schema
from impctl.tables.schema import arrow_type


def arrow_rows(schema: Schema, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Rows by the columns' names, in the types in which impctl's readers hand them out."""
    kinds = pa.schema([(column.name, arrow_type(column.type)) for column in schema])
    return pa.Table.from_pylist(list(rows), schema=kinds)
