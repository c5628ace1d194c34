"""Changes between versions, over realistic histories."""

from __future__ import annotations

import math
import shutil
import struct
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from impctl.errors import (
    HistoryGoneError,
    LogDiffersError,
    SchemaChangedError,
    TableError,
    TableRecreatedError,
)
from impctl.tables import changes as changes_module
from impctl.tables.changes import Changes, changed_files, netted, read_changes, read_feed_files
from impctl.tables.rows import read_rows
from impctl.tables.snapshot import CHANGE_FEED
from impctl.tables.source import DeltaSource, LogEntry, open_source
from impctl.tables.write.maintenance import create_laid_out_table
from tests.support.random_cases import FEW
from tests.tables import handmade
from tests.tables.handmade import (
    VectoredTable,
    bag,
    check,
    fixture_table,
    weighted_bag,
    write_table,
)

FEED = {CHANGE_FEED: "true"}
ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", None], "price": [1.5, 2.5, 3.5]})


def make(path: Path, data: pa.Table = ROWS, **options: object) -> str:
    write_deltalake(str(path), data, **options)  # type: ignore[arg-type]  # passed through
    return str(path)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A table with a change feed."""
    return make(tmp_path / "t", configuration=FEED)


@pytest.mark.slow
def test_feed_of_every_kind_of_commit(path: str) -> None:
    write_deltalake(path, ROWS, mode="append")
    DeltaTable(path).delete("id = 2")
    DeltaTable(path).update(updates={"price": "price + 1"}, predicate="id = 1")
    write_deltalake(path, ROWS.slice(1), mode="overwrite")
    DeltaTable(path).optimize.compact()
    DeltaTable(path).restore(1)
    DeltaTable(path).delete()
    source = open_source("t", path)
    for since, until in [*pairwise(range(source.version + 1)), (0, 6), (1, 5), (2, 4)]:
        check(source, since, until, "change_feed")


def test_update_has_old_and_new_rows(path: str) -> None:
    DeltaTable(path).update(updates={"price": "9.0"}, predicate="id = 1")
    changes = read_changes(open_source("t", path), 0, 1, ["PRICE"])
    rows = zip(changes.table.column("price").to_pylist(), changes.weights.tolist(), strict=True)
    assert sorted(rows) == [(1.5, -1), (9.0, 1)]


def test_optimize_alone_changes_nothing(path: str) -> None:
    write_deltalake(path, ROWS, mode="append")
    DeltaTable(path).optimize.compact()
    assert read_changes(open_source("t", path), 1, 2, ["id"]).rows == 0


def test_feed_rows_are_in_commit_order(path: str) -> None:
    write_deltalake(path, ROWS, mode="append")
    DeltaTable(path).delete("id = 3")
    changes = read_changes(open_source("t", path), 0, 2, ["id"])
    assert changes.ends == {1: 3, 2: 5}
    assert changes.weights.tolist() == [1, 1, 1, -1, -1]


def test_rows_count_without_columns(path: str) -> None:
    write_deltalake(path, ROWS, mode="append")
    DeltaTable(path).delete("id = 3")
    source = open_source("t", path)
    assert sorted(read_changes(source, 0, 2, []).weights.tolist()) == [-1, -1, 1, 1, 1]
    assert read_changes(source, 0, 2, []).table.num_rows == 5
    assert read_rows(source.snapshot(), []).num_rows == 4


def test_later_commits_are_ignored(path: str) -> None:
    source = open_source("t", path)
    write_deltalake(path, ROWS, mode="append")
    assert source.snapshot().rows == 3
    assert read_changes(source, 0, source.version, ["id"]).method == "none"


@pytest.mark.slow
def test_without_a_feed_files_are_compared(tmp_path: Path) -> None:
    path = make(tmp_path / "t")
    DeltaTable(path).delete("id = 2")
    write_deltalake(path, ROWS, mode="append")
    DeltaTable(path).optimize.compact()
    source = open_source("t", path)
    for since in range(2):
        check(source, since, 3, "file_diff")
    assert check(source, 2, 3, "none").rows == 0, "OPTIMIZE only moves rows"
    check(source, 3, 1, "file_diff")


def test_feed_enabled_for_part_of_range(tmp_path: Path) -> None:
    path = make(tmp_path / "t")
    for switch in ("true", "false", "true"):
        write_deltalake(path, ROWS, mode="append")
        DeltaTable(path).delete("id = 2")
        DeltaTable(path).alter.set_table_properties({CHANGE_FEED: switch})
    write_deltalake(path, ROWS, mode="append")
    source = open_source("t", path)
    # Versions 3 and 9 switch the feed on, version 6 switches it off.
    for since, until in ((3, 4), (3, 5), (9, 10)):
        check(source, since, until, "change_feed")
    compared = [(0, 1), (2, 4), (3, 6), (5, 6), (5, 7), (6, 9), (8, 10), (3, 9), (3, 10), (0, 10)]
    for since, until in compared:
        check(source, since, until, "file_diff")


def test_missing_change_files(path: str, tmp_path: Path) -> None:
    DeltaTable(path).delete("id = 2")
    shutil.rmtree(tmp_path / "t" / "_change_data")
    check(open_source("t", path), 0, 1, "file_diff")


def test_vacuumed_history_is_reported(path: str, tmp_path: Path) -> None:
    DeltaTable(path).delete("id = 2")
    write_deltalake(path, ROWS, mode="append")
    DeltaTable(path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    shutil.rmtree(tmp_path / "t" / "_change_data", ignore_errors=True)
    source = open_source("t", path)
    with pytest.raises(HistoryGoneError) as caught:
        read_changes(source, 0, 2, ["id"])
    assert "Version 0 of table `t` can no longer be read" in caught.value.message
    for word in ("delta.deletedFileRetentionDuration", "impctl capture"):
        assert word in str(caught.value.hint)
    assert caught.value.exit_code == 7


def test_cleaned_log_is_reported(path: str) -> None:
    for _ in range(2):
        write_deltalake(path, ROWS, mode="append")
    DeltaTable(path).create_checkpoint()
    for version in (0, 1):
        handmade.entry(path, version).unlink()
    source = open_source("t", path)
    message = "Version 0 of table `t` is no longer in its log; the oldest available version is 2"
    with pytest.raises(HistoryGoneError, match=message) as caught:
        read_changes(source, 0, 2, ["id"])
    assert "delta.logRetentionDuration" in str(caught.value.hint)
    # The commit of version 2 still exists, so its feed can be read.
    assert read_changes(source, 1, 2, ["id"]).rows == 3


def test_recreated_table(path: str, tmp_path: Path) -> None:
    write_deltalake(path, ROWS, mode="append")
    old = open_source("t", path)
    shutil.rmtree(path)
    make(tmp_path / "t", configuration=FEED)
    new = open_source("t", path)
    with pytest.raises(TableRecreatedError, match="at version 0, which is older than version 1"):
        read_changes(new, 1, 0, ["id"])
    for _ in range(2):
        write_deltalake(path, ROWS, mode="append")
    new = open_source("t", path)
    with pytest.raises(TableRecreatedError, match="created again"):
        read_changes(new, 1, 2, ["id"], table_id=old.table_id)
    assert read_changes(new, 1, 2, ["id"], table_id=new.table_id).rows == 3


def test_unrelated_schema_changes_are_accepted(path: str) -> None:
    extra = ROWS.append_column("extra", pa.array([1, 2, 3]))
    write_deltalake(path, extra, mode="append", schema_mode="merge")
    source = open_source("t", path)
    changes = read_changes(source, 0, 1, ["id", "price"])
    assert sorted(changes.table.column("id").to_pylist()) == [1, 2, 3]
    with pytest.raises(SchemaChangedError, match="`extra` of table `t` between versions 0 and 1"):
        read_changes(source, 0, 1, ["id", "extra"])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (ROWS.rename_columns(["id", "label", "price"]), "no column `name`"),
        (ROWS.drop_columns(["name"]), "no column `name`"),
        (ROWS.set_column(1, "name", pa.array([1, 2, 3])), "from `string` to `bigint`"),
    ],
)
def test_changed_column_is_named(path: str, change: pa.Table, problem: str) -> None:
    write_deltalake(path, change, mode="overwrite", schema_mode="overwrite")
    source = open_source("t", path)
    with pytest.raises(SchemaChangedError, match=problem):
        read_changes(source, 0, 1, ["id", "name"])
    assert read_changes(source, 0, 1, ["id", "price"]).method == "change_feed"


@pytest.mark.parametrize("difference", [-1, 1])
def test_row_counts_contradicting_the_log_fail(path: str, difference: int) -> None:
    DeltaTable(path).delete("id = 2")
    source = open_source("t", path)
    mark = source.snapshot(0).mark
    assert read_changes(source, 0, 1, ["id"], stored_mark=mark).rows == 1
    assert mark.rows is not None
    other = replace(mark, rows=mark.rows + difference)
    with pytest.raises(LogDiffersError, match="contradicts itself"):
        read_changes(source, 0, 1, ["id"], stored_mark=other)


def test_widened_column_counts_as_retyped(tmp_path: Path) -> None:
    path = make(tmp_path / "t", pa.table({"id": pa.array([1], pa.int32())}), configuration=FEED)
    wide = pa.table({"id": pa.array([2], pa.int64())})
    write_deltalake(path, wide, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(SchemaChangedError, match="from `int` to `bigint`"):
        read_changes(open_source("t", path), 0, 1, ["id"])


def test_restored_schema_is_compared_by_files(path: str) -> None:
    other = ROWS.set_column(0, "id", pa.array(["x", "y", "z"]))
    write_deltalake(path, other, mode="overwrite", schema_mode="overwrite")
    write_deltalake(path, ROWS.slice(1), mode="overwrite", schema_mode="overwrite")
    check(open_source("t", path), 0, 2, "file_diff")


def test_feed_and_files_give_same_type(tmp_path: Path) -> None:
    columns = {
        "s": ["x"],
        "b": [b"x"],
        "t": pa.array([1], pa.timestamp("us", tz="UTC")),
        "n": pa.array([1], pa.timestamp("us")),
        "m": pa.array(["1.50"]).cast(pa.decimal128(10, 2)),
        "f": pa.array([1.5], pa.float32()),
    }
    data, schemas = pa.table(columns), []
    for name, configuration in (("feed", FEED), ("files", None)):
        path = make(tmp_path / name, data, configuration=configuration)
        write_deltalake(path, data, mode="append")
        schemas.append(read_changes(open_source("t", path), 0, 1, data.column_names).table.schema)
    assert schemas[0] == schemas[1]
    assert schemas[0].field("s").type == pa.large_string()


def test_column_named_like_feed_column(tmp_path: Path) -> None:
    path = make(tmp_path / "t", pa.table({"id": [1], "_commit_version": [5]}), configuration=FEED)
    DeltaTable(path).update(updates={"id": "2"})
    check(open_source("t", path), 0, 1, "file_diff")


def test_table_replaced_in_place(tmp_path: Path) -> None:
    handmade.create(tmp_path, {"id": "long"}, table_id="one")
    other = handmade.metadata([handmade.field("id", "long")], table_id="two")
    handmade.commit(tmp_path, 1, handmade.protocol(), other)
    with pytest.raises(TableRecreatedError, match="created again"):
        read_changes(open_source("t", str(tmp_path)), 0, 1, ["id"])


def test_mapped_table_is_compared_by_files() -> None:
    source = open_source("t", str(fixture_table("table_with_partitioning_mapping")))
    assert source.snapshot().column_mapping == {"newid": "id", "description": "description"}
    check(source, 3, 4, "file_diff")


def test_deletion_vectors_give_deleted_rows() -> None:
    source = open_source("t", str(fixture_table("table-with-dv-small")))
    for since, until, weights in ((0, 1, [-1, -1]), (1, 0, [1, 1])):
        changes = read_changes(source, since, until, ["value"])
        assert changes.table.column("value").to_pylist() == [0, 9]
        assert changes.weights.tolist() == weights


@pytest.mark.parametrize("by", [(), ("description",)])
def test_mapped_table_with_feed_is_compared_by_files(tmp_path: Path, by: tuple[str, ...]) -> None:
    names = {"id": "col-1", "description": "col-2"}
    keys = "delta.columnMapping.id", "delta.columnMapping.physicalName"
    fields = [
        handmade.field(name, kind, **dict(zip(keys, (column_id, physical), strict=True)))
        for column_id, name, physical, kind in (
            (1, "id", "col-1", "long"),
            (2, "description", "col-2", "string"),
        )
    ]
    configuration = {**FEED, "delta.columnMapping.mode": "name"}
    table_metadata = handmade.metadata(fields, partition_columns=by, configuration=configuration)
    features = handmade.protocol("columnMapping", writer=["changeDataFeed"])
    handmade.commit(tmp_path, 0, features, table_metadata)
    rows = pa.table({"col-1": [1, 2], "col-2": ["x", "x"]}).drop_columns([names[n] for n in by])
    values = {"partitionValues": {names[name]: "x" for name in by}}
    handmade.commit(tmp_path, 1, handmade.added(tmp_path, "one", rows, values))
    result = check(open_source("t", str(tmp_path)), 0, 1, "file_diff")
    assert result.table.column("id").to_pylist() == [1, 2]


def test_feed_is_read_despite_unsupported_feature(tmp_path: Path) -> None:
    fields = [handmade.field("id", "long"), handmade.field("p", "string")]
    first = handmade.metadata(fields, partition_columns=["p"], configuration=FEED)
    features = handmade.protocol("typeWidening", writer=["changeDataFeed"])
    handmade.commit(tmp_path, 0, features, first)
    handmade.write_file(tmp_path, "one", pa.table({"id": [1, 2]}))
    handmade.commit(tmp_path, 1, handmade.add("one", 2, partitionValues={"p": "x"}))
    check(open_source("t", str(tmp_path)), 0, 1, "change_feed")


def test_same_version_does_not_read_the_feed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source("t", make(tmp_path / "t", configuration=FEED))
    monkeypatch.setattr(changes_module, "read_feed_files", None)
    result = read_changes(source, 0, 0, ["price", "id"])
    assert (result.method, result.rows) == ("none", 0)
    assert result.table.column_names == ["price", "id"]


def test_update_with_equal_images_uses_file_diff(tmp_path: Path) -> None:
    """delta-rs drops an old image that equals another row's new one; row counts still add up."""
    rows = pa.table({"g": [1, 1, 1, 2, 2, 2], "x": [5, 5, 6, 15, 16, 16]})
    path = make(tmp_path / "t", rows, configuration=FEED)
    DeltaTable(path).update(updates={"x": "x + 1"})
    changes = read_changes(open_source("t", path), 0, 1, ("g", "x"))
    assert changes.method == "file_diff"
    signed = {(1, 5): -2, (1, 6): 1, (1, 7): 1, (2, 15): -1, (2, 16): -1, (2, 17): 2}
    expected = {repr(row): weight for row, weight in signed.items()}
    assert weighted_bag(changes.table, changes.weights) == expected


PARTITIONED_ROWS = pa.table({"p": ["a"] * 5 + ["b"] * 3, "x": pa.array(range(8), pa.int64())})


@pytest.mark.parametrize("by", [(), ("p",)])
def test_files_with_added_or_removed_vectors(tmp_path: Path, by: tuple[str, ...]) -> None:
    table = VectoredTable(tmp_path / "t", PARTITIONED_ROWS, by=by, feed=True)
    table.delete(lambda rows: pc.less(rows["x"], 3))
    table.delete(lambda rows: pc.less(rows["x"], 4))
    table.delete(lambda rows: pc.equal(rows["p"], "a"))
    table.append(PARTITIONED_ROWS)
    source = open_source("t", str(table.path))
    check(source, 3, 4, "change_feed")
    for since, until in ((0, 1), (1, 2), (2, 3), (0, 3), (1, 4)):
        check(source, since, until, "file_diff")


@pytest.mark.parametrize("deleted", [1, 2])
def test_only_rows_in_vector_are_changed(tmp_path: Path, deleted: int) -> None:
    """Restoring inserts one row or several."""
    table = VectoredTable(tmp_path / "t", PARTITIONED_ROWS, feed=True)
    table.delete(lambda rows: pc.less(rows["x"], deleted))
    source = open_source("t", str(table.path))
    assert check(source, 0, 1, "file_diff").weights.tolist() == [-1] * deleted
    assert check(source, 1, 0, "file_diff").weights.tolist() == [1] * deleted


def test_new_deletions_remove_and_add_the_file(tmp_path: Path) -> None:
    table = VectoredTable(tmp_path / "t", PARTITIONED_ROWS, by=["p"])
    table.delete(lambda rows: pc.less(rows["x"], 1))
    table.delete(lambda rows: pc.less(rows["x"], 2))
    source = open_source("t", str(table.path))
    for since in range(2):
        (removed,), (added,) = changed_files(source.snapshot(since), source.snapshot(since + 1))
        assert removed.uri == added.uri


def test_dropped_partition_with_deletion_vector(tmp_path: Path) -> None:
    table = VectoredTable(tmp_path / "t", PARTITIONED_ROWS, by=["p"], feed=True)
    table.delete(lambda rows: pc.less(rows["x"], 3))
    table.drop("p=a")
    assert check(open_source("t", str(table.path)), 1, 2, "file_diff").weights.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("known", "method"),
    [
        ({}, "file_diff"),
        ({"size": 700}, "file_diff"),
        ({"partitionValues": {"p": "a"}}, "change_feed"),
        ({"extendedFileMetadata": True, "partitionValues": {"p": "a"}}, "change_feed"),
    ],
)
def test_removed_file_with_little_metadata(
    tmp_path: Path, known: dict[str, object], method: str
) -> None:
    """Without partition values the feed cannot be used."""
    table = VectoredTable(tmp_path / "t", PARTITIONED_ROWS, by=["p"], feed=True)
    table.remove_bare("p=a", **known)
    check(open_source("t", str(table.path)), 0, 1, method)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupt_is_not_a_feed_failure(
    tmp_path: Path, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = VectoredTable(tmp_path / "t", PARTITIONED_ROWS, by=["p"], feed=True)
    table.append(PARTITIONED_ROWS)

    def stop(*_: object, **__: object) -> None:
        raise error

    source = open_source("t", str(table.path))
    monkeypatch.setattr(changes_module.FileReader, "read_live", stop)
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
def test_files_added_or_removed_twice(
    tmp_path: Path, entries: list[dict[str, object]], method: str
) -> None:
    for name in NAMES:
        handmade.write_file(tmp_path, name, ONCE)
    feed = {CHANGE_FEED: "true"}
    path = handmade.create(tmp_path, {"x": "long"}, added("a.parquet"), configuration=feed)
    handmade.commit(tmp_path, 1, *entries)
    check(open_source("t", path), 0, 1, method)


def test_usual_commits_are_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, ONCE, configuration={CHANGE_FEED: "true"})
    write_deltalake(path, ONCE, mode="append")
    DeltaTable(path).delete("x = 1")
    DeltaTable(path).restore(1)
    write_deltalake(path, ONCE, mode="overwrite")
    monkeypatch.setattr(changes_module, "_is_plain", None)
    check(open_source("t", path), 0, 4, "change_feed")


def test_file_added_again_by_transaction(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, ONCE, configuration={CHANGE_FEED: "true"})
    delta = DeltaTable(path)
    (file,) = pa.table(delta.get_add_actions()).to_pylist()
    again = AddAction(file["path"], file["size_bytes"], {}, 0, True, '{"numRecords": 2}')
    delta.create_write_transaction([again], mode="append", schema=delta.schema())
    assert check(open_source("t", path), 0, 1, "file_diff").rows == 0


@pytest.mark.parametrize("damage", [b"\xff\xfe", b'{"add": {', b"[]", b"", b"\n"])
def test_damaged_entry_before_checkpoint_is_reported(tmp_path: Path, damage: bytes) -> None:
    """deltalake reads the checkpoint instead of this entry."""
    path = str(tmp_path / "t")
    write_deltalake(path, ONCE, configuration={CHANGE_FEED: "true"})
    write_deltalake(path, ONCE, mode="append")
    DeltaTable(path).create_checkpoint()
    handmade.entry(path, 1).write_bytes(damage)
    with pytest.raises(TableError, match="log entry of version 1 of table `t` is damaged"):
        read_changes(open_source("t", path), 0, 1, ["x"])


INT96 = {"use_deprecated_int96_timestamps": True}


def table_with_feed(
    path: Path, columns: dict[str, str], data: pa.Table, **options: bool
) -> DeltaSource:
    """A table with a feed, with these rows added in version 1."""
    handmade.create(path, columns, configuration=FEED)
    handmade.commit(path, 1, handmade.added(path, "a.parquet", data, **options))
    return open_source("t", str(path))


def test_timestamp_partitions_need_time_zones(tmp_path: Path) -> None:
    columns = {"v": "long", "at": "timestamp"}
    handmade.create(tmp_path, columns, partition_columns=["at"], configuration=FEED)
    zoned = ["2024-01-01T02:00:00+02:00", "2024-01-01T00:00:00.000000Z", None]
    for version, text in enumerate([*zoned, "2024-01-01 00:00:00"], start=1):
        rows, values = pa.table({"v": [version]}), {"partitionValues": {"at": text}}
        file = handmade.added(tmp_path, f"{version}.parquet", rows, values)
        handmade.commit(tmp_path, version, file)
    source = open_source("t", str(tmp_path))
    before = source.snapshot(3)
    midnight = datetime(2024, 1, 1, tzinfo=UTC)
    assert set(read_rows(before, ["at"]).column("at").to_pylist()) == {midnight, None}
    assert read_changes(source, 0, 3, ["at", "v"]).rows == 3
    with pytest.raises(TableError, match="`at` of table `t` cannot be read: .* have no time zone"):
        read_changes(source, 3, 4, ["at"])
    assert read_changes(source, 3, 4, ["v"]).rows == 1


def test_int96_timestamps_are_read_through_the_feed(tmp_path: Path) -> None:
    last_day = datetime(9999, 12, 31, tzinfo=UTC)
    data = pa.table({"id": [1], "at": pa.array([last_day], pa.timestamp("us", tz="UTC"))})
    source = table_with_feed(tmp_path, {"id": "long", "at": "timestamp"}, data, **INT96)
    changes = read_changes(source, 0, 1, ["at"])
    assert (changes.method, changes.table.column("at").to_pylist()) == ("change_feed", [last_day])
    assert read_changes(source, 0, 1, ["id"]).method == "change_feed"


DAYS = {day: pa.array([day]).cast(pa.date32()) for day in ("1582-10-15", "1582-10-14")}
BEFORE_1900 = pa.array([datetime(1899, 12, 31, tzinfo=UTC)], pa.timestamp("us", tz="UTC"))


@pytest.mark.parametrize(
    ("version", "values", "options", "is_read"),
    [
        ("2.4.8", DAYS["1582-10-15"], {}, True),
        ("2.4.8", DAYS["1582-10-14"], {}, False),
        ("2.4.8", BEFORE_1900, {}, False),
        ("3.0.3", BEFORE_1900, INT96, False),
        ("3.0.3", BEFORE_1900, {}, True),
        ("3.1.0", BEFORE_1900, INT96, True),
    ],
)
def test_old_dates_of_earlier_sparks_are_refused(
    tmp_path: Path, version: str, values: pa.Array, options: dict[str, bool], is_read: bool
) -> None:
    mark = {"org.apache.spark.version": version}
    kind = "date" if pa.types.is_date(values.type) else "timestamp"
    data = pa.table({"v": values}).replace_schema_metadata(mark)
    source = table_with_feed(tmp_path, {"v": kind}, data, **options)
    if is_read:
        result = check(source, 0, 1, "change_feed")
        assert result.table.column("v").to_pylist() == values.to_pylist()
    else:
        with pytest.raises(TableError, match="`v` has old dates"):
            read_changes(source, 0, 1, ["v"])


@pytest.mark.parametrize("partitions", [[], ["p"]])
def test_column_in_other_case_is_read(tmp_path: Path, partitions: list[str]) -> None:
    columns = {"Id": "long", "p": "string"}
    handmade.create(tmp_path, columns, partition_columns=partitions, configuration=FEED)
    stored = {"id": [1, 2]} if partitions else {"id": [1, 2], "P": ["a", "a"]}
    values = {"partitionValues": {"p": "a"} if partitions else {}}
    handmade.commit(tmp_path, 1, handmade.added(tmp_path, "a.parquet", pa.table(stored), values))
    source = open_source("t", str(tmp_path))
    result = check(source, 0, 1, "change_feed")
    assert result.table.column("Id").to_pylist() == [1, 2]
    assert result.table.column("p").to_pylist() == ["a", "a"]


def test_partition_beyond_year_9999_is_refused(tmp_path: Path) -> None:
    days = pa.array([2_932_897 + 5, 3], pa.date32())
    snapshot = write_table(tmp_path / "t", pa.table({"d": days, "x": [1, 2]}), partition_by=["d"])
    message = "`d` has a value that impctl cannot read as `date`: 10000-01-06"
    with pytest.raises(TableError, match=message):
        read_rows(snapshot, ["d"])
    assert read_rows(snapshot, ["x"]).num_rows == 2


@pytest.mark.parametrize("number", [pa.float64(), pa.float32()])
def test_feed_with_nan_is_compared_by_files(tmp_path: Path, number: pa.DataType) -> None:
    """Footers ignore NaN, and deltalake copies the only value in them to all rows."""
    rows = pa.table({"x": [1, 2, 3], "d": pa.array([3.0, math.nan, 3.0], number)})
    create_laid_out_table(str(tmp_path / "t"), [rows, rows.slice(0, 1)])
    DeltaTable(str(tmp_path / "t")).delete("d > 2 AND x >= 2")
    source = open_source("t", str(tmp_path / "t"))
    changes = read_changes(source, 0, 1, ["x", "d"])
    assert changes.method == "file_diff"
    columns = (changes.table.column(name).to_pylist() for name in ("x", "d"))
    assert len([(x, d) for x, d in zip(*columns, strict=True) if math.isnan(d)]) == 1
    assert int(changes.weights.sum()) == -2
    assert read_changes(source, 0, 1, ["x"]).method == "change_feed"


def test_feed_of_partitioned_table_keeps_nan(tmp_path: Path) -> None:
    rows = pa.table({"p": [1, 1, 1], "d": [3.0, math.nan, 3.0]})
    write_deltalake(tmp_path / "t", rows, partition_by=["p"], configuration=FEED)
    write_deltalake(tmp_path / "t", rows, mode="append")
    changes = read_changes(open_source("t", str(tmp_path / "t")), 0, 1, ["p", "d"])
    assert sorted(map(repr, changes.table.column("d").to_pylist())) == ["3.0", "3.0", "nan"]


PLAIN_KEYS = ["001", None, "", "1e3"]
ODD_KEYS = ["A/A", None, "x y", "é%", "x=y"]


@pytest.mark.parametrize(
    ("keys", "configuration", "method"),
    [
        (PLAIN_KEYS, FEED, "change_feed"),
        (PLAIN_KEYS, None, "file_diff"),
        (ODD_KEYS, FEED, "change_feed"),
        (ODD_KEYS, None, "file_diff"),
    ],
)
def test_partition_values_come_from_the_log(
    tmp_path: Path, keys: list[str | None], configuration: dict[str, str] | None, method: str
) -> None:
    data = pa.table({"k": keys, "v": list(range(len(keys)))})
    path = make(tmp_path / "t", data, partition_by=["k"], configuration=configuration)
    write_deltalake(path, data, mode="append")
    DeltaTable(path).delete("v > 1")
    source = open_source("t", path)
    for since in range(2):
        check(source, since, 2, method)
    # By the protocol, an empty partition value is NULL.
    expected = {key or None for key in keys}
    assert set(read_changes(source, 0, 1, ["k", "v"]).table.column("k").to_pylist()) == expected
    assert set(read_rows(source.snapshot(1), ["k"]).column("k").to_pylist()) == expected


@pytest.mark.parametrize("partitionings", [(["g"], []), ([], ["g"]), ([], ["g"], [])])
def test_a_column_that_was_or_became_a_partition(
    tmp_path: Path, partitionings: tuple[list[str], ...]
) -> None:
    """Some files have its values in the log, others in the file."""
    data = pa.table({"g": ["a", "b"], "v": [1, 2]})
    path = make(tmp_path / "t", data, partition_by=partitionings[0], configuration=FEED)
    again = {"mode": "overwrite", "schema_mode": "overwrite"}
    for by in partitionings[1:]:
        write_deltalake(path, data.slice(1), partition_by=by, **again)
    source = open_source("t", path)
    assert list(source.snapshot().partition_columns) == partitionings[-1]
    check(source, 0, len(partitionings) - 1, "file_diff")


def test_typed_partition_values(tmp_path: Path) -> None:
    columns = {
        "d": pa.array([0, 19000], pa.int32()).cast(pa.date32()),
        "t": pa.array([1, -1_000_001], pa.timestamp("us")),
        "m": pa.array(["1.50", "7.25"]).cast(pa.decimal128(10, 2)),
        "b": [True, False],
        "f": [1.5, float("nan")],
        "v": [1, 2],
    }
    data = pa.table(columns)
    path = make(tmp_path / "t", data, partition_by=["d", "t", "m", "b", "f"], configuration=FEED)
    write_deltalake(path, data, mode="append")
    source = open_source("t", path)
    assert bag(read_rows(source.snapshot(0), data.column_names)) == bag(data)
    check(source, 0, 1, "change_feed")


PRICED_ROWS = pa.table({"id": [1, 2, 3], "p": ["x", "y", "y"], "price": [1.5, None, float("nan")]})


def history(path: Path, **options: object) -> DeltaSource:
    location = make(path, PRICED_ROWS, configuration=FEED, **options)
    write_deltalake(location, PRICED_ROWS, mode="append")
    DeltaTable(location).update(updates={"price": "9.0"}, predicate="id = 1")
    DeltaTable(location).delete("id = 2")
    DeltaTable(location).optimize.compact()
    DeltaTable(location).restore(1)
    write_deltalake(location, PRICED_ROWS.slice(1), mode="overwrite")
    return open_source("t", location)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> DeltaSource:
    """A table with that history, for tests that only read it."""
    return history(tmp_path_factory.mktemp("fed") / "t")


def read(source: DeltaSource, since: int, until: int, columns: list[str]) -> Changes | None:
    entries = source.entries(since, until)
    assert entries is not None
    return read_feed_files(entries, source.snapshot(until), columns)


@pytest.mark.slow
def test_same_rows_as_deltalakes_reader(source: DeltaSource) -> None:
    for since in range(source.version):
        for until in range(since + 1, source.version + 1):
            result = read(source, since, until, ["id", "price"])
            feed = pa.table(source.delta.load_cdf(starting_version=since + 1, ending_version=until))
            is_inserted = pc.is_in(
                feed.column("_change_type").cast(pa.string()),
                value_set=pa.array(["insert", "update_postimage"]),
            )
            weights = is_inserted.to_numpy().astype(np.int64) * 2 - 1
            expected = weighted_bag(feed.select(["id", "price"]), weights)
            assert weighted_bag(result.table, result.weights) == expected
            expected_counts = Counter(feed.column("_commit_version").to_pylist())
            ends = [0, *result.ends.values()]
            counts = {
                v: end - start for v, (start, end) in zip(result.ends, pairwise(ends), strict=True)
            }
            assert {version: count for version, count in counts.items() if count} == expected_counts


def test_rows_without_columns_are_counted(source: DeltaSource) -> None:
    result = read(source, 0, 1, [])
    assert (result.table.num_rows, result.weights.tolist()) == (3, [1, 1, 1])


@pytest.mark.slow
def test_partition_columns_come_from_the_log(tmp_path: Path) -> None:
    source = history(tmp_path / "t", partition_by=["p"])
    result = read(source, 0, 1, ["id", "p"])
    assert result is not None
    rows = zip(*(column.to_pylist() for column in result.table.columns), strict=True)
    assert sorted(rows) == [(1, "x"), (2, "y"), (3, "y")]


def test_missing_file_is_not_read(source: DeltaSource, tmp_path: Path) -> None:
    source = open_source("t", str(shutil.copytree(source.path, tmp_path / "t")))
    for file in (tmp_path / "t").rglob("*.parquet"):
        file.unlink()
    assert read(source, 0, 1, ["id"]) is None


@pytest.mark.parametrize("name", ["add", "remove"])
def test_vectors_without_change_data_are_not_read(source: DeltaSource, name: str) -> None:
    path = next(Path(source.path).glob("*.parquet")).name
    text = f'{{"{name}": {{"path": "{path}", "dataChange": true, "deletionVector": {{}}}}}}'
    assert read_feed_files([LogEntry("t", 1, text)], source.snapshot(), ["id"]) is None


def test_unknown_change_type_is_not_read(source: DeltaSource, tmp_path: Path) -> None:
    source = open_source("t", str(shutil.copytree(source.path, tmp_path / "t")))
    pq.write_table(
        PRICED_ROWS.append_column("_change_type", pa.array(["insert", "upsert", "insert"])),
        tmp_path / "t" / "change.parquet",
    )
    text = '{"cdc": {"path": "change.parquet", "dataChange": false}}'
    assert read_feed_files([LogEntry("t", 1, text)], source.snapshot(), ["id"]) is None


ODD = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0001))[0]
VALUES = st.sampled_from([0.0, -0.0, 1.5, math.nan, ODD, None])
WEIGHTS = st.sampled_from([-2, -1, 1, 2])
RANDOM_ROWS = st.lists(
    st.tuples(st.sampled_from([1, 2, None]), VALUES, st.sampled_from(["", "a", None]), WEIGHTS),
    max_size=30,
)


def as_bag(table: pa.Table, weights: np.ndarray) -> Counter[tuple[object, ...]]:
    """Non-zero weights by row; doubles are compared by their bits."""
    counts: Counter[tuple[object, ...]] = Counter()
    for row, weight in zip(table.to_pylist(), weights.tolist(), strict=True):
        key = tuple(struct.pack("<d", v) if isinstance(v, float) else v for v in row.values())
        counts[key] += weight
    return Counter({row: weight for row, weight in counts.items() if weight})


@FEW
@given(RANDOM_ROWS)
def test_netting_keeps_sums_of_weights(
    rows: list[tuple[int | None, float | None, str | None, int]],
) -> None:
    schema = pa.schema([("i", pa.int64()), ("d", pa.float64()), ("s", pa.string())])
    *columns, signed = zip(*rows, strict=True) if rows else ((), (), (), ())
    table = pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )
    weights = np.array(signed, dtype=np.int64)
    left, result = netted(table, weights)
    assert left.schema == schema
    bag = as_bag(table, weights)
    assert as_bag(left, result) == bag
    if len(weights) and (weights > 0).any() and (weights < 0).any():
        assert len(left) == len(bag)


@pytest.mark.parametrize(("weights", "total"), [([1, 1, -1], 1), ([-1, -1, 1], -1), ([1, -1], 0)])
def test_net_of_rows_without_columns(weights: list[int], total: int) -> None:
    table = pa.table({"x": pa.nulls(len(weights))}).select([])
    left, result = netted(table, np.array(weights, dtype=np.int64))
    assert (int(result.sum()), len(result), len(left)) == (total, abs(total), abs(total))
