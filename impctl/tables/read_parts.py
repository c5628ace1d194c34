"""What is read of a snapshot for a sketch: files in parts, each with the few ranges it needs.

Law: there is a set of whole ranges, the sketch's and perhaps some between them, of which the parts
give all rows and no others; so every group is seen whole or not at all, if it lies in one range.
A file is in one part at most; a part without a filter has rows of these ranges alone. No filter has
more than `MAX_INTERVALS` intervals and one for NaN.
Out of scope: conditions of the query (`tables.prune_condition`), reading (`spark.snapshots`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from impctl.data.vector import Ints
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import MAX_INTERVALS, FragmentSet, RangeFilter, exact_filter, range_filter
from impctl.tables.bounds import ColumnBounds, Flags, places_in
from impctl.tables.prune import left_by
from impctl.tables.snapshot import DataFile, Snapshot
from impctl.tables.statistics import file_bounds
from impctl.values import dataclass

MAX_PARTS = 16
"""Parts with a filter: each is planned by Spark and read by tasks of its own."""


@dataclass(frozen=True, slots=True)
class ReadPart:
    """Files, and the filter that their rows need; None where all their rows are wanted."""

    files: tuple[DataFile, ...]
    filter: RangeFilter | None

    def within(self, uris: Collection[str]) -> ReadPart:
        """The part, of these files alone."""
        return ReadPart(tuple(file for file in self.files if file.uri in uris), self.filter)


@dataclass(frozen=True, slots=True)
class PartedRead:
    """The parts, and the ranges of which they give all rows."""

    wanted: RangeFilter
    parts: tuple[ReadPart, ...]


def parted_read(
    snapshot: Snapshot, fragments: FragmentSet, partition: RangePartition
) -> PartedRead:
    """The parts for a sketch: as few files as `MAX_PARTS` allow.

    Gaps between its ranges are closed, the smallest first, until the parts are few enough.
    """
    column = snapshot.readable(partition.attribute)
    if column.type != partition.type:
        # Of the boundaries' type no bounds of files are known: nothing to tell parts apart by.
        wanted = range_filter(fragments, partition)
        return PartedRead(wanted, (ReadPart(snapshot.files, wanted),))
    bounds = file_bounds(snapshot, column.name)
    wanted = exact_filter(fragments, partition)
    while True:
        result = _parted(snapshot, bounds, wanted)
        if result is not None:
            return PartedRead(wanted, result)
        limit = max(MAX_INTERVALS, len(wanted.intervals) // 2)
        wanted = range_filter(fragments, partition, limit=limit)


def _parted(
    snapshot: Snapshot, bounds: ColumnBounds, wanted: RangeFilter
) -> tuple[ReadPart, ...] | None:
    """The parts of a filter; None where they would be too many, or a file needs too many ranges."""
    if wanted.is_everything:
        return (ReadPart(snapshot.files, None),)
    left = np.flatnonzero(left_by(snapshot, [wanted]))
    placed = _Placed.of(bounds.take(left), wanted)
    inside = snapshot.files_at(left[placed.is_inside])
    others = np.flatnonzero(~placed.is_inside)
    others = others[np.argsort(placed.first[others], kind="stable")]
    parts = [ReadPart(inside, None)] if inside else []
    if len(wanted.intervals) <= MAX_INTERVALS:
        rest = snapshot.files_at(left[others])
        return (*parts, ReadPart(rest, wanted)) if rest else tuple(parts)
    for group in placed.grouped(others):
        first, end = int(placed.first[group[0]]), int(placed.end[group].max())
        if end - first > MAX_INTERVALS:
            return None
        intervals = wanted.intervals[first:end]
        if end < len(wanted.intervals) and bool(placed.may_be_nan[group].any()):
            intervals += wanted.intervals[-1:]
        part = RangeFilter(wanted.partition, intervals, wanted.includes_null)
        parts.append(ReadPart(snapshot.files_at(left[group]), part))
    return tuple(parts) if len(parts) <= MAX_PARTS + bool(inside) else None


@dataclass(frozen=True, slots=True)
class _Placed:
    """The intervals that each file may hold rows of, those from `first` before `end`; all arrays of
    shape (files,). Only a filter's first interval may be open below, and only its last one above,
    where NaN is."""

    first: Ints
    end: Ints
    is_inside: Flags
    """Whether all rows of the file are wanted."""
    may_be_nan: Flags
    """Whether it may hold NaN, and NaN is wanted."""

    @classmethod
    def of(cls, bounds: ColumnBounds, wanted: RangeFilter) -> _Placed:
        starts = [result.low for result in wanted.intervals if result.low is not None]
        ends = [result.high for result in wanted.intervals if result.high is not None]
        count = len(wanted.intervals)
        wants_nan = len(ends) < count
        # How many intervals have begun, or are over, where a file starts and where it ends.
        begun_at_low = count - len(starts) + places_in(starts, bounds.lows, "right")
        begun_at_high = count - len(starts) + places_in(starts, bounds.highs, "right")
        over_at_low, over_at_high = (
            places_in(ends, values, "right") for values in (bounds.lows, bounds.highs)
        )
        first = np.where(bounds.has_low, over_at_low, 0)
        end = np.maximum(first, np.where(bounds.has_high, begun_at_high, count))
        holds = bounds.has_low & bounds.has_high & (begun_at_low > first) & (over_at_high <= first)
        is_inside = bounds.is_all_null | ((end == first + 1) & holds)
        if not wanted.includes_null:
            is_inside = is_inside & ~bounds.may_hold_null
        if not wants_nan:
            is_inside = is_inside & ~bounds.may_be_nan
        return cls(first, end, is_inside, bounds.may_be_nan & wants_nan)

    def grouped(self, others: Ints) -> Iterator[Ints]:
        """These files, ascending by their first interval, together while they need few."""
        start, last = 0, 0
        firsts, ends = self.first[others].tolist(), self.end[others].tolist()
        for at, end in enumerate(ends):
            if at > start and max(last, end) - firsts[start] > MAX_INTERVALS:
                yield others[start:at]
                start, last = at, 0
            last = max(last, end)
        if len(others):
            yield others[start:]
