"""One writer at a time: an advisory lock with its owner's name on it."""

from __future__ import annotations

import os
import socket
import time
from functools import cache
from pathlib import Path

from msgspec import DecodeError, Struct
from msgspec.json import decode, encode

from impctl.errors import LockHeldError
from impctl.store.disk import (
    CAREFUL,
    FULL_DISK,
    RealDisk,
    StoreLayout,
    lock_file,
    translate_errors,
    without_locks,
)

# Law: at most one live process holds the lock. The kernel frees it however the process ends; the
# note that the owner leaves shows the next owner that this happened. A lock that a child inherited
# from a dead owner is removed.

_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.1
_OPEN = os.O_RDWR | os.O_CREAT | CAREFUL
_GRACE = 0.5
"""Seconds for which a dead owner's note must not change: a new owner writes its note at once."""


class Owner(Struct, frozen=True):
    """Who holds the lock; `process_start` distinguishes processes with the same pid."""

    pid: int
    host: str
    namespace: str
    command: str
    since: float
    process_start: str

    @property
    def is_dead(self) -> bool:
        """Whether the process provably ended; one on another machine counts as alive."""
        if (self.host, self.namespace) != (socket.gethostname(), _namespace()):
            return False
        start = _process_start(self.pid)
        if start is not None:
            return start != self.process_start
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass  # another user's
        # Alive, and no way to see when it started; with /proc, None means it is a zombie.
        return Path("/proc/self/stat").exists()

    def describe(self) -> str:
        age = max(0.0, time.time() - self.since)
        return (
            f"process {self.pid} on host `{self.host}`, running `{self.command}`, for {age:.0f} s"
        )


class WriterLock:
    def __init__(self, layout: StoreLayout, disk: RealDisk) -> None:
        self._layout = layout
        self._disk = disk
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        return self._descriptor is not None

    def acquire(self, timeout: float, command: str) -> Owner | None:
        """Take the lock; returns the owner that died holding it before, if any. Waits up to
        `timeout` seconds, then LockHeldError."""
        deadline = time.monotonic() + timeout
        pause = _FIRST_PAUSE
        dead: tuple[bytes, float] | None = None
        with translate_errors(self._layout.lock):
            while True:
                descriptor, text = _try(self._layout.lock)
                if descriptor is not None:
                    if not _claim(descriptor, self._layout.lock, command, self._disk):
                        continue
                    try:
                        refuse_idle_lock(self._layout.lock)
                    except BaseException:
                        os.close(descriptor)
                        raise
                    self._descriptor = descriptor
                    return _owner(text)
                owner = _owner(text)
                now = time.monotonic()
                if owner is None or not owner.is_dead:
                    dead = None
                elif dead is None or dead[0] != text:
                    dead = (text, now)
                elif now - dead[1] >= _GRACE:
                    _remove_lock(self._layout, text)
                    continue
                if now >= deadline and dead is None:
                    raise _held(self._layout.root, owner)
                time.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    def release(self) -> None:
        """Release the lock if it is held."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        with translate_errors(self._layout.lock):
            try:
                _put_note(descriptor, b"", self._disk)
            finally:
                os.close(descriptor)


def lock_owner(path: Path) -> Owner | None:
    """The owner noted in the lock file of the store at `path`, alive or dead; None without one."""
    lock = StoreLayout(path).lock
    with translate_errors(lock):
        try:
            descriptor = os.open(lock, os.O_RDONLY | CAREFUL)
        except FileNotFoundError:
            return None
        try:
            return _owner(_note(descriptor))
        finally:
            os.close(descriptor)


def _try(path: Path) -> tuple[int | None, bytes]:
    """The locked descriptor, or None if another process has it, and the note in the file."""
    descriptor = os.open(path, _OPEN, 0o600)
    try:
        lock_file(descriptor, wait=False)
    except BlockingIOError:
        text = _note(descriptor)
        os.close(descriptor)
        return None, text
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, _note(descriptor)


def _claim(descriptor: int, path: Path, command: str, disk: RealDisk) -> bool:
    """Write our note; False (and closed) if the file was removed from under the lock."""
    pid = os.getpid()
    since, start = time.time(), _process_start(pid) or ""
    owner = Owner(pid, socket.gethostname(), _namespace(), command, since, start)
    try:
        _put_note(descriptor, encode(owner), disk)
        locked = os.fstat(descriptor)
        try:
            is_in_place = os.path.samestat(os.lstat(path), locked)
        except FileNotFoundError:
            is_in_place = False
    except BaseException:
        os.close(descriptor)
        raise
    if not is_in_place:
        os.close(descriptor)
    return is_in_place


def _remove_lock(layout: StoreLayout, text: bytes) -> None:
    """Remove the lock file whose owner is dead while a child of it still holds the lock."""
    guard = os.open(layout.recovery, _OPEN, 0o600)
    try:
        lock_file(guard, wait=True)
        descriptor, now = _try(layout.lock)
        if descriptor is not None:
            os.close(descriptor)
        elif now == text:
            layout.lock.unlink(missing_ok=True)
    finally:
        os.close(guard)


def _put_note(descriptor: int, note: bytes, disk: RealDisk) -> None:
    """Write the note; on a full disk it is omitted and the lock holds without it."""
    try:
        disk.put_note(descriptor, note)
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise


def _note(descriptor: int) -> bytes:
    return os.pread(descriptor, 65_536, 0)


def _owner(text: bytes) -> Owner | None:
    try:
        return decode(text, type=Owner)
    except (DecodeError, UnicodeDecodeError):
        return None  # no owner, or it is writing its note


def _held(root: Path, owner: Owner | None) -> LockHeldError:
    who = "another process" if owner is None else owner.describe()
    return LockHeldError(
        f"Store `{root}` is locked by {who}",
        hint="wait for it to end, or set a longer lock timeout",
    )


def _process_start(pid: int) -> str | None:
    """Boot, and clock ticks at the start of the process; None if unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    state, start = fields[0], fields[19]
    return None if state in ("Z", "X") else f"{boot}:{start}"


def _namespace() -> str:
    """The pid namespace: containers may share a host name and a folder."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


# Whether the file system of a store has locks that hold on every machine. Law: a store whose lock
# two holders can have at once is not written. A second open file must be refused; whether locks are
# limited to this machine shows only in the mount options (Linux).

_MOUNTS = Path("/proc/self/mountinfo")
_LOCAL = {
    "nfs": ("nolock", "local_lock=all", "local_lock=flock"),
    "nfs4": ("nolock", "local_lock=all", "local_lock=flock"),
    "cifs": ("nobrl", "nolock"),
    "smb3": ("nobrl", "nolock"),
    "lustre": ("localflock", "noflock"),
}
"""Options of network file systems that keep locks local to this machine, or ignore them."""


def refuse_idle_lock(path: Path, mounts: Path = _MOUNTS) -> None:
    """Raise UsageError if the held lock on the file at `path` excludes nobody."""
    second = os.open(path, os.O_RDWR | CAREFUL)
    try:
        lock_file(second, wait=False)
    except BlockingIOError:
        pass
    else:
        raise without_locks(path, "two holders can have the same lock")
    finally:
        os.close(second)
    option = _local_option(path.parent, mounts)
    if option is not None:
        raise without_locks(
            path, f"it is mounted with `{option}`, so other machines do not see the lock"
        )


@cache
def _local_option(folder: Path, mounts: Path) -> str | None:
    """The mount option that limits locks in this folder to this machine; None if there is none."""
    try:
        text = mounts.read_text(encoding="utf-8", errors="surrogateescape")
        path = str(folder.resolve())
    except OSError:
        return None
    result: tuple[int, str | None] = (-1, None)
    for line in text.splitlines():
        # man proc: id, parent, device, root, mount point, options, ..., "-", type, source, options
        fields, _, rest = line.partition(" - ")
        words, source = fields.split(), rest.split()
        if len(words) < 6 or len(source) < 3:
            continue
        point = words[4].encode("latin-1", "backslashreplace").decode("unicode_escape")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= result[0]:
            options = {*words[5].split(","), *source[2].split(",")}
            local = next((o for o in _LOCAL.get(source[0], ()) if o in options), None)
            result = (len(point), local)
    return result[1]
