"""Forecasts of a series of numbers with intervals, and of when the next event comes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt
from msgspec import Struct

# Commits as numbers: time of each, and how much it changed. Law: what a log does not contain is
# None; counts are never negative. Times are as written; forecasts use `effective_times`, which
# never go back and never lie in the future.

KEPT = 400  # Commits kept per table: more than any forecast looks back


class Commit(Struct, frozen=True):
    """A commit of a table in numbers; those of files are about the files that hold the changed
    rows. `at` is in seconds since 1970. `is_after_gap`: commits between this one and the one before
    it are unknown. `only_moves`: its rows only moved between files."""

    version: int
    at: float | None
    inserted: int | None
    deleted: int | None
    files: int
    bytes: int
    operation: str
    is_after_gap: bool = False
    only_moves: bool = False

    @property
    def rows(self) -> int | None:
        """Changed rows."""
        if self.inserted is None or self.deleted is None:
            return None
        return self.inserted + self.deleted


class History(Struct, frozen=True):
    """The latest `KEPT` commits of a table that changed rows (its arrivals), oldest first. `until`
    is the last version read, `since` the time from which on commits are known, None if no entry has
    one. `has_missed`: commits after the last arrival are unknown."""

    table_id: str
    until: int
    since: float | None
    arrivals: tuple[Commit, ...] = ()
    has_missed: bool = False


def effective_times(arrivals: Sequence[Commit], now: float) -> list[float]:
    """A time for each arrival, none before the one before it and none after `now`. One without a
    time, out of order or in the future has that of the one before it: its gap counts as 0."""
    sound = [arrival.at for arrival in arrivals if arrival.at is not None and arrival.at <= now]
    latest = sound[0] if sound else now
    result = []
    for arrival in arrivals:
        if arrival.at is not None and latest < arrival.at <= now:
            latest = arrival.at
        result.append(latest)
    return result


# How often something comes in the next stretch of time. Law: a rate is above 0, and that of
# stretches with one event at most is a chance below 1: without an event in n of them it is
# 1/(2n + 2). A stretch is predicted from those before it. Of the mean of all stretches, of recent
# ones, and of those at the same time, the one with the least squared error over its last
# `RATES_JUDGED` predictions is chosen, the first of equals.

RATES_JUDGED = 60  # Predictions by which a method is judged
SHRUNK = 2.0  # Stretches that the mean counts for beside recent ones, or those of the same time
_KEEP = 0.9


def rate(counts: Floats, cycle: int = 0) -> float:
    """Events expected in the stretch after those with these `counts`, of which `cycle` make a week
    (0: not known)."""
    predicted = all_rates(counts, cycle)
    losses = mean_of(((predicted[:, :-1] - counts) ** 2)[:, -RATES_JUDGED:])
    return float(predicted[_least(losses), -1])


def all_rates(counts: Floats, cycle: int) -> Floats:
    """The rates of each method for each stretch and for the next: a row each."""
    base = (np.concatenate([[0.0], np.cumsum(counts)]) + 0.5) / (np.arange(len(counts) + 1) + 1)
    # Each stretch counts 0.9 of the next one.
    sums, weights = _weighted(windows(counts, RATES_JUDGED), _KEEP)
    recent = (sums + SHRUNK * base) / (weights + SHRUNK)
    return np.stack([base, recent, _of_same(counts, cycle, base)])


def _of_same(numbers: Floats, cycle: int, base: Floats) -> Floats:
    """The share of stretches of the same time, shrunk to `base`."""
    if cycle < 1:
        return base
    count = len(numbers) + 1
    turns = -(-count // cycle)
    grid = np.zeros(turns * cycle)
    grid[: len(numbers)] = numbers
    sums = np.cumsum(grid.reshape(turns, cycle), axis=0)
    earlier = np.vstack([np.zeros((1, cycle)), sums[:-1]]).reshape(-1)[:count]
    seen = np.arange(count) // cycle
    result: Floats = (earlier + SHRUNK * base) / (seen + SHRUNK)
    return result


# Intervals that contain the next number four times in five. Law: an interval contains its forecast
# and no negative number, and depends only on earlier numbers. Of three methods the one with the
# least pinball loss is chosen, which penalizes wide intervals as well as misses.

COVERAGE = 0.8  # The coverage of an interval
INTERVALS_JUDGED = 60  # Intervals by which a method is judged
_LOW, _HIGH = (1 - COVERAGE) / 2, (1 + COVERAGE) / 2
_LONG, _SHORT = 100, 30


class Forecast(Struct, frozen=True):
    """The next number, the interval that it lies in four times in five, and by what."""

    value: float
    low: float
    high: float
    by: str


def forecast(values: Sequence[float], times: Sequence[float]) -> Forecast | None:
    """The number after `values`; None if there are fewer than `LEAST`. `values` are not negative.
    `times` are the moments, in seconds since 1970, after which each of them came, that of the next
    one last."""
    if len(values) < LEAST:
        return None
    numbers = np.array(values, dtype=np.float64)
    predicted, by = choose_forecasts(numbers, np.array(times, dtype=np.float64))
    ((low, high),) = intervals(numbers, predicted, 1).tolist()
    return Forecast(float(predicted[-1]), low, high, str(FORECASTERS[by[-1]]))


def intervals(values: Floats, predicted: Floats, last: int) -> Floats:
    """Both ends of the intervals round the `last` forecasts in `predicted`, a row each. `predicted`
    has a forecast of each number of `values` and of the one after them."""
    # The first forecast has nothing before it.
    count = min(last + INTERVALS_JUDGED, len(values))
    requested = predicted[-count:]
    residuals = _quantiles(windows(values - predicted[:-1], _LONG)[-count:]) + requested[:, None]
    long, short = (_quantiles(windows(values, size)[-count:]) for size in (_LONG, _SHORT))
    ends = np.stack([_round(quantiles, requested) for quantiles in (residuals, long, short)])
    losses = _pinball(ends[:, :-1], values[len(values) + 1 - count :])
    best = _least(mean_of(windows(losses, INTERVALS_JUDGED)))
    chosen: Floats = ends[best, np.arange(count)][-last:]
    return chosen


def _round(ends: Floats, predicted: Floats) -> Floats:
    """These ends, or the forecast if they are unknown or do not contain it."""
    low = np.fmin(ends[:, 0], predicted)
    result: Floats = np.maximum(np.stack([low, np.fmax(ends[:, 1], predicted)], axis=1), 0.0)
    return result


def _quantiles(rows: Floats) -> Floats:
    """The lower and the upper quantile of the known numbers in each row; NaN if there are none. Of
    few numbers they are the outermost ones: the next number is equally likely between any two."""
    ordered = np.sort(rows, axis=1)  # NaN comes last
    counts = (~np.isnan(rows)).sum(axis=1)
    indexes, greatest = np.arange(len(rows)), np.maximum(counts - 1, 0)
    ends = []
    for share in (_LOW, _HIGH):
        position = np.clip(share * (counts + 1) - 1, 0, greatest)
        below = np.floor(position).astype(np.int64)
        low, high = ordered[indexes, below], ordered[indexes, np.minimum(below + 1, greatest)]
        ends.append(low + (high - low) * (position - below))
    return np.stack(ends, axis=1)


def _pinball(ends: Floats, observed: Floats) -> Floats:
    """The pinball loss of the intervals: least for the quantiles themselves."""
    total = np.zeros(ends.shape[:2])
    for share, side in ((_LOW, ends[..., 0]), (_HIGH, ends[..., 1])):
        missed = observed - side
        total += np.maximum(share * missed, (share - 1) * missed)
    return total


# Six simple forecasters of the next number of a series, and the choice among them. Law: a forecast
# uses earlier numbers only, and lies between the least and the greatest of them. At each step the
# forecaster with the least mean error over its last `FORECASTS_JUDGED` forecasts is chosen, the
# first of equals. Cost: a few NumPy operations over the series, without a Python loop.

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

LEAST = 4  # With fewer numbers there is no forecast: so many gaps lie between five commits
FORECASTS_JUDGED = 30  # Forecasts by which a forecaster is judged
_MEAN, _MEDIAN, _SAME, _REACH = 8, 16, 6, 64
_HISTORY_KEPT = 0.85  # The weight of each number relative to the next one
_HOUR, _DAY, _WEEK = 3600.0, 86_400.0, 604_800.0


class Forecaster(StrEnum):
    LAST = "the last value"
    MEAN = "the mean of the last 8"
    MEDIAN = "the median of the last 16"
    WEIGHTED = "a weighted mean of recent values"
    SAME_DAY = "the same time of day"
    SAME_WEEK = "the same time of week"


FORECASTERS = tuple(Forecaster)


def all_forecasts(values: Floats, times: Floats) -> Floats:
    """The forecasts of each forecaster for each number of `values` and for the next: a row each.
    `times` are the moments, in seconds since 1970, after which each number came, that of the next
    one last. The first column is NaN."""
    count = len(values)
    before = windows(values, _REACH)
    mean = mean_of(before[:, -_MEAN:])
    return np.vstack(
        [
            np.concatenate([[np.nan], values]),
            mean,
            _median(before[:, -_MEDIAN:]),
            _quotient(*_weighted(before, _HISTORY_KEPT)),
            _mean_of_same(values, times[: count + 1] % _DAY // _HOUR, mean),
            _mean_of_same(values, times[: count + 1] % _WEEK // _HOUR, mean),
        ]
    )


def choose_forecasts(values: Floats, times: Floats) -> tuple[Floats, Numbers]:
    """One forecast for each number of `values` and one for the next, with who made each, by its
    position in `FORECASTERS`. The first has nothing before it: it is NaN. `times` as of
    `all_forecasts`."""
    predicted = all_forecasts(values, times)
    errors = np.abs(predicted[:, :-1] - values)
    # Each forecast is judged by those before it; nothing is known of the first.
    by = _least(mean_of(windows(errors, FORECASTS_JUDGED)))
    return predicted[by, np.arange(predicted.shape[1])], by


def windows(values: Floats, size: int) -> Floats:
    """The `size` numbers before each along the last axis, and before the next one; NaN if
    missing."""
    missing = np.full((*values.shape[:-1], size), np.nan)
    padded = np.concatenate([missing, values], axis=-1)
    return np.lib.stride_tricks.sliding_window_view(padded, size, axis=-1)


def mean_of(values: Floats) -> Floats:
    """The mean of the known numbers along the last axis; NaN if there are none."""
    is_known = ~np.isnan(values)
    return _quotient(np.where(is_known, values, 0.0).sum(axis=-1), is_known.sum(axis=-1))


def _quotient(sums: Floats, counts: Floats | Numbers) -> Floats:
    """The sums over the counts; NaN where a count is 0."""
    result: Floats = np.divide(sums, counts, out=np.full(counts.shape, np.nan), where=counts > 0)
    return result


def _least(losses: Floats) -> Numbers:
    """The position of the least along the first axis, the first of equals; NaN is the greatest."""
    result: Numbers = np.argmin(np.where(np.isnan(losses), np.inf, losses), axis=0)
    return result


def _median(rows: Floats) -> Floats:
    ordered = np.sort(rows, axis=1)  # NaN comes last
    counts = (~np.isnan(rows)).sum(axis=1)
    positions = np.arange(len(rows))
    result: Floats = (
        ordered[positions, np.maximum(counts - 1, 0) // 2] + ordered[positions, counts // 2]
    ) / 2
    return result


def _weighted(rows: Floats, share: float) -> tuple[Floats, Floats]:
    """The sum of the known numbers of each row, each weighted as the next one times `share`; and
    the sum of the weights."""
    weights = share ** np.arange(rows.shape[1])[::-1]
    is_known = ~np.isnan(rows)
    return np.where(is_known, rows, 0.0) @ weights, is_known @ weights


def _mean_of_same(values: Floats, slots: Floats, otherwise: Floats) -> Floats:
    """The mean of the last six numbers in the same slot; else `otherwise`."""
    order = np.argsort(slots, kind="stable")
    ordered = np.append(values, 0.0)[order]
    starts = np.flatnonzero(np.append(True, slots[order][1:] != slots[order][:-1]))
    sizes = np.diff(np.append(starts, len(order)))
    within = np.arange(len(order)) - np.repeat(starts, sizes)
    sums, counts = np.zeros(len(order)), np.minimum(within, _SAME)
    for back in range(1, _SAME + 1):
        is_there = within >= back
        sums[is_there] += ordered[np.flatnonzero(is_there) - back]
    result = np.empty(len(order))
    result[order] = _quotient(sums, counts)
    return np.where(np.isnan(result), otherwise, result)
