"""What was done to a query and why, as catalog rows.

Law: a record is numbered in the order of commits and stays when the query is captured again. Its
cost is put where estimates are learned from (`store.costs`) and is not read back with it.
Out of scope: choosing what to do (`app`).
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from impctl.store.costs import add_cost, replace_last_cost
from impctl.store.records import RunRecord
from impctl.store.seals import Value, opened, sealed
from impctl.store.sketches import versions_text

_COLUMNS = (
    *("action", "reason_code", "reason", "started_at"),
    *("elapsed_ms", "read_ms", "engine_ms", "commit_ms"),
    *("changes", "added", "removed", "versions"),
)
"""Behind a record's query and number, named as its fields are."""

_LAST = "SELECT coalesce(max(number), 0) FROM history WHERE query_id = ?"


def add_record(connection: sqlite3.Connection, query_id: int, record: RunRecord) -> None:
    """Append the record."""
    _put(connection, query_id, _last(connection, query_id) + 1, record)
    if record.cost is not None:
        add_cost(connection, query_id, record.cost)


def replace_last_record(connection: sqlite3.Connection, query_id: int, record: RunRecord) -> None:
    """Put the record in place of the latest one (timings known only after the commit)."""
    _put(connection, query_id, max(1, _last(connection, query_id)), record)
    if record.cost is not None:
        replace_last_cost(connection, query_id, record.cost)


def load_records(
    connection: sqlite3.Connection, path: Path, query_id: int, limit: int
) -> tuple[RunRecord, ...]:
    """The latest `limit` records, newest first."""
    rows = connection.execute(
        "SELECT * FROM history WHERE query_id = ? ORDER BY number DESC LIMIT ?", (query_id, limit)
    )
    records = []
    for row in rows.fetchall():
        values = opened(row, path, "history")[2:]
        given = dict(zip(_COLUMNS, values, strict=True))
        records.append(RunRecord(**{**given, "versions": json.loads(given["versions"])}))
    return tuple(records)


def _last(connection: sqlite3.Connection, query_id: int) -> int:
    return int(connection.execute(_LAST, (query_id,)).fetchone()[0])


def _put(connection: sqlite3.Connection, query_id: int, number: int, record: RunRecord) -> None:
    row: tuple[Value, ...] = (
        query_id,
        number,
        str(record.action),
        str(record.reason_code),
        record.reason,
        float(record.started_at),
        float(record.elapsed_ms),
        float(record.read_ms),
        float(record.engine_ms),
        float(record.commit_ms),
        int(record.changes),
        int(record.added),
        int(record.removed),
        versions_text(record.versions),
    )
    marks = ", ".join("?" * (len(row) + 1))
    connection.execute(f"INSERT OR REPLACE INTO history VALUES ({marks})", sealed(*row))
