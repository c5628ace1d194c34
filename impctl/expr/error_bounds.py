"""Functions of doubles that are known within a bound.

Law: the result's bound contains the function's result for every value within the argument's bound.
A result that is no DOUBLE has no bound: it must be the same for all these values, else
NotExactError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from impctl.data.schema import DOUBLE, Kind, SqlType
from impctl.data.vector import Bools, Floats, Vector
from impctl.errors import EvaluationError, NotExactError
from impctl.expr.numeric import EXACT_DOUBLE, fit_decimals, magnitude, outer, rounded, scaled_by

Function = Callable[[Sequence[Vector], SqlType], Vector]

MONOTONE = frozenset(
    {"cast", "floor", "ceil", "ceiling", "sqrt", "sign", "signum", "isnan", "greatest", "least"}
)
"""Functions that never decrease when an argument grows, with NaN the greatest value. For square
roots of negative numbers one end is NaN."""


def unsure_value(subject: str) -> NotExactError:
    """The error for a value that must be known exactly."""
    return NotExactError(
        f"{subject} depends on the order of a sum of doubles",
        hint="recapture with `impctl capture`, or sum decimals in the query",
    )


def is_open(vector: Vector) -> Bools:
    """Where nothing is known about the value."""
    if vector.error is None:
        return np.zeros(len(vector), dtype=np.bool_)
    return ~np.isfinite(vector.error) & vector.validity()


def is_known(vector: Vector) -> bool:
    """Whether every value that is not NULL has the bound zero."""
    if vector.error is None:
        return True
    return not bool(((vector.error != 0) & vector.validity()).any())


def refuse_unsure(columns: Sequence[Vector]) -> None:
    """Raise if values that are grouped or summed are not exact: a sketch could be too small."""
    if not all(is_known(column) for column in columns):
        raise unsure_value("A value used for grouping, a distinct count or a variance")


def ends(vector: Vector) -> tuple[Vector, Vector]:
    """The least and greatest values within the bounds; where a bound is open, the value itself."""
    if vector.error is None:
        return vector, vector
    error = np.where(np.isfinite(vector.error), vector.error, 0.0)
    moves = error != 0
    sides = []
    with np.errstate(invalid="ignore", over="ignore"):
        for sign in (-1.0, 1.0):
            moved = np.nextafter(vector.values + sign * error, sign * np.inf)
            values = np.where(moves, moved, vector.values)
            sides.append(Vector(vector.type, values, vector.valid))
    return sides[0], sides[1]


def between(low: Floats, high: Floats, valid: Bools | None) -> Vector:
    """Doubles anywhere between two; open if just one end is NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        alike = (low == high) | (np.isnan(low) & np.isnan(high))
        middle = low / 2 + high / 2
        reach = np.maximum(np.abs(high - middle), np.abs(middle - low))
        error = np.where(alike, 0.0, np.nextafter(reach, np.inf))
    error = np.where(np.isfinite(error), error, np.inf)
    values = np.where(alike, low, np.where(np.isfinite(middle), middle, 0.0))
    return Vector(DOUBLE, values, valid, error)


def over_bounds(
    name: str, compute: Function, arguments: Sequence[Vector], result: SqlType
) -> Vector:
    """A function of arguments with bounds; monotone functions lie between their values at the
    ends."""
    if all(is_known(argument) for argument in arguments):
        return compute([exactly(argument) for argument in arguments], result)
    shown = name.upper()
    is_lost = np.zeros(len(arguments[0]), dtype=np.bool_)
    for argument in arguments:
        is_lost |= is_open(argument)
    if name not in MONOTONE or (result.kind is not Kind.DOUBLE and bool(is_lost.any())):
        raise unsure_value(shown)
    sides = [ends(argument) for argument in arguments]
    low, high = _at_both_ends(shown, compute, sides, result)
    if result.kind is Kind.DOUBLE:
        match = between(low.values, high.values, low.valid)
        assert match.error is not None
        return Vector(DOUBLE, match.values, low.valid, np.where(is_lost, np.inf, match.error))
    if bool(((low.values != high.values) & low.validity()).any()):
        raise unsure_value(shown)
    return low


def _at_both_ends(
    shown: str, compute: Function, sides: Sequence[tuple[Vector, Vector]], result: SqlType
) -> tuple[Vector, Vector]:
    """The function's values at the ends; unsure if it fails at only one of them."""
    vectors: list[Vector] = []
    failed: list[EvaluationError] = []
    for end in (0, 1):
        try:
            vectors.append(compute([side[end] for side in sides], result))
        except EvaluationError as error:
            failed.append(error)
    if not failed:
        return vectors[0], vectors[1]
    if vectors:
        raise unsure_value(shown) from failed[0]
    raise failed[0]


def _at_a_tie() -> NotExactError:
    return NotExactError(
        "A double is rounded at a tie or cast with too many digits, so the result depends on its "
        "text form",
        hint="recapture with `impctl capture`, or keep decimals in the table",
    )


def exactly(vector: Vector) -> Vector:
    """A column whose bounds are all zero, without them."""
    return Vector(vector.type, vector.values, vector.valid)


def rounded_double(vector: Vector, digits: int, *, to_even: bool) -> Vector:
    """ROUND and BROUND of doubles, within a bound if the argument has one."""
    # From 2^53 on doubles are integers.
    least = np.inf if digits < 0 else float(EXACT_DOUBLE)
    has_digits = np.isfinite(vector.values) & (np.abs(vector.values) < least)
    integers, sure = rounded(np.where(has_digits, vector.values, 0.0), digits, to_even=to_even)
    values = np.where(has_digits, _unscaled(integers, digits), vector.values)
    unknown = ~sure & has_digits & vector.validity()
    if vector.error is None:
        if bool(unknown.any()):
            raise _at_a_tie()
        return Vector(DOUBLE, values, vector.valid)
    moves = (vector.error != 0) | unknown
    if not bool(moves.any()):
        return Vector(DOUBLE, values, vector.valid, np.zeros(len(values)))
    low, high = ends(vector)
    first, last = outer(low.values, high.values, digits)
    span = between(_unscaled(first, digits), _unscaled(last, digits), vector.valid)
    assert span.error is not None
    error = np.where(is_open(vector), np.inf, np.where(moves, span.error, 0.0))
    return Vector(DOUBLE, np.where(moves, span.values, values), vector.valid, error)


def _unscaled(integers: Any, digits: int) -> Floats:
    """Integers divided by 10 ** `digits`, rounded once, as Java reads their text."""
    if integers.dtype != np.float64 and magnitude(integers) >= EXACT_DOUBLE:
        unit = 10 ** abs(digits)
        # Python divides integers with one rounding.
        exact = [int(n) / unit if digits >= 0 else float(int(n) * unit) for n in integers]
        return np.array(exact, dtype=np.float64)
    return np.asarray(scaled_by(integers.astype(np.float64), -digits), dtype=np.float64)


def as_decimal(vector: Vector, target: SqlType) -> Vector:
    """Doubles cast to decimals by their texts, rounded half up; NaN and infinities become NULL."""
    if bool(is_open(vector).any()):
        raise unsure_value(f"A cast to {target}")
    valid = vector.validity() & np.isfinite(vector.values)
    moves = np.zeros(len(valid), dtype=np.bool_) if vector.error is None else vector.error != 0
    moves &= valid
    integers, sure = rounded(
        np.where(valid & ~moves, vector.values, 0.0), target.scale, to_even=False
    )
    if bool(moves.any()):
        low, high = ends(vector)
        first, last = outer(low.values, high.values, target.scale)
        # Where these agree they are small.
        agreed = moves & (first == last)
        sure = np.where(moves, agreed, sure)
        integers = np.where(agreed, np.where(agreed, first, 0.0).astype(np.int64), integers)
    if not bool((sure | ~valid).all()):
        raise unsure_value(f"A cast to {target}") if bool(moves.any()) else _at_a_tie()
    return Vector(target, fit_decimals(integers, target), None if bool(valid.all()) else valid)
