"""Inner join on equal keys.

Identity: d(R join S) = dR join S + (R + dR) join dS. State: the rows of both sides by their keys,
with their tags. Cost: the changed rows and the partners they find, never the other side. A row
whose key holds a NULL has no partner and is not kept, unless that key compares NULL as a value.
Without keys every row is a partner (cross join). A joined row carries the tags of both rows.
Not to be confused with the outer, semi and anti joins, which are put together from this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from impctl.aliases import AttributeId
from impctl.data.keys import normalise
from impctl.data.schema import SqlType
from impctl.data.vector import Ints
from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.row_index import RowIndex


@dataclass(frozen=True, slots=True)
class Side:
    """One input: what is kept of its rows, its keys, and how many sketched accesses it has."""

    columns: tuple[tuple[AttributeId, SqlType], ...]
    keys: tuple[AttributeId, ...]
    accesses: int


class Join:
    """Rows of `left` and `right` whose keys are equal, place by place.

    `null_safe[i]` says that NULL equals NULL in the i-th key.
    """

    def __init__(self, name: str, left: Side, right: Side, null_safe: Sequence[bool]) -> None:
        self.sides = (left, right)
        self._plain = tuple(at for at, safe in enumerate(null_safe) if not safe)
        self._indexes = (
            RowIndex(f"{name}.left", left.columns, left.keys, left.accesses),
            RowIndex(f"{name}.right", right.columns, right.keys, right.accesses),
        )

    def step(self, *batches: Batch | None) -> Batch:
        """Pairs that came or went."""
        parts = []
        for at, batch in enumerate(batches):
            if batch is None or len(batch) == 0:
                continue
            batch = self._matchable(batch, at)
            codes = self._indexes[at].codes_of(batch)
            pairs = self._pairs(batch, codes, at)
            self._indexes[at].add(batch, codes)
            if len(pairs):
                parts.append(pairs)
        if not parts:
            return empty_batch(sum(side.accesses for side in self.sides))
        return stacked_batches(parts)

    def _matchable(self, batch: Batch, at: int) -> Batch:
        """The rows that can have a partner at all, reduced to what is kept."""
        side = self.sides[at]
        columns = {name: batch.columns[name] for name, _ in side.columns}
        known = np.ones(len(batch), dtype=np.bool_)
        for place in self._plain:
            valid = columns[side.keys[place]].valid
            if valid is not None:
                known &= valid
        return Batch(columns, batch.weights, batch.tags).keep(known)

    def _pairs(self, batch: Batch, codes: Ints, at: int) -> Batch:
        """The batch's rows beside their partners of the other side."""
        keys = [normalise(batch.columns[key]) for key in self.sides[at].keys]
        found = self._indexes[1 - at].find(codes, keys)
        mine, theirs = batch.take(found.owners), found.rows
        left, right = (mine, theirs) if at == 0 else (theirs, mine)
        columns = {**left.columns, **right.columns}
        return Batch(columns, mine.weights * theirs.weights, (*left.tags, *right.tags))

    def arrangements(self) -> tuple[RowIndex, ...]:
        return self._indexes
