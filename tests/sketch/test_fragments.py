"""Sets of fragments against Python's sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from impctl.sketch.sketch import FragmentSet


@st.composite
def pairs(draw: st.DrawFn) -> tuple[int, set[int], set[int]]:
    size = draw(st.integers(1, 70))
    ids = st.sets(st.integers(0, size - 1))
    return size, draw(ids), draw(ids)


@given(pairs())
def test_a_set_of_ids(given_: tuple[int, set[int], set[int]]) -> None:
    size, ids, _ = given_
    result = FragmentSet.of(ids, size)
    assert result.size == size
    assert len(result) == len(ids)
    assert result.ids == tuple(result) == tuple(sorted(ids))
    assert all((fragment in result) == (fragment in ids) for fragment in range(-3, size + 3))
    mask = np.isin(np.arange(size), sorted(ids))
    assert FragmentSet.from_mask(mask) == result
    assert hash(FragmentSet.from_mask(mask)) == hash(result)


@given(pairs())
def test_bytes_and_back(given_: tuple[int, set[int], set[int]]) -> None:
    size, ids, _ = given_
    data = FragmentSet.of(ids, size).to_bytes()
    assert len(data) == (size + 7) // 8
    assert {k for k in range(8 * len(data)) if data[k // 8] >> (k % 8) & 1} == ids
    assert FragmentSet.from_bytes(data, size) == FragmentSet.of(ids, size)


@given(pairs())
def test_set_operations(given_: tuple[int, set[int], set[int]]) -> None:
    size, left, right = given_
    mine, theirs = FragmentSet.of(left, size), FragmentSet.of(right, size)
    assert mine.union(theirs) == FragmentSet.of(left | right, size)
    assert mine.minus(theirs) == FragmentSet.of(left - right, size)
    assert (mine, theirs) == (FragmentSet.of(left, size), FragmentSet.of(right, size))


def test_the_bytes_never_change_their_meaning() -> None:
    """Stored sketches are read by later versions: bit k is in byte k // 8 at k % 8."""
    assert FragmentSet.of([0, 9, 10], 12).to_bytes() == bytes([0b00000001, 0b00000110])


def test_an_id_outside_is_refused() -> None:
    with pytest.raises(IndexError):
        FragmentSet.of([3], 3)


def test_sets_of_different_partitions_do_not_mix() -> None:
    with pytest.raises(ValueError, match="length"):
        FragmentSet.of([0], 3).union(FragmentSet.of([0], 4))
