"""Failures and crashes at every step of a commit, injected and real."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from impctl.errors import StorageError
from impctl.store.records import Run, StoredQuery
from impctl.store.store import Store
from tests.store.builders import (
    FAILURES,
    LARGE,
    Crash,
    FailingDisk,
    capture,
    maintain,
    no_space,
    record,
    referenced,
    rows,
    run_names,
    started,
    state_of,
)

State = dict[str, list[tuple[int, pa.Table]]]

_OLD: State = {"agg": [(0, rows(LARGE)), (1, rows(30))], "gone": [(0, rows(LARGE, 4))]}


def _prepare(root: Path) -> int:
    with Store.open(root) as store:
        return store.commit_capture(capture(), _OLD, record("capture"))


def _commit(store: Store, generation: int, kind: str) -> None:
    if kind == "capture":
        runs = {"agg": [(0, rows(LARGE, 7)), (1, rows(LARGE, 8)), (2, rows(9))]}
        store.commit_capture(capture(version=1, ids=(0,)), runs, record("capture", 1))
    else:
        put = (("agg", 0, rows(LARGE, 7)), ("agg", 1, rows(LARGE, 8)), ("agg", 2, rows(9)))
        store.commit_maintain(maintain(generation, 1, (0,), put=put, drop=(("gone", 0),)))


def _check(root: Path, *, may_be_new: bool, may_be_old: bool) -> StoredQuery:
    """The store holds one whole commit, and nothing else once it was collected."""
    with Store.open(root) as store:
        held = store.load("q")
        state = state_of(store, "q")
        if held.versions == {"sales": 0}:
            assert may_be_old
            assert held.sketches == capture().sketches
            assert _same(state, _OLD)
        else:
            assert may_be_new
            assert held.versions == {"sales": 1}
            assert held.sketches[0].fragments.ids == (0,)
            assert [sequence for sequence, _ in state["agg"]] == [0, 1, 2]
            assert state["agg"][0][1].equals(rows(LARGE, 7))
            assert list(state) == ["agg"]
        store.collect()
        assert len(run_names(root)) == referenced(store)
        assert _same(state_of(store, "q"), state)
        # and the store goes on from here
        following = maintain(held.generation, 2, (1, 2), put=(("more", 0, rows(LARGE, 3)),))
        store.commit_maintain(following)
        assert state_of(store, "q")["more"][0][1].equals(rows(LARGE, 3))
    return held


def _same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(
        [sequence for sequence, _ in one[name]] == [sequence for sequence, _ in other[name]]
        and all(a.equals(b) for (_, a), (_, b) in zip(one[name], other[name], strict=True))
        for name in one
    )


def _steps(root: Path, kind: str) -> list[str]:
    generation = _prepare(root)
    disk = FailingDisk(no_space)
    with Store.open(root, disk=disk) as store:
        disk.arm(-1)
        _commit(store, generation, kind)
        return list(disk.steps)


@FAILURES
@pytest.mark.parametrize("kind", ["capture", "maintain"])
def test_the_last_commit_survives_a_failure_at_every_step(
    tmp_path: Path, kind: str, failure: type[Crash], late: bool
) -> None:
    steps = _steps(tmp_path / "probe", kind)
    assert {"create", "write", "sync", "sync_folder", "begin", "commit", "remove"} <= set(steps)
    outcomes = set()
    generation = _prepare(tmp_path / "prepared")
    for at, step in enumerate(steps):
        root = tmp_path / str(at)
        shutil.copytree(tmp_path / "prepared", root)
        disk = FailingDisk(failure, late=late)
        store = Store.open(root, disk=disk)
        disk.arm(at)
        is_after = steps.index("commit") < at or (step == "commit" and late)
        is_after |= failure is no_space and step == "put_note"
        if failure is no_space and step in ("remove", "put_note"):
            _commit(store, generation, kind)  # collected later; the lock holds without a note
        else:
            with pytest.raises(Crash if failure is Crash else StorageError) as caught:
                _commit(store, generation, kind)
            if isinstance(caught.value, StorageError):
                assert caught.value.exit_code == 6
                assert caught.value.hint
        store.close()
        held = _check(root, may_be_new=is_after, may_be_old=not is_after)
        outcomes.add(held.versions["sales"])
    assert outcomes == {0, 1}


def test_a_failed_commit_can_be_repeated_through_the_same_store(tmp_path: Path) -> None:
    root = tmp_path / "store"
    generation = _prepare(root)
    disk = FailingDisk(no_space)
    with Store.open(root, disk=disk) as store:
        steps = _steps(tmp_path / "probe", "maintain")
        for at in range(steps.index("commit") + 1):
            if steps[at] == "put_note":
                continue  # the lock holds without it
            disk.arm(at)
            with pytest.raises(StorageError):
                _commit(store, generation, "maintain")
            held = store.load("q")
            assert held.generation == generation
            assert _same(state_of(store, "q"), _OLD)
        disk.arm(-1)
        _commit(store, generation, "maintain")
        assert len(run_names(root)) == referenced(store)
    _check(root, may_be_new=True, may_be_old=False)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_what_a_new_store_commits_first_outlives_a_power_cut(tmp_path: Path, depth: int) -> None:
    """The folders above it that were made for it, too, and the one of state."""
    root = tmp_path.joinpath(*"abc"[:depth], "store")
    disk = FailingDisk(Crash)
    with Store.open(root, disk=disk) as store:
        store.commit_capture(capture(), _OLD, record("capture"))
        disk.arm(0)
        with pytest.raises(Crash):
            disk.step("power cut", lambda: None, lambda: None)
    _check(root, may_be_new=False, may_be_old=True)


def test_leftovers_of_a_crash_go_with_the_next_writer(tmp_path: Path) -> None:
    root = tmp_path / "store"
    generation = _prepare(root)
    disk = FailingDisk(Crash)
    store = Store.open(root, disk=disk)
    disk.arm(_steps(tmp_path / "probe", "maintain").index("begin"))
    with pytest.raises(Crash):
        _commit(store, generation, "maintain")
    store.close()
    assert len(run_names(root)) == 4
    with Store.open(root) as next_store:
        assert len(run_names(root)) == 4  # readers leave everything alone
        with next_store.lock(0):
            assert len(run_names(root)) == 2


def state_at(version: int) -> tuple[Run, ...]:
    """What the killed process puts at each version: a run in a file every third time."""
    large = 70_000 if version % 3 == 0 else 40
    numbers = pa.table({"n": np.arange(large + version)})
    return (("agg", version % 5, numbers), ("top", 0, pa.table({"v": [version] * version})))


_WORKER = """
import sys
from pathlib import Path
from impctl.store.store import Store
from tests.store.builders import maintain
from tests.store.test_crash import state_at

with Store.open(Path(sys.argv[1])) as store:
    with store.lock(10):
        held = store.load("q")
        generation, version = held.generation, held.versions["sales"]
        print("ready", flush=True)
        while True:
            version += 1
            ids = tuple(i for i in range(5) if version >> i & 1)
            change = maintain(generation, version, ids, put=state_at(version))
            generation = store.commit_maintain(change)
"""


@pytest.mark.slow
def test_a_killed_process_leaves_sketch_state_and_version_in_step(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with Store.open(root) as store:
        store.commit_capture(capture(ids=()), {}, record("capture"))
    generator = random.Random(3)
    versions = [0]
    end = time.monotonic() + 6
    while time.monotonic() < end:
        with started(_WORKER, root) as worker:
            assert worker.stdout.readline() == "ready\n"
            time.sleep(generator.random() * 0.25)
            os.kill(worker.pid, signal.SIGKILL)
        versions.append(_in_step(root))
    assert versions == sorted(versions)
    assert versions[-1] >= 5
    with Store.open(root) as store, store.lock(0) as held:
        assert held.recovered is not None
        assert len(run_names(root)) == referenced(store)


def _in_step(root: Path) -> int:
    """The version that pins, sketch, state and state's description all agree on."""
    with Store.open(root, create=False) as store:
        held = store.load("q")
        version = held.versions["sales"]
        state = state_of(store, "q")
    assert held.sketches[0].fragments.ids == tuple(i for i in range(5) if version >> i & 1)
    if version > 0:
        assert held.state_meta == {"at": version}
        for arrangement, sequence, table in state_at(version):
            assert dict(state[arrangement])[sequence].equals(table)
    assert held.generation == version + 1
    return version
