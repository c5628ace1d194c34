"""Projection: computed columns, duplicates kept.

Identity: d(project(R)) = project(dR); linear, no state, cost proportional to the batch. Weights and
tags pass untouched. Not to be confused with DISTINCT, which needs state.
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.aliases import AttributeId
from impctl.engine.batch import Batch
from impctl.engine.operator import Operator
from impctl.expr.evaluate import evaluate
from impctl.expr.nodes import ColumnRef, Expr


class Project(Operator):
    """Computes `outputs`, pairs of a column identity and its expression."""

    def __init__(self, outputs: Sequence[tuple[AttributeId, Expr]]) -> None:
        self.outputs = tuple(outputs)

    def step(self, batch: Batch) -> Batch:
        """The change with the new columns only."""
        if len(batch) == 0:
            return Batch({}, batch.weights, batch.tags)
        columns = {name: evaluate(expr, batch.columns, len(batch)) for name, expr in self.outputs}
        return Batch(columns, batch.weights, batch.tags)

    @property
    def is_rowwise(self) -> bool:
        return True

    def passes(self, column: AttributeId) -> AttributeId | None:
        expr = dict(self.outputs).get(column)
        return expr.id if isinstance(expr, ColumnRef) else None
