"""How large a change is, told from the log alone.

Law: no data file is opened. `rows` are those that the change feed would give, or more where a
writer does not count what it deleted and updated; None where a commit does not tell. A writer's own
count is believed, because the number is only ever shown or fed to an estimate.
Out of scope: the rows themselves (`tables.change.changes`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from impctl.tables.commits import Action, Commits
from impctl.values import dataclass

_INSERTED, _DELETED, _UPDATED = (1, 0), (0, 1), (1, 1)
_SIGNS_OF_METRIC = {
    "num_deleted_rows": _DELETED,
    "num_updated_rows": _UPDATED,
    "num_target_rows_inserted": _INSERTED,
    "num_target_rows_deleted": _DELETED,
    "num_target_rows_updated": _UPDATED,
    "numDeletedRows": _DELETED,
    "numUpdatedRows": _UPDATED,
    "numTargetRowsInserted": _INSERTED,
    "numTargetRowsDeleted": _DELETED,
    "numTargetRowsUpdated": _UPDATED,
}
"""Counts that deltalake and Spark write, with the rows that one of them inserts and deletes; an
updated row is a deletion and an insertion."""


@dataclass(frozen=True, slots=True)
class ChangeSize:
    """Changed rows (None where the log does not tell), and the files that hold them."""

    rows: int | None
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SignedRows:
    """Rows inserted and rows deleted; None is what the log does not tell."""

    inserted: int | None
    deleted: int | None

    @property
    def rows(self) -> int | None:
        """Both together."""
        if self.inserted is None or self.deleted is None:
            return None
        return self.inserted + self.deleted


_NO_ROWS, _UNKNOWN = SignedRows(0, 0), SignedRows(None, None)


def signed_rows(commits: Commits) -> list[SignedRows]:
    """What each of these commits inserted and deleted, in their order."""
    known: dict[str, int] = {}
    result = []
    for actions, read in zip(commits.by_commit(), commits.fed(), strict=True):
        known |= records_added(actions)
        result.append(_rows(actions, read, known))
    return result


def change_size(commits: Commits, held: Mapping[str, int] | None = None) -> ChangeSize:
    """The size of the change that these commits make together.

    `held` are the rows that files held before, by path, where it is known: the entry of a removed
    file need not repeat them.
    """
    known = dict(held or {})
    rows: int | None = 0
    files = size = 0
    for actions, read in zip(commits.by_commit(), commits.fed(), strict=True):
        known |= records_added(actions)
        files += len(read)
        size += sum(int(body.get("size") or 0) for _, body in read)
        result = _rows(actions, read, known).rows
        rows = None if rows is None or result is None else rows + result
    return ChangeSize(rows, files, size)


def _rows(
    actions: Sequence[Action], read: Sequence[Action], known: Mapping[str, int]
) -> SignedRows:
    if not read:
        return _NO_ROWS
    counted = _counted_by_the_writer(actions)
    if counted is not None:
        return counted
    if any(name == "cdc" for name, _ in read):
        return _UNKNOWN
    # What was copied from file to file counts, as long as nobody looked.
    live: dict[str, int] = {}
    unknown = set()
    for name, body in read:
        held = _live_rows(body, known)
        if held is None:
            unknown.add(name)
            continue
        # The same file twice is a file whose deletion vector changed.
        path = body["path"]
        live[path] = live.get(path, 0) + (held if name == "add" else -held)
    inserted = sum(rows for rows in live.values() if rows > 0)
    deleted = -sum(rows for rows in live.values() if rows < 0)
    return SignedRows(
        None if "add" in unknown else inserted, None if "remove" in unknown else deleted
    )


def _counted_by_the_writer(actions: Sequence[Action]) -> SignedRows | None:
    for name, body in actions:
        metrics = body.get("operationMetrics") if name == "commitInfo" and body else None
        if isinstance(metrics, Mapping):
            known = [key for key in metrics if key in _SIGNS_OF_METRIC]
            try:
                counts = [(int(metrics[key]), _SIGNS_OF_METRIC[key]) for key in known]
            except (TypeError, ValueError):
                return None
            if not counts:
                return None
            inserted = sum(count * signs[0] for count, signs in counts)
            return SignedRows(inserted, sum(count * signs[1] for count, signs in counts))
    return None


def _live_rows(body: Mapping[str, Any], known: Mapping[str, int]) -> int | None:
    """Rows of a file that are not deleted."""
    rows = _records_of(body)
    if rows is None:
        rows = known.get(body["path"])
    if rows is None:
        return None
    return max(0, rows - int((body.get("deletionVector") or {}).get("cardinality") or 0))


def records_added(actions: Sequence[Action]) -> dict[str, int]:
    """Rows by the path of each file added, deleted ones included."""
    added = [body for name, body in actions if name == "add"]
    return {body["path"]: rows for body in added if (rows := _records_of(body)) is not None}


def _records_of(body: Mapping[str, Any]) -> int | None:
    try:
        rows = json.loads(body.get("stats") or "{}").get("numRecords")
    except (ValueError, AttributeError):
        return None
    return rows if isinstance(rows, int) else None
