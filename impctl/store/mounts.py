"""Does the file system below a store keep locks, and for every machine that sees it?

Law: a lock that two holders can have at once is none, so a store is not written there. Asked of
the file system itself, by a second open file that must be refused; what it tells nobody, that its
locks end at this machine, is read from how it is mounted (Linux only).
Out of scope: waiting for a lock, and who holds it (`store.lock`).
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from impctl.store.faults import without_locks
from impctl.store.system import CAREFUL, lock_file

_MOUNTS = Path("/proc/self/mountinfo")
_LOCAL = {
    "nfs": ("nolock", "local_lock=all", "local_lock=flock"),
    "nfs4": ("nolock", "local_lock=all", "local_lock=flock"),
    "cifs": ("nobrl", "nolock"),
    "smb3": ("nobrl", "nolock"),
    "lustre": ("localflock", "noflock"),
}
"""Options of network file systems by which locks are kept on this machine, or not at all."""


def refuse_idle_lock(path: Path, mounts: Path = _MOUNTS) -> None:
    """UsageError where the lock on the file at `path`, which is held, keeps nobody off."""
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
    """The option by which locks in this folder end at this machine; None where none is known."""
    try:
        text = mounts.read_text(encoding="utf-8", errors="surrogateescape")
        place = str(folder.resolve())
    except OSError:
        return None
    result: tuple[int, str | None] = (-1, None)
    for line in text.splitlines():
        # man proc: id, parent, device, root, mount point, options, ..., "-", type, source, options
        fields, _, rest = line.partition(" - ")
        words, behind = fields.split(), rest.split()
        if len(words) < 6 or len(behind) < 3:
            continue
        point = words[4].encode("latin-1", "backslashreplace").decode("unicode_escape")
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= result[0]:
            options = {*words[5].split(","), *behind[2].split(",")}
            local = next((o for o in _LOCAL.get(behind[0], ()) if o in options), None)
            result = (len(point), local)
    return result[1]
