"""Commits by others, altered or cleaned logs, and another table at the path."""

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
from tests.outside.workspace import (
    ROWS,
    Workspace,
    expect_exact,
    expect_recapture,
    make_workspace,
    more,
)
from tests.support.run_cli import Capsys, MadeOnce

Change = Callable[[Workspace], object]


def compact(delta: DeltaTable) -> None:
    delta.optimize.compact()


def z_order(delta: DeltaTable) -> None:
    delta.optimize.z_order(["g"])


@pytest.mark.slow
@pytest.mark.parametrize("optimize", [compact, z_order])
def test_optimize_changes_nothing(
    either: Workspace, optimize: Callable[[DeltaTable], None]
) -> None:
    either.append(9, 1)
    either.capture()
    before = either.delta.version()
    optimize(either.delta)
    assert either.delta.version() == before + 1
    ran = expect_exact(either, changes=0)
    assert ran.results[0]["added"] == ran.results[0]["removed"] == []
    assert ran.document["warnings"] == []


def merge(workspace: Workspace) -> None:
    """Rows changed, added and removed in one commit."""
    (
        workspace.delta.merge(more(5, 1), "s.g = t.g", source_alias="s", target_alias="t")
        .when_matched_update(updates={"x": "t.x + 100"})
        .when_not_matched_insert_all()
        .when_not_matched_by_source_delete("t.g = 0")
        .execute()
    )


def overwrite(workspace: Workspace, rows: pa.Table) -> None:
    write_deltalake(str(workspace.table), rows, mode="overwrite")


def optimize_between(workspace: Workspace, optimize: Callable[[DeltaTable], None]) -> None:
    workspace.append()
    optimize(workspace.delta)
    workspace.delta.delete("g = 0 AND x = 5")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "ranges"),
    [
        pytest.param(lambda p: optimize_between(p, compact), (1, 2), id="compacted between"),
        pytest.param(lambda p: optimize_between(p, z_order), (1, 2), id="z-ordered between"),
        pytest.param(lambda p: overwrite(p, more(7, 4, 9)), (3,), id="overwritten"),
        pytest.param(lambda p: overwrite(p, ROWS.slice(0, 0)), (), id="overwritten by nothing"),
        pytest.param(merge, (1,), id="merge"),
    ],
)
def test_commits_of_others_are_followed(
    either: Workspace, change: Change, ranges: tuple[int, ...]
) -> None:
    change(either)
    expect_exact(either)
    assert either.stored().sketches[0].ranges.ids == ranges


@pytest.mark.slow
@pytest.mark.parametrize(
    ("captured_at", "restored_to"), [(0, 0), (0, 2), (1, 1), (2, 0), (3, 1), (3, 2)]
)
def test_restores_are_followed(either: Workspace, captured_at: int, restored_to: int) -> None:
    """The restored version is before, at or after that of the sketch."""
    for version in range(4):
        if version == captured_at:
            either.capture()
        if version == 1:
            either.delta.delete("g = 0 AND x = 5")
        elif version < 3:
            either.append(5 + version)
    either.delta.restore(restored_to)
    expect_exact(either)


@pytest.mark.slow
def test_files_are_compared_if_the_feed_has_gaps(without_feed: Workspace) -> None:
    """Off, on, off, on: whole files are compared, with a warning."""
    for switch in ("true", "false", "true"):
        without_feed.append(rows=1)
        without_feed.delta.delete("g = 0 AND x = 15")
        without_feed.delta.alter.set_table_properties({"delta.enableChangeDataFeed": switch})
    without_feed.append(7)
    (warning,) = expect_exact(without_feed).document["warnings"]
    assert "its change feed does not cover all of this change" in warning
    assert "`t`" in warning


@pytest.mark.slow
def test_the_feed_is_used_once_it_is_on(without_feed: Workspace) -> None:
    """No files are compared then."""
    without_feed.delta.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    without_feed.cli.good("maintain")
    without_feed.append()
    assert expect_exact(without_feed, changes=3).document["warnings"] == []


def remove_line(workspace: Workspace, version: int, action: str) -> None:
    """Remove one line with that action from the log entry."""
    lines = workspace.entry(version).read_text().splitlines()
    line_to_remove = next(line for line in lines if action in json.loads(line))
    lines.remove(line_to_remove)
    workspace.entry(version).write_text("\n".join(lines) + "\n")


def restore_backup(workspace: Workspace, *, versions: int, keep: int) -> None:
    """Replace the table by a backup from before the sketch, with other commits and a clean log."""
    other = workspace.folder / "other"
    shutil.copytree(workspace.table, other)
    workspace.append(1)
    workspace.capture()
    for group in (3, 7, 5)[:versions]:
        write_deltalake(str(other), more(group), mode="append")
    workspace.replace_by(other)
    workspace.clean_log(keep=keep)


# Lost history, and backups with other commits

RECAPTURED = [
    ("a backup at the same version", "workspace", lambda p: restore_backup(p, versions=1, keep=2),
     "table_recreated"),
    ("a backup with more versions", "either", lambda p: restore_backup(p, versions=3, keep=2),
     "table_recreated"),
    ("the sketch's version cannot be built", "workspace", lambda p: keep_entries_since_backup(p),
     "table_recreated"),
    ("an entry with change data lacks a file", "workspace", lambda p: remove_file_of_change_data(p),
     "log_differs version 1"),
    ("an entry before the sketch lacks a line", "either", lambda p: remove_line_of_earlier_entry(p),
     "table_recreated"),
    ("an entry that moves rows lacks a line", "workspace", lambda p: remove_line_of_moved_rows(p),
     "log_differs version 2"),
    ("the log since the sketch is cleaned", "workspace",
     lambda p: (p.append(1), p.append(), p.clean_log(keep=2)), "history_gone Version 0"),
    ("only a checkpoint remains", "workspace", lambda p: (p.append(), p.clean_log(keep=99)),
     "history_gone"),
    ("files needed for the change are deleted", "workspace",
     lambda p: (two_changes(p), vacuum(p, and_change_data=True)), "history_gone"),
    ("such files are deleted without a feed", "without_feed",
     lambda p: (p.delta.delete("x = 5"), vacuum(p, and_change_data=True)), "history_gone"),
]  # fmt: skip
FAST = ("the sketch's version cannot be built", "an entry with change data lacks a file")


@pytest.mark.parametrize(
    ("fixture", "change", "expected"),
    [
        pytest.param(*case, id=name, marks=() if name in FAST else pytest.mark.slow)
        for name, *case in RECAPTURED
    ],
)
def test_lost_history_is_recaptured(
    request: pytest.FixtureRequest, fixture: str, change: Change, expected: str
) -> None:
    fixtures = ("workspace", "without_feed") if fixture == "either" else (fixture,)
    for name in fixtures:
        workspace: Workspace = request.getfixturevalue(name)
        change(workspace)
        code, _, text = expected.partition(" ")
        expect_recapture(workspace, code, "`t`", text)


def keep_entries_since_backup(workspace: Workspace) -> None:
    """The entries continue from other files than those of the sketch's version."""
    restore_backup(workspace, versions=2, keep=2)
    for checkpoint in (workspace.table / "_delta_log").glob(f"{1:020}.checkpoint*"):
        checkpoint.unlink()


def remove_file_of_change_data(workspace: Workspace) -> None:
    """The change data contains rows that the table no longer has."""
    workspace.delta.update(updates={"x": "x + 1"}, predicate="g = 3")
    remove_line(workspace, 1, "add")


def remove_line_of_earlier_entry(workspace: Workspace) -> None:
    workspace.append()
    workspace.append(1)
    workspace.capture()
    workspace.append(7)
    remove_line(workspace, 1, "add")


def remove_line_of_moved_rows(workspace: Workspace) -> None:
    workspace.append()
    workspace.cli.good("maintain")
    workspace.delta.optimize.compact()
    remove_line(workspace, 2, "add")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["rewrite", "query"])
def test_a_sketch_is_not_used_for_a_backup(workspace: Workspace, command: str) -> None:
    restore_backup(workspace, versions=1, keep=2)
    if command == "query":
        pytest.importorskip("pyspark")
    command_line = (command, "--policy", "incremental")
    assert workspace.cli(*command_line, "--require-sketch").refusal == (7, "table_recreated")
    assert workspace.cli.one(*command_line)["action"] == "no_sketch"


def test_status_reports_a_backup(workspace: Workspace) -> None:
    restore_backup(workspace, versions=1, keep=2)
    result = workspace.cli.one("status")
    assert result["stale"]
    assert "is not the one the sketch was captured from" in result["stale_reason"]


def test_a_table_with_a_cleaned_log_is_current(workspace: Workspace) -> None:
    workspace.append(1)
    workspace.capture()
    workspace.clean_log(keep=2)
    assert workspace.cli.one("maintain", "--policy", "strict")["reason_code"] == "up_to_date"


@pytest.mark.slow
def test_escaped_names_and_deleted_rows(tmp_path: Path, capsys: Capsys) -> None:
    """Partition folders are escaped in the log; the mark uses the names."""
    rows = pa.table({"g": [1, 1, 1, 2], "x": [9, 9, 9, 9], "p": ["a b", "ü%", "c/d", "a b"]})
    write_deltalake(str(tmp_path / "t"), rows, partition_by=["p"], configuration=FEED)
    workspace = make_workspace(tmp_path, capsys).capture()
    write_deltalake(str(workspace.table), rows, mode="append")
    workspace.delta.delete("p = 'ü%' AND x = 9")
    expect_exact(workspace)
    workspace.clean_log(keep=workspace.delta.version() + 1)
    assert workspace.cli.one("maintain", "--policy", "strict")["reason_code"] == "up_to_date"


# A log entry that lacks a line


def test_a_checkpoint_has_a_file_that_its_entry_lost(workspace: Workspace) -> None:
    """The table still has the file, so its rows count."""
    workspace.append()
    workspace.append(7)
    workspace.delta.create_checkpoint()
    remove_line(workspace, 1, "add")
    expect_exact(workspace)


# A log entry copied to the next number


def append_row(workspace: Workspace) -> None:
    """Counted twice, group 7 would pass."""
    workspace.append(7, rows=1)


def delete_row(workspace: Workspace) -> None:
    """Counted twice, group 3 would no longer pass."""
    workspace.append(3, rows=1)
    workspace.delta.delete("g = 3 AND x = 5")


def update_row(workspace: Workspace) -> None:
    """Counted twice, the sum of group 0 would be too low."""
    workspace.delta.update(updates={"x": "x - 30"}, predicate="g = 0 AND x = 5")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fixture", "change", "is_between"),
    [
        ("workspace", append_row, False),
        ("workspace", delete_row, True),
        ("workspace", update_row, False),
        ("without_feed", append_row, True),
        ("without_feed", update_row, False),
    ],
)
def test_a_copied_entry_counts_once(
    request: pytest.FixtureRequest,
    fixture: str,
    change: Callable[[Workspace], None],
    is_between: bool,
) -> None:
    """The table has the entry's files once; `is_between`: captured between entry and copy."""
    workspace: Workspace = request.getfixturevalue(fixture)
    change(workspace)
    if is_between:
        workspace.capture()
    version = workspace.delta.version()
    shutil.copy(workspace.entry(version), workspace.entry(version + 1))
    assert workspace.delta.version() == version + 1
    expect_exact(workspace)


# Stores without marks of files


@pytest.fixture
def without_marks(
    made_once: MadeOnce, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> Workspace:
    """A store like those of format 2: the same catalog, without marks of files."""
    dumped = StateMeta.as_stored

    def without_files(meta: StateMeta) -> dict[str, object]:
        return {name: value for name, value in dumped(meta).items() if name != "files"}

    def make(folder: Path) -> None:
        write_deltalake(str(folder / "t"), ROWS, configuration=FEED)
        write_deltalake(str(folder / "t"), more(1), mode="append")
        with monkeypatch.context() as patch:
            patch.setattr(StateMeta, "as_stored", without_files)
            workspace = make_workspace(folder, capsys).capture()
        assert "files" not in workspace.stored().state_meta

    return make_workspace(made_once.folder("older", make), capsys)


@pytest.mark.slow
def test_marks_are_added_to_a_store_without_them(without_marks: Workspace) -> None:
    assert not without_marks.cli.one("status")["stale"]
    without_marks.append()
    expect_exact(without_marks, changes=3)
    assert without_marks.stored().state_meta["files"]["t"]["rows"] == ROWS.num_rows + 6


@pytest.mark.parametrize("is_behind", [False, True])
def test_an_unproven_version_is_recaptured(without_marks: Workspace, is_behind: bool) -> None:
    """Without log entry and mark, it may be another history, so no policy maintains the sketch."""
    if is_behind:
        without_marks.append()
    without_marks.clean_log(keep=2)
    expect_recapture(without_marks, "version_unproven", "the table may be another one")


def test_a_capture_stores_marks(workspace: Workspace) -> None:
    assert workspace.stored().state_meta["files"]["t"]["rows"] == ROWS.num_rows


def recreate(workspace: Workspace, versions: int, rows: pa.Table = ROWS) -> None:
    """Replace the table by another one with the same columns and `versions` more commits."""
    shutil.rmtree(workspace.table)
    write_deltalake(str(workspace.table), rows, configuration=FEED)
    for _ in range(versions):
        workspace.append()


@pytest.mark.slow
@pytest.mark.parametrize("versions", [0, 1, 3])
def test_a_recreated_table_is_recaptured(workspace: Workspace, versions: int) -> None:
    workspace.append(1)
    workspace.capture()
    recreate(workspace, versions, ROWS.slice(3))
    expect_recapture(workspace, "table_recreated", "`t`")


@pytest.mark.slow
@pytest.mark.parametrize("is_as_long", [True, False])
def test_a_backup_from_before_the_sketch_is_recaptured(
    workspace: Workspace, tmp_path: Path, is_as_long: bool
) -> None:
    shutil.copytree(workspace.table, tmp_path / "backup")
    workspace.append(1 if is_as_long else 5)
    workspace.capture()
    workspace.replace_by(tmp_path / "backup")
    if is_as_long:
        workspace.append()
    expect_recapture(workspace, "table_recreated", "`t`")


def test_a_copy_of_the_table_is_maintained(workspace: Workspace, tmp_path: Path) -> None:
    shutil.copytree(workspace.table, tmp_path / "copy")
    workspace.replace_by(tmp_path / "copy")
    workspace.append()
    expect_exact(workspace, changes=3)


def test_a_log_cleaned_before_the_sketch_is_maintained(workspace: Workspace) -> None:
    workspace.append(1)
    workspace.capture()
    workspace.append()
    workspace.clean_log(keep=2)
    expect_exact(workspace, changes=3)


def vacuum(workspace: Workspace, *, and_change_data: bool) -> None:
    workspace.delta.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    if and_change_data:
        shutil.rmtree(workspace.table / "_change_data", ignore_errors=True)


def two_changes(workspace: Workspace) -> None:
    workspace.delta.delete("x = 5")
    workspace.delta.update(updates={"x": "x + 1"}, predicate="g = 3")


def pretend_spark_wrote(workspace: Workspace) -> None:
    """Make every commit since the capture look like Spark's."""
    for version in range(1, workspace.delta.version() + 1):
        engine_info = re.compile('"engineInfo":"[^"]*"')
        text, count = engine_info.subn(
            '"engineInfo":"Apache-Spark/4.0.0"', workspace.entry(version).read_text()
        )
        assert count == 1
        workspace.entry(version).write_text(text)


@pytest.mark.slow
@pytest.mark.parametrize("by_spark", [True, False])
def test_files_of_the_sketched_version_are_deleted(workspace: Workspace, by_spark: bool) -> None:
    """Spark's change feed is enough; for deltalake's copied rows the files are needed too."""
    two_changes(workspace)
    if by_spark:
        pretend_spark_wrote(workspace)
    vacuum(workspace, and_change_data=False)
    if not (workspace.table / "_change_data").exists():
        pytest.skip("deltalake's vacuum deleted the change data")
    if by_spark:
        expect_exact(workspace)
    else:
        expect_recapture(workspace, "history_gone", "`t`")


@pytest.mark.slow
def test_deleted_files_of_the_newest_version_are_an_error(workspace: Workspace) -> None:
    """The table still needs the files: no policy helps."""
    workspace.append()
    for uri in workspace.delta.file_uris():
        Path(uri).unlink()
    for policy in ("incremental", "auto", "full"):
        ran = workspace.maintain(policy)
        assert ran.code == 7, ran.document
        assert ran.error["code"] in ("history_gone", "data_files_gone")
    assert workspace.maintain("strict").code == 4


Replace = Callable[[], None]


@pytest.fixture
def replace_table(workspace: Workspace, tmp_path: Path, request: pytest.FixtureRequest) -> Replace:
    """Replaces the table, once, by another one or by a backup with other commits."""
    other = tmp_path / "other"
    if request.param == "backup":
        shutil.copytree(workspace.table, other)
    else:
        write_deltalake(str(other), ROWS.slice(3), configuration=FEED)
    workspace.append(1)
    workspace.capture()
    workspace.append()
    for group in (1, 3, 7):
        write_deltalake(str(other), more(group), mode="append")

    def replace() -> None:
        if other.exists():
            workspace.replace_by(other)

    return replace


def hooked(function: Any, *, before: Replace | None = None, after: Replace | None = None) -> Any:
    def called(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before()
        result = function(*args, **kwargs)
        if after is not None:
            after()
        return result

    return called


@pytest.mark.parametrize(
    ("replace_table", "moment", "is_marked"),
    [
        ("backup", "before", False),
        ("backup", "after", True),
        ("new", "before", True),
        ("new", "after", False),
    ],
    indirect=["replace_table"],
)
def test_the_table_is_replaced_while_changes_are_read(
    workspace: Workspace,
    replace_table: Replace,
    moment: str,
    is_marked: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a log entry to compare (clean log, remote storage), files reveal the backup."""
    if not is_marked:
        monkeypatch.setattr(stored, "commit_mark", lambda *_: None)
    with monkeypatch.context() as patch:
        hook = {moment: replace_table}
        patch.setattr(DeltaSource, "entries", hooked(DeltaSource.entries, **hook))
        ran = workspace.cli("maintain", "--policy", "incremental")
        outcomes = {6: ("table_replaced_meanwhile",), 7: ("table_recreated", "history_gone")}
        assert ran.error["code"] in outcomes[ran.code], ran.document
        assert ran.error["hint"]
    assert workspace.cli.one("maintain", "--policy", "auto")["reason_code"] == "table_recreated"
    workspace.check_sound()


@pytest.mark.parametrize("replace_table", ["backup"], indirect=True)
def test_the_table_is_replaced_during_a_capture(
    workspace: Workspace, replace_table: Replace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = workspace.stored()
    with monkeypatch.context() as patch:
        patch.setattr(capture, "_compute", hooked(capture._compute, after=replace_table))
        assert workspace.cli("capture").refusal == (6, "table_replaced_meanwhile")
        assert workspace.stored() == before
    workspace.capture()


def test_a_temporary_backup_is_not_mistaken_for_the_table(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backup is pinned, but the table's own log is back when the log is checked."""
    other = tmp_path / "other"
    shutil.copytree(workspace.table, other)
    write_deltalake(str(other), more(3), mode="append")
    workspace.append(1)
    workspace.capture()

    def swap() -> None:
        shutil.move(workspace.table, tmp_path / "aside")
        shutil.move(other, workspace.table)
        shutil.move(tmp_path / "aside", other)

    with monkeypatch.context() as patch:
        patch.setattr(PinnedTables, "pin", hooked(PinnedTables.pin, after=swap))
        swap()
        command_line = ("rewrite", "--policy", "incremental", "--require-sketch")
        assert workspace.cli(*command_line).refusal == (7, "table_recreated")


def test_versions_of_a_recreated_table_are_refused(tmp_path: Path) -> None:
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
def ctx(workspace: Workspace) -> Iterator[Context]:
    """A context that only starts other runs, as in `maintain --follow`."""
    settings = Settings(workspace.folder / "w.yaml", policy=Policy.AUTO)
    with open_context(settings) as context:
        yield context


@pytest.fixture
def replace_log(workspace: Workspace, tmp_path: Path) -> Callable[[], None]:
    """Replaces the table's log by one of the same identity and length with another version 1."""
    backup = tmp_path / "backup"
    shutil.copytree(workspace.table, backup)
    workspace.append(7)
    write_deltalake(str(backup), more(5), mode="append")
    return lambda: workspace.replace_by(backup)


def check_pinned(ctx: Context, workspace: Workspace) -> None:
    """The pinned files are those of the current table."""
    newest = open_source("t", str(workspace.table)).snapshot().files
    assert {file.uri for file in ctx.tables.snapshot("t").files} == {file.uri for file in newest}


@pytest.mark.slow
@pytest.mark.parametrize("is_run_skipped", [False, True])
def test_a_log_replaced_during_a_run_is_not_continued(
    workspace: Workspace, ctx: Context, replace_log: Callable[[], None], is_run_skipped: bool
) -> None:
    """Otherwise the run pins {v0, old v1, new v2}, which no version of any table consists of."""
    watch = TableWatch()
    first = ctx.next_run(watch.pinned())
    assert not maintain(first, None).failures
    replace_log()
    first.close()
    watch.saw(first)
    assert watch.is_due(ctx)
    if not is_run_skipped:
        second = ctx.next_run(watch.pinned())
        check_pinned(second, workspace)
        watch.saw(second)
    workspace.append(3)
    second = ctx.next_run(watch.pinned())
    check_pinned(second, workspace)
    outcome = maintain(second, None)
    second.close()
    assert not outcome.failures
    workspace.check_sound()


def started_watch(ctx: Context) -> TableWatch:
    """A watch after a first run that pinned the table."""
    watch = TableWatch()
    first = ctx.next_run(watch.pinned())
    first.tables.source("t")
    watch.saw(first)
    return watch


def test_a_table_that_a_run_did_not_pin_keeps_its_version(
    workspace: Workspace, ctx: Context, replace_log: Callable[[], None]
) -> None:
    watch = started_watch(ctx)
    replace_log()
    # A run that fails before it opens any table.
    watch.saw(Context(ctx.settings, ctx.workload, ctx.reporter))
    workspace.append(3)
    assert watch.is_due(ctx)
    check_pinned(ctx.next_run(watch.pinned()), workspace)


def test_a_missing_table_is_retried_until_it_returns(
    workspace: Workspace, ctx: Context, replace_log: Callable[[], None]
) -> None:
    watch = started_watch(ctx)
    shutil.move(workspace.table, workspace.folder / "away")
    assert watch.is_due(ctx)
    second = ctx.next_run(watch.pinned())
    assert not second.tables.seen
    watch.saw(second)
    assert not watch.is_due(ctx), "a missing table is reported once"
    write_deltalake(str(workspace.table), more(3))
    assert watch.is_due(ctx), "it is another table, with a shorter log"
    replace_log()
    assert watch.is_due(ctx)
    check_pinned(ctx.next_run(watch.pinned()), workspace)
