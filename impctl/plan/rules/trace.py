"""Columns followed from where they arise up to a plan's result.

Law: `trace` and `follow` change no rows and no other column. Where a row of the result no longer
stems from one value of the column, the answer is None, never a guess.
Out of scope: what to do then (`capture.annotate`, `capture.collect`).
"""

from __future__ import annotations

from dataclasses import replace

from impctl.data.schema import Column
from impctl.expr.nodes import ColumnRef, Compare, CompareOp, Expr, conjuncts
from impctl.plan.nodes import (
    Aggregate,
    Attribute,
    ComputedColumn,
    Distinct,
    Explode,
    Fixpoint,
    Join,
    JoinKind,
    Plan,
    Project,
    Recursive,
    Scan,
    Select,
    SetOperation,
    Sort,
    TopK,
    Window,
    Witness,
    attributes_of,
    nodes_of,
    scans_of,
)
from impctl.plan.one_row import OneRow
from impctl.types import AccessId, AttributeId
from impctl.values import dataclass

_LEFT_KEPT = (JoinKind.INNER, JoinKind.LEFT)
_RIGHT_KEPT = (JoinKind.INNER, JoinKind.RIGHT)


@dataclass(frozen=True, slots=True)
class Traced:
    """A plan with columns that all equal the partition attribute in the rows a row stems from."""

    plan: Plan
    keys: frozenset[AttributeId]

    @property
    def key(self) -> Attribute:
        """One of the columns."""
        return next(a for a in attributes_of(self.plan) if a.id in self.keys)


def reads(plan: Plan, access: AccessId) -> bool:
    """Whether the access is below this node."""
    return any(scan.access == access for scan in scans_of(plan))


def trace(plan: Plan, access: AccessId, column: Column) -> Traced | None:
    """The plan with the partition attribute of the access among its columns.

    None where a row may stem from rows with several values of it (or from none).
    """
    match plan:
        case Scan():
            return _trace_scan(plan, access, column)
        case Select():
            child = trace(plan.child, access, column)
            if child is None:
                return None
            kept = replace(plan, child=child.plan)
            return Traced(kept, _equated(child.keys, plan.predicate))
        case Sort():
            return trace(plan.child, access, column)
        case TopK() | Witness() | Explode():
            child = trace(plan.child, access, column)
            return None if child is None else Traced(replace(plan, child=child.plan), child.keys)
        case Project():
            child = trace(plan.child, access, column)
            return None if child is None else _trace_project(plan, child)
        case Join():
            return _trace_join(plan, access, column)
        case Aggregate():
            child = trace(plan.child, access, column)
            return None if child is None else _trace_aggregate(plan, child)
        case Distinct():
            child = trace(plan.child, access, column)
            own = {attribute.id for attribute in attributes_of(plan.child)}
            if child is None or not child.keys & own:
                return None
            return Traced(replace(plan, child=_only(child.plan, own)), child.keys & own)
        case Window():
            child = trace(plan.child, access, column)
            if child is None or not all(
                _is_among(call.partition_by, child.keys) for call in plan.calls
            ):
                return None
            return Traced(replace(plan, child=child.plan), child.keys)
        case SetOperation() | Recursive() | Fixpoint() | OneRow():
            return None


def _trace_scan(plan: Scan, access: AccessId, column: Column) -> Traced | None:
    if plan.access != access:
        return None
    for attribute in plan.attributes:
        if attribute.name.lower() == column.name.lower():
            return Traced(plan, frozenset({attribute.id}))
    added = Attribute(f"{access}!{column.name}", column.name, column.type)
    return Traced(replace(plan, attributes=(*plan.attributes, added)), frozenset({added.id}))


def _trace_project(plan: Project, child: Traced) -> Traced:
    kept = frozenset(o.attribute.id for o in plan.outputs if _is_among((o.expr,), child.keys))
    if kept:
        return Traced(replace(plan, child=child.plan), kept)
    added = ComputedColumn(replace(child.key, id=f"{child.key.id}^"), child.key.ref())
    outputs = (*plan.outputs, added)
    return Traced(replace(plan, child=child.plan, outputs=outputs), frozenset({added.attribute.id}))


def _trace_join(plan: Join, access: AccessId, column: Column) -> Traced | None:
    is_left = reads(plan.left, access)
    side = trace(plan.left if is_left else plan.right, access, column)
    if side is None:
        return None
    if is_left:
        joined = replace(plan, left=side.plan)
        if plan.kind in (JoinKind.SEMI, JoinKind.ANTI, JoinKind.LEFT):
            return Traced(joined, side.keys)
    else:
        joined = replace(plan, right=side.plan)
        if plan.kind is JoinKind.RIGHT:
            return Traced(joined, side.keys)
        if plan.kind is JoinKind.SEMI:
            # Matching rows are seen only through what equals them on the left.
            left = frozenset(attribute.id for attribute in attributes_of(plan.left))
            equal = _equated(side.keys, plan.condition) & left
            return Traced(joined, equal) if equal else None
    if plan.kind is JoinKind.INNER:
        return Traced(joined, _equated(side.keys, plan.condition))
    return None


def _trace_aggregate(plan: Aggregate, child: Traced) -> Traced | None:
    """Groups of one value each: the attribute is grouped on, in every grouping set."""
    everywhere = set(range(len(plan.keys)))
    for chosen in plan.grouping_sets or ():
        everywhere &= set(chosen)
    kept = frozenset(
        key.attribute.id
        for index, key in enumerate(plan.keys)
        if index in everywhere and _is_among((key.expr,), child.keys)
    )
    return Traced(replace(plan, child=child.plan), kept) if kept else None


def _is_among(exprs: tuple[Expr, ...], keys: frozenset[AttributeId]) -> bool:
    return any(isinstance(expr, ColumnRef) and expr.id in keys for expr in exprs)


def _only(plan: Plan, wanted: set[AttributeId]) -> Plan:
    """The plan without columns that tracing added."""
    attributes = attributes_of(plan)
    if all(attribute.id in wanted for attribute in attributes):
        return plan
    return Project(plan, tuple(ComputedColumn(a, a.ref()) for a in attributes if a.id in wanted))


def _equated(keys: frozenset[AttributeId], predicate: Expr | None) -> frozenset[AttributeId]:
    """The keys and all columns of the same type that a conjunct makes equal to one of them."""
    pairs = [
        (part.left.id, part.right.id)
        for part in (() if predicate is None else conjuncts(predicate))
        if isinstance(part, Compare)
        and part.op in (CompareOp.EQUAL, CompareOp.NULL_SAFE_EQUAL)
        and isinstance(part.left, ColumnRef)
        and isinstance(part.right, ColumnRef)
        and part.left.type == part.right.type
    ]
    result = set(keys)
    for _ in pairs:
        for left, right in pairs:
            if left in result or right in result:
                result |= {left, right}
    return frozenset(result)


def follow(plan: Plan, origin: Plan, ids: tuple[AttributeId, ...]) -> Plan | None:
    """A plan of just these columns of the node `origin`, for the rows of `origin` in the result.

    Rows may repeat. None where a row of the result does not stem from one row of `origin`.
    """
    result = _follow(plan, origin, ids, is_counted=False)
    if result is None:
        return None
    followed, last_ids = result
    by_id = {attribute.id: attribute for attribute in attributes_of(followed)}
    return Project(followed, tuple(ComputedColumn(by_id[id], by_id[id].ref()) for id in last_ids))


_Followed = tuple[Plan, tuple[AttributeId, ...]]


def _follow(
    plan: Plan, origin: Plan, ids: tuple[AttributeId, ...], *, is_counted: bool
) -> _Followed | None:
    """`is_counted`: a top-k above counts rows, so that duplicates matter."""
    if plan is origin:
        return plan, ids
    match plan:
        case Select() | Witness():
            child = _follow(plan.child, origin, ids, is_counted=is_counted)
            return None if child is None else (replace(plan, child=child[0]), child[1])
        case Sort():
            return _follow(plan.child, origin, ids, is_counted=is_counted)
        case Distinct():
            if is_counted:
                return None
            return _follow(plan.child, origin, ids, is_counted=False)
        case TopK():
            child = _follow(plan.child, origin, ids, is_counted=True)
            return None if child is None else (replace(plan, child=child[0]), child[1])
        case Project():
            child = _follow(plan.child, origin, ids, is_counted=is_counted)
            return None if child is None else _follow_project(plan, child)
        case Join():
            return _follow_join(plan, origin, ids, is_counted=is_counted)
        case Scan() | Aggregate() | Window() | SetOperation() | Explode():
            return None
        case Recursive() | Fixpoint() | OneRow():
            return None


def _follow_project(plan: Project, child: _Followed) -> _Followed:
    by_id = {attribute.id: attribute for attribute in attributes_of(child[0])}
    added = tuple(
        ComputedColumn(replace(by_id[id], id=f"{id}^{place}"), by_id[id].ref())
        for place, id in enumerate(child[1])
    )
    outputs = (*plan.outputs, *added)
    return replace(plan, child=child[0], outputs=outputs), tuple(o.attribute.id for o in added)


def _follow_join(
    plan: Join, origin: Plan, ids: tuple[AttributeId, ...], *, is_counted: bool
) -> _Followed | None:
    if any(node is origin for node in nodes_of(plan.left)):
        left = _follow(plan.left, origin, ids, is_counted=is_counted)
        if left is None or plan.kind not in (*_LEFT_KEPT, JoinKind.SEMI, JoinKind.ANTI):
            return None
        return replace(plan, left=left[0]), left[1]
    right = _follow(plan.right, origin, ids, is_counted=is_counted)
    if right is None or plan.kind not in _RIGHT_KEPT:
        return None
    return replace(plan, right=right[0]), right[1]
