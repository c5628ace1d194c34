"""What a block joins: relations, the conditions on them, and other joins beside.

Law: all combinations of the relations' rows that meet the conditions, and find on the other joins'
sides what these ask for, are the rows of the plan. Selections, columns and joins on the way are
taken apart; expressions are put in terms of the relations' columns. A semi, anti or left join does
not depend on what the rows it looks at are joined with, so it stands beside.
Out of scope: which relations become one bag (`circuits.trees.bags`).
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.circuits.trees.shape import Values
from impctl.expr.nodes import Expr, Span, columns_of, conjuncts, substitute
from impctl.plan.nodes import Join, JoinKind, Plan, Project, Select, Sort, attributes_of
from impctl.types import AttributeId
from impctl.values import dataclass

_BESIDE = frozenset({JoinKind.SEMI, JoinKind.ANTI, JoinKind.LEFT, JoinKind.RIGHT})


@dataclass(frozen=True, slots=True)
class Beside:
    """A semi, anti or left join: its other side, and the parts of its condition.

    `padded` are the columns of the other side that the rows go on with, NULL without a partner:
    those of a left join. A right join stands here turned.
    """

    kind: JoinKind
    other: Plan
    parts: tuple[Expr, ...]
    null_aware: bool
    span: Span | None

    @property
    def ids(self) -> frozenset[AttributeId]:
        return frozenset(attribute.id for attribute in attributes_of(self.other))

    @property
    def padded(self) -> frozenset[AttributeId]:
        return self.ids if self.kind is JoinKind.LEFT else frozenset()


@dataclass(frozen=True, slots=True)
class Relations:
    """Relations in the order of the SQL, conditions, joins beside them, and columns on top.

    `late` are those of the conditions that stood above a join, so that only its rows met them;
    `values` are the columns of projections in terms of the relations' own.
    """

    plans: tuple[Plan, ...]
    conditions: tuple[Expr, ...]
    late: tuple[Expr, ...]
    beside: tuple[Beside, ...]
    values: Values

    def resolved(self, expr: Expr) -> Expr:
        """The expression over the plan's columns in terms of the relations' own."""
        return substitute(expr, self.values) if self.values else expr

    def owners_of(self, expr: Expr) -> frozenset[int]:
        """The relations that the expression reads; left joins are numbered after all relations."""
        return owners_of(expr, self.columns)

    @property
    def columns(self) -> tuple[frozenset[AttributeId], ...]:
        """The columns of each relation, then those that each join beside adds."""
        own = (frozenset(a.id for a in attributes_of(plan)) for plan in self.plans)
        return (*own, *(one.padded for one in self.beside))


def owners_of(expr: Expr, columns: Sequence[frozenset[AttributeId]]) -> frozenset[int]:
    """The places of the sets of columns that the expression reads of."""
    used = columns_of(expr)
    return frozenset(at for at, own in enumerate(columns) if own & used)


def relations_of(plan: Plan) -> Relations:
    """The relations of everything that is joined at the top of the plan."""
    match plan:
        case Select() if _has_join(plan.child):
            below = relations_of(plan.child)
            parts = tuple(below.resolved(part) for part in conjuncts(plan.predicate))
            return _with(below, conditions=parts, late=parts)
        case Project() if _has_join(plan.child):
            below = relations_of(plan.child)
            made = {one.attribute.id: below.resolved(one.expr) for one in plan.outputs}
            return _with(below, values=made)
        case Sort() if _has_join(plan.child):
            return relations_of(plan.child)
        case Join(kind=JoinKind.INNER):
            left, right = relations_of(plan.left), relations_of(plan.right)
            both = _together(left, right)
            parts = () if plan.condition is None else conjuncts(plan.condition)
            return _with(both, conditions=tuple(both.resolved(part) for part in parts))
        case Join() if plan.kind in _BESIDE:
            return _with_beside(plan)
    return Relations((plan,), (), (), (), {})


def _has_join(plan: Plan) -> bool:
    """Whether there is a join that is taken apart below selections and columns."""
    while isinstance(plan, Select | Project | Sort):
        plan = plan.child
    return isinstance(plan, Join) and (plan.kind is JoinKind.INNER or plan.kind in _BESIDE)


def _with_beside(join: Join) -> Relations:
    is_turned = join.kind is JoinKind.RIGHT
    kept, other = (join.right, join.left) if is_turned else (join.left, join.right)
    kind = JoinKind.LEFT if is_turned else join.kind
    below = relations_of(kept)
    whole = () if join.condition is None else conjuncts(join.condition)
    parts = tuple(below.resolved(part) for part in whole)
    one = Beside(kind, other, parts, join.null_aware, join.span or _span_of(parts))
    return _with(below, beside=(one,))


def _span_of(parts: Sequence[Expr]) -> Span | None:
    return next((part.span for part in parts if part.span is not None), None)


def _with(
    below: Relations,
    *,
    conditions: tuple[Expr, ...] = (),
    late: tuple[Expr, ...] = (),
    beside: tuple[Beside, ...] = (),
    values: Values | None = None,
) -> Relations:
    return Relations(
        below.plans,
        (*below.conditions, *conditions),
        (*below.late, *late),
        (*below.beside, *beside),
        {**below.values, **(values or {})},
    )


def _together(left: Relations, right: Relations) -> Relations:
    return Relations(
        (*left.plans, *right.plans),
        (*left.conditions, *right.conditions),
        (*left.late, *right.late),
        (*left.beside, *right.beside),
        {**left.values, **right.values},
    )
