"""Where equal neighbours begin in sorted rows, and where slices of sorted codes end."""

from __future__ import annotations

import numpy as np
import pytest

from impctl.data.keys import distinct_values, ends_of, start_of, starts_in
from impctl.data.vector import Ints


def ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


def test_a_row_starts_where_any_column_changes() -> None:
    starts = starts_in(ints(1, 1, 1, 2, 2), ints(5, 5, 6, 6, 6))
    assert starts.tolist() == [True, False, True, True, False]
    assert start_of(starts).tolist() == [0, 0, 2, 3, 3]


@pytest.mark.parametrize("values", [(), (7,)])
def test_no_row_and_one_row(values: tuple[int, ...]) -> None:
    starts = starts_in(ints(*values), ints(*values))
    assert starts.tolist() == [True] * len(values)
    assert start_of(starts).tolist() == [0] * len(values)


def test_each_value_once_in_order() -> None:
    assert distinct_values(ints(3, -1, 3, 2, -1)).tolist() == [-1, 2, 3]
    assert distinct_values(ints()).tolist() == []


def test_ends_are_those_of_a_search() -> None:
    """Slices of any length, empty ones, and ones that reach the end of the codes or lie beyond."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        codes = np.sort(rng.integers(0, int(rng.choice([3, 30, 300])), int(rng.integers(0, 40))))
        low = rng.integers(-2, 310, 12)
        high = low + rng.integers(0, int(rng.choice([2, 20, 400])), 12)
        for side in ("left", "right"):
            first = codes.searchsorted(low, side)  # type: ignore[call-overload]
            ends = ends_of(codes, first, high, side)  # type: ignore[arg-type]
            expected = codes.searchsorted(high, side)  # type: ignore[call-overload]
            assert ends.tolist() == (expected.tolist() if len(codes) else first.tolist()), seed
