"""Sums and variances after inserts and deletes, and the bounds of their errors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import repeat
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.compile.aggregates import read_calls
from impctl.data.keys import group_rows
from impctl.data.schema import DOUBLE, INTEGER, LONG, Column, Schema, SqlType, decimal
from impctl.data.vector import Vector, from_arrow
from impctl.engine import exact_sums
from impctl.engine.accumulators import (
    PARTIAL_ROWS,
    Count,
    ExactSum,
    FloatSum,
    Meaning,
    PartialColumn,
    Values,
)
from impctl.engine.aggregate import AggregateOperator
from impctl.engine.batch import Batch
from impctl.engine.exact_sums import add, exact_grouped_sums, unwiden, widen
from impctl.engine.linear import ProjectOperator
from impctl.errors import EvaluationError
from impctl.plan.nodes import Aggregate
from impctl.sql.statement import parse_query
from tests.support.random_cases import random_cases, random_seeds

MODERATE = (1e16, -1e16, 1.0, -1.0, 0.1, 1e-300, 5e-324)
EXTREME = (0.0, -0.0, 2.0**999, -(2.0**1000), 2.0**1022, 2.0**-1022, -5e-324)


def some_double(rng: Random, known: Sequence[float]) -> float:
    """A `known` value, a whole number, or a number of any magnitude up to 1e300."""
    match rng.randrange(3):
        case 0:
            return rng.choice(known)
        case 1:
            return float(rng.randint(-(2 ** (most := rng.randint(1, 53))), 2**most))
        case _:
            return math.ldexp(rng.uniform(-1, 1), rng.randint(-1070, 996))


def exact_sum(values: Iterable[float], weights: Iterable[int] = repeat(1)) -> Fraction:
    """Add in units of the smallest double, ten times as fast as adding fractions."""
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
    return float(vector.values[0]), float(vector.error[0])


@random_cases(60, 280, 5_000)
def test_sum_error_covers_the_exact_sum_in_any_order(cases: range) -> None:
    for seed in cases:
        rng = Random(f"bound {seed}")
        kept = [some_double(rng, MODERATE) for _ in range(rng.randint(1, 8))]
        temporary = [
            (some_double(rng, MODERATE), rng.randint(1, 3)) for _ in range(rng.randint(0, 8))
        ]
        steps = [[(value, 1) for value in kept]]
        if temporary:
            steps = [temporary, *steps, [(value, -weight) for value, weight in temporary]]
        value, error = sum_of(*steps)
        if math.isinf(error):
            continue
        exact_value = Fraction(value)
        assert abs(exact_value - exact_sum(kept)) <= Fraction(error), seed
        for order in (kept, kept[::-1], sorted(kept), sorted(kept, key=abs)):
            spark = 0.0
            for value in order:
                spark += value
            assert abs(Fraction(spark) - exact_value) <= Fraction(error), seed


def test_deleted_values_leave_the_rest() -> None:
    value, error = sum_of([(1e16, 1)], [(1.0, 1)], [(1e16, -1)])
    assert value == 1.0
    assert error < 1e-10
    # Three times this value is not a double; its rounding error would exceed the rest.
    large = 1e15 + 1 / 8
    value, error = sum_of([(large, 3)], [(0.5, 1)], *[[(large, -1)]] * 3)
    assert abs(value - 0.5) <= error < 1e-10


def test_the_error_of_a_captured_sum_is_kept() -> None:
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
    deleted = total.delta(Vector(DOUBLE, np.array([huge])), -one, grouping)
    remaining, error = shown(total, {**total.add(state, deleted), "rows": one})
    assert abs(remaining - 5.0) <= error


def test_nan_and_infinities_are_deleted() -> None:
    specials = [(math.nan, 1), (math.inf, 1), (2.5, 1)]
    assert math.isnan(sum_of(specials)[0])
    assert sum_of(specials, [(math.nan, -1)])[0] == math.inf
    assert sum_of(specials, [(math.nan, -1), (math.inf, -1)])[0] == 2.5
    both = [(math.inf, 1), (-math.inf, 1), (2.5, 1)]
    assert math.isnan(sum_of(both)[0])
    for deleted, remaining in ((math.inf, -math.inf), (-math.inf, math.inf)):
        assert sum_of(both, [(deleted, -1)])[0] == remaining


def test_sums_of_whole_numbers_are_exact() -> None:
    assert sum_of([(3.0, 1), (4.0, 2)], [(4.0, -1)], integral=True) == (7.0, 0.0)
    assert sum_of([(3.0, 1), (-0.0, 2), (0.5, 1)])[1] > 0
    assert sum_of([(3.0, 1), (0.5, 1)], [(0.5, -1)])[1] == 0
    assert sum_of([(2.0**53, 1), (1.0, 1)], integral=True)[1] > 0
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
    deleted = {**total.partial(partials, grouping, -1), **count.partial(partials, grouping, -1)}
    state = {**total.add(state, deleted), **count.add(state, deleted), "rows": state["rows"] - 1}
    value, error = shown(total, state)
    assert value == 2.5
    assert error > 0


@random_cases(40, 220, 4_000)
def test_sliced_sums_of_groups_are_within_their_bound(cases: range) -> None:
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
        for index, group in enumerate(groups):
            # Intermediate overflow is tested elsewhere.
            if exact_sum(map(abs, group)) < Fraction(2) ** 1020:
                check_sum((high, low), index, group, seed)
                assert float(high[index]) + float(low[index]) == float(high[index]), seed


@pytest.mark.slow
def test_sums_of_many_rows_are_within_their_bound() -> None:
    """Up to the largest group that is summed in slices, and one row more."""
    random = np.random.default_rng(1)
    for sizes in ((1, 30_000, 3), tuple([20] * 1000), (262_143,), (262_144,)):
        values = random.standard_normal(sum(sizes)) * 2.0 ** random.integers(-90, 90, sum(sizes))
        values[::3] *= -1
        starts = np.cumsum([0, *sizes[:-1]])
        sums = exact_sums.compensated_grouped_sums(values, starts)
        for index in range(min(len(sizes), 20)):
            check_sum(
                sums, index, values[starts[index] : starts[index] + sizes[index]].tolist(), index
            )


def check_sum(sums: Any, index: int, group: list[float], label: object) -> None:
    """Assert that the two parts of a group's sum are within the promised error."""
    error = exact_sum([float(part[index]) for part in sums]) - exact_sum(group)
    assert abs(error) <= exact_sum(map(abs, group)) * Fraction(exact_sums.DRIFT), label


@pytest.mark.slow
def test_a_small_group_beside_large_ones_stays_precise() -> None:
    """A group far below the largest one has as many digits as it would have alone."""
    random = np.random.default_rng(2)
    for far in (0, 10, 60, 300):
        sizes = [1000] * 8
        scale = np.repeat(2.0 ** (-far * np.arange(8) / 8), 1000)
        values = random.standard_normal(8000) * scale
        starts = np.cumsum([0, *sizes[:-1]])
        reach = np.add.reduceat(np.abs(values), starts)
        high, low = exact_sums.compensated_grouped_sums(values, starts, reach)
        for index, start in enumerate(starts.tolist()):
            group = [Fraction(value) for value in values[start : start + 1000].tolist()]
            result = Fraction(float(high[index])) + Fraction(float(low[index]))
            assert abs(result - sum(group)) <= sum(map(abs, group)) * Fraction(2) ** -102


@random_cases(40, 220, 4_000)
def test_sums_of_weighted_values_are_within_their_bound(cases: range) -> None:
    for seed in cases:
        rng = Random(f"several times {seed}")
        values = [some_double(rng, EXTREME) for _ in range(rng.choice((1, 2, 5, 40)))]
        weights = [rng.choice((-7, -1, 0, 1, 2, 1000)) for _ in values]
        reach = exact_sum(map(abs, values), map(abs, weights))
        if reach >= Fraction(2) ** 1020:
            continue  # intermediate overflow, as above
        starts = np.zeros(1, dtype=np.int64)
        with np.errstate(all="ignore"):
            high, low = exact_sums.grouped_products(np.array(values), np.array(weights), starts)
        error = exact_sum([float(high[0]), float(low[0])]) - exact_sum(values, weights)
        assert abs(error) <= reach * Fraction(exact_sums.DRIFT), seed


Buffer = tuple[float, float, float]
NOTHING: Buffer = (0.0, 0.0, 0.0)
FUNCTIONS = ("var_pop", "variance", "stddev_pop", "stddev")


def updated(buffer: Buffer, value: float) -> Buffer:
    """Add a row as Spark's CentralMomentAgg does."""
    count, mean, centred = buffer
    delta = value - mean
    share = delta / (count + 1.0)
    return count + 1.0, mean + share, centred + delta * (delta - share)


def merged(left: Buffer, right: Buffer) -> Buffer:
    """Merge two buffers as Spark's CentralMomentAgg does."""
    count = left[0] + right[0]
    delta = right[1] - left[1]
    share = 0.0 if count == 0 else delta / count
    centred = left[2] + right[2] + delta * share * left[0] * right[0]
    return count, left[1] + share * right[0], centred


def aggregated_in_any_order(values: list[float], rng: Random) -> Buffer:
    """Aggregate random parts of the values and merge them in random order."""
    values = rng.sample(values, len(values))
    parts, size = [], rng.choice((1, 3, len(values)))
    for start in range(0, len(values), size):
        part = NOTHING
        for value in values[start : start + size]:
            part = updated(part, value)
        parts.append(merged(NOTHING, part))
    while len(parts) > 1:
        left, right = parts.pop(rng.randrange(len(parts))), parts.pop(rng.randrange(len(parts)))
        parts.append(merged(left, right))
    return merged(NOTHING, parts[0])


def finished(function: str, buffer: Buffer) -> float | None:
    count, _, centred = buffer
    if count == 0 or (count == 1 and function in ("variance", "stddev")):
        return None
    value = centred / (count - 1 if function in ("variance", "stddev") else count)
    return math.sqrt(value) if function.startswith("stddev") else value


class Maintained:
    """All four functions over one column."""

    def __init__(self, kind: SqlType, arrow: pa.DataType) -> None:
        outputs = ", ".join(f"{name}(x) AS {name}" for name in FUNCTIONS)
        query = parse_query(f"SELECT {outputs} FROM t", {"t": Schema((Column("x", kind),))})
        node = next(n for n in query.root.walk() if isinstance(n, Aggregate))
        calls = read_calls(node)
        self.kind, self.arrow = kind, arrow
        self.project = ProjectOperator(calls.arguments)
        self.group = AggregateOperator("a", (), calls.columns, accesses=0, is_keyed=True)
        self.shown: list[tuple[float | None, float]] = []

    def step(self, values: list[Any], sign: int) -> None:
        vector = from_arrow(pa.array(values, self.arrow), self.kind)
        weights = np.full(len(values), sign, dtype=np.int64)
        result = self.group.step(self.project.step(Batch({"t#1.x": vector}, weights, ())))
        if not len(result):
            return
        rows = result.take(np.flatnonzero(result.weights > 0))
        self.shown = []
        for column in rows.columns.values():
            known = column.valid is None or bool(column.valid[0])
            error = 0.0 if column.error is None else float(column.error[0])
            self.shown.append((float(column.values[0]) if known else None, error))


KINDS: list[tuple[SqlType, pa.DataType]] = [
    (DOUBLE, pa.float64()),
    (INTEGER, pa.int32()),
    (LONG, pa.int64()),
    (decimal(8, 2), pa.decimal128(8, 2)),
    (decimal(30, 2), pa.decimal128(30, 2)),
]
every_kind = pytest.mark.parametrize(("kind", "arrow"), KINDS, ids=lambda k: str(k))


def some_values(rng: Random, kind: SqlType) -> list[Any]:
    base = rng.choice((0, 1, 1000, 10**6 - 50))
    spread = rng.choice((0, 1, 50, 10**5 if base == 0 else 40))
    count = rng.choice((1, 2, 3, 10, 80))
    whole = [base + rng.randint(-spread, spread) for _ in range(count)]
    if kind == DOUBLE:
        scale = rng.choice((1.0, 1e-7, 1e12))
        return [value * scale + rng.random() * scale for value in whole]
    return [Decimal(value).scaleb(-2) for value in whole] if kind.scale else whole


def agrees(result: tuple[float | None, float], expected: float | None) -> bool:
    value, error = result
    if value is None or expected is None:
        return value is expected
    if math.isnan(expected) or math.isnan(value):
        return math.isnan(expected) and math.isnan(value)
    return error == math.inf or abs(Fraction(value) - Fraction(expected)) <= Fraction(error)


@pytest.mark.slow
@every_kind
@random_cases(12, 14, 120)
def test_spark_is_within_the_error(kind: SqlType, arrow: pa.DataType, cases: range) -> None:
    """After inserts and deletes, for any order in which Spark aggregates the remaining rows."""
    for seed in cases:
        rng = Random(seed)
        maintained = Maintained(kind, arrow)
        kept, deleted = some_values(rng, kind), some_values(rng, kind)
        maintained.step([*kept, None, *deleted], 1)
        maintained.step(deleted, -1)
        for _ in range(5):
            buffer = aggregated_in_any_order([float(value) for value in kept], rng)
            for name, shown in zip(FUNCTIONS, maintained.shown, strict=True):
                assert agrees(shown, finished(name, buffer)), (seed, name, shown)


def test_the_error_is_small() -> None:
    maintained = Maintained(DOUBLE, pa.float64())
    rng = Random(3)
    maintained.step([rng.gauss(1000, 10) for _ in range(1000)], 1)
    for value, error in maintained.shown:
        assert value is not None
        assert 0 < error < 1e-7 * value


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1e9 + k for k in range(4)], 1.25),
        ([1.7e9 + k / 8 for k in range(8)], 0.08203125),
        ([-1e15 + k for k in range(3)], 2 / 3),
        ([0.1] * 3, 0.0),
        ([1e11, 1e11 + 2], 1.0),
        ([1e-3, 3e-3], 1e-6),
    ],
)
def test_variance_of_values_far_from_zero(values: list[float], expected: float) -> None:
    maintained = Maintained(DOUBLE, pa.float64())
    maintained.step([*values, 1e3, -7.5], 1)
    maintained.step([-7.5, 1e3], -1)
    result = maintained.shown[FUNCTIONS.index("var_pop")]
    assert result[0] == pytest.approx(expected, rel=1e-9, abs=1e-25)
    exact = [Fraction(one) for one in values]
    mean = sum(exact) / len(exact)
    squares = sum((one - mean) ** 2 for one in exact) / len(exact)
    assert agrees(result, float(squares))
    assert result[1] < math.inf


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_nan_and_infinite_values(special: float) -> None:
    maintained = Maintained(DOUBLE, pa.float64())
    maintained.step([1.0, 2.0, special], 1)
    assert all(value is not None and math.isnan(value) for value, _ in maintained.shown)
    maintained.step([special], -1)
    assert [value for value, _ in maintained.shown] == pytest.approx([0.25, 0.5, 0.5, 0.5**0.5])


def test_no_rows_one_row_and_overflow() -> None:
    maintained = Maintained(DOUBLE, pa.float64())
    maintained.step([7.25], 1)
    assert maintained.shown == [(0.0, 0.0), (None, 0.0), (0.0, 0.0), (None, 0.0)]
    maintained.step([7.25], -1)
    assert [value for value, _ in maintained.shown] == [None] * 4
    maintained.step([1e200, 3.0], 1)
    assert all(error == math.inf for _, error in maintained.shown)


def test_errors_of_captured_sums_are_in_the_error() -> None:
    """Spark rounds its sum of doubles at every row, and the mean is computed from that sum."""
    count, distance = 1000, 2000
    expected = float(distance**2 / 4)
    total = Fraction(10**6 * count + distance * count // 2)
    squares = Fraction((10**12 + (10**6 + distance) ** 2) * (count // 2))
    worst, lost = (float(exact) * count * 2.0**-53 for exact in (total, squares))
    maintained = Maintained(DOUBLE, pa.float64())
    rows = np.array([count], dtype=np.int64)
    partials: dict[PartialColumn, Any] = {PARTIAL_ROWS: rows}
    sums = ((total, worst * 0.9), (squares, lost * -0.9), (Fraction(0), 0.0))
    for slot, (exact, off) in enumerate(sums):
        partials[PartialColumn(Meaning.COUNT, slot)] = rows
        partials[PartialColumn(Meaning.SUM, slot)] = np.array([float(exact) + off])
        partials[PartialColumn(Meaning.SIZE, slot)] = np.array([float(exact)])
    absorb = maintained.group.absorb((), partials, ())
    new = absorb.take(np.flatnonzero(absorb.weights > 0))
    variance = next(iter(new.columns.values()))
    assert float(variance.values[0]) != expected
    assert abs(float(variance.values[0]) - expected) <= float(variance.error[0]) < math.inf


LIMIT = 2**127
EDGE_VALUES = [
    0,
    -1,
    1,
    2**63 - 1,
    2**63,
    -(2**63),
    -(2**63) - 1,
    2**64 - 1,
    2**64,
    -(2**64),
    LIMIT - 1,
]


def some_number(rng: Random, most: int = LIMIT) -> int:
    """An edge value, or a number below `most` in magnitude with a random number of bits."""
    if rng.random() < 0.4:
        return rng.choice([one for one in (*EDGE_VALUES, -LIMIT) if -most <= one < most])
    bits = rng.randint(0, most.bit_length() - 1)
    return rng.randint(-(1 << bits), (1 << bits) - 1)


def column(values: list[int]) -> Any:
    """The values as the engine stores them: int64 if all fit."""
    narrow = all(-(2**63) <= value < 2**63 for value in values)
    return np.array(values, dtype=np.int64 if narrow else object)


@random_seeds(15, 38, 600)
def test_wide_numbers_round_trip_and_sums_carry(seed: int) -> None:
    rng = Random(f"widened {seed}")
    values = [some_number(rng) for _ in range(rng.randrange(9))]
    high, low = widen(column(values))
    assert (high.dtype, low.dtype) == (np.int64, np.uint64)
    assert [int(h) * 2**64 + int(w) for h, w in zip(high, low, strict=True)] == values
    result = unwiden(high, low)
    assert result.tolist() == values
    assert result.dtype == column(values).dtype
    rng = Random(f"sums {seed}")
    pairs = [(some_number(rng), some_number(rng)) for _ in range(8)]
    pairs = [(a, b) for a, b in pairs if -LIMIT <= a + b < LIMIT]
    left, right = (widen(column(list(part))) for part in zip(*pairs, strict=True))
    assert unwiden(*add(*left, *right)).tolist() == [a + b for a, b in pairs]


@random_seeds(8, 24, 400)
def test_inserts_and_deletes_sum_to_zero(seed: int) -> None:
    rng = Random(f"nothing {seed}")
    values = [some_number(rng, 2**120) for _ in range(rng.randint(1, 30))]
    total = widen(np.zeros(1, dtype=np.int64))
    for value in [*values, *(-value for value in reversed(values))]:
        total = add(*total, *widen(column([value])))
    assert unwiden(*total).tolist() == [0]


@pytest.mark.parametrize("value", [LIMIT, -LIMIT - 1, 10**60])
def test_too_wide_numbers_are_refused(value: int) -> None:
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


def test_sums_beyond_64_and_beyond_128_bits() -> None:
    starts = np.zeros(1, dtype=np.int64)
    for values, weights, total in (([2**62] * 4, [1] * 4, 2**64), ([-(2**63)], [-1], 2**63)):
        order = np.arange(len(values))
        result = exact_grouped_sums(np.array(values), np.array(weights), order, starts)
        assert result.tolist() == [total]
    for sign in (1, -1):
        left, right = (widen(np.array([sign * n * 10**37], dtype=object)) for n in (9, 17))
        with pytest.raises(EvaluationError, match="38 digits"):
            add(*left, *right)


def test_the_largest_sum_of_a_type_fits_and_a_larger_one_fails() -> None:
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
