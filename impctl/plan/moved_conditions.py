"""Compares two plans of one query with different constants.

Law: if the plans differ only in conditions right above scans, the rows of these accesses that meet
one condition and not the other are inserted or deleted for everything above. If constants elsewhere
differ too, the plans have the same nodes, and the state of a node is state of the other plan's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from impctl.data.schema import BOOLEAN
from impctl.expr.nodes import Compare, CompareOp, Expr, Literal, conjuncts
from impctl.plan import nodes as p
from impctl.plan.properties import scan_predicates

if TYPE_CHECKING:
    from impctl.types import AccessId

_TRUE = Literal(True, BOOLEAN)
_OPEN = "?"


class MovedConditions(Struct, frozen=True):
    """The predicates of the selections above one scan, the lowest first, before and after."""

    before: tuple[Expr, ...]
    after: tuple[Expr, ...]

    @property
    def rows_that_move(self) -> tuple[tuple[Expr, ...], ...]:
        """Conjunctions such that every inserted or deleted row meets one of them."""
        before, after = _parts(self.before), _parts(self.after)
        return (*_leaving(before, after), *_leaving(after, before))


def moved_conditions(
    before: p.Plan, after: p.Plan, *, is_open_above: bool = False
) -> Mapping[AccessId, MovedConditions] | None:
    """The accesses whose conditions differ; None if more differs. With `is_open_above` constants
    elsewhere may differ too, and whole conditions of selections."""
    change = _without_constants if is_open_above else _unchanged
    if _neutral(before, change) != _neutral(after, change):
        return None
    old, new = scan_predicates(before), scan_predicates(after)
    return {
        access: MovedConditions(predicates[::-1], new[access][::-1])
        for access, predicates in old.items()
        if predicates != new[access]
    }


def _is_on_scan(plan: p.Plan) -> bool:
    while isinstance(plan, p.Select):
        plan = plan.child
    return isinstance(plan, p.Scan)


def _neutral(plan: p.Plan, change: Callable[[p.Plan], p.Plan]) -> p.Plan:
    """The plan without the conditions right above its scans; `change` applies to other nodes."""
    # The state of a fixpoint depends on constants inside it.
    below = _unchanged if isinstance(plan, p.Fixpoint) else change
    result = plan.map_inputs(lambda child: _neutral(child, below))
    if isinstance(result, p.Select) and _is_on_scan(result):
        return replace(result, predicate=_TRUE)
    return change(result)


def _unchanged(node: p.Plan) -> p.Plan:
    return node


def _without_constants(node: p.Plan) -> p.Plan:
    """The node without constants that affect its rows but not the form of its state."""
    match node:
        case p.Select():
            return replace(node, predicate=_TRUE)
        case p.Join():
            return node.map(_opened)
        case p.Sort() | p.TopK():
            return replace(node, order=tuple(key.map(_opened) for key in node.order))
        case p.Project() | p.Aggregate():
            return node.map_added(_unnamed).map(_opened)
        case _:
            return node


def _unnamed(attribute: p.Attribute) -> p.Attribute:
    """A column without an alias is named by its text, constants included."""
    return replace(attribute, name="")


def _opened(expr: Expr) -> Expr:
    """The expression without its constants; their types and NULL stay."""

    def swap(part: Expr) -> Expr | None:
        if not isinstance(part, Literal) or part.value is None:
            return None
        return Literal(_OPEN, part.type)

    return expr.transform(swap)


def _parts(predicates: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return tuple(part for predicate in predicates for part in conjuncts(predicate))


def _leaving(before: tuple[Expr, ...], after: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], ...]:
    """Conjunctions: each row that meets `before` but not `after` meets one of them."""
    failed = [part for part in after if part not in before]
    return tuple((*before, *_failing(part, before)) for part in failed)


def _failing(part: Expr, before: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """A condition of rows that meet `before` and for which `part` is not true; none if `part` may
    be NULL."""
    if not isinstance(part, Compare):
        return ()
    if not isinstance(part.right, Literal) or part.right.value is None:
        return ()
    is_known = any(
        isinstance(other, Compare)
        and other.left == part.left
        and other.op is not CompareOp.NULL_SAFE_EQUAL
        for other in before
    )
    opposite = part.op.opposite
    if not is_known or opposite is None:
        return ()
    return (Compare(opposite, part.left, part.right),)
