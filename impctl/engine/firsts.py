"""The outputs of a grouping that are values found by an order, beside its other outputs.

Law: an output row stands for every combination of values that Spark may take where rows tie, and
these are a function of the state alone, so what was put out is taken back as it was. A group
without a known key has NULL.
Out of scope: finding the values (`engine.ordered_values`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Self

import numpy as np

from impctl.data.keys import Grouping
from impctl.data.schema import SqlType
from impctl.data.vector import Bools, Ints, Vector, all_null, concat
from impctl.engine.aggregate_column import AggregateColumn
from impctl.engine.batch import Batch
from impctl.engine.extremes import OrderedCounts
from impctl.engine.ordered_values import First, OrderedValues
from impctl.engine.row_index import RowIndex
from impctl.errors import NotExactError
from impctl.types import AttributeId
from impctl.values import dataclass

_MOST_ROWS = 1_000_000
"""Rows that the values of all changed groups may combine to, beyond one for each."""


@dataclass(frozen=True, slots=True)
class _Values:
    """Values of groups, by the place of each one's owner. Of changed groups 0 to n-1 owns a group's
    old row, n to 2n-1 its new one."""

    owners: Ints
    values: Vector | None


Picked = Mapping[First, _Values]


class Firsts:
    """Every `First` among the outputs of one grouping, with its state."""

    def __init__(
        self,
        name: str,
        columns: Sequence[AggregateColumn],
        types: Mapping[AttributeId, SqlType],
    ) -> None:
        self._outputs = [
            (column.id, column.type, column.accumulator)
            for column in columns
            if isinstance(column.accumulator, First)
        ]
        self._states = {
            first: OrderedValues(
                f"{name}.{first.name}", first, types[first.key], types[first.value]
            )
            for _, _, first in self._outputs
        }

    def __bool__(self) -> bool:
        return bool(self._outputs)

    @property
    def arguments(self) -> list[AttributeId]:
        """The columns that are read."""
        return [name for first in self._states for name in (first.key, first.value)]

    @property
    def arrangements(self) -> tuple[RowIndex | OrderedCounts, ...]:
        return tuple(part for state in self._states.values() for part in state.arrangements)

    def nothing(self) -> Picked:
        """What an empty group has."""
        return {first: _Values(np.zeros(0, dtype=np.int64), None) for first in self._states}

    def step(
        self,
        batch: Batch,
        groups: Ints,
        grouping: Grouping,
        old: Mapping[str, Any],
        new: Mapping[str, Any],
    ) -> Picked:
        """Count a change of these groups in; the values before and after."""
        if not self._states:
            return {}
        before = self.of(groups, old)
        self.add(batch.columns, groups[grouping.index()], batch.weights)
        return before_and_after(before, self.of(groups, new), len(groups))

    def add(self, columns: Mapping[AttributeId, Vector], groups: Ints, weights: Ints) -> None:
        """Count a change in, by the number of each row's group."""
        for first, state in self._states.items():
            state.add(groups, columns[first.key], columns[first.value], weights)

    def of(self, groups: Ints, counts: Mapping[str, Any]) -> Picked:
        """The values of groups, by their numbers and their state."""
        return {
            first: _first(state, groups, counts[f"count{first.slot}"])
            for first, state in self._states.items()
        }

    def as_it_stands(self) -> Self:
        """The same state, to be read while this one goes on. Cost: its runs, not their rows."""
        result = copy(self)
        result._states = {first: state.as_it_stands() for first, state in self._states.items()}
        return result

    def spread_out(self, batch: Batch, picked: Picked, exists: Bools | None = None) -> Batch:
        """The rows that exist with the values added, repeated where there are several."""
        length = len(batch)
        origin = np.arange(length) if exists is None else np.flatnonzero(exists)
        fewest = len(origin)
        result: dict[AttributeId, Vector] = {}
        for name, kind, first in self._outputs:
            values = picked[first]
            sizes = np.bincount(values.owners, minlength=length).astype(np.int64)
            starts = np.cumsum(sizes) - sizes
            copies = np.maximum(sizes[origin], 1)
            _refuse_many(int(copies.sum()) - fewest)
            rows = np.repeat(np.arange(len(origin)), copies)
            within = np.arange(len(rows)) - np.repeat(np.cumsum(copies) - copies, copies)
            origin = origin[rows]
            result = {other: vector.take(rows) for other, vector in result.items()}
            result[name] = _picked(values.values, starts[origin] + within, sizes[origin] > 0, kind)
        whole = batch.take(origin)
        return Batch({**whole.columns, **result}, whole.weights, whole.tags)


def before_and_after(before: Picked, after: Picked, groups: int) -> Picked:
    """The values of so many groups, those of their old rows and then those of their new ones."""
    picked = {}
    for first, old in before.items():
        new = after[first]
        parts = [result.values for result in (old, new) if result.values is not None]
        rows = np.concatenate([old.owners, new.owners + groups])
        picked[first] = _Values(rows, concat(parts) if parts else None)
    return picked


def _first(state: OrderedValues, groups: Ints, counts: Ints) -> _Values:
    known = np.flatnonzero(counts > 0)
    owners, values = state.first(groups[known])
    return _Values(known[owners], values)


def _picked(values: Vector | None, places: Ints, is_known: Bools, kind: SqlType) -> Vector:
    """The value at each place where there is one, else NULL."""
    if values is None or not len(values):
        return all_null(kind, len(places))
    taken = values.take(np.where(is_known, places, 0))
    # Of an integral type another one may stand for it, with the same values.
    if bool(is_known.all()):
        return Vector(kind, taken.values, taken.valid)
    return Vector(kind, taken.values, taken.validity() & is_known)


def _refuse_many(rows: int) -> None:
    if rows > _MOST_ROWS:
        raise NotExactError(
            "Tied values of MIN_BY or MAX_BY combine to too many rows",
            hint="recapture with `impctl capture`, or break the ties in MIN_BY or MAX_BY",
        )
