"""Which columns of a table promise a useful sketch, told from file statistics alone.

Law: reads the log, no data file. More distinct values make finer ranges, and a column by which the
files lie apart lets Spark skip them; both are guesses that cost nothing but speed if wrong.
Out of scope: whether a query's sketch on the column is safe (`safety.judge`).
"""

from __future__ import annotations

from typing import Any

from impctl.app.preparing.partitions import is_partitionable
from impctl.data.schema import INTEGRAL, Column, Kind
from impctl.tables.snapshot import FileBounds, Snapshot
from impctl.tables.statistics import extreme, file_bounds
from impctl.types import ColumnName
from impctl.values import dataclass

_FEWEST_VALUES = 4
"""Columns with fewer distinct values cannot be cut finely enough to skip much."""
_OF_A_GROUP = 20
"""Rows of a group, on average, in what people group by; fewer are those of a key."""
_COMPARED_FILES = 200
_COUNTABLE = INTEGRAL | {Kind.DATE}
_RANGES = ((100_000, 1000), (1_000, 100))
"""Rows from which on so many ranges are asked for."""
_FEW_RANGES = 16


@dataclass(frozen=True, slots=True)
class Promise:
    """A column worth trying: distinct values at most, and the share of files a value may be in."""

    column: Column
    values: int | None
    """None where the statistics do not say."""
    overlap: float
    ranges: int


def promising(snapshot: Snapshot, most: int) -> tuple[Promise, ...]:
    """At most so many columns, best first; those with too few values only where all are so."""
    columns = [
        column
        for column in snapshot.schema
        if is_partitionable(column) and column.name not in snapshot.columns.opaque
    ]
    result = [_promise(snapshot, column) for column in columns]
    rich = [one for one in result if one.values is None or one.values >= _FEWEST_VALUES]
    return tuple(sorted(rich or result, key=_order)[:most])


def group_column(snapshot: Snapshot, promises: tuple[Promise, ...]) -> ColumnName | None:
    """The column that an example may group by: one whose values repeat often, or likely do.

    Not one with `${` in its name: Spark puts a variable's value for that in a query's text.
    """
    named = [one for one in promises if "${" not in one.column.name]
    if not named:
        return None
    rows = snapshot.rows or 0
    repeated = [one for one in named if one.values is not None and one.values * _OF_A_GROUP <= rows]
    texts = [one for one in named if one.column.type.kind is Kind.STRING]
    return (*repeated, *texts, *named)[0].column.name


def measure_column(snapshot: Snapshot) -> ColumnName | None:
    """A column that an example may sum: an amount, not a key."""
    kinds = (Kind.DECIMAL, Kind.DOUBLE, Kind.FLOAT)
    return next(
        (
            column.name
            for kind in kinds
            for column in snapshot.schema
            if column.type.kind is kind
            and "${" not in column.name
            and column.name not in (*snapshot.columns.opaque, *snapshot.partition_columns)
        ),
        None,
    )


def _order(promise: Promise) -> tuple[float, bool, int]:
    """Files that lie apart first, then known counts, then many values."""
    return (round(promise.overlap, 2), promise.values is None, -(promise.values or 0))


def _promise(snapshot: Snapshot, column: Column) -> Promise:
    bounds = file_bounds(snapshot, column.name)
    filled = [one for one in bounds if not one.is_all_null]
    values = _values_at_most(snapshot, column, filled)
    return Promise(column, values, _overlap(filled), _ranges(snapshot, values))


def _values_at_most(snapshot: Snapshot, column: Column, filled: list[FileBounds]) -> int | None:
    if not filled:
        return 0
    low = extreme([one.minimum for one in filled], min)
    high = extreme([one.maximum for one in filled], max)
    if low is None or high is None:
        return None
    if low == high:
        return 1
    if column.name in snapshot.partition_columns:
        return len({one.minimum for one in filled})
    if column.type.kind not in _COUNTABLE:
        return None
    apart = int(high) - int(low) + 1
    return apart if snapshot.rows is None else min(apart, snapshot.rows)


def _overlap(filled: list[FileBounds]) -> float:
    """Share of the files that may share values with a file, on average; 1 where unknown."""
    some: list[Any] = [one for one in filled if None not in (one.minimum, one.maximum)]
    if len(some) < len(filled) or not some:
        return 1.0
    some = some[:: max(1, len(some) // _COMPARED_FILES)]
    touching = sum(
        1
        for one in some
        for other in some
        if one.minimum <= other.maximum and other.minimum <= one.maximum
    )
    return touching / len(some) ** 2


def _ranges(snapshot: Snapshot, values: int | None) -> int:
    """How many ranges suit so many rows and values."""
    rows = snapshot.rows if snapshot.rows is not None else _RANGES[0][0]
    wanted = next((ranges for least, ranges in _RANGES if rows >= least), _FEW_RANGES)
    return wanted if values is None else max(2, min(wanted, values))
