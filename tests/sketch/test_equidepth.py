"""Equi-depth boundaries: always a partition, and a balanced one where the sample allows."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from impctl.data.schema import LONG
from impctl.sketch.boundaries import ValueWeights, aligned_boundaries, equidepth_boundaries
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
    result: list[Counter[Any]] = [Counter() for _ in range(len(boundaries) + 1)]
    for value in sample:
        result[sum(1 for boundary in boundaries if boundary <= value)][value] += 1
    return result


@given(SAMPLES, RANGES)
def test_boundaries_divide_the_sample(sample: list[Any], ranges: int) -> None:
    boundaries: tuple[Any, ...] = equidepth_boundaries(sample, ranges)
    assert len(boundaries) <= ranges - 1
    assert all(low < high for low, high in pairwise(boundaries))
    assert set(boundaries) <= set(sample)
    assert boundaries == equidepth_boundaries(sorted(sample), ranges)
    result = fragments(sample, boundaries)
    assert all(result) or not sample
    if 0 < len(set(sample)) <= ranges:
        assert [len(values) for values in result] == [1] * len(set(sample))
    for values in result:
        assert len(values) <= 1 or values.total() <= 2 * len(sample) / ranges + 1
        # A value with the rows of three ranges or more shares its range with no other.
        heavy = [v for v, rows in values.items() if rows * ranges >= 3 * len(sample)]
        assert not heavy or len(values) == 1


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


STARTS = st.lists(st.integers(-25, 25), max_size=20).map(lambda result: sorted(set(result)))
WEIGHED = st.lists(st.tuples(st.integers(-20, 20), st.floats(0.1, 50)), max_size=60)


def shares(weights: ValueWeights, boundaries: tuple[Any, ...]) -> list[tuple[int, float]]:
    """Values and weight per range, counted the slow way."""
    result: list[tuple[int, float]] = [(0, 0.0)] * (len(boundaries) + 1)
    for value, weight in zip(weights.values, weights.weights, strict=True):
        at = sum(1 for boundary in boundaries if boundary <= value)
        result[at] = (result[at][0] + 1, result[at][1] + weight)
    return result


@given(WEIGHED, RANGES, STARTS)
def test_aligned_boundaries_divide_the_weights(
    weighed: list[Any], ranges: int, starts: list[int]
) -> None:
    weights = ValueWeights.of(weighed)
    boundaries = aligned_boundaries(weights, ranges, starts)
    assert len(boundaries) <= max(ranges - 1, 0)
    assert all(low < high for low, high in pairwise(boundaries))
    assert set(boundaries) <= {*weights.values, *starts}
    heaviest = max(weights.weights, default=0.0)
    for values, rows in shares(weights, boundaries):
        assert values <= 1 or rows <= 2.5 * weights.total / ranges + heaviest


def test_a_range_starts_where_a_file_does_if_one_is_near() -> None:
    weights = ValueWeights.of((value, 1.0) for value in range(1000))
    starts = [0, 95, 210, 290, 405, 500, 596, 702, 810, 899]
    assert aligned_boundaries(weights, 10, starts) == tuple(starts[1:])
    assert aligned_boundaries(weights, 10, []) == tuple(range(100, 1000, 100))
    assert len(aligned_boundaries(weights, 20, starts)) > 15, "files of several ranges are cut"


def test_a_heavy_value_stands_alone() -> None:
    weights = ValueWeights.of([*((value, 1.0) for value in range(100)), (50, 400.0)])
    boundaries = aligned_boundaries(weights, 10, [])
    assert {50, 51} <= set(boundaries)


def test_values_between_heavy_ones_are_cut_as_finely_as_was_asked_for() -> None:
    heavy = [(at * 100, 1000.0) for at in range(1, 6)]
    weights = ValueWeights.of([*((value, 1.0) for value in range(700)), *heavy])
    boundaries = aligned_boundaries(weights, 40, [])
    assert 36 <= len(boundaries) <= 39
    assert all(rows < 40 for values, rows in shares(weights, boundaries) if values > 1)
