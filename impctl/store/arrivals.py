"""The latest commits of each table as numbers, as catalog rows.

Law: writing costs the arrivals that are new or go, not those that stay. They only ever feed a
forecast: a row that does not match its seal is left out, and the next one stands behind a gap.
Out of scope: reading them from a log (`tables.change.commit_history`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import replace

from impctl.forecast import KEPT, Arrival, History
from impctl.store.seals import seal_of, sealed
from impctl.types import TableName

_LOG_COLUMNS, _COLUMNS = 6, 10


def load_arrivals(
    connection: sqlite3.Connection, tables: Iterable[TableName], *, is_whole: bool = True
) -> dict[TableName, History]:
    """What is known of these tables; one of which nothing is known is left out.

    Without the arrivals where it is not `is_whole`: that is enough to go on from.
    """
    result = {}
    for table in dict.fromkeys(tables):
        log = _log(connection, table)
        if log is not None:
            arrivals = tuple(_arrivals(connection, table)) if is_whole else ()
            result[table] = replace(log, arrivals=arrivals)
    return result


def save_arrivals(connection: sqlite3.Connection, histories: Mapping[TableName, History]) -> None:
    """Bring the rows of tables to these histories, which go on from those that were loaded: of
    arrivals only those after what is known are looked at."""
    for table, history in histories.items():
        since = _put_arrivals(connection, table, history)
        row = sealed(table, history.table_id, history.until, _real(since), int(history.has_missed))
        marks = ", ".join("?" * _LOG_COLUMNS)
        connection.execute(f"INSERT OR REPLACE INTO arrival_log VALUES ({marks})", row)


def _put_arrivals(
    connection: sqlite3.Connection, table: TableName, history: History
) -> float | None:
    """Add what is new and take away what went; gives the time from which on all is known."""
    held = _log(connection, table)
    is_same = held is not None and held.table_id == history.table_id
    last = held.until if held is not None and is_same else -1
    connection.execute(
        "DELETE FROM arrival WHERE table_name = ? AND version > ?",
        (table, min(last, history.until)),
    )
    new = [_row(table, each) for each in history.arrivals if each.version > last]
    marks = ", ".join("?" * _COLUMNS)
    connection.executemany(f"INSERT INTO arrival VALUES ({marks})", new)
    # One that is behind as many as are kept, if there is such a one.
    first = connection.execute(
        "SELECT version, at FROM arrival WHERE table_name = ? ORDER BY version DESC"
        " LIMIT 1 OFFSET ?",
        (table, KEPT - 1),
    ).fetchone()
    if first is None:
        return history.since
    gone = connection.execute(
        "DELETE FROM arrival WHERE table_name = ? AND version < ?", (table, first[0])
    )
    return first[1] if gone.rowcount else history.since


def _log(connection: sqlite3.Connection, table: TableName) -> History | None:
    """The table's row, without arrivals."""
    row = connection.execute("SELECT * FROM arrival_log WHERE table_name = ?", (table,)).fetchone()
    if row is None or seal_of(*row[:-1]) != row[-1]:
        return None
    return History(row[1], row[2], row[3], (), bool(row[4]))


def _arrivals(connection: sqlite3.Connection, table: TableName) -> Iterable[Arrival]:
    rows = connection.execute(
        "SELECT * FROM arrival WHERE table_name = ? ORDER BY version", (table,)
    ).fetchall()
    is_left_out = False
    for row in rows:
        if seal_of(*row[:-1]) != row[-1]:
            is_left_out = True
            continue
        version, at, inserted, deleted, files, size, operation, is_after_gap = row[1:-1]
        is_behind = bool(is_after_gap) or is_left_out
        yield Arrival(version, at, inserted, deleted, files, size, operation, is_behind)
        is_left_out = False


def _row(table: TableName, each: Arrival) -> tuple[object, ...]:
    return sealed(
        table,
        each.version,
        _real(each.at),
        each.inserted,
        each.deleted,
        each.files,
        each.bytes,
        each.operation,
        int(each.is_after_gap),
    )


def _real(value: float | None) -> float | None:
    return None if value is None else float(value)
