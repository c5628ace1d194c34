"""Comparisons with a subquery that has one value, as joins.

Law: an aggregate without GROUP BY has exactly one row and joins as that row. One whose WHERE
equates columns of its own with columns of the enclosing query is the same aggregate grouped by
these columns, joined on them: a row without a group compares with NULL and is dropped either way.
Both have one type, else values of several groups could equal one value of the enclosing query.
That holds where no rows give NULL, so not for COUNT nor for what makes a value of NULL.
Out of scope: subqueries after IN and EXISTS (`parse_condition`).
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from impctl.errors import QueryError
from impctl.expr.nodes import And, Compare, CompareOp, Expr, Span
from impctl.expr.types import groups_as_compared, type_of
from impctl.plan.nodes import Aggregate, Plan, Project, Sort, attributes_of
from impctl.plan.sql.call import function_name
from impctl.plan.sql.expr import COMPARISONS, ExprReader
from impctl.plan.sql.relation import Environment, read_from
from impctl.plan.sql.scope import Names
from impctl.plan.sql.subquery import bare, closed, unwrapped

_NULL_WHEN_EMPTY = frozenset({"sum", "avg", "mean", "min", "max"})
_PASSES_NULL = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Neg, exp.Paren, exp.Literal)
_UNKNOWN = frozenset({"column_unknown", "table_unknown"})


@dataclass(frozen=True, slots=True)
class Single:
    """A comparison with a subquery of exactly one row, whose column the predicate names."""

    right: Plan
    predicate: Expr
    span: Span | None


def read_single(
    node: exp.Expression, reader: ExprReader, environment: Environment
) -> Single | None:
    """A comparison with a subquery on one side; None for anything else."""
    op = COMPARISONS.get(type(node))
    if op is None or isinstance(node, exp.NullSafeNEQ):
        return None
    sides = [bare(node.this), bare(node.expression)]
    if sum(isinstance(side, exp.Subquery) for side in sides) != 1:
        return None
    place = 0 if isinstance(sides[0], exp.Subquery) else 1
    span = reader.text.span_of(node)
    right, keys = _read(sides[place], op, reader, environment, span)
    value: Expr = attributes_of(right)[-1].ref(span)
    other = reader.read(sides[1 - place])
    pair = (value, other) if place == 0 else (other, value)
    left, against = reader.alike(*pair)
    compared = Compare(op, left, against, span=span)
    return Single(right, And((*keys, compared), span=span) if keys else compared, span)


def _read(
    side: exp.Expression,
    op: CompareOp,
    reader: ExprReader,
    environment: Environment,
    span: Span | None,
) -> tuple[Plan, tuple[Expr, ...]]:
    """The subquery's plan, its value last, and the equalities it joins on."""
    query = unwrapped(side)
    try:
        right = closed(query, reader, environment)
    except QueryError as error:
        if error.code not in _UNKNOWN or op is CompareOp.NULL_SAFE_EQUAL:
            raise
        found = _by_groups(query, reader, environment, span)
        if found is None:
            raise
        return found
    if len(attributes_of(right)) != 1 or not _is_one_row(right):
        raise reader.text.unsupported(
            "a subquery that may have more than one value",
            side,
            hint="compare with an aggregate without GROUP BY, or join the subquery in FROM",
        )
    return right, ()


def _is_one_row(plan: Plan) -> bool:
    """Whether the plan has exactly one row by its form."""
    while isinstance(plan, Project | Sort):
        plan = plan.child
    return isinstance(plan, Aggregate) and not plan.keys and plan.grouping_sets is None


def _by_groups(
    query: exp.Expression, reader: ExprReader, environment: Environment, span: Span | None
) -> tuple[Plan, tuple[Expr, ...]] | None:
    """An aggregate over rows equated with the enclosing query's, one row per group of them."""
    if not isinstance(query, exp.Select) or len(query.expressions) != 1:
        return None
    parts = {name.rstrip("_") for name, value in query.args.items() if value}
    where = query.args.get("where")
    if where is None or not parts <= {"expressions", "from", "joins", "where"}:
        return None
    if not _is_null_when_empty(query.expressions[0].unalias()):
        return None
    scope = read_from(query, environment).scope
    inner = ExprReader(reader.reading, Names(reader.text, scope), "WHERE")
    own: list[exp.Expression] = []
    keys: list[exp.Expression] = []
    outside: list[Expr] = []
    for condition in _conjuncts(where.this):
        if _reads(inner, condition):
            own.append(condition)
            continue
        pair = _pair(condition, inner)
        if pair is None:
            return None
        keys.append(pair[0])
        outside.append(reader.read(pair[1]))
    grouped = query.copy()
    named = [
        exp.alias_(key.copy(), f"impctl_key{number}", copy=False) for number, key in enumerate(keys)
    ]
    grouped.set("expressions", [*named, *grouped.expressions])
    grouped.set("where", exp.Where(this=exp.and_(*own, copy=True)) if own else None)
    grouped.set("group", exp.Group(expressions=[key.copy() for key in keys]))
    right = closed(grouped, reader, environment)
    refs = [attribute.ref(span) for attribute in attributes_of(right)]
    for key, one, ref in zip(keys, outside, refs, strict=False):
        if not groups_as_compared(type_of(one), type_of(ref)):
            raise reader.text.unsupported(
                "a subquery whose WHERE equates values of different types with the query's",
                key,
                hint="cast the subquery's side to the type of the other",
            )
    equal = [
        Compare(CompareOp.EQUAL, one, ref, span=span)
        for one, ref in zip(outside, refs, strict=False)
    ]
    return right, tuple(equal)


def _conjuncts(node: exp.Expression) -> list[exp.Expression]:
    node = bare(node)
    if not isinstance(node, exp.And):
        return [node]
    return [*_conjuncts(node.this), *_conjuncts(node.expression)]


def _is_null_when_empty(value: exp.Expression) -> bool:
    """Whether the value over no rows is NULL: arithmetic over aggregates that are."""
    if function_name(value) in _NULL_WHEN_EMPTY:
        return True
    parts = list(value.iter_expressions())
    if not isinstance(value, _PASSES_NULL) or isinstance(value, exp.Literal):
        return False
    others = [part for part in parts if not isinstance(bare(part), exp.Literal)]
    return bool(others) and all(_is_null_when_empty(bare(part)) for part in others)


def _reads(reader: ExprReader, node: exp.Expression) -> bool:
    """Whether the subquery's own columns are enough for an expression."""
    try:
        reader.read(node)
    except QueryError as error:
        if error.code in _UNKNOWN:
            return False
        raise
    return True


def _pair(
    condition: exp.Expression, inner: ExprReader
) -> tuple[exp.Expression, exp.Expression] | None:
    """An equality's own side and its other one; None for another kind of condition."""
    if not isinstance(condition, exp.EQ):
        return None
    sides = (condition.this, condition.expression)
    mine = [_reads(inner, side) for side in sides]
    if mine[0] == mine[1]:
        return None
    own, other = sides if mine[0] else (sides[1], sides[0])
    # A name is the subquery's own where it has such a column, whatever stands beside it.
    is_mixed = any(_reads(inner, column) for column in other.find_all(exp.Column))
    return None if is_mixed else (own, other)
