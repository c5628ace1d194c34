"""Exact sums in 128 bits, as two 64-bit columns.

Law: `high * 2^64 + low` is the exact sum; nothing wraps, because Spark's own widest sums
(decimal(38)) fit 127 bits and anything longer is refused.
Out of scope: sums of doubles (`engine.compensated`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from impctl.data.vector import INT64_MAX, Ints
from impctl.errors import EvaluationError

Words = npt.NDArray[np.uint64]
_LOW = (1 << 64) - 1
_LIMIT = 1 << 127


def widen(values: Any) -> tuple[Ints, Words]:
    """(high, low) of int64 values or Python integers."""
    if values.dtype != object:
        return values >> 63, values.view(np.uint64)
    for value in values:
        if not -_LIMIT <= value < _LIMIT:
            raise _too_wide()
    high = np.array([int(value) >> 64 for value in values], dtype=np.int64)
    low = np.array([int(value) & _LOW for value in values], dtype=np.uint64)
    return high, low


def add(high: Ints, low: Words, other_high: Ints, other_low: Words) -> tuple[Ints, Words]:
    """Column-wise sum with carry; EvaluationError where it leaves 128 bits."""
    total = low + other_low
    sums = high + other_high + (total < low).astype(np.int64)
    if bool((((high < 0) == (other_high < 0)) & ((sums < 0) != (high < 0))).any()):
        raise _too_wide()
    return sums, total


def _too_wide() -> EvaluationError:
    return EvaluationError(
        "A sum does not fit in 38 digits",
        code="arithmetic_overflow",
        hint="SUM also fails in Spark for this group; filter or scale the values",
    )


def unwiden(high: Ints, low: Words) -> Any:
    """The sums as int64 where all fit, else as Python integers."""
    narrow = low.view(np.int64)
    if bool(np.all(high == narrow >> 63)):
        return narrow
    return np.array([(int(h) << 64) | int(w) for h, w in zip(high, low, strict=True)], dtype=object)


def grouped_sums(values: Any, weights: Ints, order: Any, starts: Any) -> Any:
    """Exact `sum(weight * value)` per group; int64 where that cannot overflow."""
    biggest = _magnitude(values) * _magnitude(weights) * max(len(weights), 1)
    if values.dtype == object or biggest > INT64_MAX:
        products = values.astype(object) * weights.astype(object)
        return np.add.reduceat(products[order], starts)
    products = values if bool((weights == 1).all()) else values * weights
    return np.add.reduceat(products[order], starts)


def _magnitude(values: Any) -> int:
    return max(abs(int(values.max())), abs(int(values.min()))) if len(values) else 0
