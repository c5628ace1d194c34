"""Sample records: published figures, small ones, and one with a figure per measure."""

from __future__ import annotations

from itertools import product

from msgspec.structs import replace

from benchmarks.record_tables import RECORDS
from benchmarks.registry import MEASURES, Drawable
from impctl.bench.record import Cell, Chart, Figure, Label, Metric, Record, record_from_json


def published_record() -> Record:
    """Published figures as one record: lines, bars, several units, wins, losses and notes."""
    names = ("micro-groupings", "trees", "skipping-20")
    parts = [
        record_from_json((RECORDS / f"{name}.json").read_text(encoding="utf-8"), name)
        for name in names
    ]
    return replace(
        parts[0],
        noise=0.06,
        figures=tuple(figure for part in parts for figure in part.figures),
        cells=tuple(cell for part in parts for cell in part.cells),
        failures=(
            "Figure `joins`, query `j50_2k`: the join's state would exceed `max_state_bytes`; "
            "raise it or let Spark read that side",
        ),
    )


def small_record(*cells: Cell, chart: Chart | None = None, **facts: object) -> Record:
    """One figure `f` with the given cells."""
    figure = Figure("f", "A figure", "What it shows", chart or Chart("changes", ("maintain_ms",)))
    base: dict[str, object] = {
        "suite": "small",
        "title": "A small record",
        "scale": 1.0,
        "repeat": 3,
        "seed": 1,
        "started": "2026-03-14T09:26:53+00:00",
        "elapsed_s": 12.0,
        "noise": 0.05,
        "machine": {"cpu": "A processor", "cores": "2"},
        "figures": (figure,),
        "cells": cells,
    }
    return Record(**{**base, **facts})  # type: ignore[arg-type]


def record_of(*cells: Cell, noise: float = 0.0, **machine: str) -> Record:
    """Return a record with costs by change size and number of groups, in the figure `f`."""
    chart = Chart("changes", ("maintain_ms", "recapture_ms"), ("groups",), ("x", "y"))
    figure = Figure("f", "First", "about", chart, "claim", "section 1")
    more = {"machine": machine or {"cpu": "x"}, "failures": ("one thing failed",)}
    return small_record(*cells, figures=(figure,), noise=noise, **more)


def small_cell(
    labels: dict[str, Label], metrics: dict[str, float], figure: str = "f", **checks: object
) -> Cell:
    """A cell whose metrics were measured once."""
    result = {name: Metric(value, value, value, 1) for name, value in metrics.items()}
    return Cell(figure, labels, result, **checks)  # type: ignore[arg-type]


VALUES: dict[str, tuple[Label, ...]] = {
    **dict.fromkeys(("come", "expected", "lambda", "part", "peers"), (1, 5)),
    **dict.fromkeys(("changes", "ranges", "updates"), (10, 1000)),
    **dict.fromkeys(("deletes", "expected_share", "share"), (0.01, 0.3)),
    "batch": ("10", "lazy"),
    "budget": (0.25, 1),
    "buffer": ("20", "all"),
    "kind": ("insert", "delete"),
    "pattern": ("minimal", "2:1"),
    "query": ("average", "join"),
    "ratio": ("1U5Q", "5U1Q"),
    "scheme": ("dred", "absorption_lazy"),
    "selection": ("none", "multi"),
    "strategy": ("none", "recapture", "incremental"),
    "table": ("orders", "lineitem"),
    "trigger": ("commit", "fresh_within: 10m"),
    "way": ("chosen", "kept"),
}


def every_measure_record() -> Record:
    """Return one figure per measure, with more metrics than a chart of a suite has."""
    measured = [_measured(name, kind.drawable) for name, kind in MEASURES.items()]
    cells = [cell for _, result in measured for cell in result]
    noise = {name: index / 20 for index, name in enumerate(MEASURES)}
    figures = tuple(figure for figure, _ in measured)
    return small_record(*cells, figures=figures, figure_noise=noise)


def _measured(measure: str, drawable: Drawable) -> tuple[Figure, list[Cell]]:
    # The share follows from the number of changes, if both are labels. The query labels the case.
    has_changes = "changes" in drawable.labels
    labels = [label for label in drawable.labels if label != "share" or not has_changes]
    x, *others = [*labels, "query"]
    chart = Chart(x, drawable.metrics, tuple(others), ("y",) if measure == "engine" else ())
    cells = []
    for index, values in enumerate(product(*(VALUES[label] for label in (x, *others)))):
        cell_labels: dict[str, Label] = dict(zip((x, *others), values, strict=True))
        if has_changes and "share" in drawable.labels:
            cell_labels["share"] = float(cell_labels["changes"]) / 10_000
        metrics = {
            name: Metric.of(
                [(index + 1.0) * (factor_index + 2.0) * factor for factor in (0.9, 1.0, 1.3)]
            )
            for factor_index, name in enumerate(drawable.metrics)
        }
        cells.append(Cell(measure, cell_labels, metrics, covers=True, slack=0, equal=True))
    return Figure(measure, measure.capitalize(), "", chart), cells
