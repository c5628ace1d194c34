"""Doubles rounded to decimal digits, as Spark does it: by the text that Java writes.

Law: the digits are Spark's, or it is said that they are not known. Away from a tie the text of a
double and its value round alike; at one the text decides, which is the shortest that reads as the
double again. Java before 19 wrote others now and then, so texts of more than 15 digits, of small
numbers and of whole ones from 2^53 on are not relied on there.
Out of scope: what is made of the digits (`expr.spans`, `expr.cast`).
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np

from impctl.data.vector import INT64_MAX, INT64_MIN, Bools, Floats
from impctl.expr.numbers import EXACT_DOUBLE, UNIT

MOST_DIGITS = 15
"""Digits after (or before) the point that doubles are rounded to here."""
_FEW_DIGITS = 15
"""So many digits of a text name its double alone."""
_SMALL = 1e-3
"""Below, Java before 19 wrote at least two digits, not always the shortest."""
_LARGE = 2.0**50
"""Scaled values up to here have a fraction that sums with a half can be told from."""
_WIDE = Context(prec=400)


def scaled_by(values: Floats, digits: int) -> Floats:
    """The values times ten to the `digits`, rounded once."""
    with np.errstate(over="ignore", invalid="ignore"):
        return values * 10.0**digits if digits >= 0 else values / 10.0**-digits


def rounded(values: Floats, digits: int, *, to_even: bool) -> tuple[Any, Bools]:
    """Finite values times ten to the `digits`, as whole numbers, and which of them are sure."""
    scaled = scaled_by(values, digits)
    with np.errstate(invalid="ignore"):
        tie = np.abs(scaled - np.floor(scaled) - 0.5)
        is_plain = (np.abs(scaled) < _LARGE) & (tie > np.abs(scaled) * (8 * UNIT))
    nearest = np.where(is_plain, np.rint(np.where(is_plain, scaled, 0.0)), 0.0)
    whole: Any = nearest.astype(np.int64)
    sure = is_plain.copy()
    for at in np.flatnonzero(~is_plain).tolist():
        result = _of_text(float(values[at]), digits, to_even=to_even)
        sure[at] = result is not None
        if result is not None and not INT64_MIN <= result <= INT64_MAX:
            whole = whole.astype(object)
        whole[at] = result or 0
    return whole, sure


def _of_text(value: float, digits: int, *, to_even: bool) -> int | None:
    """By the shortest text; None where Java may have written another."""
    text = Decimal(repr(value))
    mode = ROUND_HALF_EVEN if to_even else ROUND_HALF_UP
    is_long = len(text.normalize(_WIDE).as_tuple().digits) > _FEW_DIGITS
    if is_long or not _SMALL <= abs(value) < EXACT_DOUBLE:
        return None
    return int(text.scaleb(digits, _WIDE).to_integral_value(mode, _WIDE))


def outer(low: Floats, high: Floats, digits: int) -> tuple[Floats, Floats]:
    """What values between these two, scaled and rounded in any way, lie between.

    Whole numbers, up to 2^50; beyond, where rounding changes nothing that counts, both moved by 1.
    """
    least, most = scaled_by(low, digits), scaled_by(high, digits)
    with np.errstate(invalid="ignore", over="ignore"):
        least = least - np.abs(least) * (8 * UNIT)
        most = most + np.abs(most) * (8 * UNIT)
        is_small = np.maximum(np.abs(least), np.abs(most)) < _LARGE
        first = np.where(is_small, np.floor(least + 0.5), least - 1.0)
        last = np.where(is_small, np.floor(most + 0.5), most + 1.0)
    return first, last
