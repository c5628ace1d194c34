"""Joins taken apart for a tree: classes, edges, and the bags that conditions and calls ask for.

Law: a condition is an equality of a class, or is over one bag; a join beside is an edge that hangs
on one bag, or inside one; a call's arguments and a group expression are over one bag, or over the
other side of one left edge. Cycles and group columns are looked at later.
Out of scope: the tree (`circuits.trees.shaping`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from impctl.circuits.trees.bags import Bags
from impctl.circuits.trees.classes import Equality, KeyClass, classes_of, equality_of
from impctl.circuits.trees.exact_columns import bounded_columns
from impctl.circuits.trees.other_joins import EdgeJoin, edge_of, is_null_with
from impctl.circuits.trees.relations import Beside, Relations, relations_of
from impctl.circuits.trees.shape import Merging
from impctl.expr.nodes import ColumnRef, Expr, Span, columns_of
from impctl.plan.explain import Names, expr_text
from impctl.plan.nodes import Plan, attributes_of
from impctl.types import AttributeId
from impctl.values import dataclass

Calls = Mapping[int, tuple[Expr, ...]]
"""Per call of a grouping, by its place there, the expressions it reads of one row."""


Shown = tuple[tuple[ColumnRef, Expr], ...]
"""Columns of joined rows, each with what it is in terms of the relations below."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of joined rows: columns that one bag has to have, arguments of calls, and
    columns that any bag may have. `one_by_one` are the calls whose values are told one by one, of
    columns that the root has to have: those that count once, and those that an order finds."""

    columns: tuple[Expr, ...] = ()
    calls: Calls | None = None
    shown: Shown = ()
    one_by_one: frozenset[int] = frozenset()

    @property
    def arguments(self) -> Calls:
        return self.calls or {}

    def of(self, relations: Relations) -> Asked:
        """The same in terms of the relations' own columns."""
        calls = {
            at: tuple(relations.resolved(part) for part in parts)
            for at, parts in self.arguments.items()
        }
        shown = tuple((ref, relations.resolved(expr)) for ref, expr in self.shown)
        columns = tuple(relations.resolved(column) for column in self.columns)
        return Asked(columns, calls, shown, self.one_by_one)

    @property
    def told_one_by_one(self) -> Calls:
        """The arguments of each call whose values are told one by one."""
        return {at: self.arguments[at] for at in sorted(self.one_by_one)}


@dataclass(frozen=True, slots=True)
class TakenApart:
    """`conditions` are those that are no equality of a class, `inside` the places of joins beside
    that are of a bag's rows; `edges` has the others. `asked` is in terms of the relations."""

    relations: Relations
    asked: Asked
    classes: tuple[KeyClass, ...]
    conditions: tuple[Expr, ...]
    edges: Mapping[int, EdgeJoin]
    inside: tuple[int, ...]
    first_inside: Merging | None
    """Why the first of the joins beside that are inside a bag is no edge."""
    equal_at: Span | None
    """The place of the first equality between relations."""
    bounded: frozenset[AttributeId]
    bags: Bags

    @property
    def count(self) -> int:
        """How many relations there are; larger numbers stand for what joins beside add."""
        return len(self.relations.plans)

    def host_of(self, beside: int) -> frozenset[int]:
        """The relations that the join beside looks at; the first one where it looks at none."""
        return host_of(self.relations, beside)

    def calls_of_edge(self, beside: int) -> Calls:
        """The calls whose arguments are of the other side of a left edge."""
        own = self.relations.beside[beside].padded
        return {
            at: parts
            for at, parts in self.asked.arguments.items()
            if any(columns_of(part) & own for part in parts)
        }

    def shown_by(self, relations: frozenset[int]) -> Shown:
        """The columns shown that are of these relations, or of what these joins beside add."""
        owners_of = self.relations.owners_of
        return tuple(one for one in self.asked.shown if owners_of(one[1]) & relations)


def taken_apart(plan: Plan, asked: Asked) -> TakenApart:
    """The joins at the top of the plan."""
    relations = relations_of(plan)
    asked = asked.of(relations)
    sides = (*relations.plans, *(one.other for one in relations.beside))
    bounded = frozenset().union(*(bounded_columns(side) for side in sides))
    equalities, conditions = _sorted_out(relations, bounded)
    classes = classes_of(equalities)
    edges: dict[int, EdgeJoin] = {}
    inside: dict[int, Merging] = {}
    for at, beside in enumerate(relations.beside):
        above = _read_above(at, beside, relations, asked)
        edge = edge_of(beside, classes, bounded, above)
        if isinstance(edge, EdgeJoin):
            edges[at] = edge
        else:
            inside[at] = edge
    bags = _bags(plan, relations, conditions, edges, inside)
    bags = _with_reads(bags, relations, asked, edges)
    return TakenApart(
        relations,
        asked,
        classes,
        conditions,
        edges,
        tuple(inside),
        next(iter(inside.values()), None),
        equalities[0][0].span if equalities else None,
        bounded,
        bags,
    )


def host_of(relations: Relations, beside: int) -> frozenset[int]:
    """The relations, or what other joins beside add, that a join beside looks at."""
    one = relations.beside[beside]
    count = len(relations.plans)
    read = frozenset().union(*(relations.owners_of(part) for part in one.parts))
    return read - {count + beside} or frozenset({0})


def _sorted_out(
    relations: Relations, bounded: frozenset[AttributeId]
) -> tuple[list[tuple[Equality, tuple[int, int]]], tuple[Expr, ...]]:
    """The equalities between two relations, with these, and all other conditions."""
    equalities = []
    others = []
    for condition in relations.conditions:
        result = equality_of(condition, bounded)
        between = None if result is None else _between(result, relations)
        if result is None or between is None:
            others.append(condition)
        else:
            equalities.append((result, between))
    return equalities, tuple(others)


def _between(equality: Equality, relations: Relations) -> tuple[int, int] | None:
    """The two relations that the sides are of; None where a side is of none or several."""
    left, right = (relations.owners_of(side) for side in equality.sides)
    if len(left) != 1 or len(right) != 1 or left == right:
        return None
    return next(iter(left)), next(iter(right))


def _read_above(
    at: int, beside: Beside, relations: Relations, asked: Asked
) -> frozenset[AttributeId]:
    """Columns of the padded side that conditions, other joins, group columns or calls that mind
    the padding read."""
    others = (one for place, one in enumerate(relations.beside) if place != at)
    exprs = [*relations.conditions, *asked.columns, *(p for one in others for p in one.parts)]
    for parts in asked.arguments.values():
        is_own = all(columns_of(part) <= beside.padded for part in parts)
        if not is_own or not all(is_null_with(part, beside.padded) for part in parts):
            exprs.extend(parts)
    return frozenset().union(*(columns_of(expr) for expr in exprs))


def _bags(
    plan: Plan,
    relations: Relations,
    conditions: Sequence[Expr],
    edges: Mapping[int, EdgeJoin],
    inside: Mapping[int, Merging],
) -> Bags:
    """The bags that conditions and joins beside lead to."""
    count = len(relations.plans)
    single = [frozenset({at}) for at in (*range(count), *(count + at for at in inside))]
    padding = {count + at for at in inside if not relations.beside[at].padded}
    bags = Bags(tuple(one for one in single if not one & padding))
    names = _names(plan, relations)
    for condition in conditions:
        text = (
            f"`{expr_text(condition, names)}` is a join condition other than equality of the same "
            "type"
        )
        bags = bags.merged(relations.owners_of(condition), Merging(text, condition.span))
    for at, reason in inside.items():
        bags = bags.merged({*host_of(relations, at), count + at}, reason)
    for at, edge in edges.items():
        text = "columns of several tables are compared with the same other side"
        reason = Merging(text, relations.beside[at].span)
        bags = bags.merged(host_of(relations, at), reason) if edge.keys else bags
    return bags


def _with_reads(
    bags: Bags, relations: Relations, asked: Asked, edges: Mapping[int, EdgeJoin]
) -> Bags:
    """With bags merged that one argument or group expression reads."""
    count = len(relations.plans)
    below = {count + at for at in edges}
    for exprs, what in _read_together(asked):
        read = frozenset().union(*(relations.owners_of(expr) for expr in exprs)) - below
        span = next((expr.span for expr in exprs if expr.span is not None), None)
        bags = bags.merged(read, Merging(f"{what} reads several tables", span))
    return bags


def _read_together(asked: Asked) -> Iterator[tuple[tuple[Expr, ...], str]]:
    for column in asked.columns:
        yield (column,), "a GROUP BY column"
    for at, parts in asked.arguments.items():
        if at in asked.one_by_one:
            # Another relation may have an equal column.
            yield from (((part,), "an aggregate") for part in parts)
        else:
            yield parts, "an aggregate"


def _names(plan: Plan, relations: Relations) -> Names:
    """Names of the columns that conditions are in terms of."""
    sides = (plan, *relations.plans, *(one.other for one in relations.beside))
    return {attribute.id: attribute.name for side in sides for attribute in attributes_of(side)}
