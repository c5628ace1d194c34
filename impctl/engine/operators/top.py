"""The first rows of an order, ties at the border included.

Identity: the change is minus the old first rows plus the new ones, and nothing while every changed
row lies beyond the border. State: all rows by the code of their first sort key, and how often each
code occurs, so the border is found without looking at rows. Cost: the changed rows, the first
`size` rows and those that share the border's code. A batch and its negative cancel.
Not to be confused with LIMIT, which drops ties at the border as it likes: the sketch keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.aliases import AttributeId
from impctl.data.schema import SqlType
from impctl.data.vector import INT64_MIN
from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.extremes import OrderedCounts
from impctl.engine.order_codes import OrderKey, codes_of, exact_ranks
from impctl.engine.row_index import RowIndex


class Top:
    """The first `size` rows by `order`, counted with their copies, and what ties with the last."""

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        order: Sequence[OrderKey],
        size: int,
        accesses: int,
    ) -> None:
        self.order = tuple(order)
        self.size = size
        self._accesses = accesses
        self._columns = tuple(name for name, _ in columns)
        self._rows = RowIndex(f"{name}.rows", columns, (), accesses)
        self._counts = OrderedCounts(f"{name}.codes")

    def step(self, batch: Batch) -> Batch:
        """What the change does to the first rows."""
        if len(batch) == 0 or self.size == 0:
            return empty_batch(self._accesses)
        key = self.order[0]
        codes = codes_of(batch.columns[key.column], key)
        border = self._counts.reach(self.size)
        is_beyond = bool((codes > border).all())
        old = empty_batch(self._accesses) if is_beyond else self._first(border)
        columns = {name: batch.columns[name] for name in self._columns}
        self._rows.add(Batch(columns, batch.weights, batch.tags), codes)
        self._counts.add(np.zeros(len(codes), np.int64), codes, batch.weights)
        if is_beyond:
            return empty_batch(self._accesses)
        new = self._first(self._counts.reach(self.size))
        gone = Batch(old.columns, -old.weights, old.tags)
        parts = [part for part in (gone, new) if len(part)]
        return stacked_batches(parts) if parts else empty_batch(self._accesses)

    def _first(self, border: int) -> Batch:
        """The first rows, of which none has a code beyond the border's."""
        rows = self._rows.between(INT64_MIN, border)
        if len(rows) == 0:
            return empty_batch(self._accesses)
        ranks = [exact_ranks(rows.columns[key.column], key) for key in self.order]
        order = np.lexsort(ranks[::-1])
        before = np.cumsum(rows.weights[order]) - rows.weights[order]
        last = int(np.flatnonzero(before < self.size)[-1])
        kept = order[: last + 1]
        rest = order[last + 1 :]
        ties = np.ones(len(rest), dtype=np.bool_)
        for rank in ranks:
            ties &= rank[rest] == rank[order[last]]
        return rows.take(np.concatenate([kept, rest[ties]]))

    def arrangements(self) -> tuple[RowIndex | OrderedCounts, ...]:
        return (self._rows, self._counts)
