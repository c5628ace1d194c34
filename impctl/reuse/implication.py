"""Whether one condition implies another, for corresponding rows of two queries.

Law: if `find_gap` returns None, then for every pair of rows related as the columns say, "the
premise is true of the first row" implies "the conclusion is true of the second". Comparisons of one
expression with constants are compared as intervals and sets; other parts must have the same text
and be preserved (`safety.direction`). NULL is not true, so three-valued logic needs no special
case.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from msgspec import Struct, field

from impctl.data.schema import BOOLEAN, DATE, DOUBLE, STRING, TIMESTAMP, TIMESTAMP_NTZ, SqlType
from impctl.expr import nodes as e
from impctl.expr.types import WIDEST_OFFSET, common_type, type_of
from impctl.plan.fingerprint import expr_text, is_same
from impctl.safety.direction import (
    DOWNWARD,
    FALLING,
    RISING,
    UPWARD,
    Columns,
    Relation,
    direction,
    find_objection,
)
from impctl.safety.facts import normalized
from impctl.types import AttributeId

_LOCAL_TIME = re.compile(r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}:\d{2}(\.\d{1,6})?)?")
_EPOCH = datetime(1970, 1, 1)
_DAY = 86_400 * 1_000_000

Rank = tuple[bool, bool | int | float | Decimal | bytes]
"""Sorts as Spark does: NaN last, -0.0 equal to 0.0."""


class Point(Struct, frozen=True):
    """A constant between `low` and `high`; two with the same `text` are the same value. Comparisons
    are true only if they are true in any time zone of the session, in the type in which Spark
    compares the constants with the operand; unsure is False."""

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


def points_of(operand: e.Expr, constants: Sequence[e.Expr]) -> tuple[Point, ...] | None:
    """The constants as comparisons with `operand` order them; None if they share no order. Spark
    casts operand and constant to a common type first. The constants share an order only if that
    cast keeps different ones different, whichever of them the operand is compared with."""
    kind = type_of(operand)
    types = [result for constant in constants if (result := type_of(constant)) is not None]
    if kind is None or len(types) < len(constants) or not _share_an_order(kind, types):
        return None
    points = [_point(constant, kind) for constant in constants]
    known = tuple(point for point in points if point is not None)
    return known if len(known) == len(points) else None


def is_constant(expr: e.Expr) -> bool:
    """Whether it is a literal other than NULL, or a local time in the session's zone."""
    return _point(expr, None) is not None


def _share_an_order(operand: SqlType, constants: Sequence[SqlType]) -> bool:
    if operand.is_numeric and all(constant.is_numeric for constant in constants):
        alike = len(set(constants)) <= 1
        if operand == DOUBLE:
            return True
        if alike and constants[0].is_fractional:
            return True
        if operand.is_fractional or any(constant.is_fractional for constant in constants):
            # Compared with a float, integers are rounded to floats.
            return False
        exact: SqlType | None = operand  # a type with all values unrounded
        for constant in constants:
            exact = None if exact is None else common_type(exact, constant)
        return exact is not None
    if operand in (STRING, BOOLEAN, DATE):
        return all(constant == operand for constant in constants)
    if operand in (TIMESTAMP, TIMESTAMP_NTZ):
        return all(constant in (operand, DATE) for constant in constants)
    return False


def _point(expr: e.Expr, operand: SqlType | None) -> Point | None:
    if isinstance(expr, e.Cast):
        return _local_time(expr)
    if not isinstance(expr, e.Literal) or expr.value is None:
        return None
    value = expr.value
    text = expr_text(expr)
    if isinstance(value, str):
        # UTF8 binary order is the order of bytes.
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


def _local_time(expr: e.Cast) -> Point | None:
    """`TIMESTAMP '...'` without a zone, which depends on the session's time zone."""
    literal = expr.operand
    if expr.type != TIMESTAMP or not isinstance(literal, e.Literal):
        return None
    if not isinstance(literal.value, str) or _LOCAL_TIME.fullmatch(literal.value) is None:
        return None
    try:
        moment = datetime.fromisoformat(literal.value)
    except ValueError:
        return None
    return _around((moment - _EPOCH) // timedelta(microseconds=1), expr_text(expr))


def _around(micros: int, text: str) -> Point:
    """A local time as an instant, known up to the widest offset."""
    return Point((False, micros - WIDEST_OFFSET), (False, micros + WIDEST_OFFSET), text)


Difference = frozenset[AttributeId] | None
"""Columns that alone identify what only the captured plan has; None if more differs."""


def changed_columns(requested: e.Expr | None, captured: e.Expr | None) -> Difference:
    """Columns of the parts of two conjunctions that only one of them has: rows that are equal to a
    grouping on these columns pass such a part both or neither. None if a part may distinguish 0.0
    from -0.0, which are one value to a grouping, or reads no column (`1 > 0`): it passes all rows
    or none, which no column distinguishes."""
    left, right = (
        {expr_text(part): part for part in (() if expr is None else e.conjuncts(expr))}
        for expr in (requested, captured)
    )
    parts = [part for text, part in (*left.items(), *right.items())
             if text not in left or text not in right]  # fmt: skip
    read = [part.columns for part in parts]
    if not all(read) or any(map(_may_see_the_sign_of_zero, parts)):
        return None
    return frozenset[AttributeId]().union(*read)


def _may_see_the_sign_of_zero(expr: e.Expr) -> bool:
    """Whether anything but comparisons, which treat 0.0 and -0.0 as equal, reads a floating-point
    column."""
    is_fractional_cast = isinstance(expr, e.Cast) and expr.type.is_fractional
    if is_fractional_cast or isinstance(
        expr, e.Compare | e.InList | e.IsNull | e.And | e.Or | e.Not
    ):
        return any(map(_may_see_the_sign_of_zero, expr.expressions))
    columns = [part for part in expr.walk() if isinstance(part, e.ColumnRef) and part is not expr]
    return any(part.type is None or part.type.is_fractional for part in columns)


_STRICT = (e.CompareOp.GREATER, e.CompareOp.LESS)


class Restriction(Struct, frozen=True):
    """`operand op constant`; EQUAL means one of the constants, NOT_EQUAL none of them."""

    operand: e.Expr
    op: e.CompareOp
    constants: tuple[e.Expr, ...]


def find_gap(premise: e.Expr, conclusion: e.Expr, columns: Columns) -> e.Expr | None:
    """The first part of the conclusion that the premise does not imply, or None. `columns` relate a
    row of the premise's query to the row of the conclusion's query: AT_MOST means the premise's
    value is NULL, or both are known and it is at most the other."""
    return _ImplicationSearch(columns).gap(normalized(premise), normalized(conclusion))


class _ImplicationSearch(Struct):
    """One search; each pair is judged once, so that the cost is the number of pairs."""

    columns: Columns
    _judged: dict[tuple[int, int], bool] = field(default_factory=dict)

    def gap(self, premise: e.Expr, conclusion: e.Expr) -> e.Expr | None:
        if isinstance(conclusion, e.And):
            gaps = (self.gap(premise, part) for part in conclusion.operands)
            return next((gap for gap in gaps if gap is not None), None)
        return None if self._implies(premise, conclusion) else conclusion

    def _implies(self, premise: e.Expr, conclusion: e.Expr) -> bool:
        pair = id(premise), id(conclusion)
        if pair not in self._judged:
            self._judged[pair] = self._found(premise, conclusion)
        return self._judged[pair]

    def _found(self, premise: e.Expr, conclusion: e.Expr) -> bool:
        if isinstance(conclusion, e.And):
            return all(self._implies(premise, part) for part in conclusion.operands)
        if isinstance(premise, e.Or):
            return all(self._implies(part, conclusion) for part in premise.operands)
        if isinstance(conclusion, e.Or) and any(
            self._implies(premise, part) for part in conclusion.operands
        ):
            return True
        if isinstance(premise, e.And):
            return any(self._implies(part, conclusion) for part in premise.operands)
        return self._of_atoms(premise, conclusion)

    def _of_atoms(self, premise: e.Expr, conclusion: e.Expr) -> bool:
        if is_same(premise, conclusion):
            return find_objection(conclusion, self.columns) is None
        assumed = restriction_of(premise)
        if assumed is None:
            return False
        if isinstance(conclusion, e.Not) and isinstance(conclusion.operand, e.IsNull):
            # A comparison of NULL is not true.
            operand = conclusion.operand.operand
            known = direction(assumed.operand, self.columns) is not Relation.UNKNOWN
            return known and is_same(assumed.operand, operand)
        required = restriction_of(conclusion)
        if required is None or not is_same(assumed.operand, required.operand):
            return False
        points = points_of(required.operand, (*assumed.constants, *required.constants))
        if points is None:
            return False
        count = len(assumed.constants)
        relation = direction(required.operand, self.columns)
        return _follows(assumed.op, points[:count], required.op, points[count:], relation)


def restriction_of(atom: e.Expr) -> Restriction | None:
    """The atom as a comparison of one expression with constants; None for anything else."""
    match atom:
        case e.InList(operand=operand, options=options) if all(map(is_constant, options)):
            return Restriction(operand, e.CompareOp.EQUAL, options)
        case e.Not(operand=e.InList(operand=operand, options=options)) if all(
            map(is_constant, options)
        ):
            return Restriction(operand, e.CompareOp.NOT_EQUAL, options)
        case e.Compare(op=op, left=left, right=right):
            if is_constant(left):
                left, right, op = right, left, op.mirrored
            if not is_constant(right):
                return None
            # With a constant other than NULL, `<=>` is true exactly where `=` is.
            op = e.CompareOp.EQUAL if op is e.CompareOp.NULL_SAFE_EQUAL else op
            return Restriction(left, op, (right,))
    return None


def _follows(
    op: e.CompareOp,
    assumed: tuple[Point, ...],
    required_op: e.CompareOp,
    required: tuple[Point, ...],
    relation: Relation,
) -> bool:
    """Whether `x op given` makes `y wanted_op wanted` true, for x related to y."""
    if required_op in UPWARD or required_op in DOWNWARD:
        upward = required_op in UPWARD
        if relation not in (RISING if upward else FALLING):
            return False
        strict = required_op in _STRICT
        return all(
            _bounds(op, point, required[0], upward=upward, strict=strict) for point in assumed
        )
    if relation is not Relation.EQUAL:
        return False
    if required_op is e.CompareOp.EQUAL:
        return op is e.CompareOp.EQUAL and all(
            any(point.surely_equals(other) for other in required) for point in assumed
        )
    return all(_excludes(op, assumed, other) for other in required)


def _bounds(op: e.CompareOp, point: Point, limit: Point, *, upward: bool, strict: bool) -> bool:
    """Whether `x op point` puts x above the limit (below it, if not `upward`)."""
    if op is not e.CompareOp.EQUAL and op not in (UPWARD if upward else DOWNWARD):
        return False
    if strict and op not in _STRICT:
        return point.surely_above(limit) if upward else limit.surely_above(point)
    return point.surely_at_least(limit) if upward else limit.surely_at_least(point)


def _excludes(op: e.CompareOp, assumed: tuple[Point, ...], other: Point) -> bool:
    """Whether `x op given` excludes x = `other`."""
    if op is e.CompareOp.NOT_EQUAL:
        return any(point.surely_equals(other) for point in assumed)
    if op is e.CompareOp.EQUAL:
        return all(point.surely_differs(other) for point in assumed)
    return all(_bounds(op, point, other, upward=op in UPWARD, strict=True) for point in assumed)
