"""How likely each fragment is in a sketch, by a sample of groups, some of them in the provenance.

Law: an estimate, which no answer rests on. A fragment with a sampled group of the provenance is in;
one that the sample covers whole, without such a group, is out; of the rest each group that was not
seen may be one, as often as those seen nearby were, since provenance lies together as often as not.
Out of scope: files (`tables.file_spans`), drawing the sample (`tables.file_sample`).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_DOUBTS = (0.3, 0.03, 0.003)
"""Groups like the average that are added to those seen nearby: more where hits are anywhere."""
_UNKNOWN = 0.5
_STEPS = 50


def chances(rows: Floats, seen: Floats, groups: Floats, passing: Floats) -> Floats:
    """Chance of each fragment to be in the sketch; all of shape (fragments,).

    `rows` are those of each fragment, `seen` how many the sample has, `groups` how many groups
    these are of, `passing` how many of the groups are in the provenance. Without groups, each row
    is one.
    """
    covered = np.flatnonzero(groups > 0)
    if not len(covered):
        return np.full(len(rows), _UNKNOWN)
    least = _UNKNOWN / (float(groups.sum()) + 1.0)
    average = max(float(passing.sum() / groups.sum()), least)
    share = _nearby(groups[covered], passing[covered], average)
    everywhere = np.interp(np.arange(len(rows)), covered, share)
    rows_of_a_group = float(seen.sum() / groups.sum())
    unseen = np.maximum(rows - seen, 0.0) / rows_of_a_group
    found = -np.expm1(unseen * np.log1p(-everywhere))
    found[passing > 0] = 1.0
    return found


def _nearby(groups: Floats, passing: Floats, average: float) -> Floats:
    """Share of the groups around each fragment, itself included, that are in the provenance.

    As far around as tells most: of all widths the one by which the others foresee each fragment
    best (likelihood, each left out once).
    """
    best, found = -math.inf, np.full(len(groups), average)
    reach = 1
    while reach < 2 * len(groups):
        near_groups, near_passing = _near(groups, reach), _near(passing, reach)
        for doubt in _DOUBTS:
            others = _share(near_groups - groups, near_passing - passing, doubt, average)
            told = passing * np.log(others) + (groups - passing) * np.log1p(-others)
            if float(told.sum()) > best:
                best = float(told.sum())
                found = _share(near_groups, near_passing, doubt, average)
        reach *= 2
    return found


def _share(groups: Floats, passing: Floats, doubt: float, average: float) -> Floats:
    """Share of the groups that are in the provenance, not quite 0 and not quite 1."""
    found = (passing + doubt * average) / (groups + doubt)
    return np.asarray(np.clip(found, 1e-12, 1.0 - 1e-9))


def _near(values: Floats, reach: int) -> Floats:
    """Sums over each value and so many of its neighbours on either side."""
    summed = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    end, start = np.minimum(at + reach + 1, len(values)), np.maximum(at - reach, 0)
    return np.asarray(summed[end] - summed[start])


def rate_where_not_zero(mean: float) -> float:
    """The rate of a Poisson number whose mean is this one where it is not zero."""
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


def wilson(share: float, trials: float, deviations: float = 1.645) -> tuple[float, float]:
    """The interval of a share seen in so many trials (Wilson, 1927); by default of 90%."""
    if trials <= 0:
        return 0.0, 1.0
    square = deviations * deviations
    middle = (share + square / (2 * trials)) / (1 + square / trials)
    spread = math.sqrt(share * (1 - share) / trials + square / (4 * trials * trials))
    spread *= deviations / (1 + square / trials)
    return max(0.0, middle - spread), min(1.0, middle + spread)
