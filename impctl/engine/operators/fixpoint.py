"""Fixpoint: the least set of rows that holds the base's and what a step makes of its own rows.

Identity: with T the rows, T = base + step(T, tables), each row once, as DISTINCT has it; the
output's change is the rows that came into T and went out of it. The step is monotone in T. Method:
ranked counting. Every row of T has a rank, and counts what derives it from rows of lower rank
(`engine.fixpoint.ranked_rows`). What only came or went elsewhere is counted in; a row that nothing
of lower rank derives any more goes out, and with it what it took part in; a row that is derived and
is not in T comes in at a rank of its own. So rows that derive one another in a circle go when they
lose their ground, and nobody looks for what else derives a row. Where much of T has gone out, the
rest follows at once and ranks begin again.
State: T with ranks and counts, and whatever the step's operators keep; their rows of T carry the
rank as a column. Cost: the derivations that came or went, those of rows that went out though they
came in again included, and a round of the step's operators per rank; never T. NULL equals NULL.
Base rows and derivations count with their weights; below zero is an error.
Not to be confused with DISTINCT, whose rows cannot derive one another. Lineage is told by another
operator (`operators.lineage`): rows that come out carry no fragment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from impctl.aliases import AttributeId
from impctl.data.keys import group_normal
from impctl.data.schema import LONG, SqlType
from impctl.data.vector import Ints, Vector
from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.circuit import Circuit
from impctl.engine.fixpoint.limits import LIMITS, Limits
from impctl.engine.fixpoint.ranked_rows import RankedRows, TouchedRows
from impctl.engine.operator import Keeper, Operator
from impctl.engine.tags import apart, no_fragments

NO_BODY = -1
"""The rank of a derivation that no row of the fixpoint takes part in: below all others."""
_LARGE = 0.75
"""The share of all rows that may go out in a step before the rest follows at once.

What is left has to go out and come in for that. Measured, a tenth of a million links gone: where it
was a quarter, a step took about twice as long as without.
"""


class Fixpoint(Operator):
    """Rows of `columns`; its inputs are the base, and those of `step` after the first.

    `step` is a circuit: in its first input are rows of the fixpoint without tags, which have their
    rank in a column `rank` beside `columns`; its output has these columns too, and there the
    highest rank of the rows that took part, or `NO_BODY`. `accesses` are how many tags the base's
    rows carry, and the step's. UnsupportedError beyond `limits`.
    """

    holds_back = True

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        rank: AttributeId,
        step: Circuit,
        accesses: tuple[int, int] = (0, 0),
        limits: Limits = LIMITS,
    ) -> None:
        assert not step.reads, "the rows of a step's sides are kept"
        self.limits = limits
        self.form = (tuple(columns), rank, accesses, step.wires)
        self._rank = rank
        self._ids = tuple(column for column, _ in columns)
        self._step = step
        self._accesses = accesses
        self.rows = RankedRows(name, columns)
        self._stage, self._count = 0, 0
        self._counters = (f"{name}.stage", f"{name}.count")
        self._is_filling = False
        self._held_back: list[Batch] = []
        self._told: list[Batch] = []

    def step(self, base: Batch | None, *tables: Batch | None) -> Batch | None:
        """The rows that came or went; None while it fills."""
        found = [self._of_base(base), self._of_step(self._step.step(None, *tables))]
        derivations = [batch for batch in found if len(batch)]
        if self._is_filling:
            self._held_back += [_apart(batch) for batch in derivations]
            return None
        return self._changed(derivations)

    def end_by(self, limits: Limits) -> None:
        """Go no further than that, from now on."""
        self.limits = limits

    def fill(self, is_filling: bool) -> None:
        """While it fills, derivations wait: rows come in once all tables' rows are at hand."""
        self._is_filling = is_filling

    def filled(self) -> Iterator[Batch]:
        """All rows of T, found at once."""
        waiting, self._held_back = self._held_back, []
        if waiting:
            yield self._changed(waiting)

    def _changed(self, derivations: Sequence[Batch]) -> Batch:
        """T after these derivations came or went."""
        self._told = []
        touched = self.rows.touched()
        for batch in derivations:
            self._tell(batch)
        if derivations:
            slots = self._counted(touched, derivations)
            self._send_out(touched, slots)
            self._let_in(touched)
        return touched.kept()

    def _send_out(self, touched: TouchedRows, slots: Ints) -> None:
        """Rows without ground go, and what goes with them; `slots` were counted last."""
        most = int(_LARGE * self._count)
        went = 0
        while len(groundless := touched.groundless(slots)):
            went += len(groundless)
            if went > most:
                # The ranks of what would be left are of no use to so many that come in again.
                touched.take_up_all()
                groundless, self._stage = touched.inside(), 0
            slots = self._moved(touched, groundless, -1)

    def _let_in(self, touched: TouchedRows) -> None:
        """Rows come that are derived from what is there, round by round."""
        rounds = 0
        derived = touched.derived()
        while len(derived):
            rounds += 1
            self._stage += 1
            touched.enter(derived, self._stage)
            self.limits.check(rounds, self._count + len(derived))
            derived = touched.derived(self._moved(touched, derived, 1))

    def _moved(self, touched: TouchedRows, slots: Ints, sign: int) -> Ints:
        """Step by rows of T that come or go; the rows that this derives, or no longer does."""
        rows = touched.batch(slots, sign, self._rank)
        if sign < 0:
            touched.leave(slots)
        self._count += sign * len(slots)
        others = [None] * (self._inputs - 1)
        found = self._of_step(self._step.step(rows, *others))
        if not len(found):
            return slots[:0]
        self._tell(found)
        return self._counted(touched, [found])

    def _of_base(self, batch: Batch | None) -> Batch:
        """The base's rows as derivations."""
        own, others = self._accesses
        if batch is None or not len(batch):
            return empty_batch(own + others)
        rank = Vector(LONG, np.full(len(batch), NO_BODY, dtype=np.int64))
        none = tuple(no_fragments(len(batch)) for _ in range(others))
        return Batch({**batch.columns, self._rank: rank}, batch.weights, (*batch.tags, *none))

    def _of_step(self, batch: Batch | None) -> Batch:
        """The step's rows as derivations."""
        own, others = self._accesses
        if batch is None or not len(batch):
            return empty_batch(own + others)
        none = tuple(no_fragments(len(batch)) for _ in range(own))
        return Batch(batch.columns, batch.weights, (*none, *batch.tags))

    @property
    def _inputs(self) -> int:
        """How many inputs the step reads."""
        return max((-wire for wires in self._step.wires for wire in wires), default=1)

    def _counted(self, touched: TouchedRows, derivations: Sequence[Batch]) -> Ints:
        """Count derivations in; the slots of the rows that they derive."""
        heads = [Batch(batch.columns, batch.weights, ()) for batch in derivations]
        batch = stacked_batches(heads)
        keys, grouping = group_normal([batch.columns[name] for name in self._ids], len(batch))
        slots = touched.slots_of(grouping.codes, grouping.leaders(keys))
        ranks = touched.ranks[slots][grouping.index()]
        # Of a row that is not in T nothing is counted low for good: all is when it comes in.
        is_low = batch.columns[self._rank].values < ranks
        low = np.where(is_low, batch.weights, 0)[grouping.order]
        every = grouping.sums(batch.weights)
        touched.count(slots, every, np.add.reduceat(low, grouping.starts))
        return slots

    def _tell(self, derivations: Batch) -> None:
        if any(self._accesses):
            self._told.append(Batch({}, derivations.weights, derivations.tags))

    def told(self) -> Batch:
        """What the last step changed in the derivations whose bodies are all in T: their tags, the
        base's first."""
        found = self._told
        return stacked_batches(found) if found else empty_batch(sum(self._accesses))

    # What is remembered.

    def arrangements(self) -> Sequence[Keeper]:
        return (self.rows.arrangement, *self._step.arrangements())

    def counters(self) -> Mapping[str, int]:
        """The rank given last, how many rows T has, and the step's own."""
        own = dict(zip(self._counters, (self._stage, self._count), strict=True))
        return {**own, **self._step.counters()}

    def take_up(self, counters: Mapping[str, int]) -> None:
        self._stage, self._count = (counters[name] for name in self._counters)
        self._step.take_up(counters)

    @property
    def joined_rows(self) -> int:
        return self._step.joined_rows

    @property
    def unsure_rows(self) -> int:
        return self._step.unsure_rows

    @property
    def can_output(self) -> bool:
        return True

    def output(self) -> Batch:
        """All rows of T. Cost: the rows."""
        return self.rows.rows()

    def keeps_like(self, other: Operator) -> bool:
        """With other constants in its step it would have other rows: then it does not."""
        if not isinstance(other, Fixpoint) or not super().keeps_like(other):
            return False
        mine, theirs = tuple(self._step), tuple(other._step)
        return len(mine) == len(theirs) and all(
            one.keeps_like(same) and one.says_like(same)
            for one, same in zip(mine, theirs, strict=True)
        )


def _apart(batch: Batch) -> Batch:
    """The batch with tags that hold no other state, as it was then, in memory."""
    return Batch(batch.columns, batch.weights, tuple(map(apart, batch.tags)))
