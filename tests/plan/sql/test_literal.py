"""Constants in the types Spark gives them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from impctl.data.schema import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    NULL,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    SqlType,
    decimal,
    other,
)
from impctl.expr.nodes import Arithmetic, Cast, Expr, Literal, Negate
from tests.plan.catalogs import plan_of, selected


def expr_of(written: str) -> Expr:
    return selected(f"SELECT {written} AS it FROM sales")


@pytest.mark.parametrize(
    ("written", "value", "kind"),
    [
        ("5", 5, INTEGER),
        ("00012", 12, INTEGER),
        ("2147483647", 2147483647, INTEGER),
        ("2147483648", 2147483648, LONG),
        ("-2147483648", -2147483648, INTEGER),
        ("- 5", -5, INTEGER),
        ("5000000000", 5000000000, LONG),
        ("-9223372036854775808", -(2**63), LONG),
        ("99999999999999999999", Decimal("99999999999999999999"), decimal(20, 0)),
        ("4L", 4, LONG),
        ("-4L", -4, LONG),
        ("2S", 2, SHORT),
        ("3Y", 3, BYTE),
        ("-128Y", -128, BYTE),
        ("0.12", Decimal("0.12"), decimal(2, 2)),
        ("0.00", Decimal("0.00"), decimal(2, 2)),
        ("-0.0", Decimal("0.0"), decimal(1, 1)),
        (".5", Decimal("0.5"), decimal(1, 1)),
        ("-.5", Decimal("-0.5"), decimal(1, 1)),
        ("100.", Decimal(100), decimal(3, 0)),
        ("1.50BD", Decimal("1.50"), decimal(3, 2)),
        ("-1.5bd", Decimal("-1.5"), decimal(2, 1)),
        ("1e-3bd", Decimal("0.001"), decimal(3, 3)),
        ("1e3", 1000.0, DOUBLE),
        ("-2.5E-1", -0.25, DOUBLE),
        ("1.0D", 1.0, DOUBLE),
        ("1.5F", 1.5, FLOAT),
        ("0.1F", 0.10000000149011612, FLOAT),
        # By way of a double it would be rounded to 1.0.
        ("1.00000005960464477540F", 1.0000001192092896, FLOAT),
        ("1.00000005960464477539F", 1.0, FLOAT),
        ("1e-60F", 0.0, FLOAT),
        ("1e-9999999999999999999F", 0.0, FLOAT),
        ("1e-9999999999999999999D", 0.0, DOUBLE),
        ("1e-45F", 1.401298464324817e-45, FLOAT),
        ("'x'", "x", STRING),
        ('"x"', "x", STRING),
        (r"'it\'s'", "it's", STRING),
        (r"'a\tb\\'", "a\tb\\", STRING),
        (r"'\%\_\q'", r"\%\_q", STRING),
        (r"'\101\u0041'", "AA", STRING),
        (r"r'a\n'", r"a\n", STRING),
        ("TRUE", True, BOOLEAN),
        ("false", False, BOOLEAN),
        ("NULL", None, NULL),
        ("X'1f'", b"\x1f", BINARY),
        ("DATE '1970-01-02'", 1, DATE),
        ("DATE '1969-12-31'", -1, DATE),
        ("TIMESTAMP '1970-01-01 00:00:01Z'", 1_000_000, TIMESTAMP),
        ("TIMESTAMP '1970-01-01 01:00:00.5+01:00'", 500_000, TIMESTAMP),
        ("TIMESTAMP_NTZ '1970-01-01 00:00:01'", 1_000_000, TIMESTAMP_NTZ),
        ("DATE '2024-01-31' + INTERVAL 1 MONTH", 19782, DATE),
        ("DATE '2024-03-01' - INTERVAL '1' DAY", 19782, DATE),
        ("DATE '2024-02-29' - INTERVAL 1 YEAR", 19416, DATE),
        ("DATE '2024-02-15' + INTERVAL 2 WEEKS", 19782, DATE),
    ],
)
def test_value_and_type(written: str, value: object, kind: SqlType) -> None:
    expr = expr_of(written)
    assert isinstance(expr, Literal)
    assert expr == Literal(value, kind)  # type: ignore[arg-type]
    assert type(expr.value) is type(value)


def test_an_interval_is_a_cast_for_spark() -> None:
    expr = expr_of("day + INTERVAL 3 MONTHS")
    assert isinstance(expr, Arithmetic)
    assert expr.right == Cast(Literal("3", STRING), other("interval month"))


def test_a_minus_before_parentheses_negates() -> None:
    assert isinstance(expr_of("-(5)"), Negate)


def test_a_literal_span_includes_minus_and_suffix() -> None:
    sql = "SELECT sid FROM sales WHERE price > -5L"
    root = plan_of(sql)
    literal = root.child.predicate.right  # type: ignore[union-attr]
    assert sql[literal.span.start : literal.span.end] == "-5L"
