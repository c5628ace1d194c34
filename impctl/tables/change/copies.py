"""Whether rows that a commit copied from file to file are the same rows to Spark.

Law: a copy is believed where Spark made it, or where the file that was copied is there and holds
nothing that deltalake misreads (`tables.footers`), in any column: the change feed names no row
that was merely copied, and an OPTIMIZE names none at all. Copies by others are not believed in
tables with deletion vectors, which some writers leave out of account.
Cost: one small read per file that a writer other than Spark removed, before any that the feed
itself needs.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from impctl.tables.commits import Commits, is_of_spark
from impctl.tables.data_files import DataFiles
from impctl.tables.failures import READ_FAILURES
from impctl.tables.footers import ExpectedNames
from impctl.tables.snapshot import Snapshot, logged_file

_VECTORS = "deletionVectors"
_AT_ONCE = 8
"""Footers read at a time: in an object store each is a round trip."""


def has_faithful_copies(commits: Commits, after: Snapshot) -> bool:
    """Whether these commits' copies are surely right; `after` has the columns."""
    paths = copied_by_others(commits)
    if not paths:
        return True
    if _VECTORS in after.reader_features:
        return False
    expected = ExpectedNames.of(after)
    opened = DataFiles(after)

    def is_well_read(path: str) -> bool:
        try:
            footer = opened.footer(logged_file(after.path, path))
        except READ_FAILURES:
            return False
        return not expected.miscopied(footer).columns

    if len(paths) == 1:
        return is_well_read(paths[0])
    with ThreadPoolExecutor(_AT_ONCE) as readers:
        return all(readers.map(is_well_read, paths))


def copied_by_others(commits: Commits) -> list[str]:
    """Log paths of files whose rows a writer other than Spark may have copied elsewhere.

    Into data files or into the change feed.
    """
    if not any('"remove"' in text for text in commits.texts):
        return []
    return [
        body["path"]
        for actions in commits.by_commit()
        if not is_of_spark(actions) and any(name in ("add", "cdc") for name, _ in actions)
        for name, body in actions
        if name == "remove"
    ]
