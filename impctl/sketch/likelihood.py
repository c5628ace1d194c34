"""How likely each range is in a sketch, estimated from a sample of groups."""

from __future__ import annotations

import math
from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec import Struct

if TYPE_CHECKING:
    from impctl.data.vector import Ints
    from impctl.sketch.partition import RangePartition
    from impctl.sketch.sketch import RangeSet

# How likely each range is in a sketch, by a sample of groups, some of them in the provenance.
# Law: an estimate, which no answer rests on. A range with a sampled group of the provenance is
# in; one that the sample covers whole, without such a group, is out; of the rest each group that
# was not seen may be one, as often as those seen nearby were, since provenance lies together as
# often as not. What lies between two places that were seen is like one of them, the nearer the
# likelier.

Floats = npt.NDArray[np.float64]

_DOUBT = 0.02  # Average groups whose hits are added to those nearby; more if hits are anywhere
_MISS = 0.5  # Hits added to groups out of the provenance, however many were seen
_UNKNOWN = 0.5
_SEEM = 0.75  # Share of partly drawn groups seen in the provenance that may in fact not be
_STEPS = 50
_DEVIATIONS = 1.645  # Of a 90% interval
_PLACES, _GAP = 40, 1 / 400
"""Places that groups are counted in; and the share of all rows, not seen, that separates two."""
_NEAR, _WIDER, _ROUNDS = 2, 4, 5
_OFTEN = np.array([0.33, 0.33, 0.334, 0.003, 0.003])
"""How often a place is like those left, right, on both sides, like the few, like the average."""
_MODELS = 2
_FAR_LESS = 100.0  # Maximal ratio of average hits to those where no hit was seen


class Mixture(Struct, frozen=True, eq=False):
    """Alternative models of the ranges: how likely each is, and the chance that a range is in the
    sketch under it. Neighbouring ranges are correlated, so their chances must not be multiplied
    before the model is known. Both of shape (ways, ranges)."""

    weights: Floats
    chances: Floats

    @property
    def mean(self) -> Floats:
        """Chance of each range; shape (ranges,)."""
        return np.asarray((self.weights * self.chances).sum(axis=0))

    def at_most(self, ranges: float, share: float = 1.0) -> Mixture:
        """The same, scaled to a share of it, and to at most so many ranges."""
        share *= min(1.0, ranges / max(float(self.mean.sum()) * share, 1e-9))
        return Mixture(self.weights, self.chances * share)

    def merged(self, together: int) -> Mixture:
        """The same with so many neighbouring ranges merged; the last is NULL's."""
        starts = np.arange(0, self.weights.shape[1] - 1, together)
        parts = np.append(starts, self.weights.shape[1] - 1)
        none = np.log1p(-np.minimum(self.chances, 1.0 - 1e-12))
        return Mixture(
            np.add.reduceat(self.weights, parts, axis=1) / np.diff(np.append(parts, parts[-1] + 1)),
            -np.expm1(np.add.reduceat(none, parts, axis=1)),
        )


class Chances(Struct, frozen=True, eq=False):
    """Chances of ranges to be in the sketch, expected and at both ends of the possible rate of
    groups in the provenance; `off` is the deviation, in shares of all rows, of where provenance
    starts and ends between places that were seen."""

    likely: Mixture
    low: Mixture
    high: Mixture
    off: float


def chances(
    rows: Floats, seen: Floats, groups: Floats, passing: Floats, blurred: float = 0.0
) -> Chances:
    """The chances of ranges; all arguments of shape (ranges,). `rows` are those of each range,
    `seen` how many the sample stands for, `groups` how many groups these have, `passing` how many
    of the groups are in the provenance. Without groups, each row is one. `blurred` is the share of
    groups that were drawn in part: of these far fewer may be in the provenance than seem to be, or
    up to twice as many."""
    covered = np.flatnonzero(groups > 0)
    if not len(covered):
        shape = 1, len(rows)
        ends = (Mixture(np.ones(shape), np.full(shape, at)) for at in (_UNKNOWN, 0.0, 1.0))
        return Chances(next(ends), next(ends), next(ends), off=0.0)
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
    # Where nearly all groups are in, one more or less says nothing of the others.
    is_few = (weights * shares).sum(axis=0) < _UNKNOWN
    hits, total = float(near_passing[is_few].sum()), float(near_groups[is_few].sum())
    low, high = hits_between(hits)
    low, high = low * (1.0 - _SEEM * blurred), high * (1.0 + blurred)
    fewest = np.where(is_few, shares * low / max(hits, _UNKNOWN), shares)
    most = np.where(is_few, np.maximum(shares, high / max(total, 1.0)), shares)
    mixtures: list[Mixture] = []
    for each in (shares, fewest, most):
        mixture = places.mixture(weights, np.minimum(each, 1.0 - 1e-9), unseen)
        mixture.chances[:, passing > 0] = 1.0
        mixtures.append(mixture)
    return Chances(mixtures[0], mixtures[1], mixtures[2], off=places.off(mixtures[0], rows))


class _SeenPlaces(Struct, frozen=True, eq=False):
    """Where groups were seen: neighbouring ranges, at most as many as contain a fortieth of the
    groups. Arrays of (ranges,) per range: the place to the left and to the right, both its own
    if it lies in one, and the weight of the right one."""

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
        place = np.cumsum(is_new)
        first = covered[np.flatnonzero(np.concatenate([[True], is_new[1:]]))]
        last = covered[np.append(np.flatnonzero(is_new) - 1, len(covered) - 1)]
        at = np.arange(len(rows))
        right = np.minimum(np.searchsorted(last, at), len(last) - 1)
        left = np.where(at >= first[right], right, np.maximum(right - 1, 0))
        gap = starts[first[right]] - ends[last[left]]
        middle = (starts + ends) / 2 - ends[last[left]]
        with np.errstate(divide="ignore", invalid="ignore"):
            by_right = np.where(gap > 0, np.clip(middle / gap, 0.0, 1.0), 0.5)
        return cls(int(place[-1]) + 1, left, right, np.where(left == right, 0.0, by_right))

    def summed(self, values: Floats) -> Floats:
        is_inside = self.left == self.right
        result = np.bincount(self.left[is_inside], values[is_inside], minlength=self.count)
        return result.astype(np.float64)

    def mixture(self, weights: Floats, shares: Floats, unseen: Floats) -> Mixture:
        """Models of the ranges, by the places left and right: a range is in if an unseen group
        is."""
        none = np.log1p(-shares)
        sides = ((self.left, 1.0 - self.by_right), (self.right, self.by_right))
        return Mixture(
            np.concatenate([weights[:, at] * share for at, share in sides]),
            np.concatenate([-np.expm1(unseen * none[:, at]) for at, _ in sides]),
        )

    def off(self, mixture: Mixture, rows: Floats) -> float:
        """The share of all rows that is in or not, with a border anywhere in its gap."""
        left, right = np.split(mixture.weights * mixture.chances, 2)
        with np.errstate(divide="ignore", invalid="ignore"):
            apart = left.sum(axis=0) / (1.0 - self.by_right) - right.sum(axis=0) / self.by_right
        apart = np.where(self.left < self.right, np.abs(np.nan_to_num(apart)), 0.0)
        # An even spread over a gap has a twelfth of its square as variance.
        per_gap = np.bincount(self.left, weights=np.minimum(apart, 1.0) * rows)
        return math.sqrt(float((per_gap**2).sum()) / 12.0) / max(float(rows.sum()), 1.0)


def hits_between(hits: float) -> tuple[float, float]:
    """The 90% interval of hits if so many were seen (Poisson)."""
    low = max(hits - _DEVIATIONS * math.sqrt(hits), 0.1 * hits)
    return low, hits + _DEVIATIONS * math.sqrt(hits + 1.0) + 1.0


def _nearby(groups: Floats, passing: Floats, average: float) -> tuple[Floats, Floats]:
    """Shares of the groups of each place that may be in the provenance, and how likely each is,
    likelihoods first; both of shape (shares, places). A place is like those to its left, those to
    its right, both, all places with few hits, or all with many: each as far as its own observations
    make that likely. The number of near places is the one that predicts all of them best
    (likelihood, leave-one-out)."""
    is_dense = passing > groups / 2
    few = max(_mean(groups, passing, ~is_dense), average / _FAR_LESS)
    everywhere = [np.full(len(groups), min(share, 1.0 - 1e-9)) for share in (few, average)]
    models: list[tuple[float, Floats, Floats]] = []
    reach = 1
    while reach < 2 * len(groups):
        # Far around, places with many hits may say nothing of one with few.
        for left_out in (False,) if reach <= _NEAR else (False, True):
            told = [np.where(is_dense & left_out, 0.0, v) for v in (groups, passing)]
            left, right = [_behind(v, reach) for v in told], [_ahead(v, reach) for v in told]
            both = [one + other for one, other in zip(left, right, strict=True)]
            near = left, right, both
            others = [_share(n, hits, average) for n, hits in near] + everywhere
            likely = np.array([_told(groups, passing, share) for share in others])
            foreseen, weights = _weighed(likely)
            with_own = [_share(n + groups, hits + passing, average) for n, hits in near]
            models.append((foreseen, weights, np.array(with_own + everywhere)))
        reach *= _WIDER
    return _best(models)


def _best(models: Sequence[tuple[float, Floats, Floats]]) -> tuple[Floats, Floats]:
    """The models that predict places best, combined by how often each does."""
    best = sorted(models, key=lambda model: -model[0])[:_MODELS]
    often = np.exp([foreseen - best[0][0] for foreseen, _, _ in best])
    often /= often.sum()
    weights = [share * model[1] for share, model in zip(often, best, strict=True)]
    return np.concatenate(weights), np.concatenate([model[2] for model in best])


def _weighed(likely: Floats) -> tuple[float, Floats]:
    """From log likelihoods of shape (shares, places): that of all places, and the weight of each
    share in each place, estimated from the places themselves."""
    top = likely.max(axis=0)
    odds = np.exp(likely - top)
    often = _OFTEN.copy()
    for _ in range(_ROUNDS):
        weights = odds * often[:, None]
        weights /= weights.sum(axis=0)
        often = (weights.sum(axis=1) + _OFTEN) / (weights.shape[1] + 1.0)
    return float((top + np.log((odds * often[:, None]).sum(axis=0))).sum()), weights


def _mean(groups: Floats, passing: Floats, which: npt.NDArray[np.bool_]) -> float:
    return float(passing[which].sum() / max(float(groups[which].sum()), 1.0))


def _told(groups: Floats, passing: Floats, share: Floats) -> Floats:
    """The log likelihood that so many of the groups are in, by share."""
    return np.asarray(passing * np.log(share) + (groups - passing) * np.log1p(-share))


def _share(groups: Floats, passing: Floats, average: float) -> Floats:
    """Share of the groups in the provenance, not quite 0 and not quite 1."""
    hits = passing + _DOUBT * average
    result = hits / (groups - passing + _MISS + hits)
    return np.asarray(np.clip(result, 1e-12, 1.0 - 1e-9))


def _behind(values: Floats, reach: int) -> Floats:
    """Sums over so many values before each."""
    summed = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    return np.asarray(summed[at] - summed[np.maximum(at - reach, 0)])


def _ahead(values: Floats, reach: int) -> Floats:
    """Sums over so many values behind each."""
    return _behind(values[::-1], reach)[::-1]


def rate_where_not_zero(mean: float) -> float:
    """The rate of a Poisson number whose mean, if not zero, is this one."""
    if mean <= 1.0:
        return 1e-3
    low, high = 1e-3, mean
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if middle / -math.expm1(-middle) < mean:
            low = middle
        else:
            high = middle
    return low


# How many files a sketch would leave of a table, were its files in the order of columns. Law: an
# estimate from the rows of each range. Sorted by one column a table is its ranges one after the
# other, NULL first, cut into files of equally many rows; what holds a row of the sketch is left.
# Along a Z-order curve of k columns the same holds of the files' k-th root of slices that each
# column has. Ranges are not even: one heavy value fills many files, and no order takes it apart.

_ROUNDING = 1e-9  # The cube root of 8 must be no less than 2


def share_after(
    ranges: RangeSet, partition: RangePartition, rows: Ints, files: int, columns: Sized
) -> float:
    """The share of `files` that would remain, sorted by so many columns; `rows` has shape
    (size,)."""
    held = np.zeros(partition.size, dtype=np.bool_)
    held[list(ranges.ids)] = True
    slices = max(1, int(files ** (1 / len(columns)) + _ROUNDING))
    if not held.any():
        return 0.0
    # A range without a row lies in the file that its neighbours are in, or in none.
    held, counts = np.roll(held & (rows > 0), 1), np.roll(rows, 1)
    if not held.any():
        return 1.0 / slices
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1])
    first = (ends - counts)[held] * slices // total
    last = (ends[held] * slices - 1) // total
    # Each run of slices begins at its first and is over after its last.
    steps = np.zeros(slices + 1, dtype=np.int64)
    np.add.at(steps, first, 1)
    np.add.at(steps, last + 1, -1)
    return float((np.cumsum(steps)[:-1] > 0).sum()) / slices
