"""Arithmetic, rounding and functions of numbers as Spark computes them with ANSI on."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from impctl.data.schema import DOUBLE, Kind, SqlType, decimal
from impctl.data.vector import INT64_MAX, INT64_MIN, Bools, Floats, Ints, Vector
from impctl.errors import EvaluationError
from impctl.expr.nodes import ArithmeticOp
from impctl.expr.types import SHORT_AVERAGE

_SURELY_ZERO = 1e-50  # Far below half of the least single-precision number, 7e-46


def nearest_float(text: str) -> float:
    """The single-precision number nearest to a decimal, as a double; infinite beyond the last.
    Rounded once, ties to even, as Java reads a FLOAT; converting a double would round twice."""
    double = float(text)
    if math.isinf(double):
        return double
    if abs(double) < _SURELY_ZERO:
        return math.copysign(0.0, double)
    with np.errstate(over="ignore"):
        near = np.float32(double)
        around = (near, np.nextafter(near, -np.inf), np.nextafter(near, np.inf))
    if not np.isfinite(near):
        return float(near)
    exact = Fraction(Decimal(text))

    def distance(candidate: np.float32) -> tuple[Fraction, bool]:
        is_odd = bool(candidate.view(np.int32) & 1)
        return abs(Fraction(float(candidate)) - exact), is_odd

    return float(min((number for number in around if np.isfinite(number)), key=distance))


# Arithmetic on columns. Law: integers and decimals are exact, and a result that does not fit its
# type is an error, never wrapped, except where Spark truncates: long decimals are negated in 34
# digits, and `div` of decimals keeps 64 bits. Doubles have a bound on how far they may be from
# Spark's result. A NULL slot never raises.

UNIT = 2.0**-53  # Half the spacing of doubles at 1: the largest relative error of one rounding

INTEGRAL_BITS = {Kind.BYTE: 8, Kind.SHORT: 16, Kind.INTEGER: 32, Kind.LONG: 64}
EXACT_DOUBLE = 2**53  # Integers up to this size are doubles
_EXACT_POWER = 22  # The largest power of ten that a double holds exactly
_DIVISIONS = frozenset({ArithmeticOp.DIVIDE, ArithmeticOp.INTEGER_DIVIDE, ArithmeticOp.REMAINDER})
_QUOTIENT_DIGITS = 39
_WIDEST = decimal(38, 0)
NEGATED_DIGITS = 34  # Of Java's DECIMAL128, in which Spark negates decimals


def both_valid(left: Vector, right: Vector) -> Bools | None:
    """Rows where neither side is NULL; None if all are."""
    if left.valid is None:
        return right.valid
    return left.valid if right.valid is None else left.valid & right.valid


def arithmetic(op: ArithmeticOp, left: Vector, right: Vector, result: SqlType) -> Vector:
    """`left op right` in Spark's result type; shape (n,)."""
    valid = both_valid(left, right)
    if op in _DIVISIONS:
        _refuse_zero(right, valid)
    if result.is_fractional:
        return _of_doubles(op, to_double(left), to_double(right), valid)
    if left.type.is_integral and right.type.is_integral:
        values = narrow(_exact(op, *_filled(op, left, right, valid)))
        return Vector(result, fit_integers(values, result), valid)
    return _of_decimals(op, left, right, result, valid)


def _refuse_zero(divisor: Vector, valid: Bools | None) -> None:
    zero = divisor.values == 0
    if divisor.error is not None:
        zero = np.abs(divisor.values) <= divisor.error
    if bool(np.any(zero if valid is None else zero & valid)):
        raise EvaluationError(
            "Division by zero in the query's expression",
            code="division_by_zero",
            hint="guard it, for example with `x / nullif(y, 0)`; Spark also fails on this row",
        )


def _filled(op: ArithmeticOp, left: Vector, right: Vector, valid: Bools | None) -> tuple[Any, Any]:
    """Both sides' values, with harmless numbers in slots with NULL."""
    if valid is None:
        return left.values, right.values
    filler = 1 if op in _DIVISIONS else 0
    return np.where(valid, left.values, filler), np.where(valid, right.values, filler)


def fit_integers(values: Any, result: SqlType) -> Any:
    """The values as int64 if all fit the integral type; EvaluationError otherwise."""
    half = 1 << (INTEGRAL_BITS[result.kind] - 1)
    if len(values) and (int(values.max()) >= half or int(values.min()) < -half):
        raise EvaluationError(
            f"A value does not fit the type `{result}` in the query's expression",
            code="arithmetic_overflow",
            hint="widen it, for example with `CAST(x AS BIGINT)` or DECIMAL; Spark fails too",
        )
    return values.astype(np.int64, copy=False)


_OPERATORS: dict[ArithmeticOp, Callable[[Any, Any], Any]] = {
    ArithmeticOp.ADD: operator.add,
    ArithmeticOp.SUBTRACT: operator.sub,
    ArithmeticOp.MULTIPLY: operator.mul,
    ArithmeticOp.DIVIDE: operator.truediv,
    ArithmeticOp.INTEGER_DIVIDE: operator.truediv,
    ArithmeticOp.REMAINDER: np.fmod,
}


def _exact(op: ArithmeticOp, a: Any, b: Any) -> Any:
    """Integer arithmetic, in Python integers where int64 does not suffice."""
    if op is ArithmeticOp.INTEGER_DIVIDE:
        a, b = a.astype(object), b.astype(object)
        return np.where(a * b < 0, -(abs(a) // abs(b)), abs(a) // abs(b))
    if op is ArithmeticOp.REMAINDER:
        if a.dtype == object or b.dtype == object:
            a, b = a.astype(object), b.astype(object)
            return np.where(a < 0, -(abs(a) % abs(b)), abs(a) % abs(b))
        return np.fmod(a, np.where(b == -1, 1, b))
    most_a, most_b = magnitude(a), magnitude(b)
    if (most_a * most_b if op is ArithmeticOp.MULTIPLY else most_a + most_b) > INT64_MAX:
        a, b = a.astype(object), b.astype(object)
    return _OPERATORS[op](a, b)


def magnitude(values: Any) -> int:
    """The largest absolute value, as a Python integer; 0 for no values."""
    if not len(values):
        return 0
    return max(abs(int(values.max())), abs(int(values.min())))


def narrow(values: Any) -> Any:
    """Python integers as int64 if all of them fit."""
    if values.dtype != object:
        return values
    if len(values) == 0 or (values.max() <= INT64_MAX and values.min() >= INT64_MIN):
        return values.astype(np.int64)
    return values


def _of_decimals(
    op: ArithmeticOp, left: Vector, right: Vector, result: SqlType, valid: Bools | None
) -> Vector:
    s1, s2 = left.type.scale, right.type.scale
    a, b = _filled(op, left, right, valid)
    match op:
        case ArithmeticOp.MULTIPLY:
            values, scale = _exact(op, a, b), s1 + s2
        case ArithmeticOp.DIVIDE:
            values, scale = divide_decimals(a, s1, b, s2, result.scale), result.scale
        case ArithmeticOp.INTEGER_DIVIDE:
            common = max(s1, s2)
            values = _exact(op, rescale(a, s1, common), rescale(b, s2, common))
            return Vector(result, _last_bits(fit_decimals(values, _WIDEST)), valid)
        case _:
            scale = max(s1, s2)
            a, b = rescale(a, s1, scale), rescale(b, s2, scale)
            if op is ArithmeticOp.REMAINDER:
                _refuse_long_quotients(a, b)
            values = _exact(op, a, b)
    return Vector(result, fit_decimals(rescale(values, scale, result.scale), result), valid)


def _last_bits(values: Any) -> Ints:
    """Integer quotients as BIGINT: Spark's `div` of decimals keeps the last 64 bits in silence."""
    if values.dtype != object:
        return values  # type: ignore[no-any-return]  # narrowed to int64
    wrapped = (values + INT64_MAX + 1) % (1 << 64) - INT64_MAX - 1
    return wrapped.astype(np.int64)  # type: ignore[no-any-return]  # of Python integers


def _refuse_long_quotients(a: Any, b: Any) -> None:
    """Java gives no remainder if the integer quotient has more than 39 significant digits."""
    if magnitude(a) < 10**_QUOTIENT_DIGITS:
        return
    for dividend, divisor in zip(a, b, strict=True):
        quotient = abs(int(dividend)) // abs(int(divisor))
        if quotient % 10 ** max(len(str(quotient)) - _QUOTIENT_DIGITS, 0):
            raise EvaluationError(
                "A remainder of decimals has an integer quotient of more than 39 digits",
                code="arithmetic_overflow",
                hint="filter out such rows; Spark also fails on this row",
            )


def divide_decimals(a: Any, scale_a: int, b: Any, scale_b: int, scale: int) -> Any:
    """Unscaled quotients at that scale, rounded half up once. Spark truncates after the 39th
    fractional digit before it rounds, which changes no rounding."""
    a, b = a.astype(object), b.astype(object)
    return round_half_up(a * 10 ** (scale + scale_b), b * 10**scale_a)


def round_half_up(a: Any, b: Any) -> Any:
    """Quotients of Python integers, halves away from zero."""
    size = (2 * abs(a) + abs(b)) // (2 * abs(b))
    return np.where((a < 0) != (b < 0), -size, size)


def rescale(values: Any, scale: int, target: int) -> Any:
    """Unscaled values at another scale, rounded half up if digits are lost."""
    if target == scale or not len(values):
        return values
    if target > scale:
        factor = 10 ** (target - scale)
        # The factor itself must fit too, though all values may be 0.
        if max(magnitude(values), 1) * factor > INT64_MAX:
            values = values.astype(object)
        return values * factor
    divisor = np.full(len(values), 10 ** (scale - target), dtype=object)
    return round_half_up(values.astype(object), divisor)


def fit_decimals(values: Any, result: SqlType) -> Any:
    """Unscaled values if all fit the precision; EvaluationError otherwise."""
    if magnitude(values) >= 10**result.precision:
        raise EvaluationError(
            f"A value does not fit the type `{result}` in the query's expression",
            code="arithmetic_overflow",
            hint="cast an operand to a smaller scale; Spark also fails on this row",
        )
    return narrow(values)


def to_double(vector: Vector) -> Vector:
    """The column as doubles, correctly rounded, as in Java's BigDecimal and Spark."""
    if vector.type.is_fractional:
        return vector
    if vector.type.kind is not Kind.DECIMAL:
        return Vector(DOUBLE, vector.values.astype(np.float64), vector.valid)
    unit = 10**vector.type.scale
    if vector.type.scale <= _EXACT_POWER and magnitude(vector.values) < EXACT_DOUBLE:
        return Vector(DOUBLE, vector.values.astype(np.float64) / float(unit), vector.valid)
    # Beyond 2^53 an array division would round twice; dividing Python integers rounds once.
    values = np.array([int(value) / unit for value in vector.values], dtype=np.float64)
    return Vector(DOUBLE, values, vector.valid)


def _of_doubles(op: ArithmeticOp, left: Vector, right: Vector, valid: Bools | None) -> Vector:
    b = right.values
    if op in _DIVISIONS and valid is not None:
        b = np.where(valid, b, 1.0)
    with np.errstate(all="ignore"):
        values = _OPERATORS[op](left.values, b)
        return Vector(DOUBLE, values, valid, _propagated(op, left, right, values))


def _propagated(op: ArithmeticOp, left: Vector, right: Vector, values: Floats) -> Floats | None:
    """First-order error bound, widened by the product term and one rounding."""
    if left.error is None and right.error is None:
        return None
    zero = np.zeros(len(values))
    ea = zero if left.error is None else left.error
    eb = zero if right.error is None else right.error
    a, b = np.abs(left.values), np.abs(right.values)
    match op:
        case ArithmeticOp.ADD | ArithmeticOp.SUBTRACT:
            error = ea + eb
        case ArithmeticOp.MULTIPLY:
            error = a * eb + b * ea + ea * eb
        case ArithmeticOp.DIVIDE | ArithmeticOp.INTEGER_DIVIDE:
            smallest = b - eb
            error = np.where(smallest > 0, (ea + np.abs(values) * eb) / smallest, np.inf)
        case ArithmeticOp.REMAINDER:
            error = np.where((ea > 0) | (eb > 0), np.inf, 0.0)
    widened = error * (1 + 8 * UNIT) + np.abs(values) * (2 * UNIT)
    return np.where((ea == 0) & (eb == 0), 0.0, np.where(np.isnan(widened), np.inf, widened))


def negate(vector: Vector) -> Vector:
    """`-x`; the smallest integer of a type overflows, as in Spark, and decimals are rounded."""
    if vector.type.is_fractional:
        return Vector(vector.type, -vector.values, vector.valid, vector.error)
    values = vector.filled()
    if len(values) and int(values.min()) < -INT64_MAX:
        values = values.astype(object)
    if vector.type.is_integral:
        return Vector(vector.type, fit_integers(-values, vector.type), vector.valid)
    negated = -values
    if vector.type.precision > NEGATED_DIGITS:
        rounded = [_to_negated_digits(int(value)) for value in negated]
        negated = fit_decimals(np.array(rounded, dtype=object), vector.type)
    return Vector(vector.type, negated, vector.valid)


def absolute(vector: Vector) -> Vector:
    """`abs(x)`, which negates values below 0 as `-x` does."""
    if vector.type.is_fractional:
        return Vector(vector.type, np.abs(vector.values), vector.valid, vector.error)
    values = vector.filled()
    below = np.asarray(values < 0, dtype=np.bool_)
    if not bool(below.any()):
        return vector
    negated = negate(Vector(vector.type, values, below))
    return Vector(vector.type, np.where(below, negated.values, values), vector.valid)


def _to_negated_digits(value: int) -> int:
    """An unscaled value in at most 34 digits, halves to even; it may no longer fit the type."""
    unit: int = 10 ** max(len(str(abs(value))) - NEGATED_DIGITS, 0)
    lower, rest = divmod(value, unit)
    return unit * (lower + (2 * rest > unit or (2 * rest == unit and lower % 2 == 1)))


# Doubles are rounded to decimal digits by the text that Java writes. Law: the digits are Spark's,
# or they are reported as unknown. Away from a tie the text and the value round alike; at a tie the
# text decides, the shortest that reads as the same double. Java before 19 sometimes wrote others,
# so texts of more than 15 digits, of small numbers, and from 2^53 on do not decide a tie.

MOST_DIGITS = 15  # Digits after (or before) the point that doubles are rounded to here
_FEW_DIGITS = 15  # A text of so many digits identifies its double
_SMALL = 1e-3  # Below, Java before 19 wrote at least two digits, not always the shortest
_LARGE = 2.0**50  # Up to here the fraction of a scaled value decides which side of a half it is on
_WIDE = Context(prec=400)


def scaled_by(values: Floats, digits: int) -> Floats:
    """The values times 10 ** `digits`, rounded once."""
    with np.errstate(over="ignore", invalid="ignore"):
        return values * 10.0**digits if digits >= 0 else values / 10.0**-digits


def rounded(values: Floats, digits: int, *, to_even: bool) -> tuple[Any, Bools]:
    """Finite values times 10 ** `digits`, as integers, and which of them are sure."""
    scaled = scaled_by(values, digits)
    with np.errstate(invalid="ignore"):
        tie = np.abs(scaled - np.floor(scaled) - 0.5)
        is_plain = (np.abs(scaled) < _LARGE) & (tie > np.abs(scaled) * (8 * UNIT))
    nearest = np.where(is_plain, np.rint(np.where(is_plain, scaled, 0.0)), 0.0)
    integers: Any = nearest.astype(np.int64)
    sure = is_plain.copy()
    for index in np.flatnonzero(~is_plain).tolist():
        result = _of_text(float(values[index]), digits, to_even=to_even)
        sure[index] = result is not None
        if result is not None and not INT64_MIN <= result <= INT64_MAX:
            integers = integers.astype(object)
        integers[index] = result or 0
    return integers, sure


def _of_text(value: float, digits: int, *, to_even: bool) -> int | None:
    """Rounded by the shortest text; None if Java may have written another."""
    text = Decimal(repr(value))
    mode = ROUND_HALF_EVEN if to_even else ROUND_HALF_UP
    is_long = len(text.normalize(_WIDE).as_tuple().digits) > _FEW_DIGITS
    if is_long or not _SMALL <= abs(value) < EXACT_DOUBLE:
        return None
    return int(text.scaleb(digits, _WIDE).to_integral_value(mode, _WIDE))


def outer(low: Floats, high: Floats, digits: int) -> tuple[Floats, Floats]:
    """Bounds of all values between these two, scaled and rounded in any way. Up to 2^50 they are
    integers; beyond, where rounding is insignificant, both are moved by 1."""
    least, most = scaled_by(low, digits), scaled_by(high, digits)
    with np.errstate(invalid="ignore", over="ignore"):
        least = least - np.abs(least) * (8 * UNIT)
        most = most + np.abs(most) * (8 * UNIT)
        is_small = np.maximum(np.abs(least), np.abs(most)) < _LARGE
        first = np.where(is_small, np.floor(least + 0.5), least - 1.0)
        last = np.where(is_small, np.floor(most + 0.5), most + 1.0)
    return first, last


# AVG's last step. Law: the result is Spark's to the last digit, or within a bound, or an error.
# Spark averages decimals of at most eleven digits as doubles (its rule `DecimalAggregates`): the
# sum of the unscaled values divided by the count, then by the power of ten, then cast to the
# result's type. So does impctl while such a sum is exact in any order of rows; beyond that Spark's
# result depends on the order, and the average is refused. Longer decimals are divided exactly.

_TIE = 1e-4  # The text decides a scaled average that is closer to a half


def mean(total: Vector, count: Vector, result: SqlType) -> Vector:
    """`total / count` in AVG's result type, NULL for count 0; shape (n,)."""
    has_rows = count.values > 0
    valid = has_rows & total.validity()
    divisor = np.where(has_rows, count.values, 1)
    shown = None if bool(valid.all()) else valid
    if result.kind is Kind.DECIMAL:
        dividend = np.where(valid, total.values, 0)
        if result.precision <= SHORT_AVERAGE:
            divisor = np.where(valid, divisor, 1)
            return Vector(result, _of_short_decimals(dividend, divisor, result), shown)
        values = divide_decimals(dividend, total.type.scale, divisor, 0, result.scale)
        return Vector(result, fit_decimals(values, result), shown)
    values = total.values.astype(np.float64) / divisor
    error = None
    if total.error is not None:
        with np.errstate(invalid="ignore"):
            spread = total.error / divisor * (1 + 8 * UNIT) + np.abs(values) * (2 * UNIT)
        error = np.where(total.error == 0, 0.0, np.where(np.isnan(spread), np.inf, spread))
    return Vector(DOUBLE, values, shown, error)


def most_rows(result: SqlType) -> int:
    """How many short decimals doubles sum exactly in any order; `result` is AVG's type."""
    return EXACT_DOUBLE // int(10 ** (result.precision - 4))


def _of_short_decimals(total: Ints, count: Ints, result: SqlType) -> Ints:
    """Unscaled averages of decimals whose AVG is DECIMAL(p + 4, s + 4), p at most 11."""
    most = most_rows(result)
    if bool(np.any(count > most)):
        digits, scale = result.precision - 4, result.scale - 4
        raise EvaluationError(
            f"Spark computes AVG over DECIMAL({digits}, {scale}) of more than {most:,} rows as a "
            "sum of doubles, which depends on the row order",
            code="average_of_doubles",
            hint=f"use AVG of `CAST(... AS DECIMAL(12, {scale}))`, which is exact",
        )
    averages = total.astype(np.float64) / count / 10.0 ** (result.scale - 4)
    scaled = np.abs(averages) * 10.0**result.scale
    floors = np.floor(scaled)
    rounded = np.where(scaled - floors >= 0.5, floors + 1, floors)
    unscaled: Ints = np.where(averages < 0, -rounded, rounded).astype(np.int64)
    for index in np.flatnonzero(_near_tie(scaled, floors)).tolist():
        # Spark casts a double to a decimal by its shortest text, rounded half up.
        exact = Decimal(repr(float(averages[index]))).scaleb(result.scale)
        unscaled[index] = int(exact.quantize(Decimal(1), rounding=ROUND_HALF_UP))
    return unscaled


def _near_tie(scaled: Floats, floors: Floats) -> Bools:
    """Where the text of the average may round differently from the scaled average. Scaling errs by
    a few units of the last place: from 10^14 on that is every average."""
    room = np.maximum(_TIE, scaled * (8 * UNIT))
    near: Bools = np.abs(scaled - floors - 0.5) <= room
    # Next to an integer the floor may be off by one.
    near |= (scaled - floors <= room) | (scaled - floors >= 1 - room)
    return near
