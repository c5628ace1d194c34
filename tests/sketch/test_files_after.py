"""Files foreseen from rows per range: heavy ranges fill many files, light ones share one."""

from __future__ import annotations

import numpy as np
import pytest

from impctl.data.schema import LONG
from impctl.sketch.likelihood import share_after
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import FragmentSet

PARTITION = RangePartition("t", "a", LONG, (10, 20, 30))
"""Four ranges, and NULL's fragment behind them."""
HEAVY = np.array([100, 800, 0, 50, 50])


@pytest.mark.parametrize(
    ("held", "columns", "share"),
    [
        ([], 1, 0.0),
        ([1], 1, 0.9),  # rows 150 to 950 of a thousand: files 1 to 9 of ten
        ([0], 1, 0.2),  # behind 50 rows of NULL it reaches into the second file
        ([3], 1, 0.1),
        ([0, 3], 1, 0.3),
        ([4], 1, 0.1),  # NULL lies in the first file
        ([2], 1, 0.1),  # nothing is known to be there; it takes a file all the same
        ([3], 2, 1 / 3),  # ten files have three slices of each of two columns
        ([1], 2, 1.0),
    ],
)
def test_the_share_of_ten_files(held: list[int], columns: int, share: float) -> None:
    fragments = FragmentSet.of(held, PARTITION.size)
    result = share_after(fragments, PARTITION, HEAVY, 10, range(columns))
    assert result == pytest.approx(share)
