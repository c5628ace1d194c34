"""How rows of a fixpoint come and go, and what follows: by the operators of its step.

Law: a row that goes takes back the derivations in which it has part, one that comes brings them;
each is counted at its head, and told. `CircuitMoves` steps the operators once for each front of
rows, whatever they are; `joined_moves` does the same for a step that is one join.
Out of scope: which rows go and come, and in which order (`engine.operators.fixpoint`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from impctl.data.keys import are_told_by_codes, ascending, distinct_values, group_normal, starts_in
from impctl.data.vector import Ints, Vector
from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.circuit import Circuit
from impctl.engine.fixpoint.touched_rows import TouchedRows
from impctl.engine.tags import Tags, no_fragments
from impctl.types import AttributeId

Dismiss = Callable[[int], bool]
"""Asked before so many rows go: whether they may; counts them."""
Admit = Callable[[int], int]
"""Asked before so many rows come: their rank; counts them, and holds the limits."""


class Told:
    """The tags of derivations that came or went in a step; the base's stand first."""

    def __init__(self, accesses: tuple[int, int]) -> None:
        self.accesses = accesses
        self._batches: list[Batch] = []

    def derived(self, batch: Batch, *, of_base: bool) -> None:
        """Derivations with their heads and the ranks of their bodies, by the base or the step."""
        if of_base:
            self._tell(batch.weights, batch.tags, 1)
        else:
            self.of_step(batch.weights, batch.tags)

    def of_step(self, weights: Ints, tags: Sequence[Tags]) -> None:
        """Derivations that the step makes."""
        self._tell(weights, tags, 0)

    def _tell(self, weights: Ints, tags: Sequence[Tags], other: int) -> None:
        if any(self.accesses) and len(weights):
            self.keep(Batch({}, weights, self.padded(len(weights), tags, other)))

    def padded(self, rows: int, tags: Sequence[Tags], other: int) -> tuple[Tags, ...]:
        """A tag per access of so many rows; those of the `other` part, 0 the base, are empty."""
        none = [no_fragments(rows) for _ in range(self.accesses[other])]
        return (*none, *tags) if other == 0 else (*tags, *none)

    def keep(self, batch: Batch) -> None:
        """To be told, or looked at in the end."""
        self._batches.append(batch)

    def taken(self) -> Sequence[Batch]:
        """All that was kept, which is kept no longer."""
        taken, self._batches = self._batches, []
        return taken

    def end(self, touched: TouchedRows) -> None:
        """The step is over; the rows touched are as it leaves them."""

    def batch(self) -> Batch:
        """All of them."""
        if not self._batches:
            return empty_batch(sum(self.accesses))
        return stacked_batches(self._batches)


class ToldInTheEnd(Told):
    """Derivations with all their columns: what is told of them is made of all when `end` comes."""

    def derived(self, batch: Batch, *, of_base: bool) -> None:
        if len(batch):
            own = 1 if of_base else 0
            self.keep(Batch(batch.columns, batch.weights, self.padded(len(batch), batch.tags, own)))


class Moves(Protocol):
    """One step of a fixpoint, over the rows that it touches."""

    def changed(self, tables: Sequence[Batch | None]) -> Ints:
        """Count what these changed rows of tables derive from the fixpoint's rows as they are, and
        keep them; the slots that were counted, some perhaps often."""
        ...

    def out(self, slots: Ints, may_go: Dismiss) -> Ints:
        """These rows go, and perhaps more that have no ground then; those left that have none.

        Where `may_go` says no of the next ones, these are what is left.
        """
        ...

    def come(self, slots: Ints, admit: Admit) -> Ints:
        """These rows come, and perhaps more that are derived then; those left that are."""
        ...

    def end(self) -> None:
        """No row comes or goes any more in this step."""
        ...


class CircuitMoves:
    """By the operators of a step that reads so many `inputs`."""

    def __init__(
        self, step: Circuit, inputs: int, rank: AttributeId, touched: TouchedRows, told: Told
    ) -> None:
        self._step = step
        self._others = [None] * (inputs - 1)
        self._rank = rank
        self._touched = touched
        self._told = told

    def changed(self, tables: Sequence[Batch | None]) -> Ints:
        return self._stepped(None, *tables)

    def out(self, slots: Ints, may_go: Dismiss) -> Ints:
        if not may_go(len(slots)):
            return slots
        rows = self._touched.batch(slots, -1, self._rank)
        self._touched.leave(slots)
        derived = self._stepped(rows, *self._others)
        return distinct_values(self._touched.groundless(derived))

    def come(self, slots: Ints, admit: Admit) -> Ints:
        self._touched.enter(slots, admit(len(slots)))
        rows = self._touched.batch(slots, 1, self._rank)
        derived = self._stepped(rows, *self._others)
        return distinct_values(self._touched.derived(derived))

    def end(self) -> None:
        pass

    def _stepped(self, *sources: Batch | None) -> Ints:
        """Count what comes of this; the slots of the rows that this derives, or no longer does."""
        result = self._step.step(*sources)
        if result is None or not len(result):
            return np.zeros(0, dtype=np.int64)
        self._told.derived(result, of_base=False)
        return counted(self._touched, result, self._rank)


def counted(touched: TouchedRows, derivations: Batch, rank: AttributeId) -> Ints:
    """Count derivations in; the slots of the rows that they derive, one for each derivation."""
    columns = [derivations.columns[name] for name, _ in touched.held.columns]
    slots = slots_for(touched, columns, len(derivations))
    # Of a row that is not in the fixpoint nothing is counted low for good: all is when it comes in.
    is_low = derivations.columns[rank].values < touched.ranks[slots]
    touched.count_in(slots, derivations.weights, is_low)
    return slots


def slots_for(touched: TouchedRows, columns: Sequence[Vector], length: int) -> Ints:
    """The slots of rows in any order, some perhaps often; shape (length,)."""
    is_one = length and len(columns) == 1 and are_told_by_codes(columns, columns)
    if is_one and columns[0].values.dtype == np.int64:
        return _slots_for_numbers(touched, columns[0])
    keys, grouping = group_normal(columns, length)
    slots = touched.slots_of(grouping.codes, grouping.leaders(keys))
    return slots[grouping.index()]


def _slots_for_numbers(touched: TouchedRows, column: Vector) -> Ints:
    """The same of one column of whole numbers: they are their own codes."""
    order = ascending(column.values)
    codes: Ints = column.values[order]
    is_start = starts_in(codes)
    if bool(is_start.all()):
        result = touched.slots_of(codes, [column.take(order)])
    else:
        rows = is_start.nonzero()[0]
        result = touched.slots_of(codes[rows], [column.take(order[rows])])[np.cumsum(is_start) - 1]
    slots = np.empty_like(result)
    slots[order] = result
    return slots
