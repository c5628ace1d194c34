"""A batch: rows with signed weights and a tag per sketched access.

Law: a batch means the sum of its rows; two batches are equal when their consolidated sums are.
Batches never change. Out of scope: where rows come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from impctl.aliases import AttributeId
from impctl.data.vector import Bools, Ints, Vector
from impctl.engine.tags import Tags


@dataclass(frozen=True, slots=True)
class Batch:
    """Columns by identity, weights of shape (n,), and one tag column per sketched access."""

    columns: Mapping[AttributeId, Vector]
    weights: Ints
    tags: tuple[Tags, ...]

    def __len__(self) -> int:
        return len(self.weights)

    def keep(self, mask: Bools) -> Batch:
        """The rows where `mask` is set."""
        if bool(mask.all()):
            return self
        return self.take(np.flatnonzero(mask))

    def take(self, positions: Ints) -> Batch:
        """The rows at these positions, in that order."""
        return Batch(
            {name: column.take(positions) for name, column in self.columns.items()},
            self.weights[positions],
            tuple(tag.take(positions) for tag in self.tags),
        )
