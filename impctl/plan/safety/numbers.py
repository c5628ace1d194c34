"""The number that a constant stands for.

Law: the number is the constant's value after all casts around it, or none is told.
Out of scope: what is known of other expressions (`plan.safety.signs`).
"""

from __future__ import annotations

from decimal import Decimal

from impctl.data.schema import Kind, SqlType
from impctl.expr.nodes import Cast, Expr, Literal, Negate
from impctl.expr.types import type_of

EXACT_FLOAT = 2**24
"""Whole numbers up to this size are single-precision numbers."""


def number_of(expr: Expr) -> Decimal | None:
    """The finite number a constant stands for; None for anything else."""
    match expr:
        case Literal(value=bool()):
            return None
        case Literal(value=int() | float() | Decimal() as value) if expr.type.is_numeric:
            number = Decimal(str(value))
            return number if number.is_finite() else None
        case Negate():
            inner = number_of(expr.operand)
            return None if inner is None else -inner
        case Cast() if expr.type.is_fractional or expr.type.kind is Kind.LONG:
            inner = number_of(expr.operand)
            return None if inner is None else _widened(inner, type_of(expr.operand), expr.type)
        case _:
            return None


def _widened(number: Decimal, source: SqlType | None, target: SqlType) -> Decimal | None:
    """The constant after a cast; a double's rounding may have moved it to the next whole number.

    None for casts that round in other ways: these could turn a small number into zero.
    """
    if target.kind is Kind.DOUBLE:
        return Decimal(str(float(number)))
    if source is None or not source.is_integral:
        return None
    return number if target.kind is not Kind.FLOAT or abs(number) <= EXACT_FLOAT else None
