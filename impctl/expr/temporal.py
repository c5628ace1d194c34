"""Functions of dates and timestamps.

Law: days and microseconds count from 1970-01-01 in the proleptic Gregorian calendar, as Spark's.
A TIMESTAMP argument is local time, and so is a TIMESTAMP result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from impctl.data.vector import INT64_MAX, INT64_MIN, Ints, Vector
from impctl.errors import EvaluationError
from impctl.expr.cast import MICROS_PER_DAY
from impctl.expr.signature import (
    DAY,
    MOMENT,
    TEXT,
    WHOLE,
    Function,
    all_valid,
    constant_of,
    kinds,
    value_of,
)

if TYPE_CHECKING:
    from impctl.data.schema import SqlType
    from impctl.expr.nodes import Expr

_SECOND = 1_000_000
_SMALLEST_DAY, _LARGEST_DAY = -(2**31), 2**31 - 1
_WEEKS = ("week",)
_MONTHS = {
    **dict.fromkeys(("year", "yyyy", "yy"), 12),
    "quarter": 3,
    **dict.fromkeys(("month", "mon", "mm"), 1),
}
"""Units by the months they hold."""
_TIMES = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": _SECOND,
    "minute": 60 * _SECOND,
    "hour": 3600 * _SECOND,
    **dict.fromkeys(("day", "dd"), MICROS_PER_DAY),
}
"""Units by their microseconds."""


def _day_numbers(vector: Vector) -> Ints:
    """Days of dates or timestamps; 0 for NULL."""
    values: Ints = vector.filled()
    return values // MICROS_PER_DAY if vector.type.kind in MOMENT else values


def _month_numbers(days: Ints) -> Ints:
    return days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)


def _first_days(months: Ints) -> Ints:
    return months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)


def _of_day(function: Callable[[Ints], Ints]) -> Function:
    def compute_field(arguments: Sequence[Vector], result: SqlType) -> Vector:
        return Vector(result, function(_day_numbers(arguments[0])), arguments[0].valid)

    return Function(kinds(DAY | MOMENT), compute_field)


def _of_time(unit: int, count: int) -> Function:
    def compute_field(arguments: Sequence[Vector], result: SqlType) -> Vector:
        return Vector(result, arguments[0].filled() // unit % count, arguments[0].valid)

    return Function(kinds(MOMENT), compute_field)


def _day_of_month(days: Ints) -> Ints:
    return days - _first_days(_month_numbers(days)) + 1


def _day_of_year(days: Ints) -> Ints:
    return days - _first_days(_month_numbers(days) // 12 * 12) + 1


def _week(days: Ints) -> Ints:
    """ISO weeks: that of a day's Thursday, counted from 1 in the Thursday's year."""
    return (_day_of_year(days - (days + 3) % 7 + 3) - 1) // 7 + 1


def _fit_days(days: Any, valid: Any) -> None:
    shown = days if valid is None else days[valid]
    if bool(((shown < _SMALLEST_DAY) | (shown > _LARGEST_DAY)).any()):
        raise EvaluationError(
            "A date computed in the query is outside the range of dates",
            code="arithmetic_overflow",
            hint="restrict the query's condition; Spark fails too",
        )


def _wrapped(days: Ints) -> Ints:
    """Day numbers as Spark has them, in 32 bits that wrap around."""
    span = _LARGEST_DAY - _SMALLEST_DAY + 1
    return (days - _SMALLEST_DAY) % span + _SMALLEST_DAY


def _moved_date(sign: int) -> Function:
    def compute_move(arguments: Sequence[Vector], result: SqlType) -> Vector:
        days = arguments[0].values + sign * arguments[1].values
        return Vector(result, _wrapped(days), all_valid(arguments))

    return Function(kinds(DAY, WHOLE), compute_move)


def _add_months(arguments: Sequence[Vector], result: SqlType) -> Vector:
    """The same day of another month, or its last one if it is shorter."""
    valid = all_valid(arguments)
    days, moved = arguments[0].filled(), arguments[1].filled()
    months = _month_numbers(days) + moved
    last = _first_days(months + 1) - _first_days(months)
    match = _first_days(months) + np.minimum(_day_of_month(days), last) - 1
    _fit_days(match, valid)
    return Vector(result, match, valid)


def _datediff(arguments: Sequence[Vector], result: SqlType) -> Vector:
    days = _day_numbers(arguments[0]) - _day_numbers(arguments[1])
    return Vector(result, _wrapped(days), all_valid(arguments))


def _unit_takes(position: int, units: frozenset[str], takes: Callable[..., bool]) -> Any:
    def checked(arguments: Sequence[Expr]) -> bool:
        if not takes(arguments):
            return False
        unit = constant_of(arguments[position])
        return isinstance(unit, str) and unit.lower() in units

    return checked


def _truncated_days(days: Ints, unit: str) -> Ints:
    if unit in _WEEKS:
        return days - (days + 3) % 7
    step = _MONTHS[unit]
    return _first_days(_month_numbers(days) // step * step)


def _trunc(arguments: Sequence[Vector], result: SqlType) -> Vector:
    days = arguments[0].filled()
    if len(days):
        days = _truncated_days(days, str(value_of(arguments[1])).lower())
        _fit_days(days, arguments[0].valid)
    return Vector(result, days, arguments[0].valid)


def _date_trunc(arguments: Sequence[Vector], result: SqlType) -> Vector:
    values, valid = arguments[1].filled(), arguments[1].valid
    if not len(values):
        return Vector(result, values)
    unit = str(value_of(arguments[0])).lower()
    if unit in _TIMES:
        # Near the smallest timestamp the start of its unit may not be one any more.
        _fit_micros(values - values % _TIMES[unit] > values)
        return Vector(result, values - values % _TIMES[unit], valid)
    days = _truncated_days(values // MICROS_PER_DAY, unit)
    _fit_micros((days > INT64_MAX // MICROS_PER_DAY) | (days <= INT64_MIN // MICROS_PER_DAY))
    return Vector(result, days * MICROS_PER_DAY, valid)


def _timestampadd(arguments: Sequence[Vector], result: SqlType) -> Vector:
    """A timestamp some units of a fixed length later, in local time of a fixed offset."""
    amounts, values, valid = arguments[1].filled(), arguments[2].filled(), all_valid(arguments[1:])
    if not len(values):
        return Vector(result, values)
    unit = _LENGTHS[str(value_of(arguments[0])).lower()]
    most = INT64_MAX // unit
    is_outside = (amounts > most) | (amounts < -most)
    steps = np.where(is_outside, 0, amounts) * unit
    moved = values + steps
    is_outside |= (moved < values) != (steps < 0)
    _fit_micros(is_outside if valid is None else is_outside & valid)
    return Vector(result, moved, valid)


def _fit_micros(is_outside: Any) -> None:
    if bool(is_outside.any()):
        raise EvaluationError(
            "A timestamp computed in the query is outside the range of timestamps",
            code="arithmetic_overflow",
            hint="restrict the query's condition; Spark fails too",
        )


_LENGTHS = {
    "week": 7 * MICROS_PER_DAY,
    **{unit: _TIMES[unit] for unit in ("day", "hour", "minute", "second")},
}
"""Units of `timestampadd` of constant length, by their microseconds."""
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
    "last_day": Function(
        kinds(DAY), _of_day(lambda days: _first_days(_month_numbers(days) + 1) - 1).compute
    ),
    "hour": _of_time(3600 * _SECOND, 24),
    "minute": _of_time(60 * _SECOND, 60),
    "second": _of_time(_SECOND, 60),
    "date_add": _moved_date(1),
    "date_sub": _moved_date(-1),
    "timestampadd": Function(
        _unit_takes(0, frozenset({*_LENGTHS}), kinds(TEXT, WHOLE, frozenset({*MOMENT}))),
        _timestampadd,
    ),
    "add_months": Function(kinds(DAY, WHOLE), _add_months),
    "datediff": _DIFFERENCE,
    "date_diff": _DIFFERENCE,
    "to_date": _of_day(lambda days: days),
    "trunc": Function(_unit_takes(1, _TRUNC_UNITS, kinds(DAY, TEXT)), _trunc),
    "date_trunc": Function(
        _unit_takes(0, _DATE_TRUNC_UNITS, kinds(TEXT, frozenset({*MOMENT}))), _date_trunc
    ),
}
