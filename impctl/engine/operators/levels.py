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

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from impctl.aliases import AttributeId
from impctl.data.schema import LONG, SqlType
from impctl.data.vector import Ints, Vector
from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.circuit import Circuit
from impctl.engine.fixpoint.levelled_rows import LevelledRows
from impctl.engine.fixpoint.limits import LEVEL_LIMITS, LevelLimits
from impctl.engine.operator import Keeper, Operator
from impctl.engine.tags import apart, no_fragments

_NO_BODY = -1
"""The level of what a row of the base is derived from."""


class Levels(Operator):
    """Rows of `columns`; its inputs are the base, and those of `step` after the first.

    `step` is a circuit: in its first input are rows of T without tags, which have their level in a
    column `level` beside `columns`; its output has these columns too, and there the level of the
    row that it was made of. `accesses` are how many tags the base's rows carry, and the step's.
    UnsupportedError beyond `limits`; no step may follow one that raised.
    """

    holds_back = True

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        level: AttributeId,
        step: Circuit,
        accesses: tuple[int, int] = (0, 0),
        limits: LevelLimits = LEVEL_LIMITS,
    ) -> None:
        assert not step.reads, "the rows of a step's sides are kept"
        self.limits = limits
        self.form = (tuple(columns), level, accesses, step.wires, limits)
        self._step = step
        self._accesses = accesses
        self.rows = LevelledRows(name, columns, level)
        self._level = level
        self._count = 0
        self._counter = f"{name}.count"
        self._others = max((-wire for wires in step.wires for wire in wires), default=1) - 1
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

    def fill(self, is_filling: bool) -> None:
        """While it fills, derivations wait: rows come in once all tables' rows are at hand."""
        self._is_filling = is_filling

    def filled(self) -> Iterator[Batch]:
        """All rows of T, found at once."""
        waiting, self._held_back = self._held_back, []
        if waiting:
            yield self._changed(waiting)

    def _changed(self, derivations: Sequence[Batch]) -> Batch:
        """T after these derivations came or went, and what follows from them."""
        self._told = []
        self.rows.begin()
        waiting: dict[int, list[Batch]] = {}
        for batch in derivations:
            self._sort_in(batch, waiting)
        output = []
        came = 0
        while waiting:
            level = min(waiting)
            rows = self.rows.count(level, stacked_batches(waiting.pop(level)))
            if not len(rows):
                continue
            change = int(rows.weights.sum())
            # Of levels above nobody knows yet; what came to this one and those below stays.
            came += max(change, 0)
            self._count += change
            self.limits.check(level + 1, came)
            output.append(rows)
            self._sort_in(self._of_step(self._step.step(rows, *[None] * self._others)), waiting)
        self.limits.check(0, self._count)
        self.rows.keep()
        return self._without_levels(output)

    def _sort_in(self, derivations: Batch, waiting: dict[int, list[Batch]]) -> None:
        """Put rows to the level that they come to: above that of what they are made of."""
        if not len(derivations):
            return
        if any(self._accesses):
            self._told.append(Batch({}, derivations.weights, derivations.tags))
        heads = Batch(derivations.columns, derivations.weights, ())
        levels: Ints = heads.columns[self._level].values
        for level in np.unique(levels).tolist():
            waiting.setdefault(level + 1, []).append(heads.keep(levels == level))

    def _of_base(self, batch: Batch | None) -> Batch:
        """The base's rows as derivations."""
        own, others = self._accesses
        if batch is None or not len(batch):
            return empty_batch(own + others)
        level = Vector(LONG, np.full(len(batch), _NO_BODY, dtype=np.int64))
        none = tuple(no_fragments(len(batch)) for _ in range(others))
        return Batch({**batch.columns, self._level: level}, batch.weights, (*batch.tags, *none))

    def _of_step(self, batch: Batch | None) -> Batch:
        """The step's rows as derivations."""
        own, others = self._accesses
        if batch is None or not len(batch):
            return empty_batch(own + others)
        none = tuple(no_fragments(len(batch)) for _ in range(own))
        return Batch(batch.columns, batch.weights, (*none, *batch.tags))

    def _without_levels(self, parts: Sequence[Batch]) -> Batch:
        """The rows of several levels by their columns alone."""
        if not parts:
            return empty_batch(0)
        rows = stacked_batches(parts)
        return Batch({n: rows.columns[n] for n, _ in self.rows.columns}, rows.weights, ())

    def told(self) -> Batch:
        """What the last step changed in the derivations of all rows: tags, the base's first."""
        found = self._told
        return stacked_batches(found) if found else empty_batch(sum(self._accesses))

    # What is remembered.

    def arrangements(self) -> Sequence[Keeper]:
        return (self.rows.arrangement, *self._step.arrangements())

    def counters(self) -> Mapping[str, int]:
        """How many rows T has, and the step's own."""
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

    @property
    def can_output(self) -> bool:
        return True

    def output(self) -> Batch:
        """All rows of T. Cost: the rows."""
        rows = self.rows.whole()
        return self._without_levels([rows] if len(rows) else [])

    def keeps_like(self, other: Operator) -> bool:
        """With other constants in its step it would have other rows: then it does not."""
        if not isinstance(other, Levels) or not super().keeps_like(other):
            return False
        mine, theirs = tuple(self._step), tuple(other._step)
        return len(mine) == len(theirs) and all(
            one.keeps_like(same) and one.says_like(same)
            for one, same in zip(mine, theirs, strict=True)
        )


def _apart(batch: Batch) -> Batch:
    """The batch with tags that hold no other state, as it was then, in memory."""
    return Batch(batch.columns, batch.weights, tuple(map(apart, batch.tags)))
