"""Rows per group and fragment against a counter, and what crossed zero."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest

from impctl.engine.range_counts import FragmentCounts, GroupSets
from impctl.engine.tags import FRAGMENT_BITS, Pairs
from impctl.errors import CountBelowZeroError
from impctl.workload.sections import MAX_FRAGMENTS
from tests.support.random_cases import random_seeds

GROUPS = [0, 1, 5, 2**30]
LAST = (1 << FRAGMENT_BITS) - 1
FRAGMENTS = [0, 1, 7, LAST]
Step = dict[tuple[int, int], int]
"""Change of the count of (group, fragment)."""


def some_steps(rng: Random) -> list[Step]:
    return [
        {
            (rng.choice(GROUPS), rng.choice(FRAGMENTS)): rng.randint(-2, 3)
            for _ in range(rng.choice((0, 1, 2, 6)))
        }
        for _ in range(rng.randrange(9))
    ]


def apply(counts: FragmentCounts, step: Step) -> GroupSets:
    """Feed the change row by row, a row per copy, groups named by ordinal."""
    rows = [
        (GROUPS.index(group), fragment, 1 if change > 0 else -1)
        for (group, fragment), change in step.items()
        for _ in range(abs(change))
    ]
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    pairs = Pairs(table[:, 0], table[:, 1], table[:, 2])
    return counts.count(np.array(GROUPS, dtype=np.int64), pairs)


def members(model: Counter[tuple[int, int]], group: int) -> set[int]:
    return {fragment for (owner, fragment), rows in model.items() if owner == group and rows > 0}


def by_ordinal(pairs: Pairs) -> list[tuple[int, int, int]]:
    columns = pairs.slots.tolist(), pairs.fragments.tolist(), pairs.weights.tolist()
    return sorted(zip(*columns, strict=True))


@random_seeds(12, 36, 600)
def test_sets_and_crossings_are_those_of_a_counter(seed: int) -> None:
    counts, model = FragmentCounts("counts"), Counter[tuple[int, int]]()
    for wanted in some_steps(Random(seed)):
        step = {key: max(change, -model[key]) for key, change in wanted.items()}
        before = [members(model, group) for group in GROUPS]
        model.update(step)
        after = [members(model, group) for group in GROUPS]
        result = apply(counts, step)
        crossings = result.crossings()
        assert crossings.slots.tolist() == sorted(crossings.slots.tolist())
        assert by_ordinal(crossings) == sorted(
            (ordinal, fragment, sign)
            for ordinal in range(len(GROUPS))
            for sign, moved in (
                (1, after[ordinal] - before[ordinal]),
                (-1, before[ordinal] - after[ordinal]),
            )
            for fragment in moved
        )
        asked = np.array([3, 0, 1], dtype=np.int64)
        assert by_ordinal(result.old_sets(asked)) == sorted(
            (place, fragment, 1)
            for place, ordinal in enumerate(asked.tolist())
            for fragment in before[ordinal]
        )


def test_old_sets_stay_old_when_the_counts_move_on() -> None:
    counts = FragmentCounts("counts")
    apply(counts, {(5, 7): 1})
    result = apply(counts, {(5, 7): -1, (5, 1): 1})
    apply(counts, {(5, 0): 1, (5, 1): -1})
    assert by_ordinal(result.old_sets(np.array([2]))) == [(0, 7, 1)]


def test_what_cancels_within_a_change_crosses_nothing() -> None:
    counts = FragmentCounts("counts")
    slots = np.zeros(2, dtype=np.int64)
    count = counts.count(np.array([5]), Pairs(slots, slots + 1, np.array([1, -1])))
    assert by_ordinal(count.crossings()) == []
    assert by_ordinal(count.old_sets(np.array([0]))) == []


def test_nothing_changed() -> None:
    result = apply(FragmentCounts("counts"), {})
    assert by_ordinal(result.crossings()) == []
    assert by_ordinal(result.old_sets(np.array([0, 1]))) == []


def test_the_last_fragment_does_not_spill_into_the_next_group() -> None:
    counts = FragmentCounts("counts")
    apply(counts, {(0, LAST): 1, (1, 0): 1})
    result = apply(counts, {})
    assert by_ordinal(result.old_sets(np.array([0, 1]))) == [(0, LAST, 1), (1, 0, 1)]
    sets = counts.sets_of(np.array(GROUPS[:2], dtype=np.int64))
    assert (sets.offsets.tolist(), sets.fragments.tolist()) == ([0, 1, 2], [LAST, 0])


def test_a_count_below_zero_stops() -> None:
    counts = FragmentCounts("counts")
    apply(counts, {(1, 7): 1})
    with pytest.raises(CountBelowZeroError):
        apply(counts, {(1, 7): -2})
    apply(counts, {(1, 7): -1})
    with pytest.raises(CountBelowZeroError):
        apply(counts, {(1, 0): -1})


def test_every_fragment_a_workload_may_ask_for_has_its_own_number() -> None:
    """Rows of NULL and of NaN may have a fragment more each."""
    assert MAX_FRAGMENTS + 2 <= 1 << FRAGMENT_BITS


@random_seeds(12, 36, 600)
def test_adding_is_counting_without_being_told(seed: int) -> None:
    counted, added = FragmentCounts("counted"), FragmentCounts("added")
    groups = np.array(GROUPS, dtype=np.int64)
    for step in some_steps(Random(seed)):
        rows = [
            (GROUPS.index(group), fragment)
            for (group, fragment), change in step.items()
            for _ in range(abs(change))
        ]
        table = np.array(rows, dtype=np.int64).reshape(-1, 2)
        for sign in (1, -1) if len(rows) % 2 else (1,):
            pairs = Pairs(table[:, 0], table[:, 1], np.full(len(rows), sign, dtype=np.int64))
            counted.count(groups, pairs)
            added.add(groups, pairs)
    assert added.sets_of(groups).fragments.tolist() == counted.sets_of(groups).fragments.tolist()
    whole, other = added.arrangement.whole(), counted.arrangement.whole()
    assert (whole is None) == (other is None)
    if whole is not None and other is not None:
        assert whole.codes.tolist() == other.codes.tolist()
        assert whole.values["count"].tolist() == other.values["count"].tolist()
