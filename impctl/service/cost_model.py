"""What a run will take, learned from the latest runs: a line per kind of run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from impctl.values import dataclass

_TYPICAL_ROWS = 1_000.0
"""Up to about as many rows a run takes as long as its fixed part; noise is alike below."""

_FEWEST_TO_DOUBT = 4
"""With fewer runs nobody can tell which of them is the odd one."""

_DOUBT = 9.0
"""How many times less the others must disagree without a run, for it to be left out."""

_ROUNDING = 1e-18
"""Squared error, as a share of the squared times, that says nothing about the runs."""

Point = tuple[float, float]
"""Rows, milliseconds."""


@dataclass(frozen=True, slots=True)
class CostLine:
    """The fit: `runs` it was learned from, `largest` rows among them."""

    fixed: float
    per_row: float
    runs: int
    largest: float

    def at(self, rows: float) -> float:
        """Milliseconds for a run of so many rows."""
        return self.fixed + self.per_row * rows


def learned(points: Sequence[Point]) -> CostLine | None:
    """The line through the runs; None without any that tells something."""
    sound = [(x, y) for x, y in points if _is_amount(x) and _is_amount(y)]
    if not sound:
        return None
    fixed, per_row, wrong = _fit(sound)
    kept = sound
    if len(sound) >= _FEWEST_TO_DOUBT and wrong > _ROUNDING * _squares(sound):
        others = [sound[:at] + sound[at + 1 :] for at in range(len(sound))]
        fits = [(_fit(rest), rest) for rest in others]
        (fewer_fixed, fewer_per_row, left), rest = min(fits, key=lambda result: result[0][2])
        if left * _DOUBT < wrong:
            fixed, per_row, kept = fewer_fixed, fewer_per_row, rest
    return CostLine(fixed, per_row, len(sound), max(x for x, _ in kept))


def _is_amount(value: float) -> bool:
    """Whether it can be a number of rows or milliseconds, and squared without overflow."""
    return math.isfinite(value) and 0.0 <= value < 1e30


def _weight(rows: float) -> float:
    return 1.0 / (rows + _TYPICAL_ROWS) ** 2


def _squares(points: Sequence[Point]) -> float:
    return sum(_weight(x) * y * y for x, y in points)


def _fit(points: Sequence[Point]) -> tuple[float, float, float]:
    """Weighted least squares: fixed part, part per row (neither below 0), squared error left."""
    weights = [_weight(x) for x, _ in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    xx = xy = 0.0
    for w, (x, y) in zip(weights, points, strict=True):
        xx += w * (x - mean_x) ** 2
        xy += w * (x - mean_x) * (y - mean_y)
    per_row = max(0.0, xy / xx) if xx > 0.0 else 0.0
    fixed = mean_y - per_row * mean_x
    if fixed < 0.0:
        # The best line through the origin; there are rows, or the mean of times were below 0.
        fixed = 0.0
        through = sum(w * x * x for w, (x, _) in zip(weights, points, strict=True))
        per_row = sum(w * x * y for w, (x, y) in zip(weights, points, strict=True)) / through
    wrong = sum(
        w * (y - fixed - per_row * x) ** 2 for w, (x, y) in zip(weights, points, strict=True)
    )
    return fixed, per_row, wrong
