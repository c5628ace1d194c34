"""Whether one condition implies another, for rows of two queries that belong together.

Law: if `find_gap` finds none, then for every pair of rows related as the columns say, "the premise
is true of the first row" implies "the conclusion is true of the second". Comparisons of one
expression with constants are reckoned as intervals and sets; all else must be the same text and be
preserved (`plan.safety.preserved`). A condition that is NULL is not true, so three-valued logic
needs no case of its own: only what makes a condition true counts.
Out of scope: which rows belong together (`plan.reuse.verdict`).
"""

from __future__ import annotations

from dataclasses import field

from impctl.expr.nodes import And, Compare, CompareOp, Expr, InList, IsNull, Not, Or
from impctl.plan.fingerprint import is_same
from impctl.plan.reuse.constants import Point, is_constant, points_of
from impctl.plan.safety.direction import DOWNWARD, FALLING, RISING, UPWARD, Columns, direction
from impctl.plan.safety.normal_form import normalised
from impctl.plan.safety.preserved import find_objection
from impctl.plan.safety.relation import Relation
from impctl.values import dataclass

_STRICT = (CompareOp.GREATER, CompareOp.LESS)


@dataclass(frozen=True, slots=True)
class Restriction:
    """`operand op constant`; EQUAL means one of the constants, NOT_EQUAL none of them."""

    operand: Expr
    op: CompareOp
    constants: tuple[Expr, ...]


def find_gap(premise: Expr, conclusion: Expr, columns: Columns) -> Expr | None:
    """The first part of the conclusion that the premise leaves open; None where it implies all.

    `columns` relate a row of the premise's query to the row of the conclusion's query: AT_MOST
    means the premise's value is NULL, or both are known and it is at most the other.
    """
    return _Search(columns).gap(normalised(premise), normalised(conclusion))


@dataclass(slots=True)
class _Search:
    """One search; pairs are judged once, so that nesting costs their number and no more."""

    columns: Columns
    _judged: dict[tuple[int, int], bool] = field(default_factory=dict)

    def gap(self, premise: Expr, conclusion: Expr) -> Expr | None:
        if isinstance(conclusion, And):
            gaps = (self.gap(premise, part) for part in conclusion.operands)
            return next((gap for gap in gaps if gap is not None), None)
        return None if self._implies(premise, conclusion) else conclusion

    def _implies(self, premise: Expr, conclusion: Expr) -> bool:
        pair = id(premise), id(conclusion)
        if pair not in self._judged:
            self._judged[pair] = self._found(premise, conclusion)
        return self._judged[pair]

    def _found(self, premise: Expr, conclusion: Expr) -> bool:
        if isinstance(conclusion, And):
            return all(self._implies(premise, part) for part in conclusion.operands)
        if isinstance(premise, Or):
            return all(self._implies(part, conclusion) for part in premise.operands)
        if isinstance(conclusion, Or) and any(
            self._implies(premise, part) for part in conclusion.operands
        ):
            return True
        if isinstance(premise, And):
            return any(self._implies(part, conclusion) for part in premise.operands)
        return self._of_atoms(premise, conclusion)

    def _of_atoms(self, premise: Expr, conclusion: Expr) -> bool:
        if is_same(premise, conclusion):
            return find_objection(conclusion, self.columns) is None
        asked = restriction_of(premise)
        if asked is None:
            return False
        if isinstance(conclusion, Not) and isinstance(conclusion.operand, IsNull):
            # A comparison that is true had a value to compare.
            operand = conclusion.operand.operand
            known = direction(asked.operand, self.columns) is not Relation.UNKNOWN
            return known and is_same(asked.operand, operand)
        wanted = restriction_of(conclusion)
        if wanted is None or not is_same(asked.operand, wanted.operand):
            return False
        points = points_of(wanted.operand, (*asked.constants, *wanted.constants))
        if points is None:
            return False
        count = len(asked.constants)
        relation = direction(wanted.operand, self.columns)
        return _follows(asked.op, points[:count], wanted.op, points[count:], relation)


def restriction_of(atom: Expr) -> Restriction | None:
    """The atom as a comparison of one expression with constants; None for anything else."""
    match atom:
        case InList(operand=operand, options=options) if all(map(is_constant, options)):
            return Restriction(operand, CompareOp.EQUAL, options)
        case Not(operand=InList(operand=operand, options=options)) if all(
            map(is_constant, options)
        ):
            return Restriction(operand, CompareOp.NOT_EQUAL, options)
        case Compare(op=op, left=left, right=right):
            if is_constant(left):
                left, right, op = right, left, op.mirrored
            if not is_constant(right):
                return None
            # With a constant that is not NULL, `<=>` is true exactly where `=` is.
            op = CompareOp.EQUAL if op is CompareOp.NULL_SAFE_EQUAL else op
            return Restriction(left, op, (right,))
    return None


def _follows(
    op: CompareOp,
    given: tuple[Point, ...],
    wanted_op: CompareOp,
    wanted: tuple[Point, ...],
    relation: Relation,
) -> bool:
    """Whether `x op given` makes `y wanted_op wanted` true, for x related to y."""
    if wanted_op in UPWARD or wanted_op in DOWNWARD:
        upward = wanted_op in UPWARD
        if relation not in (RISING if upward else FALLING):
            return False
        strict = wanted_op in _STRICT
        return all(_bounds(op, point, wanted[0], upward=upward, strict=strict) for point in given)
    if relation is not Relation.EQUAL:
        return False
    if wanted_op is CompareOp.EQUAL:
        return op is CompareOp.EQUAL and all(
            any(point.surely_equals(other) for other in wanted) for point in given
        )
    return all(_excludes(op, given, other) for other in wanted)


def _bounds(op: CompareOp, point: Point, limit: Point, *, upward: bool, strict: bool) -> bool:
    """Whether `x op point` puts x above the limit (below it, if not `upward`)."""
    if op is not CompareOp.EQUAL and op not in (UPWARD if upward else DOWNWARD):
        return False
    if strict and op not in _STRICT:
        return point.surely_above(limit) if upward else limit.surely_above(point)
    return point.surely_at_least(limit) if upward else limit.surely_at_least(point)


def _excludes(op: CompareOp, given: tuple[Point, ...], other: Point) -> bool:
    """Whether `x op given` keeps x from being `other`."""
    if op is CompareOp.NOT_EQUAL:
        return any(point.surely_equals(other) for point in given)
    if op is CompareOp.EQUAL:
        return all(point.surely_differs(other) for point in given)
    return all(_bounds(op, point, other, upward=op in UPWARD, strict=True) for point in given)
