"""What the log says of pending changes, against the rows that really changed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.changes import read_changes
from impctl.tables.log import Pending, committed_at, duration_of, pending_changes, retention_of
from impctl.tables.source import open_source
from tests.tables import handmade

ROWS = pa.table({"id": pa.array(range(100), pa.int64())})


@pytest.fixture
def path(tmp_path: Path) -> str:
    write_deltalake(tmp_path / "t", ROWS, configuration={"delta.enableChangeDataFeed": "true"})
    return str(tmp_path / "t")


def pending(path: str, since: int) -> Pending:
    """Checked to be no less than what changed."""
    source = open_source("t", path)
    result = pending_changes(source, since)
    assert result.versions == source.version - since
    assert result.rows is not None
    assert result.rows >= read_changes(source, since, source.version, ["id"]).rows
    return result


def test_nothing(path: str) -> None:
    assert pending_changes(open_source("t", path), 0) == Pending(0, 0, 0, 0)


def test_appends_are_exact(path: str) -> None:
    write_deltalake(path, ROWS.slice(0, 7), mode="append")
    write_deltalake(path, ROWS.slice(0, 5), mode="append")
    result = pending(path, 0)
    assert (result.rows, result.files) == (12, 2)
    assert result.bytes is not None
    assert result.bytes > 0
    assert pending(path, 1).rows == 5


def test_a_delete_counts_the_rows_deleted(path: str) -> None:
    DeltaTable(path).delete("id < 10")
    assert (pending(path, 0).rows, pending(path, 0).files) == (10, 1)


def test_an_overwrite(path: str) -> None:
    write_deltalake(path, ROWS.slice(0, 3), mode="overwrite")
    assert pending(path, 0).rows == 103


def test_rearranging_is_no_change(path: str) -> None:
    write_deltalake(path, ROWS.slice(0, 7), mode="append")
    DeltaTable(path).optimize.compact()
    assert pending(path, 1).rows == 0


def test_a_deletion_vector_counts_the_rows_it_deletes(tmp_path: Path) -> None:
    file = handmade.added(tmp_path, "a.parquet", ROWS)
    vector = {"storageType": "u", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 4}
    path = handmade.create(tmp_path, {"id": "long"}, file, features=["deletionVectors"])
    source = open_source("v", path)
    again = {"add": {**file["add"], "deletionVector": vector}}
    handmade.commit(tmp_path, 1, handmade.remove("a.parquet"), again)
    assert pending_changes(replace(source, version=1), 0).rows == 4


def test_a_log_without_statistics_or_entries_says_nothing(path: str) -> None:
    name = handmade.write_file(Path(path), "b.parquet", ROWS)
    handmade.commit(Path(path), 1, handmade.add(name, 100, stats=None))
    result = pending_changes(open_source("t", path), 0)
    assert (result.rows, result.files) == (None, 1)
    DeltaTable(path).create_checkpoint()
    handmade.entry(path, 1).unlink()
    assert pending_changes(open_source("t", path), 0) == Pending(1, None, None, None)


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


def test_when_a_version_was_committed(path: str) -> None:
    write_deltalake(path, ROWS.slice(0, 7), mode="append")
    source = open_source("t", path)
    first, second = committed_at(source, 0), committed_at(source, 1)
    assert first is not None
    assert second is not None
    assert first <= second
    assert committed_at(source, 2) is None
