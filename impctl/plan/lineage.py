"""Follows columns from a table up to the result of a plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from impctl.expr.nodes import ColumnRef, Compare, CompareOp, Expr, conjuncts, substitute
from impctl.plan.nodes import (
    Aggregate,
    Attribute,
    ComputedColumn,
    Distinct,
    Explode,
    Fixpoint,
    Join,
    JoinKind,
    OneRow,
    Plan,
    Project,
    Recursive,
    Scan,
    Select,
    SetKind,
    SetOperation,
    Sort,
    TopK,
    Window,
    Witness,
    attributes_of,
    map_inputs,
    nodes_of,
    scans_of,
)
from impctl.types import AccessId, AttributeId

if TYPE_CHECKING:
    from impctl.data.schema import Column

# Ways that rows of a leaf take through a plan: the columns they become, and what they must meet.
# Law: every row of the plan comes from one way, and there from one row of the leaf (or none) and
# rows of other parts. `columns` has the plan's columns as expressions over the leaf's columns and
# those of other parts; a row comes if it meets all `conditions`. `matches` decide which rows of
# an outer join meet; where none does, columns are NULL.

_MOST_WAYS = 64
"""Limit on ways through the UNIONs of a plan; beyond it none is followed."""


class NotFollowedError(Exception):
    """The part of the plan that is not followed, in words."""


class LeafWay(Struct, frozen=True):
    """One way; `leaf` are the leaf's columns, None where it reads no row of the leaf."""

    leaf: tuple[Attribute, ...] | None
    columns: Mapping[AttributeId, Expr]
    conditions: tuple[Expr, ...] = ()
    matches: tuple[Expr, ...] = ()

    def expr(self, attribute: Attribute) -> Expr:
        return self.columns.get(attribute.id, attribute.ref())

    def over(self, expr: Expr) -> Expr:
        """An expression over the plan's columns, rewritten to the leaf's and the others'."""
        return substitute(expr, dict(self.columns))


IsLeaf = Callable[[Plan], bool]


def ways_of(plan: Plan, is_leaf: IsLeaf) -> list[LeafWay]:
    """All ways through the plan; NotFollowedError where one is unknown."""
    if is_leaf(plan):
        return [LeafWay(attributes_of(plan), {})]
    if not any(map(is_leaf, nodes_of(plan))):
        return [LeafWay(None, {})]
    match plan:
        case Sort() | Distinct():
            return ways_of(plan.child, is_leaf)
        case Select():
            return [_met(way, plan.predicate) for way in ways_of(plan.child, is_leaf)]
        case Project():
            return [_computed(way, plan) for way in ways_of(plan.child, is_leaf)]
        case Join():
            return _joined(plan, is_leaf)
        case SetOperation(kind=SetKind.UNION):
            return _either(plan, is_leaf)
    raise NotFollowedError(f"its rows pass through a {type(plan).__name__.lower()}")


def _met(way: LeafWay, predicate: Expr) -> LeafWay:
    return replace(way, conditions=(*way.conditions, *map(way.over, conjuncts(predicate))))


def _computed(way: LeafWay, plan: Project) -> LeafWay:
    columns = {output.attribute.id: way.over(output.expr) for output in plan.outputs}
    return replace(way, columns={**way.columns, **columns})


def _joined(plan: Join, is_leaf: IsLeaf) -> list[LeafWay]:
    if plan.kind is JoinKind.ANTI or plan.null_aware:
        raise NotFollowedError(f"its rows pass through a {plan.kind} join")
    left, right = (ways_of(side, is_leaf) for side in (plan.left, plan.right))
    result = []
    for one in left:
        for other in right:
            if one.leaf is not None and other.leaf is not None:
                raise NotFollowedError("it is read twice")
            leaf = one.leaf if one.leaf is not None else other.leaf
            both = LeafWay(
                leaf,
                {**one.columns, **other.columns},
                (*one.conditions, *other.conditions),
                (*one.matches, *other.matches),
            )
            if plan.condition is not None:
                both = _matched(both, plan)
            result.append(both)
    return _few(result)


def _matched(way: LeafWay, plan: Join) -> LeafWay:
    assert plan.condition is not None
    if plan.kind in (JoinKind.INNER, JoinKind.SEMI):
        return _met(way, plan.condition)
    return replace(way, matches=(*way.matches, way.over(plan.condition)))


def _either(plan: SetOperation, is_leaf: IsLeaf) -> list[LeafWay]:
    result = []
    for side in (plan.left, plan.right):
        pairs = list(zip(plan.attributes, attributes_of(side), strict=True))
        for way in ways_of(side, is_leaf):
            columns = {output.id: way.expr(source) for output, source in pairs}
            result.append(replace(way, columns={**way.columns, **columns}))
    return _few(result)


def _few(ways: list[LeafWay]) -> list[LeafWay]:
    if len(ways) > _MOST_WAYS:
        raise NotFollowedError("its UNIONs give too many combinations")
    return ways


# Columns followed from where they arise up to a plan's result. Law: `trace` and `follow` change
# no rows and no other column. Where a row of the result no longer stems from one value of the
# column, the answer is None, never a guess.

_LEFT_KEPT = (JoinKind.INNER, JoinKind.LEFT)
_RIGHT_KEPT = (JoinKind.INNER, JoinKind.RIGHT)


class Traced(Struct, frozen=True):
    """A plan with columns that all equal the partition attribute in the rows a row stems from."""

    plan: Plan
    keys: frozenset[AttributeId]

    @property
    def key(self) -> Attribute:
        return next(a for a in attributes_of(self.plan) if a.id in self.keys)


def reads(plan: Plan, access: AccessId) -> bool:
    """Whether the access is below this node."""
    return any(scan.access == access for scan in scans_of(plan))


def trace(plan: Plan, access: AccessId, column: Column) -> Traced | None:
    """Add the partition attribute of the access to the plan's columns. None where a row may stem
    from rows with several values of it, or from none."""
    match plan:
        case Scan():
            return _trace_scan(plan, access, column)
        case Join():
            return _trace_join(plan, access, column)
        case SetOperation() | Recursive() | Fixpoint() | OneRow():
            return None
    child = trace(plan.child, access, column)
    if child is None:
        return None
    match plan:
        case Select():
            kept = replace(plan, child=child.plan)
            return Traced(kept, _equated(child.keys, plan.predicate))
        case Sort():
            return child
        case TopK() | Witness() | Explode():
            return Traced(replace(plan, child=child.plan), child.keys)
        case Project():
            return _trace_project(plan, child)
        case Aggregate():
            return _trace_aggregate(plan, child)
        case Distinct():
            own = {attribute.id for attribute in attributes_of(plan.child)}
            below, keys = _only(child.plan, own), child.keys & own
            return Traced(replace(plan, child=below), keys) if keys else None
        case Window():
            if not all(_is_among(call.partition_by, child.keys) for call in plan.calls):
                return None
            return Traced(replace(plan, child=child.plan), child.keys)


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
            # Matching rows are visible only through what equals them on the left.
            left = frozenset(attribute.id for attribute in attributes_of(plan.left))
            equal = _equated(side.keys, plan.condition) & left
            return Traced(joined, equal) if equal else None
    if plan.kind is JoinKind.INNER:
        return Traced(joined, _equated(side.keys, plan.condition))
    return None


def _trace_aggregate(plan: Aggregate, child: Traced) -> Traced | None:
    """Each group has one value: the attribute is a key in every grouping set."""
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
    """The keys and all columns of the same type that a conjunct equates with one of them."""
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
    Rows may repeat. None where a row of the result does not stem from one row of `origin`."""
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
        case Select() | Witness() | TopK():
            is_counted = is_counted or isinstance(plan, TopK)
            child = _follow(plan.child, origin, ids, is_counted=is_counted)
            return None if child is None else (replace(plan, child=child[0]), child[1])
        case Sort():
            return _follow(plan.child, origin, ids, is_counted=is_counted)
        case Distinct():
            if is_counted:
                return None
            return _follow(plan.child, origin, ids, is_counted=False)
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


# Where the answer's lineage alone is asked for, the plan by which that is judged and kept. Law:
# the plan yields the query's rows on every database. A fixpoint that is a set is marked as one
# that is sketched for the answer: of the derivations of its rows those count that lead to a row
# that the answer stems from, and the rules judge what stands above as over a table that is there
# in part (docs/soundness.md, "The lineage of the answer alone"). Of UNION ALL all derivations of
# a row count, and of best rows all that others are beaten by: these stay barriers.

_HELD = "its sketch holds only the rows that the result is derived from"
_WHOLE = "its sketch holds the whole lineage: "


def for_answer(plan: Plan) -> Plan:
    """The plan with fixpoints sketched for the answer alone, where possible."""
    if not any(isinstance(node, Fixpoint) for node in nodes_of(plan)):
        return plan
    result = map_inputs(plan, for_answer)
    if isinstance(result, Fixpoint) and not _why_whole(result):
        return replace(result, answers=True)
    return result


def is_sketched_for_answer(node: Fixpoint) -> bool:
    """Whether the fixpoint is no barrier; a rule may have decided since that only the best rows
    count."""
    return node.answers and not _why_whole(node)


def for_all(plan: Plan) -> Plan:
    """The plan with barriers for all its fixpoints."""
    if not any(isinstance(node, Fixpoint) and node.answers for node in nodes_of(plan)):
        return plan
    result = map_inputs(plan, for_all)
    return replace(result, answers=False) if isinstance(result, Fixpoint) else result


def answer_notes(root: Plan, positions: Collection[int]) -> Mapping[int, str]:
    """What sketches of the fixpoints at these positions of `nodes_of(root)` contain."""
    notes = {}
    for position, node in enumerate(nodes_of(root)):
        if isinstance(node, Fixpoint) and position in positions:
            why = _why_whole(node)
            notes[position] = f"{_WHOLE}{why}" if why else _HELD
    return notes


def why_unused(root: Plan, barriers: Collection[int], keyed: Collection[int]) -> str:
    """Why sketches equal those of full lineage; empty where they may be smaller. Positions of
    `nodes_of(root)`: nodes with a sketched access below, keyed ones and others, which are barriers
    unless sketched for the answer alone."""
    fixpoints = [
        (position, node)
        for position, node in enumerate(nodes_of(root))
        if isinstance(node, Fixpoint)
    ]
    if not fixpoints:
        return "its plan has no WITH RECURSIVE"
    whole = [_why_whole(node) for position, node in fixpoints if position in barriers]
    if "" in whole:
        return ""
    if whole:
        return whole[0]
    if any(position in keyed for position, _ in fixpoints):
        return "the recursion is keyed, so its sketch already holds only the keys in the result"
    return "WITH RECURSIVE reads no table that has a sketch"


def _why_whole(node: Fixpoint) -> str:
    """Why all derivations of all rows count; empty where they need not."""
    if not node.is_set:
        return "UNION ALL counts all derivations of a row"
    return "" if node.best is None else "the best rows have all their derivations"
