"""Whether a table's log has grown or is another one, found without opening the table again.

Law: on the local disk a replaced, cleaned-up or shortened log looks new, never the same. Elsewhere
only a newer version shows; so who watches opens the table anew from time to time.
Out of scope: what changed (`tables.change.changes`), when to look (`app.maintaining.watch`).
"""

from __future__ import annotations

import os

from impctl.tables.commit_mark import commit_mark
from impctl.tables.source import DeltaSource, advance, refresh
from impctl.tables.storage import local_path
from impctl.types import TableVersion
from impctl.values import dataclass

_Stat = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Seen:
    """A table as it was when a run pinned it: its source, and the log entry of that version.

    `mark` and `entry` are None where there is none to look at, and then nothing follows from them.
    """

    source: DeltaSource
    mark: str | None
    entry: _Stat | None


def seen(source: DeltaSource) -> Seen:
    """The table as it is pinned; to be called at that moment.

    Later another log may stand there, and its mark would vouch for the table opened before it.
    """
    mark = commit_mark(source, source.version)
    # Looked at last: an entry that comes in between is taken for known, its mark for another one.
    is_local = local_path(source.path) is not None
    return Seen(source, mark, _entry(source, source.version) if is_local else None)


def has_new_log(result: Seen) -> bool:
    """Whether the table has another newest version, or another log, than when it was pinned.

    The source may be used for nothing but the questions of this module then.
    """
    source = result.source
    if local_path(source.path) is None:
        return advance(source).version != source.version
    if _entry(source, source.version + 1) is not None:
        return True
    return _entry(source, source.version) != result.entry


def newest_version(result: Seen) -> TableVersion | None:
    """The newest version after the pinned one; None where another log stands there now."""
    source, version = result.source, result.source.version
    if local_path(source.path) is None:
        return advance(source).version
    if _entry(source, version) != result.entry:
        return None
    while _entry(source, version + 1) is not None:
        version += 1
    return version


def log_end(result: Seen) -> object:
    """How the log ends now: another value when it grows, or another one comes to stand there.

    Of another log than the pinned one only its folder tells, which changes with every new entry.
    """
    source = result.source
    folder = local_path(source.path)
    newest = newest_version(result)
    if folder is None:
        return newest
    at = source.version if newest is None else newest
    return newest, _entry(source, at), _stat(os.path.join(folder, "_delta_log"))


def pinned_anew(result: Seen) -> DeltaSource:
    """The table at its newest version, by reading only what was added to its log if that is safe.

    The old source must not be used any more.
    """
    source = result.source
    if result.mark is None:
        return refresh(source)
    moved = advance(source)
    # Looked at afterwards: a table put in its place before or during the reading shows.
    is_same = commit_mark(source, source.version) == result.mark
    return moved if is_same and moved.version >= source.version else refresh(source)


def _entry(source: DeltaSource, version: TableVersion) -> _Stat | None:
    """What the disk tells of the log entry of `version`; None where it is not there."""
    folder = local_path(source.path)
    assert folder is not None, "only a log on the local disk has readable entries"
    return _stat(os.path.join(folder, "_delta_log", f"{version:020d}.json"))


def _stat(path: str) -> _Stat | None:
    try:
        result = os.stat(path)
    except OSError:
        return None
    return result.st_ino, result.st_mtime_ns, result.st_size
