"""Rows by number: each different row that is there has one.

Law: a row has a number from when it comes to when the last of its copies goes; one that comes again
has another, and no number is given twice. Rows are one where DISTINCT says so: NULL equals NULL.
State: the rows with their numbers and how many copies there are. Cost: the rows that come or go.
Out of scope: what the numbers are used for (`engine.operators.absorbed_fixpoint`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from impctl.data.keys import group_normal
from impctl.data.schema import LONG, SqlType
from impctl.data.vector import Ints, Vector
from impctl.engine.batch import Batch, empty_batch
from impctl.engine.disagreement import never_held
from impctl.engine.row_index import RowIndex
from impctl.types import AttributeId
from impctl.values import dataclass

NUMBER = "number"
"""The column of numbers in the state."""

Fresh = Callable[[int], Ints]
"""So many numbers that nothing had so far."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """The number of each row, shape (rows,), and the numbers whose last copy went."""

    numbers: Ints
    gone: Ints


class RowNumbers:
    """Rows of `columns`, each with its number; `name` is that of the state."""

    def __init__(self, name: str, columns: Sequence[tuple[AttributeId, SqlType]]) -> None:
        self._names = tuple(column for column, _ in columns)
        self.index = RowIndex(name, (*columns, (NUMBER, LONG)), self._names, 0)

    def counted(self, columns: Sequence[Vector], weights: Ints, fresh: Fresh) -> Numbered:
        """Count copies in, or out; each has the number of its row, a fresh one if it is new.

        CountBelowZeroError where copies go that are not there.
        """
        keys, grouping = group_normal(columns, len(weights))
        leaders = grouping.leaders(keys)
        known, before = self._known(grouping.codes, leaders)
        changed = np.add.reduceat(weights[grouping.order], grouping.starts)
        after = before + changed
        if len(after) and after.min() < 0:
            raise never_held("rows that a recursion is made of")
        new = (known < 0).nonzero()[0]
        known[new] = fresh(len(new))
        moved = changed.nonzero()[0]
        held = dict(zip(self._names, (one.take(moved) for one in leaders), strict=True))
        numbers = Vector(LONG, known[moved])
        self.index.add(Batch({**held, NUMBER: numbers}, changed[moved], ()), grouping.codes[moved])
        return Numbered(known[grouping.index()], known[(before > 0) & (after == 0)])

    def put(self, columns: Sequence[Vector], numbers: Ints, weight: int) -> None:
        """Different rows come with these numbers, or go with a weight of -1."""
        held = dict(zip(self._names, columns, strict=True))
        weights = np.full(len(numbers), weight, dtype=np.int64)
        batch = Batch({**held, NUMBER: Vector(LONG, numbers)}, weights, ())
        self.index.add(batch, self.index.codes_of(batch))

    def found(self, columns: Sequence[Vector], length: int) -> tuple[list[Vector], Ints, Ints]:
        """The different rows, what number each has, -1 for none, and which of them each row is."""
        keys, grouping = group_normal(columns, length)
        leaders = grouping.leaders(keys)
        known, _ = self._known(grouping.codes, leaders)
        return leaders, known, grouping.index()

    def whole(self) -> Batch:
        """All rows with their numbers, and as weights how many copies there are."""
        return self.index.whole()

    def _known(self, codes: Ints, leaders: Sequence[Vector]) -> tuple[Ints, Ints]:
        """The numbers of different rows, -1 for those not there, and how many copies there are."""
        numbers, copies = np.full(len(codes), -1, dtype=np.int64), np.zeros(len(codes), np.int64)
        result = self.index.find(codes, leaders)
        if not len(result.owners):
            return numbers, copies
        # A row and its negative are both found until the index cancels them.
        given = result.rows.columns[NUMBER].values
        order = np.lexsort((given, result.owners))
        owners, given = result.owners[order], given[order]
        is_first = np.ones(len(order), dtype=np.bool_)
        is_first[1:] = (owners[1:] != owners[:-1]) | (given[1:] != given[:-1])
        first = is_first.nonzero()[0]
        sums = np.add.reduceat(result.rows.weights[order], first)
        there = first[sums > 0]
        numbers[owners[there]] = given[there]
        copies[owners[there]] = sums[sums > 0]
        return numbers, copies


class RowsByNumber:
    """The same rows, to be found by their numbers; kept in memory only."""

    def __init__(self, columns: Sequence[tuple[AttributeId, SqlType]], number: AttributeId) -> None:
        self._number = number
        self._columns = tuple(columns)
        self._index = RowIndex("by number", (*columns, (number, LONG)), (number,), 0)

    def put(self, columns: Sequence[Vector], numbers: Ints, weight: int) -> None:
        """Rows come, or go with a weight of -1; shape (rows,) for `numbers`."""
        held = {name: one for (name, _), one in zip(self._columns, columns, strict=True)}
        held[self._number] = Vector(LONG, numbers)
        batch = Batch(held, np.full(len(numbers), weight, dtype=np.int64), ())
        self._index.add(batch, self._index.codes_of(batch))

    def rows(self, numbers: Sequence[int], weight: int) -> Batch:
        """The rows of these numbers, which are there, each with this weight."""
        asked = Vector(LONG, np.array(sorted(numbers), dtype=np.int64))
        if not len(asked.values):
            return empty_batch(0)
        result = self._index.find(self._codes(asked), [asked]).rows
        assert len(result) == len(asked.values), "a number is given once, and taken back at the end"
        return Batch(result.columns, np.full(len(result), weight, dtype=np.int64), ())

    def _codes(self, numbers: Vector) -> Ints:
        batch = Batch({self._number: numbers}, np.ones(len(numbers.values), dtype=np.int64), ())
        return self._index.codes_of(batch)
