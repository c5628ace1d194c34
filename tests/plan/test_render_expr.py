"""Expressions as readable text."""

from __future__ import annotations

import pytest

from impctl.data.schema import DOUBLE, INTEGER
from impctl.expr.nodes import ColumnRef, Mean
from impctl.plan.explain import call_text, column_name, expr_text, order_text
from impctl.plan.nodes import Aggregate, TopK
from tests.plan.catalogs import plan_of, selected


@pytest.mark.parametrize(
    "written",
    [
        "price > 1 AND (brand IS NULL OR NOT ok)",
        "price NOT IN (1, 2)",
        "brand IS NOT NULL",
        "brand LIKE 'a\\'%'",
        "-price + 1.50 - (2 - numSold)",
        "coalesce(price, NULL, TRUE)",
        "CAST(price AS decimal(10,2))",
        "CASE WHEN ok THEN 1 ELSE NULL END",
        "day > DATE '2024-01-31'",
        "day > TIMESTAMP '2024-01-31 12:00:00.500000Z'",
        "day > TIMESTAMP_NTZ '2024-01-31 12:00:00'",
        "X'1f'",
        "upper(brand)",
    ],
)
def test_text_reads_like_the_sql(written: str) -> None:
    assert expr_text(selected(f"SELECT {written} AS it FROM sales")) == written


def test_names_override_identities() -> None:
    ref = ColumnRef("sales#1.price", INTEGER)
    assert expr_text(ref) == "price"
    assert expr_text(ref, {"sales#1.price": "cost"}) == "cost"
    assert expr_text(Mean(ref, ref, DOUBLE)) == "mean(price, price)"


@pytest.mark.parametrize(
    ("identity", "name"),
    [
        ("sales#1.price", "price"),
        ("a b.c#12.two words", "two words"),
        ("p3.rev", "rev"),
        ("a1.avg(x.y)", "avg(x.y)"),
        ("split.a1.brand", "brand"),
        ("odd", "odd"),
    ],
)
def test_column_names(identity: str, name: str) -> None:
    assert column_name(identity) == name


def test_calls_and_orders() -> None:
    root = plan_of("SELECT count(*), sum(DISTINCT price) FILTER (WHERE ok) FROM sales")
    assert isinstance(root, Aggregate)
    assert [call_text(output.call) for output in root.aggregates] == [
        "count(*)",
        "sum(DISTINCT price) FILTER (WHERE ok)",
    ]
    top = plan_of(
        "SELECT * FROM stock ORDER BY brand, shelf DESC, `two words` NULLS LAST, "
        "1 DESC NULLS FIRST LIMIT 1"
    )
    assert isinstance(top, TopK)
    expected = "brand, shelf DESC, two words NULLS LAST, brand DESC NULLS FIRST"
    assert order_text(top.order) == expected
