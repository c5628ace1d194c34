"""Sums of doubles: close to the truth whatever comes and goes, and honest about how close."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import repeat
from random import Random

import numpy as np
import pytest

from impctl.data.keys import group_rows
from impctl.data.schema import DOUBLE, LONG
from impctl.data.vector import Vector
from impctl.engine import exact_sums
from impctl.engine.accumulators import PARTIAL_ROWS, Count, FloatSum, Meaning, PartialColumn, Values
from tests.support.random_cases import random_cases

MODERATE = (1e16, -1e16, 1.0, -1.0, 0.1, 1e-300, 5e-324)
EXTREME = (0.0, -0.0, 2.0**999, -(2.0**1000), 2.0**1022, 2.0**-1022, -5e-324)


def some_double(rng: Random, known: Sequence[float]) -> float:
    """One of these, a whole number, or a number of any magnitude up to 1e300."""
    match rng.randrange(3):
        case 0:
            return rng.choice(known)
        case 1:
            return float(rng.randint(-(2 ** (most := rng.randint(1, 53))), 2**most))
        case _:
            return math.ldexp(rng.uniform(-1, 1), rng.randint(-1070, 996))


def exact_sum(values: Iterable[float], weights: Iterable[int] = repeat(1)) -> Fraction:
    """In units of the least double, since adding fractions takes ten times as long."""
    total = 0
    for value, weight in zip(values, weights, strict=False):
        numerator, denominator = value.as_integer_ratio()
        total += weight * numerator * (_UNITS // denominator)
    return Fraction(total, _UNITS)


_UNITS = 2**1074


def state_of(steps: list[list[tuple[float, int]]], *, integral: bool = False) -> Values:
    """One group's state after batches of (value, weight)."""
    total, rows = FloatSum("x", 0, integral), Count("x", 0)
    names = {**total.columns, **rows.columns, "rows": np.int64}
    state: Values = {name: np.zeros(1, dtype=kind) for name, kind in names.items()}
    for step in steps:
        vector = Vector(DOUBLE, np.array([value for value, _ in step]))
        weights = np.array([weight for _, weight in step], dtype=np.int64)
        grouping = group_rows([Vector(LONG, np.zeros(len(step), dtype=np.int64))], len(step))
        delta = {**total.delta(vector, weights, grouping), **rows.delta(vector, weights, grouping)}
        state = {
            **total.add(state, delta),
            **rows.add(state, delta),
            "rows": state["rows"] + weights.sum(),
        }
    return state


def sum_of(*steps: list[tuple[float, int]], integral: bool = False) -> tuple[float, float]:
    """One group's sum after batches of (value, weight), and its error."""
    return shown(FloatSum("x", 0, integral), state_of([*steps], integral=integral))


def shown(total: FloatSum, state: Values) -> tuple[float, float]:
    vector = total.value(state, DOUBLE)
    assert vector.error is not None
    return float(vector.values[0]), float(vector.error[0])


@random_cases(60, 280, 5_000)
def test_the_bound_holds_against_exact_fractions_and_any_order(cases: range) -> None:
    for seed in cases:
        rng = Random(f"bound {seed}")
        kept = [some_double(rng, MODERATE) for _ in range(rng.randint(1, 8))]
        passing = [
            (some_double(rng, MODERATE), rng.randint(1, 3)) for _ in range(rng.randint(0, 8))
        ]
        steps = [[(value, 1) for value in kept]]
        if passing:
            steps = [passing, *steps, [(value, -weight) for value, weight in passing]]
        value, error = sum_of(*steps)
        if math.isinf(error):
            continue
        mine = Fraction(value)
        assert abs(mine - exact_sum(kept)) <= Fraction(error), seed
        for order in (kept, kept[::-1], sorted(kept), sorted(kept, key=abs)):
            spark = 0.0
            for value in order:
                spark += value
            assert abs(Fraction(spark) - mine) <= Fraction(error), seed


def test_a_huge_value_that_came_and_went_leaves_the_small_one() -> None:
    value, error = sum_of([(1e16, 1)], [(1.0, 1)], [(1e16, -1)])
    assert value == 1.0
    assert error < 1e-10


def test_copies_that_came_together_and_went_one_by_one() -> None:
    """Three times a value is no double: what rounding it would leave is more than the rest."""
    large = 1e15 + 1 / 8
    value, error = sum_of([(large, 3)], [(0.5, 1)], *[[(large, -1)]] * 3)
    assert abs(value - 0.5) <= error < 1e-10


def test_what_a_captured_sum_may_be_off_by_is_kept() -> None:
    """Spark's partial sum is rounded; deleting most of it must not make the rest look exact."""
    total, huge = FloatSum("x", 0, False), 195326090969723374956.0
    one = np.ones(1, dtype=np.int64)
    grouping = group_rows([Vector(LONG, one)], 1)
    partials = {
        PartialColumn(Meaning.SUM): np.array([huge + 5]),
        PartialColumn(Meaning.SIZE): np.array([huge + 5]),
        PARTIAL_ROWS: one * 2,
    }
    empty = {name: np.zeros(1, dtype=kind) for name, kind in total.columns.items()}
    state = {**total.add(empty, total.partial(partials, grouping, 1)), "rows": one * 2}
    gone = total.delta(Vector(DOUBLE, np.array([huge])), -one, grouping)
    left, error = shown(total, {**total.add(state, gone), "rows": one})
    assert abs(left - 5.0) <= error


def test_nan_and_infinities_come_and_go() -> None:
    specials = [(math.nan, 1), (math.inf, 1), (2.5, 1)]
    assert math.isnan(sum_of(specials)[0])
    assert sum_of(specials, [(math.nan, -1)])[0] == math.inf
    assert sum_of(specials, [(math.nan, -1), (math.inf, -1)])[0] == 2.5


def test_both_infinities_are_nan_together_and_themselves_apart() -> None:
    both = [(math.inf, 1), (-math.inf, 1), (2.5, 1)]
    assert math.isnan(sum_of(both)[0])
    for gone, left in ((math.inf, -math.inf), (-math.inf, math.inf)):
        assert sum_of(both, [(gone, -1)])[0] == left


def test_whole_numbers_are_exact_and_say_so() -> None:
    assert sum_of([(3.0, 1), (4.0, 2)], [(4.0, -1)], integral=True) == (7.0, 0.0)
    assert sum_of([(3.0, 1), (-0.0, 2), (0.5, 1)])[1] > 0
    assert sum_of([(3.0, 1), (0.5, 1)], [(0.5, -1)])[1] == 0
    assert sum_of([(2.0**53, 1), (1.0, 1)], integral=True)[1] > 0


def test_whole_numbers_that_spark_took_away_uncounted_do_not_make_the_rest_whole() -> None:
    total, count = FloatSum("x", 0, False), Count("x", 0)
    one = np.ones(1, dtype=np.int64)
    state = state_of([[(2.0, 1), (3.0, 1), (0.5, 1)]])
    partials = {
        PartialColumn(Meaning.SUM): np.array([3.0]),
        PartialColumn(Meaning.SIZE): np.array([3.0]),
        PartialColumn(Meaning.COUNT): one,
        PARTIAL_ROWS: one,
    }
    grouping = group_rows([Vector(LONG, one)], 1)
    gone = {**total.partial(partials, grouping, -1), **count.partial(partials, grouping, -1)}
    state = {**total.add(state, gone), **count.add(state, gone), "rows": state["rows"] - 1}
    value, error = shown(total, state)
    assert value == 2.5
    assert error > 0


@random_cases(40, 220, 4_000)
def test_sums_by_slices_are_within_their_bound_group_by_group(cases: range) -> None:
    for seed in cases:
        rng = Random(f"slices {seed}")
        groups = [
            [some_double(rng, EXTREME) for _ in range(rng.choice((1, 1, 2, 5, 40)))]
            for _ in range(rng.randint(1, 5))
        ]
        values = np.array([value for group in groups for value in group])
        starts = np.cumsum([0, *map(len, groups[:-1])])
        with np.errstate(all="ignore"):
            high, low = exact_sums.compensated_grouped_sums(values, starts)
        for at, group in enumerate(groups):
            reach = exact_sum(map(abs, group))
            if reach >= Fraction(2) ** 1020:
                continue  # what overflows on the way is told elsewhere
            error = exact_sum([float(high[at]), float(low[at])]) - exact_sum(group)
            assert abs(error) <= reach * Fraction(exact_sums.DRIFT), seed
            assert float(high[at]) + float(low[at]) == float(high[at]), seed


@pytest.mark.slow
def test_sums_of_many_rows_of_all_sizes_are_within_their_bound() -> None:
    """Up to as many rows as are summed by slices, and one more."""
    random = np.random.default_rng(1)
    for sizes in ((1, 30_000, 3), tuple([20] * 1000), (262_143,), (262_144,)):
        values = random.standard_normal(sum(sizes)) * 2.0 ** random.integers(-90, 90, sum(sizes))
        values[::3] *= -1
        starts = np.cumsum([0, *sizes[:-1]])
        high, low = exact_sums.compensated_grouped_sums(values, starts)
        for at in range(min(len(sizes), 20)):
            group = values[starts[at] : starts[at] + sizes[at]].tolist()
            error = exact_sum([float(high[at]), float(low[at])]) - exact_sum(group)
            assert abs(error) <= exact_sum(map(abs, group)) * Fraction(exact_sums.DRIFT)


@pytest.mark.slow
def test_one_power_serves_only_groups_that_are_near_each_other() -> None:
    """A group far below the greatest keeps the digits that its own power would leave it."""
    random = np.random.default_rng(2)
    for far in (0, 10, 60, 300):
        sizes = [1000] * 8
        scale = np.repeat(2.0 ** (-far * np.arange(8) / 8), 1000)
        values = random.standard_normal(8000) * scale
        starts = np.cumsum([0, *sizes[:-1]])
        reach = np.add.reduceat(np.abs(values), starts)
        high, low = exact_sums.compensated_grouped_sums(values, starts, reach)
        for at, start in enumerate(starts.tolist()):
            group = [Fraction(value) for value in values[start : start + 1000].tolist()]
            result = Fraction(float(high[at])) + Fraction(float(low[at]))
            assert abs(result - sum(group)) <= sum(map(abs, group)) * Fraction(2) ** -102


@random_cases(40, 220, 4_000)
def test_sums_of_values_that_count_several_times_are_within_their_bound(cases: range) -> None:
    for seed in cases:
        rng = Random(f"several times {seed}")
        values = [some_double(rng, EXTREME) for _ in range(rng.choice((1, 2, 5, 40)))]
        weights = [rng.choice((-7, -1, 0, 1, 2, 1000)) for _ in values]
        reach = exact_sum(map(abs, values), map(abs, weights))
        if reach >= Fraction(2) ** 1020:
            continue  # as above
        starts = np.zeros(1, dtype=np.int64)
        with np.errstate(all="ignore"):
            high, low = exact_sums.grouped_products(np.array(values), np.array(weights), starts)
        error = exact_sum([float(high[0]), float(low[0])]) - exact_sum(values, weights)
        assert abs(error) <= reach * Fraction(exact_sums.DRIFT), seed
