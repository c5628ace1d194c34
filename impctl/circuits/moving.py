"""The rows that enter or leave a query because constants in its conditions moved.

Law: to a circuit they are one more batch behind the selections above a scan. With O and N the old
and new conditions, D a table's change and T the table after it, what is behind the selections
changes by O(D) + N(T) - O(T), since it was O(T - D) and becomes N(T). All rows of a step are one
batch, so that a buffer that is refilled from the table finds itself where the table is.
Out of scope: reading T (`app.maintaining.move`), what moved (`plan.moved_conditions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from impctl.circuits.flows import Source
from impctl.data.vector import Bools, Ints
from impctl.engine.batch import Batch, stacked_batches
from impctl.expr.evaluate import Condition
from impctl.expr.nodes import Expr
from impctl.plan.moved_conditions import MovedConditions
from impctl.types import AccessId, TableName

Moves = Mapping[AccessId, MovedConditions]
Moving = tuple[Source, MovedConditions]
"""A source with what moves in the conditions above it."""
MovedRows = Callable[[Sequence[Moving]], Iterable[pa.Table]]
"""All rows of the one table that these sources read, after the change, which meet the one and not
the other of what moved for any of them; more may come along. The columns that they scan come in any
order."""


def moved_batches(
    sources: Sequence[Source], moves: Moves, rows: MovedRows
) -> tuple[dict[AccessId, list[Batch]], int]:
    """The rows that came or went, by access, and how many of their tables did.

    A table is read once, and a row counts once, however many of the sources see it move.
    """
    by_table: dict[TableName, list[Moving]] = {}
    for source in sources:
        if source.access in moves:
            by_table.setdefault(source.table, []).append((source, moves[source.access]))
    result: dict[AccessId, list[Batch]] = {access: [] for access in moves}
    count = 0
    for asked in by_table.values():
        for table in rows(asked):
            moves_for_any = np.zeros(len(table), dtype=np.bool_)
            for source, moved in asked:
                batch, at = differing_rows(source, moved, table)
                moves_for_any[at] = True
                result[source.access].append(batch)
            count += int(moves_for_any.sum())
    return result, count


def moved_batch(
    moved: MovedConditions, change: Batch | None, came_or_went: Sequence[Batch]
) -> Batch | None:
    """What changes behind the selections of a source; None for nothing."""
    parts = [] if change is None else [change.keep(passing(moved.before, change))]
    kept = [part for part in (*parts, *came_or_went) if len(part)]
    return stacked_batches(kept) if kept else None


def differing_rows(source: Source, moved: MovedConditions, table: pa.Table) -> tuple[Batch, Ints]:
    """Of these rows those that came (+1) and those that went (-1), and where they stand."""
    batch = source.scan.read(table, np.ones(len(table), dtype=np.int64))
    sign = passing(moved.after, batch).astype(np.int64)
    sign -= passing(moved.before, batch).astype(np.int64)
    result = np.flatnonzero(sign)
    taken = batch.take(result)
    return Batch(taken.columns, sign[result], taken.tags), result


def passing(predicates: Sequence[Expr], batch: Batch) -> Bools:
    """Which rows of a batch pass selections, the lowest first; each sees what those below left.

    NotExactError where that is too close to call.
    """
    left = np.arange(len(batch), dtype=np.int64)
    for predicate in predicates:
        rows = batch if len(left) == len(batch) else batch.take(left)
        if len(rows):
            left = left[Condition(predicate).truth(rows.columns, len(rows)).sure_true()]
    mask = np.zeros(len(batch), dtype=np.bool_)
    mask[left] = True
    return mask
