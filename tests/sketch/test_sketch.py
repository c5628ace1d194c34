"""Sets of ranges against Python's sets, as intervals, renumbered, and as shares of files."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from impctl.data.schema import DOUBLE, LONG, STRING, SqlType
from impctl.data.vector import Vector
from impctl.sketch.boundaries import share_after
from impctl.sketch.sketch import (
    MAX_INTERVALS,
    Comparison,
    Interval,
    RangeFilter,
    RangePartition,
    RangeSet,
    Renumbering,
    compare,
    range_filter,
)
from tests.sketch.test_partition import vector_of


@pytest.mark.parametrize(
    ("stored", "accurate", "missing", "slack"),
    [
        ({1, 9}, {1, 9}, (), ()),
        ({1, 3, 9}, {3}, (), (1, 9)),
        ({0, 1, 2, 3}, {3, 4, 5}, (4, 5), (0, 1, 2)),
        (set(), set(), (), ()),
        (set(), {0}, (0,), ()),
    ],
    ids=["equal", "too large", "too small, with surplus", "none", "none of one"],
)
def test_missing_and_surplus_ranges_of_a_sketch(
    stored: set[int], accurate: set[int], missing: tuple[int, ...], slack: tuple[int, ...]
) -> None:
    result = compare(RangeSet.of(stored, 10), RangeSet.of(accurate, 10))
    assert result == Comparison(missing, slack)
    assert (result.covers, result.slack) == (not missing, len(slack))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[int, set[int], set[int]]:
    size = draw(st.integers(1, 70))
    ids = st.sets(st.integers(0, size - 1))
    return size, draw(ids), draw(ids)


@given(pairs())
def test_a_set_of_ids(case: tuple[int, set[int], set[int]]) -> None:
    size, ids, _ = case
    result = RangeSet.of(ids, size)
    assert result.size == size
    assert len(result) == len(ids)
    assert result.ids == tuple(result) == tuple(sorted(ids))
    assert all((range_id in result) == (range_id in ids) for range_id in range(-3, size + 3))
    mask = np.isin(np.arange(size), sorted(ids))
    assert RangeSet.from_mask(mask) == result
    assert hash(RangeSet.from_mask(mask)) == hash(result)


@given(pairs())
def test_bytes_and_back(case: tuple[int, set[int], set[int]]) -> None:
    size, ids, _ = case
    data = RangeSet.of(ids, size).to_bytes()
    assert len(data) == (size + 7) // 8
    assert {k for k in range(8 * len(data)) if data[k // 8] >> (k % 8) & 1} == ids
    assert RangeSet.from_bytes(data, size) == RangeSet.of(ids, size)


@given(pairs())
def test_set_operations(case: tuple[int, set[int], set[int]]) -> None:
    size, left, right = case
    mine, theirs = RangeSet.of(left, size), RangeSet.of(right, size)
    assert mine.union(theirs) == RangeSet.of(left | right, size)
    assert mine.minus(theirs) == RangeSet.of(left - right, size)
    assert (mine, theirs) == (RangeSet.of(left, size), RangeSet.of(right, size))


def test_the_byte_format_is_stable() -> None:
    """Stored sketches are read by later versions: bit k is in byte k // 8 at k % 8."""
    assert RangeSet.of([0, 9, 10], 12).to_bytes() == bytes([0b00000001, 0b00000110])


def test_an_id_outside_is_refused() -> None:
    with pytest.raises(IndexError):
        RangeSet.of([3], 3)


def test_sets_of_different_partitions_do_not_mix() -> None:
    with pytest.raises(ValueError, match="length"):
        RangeSet.of([0], 3).union(RangeSet.of([0], 4))


def tens(ranges: int) -> RangePartition:
    """Boundaries 10, 20, ... so that range f has 10 f to 10 f + 9."""
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
    return sum(1 for range_id in ids if range_id - 1 not in ids)


@st.composite
def sketches(draw: st.DrawFn) -> tuple[RangePartition, set[int], int]:
    partition = tens(draw(st.integers(1, 90)))
    ids = draw(st.sets(st.integers(0, partition.size - 1)))
    if draw(st.booleans()):
        ids |= set(range(0, partition.size, 2))
    return partition, ids, draw(st.sampled_from([1, 2, 5, MAX_INTERVALS]))


@pytest.mark.slow
@given(sketches())
def test_intervals_have_all_values_and_are_ordered_and_disjoint(
    case: tuple[RangePartition, set[int], int],
) -> None:
    partition, ids, limit = case
    result = range_filter(RangeSet.of(ids, partition.size), partition, limit=limit)
    values = [*range(-15, 10 * partition.ranges + 15), -(2**63), 2**63 - 1]
    ranges = partition.range_ids_of(Vector(LONG, np.array(values)))
    read = [lets_through(result, value) for value in values]
    for value, range_id, is_read in zip(values, ranges.tolist(), read, strict=True):
        assert is_read or range_id not in ids, (value, result)
    assert lets_through(result, None) == (partition.null_range in ids)
    needed = runs(ids - {partition.null_range})
    assert len(result.intervals) == min(limit, needed)
    if needed <= limit:
        assert [range_id in ids for range_id in ranges.tolist()] == read, "no gap was closed"
    for one, other in pairwise(result.intervals):
        assert one.high is not None
        assert one.high < other.low  # type: ignore[operator]  # whole numbers here


def test_at_most_32_by_default() -> None:
    partition = tens(200)
    every_other = RangeSet.of(range(0, 200, 2), partition.size)
    assert len(range_filter(every_other, partition).intervals) == MAX_INTERVALS == 32


def test_the_smallest_gap_is_closed_first() -> None:
    partition = tens(7)
    result = range_filter(RangeSet.of([0, 3, 5], partition.size), partition, limit=2)
    assert result.intervals == (Interval(None, 10), Interval(30, 60))


@pytest.mark.parametrize(
    ("ids", "ranges", "intervals", "has_null"),
    [
        (range(5), 4, (Interval(None, None),), True),
        (range(4), 4, (Interval(None, None),), False),
        ([4], 4, (), True),
        ([], 4, (), False),
        # The NULL range is not adjacent to the last one.
        ([2, 3], 3, (Interval(20, None),), True),
        ([1, 2, 4, 5], 6, (Interval(10, 30), Interval(40, None)), False),
    ],
    ids=["all", "all but NULL", "NULL", "none", "last and NULL", "neighbours"],
)
def test_the_intervals_of_a_filter(
    ids: Iterable[int], ranges: int, intervals: tuple[Interval, ...], has_null: bool
) -> None:
    partition = tens(ranges)
    result = range_filter(RangeSet.of(ids, partition.size), partition)
    assert (result.intervals, result.includes_null) == (intervals, has_null)
    assert result.is_everything is (len(list(ids)) == partition.size)


@pytest.mark.parametrize("range_id", range(4))
def test_nan_and_zeros(range_id: int) -> None:
    partition = RangePartition("t", "a", DOUBLE, (0.0, 1.5))
    result = range_filter(RangeSet.of([range_id], partition.size), partition)
    values = [-1.0, -0.0, 0.0, 1.5, math.inf, -math.inf, math.nan]
    owners = partition.range_ids_of(Vector(DOUBLE, np.array(values))).tolist()
    assert [lets_through(result, value) for value in values] == [
        owner == range_id for owner in owners
    ]


VALUES: dict[SqlType, list[Any]] = {
    LONG: [-(2**63), -2, -1, 0, 1, 2, 3, 2**53 + 1, 2**63 - 1],
    DOUBLE: [-math.inf, -1.5, -0.0, 0.0, 5e-324, 1.0, math.inf],
    STRING: ["", "a", "ab", "b", "é", "😀"],
}


@st.composite
def cases(draw: st.DrawFn) -> tuple[SqlType, RangePartition, RangePartition, RangeSet]:
    kind = draw(st.sampled_from(list(VALUES)))
    chosen = st.lists(st.sampled_from(VALUES[kind]), max_size=5)
    old, new = (RangePartition("t", "a", kind, _boundaries(draw(chosen))) for _ in range(2))
    return kind, old, new, RangeSet.of(draw(st.sets(st.integers(0, old.size - 1))), old.size)


def _boundaries(values: list[Any]) -> tuple[Any, ...]:
    return tuple(sorted(set(values)))


def everything(kind: SqlType) -> list[Any]:
    return [*VALUES[kind], None, *([math.nan] if kind == DOUBLE else [])]


@given(cases())
def test_renumbering_keeps_all_rows_and_adds_no_others(
    case: tuple[SqlType, RangePartition, RangePartition, RangeSet],
) -> None:
    """A merged range is in the set if any part was. Of a split range all parts are in it."""
    kind, old, new, ids = case
    moved = Renumbering(old, new).ranges(ids)
    values = vector_of(kind, everything(kind))
    for before, after in zip(old.range_ids_of(values), new.range_ids_of(values), strict=True):
        assert int(before) not in ids or int(after) in moved
    for range_id in moved:
        assert any(_overlap(old, before, new, range_id) for before in ids)


def _overlap(old: RangePartition, before: int, new: RangePartition, after: int) -> bool:
    if before == old.null_range or after == new.null_range:
        return before == old.null_range and after == new.null_range
    low, high = _ends(old, before)
    other_low, other_high = _ends(new, after)
    starts = low is None or other_high is None or low < other_high
    return starts and (other_low is None or high is None or other_low < high)


def _ends(partition: RangePartition, range_id: int) -> tuple[Any, Any]:
    edges = [None, *partition.boundaries, None]
    return edges[range_id], edges[range_id + 1]


@pytest.mark.slow
@given(cases(), st.data())
def test_counts_of_unsplit_ranges_are_kept(
    case: tuple[SqlType, RangePartition, RangePartition, RangeSet], data: st.DataObject
) -> None:
    kind, old, new, _ = case
    values = vector_of(kind, data.draw(st.lists(st.sampled_from(everything(kind)), max_size=20)))
    before, after = old.range_ids_of(values), new.range_ids_of(values)
    renumbering = Renumbering(old, new)
    is_split = renumbering.targets[before] < 0
    carried = renumbering.carried(np.bincount(before, minlength=old.size))
    expected = np.bincount(after[~is_split], minlength=new.size)
    assert carried.tolist() == expected.tolist()


PARTITION = RangePartition("t", "a", LONG, (10, 20, 30))
"""Four ranges, followed by the NULL range."""
HEAVY = np.array([100, 800, 0, 50, 50])


@pytest.mark.parametrize(
    ("ids", "columns", "share"),
    [
        ([], 1, 0.0),
        ([1], 1, 0.9),  # rows 150 to 950 of a thousand: files 1 to 9 of ten
        ([0], 1, 0.2),  # after 50 NULL rows it extends into the second file
        ([3], 1, 0.1),
        ([0, 3], 1, 0.3),
        ([4], 1, 0.1),  # NULL is in the first file
        ([2], 1, 0.1),  # an empty range counts as one file
        ([3], 2, 1 / 3),  # ten files have three slices of each of two columns
        ([1], 2, 1.0),
    ],
)
def test_the_share_of_ten_files(ids: list[int], columns: int, share: float) -> None:
    result = share_after(RangeSet.of(ids, PARTITION.size), PARTITION, HEAVY, 10, range(columns))
    assert result == pytest.approx(share)
