"""How much of a table a sketch would leave to read, were the table's files in the order of columns.

Law: an estimate from the sketch alone, ranges taken as even. Sorted by its one column a table has
each range in one file or two; along a Z-order curve of k columns, in one slice or two of the
files' k-th root that each column has.
Out of scope: what a sketch leaves of the files as they are (`tables.prune`).
"""

from __future__ import annotations

from collections.abc import Sized
from itertools import pairwise

from impctl.sketch.fragments import FragmentSet
from impctl.sketch.partition import RangePartition


def share_after(
    fragments: FragmentSet, partition: RangePartition, files: int, columns: Sized
) -> float:
    """The share of so many files that would be left, in the order of so many columns."""
    slices = max(1.0, float(files ** (1 / len(columns))))
    held = [fragment for fragment in fragments.ids if fragment < partition.ranges]
    if not held:
        return 0.0
    starts = [held[0], *(later for earlier, later in pairwise(held) if later > earlier + 1)]
    # A run of ranges begins and ends somewhere in a slice; where runs are many, slices are shared.
    whole = len(held) / partition.ranges
    touched = len(starts) / slices
    return min(1.0, whole + touched * (1.0 - whole))
