"""How much the commits between two versions changed, by what the log says of their files.

Law: reads the log only, never a data file. `rows` is an upper bound: a file that an update rewrote
counts with all its rows, before and after; it is None where the log does not say. A commit that
only rearranges rows (OPTIMIZE) counts nothing.
Out of scope: the change itself (`tables.changes`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from impctl.aliases import TableVersion
from impctl.errors import ImpctlError
from impctl.tables.commits import Commits, read_commits
from impctl.tables.source import DeltaSource

Action = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Pending:
    """What a table went through since a version; None is what the log does not say (any more)."""

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
    files, rows = _counted(commits, {})
    if rows is None:
        # Files from before the range were removed, and the log did not repeat their statistics.
        rows = _counted(commits, _rows_at(source, since))[1]
    return Pending(versions, files, rows, commits.changed_bytes)


def _counted(commits: Commits, before: Mapping[str, int]) -> tuple[int, int | None]:
    """Files changed, and rows in them at most; `before` tells the rows of older files."""
    known = dict(before)
    files, rows, is_known = 0, 0, True
    for commit in commits.by_commit():
        moved = [
            (name, body)
            for name, body in commit
            if name in ("add", "remove") and body.get("dataChange", True)
        ]
        known |= _rows_of(moved)
        for path, actions in _by_path(moved).items():
            files += 1
            changed = _rows_changed(actions, known.get(path))
            is_known = is_known and changed is not None
            rows += changed or 0
    return files, rows if is_known else None


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


def _by_path(moved: Iterable[Action]) -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name, body in moved:
        found.setdefault(body["path"], {})[name] = body
    return found


def _rows_of(moved: Iterable[Action]) -> dict[str, int]:
    """Rows per file, as far as its statistics say, rows that a vector deletes included."""
    found = {}
    for _, body in moved:
        stated = _statistics(body).get("numRecords")
        if isinstance(stated, int):
            found[body["path"]] = stated
    return found


def _statistics(body: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        found = json.loads(body.get("stats") or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _rows_changed(actions: Mapping[str, Mapping[str, Any]], rows: int | None) -> int | None:
    """Rows that one commit added to or took from one file."""
    deleted = {name: _deleted(body) for name, body in actions.items()}
    if len(deleted) == 2:
        # The file stays, and only the rows that its vector deletes are others.
        return abs(deleted["add"] - deleted["remove"])
    return None if rows is None else rows - sum(deleted.values())


def _deleted(body: Mapping[str, Any]) -> int:
    vector = body.get("deletionVector") or {}
    return int(vector.get("cardinality") or 0)
