"""Whether the change since a version can still be read: the log's entries, and the files they name.

Law: looks, reads no data; what is called gone is really not there, by the change feed and by
comparing snapshots both. Whether files exist is looked at on the local disk only.
Out of scope: reading the change (`tables.change.changes`), how long things are kept
(`tables.change.retention`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from impctl.errors import HistoryGoneError
from impctl.tables.change.copies import copied_by_others
from impctl.tables.commits import Commits, read_commits
from impctl.tables.source import DeltaSource
from impctl.tables.storage import file_uri, local_path
from impctl.types import TableVersion


def why_gone(source: DeltaSource, since: TableVersion) -> str | None:
    """Why the change from `since` to the pinned version can be read in no way; None if it can."""
    commits = read_commits(source, since, source.version)
    folder = local_path(source.path)
    if commits is not None:
        needed = [*_fed(commits), *copied_by_others(commits)]
        lost = _missing(file_uri(source.path, name) for name in needed) if folder else None
        if lost is None:
            return None
    try:
        before = source.snapshot(since)
    except HistoryGoneError as error:
        return error.message
    if folder is None:
        return None
    after = source.snapshot()
    old, new = {file.uri for file in before.files}, {file.uri for file in after.files}
    lost = _missing(sorted(old ^ new))
    return None if lost is None else f"the file `{lost}` no longer exists (vacuumed?)"


def _fed(commits: Commits) -> Iterable[str]:
    """Log paths of the files that a change feed over these commits reads."""
    return (body["path"] for actions in commits.fed() for _, body in actions)


def _missing(uris: Iterable[str]) -> str | None:
    """The first file that is not there."""
    return next((uri for uri in uris if not os.path.exists(uri)), None)
