"""Rows repeated as often as two of their columns say: what INTERSECT ALL and EXCEPT ALL need.

Identity: d(repeat(R)) = repeat(dR); linear, no state, cost proportional to the change, because how
often a row is repeated depends on the row alone: `left` copies against `right` ones leave the
smaller number in common, or what is over on the left. A row repeated zero times is dropped.
Not to be confused with counting the copies, which the grouping below does.
"""

from __future__ import annotations

import numpy as np

from impctl.engine.batch import Batch
from impctl.engine.operator import Operator
from impctl.types import AttributeId


class Repeat(Operator):
    """min(left, right) copies of each row, or with `is_difference` max(left - right, 0)."""

    def __init__(self, left: AttributeId, right: AttributeId, *, is_difference: bool) -> None:
        self.left = left
        self.right = right
        self.is_difference = is_difference

    def step(self, batch: Batch) -> Batch:
        """The change, every row with its copies as weight."""
        if len(batch) == 0:
            return batch
        left, right = batch.columns[self.left].values, batch.columns[self.right].values
        copies = np.maximum(left - right, 0) if self.is_difference else np.minimum(left, right)
        repeated = Batch(batch.columns, batch.weights * copies, batch.tags)
        return repeated.keep(copies > 0)

    @property
    def is_linear(self) -> bool:
        return True
