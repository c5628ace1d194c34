"""Whether a figure's chart keeps to the labels and metrics that its cells can have.

Law: a chart is refused by every name that no cell can have, before anything is measured for it.
Out of scope: what a measure's cells can have (`app.measuring.registry`), drawing
(`bench.report_chart`).
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.app.measuring.registry import MEASURES
from impctl.errors import Problem
from impctl.workload.reading import shown, suggestion
from impctl.workload.suite_models import FigureSpec


def chart_problems(figure: FigureSpec) -> list[Problem]:
    """One for every name of the chart that no cell of the figure can have."""
    drawable = MEASURES[figure.measure].drawable
    chart = figure.chart
    own = dict.fromkeys(label for case in figure.cases for label in case.labels)
    labels = (*own, *drawable.labels)
    wrong = [("label", name, labels) for name in (chart.x, *chart.series) if name not in labels]
    wrong += [("metric", name, drawable.metrics) for name in chart.y if not drawable.has(name)]
    return [_problem(figure, *found) for found in wrong]


def _problem(figure: FigureSpec, kind: str, name: str, known: Sequence[str]) -> Problem:
    text = f"The chart of figure `{figure.name}` names no {kind} of its cells: {shown(name)}"
    return Problem(text, figure.location, suggestion(name, known, f"the {kind}s"))
