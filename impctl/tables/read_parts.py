"""What is read of a snapshot for a sketch: files in parts, each with the few ranges it needs.

Law: there is a set of whole ranges, the sketch's and perhaps some between them, of which the parts
give all rows and no others; so every group is seen whole or not at all, if it lies in one range.
A file is in one part at most; a part without a filter has rows of these ranges alone. No filter has
more than `MAX_INTERVALS` intervals and one for NaN.
Out of scope: conditions of the query (`tables.prune_condition`), reading (`spark.snapshots`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from impctl.sketch.fragments import FragmentSet
from impctl.sketch.intervals import MAX_INTERVALS, RangeFilter, exact_filter, range_filter
from impctl.sketch.partition import BoundaryValue, RangePartition
from impctl.tables.bounds import ColumnBounds, FileBounds
from impctl.tables.prune import left_by
from impctl.tables.snapshot import DataFile, Snapshot
from impctl.tables.statistics import file_bounds

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
        found = _parted(snapshot, bounds, wanted)
        if found is not None:
            return PartedRead(wanted, found)
        limit = max(MAX_INTERVALS, len(wanted.intervals) // 2)
        wanted = range_filter(fragments, partition, limit=limit)


def _parted(
    snapshot: Snapshot, bounds: ColumnBounds, wanted: RangeFilter
) -> tuple[ReadPart, ...] | None:
    """The parts of a filter; None where they would be too many, or a file needs too many ranges."""
    if wanted.is_everything:
        return (ReadPart(snapshot.files, None),)
    left = left_by(snapshot, [wanted])
    ranges = _Ranges.of(wanted)
    kept = zip(snapshot.files_at(left), bounds.keep(left), strict=True)
    placed = [ranges.place(file, found) for file, found in kept]
    inside = tuple(found.file for found in placed if found.is_inside)
    others = sorted((found for found in placed if not found.is_inside), key=lambda p: p.first)
    parts = [ReadPart(inside, None)] if inside else []
    if len(wanted.intervals) <= MAX_INTERVALS:
        rest = tuple(found.file for found in others)
        return (*parts, ReadPart(rest, wanted)) if rest else tuple(parts)
    for group in _grouped(others):
        first, end = group[0].first, max(found.end for found in group)
        if end - first > MAX_INTERVALS:
            return None
        intervals = wanted.intervals[first:end]
        if end < len(wanted.intervals) and any(found.may_be_nan for found in group):
            intervals += wanted.intervals[-1:]
        part = RangeFilter(wanted.partition, intervals, wanted.includes_null)
        parts.append(ReadPart(tuple(found.file for found in group), part))
    return tuple(parts) if len(parts) <= MAX_PARTS + bool(inside) else None


@dataclass(frozen=True, slots=True)
class _Placed:
    """A file with the intervals that it may hold rows of: those from `first` before `end`."""

    file: DataFile
    first: int
    end: int
    is_inside: bool
    """Whether all its rows are wanted."""
    may_be_nan: bool
    """Whether it may hold NaN, and NaN is wanted."""


@dataclass(frozen=True, slots=True)
class _Ranges:
    """A filter, ready to place many files in; only its first interval may be open below, and only
    its last one above, where NaN is."""

    wanted: RangeFilter
    lows: tuple[BoundaryValue, ...]
    highs: tuple[BoundaryValue, ...]

    @classmethod
    def of(cls, wanted: RangeFilter) -> _Ranges:
        lows = tuple(found.low for found in wanted.intervals if found.low is not None)
        highs = tuple(found.high for found in wanted.intervals if found.high is not None)
        return cls(wanted, lows, highs)

    def place(self, file: DataFile, bounds: FileBounds) -> _Placed:
        low, high = bounds.minimum, bounds.maximum
        count = len(self.wanted.intervals)
        first = 0 if low is None else bisect_right(self.highs, low)
        starting = len(self.lows) if high is None else bisect_right(self.lows, high)
        end = max(first, count - len(self.lows) + starting)
        wants_nan = len(self.highs) < count
        is_inside = (
            (bounds.is_all_null or (end == first + 1 and self._holds(first, low, high)))
            and (self.wanted.includes_null or not bounds.may_hold_null)
            and (wants_nan or not bounds.may_be_nan)
        )
        return _Placed(file, first, end, is_inside, wants_nan and bounds.may_be_nan)

    def _holds(self, at: int, low: BoundaryValue | None, high: BoundaryValue | None) -> bool:
        """Whether all from `low` to `high` lie in one interval."""
        if low is None or high is None:
            return False
        found = self.wanted.intervals[at]
        starts = found.low is None or found.low <= low  # type: ignore[operator]  # one column, one value type
        return starts and (found.high is None or high < found.high)  # type: ignore[operator]  # as above


def _grouped(placed: Sequence[_Placed]) -> Iterator[list[_Placed]]:
    """Files, ascending by their first interval, together while they need few intervals."""
    group: list[_Placed] = []
    end = 0
    for found in placed:
        if group and max(end, found.end) - group[0].first > MAX_INTERVALS:
            yield group
            group, end = [], 0
        group.append(found)
        end = max(end, found.end)
    if group:
        yield group
