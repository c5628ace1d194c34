"""Many slices of one array at once.

Law: the slices come out one after the other, in the order asked for; cost is their total length.
Out of scope: what the slices mean.
"""

from __future__ import annotations

import numpy as np

from impctl.data.vector import Ints


def slice_positions(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Positions of all slices `starts[i]:ends[i]`, and for each position its slice `i`."""
    sizes = ends - starts
    owners = np.repeat(np.arange(len(starts), dtype=np.int64), sizes)
    before = np.cumsum(sizes) - sizes
    positions = np.arange(int(sizes.sum()), dtype=np.int64) - before[owners] + starts[owners]
    return positions, owners
