"""Which derivation each row of a fixpoint is kept by, where one is enough.

Law: of the derivations whose bodies all have a lower rank than the row, it chooses one without a
body where there is one, and of these the one with the least fragments, by access after access. So
what a row's choice uses was there before the row; over the tables' rows in these fragments all rows
are derived again, by induction on their ranks. Ranks depend on what came when: the choice is no
function of the tables, but one of what is kept here, so that it can be taken back later.
State: every derivation whose bodies are in the fixpoint, with its tags and the highest rank of its
bodies; each once, with its weight. Which of them are low follows from ranks, and is not kept. Cost:
the derivations of the rows touched, also those that did not change.
Out of scope: ranks, and which rows there are (`engine.operators.fixpoint`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from impctl.data.keys import distinct_values, key_codes, normalise, starts_in
from impctl.data.schema import LONG, SqlType
from impctl.data.vector import Bools, Ints
from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.consolidate import consolidated
from impctl.engine.disagreement import disagreement, never_held
from impctl.engine.fixpoint.moves import ToldInTheEnd, slots_for
from impctl.engine.fixpoint.touched_rows import RANK, WAS, TouchedRows
from impctl.engine.row_index import RowIndex
from impctl.engine.tags import RowTags, SetTags, Tags
from impctl.types import AttributeId
from impctl.values import dataclass


class Choices:
    """The derivations of rows of `columns`, between two steps; each carries so many tags."""

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        rank: AttributeId,
        accesses: int,
    ) -> None:
        self._columns = tuple(column for column, _ in columns)
        self._rank = rank
        self._accesses = accesses
        held = (*columns, (rank, LONG))
        self.index = RowIndex(f"{name}.derivations", held, self._columns, accesses)

    def change(self, touched: TouchedRows, derivations: Sequence[Batch]) -> Batch:
        """What changes in the choices by a step that changed these derivations: tags only.

        The rows touched are as the step leaves them. Keeps the derivations, and the ranks of their
        bodies in a column of the rank's name. CountBelowZeroError where there are less than none.
        """
        parts = [self._normal(batch) for batch in derivations if len(batch)]
        noted = consolidated(stacked_batches(parts)) if parts else empty_batch(self._accesses)
        slots, owners = self._heads(touched, noted)
        keys = [column.take(slots) for column in touched.columns]
        codes = key_codes([normalise(key) for key in keys], len(slots))
        result = self.index.find(codes, keys)
        self.index.add(noted, codes[owners])
        if not len(result.rows) and not len(noted):
            return empty_batch(self._accesses)
        held = _Held.of(
            [result.rows, noted],
            np.concatenate([result.owners, owners]),
            self._rank,
            len(result.rows),
        )
        before = held.chosen(held.before, touched.values[WAS + RANK, slots])
        after = held.chosen(held.after, touched.values[RANK, slots])
        return held.moved(before, after)

    def _normal(self, batch: Batch) -> Batch:
        """The derivations with what is kept of them alone."""
        columns = {name: normalise(batch.columns[name]) for name in self._columns}
        return Batch({**columns, self._rank: batch.columns[self._rank]}, batch.weights, batch.tags)

    def _heads(self, touched: TouchedRows, noted: Batch) -> tuple[Ints, Ints]:
        """The slots of rows that may choose otherwise now, ascending; and which of them each of the
        derivations derives."""
        ranks = touched.values[:, : touched.count]
        other = (ranks[RANK] != ranks[WAS + RANK]).nonzero()[0]
        if not len(noted):
            return other, np.zeros(0, dtype=np.int64)
        of_noted = slots_for(touched, [noted.columns[name] for name in self._columns], len(noted))
        slots = distinct_values(np.concatenate([of_noted, other]))
        return slots, slots.searchsorted(of_noted)


class ToldOfChoices(ToldInTheEnd):
    """Collects the derivations that came or went in a step; tells what that changes in choices."""

    def __init__(self, accesses: tuple[int, int], choices: Choices) -> None:
        super().__init__(accesses)
        self._choices = choices

    def end(self, touched: TouchedRows) -> None:
        change = self._choices.change(touched, self.taken())
        if len(change):
            self.keep(change)


@dataclass(frozen=True, slots=True)
class _Held:
    """Derivations of some rows, as they were and are: sorted by the row and then by how good they
    are, each once; shapes (n,)."""

    owners: Ints
    """Which of the rows each derives."""
    ranks: Ints
    before: Ints
    after: Ints
    orders: tuple[Ints, ...]
    """What tells better ones from others: the less the better, the first counts most."""
    tags: tuple[Tags, ...]

    @classmethod
    def of(cls, parts: Sequence[Batch], owners: Ints, rank: AttributeId, before: int) -> _Held:
        """Those of these batches, of which the first so many were there before."""
        batch = stacked_batches([part for part in parts if len(part)])
        ranks = batch.columns[rank].values
        orders = ((ranks >= 0).astype(np.int64), *map(_order_of, batch.tags))
        order = np.lexsort((ranks, *reversed(orders), owners))
        weights = batch.weights[order]
        was = np.where(order < before, weights, 0)
        owners, ranks, orders = owners[order], ranks[order], tuple(one[order] for one in orders)
        first = starts_in(owners, *orders, ranks).nonzero()[0]
        return cls(
            owners[first],
            ranks[first],
            np.add.reduceat(was, first),
            np.add.reduceat(weights, first),
            tuple(one[first] for one in orders),
            tuple(tag.take(order[first]) for tag in batch.tags),
        )

    def chosen(self, weights: Ints, ranks: Ints) -> Ints:
        """The place of the choice of each row, by their ranks; -1 of those outside the fixpoint.

        Shape as `ranks`.
        """
        if weights.min() < 0:
            raise never_held("ways to derive rows")
        # A row outside, of rank 0, has no derivation whose bodies are all inside.
        is_low: Bools = (weights > 0) & (self.ranks < ranks[self.owners])
        low = is_low.nonzero()[0]
        low = low[starts_in(self.owners[low])] if len(low) else low
        places = np.full(len(ranks), -1, dtype=np.int64)
        places[self.owners[low]] = low
        if bool((places[ranks > 0] < 0).any()):
            raise disagreement("A row of WITH RECURSIVE no longer has a derivation")
        return places

    def moved(self, before: Ints, after: Ints) -> Batch:
        """The tags of choices that went and came, of rows that chose otherwise."""
        is_same = (before < 0) == (after < 0)
        for order in self.orders:
            is_same &= order[before] == order[after]
        is_same |= (before < 0) & (after < 0)
        went = before[~is_same & (before >= 0)]
        came = after[~is_same & (after >= 0)]
        weights = np.repeat(np.array([-1, 1], dtype=np.int64), [len(went), len(came)])
        places = np.concatenate([went, came])
        return Batch({}, weights, tuple(tag.take(places) for tag in self.tags))


def _order_of(tag: Tags) -> Ints:
    """Numbers by which sets of fragments are ordered as lists are, equal where the sets are.

    Shape (n,); they are comparable among themselves.
    """
    if isinstance(tag, RowTags):
        return tag.fragments.astype(np.int64)
    sets = tag.sets()
    sizes = np.diff(sets.offsets)
    if not len(sizes) or int(sizes.max()) <= 1:
        result = np.full(len(sizes), -1, dtype=np.int64)
        result[sizes > 0] = sets.fragments[sets.offsets[:-1][sizes > 0]]
        return result
    ranks = pc.rank(_bytes_of(sets), sort_keys="ascending", tiebreaker="dense")
    numbers: Ints = ranks.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _bytes_of(sets: SetTags) -> pa.Array:
    """Each set as bytes that compare as the lists of its fragments do."""
    start, end = int(sets.offsets[0]), int(sets.offsets[-1])
    data: npt.NDArray[np.void] = np.ascontiguousarray(sets.fragments[start:end], dtype=">i4")
    offsets = np.ascontiguousarray((sets.offsets - start) * data.itemsize)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(sets), buffers)
