"""Ranges of values, balanced boundaries, and how likely ranges are to be in a sketch."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from impctl.data.schema import BINARY, DATE, DOUBLE, FLOAT, LONG, STRING, SqlType, decimal
from impctl.data.vector import Vector, from_arrow
from impctl.errors import UsageError
from impctl.sketch.boundaries import (
    HEAVY,
    Mixture,
    ValueWeights,
    aligned_boundaries,
    chances,
    equidepth_boundaries,
    evened,
    heavy_ranges,
    hits_between,
    rate_where_not_zero,
    with_splits,
)
from impctl.sketch.sketch import RangePartition
from tests.support.random_cases import CHARACTERS, FEW, random_cases

WIDE = decimal(38, 0)
NARROW = decimal(10, 2)
LONGS = st.one_of(st.integers(-5, 5), st.sampled_from([-(2**63), 2**63 - 1, 2**53 + 1, 2**53]))
DOUBLES = st.one_of(
    st.sampled_from([0.0, -0.0, math.inf, -math.inf, 5e-324, 1.5]), st.floats(allow_nan=False)
)
TEXTS = st.one_of(
    st.sampled_from(["", "a", "ab", "z", "é", "\uffff", "😀", "\x00"]),
    st.text(CHARACTERS, max_size=3),
)
WIDES = st.one_of(st.integers(-3, 3), st.sampled_from([2**63, -(2**63) - 1, 10**38 - 1, 2**90]))
KINDS: dict[SqlType, st.SearchStrategy[Any]] = {
    LONG: LONGS,
    DOUBLE: DOUBLES,
    FLOAT: st.floats(width=32, allow_nan=False),
    STRING: TEXTS,
    BINARY: st.binary(max_size=2),
    NARROW: LONGS,
    WIDE: WIDES,
}


def partition(kind: SqlType, *boundaries: Any) -> RangePartition:
    return RangePartition("t", "a", kind, boundaries)


def vector_of(kind: SqlType, values: list[Any]) -> Vector:
    """Canonical values; None is NULL."""
    valid = np.array([value is not None for value in values], dtype=np.bool_)
    mask = None if bool(valid.all()) else valid
    if kind in (STRING, BINARY):
        return from_arrow(pa.array(values, pa.string() if kind == STRING else pa.binary()), kind)
    filled = [0 if value is None else value for value in values]
    if kind.is_fractional:
        return Vector(kind, np.array(filled, dtype=np.float64), mask)
    narrow = all(-(2**63) <= value < 2**63 for value in filled)
    return Vector(kind, np.array(filled, dtype=np.int64 if narrow else object), mask)


def expected(range_partition: RangePartition, value: Any) -> int:
    """The range by definition: compare with one boundary after the other."""
    if value is None:
        return range_partition.null_range
    if isinstance(value, float) and math.isnan(value):
        return len(range_partition.boundaries)
    return sum(1 for boundary in range_partition.boundaries if boundary <= value)


def check(range_partition: RangePartition, values: list[Any]) -> None:
    ids = [expected(range_partition, value) for value in values]
    vector = vector_of(range_partition.type, values)
    assert range_partition.range_ids_of(vector).tolist() == ids
    assert range_partition.range_ids_of(vector).dtype == np.int32
    slow = range_partition._one_by_one(vector)
    known = [index for index, value in enumerate(values) if value is not None and value == value]
    assert slow[known].tolist() == [ids[index] for index in known]


@st.composite
def cases(draw: st.DrawFn) -> tuple[RangePartition, list[Any]]:
    kind = draw(st.sampled_from(list(KINDS)))
    boundaries = draw(st.lists(KINDS[kind], unique=True, max_size=6).map(sorted))
    boundary = st.sampled_from(boundaries) if boundaries else KINDS[kind]
    special = st.just(math.nan) if kind.is_fractional else st.none()
    values = draw(st.lists(st.one_of(KINDS[kind], boundary, st.none(), special), max_size=12))
    return partition(kind, *boundaries), values


@pytest.mark.slow
@given(cases())
def test_every_value_has_the_range_of_the_definition(
    case: tuple[RangePartition, list[Any]],
) -> None:
    check(*case)


def test_boundaries_belong_to_the_range_above() -> None:
    result = partition(LONG, 10, 20)
    assert (result.ranges, result.null_range, result.size) == (3, 3, 4)
    check(result, [9, 10, 11, 19, 20, 21, None, -(2**63), 2**63 - 1])


@pytest.mark.parametrize(
    ("kind", "boundaries", "values", "ids"),
    [
        (
            DOUBLE,
            (0.0, math.inf),
            [-5e-324, -0.0, 0.0, math.inf, math.nan, -math.inf],
            [0, 1, 1, 2, 2, 0],
        ),
        (DOUBLE, (-0.0,), [-0.0, 0.0, -1.0], [1, 1, 0]),
        # One range for everything but NULL.
        (LONG, (), [1, None], [0, 1]),
        (DOUBLE, (), [math.nan, None], [0, 1]),
        (STRING, (), ["x", None], [0, 1]),
        # U+FFFF is below U+1F600 by code point and above it in UTF-16.
        (
            STRING,
            ("A", "a", "é", "\uffff", "😀"),
            ["", "Z", "z", "é", "\uffff", "😀", "😁"],
            [0, 1, 2, 3, 4, 5, 5],
        ),
    ],
)
def test_values_at_the_edges(
    kind: SqlType, boundaries: tuple[Any, ...], values: list[Any], ids: list[int]
) -> None:
    assert partition(kind, *boundaries).range_ids_of(vector_of(kind, values)).tolist() == ids
    encoded = [one.encode() for one in boundaries if isinstance(one, str)]
    assert encoded == sorted(encoded)


def test_sliced_text() -> None:
    whole = from_arrow(pa.array(["c", None, "a", "b"])[1:], STRING)
    assert partition(STRING, "b").range_ids_of(whole).tolist() == [2, 0, 1]


def test_the_value_in_a_null_slot_is_ignored() -> None:
    valid = np.array([False, True])
    doubles = Vector(DOUBLE, np.array([math.nan, 1.0]), valid)
    assert partition(DOUBLE, 0.5).range_ids_of(doubles).tolist() == [2, 1]
    wide = Vector(WIDE, np.array([2**100, 2**99], dtype=object), valid)
    assert partition(WIDE, 2**99).range_ids_of(wide).tolist() == [2, 1]


def test_narrow_values_with_wide_boundaries_and_vice_versa() -> None:
    check(partition(WIDE, -(2**90), 0, 2**90), [-(2**63), 0, 2**63 - 1])
    check(partition(WIDE, -1, 1), [2**90, -(2**90), 0, 2**63])


@pytest.mark.parametrize(
    ("kind", "boundaries"),
    [(LONG, (2, 1)), (LONG, (1, 1)), (DOUBLE, (-0.0, 0.0)), (STRING, ("b", "a"))],
)
def test_boundaries_must_increase(kind: SqlType, boundaries: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError, match="`t.a` must increase") as caught:
        partition(kind, *boundaries)
    assert caught.value.code == "boundaries_not_increasing"


def test_ids_of_partitions_differ() -> None:
    one = partition(LONG, 1, 2)
    assert one.id == RangePartition("t", "A", LONG, (1, 2)).id
    others = [
        partition(LONG, 1, 3),
        partition(LONG, 1),
        partition(decimal(19, 0), 1, 2),
        RangePartition("u", "a", LONG, (1, 2)),
        RangePartition("t", "b", LONG, (1, 2)),
    ]
    assert len({one.id, *(other.id for other in others)}) == 6


@pytest.mark.parametrize("kind", [LONG, NARROW, DATE], ids=str)
def test_the_lookup_table_gives_the_same_ids_as_search(kind: SqlType) -> None:
    """For many values. Few values and distant boundaries use no table."""
    random = np.random.default_rng(1)
    ends = [-(2**63), -(2**63) + 1, 2**63 - 1, 0, -1]
    for boundaries in ((0,), (-3, 4, 5), (10, 1000), (-(2**63) + 1, -(2**63) + 9), (2**63 - 1,)):
        result = partition(kind, *boundaries)
        near = random.integers(-20, 1200, 2000)
        around = [bound + step for bound in boundaries for step in (-1, 0, 1)]
        values = [*near.tolist(), *ends, *(v for v in around if -(2**63) <= v < 2**63), None]
        many = result.range_ids_of(vector_of(kind, values))
        assert many.dtype == np.int32
        assert many.tolist() == [expected(result, value) for value in values]
        few = [result.range_ids_of(vector_of(kind, [value]))[0] for value in values[-40:]]
        assert few == many[-40:].tolist()
    assert partition(kind, 0, 2**40)._span is None
    assert partition(kind, -(2**63), 0)._span is None


@pytest.mark.parametrize(
    ("values", "ids", "are_in"),
    [
        ([3, 12, 15], {1, 2}, True),
        ([3, 12, 15], {1, 2, 3, 0}, True),
        ([3, 25], {1, 3}, False),
        ([-5], {0}, True),
        ([], {0, 1, 2, 3, 4}, False),
    ],
)
def test_whether_all_values_are_in_given_ranges(
    values: list[int], ids: set[int], are_in: bool
) -> None:
    partition = RangePartition("t", "a", LONG, (0, 10, 20))
    mask = np.isin(np.arange(partition.size), list(ids))
    vector = Vector(LONG, np.array(values, dtype=np.int64))
    assert partition.are_all_in(vector, mask) is are_in
    with_null = Vector(LONG, vector.values, np.ones(len(values), dtype=np.bool_))
    assert not partition.are_all_in(with_null, mask)
    if are_in:
        assert mask[partition.range_ids_of(vector)].all()


SAMPLES = st.one_of(
    st.lists(st.integers(-20, 20), max_size=80),
    st.lists(st.sampled_from([0, 0, 0, 0, 1, 2, 3, 9, 9, 9, 50, 51, 52]), max_size=80),
    st.lists(st.floats(allow_nan=False), max_size=40),
    st.lists(st.text("aBéz\0\uffff😀", max_size=3), max_size=40),
    st.lists(st.sampled_from([2**80, 2**90, -(2**100), 5]), max_size=30),
)
RANGES = st.integers(1, 12)


def counted_ranges(sample: list[Any], boundaries: tuple[Any, ...]) -> list[Counter[Any]]:
    """The sample's values by range, counted one by one."""
    result: list[Counter[Any]] = [Counter() for _ in range(len(boundaries) + 1)]
    for value in sample:
        result[sum(1 for boundary in boundaries if boundary <= value)][value] += 1
    return result


@FEW
@given(SAMPLES, RANGES)
def test_boundaries_divide_the_sample(sample: list[Any], ranges: int) -> None:
    boundaries: tuple[Any, ...] = equidepth_boundaries(sample, ranges)
    assert len(boundaries) <= ranges - 1
    assert all(low < high for low, high in pairwise(boundaries))
    assert set(boundaries) <= set(sample)
    assert boundaries == equidepth_boundaries(sorted(sample), ranges)
    result = counted_ranges(sample, boundaries)
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


def test_no_sample_gives_one_range() -> None:
    for sample, ranges in (([], 10), ([5, 5], 10), ([1, 2, 3], 1)):
        assert equidepth_boundaries(sample, ranges) == ()


def test_heavy_ends_and_middle() -> None:
    assert equidepth_boundaries([0] * 50 + list(range(1, 51)), 4)[0] == 1
    assert equidepth_boundaries([*range(50), *[99] * 50], 4)[-1] == 99
    assert {30, 40} <= {*equidepth_boundaries([*range(25), *[30] * 50, *range(40, 65)], 4)}


STARTS = st.lists(st.integers(-25, 25), max_size=20).map(lambda result: sorted(set(result)))
WEIGHED = st.lists(st.tuples(st.integers(-20, 20), st.floats(0.1, 50)), max_size=60)


def shares(weights: ValueWeights, boundaries: tuple[Any, ...]) -> list[tuple[int, float]]:
    """Values and weight per range, counted one by one."""
    result: list[tuple[int, float]] = [(0, 0.0)] * (len(boundaries) + 1)
    for value, weight in zip(weights.values, weights.weights, strict=True):
        index = sum(1 for boundary in boundaries if boundary <= value)
        result[index] = (result[index][0] + 1, result[index][1] + weight)
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


def test_ranges_start_where_nearby_files_start() -> None:
    weights = ValueWeights.of((value, 1.0) for value in range(1000))
    starts = [0, 95, 210, 290, 405, 500, 596, 702, 810, 899]
    assert aligned_boundaries(weights, 10, starts) == tuple(starts[1:])
    assert aligned_boundaries(weights, 10, []) == tuple(range(100, 1000, 100))
    assert len(aligned_boundaries(weights, 20, starts)) > 15, "files of several ranges are cut"


def test_heavy_values_are_isolated() -> None:
    weights = ValueWeights.of([*((value, 1.0) for value in range(100)), (50, 400.0)])
    assert {50, 51} <= set(aligned_boundaries(weights, 10, []))


def test_values_between_heavy_ones_are_split_finely() -> None:
    heavy = [(index * 100, 1000.0) for index in range(1, 6)]
    weights = ValueWeights.of([*((value, 1.0) for value in range(700)), *heavy])
    boundaries = aligned_boundaries(weights, 40, [])
    assert 36 <= len(boundaries) <= 39
    assert all(rows < 40 for values, rows in shares(weights, boundaries) if values > 1)


TENS = RangePartition("t", "a", LONG, tuple(range(10, 100, 10)))


def counted(partition: RangePartition, values: list[int]) -> np.ndarray:
    return np.bincount(partition.range_ids_of(vector_of(LONG, values)), minlength=partition.size)


def evened_by(partition: RangePartition, values: list[int], target: int) -> RangePartition:
    counts = counted(partition, values)
    heavy = set(heavy_ranges(counts[:-1], target).tolist())
    ranges = partition.range_ids_of(vector_of(LONG, values))
    sample = [v for v, f in zip(values, ranges, strict=True) if int(f) in heavy]
    return evened(partition, counts, target, sample)


def test_even_ranges_are_unchanged() -> None:
    assert evened_by(TENS, list(range(100)), 10) == TENS
    assert evened_by(TENS, [*range(100), *([55] * 1000)], 10).ranges == 10
    alone = RangePartition("t", "a", LONG, ())
    assert evened_by(alone, [7] * 50, 4) == alone


def test_a_heavy_range_is_split_and_light_neighbours_are_merged() -> None:
    values = [*range(100), *range(90, 1090)]
    result = evened_by(TENS, values, 10)
    rows = counted(result, values)[:-1]
    assert len(rows) == 10
    assert rows.max() <= 2 * rows.mean() + 1
    assert result.boundaries[-1] > 900


def test_a_heavy_value_gets_a_narrow_range() -> None:
    values = [*range(100), *([55] * 300), *([57] * 100)]
    result = evened_by(TENS, values, 12)
    assert 55 in result.boundaries or 56 in result.boundaries
    assert counted(result, values)[int(result.range_ids_of(vector_of(LONG, [55]))[0])] <= 305


@random_cases(40, 120, 1000)
def test_evening_adds_no_surplus_ranges_and_no_skew(cases: range) -> None:
    for seed in cases:
        rng = random.Random(seed)
        boundaries = tuple(sorted(rng.sample(range(-50, 50), rng.randint(0, 12))))
        partition = RangePartition("t", "a", LONG, boundaries)
        values = [int(rng.gauss(0, 40)) for _ in range(rng.randint(0, 400))]
        target = rng.randint(1, 20)
        result = evened_by(partition, values, target)
        assert result.ranges <= max(target, partition.ranges), seed
        if values and partition.ranges <= target:
            before, after = counted(partition, values)[:-1], counted(result, values)[:-1]
            assert after.max() <= max(before.max(), 2 * HEAVY * len(values) / target), seed


def test_text_ranges_split() -> None:
    partition = RangePartition("t", "a", STRING, ("m",))
    finer = with_splits(partition, np.array([4, 100]), 4, ["n", "o", "p", "q", "r", "s"])
    assert finer.boundaries[0] == "m"
    assert len(finer.boundaries) > 2


@random_cases(40, 120, 1000)
def test_the_largest_range_does_not_grow(cases: range) -> None:
    for seed in cases:
        rng = random.Random(seed)
        centers = [rng.randrange(400) for _ in range(3)]
        values = [rng.choice(centers) + int(rng.expovariate(0.05)) for _ in range(600)]
        cuts = tuple(sorted(set(rng.sample(range(500), rng.randint(2, 40)))))
        partition = RangePartition("t", "a", LONG, cuts)
        result = evened_by(partition, values, rng.randint(1, 60))
        assert counted(result, values).max() <= counted(partition, values).max(), seed


def test_full_samples_are_certain() -> None:
    rows = np.full(6, 100.0)
    result = chances(rows, rows, np.full(6, 10.0), np.array([0, 3, 0, 1, 0, 0.0]))
    assert result.likely.mean == pytest.approx([0, 1, 0, 1, 0, 0])
    assert result.low.mean == pytest.approx(result.high.mean), "no uncertainty"


def test_unsampled_ranges_resemble_neighbours() -> None:
    """Every tenth range is sampled; the last tenth of all ranges is in the sketch."""
    truth = np.arange(1000) >= 900
    sampled = np.where(np.arange(1000) % 10 == 5, 100.0, 0.0)
    result = chances(np.full(1000, 100.0), sampled, sampled / 10, sampled / 10 * truth)
    likely = result.likely.mean
    assert likely.sum() == pytest.approx(100, abs=5)
    assert likely[:885].sum() < 2
    assert result.off == pytest.approx(0.01 / math.sqrt(12), rel=0.2), "the border is in one gap"


def test_a_range_at_a_border_resembles_one_side() -> None:
    """Half the gap before the first range with hits is in the sketch, despite many groups."""
    truth = np.arange(1000) >= 900
    sampled = np.where(np.arange(1000) % 50 < 2, 100.0, 0.0)
    likely = chances(np.full(1000, 1000.0), sampled, sampled / 20, sampled / 20 * truth).likely.mean
    assert likely[852:900].sum() == pytest.approx(24, abs=4)
    assert likely[:852].sum() < 5
    assert likely[900:].sum() > 97


def test_sparse_hits_favour_no_range() -> None:
    """15 hits among 6,000 sampled groups are too few to prefer any range."""
    sampled = np.where(np.arange(1000) % 20 == 3, 400.0, 0.0)
    hits = np.zeros(1000)
    hits[np.arange(3, 1000, 20)[[1, 4, 9, 13, 16, 19, 23, 26, 29, 33, 36, 39, 42, 45, 48]]] = 1
    result = chances(np.full(1000, 400.0), sampled, sampled * 0.3, hits)
    likely = result.likely.mean
    assert likely.sum() == pytest.approx(1000 * (1 - math.exp(-0.3)), rel=0.25)
    assert result.low.mean.sum() < likely.sum() < result.high.mean.sum()


@pytest.mark.parametrize(("share", "off"), [(0.001, 0.5), (0.01, 0.2), (0.1, 0.02)])
def test_groups_not_sampled_are_estimated(share: float, off: float) -> None:
    """The sample has a twentieth of the hundred groups of each range."""
    truth = np.random.default_rng(1).random((2000, 100)) < share
    hits = truth[:, :5].sum(axis=1)
    result = chances(np.full(2000, 1e4), np.full(2000, 500.0), np.full(2000, 5.0), hits * 1.0)
    actual, likely = truth.any(axis=1).sum(), result.likely.mean
    assert likely.sum() == pytest.approx(actual, rel=off)
    assert likely[hits > 0] == pytest.approx(1)
    assert result.low.mean.sum() - 1 <= actual <= result.high.mean.sum() + 1


def test_ranges_without_hits_are_unlikely_not_impossible() -> None:
    result = chances(np.full(100, 100.0), np.full(100, 50.0), np.full(100, 50.0), np.zeros(100))
    assert 0 < result.likely.mean.max() < 0.1
    assert result.high.mean.sum() > 2 * result.likely.mean.sum() > 0 == result.low.mean.sum()


def test_an_empty_sample() -> None:
    nothing = np.zeros(3)
    result = chances(np.full(3, 9.0), nothing, nothing, nothing)
    assert result.likely.mean.tolist() == [0.5, 0.5, 0.5]
    assert (result.low.mean == 0).all()
    assert (result.high.mean == 1).all()


@pytest.mark.parametrize("rate", [0.3, 2.0, 10.0, 200.0])
def test_the_interval_of_hits_has_most_true_rates(rate: float) -> None:
    hits = np.random.default_rng(9).poisson(rate, 2000)
    ends = np.array([hits_between(float(count)) for count in hits])
    assert ((ends[:, 0] <= rate) & (rate <= ends[:, 1])).mean() > 0.85


def test_a_mixture_is_scaled_and_merged() -> None:
    weights = np.array([[0.25] * 5, [0.75] * 5])
    mixture = Mixture(weights, np.array([[1.0, 0, 0, 0, 0.5], [0.5, 0.5, 0, 0.2, 0.5]]))
    assert mixture.mean == pytest.approx([0.625, 0.375, 0, 0.15, 0.5])
    assert mixture.at_most(0.5).mean.sum() == pytest.approx(0.5)
    assert mixture.at_most(9).mean.sum() == pytest.approx(mixture.mean.sum())
    assert mixture.at_most(9, 0.5).mean.sum() == pytest.approx(mixture.mean.sum() / 2)
    merged = mixture.merged(2)
    assert merged.weights[:, 0].tolist() == [0.25, 0.75]
    assert merged.chances == pytest.approx(np.array([[1, 0, 0.5], [0.75, 0.2, 0.5]]))


def test_a_rate_from_a_mean_without_zeros() -> None:
    drawn = np.random.default_rng(5).poisson(1.3, 100_000)
    assert rate_where_not_zero(float(drawn[drawn > 0].mean())) == pytest.approx(1.3, abs=0.03)
    assert rate_where_not_zero(1.0) < 0.01
