"""The single-precision number that a decimal text stands for.

Law: rounded once, ties to even, as Java reads a FLOAT; by way of a double it would be rounded
twice. Out of scope: casts of columns (`expr.cast`).
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np

_SURELY_ZERO = 1e-50
"""Far below half of the least single-precision number, 7e-46."""


def nearest_float(text: str) -> float:
    """The single-precision number nearest to a decimal, as a double; infinite beyond the last."""
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
    finite = [one for one in around if np.isfinite(one)]
    return float(min(finite, key=lambda one: (abs(Fraction(float(one)) - exact), _is_odd(one))))


def _is_odd(value: np.float32) -> bool:
    """Whether the last bit of the mantissa is set."""
    return bool(value.view(np.int32) & 1)
