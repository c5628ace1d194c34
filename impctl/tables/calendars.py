"""Data files whose old dates and times Spark reads differently from everybody else.

Law: a file written in the hybrid calendar (by Spark 2, or by Spark 3 in legacy mode) is read here
only while no value of it lies before the calendars part; otherwise the column is refused.
Out of scope: converting between calendars (Spark does that when it reads the file).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from impctl.data.schema import Kind, SqlType
from impctl.errors import TableError

_FIRST_SAFE_DAY = -141427
"""1582-10-15: since then both calendars name the same days."""
_FIRST_SAFE_MICROSECOND = -2208988800000000
"""1900-01-01: since then zone offsets agree too, as Spark itself assumes."""
_LEGACY_MARKS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_SPARK_VERSION = b"org.apache.spark.version"


def is_hybrid(footer: Mapping[bytes, bytes] | None) -> bool:
    """Whether a Parquet footer says that the file's dates are in the hybrid calendar."""
    if footer is None:
        return False
    version = footer.get(_SPARK_VERSION, b"")
    return any(mark in footer for mark in _LEGACY_MARKS) or version[:2] in (b"1.", b"2.")


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
            f"Column `{column}` holds old dates or times in Spark 2's calendar: {uri}",
            hint="rewrite the file with Spark 3 or newer, or leave the column out of the query",
            code="legacy_calendar",
        )
