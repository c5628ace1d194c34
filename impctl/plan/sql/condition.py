"""WHERE and HAVING: predicates, subqueries in IN and EXISTS as semi and anti joins, single values.

Law: a subquery of plain FROM and WHERE joins directly, its conditions on columns of the enclosing
query becoming part of the join condition; NOT IN keeps its meaning for NULL. A subquery that
groups, limits or combines is read on its own and may not name columns of the enclosing query.
Out of scope: subqueries of one value (`plan.sql.single_value`), IN and EXISTS under OR
(`plan.sql.marks`); under NOT with others they are refused (`plan.sql.expr`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from sqlglot import exp

from impctl.data.schema import BOOLEAN
from impctl.errors import QueryError, count_text
from impctl.expr.nodes import (
    Cast,
    Compare,
    CompareOp,
    Expr,
    IsNull,
    Or,
    Span,
    columns_of,
    conjuncts,
)
from impctl.expr.types import type_of
from impctl.plan.functions import AGGREGATES
from impctl.plan.nodes import Join, JoinKind, Plan, Select, attributes_of
from impctl.plan.sql.beside import Single, apply_single, conjunction
from impctl.plan.sql.call import arguments_of, function_name
from impctl.plan.sql.expr import ExprReader
from impctl.plan.sql.marks import Mark, mark_of, nested_memberships
from impctl.plan.sql.relation import Environment, FromSource, part, read_from
from impctl.plan.sql.scope import Names, Scope
from impctl.plan.sql.single_value import read_single
from impctl.plan.sql.subquery import bare, closed, unwrapped
from impctl.values import dataclass

_UNKNOWN = ("table_unknown", "column_unknown")
_PLAIN_PARTS = frozenset({"expressions", "from", "joins", "where", "hint", "distinct"})


@dataclass(frozen=True, slots=True)
class Filter:
    """A plain predicate."""

    predicate: Expr


@dataclass(frozen=True, slots=True)
class Membership:
    """An IN or EXISTS subquery: rows with (SEMI) or without (ANTI) a partner on the right."""

    kind: JoinKind
    right: Plan
    condition: Expr | None
    null_aware: bool
    span: Span | None


Part = Filter | Membership | Single


def read_condition(
    node: exp.Expression, reader: ExprReader, environment: Environment
) -> tuple[Part, ...]:
    """The parts of a condition that are joined by AND, in order."""
    parts: list[Part] = []
    pending = [node]
    while pending:
        current = bare(pending.pop())
        if isinstance(current, exp.And):
            pending += [current.expression, current.this]
            continue
        joined: Part | None = _membership(current, reader, environment)
        if joined is None:
            joined = read_single(current, reader, environment, _marks(current, reader, environment))
        parts.append(joined if joined is not None else Filter(reader.read(current)))
    return tuple(parts)


def as_truth(condition: Expr) -> Expr:
    """The whole condition of HAVING or QUALIFY: Spark casts what is none to BOOLEAN.

    It does so nowhere else, nor below an AND: there it refuses the query.
    """
    if type_of(condition) == BOOLEAN:
        return condition
    return Cast(condition, BOOLEAN, span=condition.span)


def read_having(
    node: exp.Expression, reader: ExprReader, environment: Environment
) -> tuple[Part, ...]:
    """The parts of HAVING, as `read_condition` reads them."""
    parts = read_condition(node, reader, environment)
    if len(parts) > 1 or isinstance(parts[0], Membership):
        return parts
    return (replace(parts[0], predicate=as_truth(parts[0].predicate)),)


def apply_condition(
    plan: Plan,
    parts: Iterable[Part],
    span: Span | None,
    finish: Callable[[Expr], Expr] = lambda expr: expr,
) -> Plan:
    """The plan under a condition; `finish` completes expressions that were read beforehand."""
    parts = tuple(parts)
    predicates = tuple(finish(item.predicate) for item in parts if isinstance(item, Filter))
    if predicates:
        plan = Select(plan, conjunction(predicates, span), span=span)
    for item in parts:
        if isinstance(item, Membership):
            condition = None if item.condition is None else finish(item.condition)
            plan = Join(item.kind, plan, item.right, condition, item.null_aware, span=item.span)
        if isinstance(item, Single):
            plan = apply_single(plan, item, finish)
    return plan


def _membership(
    node: exp.Expression, reader: ExprReader, environment: Environment
) -> Membership | None:
    negated = isinstance(node, exp.Not)
    inner = bare(node.this) if negated else node
    kind = JoinKind.ANTI if negated else JoinKind.SEMI
    span = reader.text.span_of(node)
    counted = _counted(inner)
    if counted is not None:
        return _exists(counted, kind, span, reader, environment)
    if isinstance(inner, exp.Exists):
        return _exists(inner.this, kind, span, reader, environment)
    if isinstance(inner, exp.In) and inner.args.get("query") is not None:
        return _in(inner, kind, span, reader, environment)
    return None


def _counted(node: exp.Expression) -> exp.Expression | None:
    """The rows of `(SELECT COUNT(*) FROM ...) > 0`: it is EXISTS of them."""
    least = "0" if isinstance(node, exp.GT) else "1" if isinstance(node, exp.GTE) else None
    if least is None or not isinstance(node.expression, exp.Literal) or node.expression.is_string:
        return None
    side = bare(node.this)
    query = unwrapped(side)
    if node.expression.name != least or not isinstance(side, exp.Subquery):
        return None
    if not isinstance(query, exp.Select) or len(query.expressions) != 1:
        return None
    parts = {name.rstrip("_") for name, value in query.args.items() if value}
    call = query.expressions[0].unalias()
    is_count = function_name(call) == "count" and [type(a) for a in arguments_of(call)] == [
        exp.Star
    ]
    if not is_count or not parts <= {"expressions", "from", "joins", "where"}:
        return None
    rows = query.copy()
    rows.set("expressions", [exp.Literal.number(1)])
    return rows


def _marks(node: exp.Expression, reader: ExprReader, environment: Environment) -> dict[int, Mark]:
    """Marks of IN and EXISTS under OR, by the `id` of their nodes."""
    result = {}
    for nested in nested_memberships(node):
        read = _membership(nested, reader, environment)
        if read is not None:
            conditions = () if read.condition is None else conjuncts(read.condition)
            result[id(nested)] = mark_of(read.right, tuple(conditions), nested, reader)
    return result


def _exists(
    query: exp.Expression,
    kind: JoinKind,
    span: Span | None,
    reader: ExprReader,
    environment: Environment,
) -> Membership:
    query = unwrapped(query)
    if not _is_plain(query):
        right = closed(query, reader, environment)
        return Membership(kind, right, None, False, span)
    source, correlated = _opened(query, reader, environment)
    # The values do not matter, but what makes rows or none of a row does, and is refused.
    _values(query, _correlated(source.scope, reader), reader)
    condition = conjunction(correlated, span) if correlated else None
    return Membership(kind, source.plan, condition, False, span)


def _in(
    node: exp.In, kind: JoinKind, span: Span | None, reader: ExprReader, environment: Environment
) -> Membership:
    subject = bare(node.this)
    operands = reader.read_all(subject.expressions if isinstance(subject, exp.Tuple) else [subject])
    query = unwrapped(node.args["query"])
    correlated: tuple[Expr, ...] = ()
    if _is_plain(query) and not any(item.is_star for item in query.expressions):
        source, correlated = _opened(query, reader, environment)
        right = source.plan
        values = _values(query, source.scope, reader)
    else:
        right = closed(query, reader, environment)
        values = tuple(attribute.ref(span) for attribute in attributes_of(right))
    if len(values) != len(operands):
        raise reader.text.error(
            f"IN compares {count_text(len(operands), 'column')} with a subquery that returns "
            f"{len(values)}",
            node,
            hint="select as many columns as there are before IN",
        )
    equals = conjunction(
        tuple(
            Compare(CompareOp.EQUAL, *reader.alike(left, value), span=span)
            for left, value in zip(operands, values, strict=True)
        ),
        span,
    )
    if kind is JoinKind.ANTI and correlated:
        # A comparison that is NULL counts as a match, but only among the correlated rows.
        equals = Or((equals, IsNull(equals, span=span)), span=span)
    null_aware = kind is JoinKind.ANTI and not correlated
    return Membership(kind, right, conjunction((equals, *correlated), span), null_aware, span)


def _values(query: exp.Expression, scope: Scope, reader: ExprReader) -> tuple[Expr, ...]:
    """What a plain subquery selects, but for `*`."""
    inner = ExprReader(reader.reading, Names(reader.text, scope), "a subquery")
    listed = (item.unalias() for item in query.expressions if not item.is_star)
    return inner.read_all(list(listed))


def _is_plain(query: exp.Expression) -> bool:
    """Whether a subquery is FROM and WHERE only, so that it can join directly."""
    if not isinstance(query, exp.Select):
        return False
    if any(value and name.rstrip("_") not in _PLAIN_PARTS for name, value in query.args.items()):
        return False
    distinct = query.args.get("distinct")
    if distinct is not None and distinct.args.get("on") is not None:
        return False
    return part(query, "from") is not None and not any(
        isinstance(inner, exp.Window) or function_name(inner) in AGGREGATES
        for item in query.expressions
        for inner in item.walk()
    )


def _opened(
    query: exp.Expression, reader: ExprReader, environment: Environment
) -> tuple[FromSource, tuple[Expr, ...]]:
    """A plain subquery's rows, and its conditions on columns of the enclosing query."""
    if not isinstance(query, exp.Select):
        raise reader.text.unsupported("this subquery", query)
    source = _from_of(query, reader, environment)
    where = query.args.get("where")
    if where is None:
        return source, ()
    scope = _correlated(source.scope, reader)
    inner = ExprReader(reader.reading, Names(reader.text, scope), "WHERE")
    parts = read_condition(where.this, inner, environment)
    correlated, own = _separated(parts, reader.names.scope, query, reader)
    span = reader.text.span_of(where.this)
    return FromSource(apply_condition(source.plan, own, span), source.scope), correlated


def _from_of(query: exp.Select, reader: ExprReader, environment: Environment) -> FromSource:
    """The FROM clause of a subquery. Its ON conditions do not see the enclosing query's columns."""
    try:
        return read_from(query, environment)
    except QueryError as error:
        if error.code not in _UNKNOWN:
            raise
        outer = reader.names.scope
        for join in query.args.get("joins") or ():
            on = join.args.get("on")
            for column in on.find_all(exp.Column) if on is not None else ():
                table = (column.table.lower(),) if column.table else None
                if outer.find(table, column.name):
                    raise reader.text.unsupported(
                        "a column of the enclosing query in the ON condition of a subquery",
                        column,
                        hint="move the condition to the subquery's WHERE",
                    ) from error
        raise


def _correlated(scope: Scope, reader: ExprReader) -> Scope:
    """A subquery's columns, then those of the enclosing query, but of no query around that."""
    return replace(scope, outer=replace(reader.names.scope, outer=None))


def _separated(
    parts: tuple[Part, ...], outer: Scope, query: exp.Expression, reader: ExprReader
) -> tuple[tuple[Expr, ...], tuple[Part, ...]]:
    outside = outer.ids()
    correlated: list[Expr] = []
    own: list[Part] = []
    for item in parts:
        if isinstance(item, Filter):
            if columns_of(item.predicate) & outside:
                correlated.append(item.predicate)
            else:
                own.append(item)
            continue
        if isinstance(item, Single):
            read = [item.predicate, *(b.condition for b in item.beside if b.condition is not None)]
            if any(columns_of(expr) & outside for expr in read):
                raise reader.text.unsupported(
                    "a comparison of a column of the enclosing query with a subquery",
                    item.span or query,
                    hint="use joins instead",
                )
            own.append(item)
            continue
        if item.condition is not None and columns_of(item.condition) & outside:
            raise reader.text.unsupported(
                "a subquery that refers to a query two levels above",
                item.span or query,
                hint="use joins instead",
            )
        own.append(item)
    return tuple(correlated), tuple(own)
