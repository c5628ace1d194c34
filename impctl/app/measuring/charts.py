"""What the cells of each measure can be drawn by, and whether a figure's chart keeps to it.

Law: every label and metric that a measure gives is listed here, so that a chart with a misspelt
name is refused before hours are measured for it. Out of scope: drawing (`bench.report_chart`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from impctl.errors import Problem
from impctl.workload.reading import shown, suggestion
from impctl.workload.suite_models import FigureSpec


@dataclass(frozen=True, slots=True)
class Drawable:
    """Labels that a measure adds to those of the case, and its metrics; `operators` says that
    there are more, named after operators (`join_bytes`)."""

    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    operators: bool = False

    def has(self, metric: str) -> bool:
        """May a cell have this metric?"""
        return metric in self.metrics or (self.operators and metric.endswith("_bytes"))


DRAWABLE: Mapping[str, Drawable] = {
    "capture": Drawable((), ("plain_ms", "recapture_ms", "capture_ms", "state_bytes")),
    "deletions": Drawable(
        ("pattern", "buffer", "updates"),
        ("maintain_ms", "total_ms", "refill_count", "refilled_rows", "state_bytes"),
    ),
    "engine": Drawable(("changes",), ("maintain_ms", "yardstick_ms", "yardstick_ratio")),
    "maintain": Drawable(
        ("changes", "share", "kind"),
        (
            *("maintain_ms", "read_ms", "engine_ms", "commit_ms"),
            *("recapture_ms", "recapture_ratio", "state_bytes", "duckdb_ms", "process_ms"),
        ),
    ),
    "memory": Drawable(
        ("changes", "ranges"),
        ("state_bytes", "stored_bytes", "process_bytes", "sketch_bytes", "ranges_bytes"),
        operators=True,
    ),
    "mixed": Drawable(
        ("ratio", "changes", "strategy"),
        ("total_ms", "update_ms", "query_ms", "maintain_ms", "capture_ms", "operation_ms"),
    ),
    "query": Drawable(
        (),
        (
            *("plain_ms", "sketch_ms", "gain_ratio", "duckdb_plain_ms"),
            *("files_share", "rows_share", "fragments_share"),
        ),
    ),
    "strategies": Drawable(
        ("batch",),
        ("maintain_ms", "per_update_ms", "step_ms", "read_ms", "engine_ms", "commit_ms"),
    ),
}


def chart_problems(figure: FigureSpec) -> list[Problem]:
    """One for every name of the chart that no cell of the figure can have."""
    drawable = DRAWABLE[figure.measure]
    chart = figure.chart
    own = dict.fromkeys(label for case in figure.cases for label in case.labels)
    labels = (*own, *drawable.labels)
    wrong = [("label", name, labels) for name in (chart.x, *chart.series) if name not in labels]
    wrong += [("metric", name, drawable.metrics) for name in chart.y if not drawable.has(name)]
    return [_problem(figure, *found) for found in wrong]


def _problem(figure: FigureSpec, kind: str, name: str, known: Sequence[str]) -> Problem:
    text = f"The chart of figure `{figure.name}` names no {kind} of its cells: {shown(name)}"
    return Problem(text, figure.location, suggestion(name, known, f"the {kind}s"))
