"""What a crash at every step of a whole command leaves: always usable, and `gc` takes the rest."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from deltalake import write_deltalake
from msgspec import Struct

from impctl.service.settings import FUZZ
from impctl.store import states
from impctl.store.disk import OutputFile, RealDisk
from impctl.store.store import Store
from tests.crash.processes import (
    change,
    check_nothing_left,
    check_store,
    newest,
    some_rows,
    write_workload,
)
from tests.store.builders import FailingDisk, no_space
from tests.support.run_cli import Capsys, Cli

Made = TypeVar("Made")

_CATALOG = ("catalog.sqlite", "catalog.sqlite-wal")
_SYNCHRONOUS_FULL = 2


class Photo(Struct, frozen=True):
    """`steps` were complete when it was taken; `synced` commits had been made safe by then."""

    path: Path
    kind: str
    step: str
    commits: int


class PhotoDisk(RealDisk):
    """Takes photos of the store at `root` before and after every step, into `album`."""

    def __init__(self, root: Path, album: Path) -> None:
        super().__init__()
        self._root = root
        self._album = album
        self._durable = album / "durable"
        self._synced: set[Path] = set()
        self._seen: set[str] = set()
        self.photos: list[Photo] = []
        self.steps: list[str] = []
        self.commits = 0
        album.mkdir()
        self._durable.mkdir()
        if root.exists():
            _copy(root, self._durable)
            self._synced.update((root / "state").glob("*"))

    def step(self, name: str, act: Callable[[], None]) -> None:
        if not self.steps:
            self._take("at first")
        self.steps.append(name)
        act()
        self._take(name)

    def _take(self, name: str) -> None:
        if self._root.exists():
            self._keep(self._root, "killed", name)
        if any(self._durable.iterdir()):
            self._keep(self._durable, "unplugged", name)

    def _keep(self, source: Path, kind: str, name: str) -> None:
        mark = f"{kind} {self.commits} {_digest(source)}"
        if mark in self._seen:
            return
        self._seen.add(mark)
        target = self._album / f"{len(self.photos):04d}-{kind}-{name}"
        _copy(source, target)
        self.photos.append(Photo(target, kind, f"{len(self.steps)} {name}", self.commits))

    def _catalog_is_safe(self) -> None:
        for name in _CATALOG:
            if (self._root / name).exists():
                shutil.copyfile(self._root / name, self._durable / name)

    # The steps

    def _made(self, name: str, act: Callable[[], Made]) -> Made:
        """A step that makes something."""
        made: list[Made] = []
        self.step(name, lambda: made.append(act()))
        return made[0]

    def make_folder(self, path: Path) -> tuple[Path, ...]:
        return self._made("make_folder", lambda: super(PhotoDisk, self).make_folder(path))

    def create_empty(self, path: Path) -> None:
        self.step("create_empty", lambda: super(PhotoDisk, self).create_empty(path))

    def create(self, path: Path) -> OutputFile:
        made = self._made("create", lambda: super(PhotoDisk, self).create(path))
        return _PhotoFile(made, path, self)

    def written(self, path: Path) -> None:
        self._synced.add(path)

    def sync_folder(self, path: Path) -> None:
        def act() -> None:
            super(PhotoDisk, self).sync_folder(path)
            if path.name == "state":
                target = self._durable / "state"
                shutil.rmtree(target, ignore_errors=True)
                target.mkdir()
                for file in self._synced:
                    if file.exists():
                        shutil.copyfile(file, target / file.name)

        self.step("sync_folder", act)

    def remove(self, path: Path) -> None:
        self.step("remove", lambda: super(PhotoDisk, self).remove(path))

    def put_note(self, descriptor: int, note: bytes) -> None:
        self.step("put_note", lambda: super(PhotoDisk, self).put_note(descriptor, note))

    def use_log(self, connection: sqlite3.Connection) -> str:
        mode = self._made("use_log", lambda: super(PhotoDisk, self).use_log(connection))
        self._catalog_is_safe()
        return mode

    def begin(self, connection: sqlite3.Connection) -> None:
        self.step("begin", lambda: super(PhotoDisk, self).begin(connection))

    def commit(self, connection: sqlite3.Connection) -> None:
        (mode,) = connection.execute("PRAGMA synchronous").fetchone()

        def act() -> None:
            super(PhotoDisk, self).commit(connection)
            if mode == _SYNCHRONOUS_FULL:
                self.commits += 1
                self._catalog_is_safe()

        self.step("commit", act)

    def vacuum(self, connection: sqlite3.Connection) -> None:
        self._safe_step("vacuum", lambda: super(PhotoDisk, self).vacuum(connection))

    def checkpoint(self, connection: sqlite3.Connection) -> None:
        self._safe_step("checkpoint", lambda: super(PhotoDisk, self).checkpoint(connection))

    def _safe_step(self, name: str, step: Callable[[], None]) -> None:
        """A step after which the catalog is on the disk."""

        def act() -> None:
            step()
            self._catalog_is_safe()

        self.step(name, act)


class _PhotoFile:
    def __init__(self, file: OutputFile, path: Path, disk: PhotoDisk) -> None:
        self._file = file
        self._path = path
        self._disk = disk

    def write(self, data: memoryview) -> None:
        self._disk.step("write", lambda: self._file.write(data))

    def sync(self) -> None:
        def act() -> None:
            self._file.sync()
            self._disk.written(self._path)

        self._disk.step("sync", act)

    def close(self) -> None:
        self._file.close()


def _copy(source: Path, target: Path) -> None:
    # Without SQLite's shared memory: it does not outlive the process that died.
    shutil.copytree(
        source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("catalog.sqlite-shm")
    )


def _digest(folder: Path) -> str:
    sha256 = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "catalog.sqlite-shm":
            sha256.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return sha256.hexdigest()


pytestmark = pytest.mark.slow


@pytest.fixture
def cli(tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> Cli:
    # Every run of state becomes a file: each is created, written, synced and removed.
    monkeypatch.setattr(states, "BLOB_LIMIT", 0)
    # Every commit is timed in its record: the steps are the same however slow the disk is.
    monkeypatch.setattr("impctl.store.store._WORTH_TELLING_MS", 0.0)
    return Cli(capsys, write_workload(tmp_path))


def captured(cli: Cli) -> None:
    cli.good("capture")


def stale(cli: Cli) -> None:
    """Three versions behind; by_g is maintained in one step, by_x in three."""
    cli.good("capture")
    for seed in (2, 3, 4):
        change(cli.workload.parent / "t", seed)


def drifted(cli: Cli) -> None:
    cli.good("capture")
    write_deltalake(str(cli.workload.parent / "t"), some_rows(90, 9, start=100), mode="append")


def littered(cli: Cli) -> None:
    """Old sketch versions, partitions no sketch has, files no run has, rows enough to vacuum."""
    drifted(cli)
    cli.good("capture", "--rebalance")
    for seed in range(3, 9):
        change(cli.workload.parent / "t", seed)
        cli.good("maintain")
    for name in ("a.arrow", "b.arrow"):
        (cli.workload.parent / ".impctl" / "state" / name).write_bytes(b"left")


def nothing(cli: Cli) -> None:
    """No store yet."""


SCENARIOS: dict[str, tuple[Callable[[Cli], None], tuple[str, ...], set[str]]] = {
    "first capture": (nothing, ("capture",), {"create_empty", "use_log", "sync_folder"}),
    "capture again": (stale, ("capture",), {"write", "sync", "commit", "remove"}),
    "maintain": (stale, ("maintain",), {"create", "write", "sync", "commit", "remove"}),
    "rebalance": (drifted, ("capture", "--rebalance"), {"write", "sync", "commit", "remove"}),
    "gc": (littered, ("gc", "--keep", "1"), {"commit", "remove", "checkpoint", "put_note"}),
}


scenarios = [
    pytest.param(name, marks=pytest.mark.long if name in ("capture again", "rebalance") else ())
    for name in SCENARIOS
]


def use(monkeypatch: pytest.MonkeyPatch, disk: object) -> None:
    """The disk under every store that is opened from now on."""
    monkeypatch.setattr("impctl.store.store.RealDisk", lambda: disk)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", scenarios)
def test_what_a_crash_leaves_is_usable_at_every_step(
    cli: Cli, tmp_path: Path, name: str, record_property: Callable[[str, object], None]
) -> None:
    before, command, wanted = SCENARIOS[name]
    before(cli)
    disk = PhotoDisk(tmp_path / ".impctl", tmp_path / "album")
    with pytest.MonkeyPatch.context() as patch:
        use(patch, disk)
        cli.good(*command)
    record_property("crash points", len(disk.photos))
    assert wanted <= set(disk.steps)
    assert {photo.kind for photo in disk.photos} == {"killed", "unplugged"}
    last: dict[str, dict[str, tuple[int, int]]] = {}
    for photo in disk.photos:
        states_ = _check(cli, photo)
        # What one crash would have kept, no later crash loses.
        for query, place in last.get(photo.kind, {}).items():
            assert states_[query] >= place, photo
        last[photo.kind] = states_
    final = {query: place[1] for query, place in last["killed"].items()}
    assert set(final.values()) == {newest(tmp_path / "t")}
    assert last["unplugged"] == last["killed"]


def _check(cli: Cli, photo: Photo) -> dict[str, tuple[int, int]]:
    """Go on from the photo in three ways; per query the generation and version it held."""
    table = cli.workload.parent / "t"
    store = ("--store", str(photo.path))
    assert cli("status", *store).code == 0, photo
    held = check_store(photo.path, table)
    copy = photo.path.with_name(f"{photo.path.name}-go-on")
    shutil.copytree(photo.path, copy)
    names = [word for query in held for word in ("--query", query)]
    if held:
        cli.good("maintain", "--store", str(copy), *names)
    else:
        cli.good("capture", "--store", str(copy))
    after = check_store(copy, table)
    assert {stored.versions["t"] for stored in after.values()} == {newest(table)}, photo
    cli.good("gc", *store)
    check_nothing_left(photo.path)
    assert cli.one("gc", *store)["entries"] == [], photo
    assert check_store(photo.path, table).keys() == held.keys()
    cli.good("gc", "--store", str(copy), "--keep", "1")
    check_nothing_left(copy)
    shutil.rmtree(copy)
    shutil.rmtree(photo.path)
    return {query: (stored.generation, stored.versions["t"]) for query, stored in held.items()}


@pytest.mark.parametrize("name", scenarios)
def test_a_command_on_a_full_disk_can_be_tried_again(cli: Cli, tmp_path: Path, name: str) -> None:
    before, command, wanted = SCENARIOS[name]
    before(cli)
    root, kept = tmp_path / ".impctl", tmp_path / "kept"
    kept.mkdir()
    if root.exists():
        shutil.copytree(root, kept, dirs_exist_ok=True)
    steps = _fail_at(cli, -1, command)
    assert wanted <= set(steps)
    failed = set()
    for at in _some(steps):
        shutil.rmtree(root)
        if any(kept.iterdir()):
            shutil.copytree(kept, root)
        failed.add(_fail_at(cli, at, command)[at])
        if (root / "catalog.sqlite").exists():
            check_store(root, tmp_path / "t")
        cli.good(*command)
        after = check_store(root, tmp_path / "t")
        assert {stored.versions["t"] for stored in after.values()} == {newest(tmp_path / "t")}
        cli.good("gc", "--keep", "1")
        check_nothing_left(root)
    assert wanted - {"remove"} <= failed


def _fail_at(cli: Cli, at: int, command: tuple[str, ...]) -> list[str]:
    """Run the command with no space for its step `at`; the steps it made."""
    disk = FailingDisk(no_space)
    disk.arm(at)
    remembered: set[int] = set()
    save = Store.save_arrivals

    def noted(store: Store, *histories: Any) -> None:
        start = len(disk.steps)
        try:
            save(store, *histories)
        finally:
            remembered.update(range(start, len(disk.steps)))

    with pytest.MonkeyPatch.context() as patch:
        use(patch, disk)
        patch.setattr(Store, "save_arrivals", noted)
        ran = cli(*command)
    # Only a removal may fail without failing the run: what is left is collected later, and `gc`
    # itself says so.
    can_pass = at < 0 or (disk.steps[at] == "remove" and command[0] != "gc")
    # The lock holds without its owner's name, and shrinking the catalog is worth a try only; what a
    # run was for is committed before commits of tables are remembered.
    can_pass = can_pass or disk.steps[at] in ("put_note", "vacuum", "checkpoint")
    can_pass = can_pass or at in remembered
    assert ran.code == (0 if can_pass else 6), (at, disk.steps, ran.document)
    return disk.steps


def _some(steps: list[str]) -> list[int]:
    """The first and the last step of each kind; with more cases asked for, every step."""
    if int(os.environ.get(FUZZ, "1")) > 1:
        return list(range(len(steps)))
    last = {step: at for at, step in enumerate(steps)}
    return sorted({steps.index(step) for step in last} | set(last.values()))
