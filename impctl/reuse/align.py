"""Two plans of one shape brought to the same column identities, so that nodes can be compared.

Law: `aligned` keeps the plan's meaning and changes identities only; it answers None where the
plans differ in operators, tables, or the number of columns anywhere, hence are no instances of one
template. Out of scope: comparing what the nodes say (`reuse.verdict`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, assert_never

from impctl.expr.nodes import ColumnRef, Expr, transform
from impctl.plan.nodes import (
    Aggregate,
    AggregateCall,
    AggregateOutput,
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
    WindowCall,
    Witness,
    attributes_of,
    inputs_of,
    nodes_of,
    scans_of,
    with_inputs,
)
from impctl.types import AccessId, AttributeId, FixpointId

Names = Mapping[AttributeId, AttributeId]


def aligned(plan: Plan, model: Plan) -> Plan | None:
    """The plan with the column and access identities of `model`; None where shapes differ."""
    names: dict[AttributeId, AttributeId] = {}
    nodes, models = list(nodes_of(plan)), list(nodes_of(model))
    if len(nodes) != len(models):
        return None
    for node, other in zip(nodes, models, strict=True):
        if not _is_alike(node, other):
            return None
        own, theirs = list(_made(node)), list(_made(other))
        if len(own) != len(theirs):
            return None
        for left, right in zip(own, theirs, strict=True):
            names[left.id] = right.id
    fixpoints = _fixpoints_between(nodes, models)
    if fixpoints is None:
        return None
    return _Renaming(names, accesses_between(plan, model), fixpoints).plan(plan)


def accesses_between(plan: Plan, model: Plan) -> dict[AccessId, AccessId]:
    """For plans of one shape: the access of `model` that each access of `plan` stands for."""
    pairs = zip(scans_of(plan), scans_of(model), strict=True)
    return {scan.access: other.access for scan, other in pairs}


def _fixpoints_between(
    nodes: Sequence[Plan], models: Sequence[Plan]
) -> dict[FixpointId, FixpointId] | None:
    """The model's fixpoint for each, by nodes of one kind; None where not one stands for one."""
    pairs: dict[FixpointId, FixpointId] = {}
    for node, other in zip(nodes, models, strict=True):
        match node, other:
            case Recursive(), Recursive():
                own, theirs = node.fixpoint, other.fixpoint
            case Fixpoint(), Fixpoint():
                own, theirs = node.id, other.id
            case _:
                continue
        if pairs.setdefault(own, theirs) != theirs:
            return None
    return pairs if len(set(pairs.values())) == len(pairs) else None


def _is_alike(node: Plan, other: Plan) -> bool:
    if type(node) is not type(other) or len(inputs_of(node)) != len(inputs_of(other)):
        return False
    if isinstance(node, Scan) and isinstance(other, Scan):
        names = [attribute.name.lower() for attribute in node.attributes]
        return node.table.lower() == other.table.lower() and names == [
            attribute.name.lower() for attribute in other.attributes
        ]
    return True


def _made(node: Plan) -> Iterable[Attribute]:
    """The columns that a node makes, in order."""
    match node:
        case Scan() | SetOperation() | Recursive() | Fixpoint():
            return node.attributes
        case Project():
            return (output.attribute for output in node.outputs)
        case Aggregate():
            return attributes_of(node)
        case Window():
            return (call.attribute for call in node.calls)
        case Explode():
            return node.made
        case TopK():
            return () if node.rank is None else (node.rank.attribute,)
        case Select() | Join() | Distinct() | Sort() | Witness() | OneRow():
            return ()
        case _:
            assert_never(node)


_Made = TypeVar("_Made", ComputedColumn, AggregateOutput, WindowCall)


class _Renaming:
    """Renames columns and accesses throughout a plan."""

    def __init__(
        self,
        names: Names,
        accesses: Mapping[AccessId, AccessId],
        fixpoints: Mapping[FixpointId, FixpointId],
    ) -> None:
        self._names = names
        self._accesses = accesses
        self._fixpoints = fixpoints

    def plan(self, node: Plan) -> Plan:
        inputs = tuple(self.plan(child) for child in inputs_of(node))
        return self._own(with_inputs(node, inputs))

    def _own(self, node: Plan) -> Plan:
        match node:
            case Scan():
                return replace(
                    node,
                    access=self._accesses[node.access],
                    attributes=tuple(self._attribute(a) for a in node.attributes),
                )
            case Select():
                return replace(node, predicate=self._expr(node.predicate))
            case Project():
                outputs = (replace(o, expr=self._expr(o.expr)) for o in node.outputs)
                return replace(node, outputs=tuple(self._labelled(o) for o in outputs))
            case Join():
                return replace(node, condition=self._optional(node.condition))
            case Aggregate():
                keys = (replace(key, expr=self._expr(key.expr)) for key in node.keys)
                calls = (replace(o, call=self._call(o.call)) for o in node.aggregates)
                return replace(
                    node,
                    keys=tuple(self._labelled(key) for key in keys),
                    aggregates=tuple(self._labelled(o) for o in calls),
                )
            case SetOperation():
                return replace(node, attributes=tuple(self._attribute(a) for a in node.attributes))
            case Sort():
                return replace(node, order=self._order(node.order))
            case TopK():
                rank = None if node.rank is None else self._labelled(self._window(node.rank))
                return replace(node, order=self._order(node.order), rank=rank)
            case Window():
                calls_ = (self._window(call) for call in node.calls)
                return replace(node, calls=tuple(self._labelled(call) for call in calls_))
            case Witness():
                parts = tuple(self._expr(part) for part in node.partition_by)
                orders = tuple(self._order(order) for order in node.orders)
                return replace(node, partition_by=parts, orders=orders)
            case Explode():
                made = tuple(self._attribute(attribute) for attribute in node.made)
                return replace(node, array=self._expr(node.array), made=made)
            case Recursive() | Fixpoint():
                return self._recursion(node)
            case Distinct() | OneRow():
                return node
            case _:
                assert_never(node)

    def _recursion(self, node: Recursive | Fixpoint) -> Plan:
        made = tuple(self._attribute(attribute) for attribute in node.attributes)
        if isinstance(node, Recursive):
            return replace(node, fixpoint=self._fixpoints[node.fixpoint], attributes=made)
        return replace(node, id=self._fixpoints[node.id], attributes=made)

    def _attribute(self, attribute: Attribute) -> Attribute:
        return replace(attribute, id=self._names[attribute.id])

    def _labelled(self, made: _Made) -> _Made:
        return replace(made, attribute=self._attribute(made.attribute))

    def _call(self, call: AggregateCall) -> AggregateCall:
        arguments = tuple(self._expr(argument) for argument in call.arguments)
        return replace(call, arguments=arguments, condition=self._optional(call.condition))

    def _window(self, call: WindowCall) -> WindowCall:
        return replace(
            call,
            arguments=tuple(self._expr(part) for part in call.arguments),
            partition_by=tuple(self._expr(part) for part in call.partition_by),
            order=self._order(call.order),
        )

    def _order(self, order: tuple[SortKey, ...]) -> tuple[SortKey, ...]:
        return tuple(replace(key, expr=self._expr(key.expr)) for key in order)

    def _optional(self, expr: Expr | None) -> Expr | None:
        return None if expr is None else self._expr(expr)

    def _expr(self, expr: Expr) -> Expr:
        def swap(part: Expr) -> Expr | None:
            if not isinstance(part, ColumnRef):
                return None
            return replace(part, id=self._names.get(part.id, part.id))

        return transform(expr, swap)
