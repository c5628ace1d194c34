"""Changes between versions, on histories that users really have."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.errors import HistoryGoneError, LogDiffersError, SchemaChangedError, TableRecreatedError
from impctl.tables import changes as changes_module
from impctl.tables.changes import files_mark, read_changes
from impctl.tables.rows import read_rows
from impctl.tables.snapshot import CHANGE_FEED
from impctl.tables.source import open_source
from tests.tables import handmade
from tests.tables.bags import check, fixture_table

FEED = {CHANGE_FEED: "true"}
ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", None], "price": [1.5, 2.5, 3.5]})


def make(path: Path, data: pa.Table = ROWS, **options: object) -> str:
    write_deltalake(str(path), data, **options)  # type: ignore[arg-type]  # passed through
    return str(path)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A table with a change feed."""
    return make(tmp_path / "t", configuration=FEED)


def test_same_version_reads_nothing(tmp_path: Path) -> None:
    source = open_source("t", make(tmp_path / "t", configuration=FEED))
    changes = read_changes(source, 0, 0, ["price", "id"])
    assert (changes.method, changes.rows, changes.table.column_names) == (
        "none",
        0,
        ["price", "id"],
    )


@pytest.mark.slow
def test_every_kind_of_commit_through_the_feed(path: str) -> None:
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


def test_images_of_an_update_cancel_or_not(path: str) -> None:
    DeltaTable(path).update(updates={"price": "9.0"}, predicate="id = 1")
    changes = read_changes(open_source("t", path), 0, 1, ["PRICE"])
    rows = zip(changes.table.column("price").to_pylist(), changes.weights.tolist(), strict=True)
    assert sorted(rows) == [(1.5, -1), (9.0, 1)]


def test_optimize_alone_changes_nothing(path: str) -> None:
    write_deltalake(path, ROWS, mode="append")
    DeltaTable(path).optimize.compact()
    source = open_source("t", path)
    assert read_changes(source, 1, 2, ["id"]).rows == 0


def test_commit_versions_where_asked_for(path: str) -> None:
    write_deltalake(path, ROWS, mode="append")
    DeltaTable(path).delete("id = 3")
    changes = read_changes(open_source("t", path), 0, 2, ["id"], with_versions=True)
    assert sorted(zip(changes.commit_versions.tolist(), changes.weights.tolist(), strict=True)) == [
        (1, 1),
        (1, 1),
        (1, 1),
        (2, -1),
        (2, -1),
    ]


def test_no_columns_still_count_rows(path: str) -> None:
    write_deltalake(path, ROWS, mode="append")
    DeltaTable(path).delete("id = 3")
    source = open_source("t", path)
    assert sorted(read_changes(source, 0, 2, []).weights.tolist()) == [-1, -1, 1, 1, 1]
    assert read_changes(source, 0, 2, []).table.num_rows == 5
    assert read_rows(source.snapshot(), []).num_rows == 4


def test_later_commits_do_not_leak_in(path: str) -> None:
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


def test_a_snapshot_that_was_carried_on_is_not_compared_by_its_files(path: str) -> None:
    write_deltalake(path, ROWS, mode="append")
    source = open_source("t", path)
    carried = read_changes(source, 0, 1, ["id"], known=source.snapshot(0)).ending
    write_deltalake(path, ROWS, mode="append")
    DeltaTable(path).alter.set_table_properties({CHANGE_FEED: "false"})
    source = open_source("t", path)
    changes = read_changes(source, 1, source.version, ["id"], known=carried)
    assert (changes.method, changes.rows) == ("file_diff", 3)


def test_feed_on_for_a_part_of_the_range(tmp_path: Path) -> None:
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
    for since, until in (
        (0, 1),
        (2, 4),
        (3, 6),
        (5, 6),
        (5, 7),
        (6, 9),
        (8, 10),
        (3, 9),
        (3, 10),
        (0, 10),
    ):
        check(source, since, until, "file_diff")


def test_change_data_files_gone(path: str, tmp_path: Path) -> None:
    DeltaTable(path).delete("id = 2")
    shutil.rmtree(tmp_path / "t" / "_change_data")
    check(open_source("t", path), 0, 1, "file_diff")


def test_vacuumed_history_is_gone_by_name(path: str, tmp_path: Path) -> None:
    DeltaTable(path).delete("id = 2")
    write_deltalake(path, ROWS, mode="append")
    DeltaTable(path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    shutil.rmtree(tmp_path / "t" / "_change_data", ignore_errors=True)
    source = open_source("t", path)
    with pytest.raises(HistoryGoneError) as caught:
        read_changes(source, 0, 2, ["id"])
    assert "Version 0 of table `t` can no longer be read" in caught.value.message
    assert "delta.deletedFileRetentionDuration" in str(caught.value.hint)
    assert "impctl capture" in str(caught.value.hint)
    assert caught.value.exit_code == 7


def test_cleaned_log_is_gone_by_name(path: str) -> None:
    write_deltalake(path, ROWS, mode="append")
    write_deltalake(path, ROWS, mode="append")
    DeltaTable(path).create_checkpoint()
    for version in (0, 1):
        handmade.entry(path, version).unlink()
    source = open_source("t", path)
    with pytest.raises(HistoryGoneError) as caught:
        read_changes(source, 0, 2, ["id"])
    assert (
        "Version 0 of table `t` is no longer in its log; the oldest available version is 2"
    ) in str(caught.value)
    assert "delta.logRetentionDuration" in str(caught.value.hint)
    # The commit that made version 2 is still there, so its feed still answers.
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


def test_additive_and_unused_changes_of_the_schema_pass(path: str) -> None:
    write_deltalake(
        path,
        ROWS.append_column("extra", pa.array([1, 2, 3])),
        mode="append",
        schema_mode="merge",
    )
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
    known = source.snapshot(0)
    with pytest.raises(SchemaChangedError, match=problem):
        read_changes(source, 0, 1, ["id", "name"], known=known)


@pytest.mark.parametrize("off", [-1, 1])
def test_files_that_count_other_rows_than_the_log_tells(path: str, off: int) -> None:
    DeltaTable(path).delete("id = 2")
    source = open_source("t", path)
    held = files_mark(source.snapshot(0))
    assert read_changes(source, 0, 1, ["id"], held=held).rows == 1
    assert held.rows is not None
    other = replace(held, rows=held.rows + off)
    with pytest.raises(LogDiffersError, match="contradicts itself"):
        read_changes(source, 0, 1, ["id"], held=other)


def test_widened_column_counts_as_retyped(tmp_path: Path) -> None:
    path = make(tmp_path / "t", pa.table({"id": pa.array([1], pa.int32())}), configuration=FEED)
    wide = pa.table({"id": pa.array([2], pa.int64())})
    write_deltalake(path, wide, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(SchemaChangedError, match="from `int` to `bigint`"):
        read_changes(open_source("t", path), 0, 1, ["id"])


def test_schema_that_changed_and_came_back_is_compared_by_files(path: str) -> None:
    other = ROWS.set_column(0, "id", pa.array(["x", "y", "z"]))
    write_deltalake(path, other, mode="overwrite", schema_mode="overwrite")
    write_deltalake(path, ROWS.slice(1), mode="overwrite", schema_mode="overwrite")
    check(open_source("t", path), 0, 2, "file_diff")


def test_types_are_the_same_either_way(tmp_path: Path) -> None:
    data = pa.table(
        {
            "s": ["x"],
            "b": [b"x"],
            "t": pa.array([1], pa.timestamp("us", tz="UTC")),
            "n": pa.array([1], pa.timestamp("us")),
            "m": pa.array(["1.50"]).cast(pa.decimal128(10, 2)),
            "f": pa.array([1.5], pa.float32()),
        }
    )
    schemas = []
    for name, configuration in (("feed", FEED), ("files", None)):
        path = make(tmp_path / name, data, configuration=configuration)
        write_deltalake(path, data, mode="append")
        schemas.append(read_changes(open_source("t", path), 0, 1, data.column_names).table.schema)
    assert schemas[0] == schemas[1]
    assert schemas[0].field("s").type == pa.large_string()


def test_columns_named_as_the_feeds_own(tmp_path: Path) -> None:
    path = make(tmp_path / "t", pa.table({"id": [1], "_commit_version": [5]}), configuration=FEED)
    DeltaTable(path).update(updates={"id": "2"})
    check(open_source("t", path), 0, 1, "file_diff")


def test_table_replaced_in_place(tmp_path: Path) -> None:
    handmade.create(tmp_path, {"id": "long"}, table_id="one")
    other = handmade.metadata([handmade.field("id", "long")], table_id="two")
    handmade.commit(tmp_path, 1, handmade.protocol(), other)
    with pytest.raises(TableRecreatedError, match="created again"):
        read_changes(open_source("t", str(tmp_path)), 0, 1, ["id"])


def test_mapped_table_has_its_files_compared() -> None:
    source = open_source("t", str(fixture_table("table_with_partitioning_mapping")))
    assert source.snapshot().column_mapping == {"newid": "id", "description": "description"}
    check(source, 3, 4, "file_diff")


def test_deletion_vectors_count_only_their_rows() -> None:
    source = open_source("t", str(fixture_table("table-with-dv-small")))
    changes = read_changes(source, 0, 1, ["value"])
    assert (changes.table.column("value").to_pylist(), changes.weights.tolist()) == (
        [0, 9],
        [-1, -1],
    )
    back = read_changes(source, 1, 0, ["value"])
    assert (back.table.column("value").to_pylist(), back.weights.tolist()) == ([0, 9], [1, 1])


@pytest.mark.parametrize("by", [(), ("description",)])
def test_a_mapped_table_with_a_feed_has_its_files_compared(
    tmp_path: Path, by: tuple[str, ...]
) -> None:
    names = {"id": "col-1", "description": "col-2"}
    fields = [
        handmade.field(
            name, kind, **{"delta.columnMapping.id": at, "delta.columnMapping.physicalName": inner}
        )
        for at, ((name, inner), kind) in enumerate(
            zip(names.items(), ("long", "string"), strict=True), start=1
        )
    ]
    configuration = {**FEED, "delta.columnMapping.mode": "name"}
    about = handmade.metadata(fields, partition_columns=by, configuration=configuration)
    features = handmade.protocol("columnMapping", writer=["changeDataFeed"])
    handmade.commit(tmp_path, 0, features, about)
    rows = pa.table({"col-1": [1, 2], "col-2": ["x", "x"]}).drop_columns([names[n] for n in by])
    values = {"partitionValues": {names[name]: "x" for name in by}}
    handmade.commit(tmp_path, 1, handmade.added(tmp_path, "one", rows, values))
    result = check(open_source("t", str(tmp_path)), 0, 1, "file_diff")
    assert result.table.column("id").to_pylist() == [1, 2]


def test_a_feed_with_a_feature_that_its_reader_lacks_has_its_files_compared(tmp_path: Path) -> None:
    """Partition values leave the feed to deltalake's reader, which knows fewer features."""
    fields = [handmade.field("id", "long"), handmade.field("p", "string")]
    first = handmade.metadata(fields, partition_columns=["p"], configuration=FEED)
    features = handmade.protocol("typeWidening", writer=["changeDataFeed"])
    handmade.commit(tmp_path, 0, features, first)
    handmade.write_file(tmp_path, "one", pa.table({"id": [1, 2]}))
    handmade.commit(tmp_path, 1, handmade.add("one", 2, partitionValues={"p": "x"}))
    check(open_source("t", str(tmp_path)), 0, 1, "file_diff")


def test_feed_is_not_asked_when_nothing_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source("t", make(tmp_path / "t", configuration=FEED))
    monkeypatch.setattr(changes_module, "read_change_feed", None)
    assert read_changes(source, 0, 0, ["id"]).method == "none"


def test_an_update_whose_images_meet_is_told_by_its_files(tmp_path: Path) -> None:
    """delta-rs drops an old image that equals another row's new one: the sum of rows agrees."""
    rows = pa.table({"g": [1, 1, 1, 2, 2, 2], "x": [5, 5, 6, 15, 16, 16]})
    path = str(tmp_path / "t")
    write_deltalake(path, rows, configuration={"delta.enableChangeDataFeed": "true"})
    DeltaTable(path).update(updates={"x": "x + 1"})
    source = open_source("t", path)
    changes = read_changes(source, 0, 1, ("g", "x"))
    assert changes.method == "file_diff"
    weights: dict[tuple[int, int], int] = {}
    values = zip(*(changes.table.column(name).to_pylist() for name in ("g", "x")), strict=True)
    for row, weight in zip(values, changes.weights.tolist(), strict=True):
        weights[row] = weights.get(row, 0) + weight
    left = {row: weight for row, weight in weights.items() if weight}
    assert left == {(1, 5): -2, (1, 6): 1, (1, 7): 1, (2, 15): -1, (2, 16): -1, (2, 17): 2}
