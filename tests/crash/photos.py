"""A disk that keeps what a crash at every step would have left behind.

A photo is the store's folder at one moment. `killed` photos hold all that was written, as after
kill -9: the system's cache survives. `unplugged` photos hold only what a sync had made safe, and
all removed files that no sync of their folder had made gone for good.
"""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from impctl.store.disk import OutputFile, RealDisk

_CATALOG = ("catalog.sqlite", "catalog.sqlite-wal")
_SYNCHRONOUS_FULL = 2


@dataclass(frozen=True)
class Photo:
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

    def make_folder(self, path: Path) -> tuple[Path, ...]:
        made: list[Path] = []
        self.step("make_folder", lambda: made.extend(super(PhotoDisk, self).make_folder(path)))
        return tuple(made)

    def create_empty(self, path: Path) -> None:
        self.step("create_empty", lambda: super(PhotoDisk, self).create_empty(path))

    def create(self, path: Path) -> OutputFile:
        made: list[OutputFile] = []
        self.step("create", lambda: made.append(super(PhotoDisk, self).create(path)))
        return _PhotoFile(made[0], path, self)

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
        modes: list[str] = []
        self.step("use_log", lambda: modes.append(super(PhotoDisk, self).use_log(connection)))
        self._catalog_is_safe()
        return modes[0]

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
