"""Scratch folders outside the store: made with an owner, removed at the end or once it is dead.

Law: a scratch folder has an owner's file that its process holds locked for as long as it lives;
the kernel gives the lock back however the process ends, so a folder whose file can be locked is
nobody's. The owner's file goes last: a removal that is cut short can be taken up by the next one.
Folders of other users are left alone.
Out of scope: what is put into them (`app.workbench.scratch`).
"""

from __future__ import annotations

import atexit
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from impctl.errors import StorageError, UsageError
from impctl.store.disk import Disk, RealDisk
from impctl.store.faults import translated
from impctl.store.records import Leftover
from impctl.store.system import CAREFUL, lock_file, user

BENCH_SCRATCH = ".impctl-bench-"
TPCH_SCRATCH = ".impctl-tpch-"
SPARK_SCRATCH = "impctl-spark-"
_PREFIXES = (BENCH_SCRATCH, TPCH_SCRATCH, SPARK_SCRATCH)
_OWNER = ".owner"
_ATTEMPTS = 10
_UNOWNED_SECONDS = 24 * 3600
"""How long a folder that has content but no owner's file stays: another version may be using it."""


@contextmanager
def scratch_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A new folder below `parent` (default: the system's for temporary files), gone at the end.

    What dead owners left there goes first.
    """
    place = temporary_folder() if parent is None else parent
    disk = RealDisk()
    for left in abandoned([place]):
        remove_abandoned(left, disk)
    with translated(place):
        folder, owner = _made(prefix, place)
    try:
        yield folder
    finally:
        _clear(folder, disk)
        os.close(owner)


def lasting_scratch_folder(prefix: str, parent: Path | None = None) -> Path:
    """The same until this process ends; a process that it forks leaves the folder alone."""
    scratch = scratch_folder(prefix, parent)
    folder, made_by = scratch.__enter__(), os.getpid()

    def remove() -> None:
        if os.getpid() == made_by:
            scratch.__exit__(None, None, None)

    atexit.register(remove)
    return folder


def abandoned(parents: Iterable[Path]) -> tuple[Leftover, ...]:
    """Scratch folders of dead owners directly below these folders; nothing is written."""
    places = dict.fromkeys(parent.absolute() for parent in parents)
    result = [
        Leftover(folder, _freed(folder))
        for place in places
        for folder in _scratch_below(place)
        if _is_abandoned(folder)
    ]
    return tuple(sorted(result, key=lambda leftover: leftover.path))


def temporary_folder() -> Path:
    """Where scratch folders lie that have no place of their own; UsageError without any."""
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise UsageError(
            "There is no folder for temporary files that this user can write to",
            code="no_temporary_folder",
            hint="set `TMPDIR` to a folder that this user can write to",
        ) from error


def remove_abandoned(leftover: Leftover, disk: Disk) -> bool:
    """Remove the folder unless it found an owner meanwhile; whether it is gone."""
    owner = _locked(leftover.path)
    if owner is None and (leftover.path / _OWNER).exists():
        return False
    try:
        _clear(leftover.path, disk)
    finally:
        if owner is not None:
            os.close(owner)
    return not leftover.path.exists()


def _made(prefix: str, parent: Path) -> tuple[Path, int]:
    """The folder, and the locked descriptor of its owner's file."""
    for _ in range(_ATTEMPTS):
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | CAREFUL
            owner = os.open(folder / _OWNER, flags, 0o600)
        except FileNotFoundError:
            continue  # taken for a leftover before it had an owner
        lock_file(owner, wait=True)
        if os.fstat(owner).st_nlink:
            return folder, owner
        os.close(owner)
    raise StorageError(
        f"Something removes temporary folders in `{parent}` as soon as they are created",
        hint="find out which program removes them, then run the command again",
    )


def _scratch_below(place: Path) -> list[Path]:
    try:
        with os.scandir(place) as entries:
            return [
                Path(entry.path)
                for entry in entries
                if entry.name.startswith(_PREFIXES)
                and entry.is_dir(follow_symlinks=False)
                and user() in (None, entry.stat(follow_symlinks=False).st_uid)
            ]
    except OSError:
        return []  # not there, or not ours to look into


def _is_abandoned(folder: Path) -> bool:
    owner = _locked(folder)
    if owner is not None:
        os.close(owner)
        return True
    try:
        names = os.listdir(folder)
        age = time.time() - folder.stat().st_mtime
    except OSError:
        return False
    return not names or (_OWNER not in names and age > _UNOWNED_SECONDS)


def _locked(folder: Path) -> int | None:
    """The owner's file, locked by us; None where it is not there or somebody holds it."""
    try:
        owner = os.open(folder / _OWNER, os.O_RDWR | CAREFUL)
    except OSError:
        return None
    try:
        lock_file(owner, wait=False)
    except OSError:
        os.close(owner)
        return None
    return owner


def _clear(folder: Path, disk: Disk) -> None:
    """Remove all that can be removed: content, then the owner's file, then the folder."""
    for path, folders, files in os.walk(folder, topdown=False):
        here = Path(path)
        links = [name for name in folders if (here / name).is_symlink()]
        for name in [*files, *links]:
            if here != folder or name != _OWNER:
                with suppress(OSError):  # found again by the next one
                    disk.remove(here / name)
        if here != folder:
            with suppress(OSError):
                disk.remove_folder(here)
    with suppress(OSError):
        if os.listdir(folder) in ([], [_OWNER]):
            disk.remove(folder / _OWNER)
            disk.remove_folder(folder)


def _freed(folder: Path) -> int:
    """Bytes of the files that have no other name: data files of a clone are links to a table's."""
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            try:
                result = os.lstat(os.path.join(path, name))
            except OSError:
                continue
            total += result.st_size if result.st_nlink == 1 else 0
    return total
