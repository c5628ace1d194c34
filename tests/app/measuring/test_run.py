"""Measuring a workload: its figures and sizes; failures stay with their case, failed checks fail
the run; files are kept whole, and what is no file stays what it is."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from impctl.bench.machine import yardstick
from impctl.bench.record import Cell, Metric, record_from_json, record_to_json
from impctl.errors import StorageError, TableError, UnsupportedError, UsageError
from impctl.measure import run as keep
from impctl.measure import run as run_module
from impctl.measure.figures import Ground
from impctl.measure.keep import compare_files, report_file, try_kept, write_kept
from impctl.measure.run import MEASURES, figures_of, run_workload
from impctl.measure.scratch import AgainstRecapture
from impctl.service.context import SilentReporter, open_workbench
from impctl.service.outcome import gravest
from impctl.service.results import Outcome, Record, RecordKind
from impctl.service.settings import MeasureRequest, Settings
from impctl.workload.load import load_workload
from tests.cli.examples import RECORD

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


def failing(ground: Ground) -> Iterator[Cell]:
    """Two cells of `good`; of `bad` one, then an error."""
    yield ground.cell(ONE, {"at": 1}, checked=AgainstRecapture(True, 0))
    if ground.query.name == "bad":
        raise TableError("The table is gone", hint="bring it back")
    yield ground.cell(ONE, {"at": ground.repeat})


def unsound(ground: Ground) -> Iterator[Cell]:
    yield ground.cell(ONE, {"at": 1}, checked=AgainstRecapture(False, 0))
    yield ground.cell(ONE, {"at": 2}, equal=False)


def broken(ground: Ground) -> Iterator[Cell]:
    yield ground.cell(ONE)
    raise KeyError("a bug")


def stopped(ground: Ground) -> Iterator[Cell]:
    yield ground.cell(ONE)
    raise KeyboardInterrupt


def use(
    monkeypatch: pytest.MonkeyPatch, measure: str, work: Callable[[Ground], Iterator[Cell]]
) -> None:
    """Let a measure do this, for one test."""
    kind = replace(MEASURES[measure], run=work)
    monkeypatch.setitem(MEASURES, measure, kind)  # type: ignore[arg-type]


@pytest.fixture
def workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file, measured by functions above; its table is not opened."""
    for name, work in {"maintain": changes, "query": same, "capture": same, "ways": same}.items():
        use(monkeypatch, name, work)
    # Measuring the noise takes a third of a second.
    monkeypatch.setattr(run_module, "yardstick", lambda folder: 10.0)
    (tmp_path / "tables").mkdir()
    path = tmp_path / "w.yaml"
    path.write_text(WORKLOAD)
    return path


@pytest.fixture
def failures(workload: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same; `changes` fails for `bad`, `skipping` finds errors, `capture` has a bug and `ways`
    is interrupted."""
    for name, work in {
        "maintain": failing,
        "query": unsound,
        "capture": broken,
        "ways": stopped,
    }.items():
        use(monkeypatch, name, work)
    return workload


def run(
    workload: Path,
    request: MeasureRequest | None = None,
    *queries: str,
    rows: tuple[int, ...] = (),
) -> tuple[Record, Outcome]:
    with open_workbench(Settings(workload)) as desk:
        asked = MeasureRequest() if request is None else request
        outcome = run_workload(desk, asked, queries, delta_rows=rows)
    record = outcome.results[0]
    assert isinstance(record, Record)
    return record, outcome


def only(*figures: str, out: Path | None = None) -> MeasureRequest:
    return MeasureRequest(figures, repeat=7, out=out)


def test_every_figure_has_every_query_and_draws_what_its_measure_gives(workload: Path) -> None:
    read = load_workload(workload, {})
    figures = figures_of(read, tuple(read.queries.values()))
    assert [figure.name for figure in figures] == [*("changes", "skipping", "capture", "ways")]
    for figure in figures:
        assert [case.query for case in figure.cases] == ["good", "bad"]
        assert [case.labels for case in figure.cases] == [{"query": "good"}, {"query": "bad"}]
        drawable, chart = MEASURES[figure.measure].drawable, figure.chart
        assert {chart.x, *chart.series} <= {"query", *drawable.labels}
        assert all(map(drawable.has, chart.y))


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
    asked = MeasureRequest(only=("skipping", "changes"), repeat=7, out=out, report=page)
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
        run(workload, MeasureRequest(only=("change",)))
    assert caught.value.message == "There is no figure `change`"
    assert caught.value.hint == "did you mean `changes`?"
    with pytest.raises(UsageError) as caught:
        run(workload, None, "godo")
    assert (caught.value.code, caught.value.hint) == ("query_unknown", "did you mean `good`?")


def test_a_record_without_a_kind_is_that_of_a_suite(workload: Path) -> None:
    record, _ = run(workload)
    older = record_to_json(record).replace('"kind": "workload"', '"other": 0')
    assert record_from_json(older, "r.json") == replace(record, kind=RecordKind.SUITE)


def test_a_failure_costs_the_rest_of_its_case_only(failures: Path) -> None:
    record, outcome = run(failures, only("changes"))
    assert [(cell.labels["query"], cell.labels["at"]) for cell in record.cells] == [
        ("good", 1),
        ("good", 7),
        ("bad", 1),
    ]
    assert record.failures == ("Figure `changes`, query bad: The table is gone",)
    (failure,) = outcome.failures
    assert (failure.query, failure.error.exit_code) == ("bad", 3)
    assert failure.error.hint == "bring it back"
    assert [figure.name for figure in record.figures] == ["changes"]


def test_a_failed_check_is_the_gravest_failure(failures: Path) -> None:
    record, outcome = run(failures, only("changes", "skipping"))
    decisive = gravest(outcome)
    assert decisive is not None
    assert decisive.error.exit_code == 5
    assert record.failures[1:3] == (
        "Figure `skipping`, query good, at 1: The maintained sketch of query `good` is too small",
        "Figure `skipping`, query good, at 2: Query `good` has a different result with its sketch "
        "than without",
    )
    assert len(record.cells_of("skipping")) == 4


def test_a_bug_is_told_as_one_and_costs_its_case_only(failures: Path) -> None:
    record, outcome = run(failures, only("changes", "capture"))
    assert len(record.cells_of("changes")) == 3
    assert len(record.cells_of("capture")) == 2
    decisive = gravest(outcome)
    assert decisive is not None
    # Before the table that is gone: exit code 1 is a bug, whatever else failed.
    assert decisive.error.exit_code == 1
    assert "Unexpected error, KeyError" in decisive.error.message
    assert isinstance(decisive.error.__cause__, KeyError)


def test_an_interrupt_keeps_the_cells_that_are_done(failures: Path, tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    with pytest.raises(KeyboardInterrupt):
        run(failures, only("changes", "ways", out=out))
    kept = record_from_json(out.read_text(), "record.json")
    assert [figure.name for figure in kept.figures] == ["changes", "ways"]
    assert [cell.figure for cell in kept.cells] == ["changes", "changes", "changes", "ways"]


def test_every_figure_has_the_noise_around_it(
    workload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([10.0, 10.0, 15.0])
    monkeypatch.setattr(run_module, "yardstick", lambda folder: next(times))
    record, _ = run(workload, only("changes", "capture"))
    assert record.figure_noise == {"changes": 0.0, "capture": 0.5}
    assert record.noise == 0.5


def test_cells_of_one_case_share_a_fingerprint_of_what_was_measured(failures: Path) -> None:
    def prints(text: str) -> dict[object, str]:
        failures.write_text(text)
        record, _ = run(failures, only("changes"))
        return {cell.labels["query"]: cell.fingerprint for cell in record.cells}

    before = prints(WORKLOAD)
    assert len(set(before.values())) == 2
    assert prints(WORKLOAD.replace("SELECT 1 FROM t", "SELECT  1 FROM t")) == before
    after = prints(WORKLOAD.replace("SELECT 1 FROM t", "SELECT 3 FROM t"))
    assert after["good"] != before["good"]
    assert after["bad"] == before["bad"]


def test_the_record_is_written_whole(workload: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "record.json"
    _, outcome = run(workload, only("changes", out=out))
    assert out.is_file()
    assert [path.name for path in out.parent.iterdir()] == ["record.json"]
    assert outcome.results[1].path == str(out)  # type: ignore[union-attr]


@pytest.mark.parametrize("place", ["file/record.json", "folder"])
def test_files_that_cannot_be_written_are_told_before_anything_is_measured(
    workload: Path, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError) as caught:
        run(workload, only(out=tmp_path / place))
    assert caught.value.exit_code == 6
    assert "The record could not be written to" in caught.value.message
    assert not list((tmp_path / "tables").iterdir())
    assert (tmp_path / "file").read_text() == "mine"


def test_the_trial_leaves_a_file_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    out.write_text("an earlier one")
    try_kept(MeasureRequest(out=out, report=tmp_path / "new" / "page.html"), {})
    assert out.read_text() == "an earlier one"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["new", "record.json"]
    with pytest.raises(UsageError, match="name the same file"):
        try_kept(MeasureRequest(out=out, report=out), {})


def test_a_disk_that_fills_up_later_costs_no_figure(
    workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(keep.os, "replace", Mock(side_effect=full))
    record, outcome = run(workload, only(out=tmp_path / "record.json"))
    assert {cell.figure for cell in record.cells} == {"changes", "skipping", "capture", "ways"}
    assert outcome.failures[-1].error.message.endswith("No space left on device")
    assert len(outcome.results) == 1
    assert not list(tmp_path.glob("*.part"))


@pytest.fixture
def record(tmp_path: Path) -> Path:
    file = tmp_path / "r.json"
    file.write_text(record_to_json(RECORD))
    return file


def test_a_full_device_is_told_and_stays(record: Path, tmp_path: Path) -> None:
    """A link stands for the device: an administrator's run would put a file in its place."""
    target = tmp_path / "full"
    target.symlink_to("/dev/full")
    with pytest.raises(StorageError, match="No space left on device"):
        report_file(record, target, SilentReporter())
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    assert os.readlink(target) == "/dev/full"


def test_a_pipe_gets_the_page(record: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    report_file(record, pipe, SilentReporter())
    assert stat.S_ISFIFO(os.lstat(pipe).st_mode)
    reader.join(10)
    assert got[0].rstrip().endswith("</html>")


def test_a_link_to_a_file_stays_a_link(record: Path, tmp_path: Path) -> None:
    there = tmp_path / "elsewhere" / "page.html"
    there.parent.mkdir()
    there.write_text("old")
    target = tmp_path / "page.html"
    target.symlink_to(there)
    report_file(record, target, SilentReporter())
    assert target.is_symlink()
    assert there.read_text().rstrip().endswith("</html>")
    assert [path.name for path in there.parent.iterdir()] == ["page.html"]


def test_the_trial_does_not_open_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    asked = MeasureRequest(out=pipe)
    try_kept(asked, {})
    assert stat.S_ISFIFO(os.lstat(pipe).st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    assert write_kept(MeasureRequest(), RECORD) == ()
