"""Fixpoint operators: the least set of rows that holds the base and what a step derives."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from impctl.data.keys import distinct_values
from impctl.data.schema import LONG
from impctl.data.vector import Ints, Vector
from impctl.engine.batch import Batch, empty_batch, stacked_batches, stacked_or_empty
from impctl.engine.circuit import Circuit
from impctl.engine.fixpoint.absorption import BODY, HEAD, HeadsAndBodies
from impctl.engine.fixpoint.best_values import (
    NotIntegerStepError,
    TouchedGroups,
    ValuedRows,
    valued_step,
)
from impctl.engine.fixpoint.frontier import (
    ChosenDerivations,
    CircuitMoves,
    DerivationTags,
    Recursion,
    TagsOfChoices,
)
from impctl.engine.fixpoint.relaxation import Admission, ValuedChanges
from impctl.engine.fixpoint.rows import (
    BestFixpointRows,
    Grouped,
    LevelledRows,
    NumberedFixpointRows,
    RankedRows,
    TouchedNumbers,
    TouchedRows,
    only_columns,
)
from impctl.engine.fixpoint.single_join import THIN, JoinedMoves, plain_step
from impctl.engine.join import JoinOperator, Side
from impctl.engine.linear import ProjectOperator
from impctl.engine.operator import LEVEL_LIMITS, LIMITS, Keeper, LevelLimits, Limits, Operator
from impctl.engine.range_counts import RangeCounts
from impctl.expr.nodes import ColumnRef

if TYPE_CHECKING:
    from impctl.data.schema import SqlType
    from impctl.types import AttributeId


# Fixpoint: the least set of rows that contains the base's and what a step derives from its rows.
# Identity: T = base + step(T, tables), each row once as in DISTINCT; the output's change is the
# rows that entered and left T. The step is monotone in T. Method: ranked counting
# (`engine.fixpoint.rows`). Every row of T has a rank, and counts its derivations from rows of lower
# rank. A row without any is deleted, with the derivations it took part in; a derived row that is
# not in T is inserted at a new rank. So rows that derive one another in a cycle are deleted without
# their support, with no search for other derivations. If much of T is deleted, the rest follows at
# once, and ranks restart. State: T with ranks and counts, and the state of the step's operators,
# whose rows of T carry the rank as a column. Cost: the changed derivations, including those of rows
# deleted and reinserted, and a round of the step's operators per rank; never T. A step that is one
# join takes less, and with few integers some microseconds a row. NULL equals NULL. Derivations
# count with their weights; below zero is an error. Rows carry no ranges: `Lineage` emits those.

_LARGE = 0.75
"""The share of all rows deleted in a step from which the rest is deleted at once.

The rest is then deleted and inserted again. Measured with a tenth of a million links deleted: at a
quarter, a step took about twice as long as without this rule.
"""


class NumberColumns(Struct, frozen=True):
    """Column names: of a row's number as input of the step, and of the numbers of the rows used in
    a derivation as its output (0: none)."""

    number: AttributeId
    bodies: tuple[AttributeId, ...]


class FixpointOperator(Recursion):
    """Rows of `columns`; its inputs are the base, and those of `step` after the first.

    `step` is a circuit. Its first input has rows of the fixpoint without tags, with their rank in a
    column `rank` beside `columns`; its output has these columns too, with the highest rank of the
    rows used, or `NO_BODY`. `accesses` is the number of tags of the base's and the step's rows. If
    it `chooses`, only one derivation of each row is reported (`frontier.ChosenDerivations`). With a
    `numbering` rows are emitted with their numbers as tags (`rows.NumberedFixpointRows`), and
    derivations
    are reported with heads and bodies (`absorption.HeadsAndBodies`). UnsupportedError beyond
    `limits`.
    """

    limits: Limits
    rows: RankedRows

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        rank: AttributeId,
        step: Circuit,
        accesses: tuple[int, int] = (0, 0),
        limits: Limits = LIMITS,
        *,
        chooses: bool = False,
        numbering: NumberColumns | None = None,
    ) -> None:
        super().__init__(name, rank, step, accesses, limits)
        self.thin = THIN  # Rows of a front up to which a plain step is followed row by row
        self.form = (tuple(columns), rank, accesses, step.wires, chooses, numbering)
        self.rows = RankedRows(name, columns)
        self._numbered: NumberedFixpointRows | None = None
        if numbering is not None:
            self.rows = self._numbered = NumberedFixpointRows(name, columns, numbering.number)
        self._numbering = numbering
        self._stage = 0
        self._stage_counter = f"{name}.stage"
        # Following row by row reports no single derivations.
        is_whole = chooses or numbering is not None
        self._plain = None if is_whole else plain_step(step, columns, rank)
        """The step, where it is a single join: it is followed without stepping its operators."""
        self._choices = ChosenDerivations(name, columns, rank, sum(accesses)) if chooses else None
        self.recomputations = 0
        """Steps so far that deleted so much that all rows were deleted and ranks began again."""

    def _changed(
        self, base: Batch | None, tables: Sequence[Batch | None], waiting: Batch | None = None
    ) -> Batch:
        touched = self._touched()
        self._report = self._new_tags()
        moves = self._moves(touched)
        slots = []
        if base is not None and len(base):
            base = self._stamped(base)
            self._report.derived(base, of_base=True)
            slots.append(touched.counted(base, self._stamp))
        if waiting is not None:
            self._report.derived(waiting, of_base=False)
            slots.append(touched.counted(waiting, self._stamp))
        if any(table is not None and len(table) for table in tables):
            slots.append(moves.changed(tables))
        if touched.count:
            self._send_out(touched, moves, distinct_values(np.concatenate(slots)))
            self._let_in(touched, moves)
            moves.end()
            self._report.end(touched)
        return touched.kept()

    def _touched(self) -> TouchedRows:
        return TouchedRows(self.rows) if self._numbered is None else TouchedNumbers(self._numbered)

    def _new_tags(self) -> DerivationTags:
        if self._numbering is not None:
            columns = [name for name, _ in self.rows.columns]
            return HeadsAndBodies(self._accesses, columns, self._numbering.bodies)
        if self._choices is None:
            return DerivationTags(self._accesses)
        return TagsOfChoices(self._accesses, self._choices)

    def _moves(self, touched: TouchedRows) -> CircuitMoves:
        step, rank, report = self._step, self._stamp, self._report
        if self._plain is None:
            return CircuitMoves(step, self._inputs, rank, touched, report)
        return JoinedMoves(self._plain, step, rank, touched, report, self.thin)

    def _send_out(self, touched: TouchedRows, moves: CircuitMoves, slots: Ints) -> None:
        """Delete rows without ground, and what depends on them; `slots` were counted last."""
        least = self._count - int(_LARGE * self._count)

        def dismiss(rows: int) -> bool:
            if self._count - rows < least:
                return False
            self._count -= rows
            return True

        groundless = touched.groundless(slots)
        while len(groundless):
            left = moves.out(groundless, dismiss)
            if left is groundless:
                # The ranks of what would be left are of no use to so many that come in again.
                touched.take_up_all()
                self.recomputations += 1
                left, self._stage, least = touched.inside(), 0, 0
            groundless = left

    def _let_in(self, touched: TouchedRows, moves: CircuitMoves) -> None:
        rounds = 0

        def admit(rows: int) -> int:
            nonlocal rounds
            rounds += 1
            self._stage += 1
            self._count += rows
            self.limits.check(rounds, self._count)
            return self._stage

        derived = touched.derived()
        while len(derived):
            derived = moves.come(derived, admit)

    # State.

    def arrangements(self) -> Sequence[Keeper]:
        chosen = () if self._choices is None else (self._choices.index,)
        return (self.rows.arrangement, *chosen, *self._step.arrangements())

    def counters(self) -> Mapping[str, int]:
        """The last rank, how many rows T has, the numbers given, and the step's own counters."""
        result = {self._stage_counter: self._stage, **super().counters()}
        if self._numbered is not None:
            result[self._numbered.counter] = self._numbered.last
        return result

    def take_up(self, counters: Mapping[str, int]) -> None:
        self._stage = counters[self._stage_counter]
        if self._numbered is not None:
            self._numbered.last = counters[self._numbered.counter]
        super().take_up(counters)


# BestFixpoint: a fixpoint that keeps the rows with the least (or greatest) value per group.
# Identity: T = best(base + step(T, tables)); the output's change is the rows that entered and left
# T. T is the result of rounds that begin with no row and keep the best; a cycle that keeps
# improving values does not end, and exceeds `limits`. Method: ranked counting, with derived rows
# kept by group. First, rows without a derivation of lower rank are deleted, with what depends on
# them. Then, round by round, each changed group gets its best rows; a beaten row is replaced by the
# better one, so dependent rows see that. A best row that lost its support is reinserted at a later
# rank. State: derived rows by group, T with ranks, best values, and the state of the step's
# operators. Cost: the changed derivations, and groups whose rows change, with all rows derived in
# them; never T. NULL equals NULL, and is no value. Where rows are a key with a value that the step
# adds to, most steps are computed over numbers, each key about once, with the same result
# (`engine.fixpoint.relaxation`). `Lineage` covers all derivations of the rows of T.


class BestFixpoint(Recursion):
    """Rows of `columns`, the best by `grouped`; its inputs are the base, and those of `step` after
    the first. Otherwise as `Fixpoint`."""

    limits: Limits
    rows: BestFixpointRows

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
        super().__init__(name, rank, step, accesses, limits)
        self.form = (tuple(columns), grouped, rank, accesses, step.wires)
        self.rows = BestFixpointRows(name, columns, grouped, sum(accesses))
        self._stage = 0
        self._stage_counter = f"{name}.stage"
        self._valued = valued_step(step, columns, grouped, rank)
        """The step, where rows are a key with one value each: integers are followed without
        stepping its operators."""
        self._at_hand: ValuedRows | None = None  # The lookups of the last such step, for reuse

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
        self._report = DerivationTags(self._accesses)
        if not derivations:
            return empty_batch(0)
        touched = TouchedGroups(self.rows)
        stage = self._stage
        slots = touched.counted(stacked_batches(derivations), self._stamp)
        has_gone = self._send_out(touched, slots)
        self._settle(touched)
        if any(self._accesses):
            self._report.complete(touched.report())
        return touched.kept(has_moved=has_gone or self._stage > stage + 1)

    def _by_value(
        self, rows: ValuedRows, base: Batch | None, tables: Sequence[Batch | None]
    ) -> Batch | None:
        """The step over integers alone; None where it does not apply, and nothing was changed."""
        changes = ValuedChanges(rows, self._stamp, self._accesses)
        admission = Admission(self._stage, self._count, self.limits)
        table = tables[0] if tables else None
        try:
            changes.settle(base, table, admission)
        except NotIntegerStepError:
            return None
        self._stage, self._count = admission.stage, admission.count
        moved = changes.keep()
        self._report = DerivationTags(self._accesses)
        self._report.complete(changes.report)
        self._at_hand = rows if changes.end() else None
        return moved

    def _send_out(self, touched: TouchedGroups, slots: Ints) -> bool:
        """Delete rows without ground, and what depends on them; whether there were any."""
        has_gone = False
        while len(groundless := distinct_values(touched.groundless(slots))):
            has_gone = True
            rows = touched.batch(groundless, -1, self._stamp)
            touched.leave(groundless)
            self._count -= len(groundless)
            slots = self._moved(touched, rows)
        return has_gone

    def _settle(self, touched: TouchedGroups) -> None:
        rounds = 0
        slots = np.arange(touched.count, dtype=np.int64)
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
        result = self._stepped(rows)
        if result is None or not len(result):
            return np.zeros(0, dtype=np.int64)
        return touched.counted(self._of_step(result), self._stamp)

    # State.

    def arrangements(self) -> Sequence[Keeper]:
        return (*self.rows.keepers, *self._step.arrangements())

    def counters(self) -> Mapping[str, int]:
        return {self._stage_counter: self._stage, **super().counters()}

    def take_up(self, counters: Mapping[str, int]) -> None:
        self._stage = counters[self._stage_counter]
        self._at_hand = None
        super().take_up(counters)


# Levels: the rows of a base, those that a step makes of these, and so on, with their copies.
# Identity: with T_0 the base and T_l+1 = step(T_l, tables), the output's change is that of the sum
# of all T_l: WITH RECURSIVE of UNION ALL. The step makes each row of one row of T. Method: rows
# carry their level. The tables' change is joined with the old rows of all levels; then level after
# level, lowest first, changed rows are joined with the tables as they are. A level depends only on
# the one below, so weights of both signs are exact; rows that derive one another in a cycle are
# different rows at every level, which only limits end. State: the weight of every row and level,
# and the state of the step's operators, whose rows of T carry the level as a column. Cost: the
# changed derivations, and a round of the step's operators per changed level; never T. Rows are
# equal value for value. Rows carry no ranges: `Lineage` emits those.


class UnionAllFixpoint(Recursion):
    """Rows of `columns`; its inputs are the base, and those of `step` after the first.

    `step` is a circuit. Its first input has rows of T without tags, with their level in a column
    `level` beside `columns`; its output has these columns too, with the level of the row it derives
    from. `accesses` is the number of tags of the base's and the step's rows. UnsupportedError
    beyond `limits`; no step may follow one that raised."""

    limits: LevelLimits
    rows: LevelledRows

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        level: AttributeId,
        step: Circuit,
        accesses: tuple[int, int] = (0, 0),
        limits: LevelLimits = LEVEL_LIMITS,
    ) -> None:
        super().__init__(name, level, step, accesses, limits)
        self.form = (tuple(columns), level, accesses, step.wires, limits)
        self.rows = LevelledRows(name, columns, level)

    def _changed(
        self, base: Batch | None, tables: Sequence[Batch | None], waiting: Batch | None = None
    ) -> Batch:
        derivations = self._derivations(base, tables, waiting)
        self._report = DerivationTags(self._accesses)
        self.rows.begin()
        rising: dict[int, list[Batch]] = {}
        for batch in derivations:
            self._sort_in(batch, rising)
        output = []
        inserted = 0
        while rising:
            level = min(rising)
            rows = self.rows.count(level, stacked_batches(rising.pop(level)))
            if not len(rows):
                continue
            change = int(rows.weights.sum())
            # Higher levels are not known yet; insertions up to this level are final.
            inserted += max(change, 0)
            self._count += change
            self.limits.check(level + 1, inserted)
            output.append(rows)
            result = self._stepped(rows)
            if result is not None and len(result):
                self._sort_in(self._of_step(result), rising)
        self.limits.check(0, self._count)
        self.rows.keep()
        return only_columns(stacked_or_empty(output, 0), self.rows.names)

    def _sort_in(self, derivations: Batch, rising: dict[int, list[Batch]]) -> None:
        """Move rows to their level: one above that of the rows they derive from."""
        self._report.complete(derivations)
        heads = Batch(derivations.columns, derivations.weights, ())
        levels: Ints = heads.columns[self._stamp].values
        for level in np.unique(levels).tolist():
            rising.setdefault(level + 1, []).append(heads.keep(levels == level))

    # State.

    def arrangements(self) -> Sequence[Keeper]:
        return (self.rows.arrangement, *self._step.arrangements())


# Backward: the rows of a fixpoint from which given rows are derived. Identity: with A the numbers
# of some rows, U = A + {body : head <- body, head in U}, each once; the output is U's change, and
# its lineage has the ranges of the derivations whose head is in U, each once. It is itself a
# fixpoint over the reversed derivations (`engine.fixpoint.absorption`), maintained as such: a row
# that derives A in a cycle is deleted only with it. Derivations without bodies have the number
# `NOTHING`, which is no row's, so their ranges are emitted like others. State: the derivations by
# their heads, 16 bytes each beside tags and index, and 32 bytes per row of U with its place in the
# step. Cost: the derivations that changed or became those of a row in U. It always terminates, as U
# contains only rows of the fixpoint.

_RANK = "impctl/rank"
_NO_LIMITS = Limits(rounds=sys.maxsize, rows=sys.maxsize)


class Backward(FixpointOperator):
    """Its inputs are rows of A, with a number in the column `ROW`, and derivations with this many
    `accesses`."""

    def __init__(self, name: str, accesses: int) -> None:
        rows = Side(((ROW, LONG), (_RANK, LONG)), (ROW,), 0)
        derivations = Side(((HEAD, LONG), (BODY, LONG)), (HEAD,), accesses)
        join = JoinOperator(f"{name}.derivations", rows, derivations, [False])
        chosen = ProjectOperator([(ROW, ColumnRef(BODY, LONG)), (_RANK, ColumnRef(_RANK, LONG))])
        step = Circuit([join, chosen], [(-1, -2), (0,)])
        super().__init__(name, ((ROW, LONG),), _RANK, step, (0, accesses), _NO_LIMITS)

    def end_by(self, limits: Limits) -> None:
        """Not applied: the limits are of the rows of the query, of which these are a subset."""


# Lineage of a fixpoint: the ranges of all table rows that take part in deriving its rows. Identity:
# for every derivation of a row of the fixpoint from its rows, the output has the ranges of the
# table rows used; the change is that of the fixpoint's last step. Any row may matter above, so
# these ranges are counted at the root on their own branch, like the first rows of a top-k (decision
# 0015). Where rows have numbers, heads and bodies are output too, to be followed back first
# (`Backward`). No state. Cost: the changed derivations. A row deleted and reinserted in one step
# retracts its derivations: weights of either sign, which cancel where they are counted.


class LineageOperator(Operator):
    """Its input is the output of the fixpoint, which is there whenever that was stepped."""

    def __init__(self, fixpoint: Recursion) -> None:
        self._fixpoint = fixpoint
        self.form = fixpoint.form

    def step(self, batch: Batch) -> Batch:
        del batch  # It signals a step: derivations may change where no row does.
        return self._fixpoint.report()


# UsedRows: the rows of a fixpoint that the query's result depends on. Identity: input rows have
# numbers of the fixpoint's rows as their only tag, with weights; the output is the set of numbers
# that some row carries, one row each, and its change is what entered and left that set. State: a
# count per number, like counts of ranges at the root. Cost: the (row, number) pairs that come or
# go. A count below zero is an error.

ROW = "impctl/row"  # The column with the number of a row
_ALL: Ints = np.zeros(1, dtype=np.int64)  # The one group of all rows


class UsedRows(Operator):
    """The numbers that rows carry; without tags."""

    def __init__(self, name: str) -> None:
        self.counts = RangeCounts(f"{name}.uses")

    def step(self, batch: Batch) -> Batch:
        """Numbers now carried (+1) or no longer carried (-1)."""
        pairs = batch.tags[0].expand(np.zeros(len(batch), dtype=np.int64), batch.weights)
        crossed = self.counts.count(_ALL, pairs).crossed
        return Batch({ROW: Vector(LONG, crossed.ranges)}, crossed.weights, ())

    def arrangements(self) -> Sequence[Keeper]:
        return (self.counts.arrangement,)
