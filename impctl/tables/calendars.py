"""Data files whose old dates and times Spark reads differently from everybody else.

Law: a column written in the hybrid calendar (by Spark 2, as INT96 by Spark 3.0, or in the legacy
mode of a later one) is read here only while no value of it lies before the calendars part;
otherwise the column is refused.
Out of scope: converting between calendars (Spark does that when it reads the file).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from impctl.data.schema import Kind, SqlType
from impctl.errors import TableError

_FIRST_SAFE_DAY = -141427
"""1582-10-15: since then both calendars name the same days."""
_FIRST_SAFE_MICROSECOND = -2208988800000000
"""1900-01-01: since then zone offsets agree too, as Spark itself assumes."""
_LEGACY_MARKS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_SPARK_VERSION = b"org.apache.spark.version"
_FIRST_PROLEPTIC = b"3.0.0"
_FIRST_PROLEPTIC_INT96 = b"3.1.0"
"""Spark 3.0 still wrote INT96 by the old calendar, and Spark compares the versions as texts."""


def is_hybrid(footer: Mapping[bytes, bytes] | None, *, as_int96: bool = False) -> bool:
    """Whether a Parquet footer says that the file's dates are in the hybrid calendar.

    `as_int96` asks about its timestamps of that physical type.
    """
    if footer is None:
        return False
    first = _FIRST_PROLEPTIC_INT96 if as_int96 else _FIRST_PROLEPTIC
    version = footer.get(_SPARK_VERSION)
    return any(mark in footer for mark in _LEGACY_MARKS) or (
        version is not None and version < first
    )


def hybrid_columns(file: pq.FileMetaData, columns: Iterable[str]) -> frozenset[str]:
    """Those of these columns (leaves) whose dates and times are in the hybrid calendar."""
    if is_hybrid(file.metadata):
        return frozenset(columns)
    if not is_hybrid(file.metadata, as_int96=True):
        return frozenset()
    leaves = (file.schema.column(at) for at in range(len(file.schema)))
    return frozenset(columns) & {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}


def is_surely_modern(file: pq.FileMetaData, at: int) -> bool:
    """Whether the leaf at this place holds no date or time from before the calendars part.

    True for a leaf of another type; False where a row group does not tell its least value.
    """
    leaf = file.schema.column(at)
    kind = leaf.logical_type
    if leaf.physical_type != "INT96" and kind.type not in ("DATE", "TIMESTAMP"):
        return True
    if kind.type == "TIMESTAMP" and "microseconds" not in kind.to_json():
        return False
    limit = _FIRST_SAFE_DAY if kind.type == "DATE" else _FIRST_SAFE_MICROSECOND
    chunks = (file.row_group(group).column(at) for group in range(file.num_row_groups))
    return all(_starts_at(chunk, limit) for chunk in chunks)


def _starts_at(chunk: Any, limit: int) -> bool:
    """Whether a column chunk tells that it has no value below this one."""
    if not chunk.is_stats_set:
        return False
    told = chunk.statistics
    if told.null_count == chunk.num_values:
        return True
    return told.has_min_max and isinstance(told.min_raw, int) and told.min_raw >= limit


def check_calendar(values: Any, kind: SqlType, column: str, uri: str) -> None:
    """Raise TableError when a value of a hybrid file lies where the calendars differ."""
    if kind.kind is Kind.DATE:
        numbers, limit = values.cast(pa.int32()), _FIRST_SAFE_DAY
    elif kind.kind is Kind.TIMESTAMP:
        numbers, limit = values.cast(pa.int64()), _FIRST_SAFE_MICROSECOND
    else:
        return
    lowest = pc.min(numbers).as_py()
    if lowest is not None and lowest < limit:
        raise TableError(
            f"Column `{column}` has old dates or times in the calendar of Spark 2: {uri}",
            hint="rewrite the file with Spark 3.1 or newer, or remove the column from the query",
            code="legacy_calendar",
        )
