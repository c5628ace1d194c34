"""Projection: computed columns, duplicates kept.

Identity: d(project(R)) = project(dR); linear, no state, cost proportional to the batch. Weights and
tags pass untouched. Not to be confused with DISTINCT, which needs state.
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.aliases import AttributeId
from impctl.engine.arrangement import Arrangement
from impctl.engine.batch import Batch
from impctl.expr.evaluate import evaluate
from impctl.expr.nodes import Expr


class Project:
    """Computes `outputs`, pairs of a column identity and its expression."""

    def __init__(self, outputs: Sequence[tuple[AttributeId, Expr]]) -> None:
        self.outputs = tuple(outputs)

    def step(self, batch: Batch) -> Batch:
        """The change with the new columns only."""
        if len(batch) == 0:
            return Batch({}, batch.weights, batch.tags)
        columns = {name: evaluate(expr, batch.columns, len(batch)) for name, expr in self.outputs}
        return Batch(columns, batch.weights, batch.tags)

    def arrangements(self) -> tuple[Arrangement, ...]:
        return ()
