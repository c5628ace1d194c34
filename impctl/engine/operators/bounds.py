"""Values with error bounds as two plain columns, and back: state holds no bounds.

Identity: `Parted` turns each of its columns into its value and, as a column of its own, its bound;
`Rejoined` undoes that. Linear, no state, cost proportional to the batch. NULL has a bound like any
value; a column that is exact has bounds of zero.
Not to be confused with dropping bounds, after which an unsure value would seem sure.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from impctl.aliases import AttributeId
from impctl.data.schema import DOUBLE
from impctl.data.vector import Vector
from impctl.engine.batch import Batch
from impctl.engine.operator import Operator


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
            found = columns[name]
            error = np.zeros(len(batch)) if found.error is None else found.error
            columns[name] = Vector(found.type, found.values, found.valid)
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
            found, error = columns[name], columns.pop(bound)
            columns[name] = Vector(found.type, found.values, found.valid, error.values)
        return Batch(columns, batch.weights, batch.tags)

    def passes(self, column: AttributeId) -> AttributeId | None:
        return None if column in self.bounds else column
