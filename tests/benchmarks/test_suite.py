"""Suite files: what they contain, errors with their positions, all reported at once, and what the
fingerprint of a case depends on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.registry import MEASURES
from benchmarks.run import SuiteRequest, checked_suite, planned_suite
from benchmarks.suite import Suite, load_suite, suite_file, suite_files
from impctl.errors import ImpctlError, UsageError, WorkloadError
from impctl.service.context import SilentReporter, open_context
from impctl.service.settings import MeasureRequest, Settings
from tests.benchmarks.measured_cells import case_of
from tests.support.run_cli import refused

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
        return load_suite(path, tmp_path / "data", ("synthetic", "tpch"), ("maintain", "query"))

    return load_text


def test_a_full_suite(load: Load, tmp_path: Path) -> None:
    suite = load(SUITE)
    assert (suite.name, suite.title, suite.seed) == ("s", "A small one", 1)
    assert (suite.scale, suite.repeat) == (0.5, 5)
    data = suite.data["t"]
    assert (data.example, data.rows, data.least) == ("synthetic", 1000, 10)
    assert (data.options, data.source) == ({"groups": 5, "sorted": True}, str(tmp_path / "x" / "y"))
    assert suite.workload.tables["t"].path == str(tmp_path / "data" / "t")
    assert list(suite.workload.queries) == ["q", "r"]
    first, second = suite.figures
    assert first.options == {"changes": (1, 2.5, "x"), "kind": "both", "deep": True}
    assert str(first.places["kind"]).endswith("s.yaml:17:34")
    assert [dict(case.labels) for case in first.cases] == [{"groups": 5}, {"groups": "many"}]
    assert (first.figure.chart.y, first.figure.chart.log) == (("maintain_ms",), ("x", "y"))
    cases = [(case.query, dict(case.labels)) for case in second.cases]
    assert cases == [("q", {"query": "q"}), ("r", {"query": "r"})]


def test_full_size_settings(load: Load) -> None:
    with_full = (
        "    full: {with: {changes: 9}, cases: [{query: r, groups: 7}]}\n    chart: {x: changes"
    )
    suite = load(SUITE.replace("    chart: {x: changes", with_full))
    assert suite.figures_at(0.99) is suite.figures
    full = suite.figures_at(1)[0]
    assert full.options == {"changes": 9, "kind": "both", "deep": True}
    assert [case.query for case in full.cases] == ["q", "q", "r"]
    assert str(full.places["changes"]).endswith("s.yaml:19:19")
    assert str(full.places["kind"]).endswith("s.yaml:17:34")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("scale: 0.5", "scale: 0", "3:8 `scale` must be above 0 and at most 1000"),
        ("scale: 0.5", "sclae: 1", "3:1 Key `sclae` is unknown in the suite file"),
        ("example: synthetic", "exmple: 1", "5:6 Key `example` is missing in `data.t`"),
        ("synthetic", "sintetic", "5:16 `data.t.example` must be one of `synthetic`, `tpch`"),
        ("groups: 5, s", "groups: [], s", "5:58 `data.t.groups` is empty"),
        ("sketch: {t: a}", "sketch: {u: a}", "9:48 Table `u` in `queries.q.sketch` is not"),
        ("measure: maintain", "measure: maintan", "16:14 `figures.first.measure` must be one of"),
        ("{query: q, gr", "{query: x, gr", "18:21 Query `x` in `figures.first.cases`"),
        ("groups: many", "groups: 5", "18:36 Two cases in `figures.first.cases` have"),
        ("log: [x, y]", "log: [z]", "19:67 `figures.first.chart.log` must be one of `x`, `y`"),
        ("y: [maintain_ms]", "y: []", "19:28 `figures.first.chart.y` is empty"),
    ],
)  # fmt: skip
def test_errors_have_positions(load: Load, old: str, new: str, problem: str) -> None:
    assert old in SUITE
    with pytest.raises(WorkloadError) as caught:
        load(SUITE.replace(old, new, 1))
    problems = [(problem.location, problem.message) for problem in caught.value.problems]
    reported = [
        f"{location.line}:{location.column} {message}" for location, message in problems if location
    ]
    assert any(text.startswith(problem) for text in reported), reported
    assert all(result.hint for result in caught.value.problems)


def test_all_errors_are_reported_at_once(load: Load) -> None:
    text = SUITE.replace("scale: 0.5", "scale: 0").replace("measure: query", "measure: guess")
    with pytest.raises(WorkloadError) as caught:
        load(text.replace("rows: 1000", "rows: 0"))
    assert len(caught.value.problems) == 3


PLANNED = """\
version: 1
data:
  t: {example: synthetic, rows: 1000, groups: 5}
  u: {example: crimes}
workload:
  tables: {t: {path: t}, u: {path: u}}
  queries: {q: {sql: SELECT a FROM t}, r: {sql: SELECT a FROM u}}
figures:
  one: {title: One, measure: maintain, with: {kind: both}, cases: [{query: q}], chart: {x: changes, y: [maintain_ms]}}
  two: {title: Two, measure: query, cases: [{query: r, at: 1}], chart: {x: at, y: [plain_ms]}}
"""  # noqa: E501


def write(folder: Path, text: str = PLANNED) -> str:
    path = folder / "own.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("path", suite_files().values(), ids=suite_files())
def test_every_suite_is_valid_at_both_scales(path: Path) -> None:
    suite = checked_suite(path, SilentReporter())
    assert suite.name == path.stem
    assert all(spec.figure.title for spec in suite.figures)


def test_an_unknown_name_is_reported_with_a_suggestion() -> None:
    with pytest.raises(UsageError) as caught:
        suite_file("micra")
    assert (caught.value.code, caught.value.hint) == ("suite_unknown", "did you mean `micro`?")


def test_only_data_of_the_selected_figures_is_needed(tmp_path: Path) -> None:
    figures = MeasureRequest(only=("one",), repeat=2)
    request = SuiteRequest(write(tmp_path), scale=0.1, folder=tmp_path, figures=figures)
    with planned_suite(request, SilentReporter()) as planned:
        assert [(data.name, data.rows) for data in planned.data] == [("t", 100)]
        assert (planned.run.record.scale, planned.run.record.repeat) == (0.1, 2)
        assert [figure.figure.name for figure in planned.run.figures] == ["one"]
    with refused(UsageError, "source_missing"):
        plan(SuiteRequest(write(tmp_path), folder=tmp_path))


def plan(request: SuiteRequest) -> None:
    with planned_suite(request, SilentReporter()):
        pass


@pytest.mark.parametrize(
    ("scale", "only", "code"),
    [(None, ("on",), "figure_unknown"), (0.0, (), "usage"), (float("nan"), (), "usage")],
)
def test_bad_requests(
    tmp_path: Path, scale: float | None, only: tuple[str, ...], code: str
) -> None:
    request = SuiteRequest(write(tmp_path), scale=scale, figures=MeasureRequest(only=only))
    with refused(ImpctlError, code) as caught:
        plan(request)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kind: both", "kind: none", "must be one of `insert`, `delete`, `both`, `del"),
        ("kind: both", "kinds: both", "Measure `maintain` has no option `kinds`"),
        ("kind: both", "changes: 0", "must be whole numbers of at least 1"),
        ("kind: both", "processes: 7", "must be sizes that also occur in `changes`"),
        ("kind: both", "shares: x", "must be numbers of at least 0"),
    ],
)
def test_wrong_options_have_positions(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = PLANNED.replace(old, new).replace("query, cases", "query, with: {x: 1}, cases")
    with pytest.raises(WorkloadError) as caught:
        checked_suite(Path(write(tmp_path, text)), SilentReporter())
    first, second = caught.value.problems
    assert message in first.message
    assert first.location is not None
    assert (first.location.line, first.location.column) == (9, 47)
    assert "Measure `query` has no option `x`" in second.message
    assert all(problem.hint for problem in (first, second))


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("x: changes", "x: change", "no label of its cells: `change`", "did you mean `changes`?"),
        ("y: [maintain_ms]", "y: [maintane_ms]", "no metric of its cells", "`maintain_ms`?"),
        ("x: at, ", "x: at, series: [kind], ", "no label of its cells: `kind`", "the labels: `at`"),
    ],
)
def test_a_chart_without_cells_is_refused(
    tmp_path: Path, old: str, new: str, message: str, hint: str
) -> None:
    with pytest.raises(WorkloadError) as caught:
        checked_suite(Path(write(tmp_path, PLANNED.replace(old, new))), SilentReporter())
    (problem,) = caught.value.problems
    assert message in problem.message
    assert hint in (problem.hint or "")


WRONG = {
    "answers": [{"batches": 1}, {"changes": 0}],
    "deadlines": [{}, {"tables": "t", "bounds": "soon"}, {"tables": "t", "steps": 3, "share": 0.5}],
    "deletions": [{"patterns": "upwards"}, {"buffers": ("20", "none")}],
    "maintain": [
        {"kind": "delete_old", "changes": 10, "shares": 0.1},
        {"kind": "delete_old", "changes": 10, "key": ("id", "a")},
    ],
    "memory": [{"process": "no"}],
    "mixed": [{"ratios": "1Q1U"}, {"rations": "1U1Q"}],
    "peers": [
        *({"scheme": "dred"}, {"schemes": "counting"}, {"program": "paths", "schemes": "dred"}),
        *({"program": "tree"}, {"phase": "both"}, {"shares": 1.5}, {"shares": (0.5, 0.2)}),
    ],
    "phases": [{}, {"tables": "t", "share": 0.5, "steps": 2}],
    "processes": [{"tables": "t", "share": 0.5}, {"tables": "t", "ways": "recapture"}],
    "recursion": [{"changes": 0}, {"sources": -1}, {"search": "depth"}, {"duckdb": ("a", "b")}],
    "rivals": [{"appends": -1}],
    "state": [{}, {"tables": "nothing"}, {"tables": "t", "come": 2}, {"tables": "t", "ways": "x"}],
    "strategies": [{"batches": 0}],
    "trees": [{"changes": 0}, {"kind": "windows"}, {"kind": "outlived"}, {"lives": 0}],
}


@pytest.mark.parametrize(
    ("measure", "options"), [(name, one) for name, wrong in WRONG.items() for one in wrong]
)
def test_a_wrong_option_is_refused_at_once(
    tmp_path: Path, measure: str, options: dict[str, Any]
) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("version: 1\ntables: {t: {path: t}}\nqueries: {q: {sql: SELECT a FROM t}}\n")
    with open_context(Settings(path)) as ctx, pytest.raises(WorkloadError):
        MEASURES[measure].run(case_of(ctx, measure, "q", **options))


PRINTED = """\
version: 1
data:
  t: {example: synthetic, rows: 1000, groups: 5}
  u: {example: synthetic, rows: 1000, groups: 5}
workload:
  tables: {t: {path: t}, u: {path: u}}
  partitions:
    t: {a: {ranges: 10}, b: {ranges: 10}}
  queries: {q: {sql: SELECT a FROM t, sketch: {t: a}}, r: {sql: SELECT a FROM u}}
figures:
  one:
    title: One
    measure: deletions
    with: {patterns: [minimal, random], points: 2, updates: 100}
    cases: [{query: q}]
    chart: {x: updates, y: [maintain_ms]}
"""


def fingerprint_of(folder: Path, old: str = "", new: str = "", *, repeat: int = 2) -> str:
    path = folder / "own.yaml"
    assert old in PRINTED
    path.write_text(PRINTED.replace(old, new) if old else PRINTED)
    figures = MeasureRequest(repeat=repeat)
    request = SuiteRequest(str(path), scale=0.5, folder=folder, figures=figures)
    with planned_suite(request, SilentReporter()) as planned:
        (figure,) = planned.run.figures
        ((_, fingerprint, _),) = figure.cases
        return fingerprint


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SELECT a FROM t", "SELECT b FROM t"),
        ("sketch: {t: a}", "sketch: {t: b}"),
        ("sketch: {t: a}", "sketch: {t: a}, join: index"),
        ("a: {ranges: 10}", "a: {ranges: 11}"),
        ("points: 2", "points: 4"),
        # The label of this name counts up to this option.
        ("updates: 100", "updates: 200"),
        ("groups: 5}\n  u:", "groups: 6}\n  u:"),
    ],
)
def test_fingerprints_cover_the_case(tmp_path: Path, old: str, new: str) -> None:
    assert fingerprint_of(tmp_path, old, new) != fingerprint_of(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("title: One", "title: Another"),
        ("SELECT a FROM u", "SELECT b FROM u"),
        ("b: {ranges: 10}", "b: {ranges: 11}"),
        # The pattern is a label of each cell.
        ("[minimal, random]", "[minimal, random, '2:1']"),
        ("u: {example: synthetic, rows: 1000", "u: {example: synthetic, rows: 5000"),
    ],
)
def test_fingerprints_ignore_other_settings(tmp_path: Path, old: str, new: str) -> None:
    assert fingerprint_of(tmp_path, old, new) == fingerprint_of(tmp_path)
    assert fingerprint_of(tmp_path, repeat=9) == fingerprint_of(tmp_path)
