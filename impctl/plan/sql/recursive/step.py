"""What may stand between a step and the rows it reads of its own fixpoint.

Law: a step gives more rows, never fewer, where it reads more: selections, computed columns, joins
that keep the entry's rows, UNIONs. Where the fixpoint is a set, DISTINCT over its rows is left out,
and IN or EXISTS over them is the inner join that gives the same rows. Where it is a bag, both would
change how often a row comes; and every row that a step gives is made of one row of the entry, as
each round makes its rows of those of the last one alone. Everything else is refused by its name, at
its place. What does not read the entry may be any query.
Out of scope: WITH clauses (`plan.sql.recursive.clause`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlglot import exp

from impctl.errors import QueryError
from impctl.expr.nodes import Span
from impctl.plan.nodes import (
    Aggregate,
    ComputedColumn,
    Distinct,
    Explode,
    Fixpoint,
    Join,
    JoinKind,
    Plan,
    Project,
    Recursive,
    Select,
    SetKind,
    SetOperation,
    Sort,
    TopK,
    Window,
    attributes_of,
    nodes_of,
)
from impctl.plan.sql.marks import is_membership
from impctl.plan.sql.text import SqlText
from impctl.types import AttributeId, FixpointId
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Reference:
    """A leaf, and the name in the text that it was read from."""

    leaf: Recursive
    place: exp.Expression


_ONLY_ONCE = (
    "use UNION if each row is needed once, or use a join: with UNION ALL it would count how often "
    "a row is derived"
)
_ONE_ROW = (
    "use UNION, which joins all rows so far; UNION ALL joins only the rows of the last round, so "
    "the result depends on the number of rounds"
)

References = Mapping[AttributeId, Reference]
"""By the identity of the leaf's first column."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The WITH entry of a step: its name and id, of UNION or UNION ALL, and where the step is."""

    fixpoint: FixpointId
    name: str
    is_set: bool
    place: Span | None


def as_step(plan: Plan, entry: Entry, references: References, text: SqlText) -> Plan:
    """The plan of a step as it is kept; QueryError for what a step may not be."""
    step = _Step(entry, references, text)
    step.refuse_without(plan, entry.place)
    return step.of(plan)


@dataclass(frozen=True, slots=True)
class _Step:
    entry: Entry
    references: References
    text: SqlText

    def refuse_without(self, plan: Plan, place: Span | None) -> None:
        """Of UNION ALL, rows that are made of no row of the entry would come in every round."""
        if self.entry.is_set or self._leaves(plan):
            return
        raise self.text.unsupported(
            f"rows derived without `{self.entry.name}` in its own step of UNION ALL",
            plan.span if plan.span is not None else place,
            hint="move them to the first part: here every round derives them again",
        )

    def of(self, plan: Plan) -> Plan:
        """The node over its inputs, all that reads the entry looked at."""
        if not self._leaves(plan):
            return plan
        match plan:
            case Recursive():
                return plan
            case Distinct() if self.entry.is_set:
                return self.of(plan.child)
            case Join():
                return self._join(plan)
            case SetOperation(kind=SetKind.UNION) if self.entry.is_set or plan.all:
                for side in (plan.left, plan.right):
                    self.refuse_without(side, plan.span)
                left, right = self.of(plan.left), self.of(plan.right)
                return replace(plan, all=True, left=left, right=right)
            case Select() | Project():
                return replace(plan, child=self.of(plan.child))
            case Distinct() | SetOperation(kind=SetKind.UNION):
                raise self._refusal(plan, _construct(plan), _ONLY_ONCE)
            case _:
                raise self._refusal(plan, _construct(plan))

    def _leaves(self, plan: Plan) -> tuple[Recursive, ...]:
        return tuple(
            node
            for node in nodes_of(plan)
            if isinstance(node, Recursive) and node.fixpoint == self.entry.fixpoint
        )

    def _join(self, join: Join) -> Plan:
        sides = bool(self._leaves(join.left)), bool(self._leaves(join.right))
        padded = {
            JoinKind.LEFT: (False, True),
            JoinKind.RIGHT: (True, False),
            JoinKind.FULL: (True, True),
        }.get(join.kind, (False, False))
        if any(here and there for here, there in zip(sides, padded, strict=True)):
            raise self._refusal(join, f"the optional side of a {join.kind.value} join")
        if join.kind is JoinKind.ANTI and sides[1]:
            raise self._refusal(join, "NOT IN, NOT EXISTS or an anti join")
        if not self.entry.is_set and join.kind is JoinKind.SEMI and sides[1]:
            raise self._refusal(join, "IN, EXISTS or a semi join", _ONLY_ONCE)
        if not self.entry.is_set and all(sides):
            raise self._refusal(join, "a join of two of its rows", _ONE_ROW)
        left, right = self.of(join.left), self.of(join.right)
        if join.kind is not JoinKind.SEMI or not sides[1]:
            return replace(join, left=left, right=right)
        # A row comes once for each partner, which a set does not tell from once.
        kept = tuple(ComputedColumn(a, a.ref()) for a in attributes_of(join.left))
        both = replace(join, kind=JoinKind.INNER, left=left, right=right)
        return Project(both, kept, span=join.span)

    def _refusal(self, node: Plan, construct: str, hint: str = "") -> QueryError:
        leaf = self._leaves(node)[0]
        reference = self.references[leaf.attributes[0].id]
        construct = self._around(reference.place, node) or construct
        return self.text.unsupported(
            f"{construct} over recursive `{self.entry.name}` in its own step",
            node.span if node.span is not None else leaf.span,
            hint=hint
            or "a step can only filter, join and compute; move this to a query that reads "
            f"`{self.entry.name}`",
        )

    def _around(self, place: exp.Expression, node: Plan) -> str | None:
        """What the text has around the name, where the plan spells it in other operators."""
        if not isinstance(node, Join | Aggregate):
            return None
        inner: Any = place
        outer: Any = place.parent
        while outer is not None and not isinstance(outer, exp.CTE):
            if is_membership(outer) and isinstance(node, Join) and node.kind is JoinKind.LEFT:
                return "IN or EXISTS under OR"
            is_relation = isinstance(outer, exp.From | exp.Join | exp.SetOperation | exp.Subquery)
            if isinstance(inner, exp.Subquery) and not is_relation and not is_membership(outer):
                return "a subquery used as a value"
            inner, outer = outer, outer.parent
        return None


def _construct(node: Plan) -> str:
    """What the user calls the node."""
    match node:
        case Aggregate(aggregates=()):
            return "GROUP BY"
        case Aggregate():
            return "an aggregate function"
        case Window():
            return "a window function"
        case Sort():
            return "ORDER BY"
        case TopK(rank=None):
            return "LIMIT"
        case TopK():
            return "DISTINCT ON"
        case SetOperation():
            return node.kind.value.upper()
        case Distinct():
            return "DISTINCT"
        case Explode():
            return "LATERAL VIEW"
        case Fixpoint():
            return "another recursion"
    return type(node).__name__.upper()
