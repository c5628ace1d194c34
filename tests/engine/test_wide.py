"""Sums in two words against Python's integers."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from impctl.data.schema import decimal
from impctl.engine.accumulators import ExactSum
from impctl.engine.exact_sums import add, exact_grouped_sums, unwiden, widen
from impctl.errors import EvaluationError
from tests.support.random_cases import random_seeds

LIMIT = 2**127
HARD = [0, -1, 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, -(2**64), LIMIT - 1]


def some_number(rng: Random, most: int = LIMIT) -> int:
    """One of the hard ones, or any below `most` in magnitude, small ones as often as large ones."""
    if rng.random() < 0.4:
        return rng.choice([one for one in (*HARD, -LIMIT) if -most <= one < most])
    bits = rng.randint(0, most.bit_length() - 1)
    return rng.randint(-(1 << bits), (1 << bits) - 1)


def column(values: list[int]) -> Any:
    """As the engine holds them: int64 where all fit."""
    narrow = all(-(2**63) <= value < 2**63 for value in values)
    return np.array(values, dtype=np.int64 if narrow else object)


@random_seeds(15, 38, 600)
def test_widened_and_back(seed: int) -> None:
    rng = Random(f"widened {seed}")
    values = [some_number(rng) for _ in range(rng.randrange(9))]
    high, low = widen(column(values))
    assert high.dtype == np.int64
    assert low.dtype == np.uint64
    assert [int(h) * 2**64 + int(w) for h, w in zip(high, low, strict=True)] == values
    result = unwiden(high, low)
    assert result.tolist() == values
    assert result.dtype == column(values).dtype


@random_seeds(15, 38, 600)
def test_sums_carry(seed: int) -> None:
    rng = Random(f"sums {seed}")
    pairs = [(some_number(rng), some_number(rng)) for _ in range(8)]
    pairs = [(a, b) for a, b in pairs if -LIMIT <= a + b < LIMIT]
    left, right = column([a for a, _ in pairs]), column([b for _, b in pairs])
    result = unwiden(*add(*widen(left), *widen(right)))
    assert result.tolist() == [a + b for a, b in pairs]


@random_seeds(8, 24, 400)
def test_what_comes_and_goes_leaves_nothing(seed: int) -> None:
    rng = Random(f"nothing {seed}")
    values = [some_number(rng, 2**120) for _ in range(rng.randint(1, 30))]
    total = widen(np.zeros(1, dtype=np.int64))
    for value in [*values, *(-value for value in reversed(values))]:
        total = add(*total, *widen(column([value])))
    assert unwiden(*total).tolist() == [0]


@pytest.mark.parametrize("value", [LIMIT, -LIMIT - 1, 10**60])
def test_what_does_not_fit_is_refused(value: int) -> None:
    with pytest.raises(EvaluationError) as caught:
        widen(np.array([0, value], dtype=object))
    assert caught.value.code == "arithmetic_overflow"


@random_seeds(20, 50, 800)
def test_sums_of_groups_are_exact(seed: int) -> None:
    rng = Random(f"groups {seed}")
    sizes = [rng.randint(1, 4) for _ in range(rng.randint(1, 5))]
    big = rng.choice((10, 2**40, 2**63, 10**38))
    values = [rng.choice((-big, big - 1, rng.randint(-big, big - 1))) for _ in range(sum(sizes))]
    weights = [rng.randint(-3, 3) for _ in values]
    order = rng.sample(range(len(values)), len(values))
    starts = np.cumsum([0, *sizes[:-1]])
    result = exact_grouped_sums(column(values), np.array(weights), np.array(order), starts)
    expected = [
        sum(values[row] * weights[row] for row in order[start : start + size])
        for start, size in zip(starts.tolist(), sizes, strict=True)
    ]
    assert result.tolist() == expected


def test_int64_is_left_before_it_wraps() -> None:
    values = np.full(4, 2**62, dtype=np.int64)
    everything = np.arange(4), np.zeros(1, dtype=np.int64)
    assert exact_grouped_sums(values, np.ones(4, dtype=np.int64), *everything).tolist() == [2**64]
    lowest = np.array([-(2**63)])
    assert exact_grouped_sums(lowest, np.array([-1]), np.arange(1), np.zeros(1, int)).tolist() == [
        2**63
    ]


def test_adding_past_128_bits_is_refused_not_wrapped() -> None:
    one = widen(np.array([9 * 10**37], dtype=object))
    other = widen(np.array([17 * 10**37], dtype=object))
    with pytest.raises(EvaluationError, match="38 digits"):
        add(*one, *other)
    low = widen(np.array([-(9 * 10**37)], dtype=object))
    with pytest.raises(EvaluationError, match="38 digits"):
        add(*low, *widen(np.array([-(17 * 10**37)], dtype=object)))


def test_a_sum_that_fills_its_type_is_told_and_one_beyond_is_refused() -> None:
    total = ExactSum("x", 0, decimal(10, 2))
    for sign in (1, -1):
        for value, fits in ((10**10 - 1, True), (10**10, False)):
            high, low = widen(column([sign * value]))
            state = {"high0": high, "low0": low}
            if fits:
                assert total.value(state, total.result).values[0] == sign * value
                continue
            with pytest.raises(EvaluationError, match="does not fit"):
                total.value(state, total.result)
