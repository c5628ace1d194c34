"""Logs that lead elsewhere than the sketch's table went: backups, lost lines, copied entries.

Law: a sketch is either what recapture finds, or the run says by its code why it cannot be carried.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.service.stored import StateMeta
from impctl.store.catalog import FORMAT_VERSION
from impctl.store.store import Store
from tests.outside.conftest import FEED
from tests.outside.place import Place, expect_carried, expect_recapture, make_place
from tests.outside.rows import ROWS, more
from tests.support.made_once import MadeOnce
from tests.support.older_store import as_format


def without_line(place: Place, version: int, action: str) -> None:
    """One line of that action taken out of the log entry."""
    lines = place.entry(version).read_text().splitlines()
    result = next(line for line in lines if action in json.loads(line))
    lines.remove(result)
    place.entry(version).write_text("\n".join(lines) + "\n")


def backup_went_on(place: Place, *, versions: int, keep: int) -> None:
    """A backup from before the sketch in the table's place: its own commits, its log cleaned."""
    other = place.folder / "other"
    shutil.copytree(place.table, other)
    place.append(1)
    place.captured()
    for group in (3, 7, 5)[:versions]:
        write_deltalake(str(other), more(group), mode="append")
    place.replace_by(other)
    place.forget(keep=keep)


# A backup that went its own way, and whose commit at the stored version was cleaned up


@pytest.mark.slow
def test_a_backup_at_the_same_version(place: Place) -> None:
    """Nothing is newer, and no entry is left to compare."""
    backup_went_on(place, versions=1, keep=2)
    expect_recapture(place, "table_recreated", "`t`")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["rewrite", "query"])
def test_a_backup_is_not_answered_from(place: Place, command: str) -> None:
    backup_went_on(place, versions=1, keep=2)
    if command == "query":
        pytest.importorskip("pyspark")
    ran = place.cli(command, "--policy", "incremental", "--require-sketch")
    assert (ran.code, ran.error["code"]) == (7, "table_recreated"), ran.document
    plain = place.cli(command, "--policy", "incremental")
    assert plain.code == 0, plain.document
    (result,) = plain.document["results"]
    assert result["action"] == "no_sketch"


@pytest.mark.slow
def test_a_backup_that_went_further(either: Place) -> None:
    backup_went_on(either, versions=3, keep=2)
    expect_recapture(either, "table_recreated", "`t`")


def test_a_backup_whose_stored_version_cannot_be_built_any_more(place: Place) -> None:
    """Only the entries since are left: they lead to these files from others than it had."""
    backup_went_on(place, versions=2, keep=2)
    for checkpoint in (place.table / "_delta_log").glob(f"{1:020}.checkpoint*"):
        checkpoint.unlink()
    expect_recapture(place, "table_recreated", "`t`")


def test_status_tells_of_a_backup(place: Place) -> None:
    backup_went_on(place, versions=1, keep=2)
    (result,) = place.cli.good("status").results
    assert result["stale"]
    assert "is not the one the sketch was captured from" in result["stale_reason"]


def test_the_table_itself_with_its_log_cleaned_is_current(place: Place) -> None:
    place.append(1)
    place.captured()
    place.forget(keep=2)
    (result,) = place.cli.good("maintain", "--policy", "strict").results
    assert result["reason_code"] == "up_to_date"


@pytest.mark.slow
def test_names_that_are_escaped_and_deleted_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Partition folders are written with escapes in the log; the mark is of the names."""
    rows = pa.table({"g": [1, 1, 1, 2], "x": [9, 9, 9, 9], "p": ["a b", "ü%", "c/d", "a b"]})
    write_deltalake(str(tmp_path / "t"), rows, partition_by=["p"], configuration=FEED)
    place = make_place(tmp_path, capsys).captured()
    write_deltalake(str(place.table), rows, mode="append")
    place.delta.delete("p = 'ü%' AND x = 9")
    expect_carried(place)
    place.forget(keep=place.delta.version() + 1)
    (result,) = place.cli.good("maintain", "--policy", "strict").results
    assert result["reason_code"] == "up_to_date"


# A log entry that lost a line


def test_an_entry_lost_an_added_file_that_a_checkpoint_has(place: Place) -> None:
    """The table still has the file, so its rows count, whatever the entry says now."""
    place.append()
    place.append(7)
    place.delta.create_checkpoint()
    without_line(place, 1, "add")
    expect_carried(place)


def test_an_entry_with_change_data_lost_an_added_file(place: Place) -> None:
    """The change data tell of rows that the table does not have any more."""
    place.delta.update(updates={"x": "x + 1"}, predicate="g = 3")
    without_line(place, 1, "add")
    expect_recapture(place, "log_differs", "`t`", "version 1")


@pytest.mark.slow
def test_an_entry_before_the_sketch_lost_a_line(either: Place) -> None:
    either.append()
    either.append(1)
    either.captured()
    either.append(7)
    without_line(either, 1, "add")
    expect_recapture(either, "table_recreated", "`t`")


@pytest.mark.slow
def test_an_entry_that_moves_rows_lost_a_line(place: Place) -> None:
    place.append()
    place.cli.good("maintain")
    place.delta.optimize.compact()
    without_line(place, 2, "add")
    expect_recapture(place, "log_differs", "`t`", "version 2")


# An entry copied to the next number


def appended(place: Place) -> None:
    """Told twice, group 7 would pass."""
    place.append(7, rows=1)


def deleted(place: Place) -> None:
    """Told twice, group 3 would not pass any more."""
    place.append(3, rows=1)
    place.delta.delete("g = 3 AND x = 5")


def updated(place: Place) -> None:
    """Told twice, the sum of group 0 would be too low."""
    place.delta.update(updates={"x": "x - 30"}, predicate="g = 0 AND x = 5")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fixture", "change", "is_between"),
    [
        ("place", appended, False),
        ("place", deleted, True),
        ("place", updated, False),
        ("without_feed", appended, True),
        ("without_feed", updated, False),
    ],
)
def test_an_entry_is_copied_to_the_next_number(
    request: pytest.FixtureRequest, fixture: str, change: Callable[[Place], None], is_between: bool
) -> None:
    """Its files are in the table once, however often it is told; `is_between`: sketch between."""
    place: Place = request.getfixturevalue(fixture)
    change(place)
    if is_between:
        place.captured()
    at = place.delta.version()
    shutil.copy(place.entry(at), place.entry(at + 1))
    assert place.delta.version() == at + 1
    expect_carried(place)


# Stores of before there were marks of files


@pytest.fixture
def older(
    made_once: MadeOnce, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Place:
    """As format 2 had it: the same catalog, and no mark of files in the description."""
    dumped = StateMeta.as_stored

    def without_files(meta: StateMeta) -> dict[str, object]:
        return {name: value for name, value in dumped(meta).items() if name != "files"}

    def make(folder: Path) -> None:
        write_deltalake(str(folder / "t"), ROWS, configuration=FEED)
        write_deltalake(str(folder / "t"), more(1), mode="append")
        with monkeypatch.context() as patch:
            patch.setattr(StateMeta, "as_stored", without_files)
            place = make_place(folder, capsys).captured()
        as_format(place.store, 2)
        assert "files" not in place.stored().state_meta

    return make_place(made_once.folder("older", make), capsys)


@pytest.mark.slow
def test_an_older_store_is_read_and_gets_its_marks(older: Place) -> None:
    (result,) = older.cli.good("status").results
    assert not result["stale"]
    older.append()
    expect_carried(older, changes=3)
    assert older.stored().state_meta["files"]["t"]["rows"] == ROWS.num_rows + 6
    connection = sqlite3.connect(older.store / "catalog.sqlite")
    assert connection.execute("PRAGMA user_version").fetchone() == (FORMAT_VERSION,)
    connection.close()


@pytest.mark.parametrize("is_behind", [False, True])
def test_what_cannot_be_compared_is_told(older: Place, is_behind: bool) -> None:
    """No entry, no mark: perhaps another history; no policy carries the sketch on."""
    Store.open(older.store).close()  # brought up to today's format
    if is_behind:
        older.append()
    older.forget(keep=2)
    expect_recapture(older, "version_unproven", "the table may be another one")


def test_the_first_rows_are_marked(place: Place) -> None:
    assert place.stored().state_meta["files"]["t"]["rows"] == ROWS.num_rows
