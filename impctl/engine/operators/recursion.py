"""What operators have in common whose rows are derived from rows of theirs, by a step inside them.

Law: the step is a circuit of ordinary operators. Rows of T come into its first input without tags
and with a stamp, a column of their own, from which what they derive is told apart: the rank at
which they came in, or their level. Rows of the base and of the step are derivations, each with the
tags of all accesses, the base's first. While a query fills, derivations wait, so that T is found
once, from all rows. State is the subclass's and that of the step's operators.
Out of scope: which rows there are (`operators.fixpoint`, `best_fixpoint`, `levels`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from impctl.data.schema import LONG
from impctl.data.vector import Vector
from impctl.engine.batch import Batch, stacked_batches
from impctl.engine.circuit import Circuit
from impctl.engine.operator import Operator
from impctl.engine.tags import apart, no_fragments
from impctl.types import AttributeId

NO_BODY = -1
"""The stamp of a derivation that no row of T takes part in: below all others."""


class Recursion(Operator):
    """Its inputs are the base, and those of `step` after the first.

    The output of the step has the columns of T, and in the column `stamp` the highest stamp of the
    rows that took part, or `NO_BODY`. `accesses` are how many tags the base's rows carry, and the
    step's.
    """

    holds_back = True

    def __init__(
        self, name: str, stamp: AttributeId, step: Circuit, accesses: tuple[int, int]
    ) -> None:
        assert not step.reads, "the rows of a step's sides are kept"
        self._stamp = stamp
        self._step = step
        self._accesses = accesses
        self._count = 0
        """Rows of T, as they count for the limits."""
        self._counter = f"{name}.count"
        self._is_filling = False
        self._held_back: tuple[list[Batch], list[Batch]] = ([], [])
        """Of the base, and of the step."""

    def step(self, base: Batch | None, *tables: Batch | None) -> Batch | None:
        """The rows that came or went; None while it fills."""
        if self._is_filling:
            result = (base, self._step.step(None, *tables))
            for held, batch in zip(self._held_back, result, strict=True):
                held += [apart_in_memory(batch)] if batch is not None and len(batch) else []
            return None
        return self._changed(base, tables)

    @abstractmethod
    def _changed(
        self, base: Batch | None, tables: Sequence[Batch | None], waiting: Batch | None = None
    ) -> Batch:
        """T after these rows of the base and of the step's tables came or went; and derivations by
        the step that were waiting."""

    @abstractmethod
    def told(self) -> Batch:
        """What the last step changed in those derivations that count: tags, the base's first."""

    def fill(self, is_filling: bool) -> None:
        """While it fills, derivations wait: rows come in once all tables' rows are at hand."""
        self._is_filling = is_filling

    def filled(self) -> Iterator[Batch]:
        """All rows of T, found at once."""
        waiting, self._held_back = self._held_back, ([], [])
        if any(waiting):
            base, step = (stacked_batches(result) if result else None for result in waiting)
            yield self._changed(base, (), step)

    # Derivations.

    @property
    def _inputs(self) -> int:
        """How many inputs the step reads."""
        return max((-wire for wires in self._step.wires for wire in wires), default=1)

    def _stepped(self, rows: Batch) -> Batch | None:
        """What rows of T that come or go derive by the step, or no longer do."""
        return self._step.step(rows, *[None] * (self._inputs - 1))

    def _stamped(self, base: Batch) -> Batch:
        """Rows of the base, derived from nothing."""
        lowest = Vector(LONG, np.full(len(base), NO_BODY, dtype=np.int64))
        return Batch({**base.columns, self._stamp: lowest}, base.weights, base.tags)

    def _derivations(
        self, base: Batch | None, tables: Sequence[Batch | None], waiting: Batch | None
    ) -> list[Batch]:
        """All that comes of these rows while T is as it was, each with the tags of all accesses."""
        result = [] if base is None or not len(base) else [self._of_base(base)]
        changed = self._step.step(None, *tables) if tables else None
        parts = (batch for batch in (waiting, changed) if batch is not None and len(batch))
        return [*result, *map(self._of_step, parts)]

    def _of_base(self, base: Batch) -> Batch:
        none = tuple(no_fragments(len(base)) for _ in range(self._accesses[1]))
        stamped = self._stamped(base)
        return Batch(stamped.columns, stamped.weights, (*stamped.tags, *none))

    def _of_step(self, batch: Batch) -> Batch:
        none = tuple(no_fragments(len(batch)) for _ in range(self._accesses[0]))
        return Batch(batch.columns, batch.weights, (*none, *batch.tags))

    # What is remembered.

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

    def keeps_like(self, other: Operator) -> bool:
        """With other constants in its step it would have other rows: then it does not."""
        if not isinstance(other, Recursion) or not super().keeps_like(other):
            return False
        mine, theirs = tuple(self._step), tuple(other._step)
        return len(mine) == len(theirs) and all(
            one.keeps_like(same) and one.says_like(same)
            for one, same in zip(mine, theirs, strict=True)
        )


def apart_in_memory(batch: Batch) -> Batch:
    """The batch with tags that hold no other state, as it was then, in memory."""
    return Batch(batch.columns, batch.weights, tuple(map(apart, batch.tags)))
