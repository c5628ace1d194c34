"""How likely something comes in the next stretch of time, by when it came before.

Law: a chance lies between 0 and 1, neither reached: what never came in n stretches has 1/(2n + 2).
Each stretch is judged by those before it; that way speaks which lost least by its last `JUDGED`
chances (Brier), the base rate where several did.
Out of scope: how much comes (`forecast.forecasters`), what a stretch is (who asks says).
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import numpy.typing as npt

from impctl.forecast.forecasters import Floats, mean_of, windows
from impctl.values import dataclass

JUDGED = 60
"""Chances that a way to find them is judged by."""
SHRUNK = 2.0
"""Stretches that the base rate counts for beside those of the same time."""
_KEEP = 0.9


class Way(StrEnum):
    """Who speaks, in the words it is told by."""

    BASE = "the overall frequency"
    RECENT = "the recent frequency"
    SAME_DAY = "the same time of day"
    SAME_WEEK = "the same time of week"


WAYS = tuple(Way)


@dataclass(frozen=True, slots=True)
class Chance:
    """How likely it comes in the next stretch, and by what; `base` is the base rate."""

    value: float
    by: Way
    base: float


def chance(came: npt.NDArray[np.bool_], of_day: int, of_week: int) -> Chance:
    """The chance of the stretch after those in `came`, of which `of_day` make a day and `of_week`
    a week (0: the stretches are longer)."""
    said = all_chances(came, of_day, of_week)
    losses = (said[:, :-1] - came) ** 2
    latest = mean_of(losses[:, -JUDGED:])
    by = int(np.argmin(np.where(np.isnan(latest), np.inf, latest)))
    return Chance(float(said[by, -1]), WAYS[by], float(said[0, -1]))


def rate(counts: Floats) -> float:
    """How often it comes in a stretch, by how often it came in each: over all of them, or of late
    where that would have lost less (by squares) over the last `JUDGED`."""
    earlier = np.concatenate([[0.0], np.cumsum(counts)])
    base = (earlier + 0.5) / (np.arange(len(counts) + 1) + 1)
    said = np.stack([base, _recent(counts, base)])
    losses = mean_of(((said[:, :-1] - counts) ** 2)[:, -JUDGED:])
    return float(said[int(losses[1] < losses[0]), -1])


def all_chances(came: npt.NDArray[np.bool_], of_day: int, of_week: int) -> Floats:
    """What each way says of each stretch in `came` and of the next: a row each."""
    held = came.astype(np.float64)
    before = np.arange(len(held) + 1)
    base = (np.concatenate([[0.0], np.cumsum(held)]) + 0.5) / (before + 1)
    return np.stack(
        [
            base,
            _recent(held, base),
            _of_same(held, of_day, base),
            _of_same(held, of_week, base),
        ]
    )


def _recent(held: Floats, base: Floats) -> Floats:
    """The mean of what came, each stretch counting 0.9 of the next one, shrunk to `base`."""
    rows = windows(held, JUDGED)
    weights = _KEEP ** np.arange(JUDGED)[::-1]
    is_known = ~np.isnan(rows)
    total = is_known @ weights
    result: Floats = (np.where(is_known, rows, 0.0) @ weights + SHRUNK * base) / (total + SHRUNK)
    return result


def _of_same(held: Floats, cycle: int, base: Floats) -> Floats:
    """The share of stretches of the same time, shrunk to `base`."""
    if cycle < 1:
        return base
    count = len(held) + 1
    turns = -(-count // cycle)
    grid = np.zeros(turns * cycle)
    grid[: len(held)] = held
    sums = np.cumsum(grid.reshape(turns, cycle), axis=0)
    earlier = np.vstack([np.zeros((1, cycle)), sums[:-1]]).reshape(-1)[:count]
    seen = np.arange(count) // cycle
    result: Floats = (earlier + SHRUNK * base) / (seen + SHRUNK)
    return result
