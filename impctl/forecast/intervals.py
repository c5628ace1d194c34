"""How far off a forecast may be: intervals that are to hold four times in five.

Law: an interval contains its forecast, and no number below 0. Each end comes from what was known
before. Of three ways to draw it that one is taken whose intervals were the best by pinball loss,
which wide ones lose as well as those that are missed.
Out of scope: the forecast itself (`forecast.forecasters`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.forecast.forecasters import FORECASTERS, LEAST, Floats, mean_of, spoken, windows
from impctl.values import dataclass

HELD = 0.8
"""How often an interval is to hold."""
JUDGED = 60
"""Intervals that a way to draw them is judged by."""
_LOW, _HIGH = (1 - HELD) / 2, (1 + HELD) / 2
_LONG, _SHORT = 100, 30


@dataclass(frozen=True, slots=True)
class Forecast:
    """The next number, the interval that it lies in four times in five, and by what."""

    value: float
    low: float
    high: float
    by: str


def forecast(values: Sequence[float], times: Sequence[float]) -> Forecast | None:
    """The number after `values`; None where there are fewer than `LEAST`.

    `values` are not negative. `times` are the moments, in seconds since 1970, after which each of
    them came, that of the next one last.
    """
    if len(values) < LEAST:
        return None
    held = np.array(values, dtype=np.float64)
    said = spoken(held, np.array(times, dtype=np.float64))
    ((low, high),) = intervals(held, said.values, 1).tolist()
    return Forecast(float(said.values[-1]), low, high, str(FORECASTERS[said.by[-1]]))


def intervals(values: Floats, said: Floats, last: int) -> Floats:
    """Both ends of the intervals round the `last` forecasts in `said`, a row each.

    `said` has a forecast of each number of `values` and of the one after them.
    """
    # The first forecast has nothing before it.
    count = min(last + JUDGED, len(values))
    asked = said[-count:]
    residuals = _quantiles(windows(values - said[:-1], _LONG)[-count:]) + asked[:, None]
    long, short = (_quantiles(windows(values, size)[-count:]) for size in (_LONG, _SHORT))
    ends = np.stack([_round(each, asked) for each in (residuals, long, short)])
    losses = _pinball(ends[:, :-1], values[len(values) + 1 - count :])
    judged = mean_of(windows(losses, JUDGED))
    best = np.argmin(np.where(np.isnan(judged), np.inf, judged), axis=0)
    chosen: Floats = ends[best, np.arange(count)][-last:]
    return chosen


def _round(ends: Floats, said: Floats) -> Floats:
    """These ends, or the forecast where they do not hold it between them or are not known."""
    low = np.fmin(ends[:, 0], said)
    result: Floats = np.maximum(np.stack([low, np.fmax(ends[:, 1], said)], axis=1), 0.0)
    return result


def _quantiles(rows: Floats) -> Floats:
    """The lower and the upper quantile of what is known in each row; NaN where nothing is.

    Of few numbers they are the outermost ones: the next number is equally likely between any two.
    """
    ordered = np.sort(rows, axis=1)  # NaN comes last
    counts = (~np.isnan(rows)).sum(axis=1)
    at, greatest = np.arange(len(rows)), np.maximum(counts - 1, 0)
    ends = []
    for share in (_LOW, _HIGH):
        place = np.clip(share * (counts + 1) - 1, 0, greatest)
        below = np.floor(place).astype(np.int64)
        low, high = ordered[at, below], ordered[at, np.minimum(below + 1, greatest)]
        ends.append(low + (high - low) * (place - below))
    return np.stack(ends, axis=1)


def _pinball(ends: Floats, came: Floats) -> Floats:
    """What the intervals lose to the numbers that came: least for the quantiles themselves."""
    total = np.zeros(ends.shape[:2])
    for share, side in ((_LOW, ends[..., 0]), (_HIGH, ends[..., 1])):
        missed = came - side
        total += np.maximum(share * missed, (share - 1) * missed)
    return total
