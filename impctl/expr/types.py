"""Result types of expressions as Spark 4 with ANSI on infers them, or None where impctl does not
know them; never a guess. Source: Spark's DecimalPrecision and TypeCoercion rules, tried on 4.3.
"""

from __future__ import annotations

import re
from functools import reduce

from impctl.data.schema import BOOLEAN, DOUBLE, LONG, NULL, Kind, SqlType, decimal
from impctl.data.vector import INT64_MAX, INT64_MIN, Vector
from impctl.errors import NotExactError
from impctl.expr import nodes as e

MAX_PRECISION = 38
SHORT_AVERAGE = 15
"""Spark averages decimals as doubles if the result of AVG has at most this many digits."""
_MINIMUM_ADJUSTED_SCALE = 6
_INTEGRAL_ORDER = (Kind.BYTE, Kind.SHORT, Kind.INTEGER, Kind.LONG)
_COUNTED_LITERALS = frozenset({Kind.SHORT, Kind.INTEGER, Kind.LONG})
_INTEGRAL_DIGITS = {Kind.BYTE: 3, Kind.SHORT: 5, Kind.INTEGER: 10, Kind.LONG: 20}


def groups_as_compared(left: SqlType | None, right: SqlType | None) -> bool:
    """Whether values that equal the same value of the other type are one group. They are within a
    type and among integers; the texts `1` and `01` equal one number."""
    if left is None or right is None:
        return False
    return left == right or (left.is_integral and right.is_integral)


def loses_values(source: SqlType, target: SqlType) -> bool:
    """Whether a cast may make NULL of a number: NaN and infinities have no decimal."""
    return source.is_fractional and target.kind is Kind.DECIMAL


def type_of(expr: e.Expr) -> SqlType | None:
    match expr:
        case e.Literal() | e.ColumnRef() | e.Cast() | e.Mean() | e.Call():
            return expr.type
        case e.Compare() | e.And() | e.Or() | e.Not() | e.IsNull() | e.InList() | e.Like():
            return BOOLEAN
        case e.Negate():
            operand = type_of(expr.operand)
            # Spark casts text to DOUBLE first.
            return operand if operand is not None and operand.is_numeric else None
        case e.Arithmetic():
            left, right = type_of(expr.left), type_of(expr.right)
            if left is None or right is None:
                return None
            return arithmetic_type(
                expr.op, narrowed(expr.left, left, right), narrowed(expr.right, right, left)
            )
        case e.Case():
            return _common((*(result for _, result in expr.branches), expr.default))
        case e.Coalesce():
            return _common(expr.operands)


def _common(parts: tuple[e.Expr, ...]) -> SqlType | None:
    types = [type_of(part) for part in parts]
    known = [result for result in types if result is not None]
    return reduce(wider_type, known) if known and len(known) == len(types) else None


def wider_type(left: SqlType, right: SqlType) -> SqlType:
    """The common type, or an OTHER type that names both if there is none."""
    result = common_type(left, right)
    return result if result is not None else SqlType(Kind.OTHER, detail=f"{left}/{right}")


def common_type(left: SqlType, right: SqlType) -> SqlType | None:
    """The type that CASE, COALESCE, IN and comparisons widen both sides to; None if none."""
    if left == right or right.kind is Kind.NULL:
        return left
    if left.kind is Kind.NULL:
        return right
    if not (left.is_numeric and right.is_numeric):
        return None
    if left.is_fractional or right.is_fractional:
        return DOUBLE
    if left.is_integral and right.is_integral:
        return max(left, right, key=lambda t: _INTEGRAL_ORDER.index(t.kind))
    a, b = as_decimal(left), as_decimal(right)
    scale = max(a.scale, b.scale)
    precision = max(a.precision - a.scale, b.precision - b.scale) + scale
    # Beyond 38 digits Spark rounds digits after the point.
    return decimal(precision, scale) if precision <= MAX_PRECISION else None


def rounded_type(left: SqlType, right: SqlType) -> SqlType | None:
    """The decimal that Spark rounds both sides of a comparison or set operation to, or None. It
    keeps all digits before the point, and those after it up to 38 in total
    (`DecimalType.boundedPreferIntegralDigits`)."""
    are_exact = all(side.kind is Kind.DECIMAL or side.is_integral for side in (left, right))
    if not are_exact or common_type(left, right) is not None:
        return None
    a, b = as_decimal(left), as_decimal(right)
    integer_digits = max(a.precision - a.scale, b.precision - b.scale)
    return decimal(MAX_PRECISION, MAX_PRECISION - integer_digits)


def as_decimal(source: SqlType) -> SqlType:
    """The decimal an integral type is widened to; decimals stay."""
    if source.kind is Kind.DECIMAL:
        return source
    return decimal(_INTEGRAL_DIGITS[source.kind], 0)


def narrowed(expr: e.Expr, sql_type: SqlType, other: SqlType) -> SqlType:
    """The type of an operand beside another: an integer literal beside a decimal is a decimal of
    just its digits, as in Spark. NULL and TINYINT (`3Y` is a DECIMAL(3, 0)) are not."""
    is_counted = sql_type.kind in _COUNTED_LITERALS and other.kind is Kind.DECIMAL
    if is_counted and isinstance(expr, e.Literal) and expr.value is not None:
        return decimal(max(len(str(abs(int(str(expr.value))))), 1), 0)
    return sql_type


def uncounted(expr: e.Expr, *operands: e.Expr) -> e.Expr:
    """The expression without the effect of `narrowed`: Spark evaluates the first value of BETWEEN
    and NULLIF before it types the comparison, so a literal there is no longer one."""
    sql_type = type_of(expr)
    if sql_type is None or not sql_type.is_integral or not isinstance(expr, e.Literal):
        return expr
    types = [type_of(part) for part in operands]
    if all(other is not None and narrowed(expr, sql_type, other) == sql_type for other in types):
        return expr
    return e.Cast(expr, sql_type, span=expr.span)


def arithmetic_type(op: e.ArithmeticOp, left: SqlType, right: SqlType) -> SqlType | None:
    """None for operands that are not numbers."""
    if op is e.ArithmeticOp.DIVIDE and left.kind is Kind.NULL:
        return DOUBLE if right.is_numeric or right.kind is Kind.NULL else None
    if left.kind is Kind.NULL and right.kind is Kind.NULL:
        return NULL
    if left.kind is Kind.NULL:
        left = right
    if right.kind is Kind.NULL:
        right = left
    if not (left.is_numeric and right.is_numeric):
        return None
    if left.is_fractional or right.is_fractional:
        return _fractional_type(op, left, right)
    if left.is_integral and right.is_integral:
        if op is e.ArithmeticOp.DIVIDE:
            return DOUBLE
        if op is e.ArithmeticOp.INTEGER_DIVIDE:
            return LONG
        return common_type(left, right)
    return _decimal_type(op, as_decimal(left), as_decimal(right))


def _fractional_type(op: e.ArithmeticOp, left: SqlType, right: SqlType) -> SqlType | None:
    if op is e.ArithmeticOp.INTEGER_DIVIDE:
        return None
    wide = common_type(left, right)
    if wide is not None and wide.kind is Kind.FLOAT:
        # Spark keeps FLOAT arithmetic in single precision; impctl computes in doubles only.
        return DOUBLE if op is e.ArithmeticOp.DIVIDE else SqlType(Kind.FLOAT)
    return wide


def _decimal_type(op: e.ArithmeticOp, left: SqlType, right: SqlType) -> SqlType | None:
    p1, s1, p2, s2 = left.precision, left.scale, right.precision, right.scale
    match op:
        case e.ArithmeticOp.ADD | e.ArithmeticOp.SUBTRACT:
            scale = max(s1, s2)
            return _adjusted(max(p1 - s1, p2 - s2) + scale + 1, scale)
        case e.ArithmeticOp.MULTIPLY:
            return _adjusted(p1 + p2 + 1, s1 + s2)
        case e.ArithmeticOp.DIVIDE:
            scale = max(_MINIMUM_ADJUSTED_SCALE, s1 + p2 + 1)
            return _adjusted(p1 - s1 + s2 + scale, scale)
        case e.ArithmeticOp.REMAINDER:
            scale = max(s1, s2)
            return _adjusted(min(p1 - s1, p2 - s2) + scale, scale)
        case e.ArithmeticOp.INTEGER_DIVIDE:
            return LONG


def _bounded(precision: int, scale: int) -> SqlType:
    return decimal(min(precision, MAX_PRECISION), min(scale, MAX_PRECISION))


def _adjusted(precision: int, scale: int) -> SqlType:
    """Spark's adjustPrecisionScale: beyond 38 digits the scale is reduced, down to 6."""
    if precision <= MAX_PRECISION:
        return decimal(precision, scale)
    room = MAX_PRECISION - (precision - scale)
    return decimal(MAX_PRECISION, max(room, min(scale, _MINIMUM_ADJUSTED_SCALE)))


def sum_type(argument: SqlType) -> SqlType | None:
    """None for an argument that SUM does not take."""
    if argument.is_integral:
        return LONG
    if argument.is_fractional:
        return DOUBLE
    if argument.kind is Kind.DECIMAL:
        return _bounded(argument.precision + 10, argument.scale)
    return None


def average_type(argument: SqlType) -> SqlType | None:
    """None for an argument that AVG does not take."""
    if argument.is_integral or argument.is_fractional:
        return DOUBLE
    if argument.kind is Kind.DECIMAL:
        return _bounded(argument.precision + 4, argument.scale + 4)
    return None


def is_nullable(expr: e.Expr) -> bool:
    """Whether the value may be NULL, as far as the shape shows; True if unsure."""
    match expr:
        case e.Literal():
            return expr.value is None
        case e.ColumnRef():
            return expr.nullable
        case e.IsNull():
            return False
        case e.Cast() if expr.type.kind is Kind.DECIMAL:
            # NaN and infinities become NULL.
            source = type_of(expr.operand)
            return source is None or source.is_fractional or is_nullable(expr.operand)
        case e.Negate() | e.Not() | e.Cast() | e.Like():
            return is_nullable(expr.operand)
        case e.Arithmetic() | e.Compare() | e.And() | e.Or() | e.InList():
            return any(map(is_nullable, expr.expressions))
        case e.Case():
            results = (*(result for _, result in expr.branches), expr.default)
            return any(map(is_nullable, results))
        case e.Coalesce():
            return all(is_nullable(part) for part in expr.operands)
        case e.Mean() | e.Call():
            return True


_NAMES = frozenset({"Z", "UTC", "GMT", "UT", "Etc/UTC"})
_OFFSET = re.compile(
    r"(?:UTC|GMT|UT)?([+-])(?:([0-9]{1,2})(?::([0-9]{1,2}))?|([0-9]{2})([0-9]{2}))"
)
_MINUTE = 60_000_000
WIDEST_OFFSET = 18 * 60 * _MINUTE
"""Maximal difference of a time zone from UTC in Java, in microseconds."""


def fixed_offset(zone: str) -> int | None:
    """Microseconds that local time is ahead of UTC, exactly as Spark reads the zone's name; None
    for a zone that is no fixed offset. The meaning of regions such as `Europe/Berlin` depends on
    tables that change from release to release."""
    if zone in _NAMES:
        return 0
    match = _OFFSET.fullmatch(zone)
    if match is None:
        return None
    sign, *parts = match.groups()
    hours, minutes = (int(part or 0) for part in (parts[:2] if parts[2] is None else parts[2:]))
    offset = (hours * 60 + minutes) * _MINUTE
    if minutes > 59 or offset > WIDEST_OFFSET:
        return None
    return -offset if sign == "-" else offset


def offset_of(zone: str) -> int:
    """The fixed offset, or 0 if there is none, for values that do not depend on a time zone."""
    return fixed_offset(zone) or 0


def moved_by(times: Vector, offset: int) -> Vector:
    """Timestamps `offset` microseconds later; NotExactError if one leaves their range."""
    if offset == 0:
        return times
    values = times.filled()
    if len(values):
        first, last = int(values.min()), int(values.max())
        if first + offset < INT64_MIN or last + offset > INT64_MAX:
            raise NotExactError(
                "A timestamp in the query is too close to the limit of timestamps to be converted "
                "to the session time zone",
                hint="recapture with `impctl capture`, or filter out such rows",
            )
    return Vector(times.type, values + offset, times.valid)
