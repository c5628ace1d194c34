"""What SQLite and the operating system report, in impctl's words.

Law: no `sqlite3.Error` and no `OSError` leaves the room; damage is `StateCorruptError`, everything
else that failed on the way to the disk is `StorageError`.
Out of scope: checks of our own (`store.seals`, `store.states`).
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from impctl.errors import ImpctlError, StateCorruptError, StorageError

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})

_FREE_HINT = "free space on the disk and run the command again"
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
        raise damaged(path, "text in it is no UTF-8") from error
    except OSError as error:
        raise from_system(error, path) from error


def from_sqlite(error: sqlite3.Error, path: Path) -> ImpctlError:
    """The error to raise for what SQLite reported about the catalog at `path`."""
    text = str(error)
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    # Text that is no UTF-8 comes without a code; nothing we write is like that.
    if primary in _DAMAGED or text.startswith("Could not decode") or "no such table" in text:
        return damaged(path, text)
    if primary in _BUSY:
        return StorageError(
            f"Catalog `{path}` is busy: {text}",
            code="catalog_busy",
            hint="another program has the catalog open for writing; run the command again later",
        )
    if primary == sqlite3.SQLITE_FULL:
        return StorageError(f"No space left for `{path}`", code="disk_full", hint=_FREE_HINT)
    if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return StorageError(
            f"Catalog `{path}` cannot be opened for this: {text}",
            code="store_read_only",
            hint=_RIGHTS_HINT,
        )
    return StorageError(
        f"Catalog `{path}` failed: {text}",
        hint="check the disk that holds the store and run the command again",
    )


def from_system(error: OSError, path: Path) -> StorageError:
    """The error to raise for what the operating system reported about a file of the store."""
    place = error.filename if error.filename is not None else path
    reason = error.strerror if error.strerror is not None else str(error)
    if error.errno in _FULL:
        return StorageError(
            f"No space left for `{place}`: {reason}", code="disk_full", hint=_FREE_HINT
        )
    if error.errno in _DENIED:
        return StorageError(
            f"Not allowed to write `{place}`: {reason}", code="store_read_only", hint=_RIGHTS_HINT
        )
    return StorageError(
        f"File `{place}` failed: {reason}",
        hint="check the disk that holds the store and run the command again",
    )


def damaged(path: Path, detail: str) -> StateCorruptError:
    """The catalog itself cannot be trusted."""
    return StateCorruptError(
        f"Catalog `{path}` is damaged: {detail}",
        code="catalog_corrupt",
        hint="move the store's folder away and run `impctl capture` again",
    )


def read_only(path: Path) -> StorageError:
    """Someone wants to write through a store that was opened without that possibility."""
    return StorageError(
        f"Store `{path}` is open for reading only", code="store_read_only", hint=_RIGHTS_HINT
    )
