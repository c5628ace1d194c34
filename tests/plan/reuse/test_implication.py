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
    SqlType,
    decimal,
)
from impctl.expr.nodes import (
    And,
    Cast,
    ColumnRef,
    Compare,
    CompareOp,
    Expr,
    InList,
    IsNull,
    Literal,
    LiteralValue,
    Not,
    Or,
)
from impctl.plan.reuse.constants import points_of
from impctl.plan.reuse.implication import find_gap
from impctl.plan.safety.direction import Columns
from impctl.plan.safety.relation import Relation
from tests.support.random_cases import random_cases
from tests.support.reference_expr import Value, is_true, sort_key

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


@random_cases(150, 575, 2000, also="232 393 433 460 535 594")
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


def _compare(op: str, column: ColumnRef, value: LiteralValue, kind: SqlType) -> Expr:
    return Compare(CompareOp(op), column, Literal(value, kind))


@pytest.mark.parametrize(
    ("premise", "conclusion"),
    [
        ("> 5", "> 3"),
        ("> 5", ">= 5"),
        (">= 5", "> 4"),
        ("= 5", "> 4"),
        ("= 5", "<> 4"),
        ("< 5", "<> 5"),
        ("= 5", "= 5"),
        ("<> 5", "<> 5"),
    ],
)
def test_one_comparison_implies_another(premise: str, conclusion: str) -> None:
    asked, captured = (
        _compare(text.split()[0], X, int(text.split()[1]), INTEGER)
        for text in (premise, conclusion)
    )
    assert find_gap(asked, captured, EQUAL) is None
    if premise != conclusion:
        assert find_gap(captured, asked, EQUAL) is asked


def test_a_list_implies_a_longer_one_and_its_bounds() -> None:
    short = InList(X, (Literal(1, INTEGER), Literal(2, INTEGER)))
    long = InList(X, (*short.options, Literal(3, INTEGER)))
    assert find_gap(short, long, EQUAL) is None
    assert find_gap(long, short, EQUAL) is short
    assert find_gap(short, _compare(">=", X, 1, INTEGER), EQUAL) is None
    assert find_gap(Not(long), Not(short), EQUAL) is None
    assert find_gap(Not(short), Not(long), EQUAL) is not None


def test_a_comparison_that_holds_had_a_value() -> None:
    assert find_gap(_compare(">", X, 1, INTEGER), Not(IsNull(X)), EQUAL) is None
    assert find_gap(Not(IsNull(X)), _compare(">", X, 1, INTEGER), EQUAL) is not None


def test_what_had_a_value_here_may_be_null_there() -> None:
    unknown = Columns({"x": Relation.UNKNOWN}, {})
    assert find_gap(_compare(">", X, 1, INTEGER), Not(IsNull(X)), unknown) is not None


def test_one_of_two_values_excludes_neither() -> None:
    pair = InList(X, (Literal(1, INTEGER), Literal(2, INTEGER)))
    assert find_gap(pair, _compare("<>", X, 3, INTEGER), EQUAL) is None
    assert find_gap(pair, _compare("<>", X, 2, INTEGER), EQUAL) is not None
    assert find_gap(pair, _compare("=", X, 1, INTEGER), EQUAL) is not None


def test_an_interval_needs_both_ends() -> None:
    inner = And((_compare(">=", X, 12, INTEGER), _compare("<", X, 18, INTEGER)))
    outer = And((_compare(">=", X, 10, INTEGER), _compare("<", X, 20, INTEGER)))
    assert find_gap(inner, outer, EQUAL) is None
    assert find_gap(outer, inner, EQUAL) is inner.operands[0]


def test_null_teaches_nothing_and_nan_is_greatest() -> None:
    null = Compare(CompareOp.GREATER, X, Literal(None, NULL))
    assert find_gap(null, _compare(">", X, 1, INTEGER), EQUAL) is not None
    nan = _compare(">=", D, math.nan, DOUBLE)
    assert find_gap(nan, _compare(">", D, 1e308, DOUBLE), EQUAL) is None
    assert find_gap(_compare(">", D, 1e308, DOUBLE), nan, EQUAL) is nan


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


def _local(text: str) -> Expr:
    return Cast(Literal(text, STRING), TIMESTAMP)


def test_local_times_keep_their_order_only_far_apart() -> None:
    moment = ColumnRef("t", TIMESTAMP)

    def after(text: str) -> Expr:
        return Compare(CompareOp.GREATER_EQUAL, moment, _local(text))

    columns = Columns({"t": Relation.EQUAL}, {})
    assert find_gap(after("2024-03-10 02:45:00"), after("2024-03-10 02:30:00"), columns) is not None
    assert find_gap(after("2024-03-10 02:45:00"), after("2024-03-10 02:45:00"), columns) is None
    assert find_gap(after("2024-03-12"), after("2024-03-10 02:30:00"), columns) is None
    day = Compare(CompareOp.GREATER_EQUAL, moment, Literal(19_800, DATE))
    assert find_gap(after("2024-03-23"), day, columns) is None
    assert find_gap(after("2024-03-19 11:00:00"), day, columns) is not None


def test_a_local_time_and_an_instant_share_no_order() -> None:
    for kind, other in ((TIMESTAMP, TIMESTAMP_NTZ), (TIMESTAMP_NTZ, TIMESTAMP)):
        moment = ColumnRef("t", kind)
        columns = Columns({"t": Relation.EQUAL}, {})
        late = Compare(CompareOp.GREATER, moment, Literal(86_400_000_000, other))
        early = Compare(CompareOp.GREATER, moment, Literal(86_300_000_000, kind))
        assert find_gap(late, early, columns) is not None


def test_local_columns_and_days_compare_exactly() -> None:
    local = ColumnRef("n", TIMESTAMP_NTZ)
    columns = Columns({"n": Relation.EQUAL}, {})
    day = Compare(CompareOp.GREATER_EQUAL, local, Literal(1, DATE))
    later = Compare(CompareOp.GREATER, local, Literal(86_400_000_000, TIMESTAMP_NTZ))
    assert find_gap(later, day, columns) is None
    assert find_gap(day, later, columns) is later
