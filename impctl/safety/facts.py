"""Sign and NULL facts about columns, and what they imply for expressions.

Law: a fact about a column is true of every row of the table, hence over the sketch too. All facts
derived from them hold over the table and over the sketch; where unsure, nothing is claimed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from functools import reduce
from typing import TYPE_CHECKING, assert_never

from msgspec import Struct
from msgspec.structs import replace

from impctl.data.schema import DOUBLE, Kind, SqlType
from impctl.expr import nodes as e
from impctl.expr.types import as_decimal, common_type, loses_values, narrowed, type_of
from impctl.types import AttributeId, ColumnName, TableName

if TYPE_CHECKING:
    from impctl.plan.nodes import Scan


def normalized(predicate: e.Expr) -> e.Expr:
    """The predicate in negation normal form. It is true on exactly the same rows; it may be false
    instead of NULL or vice versa, which no filter distinguishes."""
    match predicate:
        case e.And() | e.Or():
            return predicate.map(normalized)
        case e.Not():
            return _negated(predicate.operand, predicate)
        case _:
            return predicate


def _negated(predicate: e.Expr, negation: e.Not) -> e.Expr:
    match predicate:
        case e.And():
            parts = tuple(_negated(o, e.Not(o, span=o.span)) for o in predicate.operands)
            return e.Or(parts, span=negation.span)
        case e.Or():
            parts = tuple(_negated(o, e.Not(o, span=o.span)) for o in predicate.operands)
            return e.And(parts, span=negation.span)
        case e.Not():
            return normalized(predicate.operand)
        case e.Compare() if (opposite := predicate.op.opposite) is not None:
            return e.Compare(opposite, predicate.left, predicate.right, span=negation.span)
        case e.Literal(value=bool() as value):
            return e.Literal(not value, predicate.type, span=negation.span)
        case _:
            return negation


EXACT_FLOAT = 2**24
"""Integers up to this size are single-precision numbers."""


def number_of(expr: e.Expr) -> Decimal | None:
    """The finite value of a constant after all casts around it; None for anything else."""
    match expr:
        case e.Literal(value=bool()):
            return None
        case e.Literal(value=int() | float() | Decimal() as value) if expr.type.is_numeric:
            number = Decimal(str(value))
            return number if number.is_finite() else None
        case e.Negate():
            operand = number_of(expr.operand)
            return None if operand is None else -operand
        case e.Cast() if expr.type.is_fractional or expr.type.kind is Kind.LONG:
            operand = number_of(expr.operand)
            return None if operand is None else _widened(operand, type_of(expr.operand), expr.type)
        case _:
            return None


def _widened(number: Decimal, source: SqlType | None, target: SqlType) -> Decimal | None:
    """The constant after a cast, rounded to a double if it is one. None for casts that round in
    other ways: these could turn a small number into zero."""
    if target.kind is Kind.DOUBLE:
        return Decimal(str(float(number)))
    if source is None or not source.is_integral:
        return None
    return number if target.kind is not Kind.FLOAT or abs(number) <= EXACT_FLOAT else None


class FactKind(StrEnum):
    """NONNEGATIVE means NULL, NaN (the greatest value) or at least 0. NONPOSITIVE means NULL or at
    most 0, so it excludes NaN."""

    NONNEGATIVE = "nonnegative"
    NONPOSITIVE = "nonpositive"
    NOT_NULL = "not null"
    NAN_FREE = "free of NaN"


class FactSource(StrEnum):
    CONSTRAINT = "constraint"
    """From a CHECK of the table at one version; checked again at every other version."""
    STATISTICS = "statistics"
    """True of one version; later rows may break it, so a sketch that relies on it records it."""
    PREDICATE = "predicate"
    """From the query's conditions."""


def broken_by(kind: FactKind, column: e.ColumnRef) -> e.Expr:
    """The condition that is true of exactly those values of the column that break the fact."""
    match kind:
        case FactKind.NOT_NULL:
            return e.IsNull(column)
        case FactKind.NONNEGATIVE:
            return e.Compare(e.CompareOp.LESS, column, _zero(column))
        case FactKind.NONPOSITIVE:
            # True of NaN.
            return e.Not(e.Compare(e.CompareOp.LESS_EQUAL, column, _zero(column)))
        case FactKind.NAN_FREE:
            return e.Compare(e.CompareOp.EQUAL, column, e.Literal(math.nan, DOUBLE))
        case _:
            assert_never(kind)


def _zero(column: e.ColumnRef) -> e.Literal:
    """Zero of the column's type, so that the comparison casts nothing."""
    return e.Literal(0, column.type)


class Fact(Struct, frozen=True):
    """Something known about all values of a column."""

    table: TableName
    column: ColumnName
    kind: FactKind
    source: FactSource


_ZERO = Decimal(0)
_ENDLESS = Decimal("Infinity")


class Signs(Struct, frozen=True):
    """What is known about the values of an expression; False and None mean unknown. `least` and
    `most` are integers that bound all values except NULL; `most` excludes NaN."""

    nonnegative: bool = False
    nonpositive: bool = False
    nan_free: bool = False
    not_null: bool = False
    least: Decimal | None = None
    most: Decimal | None = None

    @property
    def bounds(self) -> tuple[Decimal, Decimal]:
        """The interval of all values except NULL; it may be infinite."""
        low = -_ENDLESS if self.least is None else self.least
        high = _ENDLESS if self.most is None else self.most
        return (max(low, _ZERO) if self.nonnegative else low), (
            min(high, _ZERO) if self.nonpositive else high
        )

    def meet(self, other: Signs) -> Signs:
        """What is known if one or the other describes the value."""
        return Signs(
            self.nonnegative and other.nonnegative,
            self.nonpositive and other.nonpositive,
            self.nan_free and other.nan_free,
            self.not_null and other.not_null,
            None if self.least is None or other.least is None else min(self.least, other.least),
            None if self.most is None or other.most is None else max(self.most, other.most),
        )

    def also(self, other: Signs) -> Signs:
        """What is known if both describe the value."""
        return Signs(
            self.nonnegative or other.nonnegative,
            self.nonpositive or other.nonpositive,
            self.nan_free or other.nan_free,
            self.not_null or other.not_null,
            max((x for x in (self.least, other.least) if x is not None), default=None),
            min((x for x in (self.most, other.most) if x is not None), default=None),
        )

    def unbounded(self) -> Signs:
        return replace(self, least=None, most=None)

    def or_null(self) -> Signs:
        """What is known if the value may also be NULL."""
        return replace(self, not_null=False)


NOTHING = Signs()

KnownSigns = Mapping[AttributeId | e.Expr, Signs]
"""Facts by column id, and for some whole expressions (`WHERE price * n >= 0`)."""


def may_be_nan(sql_type: SqlType | None, signs: Signs) -> bool:
    """Whether a value of this type may be NaN; an unknown type may."""
    if signs.nan_free:
        return False
    return sql_type is None or not (sql_type.is_numeric and not sql_type.is_fractional)


def signs_of_scan(scan: Scan, facts: Collection[Fact]) -> dict[AttributeId | e.Expr, Signs]:
    """Facts of a table's columns in one access."""
    about: dict[ColumnName, set[Fact]] = {}
    for fact in facts:
        if fact.table == scan.table:
            about.setdefault(fact.column.lower(), set()).add(fact)
    return {
        attribute.id: _signs_of_column(attribute.type, about.get(attribute.name.lower(), set()))
        for attribute in scan.attributes
    }


def _signs_of_column(sql_type: SqlType | None, facts: Collection[Fact]) -> Signs:
    kinds = {fact.kind for fact in facts}
    is_number = sql_type is not None and sql_type.is_numeric
    exact = sql_type is not None and is_number and not sql_type.is_fractional
    # Statistics ignore NaN. So does CHECK (x <= 0) for writers that treat NaN with the sign bit set
    # as less than every number.
    nan_free = exact or FactKind.NAN_FREE in kinds
    return Signs(
        nonnegative=is_number and FactKind.NONNEGATIVE in kinds,
        nonpositive=is_number and FactKind.NONPOSITIVE in kinds and nan_free,
        nan_free=nan_free,
        not_null=FactKind.NOT_NULL in kinds,
    )


_NONNEGATIVE_CALLS = frozenset(
    {"abs", "sqrt", "exp"}
    | {"length", "char_length", "character_length", "octet_length", "bit_length"}
    | {"month", "quarter", "day", "dayofmonth", "dayofweek", "dayofyear", "weekday", "weekofyear"}
    | {"hour", "minute", "second"}
)
_ROUNDING = frozenset({"floor", "ceil", "ceiling", "round", "bround"})


def signs_of_call(call: e.Call, parts: Sequence[Signs]) -> Signs:
    """What is known about the value; `parts` is what is known about the arguments. An argument for
    which Spark fails has no value."""
    name, arguments = call.name.lower(), call.arguments
    if name in _NONNEGATIVE_CALLS:
        return Signs(nonnegative=True)
    types = [type_of(argument) for argument in arguments]
    if not all(result is not None and result.is_numeric for result in types):
        return NOTHING
    if name in _ROUNDING and parts:
        return Signs(parts[0].nonnegative, parts[0].nonpositive)
    if name in ("pow", "power") and len(parts) == 2:
        return Signs(nonnegative=_is_power_nonnegative(call, parts[0]))
    if name in ("greatest", "least"):
        return _of_choice(parts, is_greatest=name == "greatest")
    return NOTHING


def _is_power_nonnegative(call: e.Call, base: Signs) -> bool:
    """Whether the power is never negative. -0.0 counts as nonnegative, but with an odd negative
    exponent its power is -Infinity."""
    first, second = call.arguments
    exponent = number_of(second)
    if exponent is not None and abs(exponent) <= EXACT_FLOAT and exponent % 2 == 0:
        return True
    result = type_of(first)
    has_negative_zero = result is None or result.is_fractional
    may_be_negative = exponent is None or exponent < 0
    return base.nonnegative and not (has_negative_zero and may_be_negative)


def _of_choice(parts: Sequence[Signs], *, is_greatest: bool) -> Signs:
    """GREATEST and LEAST ignore NULLs, so one part that is never NULL may bound the result."""
    up, down = all(part.nonnegative for part in parts), all(part.nonpositive for part in parts)
    if is_greatest:
        up = up or any(part.nonnegative and part.not_null for part in parts)
    else:
        down = down or any(part.nonpositive and part.not_null for part in parts)
    not_null = any(part.not_null for part in parts)
    return Signs(up, down, all(part.nan_free for part in parts), not_null)


# Floating point as it is: 0 * infinity and infinity - infinity are NaN.

_LONG_DIGITS = 18
"""Every integer of so many digits is a BIGINT."""
_NULL_LITERAL = Signs(
    nonnegative=True,
    nonpositive=True,
    nan_free=True,
    least=Decimal("Infinity"),
    most=Decimal("-Infinity"),
)
"""NULL is no value, so every statement about values is true of it."""


def signs_of(expr: e.Expr, known: KnownSigns) -> Signs:
    """What is known about the expression's value on every row."""
    if isinstance(expr, e.ColumnRef):
        return known.get(expr.id, NOTHING)
    result = _signs(expr, known)
    sql_type = type_of(expr)
    if sql_type is not None and sql_type.is_numeric and not sql_type.is_fractional:
        result = replace(result, nan_free=True)
    recorded = known.get(expr)
    return result if recorded is None else result.also(recorded)


def _signs(expr: e.Expr, known: KnownSigns) -> Signs:
    match expr:
        case e.Literal():
            return _of_literal(expr)
        case e.Negate():
            return _negated_signs(signs_of(expr.operand, known), expr.operand)
        case e.Arithmetic():
            return _of_arithmetic(expr, known)
        case e.Case():
            return _of_case(expr, known)
        case e.Coalesce():
            parts = [signs_of(part, known) for part in expr.operands]
            not_null = any(part.not_null for part in parts)
            return replace(reduce(Signs.meet, parts), not_null=not_null)
        case e.Cast():
            return _of_cast(expr, known)
        case e.Mean():
            return signs_of(expr.total, known).or_null().unbounded()
        case e.Call():
            return signs_of_call(expr, [signs_of(part, known) for part in expr.arguments])
        case e.IsNull():
            return Signs(not_null=True)
        case e.Compare():
            strict = expr.op is not e.CompareOp.NULL_SAFE_EQUAL
            both = signs_of(expr.left, known).not_null and signs_of(expr.right, known).not_null
            return Signs(not_null=both or not strict)
        case _:
            return NOTHING


def _of_literal(literal: e.Literal) -> Signs:
    if literal.value is None:
        return _NULL_LITERAL
    value = number_of(literal)
    if value is None:
        return Signs(not_null=True)
    # A bound holds whatever number type the value is cast to.
    is_exact = value == value.to_integral_value() and abs(value) <= EXACT_FLOAT
    bound = value if is_exact else None
    return Signs(value >= 0, value <= 0, nan_free=True, not_null=True, least=bound, most=bound)


def _negated_signs(signs: Signs, operand: e.Expr) -> Signs:
    clean = not may_be_nan(type_of(operand), signs)
    return Signs(
        nonnegative=signs.nonpositive,
        nonpositive=signs.nonnegative and clean,
        nan_free=clean,
        not_null=signs.not_null,
    )


def _of_arithmetic(expr: e.Arithmetic, known: KnownSigns) -> Signs:
    left, right = signs_of(expr.left, known), signs_of(expr.right, known)
    sql_type = type_of(expr)
    if sql_type is None or not sql_type.is_numeric:
        return NOTHING
    not_null = left.not_null and right.not_null
    return replace(_typed_signs(expr, left, right), not_null=not_null)


def _typed_signs(expr: e.Arithmetic, left: Signs, right: Signs) -> Signs:
    match expr.op:
        case e.ArithmeticOp.ADD:
            return _sum(left, right, expr.left, expr.right)
        case e.ArithmeticOp.SUBTRACT:
            return _sum(left, _negated_signs(right, expr.right), expr.left, expr.right)
        case e.ArithmeticOp.MULTIPLY:
            return _product(expr, left, right, is_square=expr.left == expr.right)
        case e.ArithmeticOp.INTEGER_DIVIDE if _may_wrap(expr):
            return NOTHING
        case e.ArithmeticOp.DIVIDE | e.ArithmeticOp.INTEGER_DIVIDE:
            return _product(expr, left, right, is_square=False)
        case e.ArithmeticOp.REMAINDER:
            # The sign is the dividend's; infinity % x is NaN.
            return Signs(
                nonnegative=left.nonnegative, nonpositive=left.nonpositive and _operands_exact(expr)
            )


def _sum(left: Signs, right: Signs, left_expr: e.Expr, right_expr: e.Expr) -> Signs:
    up = left.nonnegative and right.nonnegative
    down = left.nonpositive and right.nonpositive
    clean = left.nan_free and right.nan_free
    finite = number_of(left_expr) is not None or number_of(right_expr) is not None
    # Opposite infinities cannot meet if both sides have the same sign or one is finite.
    return Signs(up, down, nan_free=clean and (up or down or finite))


def _product(expr: e.Arithmetic, left: Signs, right: Signs, *, is_square: bool) -> Signs:
    up = (
        is_square
        or (left.nonnegative and right.nonnegative)
        or (left.nonpositive and right.nonpositive)
    )
    down = (left.nonnegative and right.nonpositive) or (left.nonpositive and right.nonnegative)
    return Signs(up, down and _operands_exact(expr), nan_free=_operands_exact(expr))


def _may_wrap(expr: e.Arithmetic) -> bool:
    """Whether a quotient of decimals may exceed BIGINT; Spark then keeps the last 64 bits."""
    left, right = type_of(expr.left), type_of(expr.right)
    if left is None or right is None or not _operands_exact(expr):
        return True
    if left.is_integral and right.is_integral:
        return False
    dividend = as_decimal(left)
    return dividend.precision - dividend.scale + right.scale > _LONG_DIGITS


def _operands_exact(expr: e.Arithmetic) -> bool:
    """Whether both operands are finite by type, so that the result is not NaN."""
    types = (type_of(expr.left), type_of(expr.right))
    return all(t is not None and t.is_numeric and not t.is_fractional for t in types)


def _of_case(expr: e.Case, known: KnownSigns) -> Signs:
    results = [signs_of(result, learn(condition, known)) for condition, result in expr.branches]
    return reduce(Signs.meet, results, signs_of(expr.default, known))


def _of_cast(expr: e.Cast, known: KnownSigns) -> Signs:
    operand, source = signs_of(expr.operand, known), type_of(expr.operand)
    if source is None:
        return NOTHING
    if source.kind is Kind.BOOLEAN and expr.type.is_numeric:
        return Signs(True, False, True, operand.not_null, least=_ZERO, most=Decimal(1))
    if source.kind is Kind.NULL:
        return _NULL_LITERAL
    if not (source.is_numeric and expr.type.is_numeric):
        return Signs(not_null=operand.not_null and source == expr.type)
    clean = not may_be_nan(source, operand)
    not_null = operand.not_null and not loses_values(source, expr.type)
    bounded = operand if source.is_integral else operand.unbounded()
    return replace(bounded, nan_free=clean, not_null=not_null)


def learn(condition: e.Expr, known: KnownSigns) -> KnownSigns:
    """The known facts and those that the condition adds on rows for which it is true, over the
    table or over the sketch, since both evaluate it on their own rows."""
    return _extended(known, _implied(normalized(condition), known))


def _extended(known: KnownSigns, more: KnownSigns) -> KnownSigns:
    return {**known, **{key: known.get(key, NOTHING).also(more[key]) for key in more}}


def _implied(condition: e.Expr, known: KnownSigns) -> KnownSigns:
    match condition:
        case e.And():
            return reduce(_extended, [_implied(part, known) for part in condition.operands], {})
        case e.Or():
            return _common([_implied(part, known) for part in condition.operands])
        case e.Compare():
            return _of_comparison(condition, known)
        case e.Not(operand=e.IsNull(operand=operand)):
            return {_key(operand): Signs(not_null=True)}
        case e.InList():
            return _of_list(condition, known)
        case e.Like():
            return {_key(condition.operand): Signs(not_null=True)}
        case _:
            return {}


def _common(branches: list[KnownSigns]) -> KnownSigns:
    shared = set(branches[0]).intersection(*branches[1:])
    result: dict[AttributeId | e.Expr, Signs] = {}
    for key in shared:
        signs = branches[0][key]
        for branch in branches[1:]:
            signs = signs.meet(branch[key])
        result[key] = signs
    return result


def _key(expr: e.Expr) -> AttributeId | e.Expr:
    return expr.id if isinstance(expr, e.ColumnRef) else expr


def _of_comparison(condition: e.Compare, known: KnownSigns) -> KnownSigns:
    left, op, right = condition.left, condition.op, condition.right
    return {
        _key(subject): _compared(subject, operator, other, known)
        for subject, operator, other in ((left, op, right), (right, op.mirrored, left))
        if not isinstance(subject, e.Literal)
    }


def _compared(subject: e.Expr, op: e.CompareOp, other: e.Expr, known: KnownSigns) -> Signs:
    """What `subject op other` says about the subject."""
    other_signs = signs_of(other, known)
    if op is e.CompareOp.NULL_SAFE_EQUAL:
        return Signs(not_null=other_signs.not_null)
    types = _compared_types(subject, other)
    if types is None:
        # Spark may cast text before comparing, so nothing is known about the text's value.
        return Signs(not_null=True)
    if common_type(*types) is None:
        # Decimals without a common type are rounded first: a tiny negative one becomes 0.
        return Signs(not_null=True)
    clean = not may_be_nan(types[1], other_signs)
    rises = op in (e.CompareOp.GREATER, e.CompareOp.GREATER_EQUAL, e.CompareOp.EQUAL)
    falls = op in (e.CompareOp.LESS, e.CompareOp.LESS_EQUAL, e.CompareOp.EQUAL)
    return Signs(
        nonnegative=rises and other_signs.nonnegative,
        nonpositive=falls and other_signs.nonpositive,
        # NaN is the greatest value, so what is less than a value is not NaN.
        nan_free=op is e.CompareOp.LESS or (falls and clean),
        not_null=True,
    )


def _compared_types(subject: e.Expr, other: e.Expr) -> tuple[SqlType, SqlType] | None:
    """The types of two numbers as they are compared; None if one is no number."""
    left, right = type_of(subject), type_of(other)
    if left is None or right is None or not (left.is_numeric and right.is_numeric):
        return None
    return narrowed(subject, left, right), narrowed(other, right, left)


def _of_list(condition: e.InList, known: KnownSigns) -> KnownSigns:
    if isinstance(condition.operand, e.Literal) or not condition.options:
        return {}
    signs = [
        _compared(condition.operand, e.CompareOp.EQUAL, option, known)
        for option in condition.options
    ]
    if not _has_common_type((condition.operand, *condition.options)):
        signs = [Signs(not_null=True)]
    return {_key(condition.operand): reduce(Signs.meet, signs)}


def _has_common_type(values: tuple[e.Expr, ...]) -> bool:
    """Whether one type has all values unrounded; IN does not narrow the types of literals."""
    result = type_of(values[0])
    for value in values[1:]:
        other = type_of(value)
        result = None if result is None or other is None else common_type(result, other)
    return result is not None
