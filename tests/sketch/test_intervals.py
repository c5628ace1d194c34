"""Intervals contain whatever their fragments hold, and are few."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from impctl.data.schema import DOUBLE, LONG
from impctl.data.vector import Vector
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import MAX_INTERVALS, FragmentSet, Interval, RangeFilter, range_filter


def tens(ranges: int) -> RangePartition:
    """Boundaries 10, 20, ... so that fragment f holds 10 f to 10 f + 9."""
    return RangePartition("t", "a", LONG, tuple(range(10, 10 * ranges, 10)))


def lets_through(result: RangeFilter, value: Any) -> bool:
    """Whether the filter reads the row."""
    if value is None:
        return result.includes_null
    if isinstance(value, float) and math.isnan(value):
        return any(interval.high is None for interval in result.intervals)
    return any(
        (interval.low is None or interval.low <= value)
        and (interval.high is None or value < interval.high)
        for interval in result.intervals
    )


def runs(ids: set[int]) -> int:
    return sum(1 for fragment in ids if fragment - 1 not in ids)


@st.composite
def sketches(draw: st.DrawFn) -> tuple[RangePartition, set[int], int, list[int] | None]:
    partition = tens(draw(st.integers(1, 90)))
    ids = draw(st.sets(st.integers(0, partition.size - 1)))
    if draw(st.booleans()):
        ids |= set(range(0, partition.size, 2))
    limit = draw(st.sampled_from([1, 2, 5, MAX_INTERVALS]))
    rows = draw(st.none() | st.lists(st.integers(0, 9), min_size=partition.size - 1))
    if rows is not None:
        rows = (rows * partition.size)[: partition.size]
    return partition, ids, limit, rows


@pytest.mark.slow
@given(sketches())
def test_intervals_let_every_value_through_and_are_in_order_and_apart(
    case: tuple[RangePartition, set[int], int, list[int] | None],
) -> None:
    partition, ids, limit, rows = case
    result = range_filter(FragmentSet.of(ids, partition.size), partition, limit=limit, rows=rows)
    values = [*range(-15, 10 * partition.ranges + 15), -(2**63), 2**63 - 1]
    fragments = partition.fragments_of(Vector(LONG, np.array(values)))
    read = [lets_through(result, value) for value in values]
    for value, fragment, is_read in zip(values, fragments.tolist(), read, strict=True):
        assert is_read or fragment not in ids, (value, result)
    assert lets_through(result, None) == (partition.null_fragment in ids)
    needed = runs(ids - {partition.null_fragment})
    assert len(result.intervals) == min(limit, needed)
    if needed <= limit:
        assert [fragment in ids for fragment in fragments.tolist()] == read, "nothing was closed"
    for one, other in pairwise(result.intervals):
        assert one.high is not None
        assert other.low is not None
        assert one.high < other.low  # type: ignore[operator]  # whole numbers here


def test_at_most_32_by_default() -> None:
    partition = tens(200)
    every_other = FragmentSet.of(range(0, 200, 2), partition.size)
    assert len(range_filter(every_other, partition).intervals) == MAX_INTERVALS == 32


def test_the_gap_with_the_fewest_rows_is_closed_first() -> None:
    partition = tens(7)
    chosen = FragmentSet.of([0, 3, 5], partition.size)
    by_width = range_filter(chosen, partition, limit=2)
    assert by_width.intervals == (Interval(None, 10), Interval(30, 60))
    rows = [5, 1, 1, 5, 9, 5, 5]
    by_rows = range_filter(chosen, partition, limit=2, rows=rows)
    assert by_rows.intervals == (Interval(None, 40), Interval(50, 60))


def test_neighbours_are_one_interval() -> None:
    partition = tens(6)
    result = range_filter(FragmentSet.of([1, 2, 4, 5], partition.size), partition)
    assert result.intervals == (Interval(10, 30), Interval(40, None))
    assert not result.includes_null


def test_everything_and_nothing() -> None:
    partition = tens(4)
    everything = range_filter(FragmentSet.of(range(5), partition.size), partition)
    assert everything.is_everything
    not_null = range_filter(FragmentSet.of(range(4), partition.size), partition)
    assert not not_null.is_everything
    only_null = range_filter(FragmentSet.of([4], partition.size), partition)
    assert (only_null.intervals, only_null.includes_null) == ((), True)
    nothing = range_filter(FragmentSet.of([], partition.size), partition)
    assert (nothing.intervals, nothing.includes_null) == ((), False)
    assert not nothing.is_everything


def test_null_is_no_neighbour_of_the_last_range() -> None:
    partition = tens(3)
    result = range_filter(FragmentSet.of([2, 3], partition.size), partition)
    assert result.intervals == (Interval(20, None),)
    assert result.includes_null


@pytest.mark.parametrize("fragment", range(4))
def test_nan_and_zeros(fragment: int) -> None:
    partition = RangePartition("t", "a", DOUBLE, (0.0, 1.5))
    result = range_filter(FragmentSet.of([fragment], partition.size), partition)
    values = [-1.0, -0.0, 0.0, 1.5, math.inf, -math.inf, math.nan]
    owners = partition.fragments_of(Vector(DOUBLE, np.array(values))).tolist()
    assert [lets_through(result, value) for value in values] == [
        owner == fragment for owner in owners
    ]
