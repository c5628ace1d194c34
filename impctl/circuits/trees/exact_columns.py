"""Which columns of a plan are sums of doubles, or made of such, and so known within a bound only.

Law: a column that is not named here is exact, so rows may be looked up by it.
Out of scope: the bounds (`engine`), conditions on such columns (`circuits.plumbing`).
"""

from __future__ import annotations

from collections.abc import Iterable

from impctl.engine import accumulators
from impctl.expr.nodes import Expr, columns_of
from impctl.plan.nodes import (
    Aggregate,
    Attribute,
    Fixpoint,
    Plan,
    Project,
    SetOperation,
    Window,
    attributes_of,
    inputs_of,
)
from impctl.types import AttributeId

_WITH_BOUNDS = frozenset({"sum", "avg", *accumulators.FUNCTIONS})


def bounded_columns(plan: Plan) -> frozenset[AttributeId]:
    """The columns of the plan that have a bound, and maybe some that have none."""
    below = frozenset().union(*(bounded_columns(child) for child in inputs_of(plan)))
    own: Iterable[AttributeId]
    match plan:
        case Project():
            own = (one.attribute.id for one in plan.outputs if columns_of(one.expr) & below)
        case Aggregate():
            keys = ((one.attribute, "", (one.expr,)) for one in plan.keys)
            calls = (
                (one.attribute, one.call.function, _read(one.call.arguments, one.call.condition))
                for one in plan.aggregates
            )
            made = (*keys, *calls)
            own = (a.id for a, function, read in made if _is_bounded(a, function, read, below))
        case Window():
            own = (
                call.attribute.id
                for call in plan.calls
                if _is_bounded(call.attribute, call.function, call.arguments, below)
            )
            return below | frozenset(own)
        case SetOperation() | Fixpoint():
            sides = [attributes_of(side) for side in inputs_of(plan)]
            rows = zip(plan.attributes, *sides, strict=True)
            own = (a.id for a, one, other in rows if {one.id, other.id} & below)
        case _:
            return below
    return frozenset(own)


def _read(arguments: tuple[Expr, ...], condition: Expr | None) -> tuple[Expr, ...]:
    return arguments if condition is None else (*arguments, condition)


def _is_bounded(
    attribute: Attribute, function: str, read: Iterable[Expr], below: frozenset[AttributeId]
) -> bool:
    is_sum = attribute.type is None or attribute.type.is_fractional
    return (function in _WITH_BOUNDS and is_sum) or any(columns_of(e) & below for e in read)
