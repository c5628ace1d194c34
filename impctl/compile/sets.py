"""Set operations, built from the union with signs, DISTINCT and joins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from impctl.compile.flows import Column, Flow, known_type, over_rows, typed
from impctl.data.schema import LONG
from impctl.engine.accumulators import AggregateColumn, ExactSum
from impctl.engine.aggregate import Aggregate
from impctl.engine.join import Join as JoinOperator
from impctl.engine.join import Side
from impctl.engine.linear import Repeat
from impctl.expr.nodes import Cast, ColumnRef, Literal
from impctl.plan.nodes import Plan, SetKind, SetOperation, attributes_of

if TYPE_CHECKING:
    from impctl.compile.builder import Plumbing


def build_set_operation(builder: Plumbing, node: SetOperation, *, must_be_sure: bool) -> Flow:
    """The operators of UNION, INTERSECT and EXCEPT."""
    sure = must_be_sure or not (node.kind is SetKind.UNION and node.all)
    columns = typed(node.attributes, node.span)
    left = _renamed(builder, node, node.left, columns, must_be_sure=sure)
    right = _renamed(builder, node, node.right, columns, must_be_sure=sure)
    result = _put(builder, node, left, right, columns)
    return replace(result, computed=over_rows(node, left, right))


def _put(
    builder: Plumbing, node: SetOperation, left: Flow, right: Flow, columns: tuple[Column, ...]
) -> Flow:
    accesses = (*left.accesses, *right.accesses)
    if node.kind is SetKind.UNION:
        whole = builder.union([left, right], columns, accesses)
        if node.all:
            return whole
        copies = replace(whole, computed=over_rows(replace(node, all=True), left, right))
        return builder.distinct(copies, columns, node)
    if node.all:
        return _repeated(builder, node, left, right, columns)
    left = builder.distinct(left, columns, node)
    right = builder.distinct(right, columns, node)
    both = _common(builder, left, right, columns)
    if node.kind is SetKind.INTERSECT:
        return both
    return builder.union([left, both], columns, left.accesses, signs=(1, -1))


def _repeated(
    builder: Plumbing, node: SetOperation, left: Flow, right: Flow, columns: tuple[Column, ...]
) -> Flow:
    """INTERSECT ALL and EXCEPT ALL: each row with the copies that its counts leave."""
    name = builder.name("copies")
    counts = (f"{name}/left", f"{name}/right")
    counted = (*columns, *((count, LONG) for count in counts))
    is_difference = node.kind is SetKind.EXCEPT
    accesses = left.accesses if is_difference else (*left.accesses, *right.accesses)
    flows = []
    for at, flow in enumerate((left, right)):
        marks = [(count, Literal(int(at == place), LONG)) for place, count in enumerate(counts)]
        flows.append(builder.project(flow, [*flow.refs(), *marks], counted, node))
    whole = builder.union(flows, counted, accesses)
    sums = [
        AggregateColumn(count, LONG, ExactSum(count, at, LONG), None)
        for at, count in enumerate(counts)
    ]
    grouped = Aggregate(name, columns, sums, accesses=len(accesses), is_keyed=False)
    once = Flow(builder.put(grouped, whole), counted, accesses)
    repeat = Repeat(*counts, is_difference=is_difference)
    return Flow(builder.put(repeat, once), columns, accesses)


def _common(builder: Plumbing, left: Flow, right: Flow, columns: tuple[Column, ...]) -> Flow:
    """Rows that both sides have; each side has every row once."""
    name = builder.name("join")
    ids = tuple(column for column, _ in columns)
    mine = Side(columns, ids, len(left.accesses))
    theirs = Side(columns, ids, len(right.accesses))
    at = builder.put(JoinOperator(name, mine, theirs, [True] * len(ids)), left, right)
    return Flow(at, columns, (*left.accesses, *right.accesses))


def _renamed(
    builder: Plumbing,
    node: SetOperation,
    side: Plan,
    columns: tuple[Column, ...],
    *,
    must_be_sure: bool,
) -> Flow:
    """A side under the operation's own columns and types."""
    below = builder.build(side, must_be_sure=must_be_sure)
    if node.kind is not SetKind.UNION or not node.all:
        below = builder.sure(below)
    outputs = []
    for (name, kind), attribute in zip(columns, attributes_of(side), strict=True):
        result = known_type(attribute.type, node.span)
        ref = ColumnRef(attribute.id, result, attribute.nullable)
        outputs.append((name, ref if result == kind else Cast(ref, kind)))
    return builder.project(below, outputs, columns, node)
