"""How many files a sketch would leave of a table, were its files in the order of columns.

Law: an estimate from the rows of each range. Sorted by one column a table is its ranges one after
the other, NULL first, cut into files of equally many rows; what holds a row of the sketch is left.
Along a Z-order curve of k columns the same holds of the files' k-th root of slices that each column
has. Ranges are not even: one heavy value fills many files, and no order takes it apart.
Out of scope: what a sketch leaves of the files as they are (`tables.prune`), where the rows per
range come from.
"""

from __future__ import annotations

from collections.abc import Sized

import numpy as np

from impctl.data.vector import Ints
from impctl.sketch.fragments import FragmentSet
from impctl.sketch.partition import RangePartition

_ROUNDING = 1e-9
"""The cube root of 8 must be no less than 2."""


def share_after(
    fragments: FragmentSet, partition: RangePartition, rows: Ints, files: int, columns: Sized
) -> float:
    """The share of so many files that would be left, in the order of so many columns.

    `rows` per fragment, shape (size,).
    """
    held = np.zeros(partition.size, dtype=np.bool_)
    held[list(fragments.ids)] = True
    slices = max(1, int(files ** (1 / len(columns)) + _ROUNDING))
    if not held.any():
        return 0.0
    # A range without a row lies in the file that its neighbours are in, or in none.
    held, counts = np.roll(held & (rows > 0), 1), np.roll(rows, 1)
    if not held.any():
        return 1.0 / slices
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1])
    first = (ends - counts)[held] * slices // total
    last = (ends[held] * slices - 1) // total
    # Each run of slices begins at its first and is over after its last.
    steps = np.zeros(slices + 1, dtype=np.int64)
    np.add.at(steps, first, 1)
    np.add.at(steps, last + 1, -1)
    return float((np.cumsum(steps)[:-1] > 0).sum()) / slices
