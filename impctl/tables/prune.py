"""Which files of a snapshot a range filter leaves, by statistics and partition values alone.

Law: a file is left out only when no row in it can match, NULL and NaN included; a file without
statistics stays. NaN belongs to the interval that is open above and is not in the statistics, so
a file that may hold one matches every such interval. Cost: two binary searches per file.
Out of scope: row groups inside a file (Spark prunes those itself).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from impctl.aliases import ColumnName
from impctl.data.vector import Vector
from impctl.sketch.intervals import RangeFilter
from impctl.sketch.partition import BoundaryValue
from impctl.tables.snapshot import DataFile, Snapshot
from impctl.tables.statistics import FileBounds, file_bounds


def prune(snapshot: Snapshot, filters: Sequence[RangeFilter]) -> tuple[DataFile, ...]:
    """The files that may hold rows that match all of these filters of one access."""
    kept = [True] * len(snapshot.files)
    for wanted in filters:
        column = snapshot.readable(wanted.partition.attribute)
        if wanted.is_everything or column.type != wanted.partition.type:
            continue
        bounds, asked = file_bounds(snapshot, column.name), _Wanted.of(wanted)
        kept = [keep and asked.may_be_in(bound) for keep, bound in zip(kept, bounds, strict=True)]
    return tuple(file for file, keep in zip(snapshot.files, kept, strict=True) if keep)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A filter, ready to be held against many files."""

    filter: RangeFilter
    highs: tuple[BoundaryValue, ...]
    """Where the intervals end, ascending; without that of one that is open above."""

    @classmethod
    def of(cls, wanted: RangeFilter) -> _Wanted:
        """The filter's intervals ascend, so only the last may be open above."""
        ends = tuple(found.high for found in wanted.intervals if found.high is not None)
        return cls(wanted, ends)

    def may_be_in(self, bounds: FileBounds) -> bool:
        """Whether a file with these bounds may hold a row that the filter wants."""
        if self.filter.includes_null and bounds.may_hold_null:
            return True
        intervals = self.filter.intervals
        if bounds.is_all_null or not intervals:
            return False
        if bounds.may_be_nan and intervals[-1].high is None:
            return True
        low, high = bounds.minimum, bounds.maximum
        first = 0 if low is None else bisect_right(self.highs, low)
        if first == len(intervals):
            return False
        start = intervals[first].low
        return start is None or high is None or high >= start  # type: ignore[operator]  # one column, one value type


def prune_to_values(
    snapshot: Snapshot, values: Mapping[ColumnName, Vector]
) -> tuple[DataFile, ...]:
    """The files that may hold a row with one of these values in each of these columns."""
    kept = [True] * len(snapshot.files)
    for name, wanted in values.items():
        column = snapshot.readable(name)
        if column.type != wanted.type:
            continue
        asked = _asked(wanted)
        bounds = file_bounds(snapshot, column.name)
        kept = [keep and asked.may_be_in(bound) for keep, bound in zip(kept, bounds, strict=True)]
    return tuple(file for file, keep in zip(snapshot.files, kept, strict=True) if keep)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Values to look for: ascending ones, and NULL and NaN apart."""

    values: Sequence[BoundaryValue]
    has_null: bool
    has_nan: bool

    def may_be_in(self, bounds: FileBounds) -> bool:
        """Whether a file with these bounds may hold one of the values."""
        if (self.has_null and bounds.may_hold_null) or (self.has_nan and bounds.may_be_nan):
            return True
        if bounds.is_all_null:
            return False
        low, high = bounds.minimum, bounds.maximum
        first = 0 if low is None else bisect_left(self.values, low)
        end = len(self.values) if high is None else bisect_right(self.values, high)
        return first < end


def _asked(wanted: Vector) -> _Asked:
    valid = wanted.validity()
    known = wanted.take(np.flatnonzero(valid)).values
    found: list[BoundaryValue] = known.to_pylist() if wanted.is_textual else known.tolist()
    plain = sorted({value for value in found if value == value})
    return _Asked(plain, not bool(valid.all()), any(value != value for value in found))
