"""How rows of a fixpoint are inserted and deleted, round by round, by the operators of its step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from impctl.data.keys import distinct_values, key_codes, normalise, starts_in
from impctl.data.schema import LONG, SqlType
from impctl.data.vector import Bools, Ints, Vector
from impctl.engine.batch import (
    Batch,
    consolidated,
    disagreement,
    empty_batch,
    never_held,
    stacked_batches,
    stacked_or_empty,
)
from impctl.engine.fixpoint.rows import RANK, WAS, TouchedRows
from impctl.engine.operator import LevelLimits, Limits, Operator
from impctl.engine.tags import RowTags, SetTags, Tags, apart, no_ranges
from impctl.engine.trace import RowIndex

if TYPE_CHECKING:
    from impctl.engine.circuit import Circuit
    from impctl.types import AttributeId


# Inserted and deleted rows of a fixpoint, followed by the step's operators. Law: a deleted row
# retracts the derivations it is part of, an inserted row adds them; each is counted at its head and
# emitted. `CircuitMoves` steps the operators once per front of rows; `single_join` does the same
# for a step that is one join.

Dismiss = Callable[[int], bool]
"""Called before this many rows are deleted: whether they may be; counts them."""
Admit = Callable[[int], int]
"""Called before this many rows are inserted: their rank; counts them and applies the limits."""


class DerivationTags:
    """The tags of derivations inserted or deleted in a step; the base's come first."""

    def __init__(self, accesses: tuple[int, int]) -> None:
        self.accesses = accesses
        self._batches: list[Batch] = []

    def derived(self, batch: Batch, *, of_base: bool) -> None:
        """Derivations with their heads and the ranks of their bodies, by the base or the step."""
        self.add(batch.weights, batch.tags, of_base=of_base)

    def add(self, weights: Ints, tags: Sequence[Tags], *, of_base: bool = False) -> None:
        if any(self.accesses) and len(weights):
            every = tags_of_all(self.accesses, len(weights), tags, of_base=of_base)
            self.keep(Batch({}, weights, every))

    def complete(self, batch: Batch) -> None:
        """Derivations with the tags of all accesses."""
        if any(self.accesses):
            self.keep(Batch({}, batch.weights, batch.tags))

    def keep(self, batch: Batch) -> None:
        """Keep derivations to report, or to check at the end."""
        self._batches.append(batch)

    def taken(self) -> Sequence[Batch]:
        batches, self._batches = self._batches, []
        return batches

    def end(self, touched: TouchedRows) -> None:
        """End the step; the touched rows are in their final state."""

    def batch(self) -> Batch:
        return stacked_or_empty(self._batches, sum(self.accesses))


def tags_of_all(
    accesses: tuple[int, int], rows: int, tags: Sequence[Tags], *, of_base: bool
) -> tuple[Tags, ...]:
    """A tag per access, the base's first, for `rows` rows of the base or step; those of the other
    part are empty."""
    none = tuple(no_ranges(rows) for _ in range(accesses[1 if of_base else 0]))
    return (*tags, *none) if of_base else (*none, *tags)


def with_all_tags(batch: Batch, accesses: tuple[int, int], *, of_base: bool) -> Batch:
    tags = tags_of_all(accesses, len(batch), batch.tags, of_base=of_base)
    return Batch(batch.columns, batch.weights, tags)


class TagsAtEnd(DerivationTags):
    """Derivations with all their columns, all reported at `end`."""

    def derived(self, batch: Batch, *, of_base: bool) -> None:
        if len(batch):
            self.keep(with_all_tags(batch, self.accesses, of_base=of_base))


class CircuitMoves:
    """One step of a fixpoint over the rows that it touches, by the operators of a step with this
    many `inputs`."""

    def __init__(
        self,
        step: Circuit,
        inputs: int,
        rank: AttributeId,
        touched: TouchedRows,
        report: DerivationTags,
    ) -> None:
        self._step = step
        self._others = [None] * (inputs - 1)
        self._rank = rank
        self._touched = touched
        self._report = report

    def changed(self, tables: Sequence[Batch | None]) -> Ints:
        """Count what these changed table rows derive from the fixpoint's current rows, and store
        them; the counted slots, possibly with repetitions."""
        return self._stepped(None, *tables)

    def out(self, slots: Ints, may_go: Dismiss) -> Ints:
        """Delete these rows, and rows that lose their ground by this; the groundless rows left.
        Rows are left where `may_go` refuses the next ones."""
        if not may_go(len(slots)):
            return slots
        rows = self._touched.batch(slots, -1, self._rank)
        self._touched.leave(slots)
        derived = self._stepped(rows, *self._others)
        return distinct_values(self._touched.groundless(derived))

    def come(self, slots: Ints, admit: Admit) -> Ints:
        """Insert these rows, and rows that are derived by this; the derived rows left."""
        self._touched.enter(slots, admit(len(slots)))
        rows = self._touched.batch(slots, 1, self._rank)
        derived = self._stepped(rows, *self._others)
        return distinct_values(self._touched.derived(derived))

    def end(self) -> None:
        """End the step: no more rows are inserted or deleted."""

    def _stepped(self, *sources: Batch | None) -> Ints:
        result = self._step.step(*sources)
        if result is None or not len(result):
            return np.zeros(0, dtype=np.int64)
        self._report.derived(result, of_base=False)
        return self._touched.counted(result, self._rank)


# The derivation by which each row of a fixpoint is kept, where one is enough. Law: of the
# derivations whose bodies all have a lower rank than the row, one without a body is chosen if there
# is one, and of these the one with the least ranges, access by access. So the row's choice uses
# only rows inserted before it; over the table rows in these ranges all rows are derived again, by
# induction on their ranks. Ranks depend on the order of changes: the choice is a function of the
# state, not of the tables, so it can be retracted later. State: every derivation whose bodies are
# in the fixpoint, once, with its weight, its tags and the highest rank of its bodies. Cost: the
# derivations of the rows touched, including unchanged ones.


class ChosenDerivations:
    """The derivations of rows of `columns`, between two steps; each carries this many tags."""

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
        stored = (*columns, (rank, LONG))
        self.index = RowIndex(f"{name}.derivations", stored, self._columns, accesses)

    def change(self, touched: TouchedRows, derivations: Sequence[Batch]) -> Batch:
        """The change of the choices by a step that changed these derivations: tags only. The
        touched rows are in their final state. Stores the derivations, with the ranks of their
        bodies in a column of the rank's name. CountBelowZeroError where more is deleted than there
        was."""
        parts = (self._normal(batch) for batch in derivations if len(batch))
        noted = consolidated(stacked_or_empty(parts, self._accesses))
        slots, owners = self._heads(touched, noted)
        keys = touched.keys(slots)
        codes = key_codes([normalise(key) for key in keys], len(slots))
        result = self.index.find(codes, keys)
        self.index.add(noted, codes[owners])
        if not len(result.rows) and not len(noted):
            return empty_batch(self._accesses)
        stored = _Held.of(
            [result.rows, noted],
            np.concatenate([result.owners, owners]),
            self._rank,
            len(result.rows),
        )
        before = stored.chosen(stored.before, touched.values[WAS + RANK, slots])
        after = stored.chosen(stored.after, touched.values[RANK, slots])
        return stored.moved(before, after)

    def _normal(self, batch: Batch) -> Batch:
        columns = {name: normalise(batch.columns[name]) for name in self._columns}
        return Batch({**columns, self._rank: batch.columns[self._rank]}, batch.weights, batch.tags)

    def _heads(self, touched: TouchedRows, noted: Batch) -> tuple[Ints, Ints]:
        """The slots of rows that may change their choice, ascending; and the index among them for
        each derivation."""
        ranks = touched.values[:, : touched.count]
        other = (ranks[RANK] != ranks[WAS + RANK]).nonzero()[0]
        if not len(noted):
            return other, np.zeros(0, dtype=np.int64)
        of_noted = touched.slots_for([noted.columns[name] for name in self._columns], len(noted))
        slots = distinct_values(np.concatenate([of_noted, other]))
        return slots, slots.searchsorted(of_noted)


class TagsOfChoices(TagsAtEnd):
    """Collects the derivations inserted or deleted in a step; reports the change of the choices."""

    def __init__(self, accesses: tuple[int, int], choices: ChosenDerivations) -> None:
        super().__init__(accesses)
        self._choices = choices

    def end(self, touched: TouchedRows) -> None:
        change = self._choices.change(touched, self.taken())
        if len(change):
            self.keep(change)


class _Held(Struct, frozen=True):
    """Derivations of some rows, old and new: sorted by row and then from the best on, each once;
    shapes (n,)."""

    owners: Ints  # The index of the row that each derives
    ranks: Ints
    before: Ints
    after: Ints
    orders: tuple[Ints, ...]  # Sort keys from the best derivation on, the most significant first
    tags: tuple[Tags, ...]

    @classmethod
    def of(cls, parts: Sequence[Batch], owners: Ints, rank: AttributeId, before: int) -> _Held:
        """Those of these batches; the first `before` are the old ones."""
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
        """The position of the choice of each row, by their ranks; -1 for rows outside the fixpoint.
        Shape as `ranks`."""
        if weights.min() < 0:
            raise never_held("ways to derive rows")
        # A row outside, of rank 0, has no derivation whose bodies are all inside.
        is_low: Bools = (weights > 0) & (self.ranks < ranks[self.owners])
        low = is_low.nonzero()[0]
        low = low[starts_in(self.owners[low])] if len(low) else low
        positions = np.full(len(ranks), -1, dtype=np.int64)
        positions[self.owners[low]] = low
        if bool((positions[ranks > 0] < 0).any()):
            raise disagreement("A row of WITH RECURSIVE no longer has a derivation")
        return positions

    def moved(self, before: Ints, after: Ints) -> Batch:
        is_same = (before < 0) == (after < 0)
        for order in self.orders:
            is_same &= order[before] == order[after]
        is_same |= (before < 0) & (after < 0)
        deleted = before[~is_same & (before >= 0)]
        inserted = after[~is_same & (after >= 0)]
        weights = np.repeat(np.array([-1, 1], dtype=np.int64), [len(deleted), len(inserted)])
        positions = np.concatenate([deleted, inserted])
        return Batch({}, weights, tuple(tag.take(positions) for tag in self.tags))


def _order_of(tag: Tags) -> Ints:
    """Numbers that order sets of ranges as lists are ordered, equal where the sets are. Shape (n,);
    they are comparable among themselves."""
    if isinstance(tag, RowTags):
        return tag.ranges.astype(np.int64)
    sets = tag.sets()
    sizes = np.diff(sets.offsets)
    if not len(sizes) or int(sizes.max()) <= 1:
        result = np.full(len(sizes), -1, dtype=np.int64)
        result[sizes > 0] = sets.ranges[sets.offsets[:-1][sizes > 0]]
        return result
    ranks = pc.rank(_bytes_of(sets), sort_keys="ascending", tiebreaker="dense")
    numbers: Ints = ranks.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _bytes_of(sets: SetTags) -> pa.Array:
    """Each set as bytes that compare as the lists of its ranges do."""
    start, end = int(sets.offsets[0]), int(sets.offsets[-1])
    data: npt.NDArray[np.void] = np.ascontiguousarray(sets.ranges[start:end], dtype=">i4")
    offsets = np.ascontiguousarray((sets.offsets - start) * data.itemsize)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(sets), buffers)


# The common part of operators whose rows are derived from their own rows by an inner step. Law: the
# step is a circuit of ordinary operators. Rows of T enter its first input without tags and with a
# stamp, a column of its own: the rank at which they were inserted, or their level. Rows of the base
# and of the step are derivations, each with the tags of all accesses, the base's first. While a
# query fills, derivations wait, so that T is computed once, from all rows. State is the subclass's
# and that of the step's operators.

NO_BODY = -1  # The stamp of a derivation that uses no row of T: below all others


class DerivedRows(Protocol):
    def rows(self) -> Batch:
        """All rows of T, without their stamps. Cost: these rows."""
        ...


class Recursion(Operator):
    """Its inputs are the base, and those of `step` after the first. The output of the step has the
    columns of T, and in the column `stamp` the highest stamp of the rows used, or `NO_BODY`.
    `accesses` is the number of tags of the base's and the step's rows."""

    holds_back = True
    can_output = True
    rows: DerivedRows

    def __init__(
        self,
        name: str,
        stamp: AttributeId,
        step: Circuit,
        accesses: tuple[int, int],
        limits: Limits | LevelLimits,
    ) -> None:
        assert not step.reads, "the rows of a step's sides are kept"
        self.limits = limits
        self._report = DerivationTags(accesses)
        self._stamp = stamp
        self._step = step
        self._accesses = accesses
        self._count = 0  # Rows of T, as they count for the limits
        self._counter = f"{name}.count"
        self._is_filling = False
        self._held_back: tuple[list[Batch], list[Batch]] = ([], [])
        """Rows held back while filling: of the base, and of the step."""

    def step(self, base: Batch | None, *tables: Batch | None) -> Batch | None:
        """The rows inserted and deleted; None while the circuit fills."""
        if self._is_filling:
            result = (base, self._step.step(None, *tables))
            for waiting, batch in zip(self._held_back, result, strict=True):
                waiting += [apart_in_memory(batch)] if batch is not None and len(batch) else []
            return None
        return self._changed(base, tables)

    @abstractmethod
    def _changed(
        self, base: Batch | None, tables: Sequence[Batch | None], waiting: Batch | None = None
    ) -> Batch:
        """The change of T by these rows of the base and of the step's tables, and by waiting
        derivations of the step."""

    def report(self) -> Batch:
        """What the last step changed in those derivations that count: tags, the base's first."""
        return self._report.batch()

    def output(self) -> Batch:
        return self.rows.rows()

    def end_by(self, limits: Limits) -> None:
        """Limits of UNION ALL stay: they are part of the query's meaning."""
        if isinstance(self.limits, Limits):
            self.limits = limits

    def fill(self, is_filling: bool) -> None:
        """While filling, hold derivations back: rows are inserted once all tables' rows are
        known."""
        self._is_filling = is_filling

    def filled(self) -> Iterator[Batch]:
        waiting, self._held_back = self._held_back, ([], [])
        if any(waiting):
            base, step = (stacked_batches(result) if result else None for result in waiting)
            yield self._changed(base, (), step)

    # Derivations.

    @property
    def _inputs(self) -> int:
        return max((-wire for wires in self._step.wires for wire in wires), default=1)

    def _stepped(self, rows: Batch) -> Batch | None:
        return self._step.step(rows, *[None] * (self._inputs - 1))

    def _stamped(self, base: Batch) -> Batch:
        lowest = Vector(LONG, np.full(len(base), NO_BODY, dtype=np.int64))
        return Batch({**base.columns, self._stamp: lowest}, base.weights, base.tags)

    def _derivations(
        self, base: Batch | None, tables: Sequence[Batch | None], waiting: Batch | None
    ) -> list[Batch]:
        """All derivations that these rows change while T does not, each with the tags of all
        accesses."""
        result = []
        if base is not None and len(base):
            result.append(with_all_tags(self._stamped(base), self._accesses, of_base=True))
        changed = self._step.step(None, *tables) if tables else None
        parts = (batch for batch in (waiting, changed) if batch is not None and len(batch))
        return [*result, *map(self._of_step, parts)]

    def _of_step(self, batch: Batch) -> Batch:
        return with_all_tags(batch, self._accesses, of_base=False)

    # State.

    def counters(self) -> Mapping[str, int]:
        return {self._counter: self._count, **self._step.counters()}

    def take_up(self, counters: Mapping[str, int]) -> None:
        self._count = counters[self._counter]
        self._step.take_up(counters)

    @property
    def joined_rows(self) -> int:
        return self._step.joined_rows

    @property
    def unsure_rows(self) -> int:
        return self._step.unsure_rows

    def keeps_like(self, other: Operator) -> bool:
        """Never with other constants in its step, as it would have other rows."""
        if not isinstance(other, Recursion) or not super().keeps_like(other):
            return False
        left, right = tuple(self._step), tuple(other._step)
        pairs = zip(left, right, strict=False)
        is_alike = all(part.keeps_like(same) and part.says_like(same) for part, same in pairs)
        return len(left) == len(right) and is_alike


def apart_in_memory(batch: Batch) -> Batch:
    """The batch with tags that refer to no other state, in memory."""
    return Batch(batch.columns, batch.weights, tuple(map(apart, batch.tags)))
