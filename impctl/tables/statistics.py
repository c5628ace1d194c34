"""What file statistics say about a column, in canonical values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from os.path import commonprefix
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from impctl.data.schema import FLOAT, NUMERIC, TEMPORAL, Column, Kind, SqlType
from impctl.data.vector import INT64_MAX, INT64_MIN, Ints, Vector, from_arrow
from impctl.tables.schema import to_arrow_type
from impctl.tables.snapshot import (
    UNKNOWN,
    ColumnBounds,
    Flags,
    Snapshot,
    Values,
    as_objects,
    partition_array,
)
from impctl.tables.storage import is_unsure

if TYPE_CHECKING:
    from impctl.sketch.partition import BoundaryValue
    from impctl.types import ColumnName

# Values of a column as places on a line of numbers, so that lengths can be compared. Law: greater
# values never lie further left. Whole numbers, dates and times are a unit long each, doubles next
# to nothing; of a text the characters count that follow what all texts begin with, a unit being
# what cannot be told apart any more. Only estimates rest on it.

# How densely rows lie along a column, from spans over which rows are spread evenly. Law: rows are
# neither lost nor made: up to the end of all spans there are all of them.

Floats = npt.NDArray[np.float64]

_TEXT_BYTES = 6
"""Bytes of a text behind the common prefix that are distinguished: as many as a double holds."""


class Line(Struct, frozen=True):
    """A mapping from values to numbers, relative to the least value."""

    least: Any
    unit: float
    prefix: int = 0

    @classmethod
    def of(cls, values: Sequence[BoundaryValue]) -> Self | None:
        """The line of a column's values; None without values, or if one is infinite."""
        if not values:
            return None
        least: Any = min(values)
        greatest: Any = max(values)
        if isinstance(least, str):
            shared = len(commonprefix([least, greatest]).encode())
            return cls(_number(least, shared), 1.0, shared)
        if not math.isfinite(float(greatest) - float(least)):
            return None
        return cls(least, 1.0 if isinstance(least, int) else 0.0)

    def place(self, value: Any) -> float:
        if isinstance(value, str):
            value = _number(value, self.prefix)
        return float(value - self.least)

    def places(self, values: Iterable[Any]) -> Floats:
        return np.array([self.place(value) for value in values], dtype=np.float64)

    def places_of(self, vector: Vector) -> Floats:
        """The place of each value of a column; NaN for NULL."""
        if vector.is_textual:
            coded = vector.values.dictionary_encode()
            # NULL takes the last place, which exists even without a text.
            known = np.append(self.places(coded.dictionary.to_pylist()), np.nan)
            result = known[coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
        else:
            # As doubles first: whole numbers far apart have a difference beyond 64 bits.
            result = np.asarray(vector.values, dtype=np.float64) - float(self.least)
        return np.where(vector.validity(), result, np.nan)

    def spans(self, bounds: ColumnBounds) -> tuple[Floats, Floats]:
        """The start and (exclusive) end of each span of values, of which both ends are known."""
        lows = self._places(bounds.lows)
        ends = self._places(bounds.highs) + self.unit
        return lows, np.maximum(ends, np.nextafter(lows, np.inf))

    def _places(self, values: Values) -> Floats:
        """Places of values that are not below the least one."""
        if values.dtype == np.float64:
            return np.asarray(values - self.least)
        if values.dtype == np.int64 and INT64_MIN <= self.least <= INT64_MAX:
            # A difference beyond 63 bits becomes negative, and is correct as an unsigned number.
            with np.errstate(over="ignore"):
                return (values - np.int64(self.least)).view(np.uint64).astype(np.float64)
        if len(values) and isinstance(values[0], str):
            return _numbers(values, self.prefix) - float(self.least)
        return self.places(values.tolist())


def _number(text: str, prefix: int) -> int:
    """A text as a number, by the bytes behind a prefix."""
    return int.from_bytes(text.encode()[prefix : prefix + _TEXT_BYTES].ljust(_TEXT_BYTES, b"\0"))


def _numbers(texts: Values, prefix: int) -> Floats:
    stored = pa.array(texts.tolist(), pa.large_string()).buffers()
    offsets = np.frombuffer(stored[1], np.int64)[: len(texts) + 1]
    content = np.frombuffer(stored[2] or b"", np.uint8)
    starts, ends = offsets[:-1] + prefix, offsets[1:]
    result = np.zeros(len(texts), dtype=np.int64)
    for at in range(_TEXT_BYTES):
        present = np.flatnonzero(starts + at < ends)
        result *= 256
        result[present] += content[starts[present] + at]
    return result.astype(np.float64)


# What file statistics say about a column, in canonical values, widened until it is true. Law:
# every value of a file that is neither NULL nor NaN lies between its bounds, or nothing is known
# on that side. Statistics bend the truth in known ways, and each is undone here: timestamps are
# cut to milliseconds and, where a zone's offset had seconds, told a minute off; decimals may have
# passed through a double, doubles may be off in the last place (that of a float, where the column
# was one), long strings are cut, NaN is left out, and deletion vectors leave bounds of rows that
# are gone (bounds stay bounds, counts become upper limits).

_TRUSTED_TEXT = 32
"""UTF-16 units from which a string maximum may be a truncated form."""
_TIE_BREAKER = "\ufffd"
"""Delta's suffix of a truncated maximum; in the order of UTF-8 it is not the greatest."""
_MILLISECOND = 1000
_MINUTE = 60_000_000
_FIRST_WHOLE_OFFSET = 94_694_400_000_000
"""1973-01-01: since 1972 every zone's offset has whole minutes, the resolution of statistics."""
_BOUNDED_KINDS = NUMERIC | TEMPORAL | {Kind.BOOLEAN, Kind.STRING}
_DECIMAL_BITS = 44
"""Leading bits of a decimal that survive a double, with a few to spare."""
_ROOM = 1 << 62
"""Integers up to which 64 bits suffice for what is added here."""


class ColumnStatistics(Struct, frozen=True):
    """Bounds of a snapshot's column, not necessarily reached."""

    minimum: BoundaryValue | None
    maximum: BoundaryValue | None
    null_count: int | None
    """Never less than the true number; None if unknown."""
    may_be_nan: bool


def column_statistics(snapshot: Snapshot, column: ColumnName) -> ColumnStatistics:
    """Bounds of a column over the whole snapshot; a file without statistics makes them unknown."""
    bounds = file_bounds(snapshot, column)
    filled = bounds.filled
    is_counted = not bool((bounds.null_counts == UNKNOWN).any())
    return ColumnStatistics(
        _furthest(filled.lows, filled.has_low, min),
        _furthest(filled.highs, filled.has_high, max),
        int(bounds.null_counts.sum()) if is_counted else None,
        bool(bounds.may_be_nan.any()),
    )


def file_bounds(snapshot: Snapshot, column: ColumnName) -> ColumnBounds:
    """Bounds of a column in each file, in the order of `snapshot.files`; read once a snapshot."""
    result = snapshot.readable(column)
    known = snapshot.bounds.get(result.name)
    if known is None:
        known = snapshot.bounds[result.name] = _read_bounds(snapshot, result)
    return known


def _read_bounds(snapshot: Snapshot, column: Column) -> ColumnBounds:
    actions = snapshot.actions
    rows = _counts(actions.column("num_records").combine_chunks())
    if column.name in snapshot.partition_columns:
        return _partition_bounds(partition_array(actions, column.name), column, rows)
    physical = snapshot.columns.physical[column.name]
    stated = _values(actions, "null_count", physical)
    nulls = np.full(len(rows), UNKNOWN) if stated is None else _counts(stated)
    is_bounded = column.type.kind in _BOUNDED_KINDS
    lows = _values(actions, "min", physical) if is_bounded else None
    highs = _values(actions, "max", physical) if is_bounded else None
    is_filled = (nulls == UNKNOWN) | (rows == UNKNOWN) | (nulls < rows)
    # A double that is the text of a float is as far from the float as a float is from its text.
    is_of_float = column.name in snapshot.columns.once_float
    kind = FLOAT if is_of_float else column.type
    return ColumnBounds(
        *_side(lows, column, kind, -1, len(rows)),
        *_side(highs, column, kind, 1, len(rows)),
        nulls,
        rows,
        is_filled if column.type.is_fractional else np.zeros(len(rows), dtype=np.bool_),
    )


def _furthest(
    values: Values, is_known: Flags, pick: Callable[[list[Any]], BoundaryValue]
) -> BoundaryValue | None:
    """The `min` or `max` of the known sides; None without values or if one is unknown."""
    return pick(values.tolist()) if len(values) and bool(is_known.all()) else None


def extreme(
    values: Sequence[BoundaryValue | None], pick: Callable[[list[Any]], BoundaryValue]
) -> BoundaryValue | None:
    """The `min` or `max` of values; None without values or if one is unknown."""
    known = [value for value in values if value is not None]
    return pick(known) if known and len(known) == len(values) else None


def _partition_bounds(stated: pa.Array, column: Column, rows: Ints) -> ColumnBounds:
    values, is_valid = _canonical(stated, column)
    is_nan = _is_nan(values)
    is_known = is_valid & ~is_nan
    # Without a row count a NULL partition still holds nothing but NULL.
    rows = np.where(~is_valid & (rows == UNKNOWN), 1, rows)
    nulls = np.where(is_valid, 0, rows)
    return ColumnBounds(values, is_known, values, is_known, nulls, rows, is_valid & is_nan)


def _counts(stated: pa.Array) -> Ints:
    """Counts of the log; a negative one, which no writer uses, is unknown."""
    result = stated.cast(pa.int64()).fill_null(UNKNOWN).to_numpy(zero_copy_only=False)
    return np.asarray(np.maximum(result, UNKNOWN))


def _values(actions: pa.Table, statistic: str, physical: str) -> Any:
    """One statistic of one top-level column, one value per file; None if no file has it."""
    if statistic not in actions.column_names:
        return None
    column = actions.column(statistic)
    at = column.type.get_field_index(physical)
    if at < 0 or pa.types.is_struct(column.type.field(at).type):
        return None
    return pc.struct_field(column, [at]).combine_chunks()


def _canonical(stated: pa.Array, column: Column) -> tuple[Values, Flags]:
    """Canonical values (see `data.vector`), and a mask of those that are not NULL."""
    vector = from_arrow(to_arrow_type(pa.chunked_array([stated]), column.type), column.type)
    valid = vector.validity()
    if vector.is_textual:
        nothing = "" if column.type.kind is Kind.STRING else b""
        texts = vector.values.to_pylist()
        return as_objects([nothing if text is None else text for text in texts]), valid
    values = vector.values
    return np.where(valid, values, values.dtype.type(0)), valid


def _side(
    stated: pa.Array | None, column: Column, kind: SqlType, direction: int, files: int
) -> tuple[Values, Flags]:
    """True bounds on one side from the stated ones, and a mask of the known ones. `kind`: the type
    whose values were written; `direction` is -1 for minima and 1 for maxima."""
    if stated is None:
        return _nothing(column.type, files), np.zeros(files, dtype=np.bool_)
    values, is_known = _canonical(stated, column)
    if column.type.kind is Kind.STRING:
        return values, is_known if direction < 0 else is_known & ~_may_be_cut(
            stated.cast(pa.large_string())
        )
    is_known = is_known & ~_is_void(values, column)
    return _moved(np.where(is_known, values, values.dtype.type(0)), kind, direction), is_known


def _nothing(kind: SqlType, files: int) -> Values:
    """Placeholders for unknown values, comparable with the column's."""
    if kind.kind in (Kind.STRING, Kind.BINARY):
        return as_objects(["" if kind.kind is Kind.STRING else b""] * files)
    return np.zeros(files, dtype=np.float64 if kind.is_fractional else np.int64)


def _may_be_cut(stated: pa.Array) -> Flags:
    """Which stated maxima may be truncated forms of longer or greater texts; arbitrary for NULL.
    Older writers of Delta judge by UTF-16, in which an emoji is two units and below U+FFFD."""
    size = pc.fill_null(pc.binary_length(stated), 0).to_numpy(zero_copy_only=False)
    length = pc.fill_null(pc.utf8_length(stated), 0).to_numpy(zero_copy_only=False)
    result = np.asarray(length >= _TRUSTED_TEXT)
    # Texts of ASCII alone have as many units as characters and hold none of the others.
    for at in np.flatnonzero((size != length) & ~result).tolist():
        text = stated[at].as_py()
        units = len(text.encode("utf-16-le")) // 2
        result[at] = units >= _TRUSTED_TEXT or text.endswith(_TIE_BREAKER) or is_unsure(text)
    return result


def _is_void(values: Values, column: Column) -> Flags:
    """Which statistics say nothing: NaN, or a decimal that deltalake cut to 64 bits."""
    if column.type.kind is Kind.DECIMAL and column.type.scale == 0:
        return np.asarray((values == INT64_MIN) | (values == INT64_MAX), dtype=np.bool_)
    return _is_nan(values)


def _is_nan(values: Values) -> Flags:
    return np.asarray(values != values, dtype=np.bool_)


def _moved(values: Values, kind: SqlType, direction: int) -> Values:
    """The values, widened by the possible error of their statistics; never past zero. Rounding
    never changes a sign, so a bound may stop at zero: sign facts rely on it."""
    if kind.kind is Kind.TIMESTAMP_NTZ:
        return _added(values, np.full(len(values), _MILLISECOND), direction)
    if kind.kind is Kind.TIMESTAMP:
        off = np.where(values < _FIRST_WHOLE_OFFSET, _MILLISECOND + _MINUTE, _MILLISECOND)
        return _added(values, off, direction)
    moved: Values
    if kind.kind is Kind.DECIMAL:
        if ((values > _ROOM) | (values < -_ROOM)).any():
            values = values.astype(np.object_)
        moved = values + direction * (1 + np.right_shift(abs(values), _DECIMAL_BITS))
    elif kind.kind is Kind.FLOAT:
        with np.errstate(over="ignore"):
            single = values.astype(np.float32)
            moved = np.nextafter(single, np.float32(direction * np.inf)).astype(np.float64)
    elif kind.kind is Kind.DOUBLE:
        moved = np.nextafter(np.nextafter(values, direction * np.inf), direction * np.inf)
    else:
        return values
    crosses = (moved < 0) & (values >= 0) if direction < 0 else (values <= 0) & (moved > 0)
    return np.asarray(np.where(crosses.astype(np.bool_), moved.dtype.type(0), moved))


def _added(values: Ints, off: Ints, direction: int) -> Ints:
    """Shift times, clamped to 64 bits, beyond which there is none."""
    if direction < 0:
        return np.maximum(values, INT64_MIN + off) - off
    return np.minimum(values, INT64_MAX - off) + off


def line_of(bounds: ColumnBounds) -> Line | None:
    """The line of a column's bounds; None if some are unknown or infinite."""
    filled = bounds.filled
    if not len(filled) or not filled.is_known:
        return None
    return Line.of([*filled.lows.tolist(), *filled.highs.tolist()])


class Density(Struct, frozen=True):
    """Rows per unit of a line: what begins at each start, minus what ends at each end."""

    starts: Floats
    from_start: Floats
    moment_from_start: Floats
    ends: Floats
    from_end: Floats
    moment_from_end: Floats

    @classmethod
    def of(cls, lows: Floats, ends: Floats, rows: Floats) -> Self:
        """Of spans from `lows` to `ends`, all of shape (spans,)."""
        dense = rows / (ends - lows)
        at_low, at_end = np.argsort(lows), np.argsort(ends)
        return cls(
            lows[at_low],
            prefix_sums(dense[at_low]),
            prefix_sums((dense * lows)[at_low]),
            ends[at_end],
            prefix_sums(dense[at_end]),
            prefix_sums((dense * ends)[at_end]),
        )

    def at(self, places: Floats) -> Floats:
        """Rows per unit at each place."""
        begun = self.from_start[np.searchsorted(self.starts, places, side="right")]
        over = self.from_end[np.searchsorted(self.ends, places, side="right")]
        return np.asarray(np.maximum(begun - over, 0.0))

    def before(self, places: Floats) -> Floats:
        """Rows that lie before each place."""
        begun = np.searchsorted(self.starts, places, side="right")
        over = np.searchsorted(self.ends, places, side="right")
        result = places * (self.from_start[begun] - self.from_end[over])
        return np.asarray(result - self.moment_from_start[begun] + self.moment_from_end[over])


def prefix_sums(values: Floats | Flags) -> Floats:
    """Exclusive prefix sums along the last dimension, with the total at the end."""
    zero = np.zeros((*values.shape[:-1], 1))
    return np.concatenate([zero, np.cumsum(values, axis=-1)], axis=-1)
