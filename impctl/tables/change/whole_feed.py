"""Whether the change data that a commit wrote hold all of its rows, as they were.

Law: an update has two images in its change data of each row that it says it updated. delta-rs
leaves an old image out that equals another row's new one, and that new one too: sums of rows agree
and rows are missing (seen in 1.6.6). With fewer rows than told, or none told, files are compared;
so are they where a double may have been written for NaN (`tables.change.lone_doubles`).
Out of scope: change data of Spark, which come as they are; reading them (`tables.change.feed`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from impctl.tables.change.lone_doubles import doubles_of, rewrote_lone_doubles
from impctl.tables.commits import Commits
from impctl.tables.data_files import DataFiles
from impctl.tables.failures import READ_FAILURES
from impctl.tables.snapshot import Snapshot, logged_file
from impctl.types import ColumnName

_WRITER = "delta-rs"
_IMAGES: Mapping[str, Mapping[str, int]] = {
    "UPDATE": {"num_updated_rows": 2},
    "MERGE": {
        "num_target_rows_inserted": 1,
        "num_target_rows_updated": 2,
        "num_target_rows_deleted": 1,
    },
}
"""Rows of change data for each row that a commit counts."""


def is_fed_whole(after: Snapshot, commits: Commits, columns: Sequence[ColumnName]) -> bool:
    """False where change data by delta-rs may lack rows, or values in these columns."""
    doubles = doubles_of(after, columns)
    for actions in commits.by_commit():
        paths = [body["path"] for name, body in actions if name == "cdc"]
        told: Mapping[str, Any] = next((body for name, body in actions if name == "commitInfo"), {})
        if not paths or not str(told.get("engineInfo") or "").startswith(_WRITER):
            continue
        removed = [body["path"] for name, body in actions if name == "remove"]
        if rewrote_lone_doubles(after, removed, doubles):
            return False
        images = _IMAGES.get(str(told.get("operation")))
        if images is None:
            continue
        metrics = told.get("operationMetrics") or {}
        if _rows(after, paths) != _counted(metrics, images):
            return False
    return True


def _counted(metrics: Mapping[str, Any], images: Mapping[str, int]) -> int | None:
    """Rows that there should be; None where the commit does not count them."""
    try:
        return sum(int(metrics[name]) * each for name, each in images.items())
    except (KeyError, TypeError, ValueError):
        return None


def _rows(after: Snapshot, paths: Sequence[str]) -> int:
    """Rows in these files; -1 where one cannot be read, which its reader tells."""
    opened, rows = DataFiles(after), 0
    for path in paths:
        try:
            rows += int(opened.footer(logged_file(after.path, path)).num_rows)
        except READ_FAILURES:
            return -1
    return rows
