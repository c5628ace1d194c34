"""The next change on real tables: kept up by captures and runs, told by `plan`, warned of."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.errors import StorageError
from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table
from tests.support.commit_times import log_entry, set_time
from tests.support.made_once import MadeOnce
from tests.support.older_store import as_format
from tests.support.run_cli import Cli, Ran
from tests.support.small_workload import ROWS

HOUR = 3600.0
NOW = time.time()


@pytest.fixture(autouse=True)
def _the_clock_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits and forecasts of all tests are as of one moment, so that tables can be shared."""
    monkeypatch.setattr(time, "time", lambda: NOW)


def append(table: str, back: float, rows: int = 10) -> int:
    """Add rows, and have the log say that this was `back` seconds ago; gives the version."""
    write_deltalake(table, ROWS.slice(0, rows), mode="append")
    version = DeltaTable(table).version()
    set_time(table, version, NOW - back)
    return version


def arrivals(cli: Cli) -> list[int]:
    with Store.open(cli.workload.parent / ".impctl") as store:
        history = store.arrivals(["t"]).get("t")
    return [] if history is None else [each.version for each in history.arrivals]


def unexpected(ran: Ran) -> list[str]:
    return [text for text in ran.document["warnings"] if "[change_unexpected]" in text]


@pytest.fixture
def hourly(table: str, made_once: MadeOnce) -> str:
    """The table with eight commits, an hour between them, the last one half an hour ago."""

    def write(folder: Path) -> None:
        create_table(str(folder / "t"), ROWS)
        came_hourly(str(folder / "t"), HOUR / 2)

    shutil.rmtree(table)
    shutil.copytree(made_once.folder("hourly", write) / "t", table)
    return table


def came_hourly(table: str, last: float) -> str:
    """The table with eight commits, an hour between them, the last one `last` seconds ago."""
    set_time(table, 0, NOW - last - 8 * HOUR)
    for n in range(8):
        append(table, last + (7 - n) * HOUR, 4)
    return table


def test_a_plan_tells_the_next_change(cli: Cli, hourly: str) -> None:
    assert cli.good("plan").results[0]["next_change"] is None
    cli.good("capture")
    result = cli.good("plan").results[0]["next_change"]
    assert (result["tables"], result["unknown"]) == (["t"], None)
    for part in ("in_s_low", "in_s", "in_s_high"):
        assert result[part] == pytest.approx(HOUR / 2, abs=60)
    assert (result["rows_low"], result["rows"], result["rows_high"]) == (4, 4, 4)


@pytest.mark.slow
def test_what_is_pending_came_already(cli: Cli, table: str) -> None:
    # It comes when it was expected: who forecasts an hour does so after it, too.
    came_hourly(table, HOUR)
    cli.good("capture")
    assert cli.good("plan").results[0]["next_change"]["in_s"] == pytest.approx(0, abs=60)
    append(table, 0.0, 4)
    result = cli.good("plan").results[0]["next_change"]
    for part in ("in_s_low", "in_s", "in_s_high"):
        assert result[part] == pytest.approx(HOUR, abs=90)


@pytest.mark.slow
def test_captures_and_runs_keep_the_commits_and_plans_do_not(cli: Cli, hourly: str) -> None:
    cli.good("capture")
    assert arrivals(cli) == list(range(1, 9))
    append(hourly, 0.0)
    cli.good("plan")
    cli.good("maintain", "--dry-run")
    assert arrivals(cli) == list(range(1, 9))
    cli.good("maintain")
    assert arrivals(cli) == list(range(1, 10))


@pytest.mark.slow
def test_what_a_run_has_read_of_a_log_is_not_read_again(
    cli: Cli, hourly: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.good("capture")
    for rows in (2, 5, 3):
        append(hourly, 0.0, rows)
    monkeypatch.setattr("impctl.tables.log.read_entry", None)
    cli.good("maintain")
    with Store.open(cli.workload.parent / ".impctl") as store:
        result = store.arrivals(["t"])["t"].arrivals[-3:]
    assert [(each.version, each.inserted) for each in result] == [(9, 2), (10, 5), (11, 3)]


@pytest.mark.slow
def test_a_log_that_was_cleaned_takes_nothing_away(cli: Cli, hourly: str) -> None:
    cli.good("capture")
    before = cli.good("plan").results[0]["next_change"]
    append(hourly, 0.0, 4)
    cli.good("maintain")
    DeltaTable(hourly).create_checkpoint()
    for version in range(9):
        log_entry(hourly, version).unlink()
    after = cli.good("plan").results[0]["next_change"]
    assert (after["rows"], after["unknown"]) == (before["rows"], None)
    # Without the store nobody knows.
    with Store.open(cli.workload.parent / ".impctl") as store:
        assert len(store.arrivals(["t"])["t"].arrivals) == 9
    as_format(cli.workload.parent / ".impctl", 5)
    unknown = cli.good("plan").results[0]["next_change"]
    assert unknown["unknown"] == "1 change is known, a forecast needs 5"


@pytest.mark.slow
def test_a_store_of_before_is_brought_up_by_the_next_run(cli: Cli, hourly: str) -> None:
    cli.good("capture")
    as_format(cli.workload.parent / ".impctl", 5)
    assert cli.good("plan").results[0]["next_change"]["rows"] == 4
    append(hourly, 0.0)
    cli.good("maintain")
    assert arrivals(cli) == list(range(1, 10))


@pytest.mark.slow
def test_a_run_that_fails_for_all_keeps_nothing(cli: Cli, hourly: str) -> None:
    cli.good("capture")
    gone = append(hourly, 0.0)
    held = set(DeltaTable(hourly, version=gone - 1).file_uris())
    for uri in set(DeltaTable(hourly).file_uris()) - held:
        Path(uri.removeprefix("file://")).unlink()
    assert cli("maintain").code == 7
    assert arrivals(cli) == list(range(1, 9))


@pytest.mark.slow
def test_a_change_that_was_never_to_come_is_told_once(cli: Cli, table: str) -> None:
    text = cli.workload.read_text()
    cli.workload.write_text(text.replace("{path: t}", "{path: t, changes: never}"))
    append(table, HOUR)
    # What came before the file was written, or before anybody looked, was no surprise.
    assert unexpected(cli.good("capture")) == []
    assert "never change" in cli.good("plan").results[0]["next_change"]["unknown"]
    append(table, 0.0)
    append(table, 0.0)
    ran = cli.good("maintain")
    (told,) = unexpected(ran)
    assert "table `t` changed in versions 2 to 3" in told
    assert (ran.results[0]["action"], ran.results[0]["reason_code"]) == ("exact", "incremental")
    assert unexpected(cli.good("maintain")) == []
    DeltaTable(table).optimize.compact()
    assert unexpected(cli.good("maintain")) == []
    append(table, 0.0)
    (told,) = unexpected(cli.good("maintain"))
    assert "changed in version 5," in told
    append(table, 0.0)
    (told,) = unexpected(cli.good("capture"))
    assert "changed in version 6," in told
    cli.workload.write_text(text)
    append(table, 0.0)
    assert unexpected(cli.good("maintain")) == []


def test_in_a_store_of_before_what_is_pending_is_told(cli: Cli, table: str) -> None:
    cli.edit("{path: t}", "{path: t, changes: never}")
    append(table, HOUR)
    cli.good("capture")
    as_format(cli.workload.parent / ".impctl", 5)
    append(table, 0.0)
    (told,) = unexpected(cli.good("maintain"))
    assert "changed in version 2," in told


def test_what_cannot_be_remembered_stops_nothing(
    cli: Cli, hourly: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.good("capture")
    append(hourly, 0.0)
    with monkeypatch.context() as patch:
        refused = StorageError("the disk said no", hint="mend it")
        patch.setattr(Store, "save_arrivals", Mock(side_effect=refused))
        ran = cli.good("maintain")
    assert ran.results[0]["action"] == "exact"
    assert ran.document["warnings"] == ["the disk said no; mend it"]
    append(hourly, 0.0)
    cli.good("maintain")
    assert arrivals(cli) == list(range(1, 11))


@pytest.mark.slow
def test_the_file_says_what_the_log_cannot_know(cli: Cli, table: str) -> None:
    said = "{path: t, changes: {every: 2h, rows: 200}}"
    cli.edit("{path: t}", said)
    cli.good("capture")
    append(table, HOUR)
    result = cli.good("plan").results[0]["next_change"]
    assert result["in_s"] == pytest.approx(HOUR, abs=60)
    assert (result["rows"], result["by"]) == (200, "the workload file")


@pytest.mark.slow
def test_tables_that_move_together_are_told_together(cli: Cli, hourly: str) -> None:
    other = str(Path(hourly).parent / "u")
    write_deltalake(other, pa.table({"g": [1, 2], "y": [1, 2]}))
    for n in range(8, 0, -1):
        write_deltalake(other, pa.table({"g": [1], "y": [2]}), mode="append")
        set_time(other, DeltaTable(other).version(), NOW - (n - 0.49) * HOUR)
    text = cli.workload.read_text().replace("  t: {path: t}", "  t: {path: t}\n  u: {path: u}")
    text = text.replace("FROM t", "FROM t JOIN u USING (g)").replace("SUM(x)", "SUM(y)")
    cli.workload.write_text(text)
    cli.good("capture")
    result = cli.good("plan").results[0]["next_change"]
    assert (result["tables"], result["rows"]) == (["t", "u"], 5)
