"""Bounds of files and what they tell, one file and one value at a time, as a reference.

Law: nothing here is an array over files; whole numbers have no end. What is computed column by
column has to come to the same.
Out of scope: whether a bound is true of the rows (`tests.tables.test_statistics`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from impctl.data.schema import DOUBLE, STRING, Kind, SqlType
from impctl.expr.nodes import CompareOp
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import RangeFilter
from impctl.tables.snapshot import UNKNOWN, ColumnBounds, FileBounds, as_array
from impctl.tables.storage import is_unsure


def low_of(stated: Any, kind: SqlType) -> Any:
    """A true lower bound from a stated minimum, None where there is none."""
    return None if _is_void(stated, kind) else _moved(stated, kind, -1)


def high_of(stated: Any, kind: SqlType) -> Any:
    """A true upper bound from a stated maximum, None where there is none."""
    if _is_void(stated, kind):
        return None
    if kind.kind is Kind.STRING:
        is_cut = len(stated.encode("utf-16-le")) // 2 >= 32 or stated.endswith("\ufffd")
        return None if is_cut or is_unsure(stated) else stated
    return _moved(stated, kind, 1)


def _is_void(stated: Any, kind: SqlType) -> bool:
    if stated is None or stated != stated:
        return True
    is_wide = kind.kind is Kind.DECIMAL and kind.scale == 0
    return is_wide and stated in (-(2**63), 2**63 - 1)


def _moved(value: Any, kind: SqlType, direction: int) -> Any:
    if kind.kind is Kind.TIMESTAMP_NTZ:
        return _within(value + direction * 1000)
    if kind.kind is Kind.TIMESTAMP:
        # Before 1973 an offset may have had seconds that nobody tells.
        return _within(value + direction * (1000 + (60_000_000 if value < 94694400000000 else 0)))
    if kind.kind is Kind.DECIMAL:
        moved: Any = value + direction * (1 + (abs(value) >> 44))
    elif kind.kind is Kind.FLOAT:
        with np.errstate(over="ignore"):
            moved = float(np.nextafter(np.float32(value), np.float32(direction * np.inf)))
    elif kind.kind is Kind.DOUBLE:
        moved = float(np.nextafter(np.nextafter(value, direction * np.inf), direction * np.inf))
    else:
        return value
    crosses_zero = moved < 0 <= value if direction < 0 else value <= 0 < moved
    return type(moved)(0) if crosses_zero else moved


def _within(value: int) -> int:
    """A time has 64 bits."""
    return max(-(2**63), min(value, 2**63 - 1))


def may_match(wanted: RangeFilter, bounds: FileBounds) -> bool:
    """Whether a file with these bounds may hold a row that the filter wants."""
    if wanted.includes_null and bounds.may_hold_null:
        return True
    if bounds.is_all_null:
        return False
    if bounds.may_be_nan and any(one.high is None for one in wanted.intervals):
        return True
    low: Any = bounds.minimum
    high: Any = bounds.maximum
    return any(
        (low is None or one.high is None or low < one.high)
        and (high is None or one.low is None or high >= one.low)
        for one in wanted.intervals
    )


def may_hold_some(values: Sequence[Any], bounds: FileBounds) -> bool:
    """Whether a file with these bounds may hold one of the values; None is NULL."""
    return any(_may_hold_one(value, bounds) for value in values)


def _may_hold_one(value: Any, bounds: FileBounds) -> bool:
    if value is None:
        return bounds.may_hold_null
    if value != value:
        return bounds.may_be_nan
    low: Any = bounds.minimum
    high: Any = bounds.maximum
    is_between = (low is None or low <= value) and (high is None or value <= high)
    return is_between and not bounds.is_all_null


def meets(spans: Sequence[tuple[Any, Any]], may_be_nan: bool, bounds: FileBounds) -> bool:
    """Whether a file with these bounds may hold a value in one of the spans."""
    low: Any = bounds.minimum
    high: Any = bounds.maximum
    touches = any(
        (low is None or low <= end) and (high is None or start <= high) for start, end in spans
    )
    return (may_be_nan and bounds.may_be_nan) or (touches and not bounds.is_all_null)


def may_compare(op: CompareOp, bounds: FileBounds, value: Any) -> bool:
    """Whether some value between the bounds, or NaN where it may be there, compares so."""
    low: Any = bounds.minimum
    high: Any = bounds.maximum
    match op:
        case CompareOp.LESS:
            return low is None or low < value
        case CompareOp.LESS_EQUAL:
            return low is None or low <= value
        case CompareOp.GREATER:
            return bounds.may_be_nan or high is None or high > value
        case CompareOp.GREATER_EQUAL:
            return bounds.may_be_nan or high is None or high >= value
        case CompareOp.EQUAL:
            return (low is None or low <= value) and (high is None or high >= value)
    return bounds.may_be_nan or not low == value == high


def span_of(partition: RangePartition, bounds: FileBounds) -> tuple[int, int]:
    """The first and the last fragment that the file may hold, NULL's left aside."""
    first = 0 if bounds.minimum is None else bisect_right(partition.boundaries, bounds.minimum)
    if bounds.is_all_null:
        return first, first - 1
    if bounds.maximum is None or bounds.may_be_nan:
        return first, partition.ranges - 1
    return first, bisect_right(partition.boundaries, bounds.maximum)


def covered(values: Sequence[Any], low: Any, high: Any) -> int:
    """How many of ascending values lie between the two."""
    return bisect_right(values, high) - bisect_left(values, low)


def column_bounds(files: Sequence[FileBounds], kind: SqlType) -> ColumnBounds:
    """These files' bounds as a column."""
    lows, highs = [one.minimum for one in files], [one.maximum for one in files]
    counts = [UNKNOWN if one.null_count is None else one.null_count for one in files]
    rows = [UNKNOWN if one.rows is None else one.rows for one in files]
    nothing: Any = "" if kind is STRING else 0.0 if kind is DOUBLE else 0

    def side(values: list[Any]) -> tuple[Any, Any]:
        known = np.array([value is not None for value in values], np.bool_)
        return as_array([nothing if value is None else value for value in values]), known

    return ColumnBounds(
        *side(lows),
        *side(highs),
        np.array(counts, np.int64),
        np.array(rows, np.int64),
        np.array([one.may_be_nan for one in files], np.bool_),
    )
