"""Scalar expressions: node for node, spans, names without regard to case."""

from __future__ import annotations

import pytest

from impctl.data.schema import BOOLEAN, DATE, DOUBLE, INTEGER, LONG, NULL, STRING, SqlType, decimal
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
    InList,
    IsNull,
    Like,
    Literal,
    Not,
    walk,
)
from impctl.expr.types import type_of
from impctl.plan.explain import expr_text
from impctl.plan.nodes import Aggregate, Project, Select
from tests.plan.catalogs import plan_of, selected, text_of

PRICE = ColumnRef("sales#1.price", INTEGER)
DAY = ColumnRef("sales#1.day", DATE)
BRAND = ColumnRef("sales#1.brand", STRING)


def column(written: str) -> Expr:
    return selected(f"SELECT {written} AS it FROM sales")


def number(value: int) -> Literal:
    return Literal(value, INTEGER)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("price", PRICE),
        ("PRICE", PRICE),
        ("`Price`", PRICE),
        ("Sales.price", PRICE),
        (
            "price BETWEEN 1 AND 2",
            And(
                (
                    Compare(CompareOp.GREATER_EQUAL, PRICE, number(1)),
                    Compare(CompareOp.LESS_EQUAL, PRICE, number(2)),
                )
            ),
        ),
        ("price IN (1, 2)", InList(PRICE, (number(1), number(2)))),
        ("price NOT IN (1)", Not(InList(PRICE, (number(1),)))),
        ("price != 1", Compare(CompareOp.NOT_EQUAL, PRICE, number(1))),
        ("price == 1", Compare(CompareOp.EQUAL, PRICE, number(1))),
        ("price <=> 1", Compare(CompareOp.NULL_SAFE_EQUAL, PRICE, number(1))),
        (
            "price IS DISTINCT FROM 1",
            Not(Compare(CompareOp.NULL_SAFE_EQUAL, PRICE, number(1))),
        ),
        ("price IS NULL", IsNull(PRICE)),
        ("price IS NOT NULL", Not(IsNull(PRICE))),
        (
            "ok IS NOT TRUE",
            Not(
                Compare(
                    CompareOp.NULL_SAFE_EQUAL,
                    ColumnRef("sales#1.ok", BOOLEAN),
                    Literal(True, BOOLEAN),
                )
            ),
        ),
        ("brand LIKE 'a%'", Like(BRAND, "a%")),
        ("brand NOT LIKE 'a!%' ESCAPE '!'", Not(Like(BRAND, "a!%", "!"))),
        ("brand LIKE brand", Call("like", (BRAND, BRAND), BOOLEAN)),
        ("coalesce(price, 1)", Coalesce((PRICE, number(1)))),
        ("NVL(price, 1)", Coalesce((PRICE, number(1)))),
        (
            "nullif(price, 1)",
            Case(
                (
                    (
                        Compare(CompareOp.EQUAL, PRICE, number(1)),
                        Literal(None, NULL),
                    ),
                ),
                PRICE,
            ),
        ),
        (
            "CASE price WHEN 1 THEN 2 ELSE 3 END",
            Case(((Compare(CompareOp.EQUAL, PRICE, number(1)), number(2)),), number(3)),
        ),
        (
            "if(price > 1, 2, 3)",
            Case(((Compare(CompareOp.GREATER, PRICE, number(1)), number(2)),), number(3)),
        ),
        ("CAST(price AS STRING)", Cast(PRICE, STRING)),
        ("price::bigint", Cast(PRICE, LONG)),
        ("CAST(price AS decimal(12, 3))", Cast(PRICE, decimal(12, 3))),
        ("CAST(price AS decimal(12))", Cast(PRICE, decimal(12, 0))),
        ("CAST(price AS decimal)", Cast(PRICE, decimal(10, 0))),
        ("CAST(price AS varchar(3))", Cast(PRICE, STRING)),
        ("double(price)", Cast(PRICE, DOUBLE)),
        ("UPPER(brand)", Call("upper", (BRAND,), STRING)),
        ("locate('x', brand)", Call("locate", (Literal("x", STRING), BRAND), INTEGER)),
        ("position('x' IN brand)", Call("locate", (Literal("x", STRING), BRAND), INTEGER)),
        ("extract(YEAR FROM day)", Call("year", (DAY,), INTEGER)),
        ("extract(WEEK FROM day)", Call("weekofyear", (DAY,), INTEGER)),
        ("extract(DECADE FROM day)", Call("date_part", (Literal("decade", STRING), DAY))),
        (
            "extract(DAY FROM day - day)",
            Call(
                "date_part", (Literal("day", STRING), Arithmetic(ArithmeticOp.SUBTRACT, DAY, DAY))
            ),
        ),
        ("DATE '1970-01-02'::STRING", Cast(Literal(1, DATE), STRING)),
        (
            "datediff(HOUR, day, day)",
            Call("timestampdiff", (Literal("HOUR", STRING), DAY, DAY), LONG),
        ),
        ("day + 3", Call("date_add", (DAY, number(3)), DATE)),
        ("day - INTERVAL 1 WEEK", Call("date_sub", (DAY, number(7)), DATE)),
        ("dateadd(day, 3, day)", Call("timestampadd", (Literal("DAY", STRING), number(3), DAY))),
        ("datediff(day, day)", Call("datediff", (DAY, DAY), INTEGER)),
        ("abs(price)", Call("abs", (PRICE,), INTEGER)),
        ("+price", PRICE),
        ("+brand", Call("positive", (BRAND,))),
        ("+'5'", Call("positive", (Literal("5", STRING),))),
        ("+ +5", Cast(number(5), INTEGER)),
        ("brand IN (+'5')", InList(BRAND, (Call("positive", (Literal("5", STRING),)),))),
        ("brand || 'x'", Call("concat", (BRAND, Literal("x", STRING)), STRING)),
        ("day = '1970-01-02'", Compare(CompareOp.EQUAL, DAY, Literal(1, DATE))),
        ("'1970-01-02' < day", Compare(CompareOp.LESS, Literal(1, DATE), DAY)),
        ("day IN ('1970-01-02')", InList(DAY, (Literal(1, DATE),))),
        ("day = '1970-1-2'", Compare(CompareOp.EQUAL, DAY, Literal("1970-1-2", STRING))),
        ("price = '1'", Compare(CompareOp.EQUAL, PRICE, Literal("1", STRING))),
    ],
)
def test_nodes(written: str, expected: Expr) -> None:
    assert column(written) == expected


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("price + 1 * 2", "price + 1 * 2"),
        ("price + numSold % 2", "price + numSold % 2"),
        ("(price + 1) * 2", "(price + 1) * 2"),
        ("price - (1 - 2)", "price - (1 - 2)"),
        ("mod(price, 2) = price % 2", "price % 2 = price % 2"),
        ("price DIV 2", "price div 2"),
        ("NOT ok AND ok OR ok", "NOT ok AND ok OR ok"),
        ("NOT (ok OR ok)", "NOT (ok OR ok)"),
        ("NOT price = 1", "NOT price = 1"),
        ("price > 1 AND (ok OR brand IS NULL)", "price > 1 AND (ok OR brand IS NULL)"),
    ],
)
def test_precedence(written: str, text: str) -> None:
    assert expr_text(column(written)) == text


def test_every_part_keeps_its_place() -> None:
    sql = (
        "SELECT sid FROM sales\nWHERE (price + 1) * 2 > 3 AND brand LIKE 'x%'"
        " AND coalesce(price, (numSold)) IN (1, 2)"
    )
    root = plan_of(sql)
    assert isinstance(root, Project)
    assert isinstance(root.child, Select)
    expected = {
        "(price + 1) * 2 > 3",
        "(price + 1) * 2",
        "price + 1",
        "brand LIKE 'x%'",
        "coalesce(price, (numSold)) IN (1, 2)",
        "coalesce(price, (numSold))",
        "numSold",
    }
    spans = [part.span for part in walk(root.child.predicate)]
    result = {sql[span.start : span.end] for span in spans if span is not None}
    assert expected <= result
    assert all(span is not None and span.line == 2 for span in spans)
    assert all(
        sql.split("\n")[1][s.column - 1 :].startswith(sql[s.start : s.end]) for s in spans if s
    )


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("price * numSold", INTEGER),
        ("sid + price", LONG),
        ("price / 2", DOUBLE),
        ("cost * 2", decimal(12, 2)),
        ("cost + 0.125", decimal(12, 3)),
        ("price > 1", BOOLEAN),
    ],
)
def test_types_of_outputs(written: str, expected: SqlType) -> None:
    assert type_of(column(written)) == expected


@pytest.mark.parametrize(
    ("written", "is_known"),
    [
        ("median(price)", True),
        ("percentile(price, 0.5)", True),
        ("percentile(price, 1)", True),
        ("percentile(price, array(0.5, 0.9))", False),
    ],
)
def test_types_of_what_lies_in_the_middle(written: str, is_known: bool) -> None:
    root = plan_of(f"SELECT {written} AS x FROM sales")
    assert isinstance(root, Aggregate)
    (output,) = root.aggregates
    assert (output.attribute.type == DOUBLE) is is_known


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("-price", "-price"),
        ("+price", "+price"),
        ("NOT ok", "NOT ok"),
        ("ok IS NULL", "ok IS NULL"),
        ("trim(brand)", "TRIM(brand)"),
        ("extract(YEAR FROM day)", "EXTRACT(YEAR FROM day)"),
        ("(sales.price)", "price"),
        ("CAST((price) AS STRING)", "price"),
        ("string(sales.price)", "price"),
        ("decimal(price)", "price"),
        ("price::int::string", "CAST(CAST(price AS INT) AS STRING)"),
        ("'price'", "price"),
        ("true", "TRUE"),
        ("price + 1", "price + 1"),
    ],
)
def test_only_columns_and_their_casts_are_called_as_columns(written: str, name: str) -> None:
    root = plan_of(f"SELECT {written} FROM sales")
    assert isinstance(root, Project)
    assert root.outputs[0].attribute.name == name


def test_order_by_a_column_below_an_expression_of_it() -> None:
    """`-price` is no column `price`, and `price` in ORDER BY is the table's."""
    text = text_of("SELECT -price FROM sales ORDER BY price")
    assert text.splitlines()[:2] == ["project -price", "  sort by price"]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("overlay(brand PLACING 'x' FROM price)", 3),
        ("OVERLAY(brand PLACING 'x' FROM 2 FOR price + 1)", 4),
        ("overlay(brand, 'x', 2)", 3),
    ],
)
def test_overlay_is_a_call_however_it_is_written(written: str, arguments: int) -> None:
    result = column(written)
    assert isinstance(result, Call)
    assert (result.name, len(result.arguments)) == ("overlay", arguments)
    assert result.arguments[:2] == (BRAND, Literal("x", STRING))
    assert result.span is not None
    assert result.span.end - result.span.start == len(written)
