"""The derivations that rows of a fixpoint took part in, once they were looked for in a step.

Law: those of one row lie side by side, for as long as the step lasts. Memory: 32 bytes each.
Out of scope: looking for them (`engine.fixpoint.joined_moves`, `thin_fronts`).
"""

from __future__ import annotations

import numpy as np

from impctl.data.vector import Ints
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Derived:
    """Derivations: which row asked for is the body of each, the slots of their heads, the weights.

    `source` and `place` tell where the tags lie: in which list of tags, and which row there.
    """

    owners: Ints
    heads: Ints
    weights: Ints
    source: Ints
    place: Ints


class Partners:
    """The derivations of rows that went, one after the other; shapes (count,) and room for more."""

    def __init__(self) -> None:
        self.count = 0
        self._held: Ints = np.zeros((4, 0), dtype=np.int64)
        self.heads, self.weights, self.source, self.place = self._held

    def add(self, result: Derived, order: Ints | None) -> None:
        """More of them, in this order; None as they stand."""
        start, self.count = self.count, self.count + len(result.heads)
        if self.count > self._held.shape[1]:
            grown = np.empty((4, 2 * self.count), dtype=np.int64)
            grown[:, :start] = self._held[:, :start]
            self._held = grown
            self.heads, self.weights, self.source, self.place = grown
        added = (result.heads, result.weights, result.source, result.place)
        for held, column in zip(self._held, added, strict=True):
            held[start : self.count] = column if order is None else column[order]
