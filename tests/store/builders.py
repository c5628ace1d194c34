"""Values for the stores of these tests, and failing disks."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from impctl.data.pages import whole_table
from impctl.data.schema import LONG
from impctl.sketch.sketch import MaintenanceMode, RangePartition, RangeSet
from impctl.store import records
from impctl.store.disk import OutputFile, RealDisk
from impctl.store.reader import StoreReader
from impctl.store.store import Store

PARTITION = RangePartition("sales", "price", LONG, (601, 1001, 1501))
ACCESS = "sales#1"


def ranges(*ids: int) -> RangeSet:
    return RangeSet.of(ids, PARTITION.size)


def pin(version: int, table: str = "sales", table_id: str = "t-1") -> records.TablePin:
    return records.TablePin(table, f"/data/{table}", table_id, version, '{"type":"struct"}')


def record(action: str = "exact", version: int = 0) -> records.RunRecord:
    return records.RunRecord(
        action=action,
        reason_code="maintainable",
        reason="because",
        started_at=1.5,
        elapsed_ms=4.0,
        read_ms=1.0,
        engine_ms=2.0,
        commit_ms=1.0,
        changes=10,
        added=1,
        removed=0,
        versions={"sales": version},
    )


@functools.cache
def rows(count: int, seed: int = 0) -> pa.Table:
    """Rows with columns of all widths, with NULLs."""
    names = pa.array(np.arange(count)).cast(pa.string())
    generator = np.random.default_rng(seed)
    return pa.table(
        {
            "key": generator.integers(0, 1 << 60, count),
            "count": generator.integers(1, 9, count).astype(np.int32),
            "sum": generator.random(count),
            "name": pc.if_else(pa.array(np.arange(count) % 3 > 0), names, None),
        }
    )


LARGE = 15_000
"""Enough rows for a state file."""


def capture(
    query: str = "q", version: int = 0, ids: tuple[int, ...] = (2, 3)
) -> records.NewCapture:
    return records.NewCapture(
        query=query,
        fingerprint="f-1",
        sql="SELECT 1",
        mode=MaintenanceMode.EXACT,
        pins=(pin(version),),
        sketches=(records.StoredSketch(ACCESS, "sales", "price", PARTITION, ranges(*ids)),),
        assumptions=(records.Assumption("sales", "price", "nonnegative", "statistics"),),
        state_meta={"operators": [1, 2]},
        basis={"at": version},
    )


def maintain(
    generation: int,
    version: int,
    ids: tuple[int, ...] | None = None,
    put: tuple[records.Run, ...] = (),
    drop: tuple[tuple[str, int], ...] = (),
    query: str = "q",
) -> records.MaintainCommit:
    return records.MaintainCommit(
        query=query,
        expected_generation=generation,
        pins=(pin(version),),
        record=record(version=version),
        sketches=() if ids is None else ((ACCESS, ranges(*ids)),),
        put_runs=put,
        drop_runs=drop,
        state_meta={"at": version},
        basis={"at": version},
    )


def sketches_at(
    store: Store, versions: Mapping[str, int], query: str = "q"
) -> tuple[records.StoredSketch, ...] | None:
    """The sketches of the latest commit at exactly these versions."""
    for kept_version in store.kept(query, versions):
        result = store.load_kept(query, kept_version.generation)
        assert result.versions == kept_version.versions == versions
        assert result.state_meta == kept_version.basis
        return result.sketches
    return None


def run_names(root: Path) -> set[str]:
    folder = root / "state"
    return {entry.name for entry in folder.iterdir()} if folder.exists() else set()


def referenced(store: Store, query: str = "q") -> int:
    return sum(ref.is_file for ref in store.run_refs(query))


def started(script: str, *arguments: object, **more: Any) -> subprocess.Popen[str]:
    """Start a process that runs the script with this process's module path."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
        **more,
    )


class Crash(BaseException):
    """A simulated end of the process."""


class FailingDisk(RealDisk):
    """A disk that fails at step number `at`. After a `Crash`, all steps fail.

    A step is one write, sync, removal, BEGIN or COMMIT. With `late`, the step takes effect first.
    A crash loses everything that was not synced: file contents, and folder entries of files and
    folders.
    """

    def __init__(self, failure: Callable[[], BaseException], *, late: bool = False) -> None:
        super().__init__()
        self._failure = failure
        self._late = late
        self.at = -1
        self.steps: list[str] = []
        self._is_dead = False
        self.unsynced: set[Path] = set()
        self.unlisted: set[Path] = set()

    def arm(self, at: int) -> None:
        self.at, self.steps = at, []

    def step(self, name: str, act: Callable[[], None], half: Callable[[], None]) -> None:
        if self._is_dead:
            raise Crash(name)
        self.steps.append(name)
        if len(self.steps) - 1 != self.at:
            act()
            return
        (act if self._late else half)()
        error = self._failure()
        if isinstance(error, Crash):
            self._is_dead = True
            self._lose_power()
        raise error

    def _lose_power(self) -> None:
        for path in self.unsynced:
            os.truncate(path, 0)
        for path in self.unlisted:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def make_folder(self, path: Path) -> tuple[Path, ...]:
        created: list[Path] = []

        def act() -> None:
            created.extend(super(FailingDisk, self).make_folder(path))
            self.unlisted.update(created)

        self.step("make_folder", act, _nothing)
        return tuple(created)

    def create(self, path: Path) -> OutputFile:
        created: list[OutputFile] = []

        def act() -> None:
            created.append(super(FailingDisk, self).create(path))
            self.unsynced.add(path)
            self.unlisted.add(path)

        self.step("create", act, _nothing)
        return _FailingFile(created[0], path, self)

    def sync_folder(self, path: Path) -> None:
        def act() -> None:
            super(FailingDisk, self).sync_folder(path)
            self.unlisted = {file for file in self.unlisted if file.parent != path}

        self.step("sync_folder", act, _nothing)

    def remove(self, path: Path) -> None:
        def act() -> None:
            super(FailingDisk, self).remove(path)
            self.unsynced.discard(path)
            self.unlisted.discard(path)

        self.step("remove", act, _nothing)

    def put_note(self, descriptor: int, note: bytes) -> None:
        def half() -> None:
            super(FailingDisk, self).put_note(descriptor, note[: len(note) // 2])

        self.step("put_note", lambda: super(FailingDisk, self).put_note(descriptor, note), half)

    def use_log(self, connection: sqlite3.Connection) -> str:
        modes: list[str] = []
        use = super().use_log
        self.step("use_log", lambda: modes.append(use(connection)), _nothing)
        return modes[0]


def _whole_step(name: str) -> Callable[..., None]:
    """A step of the disk that takes effect completely or not at all."""
    act = getattr(RealDisk, name)
    return lambda self, on: self.step(name, lambda: act(self, on), _nothing)


for _name in ("create_empty", "remove_folder", "vacuum", "checkpoint", "begin", "commit"):
    setattr(FailingDisk, _name, _whole_step(_name))


class _FailingFile:
    def __init__(self, file: OutputFile, path: Path, disk: FailingDisk) -> None:
        self._file = file
        self._path = path
        self._disk = disk

    def write(self, data: memoryview) -> None:
        half = data[: len(data) // 2]
        self._disk.step("write", lambda: self._file.write(data), lambda: self._file.write(half))

    def sync(self) -> None:
        def act() -> None:
            self._file.sync()
            self._disk.unsynced.discard(self._path)

        self._disk.step("sync", act, _nothing)

    def close(self) -> None:
        self._file.close()


def steps_to_fail(steps: Sequence[str]) -> list[tuple[int, str]]:
    """Steps with their positions; of consecutive writes only the first and the last."""
    triples = zip([None, *steps], steps, [*steps[1:], None], strict=False)
    return [
        (i, step)
        for i, (before, step, after) in enumerate(triples)
        if not before == step == after == "write"
    ]


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


FAILURES = pytest.mark.parametrize(
    ("failure", "late"),
    [
        pytest.param(Crash, False, id="crash-before"),
        pytest.param(no_space, True, id="no space-after"),
        pytest.param(Crash, True, id="crash-after", marks=pytest.mark.slow),
        pytest.param(no_space, False, id="no space-before", marks=pytest.mark.slow),
    ],
)
"""How a step of a commit fails, and whether it takes effect first."""


def _nothing() -> None:
    """The partial effect of an atomic step: none."""


def state_of(store: StoreReader, query: str) -> dict[str, list[tuple[int, pa.Table]]]:
    """The state of the query, with all pages checked."""
    return {
        name: [(sequence, whole_table(stored)) for sequence, stored in runs]
        for name, runs in store.load_runs(query).items()
    }
