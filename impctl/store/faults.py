"""What SQLite and the operating system report, in impctl's words.

Law: no `sqlite3.Error` and no `OSError` leaves the room; damage is `StateCorruptError`, what stays
wrong until somebody changes the set-up is `UsageError`, everything else that failed on the way to
the disk is `StorageError`.
Out of scope: checks of our own (`store.seals`, `store.states`).
"""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from impctl.errors import (
    OPEN_FILES,
    ImpctlError,
    StateCorruptError,
    StorageError,
    UsageError,
    pass_out_of_memory,
)

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the system says where there is no room, be it of space, quota or file names."""
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})
_WRONG_PATH = frozenset(
    {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, errno.EILSEQ}
)
STORE_READ_ONLY = "store_read_only"
"""The code of a store that this user, or anybody, may not write."""

_UNCLEAR = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL})
_PROBE_BYTES = 64 << 10
"""Twice what SQLite needs to read a catalog beside other processes."""

_FREE_HINT = "free space (and inodes: `df -i`) on that disk and run the command again"
_LOCKS_HINT = "set `store` to a folder on a file system that supports locks, such as a local disk"
_RIGHTS_HINT = "give this user the right to write there, or set `store` to another folder"


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turns what goes wrong inside into an `ImpctlError` that names `path`."""
    try:
        yield
    except sqlite3.Error as error:
        raise from_sqlite(error, path) from error
    except UnicodeDecodeError as error:
        # Names in a damaged catalog reach us by way of SQLite's own messages.
        raise damaged(path, "it contains text that is not UTF-8") from error
    except OSError as error:
        raise from_system(error, path) from error


def from_sqlite(error: sqlite3.Error, path: Path) -> ImpctlError:
    """The error to raise for what SQLite reported about the catalog at `path`."""
    text = str(error)
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    name = getattr(error, "sqlite_errorname", "")
    # Text that is no UTF-8 comes without a code; nothing we write is like that.
    if primary in _DAMAGED or text.startswith("Could not decode") or "no such table" in text:
        return damaged(path, text)
    if primary in _BUSY:
        return StorageError(
            f"Catalog `{path}` is busy: {text}",
            code="catalog_busy",
            hint="another program has the catalog open for writing; run the command again later",
        )
    if primary in _UNCLEAR:
        # SQLite keeps a full disk, a lack of file names and a quota to itself in many places.
        result = no_room(path.parent)
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
    """Whether it is the disk that has no room."""
    return error.code == "disk_full"


@contextmanager
def suppress_full() -> Iterator[None]:
    """Passes over a full disk; for what need not be done now."""
    try:
        yield
    except StorageError as error:
        if not is_full(error):
            raise


def no_room(folder: Path) -> OSError | None:
    """What keeps a small file from being written there, for lack of space, quota, file names or
    descriptors.

    None where one can be written, or something else stands against it; it is gone afterwards.
    """
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".room-") as probe:
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        # Without the name of the probe, which is not what anybody wanted to write.
        is_limit = error.errno in FULL_DISK | OPEN_FILES
        return OSError(error.errno, error.strerror) if is_limit else None
    return None


def from_system(error: OSError, path: Path) -> ImpctlError:
    """The error to raise for what the operating system reported about a file of the store."""
    pass_out_of_memory(error)
    place = error.filename if error.filename is not None else path
    reason = error.strerror if error.strerror is not None else str(error)
    if error.errno in FULL_DISK:
        return StorageError(
            f"No space left for `{place}`: {reason}", code="disk_full", hint=_FREE_HINT
        )
    if error.errno in _DENIED:
        return UsageError(
            f"No permission to write `{place}`: {reason}", code=STORE_READ_ONLY, hint=_RIGHTS_HINT
        )
    if error.errno in _WRONG_PATH:
        return UsageError(
            f"`{path}` cannot be a store: `{place}`: {reason}",
            code="store_path",
            hint="set `store` to the path of a folder, existing or new",
        )
    if error.errno in _NO_LOCKS:
        return without_locks(path, reason)
    return StorageError(
        f"File `{place}` failed: {reason}",
        hint="check the disk that holds the store and run the command again",
    )


def damaged(path: Path, detail: str) -> StateCorruptError:
    """The catalog itself cannot be trusted."""
    return StateCorruptError(
        f"Catalog `{path}` is damaged: {detail}",
        code="catalog_corrupt",
        hint="move the store's folder to another place and run `impctl capture` again",
    )


def without_locks(path: Path, reason: str) -> UsageError:
    """The error to raise where no lock keeps two writers apart."""
    return UsageError(
        f"The file system of `{path}` does not support locks: {reason}",
        code="store_without_locks",
        hint=_LOCKS_HINT,
    )


def read_only(path: Path) -> UsageError:
    """Someone wants to write through a store that was opened without that possibility."""
    return UsageError(f"Store `{path}` is open read-only", code=STORE_READ_ONLY, hint=_RIGHTS_HINT)
