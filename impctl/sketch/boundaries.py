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


# How many rows have which values of an attribute, as far as it can be told without reading all.
# Law: values ascend and differ; weights are estimates of rows, each above zero. How good they are
# decides how even ranges get, never soundness.


class ValueWeights(Struct, frozen=True, dict=True):
    """Values and the rows that each stands for."""

    values: tuple[BoundaryValue, ...]
    weights: tuple[float, ...]

    @classmethod
    def of(cls, pairs: Iterable[tuple[BoundaryValue, float]]) -> Self:
        """From pairs in any order; equal values are summed, those without weight removed."""
        result: dict[BoundaryValue, float] = {}
        for value, weight in pairs:
            if weight > 0:
                result[value] = result.get(value, 0.0) + weight
        # Values alone are compared in a third of the time that pairs take.
        ordered = tuple(sorted(result))
        return cls(ordered, tuple(map(result.__getitem__, ordered)))

    @cached_property
    def before(self) -> tuple[float, ...]:
        """Rows before each value, and all rows at the end; shape (values + 1,)."""
        return tuple(accumulate(self.weights, initial=0.0))

    @property
    def total(self) -> float:
        return self.before[-1]

    def rows_before(self, value: BoundaryValue) -> float:
        """Rows with less than this value."""
        return self.before[bisect_left(self.values, value)]


# Equi-depth boundaries, from a sample of values or from values with their weights. Law:
# boundaries are strictly increasing values of the attribute's type, at most `ranges - 1`; how
# well balanced they are depends on what is known of the values, soundness never does.

_LEAST, _MOST = 0.67, 1.5
"""The shares at which a range may end so that the next starts where a file does."""
_WIDER = 1.1
_ENOUGH = 0.95  # With this share of the requested ranges no smaller share is tried
_HALVINGS = 8


def equidepth_boundaries(sample: Iterable[BoundaryValue], ranges: int) -> tuple[BoundaryValue, ...]:
    """At most `ranges - 1` boundaries that split the sample evenly; it must not contain NULL and
    NaN. A value that fills several quantiles gets a range for itself; with no more distinct values
    than ranges, every value does."""
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
    """At most `ranges - 1` boundaries, even by weight, at one of `starts` if one is near. `starts`
    ascend: the least values of files, so that a file lies in as few ranges as possible. A heavy
    value gets a range for itself; with no more values than ranges each does."""
    if len(weights.values) <= ranges:
        return weights.values[1:]
    placed = _Starts(tuple(starts), tuple(map(weights.rows_before, starts)))
    share = weights.total / max(ranges, 1)
    while len(result := _swept(weights, share, placed)) >= ranges:
        share *= _WIDER
    # Heavy values fill several shares each: smaller shares cut what is between them as finely as
    # was asked for.
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
        """The start with the rows nearest to `wanted` before it; None if none is between."""
        first, end = bisect_left(self.rows, least), bisect_right(self.rows, most)
        at = bisect_left(self.rows, wanted, first, end)
        near = range(max(first, at - 1), min(end, at + 1))
        return min(near, key=lambda at: abs(self.rows[at] - wanted), default=None)


def _swept(weights: ValueWeights, share: float, starts: _Starts) -> list[BoundaryValue]:
    """Boundaries from left to right, each about `share` rows after the one before."""
    result: list[BoundaryValue] = []
    last = 0.0
    while weights.total - last > share * _MOST:
        at = starts.nearest(last + share * _LEAST, last + share, last + share * _MOST)
        if at is not None:
            value, rows = starts.values[at], starts.rows[at]
        else:
            value, rows = _cut(weights, last, share)
        if rows >= weights.total:
            break
        result.append(value)
        last = rows
    return result


def _cut(weights: ValueWeights, last: float, share: float) -> tuple[BoundaryValue, float]:
    """The value to cut at, `share` rows after `last`: before a heavy one, or else behind it."""
    at = bisect_left(weights.before, last + share)
    rows = weights.before[at]
    if rows > last + share * _MOST and weights.before[at - 1] > last:
        at, rows = at - 1, weights.before[at - 1]
    return weights.values[min(at, len(weights.values) - 1)], rows


# New ranges for an attribute whose ranges no longer hold about as many rows as each other. Law:
# boundaries stay strictly increasing; every range that is neither heavy nor among the lightest
# neighbours keeps its boundaries. A range is heavy with more than `HEAVY` times its share of
# rows; heavy ones are split at values of a sample, then the lightest neighbours are merged until
# there are no more ranges than asked for. A range of a single value cannot be split. How good the
# sample is decides balance only, never soundness (Liu et al., EDBT 2026, section 7.4).

HEAVY = 2  # Sampled boundaries alone make ranges up to about half as large again as their share


def heavy_ranges(rows: Ints, wanted: int) -> Ints:
    """Ids of the ranges to split; `rows` per range, shape (ranges,), `wanted` ranges in all."""
    return np.flatnonzero(rows * wanted > HEAVY * rows.sum())


def evened(
    partition: RangePartition, counts: Ints, wanted: int, sample: Sequence[BoundaryValue]
) -> RangePartition:
    """The partition with heavy ranges split and light ones merged; unchanged if the largest range
    would become larger, as it may if fewer ranges are wanted than there are. `counts` has shape
    (ranges,); `sample` are values in the heavy ranges."""
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
    """Rows per range of `finer`; those of a split range by the parts' shares of the sample.
    `counts` are those of `partition`; both of shape (ranges,)."""
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
    """The partition with the lightest neighbours merged until `wanted` ranges are left."""
    counts = rows.astype(np.int64)
    kept = np.arange(len(partition.boundaries))
    while len(counts) > max(wanted, 1):
        at = int(np.argmin(counts[:-1] + counts[1:]))
        counts[at] += counts[at + 1]
        counts, kept = np.delete(counts, at + 1), np.delete(kept, at)
    return replace(partition, boundaries=tuple(partition.boundaries[at] for at in kept.tolist()))
