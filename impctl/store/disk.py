"""The one seam between the store and the disk: every write, sync, removal and commit passes here.

Law: a `Disk` does what its method says or raises; it decides nothing. Tests put a failing disk in
its place. Run files are written past the page cache where the file system lets us: nothing in this
process reads them again, and filling fresh cache pages costs several times the write itself.
Out of scope: what is written (`store.states`), translation of errors (`store.faults`).
"""

from __future__ import annotations

import errno
import mmap
import os
import sqlite3
from pathlib import Path
from typing import Protocol

from impctl.store.system import CAREFUL, set_direct, sync_entries, write_whole

_STAGING = 1 << 20
_BLOCK = 4096


class OutputFile(Protocol):
    """A new file being written from start to end."""

    def write(self, data: memoryview) -> None: ...

    def sync(self) -> None:
        """Bring everything written so far to stable storage."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """What the store asks of the operating system."""

    def is_writable(self, folder: Path) -> bool: ...

    def make_folder(self, path: Path) -> tuple[Path, ...]:
        """Create the folder (mode 0700) and its parents (at most 0755) where missing.

        Returns those it made, outermost first; their entries are not synced yet.
        """
        ...

    def create_empty(self, path: Path) -> None:
        """An empty file (mode 0600) where none stands yet."""
        ...

    def create(self, path: Path) -> OutputFile:
        """A new file (mode 0600); FileExistsError where one stands."""
        ...

    def sync_folder(self, path: Path) -> None: ...

    def remove(self, path: Path) -> None: ...

    def remove_folder(self, path: Path) -> None:
        """Remove the folder, which is empty by now."""
        ...

    def put_note(self, descriptor: int, note: bytes) -> None:
        """Make `note` the whole content of the open file; it is information only, not synced."""
        ...

    def use_log(self, connection: sqlite3.Connection) -> str:
        """Ask SQLite for a write-ahead log; the journal mode that it took."""
        ...

    def begin(self, connection: sqlite3.Connection) -> None: ...

    def commit(self, connection: sqlite3.Connection) -> None: ...

    def vacuum(self, connection: sqlite3.Connection) -> None:
        """Write the catalog anew without its free pages, as one transaction of SQLite's."""
        ...

    def checkpoint(self, connection: sqlite3.Connection) -> None:
        """Move SQLite's log into the catalog and cut it off, as far as readers let it."""
        ...


def make_lasting_folder(path: Path, disk: Disk) -> None:
    """Create the folder and bring the entry of every folder that was made to stable storage.

    Nothing may be committed that lies in a folder whose own entry a power cut could take away.
    """
    for folder in disk.make_folder(path):
        disk.sync_folder(folder.parent)


class RealDisk:
    """The operating system's disk."""

    def __init__(self) -> None:
        # Aligned, and touched once only: fresh memory is slow to come by on virtual machines.
        self._staging = mmap.mmap(-1, _STAGING)

    def is_writable(self, folder: Path) -> bool:
        return os.access(folder, os.W_OK | os.X_OK)

    def make_folder(self, path: Path) -> tuple[Path, ...]:
        missing = [folder for folder in (*reversed(path.parents), path) if not folder.exists()]
        for parent in path.parents[::-1]:
            # Whatever the umask: who may write a parent may put another store in place of ours.
            if parent in missing:
                parent.mkdir(mode=0o755, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        return tuple(missing)

    def create_empty(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | CAREFUL
        os.close(os.open(path, flags, 0o600))

    def create(self, path: Path) -> OutputFile:
        return _DirectFile(path, self._staging)

    def sync_folder(self, path: Path) -> None:
        sync_entries(path)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> None:
        path.rmdir()

    def put_note(self, descriptor: int, note: bytes) -> None:
        write_whole(descriptor, note)

    def use_log(self, connection: sqlite3.Connection) -> str:
        return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])

    def begin(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")

    def commit(self, connection: sqlite3.Connection) -> None:
        connection.execute("COMMIT")

    def vacuum(self, connection: sqlite3.Connection) -> None:
        connection.execute("VACUUM")

    def checkpoint(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


class _DirectFile:
    """Collects whole blocks in the staging buffer and writes them past the page cache."""

    def __init__(self, path: Path, staging: mmap.mmap) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | CAREFUL
        self._descriptor = os.open(path, flags, 0o600)
        self._staging = staging
        self._filled = 0
        self._set_direct(True)

    def write(self, data: memoryview) -> None:
        position = 0
        while position < len(data):
            taken = min(len(data) - position, _STAGING - self._filled)
            self._staging[self._filled : self._filled + taken] = data[position : position + taken]
            self._filled += taken
            position += taken
            if self._filled == _STAGING:
                self._put(0, _STAGING)
                self._filled = 0

    def sync(self) -> None:
        whole = self._filled - self._filled % _BLOCK
        self._put(0, whole)
        # A tail shorter than a block cannot go past the page cache.
        self._set_direct(False)
        self._put(whole, self._filled)
        self._filled = 0
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)

    def _put(self, start: int, end: int) -> None:
        with memoryview(self._staging) as view:
            while start < end:
                try:
                    start += os.write(self._descriptor, view[start:end])
                except OSError as error:
                    if not self._is_direct or error.errno != errno.EINVAL:
                        raise
                    # The file system took the flag but not our alignment: write as usual.
                    self._set_direct(False)

    def _set_direct(self, wanted: bool) -> None:
        self._is_direct = set_direct(self._descriptor, wanted)
