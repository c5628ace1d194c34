"""What file statistics say about a column, in canonical values, widened until it is true.

Law: every value of the file that is neither NULL nor NaN lies between `minimum` and `maximum`;
None means that nothing is known on that side. Statistics bend the truth in known ways, and each
is undone here: timestamps are cut to milliseconds and, where a zone's offset had seconds, told a
minute off; decimals may have passed through a double, doubles may be off in the last place (that
of a float, where the column was one), long strings are cut, NaN is left out, and deletion vectors
leave bounds of rows that are gone (bounds stay bounds, counts become upper limits).
Out of scope: which files to read (`tables.prune`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from impctl.aliases import ColumnName
from impctl.data.schema import FLOAT, Column, Kind
from impctl.data.vector import INT64_MAX, INT64_MIN, from_arrow
from impctl.sketch.partition import BoundaryValue
from impctl.tables.arrow_types import to_arrow_type
from impctl.tables.escapes import is_unsure
from impctl.tables.snapshot import Snapshot, partition_array

_TRUSTED_TEXT = 32
"""UTF-16 units from which a string maximum may be the cut-off form of a longer one."""
_TIE_BREAKER = "\ufffd"
"""What Delta put behind a text it cut, as the greatest; in the order of UTF-8 it is not."""
_MILLISECOND = 1000
_MINUTE = 60_000_000
_FIRST_WHOLE_OFFSET = 94_694_400_000_000
"""1973-01-01: since 1972 every zone's offset has whole minutes, all that statistics tell of it."""
_BOUNDED_KINDS = frozenset(
    {
        Kind.BOOLEAN,
        Kind.BYTE,
        Kind.SHORT,
        Kind.INTEGER,
        Kind.LONG,
        Kind.DATE,
        Kind.FLOAT,
        Kind.DOUBLE,
        Kind.DECIMAL,
        Kind.STRING,
        Kind.TIMESTAMP,
        Kind.TIMESTAMP_NTZ,
    }
)
_DECIMAL_BITS = 44
"""Leading bits of a decimal that survive a double, with a few to spare."""


@dataclass(frozen=True, slots=True)
class FileBounds:
    """What one file may hold in one column."""

    minimum: BoundaryValue | None
    maximum: BoundaryValue | None
    null_count: int | None
    """NULLs, rows deleted by a vector included; None when unknown."""
    rows: int | None
    may_be_nan: bool = False

    @property
    def may_hold_null(self) -> bool:
        return self.null_count is None or self.null_count > 0

    @property
    def is_all_null(self) -> bool:
        return (
            self.rows is not None and self.null_count is not None and self.null_count >= self.rows
        )


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """What a snapshot may hold in one column: bounds, not necessarily reached."""

    minimum: BoundaryValue | None
    maximum: BoundaryValue | None
    null_count: int | None
    """Never less than the true number; None when unknown."""
    may_be_nan: bool


def column_statistics(snapshot: Snapshot, column: ColumnName) -> ColumnStatistics:
    """Bounds of a column over the whole snapshot; a file without statistics makes them unknown."""
    found = snapshot.readable(column)
    bounds = file_bounds(snapshot, found.name)
    counts = [bound.null_count for bound in bounds]
    filled = [bound for bound in bounds if not bound.is_all_null]
    minimum = extreme([bound.minimum for bound in filled], min)
    maximum = extreme([bound.maximum for bound in filled], max)
    return ColumnStatistics(
        minimum,
        maximum,
        None if None in counts else sum(count for count in counts if count is not None),
        any(bound.may_be_nan for bound in bounds),
    )


def file_bounds(snapshot: Snapshot, column: ColumnName) -> tuple[FileBounds, ...]:
    """Bounds of a column in each file, in the order of `snapshot.files`."""
    found = snapshot.readable(column)
    rows = snapshot.actions.column("num_records").to_pylist()
    if found.name in snapshot.partition_columns:
        return _partition_bounds(snapshot, found, rows)
    physical = snapshot.columns.physical[found.name]
    counts = _values(snapshot.actions, "null_count", physical)
    null_counts = [None] * len(rows) if counts is None else counts.to_pylist()
    is_float = found.type.is_fractional
    lows, highs = _limits(snapshot.actions, found, physical)
    # A double that is the text of a float is as far from the float as a float is from its text.
    stated = replace(found, type=FLOAT) if found.name in snapshot.columns.once_float else found
    return tuple(
        FileBounds(
            _low(low, stated),
            _high(high, stated),
            nulls,
            count,
            is_float and (nulls is None or count is None or nulls < count),
        )
        for low, high, nulls, count in zip(lows, highs, null_counts, rows, strict=True)
    )


def extreme(
    values: Sequence[BoundaryValue | None], pick: Callable[[list[Any]], BoundaryValue]
) -> BoundaryValue | None:
    """What `min` or `max` picks of them; None without values or when one is unknown."""
    known = [value for value in values if value is not None]
    return pick(known) if known and len(known) == len(values) else None


def _partition_bounds(
    snapshot: Snapshot, column: Column, rows: Sequence[int | None]
) -> tuple[FileBounds, ...]:
    values = _canonical(partition_array(snapshot.actions, column.name), column)
    return tuple(
        # Without a row count a NULL partition still holds nothing but NULL.
        FileBounds(None, None, 1 if count is None else count, 1 if count is None else count)
        if value is None
        else FileBounds(None, None, 0, count, may_be_nan=True)
        if value != value
        else FileBounds(value, value, 0, count)
        for value, count in zip(values, rows, strict=True)
    )


def _limits(actions: pa.Table, column: Column, physical: str) -> tuple[list[Any], list[Any]]:
    unknown: list[Any] = [None] * len(actions)
    if column.type.kind not in _BOUNDED_KINDS:
        return unknown, unknown
    lows, highs = _values(actions, "min", physical), _values(actions, "max", physical)
    return (
        unknown if lows is None else _canonical(lows, column),
        unknown if highs is None else _canonical(highs, column),
    )


def _values(actions: pa.Table, statistic: str, physical: str) -> Any:
    """One statistic of one top-level column, one value per file; None where no file has it."""
    if statistic not in actions.column_names:
        return None
    column = actions.column(statistic).combine_chunks()
    at = column.type.get_field_index(physical)
    if at < 0:
        return None
    values = pa.StructArray.flatten(column)[at]
    return None if pa.types.is_struct(values.type) else values


def _canonical(values: Any, column: Column) -> list[Any]:
    """Canonical values (see `data.vector`), None for NULL."""
    typed = to_arrow_type(pa.chunked_array([values]), column.type)
    vector = from_arrow(typed, column.type)
    listed = vector.values.to_pylist() if vector.is_textual else list(vector.values)
    plain = [value.item() if isinstance(value, np.generic) else value for value in listed]
    valid = vector.validity()
    return [value if ok else None for value, ok in zip(plain, valid, strict=True)]


def _low(value: Any, column: Column) -> BoundaryValue | None:
    """A true lower bound from a stated minimum."""
    if _is_void(value, column):
        return None
    return _moved(value, column, -1)


def _high(value: Any, column: Column) -> BoundaryValue | None:
    """A true upper bound from a stated maximum."""
    if _is_void(value, column):
        return None
    if column.type.kind is Kind.STRING:
        return None if _may_be_cut(value) else value
    return _moved(value, column, 1)


def _may_be_cut(text: str) -> bool:
    """Whether a stated maximum may stand for longer or greater texts.

    Older writers of Delta judge by UTF-16, in which an emoji is two units and below U+FFFD.
    """
    if len(text.encode("utf-16-le")) // 2 >= _TRUSTED_TEXT or text.endswith(_TIE_BREAKER):
        return True
    return is_unsure(text)


def _is_void(value: Any, column: Column) -> bool:
    """Whether a statistic says nothing: absent, NaN, or a decimal that deltalake cut to 64 bits."""
    if value is None or value != value:
        return True
    is_wide = column.type.kind is Kind.DECIMAL and column.type.scale == 0
    return is_wide and value in (INT64_MIN, INT64_MAX)


def _moved(value: Any, column: Column, direction: int) -> BoundaryValue:
    """The value, moved outwards by what its statistic may be off; never past zero.

    Rounding never changes a sign, so zero is where a bound may stop: sign facts rest on it.
    """
    kind = column.type.kind
    if kind is Kind.TIMESTAMP_NTZ:
        return int(value) + direction * _MILLISECOND
    if kind is Kind.TIMESTAMP:
        off = _MILLISECOND + (_MINUTE if value < _FIRST_WHOLE_OFFSET else 0)
        return int(value) + direction * off
    if kind is Kind.DECIMAL:
        moved: Any = value + direction * (1 + (abs(value) >> _DECIMAL_BITS))
    elif kind is Kind.FLOAT:
        with np.errstate(over="ignore"):
            moved = float(np.nextafter(np.float32(value), np.float32(direction * np.inf)))
    elif kind is Kind.DOUBLE:
        once = np.nextafter(value, direction * np.inf)
        moved = float(np.nextafter(once, direction * np.inf))
    else:
        return value  # type: ignore[no-any-return]  # Arrow is untyped here
    crosses_zero = moved < 0 <= value if direction < 0 else value <= 0 < moved
    return type(moved)(0) if crosses_zero else moved  # type: ignore[no-any-return]  # as above
