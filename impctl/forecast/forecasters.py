"""Six simple forecasters of the next number of a series, and which of them speaks.

Law: a forecast of a number uses what came before it and nothing else. At each step that one speaks
whose mean error over its last `JUDGED` forecasts is the least, the first of equals. Forecasts lie
between the least and the greatest number before them.
Cost: some operations of numpy over the whole series; no loop over its numbers.
Out of scope: how far off it may be (`forecast.intervals`).
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import numpy.typing as npt

from impctl.values import dataclass

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

LEAST = 4
"""With fewer numbers there is no forecast: so many gaps lie between five commits."""
JUDGED = 30
"""Forecasts that a forecaster is judged by."""
_MEAN, _MEDIAN, _SAME, _REACH = 8, 16, 6, 64
_KEEP = 0.85
"""What each number counts, of what the next one does."""
_HOUR, _DAY, _WEEK = 3600.0, 86_400.0, 604_800.0


class Forecaster(StrEnum):
    """Who speaks, in the words it is told by."""

    LAST = "the last value"
    MEAN = "the mean of the last 8"
    MEDIAN = "the median of the last 16"
    WEIGHTED = "a weighted mean of recent values"
    SAME_DAY = "the same time of day"
    SAME_WEEK = "the same time of week"


FORECASTERS = tuple(Forecaster)


@dataclass(frozen=True)
class Spoken:
    """One forecast for each number of a series and one for the next, with who made each.

    The first has nothing before it: it is NaN.
    """

    values: Floats
    by: Numbers
    """Positions in `FORECASTERS`."""


def all_forecasts(values: Floats, times: Floats) -> Floats:
    """What each forecaster says of each number of `values` and of the next: a row each.

    `times` are the moments, in seconds since 1970, after which each number came, that of the next
    one last. The first column is NaN.
    """
    count = len(values)
    before = windows(values, _REACH)
    mean = mean_of(before[:, -_MEAN:])
    return np.vstack(
        [
            np.concatenate([[np.nan], values]),
            mean,
            _median(before[:, -_MEDIAN:]),
            _weighted(before),
            _of_same(values, times[: count + 1] % _DAY // _HOUR, mean),
            _of_same(values, times[: count + 1] % _WEEK // _HOUR, mean),
        ]
    )


def spoken(values: Floats, times: Floats) -> Spoken:
    """The forecasts of those that speak; `times` as of `all_forecasts`."""
    said = all_forecasts(values, times)
    errors = np.abs(said[:, :-1] - values)
    # Each forecast is judged by those before it; nothing is known of the first.
    judged = mean_of(windows(errors, JUDGED))
    by = np.argmin(np.where(np.isnan(judged), np.inf, judged), axis=0)
    return Spoken(said[by, np.arange(said.shape[1])], by)


def windows(values: Floats, size: int) -> Floats:
    """For each number along the last axis and for the next one, the `size` before it; NaN where
    there is none."""
    missing = np.full((*values.shape[:-1], size), np.nan)
    padded = np.concatenate([missing, values], axis=-1)
    return np.lib.stride_tricks.sliding_window_view(padded, size, axis=-1)


def mean_of(values: Floats) -> Floats:
    """The mean of what is known along the last axis; NaN where nothing is."""
    is_known = ~np.isnan(values)
    counts = is_known.sum(axis=-1)
    sums = np.where(is_known, values, 0.0).sum(axis=-1)
    result: Floats = np.divide(sums, counts, out=np.full(counts.shape, np.nan), where=counts > 0)
    return result


def _median(rows: Floats) -> Floats:
    """The median of what is known in each row."""
    ordered = np.sort(rows, axis=1)  # NaN comes last
    counts = (~np.isnan(rows)).sum(axis=1)
    at = np.arange(len(rows))
    result: Floats = (ordered[at, np.maximum(counts - 1, 0) // 2] + ordered[at, counts // 2]) / 2
    return result


def _weighted(rows: Floats) -> Floats:
    """The mean, each number counting less than the next one."""
    weights = _KEEP ** np.arange(rows.shape[1])[::-1]
    is_known = ~np.isnan(rows)
    total = is_known @ weights
    sums = np.where(is_known, rows, 0.0) @ weights
    result: Floats = np.divide(sums, total, out=np.full(len(rows), np.nan), where=total > 0)
    return result


def _of_same(values: Floats, slots: Floats, otherwise: Floats) -> Floats:
    """The mean of the last six numbers that came in the same slot; else `otherwise`."""
    order = np.argsort(slots, kind="stable")
    held = np.append(values, 0.0)[order]
    starts = np.flatnonzero(np.append(True, slots[order][1:] != slots[order][:-1]))
    sizes = np.diff(np.append(starts, len(order)))
    within = np.arange(len(order)) - np.repeat(starts, sizes)
    sums, counts = np.zeros(len(order)), np.minimum(within, _SAME)
    for back in range(1, _SAME + 1):
        is_there = within >= back
        sums[is_there] += held[np.flatnonzero(is_there) - back]
    result = np.empty(len(order))
    result[order] = np.divide(sums, counts, out=np.full(len(order), np.nan), where=counts > 0)
    return np.where(np.isnan(result), otherwise, result)
