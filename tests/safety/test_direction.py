"""Claims about expressions, checked against values: direction, signs, bounds, preservation."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.data.schema import (
    BOOLEAN,
    DATE,
    DOUBLE,
    INTEGER,
    LONG,
    Column,
    Schema,
    SqlType,
    from_spark,
)
from impctl.errors import ImpctlError
from impctl.expr import nodes
from impctl.plan.nodes import Project
from impctl.safety.direction import Columns, Relation, direction, find_objection
from impctl.safety.facts import Signs, signs_of
from impctl.sql.statement import parse_query
from tests.support.random_cases import random_cases
from tests.support.reference_plan import (
    ReferenceFailure,
    ReferenceLimit,
    Value,
    is_true,
    sort_key,
    value_of,
)
from tests.support.spark_values import asked

POOLS: Mapping[SqlType, Sequence[Value]] = {
    LONG: (None, -3, -2, -1, 0, 1, 2, 3),
    DOUBLE: (None, math.nan, math.inf, -math.inf, -0.0, 0.0, 0.5, -0.5, 1.0, 1.4, -2.0, 3.0),
    DATE: (None, -400, -1, 0, 30, 31, 364, 365, 20_000),
}
EDGES: Mapping[SqlType, Sequence[Value]] = {
    LONG: (None, -(2**63), 1 - 2**63, -(2**53) - 1, -1, 0, 1, 2**53 + 1, 2**63 - 1),
    DOUBLE: (
        *(None, math.nan, math.inf, -math.inf, -0.0, 0.0, 5e-324, -5e-324, 0.05, -0.1),
        *(sys.float_info.max, -sys.float_info.max, 2.0**53 + 2, 9.3e18, -9.3e18, 1.0),
    ),
    DATE: (None, -719_162, -1, 0, 2_932_896),
}
"""The limits of each type; for dates those of the years that Spark documents, 1 to 9999."""
RELATIONS = (Relation.EQUAL, Relation.AT_MOST, Relation.AT_LEAST, Relation.UNKNOWN)
SIGNS = (
    Signs(),
    Signs(nonnegative=True),
    Signs(nonpositive=True, nan_free=True),
    Signs(not_null=True, nan_free=True),
    Signs(nonnegative=True, nan_free=True, not_null=True),
    Signs(least=Decimal(-2), most=Decimal(2), nan_free=True),
    Signs(least=Decimal(0), most=Decimal(1), nan_free=True, not_null=True),
)


def satisfies_signs(value: Value, signs: Signs) -> bool:
    """Whether the value satisfies the signs and bounds."""
    if value is None:
        return not signs.not_null
    if not isinstance(value, int | float):
        return True
    low, high = signs.bounds
    is_nan = math.isnan(value)
    above = is_nan or value >= low
    below = high == math.inf or (not is_nan and value <= high)
    return above and below and not (signs.nan_free and is_nan)


def satisfies_relation(sketch: Value, table: Value, relation: Relation) -> bool:
    """Whether the two values satisfy the relation."""
    match relation:
        case Relation.UNKNOWN:
            return True
        case Relation.EQUAL:
            return sort_key(sketch) == sort_key(table)
    if sketch is None or table is None:
        return sketch is None
    low, high = (sketch, table) if relation is Relation.AT_MOST else (table, sketch)
    return sort_key(low) <= sort_key(high)


class RandomExpression:
    """A random expression over three columns, and pairs of rows that its columns allow."""

    pools = POOLS

    def __init__(self, rng: Random, kind: SqlType) -> None:
        self.rng = rng
        self.kind = kind
        self.refs = [nodes.ColumnRef(name, kind) for name in "abc"]
        self.relations = {ref.id: rng.choice(RELATIONS) for ref in self.refs}
        number = kind is not DATE
        self.signs = {ref.id: rng.choice(SIGNS) if number else Signs() for ref in self.refs}
        self.columns = Columns(self.relations, dict(self.signs))

    def literal(self) -> nodes.Literal:
        value = self.rng.choice([-2, -1, 0, 1, 2])
        return nodes.Literal(float(value) if self.kind is DOUBLE else value, self.kind)

    def expr(self, depth: int) -> nodes.Expr:
        """An expression with the type of the columns."""
        rng = self.rng
        if depth == 0 or rng.random() < 0.15:
            return rng.choice(self.refs) if rng.random() < 0.75 else self.literal()
        if self.kind is DATE:
            name = rng.choice(("greatest", "least"))
            return nodes.Call(name, (self.expr(depth - 1), self.expr(depth - 1)), DATE)
        match rng.randrange(9):
            case 0:
                return nodes.Negate(self.expr(depth - 1))
            case 1 | 2:
                op = rng.choice(
                    (
                        nodes.ArithmeticOp.ADD,
                        nodes.ArithmeticOp.SUBTRACT,
                        nodes.ArithmeticOp.MULTIPLY,
                    )
                )
                right = self.literal() if rng.random() < 0.4 else self.expr(depth - 1)
                return nodes.Arithmetic(op, self.expr(depth - 1), right)
            case 3:
                return nodes.Coalesce((self.expr(depth - 1), self.literal()))
            case 4:
                branch = (self.condition(depth - 1), self.literal())
                return nodes.Case(
                    (branch,), rng.choice((self.literal(), nodes.Literal(None, self.kind)))
                )
            case 5 | 6:
                name = rng.choice(("greatest", "least"))
                parts = [self.expr(depth - 1) for _ in range(rng.choice((2, 3)))]
                return nodes.Call(name, tuple(parts), self.kind)
            case 7 if self.kind is DOUBLE:
                name = rng.choice(("sqrt", "exp", "ln"))
                return nodes.Call(name, (self.expr(depth - 1),), DOUBLE)
            case 8 if self.kind is DOUBLE and rng.random() < 0.5:
                return nodes.Call("pow", (self.expr(depth - 1), self.exponent()), DOUBLE)
        digits = nodes.Literal(rng.choice((0, 1)), INTEGER)
        return nodes.Call("round", (self.expr(depth - 1), digits), self.kind)

    def exponent(self) -> nodes.Expr:
        return nodes.Literal(self.rng.choice((2, 3)), INTEGER)

    def value(self, depth: int) -> nodes.Expr:
        """An expression that sometimes has another type."""
        inner = self.expr(depth)
        if self.kind is DATE:
            return self.rng.choice(
                (
                    nodes.Call("year", (inner,), INTEGER),
                    nodes.Call("month", (inner,), INTEGER),
                    nodes.Call("datediff", (inner, self.expr(depth)), INTEGER),
                )
            )
        name = self.rng.choice(("floor", "ceil", "", "", "cast"))
        if name == "cast":
            return nodes.Cast(self.condition(depth), LONG)
        return inner if not name else nodes.Call(name, (inner,), LONG)

    def condition(self, depth: int) -> nodes.Expr:
        subject: nodes.Expr = self.expr(depth) if self.kind is not DATE else self.value(depth)
        kind = self.kind if self.kind is not DATE else INTEGER
        if self.rng.random() < 0.1:
            return nodes.IsNull(subject)
        value = self.rng.choice((-2, -1, 0, 1, 2))
        number = nodes.Literal(float(value) if kind is DOUBLE else value, kind)
        return nodes.Compare(self.rng.choice(list(nodes.CompareOp)), subject, number)

    def predicate(self, depth: int) -> nodes.Expr:
        rng = self.rng
        match rng.randrange(5):
            case 0:
                return nodes.Not(self.condition(depth))
            case 1:
                return nodes.And((self.condition(depth), self.condition(depth)))
            case 2:
                return nodes.Or((self.condition(depth), self.condition(depth)))
            case 3:
                truth = nodes.Literal(rng.random() < 0.5, BOOLEAN)
                op = rng.choice((nodes.CompareOp.EQUAL, nodes.CompareOp.NOT_EQUAL))
                return nodes.Compare(op, self.condition(depth), truth)
        return self.condition(depth)

    def others(self, one: Value, values: Sequence[Value], relation: Relation) -> Sequence[Value]:
        return [v for v in values if satisfies_relation(one, v, relation)]

    def pairs(self, count: int) -> list[tuple[dict[str, Value], dict[str, Value]]]:
        result = []
        pool = self.pools[self.kind]
        while len(result) < count:
            sketch: dict[str, Value] = {}
            table: dict[str, Value] = {}
            for ref in self.refs:
                signs, relation = self.signs[ref.id], self.relations[ref.id]
                values = [v for v in pool if satisfies_signs(v, signs)]
                one = self.rng.choice(values)
                others = self.others(one, values, relation)
                sketch[ref.id], table[ref.id] = one, self.rng.choice(others)
            result.append((sketch, table))
        return result


class LimitsExpression(RandomExpression):
    """Expressions over the limits of types, and powers with exponents of any sign."""

    pools = EDGES

    def exponent(self) -> nodes.Expr:
        if self.rng.random() < 0.2:
            return self.expr(0)
        return nodes.Literal(self.rng.choice((-3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 2.0, 3.0)), DOUBLE)

    def others(self, one: Value, values: Sequence[Value], relation: Relation) -> Sequence[Value]:
        """Equal values come from the same row, so 0.0 does not become -0.0."""
        return [one] if relation is Relation.EQUAL else super().others(one, values, relation)


def value_or_failure(
    expr: nodes.Expr, row: Mapping[str, Value]
) -> Value | None | type[ReferenceFailure]:
    try:
        return value_of(expr, row)
    except (ReferenceFailure, OverflowError):
        return ReferenceFailure


def check_claims(
    cases: Iterable[int], kind: type[RandomExpression] = RandomExpression
) -> Counter[str]:
    """Counts of claims. AssertionError if one is false."""
    counts: Counter[str] = Counter()
    for seed in cases:
        rng = Random(seed)
        source = kind(rng, rng.choice((LONG, DOUBLE, DOUBLE, DATE)))
        expr, predicate = (
            source.value(rng.choice((1, 1, 2))),
            source.predicate(rng.choice((0, 1, 1))),
        )
        relation, signs = direction(expr, source.columns), signs_of(expr, source.columns.signs)
        is_preserved = find_objection(predicate, source.columns) is None
        counts[relation] += 1
        counts["preserved"] += is_preserved
        for sketch, table in source.pairs(40):
            details: Any = (seed, expr, source.relations, source.signs, sketch, table)
            one, other = value_or_failure(expr, sketch), value_or_failure(expr, table)
            if ReferenceFailure not in (one, other):
                assert satisfies_relation(one, other, relation), details  # type: ignore[arg-type]  # no failure
                assert satisfies_signs(one, signs), details  # type: ignore[arg-type]  # no failure
            if is_preserved and value_or_failure(predicate, table) is not ReferenceFailure:
                holds = value_or_failure(predicate, sketch) is True
                assert not holds or is_true(predicate, table), (predicate, details)
    return counts


@random_cases(80, 192, 4000, also="191 223 243 453 501 585")
def test_claims_hold_for_random_values(cases: Collection[int]) -> None:
    counts = check_claims(cases)
    assert counts["preserved"] > len(cases) // 5, counts
    for relation in (Relation.AT_MOST, Relation.AT_LEAST):
        assert counts[relation] > len(cases) // 20, counts


@random_cases(40, 148, 4000, also="1584 2958 4556")
def test_claims_hold_at_limits_of_types(cases: Collection[int]) -> None:
    check_claims(cases, LimitsExpression)


_TINY, _HUGE = 5e-324, sys.float_info.max
_SPECIAL = (math.nan, math.inf, -math.inf)
_SINGLE = float(np.finfo(np.float32).max)


def _decimals(texts: str) -> list[Decimal]:
    return [Decimal(text) for text in texts.split()]


KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tinyint": (pa.int8(), [-128, -127, -2, -1, 0, 1, 2, 127]),
    "smallint": (pa.int16(), [-(2**15), -2, -1, 0, 1, 3, 2**15 - 1]),
    "int": (pa.int32(), [-(2**31), -2, -1, 0, 1, 3, 2**31 - 1]),
    "bigint": (pa.int64(), [-(2**63), -(2**53) - 1, -2, -1, 0, 1, 3, 2**53 + 1, 2**63 - 1]),
    "float": (pa.float32(), [*_SPECIAL, -0.0, 0.0, 0.5, -1.5, _SINGLE, -_SINGLE]),
    "double": (
        pa.float64(),
        [*_SPECIAL, -0.0, 0.0, _TINY, -_TINY, 0.05, -1.5, 9.3e18, _HUGE, -_HUGE],
    ),
    "decimal(10,2)": (
        pa.decimal128(10, 2),
        _decimals("-99999999.99 -1.50 -0.01 0.00 0.01 0.50 1.00 99999999.99"),
    ),
    "decimal(38,2)": (
        pa.decimal128(38, 2),
        _decimals(f"-{'9' * 36}.99 -2.00 -0.01 0.00 0.01 1.50 {'9' * 36}.99"),
    ),
    "decimal(38,38)": (
        pa.decimal128(38, 38),
        _decimals(f"-0.{'9' * 38} -0.5 0.0 0.{'0' * 37}1 0.{'9' * 38}"),
    ),
}  # fmt: skip
STEPS = (
    "-a", "a + b", "a - b", "a * b", "a / b", "a div b", "a % b", "a + 1", "1 - a", "a - 0.5",
    "a * 2", "a * -2", "a * 0", "a * 0.5", "a / 2", "a / -3", "a * a", "a * 1.5D", "a / 1e300D",
    "abs(a)", "sign(a)", "coalesce(a, 0)", "coalesce(a, -1)", "coalesce(a, b)", "nvl(a, 1)",
    "greatest(a, b)", "least(a, b)", "greatest(a, 0)", "least(a, b, a)",
    "round(a)", "round(a, 1)", "round(a, -1)", "bround(a)", "floor(a)", "ceil(a)",
    "sqrt(a)", "exp(a)", "ln(a)", "log10(a)", "log2(a)", "log1p(a)", "cbrt(a)",
    "pow(a, 2)", "pow(a, 3)", "pow(a, -1)", "pow(a, -2)", "pow(a, 0.5D)", "pow(a, b)", "pow(2, a)",
    "CASE WHEN a > 0 THEN a ELSE 0 END", "CASE WHEN a > 0 THEN a END", "nullif(a, b)",
    "CASE WHEN a >= b THEN a ELSE b END", "if(a < 0, -1, 1)", "nanvl(a, 0)",
    *(f"CAST(a AS {kind})" for kind in KINDS), "CAST(a > 0 AS INT)",
    "CAST(CAST(a AS INT) AS DOUBLE)",
)  # fmt: skip
PAIR_RELATIONS = (Relation.EQUAL, Relation.AT_MOST, Relation.AT_LEAST)


def rows_of(kind: str) -> list[tuple[Any, Any]]:
    """Pairs of all values of the first column with some of the second's, including NULL."""
    values = [None, *KINDS[kind][1]]
    return list(product(values, values[:: 2 if len(values) > 8 else 1]))


def parse_step(step: str, kind: str) -> nodes.Expr | None:
    """The expression over `a` and `b` of this type; None if it is refused."""
    sql_type = from_spark(kind)
    assert sql_type is not None
    catalog = {"t": Schema((Column("a", sql_type), Column("b", sql_type)))}
    try:
        root = parse_query(f"SELECT {step} AS v FROM t", catalog).root
    except ImpctlError:
        return None
    return root.outputs[0].expr if isinstance(root, Project) else None


def may_fail(expr: nodes.Expr, a: Any, b: Any) -> bool:
    """Whether the reference fails on the row or does not support the expression."""
    try:
        value_of(expr, {"t#1.a": a, "t#1.b": b})
    except ReferenceLimit:
        return False
    except (ReferenceFailure, OverflowError, ValueError):
        return True
    return False


def values_in_spark(
    view: Any, steps: Sequence[str], skipped: Sequence[set[int]], count: int
) -> list[list[Any]]:
    """For each step the values of the rows; `...` if Spark fails or the row is skipped."""
    from pyspark.errors import AnalysisException

    texts = []
    for step, failing in zip(steps, skipped, strict=True):
        guard = f"r IN ({', '.join(map(str, sorted(failing)))})" if failing else "false"
        texts.append(f"CASE WHEN {guard} THEN NULL ELSE {step} END")
    result = []
    for step, failing, column in zip(steps, skipped, asked(view, texts), strict=True):
        values = [...] * count if isinstance(column, Exception) else column.to_pylist()
        rows = [row for row in range(count) if row not in failing]
        if isinstance(column, Exception) and not isinstance(column, AnalysisException):
            single = asked(view, [f"CASE WHEN r = {row} THEN {step} END" for row in rows])
            for row, one in zip(rows, single, strict=True):
                values[row] = ... if isinstance(one, Exception) else one[row].as_py()
        result.append([... if row in failing else value for row, value in enumerate(values)])
    return result


def ranks(values: Sequence[Any]) -> Any:
    """Ranks of the values in Spark's order, shape (rows,): -1 for NULL, -2 for no value."""
    known = sorted({sort_key(v) for v in values if v is not None and v is not ...})
    rank_of = {key: rank for rank, key in enumerate(known)}
    return np.array([-2 if v is ... else -1 if v is None else rank_of[sort_key(v)] for v in values])


def satisfying_pairs(one: Any, relation: Relation) -> Any:
    """Whether rows i (sketch) and j (table) satisfy the relation, shape (rows, rows)."""
    sketch, table = one[:, None], one[None, :]
    if relation is Relation.UNKNOWN:
        return np.ones((len(one), len(one)), dtype=np.bool_)
    if relation is Relation.EQUAL:
        return sketch == table
    is_less = sketch <= table if relation is Relation.AT_MOST else sketch >= table
    return (sketch == -1) | ((table != -1) & is_less)


def wrong_claims(expr: nodes.Expr, step: str, rows: Sequence[tuple[Any, Any]],
                 values: Sequence[Any]) -> Iterator[str]:  # fmt: skip
    """Yield claims about the step that are false for its values."""
    a, b, results = (
        ranks(column) for column in ([r[0] for r in rows], [r[1] for r in rows], values)
    )
    has_value = results != -2
    for signs in SIGNS:
        known = {"t#1.a": signs, "t#1.b": Signs()}
        allowed = np.array([satisfies_signs(_plain(row[0]), signs) for row in rows]) & has_value
        claimed = signs_of(expr, known)
        for index in np.flatnonzero(allowed):
            if not satisfies_signs(_plain(values[index]), claimed):
                yield f"{step} of {rows[index]} is {values[index]}, not {claimed} ({signs})"
        for left, right in product(PAIR_RELATIONS, PAIR_RELATIONS):
            columns = Columns({"t#1.a": left, "t#1.b": right}, known)
            relation = direction(expr, columns)
            if relation in (Relation.UNKNOWN, Relation.EQUAL):
                continue
            pairs = (
                satisfying_pairs(a, left) & satisfying_pairs(b, right) & np.outer(allowed, allowed)
            )
            for i, j in np.argwhere(pairs & ~satisfying_pairs(results, relation))[:1]:
                yield (
                    f"{step} of {rows[i]} is {values[i]}, of {rows[j]} {values[j]}: not {relation}"
                    f" ({left}, {right}, {signs})"
                )


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float) else float(value)


@pytest.mark.spark
@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=() if k == "double" else pytest.mark.long) for k in KINDS]
)
def test_claims_hold_for_spark_values(kind: str, spark: Any) -> None:
    rows = rows_of(kind)
    arrow_type = KINDS[kind][0]
    table = pa.table({
        "r": pa.array(range(len(rows)), pa.int32()),
        "a": pa.array([a for a, _ in rows], arrow_type),
        "b": pa.array([b for _, b in rows], arrow_type),
    })  # fmt: skip
    steps = {step: expr for step in STEPS if (expr := parse_step(step, kind)) is not None}
    failing = [
        {index for index, (a, b) in enumerate(rows) if may_fail(expr, a, b)}
        for expr in steps.values()
    ]
    result = values_in_spark(spark.createDataFrame(table), list(steps), failing, len(rows))
    wrong = [
        claim
        for (step, expr), values in zip(steps.items(), result, strict=True)
        for claim in wrong_claims(expr, step, rows, values)
    ]
    assert wrong == []
