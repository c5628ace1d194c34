"""Collecting removes what nothing refers to, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from impctl.store.store import Store
from tests.store.builders import LARGE, capture, maintain, record, rows, run_names


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / ".impctl"


def _ids_at(store: Store, version: int) -> tuple[int, ...] | None:
    found = store.sketch_at("q", {"sales": version})
    return None if found is None else found[0].fragments.ids


def test_the_latest_sketch_versions_stay_usable(root: Path) -> None:
    changes = {3: (1,), 7: (1, 2), 20: (0,)}
    with Store.open(root) as store:
        generation = store.commit_capture(capture(ids=(4,)), {}, record())
        for version in range(1, 31):
            generation = store.commit_maintain(maintain(generation, version, changes.get(version)))
        before = {version: _ids_at(store, version) for version in range(31)}
        would = store.collect(keep=20, dry_run=True)
        assert {version: _ids_at(store, version) for version in range(31)} == before
        assert store.collect(keep=20) == would
        assert would.sketch_versions == 11
        after = {version: _ids_at(store, version) for version in range(31)}
        assert store.collect(keep=20).sketch_versions == 0
    assert after == {v: ids if v >= 11 else None for v, ids in before.items()}
    assert after[11] == (1, 2)


@pytest.mark.parametrize("keep", [0, 1])
def test_the_present_sketch_always_stays(root: Path, keep: int) -> None:
    with Store.open(root) as store:
        generation = store.commit_capture(capture(), {}, record())
        store.commit_maintain(maintain(generation, 1))
        store.collect(keep=keep)
        assert _ids_at(store, 1) == (2, 3)
        assert _ids_at(store, 0) is None
        assert store.load("q") is not None


def test_sketches_of_earlier_captures_go_with_their_partitions(root: Path) -> None:
    with Store.open(root) as store:
        store.commit_capture(capture("other"), {}, record())
        generation = store.commit_capture(capture(), {}, record())
        store.commit_maintain(maintain(generation, 1, (0,)))
        store.commit_capture(capture(version=2, ids=(1,)), {}, record())
        assert store.collect(keep=1).sketch_versions == 2
        assert _ids_at(store, 2) == (1,)
        store.forget("q")
        assert store.collect().partitions == 0  # the other query has the same
        store.forget("other")
        assert store.collect().partitions == 1


def test_only_run_files_without_a_run_are_removed(root: Path) -> None:
    with Store.open(root) as store:
        store.commit_capture(capture(), {"agg": [(0, rows(LARGE))]}, record())
        (used,) = run_names(root)
        with store.lock(0):
            (root / "state" / "left.arrow").write_bytes(b"12345")
            (root / "state" / "notes.txt").write_text("mine")
            assert store.collect(dry_run=True).files == ("left.arrow",)
            assert run_names(root) == {used, "left.arrow", "notes.txt"}
            found = store.collect()
        assert (found.files, found.bytes) == (("left.arrow",), 5)
        assert run_names(root) == {used, "notes.txt"}


def test_collecting_gives_space_back(root: Path) -> None:
    with Store.open(root) as store:
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
        found = store.collect(dry_run=True)
    assert (found.files, found.sketch_versions) == ((), 0)
    assert not root.exists()
