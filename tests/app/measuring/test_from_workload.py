"""A workload measured as a suite: its cases and sizes, what goes with it, and what stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from impctl.app.measuring import run as run_module
from impctl.app.measuring.charts import chart_problems
from impctl.app.measuring.follower import AgainstRecapture
from impctl.app.measuring.from_workload import suite_of
from impctl.app.measuring.ground import Ground
from impctl.app.measuring.keep import compare_files
from impctl.app.measuring.registry import MEASURES
from impctl.app.measuring.run import run_workload
from impctl.app.results.results import Outcome, Record, RecordKind
from impctl.app.workbench.reporter import SilentReporter
from impctl.app.workbench.settings import Settings, SuiteRequest
from impctl.app.workbench.workbench import open_workbench
from impctl.bench.record import Cell, Metric
from impctl.bench.record_json import record_from_json, record_to_json
from impctl.bench.yardstick import yardstick
from impctl.errors import UnsupportedError, UsageError
from impctl.workload.load import load_workload

WORKLOAD = """\
version: 1
name: mine
tables: {t: {path: tables/t}}
queries: {good: {sql: SELECT 1 FROM t}, bad: {sql: SELECT 2 FROM t}}
"""

ONE = {"maintain_ms": Metric.of([1.0])}


def changes(ground: Ground) -> Iterator[Cell]:
    """A cell of `good`, which goes with the options; `bad` can only be recaptured."""
    if ground.query.name == "bad":
        raise UnsupportedError("Query `bad` can only be recaptured", hint="see `impctl explain`")
    sizes = (*ground.whole_numbers("changes"), *ground.numbers("shares"))
    yield ground.cell(ONE, {"sizes": str(sizes)}, checked=AgainstRecapture(True, 0))


def same(ground: Ground) -> Iterator[Cell]:
    yield ground.cell(ONE, {"repeat": ground.repeat}, equal=True)


def use(
    monkeypatch: pytest.MonkeyPatch, measure: str, work: Callable[[Ground], Iterator[Cell]]
) -> None:
    """Let a measure do this, for one test."""
    kind = replace(MEASURES[measure], run=work)
    monkeypatch.setitem(MEASURES, measure, kind)  # type: ignore[arg-type]


@pytest.fixture
def workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file, measured by the functions above; its table is not opened."""
    for name, work in {"maintain": changes, "query": same, "capture": same, "ways": same}.items():
        use(monkeypatch, name, work)
    # Measuring the noise takes a third of a second.
    monkeypatch.setattr(run_module, "yardstick", lambda folder: 10.0)
    (tmp_path / "tables").mkdir()
    path = tmp_path / "w.yaml"
    path.write_text(WORKLOAD)
    return path


def run(
    workload: Path, request: SuiteRequest | None = None, *queries: str, rows: tuple[int, ...] = ()
) -> tuple[Record, Outcome]:
    with open_workbench(Settings(workload)) as desk:
        asked = SuiteRequest(str(workload)) if request is None else request
        outcome = run_workload(desk, asked, queries, delta_rows=rows)
    record = outcome.results[0]
    assert isinstance(record, Record)
    return record, outcome


def test_every_figure_has_every_query_and_draws_what_its_measure_gives(workload: Path) -> None:
    read = load_workload(workload, {})
    suite = suite_of(read, tuple(read.queries.values()))
    assert [figure.name for figure in suite.figures] == [
        *("changes", "skipping", "capture", "ways")
    ]
    for figure in suite.figures:
        assert [case.query for case in figure.cases] == ["good", "bad"]
        assert [case.labels for case in figure.cases] == [{"query": "good"}, {"query": "bad"}]
        assert chart_problems(figure) == []


def test_the_record_of_a_workload(workload: Path) -> None:
    record, outcome = run(workload)
    assert record.kind is RecordKind.WORKLOAD
    assert (record.suite, record.title) == ("mine", "Workload mine")
    assert (record.scale, record.repeat, record.seed) == (1.0, 3, 1)
    assert record_from_json(record_to_json(record), "r.json") == record
    (cell,) = record.cells_of("changes")
    # Rows for what is realistic, shares for a break-even on a table of any size.
    assert cell.labels == {"query": "good", "sizes": "(10, 100, 1000, 0.01, 0.1)"}
    assert [cell.labels["query"] for cell in record.cells_of("skipping")] == ["good", "bad"]

    # What cannot be maintained is named, and loses nothing else.
    (failure,) = outcome.failures
    assert (failure.query, failure.error.exit_code) == ("bad", 3)
    assert record.failures == (
        "Figure `changes`, query bad: Query `bad` can only be recaptured",
    )  # fmt: skip


def test_what_is_asked_for_is_what_is_measured(
    workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "yardstick", yardstick)
    out, page = tmp_path / "r.json", tmp_path / "r.html"
    asked = SuiteRequest(
        str(workload), only=("skipping", "changes"), scale=None, repeat=7, out=out, report=page
    )
    record, outcome = run(workload, asked, "good", rows=(5, 50))
    assert [figure.name for figure in record.figures] == ["skipping", "changes"]
    assert [cell.labels for cell in record.cells] == [
        {"query": "good", "repeat": 7},
        {"query": "good", "sizes": "(5, 50)"},
    ]
    assert outcome.failures == ()
    assert record_from_json(out.read_text(), "r.json") == record
    text = page.read_text()
    assert "Workload mine" in text
    assert "the suite" not in text
    (compared,) = compare_files(out, out, SilentReporter()).results
    assert getattr(compared, "suite", "") == "mine"
    # The folder in which noise was measured is gone too.
    assert {path.name for path in tmp_path.iterdir()} == {"tables", "w.yaml", "r.json", "r.html"}
    assert list((tmp_path / "tables").iterdir()) == []


def test_names_that_are_not_there(workload: Path) -> None:
    with pytest.raises(UsageError) as caught:
        run(workload, SuiteRequest(str(workload), only=("change",)))
    assert caught.value.message == "Suite `mine` has no figure `change`"
    assert caught.value.hint == "did you mean `changes`?"
    with pytest.raises(UsageError) as caught:
        run(workload, None, "godo")
    assert (caught.value.code, caught.value.hint) == ("query_unknown", "did you mean `good`?")


def test_a_record_without_a_kind_is_that_of_a_suite(workload: Path) -> None:
    record, _ = run(workload)
    older = record_to_json(record).replace('"kind": "workload"', '"other": 0')
    assert record_from_json(older, "r.json") == replace(record, kind=RecordKind.SUITE)
