"""The commits of a table one by one, by its log."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.errors import TableError
from impctl.tables.log import Committed, commit_history, committed_at, committed_since
from impctl.tables.source import open_source
from impctl.tables.write.maintenance import create_table
from tests.tables.handmade import actions_of, entry


def rows(count: int) -> pa.Table:
    return pa.table({"g": pa.array(range(count), pa.int64())})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions 1 to 4: 5 rows come, then 2; files are compacted; 6 rows go."""
    path = tmp_path_factory.mktemp("committed") / "t"
    create_table(str(path), rows(10))
    write_deltalake(str(path), rows(5), mode="append")
    write_deltalake(str(path), rows(2), mode="append")
    DeltaTable(str(path)).optimize.compact()
    DeltaTable(str(path)).delete("g < 2")
    return path


@pytest.fixture
def table(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "t")


def told(path: Path, since: int, known: dict[int, Committed] | None = None) -> list[Committed]:
    result = committed_since(open_source("t", str(path), None), since, known or {})
    assert result is not None
    return list(result)


def test_each_commit_has_its_rows(table: Path) -> None:
    result = told(table, 0)
    assert [one.version for one in result] == [1, 2, 3, 4]
    assert [one.only_moves for one in result] == [False, False, True, False]
    assert [one.rows for one in result] == [5, 2, 0, 6]
    assert result[2].bytes == 0
    assert result[0].bytes > 0
    assert told(table, 3) == result[3:]
    assert told(table, 4) == []


def test_each_commit_has_its_time(table: Path) -> None:
    history = {entry["version"]: entry["timestamp"] for entry in DeltaTable(str(table)).history()}
    assert [one.at for one in told(table, 0)] == [history[v] / 1000 for v in range(1, 5)]


def changed(path: Path, version: int, said: dict[str, object] | None) -> None:
    """Another `commitInfo` in an entry of the log; None for none."""
    kept = [action for action in actions_of(path, version) if "commitInfo" not in action]
    added = [] if said is None else [{"commitInfo": said}]
    entry(path, version).write_text("\n".join(map(json.dumps, [*added, *kept])))


def test_a_commit_that_says_no_time_has_that_of_its_entry(table: Path) -> None:
    changed(table, 4, None)
    os.utime(entry(table, 4), (1_000.0, 2_000.5))
    assert told(table, 3)[0].at == 2_000.5
    changed(table, 4, {"timestamp": True})
    os.utime(entry(table, 4), (1_000.0, 3_000.5))
    assert told(table, 3)[0].at == 3_000.5
    changed(table, 4, {"timestamp": 7_000})
    assert told(table, 3)[0].at == 7.0
    changed(table, 4, {"timestamp": 7_000, "inCommitTimestamp": 8_000})
    assert told(table, 3)[0].at == 8.0


@pytest.mark.parametrize("said", [10**400, -1, float("nan"), float("inf"), 1e300, "7000", [7000]])
def test_what_can_be_no_time_counts_as_not_said(table: Path, said: object) -> None:
    """By all three that read times: for triggers, for forecasts, and for `doctor`."""
    # Opened before, since deltalake opens no table whose log says NaN.
    source = open_source("t", str(table), None)
    changed(table, 4, {"timestamp": said, "operation": "DELETE"})
    os.utime(entry(table, 4), (1_000.0, 2_000.5))
    assert [one.at for one in committed_since(source, 3, {}) or ()] == [2_000.5]
    assert committed_at(source, 4) == 2_000.5
    latest = commit_history(source, None).arrivals[-1]
    assert (latest.version, latest.at, latest.operation) == (4, 2_000.5, "DELETE")
    changed(table, 4, {"inCommitTimestamp": said, "timestamp": 7_000})
    assert [one.at for one in committed_since(source, 3, {}) or ()] == [7.0]
    assert committed_at(source, 4) == 7.0


def test_what_is_known_is_not_read_again(table: Path) -> None:
    result = told(table, 0)
    known = {one.version: one for one in result[:3]}
    source = open_source("t", str(table), None)
    for version in (1, 2, 3):
        entry(table, version).write_text("no entry at all")
    assert committed_since(source, 0, known) == tuple(result)
    assert committed_since(source, 1, known) == tuple(result[1:])
    with pytest.raises(TableError):
        committed_since(source, 0, {})


def test_a_log_with_a_gap_tells_nothing(table: Path) -> None:
    source = open_source("t", str(table), None)
    entry(table, 2).unlink()
    assert committed_since(source, 0, {}) is None
    result = committed_since(source, 2, {})
    assert result is not None
    assert [one.version for one in result] == [3, 4]


def test_a_file_that_came_and_went_counts_twice(tmp_path: Path) -> None:
    """The entry of a removed file need not repeat its rows; those of files from before are open."""
    path = tmp_path / "t"
    create_table(str(path), rows(10))
    write_deltalake(str(path), rows(5), mode="overwrite")
    write_deltalake(str(path), rows(3), mode="overwrite")
    assert [one.rows for one in told(path, 0)] == [None, 8]
    assert [one.rows for one in told(path, 1)] == [None]
