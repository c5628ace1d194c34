"""Drops columns that are not read.

Law: the bag of rows stays the same over the columns that are kept, and the root keeps all of its
own. Below DISTINCT and set operations every column counts, because all of them decide which rows
are equal; grouping expressions stay for the same reason. So do the columns of a fixpoint that is a
set, as rows that differ in any may derive different ones. UNION ALL does not compare rows: a column
is dropped that neither the query nor the step needs for the others, and each row comes as often as
before. A scan may be left without columns: it still yields its rows. Of whole operators only unread
projections and windows are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

from msgspec.structs import replace

from impctl.expr.nodes import Expr, columns_of
from impctl.plan.nodes import (
    Aggregate,
    Attribute,
    ComputedColumn,
    Distinct,
    Explode,
    Fixpoint,
    Join,
    OneRow,
    Plan,
    Project,
    Recursive,
    Scan,
    Select,
    SetOperation,
    Sort,
    SortKey,
    TopK,
    Window,
    Witness,
    attributes_of,
    expressions_of,
    map_inputs,
    nodes_of,
)
from impctl.plan.recursion import leaves_in
from impctl.types import AttributeId

Needed = frozenset[AttributeId]


def prune_columns(root: Plan) -> Plan:
    """Cut scans and projections down to the columns read above them."""
    return _prune(root, _all(root))


def _all(plan: Plan) -> Needed:
    return frozenset(attribute.id for attribute in attributes_of(plan))


def _read(exprs: Iterable[Expr | None]) -> Needed:
    return frozenset().union(*(columns_of(expr) for expr in exprs if expr is not None))


def _prune(plan: Plan, needed: Needed) -> Plan:
    """The plan yielding at least the needed columns, and no new ones."""
    match plan:
        case Scan():
            kept = tuple(item for item in plan.attributes if item.id in needed)
            return replace(plan, attributes=kept)
        case Select():
            return replace(plan, child=_prune(plan.child, needed | columns_of(plan.predicate)))
        case Project():
            return _project(plan, needed)
        case Join():
            below = needed | _read((plan.condition,))
            return replace(plan, left=_prune(plan.left, below), right=_prune(plan.right, below))
        case Aggregate():
            return _aggregate(plan, needed)
        case Fixpoint() if not plan.is_set:
            return _bag(plan, needed)
        case Distinct() | SetOperation() | Fixpoint() | Recursive() | OneRow():
            return map_inputs(plan, lambda side: _prune(side, _all(side)))
        case Sort():
            return replace(plan, child=_prune(plan.child, needed | _read_order(plan.order)))
        case TopK():
            ranked = () if plan.rank is None else (plan.rank.attribute.id,)
            below = needed.difference(ranked) | _read(plan.partition_by)
            return replace(plan, child=_prune(plan.child, below | _read_order(plan.order)))
        case Explode():
            # Its columns stay: how often a row comes depends on it, read or not.
            below = needed.difference(attribute.id for attribute in plan.made)
            return replace(plan, child=_prune(plan.child, below | columns_of(plan.array)))
        case Window():
            return _window(plan, needed)
        case Witness():
            return replace(plan, child=_prune(plan.child, needed | _read(expressions_of(plan))))
        case _:
            assert_never(plan)


def _read_order(order: Iterable[SortKey]) -> Needed:
    return _read(key.expr for key in order)


def _project(plan: Project, needed: Needed) -> Plan:
    kept = tuple(output for output in plan.outputs if output.attribute.id in needed)
    if not kept and plan.outputs:
        # Only the number of rows matters, and the child has the same.
        return _prune(plan.child, frozenset())
    child = _prune(plan.child, _read(output.expr for output in kept))
    return replace(plan, child=child, outputs=kept)


def _aggregate(plan: Aggregate, needed: Needed) -> Plan:
    kept = tuple(output for output in plan.aggregates if output.attribute.id in needed)
    if not plan.keys and not kept:
        kept = plan.aggregates[:1]
    pruned = replace(plan, aggregates=kept)
    return replace(pruned, child=_prune(plan.child, _read(expressions_of(pruned))))


def _window(plan: Window, needed: Needed) -> Plan:
    kept = tuple(call for call in plan.calls if call.attribute.id in needed)
    below = needed - {call.attribute.id for call in plan.calls}
    below |= _read(expressions_of(replace(plan, calls=kept)))
    child = _prune(plan.child, below)
    return replace(plan, child=child, calls=kept) if kept else child


def _bag(plan: Fixpoint, needed: Needed) -> Plan:
    """The columns that are needed above, and those that the step computes them from; at least
    one."""
    heads, bases = attributes_of(plan.step), attributes_of(plan.base)
    wanted = {place for place, own in enumerate(plan.attributes) if own.id in needed}
    while True:
        places = sorted(wanted)
        step = _prune(plan.step, frozenset(heads[place].id for place in places))
        read = _read_of_leaves(step, plan, [heads[place] for place in places])
        if wanted and read <= wanted:
            break
        wanted |= read or {0}
    base = _prune(plan.base, frozenset(bases[place].id for place in places))
    return replace(
        plan,
        base=_exactly(base, [bases[place] for place in places]),
        step=_exactly(_cut(step, plan, places), [heads[place] for place in places]),
        attributes=tuple(plan.attributes[place] for place in places),
    )


def _read_of_leaves(step: Plan, fixpoint: Fixpoint, outputs: Sequence[Attribute]) -> set[int]:
    """Positions of the fixpoint's columns that the step reads for these outputs."""
    read = {output.id for output in outputs}
    for node in nodes_of(step):
        read |= _read(expressions_of(node))
        if isinstance(node, SetOperation):
            read |= _all(node.left) | _all(node.right)
    return {
        place
        for leaf in leaves_in(step, fixpoint.id)
        for place, attribute in enumerate(leaf.attributes)
        if attribute.id in read
    }


def _cut(step: Plan, fixpoint: Fixpoint, places: Sequence[int]) -> Plan:
    if isinstance(step, Recursive) and step.fixpoint == fixpoint.id:
        return replace(step, attributes=tuple(step.attributes[place] for place in places))
    return map_inputs(step, lambda child: _cut(child, fixpoint, places))


def _exactly(plan: Plan, attributes: Sequence[Attribute]) -> Plan:
    """The plan with exactly these of its columns: here they match by position."""
    if [own.id for own in attributes_of(plan)] == [wanted.id for wanted in attributes]:
        return plan
    return Project(plan, tuple(ComputedColumn(one, one.ref()) for one in attributes))
