"""Cells of a measure as a suite would run it, and what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.registry import MEASURES
from impctl.bench.record import Cell
from impctl.errors import Location
from impctl.measure.figures import CaseSpec, ChartSpec, FigureSpec, Ground


def cells_of(ground: Ground) -> list[Cell]:
    """All cells; whatever is in them can be drawn by what the measure says of itself."""
    measure = MEASURES[ground.figure.measure]
    result = list(measure.run(ground))
    for cell in result:
        assert cell.labels.keys() <= set(measure.drawable.labels)
        assert all(map(measure.drawable.has, cell.metrics))
    return result


def ground_of(
    desk: Any, measure: str, query: str, *, repeat: int = 2, scale: float = 1.0, **options: Any
) -> Ground:
    """A figure with one case, of this query; by default repeated once."""
    place = Location("s.yaml", 1, 1)
    figure = FigureSpec(
        name="f",
        title="F",
        about="",
        claim="",
        source="",
        measure=measure,
        options=options,
        cases=(CaseSpec(query, {}, place),),
        chart=ChartSpec("x", ("y",), (), ()),
        location=place,
    )
    return Ground(desk, figure, repeat, seed=1, scale=scale)


def values(cell: Cell) -> Mapping[str, float]:
    """The median of each metric."""
    return {name: metric.median for name, metric in cell.metrics.items()}
