"""In which order the relations of inner joins are joined, and what their conditions imply of each.

Law: the order and the implied conditions change no row of the result, and they follow from the plan
alone: a circuit that depended on sizes would not fit the state it once wrote. Relations with an
equality to a constant come first, then other conditions, then none; a relation follows only where
an equality connects it, so that nothing is multiplied without need.
Out of scope: joining them (`circuits.joins`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from impctl.expr.nodes import (
    And,
    ColumnRef,
    Compare,
    CompareOp,
    Expr,
    InList,
    Literal,
    Or,
    columns_of,
    conjuncts,
)
from impctl.expr.types import type_of
from impctl.plan.nodes import Join, JoinKind, Plan, Select, attributes_of
from impctl.types import AttributeId
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class JoinInput:
    """One input of a chain of inner joins, its columns, and what holds of its rows."""

    plan: Plan
    ids: frozenset[AttributeId]
    implied: tuple[Expr, ...]
    """Conditions about this relation alone that follow from conditions about several."""


@dataclass(frozen=True, slots=True)
class Joined:
    """Relations in the order to join them, and all conditions.

    `equal` are plain columns of one type that the conditions make equal, in classes.
    """

    relations: tuple[JoinInput, ...]
    conditions: tuple[Expr, ...]
    equal: tuple[tuple[ColumnRef, ...], ...] = ()


def chain_of(node: Join) -> Joined:
    """The inner joins below and including `node` as one chain."""
    plans: list[Plan] = []
    conditions: list[Expr] = []
    _collect(node, plans, conditions)
    relations = [_relation(plan, conditions) for plan in plans]
    return Joined(
        tuple(_ordered(relations, conditions)), tuple(conditions), _plain_classes(conditions)
    )


def following(
    equal: Sequence[Sequence[ColumnRef]],
    joined: frozenset[AttributeId],
    other: frozenset[AttributeId],
    stated: Sequence[Expr],
) -> list[Expr]:
    """Equalities between columns of the two that follow from others, one per class.

    A class that one of the `stated` conditions connects them by has none: it would look up the same
    value twice. Without them relations that only meet through a third one were multiplied.
    """
    pairs = [columns_of(part) for part in stated if _is_plain(part)]
    result: list[Expr] = []
    for members in equal:
        ids = {one.id for one in members}
        if any(pair <= ids and pair & joined and pair & other for pair in pairs):
            continue
        mine = next((one for one in members if one.id in joined), None)
        theirs = next((one for one in members if one.id in other), None)
        if mine is not None and theirs is not None:
            result.append(Compare(CompareOp.EQUAL, mine, theirs))
    return result


def _plain_classes(conditions: Sequence[Expr]) -> tuple[tuple[ColumnRef, ...], ...]:
    plain = [part for part in conditions if isinstance(part, Compare) and _is_plain(part)]
    sides = [side for part in plain for side in (part.left, part.right)]
    columns = {side.id: side for side in sides if isinstance(side, ColumnRef)}
    return tuple(
        tuple(column for name, column in columns.items() if name in result)
        for result in _equal_columns(plain)
    )


def _is_plain(part: Expr) -> bool:
    """Whether it makes two columns of one type equal, which is transitive."""
    if not isinstance(part, Compare) or part.op is not CompareOp.EQUAL:
        return False
    one, other = part.left, part.right
    is_pair = isinstance(one, ColumnRef) and isinstance(other, ColumnRef)
    kinds = type_of(one), type_of(other)
    return is_pair and kinds[0] is not None and kinds[0] == kinds[1]


def _collect(node: Plan, plans: list[Plan], conditions: list[Expr]) -> None:
    if not isinstance(node, Join) or node.kind is not JoinKind.INNER:
        plans.append(node)
        return
    _collect(node.left, plans, conditions)
    _collect(node.right, plans, conditions)
    if node.condition is not None:
        conditions.extend(conjuncts(node.condition))


def _relation(plan: Plan, conditions: Sequence[Expr]) -> JoinInput:
    ids = frozenset(attribute.id for attribute in attributes_of(plan))
    result = [_implied(condition, ids) for condition in conditions]
    return JoinInput(plan, ids, tuple(one for one in result if one is not None))


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


def _ordered(relations: Sequence[JoinInput], conditions: Sequence[Expr]) -> list[JoinInput]:
    places = sorted(range(len(relations)), key=lambda at: (_rank(relations[at]), at))
    left = [relations[place] for place in places]
    ordered = [left.pop(0)]
    classes = _equal_columns(conditions)
    while left:
        best = max(left, key=lambda one: _connection(one, ordered, classes))
        left.remove(best)
        ordered.append(best)
    return ordered


def _connection(
    relation: JoinInput,
    joined: Sequence[JoinInput],
    classes: Sequence[frozenset[AttributeId]],
) -> int:
    """How well a relation fits next: 2 by a value only one joined relation has, 1 by another.

    Where two joined relations share the value already, a third on it is likely to multiply rows.
    """
    best = 0
    for result in classes:
        holders = sum(1 for one in joined if result & one.ids)
        if result & relation.ids and holders:
            best = max(best, 2 if holders == 1 else 1)
    return best


def _equal_columns(conditions: Sequence[Expr]) -> list[frozenset[AttributeId]]:
    """Columns that the conditions make equal, in classes."""
    classes: list[frozenset[AttributeId]] = []
    for part in conditions:
        if not isinstance(part, Compare) or part.op is not CompareOp.EQUAL:
            continue
        if not (columns_of(part.left) and columns_of(part.right)):
            continue
        merged = columns_of(part.left) | columns_of(part.right)
        for result in [one for one in classes if one & merged]:
            classes.remove(result)
            merged |= result
        classes.append(merged)
    return classes


def _rank(relation: JoinInput) -> int:
    """0 with an equality to a constant, 1 with another condition or a semi join, 2 without any."""
    result = list(relation.implied)
    plan = relation.plan
    if isinstance(plan, Join) and plan.kind is JoinKind.SEMI:
        return 1
    while isinstance(plan, Select):
        result.extend(conjuncts(plan.predicate))
        plan = plan.child
    if any(_is_point(part) for part in result):
        return 0
    return 1 if result else 2


def _is_point(part: Expr) -> bool:
    if isinstance(part, Or):
        return all(any(_is_point(p) for p in conjuncts(branch)) for branch in part.operands)
    if isinstance(part, InList):
        return all(isinstance(option, Literal) for option in part.options)
    if not isinstance(part, Compare) or part.op is not CompareOp.EQUAL:
        return False
    return isinstance(part.left, Literal) or isinstance(part.right, Literal)


def pushed_below(node: Join) -> Join | None:
    """A semi or anti join moved down to the one relation of inner joins it looks at; None if none.

    Which rows of that relation have a partner does not depend on what they are joined with.
    """
    if node.kind not in (JoinKind.SEMI, JoinKind.ANTI) or node.condition is None:
        return None
    if not (isinstance(node.left, Join) and node.left.kind is JoinKind.INNER):
        return None
    own = frozenset(attribute.id for attribute in attributes_of(node.left))
    used = columns_of(node.condition) & own
    return _pushed_into(node.left, node, used) if used else None


def _pushed_into(into: Join, node: Join, used: frozenset[AttributeId]) -> Join | None:
    for side in ("left", "right"):
        plan = into.left if side == "left" else into.right
        if not used <= frozenset(attribute.id for attribute in attributes_of(plan)):
            continue
        if isinstance(plan, Join) and plan.kind is JoinKind.INNER:
            below: Plan | None = _pushed_into(plan, node, used)
        else:
            below = replace(node, left=plan)
        if below is None:
            return None
        return replace(into, left=below) if side == "left" else replace(into, right=below)
    return None
