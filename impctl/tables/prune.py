"""Which files of a snapshot a range filter leaves, by statistics and partition values alone.

Law: a file is left out only when no row in it can match, NULL and NaN included; a file without
statistics stays. NaN belongs to the interval that is open above and is not in the statistics, so
a file that may hold one matches every such interval.
Out of scope: row groups inside a file (Spark prunes those itself).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from impctl.aliases import ColumnName
from impctl.data.vector import Vector
from impctl.sketch.intervals import Interval, RangeFilter
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
        bounds = file_bounds(snapshot, column.name)
        kept = [keep and may_match(bound, wanted) for keep, bound in zip(kept, bounds, strict=True)]
    return tuple(file for file, keep in zip(snapshot.files, kept, strict=True) if keep)


def may_match(bounds: FileBounds, wanted: RangeFilter) -> bool:
    """Whether a file with these bounds may hold a row that the filter wants."""
    if wanted.includes_null and bounds.may_hold_null:
        return True
    if bounds.is_all_null:
        return False
    return any(_overlaps(bounds, interval) for interval in wanted.intervals)


def _overlaps(bounds: FileBounds, interval: Interval) -> bool:
    if interval.high is None and bounds.may_be_nan:
        return True
    low, high = bounds.minimum, bounds.maximum
    starts_before_end = low is None or interval.high is None or low < interval.high  # type: ignore[operator]  # one column, one value type
    ends_after_start = high is None or interval.low is None or high >= interval.low  # type: ignore[operator]  # one column, one value type
    return starts_before_end and ends_after_start


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
