"""Cells of a measure as a suite would run it, and what they hold."""

from __future__ import annotations

from collections.abc import Mapping

from impctl.app.measuring.ground import Ground
from impctl.app.measuring.registry import MEASURES
from impctl.bench.record import Cell


def cells_of(ground: Ground) -> list[Cell]:
    """All cells; whatever is in them can be drawn by what the measure says of itself."""
    measure = MEASURES[ground.figure.measure]
    found = list(measure.run(ground))
    for cell in found:
        assert cell.labels.keys() <= set(measure.drawable.labels)
        assert all(map(measure.drawable.has, cell.metrics))
    return found


def values(cell: Cell) -> Mapping[str, float]:
    """The median of each metric."""
    return {name: metric.median for name, metric in cell.metrics.items()}
