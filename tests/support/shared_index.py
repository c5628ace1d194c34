"""Operators that share an index: one writes it, the others find their partners there.

What a chain of joins over one table would do; nothing in the package does it yet. They keep every
obligation of `engine.operator`, so the laws are tested over them.
"""

from __future__ import annotations

from impctl.data.keys import normalise
from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.operator import Keeper, Operator
from impctl.engine.trace import RowIndex


class Indexed(Operator):
    """Keeps the rows that pass in an index; the only one that writes it."""

    def __init__(self, index: RowIndex) -> None:
        self.index = index

    def step(self, batch: Batch) -> Batch:
        if len(batch):
            self.index.add(batch, self.index.codes_of(batch))
        return batch

    def arrangements(self) -> tuple[Keeper, ...]:
        return (self.index,)


class Partners(Operator):
    """Rows of the left input beside their partners in an index that is written already.

    d(R join S) = dR join (S + dS) + R join dS.
    """

    def __init__(self, own: RowIndex, shared: RowIndex) -> None:
        self.own = own
        self.shared = shared

    def step(self, left: Batch | None, right: Batch | None) -> Batch | None:
        parts = []
        if right is not None and len(right):
            theirs, mine = _found(right, self.shared, self.own)
            parts.append(_beside(mine, theirs))
        if left is not None and len(left):
            parts.append(_beside(*_found(left, self.own, self.shared)))
            self.own.add(left, self.own.codes_of(left))
        return stacked_batches([part for part in parts if len(part)] or [empty_batch(2)])

    def arrangements(self) -> tuple[Keeper, ...]:
        return (self.own, self.shared)


def _found(asking: Batch, like: RowIndex, index: RowIndex) -> tuple[Batch, Batch]:
    """The rows that have partners in the index, and these."""
    keys = [normalise(asking.columns[key]) for key in like.keys]
    result = index.find(like.codes_of(asking), keys)
    return asking.take(result.owners), result.rows


def _beside(left: Batch, right: Batch) -> Batch:
    columns = {**left.columns, **right.columns}
    return Batch(columns, left.weights * right.weights, (*left.tags, *right.tags))
