"""Tags expand to signed pairs that sum up to the rows' whole sets."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

import numpy as np

from impctl.data.vector import Ints
from impctl.engine.tags import GroupTags, Pairs, RowTags, SpanTags
from tests.support.random_cases import random_seeds

Sets = list[set[int]]
Signed = dict[tuple[int, int], int]


@dataclass
class Remembered:
    """Old and new sets of groups, spelled out; counts the old sets that were asked for."""

    old: Sets
    new: Sets
    asked: list[int] = field(default_factory=list)

    def crossings(self) -> Pairs:
        result = [
            (group, fragment, sign)
            for group, (before, after) in enumerate(zip(self.old, self.new, strict=True))
            for sign, moved in ((1, after - before), (-1, before - after))
            for fragment in moved
        ]
        return pairs_of(result)

    def old_sets(self, ordinals: Ints) -> Pairs:
        self.asked += ordinals.tolist()
        return pairs_of(
            [(i, f, 1) for i, group in enumerate(ordinals.tolist()) for f in self.old[group]]
        )


def pairs_of(rows: list[tuple[int, int, int]]) -> Pairs:
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return Pairs(table[:, 0], table[:, 1], table[:, 2])


def summed(pairs: Pairs) -> Signed:
    assert len(pairs.slots) == len(pairs.fragments) == len(pairs.weights)
    total: Counter[tuple[int, int]] = Counter()
    columns = pairs.slots.tolist(), pairs.fragments.tolist(), pairs.weights.tolist()
    for slot, fragment, weight in zip(*columns, strict=True):
        total[slot, fragment] += weight
    return {key: weight for key, weight in total.items() if weight}


@dataclass(frozen=True)
class Case:
    old: Sets
    new: Sets
    rows: list[tuple[int, bool, int, int]]
    """(group, whether its new set, slot, weight)"""

    @property
    def tags(self) -> GroupTags:
        return GroupTags(
            Remembered(self.old, self.new),
            np.array([row[0] for row in self.rows], dtype=np.int64),
            np.array([row[1] for row in self.rows], dtype=np.bool_),
        )

    def expected(self) -> Signed:
        total: Counter[tuple[int, int]] = Counter()
        for group, is_new, slot, weight in self.rows:
            for fragment in (self.new if is_new else self.old)[group]:
                total[slot, fragment] += weight
        return {key: weight for key, weight in total.items() if weight}


def some_case(rng: Random) -> Case:
    groups = rng.randint(1, 5)
    old, new = (
        [set(rng.sample(range(7), rng.randrange(5))) for _ in range(groups)] for _ in range(2)
    )
    rows = [
        (rng.randrange(groups), rng.random() < 0.5, rng.randrange(4), rng.randint(-2, 2))
        for _ in range(rng.randrange(13))
    ]
    return Case(old, new, rows)


def expanded(tags: GroupTags | RowTags, rows: list[tuple[int, bool, int, int]]) -> Signed:
    slots = np.array([row[2] for row in rows], dtype=np.int64)
    weights = np.array([row[3] for row in rows], dtype=np.int64)
    return summed(tags.expand(slots, weights))


@random_seeds(10, 35, 600)
def test_groups_expand_to_their_old_and_new_sets(seed: int) -> None:
    case = some_case(Random(seed))
    assert expanded(case.tags, case.rows) == case.expected()


@random_seeds(10, 35, 600)
def test_taking_rows_takes_their_tags(seed: int) -> None:
    rng = Random(seed)
    case = some_case(rng)
    chosen = rng.choices(range(len(case.rows)), k=rng.randrange(9)) if case.rows else []
    part = Case(case.old, case.new, [case.rows[row] for row in chosen])
    taken = case.tags.take(np.array(chosen, dtype=np.int64))
    assert len(taken) == len(chosen)
    assert expanded(taken, part.rows) == part.expected()


@random_seeds(10, 35, 600)
def test_a_group_that_stays_is_never_spelled_out(seed: int) -> None:
    """Old row out, new row in, same slot: only what crossed zero is looked at."""
    case = some_case(Random(seed))
    source = Remembered(case.old, case.new)
    groups = np.arange(len(case.old), dtype=np.int64)
    tags = GroupTags(source, np.tile(groups, 2), np.repeat([False, True], len(groups)))
    weights = np.repeat(np.array([-1, 1]), len(groups))
    expand = tags.expand(np.zeros(2 * len(groups), dtype=np.int64), weights)
    assert source.asked == []
    assert len(expand.slots) == sum(len(a ^ b) for a, b in zip(case.old, case.new, strict=True))


@random_seeds(10, 35, 600)
def test_rows_expand_to_their_one_fragment(seed: int) -> None:
    rng = Random(seed)
    rows = [
        (rng.randint(0, 9), rng.randint(0, 3), rng.randint(-2, 2)) for _ in range(rng.randrange(13))
    ]
    tags = RowTags(np.array([fragment for fragment, _, _ in rows], dtype=np.int32))
    slots = np.array([slot for _, slot, _ in rows], dtype=np.int64)
    weights = np.array([weight for _, _, weight in rows], dtype=np.int64)
    expand = tags.expand(slots, weights)
    assert expand.fragments.dtype == np.int64
    total: Counter[tuple[int, int]] = Counter()
    for fragment, slot, weight in rows:
        total[slot, fragment] += weight
    assert summed(expand) == {key: weight for key, weight in total.items() if weight}
    assert tags.take(np.arange(len(rows))[::-1]).fragments.tolist() == [f for f, _, _ in rows][::-1]


@random_seeds(10, 35, 600)
def test_neighbours_expand_to_their_one_fragment_and_others_to_none(seed: int) -> None:
    rng = Random(seed)
    before, after = rng.randint(0, 4), rng.randint(0, 4)
    fragments = [rng.randint(0, 9) for _ in range(rng.randint(0, 4))]
    rows = before + len(fragments) + after
    tags = SpanTags(rows, before, np.array(fragments, dtype=np.int32))
    slots = np.array([rng.randint(0, 2) for _ in range(rows)], dtype=np.int64)
    weights = np.array([rng.randint(-2, 2) for _ in range(rows)], dtype=np.int64)
    expand = tags.expand(slots, weights)
    assert len(tags) == rows
    assert expand.fragments.dtype == np.int64
    total: Counter[tuple[int, int]] = Counter()
    for row, fragment in enumerate(fragments, before):
        total[int(slots[row]), fragment] += int(weights[row])
    assert summed(expand) == {key: weight for key, weight in total.items() if weight}
    assert summed(tags.sets().expand(slots, weights)) == summed(expand)
    order = np.arange(rows)[::-1]
    assert summed(tags.take(order).expand(slots[order], weights[order])) == summed(expand)
