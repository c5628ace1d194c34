"""Batches and their tags: consolidation, lots, and counts per range."""

from __future__ import annotations

import math
import random
import struct
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec import Struct

from impctl.data.schema import DOUBLE, LONG, STRING
from impctl.data.vector import Ints, Vector
from impctl.engine.batch import Batch, consolidated
from impctl.engine.range_counts import DenseCounts, GroupSets, GroupTags, RangeCounts
from impctl.engine.tags import RANGE_BITS, Pairs, RowTags, SetTags, SpanTags
from impctl.errors import CountBelowZeroError
from impctl.types import AttributeId
from impctl.workload.models import MAX_RANGES
from tests.support.random_cases import random_cases, random_seeds

SIZE = 10
NUMBER, TEXT = AttributeId(0), AttributeId(1)


def batch() -> Batch:
    valid = np.arange(SIZE) % 3 != 0
    texts = pa.array([f"t{row}" for row in range(SIZE)], pa.large_string())
    columns = {NUMBER: Vector(LONG, np.arange(SIZE), valid, None), TEXT: Vector(STRING, texts)}
    return Batch(columns, np.arange(SIZE) + 1, (RowTags(np.arange(SIZE, dtype=np.int32)),))


@pytest.mark.parametrize("kept", [[], [0], [9], [3, 4, 5], [0, 1], [2, 4], list(range(SIZE))])
def test_keep_selects_rows_by_mask(kept: list[int]) -> None:
    result = batch().keep(np.isin(np.arange(SIZE), kept))
    assert result.weights.tolist() == [row + 1 for row in kept]
    assert result.columns[NUMBER].values.tolist() == kept
    assert result.columns[NUMBER].validity().tolist() == [row % 3 != 0 for row in kept]
    assert result.columns[TEXT].values.to_pylist() == [f"t{row}" for row in kept]
    assert [tag.ranges.tolist() for tag in result.tags] == [kept]


@pytest.mark.parametrize(
    ("rows", "most", "sizes"),
    [(10, 3, [3, 3, 3, 1]), (10, 5, [5, 5]), (10, 10, [10]), (10, 99, [10]), (0, 3, [])],
)
def test_lots_have_all_rows_in_order(rows: int, most: int, sizes: list[int]) -> None:
    lots = list(batch().take(np.arange(rows)).lots(most))
    assert [len(lot) for lot in lots] == sizes
    assert [weight for lot in lots for weight in lot.weights.tolist()] == list(range(1, rows + 1))
    texts = [text for lot in lots for text in lot.columns[TEXT].values.to_pylist()]
    assert texts == [f"t{row}" for row in range(rows)]


OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
DOUBLES = (0.0, -0.0, 1.5, math.nan, OTHER_NAN, None)
SETS = ((), (1,), (1, 2), (12,))

Row = tuple[int | None, float | None, int, tuple[int, ...]]


def batch_of(rows: list[Row], weights: list[int]) -> Batch:
    """Each row has a number, a double, a range and a set of ranges."""
    numbers, doubles, ranges, sets = zip(*rows, strict=True) if rows else ((), (), (), ())
    columns = {
        "n": Vector(
            LONG,
            np.array([0 if n is None else n for n in numbers], dtype=np.int64),
            np.array([n is not None for n in numbers], dtype=bool),
        ),
        "d": Vector(
            DOUBLE,
            np.array([0.0 if d is None else d for d in doubles], dtype=np.float64),
            np.array([d is not None for d in doubles], dtype=bool),
        ),
    }
    offsets = np.cumsum([0, *map(len, sets)], dtype=np.int64)
    set_tags = SetTags(offsets, np.array([f for one in sets for f in one], dtype=np.int32))
    tags = (RowTags(np.array(ranges, dtype=np.int32)), set_tags)
    return Batch(columns, np.array(weights, dtype=np.int64), tags)


def weighted_rows(batch: Batch) -> list[tuple[object, int]]:
    """Each row with its weight; doubles as bits, tags as ranges."""
    number, double = batch.columns["n"], batch.columns["d"]
    first, second = (tag.sets() for tag in batch.tags)
    result: list[tuple[object, int]] = []
    for index, weight in enumerate(batch.weights.tolist()):
        row = (
            int(number.values[index]) if number.valid is None or number.valid[index] else None,
            struct.pack("<d", double.values[index])
            if double.valid is None or double.valid[index]
            else None,
            tuple(first.ranges[first.offsets[index] : first.offsets[index + 1]].tolist()),
            tuple(second.ranges[second.offsets[index] : second.offsets[index + 1]].tolist()),
        )
        result.append((row, weight))
    return result


def summed(batch: Batch) -> Counter[object]:
    counts: Counter[object] = Counter()
    for row, weight in weighted_rows(batch):
        counts[row] += weight
    return Counter({row: weight for row, weight in counts.items() if weight})


@random_cases(100, 550, 6_000)
def test_consolidation_sums_weights_of_each_row(cases: range) -> None:
    cancelled = merged = 0
    pools = ((None, 0, 1), DOUBLES, (1, 2), SETS)
    for seed in cases:
        rng = random.Random(seed)
        rows: list[Row] = [tuple(map(rng.choice, pools)) for _ in range(rng.randrange(6))]
        picked = [rng.choice(rows) for _ in range(rng.randrange(12))] if rows else []
        batch = batch_of(picked, [rng.choice((-2, -1, 1, 2)) for _ in picked])
        result, expected = consolidated(batch), summed(batch)
        assert Counter(dict(weighted_rows(result))) == expected, seed
        assert len(result) == len(expected), seed
        cancelled += len({row for row, _ in weighted_rows(batch)}) > len(expected)
        merged += len(expected) < len(batch)
    assert min(cancelled, merged) > len(cases) // 10


def test_equal_rows_have_the_same_bits_and_ranges() -> None:
    rows: list[Row] = [(0, value, 1, ()) for value in (0.0, -0.0, math.nan, OTHER_NAN, math.nan)]
    result = consolidated(batch_of(rows, [1, -1, 1, -1, -1]))
    assert sorted(result.weights.tolist()) == [-1, -1, 1]
    rows = [(0, None, 1, (1,)), (0, None, 2, (1,)), (0, None, 1, (1, 2))]
    assert len(consolidated(batch_of(rows, [1, -1, -1]))) == len(rows)
    assert len(consolidated(batch_of([rows[2], rows[2]], [1, -1]))) == 0


Sets = list[set[int]]
Signed = dict[tuple[int, int], int]


def group_sets(old: Sets, new: Sets) -> GroupSets:
    """The sets of these groups after counting the old ones, then the changes to the new ones."""
    counts, groups = RangeCounts("sets"), np.arange(len(old), dtype=np.int64)
    counts.count(groups, pairs_of([(i, f, 1) for i, group in enumerate(old) for f in group]))
    return counts.count(groups, pairs_of(crossings_of(old, new)))


def crossings_of(old: Sets, new: Sets) -> list[tuple[int, int, int]]:
    return [
        (group, range_id, sign)
        for group, (before, after) in enumerate(zip(old, new, strict=True))
        for sign, moved in ((1, after - before), (-1, before - after))
        for range_id in moved
    ]


def pairs_of(rows: list[tuple[int, int, int]]) -> Pairs:
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return Pairs(table[:, 0], table[:, 1], table[:, 2])


def without_zeros(weights: Counter[Any]) -> Signed:
    return {key: weight for key, weight in weights.items() if weight}


def summed_pairs(pairs: Pairs) -> Signed:
    total: Counter[tuple[int, int]] = Counter()
    columns = pairs.slots.tolist(), pairs.ranges.tolist(), pairs.weights.tolist()
    for slot, range_id, weight in zip(*columns, strict=True):
        total[slot, range_id] += weight
    return without_zeros(total)


class Case(Struct, frozen=True):
    old: Sets
    new: Sets
    rows: list[tuple[int, bool, int, int]]
    """(group, whether to use its new set, slot, weight)"""

    @property
    def tags(self) -> GroupTags:
        return GroupTags(
            group_sets(self.old, self.new),
            np.array([row[0] for row in self.rows], dtype=np.int64),
            np.array([row[1] for row in self.rows], dtype=np.bool_),
        )

    def expected(self) -> Signed:
        total: Counter[tuple[int, int]] = Counter()
        for group, is_new, slot, weight in self.rows:
            for range_id in (self.new if is_new else self.old)[group]:
                total[slot, range_id] += weight
        return without_zeros(total)


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
    return summed_pairs(tags.expand(slots, weights))


@random_seeds(10, 35, 600)
def test_group_tags_expand_to_old_and_new_sets_also_after_take(seed: int) -> None:
    rng = Random(seed)
    case = some_case(rng)
    assert expanded(case.tags, case.rows) == case.expected()
    chosen = rng.choices(range(len(case.rows)), k=rng.randrange(9)) if case.rows else []
    part = Case(case.old, case.new, [case.rows[row] for row in chosen])
    selected = case.tags.take(np.array(chosen, dtype=np.int64))
    assert len(selected) == len(chosen)
    assert expanded(selected, part.rows) == part.expected()


@random_seeds(10, 35, 600)
def test_an_unchanged_group_is_not_expanded(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old row out, new row in, same slot: only counts that crossed zero matter."""
    case = some_case(Random(seed))
    source, expanded_groups = group_sets(case.old, case.new), list[int]()
    groups = np.arange(len(case.old), dtype=np.int64)
    tags = GroupTags(source, np.tile(groups, 2), np.repeat([False, True], len(groups)))
    weights = np.repeat(np.array([-1, 1]), len(groups))
    old_sets = GroupSets.old_sets

    def recorded(sets: GroupSets, ordinals: Ints) -> Pairs:
        expanded_groups.extend(ordinals.tolist())
        return old_sets(sets, ordinals)

    monkeypatch.setattr(GroupSets, "old_sets", recorded)
    pairs = tags.expand(np.zeros(2 * len(groups), dtype=np.int64), weights)
    assert expanded_groups == []
    assert len(pairs.slots) == sum(len(a ^ b) for a, b in zip(case.old, case.new, strict=True))


@random_seeds(10, 35, 600)
def test_row_and_span_tags_expand_to_the_range_of_each_row(seed: int) -> None:
    rng = Random(seed)
    before, after = rng.randint(0, 4), rng.randint(0, 4)
    ranges = np.array([rng.randint(0, 9) for _ in range(rng.randint(0, 12))], dtype=np.int32)
    backwards = RowTags(ranges).take(np.arange(len(ranges))[::-1])
    assert backwards.ranges.tolist() == ranges[::-1].tolist()
    for tags, first in (
        (RowTags(ranges), 0),
        (SpanTags(before + len(ranges) + after, before, ranges), before),
    ):
        rows = len(tags)
        assert rows == len(ranges) + (before + after) * isinstance(tags, SpanTags)
        slots = np.array([rng.randint(0, 3) for _ in range(rows)], dtype=np.int64)
        weights = np.array([rng.randint(-2, 2) for _ in range(rows)], dtype=np.int64)
        result = tags.expand(slots, weights)
        assert result.ranges.dtype == np.int64
        total: Counter[tuple[int, int]] = Counter()
        for row, range_id in enumerate(ranges.tolist(), first):
            total[int(slots[row]), range_id] += int(weights[row])
        order = np.arange(rows)[::-1]
        reversed_result = tags.take(order).expand(slots[order], weights[order])
        for pairs in (result, tags.sets().expand(slots, weights), reversed_result):
            assert summed_pairs(pairs) == without_zeros(total)


GROUPS = [0, 1, 5, 2**30]
LAST = (1 << RANGE_BITS) - 1
RANGE_IDS = [0, 1, 7, LAST]
Step = dict[tuple[int, int], int]
"""Change of the count of (group, range)."""


def some_steps(rng: Random) -> list[Step]:
    return [
        {
            (rng.choice(GROUPS), rng.choice(RANGE_IDS)): rng.randint(-2, 3)
            for _ in range(rng.choice((0, 1, 2, 6)))
        }
        for _ in range(rng.randrange(9))
    ]


def pairs_of_changes(
    step: Step, sign: Callable[[int], int] = lambda change: 1 if change > 0 else -1
) -> Pairs:
    """One row per copy, with the ordinal of the group."""
    return pairs_of(
        [
            (GROUPS.index(group), range_id, sign(change))
            for (group, range_id), change in step.items()
            for _ in range(abs(change))
        ]
    )


def apply(counts: RangeCounts, step: Step) -> GroupSets:
    return counts.count(np.array(GROUPS, dtype=np.int64), pairs_of_changes(step))


def members(model: Counter[tuple[int, int]], group: int) -> set[int]:
    return {range_id for (owner, range_id), rows in model.items() if owner == group and rows > 0}


def by_ordinal(pairs: Pairs) -> list[tuple[int, int, int]]:
    columns = pairs.slots.tolist(), pairs.ranges.tolist(), pairs.weights.tolist()
    return sorted(zip(*columns, strict=True))


@random_seeds(12, 36, 600)
def test_sets_and_crossings_match_a_counter(seed: int) -> None:
    counts, model = RangeCounts("counts"), Counter[tuple[int, int]]()
    for drawn in some_steps(Random(seed)):
        step = {key: max(change, -model[key]) for key, change in drawn.items()}
        before = [members(model, group) for group in GROUPS]
        model.update(step)
        after = [members(model, group) for group in GROUPS]
        result = apply(counts, step)
        crossings = result.crossed
        assert crossings.slots.tolist() == sorted(crossings.slots.tolist())
        assert by_ordinal(crossings) == by_ordinal(pairs_of(crossings_of(before, after)))
        expected_sets = [(i, f, 1) for i, group in enumerate((3, 0, 1)) for f in before[group]]
        old_sets = result.old_sets(np.array([3, 0, 1], dtype=np.int64))
        assert by_ordinal(old_sets) == by_ordinal(pairs_of(expected_sets))


def test_old_sets_ignore_later_counts() -> None:
    counts = RangeCounts("counts")
    apply(counts, {(5, 7): 1})
    result = apply(counts, {(5, 7): -1, (5, 1): 1})
    apply(counts, {(5, 0): 1, (5, 1): -1})
    assert by_ordinal(result.old_sets(np.array([2]))) == [(0, 7, 1)]


def test_empty_and_cancelling_changes_have_no_crossings() -> None:
    empty, cancels = pairs_of([]), pairs_of([(0, 1, 1), (0, 1, -1)])
    for pairs in (empty, cancels):
        result = RangeCounts("counts").count(np.array([5, 6]), pairs)
        assert by_ordinal(result.crossed) == []
        assert by_ordinal(result.old_sets(np.array([0, 1]))) == []


def test_ranges_of_adjacent_groups_are_distinct() -> None:
    counts = RangeCounts("counts")
    apply(counts, {(0, LAST): 1, (1, 0): 1})
    result = apply(counts, {})
    assert by_ordinal(result.old_sets(np.array([0, 1]))) == [(0, LAST, 1), (1, 0, 1)]
    sets = counts.sets_of(np.array(GROUPS[:2], dtype=np.int64))
    assert (sets.offsets.tolist(), sets.ranges.tolist()) == ([0, 1, 2], [LAST, 0])
    # NULL and NaN may each have one more range.
    assert MAX_RANGES + 2 <= 1 << RANGE_BITS


def test_a_negative_count_fails() -> None:
    counts = RangeCounts("counts")
    apply(counts, {(1, 7): 1})
    with pytest.raises(CountBelowZeroError):
        apply(counts, {(1, 7): -2})
    apply(counts, {(1, 7): -1})
    with pytest.raises(CountBelowZeroError):
        apply(counts, {(1, 0): -1})


@random_seeds(12, 36, 600)
def test_add_counts_without_returning_sets(seed: int) -> None:
    counted, added = RangeCounts("counted"), RangeCounts("added")
    groups = np.array(GROUPS, dtype=np.int64)
    for step in some_steps(Random(seed)):
        copies = sum(map(abs, step.values()))
        for sign in (1, -1) if copies % 2 else (1,):
            pairs = pairs_of_changes(step, lambda _, sign=sign: sign)
            counted.count(groups, pairs)
            added.add(groups, pairs)
    assert added.sets_of(groups).ranges.tolist() == counted.sets_of(groups).ranges.tolist()
    whole, other = added.arrangement.whole(), counted.arrangement.whole()
    assert (whole is None) == (other is None)
    if whole is not None:
        assert whole.codes.tolist() == other.codes.tolist()
        assert whole.values["count"].tolist() == other.values["count"].tolist()


DENSE_SIZE = 40


@pytest.mark.parametrize("rows", [0, 1, 4, 5, 6, 30, 400])
@pytest.mark.parametrize("scale", [1, 2**50, 2**54 + 1])
def test_counts_are_sums(rows: int, scale: int) -> None:
    random = Random(rows)
    counts, model = DenseCounts("c", DENSE_SIZE, "rows"), np.zeros(DENSE_SIZE, dtype=np.int64)
    for _ in range(4):
        ranges = np.array([random.randrange(DENSE_SIZE) for _ in range(rows)], dtype=np.int32)
        weights = np.array([scale + random.randrange(3) for _ in range(rows)], dtype=np.int64)
        weights[: rows // 2] = -(model[ranges[: rows // 2]] // 400)
        np.add.at(model, ranges, weights)
        counts.add(ranges, weights)
        assert counts.counts.tolist() == model.tolist()


@pytest.mark.parametrize("rows", [1, 400])
def test_removing_uncounted_rows_is_an_error(rows: int) -> None:
    counts = DenseCounts("c", DENSE_SIZE, "rows")
    with pytest.raises(CountBelowZeroError):
        counts.add(np.full(rows, 7), np.full(rows, -1))
