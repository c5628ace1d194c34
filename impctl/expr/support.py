"""Which expressions the evaluator computes exactly as Spark does, and why not where it does not.

Law: what is not listed here is refused before any row is looked at, with the part of the
expression that blocks it; nothing is approximated. Values with an error bound (sums of doubles) may
be used anywhere: what depends on the order of summing is found on the row where it does.
Out of scope: computing (`expr.evaluate`).
"""

from __future__ import annotations

from functools import reduce

from impctl.data.schema import BOOLEAN, STRING, Kind, SqlType
from impctl.expr.cast import supports as supports_cast
from impctl.expr.compare import like_objection
from impctl.expr.functions import call_objection
from impctl.expr.nodes import (
    And,
    Arithmetic,
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
from impctl.expr.types import common_type, narrowed, type_of, wider_type
from impctl.expr.zones import fixed_offset
from impctl.values import dataclass

_TRUTH_VALUES = (BOOLEAN, SqlType(Kind.NULL))


@dataclass(frozen=True, slots=True)
class Blocker:
    """The part of an expression that the evaluator does not compute, and why."""

    part: Expr
    reason: str


def find_blocker(expr: Expr) -> Blocker | None:
    """The first part the evaluator cannot compute exactly; None when it can compute it all."""
    for part in walk(expr):
        reason = _reason(part)
        if reason is not None:
            return Blocker(part, reason)
    return None


def find_condition_blocker(expr: Expr) -> Blocker | None:
    """The same of a condition, which must be a truth value."""
    blocker = find_blocker(expr)
    if blocker is None and type_of(expr) not in _TRUTH_VALUES:
        return Blocker(expr, f"the engine does not support a condition of type `{type_of(expr)}`")
    return blocker


def _reason(expr: Expr) -> str | None:
    result = type_of(expr)
    if result is None or result.kind is Kind.OTHER:
        what = f"function `{expr.name}`" if isinstance(expr, Call) else "an expression"
        return f"{what} has a type that the engine does not support"
    match expr:
        case Literal() | ColumnRef() | Mean() | IsNull():
            return None
        case Arithmetic() | Negate():
            return _arithmetic_reason(result)
        case Compare():
            return _comparison_reason(expr)
        case And() | Or():
            return _all_boolean(expr.operands)
        case Not():
            return _all_boolean((expr.operand,))
        case InList():
            return _in_list_reason(expr)
        case Like():
            operand = type_of(expr.operand)
            if operand != STRING:
                return f"the engine does not support LIKE over `{operand}`"
            return like_objection(expr.pattern, expr.escape)
        case Case() | Coalesce():
            return _branches_reason(expr, result)
        case Cast():
            return _cast_reason(expr)
        case Call():
            return call_objection(expr)


def _cast_reason(expr: Cast) -> str | None:
    source = type_of(expr.operand)
    if source is None or not supports_cast(source, expr.type):
        return f"the engine does not support CAST from `{source}` to `{expr.type}`"
    has_zone = Kind.TIMESTAMP in (source.kind, expr.type.kind) and source != expr.type
    if has_zone and source.kind is not Kind.NULL and fixed_offset(expr.zone) is None:
        return (
            f"the engine does not support CAST from `{source}` to `{expr.type}` in the time zone "
            f"{expr.zone}"
        )
    return None


def _arithmetic_reason(sql_type: SqlType) -> str | None:
    if sql_type.kind is Kind.FLOAT:
        return "the engine does not support single-precision arithmetic"
    return (
        None if sql_type.is_numeric else f"the engine does not support arithmetic on `{sql_type}`"
    )


def _all_boolean(operands: tuple[Expr, ...]) -> str | None:
    if all(type_of(part) in _TRUTH_VALUES for part in operands):
        return None
    return "AND, OR and NOT need conditions"


def _comparison_reason(expr: Compare) -> str | None:
    left, right = type_of(expr.left), type_of(expr.right)
    if left is None or right is None:
        return "the engine does not support a comparison of unknown types"
    return _comparable(narrowed(expr.left, left, right), narrowed(expr.right, right, left))


def _comparable(left: SqlType | None, right: SqlType | None) -> str | None:
    if left is None or right is None:
        return "the engine does not support a comparison of unknown types"
    if left.kind is Kind.NULL or right.kind is Kind.NULL:
        return "the engine does not support a comparison with a bare NULL"
    if left == right or (left.is_numeric and right.is_numeric and common_type(left, right)):
        return None
    return f"the engine does not support comparing `{left}` with `{right}`"


def _in_list_reason(expr: InList) -> str | None:
    types = [type_of(part) for part in (expr.operand, *expr.options)]
    for result in types[1:]:
        blocked = _comparable(types[0], result)
        if blocked is not None:
            return blocked
    known = [result for result in types if result is not None]
    wanted = reduce(wider_type, known)
    if all(supports_cast(result, wanted) for result in known):
        return None
    mixed = ", ".join(dict.fromkeys(map(str, known)))
    return f"the engine does not support an IN list that mixes {mixed}"


def _branches_reason(expr: Case | Coalesce, sql_type: SqlType) -> str | None:
    if sql_type.kind is Kind.FLOAT:
        return "the engine does not support single-precision results"
    if isinstance(expr, Case):
        results = (*(result for _, result in expr.branches), expr.default)
        blocked = _all_boolean(tuple(condition for condition, _ in expr.branches))
        if blocked is not None:
            return blocked
    else:
        results = expr.operands
    for result in results:
        own = type_of(result)
        if (
            own is None
            or common_type(own, sql_type) != sql_type
            or not supports_cast(own, sql_type)
        ):
            return f"the engine does not support mixing `{own}` and `{sql_type}`"
    return None
