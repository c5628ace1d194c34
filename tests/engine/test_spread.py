"""Variances against Spark's algorithm in any order, and what they are in the limits."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.compile.aggregates import read_calls
from impctl.data.schema import DOUBLE, INTEGER, LONG, Column, Schema, SqlType, decimal
from impctl.data.vector import from_arrow
from impctl.engine.accumulators import PARTIAL_ROWS, Meaning, PartialColumn
from impctl.engine.aggregate import Aggregate as AggregateOperator
from impctl.engine.batch import Batch
from impctl.engine.linear import Project as ProjectOperator
from impctl.plan.nodes import Aggregate, nodes_of
from impctl.sql.statement import parse_query
from tests.support.random_cases import random_cases

Buffer = tuple[float, float, float]
NOTHING: Buffer = (0.0, 0.0, 0.0)
FUNCTIONS = ("var_pop", "variance", "stddev_pop", "stddev")


def updated(buffer: Buffer, value: float) -> Buffer:
    """As Spark's CentralMomentAgg takes up a row."""
    count, mean, centred = buffer
    delta = value - mean
    share = delta / (count + 1.0)
    return count + 1.0, mean + share, centred + delta * (delta - share)


def merged(left: Buffer, right: Buffer) -> Buffer:
    """As Spark's CentralMomentAgg merges two buffers."""
    count = left[0] + right[0]
    delta = right[1] - left[1]
    share = 0.0 if count == 0 else delta / count
    centred = left[2] + right[2] + delta * share * left[0] * right[0]
    return count, left[1] + share * right[0], centred


def in_any_order(values: list[float], rng: Random) -> Buffer:
    """The values taken up in parts that are merged as chance has it."""
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
        node = next(n for n in nodes_of(query.root) if isinstance(n, Aggregate))
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


def agrees(result: tuple[float | None, float], wanted: float | None) -> bool:
    value, error = result
    if value is None or wanted is None:
        return value is wanted
    if math.isnan(wanted) or math.isnan(value):
        return math.isnan(wanted) and math.isnan(value)
    return error == math.inf or abs(Fraction(value) - Fraction(wanted)) <= Fraction(error)


@pytest.mark.slow
@every_kind
@random_cases(12, 26, 120)
def test_spark_lies_within_the_error(kind: SqlType, arrow: pa.DataType, cases: range) -> None:
    """After rows came and went, whatever the order in which Spark takes up those that are left."""
    for seed in cases:
        rng = Random(seed)
        maintained = Maintained(kind, arrow)
        kept, gone = some_values(rng, kind), some_values(rng, kind)
        maintained.step([*kept, None, *gone], 1)
        maintained.step(gone, -1)
        for _ in range(5):
            buffer = in_any_order([float(value) for value in kept], rng)
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
    ("values", "wanted"),
    [
        ([1e9 + k for k in range(4)], 1.25),
        ([1.7e9 + k / 8 for k in range(8)], 0.08203125),
        ([-1e15 + k for k in range(3)], 2 / 3),
        ([0.1] * 3, 0.0),
        ([1e11, 1e11 + 2], 1.0),
        ([1e-3, 3e-3], 1e-6),
    ],
)
def test_values_far_from_zero_leave_their_variance(values: list[float], wanted: float) -> None:
    maintained = Maintained(DOUBLE, pa.float64())
    maintained.step([*values, 1e3, -7.5], 1)
    maintained.step([-7.5, 1e3], -1)
    result = maintained.shown[FUNCTIONS.index("var_pop")]
    value, error = result
    assert value == pytest.approx(wanted, rel=1e-9, abs=1e-25)
    exact = [Fraction(one) for one in values]
    mean = sum(exact) / len(exact)
    squares = sum((one - mean) ** 2 for one in exact) / len(exact)
    assert agrees(result, float(squares))
    assert error < math.inf


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_no_number(special: float) -> None:
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


def test_what_captured_sums_may_be_off_by_is_in_the_error() -> None:
    """Spark's own sum of doubles is rounded with every row, and the mean is drawn from it."""
    count, wanted = 1000, 0.25
    total = Fraction(10**6 * count + count // 2)
    squares = Fraction((10**12 + (10**6 + 1) ** 2) * (count // 2))
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
    assert variance.error is not None
    assert float(variance.values[0]) != wanted
    assert abs(float(variance.values[0]) - wanted) <= float(variance.error[0])
