"""BestFixpoint: a fixpoint that keeps of each group the rows with the least value, or greatest.

Identity: with T the rows, T = best(base + step(T, tables)); the output's change is the rows that
came into T and went out of it. Where each round is from what the one before left, begun with no
row, that is what rounds come to; a circle that makes values better and better has no end, and is
told as beyond `limits`. Method: ranked counting, as of a fixpoint (`operators.fixpoint`), with
what is derived kept by group beside. First rows go out that nothing of lower rank derives any more,
and what goes with them; what is left stands on ground. Then, round by round, each group that
changed has its best rows: those that another one beats go as it comes, so what stood on them finds
the better one there. A row that is best and lost its ground comes in again, later than that.
State: rows derived, by group, T with ranks, best values, and whatever the step's operators keep.
Cost: the derivations that came or went, and groups whose rows come or go, with all rows derived in
them; never T. NULL equals NULL, and is no value.
Not to be confused with MIN, which keeps values and lets no row take part in deriving others.
Lineage, of all derivations of the rows of T, is told by another operator (`operators.lineage`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from impctl.aliases import AttributeId
from impctl.data.schema import LONG, SqlType
from impctl.data.vector import Ints, Vector
from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.circuit import Circuit
from impctl.engine.fixpoint.best_rows import BestRows, Grouped
from impctl.engine.fixpoint.limits import LIMITS, Limits
from impctl.engine.fixpoint.touched_groups import TouchedGroups
from impctl.engine.operator import Keeper, Operator
from impctl.engine.operators.fixpoint import NO_BODY
from impctl.engine.tags import apart, no_fragments


class BestFixpoint(Operator):
    """Rows of `columns`, the best by `grouped`; its inputs are the base, and those of `step` after
    the first. The rest is as of a fixpoint (`operators.fixpoint`)."""

    holds_back = True

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        grouped: Grouped,
        rank: AttributeId,
        step: Circuit,
        accesses: tuple[int, int] = (0, 0),
        limits: Limits = LIMITS,
    ) -> None:
        assert not step.reads, "the rows of a step's sides are kept"
        self.limits = limits
        self.form = (tuple(columns), grouped, rank, accesses, step.wires)
        self._rank = rank
        self._step = step
        self._accesses = accesses
        self.rows = BestRows(name, columns, grouped, sum(accesses))
        self._stage, self._count = 0, 0
        self._counters = (f"{name}.stage", f"{name}.count")
        self._is_filling = False
        self._held_back: list[Batch] = []
        self._told = empty_batch(sum(accesses))

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
        self._told = empty_batch(sum(self._accesses))
        if not derivations:
            return empty_batch(0)
        touched = TouchedGroups(self.rows)
        stage = self._stage
        slots = touched.count(stacked_batches(derivations), self._rank)
        has_gone = self._send_out(touched, slots)
        self._settle(touched)
        if any(self._accesses):
            self._told = touched.told()
        return touched.kept(has_moved=has_gone or self._stage > stage + 1)

    def _send_out(self, touched: TouchedGroups, slots: Ints) -> bool:
        """Rows without ground go, and what goes with them; whether there were any."""
        has_gone = False
        while len(groundless := touched.groundless(slots)):
            has_gone = True
            rows = touched.batch(groundless, -1, self._rank)
            touched.leave(groundless)
            self._count -= len(groundless)
            slots = self._moved(touched, rows)
        return has_gone

    def _settle(self, touched: TouchedGroups) -> None:
        """Every group comes to have its best rows, round by round."""
        rounds = 0
        slots = touched.every_row()
        while len(slots):
            out, come = touched.unsettled(slots)
            if not len(out) and not len(come):
                break
            rounds += 1
            self._stage += 1
            parts = [touched.batch(out, -1, self._rank)] if len(out) else []
            touched.leave(out)
            touched.enter(come, self._stage)
            parts += [touched.batch(come, 1, self._rank)] if len(come) else []
            self._count += len(come) - len(out)
            self.limits.check(rounds, self._count)
            slots = self._moved(touched, stacked_batches(parts))

    def _moved(self, touched: TouchedGroups, rows: Batch) -> Ints:
        """Step by rows of T that come or go; the rows that this derives, or no longer does."""
        others = [None] * (self._inputs - 1)
        found = self._of_step(self._step.step(rows, *others))
        return touched.count(found, self._rank) if len(found) else np.zeros(0, dtype=np.int64)

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

    def told(self) -> Batch:
        """What the last step changed in the derivations of the rows of T: their tags, the base's
        first."""
        return self._told

    # What is remembered.

    def arrangements(self) -> Sequence[Keeper]:
        return (*self.rows.keepers, *self._step.arrangements())

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
        if not isinstance(other, BestFixpoint) or not super().keeps_like(other):
            return False
        mine, theirs = tuple(self._step), tuple(other._step)
        return len(mine) == len(theirs) and all(
            one.keeps_like(same) and one.says_like(same)
            for one, same in zip(mine, theirs, strict=True)
        )


def _apart(batch: Batch) -> Batch:
    """The batch with tags that hold no other state, as it was then, in memory."""
    return Batch(batch.columns, batch.weights, tuple(map(apart, batch.tags)))
