"""Which values the rows of a column have, from what the log says of all files and a sample.

Law: every file of the snapshot counts with its rows, read or not. A file's rows are spread over the
sampled values between its bounds, or evenly between the bounds where there are hardly any. Cost:
one pass over the log's statistics.
Out of scope: taking the sample (`tables.sample`), boundaries (`sketch.boundaries`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from impctl.data.vector import Ints
from impctl.sketch.boundaries import ValueWeights
from impctl.sketch.partition import BoundaryValue
from impctl.tables.bounds import UNKNOWN, ColumnBounds, places_in
from impctl.tables.snapshot import Snapshot
from impctl.tables.statistics import file_bounds
from impctl.types import ColumnName
from impctl.values import dataclass

Floats = npt.NDArray[np.float64]

_ENOUGH = 8
"""Sampled values between a file's bounds from which they tell how its rows are spread."""
_POINTS = 4
"""Values that stand for the rows of a file of which too few are in the sample."""


@dataclass(frozen=True, slots=True)
class ColumnSpread:
    """The values of a column by weight, and how its files lie among them.

    `files`: bounds of all files of the table. `starts`: their least values, ascending. `depth`: how
    many files may hold the value of a row, on average: 1 in a table that is sorted by the column,
    all files where it is not at all.
    """

    weights: ValueWeights
    files: ColumnBounds
    starts: tuple[BoundaryValue, ...]
    depth: float


def with_overlaps(
    boundaries: Sequence[BoundaryValue], files: ColumnBounds
) -> tuple[BoundaryValue, ...]:
    """The boundaries, and one more behind each overlap of files that ends in the next range.

    A value that ends one file and starts the next then has its range to itself, and all other
    ranges of the two are in one file each.
    """
    starts, reached = _reached(files.filled)
    boundary_values: list[BoundaryValue] = []
    for low, high in pairwise((*boundaries, None)):
        assert low is not None
        boundary_values.append(low)
        earlier = bisect_left(starts, low) - 1
        last = reached[earlier] if earlier >= 0 else None
        behind = None if last is None or _is_less(last, low) else _next(last)
        if behind is not None and (high is None or _is_less(behind, high)):
            boundary_values.append(behind)
    return tuple(boundary_values)


def column_spread(
    snapshot: Snapshot, column: ColumnName, sample: Sequence[BoundaryValue]
) -> ColumnSpread:
    """How the rows of a column are spread, by its files' statistics and a sample of values."""
    ordered = sorted(sample)
    every = file_bounds(snapshot, column)
    files = every.filled
    rows = _rows(files)
    first, end = _between(ordered, files)
    is_told = end - first >= _ENOUGH
    own: list[tuple[BoundaryValue, float]] = []
    # Bounded by the files of which too few values are in the sample.
    few = files.keep(~is_told)
    for at, low, high in zip(np.flatnonzero(~is_told), few.minima, few.maxima, strict=True):
        points = _points(low, high)
        own += [(point, float(rows[at]) / len(points)) for point in points]
        is_told[at] = not points
    spread = is_told & (end > first)
    each = rows[spread] / (end - first)[spread]
    steps = np.zeros(len(ordered) + 1)
    np.add.at(steps, first[spread], each)
    np.add.at(steps, end[spread], -each)
    drawn = zip(ordered, np.cumsum(steps[:-1]).tolist(), strict=True)
    weights = ValueWeights.of([*drawn, *own])
    return ColumnSpread(weights, every, starts_of(files), _depth(weights, files))


def starts_of(files: ColumnBounds) -> tuple[BoundaryValue, ...]:
    """The least values of files, ascending."""
    return tuple(sorted(set(files.lows[files.has_low].tolist())))


def _reached(
    files: ColumnBounds,
) -> tuple[tuple[BoundaryValue, ...], tuple[BoundaryValue | None, ...]]:
    """Where files start, and how far they reach that start there or before; nothing is known of
    files without a least value, which start before all others."""
    if not bool(files.has_low.all()):
        unknown = starts_of(files)
        return unknown, (None,) * len(unknown)
    ends: dict[BoundaryValue, BoundaryValue | None] = {}
    for low, high in zip(files.lows.tolist(), files.maxima, strict=True):
        ends[low] = _later(ends.get(low, low), high)
    starts = sorted(ends)
    return tuple(starts), tuple(accumulate((ends[low] for low in starts), _later))


def _later(one: BoundaryValue | None, other: BoundaryValue | None) -> BoundaryValue | None:
    """The greater of two; None, which is unknown, where one of them is."""
    return None if one is None or other is None else max(one, other)


def _is_less(one: BoundaryValue, other: BoundaryValue) -> bool:
    return one < other  # type: ignore[operator]  # one column, one value type


def _next(value: BoundaryValue) -> BoundaryValue | None:
    """The least value above a number; None for texts, where it would be no text to show."""
    if isinstance(value, float):
        return math.nextafter(value, math.inf) if value < math.inf else None
    return value + 1 if isinstance(value, int) else None


def _rows(files: ColumnBounds) -> Floats:
    """Rows that are not NULL; one where the log does not say."""
    rows = np.where(files.rows == UNKNOWN, 1, files.rows)
    filled = np.maximum(rows - np.maximum(files.null_counts, 0), 0)
    return np.asarray(filled, dtype=np.float64)


def _between(ordered: Sequence[BoundaryValue], files: ColumnBounds) -> tuple[Ints, Ints]:
    """Where the values of each file begin among ordered ones, and where they end."""
    first = np.where(files.has_low, places_in(ordered, files.lows, "left"), 0)
    end = np.where(files.has_high, places_in(ordered, files.highs, "right"), len(ordered))
    return first, end


def _points(low: BoundaryValue | None, high: BoundaryValue | None) -> set[BoundaryValue]:
    """Values from a file's least to its greatest; none where a bound is not known."""
    if low is None or high is None:
        return set()
    if isinstance(low, int) and isinstance(high, int):
        return {low + (high - low) * at // (_POINTS - 1) for at in range(_POINTS)}
    if isinstance(low, float) and isinstance(high, float) and math.isfinite(high - low):
        return {low + (high - low) * at / (_POINTS - 1) for at in range(_POINTS)}
    return {low, high}


def _depth(weights: ValueWeights, files: ColumnBounds) -> float:
    """Rows that lie between the bounds of each file, added up, over all rows."""
    if not weights.total:
        return float(len(files))
    first, end = _between(weights.values, files)
    before = np.array(weights.before)
    return float((before[end] - before[first]).sum()) / weights.total
