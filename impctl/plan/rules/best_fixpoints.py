"""Fixpoints that keep the best rows of each group alone, where nothing else is read of them.

Law: the bag of rows of the plan stays the same. MIN or MAX over the rows of a fixpoint reads the
best ones, and so does a join of its rows back to these values on equality of groups and value. Of a
fixpoint whose rows have no end, as costs along a circle, this gives the best that there are.
Out of scope: the conditions (`plan.best_reads`), telling why not (`plan.recursion_notes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from impctl.expr.nodes import ColumnRef, Compare, CompareOp, Expr, conjuncts
from impctl.plan.best_only import BestOnly, BestValue
from impctl.plan.best_reads import NotBestOnlyError, Wanted, best_of_groups, best_only
from impctl.plan.fingerprint import fingerprint
from impctl.plan.fixpoint_tables import outer_fixpoints
from impctl.plan.nodes import (
    Aggregate,
    Distinct,
    Fixpoint,
    Join,
    JoinKind,
    Plan,
    Project,
    Select,
    Sort,
    inputs_of,
    with_inputs,
)
from impctl.plan.ways import LeafWay, NotFollowedError, ways_of
from impctl.types import AttributeId
from impctl.values import dataclass

_Told = TypeVar("_Told")
_Found = dict[AttributeId, BestOnly]
"""What of a fixpoint may stay, by its first column."""


def best_fixpoints(root: Plan) -> Plan:
    """The plan with fixpoints that keep the best rows alone."""
    if next(outer_fixpoints(root), None) is None:
        return root
    result: _Found = {}
    _look(root, (), result)
    return _marked(root, result) if result else root


def _marked(plan: Plan, result: _Found) -> Plan:
    inputs = inputs_of(plan)
    made = with_inputs(plan, tuple(_marked(one, result) for one in inputs)) if inputs else plan
    if isinstance(made, Fixpoint) and made.best is None:
        return replace(made, best=result.get(made.attributes[0].id))
    return made


def _look(plan: Plan, above: tuple[Expr, ...], result: _Found) -> None:
    """Note what may stay below this node; `above` are conditions that its rows must meet."""
    below: tuple[Expr, ...] = ()
    match plan:
        case Select():
            below = (*above, *conjuncts(plan.predicate))
        case Aggregate():
            for fixpoint in outer_fixpoints(plan.child):
                try:
                    result[fixpoint.attributes[0].id] = best_of_groups(plan, fixpoint)
                except NotBestOnlyError:
                    continue
        case Join(kind=JoinKind.INNER | JoinKind.SEMI):
            on = () if plan.condition is None else conjuncts(plan.condition)
            _look_back(plan, (*above, *on), result)
    for child in inputs_of(plan):
        _look(child, below, result)


def _look_back(plan: Join, on: Sequence[Expr], result: _Found) -> None:
    """Note fixpoints of one side that are joined back to the best values on the other."""
    sides = [(plan.left, plan.right)]
    sides += [(plan.right, plan.left)] if plan.kind is JoinKind.INNER else []
    for rows, best in sides:
        values = _values_of(best)
        if values is None:
            continue
        for fixpoint in outer_fixpoints(rows):
            if fixpoint.id != values.fixpoint.id or fixpoint.best is not None:
                continue
            if fingerprint(fixpoint) != fingerprint(values.fixpoint):
                continue
            wanted = _wanted(rows, fixpoint, values, on)
            if wanted is None:
                continue
            try:
                result[fixpoint.attributes[0].id] = best_only(fixpoint, wanted)
            except NotBestOnlyError:
                continue


@dataclass(frozen=True, slots=True)
class _Values:
    """Best values of a fixpoint by groups: by column, the place that it is, or the value."""

    fixpoint: Fixpoint
    keys: dict[AttributeId, int]
    places: frozenset[int]
    values: dict[AttributeId, BestValue]


def _values_of(plan: Plan) -> _Values | None:
    """The best values that are all this plan puts out, of all rows of a fixpoint."""
    names: list[Project] = []
    while isinstance(plan, Project | Sort | Distinct):
        names += [plan] if isinstance(plan, Project) else []
        plan = plan.child
    if not isinstance(plan, Aggregate) or plan.grouping_sets is not None:
        return None
    below = plan.child
    inner: list[Project] = []
    while isinstance(below, Project | Sort):
        inner += [below] if isinstance(below, Project) else []
        below = below.child
    if not isinstance(below, Fixpoint) or below.best is not None:
        return None
    own = {attribute.id: place for place, attribute in enumerate(below.attributes)}
    for project in reversed(inner):
        own = dict(_renamed(project, own))
    keys = {key.attribute.id: own.get(_name(key.expr)) for key in plan.keys}
    values = {}
    for output in plan.aggregates:
        call = output.call
        if call.function in ("min", "max") and call.condition is None:
            place = own.get(_name(call.arguments[0]))
            if place is not None:
                values[output.attribute.id] = BestValue(place, call.function == "max")
    if None in keys.values():
        return None
    places = {name: place for name, place in keys.items() if place is not None}
    every = frozenset(places.values())
    for project in reversed(names):
        places, values = dict(_renamed(project, places)), dict(_renamed(project, values))
    return _Values(below, places, every, values)


def _name(expr: Expr) -> AttributeId:
    return expr.id if isinstance(expr, ColumnRef) else ""


def _renamed(
    project: Project, known: Mapping[AttributeId, _Told]
) -> Iterator[tuple[AttributeId, _Told]]:
    for output in project.outputs:
        name = _name(output.expr)
        if name in known:
            yield output.attribute.id, known[name]


def _wanted(rows: Plan, fixpoint: Fixpoint, values: _Values, on: Sequence[Expr]) -> Wanted | None:
    """What is asked of it, where rows meet their group's best by these conditions."""
    try:
        ways = ways_of(rows, lambda node: node is fixpoint)
    except NotFollowedError:
        return None
    if len(ways) != 1:
        return None
    met, best = set(), []
    for condition in on:
        for place, name, is_null_safe in _pairs(ways[0], condition):
            if values.keys.get(name) == place:
                met.add(place)
            value = values.values.get(name)
            if value is not None and value.place == place and not is_null_safe:
                best.append(value)
    if not best or met != values.places:
        return None
    return Wanted(values.places, tuple(dict.fromkeys(best[:1])))


def _pairs(way: LeafWay, condition: Expr) -> Iterator[tuple[int, AttributeId, bool]]:
    """Where a column of the leaf equals another column: its place, and that one."""
    if not isinstance(condition, Compare) or way.leaf is None:
        return
    if condition.op not in (CompareOp.EQUAL, CompareOp.NULL_SAFE_EQUAL):
        return
    places = {attribute.id: place for place, attribute in enumerate(way.leaf)}
    for one, other in (
        (condition.left, condition.right),
        (condition.right, condition.left),
    ):
        place = places.get(_name(way.over(one)))
        if place is not None and isinstance(other, ColumnRef):
            yield place, other.id, condition.op is CompareOp.NULL_SAFE_EQUAL
