"""Follows columns and rows from a table up to the result of a plan, and compares plans that differ
in constants.

Law: `trace` and `follow` change no rows and no other columns. The result is None where a row does
not derive from exactly one value of the column.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from impctl.data.schema import BOOLEAN, Kind
from impctl.expr import nodes as e
from impctl.plan import nodes as p
from impctl.plan.properties import scan_predicates
from impctl.types import AccessId, AttributeId

if TYPE_CHECKING:
    from impctl.data.schema import Column


_MOST_PATHS = 64
"""Limit on paths through the UNIONs of a plan; beyond it none is followed."""


class NotFollowedError(Exception):
    """The part of the plan that is not followed, in words."""


class LeafPath(Struct, frozen=True):
    """A path of rows from leaves up through a plan. Every row of the plan comes by one path, from
    one row of each leaf and rows of other parts.

    `leaves` are the columns of each leaf; `columns` the plan's columns as expressions over columns
    of leaves and other parts; rows must meet all `conditions`. `matches` are conditions of outer
    and anti joins: without a match, columns are NULL. `equated` are what conditions make identical.
    `obstacle`: why the values of a row do not follow from one row of one leaf; empty if they do."""

    leaves: tuple[tuple[p.Attribute, ...], ...]
    columns: Mapping[AttributeId, e.Expr]
    conditions: tuple[e.Expr, ...] = ()
    matches: tuple[e.Expr, ...] = ()
    equated: tuple[tuple[e.Expr, e.Expr], ...] = ()
    obstacle: str = ""

    @property
    def leaf(self) -> tuple[p.Attribute, ...] | None:
        return self.leaves[0] if self.leaves else None

    def expr(self, attribute: p.Attribute) -> e.Expr:
        return self.columns.get(attribute.id, attribute.ref())

    def over(self, expr: e.Expr) -> e.Expr:
        """An expression over the plan's columns, rewritten to columns of leaves and other parts."""
        return expr.substitute(self.columns)

    def is_kept(self, attribute: p.Attribute, position: int) -> bool:
        """Whether the column has the value that all leaves have at this position. A UNION may
        convert values to a type that is not known."""
        pairs = [(_identity(left), _identity(right)) for left, right in self.equated]
        equal = e.linked({_identity(self.expr(attribute))}, pairs)
        columns = [leaf[position] for leaf in self.leaves]
        return all(kept.id in equal and kept.type == attribute.type for kept in columns)


IsLeaf = Callable[[p.Plan], bool]


def paths_of(plan: p.Plan, is_leaf: IsLeaf) -> list[LeafPath]:
    """All paths through the plan; NotFollowedError if one is unknown."""
    if is_leaf(plan):
        return [LeafPath((plan.attributes,), {})]
    if not any(map(is_leaf, plan.walk())):
        return [LeafPath((), {})]
    match plan:
        case p.Sort() | p.Distinct():
            return paths_of(plan.child, is_leaf)
        case p.Select():
            return [
                _filtered(_with_equalities(path, plan.predicate), plan.predicate)
                for path in paths_of(plan.child, is_leaf)
            ]
        case p.Project():
            return [_projected(path, plan) for path in paths_of(plan.child, is_leaf)]
        case p.Join():
            return _joined(plan, is_leaf)
        case p.SetOperation(kind=p.SetKind.UNION):
            return _united(plan, is_leaf)
    raise NotFollowedError(f"its rows pass through a {type(plan).__name__.lower()}")


def _filtered(path: LeafPath, predicate: e.Expr) -> LeafPath:
    conditions = (*path.conditions, *map(path.over, e.conjuncts(predicate)))
    return replace(path, conditions=conditions)


def _with_equalities(path: LeafPath, predicate: e.Expr) -> LeafPath:
    """The path with the condition's equalities, except of types with values such as 0.0 and -0.0,
    which are equal but not identical."""
    equated = [
        (path.over(left), path.over(right))
        for left, right in e.equated_columns(predicate)
        if left.type == right.type and not (left.type.is_fractional or left.type.kind is Kind.OTHER)
    ]
    return replace(path, equated=(*path.equated, *equated))


def _identity(expr: e.Expr) -> AttributeId | int:
    # By the object, which columns share: comparing what nested queries compute takes time
    # exponential in their depth.
    return expr.id if isinstance(expr, e.ColumnRef) else id(expr)


def _projected(path: LeafPath, plan: p.Project) -> LeafPath:
    columns = {output.attribute.id: path.over(output.expr) for output in plan.outputs}
    return replace(path, columns={**path.columns, **columns})


def _joined(plan: p.Join, is_leaf: IsLeaf) -> list[LeafPath]:
    is_anti = plan.kind is p.JoinKind.ANTI or plan.null_aware
    left, right = (paths_of(side, is_leaf) for side in (plan.left, plan.right))
    result = []
    for first in left:
        for second in right:
            obstacle = first.obstacle or second.obstacle
            if is_anti:
                obstacle = f"its rows pass through a {plan.kind} join"
            elif first.leaves and second.leaves:
                obstacle = obstacle or "it is read twice"
            both = LeafPath(
                (*first.leaves, *second.leaves),
                {**first.columns, **second.columns},
                (*first.conditions, *second.conditions),
                (*first.matches, *second.matches),
                (*first.equated, *second.equated),
                obstacle,
            )
            if plan.condition is not None and plan.kind is p.JoinKind.INNER:
                both = _with_equalities(both, plan.condition)
            if plan.condition is not None and plan.kind in (p.JoinKind.INNER, p.JoinKind.SEMI):
                both = _filtered(both, plan.condition)
            elif plan.condition is not None:
                both = replace(both, matches=(*both.matches, both.over(plan.condition)))
            result.append(both)
    return _few(result)


def _united(plan: p.SetOperation, is_leaf: IsLeaf) -> list[LeafPath]:
    result = []
    for side in (plan.left, plan.right):
        pairs = list(zip(plan.attributes, side.attributes, strict=True))
        for path in paths_of(side, is_leaf):
            columns = {output.id: path.expr(source) for output, source in pairs}
            result.append(replace(path, columns={**path.columns, **columns}))
    return _few(result)


def _few(paths: list[LeafPath]) -> list[LeafPath]:
    if len(paths) > _MOST_PATHS:
        raise NotFollowedError("its UNIONs give too many combinations")
    return paths


_LEFT_KEPT = (p.JoinKind.INNER, p.JoinKind.LEFT)
_RIGHT_KEPT = (p.JoinKind.INNER, p.JoinKind.RIGHT)


class Traced(Struct, frozen=True):
    """A plan, and columns that all equal the partition attribute of the rows that a row derives
    from."""

    plan: p.Plan
    keys: frozenset[AttributeId]

    @property
    def key(self) -> p.Attribute:
        return next(a for a in self.plan.attributes if a.id in self.keys)


def reads(plan: p.Plan, access: AccessId) -> bool:
    return any(scan.access == access for scan in plan.scans)


def trace(plan: p.Plan, access: AccessId, column: Column) -> Traced | None:
    """Add the partition attribute of the access to the plan's columns. None if a row may derive
    from rows with several values of it, or from none."""
    match plan:
        case p.Scan():
            return _trace_scan(plan, access, column)
        case p.Join():
            return _trace_join(plan, access, column)
        case p.SetOperation() | p.Recursive() | p.Fixpoint() | p.OneRow():
            return None
    child = trace(plan.child, access, column)
    if child is None:
        return None
    match plan:
        case p.Select():
            keys = _equated(child.keys, plan.predicate)
            return Traced(replace(plan, child=child.plan), keys)
        case p.Sort():
            return child
        case p.TopK() | p.Witness() | p.Explode():
            return Traced(replace(plan, child=child.plan), child.keys)
        case p.Project():
            return _trace_project(plan, child)
        case p.Aggregate():
            return _trace_aggregate(plan, child)
        case p.Distinct():
            columns = plan.child.ids
            below, keys = _only(child.plan, columns), child.keys & columns
            return Traced(replace(plan, child=below), keys) if keys else None
        case p.Window():
            if not all(_is_among(call.partition_by, child.keys) for call in plan.calls):
                return None
            return Traced(replace(plan, child=child.plan), child.keys)


def _trace_scan(plan: p.Scan, access: AccessId, column: Column) -> Traced | None:
    if plan.access != access:
        return None
    for attribute in plan.attributes:
        if attribute.name.lower() == column.name.lower():
            return Traced(plan, frozenset({attribute.id}))
    added = p.Attribute(f"{access}!{column.name}", column.name, column.type)
    return Traced(replace(plan, attributes=(*plan.attributes, added)), frozenset({added.id}))


def _trace_project(plan: p.Project, child: Traced) -> Traced:
    keys = frozenset(o.attribute.id for o in plan.outputs if _is_among((o.expr,), child.keys))
    if keys:
        return Traced(replace(plan, child=child.plan), keys)
    added = p.ComputedColumn(replace(child.key, id=f"{child.key.id}^"), child.key.ref())
    outputs = (*plan.outputs, added)
    return Traced(replace(plan, child=child.plan, outputs=outputs), frozenset({added.attribute.id}))


def _trace_join(plan: p.Join, access: AccessId, column: Column) -> Traced | None:
    is_left = reads(plan.left, access)
    side = trace(plan.left if is_left else plan.right, access, column)
    if side is None:
        return None
    if is_left:
        joined = replace(plan, left=side.plan)
        if plan.kind in (p.JoinKind.SEMI, p.JoinKind.ANTI, p.JoinKind.LEFT):
            return Traced(joined, side.keys)
    else:
        joined = replace(plan, right=side.plan)
        if plan.kind is p.JoinKind.RIGHT:
            return Traced(joined, side.keys)
        if plan.kind is p.JoinKind.SEMI:
            # Columns of matches are visible only through columns of the left side that equal them.
            left = plan.left.ids
            equal = _equated(side.keys, plan.condition) & left
            return Traced(joined, equal) if equal else None
    if plan.kind is p.JoinKind.INNER:
        return Traced(joined, _equated(side.keys, plan.condition))
    return None


def _trace_aggregate(plan: p.Aggregate, child: Traced) -> Traced | None:
    """A group has one value if the attribute is a key in every grouping set."""
    keys = frozenset(
        key.attribute.id for key in plan.common_keys if _is_among((key.expr,), child.keys)
    )
    return Traced(replace(plan, child=child.plan), keys) if keys else None


def _is_among(exprs: tuple[e.Expr, ...], keys: frozenset[AttributeId]) -> bool:
    return any(isinstance(expr, e.ColumnRef) and expr.id in keys for expr in exprs)


def _only(plan: p.Plan, ids: frozenset[AttributeId]) -> p.Plan:
    """The plan without columns that tracing added."""
    attributes = plan.attributes
    if all(attribute.id in ids for attribute in attributes):
        return plan
    return p.Project(plan, p.ComputedColumn.unchanged(a for a in attributes if a.id in ids))


def _equated(keys: frozenset[AttributeId], predicate: e.Expr | None) -> frozenset[AttributeId]:
    """The keys and all columns of the same type that a conjunct equates with one of them."""
    equated = [] if predicate is None else e.equated_columns(predicate)
    pairs = [(left.id, right.id) for left, right in equated if left.type == right.type]
    return e.linked(keys, pairs)


def follow(plan: p.Plan, origin: p.Plan, ids: tuple[AttributeId, ...]) -> p.Plan | None:
    """A plan of these columns of the node `origin`, for the rows of `origin` in the result, which
    may repeat. None if a row of the result does not derive from one row of `origin`."""
    result = _follow(plan, origin, ids, is_counted=False)
    if result is None:
        return None
    followed, last_ids = result
    by_id = {attribute.id: attribute for attribute in followed.attributes}
    return p.Project(
        followed, tuple(p.ComputedColumn(by_id[id], by_id[id].ref()) for id in last_ids)
    )


_Followed = tuple[p.Plan, tuple[AttributeId, ...]]


def _follow(
    plan: p.Plan, origin: p.Plan, ids: tuple[AttributeId, ...], *, is_counted: bool
) -> _Followed | None:
    """`is_counted`: a top-k above counts rows, so that duplicates matter."""
    if plan is origin:
        return plan, ids
    match plan:
        case p.Select() | p.Witness() | p.TopK():
            is_counted = is_counted or isinstance(plan, p.TopK)
            child = _follow(plan.child, origin, ids, is_counted=is_counted)
            return None if child is None else (replace(plan, child=child[0]), child[1])
        case p.Sort():
            return _follow(plan.child, origin, ids, is_counted=is_counted)
        case p.Distinct():
            if is_counted:
                return None
            return _follow(plan.child, origin, ids, is_counted=False)
        case p.Project():
            child = _follow(plan.child, origin, ids, is_counted=is_counted)
            return None if child is None else _follow_project(plan, child)
        case p.Join():
            return _follow_join(plan, origin, ids, is_counted=is_counted)
        case p.Scan() | p.Aggregate() | p.Window() | p.SetOperation() | p.Explode():
            return None
        case p.Recursive() | p.Fixpoint() | p.OneRow():
            return None


def _follow_project(plan: p.Project, child: _Followed) -> _Followed:
    by_id = {attribute.id: attribute for attribute in child[0].attributes}
    added = tuple(
        p.ComputedColumn(replace(by_id[id], id=f"{id}^{position}"), by_id[id].ref())
        for position, id in enumerate(child[1])
    )
    outputs = (*plan.outputs, *added)
    return replace(plan, child=child[0], outputs=outputs), tuple(o.attribute.id for o in added)


def _follow_join(
    plan: p.Join, origin: p.Plan, ids: tuple[AttributeId, ...], *, is_counted: bool
) -> _Followed | None:
    if any(node is origin for node in plan.left.walk()):
        left = _follow(plan.left, origin, ids, is_counted=is_counted)
        if left is None or plan.kind not in (*_LEFT_KEPT, p.JoinKind.SEMI, p.JoinKind.ANTI):
            return None
        return replace(plan, left=left[0]), left[1]
    right = _follow(plan.right, origin, ids, is_counted=is_counted)
    if right is None or plan.kind not in _RIGHT_KEPT:
        return None
    return replace(plan, right=right[0]), right[1]


# The lineage of the answer alone (docs/soundness.md). A fixpoint that is a set is sketched by those
# derivations that lead to a row that the answer derives from; the safety rules treat it as a table
# of which only a part may be present. With UNION ALL all derivations of a row count, and with best
# rows also those of rows that beat others: these fixpoints stay barriers.

_ANSWER_ONLY = "its sketch holds only the rows that the result is derived from"
_WHOLE = "its sketch holds the whole lineage: "


def for_answer(plan: p.Plan) -> p.Plan:
    """The plan with fixpoints sketched for the answer alone, where possible."""
    result = plan.map_inputs(for_answer)
    if isinstance(result, p.Fixpoint) and not _why_whole(result):
        return replace(result, answers=True)
    return result


def is_sketched_for_answer(node: p.Fixpoint) -> bool:
    """Whether the fixpoint is no barrier; a rule may have set `best` after `answers`."""
    return node.answers and not _why_whole(node)


def for_all(plan: p.Plan) -> p.Plan:
    """The plan with all its fixpoints as barriers."""
    result = plan.map_inputs(for_all)
    is_marked = isinstance(result, p.Fixpoint) and result.answers
    return replace(result, answers=False) if is_marked else result


def answer_notes(root: p.Plan, positions: Collection[int]) -> Mapping[int, str]:
    """What sketches of the fixpoints at these positions of `root.walk()` contain."""
    notes = {}
    for position, node in enumerate(root.walk()):
        if isinstance(node, p.Fixpoint) and position in positions:
            why = _why_whole(node)
            notes[position] = f"{_WHOLE}{why}" if why else _ANSWER_ONLY
    return notes


def why_unused(root: p.Plan, barriers: Collection[int], keyed: Collection[int]) -> str:
    """Why sketches equal those of full lineage; empty if they may be smaller. `barriers` and
    `keyed`: positions in `root.walk()` of nodes with a sketched access below; `barriers` include
    fixpoints sketched for the answer alone."""
    fixpoints = [
        (position, node)
        for position, node in enumerate(root.walk())
        if isinstance(node, p.Fixpoint)
    ]
    if not fixpoints:
        return "its plan has no WITH RECURSIVE"
    reasons = [_why_whole(node) for position, node in fixpoints if position in barriers]
    if "" in reasons:
        return ""
    if reasons:
        return reasons[0]
    if any(position in keyed for position, _ in fixpoints):
        return "the recursion is keyed, so its sketch already holds only the keys in the result"
    return "WITH RECURSIVE reads no table that has a sketch"


def _why_whole(node: p.Fixpoint) -> str:
    """Why all derivations of all rows count; empty if they need not."""
    if not node.is_set:
        return "UNION ALL counts all derivations of a row"
    return "" if node.best is None else "the best rows have all their derivations"


# Compares two plans of one query with different constants. Law: if the plans differ only in
# conditions right above scans, the rows of these accesses that meet one condition and not the other
# are inserted or deleted for everything above. If constants elsewhere differ too, the plans have
# the same nodes, and the state of a node is state of the other plan's.

_TRUE = e.Literal(True, BOOLEAN)
_OPEN = "?"


class MovedConditions(Struct, frozen=True):
    """The predicates of the selections above one scan, the lowest first, before and after."""

    before: tuple[e.Expr, ...]
    after: tuple[e.Expr, ...]

    @property
    def rows_that_move(self) -> tuple[tuple[e.Expr, ...], ...]:
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


def _opened(expr: e.Expr) -> e.Expr:
    """The expression without its constants; their types and NULL stay."""

    def swap(part: e.Expr) -> e.Expr | None:
        if not isinstance(part, e.Literal) or part.value is None:
            return None
        return e.Literal(_OPEN, part.type)

    return expr.transform(swap)


def _parts(predicates: tuple[e.Expr, ...]) -> tuple[e.Expr, ...]:
    return tuple(part for predicate in predicates for part in e.conjuncts(predicate))


def _leaving(
    before: tuple[e.Expr, ...], after: tuple[e.Expr, ...]
) -> tuple[tuple[e.Expr, ...], ...]:
    """Conjunctions: each row that meets `before` but not `after` meets one of them."""
    failed = [part for part in after if part not in before]
    return tuple((*before, *_failing(part, before)) for part in failed)


def _failing(part: e.Expr, before: tuple[e.Expr, ...]) -> tuple[e.Expr, ...]:
    """A condition of rows that meet `before` and for which `part` is not true; none if `part` may
    be NULL."""
    if not isinstance(part, e.Compare):
        return ()
    if not isinstance(part.right, e.Literal) or part.right.value is None:
        return ()
    is_known = any(
        isinstance(other, e.Compare)
        and other.left == part.left
        and other.op is not e.CompareOp.NULL_SAFE_EQUAL
        for other in before
    )
    opposite = part.op.opposite
    if not is_known or opposite is None:
        return ()
    return (e.Compare(opposite, part.left, part.right),)
