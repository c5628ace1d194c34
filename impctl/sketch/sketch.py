"""Range partitions of one attribute over its whole domain.

Law: every value has exactly one range. With boundaries b1 < ... < bm, range 0 is open below, range
i holds b_i <= v < b_(i+1), range m is open above and holds NaN; range m + 1 holds NULL only. -0.0
equals 0.0. Strings compare by code point, which is Spark's UTF8 binary order.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt
from bitarray import bitarray, frozenbitarray
from msgspec import Struct

from impctl.data.schema import FRACTIONAL, INTEGRAL, TEMPORAL, Kind, SqlType
from impctl.data.vector import INT64_MIN, Bools, Vector
from impctl.errors import UsageError

if TYPE_CHECKING:
    from impctl.data.vector import Ints
    from impctl.types import ColumnName, TableName


BoundaryValue = int | float | str | bytes
"""A boundary in canonical form (see `data.vector`): unscaled for decimals, days for dates."""
PARTITIONABLE = INTEGRAL | FRACTIONAL | TEMPORAL | {Kind.DECIMAL, Kind.STRING}
"""Types that ranges can be made of."""
RangeIds = npt.NDArray[np.int32]

_TABLE = 1 << 20  # Integers from the first boundary to the last that a look-up table may hold
_PER_VALUE = 8  # Table entries allowed per value looked up


class RangePartition(Struct, frozen=True, dict=True):
    """A partition of `table` on `attribute` by strictly increasing canonical boundaries."""

    table: TableName
    attribute: ColumnName
    type: SqlType
    boundaries: tuple[BoundaryValue, ...]

    def __post_init__(self) -> None:
        for low, high in zip(self.boundaries, self.boundaries[1:], strict=False):
            if not low < high:  # type: ignore[operator]  # one column, one value type
                raise UsageError(
                    f"Boundaries of `{self.table}.{self.attribute}` must increase:"
                    f" {low!r}, {high!r}",
                    code="boundaries_not_increasing",
                    hint="sort the boundaries and remove duplicates",
                )

    @property
    def ranges(self) -> int:
        """Number of ranges, not counting the one for NULL."""
        return len(self.boundaries) + 1

    @property
    def null_range(self) -> int:
        """Id of the range for NULL; it is the last one."""
        return self.ranges

    @property
    def size(self) -> int:
        """Number of ranges, including the one for NULL."""
        return self.ranges + 1

    @cached_property
    def id(self) -> str:
        """Content hash: equal exactly when rows are mapped to ranges the same way."""
        text = repr((self.table, self.attribute.lower(), str(self.type), self.boundaries))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def _array(self) -> npt.NDArray[np.int64] | npt.NDArray[np.float64] | None:
        """Boundaries as a NumPy array if one holds them exactly."""
        # An array of texts would reserve the length of the longest for each.
        if not self.boundaries or isinstance(self.boundaries[0], str | bytes):
            return None
        # With integers beyond 64 bits the array's type is not int64.
        array = np.array(self.boundaries)
        dtype = np.float64 if isinstance(self.boundaries[0], float) else np.int64
        return array if array.dtype == dtype else None

    @cached_property
    def _span(self) -> int | None:
        """Integers from below the first boundary to the last one; None if too many."""
        array = self._array
        if array is None or array.dtype != np.int64:
            return None
        span = int(array[-1]) - int(array[0]) + 2
        return span if span <= _TABLE and int(array[0]) > INT64_MIN else None

    @cached_property
    def _table(self) -> RangeIds:
        """The range id of each integer of the span."""
        array, span = self._array, self._span
        assert array is not None
        assert span is not None
        numbers = np.arange(span, dtype=np.int64) + (int(array[0]) - 1)
        return np.searchsorted(array, numbers, side="right").astype(np.int32)

    def range_ids_of(self, vector: Vector) -> RangeIds:
        """Range id of each value; shape (n,), int32. Cost: n log(ranges), at most."""
        span = self._span
        if not self.boundaries:
            ids = np.zeros(len(vector), dtype=np.int32)
        elif span is not None and _is_whole(vector) and len(vector) * _PER_VALUE >= span:
            # Values outside the span have the range of its nearest end.
            below = int(self.boundaries[0]) - 1
            ids = self._table[np.clip(vector.values, below, below + span - 1) - below]
        elif not vector.is_textual and self._array is not None and vector.values.dtype != object:
            ids = np.searchsorted(self._array, vector.values, side="right").astype(np.int32)
        else:
            ids = self._one_by_one(vector)
        if vector.valid is not None:
            ids[~vector.valid] = self.null_range
        return ids

    def are_all_in(self, vector: Vector, mask: Bools) -> bool:
        """Whether `mask`, of shape (size,), has every range from the least value to the
        greatest, without looking values up. False if unknown: for all but integers without NULL."""
        if not len(vector) or vector.valid is not None or not _is_whole(vector):
            return False
        ends = np.array([vector.values.min(), vector.values.max()])
        low, high = self.range_ids_of(Vector(vector.type, ends)).tolist()
        return bool(mask[low : high + 1].all())

    def _one_by_one(self, vector: Vector) -> RangeIds:
        # Strings and wide decimals have no NumPy order: one search per distinct value of the batch.
        values = vector.values.to_pylist() if vector.is_textual else vector.values
        known: dict[object, int] = {}
        ids = np.zeros(len(vector), dtype=np.int32)
        for position, value in enumerate(values):
            if value is None:
                continue
            result = known.get(value)
            if result is None:
                result = known[value] = bisect_right(self.boundaries, value)
            ids[position] = result
        return ids


def _is_whole(vector: Vector) -> bool:
    """Whether NumPy holds the values as integers, unlike wide decimals."""
    return not vector.is_textual and vector.values.dtype == np.int64


class MaintenanceMode(StrEnum):
    """How a sketch is maintained, best first; stored with it, so texts never change meaning."""

    EXACT = "exact"
    TOUCH = "touch"
    RECAPTURE = "recapture"


class RangeSet(Struct, frozen=True):
    """A subset of the ranges 0 .. size-1 of a partition, as bits."""

    bits: frozenbitarray

    @classmethod
    def of(cls, ids: Iterable[int], size: int) -> Self:
        """IndexError for an id outside of `size` ranges."""
        bits = bitarray(size, endian="little")
        for range_id in ids:
            bits[range_id] = 1
        return cls(frozenbitarray(bits))

    @classmethod
    def from_mask(cls, mask: npt.NDArray[np.bool_]) -> Self:
        bits = bitarray(endian="little")
        bits.frombytes(np.packbits(mask, bitorder="little").tobytes())
        return cls(frozenbitarray(bits[: len(mask)]))

    @classmethod
    def from_bytes(cls, data: bytes, size: int) -> Self:
        bits = bitarray(endian="little")
        bits.frombytes(data)
        return cls(frozenbitarray(bits[:size]))

    def to_mask(self) -> npt.NDArray[np.bool_]:
        """Shape (size,)."""
        result = np.frombuffer(self.to_bytes(), dtype=np.uint8)
        return np.unpackbits(result, count=self.size, bitorder="little").astype(np.bool_)

    def to_bytes(self) -> bytes:
        """Bit k in byte k // 8 at position k % 8, padded with zeros."""
        return bitarray(self.bits, endian="little").tobytes()

    @property
    def size(self) -> int:
        return len(self.bits)

    @property
    def ids(self) -> tuple[int, ...]:
        """Ascending."""
        return tuple(self.bits.search(1))

    def __len__(self) -> int:
        return self.bits.count(1)

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids)

    def __contains__(self, range_id: int) -> bool:
        return 0 <= range_id < len(self.bits) and bool(self.bits[range_id])

    def union(self, other: RangeSet) -> RangeSet:
        return RangeSet(frozenbitarray(self.bits | other.bits))

    def minus(self, other: RangeSet) -> RangeSet:
        return RangeSet(frozenbitarray(self.bits & ~other.bits))


class Comparison(Struct, frozen=True):
    """A sketch compared with the accurate one: it may be too large, never too small."""

    missing: tuple[int, ...]
    extra: tuple[int, ...]

    @property
    def covers(self) -> bool:
        return not self.missing

    @property
    def slack(self) -> int:
        return len(self.extra)


def compare(sketch: RangeSet, accurate: RangeSet) -> Comparison:
    """Compare two sketches over the same partition."""
    return Comparison(accurate.minus(sketch).ids, sketch.minus(accurate).ids)


MAX_INTERVALS = 32  # Spark's generated filter becomes far slower between 48 and 64 intervals


class Interval(Struct, frozen=True):
    """`low <= v < high`; None is unbounded. The interval unbounded above holds NaN too."""

    low: BoundaryValue | None
    high: BoundaryValue | None


class RangeFilter(Struct, frozen=True):
    """The rows of an access to read. The intervals ascend and do not touch."""

    partition: RangePartition
    intervals: tuple[Interval, ...]
    includes_null: bool

    @property
    def is_everything(self) -> bool:
        return self.includes_null and self.intervals == (Interval(None, None),)


def range_filter(
    ranges: RangeSet, partition: RangePartition, *, limit: int = MAX_INTERVALS
) -> RangeFilter:
    """The filter for a sketch: at least every value of its ranges, in at most `limit` intervals.
    The gaps of fewest ranges are closed first, which only adds values (superset lemma of Niu et
    al., PVLDB 2021)."""
    runs = _runs([f for f in ranges.ids if f != partition.null_range])
    gaps = [
        (start - end - 1, index)
        for index, ((_, end), (start, _)) in enumerate(zip(runs, runs[1:], strict=False))
    ]
    closed = {index for _, index in sorted(gaps)[: max(0, len(runs) - limit)]}
    merged: list[tuple[int, int]] = []
    for index, run in enumerate(runs):
        if index > 0 and index - 1 in closed:
            merged[-1] = (merged[-1][0], run[1])
        else:
            merged.append(run)
    ends = (None, *partition.boundaries, None)
    intervals = tuple(Interval(ends[first], ends[last + 1]) for first, last in merged)
    return RangeFilter(partition, intervals, partition.null_range in ranges)


def exact_filter(ranges: RangeSet, partition: RangePartition) -> RangeFilter:
    """The filter with no gap closed, to skip files, where intervals cost nothing."""
    return range_filter(ranges, partition, limit=partition.size)


def ranges_between(interval: Interval, partition: RangePartition) -> range:
    """The ranges of an interval whose ends are boundaries."""
    first = 0 if interval.low is None else bisect_right(partition.boundaries, interval.low)
    if interval.high is None:
        return range(first, partition.ranges)
    return range(first, bisect_right(partition.boundaries, interval.high))


def _runs(ids: list[int]) -> list[tuple[int, int]]:
    """Maximal runs of consecutive ids as (first, last)."""
    runs: list[tuple[int, int]] = []
    for range_id in ids:
        if runs and runs[-1][1] == range_id - 1:
            runs[-1] = (runs[-1][0], range_id)
        else:
            runs.append((range_id, range_id))
    return runs


class Renumbering(Struct, frozen=True, dict=True):
    """Map from the ranges of `old` to those of `new`, both on one attribute of one table.

    A new range is in the new sketch if any old range that shares a value with it is in the old one.
    So the new sketch covers every row of the old one, and is sound wherever the attribute is safe
    (superset lemma of Niu et al., PVLDB 2021; Liu et al., EDBT 2026, section 7.4). NULL's range
    stays NULL's; NaN is in the last range before and after.
    """

    old: RangePartition
    new: RangePartition

    def ranges(self, sketch: RangeSet) -> RangeSet:
        """The sketch over the new ranges."""
        mask = np.zeros(self.new.size, dtype=np.bool_)
        for range_id in sketch:
            mask[self.first[range_id] : self.last[range_id] + 1] = True
        return RangeSet.from_mask(mask)

    @cached_property
    def targets(self) -> Ints:
        """For each old range the new range that contains it, -1 for one that was split."""
        return np.where(self.first == self.last, self.first, -1)

    def carried(self, counts: Ints) -> Ints:
        """Counts per old range as counts per new one, without those of split ranges."""
        is_mapped = self.targets >= 0
        result = np.zeros(self.new.size, dtype=np.int64)
        np.add.at(result, self.targets[is_mapped], counts[is_mapped])
        return result

    @cached_property
    def first(self) -> Ints:
        """For each old range the first new one that shares values with it."""
        starts = [bisect_right(self.new.boundaries, low) for low in self.old.boundaries]
        return np.array([0, *starts, self.new.null_range], dtype=np.int64)

    @cached_property
    def last(self) -> Ints:
        """For each old range the last new one that shares values with it."""
        ends = [bisect_left(self.new.boundaries, high) for high in self.old.boundaries]
        return np.array([*ends, self.new.ranges - 1, self.new.null_range], dtype=np.int64)
