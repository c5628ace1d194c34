"""The shipped suites `recursion` and `trees` have their figures; small ones go to the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from impctl.app.measuring.plan import planned_suite
from impctl.app.measuring.run import run_suite
from impctl.app.workbench.reporter import SilentReporter
from impctl.app.workbench.settings import SuiteRequest
from impctl.bench.record import Record
from impctl.errors import UsageError

SUITE = """\
version: 1
data:
  links: {example: network, rows: 100, groups: 25}
  other: {example: network, shape: given}
workload:
  tables: {links: {path: links}, other: {path: other}}
  queries:
    pairs:
      sql: >-
        WITH RECURSIVE r(x, y) AS (SELECT src, dst FROM links UNION
        SELECT l.src, r.y FROM links l JOIN r ON l.dst = r.x) SELECT x, y FROM r
      sketch: {links: src}
    own:
      sql: >-
        WITH RECURSIVE r(n) AS (SELECT dst FROM other WHERE src = 0 UNION
        SELECT l.dst FROM r JOIN other l ON r.n = l.src) SELECT n FROM r
      sketch: {other: src}
figures:
  selections:
    title: Selections
    measure: peers
    with: {program: paths, selections: [none, multi], schemes: absorption_lazy, seconds: 3}
    cases: [{query: pairs, density: dense}]
    chart: {x: density, y: [messages_count, cpu_ms], series: [selection]}
  steps:
    title: Steps
    measure: recursion
    with: {changes: [1, 2], sources: 1}
    cases: [{query: own, network: given}]
    chart: {x: changes, y: [delete_ms, insert_ms, duckdb_answer_ms], series: [network]}
"""


@pytest.mark.long
@pytest.mark.slow
def test_figures_run_and_are_drawn_over_a_list_that_is_given(tmp_path: Path) -> None:
    suite, report, links = (tmp_path / name for name in ("own.yaml", "own.html", "links.txt"))
    suite.write_text(SUITE)
    links.write_text("# nodes\n1 2\n2 3\n3 1\n3 4\n")
    request = SuiteRequest(
        str(suite), repeat=1, folder=tmp_path / "data", report=report, source=links
    )
    outcome = run_suite(request, SilentReporter())
    assert not outcome.failures
    record = outcome.results[0]
    assert isinstance(record, Record)
    none, multi, one, two = record.cells
    assert (none.metrics, none.note) == ({}, "1 of 1 runs stopped after 3 s")
    assert [cell.equal for cell in (multi, one, two)] == [True] * 3
    assert one.metrics["answer_rows"].median == 4
    page = report.read_text(encoding="utf-8")
    assert none.note in page


def test_every_figure_of_the_paper_has_its_place(tmp_path: Path) -> None:
    planned = planned_suite(SuiteRequest("recursion", folder=tmp_path), SilentReporter())
    sources = {figure.spec.source for figure in planned.figures}
    assert {f"Liu et al., figure {number}" for number in range(7, 15)} <= sources
    assert "Liu et al., figures 2 to 5" in sources
    own = {"steps", "sizes", "cheapest", "thin", "fields", "reads", "witness"}
    assert own <= {figure.spec.name for figure in planned.figures}
    whole = planned_suite(SuiteRequest("recursion", folder=tmp_path, scale=1.0), SilentReporter())
    assert sum(len(figure.cases) for figure in whole.figures) > sum(
        len(figure.cases) for figure in planned.figures
    )


def test_a_list_that_is_none_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    suite, links = tmp_path / "own.yaml", tmp_path / "links.csv"
    suite.write_text(SUITE)
    links.write_text("src,dst\n1,2\n3\n")
    request = SuiteRequest(str(suite), repeat=1, folder=tmp_path / "data", source=links)
    with pytest.raises(UsageError, match="line 3 has fewer than two columns") as caught:
        run_suite(request, SilentReporter())
    assert "two nodes and an optional cost" in (caught.value.hint or "")


TREES = """\
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
    suite.write_text(TREES)
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


def test_every_figure_of_trees_has_its_place(tmp_path: Path) -> None:
    planned = planned_suite(SuiteRequest("trees", folder=tmp_path), SilentReporter())
    names = {figure.spec.name for figure in planned.figures}
    assert {"hops", "network", "lambda", "selectivity", "scale", "latency", "memory"} <= names
    whole = planned_suite(SuiteRequest("trees", folder=tmp_path, scale=1.0), SilentReporter())
    assert sum(len(figure.cases) for figure in whole.figures) > sum(
        len(figure.cases) for figure in planned.figures
    )
