"""Rows of a fixpoint that have numbers, by which other operators tell them apart.

Law: a row has one number, from 1 up, from the step in which it comes in to that in which it goes
out, whatever its rank does meanwhile; no two rows of a step have the same, those that go out in it
included. A number is given again when all there are were given once. Rows come out tagged with
their numbers, as rows of a table are with fragments, so what becomes of them above tells which of
them matter there. Cost: as of rows without; 8 bytes a row more; where numbers ran out, all rows.
Out of scope: what ranks and counts are (`ranked_rows`), who asks for numbers (`heads_and_bodies`,
`operators.used_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.data.schema import LONG, SqlType
from impctl.data.vector import Ints, Vector
from impctl.engine.batch import Batch, empty_batch
from impctl.engine.fixpoint.ranked_rows import NAMES, RankedRows
from impctl.engine.fixpoint.touched_rows import ALL, TouchedRows
from impctl.engine.tags import FRAGMENT_BITS, RowTags
from impctl.errors import UnsupportedError
from impctl.types import AttributeId

_NUMBER = "number"
MOST = (1 << FRAGMENT_BITS) - 1
"""The greatest number: they stand where fragments stand."""


class NumberedRows(RankedRows):
    """`number` names the column with a row's number where rows go into the step."""

    stored = (*NAMES, _NUMBER)

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        number: AttributeId,
    ) -> None:
        super().__init__(name, columns)
        self.number = number
        self.most = MOST
        self.last = 0
        """The greatest number given so far."""
        self.counter = f"{name}.numbers"
        self._free: Ints = np.zeros(0, dtype=np.int64)

    def rows(self) -> Batch:
        result = self.whole()
        if not len(result):
            return empty_batch(1)
        rows = self.batch(result.keys, np.ones(len(result), dtype=np.int64))
        return tagged(rows, self._numbers())

    def take(self, count: int, touched: Ints) -> Ints:
        """So many numbers that no row has; `touched` are those of the rows of the step.

        UnsupportedError where there are not so many.
        """
        fresh = min(count, self.most - self.last)
        given = np.arange(self.last + 1, self.last + 1 + fresh, dtype=np.int64)
        self.last += fresh
        if fresh == count:
            return given
        left = count - fresh
        if left > len(self._free):
            used = np.concatenate([self._numbers(), touched, given])
            every = np.arange(1, self.most + 1, dtype=np.int64)
            self._free = np.setdiff1d(every, used)
        if left > len(self._free):
            raise UnsupportedError(
                f"A recursive query has more than {self.most:,} rows, too many for `lineage: "
                "answer`",
                code="recursion_limit",
                hint="remove `lineage: answer`",
            )
        again, self._free = self._free[:left], self._free[left:]
        return np.concatenate([given, again])

    def _numbers(self) -> Ints:
        """Those of all rows, in the order of `whole`."""
        run = self.arrangement.whole()
        if run is None:
            return np.zeros(0, dtype=np.int64)
        numbers: Ints = run.values[_NUMBER]
        return numbers


class TouchedNumbers(TouchedRows):
    """The rows of one step with their numbers, by slot; 0 where a row has none."""

    def __init__(self, held: NumberedRows) -> None:
        super().__init__(held)
        self._held = held
        self.numbers: Ints = np.zeros(self.values.shape[1], dtype=np.int64)

    def make_room(self, rows: int) -> None:
        super().make_room(rows)
        room = self.values.shape[1]
        if room > len(self.numbers):
            grown = np.zeros(room, dtype=np.int64)
            grown[: len(self.numbers)] = self.numbers
            self.numbers = grown

    def _look_up(self, start: int, codes: Ints, keys: Sequence[Vector], *, are_told: bool) -> None:
        super()._look_up(start, codes, keys, are_told=are_told)
        arrangement = self.held.arrangement
        result = arrangement.gather(arrangement.find(codes, keys), _NUMBER)
        self.numbers[start : start + len(codes)] = result

    def enter(self, slots: Ints, stage: int) -> None:
        super().enter(slots, stage)
        fresh = slots[self.numbers[slots] == 0]
        if len(fresh):
            self.numbers[fresh] = self._held.take(len(fresh), self.numbers[: self.count])

    def batch(self, slots: Ints, weight: int, rank: AttributeId) -> Batch:
        rows = super().batch(slots, weight, rank)
        numbers = Vector(LONG, self.numbers[slots])
        return Batch({**rows.columns, self._held.number: numbers}, rows.weights, ())

    def values_of(self, slots: Ints) -> dict[str, Ints]:
        # A row that goes out gives its number back, also where it is not yet forgotten.
        numbers = np.where(self.values[ALL, slots] > 0, self.numbers[slots], 0)
        return {**super().values_of(slots), _NUMBER: numbers}

    def moved_rows(self, keys: Sequence[Vector], slots: Ints, signs: Ints) -> Batch:
        return tagged(super().moved_rows(keys, slots, signs), self.numbers[slots])

    @property
    def none(self) -> Batch:
        return empty_batch(1)


def tagged(rows: Batch, numbers: Ints) -> Batch:
    """The rows, each with its number for a tag."""
    return Batch(rows.columns, rows.weights, (RowTags(numbers.astype(np.int32)),))
