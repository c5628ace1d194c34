"""UsedRows: the rows of a fixpoint that its query's answer stems from.

Identity: its input has rows with the numbers of rows of the fixpoint for their only tag, each as
often as it counts; the output is the set of numbers that some row carries, one row each, and its
change what entered and left that set. State: how often each number is carried, as of fragments at
the root. Cost: the (row, number) pairs that come or go. Less than none of a number is an error.
Not to be confused with the root (`operators.merge`), where fragments of tables become the sketch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.data.schema import LONG
from impctl.data.vector import Ints, Vector
from impctl.engine.batch import Batch
from impctl.engine.fragment_counts import FragmentCounts
from impctl.engine.operator import Keeper, Operator

ROW = "impctl/row"
"""The column with the number of a row."""
_ALL: Ints = np.zeros(1, dtype=np.int64)
"""The one group of all rows."""


class UsedRows(Operator):
    """The numbers that rows carry; without tags."""

    def __init__(self, name: str) -> None:
        self.counts = FragmentCounts(f"{name}.uses")

    def step(self, batch: Batch) -> Batch:
        """Numbers that came to be carried (+1), or no longer are (-1)."""
        pairs = batch.tags[0].expand(np.zeros(len(batch), dtype=np.int64), batch.weights)
        crossed = self.counts.count(_ALL, pairs).crossings()
        return Batch({ROW: Vector(LONG, crossed.fragments)}, crossed.weights, ())

    def arrangements(self) -> Sequence[Keeper]:
        return (self.counts.arrangement,)
