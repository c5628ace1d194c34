"""Boundaries of ranges that hold about equally many rows each."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from impctl.sketch.sketch import Renumbering

if TYPE_CHECKING:
    from impctl.data.vector import Ints
    from impctl.sketch.partition import BoundaryValue, RangePartition


class ValueWeights(Struct, frozen=True, dict=True):
    """Distinct ascending values of an attribute and an estimate above zero of the rows with each.
    The estimates decide how even ranges are, never soundness."""

    values: tuple[BoundaryValue, ...]
    weights: tuple[float, ...]

    @classmethod
    def of(cls, pairs: Iterable[tuple[BoundaryValue, float]]) -> Self:
        """From pairs in any order; weights of equal values are summed, others than > 0 dropped."""
        result: dict[BoundaryValue, float] = {}
        for value, weight in pairs:
            if weight > 0:
                result[value] = result.get(value, 0.0) + weight
        # Values alone are compared in a third of the time that pairs take.
        ordered = tuple(sorted(result))
        return cls(ordered, tuple(map(result.__getitem__, ordered)))

    @cached_property
    def before(self) -> tuple[float, ...]:
        """Rows below each value, and all rows at the end; shape (values + 1,)."""
        return tuple(accumulate(self.weights, initial=0.0))

    @property
    def total(self) -> float:
        return self.before[-1]

    def rows_before(self, value: BoundaryValue) -> float:
        return self.before[bisect_left(self.values, value)]


_LEAST, _MOST = 0.67, 1.5
"""The shares at which a range may end so that the next starts where a file does."""
_WIDER = 1.1
_ENOUGH = 0.95  # With this share of the requested ranges no smaller share is tried
_HALVINGS = 8


def equidepth_boundaries(sample: Iterable[BoundaryValue], ranges: int) -> tuple[BoundaryValue, ...]:
    """At most `ranges - 1` increasing boundaries that split the sample evenly; it must not contain
    NULL or NaN. A value that fills several quantiles gets its own range; with no more distinct
    values than ranges, every value does."""
    ordered = sorted(sample)
    distinct: list[BoundaryValue] = []
    first_at: list[int] = []
    for position, value in enumerate(ordered):
        if not distinct or value != distinct[-1]:
            distinct.append(value)
            first_at.append(position)
    if len(distinct) <= ranges:
        return tuple(distinct[1:])
    chosen: list[int] = []
    for quantile in range(1, ranges):
        target = quantile * len(ordered) // ranges
        index = bisect_right(first_at, target) - 1
        if not chosen or index > chosen[-1]:
            chosen.append(index)
        elif chosen[-1] + 1 < len(distinct) and chosen[-1] == index:
            chosen.append(index + 1)
    return tuple(distinct[index] for index in chosen if index > 0)


def aligned_boundaries(
    weights: ValueWeights, ranges: int, starts: Sequence[BoundaryValue]
) -> tuple[BoundaryValue, ...]:
    """At most `ranges - 1` increasing boundaries, even by weight, at one of `starts` if one is
    near: the ascending least values of files, so that a file lies in as few ranges as possible. A
    heavy value gets its own range; with no more values than ranges, every value does."""
    if len(weights.values) <= ranges:
        return weights.values[1:]
    placed = _Starts(tuple(starts), tuple(map(weights.rows_before, starts)))
    share = weights.total / max(ranges, 1)
    while len(result := _swept(weights, share, placed)) >= ranges:
        share *= _WIDER
    # Heavy values fill several shares each; smaller shares make up for them in between.
    too_small = 0.0
    for _ in range(_HALVINGS):
        if len(result) + 1 >= _ENOUGH * ranges:
            break
        smaller = (too_small + share) / 2
        finer = _swept(weights, smaller, placed)
        if len(finer) < ranges:
            result, share = finer, smaller
        else:
            too_small = smaller
    return tuple(result)


class _Starts(Struct, frozen=True):
    """Values where files start, ascending, and the rows before each."""

    values: tuple[BoundaryValue, ...]
    rows: tuple[float, ...]

    def nearest(self, least: float, wanted: float, most: float) -> int | None:
        """Index of the start with nearest to `wanted` rows before it; None without a start between
        `least` and `most`."""
        first, end = bisect_left(self.rows, least), bisect_right(self.rows, most)
        middle = bisect_left(self.rows, wanted, first, end)
        near = range(max(first, middle - 1), min(end, middle + 1))
        return min(near, key=lambda middle: abs(self.rows[middle] - wanted), default=None)


def _swept(weights: ValueWeights, share: float, starts: _Starts) -> list[BoundaryValue]:
    """Boundaries from left to right, each about `share` rows after the one before."""
    result: list[BoundaryValue] = []
    last = 0.0
    while weights.total - last > share * _MOST:
        index = starts.nearest(last + share * _LEAST, last + share, last + share * _MOST)
        if index is not None:
            value, rows = starts.values[index], starts.rows[index]
        else:
            value, rows = _cut(weights, last, share)
        if rows >= weights.total:
            break
        result.append(value)
        last = rows
    return result


def _cut(weights: ValueWeights, last: float, share: float) -> tuple[BoundaryValue, float]:
    """The value to cut at, `share` rows after `last`: before a heavy value, or else after it."""
    index = bisect_left(weights.before, last + share)
    rows = weights.before[index]
    if rows > last + share * _MOST and weights.before[index - 1] > last:
        index, rows = index - 1, weights.before[index - 1]
    return weights.values[min(index, len(weights.values) - 1)], rows


# Rebalancing (Liu et al., EDBT 2026, section 7.4). Ranges with more than `HEAVY` times their share
# of rows are split at values of a sample; then the lightest neighbors are merged until no more
# ranges are left than requested. All other ranges keep their boundaries. A range of a single value
# cannot be split. The sample decides balance, never soundness.

HEAVY = 2  # Sampled boundaries alone make ranges up to about half as large again as their share


def heavy_ranges(rows: Ints, wanted: int) -> Ints:
    """Ids of the ranges to split; `rows` per range, shape (ranges,), `wanted` ranges in all."""
    return np.flatnonzero(rows * wanted > HEAVY * rows.sum())


def evened(
    partition: RangePartition, counts: Ints, wanted: int, sample: Sequence[BoundaryValue]
) -> RangePartition:
    """The partition with heavy ranges split and light ones merged; unchanged if the largest range
    would grow, as it may with fewer ranges than before. `counts` has shape (ranges,); `sample` are
    values in the heavy ranges."""
    finer = with_splits(partition, counts[:-1], wanted, sample)
    new = merged_to(finer, estimated_rows(partition, finer, counts, sample)[:-1], wanted)
    largest = int(estimated_rows(partition, new, counts, sample)[:-1].max())
    return partition if largest > int(counts[:-1].max()) else new


def with_splits(
    partition: RangePartition, rows: Ints, wanted: int, sample: Sequence[BoundaryValue]
) -> RangePartition:
    """The partition with its heavy ranges split; `sample` are their values, in any order."""
    by_range: dict[int, list[BoundaryValue]] = {}
    for value in sample:
        by_range.setdefault(bisect_right(partition.boundaries, value), []).append(value)
    cuts: list[BoundaryValue] = []
    for range_id in heavy_ranges(rows, wanted).tolist():
        inside = by_range.get(range_id, [])
        pieces = max(2, round(int(rows[range_id]) * wanted / int(rows.sum())))
        cuts += equidepth_boundaries(inside, pieces)
    return replace(partition, boundaries=tuple(sorted({*partition.boundaries, *cuts})))


def estimated_rows(
    partition: RangePartition, finer: RangePartition, counts: Ints, sample: Sequence[BoundaryValue]
) -> Ints:
    """Rows per range of `finer`, from those of `partition` (shape (ranges,)). Rows of a split range
    are divided by the parts' shares of the sample."""
    renumbering = Renumbering(partition, finer)
    result = renumbering.carried(counts)
    drawn = np.zeros(finer.size, dtype=np.int64)
    for value in sample:
        drawn[bisect_right(finer.boundaries, value)] += 1
    for range_id in np.flatnonzero(renumbering.targets < 0).tolist():
        parts = slice(int(renumbering.first[range_id]), int(renumbering.last[range_id]) + 1)
        shares = drawn[parts] / max(int(drawn[parts].sum()), 1)
        result[parts] += (shares * int(counts[range_id])).astype(np.int64)
    return result


def merged_to(partition: RangePartition, rows: Ints, wanted: int) -> RangePartition:
    """The partition with the lightest neighbors merged until `wanted` ranges are left."""
    counts = rows.astype(np.int64)
    boundaries = np.arange(len(partition.boundaries))
    while len(counts) > max(wanted, 1):
        index = int(np.argmin(counts[:-1] + counts[1:]))
        counts[index] += counts[index + 1]
        counts, boundaries = np.delete(counts, index + 1), np.delete(boundaries, index)
    return replace(
        partition, boundaries=tuple(partition.boundaries[index] for index in boundaries.tolist())
    )
