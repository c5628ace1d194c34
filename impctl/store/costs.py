"""What the latest runs of a query cost, as catalog rows.

Law: of every kind of run the latest `KEPT` are held, no more. Costs only ever feed an estimate: a
row that does not match its seal is left out, where elsewhere it would end the run.
Out of scope: estimating (`app.maintaining.cost_model`), what was done and why (`store.history`).
"""

from __future__ import annotations

import math
import sqlite3

from impctl.store.records import RunCost, RunKind
from impctl.store.seals import seal_of, sealed

KEPT = 8
"""Runs of one kind: enough to see an outlier, few enough to be read on every run."""

_LAST = "SELECT coalesce(max(number), 0) FROM cost WHERE query_id = ? AND kind = ?"
_COLUMNS = 9
_KINDS = frozenset(kind.value for kind in RunKind)


def add_cost(connection: sqlite3.Connection, query_id: int, cost: RunCost) -> None:
    """Append the cost of a run, dropping the oldest of its kind beyond `KEPT`."""
    number = _last(connection, query_id, cost.kind) + 1
    _put(connection, query_id, number, cost)
    connection.execute(
        "DELETE FROM cost WHERE query_id = ? AND kind = ? AND number <= ?",
        (query_id, str(cost.kind), number - KEPT),
    )


def replace_last_cost(connection: sqlite3.Connection, query_id: int, cost: RunCost) -> None:
    """Put the cost in place of the latest of its kind."""
    _put(connection, query_id, max(1, _last(connection, query_id, cost.kind)), cost)


def load_costs(connection: sqlite3.Connection, query_id: int) -> tuple[RunCost, ...]:
    """The costs held, newest first within a kind."""
    rows = connection.execute(
        "SELECT * FROM cost WHERE query_id = ? ORDER BY kind, number DESC", (query_id,)
    ).fetchall()
    return tuple(
        RunCost(RunKind(row[1]), row[3], row[4], row[5], bool(row[6]), row[7])
        for row in rows
        if len(row) == _COLUMNS and seal_of(*row[:-1]) == row[-1]
        if row[1] in _KINDS and math.isfinite(row[5])
    )


def forget_costs(connection: sqlite3.Connection, query_id: int) -> None:
    """Remove all costs of the query."""
    connection.execute("DELETE FROM cost WHERE query_id = ?", (query_id,))


def _last(connection: sqlite3.Connection, query_id: int, kind: RunKind) -> int:
    return int(connection.execute(_LAST, (query_id, str(kind))).fetchone()[0])


def _put(connection: sqlite3.Connection, query_id: int, number: int, cost: RunCost) -> None:
    row = sealed(
        query_id,
        str(cost.kind),
        number,
        int(cost.rows),
        int(cost.bytes),
        float(cost.elapsed_ms),
        int(cost.spark),
        float(cost.start_ms),
    )
    connection.execute("INSERT OR REPLACE INTO cost VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
