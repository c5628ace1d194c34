"""Rows that are sorted by their key are grouped as they are, and as any others would be."""

from __future__ import annotations

import numpy as np
import pytest

from impctl.data.keys import group_rows
from impctl.data.schema import LONG
from impctl.data.vector import Ints, Vector


def keys(size: int, seed: int) -> Ints:
    return np.sort(np.random.default_rng(seed).integers(0, 50, size))


@pytest.mark.parametrize("size", [1, 999, 1000, 5000])
@pytest.mark.parametrize("disturbed", [False, True])
def test_groups_of_sorted_rows(size: int, disturbed: bool) -> None:
    codes = keys(size, size)
    if disturbed and size > 1:
        codes[-2:] = codes[-1], -1
    weights = np.random.default_rng(1).integers(-1, 3, size)
    grouping = group_rows([Vector(LONG, codes)], size)
    assert grouping.codes.tolist() == np.unique(codes).tolist()
    assert (codes[grouping.first] == grouping.codes).all()
    assert (grouping.codes[grouping.index()] == codes).all()
    assert grouping.sizes().tolist() == np.unique(codes, return_counts=True)[1].tolist()
    expected = [int(weights[codes == code].sum()) for code in grouping.codes]
    assert grouping.sums(weights).tolist() == expected
    ones = np.ones(size, dtype=np.int64)
    assert grouping.sums(ones).tolist() == grouping.sizes().tolist()


def test_sorted_rows_are_not_copied() -> None:
    codes = keys(5000, 3)
    grouping = group_rows([Vector(LONG, codes)], len(codes))
    assert np.shares_memory(codes[grouping.order], codes)
