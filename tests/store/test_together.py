"""Several commits in one transaction: all of them hold, or none does; one that fails is alone."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from impctl.errors import RetryableError, StateCorruptError, StorageError
from impctl.store.disk import RealDisk
from impctl.store.store import Store
from tests.store.builders import (
    FAILURES,
    LARGE,
    Crash,
    FailingDisk,
    capture,
    in_catalog,
    maintain,
    no_space,
    record,
    referenced,
    rows,
    run_names,
    state_of,
)

QUERIES = ("a", "b", "c")


def prepared(root: Path) -> Path:
    with Store.open(root) as store:
        for query in QUERIES:
            store.commit_capture(capture(query), {"agg": [(0, rows(LARGE))]}, record("capture"))
    return root


def move(store: Store, query: str, generation: int = 1) -> None:
    put = (("agg", generation, rows(LARGE, generation)),)
    dropped = (("agg", generation - 1),)
    store.commit_maintain(maintain(generation, generation, (0,), put, dropped, query))


def generations(root: Path) -> list[int]:
    """Where each query stands, its state read and every file that nothing refers to gone."""
    with Store.open(root) as store, store.lock(1.0):
        result = []
        for query in QUERIES:
            held = store.load(query)
            ((_, table),) = state_of(store, query)["agg"]
            assert table.equals(rows(LARGE, held.generation - 1))
            assert held.versions == {"sales": held.generation - 1}
            result.append(held.generation)
        assert len(run_names(root)) == sum(referenced(store, query) for query in QUERIES)
        return result


class Counting(RealDisk):
    """Counts the commits that are synced."""

    commits = 0

    def commit(self, connection: sqlite3.Connection) -> None:
        self.commits += 1
        super().commit(connection)


def test_many_commits_are_synced_once_and_read_inside(tmp_path: Path) -> None:
    root, disk = prepared(tmp_path / "s"), Counting()
    with Store.open(root, disk=disk) as store, store.lock(1.0):
        with store.together():
            assert store.load("a") is not None
            for query in QUERIES:
                move(store, query)
                move(store, query, 2)
                inside = store.load(query)
                assert inside.generation == 3
            with Store.open(root, create=False) as reader:
                before = reader.load("a")
                assert before.generation == 1
            assert disk.commits == 0
        assert disk.commits == 1
    assert generations(root) == [3, 3, 3]


def test_one_that_fails_takes_only_itself_back(tmp_path: Path) -> None:
    root = prepared(tmp_path / "s")
    with Store.open(root) as store, store.lock(1.0), store.together():
        move(store, "a")
        with pytest.raises(RetryableError):
            store.commit_maintain(maintain(7, 1, (0,), (("new", 0, rows(LARGE)),), (), "b"))
        move(store, "c")
    assert generations(root) == [2, 1, 2]


def interrupted(store: Store) -> None:
    with store.together():
        move(store, "a")
        raise KeyboardInterrupt


def test_what_was_done_before_an_interrupt_is_kept(tmp_path: Path) -> None:
    root = prepared(tmp_path / "s")
    with Store.open(root) as store, store.lock(1.0):
        with pytest.raises(KeyboardInterrupt):
            interrupted(store)
        move(store, "b")
    assert generations(root) == [2, 2, 1]


def test_what_is_only_looked_at_inside_changes_nothing(tmp_path: Path) -> None:
    root = prepared(tmp_path / "s")
    with Store.open(root) as store, store.lock(1.0), store.together():
        move(store, "a")
        assert store.collectable(keep=1).versions
        assert len(store.kept("a")) == 2
    with Store.open(root) as store:
        assert len(store.kept("a")) == 2


@FAILURES
def test_all_or_none_of_them_hold_after_a_failure_at_every_step(
    tmp_path: Path, failure: type[Crash], late: bool
) -> None:
    master = prepared(tmp_path / "prepared")
    probe = FailingDisk(no_space)
    shutil.copytree(master, tmp_path / "probe")
    together(tmp_path / "probe", probe, -1)
    assert {"create", "sync", "sync_folder", "begin", "commit", "remove"} <= set(probe.steps)
    assert probe.steps.count("commit") == 1
    outcomes = set()
    for at, step in enumerate(list(probe.steps)):
        root = tmp_path / f"{at}"
        shutil.copytree(master, root)
        disk, told = FailingDisk(failure, late=late), True
        try:
            together(root, disk, at)
        except (Crash, StorageError):
            told = False
        held = generations(root)
        is_one = failure is Crash or step == "commit"
        assert len(set(held)) == 1 if is_one else held == sorted(held, reverse=True), (step, held)
        assert not told or held == [2, 2, 2], (step, held)
        outcomes.add(held[0])
    assert outcomes == {1, 2}


def together(root: Path, disk: FailingDisk, at: int) -> None:
    """All queries moved by one transaction, with the failure at a step."""
    store = Store.open(root, disk=disk)
    try:
        with store.lock(1.0):
            disk.arm(at)
            with store.together():
                for query in QUERIES:
                    move(store, query)
    finally:
        disk.at = -1
        store.close()


def given_up(store: Store) -> None:
    with store.together():
        move(store, "a")
        # As SQLite itself does where a write finds no room.
        with store._catalog.writing() as connection:
            connection.rollback()
        with pytest.raises(StorageError, match="rolled back"):
            move(store, "b")


def test_a_transaction_that_sqlite_ends_is_told_and_takes_all_back(tmp_path: Path) -> None:
    root = prepared(tmp_path / "s")
    with (
        Store.open(root) as store,
        store.lock(1.0),
        pytest.raises(StorageError, match="rolled back"),
    ):
        given_up(store)
    assert generations(root) == [1, 1, 1]


def test_runs_that_went_missing_are_noticed_by_the_next_commit(tmp_path: Path) -> None:
    root = prepared(tmp_path / "s")
    in_catalog(root, "DELETE FROM run WHERE query_id = 1")
    with Store.open(root) as store, pytest.raises(StateCorruptError):
        store.commit_maintain(maintain(1, 1, (0,), query="a"))
