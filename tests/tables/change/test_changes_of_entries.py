"""Changes over log entries that a change feed's reader takes for something else."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from impctl.errors import TableError
from impctl.tables import changes
from impctl.tables import changes as change_feed
from impctl.tables.changes import changed_files, read_changes
from impctl.tables.snapshot import CHANGE_FEED
from impctl.tables.source import open_source
from tests.tables import handmade
from tests.tables.bags import check
from tests.tables.vectored import VectoredTable

ROWS = pa.table({"p": ["a"] * 5 + ["b"] * 3, "x": pa.array(range(8), pa.int64())})


@pytest.mark.parametrize("by", [(), ("p",)])
def test_files_with_deletion_vectors_that_come_or_go(tmp_path: Path, by: tuple[str, ...]) -> None:
    table = VectoredTable(tmp_path / "t", ROWS, by=by, feed=True)
    table.delete(lambda rows: pc.less(rows["x"], 3))
    table.delete(lambda rows: pc.less(rows["x"], 4))
    table.delete(lambda rows: pc.equal(rows["p"], "a"))
    table.append(ROWS)
    source = open_source("t", str(table.path))
    check(source, 3, 4, "change_feed")
    for since, until in ((0, 1), (1, 2), (2, 3), (0, 3), (1, 4)):
        check(source, since, until, "file_diff")


@pytest.mark.parametrize("gone", [1, 2])
def test_rows_that_a_vector_names_and_no_more(tmp_path: Path, gone: int) -> None:
    """A restore brings back one row as well as several."""
    table = VectoredTable(tmp_path / "t", ROWS, feed=True)
    table.delete(lambda rows: pc.less(rows["x"], gone))
    source = open_source("t", str(table.path))
    assert check(source, 0, 1, "file_diff").weights.tolist() == [-1] * gone
    assert check(source, 1, 0, "file_diff").weights.tolist() == [1] * gone


def test_a_file_with_other_deletions_came_and_went(tmp_path: Path) -> None:
    table = VectoredTable(tmp_path / "t", ROWS, by=["p"])
    table.delete(lambda rows: pc.less(rows["x"], 1))
    table.delete(lambda rows: pc.less(rows["x"], 2))
    source = open_source("t", str(table.path))
    for since in range(2):
        result = changed_files(source.snapshot(since), source.snapshot(since + 1))
        assert [file.uri for file in result.went] == [file.uri for file in result.came]
        assert len(result.went) == 1


def test_a_dropped_partition_with_a_deletion_vector(tmp_path: Path) -> None:
    table = VectoredTable(tmp_path / "t", ROWS, by=["p"], feed=True)
    table.delete(lambda rows: pc.less(rows["x"], 3))
    table.drop("p=a")
    result = check(open_source("t", str(table.path)), 1, 2, "file_diff")
    assert result.weights.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("told", "is_foreseen"),
    [
        ({}, True),
        ({}, False),
        ({"size": 700}, True),
        ({"partitionValues": {"p": "a"}}, True),
        ({"extendedFileMetadata": True, "partitionValues": {"p": "a"}}, True),
        ({"extendedFileMetadata": True, "partitionValues": {"p": "a"}}, False),
    ],
)
def test_a_removed_file_of_which_the_log_tells_little(
    tmp_path: Path,
    told: dict[str, object],
    is_foreseen: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """deltalake's reader of the feed refuses such an entry, or panics."""
    table = VectoredTable(tmp_path / "t", ROWS, by=["p"], feed=True)
    table.remove_bare("p=a", **told)
    if not is_foreseen:
        monkeypatch.setattr(change_feed, "_is_complete", lambda commits: True)
    check(open_source("t", str(table.path)), 0, 1, "file_diff")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_wish_to_stop_is_no_failure_of_the_feed(
    tmp_path: Path, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = VectoredTable(tmp_path / "t", ROWS, by=["p"], feed=True)
    table.append(ROWS)

    def stop(*_: object, **__: object) -> None:
        raise error

    source = open_source("t", str(table.path))
    monkeypatch.setattr(type(source.delta), "load_cdf", stop)
    with pytest.raises(error):
        read_changes(source, 0, 1, ["p"])


ONCE = pa.table({"x": pa.array([1, 2], pa.int64())})
NAMES = ("a.parquet", "b.parquet")


def added(name: str, **more: object) -> dict[str, object]:
    return handmade.add(name, 2, 500, **more)


def removed(name: str, **more: object) -> dict[str, object]:
    return handmade.remove(name, size=500, partitionValues={}, extendedFileMetadata=True, **more)


@pytest.mark.parametrize(
    ("entries", "method"),
    [
        ([added("a.parquet")], "file_diff"),
        ([removed("b.parquet")], "file_diff"),
        ([removed("a.parquet"), added("a.parquet")], "file_diff"),
        ([removed("a.parquet", dataChange=False), added("a.parquet")], "file_diff"),
        ([removed("a.parquet"), added("a.parquet", dataChange=False)], "file_diff"),
        ([removed("a.parquet"), added("b.parquet")], "change_feed"),
        ([added("b.parquet"), added("b.parquet")], "file_diff"),
    ],
)
def test_files_that_were_there_or_were_not(
    tmp_path: Path, entries: list[dict[str, object]], method: str
) -> None:
    for name in NAMES:
        handmade.write_file(tmp_path, name, ONCE)
    feed = {CHANGE_FEED: "true"}
    path = handmade.create(tmp_path, {"x": "long"}, added("a.parquet"), configuration=feed)
    handmade.commit(tmp_path, 1, *entries)
    check(open_source("t", path), 0, 1, method)


def test_what_operations_write_is_not_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, ONCE, configuration={CHANGE_FEED: "true"})
    write_deltalake(path, ONCE, mode="append")
    DeltaTable(path).delete("x = 1")
    DeltaTable(path).restore(1)
    write_deltalake(path, ONCE, mode="overwrite")
    monkeypatch.setattr(changes, "_is_plain", None)
    check(open_source("t", path), 0, 4, "change_feed")


def test_a_transaction_that_adds_a_file_again(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, ONCE, configuration={CHANGE_FEED: "true"})
    delta = DeltaTable(path)
    (file,) = pa.table(delta.get_add_actions()).to_pylist()
    again = AddAction(file["path"], file["size_bytes"], {}, 0, True, '{"numRecords": 2}')
    delta.create_write_transaction([again], mode="append", schema=delta.schema())
    assert check(open_source("t", path), 0, 1, "file_diff").rows == 0


@pytest.mark.parametrize("damage", [b"\xff\xfe", b'{"add": {', b"[]", b"", b"\n"])
def test_a_damaged_entry_behind_a_checkpoint_is_told(tmp_path: Path, damage: bytes) -> None:
    """deltalake does not open it, having a checkpoint."""
    path = str(tmp_path / "t")
    write_deltalake(path, ONCE, configuration={CHANGE_FEED: "true"})
    write_deltalake(path, ONCE, mode="append")
    DeltaTable(path).create_checkpoint()
    handmade.entry(path, 1).write_bytes(damage)
    with pytest.raises(TableError, match="log entry of version 1 of table `t` is damaged"):
        read_changes(open_source("t", path), 0, 1, ["x"])
