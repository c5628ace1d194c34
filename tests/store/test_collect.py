"""Collecting removes what nothing refers to, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from impctl.data.schema import LONG
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import FragmentSet
from impctl.store.records import Collected, Leftover, NewCapture, StoredSketch
from impctl.store.store import Store
from tests.store.builders import (
    ACCESS,
    LARGE,
    FailingDisk,
    capture,
    maintain,
    no_space,
    record,
    rows,
    run_names,
    sketches_at,
)


def _ids_at(store: Store, version: int) -> tuple[int, ...] | None:
    sketches = sketches_at(store, {"sales": version})
    return None if sketches is None else sketches[0].fragments.ids


def _over_other_ranges(query: str) -> NewCapture:
    """A capture of another definition, over a partition of its own."""
    other = RangePartition("sales", "price", LONG, (1, 2))
    sketch = StoredSketch(ACCESS, "sales", "price", other, FragmentSet.of((0,), other.size))
    return replace(capture(query), fingerprint="f-2", sketches=(sketch,))


@pytest.mark.slow
def test_the_latest_sketch_versions_stay_usable(root: Path) -> None:
    changes = {3: (1,), 7: (1, 2), 20: (0,)}
    with Store.open(root) as store:
        generation = store.commit_capture(capture(ids=(4,)), {}, record())
        for version in range(1, 31):
            generation = store.commit_maintain(maintain(generation, version, changes.get(version)))
        before = {version: _ids_at(store, version) for version in range(31)}
        would = store.collectable(20)
        assert {version: _ids_at(store, version) for version in range(31)} == before
        assert store.collect(keep=20) == would
        ((old, count, size),) = [(o.query, o.count, o.bytes) for o in would.versions]
        assert (old, count) == ("q", 11)
        assert size > 11 * len('{"sales": 0}')
        after = {version: _ids_at(store, version) for version in range(31)}
        assert store.collect(keep=20) == Collected()
    assert after == {v: ids if v >= 11 else None for v, ids in before.items()}
    assert after[11] == (1, 2)


@pytest.mark.parametrize("keep", [0, 1])
def test_the_present_sketch_always_stays(store: Store, keep: int) -> None:
    generation = store.commit_capture(capture(), {}, record())
    store.commit_maintain(maintain(generation, 1))
    store.collect(keep=keep)
    assert _ids_at(store, 1) == (2, 3)
    assert _ids_at(store, 0) is None
    assert store.load("q") is not None


def test_sketches_of_earlier_captures_go_with_their_partitions(store: Store) -> None:
    store.commit_capture(capture("other"), {}, record())
    generation = store.commit_capture(capture(), {}, record())
    store.commit_maintain(maintain(generation, 1, (0,)))
    store.commit_capture(capture(version=2, ids=(1,)), {}, record())
    assert [old.count for old in store.collect(keep=1).versions] == [2]
    assert _ids_at(store, 2) == (1,)
    store.commit_capture(_over_other_ranges("q"), {}, record())
    assert store.collect().partitions == 0  # the other query has the same
    store.commit_capture(_over_other_ranges("other"), {}, record())
    collect = store.collect()
    assert collect.partitions == 1
    assert collect.partition_bytes > 50


def test_only_run_files_without_a_run_are_removed(store: Store, root: Path) -> None:
    store.commit_capture(capture(), {"agg": [(0, rows(LARGE))]}, record())
    (used,) = run_names(root)
    with store.lock(0):
        (root / "state" / "left.arrow").write_bytes(b"12345")
        (root / "state" / "notes.txt").write_text("mine")
        left = root / "state" / "left.arrow"
        assert store.collectable().files == (Leftover(left, 5),)
        assert run_names(root) == {used, "left.arrow", "notes.txt"}
        collect = store.collect()
    assert collect.files == (Leftover(left, 5, removed=True),)
    assert run_names(root) == {used, "notes.txt"}


def test_a_file_that_cannot_be_removed_is_told(root: Path) -> None:
    disk = FailingDisk(no_space)
    with Store.open(root, disk=disk) as store:
        store.commit_capture(capture(), {"agg": [(0, rows(LARGE))]}, record())
        for name in ("a.arrow", "b.arrow"):
            (root / "state" / name).write_bytes(b"12345")
        disk.arm(1)  # after the note on the lock comes the first removal
        collect = store.collect()
        assert [file.removed for file in collect.files] == [False, True]
        assert (root / "state" / "a.arrow").exists()
        disk.arm(-1)
        assert [file.path.name for file in store.collect().files] == ["a.arrow"]


def test_collecting_gives_space_back(store: Store, root: Path) -> None:
    runs = {"agg": [(i, rows(2000, i)) for i in range(60)]}
    store.commit_capture(capture(), runs, record())
    store.collect()
    before = (root / "catalog.sqlite").stat().st_size
    store.commit_capture(capture(), {}, record())
    store.collect()
    assert (root / "catalog.sqlite").stat().st_size < before / 4
    assert store.load("q") is not None


def test_a_dry_run_on_an_absent_store_finds_nothing(root: Path) -> None:
    with Store.open(root, create=False) as store:
        collectable = store.collectable()
    assert collectable == Collected()
    assert not root.exists()
