"""The shipped suite `trees` has its figures; a small one of its kind goes from data to the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from impctl.app.measuring.plan import planned_suite
from impctl.app.measuring.run import run_suite
from impctl.app.workbench.reporter import SilentReporter
from impctl.app.workbench.settings import SuiteRequest
from impctl.bench.record import Record

SUITE = """\
version: 1
data:
  g: {example: graph, rows: 300, per_group: 5}
workload:
  tables: {g: {path: g}}
  queries:
    hop: {sql: SELECT a.src AS a FROM g a JOIN g b ON a.dst = b.src, sketch: {g: src}}
figures:
  window:
    title: A window
    measure: trees
    with: {kind: window, changes: 20, most_joined: 10}
    cases: [{query: hop, asks: full}]
    chart: {x: asks, y: [tree_ms, index_ms, duckdb_ms]}
"""


@pytest.mark.slow
def test_a_figure_runs_and_is_drawn(tmp_path: Path) -> None:
    suite, report = tmp_path / "own.yaml", tmp_path / "own.html"
    suite.write_text(SUITE)
    request = SuiteRequest(str(suite), repeat=1, folder=tmp_path / "data", report=report)
    outcome = run_suite(request, SilentReporter())
    assert not outcome.failures
    record = outcome.results[0]
    assert isinstance(record, Record)
    (cell,) = record.cells
    assert (cell.covers, cell.slack) == (True, 0)
    page = report.read_text(encoding="utf-8")
    assert cell.note in page
    assert "index join not run: " in cell.note


def test_every_figure_of_the_paper_has_its_place(tmp_path: Path) -> None:
    planned = planned_suite(SuiteRequest("trees", folder=tmp_path), SilentReporter())
    names = {figure.spec.name for figure in planned.figures}
    assert {"hops", "network", "lambda", "selectivity", "scale", "latency", "memory"} <= names
    whole = planned_suite(SuiteRequest("trees", folder=tmp_path, scale=1.0), SilentReporter())
    assert sum(len(figure.cases) for figure in whole.figures) > sum(
        len(figure.cases) for figure in planned.figures
    )
