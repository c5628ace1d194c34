"""The end of a plan comes back from JSON as it was, and nothing else comes back from it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from decimal import Decimal
from typing import Any, get_args

import pytest

from impctl.data.schema import DOUBLE, LONG, STRING, decimal
from impctl.expr.nodes import Expr, Literal, LiteralValue, walk
from impctl.plan.nodes import Attribute, ComputedColumn, SortKey
from impctl.rules.finalize import Ending, FirstRows, answer_plan, read_ending, written_ending
from impctl.rules.optimize import apply_rules
from impctl.sql.statement import parse_query
from tests.support.random_cases import random_cases
from tests.support.random_queries import SCHEMA, random_sql

EXPRESSIONS = """
SELECT g, -x, x + 1, x - 1L, x * 2, x / 2, x DIV 2, x % 3, f, f > 1.5, x <=> NULL, NOT (x > 1),
  x IS NULL OR x IN (1, 2), s LIKE 'a_%' ESCAPE '!', CASE WHEN x = 1 THEN 'a' ELSE 'b' END,
  COALESCE(x, 0), CAST(x AS STRING), UPPER(s), DATE '2024-02-29', 1.50BD, X'00ff', m
FROM (SELECT g, SUM(x) AS x, MAX(d) AS f, MAX(s) AS s, AVG(x) AS m FROM t GROUP BY g) AS u
WHERE x < 5 AND s <> 'x' ORDER BY x DESC NULLS LAST, s LIMIT 7 OFFSET 2
"""


def ending_of(sql: str) -> Ending:
    query = parse_query(sql, {"t": SCHEMA})
    return answer_plan(replace(query, root=apply_rules(query.root))).ending


def through_json(ending: Ending) -> Ending:
    return read_ending(json.loads(json.dumps(written_ending(ending))))


def exprs(ending: Ending) -> list[Expr]:
    first = () if ending.first is None else ending.first.order
    own = [*(one.expr for one in ending.outputs), *ending.predicates]
    return [*own, *(key.expr for key in (*ending.order, *first))]


@random_cases(50, 100, 1000)
def test_endings_of_random_queries_come_back(cases: range) -> None:
    cut = 0
    for seed in cases:
        draw = random.Random(seed)
        ending = ending_of(f"{random_sql(draw)} ORDER BY 1 LIMIT {draw.randrange(9)}")
        assert through_json(ending) == ending, seed
        cut += ending.is_cut
    assert cut > len(cases) * 5 // 6


def test_every_kind_of_expression_comes_back() -> None:
    ending = ending_of(EXPRESSIONS)
    assert through_json(ending) == ending
    met = {type(part) for expr in exprs(ending) for part in walk(expr)}
    assert {kind.__name__ for kind in get_args(Expr)} - {kind.__name__ for kind in met} <= {"Mean"}


@pytest.mark.parametrize(
    "value",
    [None, True, 0, 2**63 - 1, -(2**70), -0.0, float("inf"), 1 / 3, "\ud800", "", b"\x00\xff"]
    + [Decimal("1E+3"), Decimal("-0.00")],
)
def test_a_constant_keeps_its_class_and_its_bits(value: LiteralValue) -> None:
    attribute = Attribute("o", "o", decimal(5, 2), nullable=False)
    output = ComputedColumn(attribute, Literal(value, DOUBLE))
    order = (SortKey(Literal("x", STRING), True, False),)
    ending = Ending((attribute,), (), FirstRows(order, None, 3), (), 0, (output,))
    result = through_json(ending)
    assert result == ending
    (read,) = (one.expr for one in result.outputs)
    assert isinstance(read, Literal)
    assert (type(read.value), repr(read.value)) == (type(value), repr(value))


def test_a_constant_of_another_class_is_not_written() -> None:
    class Odd(int):
        pass

    output = ComputedColumn(Attribute("o", "o", LONG), Literal(Odd(1), LONG))
    with pytest.raises(TypeError):
        written_ending(Ending((), (), None, (), None, (output,)))


@pytest.mark.parametrize(
    "written",
    [None, "x", 3, [], ["tuple"], ["Ending"], ["Path", "/"], ["Ending", 1, 2, 3, 4, 5, 6]]
    + [["Kind", "no such"], ["int", "x"], ["Decimal", "x"], ["SqlType", ["Kind", "long"]]],
)
def test_what_was_not_written_is_not_read(written: Any) -> None:
    with pytest.raises(ValueError, match="not the end of a plan"):
        read_ending(written)
