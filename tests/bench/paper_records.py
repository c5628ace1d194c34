"""Records as a suite writes them, made by formulas, and one with a figure of every measure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from random import Random
from typing import Any

from benchmarks.registry import MEASURES, Drawable
from impctl.bench.record import Cell, Chart, Figure, Label, Metric, Record

CHANGES = (10, 50, 100, 500, 1000)
ROWS = 5_000_000
COSTS = ("maintain_ms", "recapture_ms")
LINES = Chart("changes", COSTS, ("groups",), ("x", "y"))


def papers_record() -> Record:
    """Figures of the papers' suites: of lines, facets, bars, several units, wins and losses."""
    maker = _Maker()
    maker.add_costs()
    maker.add_other_figures()
    return Record(
        suite="microbenchmarks",
        title="Maintaining sketches: the papers' experiments on synthetic data",
        scale=0.5,
        repeat=10,
        seed=7,
        started="2026-03-14T09:26:53+00:00",
        elapsed_s=2843.7,
        noise=0.06,
        machine={
            "cpu": "AMD EPYC 7763 64-Core Processor",
            "cores": "2",
            "memory_gb": "24",
            "python": "3.13.1",
            "commit": "06649a5",
            "impctl": "0.1.0",
            "pyspark": "4.1.0",
            "deltalake": "1.6.6",
        },
        figures=tuple(maker.figures),
        cells=tuple(maker.cells),
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
    """Costs by the size of a change, per number of groups, in the figure `f`."""
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


class _Maker:
    """Draws the spread of each metric; figures and cells in the order in which they are added."""

    def __init__(self) -> None:
        self.random = Random(7)
        self.figures: list[Figure] = []
        self.cells: list[Cell] = []

    def add(
        self,
        name: str,
        title: str,
        chart: Chart,
        source: str,
        axes: Mapping[str, Sequence[Label]],
        costs: Callable[..., Sequence[float]],
        *,
        metrics: Sequence[str] = (),
        more: Callable[..., Mapping[str, Any]] = lambda *_: {},
        runs: int = 10,
    ) -> None:
        """A figure with a cell for each combination of labels.

        `costs` and `more` (checks, a note, further labels) get the labels of a cell.
        """
        about = f"{title}, over a table of 5 million rows: rows inserted and, as often, deleted."
        claim = f"{title}: two to three orders of magnitude faster for changes up to 1,000 rows."
        self.figures.append(Figure(name, title, about, chart, claim, f"IMP, section {source}"))
        for values in product(*axes.values()):
            labels = dict(zip(axes, values, strict=True))
            facts = {"covers": True, "slack": 0, **more(*values)}
            labels |= facts.pop("labels", {})
            measured = zip(metrics or chart.y, costs(*values), strict=True)
            spreads = {metric: self._metric(value, runs) for metric, value in measured}
            self.cells.append(Cell(name, labels, spreads, **facts))

    def _metric(self, value: float, runs: int) -> Metric:
        if runs == 1:
            return Metric(value, value, value, 1)
        low, high = self.random.uniform(0.02, 0.1), self.random.uniform(0.04, 0.3)
        return Metric(value, value * (1 - low), value * (1 + high), runs)

    def add_costs(self) -> None:
        """What maintaining costs, and what recapture."""

        def by_groups(groups: int, changes: int) -> tuple[float, float]:
            return 7.4 + groups**0.25 / 9 + changes * _per_row(groups), 640 + groups / 600

        def noted(groups: int, changes: int) -> Mapping[str, Any]:
            late = "One run of ten took twice the median: a checkpoint of the log."
            note = late if (groups, changes) == (5000, 500) else ""
            slack = 3 if (groups, changes) == (500_000, 1000) else 0
            return {"note": note, "slack": slack, **_shared(groups, changes)}

        axes = {"groups": (50, 1000, 5000, 500_000), "changes": CHANGES}
        self.add("groups", "Number of groups", LINES, "8.3.1, 11(b)", axes, by_groups, more=noted)
        self.add(
            "break_even",
            "Large changes: where recapture takes over",
            Chart("share", COSTS, ("groups",), ("x", "y")),
            "8.3.1, figure 11(h)",
            {
                "groups": (50, 5000, 500_000),
                "changes": (1000, 10_000, 50_000, 100_000, 250_000, 500_000),
            },
            lambda groups, changes: (9 + changes * _per_row(groups), 640 + groups / 600),
            more=_shared,
        )

    def add_other_figures(self) -> None:
        """Strategies, memory and buffers."""

        def total(changes: int, ratio: str, strategy: str) -> tuple[float, float]:
            updates, queries = int(ratio[0]), int(ratio[2])
            cost = {
                "none": queries * 900,
                "recapture": queries * 320 + min(updates, queries) * 800,
                "incremental": queries * 320 + updates * (16 + changes * 0.055),
            }[strategy]
            return 1000 / (updates + queries) * (cost + updates * 12), 4.0

        unchecked = {"covers": None, "slack": None, "equal": None}
        self.add(
            "mixed",
            "Queries and updates in turn",
            Chart("ratio", ("total_ms",), ("strategy",)),
            "8.1, figure 8",
            {
                "changes": (1, 20, 200, 2000),
                "ratio": ("1U1Q", "1U5Q", "5U1Q"),
                "strategy": ("none", "recapture", "incremental"),
            },
            total,
            metrics=("total_ms", "maintain_ms"),
            more=lambda changes, ratio, way: unchecked if way == "none" else {"equal": True},
            runs=1,
        )
        self.add(
            "memory",
            "Memory of the state",
            Chart("groups", ("state_bytes", "sketch_bytes"), ("changes",), ("x", "y")),
            "8.6, figures 17(a) and 18",
            {"groups": (50, 1000, 5000, 500_000), "changes": (10, 1000)},
            lambda groups, changes: (21_000 + 168 * groups + 40 * changes, 152),
            runs=1,
        )
        self.add(
            "strategies",
            "Eager in batches, or lazy",
            Chart("batch", ("maintain_ms",)),
            "8.5, figure 16",
            {"batch": ("1", "10", "20", "50", "100", "200", "500", "1000", "lazy")},
            lambda batch: (1000 / _rows(batch) * 8.2 + 9,),
            more=lambda batch: {"note": f"1,000 updates of 1 row in {1000 // _rows(batch)} steps"},
            runs=1,
        )
        often = {"minimal": 1.0, "2:1": 0.35, "random": 0.02}

        def refilled(pattern: str, buffer: str, updates: int) -> tuple[float, float]:
            kept = 5000 if buffer == "all" else int(buffer)
            refill = 60 * often[pattern] / math.sqrt(kept)
            state = 480_000 + 96 * kept - updates * 500 * often[pattern]
            return 9 + refill + self.random.random(), state

        self.add(
            "deletions",
            "Bounded buffers under deletions",
            Chart("updates", ("maintain_ms", "state_bytes"), ("buffer",), ("y",)),
            "8.4.3, figures 14 and 15",
            {
                "pattern": [*often],
                "buffer": ("20", "50", "100", "all"),
                "updates": range(50, 501, 50),
            },
            refilled,
            runs=50,
        )


def _shared(_: Label, changes: int) -> Mapping[str, Any]:
    """A change is this share of the table."""
    return {"labels": {"share": changes / ROWS}}


def _rows(batch: str) -> int:
    return 1000 if batch == "lazy" else int(batch)


def _per_row(groups: int) -> float:
    """Milliseconds that a changed row costs."""
    return 0.0031 + math.log10(groups) / 2000


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
