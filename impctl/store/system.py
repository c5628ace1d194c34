"""What the two families of operating systems call differently: locks, open flags, users, processes.

Law: every name that one of them lacks is asked for here and inside a function or with a default, so
that impctl can be imported on both. A lock is the open file's, and the system gives it back when
its process ends, however it ends; locks taken by different opens exclude each other within a
process too.
Out of scope: what a lock means (`store.lock`), which file systems keep it (`store.mounts`).
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

CAREFUL = (
    getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NOINHERIT", 0)
)
"""Flags of every file that is opened here: no links, not for children, bytes as they are."""

_FAR = 1 << 30
"""The byte that is locked where locks keep others from reading: beyond any note."""
_TAKEN = frozenset({errno.EACCES, errno.EAGAIN, errno.EDEADLK})
_STILL_ACTIVE = 259
_QUERY = 0x1000


def lock_file(descriptor: int, *, wait: bool) -> None:
    """Lock the open file; without `wait` BlockingIOError where somebody else has it."""
    if sys.platform == "win32":  # pragma: no cover - no such machine here
        import msvcrt

        os.lseek(descriptor, _FAR, os.SEEK_SET)
        while True:
            try:
                msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
                return
            except OSError as error:
                # Waiting ends after ten seconds there.
                if error.errno not in _TAKEN:
                    raise
                if not wait:
                    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def read_start(descriptor: int, size: int) -> bytes:
    """The first bytes of the open file, at most so many."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, size)


def write_whole(descriptor: int, content: bytes) -> None:
    """Make `content` all that the open file holds."""
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, content)


def user() -> int | None:
    """The number of the user this runs as; None where files have no such owner."""
    return os.geteuid() if hasattr(os, "geteuid") else None


def is_running(pid: int) -> bool:
    """Whether there is a process of this number, be it another user's or one that has ended."""
    if sys.platform == "win32":  # pragma: no cover - a signal of number 0 is Ctrl-C there
        import ctypes

        kernel = ctypes.windll.kernel32
        handle = kernel.OpenProcess(_QUERY, False, pid)
        if not handle:
            return False
        code = ctypes.c_ulong()
        kernel.GetExitCodeProcess(handle, ctypes.byref(code))
        kernel.CloseHandle(handle)
        return code.value == _STILL_ACTIVE
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def sync_entries(folder: Path) -> None:
    """Bring the folder's entries to stable storage, where a folder can be opened for that."""
    if os.name == "nt":  # pragma: no cover - NTFS logs changes of folders by itself
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def set_direct(descriptor: int, wanted: bool) -> bool:
    """Have writes go past the page cache or not; whether they do now."""
    direct = getattr(os, "O_DIRECT", 0)
    if not direct or sys.platform == "win32":
        return False
    import fcntl

    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | direct if wanted else flags & ~direct)
    except OSError:
        return False  # not offered here: as usual
    return wanted
