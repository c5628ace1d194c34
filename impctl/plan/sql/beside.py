"""What a condition reads beside its row: values and marks of subqueries, joined to every row.

Law: such a join neither drops a row nor repeats one, unless no condition on what it brings could be
true of that row. So what is read beside rows can be joined below the condition, in any order.
Out of scope: which subqueries come to stand there (`plan.sql.single_value`, `plan.sql.marks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from impctl.expr.nodes import And, Expr, Span
from impctl.plan.nodes import Attribute, Join, JoinKind, Plan, Select, attributes_of
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Beside:
    """A plan joined to the rows: INNER without condition has one row, LEFT at most one partner."""

    kind: JoinKind
    plan: Plan
    condition: Expr | None
    span: Span | None

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        return attributes_of(self.plan)


@dataclass(frozen=True, slots=True)
class Single:
    """A condition that reads what stands beside the rows."""

    beside: tuple[Beside, ...]
    predicate: Expr
    span: Span | None


def put_beside(plan: Plan, items: Iterable[Beside], finish: Callable[[Expr], Expr]) -> Plan:
    """The plan with these joined; `finish` completes conditions that were read beforehand."""
    for item in items:
        condition = None if item.condition is None else finish(item.condition)
        plan = Join(item.kind, plan, item.plan, condition, span=item.span)
    return plan


def apply_single(plan: Plan, item: Single, finish: Callable[[Expr], Expr]) -> Plan:
    """The plan under the condition."""
    return Select(put_beside(plan, item.beside, finish), finish(item.predicate), span=item.span)


def conjunction(predicates: tuple[Expr, ...], span: Span | None = None) -> Expr:
    """The predicates joined by AND; one alone stays as it is."""
    return predicates[0] if len(predicates) == 1 else And(predicates, span=span)
