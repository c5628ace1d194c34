"""Casts between types under ANSI rules.

Law: a value that does not fit the target is an error, as in Spark, never NULL and never wrapped;
but a DOUBLE that is no number is NULL as a DECIMAL. Text is written as Spark writes it, and read
only in its plain form (digits with a sign, yyyy-mm-dd); any other text is refused, because Spark
accepts some other forms and fails on the rest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from impctl.data.schema import DOUBLE, FRACTIONAL, INTEGRAL, STRING, TEMPORAL, Kind, SqlType
from impctl.data.vector import Vector, all_null
from impctl.errors import EvaluationError, NotExactError
from impctl.expr.error_bounds import as_decimal, over_bounds
from impctl.expr.numeric import (
    INTEGRAL_BITS,
    MOST_DIGITS,
    fit_decimals,
    fit_integers,
    narrow,
    rescale,
    to_double,
)
from impctl.expr.types import moved_by

_EPOCH = date(1970, 1, 1)
_FIRST_DAY, _LAST_DAY = (date.min - _EPOCH).days, (date.max - _EPOCH).days
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

_TO_TEXT = INTEGRAL | {Kind.BOOLEAN, Kind.DECIMAL, Kind.DATE}
_FROM_TEXT = INTEGRAL | {Kind.DATE}


def _to_text(vector: Vector) -> Vector:
    """The column as text, in a loop over the rows of the batch."""
    texts = [
        _text(value, vector.type) if valid else None
        for value, valid in zip(vector.values.tolist(), vector.validity(), strict=True)
    ]
    return Vector(STRING, pa.array(texts, pa.large_string()), vector.valid)


def _text(value: Any, sql_type: SqlType) -> str:
    if sql_type.kind is Kind.BOOLEAN:
        return "true" if value else "false"
    if sql_type.kind is Kind.DATE:
        if not _FIRST_DAY <= value <= _LAST_DAY:
            raise _refused("a date outside the years 1 to 9999 to text")
        return (_EPOCH + timedelta(days=value)).isoformat()
    scale = sql_type.scale
    if not scale:
        return str(value)
    digits = str(abs(value)).rjust(scale + 1, "0")
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}"


def _from_text(vector: Vector, target: SqlType) -> Vector:
    """The values of text, in a loop over the rows of the batch."""
    parse = _day if target.kind is Kind.DATE else _number
    pairs = zip(vector.values.to_pylist(), vector.validity(), strict=True)
    numbers = np.array([parse(text) if valid else 0 for text, valid in pairs], dtype=object)
    if target.kind is Kind.DATE:
        return Vector(target, numbers.astype(np.int64), vector.valid)
    return Vector(target, fit_integers(narrow(numbers), target), vector.valid)


def _number(text: str) -> int:
    if _WHOLE.fullmatch(text) is None:
        raise _refused("text that is not a plain number to a number")
    return int(text)


def _day(text: str) -> int:
    try:
        if _DATE.fullmatch(text) is not None:
            return (date.fromisoformat(text) - _EPOCH).days
    except ValueError:
        pass
    raise _refused("text that is not a plain date to a date")


def _refused(conversion: str) -> NotExactError:
    return NotExactError(
        f"A cast in the query converts {conversion}, which only Spark can do",
        hint="recapture with `impctl capture`, or cast another column",
    )


MICROS_PER_DAY = 86_400_000_000
_MOST_DAYS = 106_751_990  # Days whose microseconds 64 bits hold
_DIGITS_OF_DOUBLE = 15  # Decimals of so many digits and their DOUBLE are truncated alike
_EXACT_SOURCES = INTEGRAL | {Kind.DECIMAL}


def supports(source: SqlType, target: SqlType) -> bool:
    """Whether `cast` computes this cast exactly as Spark does."""
    if source == target or source.kind is Kind.NULL:
        return target.kind is not Kind.OTHER
    if target.kind is Kind.STRING:
        return source.kind in _TO_TEXT
    if source.kind is Kind.STRING:
        return target.kind in _FROM_TEXT
    if target.kind is Kind.FLOAT:
        return source.kind in INTEGRAL or source.kind is Kind.DOUBLE
    if target.kind is Kind.BOOLEAN:
        return source.kind in _EXACT_SOURCES
    if source.kind in _EXACT_SOURCES:
        return target.kind in _EXACT_SOURCES or target.kind is Kind.DOUBLE
    if source == DOUBLE and target.kind is Kind.DECIMAL:
        return target.scale <= MOST_DIGITS
    if source.kind in FRACTIONAL:
        return target.kind is Kind.DOUBLE or target.kind in INTEGRAL
    if source.kind is Kind.BOOLEAN:
        return target.kind in INTEGRAL or target.kind is Kind.DOUBLE
    return source.kind in TEMPORAL and target.kind in TEMPORAL


def cast(vector: Vector, target: SqlType, offset: int = 0) -> Vector:
    """The column in the target type; EvaluationError if a value does not fit. `offset` is the
    session's time zone (see `moved_by`)."""
    source = vector.type
    if source == target:
        return vector
    if source.kind is Kind.NULL:
        return all_null(target, len(vector))
    if target.kind is Kind.STRING:
        return _to_text(vector)
    if source.kind is Kind.STRING:
        return _from_text(vector, target)
    if source.kind in TEMPORAL:
        # Between dates and timestamps by way of the session's local time.
        local = moved_by(vector, offset) if source.kind is Kind.TIMESTAMP else vector
        result = _local(local, target)
        return moved_by(result, -offset) if target.kind is Kind.TIMESTAMP else result
    if target.kind is Kind.BOOLEAN:
        return Vector(target, np.asarray(vector.values != 0, dtype=np.bool_), vector.valid)
    if target.kind is Kind.FLOAT:
        return over_bounds("cast", _single, [vector], target)
    if target.kind is Kind.DOUBLE:
        if source.kind is Kind.BOOLEAN:
            return Vector(DOUBLE, vector.values.astype(np.float64), vector.valid)
        double = to_double(vector)
        return Vector(DOUBLE, double.values, double.valid, double.error)
    if source.kind is Kind.BOOLEAN:
        return Vector(target, vector.values.astype(np.int64), vector.valid)
    if source.is_fractional and target.kind is Kind.DECIMAL:
        return as_decimal(vector, target)
    if source.is_fractional:
        return over_bounds("cast", _truncated, [vector], target)
    if target.kind is Kind.DECIMAL:
        rescaled = rescale(vector.filled(), source.scale, target.scale)
        return Vector(target, fit_decimals(rescaled, target), vector.valid)
    return _whole(vector, target)


def _local(vector: Vector, target: SqlType) -> Vector:
    values = vector.filled()
    if target.kind is Kind.DATE:
        return Vector(target, values // MICROS_PER_DAY, vector.valid)
    if vector.type.kind is not Kind.DATE:
        return Vector(target, values, vector.valid)
    if len(values) and max(abs(int(values.max())), abs(int(values.min()))) > _MOST_DAYS:
        raise _misfit("a date is outside the range of timestamps")
    return Vector(target, values * MICROS_PER_DAY, vector.valid)


def _whole(vector: Vector, target: SqlType) -> Vector:
    """Integers and decimals to an integral type, truncated. NotExactError if a decimal is so close
    below an integer that its DOUBLE is that integer."""
    values = vector.filled()
    if vector.type.scale:
        unit = 10**vector.type.scale
        wide = values.astype(object)
        values = np.where(wide < 0, -(abs(wide) // unit), abs(wide) // unit)
        # Except to BIGINT, Spark may convert to DOUBLE first, depending on where the value is from.
        if vector.type.precision > _DIGITS_OF_DOUBLE and target.kind is not Kind.LONG:
            for value, truncated in zip(wide.tolist(), values.tolist(), strict=True):
                if int(value / unit) != truncated:
                    raise NotExactError(
                        "In a cast in the query, a DECIMAL is too close to a whole number to be "
                        "truncated reliably",
                        hint="cast to BIGINT in the query, or recapture with `impctl capture`",
                    )
    return Vector(target, fit_integers(values, target), vector.valid)


def _single(arguments: Sequence[Vector], target: SqlType) -> Vector:
    (vector,) = arguments
    with np.errstate(over="ignore"):
        single = vector.values.astype(np.float32).astype(np.float64)
    return Vector(target, single, vector.valid)


def _truncated(arguments: Sequence[Vector], target: SqlType) -> Vector:
    """Doubles to an integral type, toward zero; NaN and values out of range raise."""
    (vector,) = arguments
    values = vector.filled()
    bound = 2.0 ** (INTEGRAL_BITS[target.kind] - 1)
    truncated = np.trunc(values)
    with np.errstate(invalid="ignore"):
        fits = (truncated >= -bound) & (truncated < bound)
    if not bool(np.all(fits)):
        raise _misfit(f"a value does not fit the type `{target}`")
    return Vector(target, truncated.astype(np.int64), vector.valid)


def _misfit(reason: str) -> EvaluationError:
    return EvaluationError(
        f"In a cast in the query, {reason}",
        code="cast_overflow",
        hint="filter out such rows before the cast; Spark also fails on this row",
    )
