"""The store as findings: opens, its format, checksums, leftovers, the lock, rights and room.

Law: reads only, and goes on after damage, so that one run shows all there is to mend.
Out of scope: looking (`store.health`), removing leftovers (`gc`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from impctl.app.results.amounts import size_text
from impctl.app.results.findings import Area, Finding, Subject
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError, count_text
from impctl.store.health import MOST_FILES, Checked, Folder, check_store, folder_of, lock_owner

_SCARCE = 1 << 30
"""Free bytes below which a large capture may not fit."""
_TOO_SCARCE = 64 << 20
"""Free bytes below which not even the catalog's log may fit."""
_GROWTH = 2
"""A recapture writes the new state before it removes the old one."""


def store_findings(desk: Workbench, *, with_state: bool) -> Iterator[Finding]:
    """Everything about the store of the workload; all its state only where that is asked for."""
    path = desk.store_path
    subject = Subject(Area.STORE, str(path))
    folder = folder_of(path)
    try:
        store = desk.reading_store()
        checked = None if store is None else check_store(store, with_state=with_state)
    except ImpctlError as error:
        yield subject.failed("store_opens", error)
    else:
        if checked is not None:
            yield from _contents(subject, checked, desk)
        else:
            yield subject.ok("store_opens", "No store yet; the first `impctl capture` creates it")
    yield _lock(subject, path)
    if not folder.is_whole:
        yield subject.warning(
            "store_folder",
            f"Holds more than {MOST_FILES:,} files; only the first were checked",
            "set `store` to a separate folder",
        )
    yield from _rights(subject, folder)
    yield _room(subject, folder)


def _contents(subject: Subject, checked: Checked, desk: Workbench) -> Iterator[Finding]:
    count = len(checked.queries)
    queries = count_text(count, "query", "queries")
    for name, error in checked.damaged:
        yield Subject(Area.STORE, name).problem(
            "checksums",
            error.message,
            f"run `impctl capture {desk.workload.file} --query {name}`",
            error.exit_code,
        )
    if not checked.damaged:
        what = "rows and state" if checked.with_state else "rows (state was not read)"
        yield subject.ok("checksums", f"Opens; {what} of {queries} match their checksums")
    gone = [name for name in checked.queries if name not in desk.workload.queries]
    if gone:
        yield subject.warning(
            "unknown_queries",
            f"Holds sketches of queries that the workload does not have: {', '.join(gone)}",
            "no action is needed; they use space until the store is created again",
        )
    if checked.leftovers.files:
        size = size_text(sum(file.bytes for file in checked.leftovers.files))
        yield subject.warning(
            "leftovers",
            f"{len(checked.leftovers.files)} files ({size}) that nothing refers to, left by "
            "an interrupted run",
            f"run `impctl gc {desk.workload.file}`, or let the next command that writes "
            "remove them",
        )


def _lock(subject: Subject, path: Path) -> Finding:
    try:
        owner = lock_owner(path)
    except ImpctlError as error:
        return subject.failed("lock", error)
    if owner is None:
        return subject.ok("lock", "No process is writing")
    if owner.is_dead:
        return subject.warning(
            "lock",
            f"The lock was left by an interrupted run: {owner.describe()}",
            "the next command that writes removes the lock",
        )
    return subject.warning(
        "lock",
        f"Locked by {owner.describe()}",
        "wait for it to end; a second writer waits `--lock-timeout` seconds, then exits with 6",
    )


def _rights(subject: Subject, folder: Folder) -> Iterator[Finding]:
    if not folder.is_writable:
        yield subject.problem(
            "permissions",
            f"The current user cannot write everything below {folder.path}",
            "give the user who runs `maintain` write access there, or set `store` elsewhere",
            6,
        )
    if folder.open_to_others:
        count = len(folder.open_to_others)
        yield subject.problem(
            "permissions",
            f"Other users can change the store: {count} files or folders are writable by "
            f"group or everybody, such as {folder.open_to_others[0]}",
            f"run `chmod -R go-w {folder.path}`",
            2,
        )
    elif folder.is_writable:
        yield subject.ok("permissions", "Writable only by the current user")


def _room(subject: Subject, folder: Folder) -> Finding:
    said = f"{size_text(folder.free)} free, the store uses {size_text(folder.used)}"
    if folder.free < max(_TOO_SCARCE, folder.used // 2):
        return subject.problem("disk_space", said, "free space on the disk of the store", 6)
    if folder.free < max(_SCARCE, folder.used * _GROWTH):
        return subject.warning(
            "disk_space",
            f"{said}; a recapture writes the new state before it removes the old one",
            "free space on the disk of the store",
        )
    return subject.ok("disk_space", said)
