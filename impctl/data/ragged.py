"""Many slices of one array at once.

Law: the slices come out one after the other, in the order asked for; cost is their total length.
Out of scope: what the slices mean.
"""

from __future__ import annotations

import numpy as np

from impctl.data.memory import reserve
from impctl.data.vector import Ints


def slice_positions(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Positions of all slices `starts[i]:ends[i]`, and for each position its slice `i`."""
    sizes = ends - starts
    total = int(sizes.sum())
    # Both results, and what is picked for all positions.
    reserve(3 * total * sizes.itemsize)
    owners = np.repeat(np.arange(len(starts), dtype=np.int64), sizes)
    before = np.cumsum(sizes) - sizes
    positions = np.arange(total, dtype=np.int64)
    positions += (starts - before)[owners]
    return positions, owners
