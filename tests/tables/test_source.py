"""Opening tables, pinning versions, and the messages when that fails."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from impctl.errors import HistoryGoneError, StorageError, TableError, TableRecreatedError
from impctl.tables.changes import read_changes
from impctl.tables.rows import read_rows
from impctl.tables.source import oldest_version, open_failure, open_source, refresh
from impctl.tables.storage import below_root, object_store
from tests.support.refused import refused
from tests.tables import handmade

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


def test_missing_table(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="Table `t` does not exist") as caught:
        open_source("t", str(tmp_path / "nope"))
    assert (caught.value.code, caught.value.exit_code) == ("table_missing", 3)
    assert "`tables.t.path`" in str(caught.value.hint)


def test_folder_that_is_no_delta_table(tmp_path: Path) -> None:
    (tmp_path / "data.parquet").write_bytes(b"")
    with pytest.raises(TableError, match="is not a Delta table") as caught:
        open_source("t", str(tmp_path))
    assert caught.value.code == "table_not_delta"


def test_a_file_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text("version: 1")
    with pytest.raises(TableError, match="Table `t` is not a Delta table") as caught:
        open_source("t", str(tmp_path / "w.yaml"))
    assert "`_delta_log`" in str(caught.value.hint)


def test_a_log_with_an_entry_missing_is_told_in_a_line(tmp_path: Path) -> None:
    for at in range(4):
        write_deltalake(str(tmp_path / "t"), pa.table({"a": [at]}), mode="append")
    handmade.entry(tmp_path / "t", 2).unlink()
    with pytest.raises(TableError) as caught:
        open_source("t", str(tmp_path / "t"))
    said = "its log goes from version 1 to 3, and the entries between them are missing"
    assert caught.value.message == f"Table `t` cannot be opened: {said}"


def test_a_table_of_unity_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("DATABRICKS_", "UNITY_"))]:
        monkeypatch.delenv(name)
    with pytest.raises(TableError, match="Unity") as caught:
        open_source("t", "uc://main.shop.sales")
    assert "`databricks_workspace_url`" in str(caught.value.hint)


def test_unreachable_storage_is_worth_another_try() -> None:
    options = {"AWS_EC2_METADATA_DISABLED": "true", "max_retries": "0", "AWS_REGION": "eu-west-1"}
    with pytest.raises(StorageError, match="Table `t` cannot be reached") as caught:
        open_source("t", "s3://bucket/table", options)
    assert "\x1b" not in caught.value.message
    assert "\n" not in caught.value.message


def test_damaged_log_is_no_delta_table(tmp_path: Path) -> None:
    handmade.commit(tmp_path, 0, {"nonsense": 1})
    with pytest.raises(TableError, match="Table `t` cannot be opened"):
        open_source("t", str(tmp_path))


def test_versions_outside_the_history(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    for _ in range(3):
        write_deltalake(path, ROWS, mode="append")
    source = open_source("t", path)
    with pytest.raises(TableRecreatedError, match="at version 2 and has no version 7"):
        source.snapshot(7)
    DeltaTable(path).create_checkpoint()
    handmade.entry(path, 0).unlink()
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


def test_folder_with_an_escape_in_its_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="cannot be opened safely"):
        open_source("t", str(tmp_path / "a%20b"))


def test_folder_whose_name_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    with refused(TableError, "table_path_not_utf8"):
        open_source("t", str(tmp_path / "a\udcff"))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Unable to open file ↳ Input/output error (os error 5)", "storage_failed"),
        ("Generic S3 error: Received non-partial response", "storage_failed"),
        ("Unable to open file ↳ No such file or directory (os error 2)", "table_unreadable"),
        ("invalid JSON", "table_unreadable"),
    ],
)
def test_what_the_system_fails_at_is_worth_another_try(text: str, code: str) -> None:
    assert open_failure("t", "/t", DeltaError(text)).code == code


def test_object_store_reads_what_the_disk_holds(tmp_path: Path) -> None:
    data = ROWS.append_column("k", pa.array(["A/A", "x y"]))
    write_deltalake(str(tmp_path), data, partition_by=["k"])
    store = object_store(tmp_path.as_uri(), None)
    for file in open_source("t", str(tmp_path)).snapshot().files:
        name = below_root(str(tmp_path), file.uri)
        assert pq.ParquetFile(name, filesystem=store).metadata.num_rows == 1
