"""How a value over the sketch compares with the value of the same row over the table.

Law: `AT_MOST` means the value over the sketch is NULL, or both are known and it is at most the one
over the table in Spark's order (NaN greatest); `AT_LEAST` is its mirror. With doubles a step is
taken only where NaN cannot turn the order round: -NaN is NaN, 0 * infinity and infinity - infinity
are NaN.
Out of scope: predicates (`plan.safety.preserved`), aggregates (`plan.safety.grouping`), functions
(`plan.safety.monotone`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from impctl.expr.nodes import (
    Arithmetic,
    ArithmeticOp,
    Call,
    Cast,
    Coalesce,
    ColumnRef,
    CompareOp,
    Expr,
    Negate,
    columns_of,
)
from impctl.expr.types import loses_values, type_of
from impctl.plan.safety.facts import KnownSigns, Signs, may_be_nan
from impctl.plan.safety.monotone import relation_of_call
from impctl.plan.safety.numbers import number_of
from impctl.plan.safety.relation import Relation
from impctl.plan.safety.signs import signs_of
from impctl.types import AttributeId
from impctl.values import dataclass

RISING = (Relation.EQUAL, Relation.AT_MOST)
"""Relations under which a lower bound on the one value holds of the other."""

FALLING = (Relation.EQUAL, Relation.AT_LEAST)
"""Relations under which an upper bound on the one value holds of the other."""

UPWARD = (CompareOp.GREATER, CompareOp.GREATER_EQUAL)
"""Comparisons that a greater left side can only make true."""

DOWNWARD = (CompareOp.LESS, CompareOp.LESS_EQUAL)
"""Comparisons that a lesser left side can only make true."""


@dataclass(frozen=True, slots=True)
class Columns:
    """What is known of a node's columns; a column not named is unknown."""

    relations: Mapping[AttributeId, Relation]
    signs: KnownSigns
    _made: dict[tuple[int, ...], tuple[tuple[object, ...], Columns]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def once(self, make: Callable[[], Columns], *of: object) -> Columns:
        """What `make` makes of these columns with `of`, asked once for the same objects.

        States whose columns are the same differ in much else, as in the keys of their rows.
        """
        # What is kept holds them, so that no other object can come to have one's identity.
        place = tuple([id(part) for part in of])
        known = self._made.get(place)
        if known is None:
            known = self._made[place] = (of, make())
        return known[1]

    def are_equal(self, expr: Expr) -> bool:
        """Whether the expression has the same value over the sketch."""
        return all(
            self.relations.get(column, Relation.UNKNOWN) is Relation.EQUAL
            for column in columns_of(expr)
        )


def direction(expr: Expr, columns: Columns) -> Relation:
    """The expression's relation, from those of its columns."""
    if columns.are_equal(expr):
        return Relation.EQUAL
    match expr:
        case ColumnRef():
            return columns.relations.get(expr.id, Relation.UNKNOWN)
        case Negate():
            return _mirrored(direction(expr.operand, columns), expr.operand, columns)
        case Arithmetic():
            return _of_arithmetic(expr, columns)
        case Cast():
            source = type_of(expr.operand)
            if source is None or not (source.is_numeric and expr.type.is_numeric):
                return Relation.UNKNOWN
            # NULL over the table is neither at most nor at least what it is over the sketch.
            if loses_values(source, expr.type):
                return Relation.UNKNOWN
            return direction(expr.operand, columns)
        case Coalesce():
            return _of_coalesce(expr, columns)
        case Call():
            return relation_of_call(
                expr, lambda x: (direction(x, columns), signs_of(x, columns.signs))
            )
        case _:
            return Relation.UNKNOWN


def _mirrored(relation: Relation, operand: Expr, columns: Columns) -> Relation:
    if relation is Relation.EQUAL:
        return relation
    if may_be_nan(type_of(operand), signs_of(operand, columns.signs)):
        return Relation.UNKNOWN
    return relation.mirrored


def _of_arithmetic(expr: Arithmetic, columns: Columns) -> Relation:
    result = type_of(expr)
    if result is None or not result.is_numeric:
        return Relation.UNKNOWN
    match expr.op:
        case ArithmeticOp.ADD | ArithmeticOp.SUBTRACT:
            return _of_sum(expr, columns)
        case ArithmeticOp.MULTIPLY:
            left, right = number_of(expr.left), number_of(expr.right)
            if right is not None:
                return _scaled(expr, expr.left, right < 0, right == 0, columns)
            if left is not None:
                return _scaled(expr, expr.right, left < 0, left == 0, columns)
            return Relation.UNKNOWN
        case ArithmeticOp.DIVIDE:
            divisor = number_of(expr.right)
            if divisor is None or divisor == 0:
                return Relation.UNKNOWN
            return _scaled(expr, expr.left, divisor < 0, False, columns)
        case ArithmeticOp.INTEGER_DIVIDE | ArithmeticOp.REMAINDER:
            return Relation.UNKNOWN


def _of_sum(expr: Arithmetic, columns: Columns) -> Relation:
    left, right = direction(expr.left, columns), direction(expr.right, columns)
    signs_left, signs_right = (signs_of(part, columns.signs) for part in (expr.left, expr.right))
    if expr.op is ArithmeticOp.SUBTRACT:
        right = _mirrored(right, expr.right, columns)
        signs_right = Signs(signs_right.nonpositive, signs_right.nonnegative)
    if not _infinities_agree(expr, signs_left, signs_right):
        return Relation.UNKNOWN
    return left.meet(right)


def _infinities_agree(expr: Arithmetic, left: Signs, right: Signs) -> bool:
    """Whether infinity - infinity, hence a new NaN, cannot arise over table or sketch."""
    result = type_of(expr)
    if result is not None and not result.is_fractional:
        return True
    if any(_is_finite(part) for part in (expr.left, expr.right)):
        return True
    up = left.nonnegative and right.nonnegative
    return up or (left.nonpositive and right.nonpositive)


def _is_finite(expr: Expr) -> bool:
    result = type_of(expr)
    by_type = result is not None and result.is_numeric and not result.is_fractional
    return by_type or number_of(expr) is not None


def _scaled(
    expr: Arithmetic, operand: Expr, is_negative: bool, is_zero: bool, columns: Columns
) -> Relation:
    result = type_of(expr)
    if is_zero and (result is None or result.is_fractional):
        return Relation.UNKNOWN
    relation = direction(operand, columns)
    return _mirrored(relation, operand, columns) if is_negative else relation


def _of_coalesce(expr: Coalesce, columns: Columns) -> Relation:
    """`coalesce(x, c)`: a NULL over the sketch becomes c, so c must lie on the right side of x."""
    if len(expr.operands) != 2:
        return Relation.UNKNOWN
    operand, default = expr.operands
    number, relation = number_of(default), direction(operand, columns)
    signs, result = signs_of(operand, columns.signs), type_of(operand)
    if number is None or result is None or not result.is_numeric:
        return Relation.UNKNOWN
    low = relation is Relation.AT_MOST and signs.nonnegative and number <= 0
    high = relation is Relation.AT_LEAST and signs.nonpositive and number >= 0
    return relation if signs.not_null or low or high else Relation.UNKNOWN
