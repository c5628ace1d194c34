"""A query whose sketch only grows: the fragments of all changed rows are added.

Law: sound for a plan keyed on its one sketched access, for any aggregate, because a change then
concerns the fragments of the changed rows only. No state but the rows per range, which show drift.
Out of scope: when this is allowed (`circuits.way`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from impctl.circuits.checkpoint import Checkpoint, checkpoint_of
from impctl.circuits.range_rows import RangeRows
from impctl.circuits.session import TableChange
from impctl.data.vector import from_arrow
from impctl.sketch.fragments import FragmentSet
from impctl.sketch.partition import RangePartition


class TouchedQuery:
    """The sketch on `partition`, as it stands."""

    def __init__(self, partition: RangePartition, fragments: FragmentSet) -> None:
        self.partition = partition
        self.fragments = fragments
        self.range_rows = RangeRows([partition])

    def restore(self, runs: Mapping[str, Sequence[tuple[int, pa.Table]]]) -> None:
        """Take up the counts of a checkpoint."""
        self.range_rows.load(runs)

    def step(self, change: TableChange) -> FragmentSet:
        """Add the fragments of the changed rows; the sketch after that."""
        column = from_arrow(change.rows.column(self.partition.attribute), self.partition.type)
        found = self.partition.fragments_of(column)
        self.range_rows.count(0, found, change.weights)
        mask = np.zeros(self.partition.size, dtype=np.bool_)
        mask[found] = True
        self.fragments = self.fragments.union(FragmentSet.from_mask(mask))
        return self.fragments

    def checkpoint(self) -> Checkpoint:
        """What changed since the last `saved`."""
        return checkpoint_of(self.range_rows.arrangements(), {})

    def saved(self) -> None:
        """The last checkpoint is committed."""
        for arrangement in self.range_rows.arrangements():
            arrangement.saved()
