"""Which files of a snapshot a range filter leaves, by statistics and partition values alone.

Law: a file is left out only when no row in it can match, NULL and NaN included; a file without
statistics stays. NaN belongs to the interval that is open above and is not in the statistics, so
a file that may hold one matches every such interval. Cost: two binary searches per file,
all files' at once.
Out of scope: row groups inside a file (Spark prunes those itself).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from impctl.data.vector import Vector
from impctl.sketch.partition import BoundaryValue
from impctl.sketch.sketch import RangeFilter
from impctl.tables.bounds import ColumnBounds, Flags, places_in
from impctl.tables.snapshot import DataFile, Snapshot
from impctl.tables.statistics import file_bounds
from impctl.types import ColumnName


def prune(snapshot: Snapshot, filters: Sequence[RangeFilter]) -> tuple[DataFile, ...]:
    """The files that may hold rows that match all of these filters of one access."""
    return snapshot.files_at(left_by(snapshot, filters))


def left_by(snapshot: Snapshot, filters: Sequence[RangeFilter]) -> Flags:
    """Which files `prune` leaves, in the order of `snapshot.files`."""
    kept = np.ones(len(snapshot.uris), dtype=np.bool_)
    for wanted in filters:
        column = snapshot.readable(wanted.partition.attribute)
        if wanted.is_everything or column.type != wanted.partition.type:
            continue
        kept &= _may_match(wanted, file_bounds(snapshot, column.name))
    return kept


def _may_match(wanted: RangeFilter, bounds: ColumnBounds) -> Flags:
    """Which files with these bounds may hold a row that the filter wants.

    The intervals ascend, so only the first may be open below and only the last one above.
    """
    intervals = wanted.intervals
    starts = [result.low for result in intervals if result.low is not None]
    ends = [result.high for result in intervals if result.high is not None]
    # Intervals that end before the file starts, and those that begin before it ends.
    over = np.where(bounds.has_low, places_in(ends, bounds.lows, "right"), 0)
    unended = places_in(starts, bounds.highs, "right") + len(intervals) - len(starts)
    begun = np.where(bounds.has_high, unended, len(intervals))
    may_match = begun > over
    if len(ends) < len(intervals):
        may_match |= bounds.may_be_nan
    may_match &= ~bounds.is_all_null
    return may_match | bounds.may_hold_null if wanted.includes_null else may_match


def prune_to_values(
    snapshot: Snapshot, values: Mapping[ColumnName, Vector]
) -> tuple[DataFile, ...]:
    """The files that may hold a row with one of these values in each of these columns."""
    kept = np.ones(len(snapshot.uris), dtype=np.bool_)
    for name, wanted in values.items():
        column = snapshot.readable(name)
        if column.type == wanted.type:
            kept &= _may_hold(wanted, file_bounds(snapshot, column.name))
    return snapshot.files_at(kept)


def _may_hold(wanted: Vector, bounds: ColumnBounds) -> Flags:
    """Which files with these bounds may hold one of the values."""
    valid = wanted.validity()
    known = wanted.take(np.flatnonzero(valid)).values
    boundary_values: list[BoundaryValue] = (
        known.to_pylist() if wanted.is_textual else known.tolist()
    )
    plain = sorted({value for value in boundary_values if value == value})
    below = np.where(bounds.has_low, places_in(plain, bounds.lows, "left"), 0)
    reached = np.where(bounds.has_high, places_in(plain, bounds.highs, "right"), len(plain))
    may_hold = (below < reached) & ~bounds.is_all_null
    if not bool(valid.all()):
        may_hold |= bounds.may_hold_null
    if any(value != value for value in boundary_values):
        may_hold |= bounds.may_be_nan
    return may_hold
