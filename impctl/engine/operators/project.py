"""Projection: computed columns, duplicates kept.

Identity: d(project(R)) = project(dR); linear, no state, cost proportional to the batch. Weights and
tags pass untouched. Not to be confused with DISTINCT, which needs state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.data.keys import same_keys
from impctl.data.vector import Bools, Vector, once
from impctl.engine.batch import Batch, difference
from impctl.engine.consolidate import identity_of
from impctl.engine.operator import Operator
from impctl.expr.evaluate import Evaluator
from impctl.expr.nodes import ColumnRef, Expr
from impctl.types import AttributeId


class Project(Operator):
    """Computes `outputs`, pairs of a column identity and its expression."""

    def __init__(self, outputs: Sequence[tuple[AttributeId, Expr]]) -> None:
        self.outputs = tuple(outputs)
        self._evaluators = [(name, Evaluator(expr)) for name, expr in self.outputs]
        self.form = tuple(name for name, _ in self.outputs)

    def step(self, batch: Batch) -> Batch:
        """The change with the new columns only."""
        if len(batch) == 0:
            return Batch({}, batch.weights, batch.tags)
        return once(batch.shared, (Project, self.outputs), lambda: self._computed(batch))

    def _computed(self, batch: Batch) -> Batch:
        columns = {name: one.values(batch.columns, len(batch)) for name, one in self._evaluators}
        return batch.shares(Batch(columns, batch.weights, batch.tags))

    def says_like(self, other: Operator) -> bool:
        return isinstance(other, Project) and self.outputs == other.outputs

    def turned(self, rows: Batch, was: Operator) -> Batch:
        """Without most rows that are in both."""
        new, old = self.step(rows), was.step(rows)
        assert old is not None
        differs = np.zeros(len(rows), dtype=np.bool_)
        for name in new.columns:
            differs |= ~_is_same(old.columns[name], new.columns[name])
        return difference(new.keep(differs), old.keep(differs))

    @property
    def is_rowwise(self) -> bool:
        return True

    def passes(self, column: AttributeId) -> AttributeId | None:
        expr = dict(self.outputs).get(column)
        return expr.id if isinstance(expr, ColumnRef) else None


def _is_same(one: Vector, other: Vector) -> Bools:
    """Where values are the same to the bit, and so are their bounds."""
    same = same_keys([identity_of(one)], [identity_of(other)])
    assert same is not None, "there is one column"
    if one.error is None and other.error is None:
        return same
    none = np.zeros(len(one))
    mine, theirs = (none if v.error is None else v.error for v in (one, other))
    return np.asarray(same & ((mine == theirs) | (np.isnan(mine) & np.isnan(theirs))))
