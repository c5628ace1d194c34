"""Failures and crashes at each step of a commit; damage; scratch folders; formats."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from impctl.errors import ImpctlError, StateCorruptError, StorageError
from impctl.store.disk import BENCH_SCRATCH, abandoned, remove_abandoned, scratch_folder
from impctl.store.records import Leftover, Run, StoredQuery
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
    steps_to_fail,
)
from tests.support.kept_workload import in_catalog
from tests.support.run_cli import refused

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
    """Check that the store holds one complete commit and, once collected, nothing else."""
    with Store.open(root) as store:
        stored = store.load("q")
        state = state_of(store, "q")
        if stored.versions == {"sales": 0}:
            assert may_be_old
            assert stored.sketches == capture().sketches
            assert _same(state, _OLD)
        else:
            assert may_be_new
            assert stored.versions == {"sales": 1}
            assert stored.sketches[0].ranges.ids == (0,)
            assert [sequence for sequence, _ in state["agg"]] == [0, 1, 2]
            assert state["agg"][0][1].equals(rows(LARGE, 7))
            assert list(state) == ["agg"]
        store.collect()
        assert len(run_names(root)) == referenced(store)
        assert _same(state_of(store, "q"), state)
        # The store can continue from here.
        following = maintain(stored.generation, 2, (1, 2), put=(("more", 0, rows(9, 3)),))
        store.commit_maintain(following)
        assert state_of(store, "q")["more"][0][1].equals(rows(9, 3))
    return stored


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
def test_last_commit_survives_failure_at_each_step(
    tmp_path: Path, kind: str, failure: type[Crash], late: bool
) -> None:
    steps = _steps(tmp_path / "probe", kind)
    assert {"create", "write", "sync", "sync_folder", "begin", "commit", "remove"} <= set(steps)
    outcomes = set()
    generation = _prepare(tmp_path / "prepared")
    for i, step in steps_to_fail(steps):
        root = tmp_path / str(i)
        shutil.copytree(tmp_path / "prepared", root)
        disk = FailingDisk(failure, late=late)
        store = Store.open(root, disk=disk)
        disk.arm(i)
        is_after = steps.index("commit") < i or (step == "commit" and late)
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
        outcomes.add(_check(root, may_be_new=is_after, may_be_old=not is_after).versions["sales"])
    assert outcomes == {0, 1}


def test_failed_commit_is_repeatable_in_the_same_store(tmp_path: Path) -> None:
    root = tmp_path / "store"
    generation = _prepare(root)
    disk = FailingDisk(no_space)
    with Store.open(root, disk=disk) as store:
        steps = _steps(tmp_path / "probe", "maintain")
        for i, step in steps_to_fail(steps[: steps.index("commit") + 1]):
            if step == "put_note":
                continue  # the lock holds without it
            disk.arm(i)
            with pytest.raises(StorageError):
                _commit(store, generation, "maintain")
            assert store.load("q").generation == generation
            assert _same(state_of(store, "q"), _OLD)
        disk.arm(-1)
        _commit(store, generation, "maintain")
        assert len(run_names(root)) == referenced(store)
    _check(root, may_be_new=True, may_be_old=False)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_first_commit_survives_a_power_cut(tmp_path: Path, depth: int) -> None:
    """This includes its state folder and parent folders created for it."""
    root = tmp_path.joinpath(*"abc"[:depth], "store")
    disk = FailingDisk(Crash)
    with Store.open(root, disk=disk) as store:
        store.commit_capture(capture(), _OLD, record("capture"))
        disk.arm(0)
        with pytest.raises(Crash):
            disk.step("power cut", lambda: None, lambda: None)
    _check(root, may_be_new=False, may_be_old=True)


def test_next_writer_removes_files_of_a_crash(tmp_path: Path) -> None:
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
        assert len(run_names(root)) == 4  # readers remove nothing
        with next_store.lock(0):
            assert len(run_names(root)) == 2


def state_at(version: int) -> tuple[Run, ...]:
    """The runs that the killed process stores at a version; every third has a file."""
    large = 70_000 if version % 3 == 0 else 40
    numbers = pa.table({"n": np.arange(large + version)})
    return (("agg", version % 5, numbers), ("top", 0, pa.table({"v": [version] * version})))


_WORKER = """
import sys
from pathlib import Path
from impctl.store.store import Store
from tests.store.builders import maintain
from tests.store.test_disk import state_at

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
def test_killed_process_leaves_consistent_commits(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with Store.open(root) as store:
        store.commit_capture(capture(ids=()), {}, record("capture"))
    generator = random.Random(3)
    versions = [0]
    end = time.monotonic() + 3
    while time.monotonic() < end:
        with started(_WORKER, root) as worker:
            assert worker.stdout.readline() == "ready\n"
            time.sleep(generator.random() * 0.25)
            os.kill(worker.pid, signal.SIGKILL)
        versions.append(_in_step(root))
    assert versions == sorted(versions)
    assert versions[-1] >= 5
    with Store.open(root) as store, store.lock(0) as recovered:
        assert recovered is not None
        assert len(run_names(root)) == referenced(store)


def _in_step(root: Path) -> int:
    """The stored version; checks that pins, sketch, state and its metadata agree on it."""
    with Store.open(root, create=False) as store:
        stored = store.load("q")
        version = stored.versions["sales"]
        state = state_of(store, "q")
    assert stored.sketches[0].ranges.ids == tuple(i for i in range(5) if version >> i & 1)
    if version > 0:
        assert stored.state_meta == {"at": version}
        for name, sequence, table in state_at(version):
            assert dict(state[name])[sequence].equals(table)
    assert stored.generation == version + 1
    return version


@pytest.fixture
def root(root: Path) -> Path:
    with Store.open(root) as store:
        runs = {"agg": [(0, rows(LARGE)), (1, rows(50))]}
        generation = store.commit_capture(capture(), runs, record("capture"))
        store.commit_maintain(maintain(generation, 1, (1,), put=(("agg", 2, rows(20)),)))
    return root


def _state_file(root: Path) -> Path:
    (result,) = (root / "state").iterdir()
    return result


def _state_read(store: Store) -> object:
    return state_of(store, "q")


def _query_read(store: Store) -> object:
    return store.load("q")


def _versions_read(store: Store) -> object:
    return [store.load_kept("q", kept.generation) for kept in store.kept("q")]


def test_altered_bytes_of_a_state_file_are_noticed(root: Path) -> None:
    path = _state_file(root)
    content = path.read_bytes()
    generator = random.Random(1)
    positions = [
        0,
        1,
        len(content) // 2,
        len(content) - 1,
        *generator.sample(range(len(content)), 25),
    ]
    with Store.open(root) as store:
        for position in positions:
            altered = bytearray(content)
            altered[position] ^= 1 << generator.randrange(8)
            path.write_bytes(altered)
            with pytest.raises(StateCorruptError, match=path.name):
                state_of(store, "q")
        path.write_bytes(content)
        assert state_of(store, "q")["agg"][0][1].equals(rows(LARGE))


@pytest.mark.parametrize("keep", [0, 1, 4096, -4096, -1, None], ids=str)
def test_a_state_file_of_another_length_is_noticed(root: Path, keep: int | None) -> None:
    path = _state_file(root)
    content = path.read_bytes()
    path.write_bytes(content[:keep] if keep is not None else content + b"\0")
    with Store.open(root) as store, pytest.raises(StateCorruptError, match="length"):
        state_of(store, "q")
    path.unlink()
    path.mkdir()
    with Store.open(root) as store, pytest.raises(StateCorruptError):
        state_of(store, "q")


@pytest.mark.parametrize(
    ("read", "statement"),
    [
        (_state_read, "UPDATE run SET content = zeroblob(length(content)) WHERE content NOT NULL"),
        (_state_read, "UPDATE run SET content = NULL"),
        (_state_read, "UPDATE run SET rows = rows + 1"),
        (_state_read, "DELETE FROM run WHERE sequence = 1"),
        (_state_read, "UPDATE run SET sequence = sequence + 10"),
        (_query_read, "UPDATE query SET sql = 'SELECT 2'"),
        (_query_read, "UPDATE query SET mode = 'touch'"),
        (_query_read, "UPDATE progress SET generation = 1"),
        (_query_read, "UPDATE progress SET slack_bound = 5"),
        (_query_read, "UPDATE progress SET assumptions = '[]'"),
        (_query_read, "DELETE FROM progress"),
        (_query_read, "UPDATE pin SET version = 0"),
        (_query_read, "DELETE FROM pin"),
        (_query_read, "DELETE FROM pin_schema"),
        (_query_read, "UPDATE pin_schema SET table_name = 'x'"),
        (
            _query_read,
            "INSERT INTO pin_schema SELECT query_id, 'b', schema_json, seal FROM pin_schema",
        ),
        (_query_read, "UPDATE sketch SET bits = x'00'"),
        (_query_read, "UPDATE sketch SET generation = 5 WHERE generation = 2"),
        (_query_read, "DELETE FROM sketch WHERE generation = 2"),
        (_query_read, "DELETE FROM sketch"),
        (_query_read, "DELETE FROM sketched"),
        (_query_read, "UPDATE sketched SET partition_id = 'x'"),
        (_query_read, "DELETE FROM sketch_version"),
        (_query_read, "UPDATE sketch_version SET captured = 2"),
        (_query_read, "UPDATE partition SET content = replace(content, '601', '602')"),
        (_query_read, "DELETE FROM partition"),
        # The basis of another version could hide lost history.
        (_versions_read, "UPDATE sketch_basis SET basis = '{}'"),
        (_versions_read, "UPDATE sketch_basis SET assumptions = '[]'"),
        (_versions_read, "UPDATE sketch_basis SET generation = 3 - generation"),
        (_versions_read, "UPDATE sketch_version SET versions = '{\"sales\": 0}'"),
        (_versions_read, "UPDATE sketch SET bits = x'00'"),
    ],
)
def test_altered_rows_of_the_catalog_are_noticed(
    root: Path, read: Callable[[Store], object], statement: str
) -> None:
    if "3 - generation" in statement:
        # Swapping rows in one statement would violate the primary key.
        in_catalog(root, "DELETE FROM sketch_basis WHERE generation = 2")
    in_catalog(root, statement)
    with Store.open(root) as store, pytest.raises(StateCorruptError) as caught:
        read(store)
    assert caught.value.hint


@pytest.mark.slow
def test_random_catalog_damage_gives_no_wrong_result(root: Path) -> None:
    path = root / "catalog.sqlite"
    content = path.read_bytes()
    expected = _everything(root)
    generator = random.Random(7)
    refused = 0
    for _ in range(100):
        altered = bytearray(content)
        for _ in range(generator.choice([1, 1, 4, 64])):
            altered[generator.randrange(len(altered))] = generator.randrange(256)
        path.write_bytes(altered)
        try:
            everything = _everything(root)
        except ImpctlError as error:
            refused += error.hint is not None
        else:
            assert everything in (expected, None)
        for rest in root.glob("catalog.sqlite-*"):
            rest.unlink()
    assert refused > 8


@pytest.mark.parametrize("content", [b"no database at all" * 500, b"\0" * 8192])
def test_file_that_is_no_catalog_is_refused(root: Path, content: bytes) -> None:
    (root / "catalog.sqlite").write_bytes(content)
    with refused(StateCorruptError, "catalog_corrupt") as caught:
        Store.open(root)
    assert "capture" in (caught.value.hint or "")


def _everything(root: Path) -> object:
    """The contents of the store in comparable form; None if the query is missing."""
    with Store.open(root) as store:
        stored = store.load("q")
        if stored is None:
            return None
        runs = {
            name: [(sequence, table.to_pydict()) for sequence, table in result]
            for name, result in state_of(store, "q").items()
        }
        return stored, repr(runs)


def test_too_many_open_files_is_not_corruption(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with Store.open(root) as store:
        monkeypatch.setattr(os, "open", none_left)
        with pytest.raises(StorageError):
            store.load_runs("q")


_OWNER = """
import sys
from pathlib import Path
from impctl.cli.signals import raise_on_signal, take_signals
from impctl.store.disk import scratch_folder
take_signals(lambda: None)
raise_on_signal()
with scratch_folder(".impctl-bench-", Path(sys.argv[1])) as folder:
    (folder / "t").mkdir()
    (folder / "t" / "part").write_bytes(b"12345")
    print(folder, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@contextmanager
def owner(parent: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process with a scratch folder."""
    with started(_OWNER, parent, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


@pytest.mark.usefixtures("_own_temporary_folder")
def test_scratch_folder_is_private_and_removed_on_error(tmp_path: Path) -> None:
    def work() -> None:
        with scratch_folder(BENCH_SCRATCH, tmp_path) as folder:
            assert folder.parent == tmp_path
            assert folder.stat().st_mode & 0o077 == 0
            (folder / "a" / "b").mkdir(parents=True)
            (folder / "a" / "b" / "c").write_text("x")
            (folder / "a" / "link").symlink_to(tmp_path)
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_own_temporary_folder")
def test_only_folders_of_dead_owners_are_removed(tmp_path: Path) -> None:
    with owner(tmp_path) as (process, folder):
        assert abandoned([tmp_path]) == ()
        assert not remove_abandoned(Leftover(folder, 0), FailingDisk(no_space))
        assert (folder / "t" / "part").exists()
        process.kill()
        process.wait()
        assert abandoned([tmp_path]) == (Leftover(folder, 5),)
        assert (folder / "t" / "part").exists()
        # The next process that creates a folder there cleans up first.
        with scratch_folder(BENCH_SCRATCH, tmp_path) as following:
            assert list(tmp_path.iterdir()) == [following]


@pytest.mark.usefixtures("_own_temporary_folder")
@pytest.mark.usefixtures("heard_signals")
def test_signals_remove_scratch_folders(tmp_path: Path) -> None:
    with owner(tmp_path) as one, owner(tmp_path) as two, owner(tmp_path) as three:
        numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
        for (process, folder), number in zip((one, two, three), numbers, strict=True):
            assert folder.exists()
            process.send_signal(number)
            if number is not signal.SIGINT:
                process.send_signal(number)  # `timeout` signals the process and its group
        for process, _ in (one, two, three):
            process.wait()
        assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_own_temporary_folder")
def test_only_clearly_abandoned_folders_are_found(tmp_path: Path) -> None:
    empty, full, old = (tmp_path / f"{BENCH_SCRATCH}{name}" for name in ("empty", "full", "old"))
    for folder in (empty, full, old, tmp_path / "elsewhere"):
        folder.mkdir()
    for folder in (full, old):
        (folder / "part").write_text("123")  # of a version without owner files
    os.utime(old, (0, 0))
    (tmp_path / f"{BENCH_SCRATCH}link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / f"{BENCH_SCRATCH}file").write_text("mine")
    assert [left.path for left in abandoned([tmp_path])] == [empty, old]
    assert abandoned([tmp_path / "missing", tmp_path / f"{BENCH_SCRATCH}file"]) == ()


@pytest.mark.usefixtures("_own_temporary_folder")
def test_hard_links_have_no_size(tmp_path: Path) -> None:
    folder = tmp_path / f"{BENCH_SCRATCH}x"
    folder.mkdir()
    (tmp_path / "data").write_bytes(b"0" * 1000)
    os.link(tmp_path / "data", folder / "data")
    (folder / ".owner").touch()
    (folder / "own").write_bytes(b"0" * 10)
    (left,) = abandoned([tmp_path])
    assert left.bytes == 10
    assert remove_abandoned(left, FailingDisk(no_space))
    assert (tmp_path / "data").stat().st_size == 1000


@pytest.mark.usefixtures("_own_temporary_folder")
@pytest.mark.parametrize("failure", [Crash, no_space], ids=["crash", "no space"])
def test_interrupted_removal_is_resumed(tmp_path: Path, failure: type[Crash]) -> None:
    step = 0
    while True:
        folder = tmp_path / f"{BENCH_SCRATCH}{step}"
        (folder / "t" / "log").mkdir(parents=True)
        for name in (".owner", "a", "t/b", "t/log/c"):
            (folder / name).write_text(name)
        disk = FailingDisk(failure)
        disk.arm(step)
        (left,) = abandoned([tmp_path])
        try:
            done = remove_abandoned(left, disk)
        except Crash:
            done = False
        assert done == (not folder.exists())
        if step >= len(disk.steps):
            assert done
            return
        assert not done
        (left,) = abandoned([tmp_path])
        assert remove_abandoned(left, FailingDisk(no_space))
        step += 1


@pytest.mark.parametrize(
    "statement",
    ["PRAGMA application_id = 7", "PRAGMA user_version = 0", "PRAGMA user_version = -1"],
)
def test_a_foreign_database_is_refused(root: Path, statement: str) -> None:
    in_catalog(root, statement)
    with pytest.raises(StateCorruptError):
        Store.open(root)


def test_interrupted_creation_is_finished(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    (root / "catalog.sqlite").touch()
    with Store.open(root, create=False) as store:
        assert store.queries() == ()
    assert (root / "catalog.sqlite").stat().st_size == 0
    with Store.open(root) as store:
        store.commit_capture(capture(), {}, record())
    with Store.open(root) as store:
        assert store.queries() == ("q",)
