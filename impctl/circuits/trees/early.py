"""What may be computed on rows before they are joined, though the query computes it afterwards.

Law: it cannot fail there, but for overflow of `+`, `-`, `*` and of casts between numbers: taken for
so rare that a clear failure is better than no tree for every query with a product. Division by what
may be 0 and text read as numbers fail on ordinary data, so they wait for the joins.
Out of scope: conditions of joins themselves, which are computed on either side in any case.
"""

from __future__ import annotations

from collections.abc import Iterable

from impctl.data.schema import TEMPORAL, Kind
from impctl.expr.nodes import (
    Arithmetic,
    ArithmeticOp,
    Call,
    Cast,
    Expr,
    Literal,
    Negate,
    walk,
)
from impctl.expr.types import type_of
from impctl.plan.properties import part_can_fail

_OF_TIMES_NAMES = """
    year quarter month day dayofmonth dayofweek dayofyear weekofyear weekday hour minute second
    last_day
"""
_OF_TEXT_NAMES = """
    substring substr left right upper ucase lower lcase length trim ltrim rtrim concat startswith
    endswith contains
"""
_OF_TIMES = frozenset(_OF_TIMES_NAMES.split())
_OF_TEXT = frozenset(_OF_TEXT_NAMES.split())
_SUM_LIKE = frozenset({ArithmeticOp.ADD, ArithmeticOp.SUBTRACT, ArithmeticOp.MULTIPLY})


def late_part(exprs: Iterable[Expr]) -> Expr | None:
    """A part that must not be computed before the joins; None where there is none."""
    return next((part for expr in exprs for part in walk(expr) if not _is_early(part)), None)


def _is_early(part: Expr) -> bool:
    match part:
        case Arithmetic():
            return part.op in _SUM_LIKE or not part_can_fail(part) or _is_number(part.right)
        case Negate():
            return True
        case Cast():
            source = type_of(part.operand)
            is_between_numbers = source is not None and source.is_numeric and part.type.is_numeric
            return is_between_numbers or not part_can_fail(part)
        case Call():
            return _is_total(part)
        case _:
            return not part_can_fail(part)


def _is_number(divisor: Expr) -> bool:
    """Whether it is a constant other than 0."""
    while isinstance(divisor, Cast):
        divisor = divisor.operand
    return isinstance(divisor, Literal) and divisor.value not in (None, 0)


def _is_total(call: Call) -> bool:
    types = [type_of(argument) for argument in call.arguments]
    if call.name in _OF_TIMES:
        return all(result is not None and result.kind in TEMPORAL for result in types)
    if call.name not in _OF_TEXT:
        return False
    return all(
        result is not None and (result.kind is Kind.STRING or isinstance(argument, Literal))
        for result, argument in zip(types, call.arguments, strict=True)
    )
