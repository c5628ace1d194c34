"""The best rows of each group; what lies beyond stays in the table.

Law: a group's buffer holds every row whose code is at most its edge, and no other; an edge only
moves down, until the group is refilled. Beyond twice `size` rows the edge moves to the best `size`.
A buffer that holds fewer than `needed` rows although its edge is not COMPLETE is refilled, and what
comes must agree with what the buffer held. Rows that share the edge's code are all kept. Cost: the
changed rows, and the buffers of the groups they are in.
Out of scope: which rows come first among those of one code (`engine.operators.top`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from impctl.data.keys import starts_in
from impctl.data.schema import LONG, SqlType
from impctl.data.vector import Bools, Ints, Vector
from impctl.engine.arrangement import Arrangement
from impctl.engine.batch import Batch
from impctl.engine.refill import (
    COMPLETE,
    Refill,
    edge_after,
    no_refill,
    owners_of,
    refill_differs,
    stored_edges,
)
from impctl.engine.row_index import RowIndex
from impctl.types import AttributeId
from impctl.values import dataclass

_EDGE = "edge"
_EVERYTHING = 2**62


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups asked for: codes, ascending, and key columns; shapes (groups,)."""

    codes: Ints
    keys: Sequence[Vector]

    def take(self, at: Ints) -> Groups:
        return Groups(self.codes[at], [key.take(at) for key in self.keys])


@dataclass(frozen=True, slots=True)
class BufferSize:
    """Buffers of `kept` to twice as many rows, of which `needed` are needed.

    `by_code`: rows of one code count as one.
    """

    kept: int
    needed: int
    by_code: bool


class BestRows:
    """The edges of the groups of a RowIndex in the order of its column `code`."""

    def __init__(
        self,
        name: str,
        rows: RowIndex,
        code: AttributeId,
        key_types: Sequence[SqlType],
        size: BufferSize,
        codes_of: Callable[[Batch], Ints],
    ) -> None:
        """`codes_of` gives the codes of rows that come without them, from a refill."""
        self.refill: Refill = no_refill
        self.size = size
        self.edges = Arrangement(f"{name}.edges", key_types, _EDGE)
        self._rows = rows
        self._code = code
        self._codes_of = codes_of

    def admitted(self, groups: Groups, owners: Ints, codes: Ints, weights: Ints) -> Bools:
        """Which rows of a change lie in the buffers; what overfills one lowers its edge."""
        edges = self._edges_of(groups)
        new = np.flatnonzero((weights > 0) & (codes <= edges[owners]))
        new = new[np.lexsort((codes[new], owners[new]))]
        limit = 2 * self.size.kept
        counts = self._counts(owners[new], codes[new], weights[new])
        lowered = edge_after(owners[new], codes[new], counts, limit, edges, limit)
        self._move(groups, edges, lowered)
        return codes <= lowered[owners]

    def settle(self, groups: Groups) -> None:
        """Trim the buffers of these groups, and refill those that are used up."""
        edges = self._edges_of(groups)
        result = self._rows.leading(groups.codes, groups.keys, _EVERYTHING).found
        owners, rows = result.owners, result.rows
        codes = rows.columns[self._code].values if len(rows) else np.zeros(0, dtype=np.int64)
        counts = self._counts(owners, codes, rows.weights)
        inside = codes <= edges[owners]
        lowered = edge_after(
            owners[inside],
            codes[inside],
            counts[inside],
            self.size.kept,
            edges,
            2 * self.size.kept,
        )
        self._move(groups, edges, lowered)
        inside = codes <= lowered[owners]
        self._take_away(groups, owners, rows, ~inside)
        totals = np.zeros(len(groups.codes), dtype=np.int64)
        np.add.at(totals, owners[inside], counts[inside])
        lacking = np.flatnonzero((totals < self.size.needed) & (lowered != COMPLETE))
        if len(lacking):
            held = np.zeros(len(groups.codes), dtype=np.int64)
            np.add.at(held, owners[inside], rows.weights[inside])
            self._take_away(groups, owners, rows, inside & np.isin(owners, lacking))
            self._refilled(groups.take(lacking), lowered[lacking], held[lacking])

    def _refilled(self, groups: Groups, edges: Ints, held: Ints) -> None:
        owners, rows = owners_of(
            groups.keys, len(groups.codes), self.refill(groups.keys), self._rows.keys
        )
        codes = self._codes_of(rows) if len(rows) else np.zeros(0, dtype=np.int64)
        again = np.zeros(len(groups.codes), dtype=np.int64)
        known = codes <= edges[owners]
        np.add.at(again, owners[known], rows.weights[known])
        if bool((again != held).any()):
            raise refill_differs()
        self.fill(groups, owners, codes, rows)

    def fill(self, groups: Groups, owners: Ints, codes: Ints, rows: Batch) -> None:
        """Fill the empty buffers of these groups with the best of these rows, which are all."""
        order = np.lexsort((codes, owners))
        owners, codes, rows = owners[order], codes[order], rows.take(order)
        complete = np.full(len(groups.codes), COMPLETE)
        counts = self._counts(owners, codes, rows.weights)
        lowered = edge_after(owners, codes, counts, self.size.kept, complete, self.size.kept)
        self._move(groups, self._edges_of(groups), lowered)
        kept = np.flatnonzero(codes <= lowered[owners])
        if len(kept):
            best = rows.take(kept)
            columns = {**best.columns, self._code: Vector(LONG, codes[kept])}
            self._rows.add(Batch(columns, best.weights, best.tags), groups.codes[owners[kept]])

    def _take_away(self, groups: Groups, owners: Ints, rows: Batch, mask: Bools) -> None:
        gone = np.flatnonzero(mask)
        if len(gone):
            self._rows.add(rows.take(gone).negated(), groups.codes[owners[gone]])

    def _counts(self, owners: Ints, codes: Ints, weights: Ints) -> Ints:
        """What each of these sorted rows counts."""
        return starts_in(owners, codes).astype(np.int64) if self.size.by_code else weights

    def _edges_of(self, groups: Groups) -> Ints:
        located = self.edges.find(groups.codes, groups.keys)
        result: Ints = self.edges.gather(located, _EDGE)
        return stored_edges(result)

    def _move(self, groups: Groups, before: Ints, after: Ints) -> None:
        moved = np.flatnonzero(before != after)
        if len(moved):
            at = groups.take(moved)
            self.edges.put(at.codes, at.keys, {_EDGE: stored_edges(after[moved])})
