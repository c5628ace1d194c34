"""The rows of a bag as a plan: its relations joined, other joins inside it on top.

Law: the plan's rows are the combinations of the relations' rows that meet all conditions over them
alone, equal columns of one class included, so that one of these stands for all.
Out of scope: building it (`circuits.joins`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce

from impctl.circuits.trees.classes import KeyClass
from impctl.circuits.trees.taken_apart import TakenApart
from impctl.expr.nodes import And, Compare, CompareOp, Expr
from impctl.plan.nodes import Join, JoinKind, Plan, Select


def rows_of(bag: Collection[int], joins: TakenApart, *, is_first: bool) -> Plan:
    """The plan of a bag; conditions that read no column are left to the first one."""
    relations, count = joins.relations, joins.count
    own = [at for at in sorted(bag) if at < count]
    conditions = conditions_in(bag, joins, is_first=is_first)
    for condition in _equalities(bag, joins.classes):
        conditions.append((condition, relations.owners_of(condition)))
    plans = [
        selected(relations.plans[at], [one for one, read in conditions if read == {at}])
        for at in own
    ]
    joined: Plan = reduce(lambda left, right: Join(JoinKind.INNER, left, right, None), plans)
    if len(own) > 1:
        assert isinstance(joined, Join)
        between = [one for one, read in conditions if len(read) > 1 and max(read) < count]
        joined = Join(JoinKind.INNER, joined.left, joined.right, all_of(between))
    for at in joins.inside:
        if joins.host_of(at) <= frozenset(bag):
            beside = relations.beside[at]
            on = all_of(beside.parts)
            joined = Join(
                beside.kind, joined, beside.other, on, beside.null_aware, span=beside.span
            )
    return selected(joined, [one for one, read in conditions if max(read) >= count])


def conditions_in(
    bag: Collection[int], joins: TakenApart, *, is_first: bool
) -> list[tuple[Expr, frozenset[int]]]:
    """The conditions over relations of a bag alone that are no equality of a class, with these."""
    first = frozenset({min(bag)})
    read = [(one, joins.relations.owners_of(one)) for one in joins.conditions]
    own = [(one, at) for one, at in read if at <= frozenset(bag) and (at or is_first)]
    return [(one, at or first) for one, at in own]


def selected(plan: Plan, conditions: Sequence[Expr]) -> Plan:
    """The plan's rows for which all conditions are true."""
    predicate = all_of(conditions)
    return plan if predicate is None else Select(plan, predicate, span=predicate.span)


def _equalities(bag: Collection[int], classes: Sequence[KeyClass]) -> list[Expr]:
    """That the members which the bag has of each class are equal."""
    result: list[Expr] = []
    for one in classes:
        op = CompareOp.NULL_SAFE_EQUAL if one.null_safe else CompareOp.EQUAL
        members = one.members_in(bag)
        result.extend(Compare(op, members[0], other) for other in members[1:])
    return result


def all_of(conditions: Sequence[Expr]) -> Expr | None:
    """The conjunction; None of nothing."""
    if not conditions:
        return None
    return conditions[0] if len(conditions) == 1 else And(tuple(conditions))
