"""IN and EXISTS under OR: marks beside the rows, of which the condition asks whether one is there.

Law: the subquery's values, each once, are joined LEFT to the rows by equality; a row has at most
one partner, and the mark it brings is NULL where there is none. That tells true from not true, all
that a condition made of AND and OR asks; below NOT, and of values compared in any other way, the
difference between false and NULL or the number of partners would count, and it is refused.
Out of scope: IN and EXISTS that are conditions of their own, which join directly
(`plan.sql.condition`).
"""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from impctl.data.schema import BOOLEAN
from impctl.expr.nodes import Compare, CompareOp, Expr, IsNull, Literal, Not, columns_of
from impctl.expr.types import groups_as_compared, type_of
from impctl.plan.nodes import (
    Attribute,
    ComputedColumn,
    Distinct,
    JoinKind,
    Plan,
    Project,
    Select,
    attributes_of,
)
from impctl.plan.sql.beside import Beside, conjunction
from impctl.plan.sql.context import attribute_for
from impctl.plan.sql.expr import ExprReader
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Mark:
    """What stands beside the rows, and the expression that is true of rows with a partner."""

    beside: Beside
    is_there: Expr


def is_membership(node: exp.Expression) -> bool:
    """Whether the node is IN or EXISTS of a subquery."""
    return isinstance(node, exp.Exists) or (
        isinstance(node, exp.In) and node.args.get("query") is not None
    )


def nested_memberships(node: exp.Expression) -> list[exp.Expression]:
    """IN and EXISTS of the condition that only AND, OR and parentheses stand above."""
    result: list[exp.Expression] = []
    pending = [node]
    while pending:
        current = pending.pop()
        if is_membership(current):
            result.append(current)
        elif isinstance(current, exp.Paren | exp.And | exp.Or):
            pending += [p for p in current.iter_expressions() if isinstance(p, exp.Expression)]
    return result


def mark_of(
    plan: Plan,
    conditions: tuple[Expr, ...],
    node: exp.Expression,
    reader: ExprReader,
) -> Mark:
    """Of a subquery's rows and its conditions a mark; QueryError where they are no equalities."""
    span = reader.text.span_of(node)
    own = {attribute.id for attribute in attributes_of(plan)}
    inner: list[Expr] = []
    outer: list[Expr] = []
    within: list[Expr] = []
    for condition in conditions:
        if columns_of(condition) <= own:
            within.append(condition)
            continue
        pair = _sides(condition, own)
        if pair is None:
            raise reader.text.unsupported(
                "IN or EXISTS under OR with a subquery that is correlated by more than equalities",
                node,
                hint="write the query as a UNION of both cases, or join the subquery in FROM",
            )
        inner.append(pair[0])
        outer.append(pair[1])
    if within:
        plan = Select(plan, conjunction(tuple(within), span), span=span)
    names = [f"key {number}" for number, _ in enumerate(inner)]
    ids = reader.reading.fresh("p", names)
    keys = tuple(
        ComputedColumn(attribute_for(identity, name, expr), expr)
        for identity, name, expr in zip(ids, names, inner, strict=True)
    )
    (identity,) = reader.reading.fresh("p", ["mark"])
    marked = Attribute(identity, "mark", BOOLEAN, nullable=False)
    truth = ComputedColumn(marked, Literal(True, BOOLEAN))
    distinct = Distinct(Project(plan, (*keys, truth), span=span), span=span)
    equal = tuple(
        Compare(CompareOp.EQUAL, one, key.attribute.ref(span), span=span)
        for one, key in zip(outer, keys, strict=True)
    )
    joined = conjunction(equal, span) if equal else Literal(True, BOOLEAN)
    beside = Beside(JoinKind.LEFT, distinct, joined, span)
    there = IsNull(replace(marked, nullable=True).ref(span), span=span)
    return Mark(beside, Not(there, span=span))


def _sides(condition: Expr, own: set[str]) -> tuple[Expr, Expr] | None:
    """An equality's side of the subquery and that of the row; None for any other condition."""
    if not (isinstance(condition, Compare) and condition.op is CompareOp.EQUAL):
        return None
    for one, other in (
        (condition.left, condition.right),
        (condition.right, condition.left),
    ):
        if columns_of(one) <= own and columns_of(other).isdisjoint(own):
            alike = groups_as_compared(type_of(one), type_of(other))
            return (one, other) if alike else None
    return None
