"""Whether evaluating an expression can fail on some row, under Spark's ANSI rules.

Law: False only where no value of the columns' types can make it fail; True when unsure. A rule
never evaluates what can fail on rows that did not reach it before: a query that works must not
start to fail.
Out of scope: what the failure is (`expr.evaluate`).
"""

from __future__ import annotations

from typing import assert_never

from impctl.data.schema import DOUBLE, STRING, Kind, SqlType
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
    Expr,
    InList,
    IsNull,
    Like,
    Literal,
    Mean,
    Negate,
    Not,
    Or,
    walk,
)
from impctl.expr.types import type_of

_TOTAL = frozenset({ArithmeticOp.ADD, ArithmeticOp.SUBTRACT, ArithmeticOp.MULTIPLY})
_WIDTH = {Kind.BYTE: 1, Kind.SHORT: 2, Kind.INTEGER: 4, Kind.LONG: 8}


def can_fail(expr: Expr) -> bool:
    """Whether some row could make the expression fail."""
    return any(part_can_fail(part) for part in walk(expr))


def part_can_fail(part: Expr) -> bool:
    """Whether the outermost step of the expression can fail, its operands having values."""
    match part:
        case Literal() | ColumnRef() | And() | Or() | Not() | IsNull():
            return False
        case Compare():
            return not _are_alike(part.left, part.right)
        case InList():
            return not all(_are_alike(part.operand, option) for option in part.options)
        case Case():
            results = [result for _, result in part.branches]
            return not all(_are_alike(part.default, result) for result in results)
        case Coalesce():
            return not all(_are_alike(part.operands[0], other) for other in part.operands)
        case Like():
            return type_of(part.operand) != STRING
        case Arithmetic():
            return part.op not in _TOTAL or type_of(part) != DOUBLE
        case Negate():
            return type_of(part) != DOUBLE
        case Cast():
            return not _is_widening(type_of(part.operand), part.type)
        case Mean() | Call():
            return True
        case _:
            assert_never(part)


def _are_alike(left: Expr, right: Expr) -> bool:
    """Whether bringing both to one type cannot fail."""
    a, b = type_of(left), type_of(right)
    if a is None or b is None:
        return False
    return a == b or Kind.NULL in (a.kind, b.kind) or (a.is_numeric and b.is_numeric)


def _is_widening(source: SqlType | None, target: SqlType) -> bool:
    if source is None:
        return False
    if source == target or source.kind is Kind.NULL:
        return True
    if target == DOUBLE:
        return source.is_numeric
    if source.kind in _WIDTH and target.kind in _WIDTH:
        return _WIDTH[source.kind] <= _WIDTH[target.kind]
    return False
