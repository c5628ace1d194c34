"""What is said of expressions, against values: direction, signs, bounds, and what is preserved.

Every claim is tried on pairs of rows, one over the sketch and one over the table, that compare as
the columns are said to. IMPCTL_FUZZ multiplies the number of expressions.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from random import Random
from typing import Any

from impctl.data.schema import BOOLEAN, DATE, DOUBLE, INTEGER, LONG, SqlType
from impctl.expr.nodes import (
    And,
    Arithmetic,
    ArithmeticOp,
    Call,
    Case,
    Cast,
    Coalesce,
    ColumnRef,
    Compare,
    CompareOp,
    Expr,
    IsNull,
    Literal,
    Negate,
    Not,
    Or,
)
from impctl.safety.direction import Columns, Relation, direction, find_objection
from impctl.safety.facts import Signs, signs_of
from tests.support.random_cases import random_cases
from tests.support.reference_expr import ReferenceFailure, Value, is_true, sort_key, value_of

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
"""The ends of each type; for dates those of the years that Spark documents, 1 to 9999."""
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


def fits(value: Value, signs: Signs) -> bool:
    """Whether what is said of a value is true of this one."""
    if value is None:
        return not signs.not_null
    if not isinstance(value, int | float):
        return True
    low, high = signs.bounds
    is_nan = math.isnan(value)
    above = is_nan or value >= low
    below = high == math.inf or (not is_nan and value <= high)
    return above and below and not (signs.nan_free and is_nan)


def compares(sketch: Value, table: Value, relation: Relation) -> bool:
    """Whether the two values are related so."""
    match relation:
        case Relation.UNKNOWN:
            return True
        case Relation.EQUAL:
            return sort_key(sketch) == sort_key(table)
    if sketch is None or table is None:
        return sketch is None
    low, high = (sketch, table) if relation is Relation.AT_MOST else (table, sketch)
    return sort_key(low) <= sort_key(high)


class Drawn:
    """A random expression over three columns, and pairs of rows that its columns allow."""

    pools = POOLS

    def __init__(self, rng: Random, kind: SqlType) -> None:
        self.rng = rng
        self.kind = kind
        self.refs = [ColumnRef(name, kind) for name in "abc"]
        self.relations = {ref.id: rng.choice(RELATIONS) for ref in self.refs}
        number = kind is not DATE
        self.signs = {ref.id: rng.choice(SIGNS) if number else Signs() for ref in self.refs}
        self.columns = Columns(self.relations, dict(self.signs))

    def literal(self) -> Literal:
        value = self.rng.choice([-2, -1, 0, 1, 2])
        return Literal(float(value) if self.kind is DOUBLE else value, self.kind)

    def expr(self, depth: int) -> Expr:
        """Of the kind of the columns."""
        rng = self.rng
        if depth == 0 or rng.random() < 0.15:
            return rng.choice(self.refs) if rng.random() < 0.75 else self.literal()
        if self.kind is DATE:
            name = rng.choice(("greatest", "least"))
            return Call(name, (self.expr(depth - 1), self.expr(depth - 1)), DATE)
        match rng.randrange(9):
            case 0:
                return Negate(self.expr(depth - 1))
            case 1 | 2:
                op = rng.choice((ArithmeticOp.ADD, ArithmeticOp.SUBTRACT, ArithmeticOp.MULTIPLY))
                right = self.literal() if rng.random() < 0.4 else self.expr(depth - 1)
                return Arithmetic(op, self.expr(depth - 1), right)
            case 3:
                return Coalesce((self.expr(depth - 1), self.literal()))
            case 4:
                branch = (self.condition(depth - 1), self.literal())
                other = rng.choice((self.literal(), Literal(None, self.kind)))
                return Case((branch,), other)
            case 5 | 6:
                name = rng.choice(("greatest", "least"))
                parts = [self.expr(depth - 1) for _ in range(rng.choice((2, 3)))]
                return Call(name, tuple(parts), self.kind)
            case 7 if self.kind is DOUBLE:
                name = rng.choice(("sqrt", "exp", "ln"))
                return Call(name, (self.expr(depth - 1),), DOUBLE)
            case 8 if self.kind is DOUBLE and rng.random() < 0.5:
                return Call("pow", (self.expr(depth - 1), self.exponent()), DOUBLE)
        digits = Literal(rng.choice((0, 1)), INTEGER)
        return Call("round", (self.expr(depth - 1), digits), self.kind)

    def exponent(self) -> Expr:
        return Literal(self.rng.choice((2, 3)), INTEGER)

    def value(self, depth: int) -> Expr:
        """Of another kind, at times."""
        inner = self.expr(depth)
        if self.kind is DATE:
            return self.rng.choice(
                (
                    Call("year", (inner,), INTEGER),
                    Call("month", (inner,), INTEGER),
                    Call("datediff", (inner, self.expr(depth)), INTEGER),
                )
            )
        name = self.rng.choice(("floor", "ceil", "", "", "cast"))
        if name == "cast":
            return Cast(self.condition(depth), LONG)
        return inner if not name else Call(name, (inner,), LONG)

    def condition(self, depth: int) -> Expr:
        subject: Expr = self.expr(depth) if self.kind is not DATE else self.value(depth)
        kind = self.kind if self.kind is not DATE else INTEGER
        if self.rng.random() < 0.1:
            return IsNull(subject)
        value = self.rng.choice((-2, -1, 0, 1, 2))
        number = Literal(float(value) if kind is DOUBLE else value, kind)
        return Compare(self.rng.choice(list(CompareOp)), subject, number)

    def predicate(self, depth: int) -> Expr:
        rng = self.rng
        match rng.randrange(5):
            case 0:
                return Not(self.condition(depth))
            case 1:
                return And((self.condition(depth), self.condition(depth)))
            case 2:
                return Or((self.condition(depth), self.condition(depth)))
            case 3:
                truth = Literal(rng.random() < 0.5, BOOLEAN)
                op = rng.choice((CompareOp.EQUAL, CompareOp.NOT_EQUAL))
                return Compare(op, self.condition(depth), truth)
        return self.condition(depth)

    def others(self, one: Value, values: Sequence[Value], relation: Relation) -> Sequence[Value]:
        return [v for v in values if compares(one, v, relation)]

    def pairs(self, count: int) -> list[tuple[dict[str, Value], dict[str, Value]]]:
        result = []
        pool = self.pools[self.kind]
        while len(result) < count:
            sketch: dict[str, Value] = {}
            table: dict[str, Value] = {}
            for ref in self.refs:
                signs, relation = self.signs[ref.id], self.relations[ref.id]
                values = [v for v in pool if fits(v, signs)]
                one = self.rng.choice(values)
                others = self.others(one, values, relation)
                sketch[ref.id], table[ref.id] = one, self.rng.choice(others)
            result.append((sketch, table))
        return result


class AtEdges(Drawn):
    """The same over the ends of the types, and over powers of all signs."""

    pools = EDGES

    def exponent(self) -> Expr:
        if self.rng.random() < 0.2:
            return self.expr(0)
        return Literal(self.rng.choice((-3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 2.0, 3.0)), DOUBLE)

    def others(self, one: Value, values: Sequence[Value], relation: Relation) -> Sequence[Value]:
        """Equal values come from the same row, so 0.0 does not become -0.0."""
        return [one] if relation is Relation.EQUAL else super().others(one, values, relation)


def evaluated(expr: Expr, row: Mapping[str, Value]) -> Value | None | type[ReferenceFailure]:
    try:
        return value_of(expr, row)
    except (ReferenceFailure, OverflowError):
        return ReferenceFailure


def tried(cases: Iterable[int], made: type[Drawn] = Drawn) -> Counter[str]:
    """What was claimed how often; AssertionError where a claim does not hold."""
    seen: Counter[str] = Counter()
    for seed in cases:
        rng = Random(seed)
        drawn = made(rng, rng.choice((LONG, DOUBLE, DOUBLE, DATE)))
        expr, predicate = drawn.value(rng.choice((1, 1, 2))), drawn.predicate(rng.choice((0, 1, 1)))
        relation, signs = direction(expr, drawn.columns), signs_of(expr, drawn.columns.signs)
        is_kept = find_objection(predicate, drawn.columns) is None
        seen[relation] += 1
        seen["preserved"] += is_kept
        for sketch, table in drawn.pairs(40):
            shown: Any = (seed, expr, drawn.relations, drawn.signs, sketch, table)
            one, other = evaluated(expr, sketch), evaluated(expr, table)
            if ReferenceFailure not in (one, other):
                assert compares(one, other, relation), shown  # type: ignore[arg-type]  # no failure
                assert fits(one, signs), shown  # type: ignore[arg-type]  # no failure
            if is_kept and evaluated(predicate, table) is not ReferenceFailure:
                holds = evaluated(predicate, sketch) is True
                assert not holds or is_true(predicate, table), (predicate, shown)
    return seen


@random_cases(80, 390, 4000, also="191 223 243 453 501 585")
def test_claims_hold_of_all_values(cases: Collection[int]) -> None:
    seen = tried(cases)
    assert seen["preserved"] > len(cases) // 5, seen
    for relation in (Relation.AT_MOST, Relation.AT_LEAST):
        assert seen[relation] > len(cases) // 20, seen


@random_cases(40, 300, 4000, also="1584 2958 4556")
def test_claims_hold_at_the_ends_of_types(cases: Collection[int]) -> None:
    tried(cases, AtEdges)
