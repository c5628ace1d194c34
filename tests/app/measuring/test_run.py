"""Running figures: failures stay with their case, failed checks fail the run, files are kept whole,
and what is no file stays what it is."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from impctl.app.measuring import keep
from impctl.app.measuring import run as run_module
from impctl.app.measuring.follower import AgainstRecapture
from impctl.app.measuring.ground import Ground
from impctl.app.measuring.keep import report_file, try_kept, write_kept
from impctl.app.measuring.registry import MEASURES, Drawable, Measure
from impctl.app.measuring.run import run_suite
from impctl.app.results.ending import gravest
from impctl.app.results.results import Outcome, Record
from impctl.app.workbench.reporter import SilentReporter
from impctl.app.workbench.settings import SuiteRequest
from impctl.bench.record import Cell, Metric
from impctl.bench.record_json import record_from_json, record_to_json
from impctl.errors import StorageError, TableError, UsageError
from tests.cli.examples import RECORD

SUITE = """\
version: 1
workload:
  tables: {t: {path: t}}
  queries: {good: {sql: SELECT 1 FROM t}, bad: {sql: SELECT 2 FROM t}}
figures:
  first: {title: First, measure: maintain, chart: &c {x: at, y: [a_ms]}}
  second: {title: Second, measure: query, cases: [{query: good}], chart: *c}
"""

ONE = {"a_ms": Metric.of([1.0])}


def measured(ground: Ground) -> Iterator[Cell]:
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


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file, whose measures are those above; no table is opened."""
    measures = {"maintain": measured, "query": unsound, "capture": broken, "engine": stopped}
    for name, work in measures.items():
        kind = Measure(work, (), Drawable(("at",), ("a_ms",)))
        monkeypatch.setitem(MEASURES, name, kind)  # type: ignore[arg-type]
    # Measuring the noise takes a third of a second.
    monkeypatch.setattr(run_module, "yardstick", lambda folder: 10.0)
    path = tmp_path / "s.yaml"
    path.write_text(SUITE)
    return path


def run(suite: Path, *only: str, out: Path | None = None) -> tuple[Record, Outcome]:
    request = SuiteRequest(
        str(suite), only=only, scale=1.0, repeat=7, folder=suite.parent / "data", out=out
    )
    outcome = run_suite(request, SilentReporter())
    record = outcome.results[0]
    assert isinstance(record, Record)
    return record, outcome


def test_a_failure_costs_the_rest_of_its_case_only(suite: Path) -> None:
    record, outcome = run(suite, "first")
    assert [(cell.labels["query"], cell.labels["at"]) for cell in record.cells] == [
        ("good", 1),
        ("good", 7),
        ("bad", 1),
    ]
    assert record.failures == ("Figure `first`, query bad: The table is gone",)
    (failure,) = outcome.failures
    assert (failure.query, failure.error.exit_code) == ("bad", 3)
    assert failure.error.hint == "bring it back"
    assert [figure.name for figure in record.figures] == ["first"]


def test_a_failed_check_is_the_gravest_failure(suite: Path) -> None:
    record, outcome = run(suite)
    decisive = gravest(outcome)
    assert decisive is not None
    assert decisive.error.exit_code == 5
    assert record.failures[1:] == (
        "Figure `second`, query good, at 1: The maintained sketch of query `good` is too small",
        "Figure `second`, query good, at 2: Query `good` has a different result with its sketch "
        "than without",
    )
    assert len(record.cells_of("second")) == 2


def test_a_bug_is_told_as_one_and_costs_its_case_only(suite: Path) -> None:
    suite.write_text(SUITE.replace("measure: query", "measure: capture"))
    record, outcome = run(suite)
    assert len(record.cells_of("first")) == 3
    assert len(record.cells_of("second")) == 1
    decisive = gravest(outcome)
    assert decisive is not None
    # Before the table that is gone: exit code 1 is a bug, whatever else failed.
    assert decisive.error.exit_code == 1
    assert "Unexpected error, KeyError" in decisive.error.message
    assert isinstance(decisive.error.__cause__, KeyError)


def test_an_interrupt_keeps_the_cells_that_are_done(suite: Path, tmp_path: Path) -> None:
    suite.write_text(SUITE.replace("measure: query", "measure: engine"))
    out = tmp_path / "record.json"
    with pytest.raises(KeyboardInterrupt):
        run(suite, out=out)
    kept = record_from_json(out.read_text(), "record.json")
    assert [figure.name for figure in kept.figures] == ["first", "second"]
    assert [cell.figure for cell in kept.cells] == ["first", "first", "first", "second"]


def test_every_figure_has_the_noise_around_it(suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 10.0, 15.0])
    monkeypatch.setattr(run_module, "yardstick", lambda folder: next(times))
    record, _ = run(suite)
    assert record.figure_noise == {"first": 0.0, "second": 0.5}
    assert record.noise == 0.5


def test_cells_of_one_case_share_a_fingerprint_of_what_was_measured(suite: Path) -> None:
    def prints(text: str) -> dict[object, str]:
        suite.write_text(text)
        record, _ = run(suite, "first")
        return {cell.labels["query"]: cell.fingerprint for cell in record.cells}

    before = prints(SUITE)
    assert len(set(before.values())) == 2
    assert prints(SUITE.replace("SELECT 1 FROM t", "SELECT  1 FROM t")) == before
    after = prints(SUITE.replace("SELECT 1 FROM t", "SELECT 3 FROM t"))
    assert after["good"] != before["good"]
    assert after["bad"] == before["bad"]


def test_the_record_is_written_whole(suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "record.json"
    _, outcome = run(suite, "first", out=out)
    assert out.is_file()
    assert [path.name for path in out.parent.iterdir()] == ["record.json"]
    assert outcome.results[1].path == str(out)  # type: ignore[union-attr]


@pytest.mark.parametrize("place", ["file/record.json", "folder"])
def test_files_that_cannot_be_written_are_told_before_anything_is_measured(
    suite: Path, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError) as caught:
        run(suite, out=tmp_path / place)
    assert caught.value.exit_code == 6
    assert "The record could not be written to" in caught.value.message
    assert not (tmp_path / "data").exists()
    assert (tmp_path / "file").read_text() == "mine"


def test_the_trial_leaves_a_file_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    out.write_text("an earlier one")
    try_kept(SuiteRequest("s", out=out, report=tmp_path / "new" / "page.html"), {})
    assert out.read_text() == "an earlier one"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["new", "record.json"]
    with pytest.raises(UsageError, match="name the same file"):
        try_kept(SuiteRequest("s", out=out, report=out), {})


def test_a_disk_that_fills_up_later_costs_no_figure(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(keep.os, "replace", Mock(side_effect=full))
    record, outcome = run(suite, out=tmp_path / "record.json")
    assert {cell.figure for cell in record.cells} == {"first", "second"}
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
    asked = SuiteRequest("micro", out=pipe)
    try_kept(asked, {})
    assert stat.S_ISFIFO(os.lstat(pipe).st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    assert write_kept(SuiteRequest("micro"), RECORD) == ()
