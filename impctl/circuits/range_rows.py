"""Rows per range of every partition that a query's sketches are over.

Law: a count is exactly the number of the table's rows in the range, whatever the query makes of
them: it is fed every row of a change, before any selection. Only rows of files that a capture had
no need to read may be estimated; they are kept apart, and a count is never below zero. Counting
reuses the fragments that the scan found, so it costs the change. The counts tell when ranges no
longer hold about as many rows as each other (drift); no sketch rests on them.
Out of scope: what is done about drift (`app.rebalance`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from impctl.data.pages import StoredTable
from impctl.data.vector import Ints
from impctl.engine.batch import loading
from impctl.engine.range_counts import DenseCounts
from impctl.engine.trace import Arrangement
from impctl.sketch.partition import RangePartition


def counts_name(partition: RangePartition) -> str:
    """What the names of the arrangements of a partition's counts begin with."""
    return f"rows.{partition.table}.{partition.attribute}"


class RangeRows:
    """One count per fragment, NULL's too, for each of the partitions; equal ones are one."""

    def __init__(self, partitions: Iterable[RangePartition]) -> None:
        self.partitions = tuple(dict.fromkeys(partitions))
        taken: Counter[str] = Counter()
        self._kept: list[DenseCounts] = []
        self._about: list[DenseCounts] = []
        for part in self.partitions:
            name = counts_name(part)
            own, what = f"{name}.{taken[name]}", f"rows of table `{part.table}`"
            self._kept.append(DenseCounts(own, part.size, what))
            self._about.append(DenseCounts(f"{own}.about", part.size, what))
            taken[name] += 1

    def slot(self, partition: RangePartition) -> int:
        """Where the counts of a partition are; ValueError for one that is not counted."""
        return self.partitions.index(partition)

    def count(self, slot: int, fragments: npt.NDArray[Any], weights: Ints) -> None:
        """Count rows in; `fragments` and `weights` of shape (rows,)."""
        self._kept[slot].add(fragments, weights)

    def fill(self, partition: RangePartition, counts: Ints) -> None:
        """Take over counts of shape (fragments,), where nothing was counted yet."""
        self.count(self.slot(partition), np.arange(len(counts), dtype=np.int64), counts)

    def estimate(self, partition: RangePartition, counts: Ints) -> None:
        """Take over counts of rows that were not read, as `fill` does."""
        slot = self.slot(partition)
        self._about[slot].add(np.arange(len(counts), dtype=np.int64), counts)
        self._kept[slot].is_partial = True

    def is_estimate(self, partition: RangePartition) -> bool:
        """Whether rows are in the counts that were never read."""
        return self._kept[self.slot(partition)].is_partial

    def counts(self, partition: RangePartition) -> Ints:
        """Rows per fragment as they stand, shape (fragments,)."""
        slot = self.slot(partition)
        counts: Ints = np.maximum(self._kept[slot].counts + self._about[slot].counts, 0)
        return counts

    def load(self, runs: Mapping[str, Sequence[tuple[int, StoredTable]]]) -> None:
        """Take up the counts of a checkpoint."""
        for kept, about in zip(self._kept, self._about, strict=True):
            for counts in (kept, about):
                with loading():
                    counts.arrangement.load(runs.get(counts.arrangement.name, ()))
                    counts.restore()
            kept.is_partial = bool(about.counts.any())

    def arrangements(self) -> tuple[Arrangement, ...]:
        """What a checkpoint writes."""
        return tuple(counts.arrangement for counts in (*self._kept, *self._about))
