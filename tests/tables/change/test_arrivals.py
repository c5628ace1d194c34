"""New log entries are seen without opening the table; another table in its place is, too."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.log import has_new_log, newest_version, pinned_anew, seen
from impctl.tables.source import open_source
from impctl.tables.write.maintenance import create_table
from tests.tables.handmade import entry

ROWS = pa.table({"a": pa.array([1, 2, 3], pa.int64())})


@pytest.fixture
def path(tmp_path: Path) -> str:
    create_table(str(tmp_path / "t"), ROWS)
    return str(tmp_path / "t")


def append(path: str) -> None:
    write_deltalake(path, ROWS, mode="append")


def test_commits_are_seen_and_only_they(path: str) -> None:
    result = seen(open_source("t", path))
    assert not has_new_log(result)
    assert newest_version(result) == 0
    append(path)
    append(path)
    assert has_new_log(result)
    assert newest_version(result) == 2
    assert pinned_anew(result).version == 2


def test_a_checkpoint_is_no_news(path: str) -> None:
    append(path)
    result = seen(open_source("t", path))
    DeltaTable(path).create_checkpoint()
    assert not has_new_log(result)


@pytest.mark.slow
@pytest.mark.parametrize("commits", [0, 1, 3])
def test_another_table_in_its_place_is_opened_anew(path: str, tmp_path: Path, commits: int) -> None:
    append(path)
    result = seen(open_source("t", path))
    other = str(tmp_path / "other")
    create_table(other, ROWS)
    for _ in range(commits):
        append(other)
    shutil.rmtree(path)
    Path(other).rename(path)
    assert has_new_log(result)
    assert newest_version(result) is None
    moved = pinned_anew(result)
    assert (moved.version, moved.table_id) == (commits, open_source("t", path).table_id)
    assert moved.snapshot().version == commits
    assert moved.table_id != result.source.table_id


def test_a_log_that_was_cleaned_up_or_is_gone_looks_new(path: str) -> None:
    append(path)
    result = seen(open_source("t", path))
    DeltaTable(path).create_checkpoint()
    entry(path, 1).unlink()
    assert has_new_log(result)
    again = pinned_anew(result)
    assert again.version == 1
    # What is not there cannot change: once seen so, it is no news any more.
    assert not has_new_log(seen(again))
    shutil.rmtree(path)
    assert has_new_log(result)
