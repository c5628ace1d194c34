"""Bags whose relations equal columns join in a circle, which are probed instead of joined in turn.

Law: a bag is a circle if all that holds between its relations are equalities of classes, and these
are not acyclic; its rows are the combinations of the relations' rows that are equal in each class.
A bag that conditions beyond equality or other joins are in is joined as every join is.
Out of scope: the operator (`engine.jointree.cyclic`), building it (`circuits.trees.probed`).
"""

from __future__ import annotations

from collections.abc import Collection

from impctl.circuits.trees.rooted import Bag, is_acyclic
from impctl.circuits.trees.rows import conditions_in, selected
from impctl.circuits.trees.shape import CircleRows
from impctl.circuits.trees.taken_apart import TakenApart
from impctl.expr.nodes import Compare, CompareOp

_FEWEST = 3


def circle_of(bag: Collection[int], joins: TakenApart, *, is_first: bool) -> CircleRows | None:
    """The circle that a bag is; None where it is none."""
    own = sorted(bag)
    if len(own) < _FEWEST or max(own) >= joins.count or joins.bounded:
        return None
    if any(joins.host_of(at) <= frozenset(bag) for at in joins.inside):
        return None
    conditions = conditions_in(bag, joins, is_first=is_first)
    classes = [one for one in joins.classes if len(one.relations & set(own)) > 1]
    sets = _sets(own, [one.relations for one in classes])
    if any(len(read) > 1 for _, read in conditions) or is_acyclic(sets) or not _hang(sets):
        return None
    keys = tuple(
        tuple(
            (place, next(iter(one.members_in({at}))))
            for place, one in enumerate(classes)
            if at in one.relations
        )
        for at in own
    )
    plans = []
    for at in own:
        mine = [one for one, read in conditions if read == {at}]
        for one in joins.classes:
            op = CompareOp.NULL_SAFE_EQUAL if one.null_safe else CompareOp.EQUAL
            first, *others = one.members_in({at}) or (None,)
            mine += [Compare(op, first, other) for other in others if first is not None]
        plans.append(selected(joins.relations.plans[at], mine))
    return CircleRows(tuple(plans), keys, tuple(one.null_safe for one in classes))


def _sets(own: Collection[int], relations: Collection[frozenset[int]]) -> list[Bag]:
    """Per relation the classes it is in."""
    return [frozenset(place for place, one in enumerate(relations) if at in one) for at in own]


def _hang(bags: list[Bag]) -> bool:
    """Whether all are connected by classes."""
    reached, left = bags[0], list(bags[1:])
    while True:
        near = [bag for bag in left if bag & reached]
        if not near:
            return not left
        reached = reached.union(*near)
        left = [bag for bag in left if bag not in near]
