"""One SELECT block, from FROM to LIMIT.

Law: the plan computes what Spark computes for the block, clause by clause: FROM, WHERE, GROUP BY,
HAVING, windows, QUALIFY, SELECT, DISTINCT, ORDER BY, LIMIT. Names are resolved as Spark resolves
them (`plan.sql.scope`). Expressions are read over FROM columns first and brought above the grouping
afterwards.
Out of scope: FROM (`plan.sql.relation`), set operations (`plan.sql.sets`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from sqlglot import exp

from impctl.expr.nodes import ColumnRef, Expr, Span, columns_of
from impctl.plan.nodes import (
    Aggregate,
    AggregateOutput,
    Attribute,
    ComputedColumn,
    Distinct,
    Plan,
    Project,
    Select,
    attributes_of,
)
from impctl.plan.render_expr import column_name
from impctl.plan.sql.aggregate import (
    AggregateCollector,
    GroupingClause,
    Lift,
    call_is_nullable,
    has_placeholder,
    read_grouping,
    result_type,
)
from impctl.plan.sql.aggregate import placeholder as aggregate_placeholder
from impctl.plan.sql.beside import Beside, put_beside
from impctl.plan.sql.call import CAST_FUNCTIONS, arguments_of, function_name
from impctl.plan.sql.condition import (
    Membership,
    Part,
    apply_condition,
    read_condition,
    read_having,
)
from impctl.plan.sql.context import Reading, attribute_for
from impctl.plan.sql.expr import ExprReader
from impctl.plan.sql.lateral import Generated, read_generated
from impctl.plan.sql.order import Order, limited, read_order
from impctl.plan.sql.relation import Environment, FromSource, read_from, refuse_parts
from impctl.plan.sql.scope import Names, Prefer
from impctl.plan.sql.single_value import read_values
from impctl.plan.sql.subquery import bare
from impctl.plan.sql.window import WindowCollector, read_qualify, reads_window, windowed
from impctl.values import dataclass

_A_NAME = re.compile(r"[\w.`]*")
_PARTS = frozenset(
    {
        "expressions",
        "from",
        "joins",
        "laterals",
        "where",
        "group",
        "having",
        "windows",
        "qualify",
        "distinct",
        "order",
        "limit",
        "offset",
        "hint",
        "with",
    }
)


@dataclass(frozen=True, slots=True)
class Item:
    """One column of the SELECT list, read over FROM columns."""

    name: str
    expr: Expr
    span: Span | None


def read_select(select: exp.Select, environment: Environment) -> Plan:
    """The plan of one block."""
    refuse_parts(select, _PARTS, environment, "SELECT")
    source = read_from(select, environment)
    where = select.args.get("where")
    if where is not None:
        text = environment.reading.text
        reader = ExprReader(environment.reading, Names(text, source.scope), "WHERE")
        parts = read_condition(where.this, reader, environment)
        plan = apply_condition(source.plan, parts, text.span_of(where.this))
        source = replace(source, plan=plan)
    reading = environment.reading
    generated = read_generated(select.expressions, source.plan, source.scope, reading)
    source = source if generated is None else replace(source, plan=generated.plan)
    block = _read_block(select, source, generated, environment)
    if generated is not None and (block.is_aggregated or block.windows.calls):
        generated.refuse_beside("groups" if block.is_aggregated else "windows", reading.text)
    return _planned(select, block, environment)


@dataclass(frozen=True, slots=True)
class _Block:
    """Everything of a block that is read before any of it is planned."""

    source: FromSource
    items: tuple[Item, ...]
    beside: tuple[Beside, ...]
    """What holds values of subqueries in the SELECT list."""
    grouping: GroupingClause | None
    having: tuple[Part, ...]
    having_span: Span | None
    order: Order
    windows: WindowCollector
    qualify: Expr | None
    """The condition on what windows give."""

    @property
    def is_aggregated(self) -> bool:
        calls = self.windows.aggregates.calls
        return self.grouping is not None or bool(calls) or bool(self.having)


def _read_block(
    select: exp.Select, source: FromSource, generated: Generated | None, environment: Environment
) -> _Block:
    reading = environment.reading
    text = reading.text
    named = {str(item.name).lower(): item for item in select.args.get("windows") or []}
    windows = WindowCollector(AggregateCollector(), named)
    items, beside = _items(select, source, environment, windows, generated)
    aliases = _aliases(items)

    def ordinal(node: exp.Expression, clause: str) -> Expr | None:
        if not (isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit()):
            return None
        position = int(node.name)
        if not 1 <= position <= len(items):
            raise text.error(
                f"{clause} {position} is not a column of the SELECT list, which has {len(items)}",
                node,
                hint=f"use a number from 1 to {len(items)}",
            )
        return items[position - 1].expr

    plain = ExprReader(reading, Names(text, source.scope, aliases), "GROUP BY")
    grouping = read_grouping(
        select.args.get("group"),
        plain,
        lambda node: ordinal(node, "GROUP BY"),
        lambda: [item.expr for item in items if not has_placeholder(item.expr)],
    )
    having = select.args.get("having")
    having_parts: tuple[Part, ...] = ()
    if having is not None:
        keys = grouping.keys if grouping is not None else ()
        names = Names(text, source.scope, aliases, Prefer.GROUPED, keys)
        reader = ExprReader(reading, names, "HAVING", windows.aggregates)
        having_parts = read_having(having.this, reader, environment)
        exprs = [p.condition if isinstance(p, Membership) else p.predicate for p in having_parts]
        if any(expr is not None and reads_window(expr) for expr in exprs):
            raise text.unsupported("a window function in HAVING", having.this)
    plain = ExprReader(reading, Names(text, source.scope, aliases), "QUALIFY", windows)
    qualify = read_qualify(select, plain, [item.expr for item in items], grouping)
    names = Names(text, source.scope, aliases, Prefer.ALIAS)
    order = read_order(
        select,
        ExprReader(reading, names, "ORDER BY", windows),
        lambda node: ordinal(node, "ORDER BY"),
    )
    span = None if having is None else text.span_of(having.this)
    return _Block(source, items, beside, grouping, having_parts, span, order, windows, qualify)


def _items(
    select: exp.Select,
    source: FromSource,
    environment: Environment,
    windows: WindowCollector,
    generated: Generated | None,
) -> tuple[tuple[Item, ...], tuple[Beside, ...]]:
    reading = environment.reading
    items: list[Item] = []
    beside: list[Beside] = []
    for node in select.expressions:
        if node.is_star:
            items += _star(node, source, reading)
            continue
        if generated is not None and node is generated.item:
            items += [Item(*column) for column in generated.columns]
            continue
        # Spark lets a later item use an earlier item's alias.
        names = Names(reading.text, source.scope, _aliases(tuple(items)))
        reader = ExprReader(reading, names, "SELECT", windows)
        inner = node.unalias()
        span = reading.text.span_of(inner)
        reader, values = read_values(inner, reader, environment)
        beside += values
        items.append(Item(_name(node, span, reading), reader.read(inner), span))
    return tuple(items), tuple(beside)


def _name(node: exp.Expression, span: Span | None, reading: Reading) -> str:
    if isinstance(node, exp.Aliases):
        raise reading.text.unsupported("several aliases for one expression", node)
    if node.alias:
        return str(node.alias)
    inner = bare(node)
    for result in (inner, _cast_operand(inner)):
        if isinstance(result, exp.Column):
            return str(result.name)
    if isinstance(inner, exp.Literal):
        return str(inner.name)
    written = "" if span is None else reading.text.written(span)
    # A place may leave out words beside it: what is not a column must not be called as one.
    return str(inner.sql("spark")) if _A_NAME.fullmatch(written) else written


def _cast_operand(node: exp.Expression) -> exp.Expression | None:
    """What a cast reads, written as a function or not; Spark calls a cast as its column."""
    if isinstance(node, exp.Cast):
        return bare(node.this)
    is_cast = function_name(node) in (*CAST_FUNCTIONS, "decimal")
    parts = arguments_of(node) if is_cast else ()
    return bare(parts[0]) if len(parts) == 1 else None


def _star(node: exp.Expression, source: FromSource, reading: Reading) -> list[Item]:
    text = reading.text
    star = node.this if isinstance(node, exp.Column) else node
    if not isinstance(star, exp.Star) or any(star.args.values()):
        raise text.unsupported("`*` with EXCEPT or REPLACE", node, hint="name the columns")
    before = node.parts[:-1] if isinstance(node, exp.Column) else []
    relation = tuple(part.name.lower() for part in before) or None
    entries = source.scope.star(relation)
    if isinstance(node, exp.Column) and relation and not source.scope.has(relation):
        Names(text, source.scope).column(node)
    span = text.span_of(node)
    return [Item(entry.name, replace(entry.expr, span=span), span) for entry in entries]


def _aliases(items: tuple[Item, ...]) -> dict[str, tuple[Expr, ...]]:
    result: dict[str, tuple[Expr, ...]] = {}
    for item in items:
        known = result.get(item.name.lower(), ())
        if item.expr not in known:
            result[item.name.lower()] = (*known, item.expr)
    return result


def _planned(select: exp.Select, block: _Block, environment: Environment) -> Plan:
    reading = environment.reading
    plan = block.source.plan
    finish: Callable[[Expr], Expr] = _unchanged
    if block.is_aggregated:
        plan, finish = _aggregated(select, block, reading)
        plan = apply_condition(plan, block.having, block.having_span, finish)
    plan = put_beside(plan, block.beside, finish)
    if block.windows.calls:
        names = [(item.name, item.expr) for item in block.items]
        plan, finish = windowed(plan, block.windows, names, finish, reading)
    if block.qualify is not None:
        plan = Select(plan, finish(block.qualify), span=block.qualify.span)
    outputs = [(item.name, finish(item.expr)) for item in block.items]
    order = block.order.finished(finish)
    distinct = select.args.get("distinct")
    if distinct is not None and distinct.args.get("on") is not None:
        raise reading.text.unsupported("DISTINCT ON", select)
    return _projected(plan, outputs, order, distinct is not None, select, reading)


def _unchanged(expr: Expr) -> Expr:
    return expr


def _aggregated(
    select: exp.Select, block: _Block, reading: Reading
) -> tuple[Plan, Callable[[Expr], Expr]]:
    grouping = block.grouping or GroupingClause(())
    calls = block.windows.aggregates.calls
    beside = {attribute.id for item in block.beside for attribute in item.attributes}
    for key in grouping.keys:
        if columns_of(key) & beside:
            raise reading.text.unsupported(
                "GROUP BY a subquery's value", key.span, hint="join the subquery in FROM instead"
            )
    names = {item.expr: item.name for item in reversed(block.items)}
    key_names = [names.get(key) or _expr_name(key, reading) for key in grouping.keys]
    call_names = [
        next(
            (
                item.name
                for item in block.items
                if _is_ref(item.expr, aggregate_placeholder(number))
            ),
            call.function if call.span is None else reading.text.written(call.span),
        )
        for number, call in enumerate(calls)
    ]
    ids = reading.fresh("a", [*key_names, *call_names])
    keys = []
    for identity, name, key in zip(ids, key_names, grouping.keys, strict=False):
        attribute = attribute_for(identity, name, key)
        if grouping.sets is not None:
            attribute = replace(attribute, nullable=True)
        keys.append(ComputedColumn(attribute, key))
    results = [
        AggregateOutput(Attribute(identity, name, result_type(call), call_is_nullable(call)), call)
        for identity, name, call in zip(ids[len(keys) :], call_names, calls, strict=True)
    ]
    node = select.args.get("group") or select
    plan = Aggregate(
        block.source.plan,
        tuple(keys),
        tuple(results),
        grouping.sets,
        span=reading.text.span_of(node),
    )
    lift = Lift(
        reading.text,
        tuple((output.expr, output.attribute.ref()) for output in keys),
        {aggregate_placeholder(n): output.attribute.ref() for n, output in enumerate(results)},
        block.source.scope.ids(),
    )
    return plan, lift


def _expr_name(expr: Expr, reading: Reading) -> str:
    if isinstance(expr, ColumnRef):
        return column_name(expr.id)
    return "key" if expr.span is None else reading.text.written(expr.span)


def _is_ref(expr: Expr, identity: str) -> bool:
    return isinstance(expr, ColumnRef) and expr.id == identity


def _projected(
    plan: Plan,
    outputs: list[tuple[str, Expr]],
    order: Order,
    is_distinct: bool,
    select: exp.Select,
    reading: Reading,
) -> Plan:
    span = reading.text.span_of(select.expressions[0]) if select.expressions else None
    present = [(attribute.name, attribute.id) for attribute in attributes_of(plan)]
    wanted = [(name, expr.id if isinstance(expr, ColumnRef) else None) for name, expr in outputs]
    if present == wanted:
        plan = Distinct(plan, span=span) if is_distinct else plan
        return limited(plan, order)
    ids = reading.fresh("p", [name for name, _ in outputs])
    columns = tuple(
        ComputedColumn(attribute_for(identity, name, expr), expr)
        for identity, (name, expr) in zip(ids, outputs, strict=True)
    )
    hidden, order = order.over(columns, reading)
    if is_distinct and hidden:
        raise reading.text.error(
            f"Query `{reading.text.name}` orders by a column that SELECT DISTINCT does not return",
            order.span,
            hint="add the column to the SELECT list",
        )
    plan = Project(plan, (*columns, *hidden), span=span)
    if is_distinct:
        plan = Distinct(plan, span=span)
    plan = limited(plan, order)
    return _without(plan, columns, reading, span) if hidden else plan


def _without(
    plan: Plan, columns: tuple[ComputedColumn, ...], reading: Reading, span: Span | None
) -> Plan:
    """The plan with just these columns, once the hidden ones have done their work."""
    ids = reading.fresh("p", [output.attribute.name for output in columns])
    kept = tuple(
        ComputedColumn(
            replace(output.attribute, id=identity), output.attribute.ref(output.expr.span)
        )
        for identity, output in zip(ids, columns, strict=True)
    )
    return Project(plan, kept, span=span)
