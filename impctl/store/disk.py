"""The one place where the store touches the disk: every write, sync, removal and commit."""

from __future__ import annotations

import atexit
import errno
import fcntl
import mmap
import os
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from impctl.errors import (
    OPEN_FILES,
    ImpctlError,
    StateCorruptError,
    StorageError,
    UsageError,
    pass_out_of_memory,
)
from impctl.store.records import Leftover

CAREFUL = os.O_CLOEXEC | os.O_NOFOLLOW
"""Flags of every file opened here: not inherited, no links."""


def lock_file(descriptor: int, *, wait: bool) -> None:
    """Lock the open file; without `wait` BlockingIOError if it is locked. The lock belongs to the
    open file, so opens within one process exclude each other too, and it ends with its process."""
    fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def sync_entries(folder: Path) -> None:
    """Sync the folder's entries."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# The disk. Law: a method does what it says or raises; it decides nothing. Tests use a failing disk
# instead. Run files bypass the page cache if the file system permits: this process does not read
# them again, and filling cache pages costs several times the write.

_STAGING = 1 << 20
_BLOCK = 4096


def make_lasting_folder(path: Path, disk: RealDisk) -> None:
    """Create the folder and sync the entry of every folder created. Nothing may be committed inside
    a folder whose entry a power cut could remove."""
    for folder in disk.make_folder(path):
        disk.sync_folder(folder.parent)


class RealDisk:
    def __init__(self) -> None:
        # Aligned, and touched only once: new memory is slow on virtual machines.
        self._staging = mmap.mmap(-1, _STAGING)

    def is_writable(self, folder: Path) -> bool:
        return os.access(folder, os.W_OK | os.X_OK)

    def make_folder(self, path: Path) -> tuple[Path, ...]:
        """Create the folder (mode 0700) and its missing parents (at most 0755). Returns the new
        ones, outermost first; their entries are not synced yet."""
        missing = [folder for folder in (*reversed(path.parents), path) if not folder.exists()]
        for parent in path.parents[::-1]:
            # Whatever the umask: who may write a parent may replace our store.
            if parent in missing:
                parent.mkdir(mode=0o755, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        return tuple(missing)

    def create_empty(self, path: Path) -> None:
        """Create an empty file (mode 0600) if there is none."""
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | CAREFUL, 0o600))

    def create(self, path: Path) -> OutputFile:
        """Create a file (mode 0600); FileExistsError if there is one."""
        return OutputFile(path, self._staging)

    def sync_folder(self, path: Path) -> None:
        sync_entries(path)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()

    def put_note(self, descriptor: int, note: bytes) -> None:
        """Replace the content of the open file by `note`; not synced, for information only."""
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, note, 0)

    def use_log(self, connection: sqlite3.Connection) -> str:
        """Ask SQLite for a write-ahead log; returns the journal mode it chose."""
        return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])

    def begin(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")

    def commit(self, connection: sqlite3.Connection) -> None:
        connection.execute("COMMIT")

    def vacuum(self, connection: sqlite3.Connection) -> None:
        """Rewrite the catalog without its free pages, in one transaction of SQLite."""
        connection.execute("VACUUM")

    def checkpoint(self, connection: sqlite3.Connection) -> None:
        """Checkpoint and truncate SQLite's log as far as readers permit."""
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


class OutputFile:
    """A new file, written sequentially: whole blocks are collected in the staging buffer and bypass
    the page cache."""

    def __init__(self, path: Path, staging: mmap.mmap) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | CAREFUL
        self._descriptor = os.open(path, flags, 0o600)
        self._staging = staging
        self._filled = 0
        self._set_direct(True)

    def write(self, data: memoryview) -> None:
        position = 0
        while position < len(data):
            size = min(len(data) - position, _STAGING - self._filled)
            self._staging[self._filled : self._filled + size] = data[position : position + size]
            self._filled += size
            position += size
            if self._filled == _STAGING:
                self._put(0, _STAGING)
                self._filled = 0

    def sync(self) -> None:
        """Sync everything written so far."""
        aligned = self._filled - self._filled % _BLOCK
        self._put(0, aligned)
        # A tail shorter than a block cannot bypass the page cache.
        self._set_direct(False)
        self._put(aligned, self._filled)
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
                    # The file system accepted the flag but not our alignment.
                    self._set_direct(False)

    def _set_direct(self, enabled: bool) -> None:
        """Set whether writes bypass the page cache, where that is possible."""
        direct = getattr(os, "O_DIRECT", 0)  # Linux
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        self._is_direct = enabled and direct != 0
        try:
            new = flags | direct if enabled else flags & ~direct
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, new)
        except OSError:
            self._is_direct = False  # not offered by this file system


# Errors of SQLite and the operating system. Law: no `sqlite3.Error` and no `OSError` leaves the
# package. Damage is `StateCorruptError`, a wrong set-up `UsageError`, and any other failure
# `StorageError`.

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers for no space, quota or file names left."""
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})
_WRONG_PATH = frozenset(
    {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, errno.EILSEQ}
)
STORE_READ_ONLY = "store_read_only"

_UNCLEAR = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL})
_PROBE_BYTES = 64 << 10
"""Twice what SQLite needs to read a catalog beside other processes."""

_FREE_HINT = "free space (and inodes: `df -i`) on that disk and run the command again"
_LOCKS_HINT = "set `store` to a folder on a file system that supports locks, such as a local disk"
_RIGHTS_HINT = "give this user the right to write there, or set `store` to another folder"


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Translate exceptions inside into an `ImpctlError` that names `path`."""
    try:
        yield
    except sqlite3.Error as error:
        raise from_sqlite(error, path) from error
    except UnicodeDecodeError as error:
        # Names in a damaged catalog, in SQLite's messages.
        raise damaged(path, "it contains text that is not UTF-8") from error
    except OSError as error:
        raise from_system(error, path) from error


def from_sqlite(error: sqlite3.Error, path: Path) -> ImpctlError:
    """The error for what SQLite reported about the catalog at `path`."""
    text = str(error)
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    name = getattr(error, "sqlite_errorname", "")
    # Text that is not UTF-8 comes without a code; we write none.
    if primary in _DAMAGED or text.startswith("Could not decode") or "no such table" in text:
        return damaged(path, text)
    if primary in _BUSY:
        return StorageError(
            f"Catalog `{path}` is busy: {text}",
            code="catalog_busy",
            hint="another program has the catalog open for writing; run the command again later",
        )
    if primary in _UNCLEAR:
        # SQLite often does not report a full disk, a lack of file names or a quota as such.
        result = find_limit_error(path.parent)
        if result is not None:
            return from_system(result, path)
    if primary == sqlite3.SQLITE_FULL:
        return StorageError(f"No space left for `{path}`", code="disk_full", hint=_FREE_HINT)
    if name in ("SQLITE_IOERR_LOCK", "SQLITE_IOERR_RDLOCK", "SQLITE_IOERR_SHMLOCK", "SQLITE_NOLFS"):
        return without_locks(path, text)
    if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return UsageError(
            f"Catalog `{path}` cannot be opened for this operation: {text}",
            code=STORE_READ_ONLY,
            hint=_RIGHTS_HINT,
        )
    return StorageError(
        f"Catalog `{path}` failed: {text}",
        hint="check the disk that holds the store and run the command again",
    )


def is_full(error: ImpctlError) -> bool:
    """Whether the error means a full disk."""
    return error.code == "disk_full"


@contextmanager
def suppress_full() -> Iterator[None]:
    """Ignore a full disk; for work that can wait."""
    try:
        yield
    except StorageError as error:
        if not is_full(error):
            raise


def find_limit_error(folder: Path) -> OSError | None:
    """The error that keeps a small file from being written: no space, quota, file names or
    descriptors. None if it can be written (it is removed again), or something else fails."""
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".room-") as probe:
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        # Without the name of the probe.
        is_limit = error.errno in FULL_DISK | OPEN_FILES
        return OSError(error.errno, error.strerror) if is_limit else None
    return None


def from_system(error: OSError, path: Path) -> ImpctlError:
    """The error for what the operating system reported about a file of the store."""
    pass_out_of_memory(error)
    file = error.filename if error.filename is not None else path
    reason = error.strerror if error.strerror is not None else str(error)
    if error.errno in FULL_DISK:
        return StorageError(
            f"No space left for `{file}`: {reason}", code="disk_full", hint=_FREE_HINT
        )
    if error.errno in _DENIED:
        return UsageError(
            f"No permission to write `{file}`: {reason}", code=STORE_READ_ONLY, hint=_RIGHTS_HINT
        )
    if error.errno in _WRONG_PATH:
        return UsageError(
            f"`{path}` cannot be a store: `{file}`: {reason}",
            code="store_path",
            hint="set `store` to the path of a folder, existing or new",
        )
    if error.errno in _NO_LOCKS:
        return without_locks(path, reason)
    return StorageError(
        f"File `{file}` failed: {reason}",
        hint="check the disk that holds the store and run the command again",
    )


def damaged(path: Path, detail: str) -> StateCorruptError:
    """The error for a catalog that cannot be trusted."""
    return StateCorruptError(
        f"Catalog `{path}` is damaged: {detail}",
        code="catalog_corrupt",
        hint="move the store's folder to another place and run `impctl capture` again",
    )


def without_locks(path: Path, reason: str) -> UsageError:
    """The error where no lock can separate two writers."""
    return UsageError(
        f"The file system of `{path}` does not support locks: {reason}",
        code="store_without_locks",
        hint=_LOCKS_HINT,
    )


def read_only(path: Path) -> UsageError:
    """The error for a write through a read-only store."""
    return UsageError(f"Store `{path}` is open read-only", code=STORE_READ_ONLY, hint=_RIGHTS_HINT)


# Owner and rights of a store's folder and files. Law: a store that others can write, or that
# contains links, is refused before anything is opened: others could write a sketch, or have a file
# of this user overwritten. The folder itself may be a link of this user or of root, because it was
# named on purpose.

OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check_store_files(layout: StoreLayout, *, is_shared: bool = False) -> None:
    """Raise UsageError for a folder or file of the store that others can write. `is_shared` permits
    other owners and rights, never links. Missing files are fine."""
    root = layout.root
    if "\0" in str(root):
        raise UsageError(
            "The path of the store contains a NUL character",
            code="store_path",
            hint="set `store` to the path of a folder, existing or new",
        )
    linked, trusted = _stat(root, follow=False), (0, os.geteuid())
    if linked is not None and stat.S_ISLNK(linked.st_mode) and linked.st_uid not in trusted:
        raise _link(root, "belongs to another user")
    folder = _stat(root)
    if folder is None:
        return
    if not is_shared:
        _check_rights(root, folder)
    for path in layout.own_files:
        result = _stat(path, follow=False)
        if result is None:
            continue
        if stat.S_ISLNK(result.st_mode):
            raise _link(path, "is in the place of a file of the store")
        if not is_shared:
            _check_rights(path, result)


def _stat(path: Path, *, follow: bool = True) -> os.stat_result | None:
    try:
        return path.stat() if follow else path.lstat()
    except FileNotFoundError:
        return None


def _check_rights(path: Path, result: os.stat_result) -> None:
    me = os.geteuid()
    if result.st_uid != me:
        raise UsageError(
            f"`{path}` of the store belongs to user {result.st_uid}, but this process runs as user "
            f"{me}",
            code="store_untrusted",
            hint=f"run as its owner, or change the owner with `chown -R {me}`; if the store is "
            "shared on purpose, set IMPCTL_SHARED_STORE=1",
        )
    if result.st_mode & OTHERS_MAY_WRITE:
        raise UsageError(
            f"other users can write to `{path}` of the store (mode {result.st_mode & 0o7777:04o})",
            code="store_untrusted",
            hint=f"run `chmod go-w {path}`; if the store is shared on purpose, set "
            "IMPCTL_SHARED_STORE=1",
        )


def _link(path: Path, what: str) -> UsageError:
    return UsageError(
        f"The link `{path}` {what}",
        code="store_link",
        hint="check where it points and who created it; then remove it, or give the folder itself",
    )


RUN_SUFFIX = ".arrow"


class StoreLayout:
    """Names of the folders and files of a store, all under `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.catalog = root / "catalog.sqlite"
        self.write_ahead_log = root / "catalog.sqlite-wal"
        self.ledger = root / "ledger.sqlite"
        """Uses of sketches (`store.ledger`), in a separate database."""
        self.state = root / "state"
        self.lock = root / "lock"
        self.recovery = root / "lock.recovery"
        """Locked briefly by whoever removes a dead owner's lock."""

    @property
    def own_files(self) -> tuple[Path, ...]:
        """All files of fixed names, including SQLite's beside the catalog."""
        ends = ("", "-wal", "-shm", "-journal")
        bases = (self.catalog, self.ledger)
        named = (self.root / f"{base.name}{end}" for base in bases for end in ends)
        return *named, self.state, self.lock, self.recovery

    def run_file(self, name: str) -> Path:
        return self.state / name


# Scratch folders outside the store. Law: the owner of a scratch folder holds a lock on the folder's
# owner file. The kernel frees it however the process ends, so a folder whose file can be locked has
# no owner. The owner file is removed last, so that the next process can finish an interrupted
# removal. Folders of other users stay.

BENCH_SCRATCH = ".impctl-bench-"
TPCH_SCRATCH = ".impctl-tpch-"
SPARK_SCRATCH = "impctl-spark-"
_PREFIXES = (BENCH_SCRATCH, TPCH_SCRATCH, SPARK_SCRATCH)
_OWNER = ".owner"
_ATTEMPTS = 10
_UNOWNED_SECONDS = 24 * 3600
"""Seconds to keep a folder with content but no owner file: another version may use it."""


@contextmanager
def scratch_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A new folder below `parent` (default: the system's), removed at the end. Folders of dead
    owners are removed first."""
    parent = temporary_folder() if parent is None else parent
    disk = RealDisk()
    for leftover in abandoned([parent]):
        remove_abandoned(leftover, disk)
    with translate_errors(parent):
        folder, owner = _created(prefix, parent)
    try:
        yield folder
    finally:
        _clear(folder, disk)
        os.close(owner)


def lasting_scratch_folder(prefix: str, parent: Path | None = None) -> Path:
    """A scratch folder until this process ends; forked processes do not remove it."""
    scratch = scratch_folder(prefix, parent)
    folder, pid = scratch.__enter__(), os.getpid()

    def remove() -> None:
        if os.getpid() == pid:
            scratch.__exit__(None, None, None)

    atexit.register(remove)
    return folder


def abandoned(parents: Iterable[Path]) -> tuple[Leftover, ...]:
    """Scratch folders of dead owners directly below these folders; read-only."""
    unique = {parent.absolute() for parent in parents}
    folders = sorted(folder for parent in unique for folder in _scratch_below(parent))
    return tuple(Leftover(folder, _freed(folder)) for folder in folders if _is_abandoned(folder))


def temporary_folder() -> Path:
    """The default parent of scratch folders; UsageError without one."""
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise UsageError(
            "There is no folder for temporary files that this user can write to",
            code="no_temporary_folder",
            hint="set `TMPDIR` to a folder that this user can write to",
        ) from error


def remove_abandoned(leftover: Leftover, disk: RealDisk) -> bool:
    """Remove the folder unless it has an owner again; returns whether it is gone."""
    owner = _locked(leftover.path)
    if owner is None and (leftover.path / _OWNER).exists():
        return False
    try:
        _clear(leftover.path, disk)
    finally:
        if owner is not None:
            os.close(owner)
    return not leftover.path.exists()


def _created(prefix: str, parent: Path) -> tuple[Path, int]:
    """A new folder, and the locked descriptor of its owner file."""
    for _ in range(_ATTEMPTS):
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | CAREFUL
            owner = os.open(folder / _OWNER, flags, 0o600)
        except FileNotFoundError:
            continue  # another process removed it before it had an owner
        lock_file(owner, wait=True)
        if os.fstat(owner).st_nlink:
            return folder, owner
        os.close(owner)
    raise StorageError(
        f"Something removes temporary folders in `{parent}` as soon as they are created",
        hint="find out which program removes them, then run the command again",
    )


def _scratch_below(parent: Path) -> list[Path]:
    try:
        with os.scandir(parent) as entries:
            return [
                Path(entry.path)
                for entry in entries
                if entry.name.startswith(_PREFIXES)
                and entry.is_dir(follow_symlinks=False)
                and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
            ]
    except OSError:
        return []  # missing, or unreadable


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
    """The owner's file, locked by us; None if it is missing or locked."""
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


def _clear(folder: Path, disk: RealDisk) -> None:
    """Remove what can be removed: content, then the owner's file, then the folder."""
    for path, folders, files in os.walk(folder, topdown=False):
        directory = Path(path)
        links = [name for name in folders if (directory / name).is_symlink()]
        for name in [*files, *links]:
            if directory != folder or name != _OWNER:
                with suppress(OSError):  # retried by the next process
                    disk.remove(directory / name)
        if directory != folder:
            with suppress(OSError):
                disk.remove_folder(directory)
    with suppress(OSError):
        if os.listdir(folder) in ([], [_OWNER]):
            disk.remove(folder / _OWNER)
            disk.remove_folder(folder)


def _freed(folder: Path) -> int:
    """Bytes of files with one name: data files of a clone are links to a table's."""
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):
                result = os.lstat(os.path.join(path, name))
                total += result.st_size if result.st_nlink == 1 else 0
    return total
