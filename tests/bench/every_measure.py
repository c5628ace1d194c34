"""A record with a figure of every measure, each with every label and metric that it gives."""

from __future__ import annotations

from itertools import product

from impctl.app.measuring.registry import MEASURES, Drawable
from impctl.bench.record import Cell, Chart, Figure, Label, Metric, Record
from tests.bench.paper_records import small_record

VALUES: dict[str, tuple[Label, ...]] = {
    "batch": ("10", "lazy"),
    "buffer": ("20", "all"),
    "changes": (10, 1000),
    "kind": ("insert", "delete"),
    "lambda": (1, 20),
    "part": (1, 2),
    "pattern": ("minimal", "2:1"),
    "query": ("average", "join"),
    "ranges": (10, 1000),
    "ratio": ("1U5Q", "5U1Q"),
    "strategy": ("none", "recapture", "incremental"),
    "updates": (50, 100),
}


def every_measure_record() -> Record:
    """One figure a measure, named after it; more metrics than one chart of a suite draws."""
    made = [_measured(name, kind.drawable) for name, kind in MEASURES.items()]
    cells = [cell for _, found in made for cell in found]
    noise = {name: at / 20 for at, name in enumerate(MEASURES)}
    figures = tuple(figure for figure, _ in made)
    return small_record(*cells, figures=figures, figure_noise=noise)


def _measured(measure: str, drawable: Drawable) -> tuple[Figure, list[Cell]]:
    # A share goes with the changes; the query is the label of a case.
    labels = [label for label in drawable.labels if label != "share"]
    x, *others = [*labels, "query"]
    chart = Chart(x, drawable.metrics, tuple(others), ("y",) if measure == "engine" else ())
    cells = []
    for at, values in enumerate(product(*(VALUES[label] for label in (x, *others)))):
        held: dict[str, Label] = dict(zip((x, *others), values, strict=True))
        if "share" in drawable.labels:
            held["share"] = float(held["changes"]) / 10_000
        metrics = {
            name: Metric.of([(at + 1.0) * (place + 2.0) * factor for factor in (0.9, 1.0, 1.3)])
            for place, name in enumerate(drawable.metrics)
        }
        cells.append(Cell(measure, held, metrics, covers=True, slack=0, equal=True))
    return Figure(measure, measure.capitalize(), "", chart), cells
