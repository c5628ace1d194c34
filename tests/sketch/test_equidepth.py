"""Equi-depth boundaries: always a partition, and a balanced one where the sample allows."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from impctl.data.schema import LONG
from impctl.sketch.equidepth import equidepth_boundaries
from impctl.sketch.partition import RangePartition

SAMPLES = st.one_of(
    st.lists(st.integers(-20, 20), max_size=80),
    st.lists(st.sampled_from([0, 0, 0, 0, 1, 2, 3, 9, 9, 9, 50, 51, 52]), max_size=80),
    st.lists(st.floats(allow_nan=False), max_size=40),
    st.lists(st.text(max_size=3), max_size=40),
    st.lists(st.sampled_from([2**80, 2**90, -(2**100), 5]), max_size=30),
)
RANGES = st.integers(1, 12)


def fragments(sample: list[Any], boundaries: tuple[Any, ...]) -> list[Counter[Any]]:
    """The sample's values by fragment, counted the slow way."""
    found: list[Counter[Any]] = [Counter() for _ in range(len(boundaries) + 1)]
    for value in sample:
        found[sum(1 for boundary in boundaries if boundary <= value)][value] += 1
    return found


@given(SAMPLES, RANGES)
def test_boundaries_are_increasing_values_of_the_sample(sample: list[Any], ranges: int) -> None:
    boundaries: tuple[Any, ...] = equidepth_boundaries(sample, ranges)
    assert len(boundaries) <= ranges - 1
    assert all(low < high for low, high in zip(boundaries, boundaries[1:], strict=False))
    assert set(boundaries) <= set(sample)
    assert boundaries == equidepth_boundaries(sorted(sample), ranges)


@given(SAMPLES, RANGES)
def test_no_fragment_is_empty_in_the_sample(sample: list[Any], ranges: int) -> None:
    if sample:
        found = fragments(sample, equidepth_boundaries(sample, ranges))
        assert all(found)


@given(SAMPLES, RANGES)
def test_few_values_have_a_fragment_each(sample: list[Any], ranges: int) -> None:
    if 0 < len(set(sample)) <= ranges:
        found = fragments(sample, equidepth_boundaries(sample, ranges))
        assert [len(values) for values in found] == [1] * len(set(sample))


@given(SAMPLES, RANGES)
def test_heavy_values_are_alone(sample: list[Any], ranges: int) -> None:
    """A value with the rows of three ranges or more drags no neighbour along."""
    for values in fragments(sample, equidepth_boundaries(sample, ranges)):
        heavy = [v for v, rows in values.items() if rows * ranges >= 3 * len(sample)]
        assert not heavy or len(values) == 1


@given(SAMPLES, RANGES)
def test_fragments_of_several_values_hold_two_shares_at_most(
    sample: list[Any], ranges: int
) -> None:
    for values in fragments(sample, equidepth_boundaries(sample, ranges)):
        assert len(values) <= 1 or values.total() <= 2 * len(sample) / ranges + 1


def test_a_flat_sample_is_split_evenly() -> None:
    boundaries = equidepth_boundaries(range(10_000), 100)
    assert boundaries == tuple(range(100, 10_000, 100))
    RangePartition("t", "a", LONG, boundaries)


def test_heavy_ends_and_middle() -> None:
    assert equidepth_boundaries([0] * 50 + list(range(1, 51)), 4)[0] == 1
    assert equidepth_boundaries([*range(50), *[99] * 50], 4)[-1] == 99
    middle = equidepth_boundaries([*range(25), *[30] * 50, *range(40, 65)], 4)
    assert 30 in middle
    assert 40 in middle


def test_no_sample_is_one_fragment() -> None:
    assert equidepth_boundaries([], 10) == ()
    assert equidepth_boundaries([5, 5], 10) == ()
    assert equidepth_boundaries([1, 2, 3], 1) == ()
