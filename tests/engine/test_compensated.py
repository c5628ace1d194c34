"""Sums of doubles: close to the truth whatever comes and goes, and honest about how close."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from impctl.data.keys import group_rows
from impctl.data.schema import DOUBLE, LONG
from impctl.data.vector import Vector
from impctl.engine import compensated
from impctl.engine.accumulators import Count, FloatSum, Values
from impctl.engine.partial_column import ROWS, Meaning, PartialColumn

FINITE = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, width=64, min_value=-1e300, max_value=1e300),
    st.sampled_from([1e16, -1e16, 1.0, -1.0, 0.1, 1e-300, 5e-324]),
)


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


@settings(max_examples=200, deadline=None)
@given(
    kept=st.lists(FINITE, min_size=1, max_size=8),
    passing=st.lists(st.tuples(FINITE, st.integers(1, 3)), max_size=8),
)
def test_the_bound_holds_against_exact_fractions_and_any_order(
    kept: list[float], passing: list[tuple[float, int]]
) -> None:
    steps = [[(value, 1) for value in kept]]
    if passing:
        steps = [passing, *steps, [(value, -weight) for value, weight in passing]]
    vector = FloatSum("x", 0, False).value(state_of(steps), DOUBLE)
    assert vector.error is not None
    error = float(vector.error[0])
    if math.isinf(error):
        return
    truth = sum((Fraction(value) for value in kept), Fraction(0))
    assert abs(Fraction(float(vector.values[0])) - truth) <= Fraction(error)
    for order in (kept, kept[::-1], sorted(kept), sorted(kept, key=abs)):
        spark = 0.0
        for value in order:
            spark += value
        assert abs(Fraction(spark) - Fraction(float(vector.values[0]))) <= Fraction(error)


def test_a_huge_value_that_came_and_went_leaves_the_small_one() -> None:
    vector = FloatSum("x", 0, False).value(
        state_of([[(1e16, 1)], [(1.0, 1)], [(1e16, -1)]]), DOUBLE
    )
    assert vector.values[0] == 1.0
    assert vector.error is not None
    assert vector.error[0] < 1e-10


def test_copies_that_came_together_and_went_one_by_one() -> None:
    """Three times a value is no double: what rounding it would leave is more than the rest."""
    value = 1e15 + 1 / 8
    total = FloatSum("x", 0, False)
    vector = total.value(state_of([[(value, 3)], [(0.5, 1)], *[[(value, -1)]] * 3]), DOUBLE)
    assert vector.error is not None
    assert abs(vector.values[0] - 0.5) <= vector.error[0]
    assert vector.error[0] < 1e-10


def test_what_a_captured_sum_may_be_off_by_is_kept() -> None:
    """Spark's partial sum is rounded; deleting most of it must not make the rest look exact."""
    total, huge = FloatSum("x", 0, False), 195326090969723374956.0
    one = np.ones(1, dtype=np.int64)
    grouping = group_rows([Vector(LONG, one)], 1)
    partials = {
        PartialColumn(Meaning.SUM): np.array([huge + 5]),
        PartialColumn(Meaning.SIZE): np.array([huge + 5]),
        ROWS: one * 2,
    }
    empty = {name: np.zeros(1, dtype=kind) for name, kind in total.columns.items()}
    state = {**total.add(empty, total.partial(partials, grouping, 1)), "rows": one * 2}
    gone = total.delta(Vector(DOUBLE, np.array([huge])), -one, grouping)
    left = total.value({**total.add(state, gone), "rows": one}, DOUBLE)
    assert left.error is not None
    assert abs(left.values[0] - 5.0) <= left.error[0]


def test_nan_and_infinities_come_and_go() -> None:
    total = FloatSum("x", 0, False)
    specials = [(math.nan, 1), (math.inf, 1), (2.5, 1)]
    assert math.isnan(total.value(state_of([specials]), DOUBLE).values[0])
    state = state_of([specials, [(math.nan, -1)]])
    assert total.value(state, DOUBLE).values[0] == math.inf
    state = state_of([specials, [(math.nan, -1), (math.inf, -1)]])
    assert total.value(state, DOUBLE).values[0] == 2.5


def test_both_infinities_are_nan_together_and_themselves_apart() -> None:
    total = FloatSum("x", 0, False)
    both = [(math.inf, 1), (-math.inf, 1), (2.5, 1)]
    assert math.isnan(total.value(state_of([both]), DOUBLE).values[0])
    for gone, left in ((math.inf, -math.inf), (-math.inf, math.inf)):
        assert total.value(state_of([both, [(gone, -1)]]), DOUBLE).values[0] == left


def test_whole_numbers_are_exact_and_say_so() -> None:
    state = state_of([[(3.0, 1), (4.0, 2)], [(4.0, -1)]], integral=True)
    vector = FloatSum("x", 0, True).value(state, DOUBLE)
    assert vector.values[0] == 7.0
    assert vector.error is not None
    assert vector.error[0] == 0.0
    found = FloatSum("x", 0, False).value(state_of([[(3.0, 1), (-0.0, 2), (0.5, 1)]]), DOUBLE)
    assert found.error is not None
    assert found.error[0] > 0
    found = FloatSum("x", 0, False).value(state_of([[(3.0, 1), (0.5, 1)], [(0.5, -1)]]), DOUBLE)
    assert found.error is not None
    assert found.error[0] == 0
    wide = state_of([[(2.0**53, 1), (1.0, 1)]], integral=True)
    error = FloatSum("x", 0, True).value(wide, DOUBLE).error
    assert error is not None
    assert error[0] > 0


def test_whole_numbers_that_spark_took_away_uncounted_do_not_make_the_rest_whole() -> None:
    total, count = FloatSum("x", 0, False), Count("x", 0)
    one = np.ones(1, dtype=np.int64)
    state = state_of([[(2.0, 1), (3.0, 1), (0.5, 1)]])
    partials = {
        PartialColumn(Meaning.SUM): np.array([3.0]),
        PartialColumn(Meaning.SIZE): np.array([3.0]),
        PartialColumn(Meaning.COUNT): one,
        ROWS: one,
    }
    grouping = group_rows([Vector(LONG, one)], 1)
    gone = {**total.partial(partials, grouping, -1), **count.partial(partials, grouping, -1)}
    state = {**total.add(state, gone), **count.add(state, gone), "rows": state["rows"] - 1}
    found = total.value(state, DOUBLE)
    assert found.error is not None
    assert found.values[0] == 2.5
    assert found.error[0] > 0


WIDE = st.one_of(
    FINITE,
    st.integers(-(2**53), 2**53).map(float),
    st.builds(math.ldexp, st.floats(-1, 1, allow_nan=False), st.integers(-1070, 999)),
    st.sampled_from([0.0, -0.0, 2.0**999, -(2.0**1000), 2.0**1022, 2.0**-1022, -5e-324]),
)


@settings(max_examples=400, deadline=None)
@given(groups=st.lists(st.lists(WIDE, min_size=1, max_size=40), min_size=1, max_size=5))
def test_sums_by_slices_are_within_their_bound_group_by_group(groups: list[list[float]]) -> None:
    values = np.array([value for group in groups for value in group])
    starts = np.cumsum([0, *map(len, groups[:-1])])
    with np.errstate(all="ignore"):
        high, low = compensated.grouped_sums(values, starts)
    for at, group in enumerate(groups):
        reach = sum((abs(Fraction(value)) for value in group), Fraction(0))
        if reach >= Fraction(2) ** 1020:
            continue  # what overflows on the way is told elsewhere
        truth = sum((Fraction(value) for value in group), Fraction(0))
        found = Fraction(float(high[at])) + Fraction(float(low[at]))
        assert abs(found - truth) <= reach * Fraction(compensated.DRIFT)
        assert float(high[at]) + float(low[at]) == float(high[at])


def test_sums_of_many_rows_of_all_sizes_are_within_their_bound() -> None:
    random = np.random.default_rng(1)
    for sizes in ((200_000,), (1, 100_000, 3), tuple([20] * 1000), (262_143,), (262_144,)):
        values = random.standard_normal(sum(sizes)) * 2.0 ** random.integers(-90, 90, sum(sizes))
        values[::3] *= -1
        starts = np.cumsum([0, *sizes[:-1]])
        high, low = compensated.grouped_sums(values, starts)
        for at in range(min(len(sizes), 20)):
            group = values[starts[at] : starts[at] + sizes[at]].tolist()
            truth = sum(map(Fraction, group), Fraction(0))
            found = Fraction(float(high[at])) + Fraction(float(low[at]))
            reach = sum((abs(Fraction(value)) for value in group), Fraction(0))
            assert abs(found - truth) <= reach * Fraction(compensated.DRIFT)


def test_one_power_serves_only_groups_that_are_near_each_other() -> None:
    """A group far below the greatest keeps the digits that its own power would leave it."""
    random = np.random.default_rng(2)
    for far in (0, 10, 60, 300):
        sizes = [1000] * 8
        scale = np.repeat(2.0 ** (-far * np.arange(8) / 8), 1000)
        values = random.standard_normal(8000) * scale
        starts = np.cumsum([0, *sizes[:-1]])
        reach = np.add.reduceat(np.abs(values), starts)
        high, low = compensated.grouped_sums(values, starts, reach)
        for at, start in enumerate(starts.tolist()):
            group = [Fraction(value) for value in values[start : start + 1000].tolist()]
            found = Fraction(float(high[at])) + Fraction(float(low[at]))
            assert abs(found - sum(group)) <= sum(map(abs, group)) * Fraction(2) ** -102


@settings(max_examples=400, deadline=None)
@given(
    rows=st.lists(
        st.tuples(WIDE, st.sampled_from([-7, -1, 0, 1, 2, 1000])), min_size=1, max_size=40
    )
)
def test_sums_of_values_that_count_several_times_are_within_their_bound(
    rows: list[tuple[float, int]],
) -> None:
    values = np.array([value for value, _ in rows])
    weights = np.array([weight for _, weight in rows], dtype=np.int64)
    products = [Fraction(value) * weight for value, weight in rows]
    reach = sum(map(abs, products), Fraction(0))
    if reach >= Fraction(2) ** 1020:
        return  # as above
    with np.errstate(all="ignore"):
        high, low = compensated.grouped_products(values, weights, np.zeros(1, dtype=np.int64))
    found = Fraction(float(high[0])) + Fraction(float(low[0]))
    assert abs(found - sum(products)) <= reach * Fraction(compensated.DRIFT)
