"""The shipped suite `recursion` has its figures; a small one of its kind goes to the page."""

from __future__ import annotations

from pathlib import Path

from impctl.app.measuring.plan import planned_suite
from impctl.app.measuring.run import run_suite
from impctl.app.workbench.reporter import SilentReporter
from impctl.app.workbench.settings import SuiteRequest
from impctl.bench.record import Record

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
    with: {program: paths, selections: [none, multi], schemes: absorption_lazy, seconds: 0.5}
    cases: [{query: pairs, density: dense}]
    chart: {x: density, y: [messages_count, cpu_ms], series: [selection]}
  steps:
    title: Steps
    measure: recursion
    with: {changes: [1, 2], sources: 1}
    cases: [{query: own, network: given}]
    chart: {x: changes, y: [delete_ms, insert_ms, duckdb_answer_ms], series: [network]}
"""


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
    assert (none.metrics, none.note) == ({}, "1 of 1 runs stopped after 0.5 s")
    assert [cell.equal for cell in (multi, one, two)] == [True] * 3
    assert one.metrics["answer_rows"].median == 4
    page = report.read_text(encoding="utf-8")
    assert none.note in page


def test_every_figure_of_the_paper_has_its_place(tmp_path: Path) -> None:
    planned = planned_suite(SuiteRequest("recursion", folder=tmp_path), SilentReporter())
    sources = {figure.spec.source for figure in planned.figures}
    assert {f"Liu et al., figure {number}" for number in range(7, 15)} <= sources
    assert {"steps", "thin", "fields"} <= {figure.spec.name for figure in planned.figures}
    whole = planned_suite(SuiteRequest("recursion", folder=tmp_path, scale=1.0), SilentReporter())
    assert sum(len(figure.cases) for figure in whole.figures) > sum(
        len(figure.cases) for figure in planned.figures
    )
