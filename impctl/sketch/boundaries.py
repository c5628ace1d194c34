"""Boundaries of ranges that hold about equally many rows each, and how likely each range is in a
sketch.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence, Sized
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from impctl.sketch.sketch import Renumbering

if TYPE_CHECKING:
    from impctl.data.vector import Ints
    from impctl.sketch.sketch import BoundaryValue, RangePartition, RangeSet


# How likely each range is in a sketch, estimated from a sample of groups. No answer uses it. A
# range with a sampled group of the provenance is in. A range that the sample covers completely,
# without such a group, is out. Every unseen group elsewhere is in as often as the groups seen
# nearby, since provenance often lies together. What lies between two places where groups were seen
# is like one of them, more likely the nearer.

Floats = npt.NDArray[np.float64]

_DOUBT = 0.02  # Average groups whose hits are added to those nearby
_MISS = 0.5  # Added to the number of groups out of the provenance
_UNKNOWN = 0.5
_SEEM = 0.75  # Share of partly drawn groups that seem to be in the provenance but may not be
_STEPS = 1000  # For a mean of 1, which has the rate 0, they end near 0.002
_DEVIATIONS = 1.645  # Of a 90% interval
_PLACES, _GAP = 40, 1 / 400
"""Places to count groups in, and the share of all rows, not seen, that separates two places."""
_NEAR, _WIDE, _ROUNDS = 2, 4, 5
_OFTEN = np.array([0.33, 0.33, 0.334, 0.003, 0.003])
"""How often a place is like those left, right, on both sides, like the few, like the average."""
_MODELS = 2
_FAR_LESS = 100.0  # Maximal ratio of average hits to hits where none was seen


class Mixture(Struct, frozen=True, eq=False):
    """Alternative models of the ranges: how likely each model is, and the chance under it that a
    range is in the sketch; both of shape (models, ranges). Neighboring ranges are correlated, so
    their chances must not be multiplied across models."""

    weights: Floats
    chances: Floats

    @property
    def mean(self) -> Floats:
        """Chance of each range; shape (ranges,)."""
        return np.asarray((self.weights * self.chances).sum(axis=0))

    def at_most(self, ranges: float, share: float = 1.0) -> Mixture:
        """The chances times `share`, scaled down to at most `ranges` expected ranges."""
        share *= min(1.0, ranges / max(float(self.mean.sum()) * share, 1e-9))
        return Mixture(self.weights, self.chances * share)

    def merged(self, together: int) -> Mixture:
        """Every `together` neighboring ranges as one; the last range is NULL's."""
        starts = np.arange(0, self.weights.shape[1] - 1, together)
        parts = np.append(starts, self.weights.shape[1] - 1)
        none = np.log1p(-np.minimum(self.chances, 1.0 - 1e-12))
        return Mixture(
            np.add.reduceat(self.weights, parts, axis=1) / np.diff(np.append(parts, parts[-1] + 1)),
            -np.expm1(np.add.reduceat(none, parts, axis=1)),
        )


class Chances(Struct, frozen=True, eq=False):
    """Chances of ranges to be in the sketch: expected, and at both ends of the possible rate of
    groups in the provenance. `off` is the deviation, as a share of all rows, of where provenance
    starts and ends between seen places."""

    likely: Mixture
    low: Mixture
    high: Mixture
    off: float


def chances(
    rows: Floats, seen: Floats, groups: Floats, passing: Floats, blurred: float = 0.0
) -> Chances:
    """The chances of ranges. Per range, shape (ranges,): its `rows`, how many of them the sample
    represents (`seen`), their `groups` (rows, if the query does not group), and how many of these
    are in the provenance (`passing`).
    `blurred` is the share of groups that were drawn in part: of these far fewer may be in the
    provenance than seem to be, or up to twice as many."""
    covered = np.flatnonzero(groups > 0)
    if not len(covered):
        shape = 1, len(rows)
        chosen = [Mixture(np.ones(shape), np.full(shape, p)) for p in (_UNKNOWN, 0.0, 1.0)]
        return Chances(chosen[0], chosen[1], chosen[2], off=0.0)
    places = _SeenPlaces.of(rows, covered, groups)
    near_groups, near_passing = places.summed(groups), places.summed(passing)
    least = _UNKNOWN / (float(groups.sum()) + 1.0)
    average = max(float(passing.sum() / groups.sum()), least)
    weights, shares = (
        _nearby(near_groups, near_passing, average)
        if passing.any()
        else (np.ones((1, places.count)), np.full((1, places.count), average))
    )
    of_a_group = float(seen.sum()) / float(groups.sum())
    # A large group may have some rows in a range that holds few.
    unseen = np.maximum(rows - seen, 0.0) / of_a_group
    unseen = np.where(groups > 0, unseen, np.maximum(unseen, np.minimum(rows, 1.0)))
    # Where nearly all groups are in, one more or less says nothing about the others.
    is_few = (weights * shares).sum(axis=0) < _UNKNOWN
    hits, total = float(near_passing[is_few].sum()), float(near_groups[is_few].sum())
    low, high = hits_between(hits)
    low, high = low * (1.0 - _SEEM * blurred), high * (1.0 + blurred)
    fewest = np.where(is_few, shares * low / max(hits, _UNKNOWN), shares)
    most = np.where(is_few, np.maximum(shares, high / max(total, 1.0)), shares)
    mixtures: list[Mixture] = []
    for rates in (shares, fewest, most):
        mixture = places.mixture(weights, np.minimum(rates, 1.0 - 1e-9), unseen)
        mixture.chances[:, passing > 0] = 1.0
        mixtures.append(mixture)
    return Chances(mixtures[0], mixtures[1], mixtures[2], off=places.off(mixtures[0], rows))


class _SeenPlaces(Struct, frozen=True, eq=False):
    """Places where groups were seen: neighboring ranges with at most a fortieth of the groups. Per
    range, shape (ranges,): the places to the left and to the right, both the same for a range in a
    place, and the weight of the right one."""

    count: int
    left: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]
    by_right: Floats

    @classmethod
    def of(cls, rows: Floats, covered: npt.NDArray[np.int64], groups: Floats) -> _SeenPlaces:
        ends = np.cumsum(rows)
        starts = ends - rows
        between = starts[covered[1:]] - ends[covered[:-1]]
        is_new = np.concatenate([[False], between > float(ends[-1]) * _GAP])
        filled = np.cumsum(groups[covered]) - groups[covered]
        full = np.floor(filled / float(groups.sum()) * _PLACES)
        alone = np.cumsum(is_new)
        is_large = np.bincount(alone, weights=groups[covered]) > 2 * groups.sum() / _PLACES
        is_new[1:] |= (full[1:] > full[:-1]) & is_large[alone[1:]]
        place_of_group = np.cumsum(is_new)
        first = covered[np.flatnonzero(np.concatenate([[True], is_new[1:]]))]
        last = covered[np.append(np.flatnonzero(is_new) - 1, len(covered) - 1)]
        ranges = np.arange(len(rows))
        right = np.minimum(np.searchsorted(last, ranges), len(last) - 1)
        left = np.where(ranges >= first[right], right, np.maximum(right - 1, 0))
        gap = starts[first[right]] - ends[last[left]]
        middle = (starts + ends) / 2 - ends[last[left]]
        with np.errstate(divide="ignore", invalid="ignore"):
            by_right = np.where(gap > 0, np.clip(middle / gap, 0.0, 1.0), 0.5)
        return cls(int(place_of_group[-1]) + 1, left, right, np.where(left == right, 0.0, by_right))

    def summed(self, values: Floats) -> Floats:
        is_inside = self.left == self.right
        result = np.bincount(self.left[is_inside], values[is_inside], minlength=self.count)
        return result.astype(np.float64)

    def mixture(self, weights: Floats, shares: Floats, unseen: Floats) -> Mixture:
        """A model per range and side, left and right: a range is in if an unseen group is."""
        none = np.log1p(-shares)
        sides = ((self.left, 1.0 - self.by_right), (self.right, self.by_right))
        return Mixture(
            np.concatenate([weights[:, indices] * share for indices, share in sides]),
            np.concatenate([-np.expm1(unseen * none[:, indices]) for indices, _ in sides]),
        )

    def off(self, mixture: Mixture, rows: Floats) -> float:
        """Deviation, as a share of all rows, if provenance ends anywhere between two places."""
        left, right = np.split(mixture.weights * mixture.chances, 2)
        with np.errstate(divide="ignore", invalid="ignore"):
            apart = left.sum(axis=0) / (1.0 - self.by_right) - right.sum(axis=0) / self.by_right
        apart = np.where(self.left < self.right, np.abs(np.nan_to_num(apart)), 0.0)
        # An even spread over a gap has a twelfth of its square as variance.
        per_gap = np.bincount(self.left, weights=np.minimum(apart, 1.0) * rows)
        return math.sqrt(float((per_gap**2).sum()) / 12.0) / max(float(rows.sum()), 1.0)


def hits_between(hits: float) -> tuple[float, float]:
    """The 90% interval of a Poisson number of which `hits` were seen."""
    low = max(hits - _DEVIATIONS * math.sqrt(hits), 0.1 * hits)
    return low, hits + _DEVIATIONS * math.sqrt(hits + 1.0) + 1.0


def _nearby(groups: Floats, passing: Floats, average: float) -> tuple[Floats, Floats]:
    """Likelihoods, and the shares of each place's groups in the provenance that they belong to;
    both of shape (shares, places). A place is like the places to its left, to its right, both, all
    with few hits, or all with many, as far as its own observations make that likely. The number of
    near places is the one that predicts all places best (likelihood, leave-one-out)."""
    is_dense = passing > groups / 2
    sparse = float(passing[~is_dense].sum() / max(float(groups[~is_dense].sum()), 1.0))
    few = max(sparse, average / _FAR_LESS)
    everywhere = [np.full(len(groups), min(share, 1.0 - 1e-9)) for share in (few, average)]
    models: list[tuple[float, Floats, Floats]] = []
    reach = 1
    while reach < 2 * len(groups):
        # Far around, places with many hits may say nothing about one with few.
        for skips_dense in (False,) if reach <= _NEAR else (False, True):
            used = [np.where(is_dense & skips_dense, 0.0, v) for v in (groups, passing)]
            left = [_sums_before(v, reach) for v in used]
            right = [_sums_before(v[::-1], reach)[::-1] for v in used]
            near = left, right, [a + b for a, b in zip(left, right, strict=True)]
            others = [_share(n, hits, average) for n, hits in near] + everywhere
            likely = np.array(
                [passing * np.log(p) + (groups - passing) * np.log1p(-p) for p in others]
            )
            likelihood, weights = _weighed(likely)
            with_own = [_share(n + groups, hits + passing, average) for n, hits in near]
            models.append((likelihood, weights, np.array(with_own + everywhere)))
        reach *= _WIDE
    best = sorted(models, key=lambda model: -model[0])[:_MODELS]
    often = np.exp([likelihood - best[0][0] for likelihood, _, _ in best])
    often /= often.sum()
    combined = [share * model[1] for share, model in zip(often, best, strict=True)]
    return np.concatenate(combined), np.concatenate([model[2] for model in best])


def _weighed(likely: Floats) -> tuple[float, Floats]:
    """From log likelihoods, shape (shares, places): the sum over all places, and the weight of each
    share in each place, estimated from the places themselves."""
    top = likely.max(axis=0)
    odds = np.exp(likely - top)
    often = _OFTEN.copy()
    for _ in range(_ROUNDS):
        weights = odds * often[:, None]
        weights /= weights.sum(axis=0)
        often = (weights.sum(axis=1) + _OFTEN) / (weights.shape[1] + 1.0)
    return float((top + np.log((odds * often[:, None]).sum(axis=0))).sum()), weights


def _share(groups: Floats, passing: Floats, average: float) -> Floats:
    """Share of the groups in the provenance, not quite 0 and not quite 1."""
    hits = passing + _DOUBT * average
    result = hits / (groups - passing + _MISS + hits)
    return np.asarray(np.clip(result, 1e-12, 1.0 - 1e-9))


def _sums_before(values: Floats, reach: int) -> Floats:
    """For each value the sum of the `reach` values before it."""
    summed = np.concatenate([[0.0], np.cumsum(values)])
    indices = np.arange(len(values))
    return np.asarray(summed[indices] - summed[np.maximum(indices - reach, 0)])


def rate_where_not_zero(mean: float) -> float:
    """The rate of a Poisson number whose mean, given that it is not zero, is this."""
    rate = mean
    for _ in range(_STEPS):
        rate = mean * -math.expm1(-rate)
    return rate


_ROUNDING = 1e-9  # The cube root of 8 must be no less than 2


def share_after(
    ranges: RangeSet, partition: RangePartition, rows: Ints, files: int, columns: Sized
) -> float:
    """Estimate of the share of `files` that a sketch would read if the table were sorted by
    `columns`; `rows` per range, shape (size,).

    Sorted by one column, a table is its ranges in order, NULL first, cut into files of equally many
    rows; files with a row of the sketch are read. Along a Z-order curve of k columns the same holds
    for slices, of which each column has the k-th root of the number of files. Ranges are not even:
    one heavy value fills many files, which no order splits."""
    mask = np.zeros(partition.size, dtype=np.bool_)
    mask[list(ranges.ids)] = True
    slices = max(1, int(files ** (1 / len(columns)) + _ROUNDING))
    if not mask.any():
        return 0.0
    # A range without a row lies in the file of its neighbors, or in none.
    mask, counts = np.roll(mask & (rows > 0), 1), np.roll(rows, 1)
    if not mask.any():
        return 1.0 / slices
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1])
    first = (ends - counts)[mask] * slices // total
    last = (ends[mask] * slices - 1) // total
    # Add 1 where a run of slices begins and subtract 1 after it ends.
    steps = np.zeros(slices + 1, dtype=np.int64)
    np.add.at(steps, first, 1)
    np.add.at(steps, last + 1, -1)
    return float((np.cumsum(steps)[:-1] > 0).sum()) / slices


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
    counts = Counter(sample)
    distinct = sorted(counts)
    first_at = list(accumulate((counts[value] for value in distinct), initial=0))
    total = first_at.pop()
    if len(distinct) <= ranges:
        return tuple(distinct[1:])
    chosen: list[int] = []
    for quantile in range(1, ranges):
        target = quantile * total // ranges
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

    def nearest(self, least: float, target: float, most: float) -> int | None:
        """Index of the start with nearest to `target` rows before it; None without a start between
        `least` and `most`."""
        first, end = bisect_left(self.rows, least), bisect_right(self.rows, most)
        middle = bisect_left(self.rows, target, first, end)
        near = range(max(first, middle - 1), min(end, middle + 1))
        return min(near, key=lambda middle: abs(self.rows[middle] - target), default=None)


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


def heavy_ranges(rows: Ints, target: int) -> Ints:
    """Ids of the ranges to split; `rows` per range, shape (ranges,), `target` ranges in all."""
    return np.flatnonzero(rows * target > HEAVY * rows.sum())


def evened(
    partition: RangePartition, counts: Ints, target: int, sample: Sequence[BoundaryValue]
) -> RangePartition:
    """The partition with heavy ranges split and light ones merged; unchanged if the largest range
    would grow, as it may with fewer ranges than before. `counts` has shape (ranges,); `sample` are
    values in the heavy ranges."""
    finer = with_splits(partition, counts[:-1], target, sample)
    new = merged_to(finer, estimated_rows(partition, finer, counts, sample)[:-1], target)
    largest = int(estimated_rows(partition, new, counts, sample)[:-1].max())
    return partition if largest > int(counts[:-1].max()) else new


def with_splits(
    partition: RangePartition, rows: Ints, target: int, sample: Sequence[BoundaryValue]
) -> RangePartition:
    """The partition with its heavy ranges split; `sample` are their values, in any order."""
    by_range: dict[int, list[BoundaryValue]] = {}
    for value in sample:
        by_range.setdefault(bisect_right(partition.boundaries, value), []).append(value)
    cuts: list[BoundaryValue] = []
    for range_id in heavy_ranges(rows, target).tolist():
        inside = by_range.get(range_id, [])
        pieces = max(2, round(int(rows[range_id]) * target / int(rows.sum())))
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


def merged_to(partition: RangePartition, rows: Ints, target: int) -> RangePartition:
    """The partition with the lightest neighbors merged until `target` ranges are left."""
    counts = rows.astype(np.int64)
    boundaries = np.arange(len(partition.boundaries))
    while len(counts) > max(target, 1):
        index = int(np.argmin(counts[:-1] + counts[1:]))
        counts[index] += counts[index + 1]
        counts, boundaries = np.delete(counts, index + 1), np.delete(boundaries, index)
    return replace(
        partition, boundaries=tuple(partition.boundaries[index] for index in boundaries.tolist())
    )
