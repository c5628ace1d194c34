"""Scalar expressions over plain Python values, one row at a time: slow, short, obviously right.

Law: NULL is None; integers and decimals are exact; doubles are floats. NaN equals NaN and is the
greatest, -0.0 equals 0.0. What fails in Spark under ANSI rules raises `ReferenceFailure`; what this
evaluator does not know raises `ReferenceLimit`, never a guess.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction

from impctl.data.schema import Kind, SqlType, decimal
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
from impctl.expr.types import arithmetic_type, narrowed, type_of
from impctl.types import AttributeId

Value = bool | int | float | str | bytes | Decimal | None
Row = Mapping[AttributeId, Value]

_BITS = {Kind.BYTE: 8, Kind.SHORT: 16, Kind.INTEGER: 32, Kind.LONG: 64}


class ReferenceFailure(Exception):
    """The query itself fails on this row, as it would in Spark."""


class ReferenceLimit(Exception):
    """This evaluator does not know the construct."""


def value_of(expr: Expr, row: Row) -> Value:
    """The expression's value on one row."""
    match expr:
        case Literal():
            return _typed(expr.value, expr.type)
        case ColumnRef():
            return row[expr.id]
        case Arithmetic():
            return _arithmetic(expr, row)
        case Negate():
            return _negated(value_of(expr.operand, row), type_of(expr.operand))
        case Compare():
            return compared(expr.op, value_of(expr.left, row), value_of(expr.right, row))
        case And():
            return _all([value_of(part, row) for part in expr.operands])
        case Or():
            match = _all([_not(value_of(part, row)) for part in expr.operands])
            return _not(match)
        case Not():
            return _not(value_of(expr.operand, row))
        case IsNull():
            return value_of(expr.operand, row) is None
        case InList():
            operand = value_of(expr.operand, row)
            equal = [compared(CompareOp.EQUAL, operand, value_of(o, row)) for o in expr.options]
            return _not(_all([_not(one) for one in equal]))
        case Like():
            return _like(value_of(expr.operand, row), expr.pattern, expr.escape)
        case Case():
            for condition, result in expr.branches:
                if value_of(condition, row) is True:
                    return _typed(value_of(result, row), type_of(expr))
            return _typed(value_of(expr.default, row), type_of(expr))
        case Coalesce():
            for part in expr.operands:
                match = value_of(part, row)
                if match is not None:
                    return _typed(match, type_of(expr))
            return None
        case Cast():
            return cast_value(value_of(expr.operand, row), type_of(expr.operand), expr.type)
        case Mean():
            return mean_of(value_of(expr.total, row), value_of(expr.count, row), expr.type)
        case Call():
            return _call(expr, row)


def is_true(expr: Expr | None, row: Row) -> bool:
    """Whether a condition lets the row through; no condition does."""
    return expr is None or value_of(expr, row) is True


def _all(parts: list[Value]) -> Value:
    if any(part is False for part in parts):
        return False
    return None if any(part is None for part in parts) else True


def _not(value: Value) -> Value:
    return None if value is None else not value


def sort_key(value: Value) -> tuple[int, object]:
    """A key that orders the known values of one column as Spark does."""
    if isinstance(value, float):
        return (1, 0) if math.isnan(value) else (0, value + 0.0)
    return (0, value)


def identity(value: Value) -> object:
    """A hashable key that is equal for values which GROUP BY puts together."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else (0.0 if value == 0 else value)
    return ("null",) if value is None else value


def _number(value: Value) -> Fraction:
    assert isinstance(value, int | Decimal)
    return Fraction(value)


def compared(op: CompareOp, left: Value, right: Value) -> Value:
    """`left op right` in three-valued logic."""
    if op is CompareOp.NULL_SAFE_EQUAL:
        if left is None or right is None:
            return left is None and right is None
        return compared(CompareOp.EQUAL, left, right)
    if left is None or right is None:
        return None
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
    a, b = sort_key(left), sort_key(right)
    match op:
        case CompareOp.EQUAL:
            return a == b
        case CompareOp.NOT_EQUAL:
            return a != b
        case CompareOp.LESS:
            return a < b
        case CompareOp.LESS_EQUAL:
            return a <= b
        case CompareOp.GREATER:
            return a > b
        case CompareOp.GREATER_EQUAL:
            return a >= b


def _typed(value: Value, sql_type: SqlType | None) -> Value:
    """The value in the Python form of the type."""
    if value is None or sql_type is None or isinstance(value, bool):
        return value
    if sql_type.is_fractional and not isinstance(value, str):
        return float(value)
    if sql_type.kind is Kind.DECIMAL and isinstance(value, int | Decimal | str):
        return fit_decimal(Fraction(Decimal(str(value))), sql_type)
    return value


def fit_decimal(value: Fraction, sql_type: SqlType) -> Decimal:
    """Rounded half up to the scale; a failure where the precision does not hold it."""
    unit = 10**sql_type.scale
    whole = half_up(value * unit)
    if abs(whole) >= 10**sql_type.precision:
        raise ReferenceFailure(f"{value} does not fit {sql_type}")
    return Decimal(whole).scaleb(-sql_type.scale, context=_WIDE)


def half_up(value: Fraction) -> int:
    size = (2 * abs(value.numerator) + value.denominator) // (2 * value.denominator)
    return -size if value < 0 else size


def _wide() -> Context:
    return Context(prec=120)


_WIDE = _wide()


def fit_integer(value: int, sql_type: SqlType) -> int:
    """The value, or a failure where the integral type does not hold it."""
    half = 1 << (_BITS[sql_type.kind] - 1)
    if not -half <= value < half:
        raise ReferenceFailure(f"{value} does not fit {sql_type}")
    return value


def _arithmetic(expr: Arithmetic, row: Row) -> Value:
    left, right = value_of(expr.left, row), value_of(expr.right, row)
    types = type_of(expr.left), type_of(expr.right)
    if types[0] is None or types[1] is None:
        raise ReferenceLimit(f"types of {expr}")
    own_left = narrowed(expr.left, types[0], types[1])
    own_right = narrowed(expr.right, types[1], types[0])
    result = arithmetic_type(expr.op, own_left, own_right)
    if result is None:
        raise ReferenceLimit(f"arithmetic on {types}")
    if left is None or right is None:
        return None
    if result.is_fractional:
        value = _of_doubles(expr.op, float(left), float(right))
        return _single(value) if result.kind is Kind.FLOAT else value
    exact = _of_numbers(expr.op, _number(left), _number(right))
    if expr.op is ArithmeticOp.INTEGER_DIVIDE and Kind.DECIMAL in (own_left.kind, own_right.kind):
        whole = int(fit_decimal(exact, decimal(38, 0)))
        # Spark keeps the last 64 bits.
        return (whole + 2**63) % 2**64 - 2**63
    if result.is_integral:
        return fit_integer(int(exact), result)
    return fit_decimal(exact, result)


def _single(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _of_doubles(op: ArithmeticOp, a: float, b: float) -> float:
    if op in (ArithmeticOp.DIVIDE, ArithmeticOp.REMAINDER) and b == 0:
        raise ReferenceFailure("division by zero")
    match op:
        case ArithmeticOp.ADD:
            return a + b
        case ArithmeticOp.SUBTRACT:
            return a - b
        case ArithmeticOp.MULTIPLY:
            return a * b
        case ArithmeticOp.DIVIDE:
            return a / b
        case ArithmeticOp.REMAINDER:
            return math.nan if math.isinf(a) or math.isnan(a) else math.fmod(a, b)
        case ArithmeticOp.INTEGER_DIVIDE:
            raise ReferenceLimit("div of doubles")


def _of_numbers(op: ArithmeticOp, a: Fraction, b: Fraction) -> Fraction:
    dividing = op not in (ArithmeticOp.ADD, ArithmeticOp.SUBTRACT, ArithmeticOp.MULTIPLY)
    if dividing and b == 0:
        raise ReferenceFailure("division by zero")
    match op:
        case ArithmeticOp.ADD:
            return a + b
        case ArithmeticOp.SUBTRACT:
            return a - b
        case ArithmeticOp.MULTIPLY:
            return a * b
        case ArithmeticOp.DIVIDE:
            return a / b
        case ArithmeticOp.INTEGER_DIVIDE:
            return Fraction(math.trunc(a / b))
        case ArithmeticOp.REMAINDER:
            return a - b * math.trunc(a / b)


def _negated(value: Value, sql_type: SqlType | None) -> Value:
    if value is None:
        return None
    if isinstance(value, float):
        return -value
    if isinstance(value, int) and sql_type is not None and sql_type.is_integral:
        return fit_integer(-value, sql_type)
    if isinstance(value, Decimal) and sql_type is not None:
        # Java's DECIMAL128: 34 digits, halves to even.
        few = Context(prec=34, rounding=ROUND_HALF_EVEN).minus(value)
        return fit_decimal(Fraction(few), sql_type)
    raise ReferenceLimit(f"-{value!r}")


def _like(value: Value, pattern: str, escape: str) -> Value:
    if value is None:
        return None
    text, position = "", 0
    while position < len(pattern):
        sign = pattern[position]
        if sign == escape:
            position += 1
            sign = re.escape(pattern[position])
        else:
            sign = {"%": ".*", "_": "."}.get(sign, re.escape(sign))
        text, position = text + sign, position + 1
    return re.fullmatch(text, str(value), re.DOTALL) is not None


def cast_value(value: Value, source: SqlType | None, target: SqlType) -> Value:
    """CAST under ANSI rules, between numbers and from BOOLEAN; the rest is not known here."""
    if value is None or source == target:
        return value
    if source is not None and source.kind is Kind.BOOLEAN:
        value = int(bool(value))
    elif source is None or not source.is_numeric:
        raise ReferenceLimit(f"cast from {source} to {target}")
    if target.is_fractional:
        return _single(float(value)) if target.kind is Kind.FLOAT else float(value)
    if isinstance(value, float) and target.kind is Kind.DECIMAL:
        # By its text, rounded half up; what is no number has no decimal.
        exact = Fraction(Decimal(repr(value))) if math.isfinite(value) else None
        return None if exact is None else fit_decimal(exact, target)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ReferenceFailure(f"{value} does not fit {target}")
        exact = Fraction(value)
    else:
        exact = _number(value)
    if target.is_integral:
        return fit_integer(math.trunc(exact), target)
    if target.kind is Kind.DECIMAL:
        return fit_decimal(exact, target)
    raise ReferenceLimit(f"cast from {source} to {target}")


def mean_of(total: Value, count: Value, sql_type: SqlType) -> Value:
    """AVG's last step."""
    if total is None or not count:
        return None
    assert isinstance(count, int)
    if sql_type.is_fractional:
        return float(total) / count
    if sql_type.precision <= 15:
        # Spark averages decimals of at most eleven digits as doubles and casts their text.
        scale = sql_type.scale - 4
        average = float(_number(total) * 10**scale) / count / 10.0**scale
        return fit_decimal(Fraction(Decimal(repr(average))), sql_type)
    return fit_decimal(_number(total) / count, sql_type)


def _call(expr: Call, row: Row) -> Value:
    values = [value_of(argument, row) for argument in expr.arguments]
    match expr.name.lower(), values:
        case "abs", [None]:
            return None
        case "abs", [int() as value]:
            result = type_of(expr.arguments[0])
            return fit_integer(abs(value), result) if result is not None else abs(value)
        case "abs", [float() as value]:
            return abs(value)
        case "one_row", [int() as rows]:
            if rows > 1:
                raise ReferenceFailure("more than one row returned by a subquery")
            return True
        case "abs", [Decimal() as value]:
            return _negated(value, type_of(expr.arguments[0])) if value < 0 else value
        case name, _:
            from tests.support.reference_functions import function_value

            return function_value(name, values)
