"""What a table went through since a version, by what its log says.

Law: reads the log only, never a data file. Out of scope: counting (`tables.change.size`), the
change itself (`tables.change.changes`).
"""

from __future__ import annotations

from impctl.errors import ImpctlError
from impctl.tables.change.size import change_size
from impctl.tables.commits import read_commits
from impctl.tables.source import DeltaSource
from impctl.types import TableVersion
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Pending:
    """Commits since a version, and what they changed; None is what the log does not say."""

    versions: int
    files: int | None
    rows: int | None
    bytes: int | None


def pending_changes(source: DeltaSource, since: TableVersion) -> Pending:
    """Everything committed after `since` up to the pinned version."""
    versions = max(source.version - since, 0)
    if not versions:
        return Pending(0, 0, 0, 0)
    commits = read_commits(source, since, source.version)
    if commits is None:
        return Pending(versions, None, None, None)
    size = change_size(commits)
    if size.rows is None:
        # Files from before the range were removed, and the log did not repeat their statistics.
        size = change_size(commits, _rows_at(source, since))
    return Pending(versions, size.files, size.rows, size.bytes)


def _rows_at(source: DeltaSource, version: TableVersion) -> dict[str, int]:
    """Rows of each file of a version, by its path in the log; empty where the version is gone."""
    try:
        actions = source.snapshot(version).actions
    except ImpctlError:
        return {}
    named = zip(
        actions.column("path").to_pylist(), actions.column("num_records").to_pylist(), strict=True
    )
    return {path: rows for path, rows in named if rows is not None}
