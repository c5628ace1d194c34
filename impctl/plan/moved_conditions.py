"""Two plans of one query whose constants moved, held against each other.

Law: where they differ in nothing but conditions right above scans, what moved is rows of these
accesses that meet the one and not the other; everything above sees them as rows that came or went.
Where they differ elsewhere too, in constants of conditions, columns and orders, they have the same
nodes, and what remembers something in the one remembers the same in the other. Where they differ in
anything else, nothing is said.
Out of scope: finding such rows (`compile.session`, `service.clock`), what constants
elsewhere change (`compile.session`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from impctl.data.schema import BOOLEAN
from impctl.expr.nodes import Compare, CompareOp, Expr, Literal, conjuncts, transform
from impctl.plan.nodes import (
    Aggregate,
    AggregateCall,
    Attribute,
    ComputedColumn,
    Fixpoint,
    Join,
    Plan,
    Project,
    Scan,
    Select,
    Sort,
    SortKey,
    TopK,
    inputs_of,
    nodes_of,
    with_inputs,
)
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.types import AccessId

_TRUE = Literal(True, BOOLEAN)
_OPEN = "?"


@dataclass(frozen=True, slots=True)
class MovedConditions:
    """The predicates of the selections above one scan, the lowest first, before and after."""

    before: tuple[Expr, ...]
    after: tuple[Expr, ...]

    @property
    def rows_that_move(self) -> tuple[tuple[Expr, ...], ...]:
        """Conditions such that every row that comes or goes meets all of one of these."""
        before, after = _parts(self.before), _parts(self.after)
        return (*_leaving(before, after), *_leaving(after, before))


def moved_conditions(
    before: Plan, after: Plan, *, is_open_above: bool = False
) -> Mapping[AccessId, MovedConditions] | None:
    """The accesses whose conditions differ; None where more differs.

    With `is_open_above` constants elsewhere may, too, and whole conditions of selections.
    """
    change = _open_above if is_open_above else _as_it_stands
    if _neutral(before, change) != _neutral(after, change):
        return None
    old, new = _stacks(before), _stacks(after)
    return {
        access: MovedConditions(own, new[access])
        for access, own in old.items()
        if own != new[access]
    }


def _is_on_scan(plan: Plan) -> bool:
    while isinstance(plan, Select):
        plan = plan.child
    return isinstance(plan, Scan)


def _neutral(plan: Plan, change: Callable[[Plan], Plan]) -> Plan:
    """The plan with nothing asked in the conditions right above its scans, all else changed so."""
    # What a fixpoint remembers is what constants inside it made.
    below = _as_it_stands if isinstance(plan, Fixpoint) else change
    result = with_inputs(plan, tuple(_neutral(child, below) for child in inputs_of(plan)))
    if isinstance(result, Select) and _is_on_scan(result):
        return replace(result, predicate=_TRUE)
    return change(result)


def _as_it_stands(node: Plan) -> Plan:
    return node


def _open_above(node: Plan) -> Plan:
    """The node with constants left open where they decide about rows, not about what is kept."""
    match node:
        case Select():
            return replace(node, predicate=_TRUE)
        case Project():
            return replace(node, outputs=tuple(_opened_column(o) for o in node.outputs))
        case Join():
            condition = None if node.condition is None else _opened(node.condition)
            return replace(node, condition=condition)
        case Sort() | TopK():
            return replace(node, order=tuple(_opened_key(key) for key in node.order))
        case Aggregate():
            keys = tuple(_opened_column(key) for key in node.keys)
            outputs = tuple(
                replace(o, attribute=_unnamed(o.attribute), call=_opened_call(o.call))
                for o in node.aggregates
            )
            return replace(node, keys=keys, aggregates=outputs)
        case _:
            return node


def _opened_column(column: ComputedColumn) -> ComputedColumn:
    return ComputedColumn(_unnamed(column.attribute), _opened(column.expr))


def _unnamed(attribute: Attribute) -> Attribute:
    """A column without an alias is called as its text is, constants and all."""
    return replace(attribute, name="")


def _opened_key(key: SortKey) -> SortKey:
    return replace(key, expr=_opened(key.expr))


def _opened_call(call: AggregateCall) -> AggregateCall:
    condition = None if call.condition is None else _opened(call.condition)
    return replace(call, arguments=tuple(map(_opened, call.arguments)), condition=condition)


def _opened(expr: Expr) -> Expr:
    """The expression with its constants left open, their types kept, and NULL."""

    def swap(part: Expr) -> Expr | None:
        if not isinstance(part, Literal) or part.value is None:
            return None
        return Literal(_OPEN, part.type)

    return transform(expr, swap)


def _stacks(root: Plan) -> dict[AccessId, tuple[Expr, ...]]:
    """Per access the predicates of the selections right above it, the lowest first."""
    result: dict[AccessId, tuple[Expr, ...]] = {}
    for node in nodes_of(root):
        predicates: list[Expr] = []
        below = node
        while isinstance(below, Select):
            predicates.append(below.predicate)
            below = below.child
        if isinstance(below, Scan):
            # From above: the first of several selections on a scan has the others below it.
            result.setdefault(below.access, tuple(reversed(predicates)))
    return result


def _parts(predicates: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return tuple(part for predicate in predicates for part in conjuncts(predicate))


def _leaving(before: tuple[Expr, ...], after: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], ...]:
    """Conditions of which every row meets all of one that meets all of `before`, not of `after`."""
    failed = [part for part in after if part not in before]
    return tuple((*before, *_failing(part, before)) for part in failed)


def _failing(part: Expr, before: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """What is true of a row that meets `before` and for which `part` is false or NULL.

    Only where `before` says that `part` cannot be NULL is it known to be false.
    """
    if not isinstance(part, Compare) or not _is_constant(part.right):
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


def _is_constant(expr: Expr) -> bool:
    return isinstance(expr, Literal) and expr.value is not None
