"""What statistics and partition values say about a column, and which files they exclude."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from os.path import commonprefix
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from impctl.data.schema import FLOAT, NUMERIC, TEMPORAL, Column, Kind, SqlType
from impctl.data.vector import INT64_MAX, INT64_MIN, Ints, Vector, from_arrow
from impctl.expr import nodes as e
from impctl.tables.snapshot import (
    UNKNOWN,
    ColumnBounds,
    DataFile,
    Flags,
    Snapshot,
    ValueBounds,
    Values,
    as_objects,
    partition_array,
    places_in,
    to_arrow_type,
)
from impctl.tables.storage import is_unsure

if TYPE_CHECKING:
    from impctl.sketch.boundaries import Mixture
    from impctl.sketch.sketch import BoundaryValue, RangeFilter, RangePartition
    from impctl.types import AttributeId, ColumnName


Floats = npt.NDArray[np.float64]


# Bounds of columns by file statistics. Law: every value of a file that is neither NULL nor NaN lies
# between its bounds, or the bound is unknown. Statistics err in known ways, which are compensated:
# timestamps are cut to milliseconds, and off by a minute if the zone's offset had seconds; decimals
# may have passed through a double; doubles may be off in the last place (that of a float, if the
# column was one); long texts are cut; NaN is omitted. After a deletion vector bounds remain bounds,
# and counts become upper limits.

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
"""Integers up to which 64 bits suffice for the sums here."""


def column_statistics(snapshot: Snapshot, column: ColumnName) -> ValueBounds:
    """Bounds of a column over the whole snapshot; a file without statistics makes them unknown."""
    bounds = file_bounds(snapshot, column)
    filled = bounds.filled
    lows, highs = filled.lows[filled.has_low].tolist(), filled.highs[filled.has_high].tolist()
    is_counted = not bool((bounds.null_counts == UNKNOWN).any())
    return ValueBounds(
        min(lows) if 0 < len(lows) == len(filled) else None,
        max(highs) if 0 < len(highs) == len(filled) else None,
        int(bounds.null_counts.sum()) if is_counted else None,
        snapshot.rows,
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
    index = column.type.get_field_index(physical)
    if index < 0 or pa.types.is_struct(column.type.field(index).type):
        return None
    return pc.struct_field(column, [index]).combine_chunks()


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
    for index in np.flatnonzero((size != length) & ~result).tolist():
        text = stated[index].as_py()
        units = len(text.encode("utf-16-le")) // 2
        result[index] = units >= _TRUSTED_TEXT or text.endswith(_TIE_BREAKER) or is_unsure(text)
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


# Values as places on a line, so that lengths can be compared. Law: a greater value never has a
# smaller place. An integer, date or time has length one, a double almost none. A text is placed by
# the bytes after the prefix common to all texts. Only estimates depend on it.

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
    for offset in range(_TEXT_BYTES):
        present = np.flatnonzero(starts + offset < ends)
        result *= 256
        result[present] += content[starts[present] + offset]
    return result.astype(np.float64)


def line_of(bounds: ColumnBounds) -> Line | None:
    """The line of a column's bounds; None if some are unknown or infinite."""
    filled = bounds.filled
    if not len(filled) or not filled.is_known:
        return None
    return Line.of([*filled.lows.tolist(), *filled.highs.tolist()])


# The density of rows along a line, from spans with evenly spread rows. Law: all rows lie before the
# end of the last span, and no others.


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


# The ranges of a partition that each file may hold, as arrays over files. Law: a file's rows lie in
# the ranges from `first` to `last`, or in that of NULL if `may_null`. Unknown statistics span
# everything.


class FileSpans(Struct, frozen=True, eq=False):
    """Files against the ranges of one partition; all arrays of shape (files,)."""

    first: Ints
    last: Ints
    """Less than `first` for a file of NULLs only."""
    may_null: npt.NDArray[np.bool_]
    ranges: int

    def merged(self, together: int) -> FileSpans:
        """The spans over fewer ranges, each of `together` adjacent ones; NULL is not merged."""
        first, last = self.first // together, self.last // together
        is_null = self.last < self.first
        last = np.where(is_null, first - 1, last)
        return FileSpans(first, last, self.may_null, -(-self.ranges // together))

    def left(self, mixture: Mixture) -> Floats:
        """Chance that each file is kept, for each row of range chances; shape (files,)."""
        result = self._mean(mixture.weights) * self.chances(mixture.chances)
        return np.asarray(np.clip(result.sum(axis=0), 0.0, 1.0))

    def _mean(self, of_ranges: Floats) -> Floats:
        """Mean over the ranges of each file; that of NULL if it has no other."""
        total, end = prefix_sums(of_ranges), np.maximum(self.last + 1, self.first)
        count = end - self.first
        result = (total[..., end] - total[..., self.first]) / np.maximum(count, 1)
        return np.where(count > 0, result, of_ranges[..., self.ranges, None])

    def chances(self, of_ranges: Floats) -> Floats:
        """Chance that each file is kept, ranges taken as independent; the last dimension are
        ranges, then files."""
        chances = of_ranges[..., : self.ranges]
        is_sure = chances >= 1.0
        sure, total = prefix_sums(is_sure), prefix_sums(np.log1p(-np.where(is_sure, 0.0, chances)))
        end = np.maximum(self.last + 1, self.first)
        none = np.exp(total[..., end] - total[..., self.first])
        none = np.where(sure[..., end] > sure[..., self.first], 0.0, none)
        of_null = of_ranges[..., self.ranges, None]
        none = np.where(self.may_null, none * (1.0 - of_null), none)
        return np.asarray(np.clip(1.0 - none, 0.0, 1.0))


def rows_by_range(
    partition: RangePartition, files: Sequence[DataFile], bounds: ColumnBounds
) -> Floats:
    """Rows of each range, those of a file spread evenly between its bounds; shape (size,). The
    number of NULLs is unknown: their range counts files of NULLs only."""
    rows = np.array([file.rows or 1 for file in files], dtype=np.float64)
    is_null = bounds.is_all_null
    line, total = line_of(bounds), float(rows[~is_null].sum())
    if line is None:
        even = np.full(partition.ranges, total / partition.ranges)
    else:
        spread = Density.of(*line.spans(bounds.filled), rows[~is_null])
        before = spread.before(line.places(partition.boundaries))
        even = np.diff(np.concatenate([[0.0], np.clip(before, 0.0, total), [total]]))
    return np.append(np.maximum(even, 0.0), float(rows[is_null].sum()))


def file_spans(partition: RangePartition, bounds: ColumnBounds) -> FileSpans:
    """The spans of files, from their bounds on the partition's attribute."""
    boundaries, end = partition.boundaries, partition.ranges - 1
    first = np.where(bounds.has_low, places_in(boundaries, bounds.lows, "right"), 0)
    is_bounded = bounds.has_high & ~bounds.may_be_nan
    last = np.where(is_bounded, places_in(boundaries, bounds.highs, "right"), end)
    last = np.where(bounds.is_all_null, first - 1, last)
    return FileSpans(first, last, bounds.may_hold_null, partition.ranges)


# Rows of files per range, by the log alone. Law: a known count is what reading the file would
# count. It is known if the bounds of the file lie in one range and its rows and NULLs are known. If
# a deletion vector removes rows, the file must hold only NULLs or none. NaN is in the last range.
# The rows of other files are spread over the ranges between their bounds: the sum is right, the
# distribution estimated.


def known_counts(
    snapshot: Snapshot, partition: RangePartition, uris: Collection[str] | None = None
) -> tuple[Ints, tuple[DataFile, ...]]:
    """Rows per range of files (default: all) with known counts, shape (size,), and the other files.
    Errors as of `Snapshot.readable`."""
    counts = np.zeros(partition.size, dtype=np.int64)
    column = snapshot.readable(partition.attribute)
    files = snapshot.files
    if uris is not None:
        files = tuple(file for file in files if file.uri in uris)
    if column.type != partition.type:
        return counts, files
    bounds = file_bounds(snapshot, column.name)
    if uris is not None:
        places = [index for index, file in enumerate(snapshot.files) if file.uri in uris]
        bounds = bounds.take(np.array(places, dtype=np.int64))
    removed = [0 if file.deleted is None else len(file.deleted) for file in files]
    deleted = np.array(removed, dtype=np.int64)
    spans = file_spans(partition, bounds)
    left, nulls = bounds.rows - deleted, np.where(bounds.is_all_null, 0, bounds.null_counts)
    # A deletion vector may remove NULLs or values: known only for a file with one kind of these.
    is_known = (nulls == 0) | ((nulls > 0) & (deleted == 0))
    is_known &= (spans.first == spans.last) | bounds.is_all_null
    is_known &= bounds.rows != UNKNOWN
    is_null, is_value = is_known & bounds.is_all_null, is_known & ~bounds.is_all_null
    np.add.at(counts, spans.first[is_value], (left - nulls)[is_value])
    counts[partition.null_range] += left[is_null].sum() + nulls[is_value].sum()
    return counts, tuple(files[index] for index in np.flatnonzero(~is_known))


def spread_counts(
    snapshot: Snapshot, partition: RangePartition, files: Sequence[DataFile], like: Ints
) -> Ints:
    """Rows per range of files without known counts, shape (size,). A file's rows are spread over
    the ranges between its bounds in proportion to 1 + `like`, the counts of other files of the
    table."""
    uris = {file.uri for file in files}
    places = [index for index, file in enumerate(snapshot.files) if file.uri in uris]
    bounds = file_bounds(snapshot, partition.attribute).take(np.array(places, dtype=np.int64))
    spans = file_spans(partition, bounds)
    rows = np.array([_likely_rows(snapshot, snapshot.files[index]) for index in places])
    nulls = np.maximum(bounds.null_counts, 0).astype(np.float64)
    nulls = np.where(spans.last < spans.first, rows, np.minimum(nulls, rows))
    weights = like[: partition.ranges] + 1.0
    before = np.concatenate([[0.0], np.cumsum(weights)])
    end = np.maximum(spans.last + 1, spans.first)
    share = (rows - nulls) / np.maximum(before[end] - before[spans.first], 1.0)
    steps = np.zeros(partition.ranges + 1)
    np.add.at(steps, spans.first, share)
    np.add.at(steps, end, -share)
    result = np.append(np.maximum(np.cumsum(steps)[:-1], 0.0) * weights, nulls.sum())
    counts: Ints = np.diff(np.rint(np.cumsum(result)), prepend=0.0).astype(np.int64)
    return counts


def likely_counts(snapshot: Snapshot, partition: RangePartition) -> Ints:
    """Estimated rows per range of the whole table, shape (size,), also after a change of type."""
    if snapshot.readable(partition.attribute).type != partition.type:
        return np.ones(partition.size, dtype=np.int64)
    counts, others = known_counts(snapshot, partition)
    return counts + spread_counts(snapshot, partition, others, counts) if others else counts


def _likely_rows(snapshot: Snapshot, file: DataFile) -> float:
    """Rows of a file, estimated from its bytes if the log does not say."""
    if file.rows is None:
        return snapshot.likely_rows * file.size / max(snapshot.bytes, 1)
    return float(file.rows - (0 if file.deleted is None else len(file.deleted)))


# The spans of a column's values in some files, and the files of another table that meet them. Law:
# every value except NULL, which joins with nothing, lies in a span. A file is skipped only if none
# of its values lies in one. NaN joins with NaN and is in no statistics, so it has a flag. An
# unknown bound includes everything.


class KeySpans(Struct, frozen=True):
    """Ascending disjoint spans, not adjacent, both ends included."""

    lows: tuple[BoundaryValue, ...]
    highs: tuple[BoundaryValue, ...]
    may_be_nan: bool

    def meets(self, bounds: ColumnBounds) -> Flags:
        """Which files with these bounds may hold one of the values."""
        # Spans that end before the file starts, and those that begin before it ends.
        over = np.where(bounds.has_low, places_in(self.highs, bounds.lows, "left"), 0)
        begun = np.where(
            bounds.has_high, places_in(self.lows, bounds.highs, "right"), len(self.lows)
        )
        meets = (begun > over) & ~bounds.is_all_null
        return meets | bounds.may_be_nan if self.may_be_nan else meets


def key_spans(files: ColumnBounds) -> KeySpans | None:
    """The spans of files with these bounds; None if some are unknown."""
    filled = files.filled
    if not filled.is_known:
        return None
    lows: list[BoundaryValue] = []
    highs: list[BoundaryValue] = []
    for low, high in sorted(zip(filled.lows.tolist(), filled.highs.tolist(), strict=True)):
        if highs and low <= highs[-1]:
            highs[-1] = max(highs[-1], high)
        else:
            lows.append(low)
            highs.append(high)
    return KeySpans(tuple(lows), tuple(highs), bool(filled.may_be_nan.any()))


# Files that a condition leaves. Law: a file is skipped only if the condition is true of none of its
# rows, by SQL's three-valued logic and Spark's order: NaN is above all numbers and not in
# statistics, -0.0 equals 0.0. A text maximum that may be cut is unknown. What is not examined
# (arithmetic, functions, casts, other types than the column's) may have any value.

_SAME_VALUES = frozenset({Kind.STRING, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ})
"""Types whose constants need no conversion beside a column of the same type."""


class _Outcomes(Struct, frozen=True, eq=False):
    """What a condition may be for some row of each file, shape (files,); NULL never matters."""

    may_be_true: Flags
    may_be_false: Flags

    @property
    def negated(self) -> _Outcomes:
        return _Outcomes(self.may_be_false, self.may_be_true)


def prune_by_condition(
    snapshot: Snapshot, condition: e.Expr, columns: Mapping[AttributeId, ColumnName]
) -> tuple[DataFile, ...]:
    """The files that may hold a row for which the condition is true; `columns` maps its
    attributes."""
    return snapshot.files_at(_FilePruner(snapshot, columns).of(condition).may_be_true)


class _FilePruner(Struct, frozen=True):
    """Evaluates conditions over one snapshot's statistics."""

    snapshot: Snapshot
    columns: Mapping[AttributeId, ColumnName]

    def of(self, condition: e.Expr) -> _Outcomes:
        """The condition over the rows of every file."""
        match condition:
            case e.And(operands=operands):
                result = [self.of(operand) for operand in operands]
                return _Outcomes(
                    np.logical_and.reduce([outcome.may_be_true for outcome in result]),
                    np.logical_or.reduce([outcome.may_be_false for outcome in result]),
                )
            case e.Or(operands=operands):
                return self.of(e.And(tuple(e.Not(operand) for operand in operands))).negated
            case e.Not(operand=operand):
                return self.of(operand).negated
            case e.Compare(op=op, left=e.ColumnRef() as left, right=e.Literal() as right):
                return self._compared(op, left, right)
            case e.Compare(op=op, left=e.Literal() as left, right=e.ColumnRef() as right):
                return self._compared(op.mirrored, right, left)
            case e.InList(operand=e.ColumnRef() as left, options=options):
                return self._listed(left, options)
            case e.IsNull(operand=e.ColumnRef() as operand):
                return self._missing(operand)
            case e.Literal(value=bool() as value):
                return self._everywhere(value, not value)
            case e.Literal(value=None):
                return self._everywhere(False, False)
        return self._anything()

    def _everywhere(self, may_be_true: bool, may_be_false: bool) -> _Outcomes:
        files = len(self.snapshot.files)
        return _Outcomes(np.full(files, may_be_true), np.full(files, may_be_false))

    def _anything(self) -> _Outcomes:
        return self._everywhere(True, True)

    def _bounds(self, ref: e.ColumnRef) -> tuple[Column, ColumnBounds] | None:
        """The column and its bounds by file; None if it has another type at this version."""
        if ref.id not in self.columns:
            return None
        column = self.snapshot.column(self.columns[ref.id])
        if column.type != ref.type or column.name in self.snapshot.columns.opaque:
            return None
        return column, file_bounds(self.snapshot, column.name)

    def _missing(self, ref: e.ColumnRef) -> _Outcomes:
        bounds = self._bounds(ref)
        if bounds is None:
            return self._anything()
        return _Outcomes(bounds[1].may_hold_null, ~bounds[1].is_all_null)

    def _listed(self, ref: e.ColumnRef, options: tuple[e.Expr, ...]) -> _Outcomes:
        """IN, as several equalities. One type is used for all, so another type may round the
        column."""
        is_alike = all(
            isinstance(option, e.Literal)
            and (option.type == ref.type or (option.type.is_integral and ref.type.is_integral))
            for option in options
        )
        if not is_alike:
            return self._anything()
        return self.of(e.Or(tuple(e.Compare(e.CompareOp.EQUAL, ref, option) for option in options)))

    def _compared(self, op: e.CompareOp, ref: e.ColumnRef, literal: e.Literal) -> _Outcomes:
        is_null_safe = op is e.CompareOp.NULL_SAFE_EQUAL
        if literal.value is None:
            return self._missing(ref) if is_null_safe else self._everywhere(False, False)
        result = self._bounds(ref)
        value = None if result is None else _constant(literal, result[0].type)
        if result is None or value is None:
            return self._anything()
        op = e.CompareOp.EQUAL if is_null_safe else op
        bounds, is_filled = result[1], ~result[1].is_all_null
        assert op.opposite is not None, "every comparison but `<=>` has one"
        may_be_false = is_filled & _condition_may_hold(op.opposite, bounds, value)
        return _Outcomes(
            is_filled & _condition_may_hold(op, bounds, value),
            may_be_false | bounds.may_hold_null if is_null_safe else may_be_false,
        )


def _condition_may_hold(
    op: e.CompareOp, bounds: ColumnBounds, value: BoundaryValue | Fraction
) -> Flags:
    """Whether the comparison may be true for a value between the bounds, or for a possible NaN."""
    (lows, point), (highs, _) = _beside(bounds.lows, value), _beside(bounds.highs, value)
    match op:
        case e.CompareOp.LESS:
            result = ~bounds.has_low | (lows < point)
        case e.CompareOp.LESS_EQUAL:
            result = ~bounds.has_low | (lows <= point)
        case e.CompareOp.GREATER:
            result = bounds.may_be_nan | ~bounds.has_high | (highs > point)
        case e.CompareOp.GREATER_EQUAL:
            result = bounds.may_be_nan | ~bounds.has_high | (highs >= point)
        case e.CompareOp.EQUAL:
            below = ~bounds.has_low | (lows <= point)
            result = below & (~bounds.has_high | (highs >= point))
        case _:
            is_it_alone = bounds.has_low & (lows == point) & bounds.has_high & (highs == point)
            result = bounds.may_be_nan | ~is_it_alone
    return np.asarray(result, dtype=np.bool_)


def _beside(values: Values, value: BoundaryValue | Fraction) -> tuple[Values, Any]:
    """Both in a form NumPy compares exactly: as objects where it would round."""
    if values.dtype == np.int64 and isinstance(value, int) and INT64_MIN <= value <= INT64_MAX:
        return values, value
    if values.dtype == np.float64 and isinstance(value, float):
        return values, value
    return values.astype(np.object_), np.array(value, dtype=np.object_)


def _constant(literal: e.Literal, kind: SqlType) -> BoundaryValue | Fraction | None:
    """The constant in the column's canonical form (see `data.vector`); None if Spark's common type
    rounds, or if they are not numbers of one sort."""
    value, other = literal.value, literal.type
    if kind.kind in _SAME_VALUES:
        if other.kind is not kind.kind or isinstance(value, bool):
            return None
        return value if isinstance(value, int | str) else None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if kind.is_fractional:
        # A constant of another sort becomes a float or a double; few whole numbers do so exactly.
        most = 1 << (24 if kind.kind is Kind.FLOAT else 53)
        is_exact = isinstance(value, float) or (isinstance(value, int) and abs(value) <= most)
        result = float(value) if is_exact else None
        return None if result is None or result != result else result
    if isinstance(value, float) or other.is_fractional:
        return None
    if kind.is_integral:
        return _exact(Fraction(value)) if _fits_beside(other) else None
    if kind.kind is Kind.DECIMAL and _fits_together(kind, other):
        return _exact(Fraction(value) * 10**kind.scale)
    return None


def _exact(value: Fraction) -> int | Fraction:
    """The same number, an int if possible: fractions are slow to compare."""
    return value.numerator if value.denominator == 1 else value


def _fits_beside(other: SqlType) -> bool:
    """Whether an integer column and this constant have a decimal that holds both exactly."""
    return other.is_integral or (other.kind is Kind.DECIMAL and 20 + other.scale <= 38)


def _fits_together(kind: SqlType, other: SqlType) -> bool:
    """Whether the two decimals have a common one that holds both exactly."""
    digits, scale = (19, 0) if other.is_integral else (other.precision, other.scale)
    wider = max(kind.scale, scale)
    return max(kind.precision - kind.scale, digits - scale) + wider <= 38


# Files that a range filter leaves. Law: a file is skipped only if none of its rows can match, NULL
# and NaN included. A file without statistics stays. NaN belongs to the interval that is open above
# and is not in statistics, so a file that may hold NaN matches every such interval. Cost: two
# binary searches per file, vectorized.


def prune(snapshot: Snapshot, filters: Sequence[RangeFilter]) -> tuple[DataFile, ...]:
    """The files that may hold rows that match all of these filters of one access."""
    return snapshot.files_at(kept_files(snapshot, filters))


def kept_files(snapshot: Snapshot, filters: Sequence[RangeFilter]) -> Flags:
    """Which files `prune` keeps, in the order of `snapshot.files`."""
    kept = np.ones(len(snapshot.uris), dtype=np.bool_)
    for range_filter in filters:
        column = snapshot.readable(range_filter.partition.attribute)
        if range_filter.is_everything or column.type != range_filter.partition.type:
            continue
        kept &= _may_match(range_filter, file_bounds(snapshot, column.name))
    return kept


def _may_match(range_filter: RangeFilter, bounds: ColumnBounds) -> Flags:
    """Which files with these bounds may hold a row that the filter selects. The intervals ascend,
    so only the first may be unbounded below and only the last one above."""
    intervals = range_filter.intervals
    starts = [interval.low for interval in intervals if interval.low is not None]
    ends = [interval.high for interval in intervals if interval.high is not None]
    # Intervals that end before the file starts, and those that begin before it ends.
    over = np.where(bounds.has_low, places_in(ends, bounds.lows, "right"), 0)
    unended = places_in(starts, bounds.highs, "right") + len(intervals) - len(starts)
    begun = np.where(bounds.has_high, unended, len(intervals))
    may_match = begun > over
    if len(ends) < len(intervals):
        may_match |= bounds.may_be_nan
    may_match &= ~bounds.is_all_null
    return may_match | bounds.may_hold_null if range_filter.includes_null else may_match


def prune_to_values(
    snapshot: Snapshot, values: Mapping[ColumnName, Vector]
) -> tuple[DataFile, ...]:
    """The files that may hold a row with one of these values in each of these columns."""
    kept = np.ones(len(snapshot.uris), dtype=np.bool_)
    for name, vector in values.items():
        column = snapshot.readable(name)
        if column.type == vector.type:
            kept &= _may_hold(vector, file_bounds(snapshot, column.name))
    return snapshot.files_at(kept)


def _may_hold(vector: Vector, bounds: ColumnBounds) -> Flags:
    """Which files with these bounds may hold one of the values."""
    valid = vector.validity()
    known = vector.take(np.flatnonzero(valid)).values
    values: list[BoundaryValue] = known.to_pylist() if vector.is_textual else known.tolist()
    plain = tuple(sorted({value for value in values if value == value}))
    has_nan = any(value != value for value in values)
    may_hold = KeySpans(plain, plain, has_nan).meets(bounds)
    return may_hold if bool(valid.all()) else may_hold | bounds.may_hold_null
