"""Conditions that a row cannot pass over the sketch without passing over the table.

Law: if `find_objection` finds none, then "true over the sketch" implies "true over the table" for
every pair of rows related as the columns say.
Out of scope: rows that pass over the table only; containment allows those.
"""

from __future__ import annotations

from decimal import Decimal

from impctl.data.schema import Kind
from impctl.expr.nodes import And, Compare, CompareOp, Expr, InList, IsNull, Like, Literal, Not, Or
from impctl.expr.types import common_type, type_of
from impctl.plan.safety.direction import DOWNWARD, FALLING, RISING, UPWARD, Columns, direction
from impctl.plan.safety.normal_form import normalised
from impctl.plan.safety.numbers import number_of
from impctl.plan.safety.relation import Relation
from impctl.plan.safety.signs import signs_of
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Objection:
    """The part of a condition that a sketch could make true, and the value behind it."""

    atom: Expr
    operand: Expr
    relation: Relation


def find_objection(predicate: Expr, columns: Columns) -> Objection | None:
    """The first part that is not preserved; None when the whole condition is."""
    return _objection(normalised(predicate), columns)


def _objection(predicate: Expr, columns: Columns) -> Objection | None:
    if columns.are_equal(predicate):
        return None
    match predicate:
        case And() | Or():
            result = (_objection(part, columns) for part in predicate.operands)
            return next((objection for objection in result if objection is not None), None)
        case Compare():
            return _of_comparison(predicate, columns)
        case Not(operand=IsNull(operand=operand)):
            relation = direction(operand, columns)
            is_open = relation is Relation.UNKNOWN
            return Objection(predicate, operand, relation) if is_open else None
        case IsNull() | InList() | Like():
            relation = direction(predicate.operand, columns)
            return Objection(predicate, predicate.operand, relation)
        case Not(operand=IsNull() | InList() | Like() as atom):
            return Objection(atom, atom.operand, direction(atom.operand, columns))
        case Not(operand=operand):
            return _of_truth(predicate, operand, columns, FALLING)
        case _:
            return _of_truth(predicate, predicate, columns, RISING)


def _of_truth(
    atom: Expr, operand: Expr, columns: Columns, allowed: tuple[Relation, ...]
) -> Objection | None:
    """A bare BOOLEAN value, where false < true; of a number a lesser one may be the true one."""
    kind = type_of(operand)
    is_truth = kind is not None and kind.kind is Kind.BOOLEAN
    relation = direction(operand, columns) if is_truth else Relation.UNKNOWN
    return None if relation in allowed else Objection(atom, operand, relation)


def _of_comparison(atom: Compare, columns: Columns) -> Objection | None:
    if _is_at_an_end(atom, columns):
        return None
    sides = ((atom.left, atom.op in UPWARD), (atom.right, atom.op in DOWNWARD))
    ordered = atom.op in UPWARD or atom.op in DOWNWARD
    comparable = _share_an_order(atom)
    for operand, grows in sides:
        relation = direction(operand, columns)
        allowed = RISING if grows else FALLING
        if relation is Relation.EQUAL or (ordered and comparable and relation in allowed):
            continue
        return Objection(atom, operand, relation)
    return None


def _is_at_an_end(atom: Compare, columns: Columns) -> bool:
    """`x = c` or `x <> c` with the constant at an end of what x can be: then it is `x >= c` or so.

    `MAX(CASE WHEN p THEN 1 ELSE 0 END) = 1`, `COUNT(*) <> 0`: what is at most 1, and at most what
    it is over the table, is 1 there if it is 1 here.
    """
    if atom.op not in (CompareOp.EQUAL, CompareOp.NOT_EQUAL):
        return False
    for operand, other in ((atom.left, atom.right), (atom.right, atom.left)):
        ends = _ends(operand, other, columns)
        if ends is None:
            continue
        relation = direction(operand, columns)
        (low, high), number = ends
        is_top, is_bottom = high <= number, low >= number
        if atom.op is CompareOp.NOT_EQUAL:
            is_top, is_bottom = is_bottom, is_top
        if (is_top and relation in RISING) or (is_bottom and relation in FALLING):
            return True
    return False


def _ends(
    operand: Expr, other: Expr, columns: Columns
) -> tuple[tuple[Decimal, Decimal], Decimal] | None:
    """The interval of the operand's values and the constant beside it; false is 0, true is 1."""
    result, beside = type_of(operand), type_of(other)
    if result is None or beside is None:
        return None
    if result.kind is beside.kind is Kind.BOOLEAN and isinstance(other, Literal):
        truth = other.value
        return None if truth is None else ((Decimal(0), Decimal(1)), Decimal(bool(truth)))
    number = number_of(other)
    if number is None or not result.is_numeric or common_type(result, beside) is None:
        return None
    return signs_of(operand, columns.signs).bounds, number


def _share_an_order(atom: Compare) -> bool:
    """Whether the comparison's order is that of either side's own type."""
    left, right = type_of(atom.left), type_of(atom.right)
    if left is None or right is None or Kind.OTHER in (left.kind, right.kind):
        return False
    if left == right or (left.is_numeric and right.is_numeric):
        return True
    # A date becomes midnight, which keeps its order; between the two kinds of timestamp a time
    # zone that skips an hour would not.
    kinds = {left.kind, right.kind}
    return Kind.DATE in kinds and bool(kinds & {Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ})
