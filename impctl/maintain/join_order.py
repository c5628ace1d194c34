"""In which order the relations of inner joins are joined, and what their conditions imply of each.

Law: the order and the implied conditions change no row of the result, and they follow from the plan
alone: a circuit that depended on sizes would not fit the state it once wrote. Relations with an
equality to a constant come first, then other conditions, then none; a relation follows only where
an equality connects it, so that nothing is multiplied without need.
Out of scope: joining them (`maintain.joins`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from impctl.aliases import AttributeId
from impctl.expr.nodes import (
    And,
    Compare,
    CompareOp,
    Expr,
    InList,
    Literal,
    Or,
    columns_of,
    conjuncts,
)
from impctl.plan.nodes import Join, JoinKind, Plan, Select, attributes_of


@dataclass(frozen=True, slots=True)
class Relation:
    """One input of a chain of inner joins, its columns, and what holds of its rows."""

    plan: Plan
    ids: frozenset[AttributeId]
    implied: tuple[Expr, ...]
    """Conditions about this relation alone that follow from conditions about several."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Relations in the order to join them, and all conditions."""

    relations: tuple[Relation, ...]
    conditions: tuple[Expr, ...]


def chain_of(node: Join) -> Chain:
    """The inner joins below and including `node` as one chain."""
    plans: list[Plan] = []
    conditions: list[Expr] = []
    _collect(node, plans, conditions)
    relations = [_relation(plan, conditions) for plan in plans]
    return Chain(tuple(_ordered(relations, conditions)), tuple(conditions))


def _collect(node: Plan, plans: list[Plan], conditions: list[Expr]) -> None:
    if not isinstance(node, Join) or node.kind is not JoinKind.INNER:
        plans.append(node)
        return
    _collect(node.left, plans, conditions)
    _collect(node.right, plans, conditions)
    if node.condition is not None:
        conditions.extend(conjuncts(node.condition))


def _relation(plan: Plan, conditions: Sequence[Expr]) -> Relation:
    ids = frozenset(attribute.id for attribute in attributes_of(plan))
    found = [_implied(condition, ids) for condition in conditions]
    return Relation(plan, ids, tuple(one for one in found if one is not None))


def _implied(condition: Expr, ids: frozenset[AttributeId]) -> Expr | None:
    """What a disjunction says of one relation, where every branch says something of it."""
    if not isinstance(condition, Or) or columns_of(condition) <= ids:
        return None
    branches = []
    for branch in condition.operands:
        own = [part for part in conjuncts(branch) if columns_of(part) and columns_of(part) <= ids]
        if not own:
            return None
        branches.append(own[0] if len(own) == 1 else And(tuple(own)))
    return Or(tuple(branches))


def _ordered(relations: Sequence[Relation], conditions: Sequence[Expr]) -> list[Relation]:
    places = sorted(range(len(relations)), key=lambda at: (_rank(relations[at]), at))
    left = [relations[place] for place in places]
    ordered = [left.pop(0)]
    while left:
        joined = frozenset().union(*(relation.ids for relation in ordered))
        connected = [one for one in left if _is_connected(one, joined, conditions)]
        chosen = (connected or left)[0]
        left.remove(chosen)
        ordered.append(chosen)
    return ordered


def _rank(relation: Relation) -> int:
    """0 with an equality to a constant, 1 with another condition, 2 without any."""
    found = list(relation.implied)
    plan = relation.plan
    while isinstance(plan, Select):
        found.extend(conjuncts(plan.predicate))
        plan = plan.child
    if any(_is_point(part) for part in found):
        return 0
    return 1 if found else 2


def _is_point(part: Expr) -> bool:
    if isinstance(part, Or):
        return all(any(_is_point(p) for p in conjuncts(branch)) for branch in part.operands)
    if isinstance(part, InList):
        return all(isinstance(option, Literal) for option in part.options)
    if not isinstance(part, Compare) or part.op is not CompareOp.EQUAL:
        return False
    return isinstance(part.left, Literal) or isinstance(part.right, Literal)


def _is_connected(
    relation: Relation, joined: frozenset[AttributeId], conditions: Sequence[Expr]
) -> bool:
    for part in conditions:
        if not isinstance(part, Compare) or part.op is not CompareOp.EQUAL:
            continue
        one, other = columns_of(part.left), columns_of(part.right)
        if (one and one <= relation.ids and other and other <= joined) or (
            other and other <= relation.ids and one and one <= joined
        ):
            return True
    return False
