"""Values with error bounds as two plain columns, and back: state holds no bounds.

Identity: `Parted` turns each of its columns into its value and, as a column of its own, its bound;
`Rejoined` undoes that. `Spanned` adds the least and the greatest value within the bound, between
which `Narrowed` finds a value again. `Sure` lets exact values pass, and fails where one is not.
Linear, no state, cost proportional to the batch. NULL has a bound like any value; a column that is
exact has bounds of zero.
Not to be confused with dropping bounds, after which an unsure value would seem sure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from impctl.data.schema import DOUBLE
from impctl.data.vector import Vector
from impctl.engine.batch import Batch
from impctl.engine.operator import Operator
from impctl.expr.error_bounds import between, ends, exactly, is_known, is_open, unsure_value
from impctl.types import AttributeId


class _Bounds(Operator):
    """`bounds` names the column of the bound for each column that has one."""

    def __init__(self, bounds: Mapping[AttributeId, AttributeId]) -> None:
        self.bounds = dict(bounds)

    @property
    def is_rowwise(self) -> bool:
        return True


class Parted(_Bounds):
    """The columns that have bounds as plain ones, and the bounds as columns beside them."""

    def step(self, batch: Batch) -> Batch:
        """The change with one column more for each."""
        if len(batch) == 0:
            return batch
        columns = dict(batch.columns)
        for name, bound in self.bounds.items():
            result = columns[name]
            error = np.zeros(len(batch)) if result.error is None else result.error
            columns[name] = Vector(result.type, result.values, result.valid)
            columns[bound] = Vector(DOUBLE, error)
        return Batch(columns, batch.weights, batch.tags)

    def passes(self, column: AttributeId) -> AttributeId | None:
        return None if column in self.bounds or column in self.bounds.values() else column


class Rejoined(_Bounds):
    """The columns with their bounds again, which are no columns then."""

    def step(self, batch: Batch) -> Batch:
        """The change with one column less for each."""
        if len(batch) == 0:
            return batch
        columns = dict(batch.columns)
        for name, bound in self.bounds.items():
            result, error = columns[name], columns.pop(bound)
            columns[name] = Vector(result.type, result.values, result.valid, error.values)
        return Batch(columns, batch.weights, batch.tags)

    def passes(self, column: AttributeId) -> AttributeId | None:
        return None if column in self.bounds else column


class Sure(Operator):
    """These columns as exact ones; NotExactError for a row where one is not."""

    def __init__(self, names: Iterable[AttributeId]) -> None:
        self.names = tuple(sorted(names))

    @property
    def is_rowwise(self) -> bool:
        return True

    def step(self, batch: Batch) -> Batch:
        """The change, its columns without bounds."""
        if len(batch) == 0:
            return batch
        columns = dict(batch.columns)
        for name in self.names:
            if not is_known(columns[name]):
                raise unsure_value("A value used to join, group or compare whole rows")
            columns[name] = exactly(columns[name])
        return Batch(columns, batch.weights, batch.tags)

    def passes(self, column: AttributeId) -> AttributeId | None:
        return column


class _Spans(Operator):
    """`spans` names the columns of both ends for each column that has bounds."""

    def __init__(self, spans: Mapping[AttributeId, tuple[AttributeId, AttributeId]]) -> None:
        self.spans = dict(spans)

    @property
    def is_rowwise(self) -> bool:
        return True

    def passes(self, column: AttributeId) -> AttributeId | None:
        added = {name for pair in self.spans.values() for name in (*pair, *self.spans)}
        return None if column in added else column


class Spanned(_Spans):
    """Both ends of the columns that have bounds, in their place.

    Of a value of which nothing is known these are the least double and NaN, the greatest.
    """

    def step(self, batch: Batch) -> Batch:
        """The change with one column more for each."""
        if len(batch) == 0:
            return batch
        columns = dict(batch.columns)
        for name, (low, high) in self.spans.items():
            result = columns.pop(name)
            lost = is_open(result)
            least, most = ends(result)
            columns[low] = Vector(DOUBLE, np.where(lost, -np.inf, least.values), result.valid)
            columns[high] = Vector(DOUBLE, np.where(lost, np.nan, most.values), result.valid)
        return Batch(columns, batch.weights, batch.tags)


class Narrowed(_Spans):
    """The value in the middle with its bound, in place of both ends."""

    def step(self, batch: Batch) -> Batch:
        """The change with one column less for each."""
        if len(batch) == 0:
            return batch
        columns = dict(batch.columns)
        for name, (low, high) in self.spans.items():
            least, most = columns.pop(low), columns.pop(high)
            columns[name] = between(least.values, most.values, least.valid)
        return Batch(columns, batch.weights, batch.tags)
