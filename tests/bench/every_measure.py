"""A record with a figure of every measure, each with every label and metric that it gives."""

from __future__ import annotations

from itertools import product

from benchmarks.registry import MEASURES
from impctl.bench.record import Cell, Chart, Figure, Label, Metric, Record
from impctl.measure.run import Drawable
from tests.bench.paper_records import small_record

VALUES: dict[str, tuple[Label, ...]] = {
    "batch": ("10", "lazy"),
    "budget": (0.25, 1),
    "buffer": ("20", "all"),
    "changes": (10, 1000),
    "come": (1, 5),
    "deletes": (0.0, 0.5),
    "expected": (1, 5),
    "expected_share": (0.01, 0.3),
    "kind": ("insert", "delete"),
    "lambda": (1, 20),
    "part": (1, 2),
    "pattern": ("minimal", "2:1"),
    "peers": (4, 12),
    "query": ("average", "join"),
    "ranges": (10, 1000),
    "ratio": ("1U5Q", "5U1Q"),
    "scheme": ("dred", "absorption_lazy"),
    "selection": ("none", "multi"),
    "share": (0.01, 0.3),
    "strategy": ("none", "recapture", "incremental"),
    "table": ("orders", "lineitem"),
    "trigger": ("commit", "fresh_within: 10m"),
    "updates": (50, 100),
    "way": ("chosen", "kept"),
}


def every_measure_record() -> Record:
    """One figure a measure, named after it; more metrics than one chart of a suite draws."""
    made = [_measured(name, kind.drawable) for name, kind in MEASURES.items()]
    cells = [cell for _, result in made for cell in result]
    noise = {name: at / 20 for at, name in enumerate(MEASURES)}
    figures = tuple(figure for figure, _ in made)
    return small_record(*cells, figures=figures, figure_noise=noise)


def _measured(measure: str, drawable: Drawable) -> tuple[Figure, list[Cell]]:
    # A share goes with the changes, where there are some; the query is the label of a case.
    goes_along = "changes" in drawable.labels
    labels = [label for label in drawable.labels if label != "share" or not goes_along]
    x, *others = [*labels, "query"]
    chart = Chart(x, drawable.metrics, tuple(others), ("y",) if measure == "engine" else ())
    cells = []
    for at, values in enumerate(product(*(VALUES[label] for label in (x, *others)))):
        held: dict[str, Label] = dict(zip((x, *others), values, strict=True))
        if goes_along and "share" in drawable.labels:
            held["share"] = float(held["changes"]) / 10_000
        metrics = {
            name: Metric.of([(at + 1.0) * (place + 2.0) * factor for factor in (0.9, 1.0, 1.3)])
            for place, name in enumerate(drawable.metrics)
        }
        cells.append(Cell(measure, held, metrics, covers=True, slack=0, equal=True))
    return Figure(measure, measure.capitalize(), "", chart), cells
