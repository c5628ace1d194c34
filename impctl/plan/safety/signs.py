"""Which expressions can be negative, positive, NaN or NULL, and what conditions teach of them.

Law: an answer of `signs_of` holds for every row on which the given column facts hold; where unsure,
nothing is claimed. What `learn` adds holds on each row for which the condition is true, over the
table and over the sketch alike, because either evaluates the condition on its own rows. Floating
point is taken as it is: 0 * infinity and infinity - infinity are NaN.
Out of scope: how values over a sketch compare with values over the table (`plan.safety.direction`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from functools import reduce

from impctl.data.schema import Kind, SqlType
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
    Mean,
    Negate,
    Not,
    Or,
)
from impctl.expr.types import as_decimal, common_type, loses_values, narrowed, type_of
from impctl.plan.safety.call_signs import signs_of_call
from impctl.plan.safety.facts import NOTHING, KnownSigns, Signs, may_be_nan
from impctl.plan.safety.normal_form import normalised
from impctl.plan.safety.numbers import EXACT_FLOAT, number_of
from impctl.types import AttributeId

_LONG_DIGITS = 18
"""Digits that a BIGINT always holds."""
_NULL_LITERAL = Signs(
    nonnegative=True,
    nonpositive=True,
    nan_free=True,
    least=Decimal("Infinity"),
    most=Decimal("-Infinity"),
)
"""NULL is no value, so that all that is said of values holds of it."""


def signs_of(expr: Expr, known: KnownSigns) -> Signs:
    """What is known of the expression's value on every row."""
    if isinstance(expr, ColumnRef):
        return known.get(expr.id, NOTHING)
    result = _signs(expr, known)
    type_ = type_of(expr)
    if type_ is not None and type_.is_numeric and not type_.is_fractional:
        result = replace(result, nan_free=True)
    recorded = known.get(expr)
    return result if recorded is None else result.also(recorded)


def _signs(expr: Expr, known: KnownSigns) -> Signs:
    match expr:
        case Literal():
            return _of_literal(expr)
        case Negate():
            return _negated(signs_of(expr.operand, known), expr.operand)
        case Arithmetic():
            return _of_arithmetic(expr, known)
        case Case():
            return _of_case(expr, known)
        case Coalesce():
            parts = [signs_of(part, known) for part in expr.operands]
            anything = any(part.not_null for part in parts)
            return replace(reduce(Signs.meet, parts), not_null=anything)
        case Cast():
            return _of_cast(expr, known)
        case Mean():
            return signs_of(expr.total, known).or_null().unbounded()
        case Call():
            return signs_of_call(expr, [signs_of(part, known) for part in expr.arguments])
        case IsNull():
            return Signs(not_null=True)
        case Compare():
            strict = expr.op is not CompareOp.NULL_SAFE_EQUAL
            both = signs_of(expr.left, known).not_null and signs_of(expr.right, known).not_null
            return Signs(not_null=both or not strict)
        case _:
            return NOTHING


def _of_literal(literal: Literal) -> Signs:
    if literal.value is None:
        return _NULL_LITERAL
    value = number_of(literal)
    if value is None:
        return Signs(not_null=True)
    # A bound holds whatever number type the value is cast to.
    is_exact = value == value.to_integral_value() and abs(value) <= EXACT_FLOAT
    bound = value if is_exact else None
    return Signs(value >= 0, value <= 0, nan_free=True, not_null=True, least=bound, most=bound)


def _negated(signs: Signs, operand: Expr) -> Signs:
    clean = not may_be_nan(type_of(operand), signs)
    return Signs(
        nonnegative=signs.nonpositive,
        nonpositive=signs.nonnegative and clean,
        nan_free=clean,
        not_null=signs.not_null,
    )


def _of_arithmetic(expr: Arithmetic, known: KnownSigns) -> Signs:
    left, right = signs_of(expr.left, known), signs_of(expr.right, known)
    typed_signs = _typed_signs(expr, left, right)
    own = type_of(expr)
    if own is None or not own.is_numeric:
        return NOTHING
    return replace(typed_signs, not_null=left.not_null and right.not_null)


def _typed_signs(expr: Arithmetic, left: Signs, right: Signs) -> Signs:
    match expr.op:
        case ArithmeticOp.ADD:
            return _sum(left, right, expr.left, expr.right)
        case ArithmeticOp.SUBTRACT:
            return _sum(left, _negated(right, expr.right), expr.left, expr.right)
        case ArithmeticOp.MULTIPLY:
            square = expr.left == expr.right
            return _product(expr, left, right, is_square=square)
        case ArithmeticOp.DIVIDE:
            return _product(expr, left, right, is_square=False)
        case ArithmeticOp.INTEGER_DIVIDE:
            if _may_wrap(expr):
                return NOTHING
            return _product(expr, left, right, is_square=False)
        case ArithmeticOp.REMAINDER:
            # The sign is the dividend's; infinity % x is NaN.
            return Signs(
                nonnegative=left.nonnegative,
                nonpositive=left.nonpositive and _operands_exact(expr),
            )


def _sum(left: Signs, right: Signs, left_expr: Expr, right_expr: Expr) -> Signs:
    up = left.nonnegative and right.nonnegative
    down = left.nonpositive and right.nonpositive
    clean = left.nan_free and right.nan_free
    finite = number_of(left_expr) is not None or number_of(right_expr) is not None
    # Opposite infinities cannot meet where both sides have one sign or one side is finite.
    return Signs(up, down, nan_free=clean and (up or down or finite))


def _product(expr: Arithmetic, left: Signs, right: Signs, *, is_square: bool) -> Signs:
    up = (
        is_square
        or (left.nonnegative and right.nonnegative)
        or (left.nonpositive and right.nonpositive)
    )
    down = (left.nonnegative and right.nonpositive) or (left.nonpositive and right.nonnegative)
    return Signs(up, down and _operands_exact(expr), nan_free=_operands_exact(expr))


def _may_wrap(expr: Arithmetic) -> bool:
    """Whether a quotient of decimals may leave BIGINT, of which Spark then keeps the last bits."""
    left, right = type_of(expr.left), type_of(expr.right)
    if left is None or right is None or not _operands_exact(expr):
        return True
    if left.is_integral and right.is_integral:
        return False
    dividend = as_decimal(left)
    return dividend.precision - dividend.scale + right.scale > _LONG_DIGITS


def _operands_exact(expr: Arithmetic) -> bool:
    """Whether both operands are finite by type, so that no NaN can arise."""
    result = (type_of(expr.left), type_of(expr.right))
    return all(t is not None and t.is_numeric and not t.is_fractional for t in result)


def _of_case(expr: Case, known: KnownSigns) -> Signs:
    results = [signs_of(result, learn(condition, known)) for condition, result in expr.branches]
    return reduce(Signs.meet, results, signs_of(expr.default, known))


def _of_cast(expr: Cast, known: KnownSigns) -> Signs:
    inner, source = signs_of(expr.operand, known), type_of(expr.operand)
    if source is None:
        return NOTHING
    if source.kind is Kind.BOOLEAN and expr.type.is_numeric:
        least, most = Decimal(0), Decimal(1)
        return Signs(
            nonnegative=True, nan_free=True, not_null=inner.not_null, least=least, most=most
        )
    if source.kind is Kind.NULL:
        return _NULL_LITERAL
    if not (source.is_numeric and expr.type.is_numeric):
        return Signs(not_null=inner.not_null and source == expr.type)
    clean = not may_be_nan(source, inner)
    kept = inner.not_null and not loses_values(source, expr.type)
    bounded = inner if source.is_integral else inner.unbounded()
    return replace(bounded, nan_free=clean, not_null=kept)


def learn(condition: Expr, known: KnownSigns) -> KnownSigns:
    """The known facts and what the condition adds."""
    return _extended(known, _taught(normalised(condition), known))


def _extended(known: KnownSigns, more: Mapping[AttributeId | Expr, Signs]) -> KnownSigns:
    if not more:
        return known
    merged = dict(known)
    for key, signs in more.items():
        merged[key] = merged.get(key, NOTHING).also(signs)
    return merged


def _taught(condition: Expr, known: KnownSigns) -> dict[AttributeId | Expr, Signs]:
    match condition:
        case And():
            result: dict[AttributeId | Expr, Signs] = {}
            for part in condition.operands:
                for key, signs in _taught(part, known).items():
                    result[key] = result.get(key, NOTHING).also(signs)
            return result
        case Or():
            return _common([_taught(part, known) for part in condition.operands])
        case Compare():
            return _of_comparison(condition, known)
        case Not(operand=IsNull(operand=operand)):
            return {_key(operand): Signs(not_null=True)}
        case InList():
            return _of_list(condition, known)
        case Like():
            return {_key(condition.operand): Signs(not_null=True)}
        case _:
            return {}


def _common(branches: list[dict[AttributeId | Expr, Signs]]) -> dict[AttributeId | Expr, Signs]:
    shared = set(branches[0]).intersection(*branches[1:])
    result: dict[AttributeId | Expr, Signs] = {}
    for key in shared:
        signs = branches[0][key]
        for branch in branches[1:]:
            signs = signs.meet(branch[key])
        result[key] = signs
    return result


def _key(expr: Expr) -> AttributeId | Expr:
    return expr.id if isinstance(expr, ColumnRef) else expr


def _of_comparison(condition: Compare, known: KnownSigns) -> dict[AttributeId | Expr, Signs]:
    result: dict[AttributeId | Expr, Signs] = {}
    mirrored = condition.op.mirrored
    sides = (
        (condition.left, condition.op, condition.right),
        (condition.right, mirrored, condition.left),
    )
    for subject, op, other in sides:
        if not isinstance(subject, Literal):
            result[_key(subject)] = _compared(subject, op, other, known)
    return result


def _compared(subject: Expr, op: CompareOp, other: Expr, known: KnownSigns) -> Signs:
    """What `subject op other` says about the subject."""
    beside = signs_of(other, known)
    if op is CompareOp.NULL_SAFE_EQUAL:
        return Signs(not_null=beside.not_null)
    types = _compared_types(subject, other)
    if types is None:
        # Spark may cast text before it compares; the text's own value stays unknown.
        return Signs(not_null=True)
    if common_type(*types) is None:
        # Decimals that do not fit one type are rounded first: a tiny negative one becomes 0.
        return Signs(not_null=True)
    clean = not may_be_nan(types[1], beside)
    rises = op in (CompareOp.GREATER, CompareOp.GREATER_EQUAL, CompareOp.EQUAL)
    falls = op in (CompareOp.LESS, CompareOp.LESS_EQUAL, CompareOp.EQUAL)
    return Signs(
        nonnegative=rises and beside.nonnegative,
        nonpositive=falls and beside.nonpositive,
        # Nothing exceeds NaN, so what is below some value is not NaN.
        nan_free=op is CompareOp.LESS or (falls and clean),
        not_null=True,
    )


def _compared_types(subject: Expr, other: Expr) -> tuple[SqlType, SqlType] | None:
    """The types of two numbers as they are compared; None where one is no number."""
    left, right = type_of(subject), type_of(other)
    if left is None or right is None or not (left.is_numeric and right.is_numeric):
        return None
    return narrowed(subject, left, right), narrowed(other, right, left)


def _of_list(condition: InList, known: KnownSigns) -> dict[AttributeId | Expr, Signs]:
    if isinstance(condition.operand, Literal) or not condition.options:
        return {}
    signs = [
        _compared(condition.operand, CompareOp.EQUAL, option, known) for option in condition.options
    ]
    if not _has_common_type((condition.operand, *condition.options)):
        signs = [Signs(not_null=True)]
    return {_key(condition.operand): reduce(Signs.meet, signs)}


def _has_common_type(values: tuple[Expr, ...]) -> bool:
    """Whether one type holds all values unrounded; digits of literals do not narrow it in IN."""
    result = type_of(values[0])
    for value in values[1:]:
        other = type_of(value)
        result = None if result is None or other is None else common_type(result, other)
    return result is not None
