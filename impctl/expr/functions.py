"""Scalar functions by name: all that the engine computes without Spark.

Law: each function gives Spark's result, or does not take the arguments; every entry is tested
against Spark. What only Spark knows (time zones of regions, case tables, how Java writes a double)
is refused. Days and microseconds count from 1970-01-01 in the proleptic Gregorian calendar. A
TIMESTAMP argument is the local time of the session's zone, and a TIMESTAMP result becomes an
instant.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from impctl.data.schema import BOOLEAN, DOUBLE, LONG, TEMPORAL, TIMESTAMP, Kind, SqlType, decimal
from impctl.data.vector import INT64_MAX, INT64_MIN, Bools, Ints, Vector, all_null
from impctl.errors import EvaluationError, NotExactError
from impctl.expr.cast import MICROS_PER_DAY, cast
from impctl.expr.cast import supports as supports_cast
from impctl.expr.compare import compare
from impctl.expr.error_bounds import over_bounds, rounded_double
from impctl.expr.nodes import Call, CompareOp, Expr, Literal, Span
from impctl.expr.numeric import (
    MOST_DIGITS,
    absolute,
    fit_decimals,
    fit_integers,
    narrow,
    rescale,
    round_half_up,
    to_double,
)
from impctl.expr.types import MAX_PRECISION, fixed_offset, moved_by, offset_of, type_of, wider_type

# What a function takes and how it is computed. Law: `takes` reads expressions, never rows. For the
# expressions it accepts, `compute` gives Spark's result or refuses a row with Spark's error. A NULL
# argument gives NULL unless the function says otherwise.

Takes = Callable[[Sequence[Expr]], bool]
Compute = Callable[[Sequence[Vector], SqlType], Vector]

TEXT = frozenset({Kind.STRING})
DAY = frozenset({Kind.DATE})
MOMENT = frozenset({Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ})
WHOLE = frozenset({Kind.BYTE, Kind.SHORT, Kind.INTEGER})
EXACT = WHOLE | {Kind.LONG, Kind.DECIMAL}
NUMBER = EXACT | {Kind.FLOAT, Kind.DOUBLE}


class Function(Struct, frozen=True):
    takes: Takes
    compute: Compute


def kinds(*expected: frozenset[Kind]) -> Takes:
    """Exactly one argument of each of these kinds."""

    def takes(arguments: Sequence[Expr]) -> bool:
        types = [type_of(argument) for argument in arguments]
        return len(types) == len(expected) and all(
            sql_type is not None and sql_type.kind in allowed
            for sql_type, allowed in zip(types, expected, strict=True)
        )

    return takes


def constants_after(first: frozenset[Kind], *rest: type) -> Takes:
    """One argument of these kinds, then constants of these Python types, not NULL."""

    def takes(arguments: Sequence[Expr]) -> bool:
        if len(arguments) != 1 + len(rest) or not kinds(first)(arguments[:1]):
            return False
        return all(
            isinstance(constant_of(argument), expected)
            for argument, expected in zip(arguments[1:], rest, strict=True)
        )

    return takes


def either(*options: Takes) -> Takes:
    return lambda arguments: any(takes(arguments) for takes in options)


def constant_of(expr: Expr) -> object:
    """The value of a constant number or text; None for NULL and everything else."""
    if not isinstance(expr, Literal) or isinstance(expr.value, bool):
        return None
    # The value of a date or timestamp is no number in Spark.
    return None if expr.type.kind in TEMPORAL else expr.value


def value_of(vector: Vector) -> str | int:
    """The value of a constant over at least one row."""
    result = vector.values[0]
    return str(result.as_py()) if vector.is_textual else int(result)


def all_valid(arguments: Sequence[Vector]) -> Bools | None:
    """Rows where no argument is NULL; None if all are."""
    masks = [argument.valid for argument in arguments if argument.valid is not None]
    return np.logical_and.reduce(masks) if masks else None


ONE_ROW = "one_row"  # No function of Spark has this name, and functions of users are not read
SEVERAL_ROWS = "More than one row returned by a subquery used as an expression"
"""Spark's message."""


def one_row(rows: Expr, span: Span | None) -> Call:
    """The condition that a subquery used as a value has at most one row, over the number of its
    rows. It is true for 0 and 1; for more the query fails. So it drops nothing."""
    return Call(ONE_ROW, (rows,), BOOLEAN, span=span)


def several_rows() -> EvaluationError:
    return EvaluationError(
        SEVERAL_ROWS,
        code="subquery_of_several_rows",
        hint="make it return one row, for example with MAX(...); Spark also fails on these rows",
    )


def _one_row(arguments: Sequence[Vector], result: SqlType) -> Vector:
    counts = arguments[0].filled()
    if bool(np.any(counts > 1)):
        raise several_rows()
    return Vector(result, np.ones(len(counts), dtype=np.bool_))


# Dates and timestamps.

_SECOND = 1_000_000
_SMALLEST_DAY, _LARGEST_DAY = -(2**31), 2**31 - 1
_WEEKS = ("week",)
_MONTHS = {
    **dict.fromkeys(("year", "yyyy", "yy"), 12),
    "quarter": 3,
    **dict.fromkeys(("month", "mon", "mm"), 1),
}
"""Months per unit."""
_TIMES = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": _SECOND,
    "minute": 60 * _SECOND,
    "hour": 3600 * _SECOND,
    **dict.fromkeys(("day", "dd"), MICROS_PER_DAY),
}
"""Microseconds per unit."""


def _day_numbers(vector: Vector) -> Ints:
    """Days of dates or timestamps; 0 for NULL."""
    values: Ints = vector.filled()
    return values // MICROS_PER_DAY if vector.type.kind in MOMENT else values


def _month_numbers(days: Ints) -> Ints:
    return days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)


def _first_days(months: Ints) -> Ints:
    return months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)


_ANY_TIME = kinds(DAY | MOMENT)


def _of_day(function: Callable[[Ints], Ints], takes: Takes = _ANY_TIME) -> Function:
    def compute_field(arguments: Sequence[Vector], result: SqlType) -> Vector:
        return Vector(result, function(_day_numbers(arguments[0])), arguments[0].valid)

    return Function(takes, compute_field)


def _of_time(unit: int, count: int) -> Function:
    def compute_field(arguments: Sequence[Vector], result: SqlType) -> Vector:
        return Vector(result, arguments[0].filled() // unit % count, arguments[0].valid)

    return Function(kinds(MOMENT), compute_field)


def _day_of_month(days: Ints) -> Ints:
    return days - _first_days(_month_numbers(days)) + 1


def _day_of_year(days: Ints) -> Ints:
    return days - _first_days(_month_numbers(days) // 12 * 12) + 1


def _week(days: Ints) -> Ints:
    """ISO week of each day: that of its Thursday, counted from 1 in the Thursday's year."""
    return (_day_of_year(days - (days + 3) % 7 + 3) - 1) // 7 + 1


def _fit_days(days: Any, valid: Any) -> None:
    shown = days if valid is None else days[valid]
    _refuse_outside((shown < _SMALLEST_DAY) | (shown > _LARGEST_DAY), "date")


def _refuse_outside(is_outside: Any, kind: str) -> None:
    if bool(is_outside.any()):
        raise EvaluationError(
            f"A {kind} computed in the query is outside the range of {kind}s",
            code="arithmetic_overflow",
            hint="restrict the query's condition; Spark fails too",
        )


def _wrapped(days: Ints) -> Ints:
    """Day numbers in 32 bits that wrap around, as in Spark."""
    span = _LARGEST_DAY - _SMALLEST_DAY + 1
    return (days - _SMALLEST_DAY) % span + _SMALLEST_DAY


def _moved_date(sign: int) -> Function:
    def compute_move(arguments: Sequence[Vector], result: SqlType) -> Vector:
        days = arguments[0].values + sign * arguments[1].values
        return Vector(result, _wrapped(days), all_valid(arguments))

    return Function(kinds(DAY, WHOLE), compute_move)


def _add_months(arguments: Sequence[Vector], result: SqlType) -> Vector:
    """The same day of another month, or its last day if the month is shorter."""
    valid = all_valid(arguments)
    days = arguments[0].filled()
    months = _month_numbers(days) + arguments[1].filled()
    last = _first_days(months + 1) - _first_days(months)
    moved = _first_days(months) + np.minimum(_day_of_month(days), last) - 1
    _fit_days(moved, valid)
    return Vector(result, moved, valid)


def _datediff(arguments: Sequence[Vector], result: SqlType) -> Vector:
    days = _day_numbers(arguments[0]) - _day_numbers(arguments[1])
    return Vector(result, _wrapped(days), all_valid(arguments))


def _unit_takes(position: int, units: Collection[str], takes: Takes) -> Takes:
    def checked(arguments: Sequence[Expr]) -> bool:
        unit = constant_of(arguments[position]) if takes(arguments) else None
        return isinstance(unit, str) and unit.lower() in units

    return checked


def _truncated_days(days: Ints, unit: str) -> Ints:
    if unit in _WEEKS:
        return days - (days + 3) % 7
    step = _MONTHS[unit]
    return _first_days(_month_numbers(days) // step * step)


def _trunc(arguments: Sequence[Vector], result: SqlType) -> Vector:
    days = _truncated_days(arguments[0].filled(), str(value_of(arguments[1])).lower())
    _fit_days(days, arguments[0].valid)
    return Vector(result, days, arguments[0].valid)


def _date_trunc(arguments: Sequence[Vector], result: SqlType) -> Vector:
    values, valid = arguments[1].filled(), arguments[1].valid
    unit = str(value_of(arguments[0])).lower()
    if unit in _TIMES:
        # Near the smallest timestamp the start of its unit may be out of range.
        _refuse_outside(values - values % _TIMES[unit] > values, "timestamp")
        return Vector(result, values - values % _TIMES[unit], valid)
    days = _truncated_days(values // MICROS_PER_DAY, unit)
    is_outside = (days > INT64_MAX // MICROS_PER_DAY) | (days <= INT64_MIN // MICROS_PER_DAY)
    _refuse_outside(is_outside, "timestamp")
    return Vector(result, days * MICROS_PER_DAY, valid)


def _timestampadd(arguments: Sequence[Vector], result: SqlType) -> Vector:
    """A timestamp some units of constant length later."""
    amounts, values, valid = arguments[1].filled(), arguments[2].filled(), all_valid(arguments[1:])
    unit = _LENGTHS[str(value_of(arguments[0])).lower()]
    most = INT64_MAX // unit
    is_outside = (amounts > most) | (amounts < -most)
    steps = np.where(is_outside, 0, amounts) * unit
    moved = values + steps
    is_outside |= (moved < values) != (steps < 0)
    _refuse_outside(is_outside if valid is None else is_outside & valid, "timestamp")
    return Vector(result, moved, valid)


_LENGTHS = {
    "week": 7 * MICROS_PER_DAY,
    **{unit: _TIMES[unit] for unit in ("day", "hour", "minute", "second")},
}
"""Microseconds per unit of constant length of `timestampadd`."""
_TRUNC_UNITS = frozenset({*_WEEKS, *_MONTHS})
_DATE_TRUNC_UNITS = frozenset({*_TRUNC_UNITS, *_TIMES})
_DIFFERENCE = Function(kinds(DAY | MOMENT, DAY | MOMENT), _datediff)
_DAY_OF_MONTH = _of_day(_day_of_month)
DATE_FUNCTIONS: dict[str, Function] = {
    "year": _of_day(lambda days: _month_numbers(days) // 12 + 1970),
    "quarter": _of_day(lambda days: _month_numbers(days) % 12 // 3 + 1),
    "month": _of_day(lambda days: _month_numbers(days) % 12 + 1),
    "weekofyear": _of_day(_week),
    "day": _DAY_OF_MONTH,
    "dayofmonth": _DAY_OF_MONTH,
    "dayofyear": _of_day(_day_of_year),
    "dayofweek": _of_day(lambda days: (days + 4) % 7 + 1),
    "weekday": _of_day(lambda days: (days + 3) % 7),
    "last_day": _of_day(lambda days: _first_days(_month_numbers(days) + 1) - 1, kinds(DAY)),
    "hour": _of_time(3600 * _SECOND, 24),
    "minute": _of_time(60 * _SECOND, 60),
    "second": _of_time(_SECOND, 60),
    "date_add": _moved_date(1),
    "date_sub": _moved_date(-1),
    "timestampadd": Function(_unit_takes(0, _LENGTHS, kinds(TEXT, WHOLE, MOMENT)), _timestampadd),
    "add_months": Function(kinds(DAY, WHOLE), _add_months),
    "datediff": _DIFFERENCE,
    "date_diff": _DIFFERENCE,
    "to_date": _of_day(lambda days: days),
    "trunc": Function(_unit_takes(1, _TRUNC_UNITS, kinds(DAY, TEXT)), _trunc),
    "date_trunc": Function(_unit_takes(0, _DATE_TRUNC_UNITS, kinds(TEXT, MOMENT)), _date_trunc),
}


# Text: a sequence of code points, compared and searched by bytes, as with Spark's UTF8_BINARY.
# Upper and lower case of letters outside ASCII depend on Java's tables, so they are refused.


def _text(function: Callable[[pa.Array], pa.Array]) -> Function:
    def compute_text(arguments: Sequence[Vector], result: SqlType) -> Vector:
        return Vector(result, function(arguments[0].values), arguments[0].valid)

    return Function(kinds(TEXT), compute_text)


def _ascii(function: Callable[[pa.Array], pa.Array]) -> Callable[[pa.Array], pa.Array]:
    def checked(values: pa.Array) -> pa.Array:
        if not pc.all(pc.string_is_ascii(values), min_count=0).as_py():
            raise NotExactError(
                "The engine does not change the case of letters outside ASCII",
                hint="recapture with `impctl capture`, or compare the column as it is",
            )
        return function(values)

    return checked


def _size(function: Callable[[pa.Array], pa.Array], factor: int = 1) -> Function:
    def compute_size(arguments: Sequence[Vector], result: SqlType) -> Vector:
        sizes = function(arguments[0].values).fill_null(0).to_numpy().astype(np.int64)
        return Vector(result, sizes * factor, arguments[0].valid)

    return Function(kinds(TEXT), compute_size)


def _concat_takes(arguments: Sequence[Expr]) -> bool:
    return bool(arguments) and all(kinds(TEXT)([argument]) for argument in arguments)


def _concat(arguments: Sequence[Vector], result: SqlType) -> Vector:
    parts = (argument.values for argument in arguments)
    joined = pc.binary_join_element_wise(*parts, pa.scalar("", pa.large_string()))
    return Vector(result, joined, all_valid(arguments))


def _sliced(vector: Vector, start: int, end: int | None, result: SqlType) -> Vector:
    return Vector(result, pc.utf8_slice_codeunits(vector.values, start, end), vector.valid)


def _substring(arguments: Sequence[Vector], result: SqlType) -> Vector:
    """From a position counted from 1, or from the end if negative."""
    values = arguments[0]
    position = int(value_of(arguments[1]))
    size = max(int(value_of(arguments[2])), 0) if len(arguments) == 3 else None
    start = position - 1 if position > 0 else position
    if size is None:
        return _sliced(values, start, None, result)
    # A negative position before the start of the text still counts for the length.
    end = start + size
    return _sliced(values, start, None if start < 0 <= end else end, result)


def _left(arguments: Sequence[Vector], result: SqlType) -> Vector:
    return _sliced(arguments[0], 0, max(int(value_of(arguments[1])), 0), result)


def _right(arguments: Sequence[Vector], result: SqlType) -> Vector:
    size = int(value_of(arguments[1]))
    start, end = (-size, None) if size > 0 else (0, 0)
    return _sliced(arguments[0], start, end, result)


def _replace(arguments: Sequence[Vector], result: SqlType) -> Vector:
    values, search = arguments[0].values, value_of(arguments[1])
    by = value_of(arguments[2]) if len(arguments) == 3 else ""
    if search:
        values = pc.replace_substring(values, pattern=search, replacement=by)
    return Vector(result, values, arguments[0].valid)


def _instr(arguments: Sequence[Vector], result: SqlType) -> Vector:
    """Position in code points, from 1; a loop over the rows of the batch."""
    text, parts = (argument.values.to_pylist() for argument in arguments)
    positions = [
        0 if string is None or part is None else string.find(part) + 1
        for string, part in zip(text, parts, strict=True)
    ]
    return Vector(result, np.array(positions, dtype=np.int64), all_valid(arguments))


def _locate(arguments: Sequence[Vector], result: SqlType) -> Vector:
    return _instr(arguments[::-1], result)


def _matches(function: Callable[..., pa.Array]) -> Function:
    def compute_match(arguments: Sequence[Vector], result: SqlType) -> Vector:
        match = function(arguments[0].values, value_of(arguments[1])).fill_null(False)
        return Vector(result, match.to_numpy(zero_copy_only=False), arguments[0].valid)

    return Function(constants_after(TEXT, str), compute_match)


def _trimmed(function: Callable[..., pa.Array], order: int = 1) -> Function:
    """Trim blanks, or the characters of a constant, which is the first argument for order -1."""

    def takes(arguments: Sequence[Expr]) -> bool:
        return either(kinds(TEXT), constants_after(TEXT, str))(arguments[::order])

    def compute_trim(arguments: Sequence[Vector], result: SqlType) -> Vector:
        text, *rest = arguments[::order]
        values = text.values
        characters = value_of(rest[0]) if rest else " "
        if characters:
            values = function(values, characters=characters)
        return Vector(result, values, text.valid)

    return Function(takes, compute_trim)


_LENGTH = _size(pc.utf8_length)
_SUBSTRING = Function(
    either(constants_after(TEXT, int), constants_after(TEXT, int, int)), _substring
)
_CUT = constants_after(TEXT, int)
TEXT_FUNCTIONS: dict[str, Function] = {
    "upper": _text(_ascii(pc.ascii_upper)),
    "ucase": _text(_ascii(pc.ascii_upper)),
    "lower": _text(_ascii(pc.ascii_lower)),
    "lcase": _text(_ascii(pc.ascii_lower)),
    "trim": _trimmed(pc.utf8_trim),
    "btrim": _trimmed(pc.utf8_trim),
    "ltrim": _trimmed(pc.utf8_ltrim, order=-1),
    "rtrim": _trimmed(pc.utf8_rtrim, order=-1),
    "length": _LENGTH,
    "len": _LENGTH,
    "char_length": _LENGTH,
    "character_length": _LENGTH,
    "octet_length": _size(pc.binary_length),
    "bit_length": _size(pc.binary_length, 8),
    "concat": Function(_concat_takes, _concat),
    "substring": _SUBSTRING,
    "substr": _SUBSTRING,
    "left": Function(_CUT, _left),
    "right": Function(_CUT, _right),
    "replace": Function(
        either(constants_after(TEXT, str), constants_after(TEXT, str, str)), _replace
    ),
    "reverse": _text(pc.utf8_reverse),
    "instr": Function(kinds(TEXT, TEXT), _instr),
    "locate": Function(kinds(TEXT, TEXT), _locate),
    "position": Function(kinds(TEXT, TEXT), _locate),
    "startswith": _matches(pc.starts_with),
    "endswith": _matches(pc.ends_with),
    "contains": _matches(pc.match_substring),
}

# Numbers: integers and decimals are exact, an overflow is an error. Logarithms, powers and angles,
# whose last digit differs between machines, are left to Spark.

_FLOATS = frozenset({Kind.FLOAT, Kind.DOUBLE})


def number_type(name: str, arguments: Sequence[Expr]) -> SqlType | None:
    """Spark's result type of functions whose type depends on their arguments' types."""
    known = _known_types(arguments)
    if not known:
        return None
    if name in ("greatest", "least"):
        result = reduce(wider_type, known)
        return None if len(known) < 2 or result.kind is Kind.OTHER else result
    first = known[0]
    if name in ("floor", "ceil", "ceiling") and len(known) == 1 and first.is_numeric:
        if first.kind is not Kind.DECIMAL:
            return LONG
        return first if not first.scale else decimal(first.precision - first.scale + 1, 0)
    if name in ("round", "bround") and first.is_numeric:
        return _rounded_type(first, arguments[1:])
    return None


def _known_types(arguments: Sequence[Expr]) -> list[SqlType]:
    """The arguments' types; empty if one is unknown."""
    known = [result for part in arguments if (result := type_of(part)) is not None]
    return known if len(known) == len(arguments) else []


def _rounded_type(first: SqlType, rest: Sequence[Expr]) -> SqlType | None:
    digits = constant_of(rest[0]) if rest else 0
    if len(rest) > 1 or not isinstance(digits, int):
        return None
    if first.kind is not Kind.DECIMAL:
        return first
    integer_digits = first.precision - first.scale + 1
    if digits < 0:
        return decimal(min(max(integer_digits, 1 - digits), MAX_PRECISION), 0)
    scale = min(first.scale, digits)
    return decimal(min(integer_digits + scale, MAX_PRECISION), scale)


def _whole(direction: int) -> Function:
    """FLOOR (-1) and CEIL (1); a double beyond BIGINT is an error."""

    def compute_whole(arguments: Sequence[Vector], result: SqlType) -> Vector:
        (argument,) = arguments
        values = argument.filled()
        if argument.type.is_fractional:
            rounded = np.floor(values) if direction < 0 else np.ceil(values)
            return cast(Vector(DOUBLE, rounded, argument.valid), result)
        if not argument.type.scale:
            return Vector(result, values, argument.valid)
        unit = 10**argument.type.scale
        wide = values.astype(object)
        rounded = wide // unit if direction < 0 else -(-wide // unit)
        return Vector(result, fit_decimals(rounded, result), argument.valid)

    return Function(kinds(NUMBER), compute_whole)


def _rounding(*, to_even: bool) -> Function:
    def compute_round(arguments: Sequence[Vector], result: SqlType) -> Vector:
        (argument, *rest) = arguments
        values = argument.filled()
        digits = int(value_of(rest[0])) if rest else 0
        if argument.type.is_fractional:
            return rounded_double(argument, digits, to_even=to_even)
        scale = argument.type.scale
        dropped = scale - min(digits, scale)
        if dropped:
            divisor = np.full(len(values), 10**dropped, dtype=object)
            wide = values.astype(object)
            values = _half_even(wide, divisor) if to_even else round_half_up(wide, divisor)
            values = rescale(narrow(values), min(digits, scale), max(min(digits, scale), 0))
        if result.kind is Kind.DECIMAL:
            return Vector(result, fit_decimals(values, result), argument.valid)
        return Vector(result, fit_integers(values, result), argument.valid)

    exact = either(kinds(EXACT), constants_after(EXACT, int))
    return Function(either(exact, _rounds_double), compute_round)


def _rounds_double(arguments: Sequence[Expr]) -> bool:
    """Whether it is a DOUBLE, with a supported constant number of digits if any."""
    digits = constant_of(arguments[1]) if len(arguments) > 1 else 0
    is_double = len(arguments) in (1, 2) and type_of(arguments[0]) == DOUBLE
    return is_double and isinstance(digits, int) and abs(digits) <= MOST_DIGITS


def _half_even(values: Any, divisor: Any) -> Any:
    lower = values // divisor
    twice = 2 * (values - lower * divisor)
    return lower + ((twice > divisor) | ((twice == divisor) & (lower % 2 == 1)))


def _sign(arguments: Sequence[Vector], result: SqlType) -> Vector:
    (argument,) = arguments
    if argument.type.is_fractional:
        # The sign of -0.0 is -0.0, as in Java.
        values = np.where(argument.values == 0, argument.values, np.sign(argument.values))
        return Vector(result, values, argument.valid)
    signs = np.sign(argument.filled().astype(object)).astype(np.float64)
    return Vector(result, signs, argument.valid)


def _sqrt(arguments: Sequence[Vector], result: SqlType) -> Vector:
    with np.errstate(invalid="ignore"):
        values = np.sqrt(to_double(arguments[0]).values)
    return Vector(DOUBLE, values, arguments[0].valid)


def _isnan(arguments: Sequence[Vector], result: SqlType) -> Vector:
    return Vector(result, np.isnan(arguments[0].values) & arguments[0].validity())


def _best_takes(arguments: Sequence[Expr]) -> bool:
    known = _known_types(arguments)
    if len(known) < 2:
        return False
    common = reduce(wider_type, known)
    if common.kind in (Kind.OTHER, Kind.NULL, Kind.FLOAT):
        return False
    return all(supports_cast(result, common) for result in known)


def _best(op: CompareOp) -> Function:
    """GREATEST and LEAST: NULL only if all are."""

    def compute_best(arguments: Sequence[Vector], result: SqlType) -> Vector:
        best = cast(arguments[0], result)
        for argument in arguments[1:]:
            other = cast(argument, result)
            is_better = compare(op, other, best).may_true
            best = _chosen(other.validity() & (is_better | ~best.validity()), other, best)
        return best

    return Function(_best_takes, compute_best)


def _chosen(mask: Any, left: Vector, right: Vector) -> Vector:
    valid = np.where(mask, left.validity(), right.validity())
    if left.is_textual:
        both = pa.concat_arrays([left.values, right.values])
        rows = np.arange(len(mask))
        values: Any = both.take(pa.array(np.where(mask, rows, rows + len(mask))))
    else:
        values = np.where(mask, left.values, right.values)
    return Vector(left.type, values, None if bool(valid.all()) else valid)


CARRIES_BOUNDS = frozenset({"abs", "round", "bround"})
"""Functions that compute the bounds of their result themselves."""
NUMBER_FUNCTIONS: dict[str, Function] = {
    "abs": Function(kinds(NUMBER), lambda arguments, result: absolute(arguments[0])),
    "floor": _whole(-1),
    "ceil": _whole(1),
    "ceiling": _whole(1),
    "round": _rounding(to_even=False),
    "bround": _rounding(to_even=True),
    "sign": Function(kinds(NUMBER), _sign),
    "signum": Function(kinds(NUMBER), _sign),
    "sqrt": Function(kinds(NUMBER), _sqrt),
    "isnan": Function(kinds(_FLOATS), _isnan),
    "greatest": _best(CompareOp.GREATER),
    "least": _best(CompareOp.LESS),
}

FUNCTIONS: dict[str, Function] = {
    **NUMBER_FUNCTIONS,
    **DATE_FUNCTIONS,
    **TEXT_FUNCTIONS,
    ONE_ROW: Function(kinds(frozenset({Kind.LONG})), _one_row),
}


def call_objection(call: Call) -> str | None:
    """Why the engine does not compute this call as Spark does; None if it does."""
    function = FUNCTIONS.get(call.name)
    if function is None:
        return f"the engine does not support function `{call.name}`"
    types = [type_of(argument) for argument in call.arguments]
    if TIMESTAMP in (call.type, *types) and fixed_offset(call.zone) is None:
        return (
            f"the engine does not support `{call.name}` of timestamps in the time zone {call.zone}"
        )
    if function.takes(call.arguments):
        return None
    listed = ", ".join("?" if kind is None else f"`{kind}`" for kind in types)
    return f"the engine does not support function `{call.name}` of {listed}"


def compute(call: Call, arguments: Sequence[Vector], result: SqlType) -> Vector:
    """The call's value per row, for calls without a `call_objection`."""
    if not len(arguments[0]):
        return all_null(result, 0)
    offset = offset_of(call.zone)
    local = [moved_by(part, offset) if part.type == TIMESTAMP else part for part in arguments]
    function = FUNCTIONS[call.name].compute
    has_bounds = any(argument.error is not None for argument in local)
    if has_bounds and call.name not in CARRIES_BOUNDS:
        values = over_bounds(call.name, function, local, result)
    else:
        values = function(local, result)
    return moved_by(values, -offset) if result == TIMESTAMP else values
