"""Unused state is checked once a day, in limited amounts."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from impctl.data.pages import PAGE, PagedTable
from impctl.errors import StateCorruptError
from impctl.store import states
from impctl.store.store import DUE, Store
from tests.store.builders import LARGE, capture, record, rows
from tests.support.kept_workload import in_catalog


@pytest.fixture
def root(root: Path) -> Path:
    with Store.open(root) as store:
        runs = {"agg": [(0, rows(LARGE)), (1, rows(LARGE, 1)), (2, rows(10))]}
        store.commit_capture(capture(), runs, record())
    return root


def files(root: Path) -> list[Path]:
    return sorted((root / "state").iterdir())


def age_files(root: Path, seconds: float) -> None:
    mtime = time.time() - seconds
    for file in files(root):
        os.utime(file, (mtime, mtime))


def alter(file: Path, position: int) -> None:
    data, mtime = bytearray(file.read_bytes()), file.stat().st_mtime
    data[position] ^= 1
    file.write_bytes(data)
    os.utime(file, (mtime, mtime))


def test_files_are_due_a_day_after_write_or_check(store: Store, root: Path) -> None:
    assert store.scrub(1 << 30).size == 0
    age_files(root, DUE + 1)
    assert store.scrub(0).size == 0
    assert store.scrub(1 << 30).size >= sum(file.stat().st_size for file in files(root))
    assert store.scrub(1 << 30).size == 0


def test_scrub_continues_where_the_last_ended(root: Path) -> None:
    age_files(root, DUE + 1)
    pages = sum(-(-file.stat().st_size // PAGE) for file in files(root))
    checked = []
    with Store.open(root) as store:
        while (result := store.scrub(10 * PAGE)).size:
            assert not result.damaged
            checked.append(result.size // PAGE)
    assert sum(checked) == pages
    assert set(checked[:-1]) == {10}


def test_damage_is_reported_each_time_and_stops_no_check(root: Path) -> None:
    age_files(root, DUE + 1)
    bad, good = files(root)
    alter(bad, 5 * PAGE + 3)
    with Store.open(root) as store:
        for size in (good.stat().st_size, 0):
            result = store.scrub(1 << 30)
            assert -(-size // PAGE) * PAGE == result.size
            ((query, error),) = result.damaged
            assert query == "q"
            assert bad.name in str(error)
        bad.unlink()
        ((_, error),) = store.scrub(1 << 30).damaged
        assert "cannot be read" in error.message


def kinds(store: Store) -> set[type]:
    return {type(stored) for runs in store.load_runs("q").values() for _, stored in runs}


def test_altered_checksums_are_refused(root: Path) -> None:
    in_catalog(root, "UPDATE run SET sums = zeroblob(length(sums)) WHERE sums IS NOT NULL")
    with Store.open(root) as store, pytest.raises(StateCorruptError, match="of its checksums"):
        store.load_runs("q")


def test_small_change_checks_few_pages(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "BLOB_LIMIT", 0)
    with Store.open(root) as store:
        (_, stored), *_ = store.load_runs("q")["agg"]
        assert isinstance(stored, PagedTable)
        assert stored.pages._left > 0.9 * len(stored.pages._sums)


def test_query_with_damaged_rows_is_skipped(root: Path) -> None:
    with Store.open(root) as store:
        store.commit_capture(capture(query="z"), {"agg": [(0, rows(LARGE, 5))]}, record())
    age_files(root, DUE + 1)
    in_catalog(root, "UPDATE query SET sql = 'SELECT 2' WHERE name = 'q'")
    with Store.open(root) as store:
        result = store.scrub(1 << 30)
        assert result.size > 0
        assert not result.damaged


def test_queries_without_due_files_are_not_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("nothing is due")

    monkeypatch.setattr(states, "stored_runs", refused)
    with Store.open(root) as store:
        assert store.scrub(1 << 30).size == 0
        age_files(root, DUE + 1)
        with pytest.raises(AssertionError, match="nothing is due"):
            store.scrub(1 << 30)
