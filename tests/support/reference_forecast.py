"""The six forecasters and the choice among them once more, number by number, in plain Python."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def said_next(values: Sequence[float], times: Sequence[float]) -> list[float]:
    """What each forecaster says of the number after these; `times` has one more than `values`."""
    latest = values[-64:]
    weights = [0.85**age for age in range(len(latest))][::-1]
    mean = statistics.fmean(values[-8:])

    def of_same(cycle: float) -> float:
        slot = times[-1] % cycle // 3600
        pairs = zip(values, times, strict=False)
        same = [value for value, at in pairs if at % cycle // 3600 == slot]
        return statistics.fmean(same[-6:]) if same else mean

    return [
        values[-1],
        mean,
        statistics.median(values[-16:]),
        math.fsum(w * v for w, v in zip(weights, latest, strict=True)) / math.fsum(weights),
        of_same(86_400.0),
        of_same(604_800.0),
    ]


def all_said(values: Sequence[float], times: Sequence[float]) -> list[list[float]]:
    """The same for each number but the first and for the next: a list each."""
    return [said_next(values[:n], times[: n + 1]) for n in range(1, len(values) + 1)]


def least_error(said: Sequence[Sequence[float]], came: Sequence[float]) -> list[float]:
    """The mean error of each forecaster over the last 30 of what came."""
    pairs = list(zip(said, came, strict=True))[-30:]
    return [statistics.fmean(abs(row[k] - v) for row, v in pairs) for k in range(6)]
