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
them; never T. NULL equals NULL, and is no value. Where rows are a key with a value and the step
adds to it, most steps are settled over numbers, each key about once, and leave the same
(`engine.fixpoint.valued_changes`).
Not to be confused with MIN, which keeps values and lets no row take part in deriving others.
Lineage, of all derivations of the rows of T, is told by another operator (`operators.lineage`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from impctl.data.schema import SqlType
from impctl.data.vector import Ints
from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.circuit import Circuit
from impctl.engine.fixpoint.best_rows import BestRows, Grouped
from impctl.engine.fixpoint.limits import LIMITS, Limits
from impctl.engine.fixpoint.one_by_one import FEW
from impctl.engine.fixpoint.settling import Admission
from impctl.engine.fixpoint.touched_groups import TouchedGroups
from impctl.engine.fixpoint.valued_changes import ValuedChanges
from impctl.engine.fixpoint.valued_rows import NotThisWayError, ValuedRows
from impctl.engine.fixpoint.valued_step import valued_step
from impctl.engine.operator import Keeper
from impctl.engine.operators.recursion import Recursion
from impctl.types import AttributeId


class BestFixpoint(Recursion):
    """Rows of `columns`, the best by `grouped`; its inputs are the base, and those of `step` after
    the first. The rest is as of a fixpoint (`operators.fixpoint`)."""

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
        super().__init__(name, rank, step, accesses)
        self.limits = limits
        self.form = (tuple(columns), grouped, rank, accesses, step.wires)
        self.rows = BestRows(name, columns, grouped, sum(accesses))
        self._stage = 0
        self._stage_counter = f"{name}.stage"
        self._told = empty_batch(sum(accesses))
        self._valued = valued_step(step, columns, grouped, rank)
        """The step, where rows are a key with a value each: it is followed without stepping its
        operators wherever there are numbers alone."""
        self.few = FEW
        """Keys up to which a step is followed one by one, where it is followed so."""
        self._at_hand: ValuedRows | None = None
        """What the last step left of what it looked up, where it was followed so."""

    def end_by(self, limits: Limits) -> None:
        """Go no further than that, from now on."""
        self.limits = limits

    def _changed(
        self, base: Batch | None, tables: Sequence[Batch | None], waiting: Batch | None = None
    ) -> Batch:
        # Who fails, gives up or steps the operators leaves what is not so any more.
        rows, self._at_hand = self._at_hand, None
        if self._valued is not None and waiting is None:
            if rows is None:
                rows = ValuedRows(self.rows, self._valued)
            moved = self._by_value(rows, base, tables)
            if moved is not None:
                return moved
        derivations = self._derivations(base, tables, waiting)
        self._told = empty_batch(sum(self._accesses))
        if not derivations:
            return empty_batch(0)
        touched = TouchedGroups(self.rows)
        stage = self._stage
        slots = touched.count(stacked_batches(derivations), self._stamp)
        has_gone = self._send_out(touched, slots)
        self._settle(touched)
        if any(self._accesses):
            self._told = touched.told()
        return touched.kept(has_moved=has_gone or self._stage > stage + 1)

    def _by_value(
        self, rows: ValuedRows, base: Batch | None, tables: Sequence[Batch | None]
    ) -> Batch | None:
        """The same over numbers alone; None where it is not that, and nothing is done."""
        changes = ValuedChanges(rows, self._stamp, self._accesses)
        admission = Admission(self._stage, self._count, self.limits)
        table = tables[0] if tables else None
        try:
            changes.settle(base, table, admission, self.few)
        except NotThisWayError:
            return None
        self._stage, self._count = changes.admitted.stage, changes.admitted.count
        moved = changes.keep()
        self._told = changes.told
        self._at_hand = rows if changes.end() else None
        return moved

    def _send_out(self, touched: TouchedGroups, slots: Ints) -> bool:
        """Rows without ground go, and what goes with them; whether there were any."""
        has_gone = False
        while len(groundless := touched.groundless(slots)):
            has_gone = True
            rows = touched.batch(groundless, -1, self._stamp)
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
            parts = [touched.batch(out, -1, self._stamp)] if len(out) else []
            touched.leave(out)
            touched.enter(come, self._stage)
            parts += [touched.batch(come, 1, self._stamp)] if len(come) else []
            self._count += len(come) - len(out)
            self.limits.check(rounds, self._count, bests=True)
            slots = self._moved(touched, stacked_batches(parts))

    def _moved(self, touched: TouchedGroups, rows: Batch) -> Ints:
        """Step by rows of T that come or go; the rows that this derives, or no longer does."""
        result = self._stepped(rows)
        if result is None or not len(result):
            return np.zeros(0, dtype=np.int64)
        return touched.count(self._of_step(result), self._stamp)

    def told(self) -> Batch:
        """What the last step changed in the derivations of the rows of T: their tags, the base's
        first."""
        return self._told

    # What is remembered.

    def arrangements(self) -> Sequence[Keeper]:
        return (*self.rows.keepers, *self._step.arrangements())

    def counters(self) -> Mapping[str, int]:
        """The rank given last, how many rows T has, and the step's own."""
        return {self._stage_counter: self._stage, **super().counters()}

    def take_up(self, counters: Mapping[str, int]) -> None:
        self._stage = counters[self._stage_counter]
        self._at_hand = None
        super().take_up(counters)

    def output(self) -> Batch:
        """All rows of T. Cost: the rows."""
        return self.rows.rows()
