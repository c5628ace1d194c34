"""Sketches brought under other ranges, against every value there is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from impctl.data.schema import DOUBLE, LONG, STRING, SqlType
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import FragmentSet, Renumbering
from tests.sketch.test_partition import vector_of

VALUES: dict[SqlType, list[Any]] = {
    LONG: [-(2**63), -2, -1, 0, 1, 2, 3, 2**53 + 1, 2**63 - 1],
    DOUBLE: [-math.inf, -1.5, -0.0, 0.0, 5e-324, 1.0, math.inf],
    STRING: ["", "a", "ab", "b", "é", "😀"],
}


@st.composite
def cases(draw: st.DrawFn) -> tuple[SqlType, RangePartition, RangePartition, FragmentSet]:
    kind = draw(st.sampled_from(list(VALUES)))
    chosen = st.lists(st.sampled_from(VALUES[kind]), max_size=5)
    old, new = (RangePartition("t", "a", kind, _boundaries(draw(chosen))) for _ in range(2))
    held = draw(st.sets(st.integers(0, old.size - 1)))
    return kind, old, new, FragmentSet.of(held, old.size)


def _boundaries(values: list[Any]) -> tuple[Any, ...]:
    return tuple(sorted(set(values)))


def everything(kind: SqlType) -> list[Any]:
    return [*VALUES[kind], None, *([math.nan] if kind == DOUBLE else [])]


@given(cases())
def test_no_row_is_lost_and_nothing_enters_that_shares_no_range(
    case: tuple[SqlType, RangePartition, RangePartition, FragmentSet],
) -> None:
    """Merged ranges are in if any part was, split ones pass to all parts, and that is all."""
    kind, old, new, held = case
    moved = Renumbering(old, new).fragments(held)
    values = vector_of(kind, everything(kind))
    for before, after in zip(old.fragments_of(values), new.fragments_of(values), strict=True):
        assert int(before) not in held or int(after) in moved
    for fragment in moved:
        assert any(_overlap(old, before, new, fragment) for before in held)


def _overlap(old: RangePartition, before: int, new: RangePartition, after: int) -> bool:
    if before == old.null_fragment or after == new.null_fragment:
        return before == old.null_fragment and after == new.null_fragment
    low, high = _ends(old, before)
    other_low, other_high = _ends(new, after)
    starts = low is None or other_high is None or low < other_high
    return starts and (other_low is None or high is None or other_low < high)


def _ends(partition: RangePartition, fragment: int) -> tuple[Any, Any]:
    edges = [None, *partition.boundaries, None]
    return edges[fragment], edges[fragment + 1]


@pytest.mark.slow
@given(cases(), st.data())
def test_counts_are_carried_where_ranges_live_on(
    case: tuple[SqlType, RangePartition, RangePartition, FragmentSet], data: st.DataObject
) -> None:
    kind, old, new, _ = case
    drawn = data.draw(st.lists(st.sampled_from(everything(kind)), max_size=20))
    values = vector_of(kind, drawn)
    before, after = old.fragments_of(values), new.fragments_of(values)
    renumbering = Renumbering(old, new)
    is_split = renumbering.targets[before] < 0
    carried = renumbering.carried(np.bincount(before, minlength=old.size))
    expected = np.bincount(after[~is_split], minlength=new.size)
    assert carried.tolist() == expected.tolist()
