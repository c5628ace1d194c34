"""Values of a PIVOT in their column's type, and what Spark calls them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from impctl.data.schema import BOOLEAN, DOUBLE, INTEGER, LONG, STRING, SqlType, decimal
from impctl.expr.nodes import Arithmetic, ArithmeticOp, Cast, ColumnRef, Literal, LiteralValue
from impctl.sql.pivot import as_column, constant_of, name_of

CENTS = decimal(5, 2)


def number(text: str) -> Literal:
    value = Decimal(text)
    return Literal(value, decimal(9, -int(value.as_tuple().exponent)))


@pytest.mark.parametrize(
    ("value", "column", "expected"),
    [
        (number("1.00"), CENTS, Decimal("1.00")),
        (number("-2.5000"), CENTS, Decimal("-2.50")),
        (Literal(999, INTEGER), CENTS, Decimal("999.00")),
        (Literal(1000, INTEGER), CENTS, None),
        (number("1.005"), CENTS, None),
        (number("2.00"), LONG, 2),
        (number("2.01"), LONG, None),
        (number("1.5"), DOUBLE, None),
        (Literal("1", STRING), LONG, None),
        (Literal("x", STRING), STRING, "x"),
        (Literal(1, INTEGER), STRING, None),
    ],
)
def test_what_a_cast_would_change_is_not_taken(
    value: Literal, column: SqlType, expected: LiteralValue
) -> None:
    cast = as_column(value, column)
    assert (None if cast is None else cast.value) == expected
    assert as_column(Literal(None, value.type), column) is not None


def test_what_has_no_column_is_a_constant() -> None:
    one = Literal(1, INTEGER)
    two = constant_of(Arithmetic(ArithmeticOp.ADD, one, one))
    assert two.value == 2
    wide = constant_of(Cast(number("1.5"), decimal(5, 3)))
    assert wide is not None
    assert name_of([wide]) == "1.500"
    assert constant_of(ColumnRef("t.a", INTEGER)) is None
    assert constant_of(Arithmetic(ArithmeticOp.DIVIDE, one, Literal(0, INTEGER))) is None


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ([number("1.00")], "1.00"),
        ([number("-0.5")], "-0.5"),
        ([Literal(True, BOOLEAN)], "true"),
        ([Literal(-1, LONG), Literal("a", STRING)], "{-1, a}"),
        ([Literal(None, STRING), number("2")], "{null, 2}"),
        ([Literal(1.5, DOUBLE)], None),
        ([number("0.00000001")], None),
    ],
)
def test_names(values: list[Literal], name: str | None) -> None:
    assert name_of(values) == name
