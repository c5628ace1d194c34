"""Predicates with NOT pushed down to the atoms.

Law: the result is true on exactly the same rows (three-valued logic); it may differ only in where
it is false and where NULL, which no filter tells apart.
Out of scope: simplification.
"""

from __future__ import annotations

from impctl.expr.nodes import And, Compare, Expr, Literal, Not, Or


def normalised(predicate: Expr) -> Expr:
    """The predicate in negation normal form."""
    match predicate:
        case And():
            return And(tuple(normalised(p) for p in predicate.operands), span=predicate.span)
        case Or():
            return Or(tuple(normalised(p) for p in predicate.operands), span=predicate.span)
        case Not():
            return _negated(predicate.operand, predicate)
        case _:
            return predicate


def _negated(predicate: Expr, whole: Not) -> Expr:
    match predicate:
        case And():
            parts = tuple(_negated(p, Not(p, span=p.span)) for p in predicate.operands)
            return Or(parts, span=whole.span)
        case Or():
            parts = tuple(_negated(p, Not(p, span=p.span)) for p in predicate.operands)
            return And(parts, span=whole.span)
        case Not():
            return normalised(predicate.operand)
        case Compare() if (opposite := predicate.op.opposite) is not None:
            return Compare(opposite, predicate.left, predicate.right, span=whole.span)
        case Literal(value=bool() as value):
            return Literal(not value, predicate.type, span=whole.span)
        case _:
            return whole
