"""Constants of conditions, compared as the condition would compare them.

Law: `surely_at_least` and `surely_above` hold only if, in the type in which Spark compares either
constant with the operand, the one value is at least (or above) the other whatever the session's
time zone; unsure is False. NaN is the greatest value and equal to itself, -0.0 equals 0.0.
Out of scope: what follows for conditions (`plan.reuse.implication`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from impctl.data.schema import BOOLEAN, DATE, DOUBLE, STRING, TIMESTAMP, TIMESTAMP_NTZ, SqlType
from impctl.expr.nodes import Cast, Expr, Literal
from impctl.expr.types import WIDEST_OFFSET, common_type, type_of
from impctl.plan.fingerprint import expr_text
from impctl.values import dataclass

_LOCAL_TIME = re.compile(r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}:\d{2}(\.\d{1,6})?)?")
_EPOCH = datetime(1970, 1, 1)
_DAY = 86_400 * 1_000_000

Rank = tuple[bool, bool | int | float | Decimal | bytes]
"""Sorts as Spark sorts: NaN last."""


@dataclass(frozen=True, slots=True)
class Point:
    """A constant somewhere from `low` to `high`; two of the same `text` are the same value."""

    low: Rank
    high: Rank
    text: str

    def surely_at_least(self, other: Point) -> bool:
        return self.text == other.text or self.low >= other.high

    def surely_above(self, other: Point) -> bool:
        return self.low > other.high

    def surely_equals(self, other: Point) -> bool:
        return self.surely_at_least(other) and other.surely_at_least(self)

    def surely_differs(self, other: Point) -> bool:
        return self.surely_above(other) or other.surely_above(self)


def points_of(operand: Expr, constants: Sequence[Expr]) -> tuple[Point, ...] | None:
    """The constants in one order, that of their comparison with `operand`; None if there is none.

    Spark casts operand and constant to a common type first. The constants share an order only
    where that cast keeps different ones apart, whichever of them the operand is compared with.
    """
    kind = type_of(operand)
    result = [type_of(constant) for constant in constants]
    types = [item for item in result if item is not None]
    if kind is None or len(types) < len(result) or not _share_an_order(kind, types):
        return None
    points = [_point(constant, kind) for constant in constants]
    known = tuple(point for point in points if point is not None)
    return known if len(known) == len(points) else None


def is_constant(expr: Expr) -> bool:
    """A literal that is not NULL, or a local time still to be read in the session's time zone."""
    return _point(expr, None) is not None


def _share_an_order(operand: SqlType, constants: Sequence[SqlType]) -> bool:
    if operand.is_numeric and all(constant.is_numeric for constant in constants):
        alike = len(set(constants)) <= 1
        if operand == DOUBLE:
            return True
        if alike and constants[0].is_fractional:
            return True
        if operand.is_fractional or any(constant.is_fractional for constant in constants):
            # Compared with a float, whole numbers are rounded to floats.
            return False
        return _exact_type(operand, constants) is not None
    if operand in (STRING, BOOLEAN, DATE):
        return all(constant == operand for constant in constants)
    if operand in (TIMESTAMP, TIMESTAMP_NTZ):
        return all(constant in (operand, DATE) for constant in constants)
    return False


def _exact_type(operand: SqlType, constants: Sequence[SqlType]) -> SqlType | None:
    """A type that holds the operand and all constants without rounding."""
    result: SqlType | None = operand
    for constant in constants:
        result = None if result is None else common_type(result, constant)
    return result


def _point(expr: Expr, operand: SqlType | None) -> Point | None:
    if isinstance(expr, Cast):
        return _local_time(expr)
    if not isinstance(expr, Literal) or expr.value is None:
        return None
    value = expr.value
    text = expr_text(expr)
    if isinstance(value, str):
        # UTF8 binary order is that of the bytes.
        value = value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return Point((False, value), (False, value), text)
    if expr.type == DATE and operand == TIMESTAMP:
        return _around(int(value) * _DAY, text)
    if expr.type == DATE and operand == TIMESTAMP_NTZ:
        value = int(value) * _DAY
    if operand == DOUBLE:
        value = float(value)
    is_nan = math.isnan(value)
    rank: Rank = (is_nan, 0 if is_nan else value)
    return Point(rank, rank, text)


def _local_time(expr: Cast) -> Point | None:
    """`TIMESTAMP '...'` without a zone, which means what the session's time zone makes of it."""
    literal = expr.operand
    if expr.type != TIMESTAMP or not isinstance(literal, Literal):
        return None
    if not isinstance(literal.value, str) or _LOCAL_TIME.fullmatch(literal.value) is None:
        return None
    try:
        moment = datetime.fromisoformat(literal.value)
    except ValueError:
        return None
    return _around((moment - _EPOCH) // timedelta(microseconds=1), expr_text(expr))


def _around(micros: int, text: str) -> Point:
    """A local time as an instant: known up to the offset, so that order may be lost nearby."""
    return Point((False, micros - WIDEST_OFFSET), (False, micros + WIDEST_OFFSET), text)
