"""Conditions that every side of an OR asks for, put beside it.

Law: the bag of rows stays the same. `(a AND b) OR (a AND c)` is `a AND (b OR c)` in three-valued
logic too; what can fail stays where it is, because a part before it may guard it. Without this an
equality of two tables inside an OR joins each row with each.
Out of scope: parts that follow from the sides without standing in them.
"""

from __future__ import annotations

from dataclasses import replace

from impctl.expr.nodes import And, Compare, CompareOp, Expr, Or, conjuncts
from impctl.plan.can_fail import can_fail
from impctl.plan.nodes import Join, Plan, Select, inputs_of, with_inputs


def common_parts(root: Plan) -> Plan:
    """The plan with every condition's common parts beside its ORs."""
    inputs = inputs_of(root)
    plan = with_inputs(root, tuple(common_parts(child) for child in inputs)) if inputs else root
    match plan:
        case Select():
            result = _factored(plan.predicate)
            return plan if result is plan.predicate else replace(plan, predicate=result)
        case Join(condition=condition) if condition is not None and not plan.null_aware:
            result = _factored(condition)
            return plan if result is condition else replace(plan, condition=result)
    return plan


def _factored(predicate: Expr) -> Expr:
    """The predicate with common parts beside each OR of it; itself where there are none."""
    parts = conjuncts(predicate)
    result = tuple(piece for part in parts for piece in _beside(part))
    return predicate if result == parts else And(result, span=predicate.span)


def _beside(part: Expr) -> tuple[Expr, ...]:
    if not isinstance(part, Or):
        return (part,)
    sides = [conjuncts(side) for side in _sides(part)]
    known = [{_key(piece) for piece in side} for side in sides[1:]]
    common = {
        _key(piece): piece
        for piece in sides[0]
        if all(_key(piece) in keys for keys in known) and not can_fail(piece)
    }
    if not common:
        return (part,)
    rests = [tuple(piece for piece in side if _key(piece) not in common) for side in sides]
    pieces = tuple(common.values())
    if not all(rests):
        # One side asks for nothing more, so whatever else the others ask for is idle.
        return pieces
    left = tuple(rest[0] if len(rest) == 1 else And(rest) for rest in rests)
    return (*pieces, Or(left, span=part.span))


def _sides(part: Expr) -> tuple[Expr, ...]:
    if not isinstance(part, Or):
        return (part,)
    return tuple(side for operand in part.operands for side in _sides(operand))


def _key(piece: Expr) -> Expr | frozenset[Expr]:
    """What makes a part the same as another: of an equality its sides, either way round."""
    if isinstance(piece, Compare) and piece.op is CompareOp.EQUAL:
        return frozenset({piece.left, piece.right})
    return piece
