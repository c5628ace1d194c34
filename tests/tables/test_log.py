"""The log of a table: commits, pending changes and their size, and marks of file sets."""

from __future__ import annotations

import json
import operator
import os
import random
import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec.structs import replace

from impctl.errors import TableError
from impctl.forecast import Commit, History, effective_times
from impctl.tables import source as module
from impctl.tables.changes import read_changes
from impctl.tables.log import (
    ChangeSize,
    commit_history,
    commits_of,
    commits_since,
    committed_at,
    duration_of,
    has_faithful_copies,
    has_new_log,
    leads_to,
    newest_version,
    open_newest,
    pending_size,
    pin_table,
    retention_of,
    size_of,
)
from impctl.tables.snapshot import CHANGE_FEED, Snapshot
from impctl.tables.source import LogEntry, open_source
from impctl.tables.write.maintenance import create_table
from tests.tables import handmade
from tests.tables.handmade import VectoredTable, actions_of, entry

ROWS = pa.table({"a": pa.array([1, 2, 3], pa.int64())})


@pytest.fixture
def path(tmp_path: Path) -> str:
    create_table(str(tmp_path / "t"), ROWS)
    return str(tmp_path / "t")


def append(path: str) -> None:
    write_deltalake(path, ROWS, mode="append")


def test_only_commits_are_noticed(path: str) -> None:
    result = pin_table(open_source("t", path))
    DeltaTable(path).create_checkpoint()
    assert not has_new_log(result)
    assert newest_version(result) == 0
    append(path)
    append(path)
    assert has_new_log(result)
    assert newest_version(result) == 2
    assert open_newest(result).version == 2


def test_next_look_reads_entries_again(path: str) -> None:
    append(path)
    result = pin_table(open_source("t", path))
    (before,) = result.source.entries(0, 1) or ()
    append(path)
    moved = open_newest(result)
    (after, _) = moved.entries(0, 2) or ()
    assert after is not before


@pytest.mark.slow
@pytest.mark.parametrize("commits", [0, 1, 3])
def test_replaced_table_is_opened_again(path: str, tmp_path: Path, commits: int) -> None:
    append(path)
    result = pin_table(open_source("t", path))
    other = str(tmp_path / "other")
    create_table(other, ROWS)
    for _ in range(commits):
        append(other)
    shutil.rmtree(path)
    Path(other).rename(path)
    assert has_new_log(result)
    assert newest_version(result) is None
    moved = open_newest(result)
    assert (moved.version, moved.table_id) == (commits, open_source("t", path).table_id)
    assert moved.snapshot().version == commits
    assert moved.table_id != result.source.table_id


def test_cleaned_or_missing_log_is_new(path: str) -> None:
    append(path)
    result = pin_table(open_source("t", path))
    DeltaTable(path).create_checkpoint()
    entry(path, 1).unlink()
    assert has_new_log(result)
    reopened = open_newest(result)
    assert reopened.version == 1
    # A log without the entry is reported as new only once.
    assert not has_new_log(pin_table(reopened))
    shutil.rmtree(path)
    assert has_new_log(result)


def rows(count: int) -> pa.Table:
    return pa.table({"g": pa.array(range(count), pa.int64())})


@pytest.fixture(scope="module")
def copied_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions 1 to 4: insert 5 rows, insert 2, compact files, delete 6 rows."""
    path = tmp_path_factory.mktemp("committed") / "t"
    create_table(str(path), rows(10))
    write_deltalake(str(path), rows(5), mode="append")
    write_deltalake(str(path), rows(2), mode="append")
    DeltaTable(str(path)).optimize.compact()
    DeltaTable(str(path)).delete("g < 2")
    return path


@pytest.fixture
def table(copied_table: Path, tmp_path: Path) -> Path:
    return shutil.copytree(copied_table, tmp_path / "t")


def listed_commits(path: Path, since: int) -> list[Commit]:
    result = commits_since(open_source("t", str(path), None), since)
    assert result is not None
    return list(result)


def test_each_commit_has_its_rows(table: Path) -> None:
    result = listed_commits(table, 0)
    assert [one.version for one in result] == [1, 2, 3, 4]
    assert [one.only_moves for one in result] == [False, False, True, False]
    assert [one.rows for one in result] == [5, 2, 0, 6]
    assert result[2].bytes == 0
    assert result[0].bytes > 0
    assert listed_commits(table, 3) == result[3:]
    assert listed_commits(table, 4) == []


def test_each_commit_has_its_time(table: Path) -> None:
    history = {entry["version"]: entry["timestamp"] for entry in DeltaTable(str(table)).history()}
    assert [one.at for one in listed_commits(table, 0)] == [history[v] / 1000 for v in range(1, 5)]


def changed(path: Path, version: int, commit_info: dict[str, object] | None) -> None:
    """Replace the `commitInfo` of a log entry (None: remove it)."""
    others = [action for action in actions_of(path, version) if "commitInfo" not in action]
    added = [] if commit_info is None else [{"commitInfo": commit_info}]
    entry(path, version).write_text("\n".join(map(json.dumps, [*added, *others])))


@pytest.mark.parametrize(
    ("commit_info", "time"),
    [
        (None, 2_000.5),
        ({"timestamp": True}, 2_000.5),
        ({"timestamp": 7_000}, 7.0),
        ({"timestamp": 7_000, "inCommitTimestamp": 8_000}, 8.0),
    ],
)
def test_commit_without_time_uses_file_time(
    table: Path, commit_info: dict[str, object] | None, time: float
) -> None:
    changed(table, 4, commit_info)
    os.utime(entry(table, 4), (1_000.0, 2_000.5))
    assert listed_commits(table, 3)[0].at == time


@pytest.mark.parametrize("value", [10**400, -1, float("nan"), float("inf"), 1e300, "7000", [7000]])
def test_invalid_commit_times_are_ignored(table: Path, value: object) -> None:
    """This applies to triggers, forecasts and `doctor`."""
    # Opened first, because deltalake cannot open a table with NaN in its log.
    source = open_source("t", str(table), None)
    changed(table, 4, {"timestamp": value, "operation": "DELETE"})
    os.utime(entry(table, 4), (1_000.0, 2_000.5))
    assert committed_at(source, 4) == 2_000.5
    latest = commit_history(source, None).arrivals[-1]
    assert (latest.version, latest.at, latest.operation) == (4, 2_000.5, "DELETE")
    changed(table, 4, {"inCommitTimestamp": value, "timestamp": 7_000})
    assert committed_at(source, 4) == 7.0
    assert [commit.at for commit in commits_since(source, 3) or ()] == [7.0]


def test_known_commits_are_not_read(table: Path) -> None:
    result = listed_commits(table, 0)
    known = {one.version: one for one in result[:3]}
    source = open_source("t", str(table), None)
    for version in (1, 2, 3):
        entry(table, version).write_text("no entry at all")
    assert commits_since(source, 0, known) == tuple(result)
    assert commits_since(source, 1, known) == tuple(result[1:])
    with pytest.raises(TableError):
        commits_since(source, 0)


def test_log_with_gap_has_no_commits(table: Path) -> None:
    source = open_source("t", str(table), None)
    entry(table, 2).unlink()
    assert commits_since(source, 0) is None
    result = commits_since(source, 2)
    assert result is not None
    assert [one.version for one in result] == [3, 4]


def test_a_run_reads_and_parses_an_entry_once(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source("t", str(table))
    first = source.entries(0, 3)
    monkeypatch.setattr(module, "read_entry", lambda *_: pytest.fail("read again"))
    assert all(map(operator.is_, source.entries(1, 3), first[1:]))
    assert source.at(4).entry(2) is first[1]
    assert source.entries(3, 2) is None
    with pytest.raises(pytest.fail.Exception):
        pin_table(source).source.entries(0, 1)


def test_added_and_removed_file_counts_twice(tmp_path: Path) -> None:
    """A remove action may lack a row count; it is unknown for files added earlier."""
    path = tmp_path / "t"
    create_table(str(path), rows(10))
    write_deltalake(str(path), rows(5), mode="overwrite")
    write_deltalake(str(path), rows(3), mode="overwrite")
    assert [one.rows for one in listed_commits(path, 0)] == [None, 8]
    assert [one.rows for one in listed_commits(path, 1)] == [None]


def numbered_rows(count: int) -> pa.Table:
    return pa.table({"a": list(range(count))})


def history_of(path: Path, known: History | None = None) -> History:
    return commit_history(open_source("t", str(path)), known)


def add_entry(path: Path, version: int, rows: int, ts: object, **more: Any) -> None:
    """Write a commit at `ts`, in seconds."""
    stamp = {} if ts is None else {"timestamp": ts * 1000 if isinstance(ts, int | float) else ts}
    stats = json.dumps({"numRecords": rows})
    file = {"path": f"f{version}", "size": 5, "stats": stats, "partitionValues": {}}
    actions = [
        {"commitInfo": {"operation": "WRITE", **stamp, **more}},
        {"add": {**file, "modificationTime": 0, "dataChange": True}},
    ]
    entry(path, version).write_text("\n".join(map(json.dumps, actions)))


def add_entries(path: Path, versions: range, rows: int | None = None) -> None:
    """Write one commit per second with this number of rows (None: its version number)."""
    for version in versions:
        add_entry(path, version, version if rows is None else rows, 1e9 + version)


@pytest.fixture
def growing_path(tmp_path: Path) -> Path:
    path = tmp_path / "t"
    write_deltalake(str(path), numbered_rows(10))
    return path


def test_inserts_and_deletes_are_counted_without_moves(growing_path: Path) -> None:
    write_deltalake(str(growing_path), numbered_rows(4), mode="append")
    DeltaTable(str(growing_path)).update(updates={"a": "a + 100"}, predicate="a = 9")
    DeltaTable(str(growing_path)).delete("a < 2")
    DeltaTable(str(growing_path)).optimize.compact()
    write_deltalake(str(growing_path), numbered_rows(0), mode="append")
    write_deltalake(str(growing_path), numbered_rows(3), mode="overwrite")
    result = history_of(growing_path)
    assert [(e.version, e.inserted, e.deleted) for e in result.arrivals] == [
        (1, 4, 0), (2, 1, 1), (3, 0, 4), (result.until, 3, 10),
    ]  # fmt: skip
    # The last entry alone lacks the row counts of the removed files.
    known = History(result.table_id, result.until - 1, None)
    assert [(e.inserted, e.deleted) for e in history_of(growing_path, known).arrivals] == [
        (3, None)
    ]
    assert [e.operation for e in result.arrivals] == ["WRITE", "UPDATE", "DELETE", "WRITE"]
    assert all(e.files > 0 and e.bytes > 0 and not e.is_after_gap for e in result.arrivals)
    assert result.since == actions_of(growing_path, 0)[0]["commitInfo"]["timestamp"] / 1000
    assert not result.has_missed


@pytest.mark.slow
def test_incremental_history_reads_each_entry_once(
    growing_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    read_entry = module.read_entry

    def counted(source: Any, version: int) -> str:
        read.append(version)
        return read_entry(source, version)

    monkeypatch.setattr(module, "read_entry", counted)
    generator = random.Random(3)
    known = None
    for version in range(1, 31):
        add_entry(growing_path, version, generator.randrange(3), 1e9 + version)
        if generator.random() < 0.4:
            known = history_of(growing_path, known)
    known = history_of(growing_path, known)
    assert sorted(read) == list(range(31))
    assert known == history_of(growing_path)
    assert history_of(growing_path, known) is known
    source = open_source("t", str(growing_path))
    source.entries(19, 30)
    read.clear()
    assert commit_history(source, None) == known
    assert sorted(read) == list(range(20))


def test_only_latest_commits_are_kept(growing_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("impctl.tables.log.KEPT", 50)
    add_entries(growing_path, range(1, 80))
    result = history_of(growing_path)
    assert [e.version for e in result.arrivals] == list(range(30, 80))
    assert result.since == 1e9 + 30
    assert result.arrivals[0].is_after_gap
    add_entries(growing_path, range(80, 90))
    later = history_of(growing_path, result)
    assert [e.version for e in later.arrivals] == list(range(40, 90))
    assert later.since == 1e9 + 40
    assert not any(e.is_after_gap for e in later.arrivals)


def test_cleaned_log_keeps_known_commits_and_a_gap(growing_path: Path) -> None:
    add_entries(growing_path, range(1, 4), 7)
    known = history_of(growing_path)
    add_entries(growing_path, range(4, 9), 7)
    source = open_source("t", str(growing_path))
    for version in range(6):
        entry(growing_path, version).unlink()
    result = commit_history(source, known)
    assert [e.version for e in result.arrivals] == [1, 2, 3, 6, 7, 8]
    assert [e.is_after_gap for e in result.arrivals] == [False] * 3 + [True] + [False] * 2
    assert result.since == known.since
    fresh = commit_history(source, None)
    assert [e.version for e in fresh.arrivals] == [6, 7, 8]
    assert (fresh.since, fresh.arrivals[0].is_after_gap) == (1e9 + 6, True)


def test_gap_before_empty_commits_is_remembered(growing_path: Path) -> None:
    add_entry(growing_path, 1, 7, 1e9)
    known = history_of(growing_path)
    for version in range(2, 5):
        add_entry(growing_path, version, 0, 1e9 + version)
    source = open_source("t", str(growing_path))
    entry(growing_path, 2).unlink()
    result = commit_history(source, known)
    assert ([e.version for e in result.arrivals], result.has_missed) == ([1], True)
    entry(growing_path, 2).write_text(entry(growing_path, 3).read_text())
    add_entry(growing_path, 5, 7, 1e9 + 9)
    last = history_of(growing_path, result)
    assert [(e.version, e.is_after_gap) for e in last.arrivals] == [(1, False), (5, True)]
    assert not last.has_missed


@pytest.mark.parametrize(
    "text",
    ["no json", "7", '{"add": 7}', '{"add": {"size": 7}}', '{"add": {"path": [], "size": "x"}}'],
)
def test_damaged_entry_is_a_gap(growing_path: Path, text: str) -> None:
    add_entry(growing_path, 1, 7, 1e9)
    known = history_of(growing_path)
    add_entry(growing_path, 2, 7, 1e9 + 1)
    source = open_source("t", str(growing_path))
    entry(growing_path, 2).write_text(text)
    result = commit_history(source, known)
    assert (result.arrivals, result.until, result.has_missed) == (known.arrivals, 2, True)


def test_new_table_starts_over_but_shorter_log_continues(
    growing_path: Path, tmp_path: Path
) -> None:
    add_entries(growing_path, range(1, 4), 7)
    known = history_of(growing_path)
    entry(growing_path, 3).unlink()
    shorter = history_of(growing_path, known)
    assert ([e.version for e in shorter.arrivals], shorter.until) == ([1, 2], 2)
    shutil.rmtree(growing_path)
    write_deltalake(str(growing_path), numbered_rows(1))
    other = history_of(growing_path, known)
    assert other.arrivals == ()
    assert other.table_id != known.table_id


@pytest.mark.parametrize("metrics", [{"numDeletedRows": "-4"}, {"numDeletedRows": 10**30}, "?"])
def test_wrong_operation_metrics_stay_in_bounds(growing_path: Path, metrics: object) -> None:
    add_entry(growing_path, 1, 7, 1e9, operationMetrics=metrics)
    for each in history_of(growing_path).arrivals:
        assert 0 <= (each.inserted or 0) < 2**63
        assert 0 <= (each.deleted or 0) < 2**63


def arrivals(*times: float | None) -> list[Commit]:
    return [Commit(v, time, 1, 0, 1, 1, "") for v, time in enumerate(times, start=1)]


@pytest.mark.parametrize(
    ("times", "effective"),
    [
        ((), []),
        ((1.0, 2.0, 2.0, 5.0), [1.0, 2.0, 2.0, 5.0]),
        ((1.0, 900.0, 3.0), [1.0, 1.0, 3.0]),
        ((5.0, 1.0, 6.0), [5.0, 5.0, 6.0]),
        ((900.0, 2.0, 3.0), [2.0, 2.0, 3.0]),
        ((None, 2.0, None, 3.0), [2.0, 2.0, 2.0, 3.0]),
        ((900.0, 901.0), [100.0, 100.0]),
    ],
)
def test_times_are_monotonic_and_past(times: Any, effective: list[float]) -> None:
    assert effective_times(arrivals(*times), 100.0) == effective


FEED = {CHANGE_FEED: "true"}
OF_SPARK = {"commitInfo": {"engineInfo": "Apache-Spark/3.5.0 Delta-Lake/3.1.0"}}
OF_OTHERS = {"commitInfo": {"engineInfo": "delta-rs:py-1.6.6"}}
NESTED = {"type": "struct", "fields": [handmade.field("a", "long")]}
FAR = pa.array([datetime(9999, 12, 31, tzinfo=UTC)], pa.timestamp("us", tz="UTC"))
OLD = {"org.apache.spark.version": "2.4.8"}


MISREAD = {
    "INT96": ("timestamp", {"v": FAR}),
    "old calendar": ("date", {"v": [date(1, 1, 1)]}),
    "other letters": ("long", {"V": [7]}),
    "nested in other letters": (NESTED, {"v": [{"A": 7}]}),
}


def misread(table: Path, case: str) -> None:
    """Create a table of one file with columns `id` and `v`."""
    kind, column = MISREAD.get(case, ("long", {"v": [7]}))
    data = pa.table({"id": pa.array([1]), **column})
    if case == "old calendar":
        data = data.replace_schema_metadata(OLD)
    handmade.create(table, {"id": "long", "v": kind}, configuration=FEED)
    options = {"use_deprecated_int96_timestamps": case == "INT96"}
    handmade.commit(table, 1, handmade.added(table, "a.parquet", data, **options))


def rewrite(table: Path, writer: dict[str, Any], *, moves: bool, is_gone: bool = False) -> None:
    """Replace the file by a copy without the values of `v`."""
    data_change = {"dataChange": not moves}
    added = handmade.added(table, "b.parquet", pa.table({"id": [1]}), data_change)
    if is_gone:
        (table / "a.parquet").unlink()
    handmade.commit(table, 2, writer, handmade.remove("a.parquet", **data_change), added)


def is_trusted_copy(table: Path) -> bool:
    source = open_source("t", str(table))
    return has_faithful_copies(source.entries(1, 2), source.snapshot())


@pytest.mark.parametrize("case", MISREAD)
def test_copies_of_misread_columns_are_not_trusted(tmp_path: Path, case: str) -> None:
    misread(tmp_path, case)
    for writer, moves, is_trusted in (
        (OF_OTHERS, True, False),
        ({"commitInfo": {}}, False, False),
        (OF_SPARK, True, True),
    ):
        rewrite(tmp_path, writer, moves=moves)
        assert is_trusted_copy(tmp_path) is is_trusted


def test_other_copies_need_the_original_file(tmp_path: Path) -> None:
    misread(tmp_path, "nothing")
    for is_gone in (False, True):
        rewrite(tmp_path, OF_OTHERS, moves=True, is_gone=is_gone)
        assert is_trusted_copy(tmp_path) is not is_gone


@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("column", ["id", "v"])
def test_untrusted_copies_use_file_diff(tmp_path: Path, column: str, moves: bool) -> None:
    """This applies to each column, because a conservative sketch reads only its own."""
    misread(tmp_path, "other letters")
    rewrite(tmp_path, OF_OTHERS, moves=moves)
    changes = read_changes(open_source("t", str(tmp_path)), 1, 2, [column])
    assert (changes.method, changes.weights.tolist()) == ("file_diff", [-1, 1])
    assert changes.table.column(column).to_pylist() == {"id": [1, 1], "v": [7, None]}[column]


def test_rows_copied_to_feed_only_are_not_trusted(tmp_path: Path) -> None:
    """All rows of the file are deleted, so there is no new data file."""
    misread(tmp_path, "other letters")
    deleted = pa.table({"id": [1], "v": pa.nulls(1, pa.int64()), "_change_type": ["delete"]})
    name = handmade.write_file(tmp_path, "_change_data/c.parquet", deleted)
    change = {"cdc": {"path": name, "partitionValues": {}, "size": 1, "dataChange": False}}
    handmade.commit(tmp_path, 2, OF_OTHERS, handmade.remove("a.parquet"), change)
    changes = read_changes(open_source("t", str(tmp_path)), 1, 2, ["v"])
    assert (changes.table.column("v").to_pylist(), changes.weights.tolist()) == ([7], [-1])


def test_copies_beside_deletion_vectors_are_not_trusted(tmp_path: Path) -> None:
    misread(tmp_path, "nothing")
    rewrite(tmp_path, OF_OTHERS, moves=True)
    assert is_trusted_copy(tmp_path)
    handmade.commit(tmp_path, 3, handmade.protocol("deletionVectors"))
    assert not is_trusted_copy(tmp_path)


def test_one_bad_commit_is_enough(tmp_path: Path) -> None:
    misread(tmp_path, "INT96")
    rewrite(tmp_path, OF_OTHERS, moves=True)
    handmade.commit(tmp_path, 3, OF_SPARK, handmade.add("a.parquet", 1))
    source = open_source("t", str(tmp_path))
    assert not has_faithful_copies(source.entries(1, 3), source.snapshot())


def test_deltalake_loses_respelled_columns(tmp_path: Path) -> None:
    """This is why its copies are not trusted."""
    misread(tmp_path, "other letters")
    write_deltalake(DeltaTable(str(tmp_path)), pa.table({"id": [2], "v": [8]}), mode="append")
    DeltaTable(str(tmp_path)).optimize.compact()
    source = open_source("t", str(tmp_path))
    changes = read_changes(source, 2, 3, ["v"])
    assert (source.version, changes.method) == (3, "file_diff")
    signed = list(zip(changes.table.column("v").to_pylist(), changes.weights.tolist(), strict=True))
    assert sorted(signed, key=str) == [(7, -1), (8, -1), (8, 1), (None, 1)]


def test_unicode_line_separators_in_commit(tmp_path: Path) -> None:
    misread(tmp_path, "nothing")
    rewrite(tmp_path, {"commitInfo": {"operation": "a\u2028b\u0085c"}}, moves=False)
    log, lines = handmade.entry(tmp_path, 2), handmade.actions_of(tmp_path, 2)
    log.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    assert "\u2028" in log.read_text(encoding="utf-8")
    assert read_changes(open_source("t", str(tmp_path)), 1, 2, ["v"]).weights.tolist() == [-1, 1]


FED_ROWS = pa.table({"id": pa.array(range(100), pa.int64())})


@pytest.fixture
def fed_path(tmp_path: Path) -> str:
    write_deltalake(tmp_path / "t", FED_ROWS, configuration={"delta.enableChangeDataFeed": "true"})
    return str(tmp_path / "t")


def append_some(path: str, *counts: int) -> None:
    for count in counts:
        write_deltalake(path, FED_ROWS.slice(0, count), mode="append")


@pytest.mark.parametrize(
    ("change", "rows", "files"),
    [
        (lambda path: None, 0, 0),
        (lambda path: append_some(path, 7, 5), 12, 2),
        (lambda path: DeltaTable(path).delete("id < 10"), 10, 1),
        (lambda path: write_deltalake(path, FED_ROWS.slice(0, 3), mode="overwrite"), 103, 2),
        (lambda path: (append_some(path, 7), DeltaTable(path).optimize.compact()), 7, 1),
    ],
    ids=["nothing", "appended", "deleted", "overwritten", "compacted"],
)
def test_pending_size(
    fed_path: str, change: Callable[[str], object], rows: int, files: int
) -> None:
    change(fed_path)
    source = open_source("t", fed_path)
    result = pending_size(source, 0)
    assert (result.rows, result.files, result.bytes > 0) == (rows, files, files > 0)
    assert result.rows >= read_changes(source, 0, source.version, ["id"]).rows
    assert pending_size(source, source.version) == ChangeSize(0, 0, 0)


def test_deletion_vector_counts_deleted_rows(tmp_path: Path) -> None:
    file = handmade.added(tmp_path, "a.parquet", FED_ROWS)
    path = handmade.create(tmp_path, {"id": "long"}, file, features=["deletionVectors"])
    source = open_source("v", path)
    vector = {"storageType": "u", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 4}
    again = {"add": {**file["add"], "deletionVector": vector}}
    handmade.commit(tmp_path, 1, handmade.remove("a.parquet"), again)
    assert pending_size(replace(source, version=1), 0).rows == 4


def test_log_without_statistics_or_entries(fed_path: str) -> None:
    name = handmade.write_file(Path(fed_path), "b.parquet", FED_ROWS)
    handmade.commit(Path(fed_path), 1, handmade.add(name, 100, stats=None))
    result = pending_size(open_source("t", fed_path), 0)
    assert (result.rows, result.files) == (None, 1)
    DeltaTable(fed_path).create_checkpoint()
    handmade.entry(fed_path, 1).unlink()
    assert pending_size(open_source("t", fed_path), 0) is None


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("interval 30 days", timedelta(days=30)),
        ("INTERVAL 1 WEEK 2 Days", timedelta(days=9)),
        ("interval 168 hours", timedelta(days=7)),
        ("interval 0 seconds", timedelta(0)),
        ("interval 5 milliseconds", timedelta(milliseconds=5)),
        (f"interval {'9' * 30} weeks", timedelta.max),
        ("interval 1 month", None),
        ("interval", None),
        ("", None),
        ("interval -1 day", None),
    ],
)
def test_durations_as_delta_writes_them(text: str, span: timedelta | None) -> None:
    assert duration_of(text) == span


def test_defaults_of_delta() -> None:
    log, files = retention_of({"delta.logRetentionDuration": "interval 3 days"})
    assert (log.kept, files.kept) == (timedelta(days=3), timedelta(days=7))


def test_commit_time_of_version(fed_path: str) -> None:
    write_deltalake(fed_path, FED_ROWS.slice(0, 7), mode="append")
    source = open_source("t", fed_path)
    first, second = committed_at(source, 0), committed_at(source, 1)
    assert first <= second
    assert committed_at(source, 2) is None


@pytest.mark.slow
@pytest.mark.parametrize("feed", ["true", "false"])
def test_row_counts_of_log_match_rows(tmp_path: Path, feed: str) -> None:
    path = str(tmp_path / "t")
    rows = pa.table({"a": [1, 2, 3], "b": [1, 1, 1]})
    write_deltalake(path, rows, configuration={"delta.enableChangeDataFeed": feed})
    write_deltalake(path, rows, mode="append")
    DeltaTable(path).update(updates={"b": "2"}, predicate="a = 1")
    DeltaTable(path).delete("a = 2")
    DeltaTable(path).optimize.compact()
    for since, until in combinations(range(open_source("t", path).version + 1), 2):
        source = open_source("t", path)
        size = size_of(commits_of(source, source.entries(since, until)))
        assert size.files == 0 or size.bytes > 0
        if until == since + 1:
            columns = ("a", "b")
            read = read_changes(
                source, since, until, columns, table_id=source.table_id, net_by=columns
            )
            known = size.rows is not None
            assert size.rows == (read.rows if known else None), (since, until)
            # deltalake does not log the row counts of replaced files.
            assert known or feed == "false"


def logged(*actions: dict[str, object]) -> LogEntry:
    return LogEntry("t", 1, "\n".join(json.dumps(action) for action in actions))


def file(path: str, rows: int | None, deleted: int = 0, **more: object) -> dict[str, object]:
    stats = None if rows is None else json.dumps({"numRecords": rows})
    vector = {"cardinality": deleted} if deleted else None
    entry = {"path": path, "size": 5, "stats": stats, "deletionVector": vector}
    return {**entry, "dataChange": True, **more}


UPDATED = {"commitInfo": {"operationMetrics": {"numUpdatedRows": "2"}}}


@pytest.mark.parametrize(
    ("actions", "size"),
    [
        ([{"add": file("a", 7)}], ChangeSize(7, 5, 1)),
        ([{"add": file("a", 7, deleted=3)}, {"remove": file("a", 7)}], ChangeSize(3, 10, 2)),
        ([{"add": file("a", 7)}, {"remove": file("b", None)}], ChangeSize(None, 10, 2)),
        ([{"add": file("a", 7, dataChange=False)}], ChangeSize(0, 0, 0)),
        ([{"cdc": {"path": "c", "size": 9}}, {"add": file("a", 7)}], ChangeSize(None, 9, 1)),
        ([UPDATED, {"cdc": {"path": "c", "size": 9}}], ChangeSize(4, 9, 1)),
        ([{"commitInfo": {"operationMetrics": "?"}}, {"add": file("a", 1)}], ChangeSize(1, 5, 1)),
        ([{"add": {"path": "a", "stats": "no json", "size": None}}], ChangeSize(None, 0, 1)),
    ],
)
def test_size_of_commit(path: str, actions: list[dict[str, object]], size: ChangeSize) -> None:
    assert size_of(commits_of(open_source("t", path), [logged(*actions)])) == size


MOVED = {"add": file("a", 7, dataChange=False)}


@pytest.mark.parametrize(
    ("actions", "only_moves"),
    [
        ([MOVED, {"remove": file("b", 7, dataChange=False)}], True),
        ([{"add": file("a", 7)}], False),
        ([{"add": {"path": "a", "size": 5}}], False),
        ([{"cdc": {"path": "c", "size": 9, "dataChange": False}}, MOVED], False),
        ([{"metaData": {}}, MOVED], False),
    ],
)
def test_only_moves(actions: list[dict[str, object]], only_moves: bool) -> None:
    assert logged(*actions).only_moves is only_moves


def test_flags_of_an_entry() -> None:
    """Protocol actions may change metadata; all of an entry's writers must be Spark."""
    actions = ({"protocol": {"minReaderVersion": 3}}, {"metaData": {}}, {"add": file("a", 7)})
    assert [logged(action).may_change_metadata for action in actions] == [True, True, False]
    other = {"commitInfo": {"engineInfo": "delta-rs"}}
    entries = (logged(OF_SPARK, MOVED), logged(OF_SPARK, other), logged(MOVED))
    assert [entry.is_of_spark for entry in entries] == [True, False, False]


ESCAPED_ROWS = pa.table(
    {"id": pa.array(range(40), pa.int64()), "p": ["a b", "ü", "c/d", "50%"] * 10}
)


@pytest.fixture(scope="module")
def escaped_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Appends, a deletion, an update, OPTIMIZE and RESTORE over escaped partition folders.

    Tests only read it.
    """
    path = str(tmp_path_factory.mktemp("marked") / "t")
    for part in range(4):
        write_deltalake(path, ESCAPED_ROWS.slice(part * 8), mode="append", partition_by=["p"])
    delta = DeltaTable(path)
    delta.delete("id = 13")
    delta.update(updates={"id": "id + 100"}, predicate="id < 5")
    delta.optimize.compact()
    delta.restore(3)
    return path


@pytest.mark.slow
def test_commits_lead_from_each_version_to_later_ones(escaped_path: str) -> None:
    source = open_source("t", escaped_path)
    snapshots = [source.snapshot(version) for version in range(source.version + 1)]
    marks = [snapshot.mark for snapshot in snapshots]
    assert marks[3] == marks[-1]
    assert len({mark.digest for mark in marks}) == len(marks) - 1
    for since, until in combinations(range(len(marks)), 2):
        mark, before = marks[since], marks[since - 1]
        entries = source.entries(since, until)
        assert leads_to(mark, entries, snapshots[until]) is True
        assert leads_to(before, entries, snapshots[until]) is (before.digest == mark.digest)


def test_mark_ignores_order_and_location_of_files(escaped_path: str) -> None:
    snapshot = open_source("t", escaped_path).snapshot()
    order = list(range(len(snapshot.uris)))
    random.Random(1).shuffle(order)
    uris = tuple(snapshot.uris[i].replace(snapshot.path, "/elsewhere/t") for i in order)
    moved = replace(snapshot, path="/elsewhere/t", uris=uris, actions=snapshot.actions.take(order))
    assert moved.mark == snapshot.mark


def test_mark_depends_on_size_name_and_deletions(escaped_path: str) -> None:
    snapshot = open_source("t", escaped_path).snapshot()
    sizes = snapshot.actions.column("size_bytes").to_pylist()
    index = snapshot.actions.schema.get_field_index("size_bytes")
    larger = snapshot.actions.set_column(index, "size_bytes", pa.array([sizes[0] + 1, *sizes[1:]]))
    others: list[Snapshot] = [
        replace(snapshot, actions=larger),
        replace(snapshot, uris=(snapshot.uris[0] + "x", *snapshot.uris[1:])),
        replace(snapshot, uris=snapshot.uris[1:], actions=snapshot.actions.slice(1)),
        replace(snapshot, deletions={snapshot.uris[0]: np.array([0])}),
    ]
    assert len({other.mark.digest for other in [snapshot, *others]}) == 5


def test_mark_hashes_each_name_by_itself(escaped_path: str) -> None:
    """Files are hashed in padded chunks; padding is not part of the mark."""
    snapshot = open_source("t", escaped_path).snapshot()
    draw = random.Random(2)
    names = ["x" * draw.randrange(1, 40) + str(number) for number in range(3000)]
    actions = snapshot.actions.slice(0, 1).take([0] * len(names))

    def marked(chosen: list[str]) -> str:
        uris = tuple(f"{snapshot.path}/{name}" for name in chosen)
        return replace(snapshot, uris=uris, actions=actions).mark.digest

    assert marked(names) == marked(sorted(names)) == marked(sorted(names, key=len))
    assert marked(names) != marked([*names[:-1], names[-1] + "y"])


def test_removed_file_without_size_is_unknown(escaped_path: str) -> None:
    source = open_source("t", escaped_path)
    lines = actions_of(escaped_path, 4)
    for line in lines:
        if "remove" in line:
            del line["remove"]["size"]
    assert leads_to(source.snapshot(3).mark, [logged(*lines)], source.snapshot(4)) is None


def test_deletion_vectors_change_the_mark(tmp_path: Path) -> None:
    """A file added again with more deleted rows changes the mark."""
    rows = pa.table({"id": pa.array(range(30), pa.int64())})
    table = VectoredTable(tmp_path, rows, feed=True)
    table.delete(lambda part: pc.equal(part["id"], 3))
    table.append(rows)
    table.delete(lambda part: pc.less(part["id"], 9))
    source = open_source("t", str(tmp_path))
    marks = [source.snapshot(version).mark for version in range(4)]
    assert [mark.rows for mark in marks] == [30, 29, 59, 42]
    assert len({mark.digest for mark in marks}) == 4
    for since in range(3):
        assert leads_to(marks[since], source.entries(since, 3), source.snapshot(3))
