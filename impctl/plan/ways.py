"""Ways that rows of a leaf take through a plan: the columns they become, and what they must meet.

Law: every row of the plan comes from one way, and there from one row of the leaf (or none) and rows
of other parts. `columns` has the plan's columns as expressions over the leaf's columns and those of
other parts; a row comes if it meets all `conditions`. `matches` decide which rows of an outer join
meet; where none does, columns are NULL.
Out of scope: what follows for fixpoints (`plan.best_reads`, `plan.recursion`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from impctl.expr.nodes import Expr, conjuncts, substitute
from impctl.plan.nodes import (
    Attribute,
    Distinct,
    Join,
    JoinKind,
    Plan,
    Project,
    Select,
    SetKind,
    SetOperation,
    Sort,
    attributes_of,
    nodes_of,
)
from impctl.types import AttributeId
from impctl.values import dataclass

_MOST_WAYS = 64
"""Ways through the UNIONs of a plan beyond which none is followed."""


class NotFollowedError(Exception):
    """What of the plan is not followed, in words."""


@dataclass(frozen=True, slots=True)
class LeafWay:
    """One way; `leaf` are the leaf's columns, None where no row of it takes part."""

    leaf: tuple[Attribute, ...] | None
    columns: Mapping[AttributeId, Expr]
    conditions: tuple[Expr, ...] = ()
    matches: tuple[Expr, ...] = ()

    def expr(self, attribute: Attribute) -> Expr:
        """What a column of the plan is."""
        return self.columns.get(attribute.id, attribute.ref())

    def over(self, expr: Expr) -> Expr:
        """An expression over the plan's columns as one over the leaf's and the others'."""
        return substitute(expr, dict(self.columns))


IsLeaf = Callable[[Plan], bool]


def ways_of(plan: Plan, is_leaf: IsLeaf) -> list[LeafWay]:
    """All ways through the plan; NotFollowedError where one cannot be told."""
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
