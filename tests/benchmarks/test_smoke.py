"""Every measure once, over small tables; the suite `smoke` against its committed baseline."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks.__main__ import main
from benchmarks.registry import MEASURES
from benchmarks.smoke import BASELINE, FACTOR, falls, ratios_of, read_baseline, write_baseline
from impctl.bench.record import Cell, Metric, Record, record_from_json
from impctl.bench.report import render_report
from impctl.measure import run as measuring
from tests.bench.sample_records import small_record
from tests.support.run_cli import Capsys

SUITE = """\
version: 1
title: Every measure
repeat: 1
data:
  t: {example: synthetic, rows: 2000, groups: 50}
  s: {example: synthetic, rows: 200, groups: 50, seed: 2}
  links: {example: network, rows: 100, groups: 25}
  trees: {example: network, shape: forest, rows: 2000, groups: 200, files: 5}
  given: {example: network, shape: given}
workload:
  tables: {t: {path: t}, s: {path: s}, links: {path: links}, trees: {path: trees}, given: {path: given}}
  partitions: {t: {a: {ranges: 10}, id: {ranges: 10}}, trees: {src: {ranges: 10}}}
  queries:
    window:
      sql: SELECT a, AVG(c) AS m FROM t GROUP BY a HAVING AVG(c) > :low AND AVG(c) < :high
      params: {low: 5, high: 20}
      sketch: {t: a}
    sums: {sql: "SELECT a, SUM(id) AS s, COUNT(*) AS n FROM t GROUP BY a HAVING AVG(id) > 900", sketch: {t: a}}
    top: {sql: "SELECT id, a FROM t ORDER BY a LIMIT 10", sketch: {t: a}}
    joined:
      sql: SELECT t.a, SUM(s.id) AS total FROM t JOIN s ON t.a = s.a GROUP BY t.a HAVING SUM(s.id) > 9000
      sketch: {t: id}
    pairs:
      sql: >-
        WITH RECURSIVE r(x, y) AS (SELECT src, dst FROM links UNION
        SELECT l.src, r.y FROM links l JOIN r ON l.dst = r.x) SELECT x, y FROM r
      sketch: {links: src}
    reached:
      sql: >-
        WITH RECURSIVE r(n) AS (SELECT dst FROM given WHERE src = 0 UNION
        SELECT l.dst FROM r JOIN given l ON r.n = l.src) SELECT n FROM r
      sketch: {given: src}
    one_tree:
      sql: >-
        WITH RECURSIVE r(n) AS (SELECT dst FROM trees WHERE src = 0 UNION
        SELECT l.dst FROM r JOIN trees l ON r.n = l.src) SELECT n FROM r
      sketch: {trees: src}
  spark: {master: "local[2]", conf: {spark.sql.shuffle.partitions: 2}}
figures:
  answers: {title: A, measure: answers, with: {changes: 50, batches: 2}, cases: [{query: sums}], chart: {x: query, y: [state_ms]}}
  deadlines: {title: D, measure: deadlines, with: {tables: t, share: 0.01, commits: 50, bounds: 5m}, cases: [{query: joined}], chart: {x: trigger, y: [runs_count]}}
  deletions: {title: D, measure: deletions, with: {patterns: "2:1", buffers: 20, updates: 4, least: 4, points: 2}, cases: [{query: top}], chart: {x: updates, y: [refill_count]}}
  engine: {title: E, measure: engine, with: {changes: 10}, cases: [{query: window}], chart: {x: changes, y: [yardstick_ratio]}}
  maintain: {title: M, measure: maintain, with: {changes: 10, kind: delete_old}, cases: [{query: window}], chart: {x: changes, y: [maintain_ms], series: [kind]}}
  memory: {title: M, measure: memory, with: {changes: 10, ranges: 5}, cases: [{query: joined}], chart: {x: ranges, y: [state_bytes]}}
  mixed: {title: M, measure: mixed, with: {operations: 4, least: 4, ratios: 1U1Q, changes: 20}, cases: [{query: window}], chart: {x: strategy, y: [total_ms]}}
  peers: {title: P, measure: peers, with: {program: paths, selections: multi, schemes: absorption_lazy}, cases: [{query: pairs}], chart: {x: selection, y: [messages_count]}}
  phases: {title: P, measure: phases, with: {tables: [s, t], steps: 2, ways: chosen}, cases: [{query: joined}], chart: {x: table, y: [maintain_ms], series: [way]}}
  recursion: {title: R, measure: recursion, with: {changes: [1, 2], sources: 1}, cases: [{query: reached}], chart: {x: changes, y: [delete_ms]}}
  rewritten: {title: R, measure: rewritten, cases: [{query: one_tree}], chart: {x: query, y: [rows_share]}}
  rivals: {title: R, measure: rivals, with: {appends: 2, append_rows: 50}, cases: [{query: sums}], chart: {x: query, y: [plain_ms]}}
  state: {title: S, measure: state, with: {tables: [t, s], shares: 0.05, ways: [chosen, greedy], budgets: 0.3}, cases: [{query: joined}], chart: {x: way, y: [maintain_ms]}}
  strategies: {title: S, measure: strategies, with: {updates: 4, least: 4, batches: 2}, cases: [{query: window}], chart: {x: batch, y: [maintain_ms]}}
  trees: {title: T, measure: trees, with: {kind: window, changes: 20}, cases: [{query: joined}], chart: {x: query, y: [tree_ms]}}
"""  # noqa: E501

PROCESSES = """\
  maintained: {title: M, measure: maintain, with: {changes: [10, 20], processes: 10}, cases: [{query: window}], chart: {x: changes, y: [process_ms]}}
  processes: {title: P, measure: processes, with: {tables: t, share: 0.01, ways: kept}, cases: [{query: joined}], chart: {x: way, y: [process_ms]}}
"""  # noqa: E501


ELSEWHERE = {"capture", "query", "ways", "processes"}
"""Measures of workloads, which have separate tests, and one that takes long."""


def run(folder: Path, text: str, *words: str) -> None:
    suite, out, links = (folder / name for name in ("s.yaml", "r.json", "l.txt"))
    suite.write_text(text)
    links.write_text("# nodes\n1 2\n2 3\n3 1\n3 4\n")
    files = ["--data", str(folder / "data"), "--out", str(out)]
    assert main([str(suite), "--source", str(links), *files, "--quiet", *words]) == 0
    record = record_from_json(out.read_text(encoding="utf-8"), "r.json")
    assert not record.failures
    for cell in record.cells:
        assert cell.covers is not False, cell
        assert cell.equal is not False, cell
        assert cell.metrics, cell
        if cell.figure in MEASURES:
            assert all(map(MEASURES[cell.figure].drawable.has, cell.metrics)), cell
    if not words:
        assert {cell.figure for cell in record.cells} == MEASURES.keys() - ELSEWHERE
    assert render_report(record).rstrip().endswith("</html>")


@pytest.mark.spark
def test_every_measure(tmp_path: Path, spark: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark captures and answers where the measures request it, as for users."""
    monkeypatch.delenv("IMPCTL_BY")
    monkeypatch.setattr(measuring, "yardstick", lambda folder: 1.0)
    run(tmp_path, SUITE)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
def test_fresh_processes(tmp_path: Path, spark: object) -> None:
    run(tmp_path, SUITE + PROCESSES, "--only", "processes", "--only", "maintained")


def test_the_suites_are_listed(capsys: Capsys) -> None:
    assert main(["--list"]) == 0
    assert "micro: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"), [([], "A suite is required"), (["no-suite"], "no-suite")]
)
def test_a_suite_is_required_and_must_exist(capsys: Capsys, words: list[str], message: str) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err


# A busy machine may take several times as long as an idle one; only ratios are checked.
@pytest.mark.timeout(1200)
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.spark
def test_no_ratio_is_much_lower(tmp_path: Path, spark: object) -> None:
    out = tmp_path / "smoke.json"
    assert main(["smoke", "--data", str(tmp_path / "data"), "--out", str(out), "--quiet"]) == 0
    record = record_from_json(out.read_text(encoding="utf-8"), str(out))
    assert not falls(record, read_baseline(BASELINE))


def record(*ratios: float, noise: float = 0.0) -> Record:
    cells = tuple(
        Cell("f", {"query": i}, {"a_ratio": Metric.of([ratio]), "a_ms": Metric.of([5.0])})
        for i, ratio in enumerate(ratios)
    )
    return small_record(*cells, noise=noise)


def test_the_baseline_is_the_median_and_round_trips(tmp_path: Path) -> None:
    ratios = ratios_of([record(10.04, 2), record(30, 2), record(12.6, 2)])
    assert [(each.metric, each.ratio) for each in ratios] == [("a_ratio", 13.0), ("a_ratio", 2.0)]
    write_baseline(tmp_path / "b.json", ratios)
    assert read_baseline(tmp_path / "b.json") == ratios


def test_falls_within_noise_or_factor_are_ignored() -> None:
    baseline = ratios_of([record(30.0)])
    assert falls(record(30.0), baseline) == ()
    assert falls(record(300.0), baseline) == ()
    assert falls(record(30.0 / FACTOR), baseline) == ()
    assert falls(record(11.0, noise=0.2), baseline) == ()
    (message,) = falls(record(11.0), baseline)
    assert message == "a_ratio of figure `f` (query 0) is 11, below 12; usual is 30"


def test_falls_are_judged_by_the_median() -> None:
    baseline = ratios_of([record(30.0)])

    def runs(*ratios: float) -> Record:
        cell = Cell("f", {"query": 0}, {"a_ratio": Metric.of(ratios)})
        return replace(record(), cells=(cell,))

    assert falls(runs(2.0, 16.0, 28.0), baseline) == ()
    assert len(falls(runs(1.0, 2.0, 28.0), baseline)) == 1
    assert ratios_of([runs(20.0, 30.0, 90.0)])[0].ratio == 30.0


def test_missing_cells_are_reported() -> None:
    (message,) = falls(record(), ratios_of([record(30.0)]))
    assert message == "a_ratio of figure `f` (query 0) was not measured"
