"""The commits of a table one by one: when each came, and how much it changed, by the log alone.

Law: no data file is opened. Commits that only move rows are told as such; a size that the log does
not tell is None. Times are as written (`tables.change.commit_time`).
Out of scope: commits together (`tables.change.size`), their numbers over time
(`tables.change.commit_history`).
"""

from __future__ import annotations

from collections.abc import Mapping

from impctl.tables.change.commit_time import commit_time
from impctl.tables.change.size import change_size, records_added
from impctl.tables.commits import Commits, read_commits
from impctl.tables.source import DeltaSource
from impctl.types import TableVersion
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
    result = [known[v] for v in range(since + 1, source.version + 1) if v in known]
    first = since + 1
    while first in known and first <= source.version:
        first += 1
    if first > source.version:
        return tuple(result)
    commits = read_commits(source, first - 1, source.version)
    if commits is None:
        return None
    before = [one for one in result if one.version < first]
    return (*before, *_told(source, commits))


def _told(source: DeltaSource, commits: Commits) -> list[Committed]:
    result = []
    held: dict[str, int] = {}
    for at, (text, actions) in enumerate(zip(commits.texts, commits.by_commit(), strict=True)):
        version = commits.since + 1 + at
        alone = Commits((text,), commits.table, version - 1)
        size = change_size(alone, held)
        held |= records_added(actions)
        when = commit_time(source, version, actions)
        result.append(Committed(version, when, size.rows, size.bytes, alone.only_move_rows))
    return result
