"""New ranges from counts: even afterwards, and nothing moved without need."""

from __future__ import annotations

import random

import numpy as np

from impctl.data.schema import LONG, STRING
from impctl.sketch.boundaries import HEAVY, evened, heavy_ranges, with_splits
from impctl.sketch.partition import RangePartition
from tests.sketch.test_partition import vector_of
from tests.support.random_cases import random_cases

TENS = RangePartition("t", "a", LONG, tuple(range(10, 100, 10)))


def counted(partition: RangePartition, values: list[int]) -> np.ndarray:
    fragments = partition.fragments_of(vector_of(LONG, values))
    return np.bincount(fragments, minlength=partition.size)


def evened_by(partition: RangePartition, values: list[int], wanted: int) -> RangePartition:
    counts = counted(partition, values)
    heavy = set(heavy_ranges(counts[:-1], wanted).tolist())
    fragments = partition.fragments_of(vector_of(LONG, values))
    sample = [v for v, f in zip(values, fragments, strict=True) if int(f) in heavy]
    return evened(partition, counts, wanted, sample)


def test_even_ranges_stay() -> None:
    assert evened_by(TENS, list(range(100)), 10) == TENS


def test_a_heavy_range_is_split_and_light_neighbours_are_merged() -> None:
    values = [*range(100), *range(90, 1090)]
    result = evened_by(TENS, values, 10)
    rows = counted(result, values)[:-1]
    assert len(rows) == 10
    assert rows.max() <= 2 * rows.mean() + 1
    assert result.boundaries[-1] > 900


def test_one_value_cannot_be_split() -> None:
    assert evened_by(TENS, [*range(100), *([55] * 1000)], 10).ranges == 10
    alone = RangePartition("t", "a", LONG, ())
    assert evened_by(alone, [7] * 50, 4) == alone


def test_a_heavy_value_gets_a_range_of_its_own() -> None:
    values = [*range(100), *([55] * 300), *([57] * 100)]
    result = evened_by(TENS, values, 12)
    assert 55 in result.boundaries or 56 in result.boundaries
    rows = counted(result, values)
    assert rows[int(result.fragments_of(vector_of(LONG, [55]))[0])] <= 305


@random_cases(40, 120, 1000)
def test_never_more_ranges_than_asked_for_and_never_less_even(cases: range) -> None:
    for seed in cases:
        rng = random.Random(seed)
        boundaries = tuple(sorted(rng.sample(range(-50, 50), rng.randint(0, 12))))
        partition = RangePartition("t", "a", LONG, boundaries)
        values = [int(rng.gauss(0, 40)) for _ in range(rng.randint(0, 400))]
        wanted = rng.randint(1, 20)
        result = evened_by(partition, values, wanted)
        assert result.ranges <= max(wanted, partition.ranges), seed
        if values and partition.ranges <= wanted:
            before, after = counted(partition, values)[:-1], counted(result, values)[:-1]
            assert after.max() <= max(before.max(), 2 * HEAVY * len(values) / wanted), seed


def test_text_is_split_too() -> None:
    partition = RangePartition("t", "a", STRING, ("m",))
    rows = np.array([4, 100])
    finer = with_splits(partition, rows, 4, ["n", "o", "p", "q", "r", "s"])
    assert finer.boundaries[0] == "m"
    assert len(finer.boundaries) > 2


@random_cases(40, 120, 1000)
def test_the_largest_range_is_never_larger(cases: range) -> None:
    for seed in cases:
        rng = random.Random(seed)
        places = [rng.randrange(400) for _ in range(3)]
        values = [rng.choice(places) + int(rng.expovariate(0.05)) for _ in range(600)]
        cuts = tuple(sorted(set(rng.sample(range(500), rng.randint(2, 40)))))
        partition = RangePartition("t", "a", LONG, cuts)
        result = evened_by(partition, values, rng.randint(1, 60))
        assert counted(result, values).max() <= counted(partition, values).max(), seed
