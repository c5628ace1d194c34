"""What a snapshot knows from the log."""

from __future__ import annotations

import json
import shutil
import struct
import uuid
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.errors import SchemaChangedError, TableError
from impctl.tables.rows import read_rows
from impctl.tables.source import open_source
from tests.support.refused import refused
from tests.tables import handmade
from tests.tables.bags import fixture_table, written
from tests.tables.vectored import VectoredTable, bitmap_of, vector, z85


def test_constraints_and_nullability(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("price", pa.int64(), nullable=False), ("name", pa.string())])
    path = str(tmp_path / "t")
    write_deltalake(path, pa.table({"price": [1], "name": ["x"]}, schema=schema))
    DeltaTable(path).alter.add_constraint({"positive": "price > 0"})
    snapshot = open_source("t", path).snapshot()
    assert snapshot.constraints == ("price > 0",)
    assert snapshot.not_null == {"price"}
    assert not snapshot.has_change_feed
    assert snapshot.column_mapping is None


def test_files_have_decoded_paths_and_texts_of_partition_values(tmp_path: Path) -> None:
    data = pa.table({"k": ["A/A", None], "d": pa.array([0, 1], pa.int32()).cast(pa.date32())})
    data = data.append_column("v", pa.array([1, 2]))
    path = str(tmp_path / "t")
    write_deltalake(path, data, partition_by=["k", "d"])
    files = open_source("t", path).snapshot().files
    assert all(Path(file.uri).is_file() for file in files)
    assert {tuple(file.partition_values.items()) for file in files} == {
        (("k", "A/A"), ("d", "1970-01-01")),
        (("k", None), ("d", "1970-01-02")),
    }
    assert [file.rows for file in files] == [1, 1]


@pytest.mark.parametrize(
    ("counts", "likely"),
    [
        ((3, 5), 8),
        ((100, None), 250),  # 10 bytes a row, as in the file that tells
        ((None, None), 79),
        ((0, None), 47),
    ],
)
def test_rows_are_told_by_bytes_where_the_log_does_not(
    tmp_path: Path, counts: tuple[int | None, ...], likely: int
) -> None:
    def added(at: int, rows: int | None) -> dict[str, Any]:
        silent = {} if rows is not None else {"stats": None}
        return handmade.add(f"{at}.parquet", rows or 0, (1000, 1500)[at], **silent)

    path = handmade.create(tmp_path, {"id": "long"}, *map(added, (0, 1), counts))
    snapshot = open_source("t", path).snapshot()
    assert (snapshot.rows is None) is (None in counts)
    assert snapshot.likely_rows == likely


def test_names_are_found_without_case(tmp_path: Path) -> None:
    snapshot = written(tmp_path / "t", pa.table({"Price": [1]}))
    assert snapshot.readable("pRICE").name == "Price"
    with pytest.raises(SchemaChangedError, match="no column `cost` at version 0"):
        snapshot.readable("cost")


def test_opaque_column_is_fatal_only_when_read(tmp_path: Path) -> None:
    collated = handmade.field("s", "string", __COLLATIONS={"s": "spark.UTF8_LCASE"})
    file = handmade.added(tmp_path, "a.parquet", pa.table({"id": [1], "s": ["x"]}))
    path = handmade.create(tmp_path, [handmade.field("id", "long"), collated], file)
    snapshot = open_source("t", path).snapshot()
    assert read_rows(snapshot, ["id"]).num_rows == 1
    with pytest.raises(TableError, match="`s` of table `t` cannot be read: .*UTF8_LCASE"):
        read_rows(snapshot, ["s"])


def test_struct_column_is_not_read(tmp_path: Path) -> None:
    snapshot = written(tmp_path / "t", pa.table({"id": [1], "s": [{"x": 1}]}))
    assert read_rows(snapshot, ["id"]).num_rows == 1
    with pytest.raises(TableError, match="struct<`x`: bigint>"):
        read_rows(snapshot, ["s"])


@pytest.mark.parametrize("name", ["x y.parquet", "a%20b.parquet", "é+ü.parquet", "a%2Fb.parquet"])
def test_deletion_vector_finds_its_oddly_named_file(tmp_path: Path, name: str) -> None:
    from urllib.parse import quote

    origin = fixture_table("table-with-dv-small")
    table = tmp_path / "t"
    shutil.copytree(origin, table)
    (old,) = table.glob("*.parquet")
    old.rename(table / name)
    for log in (table / "_delta_log").glob("*.json"):
        text = log.read_text(encoding="utf-8")
        log.write_text(text.replace(old.name, json.dumps(quote(name))[1:-1]), encoding="utf-8")
    for checksum in (table / "_delta_log").glob("*.crc"):
        checksum.unlink()
    snapshot = open_source("t", str(table)).snapshot()
    assert [Path(file.uri).name for file in snapshot.files] == [name]
    assert read_rows(snapshot, ["value"]).column("value").to_pylist() == list(range(1, 9))
    assert snapshot.rows == 8


def test_column_added_later_reads_null(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, pa.table({"a": [1]}))
    write_deltalake(path, pa.table({"a": [2], "b": ["x"]}), mode="append", schema_mode="merge")
    rows = read_rows(open_source("t", path).snapshot(), ["b", "a"]).to_pylist()
    assert sorted(rows, key=lambda row: row["a"]) == [{"b": None, "a": 1}, {"b": "x", "a": 2}]


def test_file_of_a_narrower_type_is_widened(tmp_path: Path) -> None:
    file = handmade.added(tmp_path, "a.parquet", pa.table({"a": pa.array([1], pa.int32())}))
    path = handmade.create(tmp_path, {"a": "long"}, file)
    rows = read_rows(open_source("t", path).snapshot(), ["a"])
    assert rows.column("a").type == pa.int64()


def test_column_that_a_file_has_twice_is_refused(tmp_path: Path) -> None:
    file = handmade.added(tmp_path, "a.parquet", pa.table({"a": [1], "A": [2], "b": [3]}))
    path = handmade.create(tmp_path, {"a": "long", "B": "long"}, file)
    snapshot = open_source("t", path).snapshot()
    assert read_rows(snapshot, ["b"]).column("B").to_pylist() == [3]
    with pytest.raises(TableError, match="several columns for column .*`a` and `A`"):
        read_rows(snapshot, ["a"])


def test_file_of_another_type_is_refused(tmp_path: Path) -> None:
    file = handmade.added(tmp_path, "a.parquet", pa.table({"a": ["x"]}))
    path = handmade.create(tmp_path, {"a": "long"}, file)
    with pytest.raises(TableError, match="is stored as `string`, which does not match `bigint`"):
        read_rows(open_source("t", path).snapshot(), ["a"])


def test_a_partition_value_that_may_be_misread_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    rows = pa.table({"p": ["a\U00020000b", "\U0001f600"], "x": [1, 2]})
    write_deltalake(str(path), rows, partition_by=["p"])
    values = {file.partition_values["p"] for file in open_source("t", str(path)).snapshot().files}
    assert values == {"a\U00020000b", "\U0001f600"}
    handmade.commit(path, 0, *handmade.actions_of(path, 0))
    with pytest.raises(TableError) as caught:
        _ = open_source("t", str(path)).snapshot().files
    assert caught.value.code == "partition_value_unsure"


def vectored(path: Path, placed: Mapping[str, Any]) -> None:
    """A table of three rows and one deletion vector."""
    table = VectoredTable(path, pa.table({"g": pa.array([1, 2, 3], pa.int64())}))
    table.delete(lambda rows: pc.equal(rows.column("g"), 2))
    entry = path / "_delta_log" / f"{1:020}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["deletionVector"].update(placed)
    entry.write_text("".join(json.dumps(action) + "\n" for action in actions))


def in_file(folder: Path, upper: int, *, is_absolute: bool) -> dict[str, Any]:
    """The vector of row 1, in a file."""
    identifier = uuid.UUID(int=7)
    file = folder / "ab" / f"deletion_vector_{identifier}.bin"
    file.parent.mkdir(parents=True)
    data = bitmap_of([1], upper)
    crc = struct.pack(">I", zlib.crc32(data))
    file.write_bytes(b"\1" + struct.pack(">I", len(data)) + data + crc)
    place = ("p", file.as_uri()) if is_absolute else ("u", f"ab{z85(identifier.bytes)}")
    names = dict(zip(("storageType", "pathOrInlineDv"), place, strict=True))
    return {**names, "offset": 1, "sizeInBytes": len(data)}


@pytest.mark.parametrize("turns", ["entries", "checkpoint", "side files"])
@pytest.mark.parametrize(
    ("storage", "upper", "code"),
    [
        ("inline", 0, None),
        ("inline", 1, "deletion_vectors_unmatched"),
        ("inline", 1 << 30, "deletion_vectors_unmatched"),
        ("file", 0, None),
        ("file", 256, "deletion_vectors_unmatched"),
        ("absolute", 0, None),
        ("absolute", 256, "deletion_vectors_unmatched"),
        ("outside", 0, "file_outside_table"),
    ],
)
def test_only_vectors_that_deltalake_survives_are_opened(
    tmp_path: Path, storage: str, upper: int, code: str | None, turns: str
) -> None:
    """A mask for positions that no file has would take more memory than there is: SIGABRT."""
    path = tmp_path / "t"
    if storage == "inline":
        vectored(path, vector([1], upper))
    else:
        folder = tmp_path / "other" if storage == "outside" else path
        vectored(path, in_file(folder, upper, is_absolute=storage != "file"))
    source = open_source("t", str(path))
    if turns != "entries":
        source.delta.create_checkpoint()
        for entry in (path / "_delta_log").glob("*.json") if turns == "checkpoint" else ():
            entry.unlink()
    if turns == "side files":
        handmade.with_side_files(path, 1)
        source = open_source("t", str(path))
    if code is not None:
        with refused(TableError, code):
            source.snapshot()
        return
    assert read_rows(source.snapshot(), ["g"]).column("g").to_pylist() == [1, 3]


def test_a_checkpoint_takes_no_side_file_from_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "t"
    vectored(path, vector([1]))
    open_source("t", str(path)).delta.create_checkpoint()
    handmade.with_side_files(path, 1, "../../../s.parquet")
    (path / "_delta_log" / "_sidecars" / "s.parquet").rename(tmp_path / "s.parquet")
    with refused(TableError, "file_outside_table"):
        open_source("t", str(path)).snapshot()
