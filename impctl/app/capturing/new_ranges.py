"""New ranges for one partition of a query, from the counts that are kept of it.

Law: only ranges that are heavy are read, and only files that may hold some of their rows; counts
of all other ranges follow from those kept. The counts after that are exact again.
Out of scope: which boundaries are good (`sketch.boundaries`), sketch and state (`app.rebalance`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from impctl.app.preparing.partitions import values_within, wanted_ranges
from impctl.app.workbench.pinned import PinnedTables
from impctl.app.workbench.workbench import Workbench
from impctl.data.vector import Ints, from_arrow
from impctl.sketch.boundaries import evened, heavy_ranges
from impctl.sketch.partition import BoundaryValue, Fragments, RangePartition
from impctl.sketch.sketch import FragmentSet, Renumbering, exact_filter
from impctl.tables.prune import prune
from impctl.tables.rows import read_batches
from impctl.types import ColumnName
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class NewRanges:
    """Where fragments go, and the counts as far as the old ones tell: without split ranges."""

    renumbering: Renumbering
    counts: Ints

    @property
    def split(self) -> FragmentSet:
        """Old fragments whose rows have to be looked at."""
        return FragmentSet.from_mask(self.renumbering.targets < 0)

    @property
    def merged(self) -> int:
        """Old ranges that share a new one with others."""
        targets = self.renumbering.targets
        _, sizes = np.unique(targets[targets >= 0], return_counts=True)
        return int(sizes[sizes > 1].sum())


def new_ranges(desk: Workbench, partition: RangePartition, counts: Ints) -> NewRanges | None:
    """Better ranges; None where these are even, or as even as the sample can make them."""
    wanted = wanted_ranges(desk, partition)
    rows = counts[:-1]
    ids = heavy_ranges(rows, wanted)
    sample: list[BoundaryValue] = []
    if len(ids):
        sample = values_within(desk, partition, FragmentSet.of(ids.tolist(), partition.size))
    new = evened(partition, counts, wanted, sample)
    if new == partition:
        return None
    renumbering = Renumbering(partition, new)
    return NewRanges(renumbering, renumbering.carried(counts))


def split_rows(
    tables: PinnedTables, change: NewRanges, columns: Sequence[ColumnName]
) -> Iterator[tuple[pa.Table, Fragments]]:
    """The rows of the split ranges, each with its new fragment; at least `columns`."""
    if not len(change.split):
        return
    old, new = change.renumbering.old, change.renumbering.new
    snapshot = tables.snapshot(old.table)
    names = tuple(dict.fromkeys((*columns, old.attribute)))
    files = prune(snapshot, [exact_filter(change.split, old)])
    for rows in read_batches(snapshot, names, files):
        values = from_arrow(rows.column(old.attribute), old.type)
        kept = np.flatnonzero(change.renumbering.targets[old.fragments_of(values)] < 0)
        yield rows.take(pa.array(kept)), new.fragments_of(values.take(kept))
