"""Functions whose value follows from their arguments' values alone, for `reference_expr`.

Law: as there: what fails in Spark raises `ReferenceFailure`, what is not known `ReferenceLimit`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from impctl.data.schema import LONG
from tests.support.reference_expr import (
    ReferenceFailure,
    ReferenceLimit,
    Value,
    fit_integer,
    half_up,
    sort_key,
)


def function_value(name: str, values: Sequence[Value]) -> Value:
    """The function's value; NULL where an argument is, but for GREATEST and LEAST."""
    known = [value for value in values if value is not None]
    if name == "greatest":
        return max(known, key=sort_key, default=None)
    if name == "least":
        return min(known, key=sort_key, default=None)
    function = _FUNCTIONS.get(name)
    if function is None:
        raise ReferenceLimit(f"function {name}")
    return function(*known) if len(known) == len(values) else None


def _whole(way: Callable[[Any], int]) -> Callable[..., Value]:
    def result(value: Any) -> Value:
        if not isinstance(value, int | float):
            raise ReferenceLimit(f"a whole number for {value!r}")
        if not math.isfinite(value):
            raise ReferenceFailure(f"no whole number for {value}")
        return fit_integer(way(value), LONG)

    return result


def _rounded(value: Any, digits: int = 0) -> Value:
    if isinstance(value, int) and digits >= 0:
        return value
    if not isinstance(value, float):
        raise ReferenceLimit(f"{value!r} rounded")
    if not abs(value) < 2**53:
        return value
    scaled = Fraction(Decimal(repr(value))) * Fraction(10) ** digits
    return float(half_up(scaled) / Fraction(10) ** digits)


def _sqrt(value: float) -> Value:
    return math.sqrt(value) if value >= 0 else math.nan


def _exp(value: float) -> Value:
    return math.inf if value > 700 else math.exp(value)


def _ln(value: float) -> Value:
    return None if value <= 0 else math.log(value)


def _pow(value: float, exponent: float) -> Value:
    """As Java has it: NaN where C gives 1 for a power of one."""
    if math.isnan(exponent) or (abs(value) == 1 and math.isinf(exponent)):
        return math.nan
    with np.errstate(all="ignore"):
        return float(np.power(np.float64(value), np.float64(exponent)))


def _day(day: date | int) -> date:
    """The engine's tests give days since 1970, those of whole queries dates."""
    return date(1970, 1, 1) + timedelta(day) if isinstance(day, int) else day


_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "round": _rounded,
    "floor": _whole(math.floor),
    "ceil": _whole(math.ceil),
    "sqrt": _sqrt,
    "exp": _exp,
    "ln": _ln,
    "pow": _pow,
    "year": lambda day: _day(day).year,
    "month": lambda day: _day(day).month,
    "datediff": lambda end, start: (_day(end) - _day(start)).days,
}
