"""Filters on a rank turned into top-k per partition.

Law: the bag of rows stays the same. `rank <= k` (also `<`, `=`, either way round) directly above a
window of nothing but one row_number, rank or dense_rank is a TopK with that rank; what else the
predicate asks for stays above it. A rank starts at 1, so `rank = c` is `rank <= c` and more.
Out of scope: other window functions, several calls in one window.
"""

from __future__ import annotations

from dataclasses import replace

from impctl.expr.nodes import And, Call, Expr, columns_of, conjuncts, walk
from impctl.plan.functions import VOLATILE
from impctl.plan.nodes import Plan, Select, TopK, Window, inputs_of, with_inputs
from impctl.plan.safety.ordering import rank_bound

_RANKING = frozenset({"row_number", "rank", "dense_rank"})


def rank_limits(root: Plan) -> Plan:
    """The plan with every filter on a rank as a top-k."""
    inputs = inputs_of(root)
    plan = with_inputs(root, tuple(rank_limits(child) for child in inputs)) if inputs else root
    if isinstance(plan, Select) and isinstance(plan.child, Window):
        return _limited(plan, plan.child)
    return plan


def _limited(plan: Select, window: Window) -> Plan:
    call = window.calls[0]
    if len(window.calls) != 1 or call.function not in _RANKING or call.frame is not None:
        return plan
    if not any(columns_of(key.expr) for key in call.order) or _is_volatile(plan.predicate):
        return plan
    parts = conjuncts(plan.predicate)
    bounds = [rank_bound(part, call.attribute.id) for part in parts]
    counts = [bound.count for bound in bounds if bound is not None]
    if not counts:
        return plan
    top = TopK(window.child, call.order, min(counts), rank=call, span=plan.span)
    pairs = zip(parts, bounds, strict=True)
    rest = tuple(part for part, bound in pairs if bound is None or not bound.is_all)
    if not rest:
        return top
    return replace(plan, child=top, predicate=rest[0] if len(rest) == 1 else And(rest))


def _is_volatile(predicate: Expr) -> bool:
    return any(isinstance(part, Call) and part.name in VOLATILE for part in walk(predicate))
