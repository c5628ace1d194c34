"""Subqueries that have one value, wherever an expression reads them, as joins.

Law: an aggregate without GROUP BY has exactly one row and joins as that row. Any other subquery of
one column is the least of its values, NULL where it has no row; where it has several the plan
fails, as Spark does. One whose WHERE equates columns of its own with columns of the enclosing query
is the same aggregate grouped by these columns, joined on them: a row without a group compares with
NULL and is dropped either way, which takes a comparison that nothing but arithmetic parts from it.
Both have one type, else values of several groups could equal one value of the enclosing query.
That holds where no rows give NULL, so not for COUNT nor for what makes a value of NULL.
Out of scope: subqueries after IN and EXISTS (`plan.sql.condition`, `plan.sql.marks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from sqlglot import exp

from impctl.data.schema import LONG
from impctl.errors import QueryError
from impctl.expr.nodes import (
    And,
    Compare,
    CompareOp,
    Expr,
    Span,
)
from impctl.expr.signature import one_row
from impctl.expr.types import groups_as_compared, type_of
from impctl.plan.functions import AGGREGATES
from impctl.plan.nodes import (
    Aggregate,
    AggregateCall,
    AggregateOutput,
    Attribute,
    ComputedColumn,
    JoinKind,
    Plan,
    Project,
    Select,
    Sort,
    attributes_of,
)
from impctl.plan.sql.beside import Beside, Single
from impctl.plan.sql.call import function_name
from impctl.plan.sql.expr import COMPARISONS, ExprReader
from impctl.plan.sql.marks import Mark, is_membership
from impctl.plan.sql.relation import Environment, read_from
from impctl.plan.sql.scope import Names
from impctl.plan.sql.subquery import UNKNOWN, bare, closed, seen_from_inside, unwrapped
from impctl.values import dataclass

_NULL_WHEN_EMPTY = frozenset({"sum", "avg", "mean", "min", "max"})
_PASSES_NULL = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Neg, exp.Paren, exp.Literal)


def read_single(
    node: exp.Expression,
    reader: ExprReader,
    environment: Environment,
    marks: Mapping[int, Mark],
) -> Single | None:
    """A condition that reads values or marks of subqueries; None for one without any."""
    beside = [mark.beside for mark in marks.values()]
    values: dict[int, Expr] = {key: mark.is_there for key, mark in marks.items()}
    keys: list[Expr] = []
    for subquery in scalar_subqueries(node):
        result = _read(subquery, node, reader, environment)
        beside.append(result.beside)
        values[id(subquery)] = result.value
        keys += result.keys
    if not beside:
        return None
    span = reader.text.span_of(node)
    predicate = replace(reader, beside={**reader.beside, **values}).read(node)
    predicate = And((*keys, predicate), span=span) if keys else predicate
    return Single(tuple(beside), predicate, span)


@dataclass(frozen=True, slots=True)
class Value:
    """A subquery's value, the plan that has it, and equalities of that with the row."""

    value: Expr
    beside: Beside
    keys: tuple[Expr, ...] = ()


def read_values(
    node: exp.Expression, reader: ExprReader, environment: Environment
) -> tuple[ExprReader, tuple[Beside, ...]]:
    """A reader of the expression that knows its subqueries' values, and what holds these."""
    values: dict[int, Expr] = {}
    beside = []
    for subquery in scalar_subqueries(node):
        if any(_reckons(part) for part in _above(subquery, node)):
            raise reader.text.unsupported(
                "a subquery inside an aggregate or window function",
                subquery,
                hint="join the subquery in FROM instead",
            )
        result = _read(subquery, None, reader, environment)
        values[id(subquery)] = result.value
        beside.append(result.beside)
    known = replace(reader, beside={**reader.beside, **values}) if values else reader
    return known, tuple(beside)


def scalar_subqueries(node: exp.Expression) -> list[exp.Subquery]:
    """Subqueries of the expression itself, in order of text; none inside another query."""
    result: list[exp.Subquery] = []
    pending = [node]
    while pending:
        current = pending.pop()
        if isinstance(current, exp.Subquery):
            result.append(current)
        elif not is_membership(current) and not isinstance(current, exp.Query):
            pending += reversed(list(current.iter_expressions()))
    return result


def _reckons(node: exp.Expression) -> bool:
    """Whether the node takes many rows together."""
    return isinstance(node, exp.Window) or (function_name(node) or "") in AGGREGATES


def _above(inner: exp.Expression, top: exp.Expression) -> Iterator[exp.Expression]:
    """What stands above the inner one up to the top, from the inside out."""
    current = inner
    while current is not top and isinstance(current.parent, exp.Expression):
        current = current.parent
        yield current


def _read(
    subquery: exp.Subquery,
    condition: exp.Expression | None,
    reader: ExprReader,
    environment: Environment,
) -> Value:
    """The subquery's value; `condition` is what drops rows that have none."""
    query, span = unwrapped(subquery), reader.text.span_of(subquery)
    try:
        plan = environment.read_query(query, environment)
    except QueryError as error:
        result = None
        if error.code in UNKNOWN and condition is not None and _drops_null(subquery, condition):
            result = _by_groups(query, reader, environment, reader.text.span_of(condition))
        if result is None:
            raise seen_from_inside(error, query, reader) from None
        plan, keys = result
        value = attributes_of(plan)[-1].ref(span)
        return Value(value, Beside(JoinKind.INNER, plan, None, span), keys)
    if len(attributes_of(plan)) != 1:
        raise reader.text.error(
            f"A subquery used as a value has {len(attributes_of(plan))} columns",
            subquery,
            hint="select one column",
        )
    if not _is_one_row(plan):
        plan = _one_of(plan, reader, span)
    return Value(attributes_of(plan)[0].ref(span), Beside(JoinKind.INNER, plan, None, span))


def _drops_null(subquery: exp.Expression, condition: exp.Expression) -> bool:
    """Whether a condition is never true where the subquery's value is NULL, by its form."""
    if type(condition) not in COMPARISONS or isinstance(
        condition, exp.NullSafeEQ | exp.NullSafeNEQ
    ):
        return False
    between = [part for part in _above(subquery, condition) if part is not condition]
    return all(isinstance(part, _PASSES_NULL) for part in between)


def _one_of(plan: Plan, reader: ExprReader, span: Span | None) -> Plan:
    """The one value of rows of one column; NULL where there is none, a failure where several."""
    (column,) = attributes_of(plan)
    least, rows = reader.reading.fresh("a", [column.name, "rows"])
    value = AggregateCall("min", (column.ref(span),), span=span)
    count = AggregateCall("count", span=span)
    counted = Attribute(rows, "rows", LONG, nullable=False)
    single = Aggregate(
        plan,
        (),
        (
            AggregateOutput(Attribute(least, column.name, column.type), value),
            AggregateOutput(counted, count),
        ),
        span=span,
    )
    checked = Select(single, one_row(counted.ref(span), span), span=span)
    (identity,) = reader.reading.fresh("p", [column.name])
    output = Attribute(identity, column.name, column.type)
    return Project(checked, (ComputedColumn(output, single.aggregates[0].attribute.ref(span)),))


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
                hint="cast the subquery's side to the type of the other side",
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
        if error.code in UNKNOWN:
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
