"""What the latest runs of a query cost, as catalog rows.

Law: of every kind of run, every set of tables it carried on and every layout of state, the latest
`KEPT` are held, and `MOST` of a kind. Costs only ever feed an estimate: a row that does not match
its seal is left out, where elsewhere it would end the run.
Out of scope: estimating (`app.maintaining.cost_model`), what was done and why (`store.history`).
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Sequence

from impctl.store.cost_parts import parts_in, parts_text
from impctl.store.records import RunCost, RunKind
from impctl.store.seals import seal_of
from impctl.types import TableName

KEPT = 8
"""Runs of one kind over the same tables and layout: enough to see an outlier, few to read."""
MOST = 64
"""Runs of one kind, whatever tables they carried on."""

_LAST = "SELECT coalesce(max(number), 0) FROM cost WHERE query_id = ? AND kind = ?"
_SEALED = 8
"""Columns before the seal; what follows it came with later formats."""
_KINDS = frozenset(kind.value for kind in RunKind)
_OLDEST = """DELETE FROM cost WHERE query_id = ? AND kind = ? AND (number <= ?
    OR moved = ? AND layout = ? AND number NOT IN (SELECT number FROM cost
            WHERE query_id = ? AND kind = ? AND moved = ? AND layout = ?
            ORDER BY number DESC LIMIT ?))"""


def add_cost(connection: sqlite3.Connection, query_id: int, cost: RunCost) -> None:
    """Append the cost of a run, dropping the oldest like it beyond `KEPT`."""
    number = _last(connection, query_id, cost.kind) + 1
    _put(connection, query_id, number, cost)
    mine, alike = (query_id, str(cost.kind)), (_text(cost.moved), cost.layout)
    connection.execute(_OLDEST, (*mine, number - MOST, *alike, *mine, *alike, KEPT))


def replace_last_cost(connection: sqlite3.Connection, query_id: int, cost: RunCost) -> None:
    """Put the cost in place of the latest of its kind."""
    _put(connection, query_id, max(1, _last(connection, query_id, cost.kind)), cost)


def load_costs(connection: sqlite3.Connection, query_id: int) -> tuple[RunCost, ...]:
    """The costs held, newest first within a kind."""
    rows = connection.execute(
        "SELECT * FROM cost WHERE query_id = ? ORDER BY kind, number DESC", (query_id,)
    ).fetchall()
    result = []
    for row in rows:
        values, seal, later = row[:_SEALED], row[_SEALED], row[_SEALED + 1 :]
        if seal_of(*values, *filter(None, later)) != seal:
            continue
        _, kind, _, changed, size, elapsed_ms, spark, start_ms = values
        if kind in _KINDS and math.isfinite(elapsed_ms):
            result.append(
                RunCost(
                    RunKind(kind),
                    changed,
                    size,
                    elapsed_ms,
                    bool(spark),
                    start_ms,
                    _tables(*later[:1]),
                    parts_in(*later[1:2]),
                    *later[2:],
                )
            )
    return tuple(result)


def _text(moved: Sequence[TableName]) -> str:
    """Tables as the catalog has them; of none the text of a row that does not tell."""
    return json.dumps(list(moved)) if moved else ""


def _tables(moved: str = "") -> tuple[TableName, ...]:
    return tuple(json.loads(moved)) if moved else ()


def forget_costs(connection: sqlite3.Connection, query_id: int) -> None:
    """Remove all costs of the query."""
    connection.execute("DELETE FROM cost WHERE query_id = ?", (query_id,))


def _last(connection: sqlite3.Connection, query_id: int, kind: RunKind) -> int:
    return int(connection.execute(_LAST, (query_id, str(kind))).fetchone()[0])


def _put(connection: sqlite3.Connection, query_id: int, number: int, cost: RunCost) -> None:
    values = (
        query_id,
        str(cost.kind),
        number,
        int(cost.rows),
        int(cost.bytes),
        float(cost.elapsed_ms),
        int(cost.spark),
        float(cost.start_ms),
    )
    later = (_text(cost.moved), parts_text(cost.parts), cost.layout)
    row = (*values, seal_of(*values, *filter(None, later)), *later)
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT OR REPLACE INTO cost VALUES ({marks})", row)
