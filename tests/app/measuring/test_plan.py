"""Suites before they run: which file a word means, and that wrong options end it at once; and the
fingerprints of cases: what a number is of, and nothing that only tells where or how often."""

from __future__ import annotations

from pathlib import Path

import pytest

from impctl.app.measuring.fingerprint import case_fingerprint
from impctl.app.measuring.plan import VOCABULARY, check_suite, list_suites, planned_suite
from impctl.app.measuring.registry import MEASURES
from impctl.app.measuring.shipped import can_only_name_a_suite, shipped_suites, suite_file
from impctl.app.results.made import SuiteResult
from impctl.app.workbench.reporter import SilentReporter
from impctl.app.workbench.settings import SuiteRequest
from impctl.errors import ImpctlError, UsageError, WorkloadError
from impctl.workload.suites import load_suite
from tests.support.refused import refused

SUITE = """\
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


def write(folder: Path, text: str = SUITE) -> str:
    path = folder / "own.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.slow
def test_shipped_suites_are_found_by_name_and_are_right() -> None:
    assert {"crimes", "micro", "tpch"} <= shipped_suites().keys()
    assert suite_file("micro") == shipped_suites()["micro"]
    assert len(list_suites(SilentReporter()).results) == len(shipped_suites())


def test_a_file_is_a_suite_by_its_figures(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert suite_file(path) == Path(path)
    (tmp_path / "w.yaml").write_text("version: 1\n")
    assert suite_file(str(tmp_path / "w.yaml")) is None
    assert can_only_name_a_suite("nothing")
    assert not can_only_name_a_suite("w.yaml")
    assert not can_only_name_a_suite("a/b")


def test_an_unknown_name_tells_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        check_suite("micra", SilentReporter())
    assert (caught.value.code, caught.value.hint) == ("suite_unknown", "did you mean `micro`?")


def test_full_size_has_the_sizes_of_the_papers_and_what_is_wrong_there_is_found_at_once(
    tmp_path: Path,
) -> None:
    def sizes(scale: float) -> object:
        request = SuiteRequest("micro", only=("one_to_many",), scale=scale, folder=tmp_path)
        (figure,) = planned_suite(request, SilentReporter()).figures
        return figure.spec.options["shares"]

    assert (sizes(0.5), sizes(1)) == ((0.1,), (0.001, 0.01, 0.05, 0.1))
    wrong = SUITE.replace("chart: {x: ch", "full: {with: {knid: both}}, chart: {x: ch")
    with pytest.raises(WorkloadError) as caught:
        check_suite(
            write(tmp_path, wrong.replace("version: 1", "version: 1\nscale: 0.1")), SilentReporter()
        )
    assert "Measure `maintain` has no option `knid`" in caught.value.problems[0].message


def test_cases_of_the_full_size_count(tmp_path: Path) -> None:
    more = "cases: [{query: q}], full: {cases: [{query: q, at: 2}]}, chart: {x: ch"
    text = SUITE.replace("cases: [{query: q}], chart: {x: ch", more)
    path = write(tmp_path, text.replace("version: 1", "version: 1\nscale: 0.1"))
    (found,) = check_suite(path, SilentReporter()).results
    assert isinstance(found, SuiteResult)
    assert found.cases == 3


def test_only_the_data_that_the_figures_read_is_needed(tmp_path: Path) -> None:
    request = SuiteRequest(write(tmp_path), only=("one",), scale=0.1, repeat=2, folder=tmp_path)
    planned = planned_suite(request, SilentReporter())
    assert [(data.name, data.rows) for data in planned.data] == [("t", 100)]
    assert (planned.scale, planned.repeat) == (0.1, 2)
    assert [figure.spec.name for figure in planned.figures] == ["one"]
    with refused(UsageError, "source_missing"):
        planned_suite(SuiteRequest(write(tmp_path), folder=tmp_path), SilentReporter())


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({"only": ("on",)}, "figure_unknown"),
        ({"scale": 0.0}, "usage"),
        ({"scale": -1.0}, "usage"),
        ({"scale": float("nan")}, "usage"),
    ],
)
def test_wrong_requests(tmp_path: Path, request_: dict[str, object], code: str) -> None:
    with refused(ImpctlError, code) as caught:
        planned_suite(SuiteRequest(write(tmp_path), **request_), SilentReporter())  # type: ignore[arg-type]
    assert caught.value.hint


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kind: both", "kind: none", "must be one of `insert`, `delete`, `both`, `del"),
        ("kind: both", "kinds: both", "Measure `maintain` has no option `kinds`"),
        ("kind: both", "changes: 0", "must be whole numbers of at least 1"),
        ("kind: both", "changes: [1, 2.5]", "must be whole numbers of at least 1"),
        ("kind: both", "changes: true", "must be whole numbers of at least 1"),
        ("kind: both", "shares: [-0.1]", "must be numbers of at least 0"),
        ("kind: both", "processes: 7", "must be sizes that also occur in `changes`"),
        ("kind: both", "shares: x", "must be numbers of at least 0"),
    ],
)
def test_wrong_options_have_their_place_and_are_all_told(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    text = SUITE.replace(old, new).replace("query, cases", "query, with: {x: 1}, cases")
    with pytest.raises(WorkloadError) as caught:
        check_suite(write(tmp_path, text), SilentReporter())
    first, second = caught.value.problems
    assert message in first.message
    assert first.location is not None
    assert (first.location.line, first.location.column) == (9, 47)
    assert "Measure `query` has no option `x`" in second.message
    assert first.hint
    assert second.hint


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("x: changes", "x: change", "no label of its cells: `change`", "did you mean `changes`?"),
        ("y: [maintain_ms]", "y: [maintane_ms]", "no metric of its cells", "`maintain_ms`?"),
        ("x: at, ", "x: at, series: [kind], ", "no label of its cells: `kind`", "the labels: `at`"),
    ],
)
def test_a_chart_of_what_no_cell_has_is_refused(
    tmp_path: Path, old: str, new: str, message: str, hint: str
) -> None:
    with pytest.raises(WorkloadError) as caught:
        check_suite(write(tmp_path, SUITE.replace(old, new)), SilentReporter())
    (problem,) = caught.value.problems
    assert message in problem.message
    assert hint in (problem.hint or "")


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


def fingerprint(folder: Path, old: str = "", new: str = "", *, repeat: int = 2) -> str:
    path = folder / "own.yaml"
    assert old in PRINTED
    path.write_text(PRINTED.replace(old, new) if old else PRINTED)
    request = SuiteRequest(str(path), scale=0.5, repeat=repeat, folder=folder)
    planned = planned_suite(request, SilentReporter())
    (figure,) = planned.figures
    ((case, _),) = figure.cases
    return case_fingerprint(planned, figure.spec, case)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SELECT a FROM t", "SELECT b FROM t"),
        ("sketch: {t: a}", "sketch: {t: b}"),
        ("sketch: {t: a}", "sketch: {t: a}, join: index"),
        ("a: {ranges: 10}", "a: {ranges: 11}"),
        ("points: 2", "points: 4"),
        # The label of this name counts up to the option.
        ("updates: 100", "updates: 200"),
        ("t: {example: synthetic, rows: 1000, groups: 5}",
         "t: {example: synthetic, rows: 1000, groups: 6}"),
    ],
)  # fmt: skip
def test_what_is_measured_counts(tmp_path: Path, old: str, new: str) -> None:
    assert fingerprint(tmp_path, old, new) != fingerprint(tmp_path)


@pytest.mark.slow
def test_options_left_out_are_options_that_suites_give_to_these_measures(tmp_path: Path) -> None:
    suites = [load_suite(path, {}, tmp_path, VOCABULARY) for path in shipped_suites().values()]
    given = {
        (figure.measure, option)
        for suite in suites
        for figure in suite.figures
        for option in figure.at(1).options
    }
    left_out = {(name, option) for name, kind in MEASURES.items() for option in kind.labelled}
    assert left_out <= given


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("title: One", "title: Another"),
        ("SELECT a FROM u", "SELECT b FROM u"),
        ("b: {ranges: 10}", "b: {ranges: 11}"),
        # Each cell has its pattern among its labels.
        ("[minimal, random]", "[minimal, random, '2:1']"),
        ("u: {example: synthetic, rows: 1000", "u: {example: synthetic, rows: 5000"),
    ],
)
def test_what_is_told_elsewhere_does_not(tmp_path: Path, old: str, new: str) -> None:
    assert fingerprint(tmp_path, old, new) == fingerprint(tmp_path)
    assert fingerprint(tmp_path, repeat=9) == fingerprint(tmp_path)
