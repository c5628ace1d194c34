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
came in again included, and a round of the step's operators per rank; never T. Where the step is one
join its rounds take less, and of few whole numbers some microseconds a row (`engine.fixpoint`).
NULL equals NULL.
Base rows and derivations count with their weights; below zero is an error.
Not to be confused with DISTINCT, whose rows cannot derive one another. Lineage is told by another
operator (`operators.lineage`): rows that come out carry no fragment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from impctl.data.keys import distinct_values
from impctl.data.schema import SqlType
from impctl.data.vector import Ints
from impctl.engine.batch import Batch
from impctl.engine.circuit import Circuit
from impctl.engine.fixpoint.choices import Choices, ToldOfChoices
from impctl.engine.fixpoint.heads_and_bodies import HeadsAndBodies
from impctl.engine.fixpoint.joined_moves import JoinedMoves, Seen
from impctl.engine.fixpoint.limits import LIMITS, Limits
from impctl.engine.fixpoint.moves import CircuitMoves, Moves, Told, counted
from impctl.engine.fixpoint.numbered_rows import NumberedRows, TouchedNumbers
from impctl.engine.fixpoint.plain_step import plain_step
from impctl.engine.fixpoint.ranked_rows import RankedRows
from impctl.engine.fixpoint.thin_fronts import THIN
from impctl.engine.fixpoint.touched_rows import TouchedRows
from impctl.engine.operator import Keeper
from impctl.engine.operators.recursion import Recursion
from impctl.types import AttributeId
from impctl.values import dataclass

_LARGE = 0.75
"""The share of all rows that may go out in a step before the rest follows at once.

What is left has to go out and come in for that. Measured, a tenth of a million links gone: where it
was a quarter, a step took about twice as long as without.
"""


@dataclass(frozen=True, slots=True)
class Numbering:
    """Names of columns: of a row's number as it goes into the step, and of those of the rows that
    took part as a derivation comes out (0: none)."""

    number: AttributeId
    bodies: tuple[AttributeId, ...]


class Fixpoint(Recursion):
    """Rows of `columns`; its inputs are the base, and those of `step` after the first.

    `step` is a circuit: in its first input are rows of the fixpoint without tags, which have their
    rank in a column `rank` beside `columns`; its output has these columns too, and there the
    highest rank of the rows that took part, or `NO_BODY`. `accesses` are how many tags the base's
    rows carry, and the step's. If it `chooses`, one derivation of each row is told, and no others
    (`fixpoint.choices`). With a `numbering` rows come out with their numbers for tags
    (`fixpoint.numbered_rows`), and derivations are told with their heads and bodies
    (`fixpoint.heads_and_bodies`). UnsupportedError beyond `limits`.
    """

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
        numbering: Numbering | None = None,
    ) -> None:
        super().__init__(name, rank, step, accesses)
        self.limits = limits
        self.thin = THIN
        """Rows of a front up to which it is followed row by row, where the step is plain."""
        self.form = (tuple(columns), rank, accesses, step.wires, chooses, numbering)
        self.rows = RankedRows(name, columns)
        self._numbered: NumberedRows | None = None
        if numbering is not None:
            self.rows = self._numbered = NumberedRows(name, columns, numbering.number)
        self._numbering = numbering
        self._stage = 0
        self._stage_counter = f"{name}.stage"
        self._told = Told(accesses)
        # What is followed row by row tells no derivations.
        is_whole = chooses or numbering is not None
        self._plain = None if is_whole else plain_step(step, columns, rank)
        """The step, where it is one join: it is followed without stepping its operators."""
        self._choices = Choices(name, columns, rank, sum(accesses)) if chooses else None
        self._seen = Seen()
        self.begun_anew = 0
        """Steps so far in which so much went out that all rows did, and ranks began again."""

    def end_by(self, limits: Limits) -> None:
        """Go no further than that, from now on."""
        self.limits = limits

    def _changed(
        self, base: Batch | None, tables: Sequence[Batch | None], waiting: Batch | None = None
    ) -> Batch:
        touched = self._touched()
        self._told = self._fresh_told()
        moves = self._moves(touched)
        slots = []
        if base is not None and len(base):
            base = self._stamped(base)
            self._told.derived(base, of_base=True)
            slots.append(counted(touched, base, self._stamp))
        if waiting is not None:
            self._told.derived(waiting, of_base=False)
            slots.append(counted(touched, waiting, self._stamp))
        if any(table is not None and len(table) for table in tables):
            slots.append(moves.changed(tables))
        if touched.count:
            self._send_out(touched, moves, distinct_values(np.concatenate(slots)))
            self._let_in(touched, moves)
            moves.end()
            self._told.end(touched)
        return touched.kept()

    def _touched(self) -> TouchedRows:
        return TouchedRows(self.rows) if self._numbered is None else TouchedNumbers(self._numbered)

    def _fresh_told(self) -> Told:
        if self._numbering is not None:
            columns = [name for name, _ in self.rows.columns]
            return HeadsAndBodies(self._accesses, columns, self._numbering.bodies)
        if self._choices is None:
            return Told(self._accesses)
        return ToldOfChoices(self._accesses, self._choices)

    def _moves(self, touched: TouchedRows) -> Moves:
        by_step = CircuitMoves(self._step, self._inputs, self._stamp, touched, self._told)
        if self._plain is None:
            return by_step
        parts = (self._plain, by_step, self._stamp, touched, self._told)
        return JoinedMoves(*parts, self._seen, self.thin)

    def _send_out(self, touched: TouchedRows, moves: Moves, slots: Ints) -> None:
        """Rows without ground go, and what goes with them; `slots` were counted last."""
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
                self.begun_anew += 1
                left, self._stage, least = touched.inside(), 0, 0
            groundless = left

    def _let_in(self, touched: TouchedRows, moves: Moves) -> None:
        """Rows come that are derived from what is there, round by round."""
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

    def told(self) -> Batch:
        """What the last step changed in the derivations whose bodies are all in T, or of those in
        the ones that were chosen: their tags, the base's first; with a numbering heads and bodies.
        """
        return self._told.batch()

    # What is remembered.

    def arrangements(self) -> Sequence[Keeper]:
        chosen = () if self._choices is None else (self._choices.index,)
        return (self.rows.arrangement, *chosen, *self._step.arrangements())

    def counters(self) -> Mapping[str, int]:
        """The rank given last, how many rows T has, the numbers given, and the step's own."""
        result = {self._stage_counter: self._stage, **super().counters()}
        if self._numbered is not None:
            result[self._numbered.counter] = self._numbered.last
        return result

    def take_up(self, counters: Mapping[str, int]) -> None:
        self._stage = counters[self._stage_counter]
        if self._numbered is not None:
            self._numbered.last = counters[self._numbered.counter]
        super().take_up(counters)

    def output(self) -> Batch:
        """All rows of T. Cost: the rows."""
        return self.rows.rows()
