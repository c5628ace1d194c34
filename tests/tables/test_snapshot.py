"""Opening tables, pinning versions, and snapshots from the log."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import uuid
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from impctl.data.schema import INTEGER, STRING, Kind, decimal
from impctl.errors import (
    HistoryGoneError,
    SchemaChangedError,
    StorageError,
    TableError,
    TableRecreatedError,
)
from impctl.tables.changes import read_changes
from impctl.tables.rows import read_rows
from impctl.tables.snapshot import TableSchema, read_schema
from impctl.tables.source import DeltaSource, oldest_version, open_failure, open_source, refresh
from impctl.tables.storage import below_root, check_reader_features, feature_named_in, object_store
from tests.support.run_cli import refused
from tests.tables import handmade
from tests.tables.handmade import (
    VectoredTable,
    bitmap_of,
    field,
    fixture_table,
    open_table,
    vector,
    write_table,
    z85,
)


def test_constraints_and_nullability(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("price", pa.int64(), nullable=False), ("name", pa.string())])
    snapshot = write_table(tmp_path, pa.table({"price": [1], "name": ["x"]}, schema=schema))
    assert (snapshot.has_change_feed, snapshot.column_mapping) == (False, None)
    DeltaTable(str(tmp_path)).alter.add_constraint({"positive": "price > 0"})
    snapshot = open_table(tmp_path).snapshot()
    assert (snapshot.constraints, snapshot.not_null) == (("price > 0",), {"price"})
    assert (snapshot.has_change_feed, snapshot.column_mapping) == (False, None)


def test_paths_and_partition_values_are_decoded(tmp_path: Path) -> None:
    data = pa.table({"k": ["A/A", None], "d": pa.array([0, 1], pa.int32()).cast(pa.date32())})
    data = data.append_column("v", pa.array([1, 2]))
    files = write_table(tmp_path, data, partition_by=["k", "d"]).files
    assert all(Path(file.uri).is_file() for file in files)
    values = sorted((file.partition_values for file in files), key=str)
    assert values == [{"k": "A/A", "d": "1970-01-01"}, {"k": None, "d": "1970-01-02"}]
    assert [file.rows for file in files] == [1, 1]


@pytest.mark.parametrize(
    ("counts", "likely"),
    # Files with known row counts have 10 bytes per row.
    [((3, 5), 8), ((100, None), 250), ((None, None), 79), ((0, None), 47)],
)
def test_unknown_row_counts_are_estimated_by_bytes(
    tmp_path: Path, counts: tuple[int | None, ...], likely: int
) -> None:
    def added(number: int, rows: int | None) -> dict[str, Any]:
        without_stats = {} if rows is not None else {"stats": None}
        return handmade.add(f"{number}.parquet", rows or 0, (1000, 1500)[number], **without_stats)

    path = handmade.create(tmp_path, {"id": "long"}, *map(added, (0, 1), counts))
    snapshot = open_table(path).snapshot()
    assert (snapshot.rows is None) is (None in counts)
    assert snapshot.likely_rows == likely


def test_names_are_case_insensitive(tmp_path: Path) -> None:
    snapshot = write_table(tmp_path / "t", pa.table({"Price": [1]}))
    assert snapshot.readable("pRICE").name == "Price"
    with pytest.raises(SchemaChangedError, match="no column `cost` at version 0"):
        snapshot.readable("cost")


COLLATED = handmade.field("s", "string", __COLLATIONS={"s": "spark.UTF8_LCASE"})
NESTED = {"type": "struct", "fields": [handmade.field("x", "long")]}


@pytest.mark.parametrize(
    ("columns", "data", "column", "message"),
    [
        (
            [field("id", "long"), COLLATED],
            {"id": [1], "s": ["x"]},
            "s",
            "`s` of table `t` cannot be read: .*UTF8_LCASE",
        ),
        ({"id": "long", "s": NESTED}, {"id": [1], "s": [{"x": 1}]}, "s", "struct<`x`: bigint>"),
        (
            {"a": "long", "ID": "long"},
            {"a": [1], "A": [2], "id": [1]},
            "a",
            "several columns for column .*`a` and `A`",
        ),
        (
            {"a": "long", "id": "long"},
            {"a": ["x"], "id": [1]},
            "a",
            "is stored as `string`, which does not match `bigint`",
        ),
    ],
    ids=["collation", "struct", "twice in a file", "another type in a file"],
)
def test_unreadable_column_fails_only_when_read(
    tmp_path: Path, columns: Any, data: dict[str, Any], column: str, message: str
) -> None:
    snapshot = handmade.of_file(tmp_path, columns, pa.table(data))
    assert read_rows(snapshot, ["id"]).to_pydict() == {snapshot.readable("id").name: [1]}
    with pytest.raises(TableError, match=message):
        read_rows(snapshot, [column])


@pytest.mark.parametrize("name", ["x y.parquet", "a%20b.parquet", "é+ü.parquet", "a%2Fb.parquet"])
def test_deletion_vector_of_oddly_named_file(tmp_path: Path, name: str) -> None:
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
    files = pa.table({"a": [1]}), pa.table({"a": [2], "b": ["x"]})
    rows = read_rows(write_table(tmp_path, *files, schema_mode="merge"), ["b", "a"]).to_pylist()
    assert sorted(rows, key=lambda row: row["a"]) == [{"b": None, "a": 1}, {"b": "x", "a": 2}]


def test_narrower_type_is_widened(tmp_path: Path) -> None:
    narrow = pa.table({"a": pa.array([1], pa.int32())})
    rows = read_rows(handmade.of_file(tmp_path, {"a": "long"}, narrow), ["a"])
    assert rows.column("a").type == pa.int64()


def test_ambiguous_partition_value_is_refused(tmp_path: Path) -> None:
    rows = pa.table({"p": ["a\U00020000b", "\U0001f600"], "x": [1, 2]})
    files = write_table(tmp_path, rows, partition_by=["p"]).files
    assert {file.partition_values["p"] for file in files} == {"a\U00020000b", "\U0001f600"}
    handmade.commit(tmp_path, 0, *handmade.actions_of(tmp_path, 0))
    with refused(TableError, "partition_value_unsure"):
        _ = open_table(tmp_path).snapshot().files


def write_vectored(path: Path, location: Mapping[str, Any]) -> None:
    """A table of three rows and one deletion vector."""
    table = VectoredTable(path, pa.table({"g": pa.array([1, 2, 3], pa.int64())}))
    table.delete(lambda rows: pc.equal(rows.column("g"), 2))
    actions = handmade.actions_of(path, 1)
    for action in actions:
        if "add" in action:
            action["add"]["deletionVector"].update(location)
    handmade.commit(path, 1, *actions)


def in_file(folder: Path, upper: int, *, is_absolute: bool) -> dict[str, Any]:
    """A deletion vector of row 1, stored in a file."""
    identifier = uuid.UUID(int=7)
    file = folder / "ab" / f"deletion_vector_{identifier}.bin"
    file.parent.mkdir(parents=True)
    data = bitmap_of([1], upper)
    crc = struct.pack(">I", zlib.crc32(data))
    file.write_bytes(b"\1" + struct.pack(">I", len(data)) + data + crc)
    location = ("p", file.as_uri()) if is_absolute else ("u", f"ab{z85(identifier.bytes)}")
    names = dict(zip(("storageType", "pathOrInlineDv"), location, strict=True))
    return {**names, "offset": 1, "sizeInBytes": len(data)}


@pytest.mark.parametrize(
    "log_form", ["entries", "entries in another order", "checkpoint", "side files"]
)
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
def test_vectors_that_crash_deltalake_are_refused(
    tmp_path: Path, storage: str, upper: int, code: str | None, log_form: str
) -> None:
    """A mask for impossible positions would exhaust memory and abort the process."""
    path = tmp_path / "t"
    if storage == "inline":
        write_vectored(path, vector([1], upper))
    else:
        folder = tmp_path / "other" if storage == "outside" else path
        write_vectored(path, in_file(folder, upper, is_absolute=storage != "file"))
    source = open_source("t", str(path))
    if log_form == "entries in another order":
        handmade.commit(path, 1, *reversed(handmade.actions_of(path, 1)))
    elif log_form != "entries":
        source.delta.create_checkpoint()
        for entry in (path / "_delta_log").glob("*.json") if log_form == "checkpoint" else ():
            entry.unlink()
    if log_form == "side files":
        handmade.with_side_files(path, 1)
        source = open_source("t", str(path))
    if code is not None:
        with refused(TableError, code):
            source.snapshot()
        return
    assert read_rows(source.snapshot(), ["g"]).column("g").to_pylist() == [1, 3]


def test_sidecar_outside_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_vectored(path, vector([1]))
    open_source("t", str(path)).delta.create_checkpoint()
    handmade.with_side_files(path, 1, "../../../s.parquet")
    (path / "_delta_log" / "_sidecars" / "s.parquet").rename(tmp_path / "s.parquet")
    with refused(TableError, "file_outside_table"):
        open_source("t", str(path)).snapshot()


ROWS = pa.table({"id": [1, 2]})


def test_version_is_pinned_until_refreshed(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, ROWS)
    source = open_source("sales", path)
    write_deltalake(path, ROWS, mode="append")
    assert (source.name, source.version, source.snapshot().version) == ("sales", 0, 0)
    newer = refresh(source)
    assert (newer.version, newer.snapshot().rows, newer.snapshot(0).rows) == (1, 4, 2)
    assert newer.table_id == source.table_id


def test_file_uri_opens_too(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "a b"), ROWS)
    source = open_source("t", (tmp_path / "a b").as_uri())
    assert source.snapshot().files[0].uri.startswith(str(tmp_path / "a b"))
    assert oldest_version(source) == 0


def write_broken_tables(folder: Path) -> None:
    """Write damaged tables and paths that are not tables."""
    (folder / "data").mkdir()
    (folder / "data" / "data.parquet").write_bytes(b"")
    (folder / "w.yaml").write_text("version: 1")
    handmade.commit(folder / "damaged", 0, {"nonsense": 1})
    write_table(folder / "gap", *(pa.table({"a": [number]}) for number in range(4)))
    handmade.entry(folder / "gap", 2).unlink()


@pytest.mark.parametrize(
    ("name", "code", "message", "hint"),
    [
        ("nope", "table_missing", "Table `t` does not exist", "`tables.t.path`"),
        ("data", "table_not_delta", "is not a Delta table", ""),
        ("w.yaml", "table_not_delta", "Table `t` is not a Delta table", "`_delta_log`"),
        ("damaged", "table_unreadable", "Table `t` cannot be opened", ""),
        (
            "gap",
            "table_unreadable",
            "^Table `t` cannot be opened: its log goes from version 1 to 3, and the entries "
            "between them are missing$",
            "",
        ),
        ("a%20b", "table_path_escaped", "cannot be opened safely", ""),
        ("a\udcff", "table_path_not_utf8", "", ""),
    ],
    ids=["missing", "folder", "file", "damaged log", "gap in the log", "escape", "not UTF-8"],
)
def test_unopenable_table_is_explained(
    tmp_path: Path, name: str, code: str, message: str, hint: str
) -> None:
    write_broken_tables(tmp_path)
    with pytest.raises(TableError) as caught:
        open_source("t", str(tmp_path / name))
    assert (caught.value.code, caught.value.exit_code) == (code, 3)
    assert re.search(message, caught.value.message)
    assert hint in str(caught.value.hint)


def test_unity_table_reports_missing_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("DATABRICKS_", "UNITY_"))]:
        monkeypatch.delenv(name)
    with pytest.raises(TableError, match="Unity") as caught:
        open_source("t", "uc://main.shop.sales")
    assert "`databricks_workspace_url`" in str(caught.value.hint)


def test_unreachable_storage_is_retryable() -> None:
    options = {"AWS_EC2_METADATA_DISABLED": "true", "max_retries": "0", "AWS_REGION": "eu-west-1"}
    with pytest.raises(StorageError, match="Table `t` cannot be reached") as caught:
        open_source("t", "s3://bucket/table", options)
    assert "\x1b" not in caught.value.message
    assert "\n" not in caught.value.message


def test_versions_outside_the_history(tmp_path: Path) -> None:
    write_table(tmp_path, *[ROWS] * 3)
    source = open_table(tmp_path)
    with pytest.raises(TableRecreatedError, match="at version 2 and has no version 7"):
        source.snapshot(7)
    DeltaTable(str(tmp_path)).create_checkpoint()
    handmade.entry(tmp_path, 0).unlink()
    assert oldest_version(source) == 2
    with pytest.raises(HistoryGoneError, match="the oldest available version is 2") as caught:
        source.snapshot(1)
    assert caught.value.exit_code == 7


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["a b", "é", "a+b", "a%b", "a#b", "a?b"])
def test_folders_with_odd_names(
    tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / folder)
    write_deltalake(path, ROWS, configuration={"delta.enableChangeDataFeed": "true"})
    write_deltalake(path, ROWS, mode="append")
    monkeypatch.chdir(tmp_path)
    for spelled in (path, folder):
        source = open_source("t", spelled)
        assert read_rows(source.snapshot(), ["id"]).num_rows == 4
        assert all(Path(file.uri).is_absolute() for file in source.snapshot().files)
        assert read_changes(source, 0, 1, ["id"]).rows == 2


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Unable to open file ↳ Input/output error (os error 5)", "storage_failed"),
        ("Generic S3 error: Received non-partial response", "storage_failed"),
        ("Unable to open file ↳ No such file or directory (os error 2)", "table_unreadable"),
        ("invalid JSON", "table_unreadable"),
    ],
)
def test_failures_of_the_system_are_retryable(text: str, code: str) -> None:
    assert open_failure("t", "/t", DeltaError(text)).code == code


def test_object_store_reads_local_files(tmp_path: Path) -> None:
    data = ROWS.append_column("k", pa.array(["A/A", "x y"]))
    store = object_store(tmp_path.as_uri(), None)
    for file in write_table(tmp_path, data, partition_by=["k"]).files:
        name = below_root(str(tmp_path), file.uri)
        assert pq.ParquetFile(name, filesystem=store).metadata.num_rows == 1


def make(path: Path, *features: str) -> DeltaSource:
    file = handmade.added(path, "a.parquet", pa.table({"id": [1, 2]}))
    return open_table(handmade.create(path, {"id": "long"}, file, features=features))


@pytest.mark.parametrize(
    ("features", "reported"),
    [
        (["fooBar"], "fooBar"),
        (["catalogManaged"], "catalog-managed"),
        # Not retryable, in contrast to a log that cannot be read.
        (["deletionVectors", "typeWidening"], "TypeWidening"),
    ],
    ids=["unknown", "catalog-managed", "beside vectors"],
)
def test_unknown_reader_feature_is_named(
    tmp_path: Path, features: list[str], reported: str
) -> None:
    with refused(TableError, "reader_feature_unknown", f"`t` needs reader feature `{reported}`"):
        make(tmp_path, *features).snapshot()


def test_feature_known_to_deltalake_but_not_impctl() -> None:
    with pytest.raises(TableError, match="reader feature `quantum`"):
        check_reader_features("t", ["deletionVectors", "quantum"])


LISTED = (
    "deletionVectors columnMapping timestampNtz v2Checkpoint vacuumProtocolCheck typeWidening "
    "variantType"
)


@pytest.mark.parametrize("feature", LISTED.split())
def test_unused_feature_is_accepted(tmp_path: Path, feature: str) -> None:
    assert read_rows(make(tmp_path, feature).snapshot(), ["id"]).column("id").to_pylist() == [1, 2]


def test_mapping_by_id_is_refused(tmp_path: Path) -> None:
    mapped = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "x"}
    table_metadata = handmade.metadata(
        [field("id", "long", **mapped)], configuration={"delta.columnMapping.mode": "id"}
    )
    protocol = {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}
    handmade.commit(tmp_path, 0, protocol, table_metadata)
    with pytest.raises(TableError, match="uses column mapping mode `id`"):
        open_table(tmp_path).snapshot()


def test_features_in_error_texts() -> None:
    assert feature_named_in("Unsupported: Feature 'a' is not supported") == "a"
    assert feature_named_in("Unsupported table features required: [A, B]") == "A, B"
    assert feature_named_in("something else") is None


def read(*fields: dict[str, Any], is_mapped: bool = False) -> TableSchema:
    return read_schema(json.dumps({"type": "struct", "fields": fields}), is_mapped=is_mapped)


def test_simple_types() -> None:
    result = read(
        field("a", "integer", nullable=False),
        field("b", "string", __CHAR_VARCHAR_TYPE_STRING="varchar(5)"),
        field("c", "decimal(10, 2)"),
    )
    assert [column.type for column in result.schema] == [INTEGER, STRING, decimal(10, 2)]
    assert (result.not_null, result.opaque) == ({"a"}, {})


def list_of(kind: str) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": True}


def changed_from(old: str, new: str) -> dict[str, Any]:
    """A field of type `new` that had type `old`."""
    return field("a", new, **{"delta.typeChanges": [{"fromType": old, "toType": new}]})


def test_nested_types_keep_spark_name() -> None:
    struct = {"type": "struct", "fields": [field("x y", list_of("long")), field("z`", "short")]}
    map_type = {"type": "map", "keyType": "string", "valueType": struct, "valueContainsNull": True}
    (column,) = read(field("a", map_type)).schema.columns
    assert column.type.kind is Kind.OTHER
    assert column.type.spark_name == "map<string, struct<`x y`: array<bigint>, `z```: smallint>>"


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (field("a", "string", __COLLATIONS={"a": "spark.UTF8_LCASE"}), "UTF8_LCASE"),
        (field("a", "variant"), "variant"),
        (field("a", "string", __CHAR_VARCHAR_TYPE_STRING="char(5)"), "char(n)"),
        (field("a", list_of("string"), __CHAR_VARCHAR_TYPE_STRING="array<char(5)>"), "char(n)"),
        (field("a", list_of("variant")), "variant"),
        (changed_from("date", "timestamp_ntz"), "from date to timestamp_ntz"),
    ],
)
def test_unreadable_columns_have_a_reason(column: dict[str, Any], reason: str) -> None:
    result = read(column)
    assert reason in result.opaque["a"]
    assert result.schema.columns[0].type.kind is Kind.OTHER


def test_readable_type_change_and_plain_collation_pass() -> None:
    plain = field("b", "string", __COLLATIONS={"b": "spark.UTF8_BINARY"})
    limited = field("c", "string", __CHAR_VARCHAR_TYPE_STRING="varchar(5)")
    assert read(changed_from("integer", "long"), plain, limited).opaque == {}


def test_mapped_names() -> None:
    mapped = field("a", "long", **{"delta.columnMapping.physicalName": "col-1"})
    nested = field("s", {"type": "struct", "fields": [field("x", "long")]})
    assert read(mapped).physical == {"a": "a"}
    result = read(mapped, nested, is_mapped=True)
    assert result.physical == {"a": "col-1", "s": "s"}
    assert "uses column mapping" in result.opaque["s"]


def test_invariants() -> None:
    text = json.dumps({"expression": {"expression": "a > 0"}})
    assert read(field("a", "long", **{"delta.invariants": text})).invariants == ("a > 0",)
