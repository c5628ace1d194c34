"""Commits of others, logs that lead elsewhere, and another table at the path."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.errors import TableRecreatedError
from impctl.service import capture, stored
from impctl.service.context import Context, open_context
from impctl.service.maintain import maintain
from impctl.service.pinned import PinnedTables
from impctl.service.schedule.daemon import TableWatch
from impctl.service.settings import Settings
from impctl.service.stored import StateMeta
from impctl.tables.source import DeltaSource, open_source
from impctl.workload.models import Policy
from tests.outside.conftest import FEED
from tests.outside.place import ROWS, Place, expect_carried, expect_recapture, make_place, more
from tests.support.run_cli import Capsys, MadeOnce

Change = Callable[[Place], object]


def compact(delta: DeltaTable) -> None:
    delta.optimize.compact()


def z_order(delta: DeltaTable) -> None:
    delta.optimize.z_order(["g"])


@pytest.mark.slow
@pytest.mark.parametrize("optimize", [compact, z_order])
def test_optimize_changes_nothing(either: Place, optimize: Callable[[DeltaTable], None]) -> None:
    either.append(9, 1)
    either.captured()
    before = either.delta.version()
    optimize(either.delta)
    assert either.delta.version() == before + 1
    ran = expect_carried(either, changes=0)
    assert ran.results[0]["added"] == ran.results[0]["removed"] == []
    assert ran.document["warnings"] == []


def merge(place: Place) -> None:
    """Rows changed, added and removed in one commit."""
    (
        place.delta.merge(more(5, 1), "s.g = t.g", source_alias="s", target_alias="t")
        .when_matched_update(updates={"x": "t.x + 100"})
        .when_not_matched_insert_all()
        .when_not_matched_by_source_delete("t.g = 0")
        .execute()
    )


def overwrite(place: Place, rows: pa.Table) -> None:
    write_deltalake(str(place.table), rows, mode="overwrite")


def optimized_between(place: Place, optimize: Callable[[DeltaTable], None]) -> None:
    place.append()
    optimize(place.delta)
    place.delta.delete("g = 0 AND x = 5")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "ranges"),
    [
        pytest.param(lambda p: optimized_between(p, compact), (1, 2), id="compacted between"),
        pytest.param(lambda p: optimized_between(p, z_order), (1, 2), id="z-ordered between"),
        pytest.param(lambda p: overwrite(p, more(7, 4, 9)), (3,), id="overwritten"),
        pytest.param(lambda p: overwrite(p, ROWS.slice(0, 0)), (), id="overwritten by nothing"),
        pytest.param(merge, (1,), id="merge"),
    ],
)
def test_other_commits_are_followed(either: Place, change: Change, ranges: tuple[int, ...]) -> None:
    change(either)
    expect_carried(either)
    assert either.stored().sketches[0].ranges.ids == ranges


@pytest.mark.slow
@pytest.mark.parametrize(
    ("captured_at", "restored_to"), [(0, 0), (0, 2), (1, 1), (2, 0), (3, 1), (3, 2)]
)
def test_restore(either: Place, captured_at: int, restored_to: int) -> None:
    """To versions before the sketch's, to its own, and to later ones."""
    for version in range(4):
        if version == captured_at:
            either.captured()
        if version == 1:
            either.delta.delete("g = 0 AND x = 5")
        elif version < 3:
            either.append(5 + version)
    either.delta.restore(restored_to)
    expect_carried(either)


@pytest.mark.slow
def test_the_feed_is_on_for_a_part(without_feed: Place) -> None:
    """Off, on, off, on: whole files are compared, and the run says so."""
    for switch in ("true", "false", "true"):
        without_feed.append(rows=1)
        without_feed.delta.delete("g = 0 AND x = 15")
        without_feed.delta.alter.set_table_properties({"delta.enableChangeDataFeed": switch})
    without_feed.append(7)
    (warning,) = expect_carried(without_feed).document["warnings"]
    assert "its change feed does not cover all of this change" in warning
    assert "`t`" in warning


@pytest.mark.slow
def test_the_feed_is_on_by_now(without_feed: Place) -> None:
    """From then on no file is compared."""
    without_feed.delta.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    without_feed.cli.good("maintain")
    without_feed.append()
    assert expect_carried(without_feed, changes=3).document["warnings"] == []


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


# What is gone, and a backup that went its own way

RECAPTURED = [
    ("a backup at the same version", "place", lambda p: backup_went_on(p, versions=1, keep=2),
     "table_recreated"),
    ("a backup that went further", "either", lambda p: backup_went_on(p, versions=3, keep=2),
     "table_recreated"),
    ("the sketch's version cannot be built", "place", lambda p: only_entries_since(p),
     "table_recreated"),
    ("an entry with change data lost a file", "place", lambda p: change_data_without_file(p),
     "log_differs version 1"),
    ("an entry before the sketch lost a line", "either", lambda p: earlier_entry_without_line(p),
     "table_recreated"),
    ("an entry that moves rows lost a line", "place", lambda p: moved_rows_without_line(p),
     "log_differs version 2"),
    ("the log since the sketch is cleaned", "place",
     lambda p: (p.append(1), p.append(), p.forget(keep=2)), "history_gone Version 0"),
    ("nothing but a checkpoint is left", "place", lambda p: (p.append(), p.forget(keep=99)),
     "history_gone"),
    ("files needed for the change are gone", "place",
     lambda p: (two_changes(p), vacuum(p, and_change_data=True)), "history_gone"),
    ("without a feed such files are gone", "without_feed",
     lambda p: (p.delta.delete("x = 5"), vacuum(p, and_change_data=True)), "history_gone"),
]  # fmt: skip
FAST = ("the sketch's version cannot be built", "an entry with change data lost a file")


@pytest.mark.parametrize(
    ("fixture", "change", "told"),
    [
        pytest.param(*case, id=name, marks=() if name in FAST else pytest.mark.slow)
        for name, *case in RECAPTURED
    ],
)
def test_lost_history_is_recaptured(
    request: pytest.FixtureRequest, fixture: str, change: Change, told: str
) -> None:
    fixtures = ("place", "without_feed") if fixture == "either" else (fixture,)
    for name in fixtures:
        place: Place = request.getfixturevalue(name)
        change(place)
        code, _, words = told.partition(" ")
        expect_recapture(place, code, "`t`", words)


def only_entries_since(place: Place) -> None:
    """They lead to these files from others than the sketch's version had."""
    backup_went_on(place, versions=2, keep=2)
    for checkpoint in (place.table / "_delta_log").glob(f"{1:020}.checkpoint*"):
        checkpoint.unlink()


def change_data_without_file(place: Place) -> None:
    """The change data tell of rows that the table does not have any more."""
    place.delta.update(updates={"x": "x + 1"}, predicate="g = 3")
    without_line(place, 1, "add")


def earlier_entry_without_line(place: Place) -> None:
    place.append()
    place.append(1)
    place.captured()
    place.append(7)
    without_line(place, 1, "add")


def moved_rows_without_line(place: Place) -> None:
    place.append()
    place.cli.good("maintain")
    place.delta.optimize.compact()
    without_line(place, 2, "add")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["rewrite", "query"])
def test_a_backup_is_not_answered_from(place: Place, command: str) -> None:
    backup_went_on(place, versions=1, keep=2)
    if command == "query":
        pytest.importorskip("pyspark")
    asked = (command, "--policy", "incremental")
    assert place.cli(*asked, "--require-sketch").refusal == (7, "table_recreated")
    assert place.cli.one(*asked)["action"] == "no_sketch"


def test_status_tells_of_a_backup(place: Place) -> None:
    backup_went_on(place, versions=1, keep=2)
    result = place.cli.one("status")
    assert result["stale"]
    assert "is not the one the sketch was captured from" in result["stale_reason"]


def test_the_table_itself_with_its_log_cleaned_is_current(place: Place) -> None:
    place.append(1)
    place.captured()
    place.forget(keep=2)
    assert place.cli.one("maintain", "--policy", "strict")["reason_code"] == "up_to_date"


@pytest.mark.slow
def test_names_that_are_escaped_and_deleted_rows(tmp_path: Path, capsys: Capsys) -> None:
    """Partition folders are written with escapes in the log; the mark is of the names."""
    rows = pa.table({"g": [1, 1, 1, 2], "x": [9, 9, 9, 9], "p": ["a b", "ü%", "c/d", "a b"]})
    write_deltalake(str(tmp_path / "t"), rows, partition_by=["p"], configuration=FEED)
    place = make_place(tmp_path, capsys).captured()
    write_deltalake(str(place.table), rows, mode="append")
    place.delta.delete("p = 'ü%' AND x = 9")
    expect_carried(place)
    place.forget(keep=place.delta.version() + 1)
    assert place.cli.one("maintain", "--policy", "strict")["reason_code"] == "up_to_date"


# A log entry that lost a line


def test_an_entry_lost_an_added_file_that_a_checkpoint_has(place: Place) -> None:
    """The table still has the file, so its rows count, whatever the entry says now."""
    place.append()
    place.append(7)
    place.delta.create_checkpoint()
    without_line(place, 1, "add")
    expect_carried(place)


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
def older(made_once: MadeOnce, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> Place:
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
        assert "files" not in place.stored().state_meta

    return make_place(made_once.folder("older", make), capsys)


@pytest.mark.slow
def test_a_store_without_marks_is_read_and_gets_them(older: Place) -> None:
    assert not older.cli.one("status")["stale"]
    older.append()
    expect_carried(older, changes=3)
    assert older.stored().state_meta["files"]["t"]["rows"] == ROWS.num_rows + 6


@pytest.mark.parametrize("is_behind", [False, True])
def test_what_cannot_be_compared_is_told(older: Place, is_behind: bool) -> None:
    """No entry, no mark: perhaps another history; no policy carries the sketch on."""
    if is_behind:
        older.append()
    older.forget(keep=2)
    expect_recapture(older, "version_unproven", "the table may be another one")


def test_the_first_rows_are_marked(place: Place) -> None:
    assert place.stored().state_meta["files"]["t"]["rows"] == ROWS.num_rows


def recreate(place: Place, versions: int, rows: pa.Table = ROWS) -> None:
    """Another table with the same columns, `versions` commits after its first one."""
    shutil.rmtree(place.table)
    write_deltalake(str(place.table), rows, configuration=FEED)
    for _ in range(versions):
        place.append()


@pytest.mark.slow
@pytest.mark.parametrize("versions", [0, 1, 3])
def test_created_anew_with_fewer_as_many_and_more_versions(place: Place, versions: int) -> None:
    place.append(1)
    place.captured()
    recreate(place, versions, ROWS.slice(3))
    expect_recapture(place, "table_recreated", "`t`")


@pytest.mark.slow
@pytest.mark.parametrize("is_as_long", [True, False])
def test_a_backup_from_before_the_sketch(place: Place, tmp_path: Path, is_as_long: bool) -> None:
    shutil.copytree(place.table, tmp_path / "backup")
    place.append(1 if is_as_long else 5)
    place.captured()
    place.replace_by(tmp_path / "backup")
    if is_as_long:
        place.append()
    expect_recapture(place, "table_recreated", "`t`")


def test_a_copy_of_the_table_in_its_place_is_the_table(place: Place, tmp_path: Path) -> None:
    shutil.copytree(place.table, tmp_path / "copy")
    place.replace_by(tmp_path / "copy")
    place.append()
    expect_carried(place, changes=3)


def test_the_log_before_the_sketch_is_cleaned(place: Place) -> None:
    place.append(1)
    place.captured()
    place.append()
    place.forget(keep=2)
    expect_carried(place, changes=3)


def vacuum(place: Place, *, and_change_data: bool) -> None:
    place.delta.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    if and_change_data:
        shutil.rmtree(place.table / "_change_data", ignore_errors=True)


def two_changes(place: Place) -> None:
    place.delta.delete("x = 5")
    place.delta.update(updates={"x": "x + 1"}, predicate="g = 3")


def said_by_spark(place: Place) -> None:
    """Every commit since the capture told to be Spark's."""
    for version in range(1, place.delta.version() + 1):
        said = re.compile('"engineInfo":"[^"]*"')
        text, result = said.subn(
            '"engineInfo":"Apache-Spark/4.0.0"', place.entry(version).read_text()
        )
        assert result == 1
        place.entry(version).write_text(text)


@pytest.mark.slow
@pytest.mark.parametrize("by_spark", [True, False])
def test_files_of_the_sketchs_version_are_gone(place: Place, by_spark: bool) -> None:
    """The change feed tells what was deleted; what deltalake copied has to be looked at, too."""
    two_changes(place)
    if by_spark:
        said_by_spark(place)
    vacuum(place, and_change_data=False)
    if not (place.table / "_change_data").exists():
        pytest.skip("deltalake's vacuum took the change data with it")
    if by_spark:
        expect_carried(place)
    else:
        expect_recapture(place, "history_gone", "`t`")


@pytest.mark.slow
def test_a_file_of_the_newest_version_is_gone(place: Place) -> None:
    """Somebody removed what the table still needs: no policy can answer."""
    place.append()
    for uri in place.delta.file_uris():
        Path(uri).unlink()
    for policy in ("incremental", "auto", "full"):
        ran = place.maintained(policy)
        assert ran.code == 7, ran.document
        assert ran.error["code"] in ("history_gone", "data_files_gone")
    assert place.maintained("strict").code == 4


Act = Callable[[], None]


@pytest.fixture
def aside(place: Place, tmp_path: Path, request: pytest.FixtureRequest) -> Act:
    """Puts another table, or a backup that went another way, where the table is; once."""
    other = tmp_path / "other"
    if request.param == "backup":
        shutil.copytree(place.table, other)
    else:
        write_deltalake(str(other), ROWS.slice(3), configuration=FEED)
    place.append(1)
    place.captured()
    place.append()
    for group in (1, 3, 7):
        write_deltalake(str(other), more(group), mode="append")

    def replace() -> None:
        if other.exists():
            place.replace_by(other)

    return replace


def around(function: Any, *, before: Act | None = None, after: Act | None = None) -> Any:
    def called(*args: Any, **named: Any) -> Any:
        if before is not None:
            before()
        result = function(*args, **named)
        if after is not None:
            after()
        return result

    return called


@pytest.mark.parametrize(
    ("aside", "moment", "is_marked"),
    [
        ("backup", "before", False),
        ("backup", "after", True),
        ("new", "before", True),
        ("new", "after", False),
    ],
    indirect=["aside"],
)
def test_while_its_changes_are_read(
    place: Place, aside: Act, moment: str, is_marked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an entry to compare (a cleaned log, remote storage) the files tell the backup."""
    if not is_marked:
        monkeypatch.setattr(stored, "commit_mark", lambda *_: None)
    with monkeypatch.context() as patch:
        act = {moment: aside}
        patch.setattr(DeltaSource, "entries", around(DeltaSource.entries, **act))
        ran = place.cli("maintain", "--policy", "incremental")
        outcomes = {6: ("table_replaced_meanwhile",), 7: ("table_recreated", "history_gone")}
        assert ran.error["code"] in outcomes[ran.code], ran.document
        assert ran.error["hint"]
    assert place.cli.one("maintain", "--policy", "auto")["reason_code"] == "table_recreated"
    place.check_sound()


@pytest.mark.parametrize("aside", ["backup"], indirect=True)
def test_while_it_is_captured(place: Place, aside: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    before = place.stored()
    with monkeypatch.context() as patch:
        patch.setattr(capture, "_compute", around(capture._compute, after=aside))
        assert place.cli("capture").refusal == (6, "table_replaced_meanwhile")
        assert place.stored() == before
    place.captured()


def test_a_backup_that_was_there_for_a_moment_is_not_taken_for_the_table(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backup is pinned, and the table's own log stands there again when that is looked at."""
    other = tmp_path / "other"
    shutil.copytree(place.table, other)
    write_deltalake(str(other), more(3), mode="append")
    place.append(1)
    place.captured()

    def exchange() -> None:
        shutil.move(place.table, tmp_path / "aside")
        shutil.move(other, place.table)
        shutil.move(tmp_path / "aside", other)

    with monkeypatch.context() as patch:
        patch.setattr(PinnedTables, "pin", around(PinnedTables.pin, after=exchange))
        exchange()
        asked = ("rewrite", "--policy", "incremental", "--require-sketch")
        assert place.cli(*asked).refusal == (7, "table_recreated")


def test_an_older_version_is_not_read_from_another_table(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, ROWS)
    write_deltalake(path, ROWS, mode="append")
    source = open_source("t", path)
    shutil.rmtree(path)
    for _ in range(2):
        write_deltalake(path, ROWS.slice(5), mode="append")
    with pytest.raises(TableRecreatedError, match="created again"):
        source.snapshot(0)


@pytest.fixture
def ctx(place: Place) -> Iterator[Context]:
    """Never run itself, as in `maintain --follow`."""
    settings = Settings(place.folder / "w.yaml", policy=Policy.AUTO)
    with open_context(settings) as opened:
        yield opened


@pytest.fixture
def log_aside(place: Place, tmp_path: Path) -> Callable[[], None]:
    """Puts a log of the same identity and length over the table's, with another version 1."""
    backup = tmp_path / "backup"
    shutil.copytree(place.table, backup)
    place.append(7)
    write_deltalake(str(backup), more(5), mode="append")
    return lambda: place.replace_by(backup)


def check_pinned(ctx: Context, place: Place) -> None:
    """The files are those of the table that stands there."""
    newest = open_source("t", str(place.table)).snapshot().files
    assert {file.uri for file in ctx.tables.snapshot("t").files} == {file.uri for file in newest}


@pytest.mark.slow
@pytest.mark.parametrize("goes_on", [False, True])
def test_another_log_that_came_during_a_run_is_no_continuation(
    place: Place, ctx: Context, log_aside: Callable[[], None], goes_on: bool
) -> None:
    """It pinned {v0, old v1, new v2}, of which no version of any table ever consisted."""
    watch = TableWatch()
    first = ctx.next_run(watch.pinned())
    assert not maintain(first, None).failures
    log_aside()
    first.close()
    watch.saw(first)
    assert watch.is_due(ctx)
    if not goes_on:
        second = ctx.next_run(watch.pinned())
        check_pinned(second, place)
        watch.saw(second)
    place.append(3)
    second = ctx.next_run(watch.pinned())
    check_pinned(second, place)
    outcome = maintain(second, None)
    second.close()
    assert not outcome.failures
    place.check_sound()


def watching(ctx: Context) -> TableWatch:
    """A watch after a first run that pinned the table."""
    watch = TableWatch()
    first = ctx.next_run(watch.pinned())
    first.tables.source("t")
    watch.saw(first)
    return watch


def test_a_table_that_a_run_did_not_pin_stays_as_it_was_seen(
    place: Place, ctx: Context, log_aside: Callable[[], None]
) -> None:
    watch = watching(ctx)
    log_aside()
    # A run that fails before it looks at any table.
    watch.saw(Context(ctx.settings, ctx.workload, ctx.reporter))
    place.append(3)
    assert watch.is_due(ctx)
    check_pinned(ctx.next_run(watch.pinned()), place)


def test_a_table_that_is_gone_is_looked_for_until_it_is_there_again(
    place: Place, ctx: Context, log_aside: Callable[[], None]
) -> None:
    watch = watching(ctx)
    shutil.move(place.table, place.folder / "away")
    assert watch.is_due(ctx)
    second = ctx.next_run(watch.pinned())
    assert not second.tables.seen
    watch.saw(second)
    assert not watch.is_due(ctx), "what could not be opened is told once"
    write_deltalake(str(place.table), more(3))
    assert watch.is_due(ctx), "another table stands there, its log is shorter"
    log_aside()
    assert watch.is_due(ctx)
    check_pinned(ctx.next_run(watch.pinned()), place)
