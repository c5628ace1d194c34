"""Window functions by position in a partition: ranks, and the values of rows before and after.

Law: for every partition with a changed row, the change is minus its old rows plus its new ones,
with their values; unchanged rows cancel. State: all rows by partition, without tags. Cost: the rows
of the changed partitions, sorted. NULL is a partition. Copies of a row are neighbors; where other
rows tie, a function that has to choose among them is an error. Deleting an unknown row is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from impctl.data.keys import group_rows, normalise, start_of, starts_in
from impctl.data.schema import DOUBLE, INTEGER, LONG, SqlType
from impctl.data.vector import Bools, Ints, Vector, all_null, concat, slice_positions
from impctl.engine.batch import Batch, consolidated, empty_batch, never_held, stacked_or_empty
from impctl.engine.extremes import OrderKey, exact_ranks
from impctl.engine.operator import Operator
from impctl.engine.trace import RowIndex
from impctl.errors import NotExactError

if TYPE_CHECKING:
    from impctl.types import AttributeId

RANKS = frozenset({"row_number", "rank", "dense_rank", "percent_rank", "cume_dist"})
"""Functions of the position alone."""

CHOOSING = frozenset({"row_number", "lag", "lead"})
"""Functions whose result depends on the order of tied rows."""


class WindowValue(Struct, frozen=True):
    """One call: a rank, or the `argument` of the row that lies `ahead` (negative: before). Where
    there is no such row, it is the row's own `otherwise`, NULL if None."""

    result: AttributeId
    function: str
    order: tuple[OrderKey, ...]
    argument: AttributeId | None = None
    ahead: int = 0
    otherwise: AttributeId | None = None


class WindowOperator(Operator):
    """Rows of `columns`, one per copy, with the value of each call in their partition."""

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        partition: Sequence[AttributeId],
        calls: Sequence[WindowValue],
    ) -> None:
        self.calls = tuple(calls)
        self._columns = tuple(column for column, _ in columns)
        self._partition = tuple(partition)
        self._rows = RowIndex(f"{name}.rows", columns, partition, 0)

    def step(self, batch: Batch) -> Batch:
        if len(batch) == 0:
            return empty_batch(0)
        batch = Batch({name: batch.columns[name] for name in self._columns}, batch.weights, ())
        keys, groups = batch.grouped_by(self._partition)
        old = self._rows.find(groups.codes, [key.take(groups.first) for key in keys]).rows
        self._rows.add(batch, groups.codes[groups.index()])
        changes = [self._placed(stacked_or_empty((batch, old), 0))]
        if len(old):
            changes.append(self._placed(old).negated())
        return consolidated(stacked_or_empty(changes, 0))

    def _keys(self, rows: Batch) -> list[Vector]:
        return [normalise(rows.columns[name]) for name in self._partition]

    def _placed(self, rows: Batch) -> Batch:
        """The rows of whole partitions, each copy on its own, with their values."""
        rows = consolidated(rows)
        if bool((rows.weights < 0).any()):
            raise never_held("rows")
        if len(rows) == 0:
            return rows
        owners = group_rows(self._keys(rows), len(rows)).index()
        columns = {
            name: column.take(np.repeat(np.arange(len(rows)), rows.weights))
            for name, column in rows.columns.items()
        }
        for call in self.calls:
            order, places = self._ordered(rows, owners, call)
            values = _values(call, columns, places)
            columns[call.result] = values.take(np.argsort(order, kind="stable"))
        weights = np.ones(int(rows.weights.sum()), dtype=np.int64)
        return Batch(columns, weights, ())

    def _ordered(
        self, rows: Batch, owners: Ints, call: WindowValue
    ) -> tuple[Ints, _PartitionPlaces]:
        ranks = [exact_ranks(rows.columns[key.column], key) for key in call.order]
        together = [Vector(LONG, column) for column in (owners, *ranks)]
        tied = group_rows(together, len(rows)).index()
        if call.function in CHOOSING and int(tied.max()) + 1 < len(rows):
            raise NotExactError(
                f"{call.function.upper()} is not deterministic, because its ORDER BY has ties",
                hint="order by columns that are unique within a partition",
            )
        order = np.lexsort((*ranks[::-1], owners))
        ends = np.cumsum(rows.weights)
        copies, _ = slice_positions((ends - rows.weights)[order], ends[order])
        weights = rows.weights[order]
        owners, peers = np.repeat(owners[order], weights), np.repeat(tied[order], weights)
        return copies, _PartitionPlaces(starts_in(owners), starts_in(owners, peers), copies)

    def arrangements(self) -> tuple[RowIndex, ...]:
        return (self._rows,)


class _PartitionPlaces(Struct, frozen=True):
    """Sorted rows: where partitions and peers begin, and which copy of a row each one is."""

    parts: Bools
    peers: Bools
    copies: Ints

    @property
    def first(self) -> Ints:
        return start_of(self.parts)

    @property
    def end(self) -> Ints:
        return _ends(self.parts)


def _values(
    call: WindowValue, columns: dict[AttributeId, Vector], positions: _PartitionPlaces
) -> Vector:
    if call.function in RANKS:
        return _rank(call.function, positions)
    assert call.argument is not None, "a value of another row"
    argument = columns[call.argument].take(positions.copies)
    requested = np.arange(len(argument)) + call.ahead
    is_there = (requested >= positions.first) & (requested < positions.end)
    if call.otherwise is None:
        otherwise = all_null(argument.type, len(argument))
    else:
        otherwise = columns[call.otherwise].take(positions.copies)
    beyond = np.arange(len(argument)) + len(argument)
    return concat([argument, otherwise]).take(np.where(is_there, requested, beyond))


def _rank(function: str, places: _PartitionPlaces) -> Vector:
    first, peers = places.first, places.peers
    positions = np.arange(len(first))
    standing = start_of(peers) - first
    match function:
        case "row_number":
            return Vector(INTEGER, positions - first + 1)
        case "rank":
            return Vector(INTEGER, standing + 1)
        case "dense_rank":
            number: Ints = np.cumsum(peers)
            return Vector(INTEGER, number - number[first] + 1)
        case "percent_rank":
            # A partition of one row has rank zero.
            others = np.maximum(places.end - first - 1, 1)
            return Vector(DOUBLE, standing / others)
        case _:
            assert function == "cume_dist"
            return Vector(DOUBLE, (_ends(peers) - first) / (places.end - first))


def _ends(starts: Bools) -> Ints:
    borders = np.append(np.flatnonzero(starts), len(starts))
    ends: Ints = borders[np.cumsum(starts)]
    return ends
