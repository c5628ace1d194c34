"""Levels: the rows of a base, those that a step makes of these, and so on, as often as derived.

Identity: with T_0 the base and T_l+1 = step(T_l, tables), the output's change is that of the sum of
all T_l: what WITH RECURSIVE of UNION ALL gives. The step makes every row of one row of T. Method:
rows carry their level. The change of the tables goes over the rows of all levels as they were; then
level after level, lowest first, what came and went there goes over the tables as they are. A level
only hears of the one below, so weights of both signs are exact, and rows that derive one another in
a circle are different rows, level after level, without end: which limits put to it.
State: the weight of every row and level, and whatever the step's operators keep; their rows of T
carry the level as a column. Cost: the derivations that came or went, and a round of the step's
operators per level that changed; never T. Rows are equal value for value.
Not to be confused with `fixpoint`, which has each row once. Lineage is told by another operator
(`operators.lineage`): rows that come out carry no fragment.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.data.schema import SqlType
from impctl.data.vector import Ints
from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.circuit import Circuit
from impctl.engine.fixpoint.levelled_rows import LevelledRows
from impctl.engine.fixpoint.limits import LEVEL_LIMITS, LevelLimits
from impctl.engine.operator import Keeper
from impctl.engine.operators.recursion import Recursion
from impctl.types import AttributeId


class Levels(Recursion):
    """Rows of `columns`; its inputs are the base, and those of `step` after the first.

    `step` is a circuit: in its first input are rows of T without tags, which have their level in a
    column `level` beside `columns`; its output has these columns too, and there the level of the
    row that it was made of. `accesses` are how many tags the base's rows carry, and the step's.
    UnsupportedError beyond `limits`; no step may follow one that raised.
    """

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        level: AttributeId,
        step: Circuit,
        accesses: tuple[int, int] = (0, 0),
        limits: LevelLimits = LEVEL_LIMITS,
    ) -> None:
        super().__init__(name, level, step, accesses)
        self.limits = limits
        self.form = (tuple(columns), level, accesses, step.wires, limits)
        self.rows = LevelledRows(name, columns, level)
        self._told: list[Batch] = []

    def _changed(
        self, base: Batch | None, tables: Sequence[Batch | None], waiting: Batch | None = None
    ) -> Batch:
        derivations = self._derivations(base, tables, waiting)
        self._told = []
        self.rows.begin()
        rising: dict[int, list[Batch]] = {}
        for batch in derivations:
            self._sort_in(batch, rising)
        output = []
        came = 0
        while rising:
            level = min(rising)
            rows = self.rows.count(level, stacked_batches(rising.pop(level)))
            if not len(rows):
                continue
            change = int(rows.weights.sum())
            # Of levels above nobody knows yet; what came to this one and those below stays.
            came += max(change, 0)
            self._count += change
            self.limits.check(level + 1, came)
            output.append(rows)
            result = self._stepped(rows)
            if result is not None and len(result):
                self._sort_in(self._of_step(result), rising)
        self.limits.check(0, self._count)
        self.rows.keep()
        return self._without_levels(output)

    def _sort_in(self, derivations: Batch, rising: dict[int, list[Batch]]) -> None:
        """Put rows to the level that they come to: above that of what they are made of."""
        if any(self._accesses):
            self._told.append(Batch({}, derivations.weights, derivations.tags))
        heads = Batch(derivations.columns, derivations.weights, ())
        levels: Ints = heads.columns[self._stamp].values
        for level in np.unique(levels).tolist():
            rising.setdefault(level + 1, []).append(heads.keep(levels == level))

    def _without_levels(self, parts: Sequence[Batch]) -> Batch:
        """The rows of several levels by their columns alone."""
        if not parts:
            return empty_batch(0)
        rows = stacked_batches(parts)
        return Batch({n: rows.columns[n] for n, _ in self.rows.columns}, rows.weights, ())

    def told(self) -> Batch:
        """What the last step changed in the derivations of all rows: tags, the base's first."""
        result = self._told
        return stacked_batches(result) if result else empty_batch(sum(self._accesses))

    # What is remembered.

    def arrangements(self) -> Sequence[Keeper]:
        return (self.rows.arrangement, *self._step.arrangements())

    def output(self) -> Batch:
        """All rows of T. Cost: the rows."""
        rows = self.rows.whole()
        return self._without_levels([rows] if len(rows) else [])
