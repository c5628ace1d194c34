"""AVG's last step: a sum divided by a count, as Spark does it.

Law: the result is Spark's to the last digit, or a bound on how far it may lie from it, or an error.
Spark averages decimals of at most eleven digits as doubles (its rule `DecimalAggregates`): the sum
of the unscaled values by the count, by the power of ten, then cast to the result's type. That is
done here as long as such a sum is exact whatever the order of its rows; beyond that the order
decides in Spark itself, and the average is refused. Longer decimals are divided exactly.
Out of scope: sums and counts (`engine`), averages in SQL (`capture.averages`).
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import numpy.typing as npt

from impctl.data.schema import DOUBLE, Kind, SqlType
from impctl.data.vector import Bools, Floats, Vector
from impctl.errors import EvaluationError
from impctl.expr.numbers import EXACT_DOUBLE, UNIT, divide_decimals, fit_decimals
from impctl.expr.types import SHORT_AVERAGE

Integers = npt.NDArray[np.int64]

_TIE = 1e-4
"""How near to a half a scaled average may come before its text is looked at."""


def mean(total: Vector, count: Vector, result: SqlType) -> Vector:
    """`total / count` in AVG's result type, NULL for count 0; shape (n,)."""
    some = count.values > 0
    valid = some & total.validity()
    divisor = np.where(some, count.values, 1)
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
    """Rows of short decimals that doubles sum exactly in any order; `result` is AVG's type."""
    return EXACT_DOUBLE // int(10 ** (result.precision - 4))


def _of_short_decimals(total: Integers, count: Integers, result: SqlType) -> Integers:
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
    whole = np.floor(scaled)
    rounded = np.where(scaled - whole >= 0.5, whole + 1, whole)
    unscaled: Integers = np.where(averages < 0, -rounded, rounded).astype(np.int64)
    for at in np.flatnonzero(_near_tie(scaled, whole)).tolist():
        unscaled[at] = _rounded_text(float(averages[at]), result.scale)
    return unscaled


def _near_tie(scaled: Floats, whole: Floats) -> Bools:
    """Where the text of the average may round otherwise than the scaled average does.

    Scaling errs by a few units of the last place, which from 10^14 on is every average.
    """
    room = np.maximum(_TIE, scaled * (8 * UNIT))
    near: Bools = np.abs(scaled - whole - 0.5) <= room
    # Next to a whole number the floor may be off by one.
    near |= (scaled - whole <= room) | (scaled - whole >= 1 - room)
    return near


def _rounded_text(average: float, scale: int) -> int:
    """Spark casts a double to a decimal by its shortest text, rounded half up."""
    return int(Decimal(repr(average)).scaleb(scale).quantize(Decimal(1), rounding=ROUND_HALF_UP))
