"""Suite files: what comes out, and that everything wrong is told at once with its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from impctl.errors import WorkloadError
from impctl.workload.load import load_workload
from impctl.workload.suite_models import Suite
from impctl.workload.suites import Vocabulary, holds_suite, load_suite

WORDS = Vocabulary(("synthetic", "tpch"), ("maintain", "query"))

SUITE = """\
version: 1
title: A small one
scale: 0.5
data:
  t: {example: synthetic, rows: 1000, least: 10, groups: 5, sorted: true, source: x/y}
workload:
  tables: {t: {path: t}}
  partitions: {t: {a: {ranges: 4}}}
  queries: {q: {sql: SELECT a FROM t, sketch: {t: a}}, r: {sql: SELECT b FROM t}}
figures:
  first:
    title: First
    about: Some words.
    claim: Fast.
    source: section 1
    measure: maintain
    with: {changes: [1, 2.5, x], kind: both, deep: true}
    cases: [{query: q, groups: 5}, {query: q, groups: many}]
    chart: {x: changes, y: [maintain_ms], series: [groups], log: [x, y]}
  second: {title: Second, measure: query, chart: {x: query, y: [plain_ms]}}
"""

Load = Callable[[str], Suite]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load_text(text: str) -> Suite:
        path = tmp_path / "s.yaml"
        path.write_text(text, encoding="utf-8")
        return load_suite(path, {}, tmp_path / "data", WORDS)

    return load_text


def test_the_whole_of_it(load: Load, tmp_path: Path) -> None:
    suite = load(SUITE)
    assert (suite.name, suite.title, suite.seed, suite.scale, suite.repeat) == (
        "s", "A small one", 1, 0.5, 5,
    )  # fmt: skip
    data = suite.data["t"]
    assert (data.example, data.rows, data.least) == ("synthetic", 1000, 10)
    assert data.options == {"groups": 5, "sorted": True}
    assert data.source == str(tmp_path / "x" / "y")
    assert suite.workload.tables["t"].path == str(tmp_path / "data" / "t")
    assert list(suite.workload.queries) == ["q", "r"]
    first, second = suite.figures
    assert first.options == {"changes": (1, 2.5, "x"), "kind": "both", "deep": True}
    assert str(first.places["kind"]).endswith("s.yaml:17:34")
    assert [dict(case.labels) for case in first.cases] == [{"groups": 5}, {"groups": "many"}]
    assert first.chart.y == ("maintain_ms",)
    assert first.chart.log == ("x", "y")
    assert [(case.query, dict(case.labels)) for case in second.cases] == [
        ("q", {"query": "q"}),
        ("r", {"query": "r"}),
    ]


def test_what_holds_at_full_size_only(load: Load) -> None:
    wide = "    full: {with: {changes: 9}, cases: [{query: r, groups: 7}]}\n    chart: {x: changes"
    first = load(SUITE.replace("    chart: {x: changes", wide)).figures[0]
    assert first.at(0.99) is first
    full = first.at(1)
    assert full.options == {"changes": 9, "kind": "both", "deep": True}
    assert [case.query for case in full.cases] == ["q", "q", "r"]
    assert str(full.places["changes"]).endswith("s.yaml:19:19")
    assert str(full.places["kind"]).endswith("s.yaml:17:34")


@pytest.mark.parametrize(
    ("full", "problem"),
    [
        ("{cases: [{query: r, groups: 5}]}", "19:20 Two cases in `figures.first.full.cases` have"),
        ("{cases: []}", "19:19 `figures.first.full.cases` is empty"),
        ("{chart: {x: groups}}", "19:12 Key `chart` is unknown in `figures.first.full`"),
        ("{with: {changes: {a: 1}}}", "19:28 `figures.first.full.with.changes` must be"),
    ],
)
def test_what_is_wrong_at_full_size(load: Load, full: str, problem: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        load(SUITE.replace("    chart: {x: changes", f"    full: {full}\n    chart: {{x: changes"))
    assert any(problem in f"{p.location} {p.message}" for p in caught.value.problems), [
        f"{p.location} {p.message}" for p in caught.value.problems
    ]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("version: 1", "version: 2", "1:10 `version` must be the number 1"),
        ("scale: 0.5", "scale: 0", "3:8 `scale` must be above 0 and at most 1000"),
        ("scale: 0.5", "scale: big", "3:8 `scale` must be a number, not text"),
        ("scale: 0.5", "repeat: 0", "3:9 `repeat` must be from 1 to 1000"),
        ("scale: 0.5", "sclae: 1", "3:1 Key `sclae` is unknown in the suite file"),
        ("example: synthetic", "exmple: 1", "5:6 Key `example` is missing in `data.t`"),
        ("synthetic", "sintetic", "5:16 `data.t.example` must be one of `synthetic`, `tpch`"),
        ("rows: 1000", "rows: 1e3", "5:33 `data.t.rows` must be a whole number, not a number"),
        ("groups: 5, s", "groups: ~, s", "5:58 `data.t.groups` must be a number, text,"),
        ("groups: 5, s", "groups: [], s", "5:58 `data.t.groups` is empty"),
        ("tables: {t: {path: t}}", "tables: {t: {}}", "7:15 Key `path` is missing in `tables.t`"),
        ("sketch: {t: a}", "sketch: {u: a}", "9:48 Table `u` in `queries.q.sketch` is not"),
        ("  queries: ", "  version: 1\n  queries: ", "9:3 Key `version` is unknown in `workload`"),
        ("    title: First\n", "", "12:5 Key `title` is missing in `figures.first`"),
        ("measure: maintain", "measure: maintan", "16:14 `figures.first.measure` must be one of"),
        ("changes: [1, 2.5, x]", "changes: {}", "17:21 `figures.first.with.changes` must be"),
        ("changes: [1, 2.5, x]", "changes: [[1]]", "17:22 `figures.first.with.changes` must be"),
        ("{query: q, gr", "{query: x, gr", "18:21 Query `x` in `figures.first.cases`"),
        ("groups: many", "groups: 5", "18:36 Two cases in `figures.first.cases` have"),
        ("{query: q, groups: 5}", "{groups: 5}", "18:13 Key `query` is missing in a case of"),
        ("groups: many", "groups: true", "18:55 `figures.first.cases.groups` must be a number or"),
        ("log: [x, y]", "log: [z]", "19:67 `figures.first.chart.log` must be one of `x`, `y`"),
        ("y: [maintain_ms]", "y: []", "19:28 `figures.first.chart.y` is empty"),
        ("{x: changes, y", "{y", "19:12 Key `x` is missing in `figures.first.chart`"),
        ("  first:", "  a b:", "11:3 `a b` cannot be the name of a figure"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(load: Load, old: str, new: str, problem: str) -> None:
    assert old in SUITE
    with pytest.raises(WorkloadError) as caught:
        load(SUITE.replace(old, new, 1))
    told = [
        f"{p.location.line}:{p.location.column} {p.message}"
        for p in caught.value.problems
        if p.location
    ]
    assert any(text.startswith(problem) for text in told), told
    assert all(found.hint for found in caught.value.problems)


def test_everything_wrong_is_told_in_one_pass(load: Load) -> None:
    text = SUITE.replace("scale: 0.5", "scale: 0").replace("measure: query", "measure: guess")
    with pytest.raises(WorkloadError) as caught:
        load(text.replace("rows: 1000", "rows: 0"))
    assert len(caught.value.problems) == 3


def test_variables_are_resolved(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SUITE.replace("scale: 0.5", "scale: ${SIZE:-0.25}"))
    assert load_suite(path, {}, tmp_path, WORDS).scale == 0.25
    assert load_suite(path, {"SIZE": "2"}, tmp_path, WORDS).scale == 2


def test_a_suite_is_told_from_a_workload(tmp_path: Path) -> None:
    suite, workload = tmp_path / "s.yaml", tmp_path / "w.yaml"
    suite.write_text(SUITE)
    workload.write_text("version: 1\ntables: {t: {path: t}}\nqueries: {q: {sql: SELECT 1}}\n")
    assert holds_suite(suite)
    assert not holds_suite(workload)
    assert not holds_suite(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("{")
    assert not holds_suite(tmp_path / "bad.yaml")
    with pytest.raises(WorkloadError) as caught:
        load_workload(suite, {})
    assert caught.value.problems[0].message == "The file is a suite, not a workload"
