"""The commits of a table one by one: when each came, and how much it changed, by the log alone.

Law: no data file is opened. Commits that only move rows are told as such; a size that the log does
not tell is None. Times are as written, so they may lie in the future or go back: who reckons with
them sets that right. Out of scope: commits together (`tables.change.size`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from impctl.aliases import TableVersion
from impctl.tables.change.size import change_size, records_added
from impctl.tables.commits import Action, Commits, read_commits
from impctl.tables.source import DeltaSource
from impctl.tables.storage import local_path
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Committed:
    """One commit: seconds since 1970 (None where nothing tells), its rows and bytes.

    `rows` is None where the log does not tell; `only_moves` says that its rows are those of before.
    """

    version: TableVersion
    at: float | None
    rows: int | None
    bytes: int
    only_moves: bool


def committed_since(
    source: DeltaSource, since: TableVersion, known: Mapping[TableVersion, Committed]
) -> tuple[Committed, ...] | None:
    """The commits after `since` up to the pinned version; None where one cannot be read.

    Those `known` are not read again. Raises TableError for an entry that is damaged.
    """
    found = [known[v] for v in range(since + 1, source.version + 1) if v in known]
    first = since + 1
    while first in known and first <= source.version:
        first += 1
    if first > source.version:
        return tuple(found)
    commits = read_commits(source, first - 1, source.version)
    if commits is None:
        return None
    before = [one for one in found if one.version < first]
    return (*before, *_told(source, commits))


def _told(source: DeltaSource, commits: Commits) -> list[Committed]:
    found = []
    held: dict[str, int] = {}
    for at, (text, actions) in enumerate(zip(commits.texts, commits.by_commit(), strict=True)):
        version = commits.since + 1 + at
        alone = Commits((text,), commits.table, version - 1)
        size = change_size(alone, held)
        held |= records_added(actions)
        when = _when(actions)
        if when is None:
            when = _written_at(source, version)
        found.append(Committed(version, when, size.rows, size.bytes, alone.only_move_rows))
    return found


def _when(actions: Sequence[Action]) -> float | None:
    """When the commit came, as it says itself."""
    for name, body in actions:
        if name == "commitInfo" and isinstance(body, Mapping):
            for key in ("inCommitTimestamp", "timestamp"):
                said = body.get(key)
                if isinstance(said, int | float) and not isinstance(said, bool):
                    return float(said) / 1000
    return None


def _written_at(source: DeltaSource, version: TableVersion) -> float | None:
    """When the log's entry was written, by the disk; None elsewhere."""
    folder = local_path(source.path)
    if folder is None:
        return None
    try:
        return os.stat(os.path.join(folder, "_delta_log", f"{version:020}.json")).st_mtime
    except OSError:
        return None
