"""Implication against brute force: every pair of related rows, every value that matters.

IMPCTL_FUZZ multiplies the number of random pairs that `make check` and `make test-all` try.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from functools import cache
from random import Random

import pytest

from impctl.data.schema import (
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    NULL,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    decimal,
)
from impctl.expr.nodes import (
    And,
    ColumnRef,
    Compare,
    CompareOp,
    Expr,
    InList,
    IsNull,
    Literal,
    Not,
    Or,
)
from impctl.plan.nodes import Select, nodes_of
from impctl.reuse.implication import find_gap, points_of
from impctl.safety.direction import Columns, Relation
from impctl.sql.statement import parse_query
from tests.support.random_cases import random_cases
from tests.support.reference_expr import Value, is_true, sort_key
from tests.support.schemas import schema_of

X, D, S = ColumnRef("x", INTEGER), ColumnRef("d", DOUBLE), ColumnRef("s", STRING)
VALUES: Mapping[str, Sequence[Value]] = {
    "x": (None, -1, 0, 1, 2, 3),
    "d": (None, -0.5, -0.0, 0.0, 0.5, 1.0, math.nan),
    "s": (None, "", "a", "ab", "b"),
}
EQUAL = Columns(dict.fromkeys("xds", Relation.EQUAL), {})
OPS = (*CompareOp,)


@cache
def _related(relation: Relation, name: str) -> Sequence[Sequence[int]]:
    """For every value of a column, by position, those that the relation allows beside it."""
    values = VALUES[name]
    return [
        [at for at, second in enumerate(values) if _may_stand_beside(relation, first, second)]
        for first in values
    ]


def _may_stand_beside(relation: Relation, first: Value, second: Value) -> bool:
    if relation is Relation.UNKNOWN:
        return True
    if relation is Relation.EQUAL:
        return first is second or repr(first) == repr(second)
    if first is None:
        return True
    if second is None:
        return False
    low, high = sort_key(first), sort_key(second)
    return low <= high if relation is Relation.AT_MOST else low >= high


def _is_right(premise: Expr, conclusion: Expr, columns: Columns) -> bool:
    used = [n for n in "xds" if any(n in repr(e) for e in (premise, conclusion))]
    rows = list(itertools.product(*(range(len(VALUES[name])) for name in used)))

    def true_rows(condition: Expr) -> set[tuple[int, ...]]:
        named = ((row, zip(used, row, strict=True)) for row in rows)
        return {row for row, at in named if is_true(condition, {n: VALUES[n][i] for n, i in at})}

    allowed = true_rows(conclusion)
    related = [_related(columns.relations[name], name) for name in used]
    return all(
        second in allowed
        for first in true_rows(premise)
        for second in itertools.product(*(r[i] for r, i in zip(related, first, strict=True)))
    )


def _number(rng: Random) -> Literal:
    match rng.randrange(6):
        case 0:
            return Literal(rng.choice((-0.5, 0.0, -0.0, 0.5, 1.0, math.nan)), DOUBLE)
        case 1:
            return Literal(Decimal(rng.choice(("-0.5", "0.0", "0.5", "1.0"))), decimal(2, 1))
        case 2:
            return Literal(rng.choice((0, 1, 2)), LONG)
        case _:
            return Literal(rng.choice((-1, 0, 1, 2)), INTEGER)


def _atom(rng: Random) -> Expr:
    if rng.random() < 0.2:
        text = Literal(rng.choice(("", "a", "ab", "b")), STRING)
        return Compare(rng.choice(OPS), S, text)
    column = rng.choice((X, X, D))
    match rng.randrange(8):
        case 0:
            return IsNull(column)
        case 1 | 2:
            options = tuple(_number(rng) for _ in range(rng.choice((1, 2, 3))))
            null = (Literal(None, NULL),) if rng.random() < 0.15 else ()
            return InList(column, (*options, *null))
        case 3:
            return Compare(rng.choice(OPS), _number(rng), column)
        case 4 if rng.random() < 0.3:
            return Compare(rng.choice(OPS), X, Literal(None, NULL))
        case _:
            return Compare(rng.choice(OPS), column, _number(rng))


def _condition(rng: Random, depth: int) -> Expr:
    choice = rng.random()
    if depth == 0 or choice < 0.4:
        return _atom(rng)
    if choice < 0.55:
        return Not(_condition(rng, depth - 1))
    parts = tuple(_condition(rng, depth - 1) for _ in range(rng.choice((2, 2, 3))))
    return And(parts) if choice < 0.8 else Or(parts)


@random_cases(150, 1000, 2000, also="232 393 433 460 535 594 821")
def test_what_is_said_to_follow_follows(cases: Collection[int]) -> None:
    implied = differing = 0
    for seed in cases:
        rng = Random(f"pair {seed}")
        relations = rng.choices(tuple(Relation), weights=(4, 2, 2, 1), k=3)
        columns = Columns(dict(zip("xds", relations, strict=True)), {})
        depth = rng.choice((0, 0, 1, 2))
        premise = _condition(rng, depth)
        conclusion = _condition(rng, depth) if rng.random() < 0.8 else premise
        if find_gap(premise, conclusion, columns) is None:
            implied += 1
            differing += premise != conclusion
            assert _is_right(premise, conclusion, columns), (premise, conclusion, relations)
    assert differing > len(cases) // 50
    assert implied > differing


CATALOG = {"c": schema_of("x int, d double, t timestamp, n timestamp_ntz")}
KEPT = Columns({f"c#1.{name}": Relation.EQUAL for name in "xdtn"}, {})


def _read(condition: str) -> Expr:
    """The condition, in a zone whose clocks are put on and back."""
    sql = f"SELECT x FROM c WHERE {condition}"
    (select,) = (
        node
        for node in nodes_of(parse_query(sql, CATALOG, zone="America/New_York").root)
        if isinstance(node, Select)
    )
    return select.predicate


FOLLOWS = [
    ("x > 5", "x > 3"),
    ("x > 5", "x >= 5"),
    ("x >= 5", "x > 4"),
    ("x = 5", "x > 4"),
    ("x = 5", "x <> 4"),
    ("x < 5", "x <> 5"),
    ("x = 5", "x = 5"),
    ("x <> 5", "x <> 5"),
    ("x IN (1, 2)", "x IN (1, 2, 3)"),
    ("x IN (1, 2)", "x >= 1"),
    ("x IN (1, 2)", "x <> 3"),
    ("x NOT IN (1, 2, 3)", "x NOT IN (1, 2)"),
    ("x > 1", "x IS NOT NULL"),
    ("x >= 12 AND x < 18", "x >= 10 AND x < 20"),
    # Local times keep their order only far apart.
    ("t >= TIMESTAMP '2024-03-10 02:45:00'", "t >= TIMESTAMP '2024-03-10 02:45:00'"),
    ("t >= TIMESTAMP '2024-03-12'", "t >= TIMESTAMP '2024-03-10 02:30:00'"),
    ("t >= TIMESTAMP '2024-03-23'", "t >= DATE '2024-03-18'"),
]
DIFFERS = [
    # One of two values excludes neither.
    ("x IN (1, 2)", "x <> 2"),
    ("x IN (1, 2)", "x = 1"),
    # NULL teaches nothing.
    ("x > NULL", "x > 1"),
    ("t >= TIMESTAMP '2024-03-10 02:45:00'", "t >= TIMESTAMP '2024-03-10 02:30:00'"),
    ("t >= TIMESTAMP '2024-03-19 11:00:00'", "t >= DATE '2024-03-18'"),
    # A local time and an instant share no order.
    ("t > TIMESTAMP_NTZ '1970-01-02 00:00:00'", "t > TIMESTAMP '1970-01-01 23:58:20Z'"),
    ("n > TIMESTAMP '1970-01-02 00:00:00Z'", "n > TIMESTAMP_NTZ '1970-01-01 23:58:20'"),
    *((captured, asked) for asked, captured in FOLLOWS if asked != captured),
]


@pytest.mark.parametrize(("premise", "conclusion"), FOLLOWS)
def test_what_follows(premise: str, conclusion: str) -> None:
    assert find_gap(_read(premise), _read(conclusion), KEPT) is None


@pytest.mark.parametrize(("premise", "conclusion"), DIFFERS)
def test_what_does_not_follow_is_the_gap(premise: str, conclusion: str) -> None:
    asked = _read(conclusion)
    gap = asked.operands[0] if isinstance(asked, And) else asked
    assert find_gap(_read(premise), asked, KEPT) is gap


def test_what_had_a_value_here_may_be_null_there() -> None:
    unknown = Columns({"c#1.x": Relation.UNKNOWN}, {})
    assert find_gap(_read("x > 1"), _read("x IS NOT NULL"), unknown) is not None


def test_nan_is_greatest() -> None:
    nan = Compare(CompareOp.GREATER_EQUAL, D, Literal(math.nan, DOUBLE))
    large = Compare(CompareOp.GREATER, D, Literal(1e308, DOUBLE))
    assert find_gap(nan, large, EQUAL) is None
    assert find_gap(large, nan, EQUAL) is nan


def test_types_that_round_share_no_order() -> None:
    single = ColumnRef("f", FLOAT)
    wide = [Literal(value, INTEGER) for value in (16_777_217, 16_777_216)]
    assert points_of(single, wide) is None
    assert points_of(X, [Literal(1, INTEGER), Literal(0.5, DOUBLE)]) is None
    # As a float 16,777,219 is 16,777,220; as a double it is below that.
    both = [Literal(16_777_220.0, kind) for kind in (FLOAT, DOUBLE)]
    assert points_of(X, both) is None
    assert points_of(X, both[:1]) is not None
    assert points_of(ColumnRef("t", TIMESTAMP), [Literal("2024-01-01", STRING)]) is None
    huge = ColumnRef("m", decimal(38, 0))
    assert points_of(huge, [Literal(Decimal("0.5"), decimal(1, 1))]) is None
    assert points_of(ColumnRef("b", BOOLEAN), [Literal(True, BOOLEAN)]) is not None


def test_local_columns_and_days_compare_exactly() -> None:
    local = ColumnRef("n", TIMESTAMP_NTZ)
    columns = Columns({"n": Relation.EQUAL}, {})
    day = Compare(CompareOp.GREATER_EQUAL, local, Literal(1, DATE))
    later = Compare(CompareOp.GREATER, local, Literal(86_400_000_000, TIMESTAMP_NTZ))
    assert find_gap(later, day, columns) is None
    assert find_gap(day, later, columns) is later
