"""Break-even: the size of a change from which on recapture is cheaper than maintaining.

Law: between two measured sizes the costs are taken as straight lines on logarithmic axes; beyond
the measured ones nothing is said but that break-even lies there (`beyond`, `before`). With several
crossings the first counts, which favours recapture.
Out of scope: measuring; drawing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.bench.record import Cell, Label, Record

SIZES = ("changes", "share")
"""Labels that say how large a change is: rows, and their share of the table."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Break-even of one series, in the label `size`: the share of the table, else changed rows.

    Exactly one is set: `at`, where the costs cross; `beyond`, the largest size measured, where
    maintaining is the cheaper one everywhere; `before`, the smallest, where it is not even there.
    """

    figure: str
    labels: Mapping[str, Label]
    size: str
    at: float | None = None
    beyond: float | None = None
    before: float | None = None


def break_evens(record: Record, *, other: str = "recapture_ms") -> tuple[BreakEven, ...]:
    """One for every series of every figure that varies the size of a change.

    `other` is the metric of what maintaining is held against.
    """
    cost = "maintain_ms"
    result: list[BreakEven] = []
    for figure in record.figures:
        cells = [
            cell
            for cell in record.cells_of(figure.name)
            if {cost, other} <= cell.metrics.keys() and "changes" in cell.labels
        ]
        size = "share" if all("share" in cell.labels for cell in cells) else "changes"
        series: dict[tuple[tuple[str, Label], ...], list[Cell]] = {}
        for cell in cells:
            key = tuple(item for item in cell.labels.items() if item[0] not in SIZES)
            series.setdefault(key, []).append(cell)
        result += [
            _break_even(figure.name, dict(key), size, members, cost, other)
            for key, members in series.items()
            if len(members) > 1
        ]
    return tuple(result)


def _break_even(
    figure: str,
    labels: Mapping[str, Label],
    size: str,
    cells: Sequence[Cell],
    cost: str,
    other: str,
) -> BreakEven:
    points = sorted(
        (float(cell.labels[size]), cell.metrics[cost].median / cell.metrics[other].median)
        for cell in cells
    )
    if points[0][1] > 1:
        return BreakEven(figure, labels, size, before=points[0][0])
    for (left, low), (right, high) in zip(points, points[1:], strict=False):
        if high > 1:
            return BreakEven(figure, labels, size, at=_crossing(left, low, right, high))
    return BreakEven(figure, labels, size, beyond=points[-1][0])


def _crossing(left: float, low: float, right: float, high: float) -> float:
    """Where the ratio of the costs is 1, between a ratio of at most 1 and one above."""
    low, high = math.log(low), math.log(high)
    part = -low / (high - low)
    return math.exp(math.log(left) + part * (math.log(right) - math.log(left)))
