"""The rows that enter or leave a query because constants in its conditions moved.

Law: to a circuit they are one more batch behind the selections above a scan. With O and N the old
and new conditions, D a table's change and T the table after it, what is behind the selections
changes by O(D) + N(T) - O(T), since it was O(T - D) and becomes N(T). All rows of a step are one
batch, so that a buffer that is refilled from the table finds itself where the table is.
Out of scope: reading T (`app.maintaining.move`), what moved (`plan.moved_conditions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from impctl.aliases import AccessId
from impctl.circuits.flows import Source
from impctl.data.vector import Bools
from impctl.engine.batch import Batch, stacked_batches
from impctl.expr.evaluate import truth
from impctl.expr.nodes import Expr
from impctl.plan.moved_conditions import MovedConditions

Moves = Mapping[AccessId, MovedConditions]
MovedRows = Callable[[Source, MovedConditions], Iterable[pa.Table]]
"""All rows of a source's table, after the change, that meet the one and not the other; more may
come along. The columns that it scans come in any order."""


def moved_batch(
    source: Source, moved: MovedConditions, change: Batch | None, rows: MovedRows
) -> tuple[Batch | None, int]:
    """What changes behind the selections of a source, and how many rows of it came or went."""
    parts = []
    if change is not None:
        parts.append(change.keep(passing(moved.before, change)))
    found = differing_rows(source, moved, rows(source, moved))
    came_or_went = [part for part in found if len(part)]
    parts += came_or_went
    kept = [part for part in parts if len(part)]
    count = sum(len(part) for part in came_or_went)
    return (stacked_batches(kept) if kept else None), count


def differing_rows(
    source: Source, moved: MovedConditions, tables: Iterable[pa.Table]
) -> Iterator[Batch]:
    """Of these rows those that came (+1) and those that went (-1)."""
    for table in tables:
        batch = source.scan.read(table, np.ones(len(table), dtype=np.int64))
        sign = passing(moved.after, batch).astype(np.int64)
        sign -= passing(moved.before, batch).astype(np.int64)
        found = np.flatnonzero(sign)
        taken = batch.take(found)
        yield Batch(taken.columns, sign[found], taken.tags)


def passing(predicates: Sequence[Expr], batch: Batch) -> Bools:
    """Which rows of a batch pass selections, the lowest first; each sees what those below left.

    NotExactError where that is too close to call.
    """
    left = np.arange(len(batch), dtype=np.int64)
    for predicate in predicates:
        rows = batch if len(left) == len(batch) else batch.take(left)
        if len(rows):
            left = left[truth(predicate, rows.columns, len(rows)).sure_true()]
    mask = np.zeros(len(batch), dtype=np.bool_)
    mask[left] = True
    return mask
