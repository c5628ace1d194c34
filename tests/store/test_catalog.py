"""Catalogs that are read-only, locked or full."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from impctl.errors import ImpctlError, StateCorruptError, StorageError, UsageError
from impctl.store import catalog
from impctl.store.disk import RealDisk, from_sqlite
from impctl.store.store import Store
from tests.store.builders import LARGE, capture, maintain, record, rows, state_of
from tests.support.run_cli import refused


class _ReadOnlyDisk(RealDisk):
    def is_writable(self, folder: Path) -> bool:
        return False


@pytest.fixture
def root(root: Path) -> Path:
    with Store.open(root) as store:
        store.commit_capture(capture(), {"agg": [(0, rows(LARGE)), (1, rows(3))]}, record())
    return root


def test_read_only_store_is_read_but_not_written(root: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    with Store.open(root, disk=_ReadOnlyDisk()) as store:
        stored = store.load("q")
        assert stored.sketches == capture().sketches
        assert state_of(store, "q")["agg"][0][1].equals(rows(LARGE))
        for write in (
            lambda: store.commit_maintain(maintain(stored.generation, 1)),
            lambda: store.commit_capture(capture(), {}, record()),
            lambda: store.collect(),
            lambda: store.add_record("q", record()),
        ):
            with pytest.raises(UsageError) as caught:
                write()
            assert (caught.value.code, caught.value.exit_code) == ("store_read_only", 2)
            assert caught.value.hint
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_read_only_reader_sees_commits_of_a_writer(root: Path) -> None:
    with Store.open(root) as writer:
        writer.commit_maintain(maintain(1, 4))
        with Store.open(root, disk=_ReadOnlyDisk()) as store:
            stored = store.load("q")
    assert stored.versions == {"sales": 4}


def test_uncreatable_folder_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError) as caught:
        Store.open(tmp_path / "file" / ".impctl")
    assert caught.value.code == "store_path"
    assert caught.value.hint


def test_a_catalog_locked_by_another_program_is_retryable(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "_BUSY_MS", 50)
    other = sqlite3.connect(root / "catalog.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with Store.open(root) as store:
        assert store.load("q") is not None
        with refused(StorageError, "catalog_busy"):
            store.commit_maintain(maintain(1, 1, put=(("agg", 5, rows(LARGE)),)))
        other.execute("ROLLBACK")
        store.commit_maintain(maintain(1, 1))
    other.close()
    assert len(list((root / "state").iterdir())) == 1


def test_a_full_catalog_is_a_storage_error(store: Store) -> None:
    with store._catalog.reading() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    with refused(StorageError, "disk_full"):
        store.commit_maintain(maintain(1, 1, put=(("agg", 5, rows(5000)),)))
    assert store.load("q").generation == 1


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_CORRUPT, StateCorruptError),
        (sqlite3.SQLITE_NOTADB, StateCorruptError),
        (sqlite3.SQLITE_IOERR | 5 << 8, StorageError),
        (sqlite3.SQLITE_FULL, StorageError),
        (sqlite3.SQLITE_BUSY | 1 << 8, StorageError),
        (sqlite3.SQLITE_CANTOPEN, UsageError),
        (sqlite3.SQLITE_READONLY, UsageError),
        (sqlite3.SQLITE_ERROR, StorageError),
    ],
)
def test_sqlite_errors_are_mapped(code: int, kind: type[ImpctlError]) -> None:
    error = sqlite3.OperationalError("it failed")
    error.sqlite_errorcode = code
    result = from_sqlite(error, Path("catalog.sqlite"))
    assert type(result) is kind
    assert result.hint
