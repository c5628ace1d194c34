"""Many slices at once are the slices one after the other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from impctl.data.vector import slice_positions
from tests.support.random_cases import FEW

SLICES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=20)


@FEW
@given(SLICES)
def test_slices_come_out_in_the_order_asked_for(slices: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in slices], dtype=np.int64)
    ends = starts + np.array([size for _, size in slices], dtype=np.int64)
    positions, owners = slice_positions(starts, ends)
    expected = [
        (position, owner)
        for owner, (start, size) in enumerate(slices)
        for position in range(start, start + size)
    ]
    assert list(zip(positions.tolist(), owners.tolist(), strict=True)) == expected
    assert positions.dtype == owners.dtype == np.int64


def test_no_slices_and_empty_ones() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    for starts in (nothing, np.array([7, 3])):
        positions, owners = slice_positions(starts, starts)
        assert len(positions) == len(owners) == 0
