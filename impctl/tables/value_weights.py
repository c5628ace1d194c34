"""Which values the rows of a column have, from what the log says of all files and a sample.

Law: every file of the snapshot counts with its rows, read or not. A file's rows are spread over the
sampled values between its bounds, or evenly between the bounds where there are hardly any. Cost:
one pass over the log's statistics.
Out of scope: taking the sample (`tables.sample`), boundaries (`sketch.equidepth`).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from impctl.aliases import ColumnName
from impctl.sketch.partition import BoundaryValue
from impctl.sketch.value_weights import ValueWeights
from impctl.tables.snapshot import Snapshot
from impctl.tables.statistics import FileBounds, file_bounds

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
    files: tuple[FileBounds, ...]
    starts: tuple[BoundaryValue, ...]
    depth: float


def with_overlaps(
    boundaries: Sequence[BoundaryValue], files: Sequence[FileBounds]
) -> tuple[BoundaryValue, ...]:
    """The boundaries, and one more behind each overlap of files that ends in the next range.

    A value that ends one file and starts the next then has its range to itself, and all other
    ranges of the two are in one file each.
    """
    starts, reached = _reached([bounds for bounds in files if not bounds.is_all_null])
    found: list[BoundaryValue] = []
    for low, high in pairwise((*boundaries, None)):
        assert low is not None
        found.append(low)
        earlier = bisect_left(starts, low) - 1
        last = reached[earlier] if earlier >= 0 else None
        behind = None if last is None or _is_less(last, low) else _next(last)
        if behind is not None and (high is None or _is_less(behind, high)):
            found.append(behind)
    return tuple(found)


def column_spread(
    snapshot: Snapshot, column: ColumnName, sample: Sequence[BoundaryValue]
) -> ColumnSpread:
    """How the rows of a column are spread, by its files' statistics and a sample of values."""
    ordered = sorted(sample)
    every = tuple(file_bounds(snapshot, column))
    files = [bounds for bounds in every if not bounds.is_all_null]
    steps = [0.0] * (len(ordered) + 1)
    own: list[tuple[BoundaryValue, float]] = []
    for bounds in files:
        rows = _rows(bounds)
        first, end = _between(ordered, bounds)
        points = () if end - first >= _ENOUGH else tuple(_points(bounds))
        if points:
            own += [(point, rows / len(points)) for point in points]
        elif end > first:
            steps[first] += rows / (end - first)
            steps[end] -= rows / (end - first)
    drawn = zip(ordered, accumulate(steps[:-1]), strict=True)
    weights = ValueWeights.of([*drawn, *own])
    return ColumnSpread(weights, every, starts_of(files), _depth(weights, files))


def starts_of(files: Sequence[FileBounds]) -> tuple[BoundaryValue, ...]:
    """The least values of files, ascending."""
    return tuple(sorted({b.minimum for b in files if b.minimum is not None}))


def _reached(
    files: Sequence[FileBounds],
) -> tuple[tuple[BoundaryValue, ...], tuple[BoundaryValue | None, ...]]:
    """Where files start, and how far they reach that start there or before; nothing is known of
    files without a least value, which start before all others."""
    if any(bounds.minimum is None for bounds in files):
        unknown = starts_of(files)
        return unknown, (None,) * len(unknown)
    ends: dict[BoundaryValue, BoundaryValue | None] = {}
    for bounds in files:
        low, high = bounds.minimum, bounds.maximum
        assert low is not None
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


def _rows(bounds: FileBounds) -> float:
    """Rows that are not NULL; one where the log does not say."""
    rows = 1 if bounds.rows is None else bounds.rows
    return float(max(rows - (bounds.null_count or 0), 0))


def _between(ordered: Sequence[BoundaryValue], bounds: FileBounds) -> tuple[int, int]:
    low, high = bounds.minimum, bounds.maximum
    first = 0 if low is None else bisect_left(ordered, low)
    end = len(ordered) if high is None else bisect_right(ordered, high)
    return first, end


def _points(bounds: FileBounds) -> Iterator[BoundaryValue]:
    """Values from the file's least to its greatest; nothing where a bound is not known."""
    low, high = bounds.minimum, bounds.maximum
    if low is None or high is None:
        return
    if isinstance(low, int) and isinstance(high, int):
        yield from {low + (high - low) * at // (_POINTS - 1) for at in range(_POINTS)}
    elif isinstance(low, float) and isinstance(high, float) and math.isfinite(high - low):
        yield from {low + (high - low) * at / (_POINTS - 1) for at in range(_POINTS)}
    else:
        yield from {low, high}


def _depth(weights: ValueWeights, files: Sequence[FileBounds]) -> float:
    """Rows that lie between the bounds of each file, added up, over all rows."""
    if not weights.total:
        return float(len(files))
    spanned = 0.0
    for bounds in files:
        first, end = _between(weights.values, bounds)
        spanned += weights.before[end] - weights.before[first]
    return spanned / weights.total
