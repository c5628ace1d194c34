"""Records as a suite writes them, made by formulas, and one with a figure of every measure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from random import Random

from benchmarks.registry import MEASURES
from impctl.bench.record import Cell, Chart, Figure, Label, Metric, Record
from impctl.measure.run import Drawable

CHANGES = (10, 50, 100, 500, 1000)
LARGE = (1000, 10_000, 50_000, 100_000, 250_000, 500_000)
ROWS = 5_000_000
LINES = Chart("changes", ("maintain_ms", "recapture_ms"), ("groups",), ("x", "y"))


def papers_record() -> Record:
    """Every kind of figure that the suites of the papers have."""
    maker = _Maker(Random(7))
    made = [
        maker.groups(),
        maker.large_changes(),
        maker.aggregates(),
        maker.joins(),
        maker.selectivity(),
        maker.ranges(),
        maker.layouts(),
        maker.mixed(),
        maker.memory(),
        maker.strategies(),
        maker.deletions(),
    ]
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
            "pyarrow": "21.0.0",
            "numpy": "2.3.1",
        },
        figures=tuple(figure for figure, _ in made),
        cells=tuple(cell for _, cells in made for cell in cells),
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
    def __init__(self, random: Random) -> None:
        self.random = random

    def metric(self, value: float, runs: int = 10) -> Metric:
        if runs == 1:
            return Metric(value, value, value, 1)
        low, high = self.random.uniform(0.02, 0.1), self.random.uniform(0.04, 0.3)
        return Metric(value, value * (1 - low), value * (1 + high), runs)

    def cell(
        self,
        figure: str,
        labels: dict[str, Label],
        metrics: dict[str, float],
        *,
        runs: int = 10,
        slack: int | None = 0,
        equal: bool | None = None,
        note: str = "",
    ) -> Cell:
        result = {name: self.metric(value, runs) for name, value in metrics.items()}
        covers = None if slack is None else True
        return Cell(figure, labels, result, covers=covers, slack=slack, equal=equal, note=note)

    def groups(self) -> tuple[Figure, list[Cell]]:
        figure = Figure(
            "groups",
            "Number of groups",
            "Groups of an aggregation with HAVING, from 50 to 500,000, on a table of 5 million "
            "rows. Inserted rows and, as often, their deletion.",
            LINES,
            "Two (500,000 groups) to three (50 groups) orders of magnitude faster than full "
            "maintenance for changes up to 1,000 rows.",
            "IMP, section 8.3.1, figure 11(b)",
        )
        cells = [
            self.cell(
                "groups",
                {"groups": groups, "changes": changes, "share": changes / ROWS},
                {
                    "maintain_ms": 7.4 + groups**0.25 / 9 + changes * _per_row(groups),
                    "recapture_ms": 640 + groups / 600,
                },
                note="One run of ten took twice the median: a checkpoint of the log."
                if (groups, changes) == (5000, 500)
                else "",
            )
            for groups in (50, 1000, 5000, 500_000)
            for changes in CHANGES
        ]
        return figure, cells

    def large_changes(self) -> tuple[Figure, list[Cell]]:
        figure = Figure(
            "break_even",
            "Large changes: where recapture takes over",
            "The same queries with changes of up to a tenth of the table.",
            Chart("share", LINES.y, ("groups",), ("x", "y")),
            "Break-even between 3.5 % of the table (50 groups) and 5.5 % (500,000 groups).",
            "IMP, section 8.3.1, figure 11(h)",
        )
        cells = [
            self.cell(
                "break_even",
                {"groups": groups, "changes": changes, "share": changes / ROWS},
                {"maintain_ms": 9 + changes * _per_row(groups), "recapture_ms": 640 + groups / 600},
            )
            for groups in (50, 5000, 500_000)
            for changes in LARGE
        ]
        return figure, cells

    def aggregates(self) -> tuple[Figure, list[Cell]]:
        figure = Figure(
            "aggregates",
            "Number of aggregation functions",
            "One to ten averages in HAVING over 5,000 groups.",
            Chart("functions", LINES.y, ("changes",), ("y",)),
            "About two orders of magnitude for realistic changes; linear in the change.",
            "IMP, section 8.3.2, figure 11(a)",
        )
        cells = [
            self.cell(
                "aggregates",
                {"functions": functions, "changes": changes, "share": changes / ROWS},
                {
                    "maintain_ms": 7.5 + functions * 0.3 + changes * 0.002 * functions,
                    "recapture_ms": 600 + 45 * functions,
                },
            )
            for functions in (1, 2, 3, 10)
            for changes in (10, 1000)
        ]
        return figure, cells

    def joins(self) -> tuple[Figure, list[Cell]]:
        figure = Figure(
            "joins",
            "Joins: how many partners a row has",
            "An aggregation over an equi-join; `1-n` joins one row with n, `m-n` many with n.",
            Chart("changes", LINES.y, ("partners",), ("x", "y")),
            "A join needs a round trip to the database, so break-even lies lower than for one "
            "table; 1-20 costs more than 1-2k because it has more groups.",
            "IMP, section 8.3.3, figures 11(c), 11(d)",
        )
        costs = {"1-20": 0.03, "1-2k": 0.021, "1-200k": 0.016, "20-2k": 0.09}
        cells = [
            self.cell(
                "joins",
                {
                    "query": f"j{partners.replace('-', '_')}",
                    "partners": partners,
                    "changes": changes,
                    "share": changes / ROWS,
                },
                {"maintain_ms": 19 + changes * cost, "recapture_ms": 2300 + 9000 * cost},
                slack=3 if (partners, changes) == ("20-2k", 1000) else 0,
            )
            for partners, cost in costs.items()
            for changes in CHANGES
        ]
        return figure, cells

    def selectivity(self) -> tuple[Figure, list[Cell]]:
        figure = Figure(
            "selectivity",
            "Join selectivity",
            "1, 5 and 10 % of the rows find a partner.",
            Chart("match_share", ("maintain_ms", "recapture_ms"), ("changes",), ("y",)),
            "For small changes selectivity matters less: scanning the large table is the cost.",
            "IMP, section 8.3.4, figure 11(e)",
        )
        cells = [
            self.cell(
                "selectivity",
                {"match_share": share, "changes": changes},
                {
                    "maintain_ms": 14 + changes * (0.004 + share / 8),
                    "recapture_ms": 1500 + 3000 * share,
                },
            )
            for share in (0.01, 0.05, 0.1)
            for changes in (10, 1000)
        ]
        return figure, cells

    def ranges(self) -> tuple[Figure, list[Cell]]:
        figure = Figure(
            "ranges",
            "Number of ranges",
            "Fragments of the partition from 10 to 5,000: time to maintain, fragments kept without "
            "need, and what one recapture costs.",
            Chart("ranges", LINES.y, ("changes",), ("x", "y")),
            "Maintaining costs a changed row roughly linearly in the number of fragments; "
            "recapture hardly notices.",
            "IMP, section 8.3.5, figure 11(f)",
        )
        cells = [
            self.cell(
                "ranges",
                {"ranges": ranges, "changes": changes, "share": changes / ROWS},
                {
                    "maintain_ms": 8 + ranges / 900 + changes * 0.004,
                    "recapture_ms": 690 + ranges / 25,
                },
                slack=12 if (ranges, changes) == (5000, 1000) else 0,
            )
            for ranges in (10, 100, 500, 1000, 5000)
            for changes in (10, 1000)
        ]
        return figure, cells

    def layouts(self) -> tuple[Figure, list[Cell]]:
        figure = Figure(
            "skipping",
            "What a sketch saves a query",
            "Time of a query with and without its sketch, on a table sorted by the sketch's column "
            "and on one in random order, by the share of fragments in the sketch.",
            Chart("held_share", ("plain_ms", "sketch_ms"), ("layout",)),
            "Skipping pays where the data is physically clustered on the sketch's attribute.",
            "IMP, section 7.4",
        )
        cells = [
            self.cell(
                "skipping",
                {"layout": layout, "held_share": share},
                {"plain_ms": 1170 + 20 * share, "sketch_ms": 130 + slope * share + fixed},
                equal=True,
            )
            for layout, slope, fixed in (("clustered", 1050, 0), ("shuffled", 260, 1060))
            for share in (0.01, 0.05, 0.2, 0.5, 1.0)
        ]
        return figure, cells

    def mixed(self) -> tuple[Figure, list[Cell]]:
        figure = Figure(
            "mixed",
            "Queries and updates in turn",
            "1,000 operations: updates (U) and queries (Q) in a fixed ratio; every cost counts, "
            "sketches start empty.",
            Chart("ratio", ("total_ms",), ("strategy",)),
            "Maintaining wins everywhere but at 5U1Q with 2,000 changed rows an update.",
            "IMP, section 8.1, figure 8",
        )
        cells = []
        for changes in (1, 20, 200, 2000):
            for ratio, updates, queries in (("1U1Q", 1, 1), ("1U5Q", 1, 5), ("5U1Q", 5, 1)):
                share = 1000 / (updates + queries)
                for strategy, cost in (
                    ("none", queries * 900),
                    ("recapture", queries * 320 + min(updates, queries) * 800),
                    ("incremental", queries * 320 + updates * (16 + changes * 0.055)),
                ):
                    none = strategy == "none"
                    labels: dict[str, Label] = {
                        "ratio": ratio,
                        "changes": changes,
                        "strategy": strategy,
                    }
                    cells.append(
                        self.cell(
                            "mixed",
                            labels,
                            {"total_ms": share * (cost + updates * 12), "maintain_ms": 4.0},
                            runs=1,
                            slack=None if none else 0,
                            equal=None if none else True,
                        )
                    )
        return figure, cells

    def memory(self) -> tuple[Figure, list[Cell]]:
        figure = Figure(
            "memory",
            "Memory of the state",
            "Bytes of the aggregation's state after a change, by number of groups.",
            Chart("groups", ("state_bytes", "sketch_bytes"), ("changes",), ("x", "y")),
            "Stable for a number of groups; a sketch of 1,000 ranges takes 152 bytes.",
            "IMP, section 8.6, figures 17(a) and 18",
        )
        cells = [
            self.cell(
                "memory",
                {"groups": groups, "changes": changes},
                {"state_bytes": 21_000 + 168 * groups + 40 * changes, "sketch_bytes": 152},
                runs=1,
            )
            for groups in (50, 1000, 5000, 500_000)
            for changes in (10, 1000)
        ]
        return figure, cells

    def strategies(self) -> tuple[Figure, list[Cell]]:
        figure = Figure(
            "strategies",
            "Eager in batches, or lazy",
            "Total time to maintain 1,000 updates of one row, by the size of a batch.",
            Chart("batch", ("maintain_ms",)),
            "Batches below 50 should be avoided; lazy is usually preferable.",
            "IMP, section 8.5, figure 16",
        )
        cells = [
            self.cell(
                "strategies",
                {"batch": "lazy" if batch is None else str(batch)},
                {"maintain_ms": 1000 / (batch or 1000) * 8.2 + 9},
                runs=1,
                note=f"1,000 updates of 1 row in {1000 // (batch or 1000)} steps",
            )
            for batch in (1, 10, 20, 50, 100, 200, 500, 1000, None)
        ]
        return figure, cells

    def deletions(self) -> tuple[Figure, list[Cell]]:
        figure = Figure(
            "deletions",
            "Bounded buffers under deletions",
            "A top-10 query that keeps only its best rows; deleting the least groups empties the "
            "buffer and refills it.",
            Chart("updates", ("maintain_ms", "state_bytes"), ("buffer",), ("y",)),
            "The more is kept, the rarer a full maintenance.",
            "IMP, section 8.4.3, figures 14 and 15",
        )
        return figure, list(self._deletions())

    def _deletions(self) -> Iterator[Cell]:
        for pattern, often in (("minimal", 1.0), ("2:1", 0.35), ("random", 0.02)):
            for buffer in ("20", "50", "100", "all"):
                kept = 5000 if buffer == "all" else int(buffer)
                for updates in range(50, 501, 50):
                    refill = 60 * often / math.sqrt(kept)
                    yield self.cell(
                        "deletions",
                        {"pattern": pattern, "buffer": buffer, "updates": updates},
                        {
                            "maintain_ms": 9 + refill + self.random.random(),
                            "state_bytes": 480_000 + 96 * kept - updates * 500 * often,
                        },
                        runs=50,
                    )


def _per_row(groups: int) -> float:
    """Milliseconds that a changed row costs."""
    return 0.0031 + math.log10(groups) / 2000


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
