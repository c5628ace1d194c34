"""The tables as findings: reachable, their features, the change feed, and their history.

Law: reads logs and metadata only, never a data file.
Out of scope: history against the schedule (`app.examining.history`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from impctl.app.examining.altering import setting_calls
from impctl.app.examining.commit_times import commit_time_findings
from impctl.app.examining.history import history_findings
from impctl.app.results.findings import Finding, Subject
from impctl.app.workbench.pinned import PinnedTables
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError, count_text
from impctl.store.records import StoredQuery
from impctl.tables.snapshot import CHANGE_FEED, Snapshot
from impctl.tables.write.apply import check_writable
from impctl.types import QueryName, TableName, TableVersion

_BY_FILES = "changes are found by comparing files, which reads each changed file completely"


def table_findings(
    desk: Workbench, stored: Sequence[StoredQuery], every: timedelta | None
) -> Iterator[Finding]:
    """Everything about each table of the workload; `stored` are the sketches there are."""
    for table in desk.workload.tables:
        subject = Subject.of_table(table)
        try:
            snapshot = desk.tables.snapshot(table)
            stale = _stale(desk.tables, stored, table)
            history = list(history_findings(desk.tables.source(table), snapshot, stale, every))
        except ImpctlError as error:
            yield subject.failed("readable", error)
            continue
        yield subject.ok("readable", _described(snapshot))
        yield from _unreadable(subject, snapshot)
        if any(update.table == table for update in desk.workload.updates):
            yield _writable(subject, snapshot)
        yield _change_feed(subject, snapshot)
        yield from history
        yield from commit_time_findings(desk.tables.source(table))


def _described(snapshot: Snapshot) -> str:
    known = None if snapshot.rows is None else count_text(snapshot.rows, "row")
    rows = "an unknown number of rows" if known is None else known
    files = count_text(len(snapshot.files), "file")
    features = sorted(snapshot.reader_features)
    needs = f"; reader features {', '.join(features)}" if features else ""
    return f"Version {snapshot.version}, {rows} in {files}{needs}"


def _unreadable(subject: Subject, snapshot: Snapshot) -> Iterator[Finding]:
    """Columns that queries cannot use."""
    opaque = snapshot.columns.opaque
    if opaque:
        named = ", ".join(f"`{name}` ({reason})" for name, reason in sorted(opaque.items()))
        yield subject.warning(
            "columns",
            f"Columns that cannot be read without the Delta JAR: {named}",
            "do not use them in queries, or read the table with the Delta JAR",
        )


def _writable(subject: Subject, snapshot: Snapshot) -> Finding:
    """Only `apply` writes tables."""
    try:
        check_writable(snapshot)
    except ImpctlError as error:
        return subject.failed("writable", error)
    return subject.ok("writable", "`apply` can write it")


def _change_feed(subject: Subject, snapshot: Snapshot) -> Finding:
    if not snapshot.has_change_feed:
        said = f"The change feed is off: {_BY_FILES}"
        fix = setting_calls(snapshot.path, CHANGE_FEED, "true")
        return subject.warning("change_feed", said, fix)
    if snapshot.column_mapping is not None:
        return subject.warning(
            "change_feed",
            f"The change feed is on, but cannot be used because columns are mapped: {_BY_FILES}",
            "no action is needed; a table without `delta.columnMapping.mode` is maintained faster",
        )
    return subject.ok("change_feed", "The change feed is on")


def _stale(
    tables: PinnedTables, stored: Sequence[StoredQuery], table: TableName
) -> dict[QueryName, TableVersion]:
    """Sketches that stand at an older version of this very table."""
    source = tables.source(table)
    return {
        query.query: pin.version
        for query in stored
        for pin in query.pins
        if pin.table == table and pin.table_id == source.table_id and pin.version < source.version
    }
