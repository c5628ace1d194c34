"""SELECT blocks, set operations, ORDER BY, LIMIT and OFFSET, window functions and QUALIFY."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace
from sqlglot import exp

from impctl.data.schema import DOUBLE, INTEGER, INTEGRAL, Kind, SqlType
from impctl.errors import count_text
from impctl.expr.nodes import Cast, Clause, ColumnRef, Expr, Literal, Span
from impctl.expr.types import common_type, rounded_type
from impctl.plan import nodes as p
from impctl.plan.explain import column_name
from impctl.plan.functions import AGGREGATE_SYNONYMS, AGGREGATES, ORDER_DEPENDENT, WINDOW_ONLY
from impctl.sql.aggregates import (
    AggregateCollector,
    GroupingClause,
    Lift,
    call_is_nullable,
    grouped,
    has_placeholder,
    read_grouping,
    result_type,
)
from impctl.sql.aggregates import placeholder as aggregate_placeholder
from impctl.sql.expressions import CAST_FUNCTIONS, ExprReader, arguments_of, function_name
from impctl.sql.relations import AS_VIEW, read_from, read_generated, refuse_parts
from impctl.sql.scope import FromSource, Names, ParseContext, Prefer, known_type, relation_scope
from impctl.sql.subqueries import (
    JoinedSubquery,
    RowCondition,
    apply_condition,
    as_truth,
    has_tail,
    join_subqueries,
    read_condition,
    read_having,
    read_values,
    without_parentheses,
)
from impctl.sql.text import Node, SqlText

# ORDER BY sees the SELECT list first; other columns it needs are hidden columns. ORDER BY alone is
# a Sort, with LIMIT or OFFSET a TopK.


class Order(Clause, frozen=True):
    """End of a block: sort keys, and how many rows to skip and to keep."""

    keys: tuple[p.SortKey, ...] = ()
    count: int | None = None
    offset: int = 0
    span: Span | None = None

    def over(
        self, columns: Sequence[p.ComputedColumn], context: ParseContext
    ) -> tuple[tuple[p.ComputedColumn, ...], Order]:
        """The order above a projection, and the hidden columns it needs there."""
        offered = {output.attribute.id for output in columns}
        order = self.map(lambda expr: _through(expr, columns))
        missing: dict[str, ColumnRef] = {}
        for expr in order.expressions:
            for part in expr.walk():
                if isinstance(part, ColumnRef) and part.id not in offered:
                    missing.setdefault(part.id, part)
        named = [(column_name(identity), ref) for identity, ref in missing.items()]
        hidden = context.computed("h", named) if named else ()
        return hidden, order.map(lambda expr: _through(expr, hidden))


def read_order(node: Node, reader: ExprReader, ordinal: Callable[[Node], Expr | None]) -> Order:
    """Read ORDER BY, LIMIT and OFFSET of a block or set operation."""
    text = reader.text
    keys = []
    clause = node.args.get("order")
    for item in clause.expressions if clause is not None else []:
        if not isinstance(item, exp.Ordered) or item.args.get("with_fill"):
            raise text.unsupported("ORDER BY in this form", item)
        result = ordinal(without_parentheses(item.this))
        keys.append(sort_key(result if result is not None else reader.read(item.this), item))
    limit, offset = node.args.get("limit"), node.args.get("offset")
    if limit is not None and not isinstance(limit, exp.Limit):
        raise text.unsupported("FETCH", limit, hint="use LIMIT")
    count = None if limit is None else _count(limit.expression, text, "LIMIT")
    skipped = None if offset is None else _count(offset.expression, text, "OFFSET")
    return Order(tuple(keys), count, skipped or 0, text.span_of(clause or limit or offset))


def _count(node: Node, text: SqlText, clause: str) -> int | None:
    if isinstance(node, exp.Var) and node.name.upper() == "ALL":
        return None
    if _is_number(node):
        return int(node.name)
    raise text.unsupported(f"{clause} with an expression", node, hint="write a whole number")


def limited(plan: p.Plan, order: Order) -> p.Plan:
    if order.count is not None or order.offset:
        return p.TopK(plan, order.keys, order.count, order.offset, span=order.span)
    return p.Sort(plan, order.keys, span=order.span) if order.keys else plan


def _through(expr: Expr, columns: Sequence[p.ComputedColumn]) -> Expr:
    """The expression over a projection's columns wherever one computes a part of it."""

    def computed(part: Expr) -> Expr | None:
        for output in columns:
            if part == output.expr and not isinstance(part, Literal):
                return output.attribute.ref(part.span)
        return None if part.columns else part

    return expr.rewrite(computed)


# UNION, EXCEPT and INTERSECT match columns by position and cast sides explicitly to the common type
# (for decimals without one, the type Spark rounds to); other types are refused.

_KINDS: dict[type[Node], p.SetKind] = {
    exp.Union: p.SetKind.UNION,
    exp.Except: p.SetKind.EXCEPT,
    exp.Intersect: p.SetKind.INTERSECT,
}
_PARTS = frozenset({"this", "expression", "distinct", "order", "limit", "offset", "with"})


def read_set_operation(node: exp.SetOperation, context: ParseContext) -> p.Plan:
    """Read a set operation with ORDER BY and LIMIT; a loop, since chains may be long."""
    chain = [node]
    while isinstance(chain[-1].this, type(node)) and not has_tail(chain[-1].this):
        chain.append(chain[-1].this)
    plan = context.plan_of(chain[-1].this)
    for link in reversed(chain):
        plan = _combined(link, plan, context)
    return ordered(node, plan, context)


def ordered(node: Node, plan: p.Plan, context: ParseContext) -> p.Plan:
    """Apply ORDER BY or LIMIT of a finished query, which see its columns only."""
    text = context.text
    scope = relation_scope(None, plan.attributes)
    columns = [entry.expr for entry in scope.entries]
    reader = ExprReader(context, Names(text, scope), "ORDER BY")
    ordinal = partial(_ordinal, text, columns, "ORDER BY", "the query")
    return limited(plan, read_order(node, reader, ordinal))


def _ordinal(
    text: SqlText, columns: Sequence[Expr], clause: str, owner: str, node: Node
) -> Expr | None:
    """The column that a number in a clause names; None for anything but a number."""
    if not _is_number(node):
        return None
    position = int(node.name)
    if not 1 <= position <= len(columns):
        raise text.error(
            f"{clause} {position} is not a column of {owner}, which has {len(columns)}",
            node,
            hint=f"use a number from 1 to {len(columns)}",
        )
    return columns[position - 1]


def _is_number(node: Node) -> bool:
    return isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit()


def _combined(node: exp.SetOperation, left: p.Plan, context: ParseContext) -> p.Plan:
    refuse_parts(node, _PARTS, context, "a set operation")
    refuse_misread(node, context)
    right = context.plan_of(node.expression)
    lefts, rights = left.attributes, right.attributes
    if len(lefts) != len(rights):
        raise context.text.error(
            f"A set operation combines {count_text(len(lefts), 'column')} with {len(rights)}",
            node.expression,
            hint="select the same number of columns on both sides",
        )
    kind = _KINDS[type(node)]
    types = [_common(a, b, node.expression, context) for a, b in zip(lefts, rights, strict=True)]
    ids = context.fresh("u", [attribute.name for attribute in lefts])
    outputs = tuple(
        p.Attribute(identity, a.name, result_type, _is_nullable(kind, a, b))
        for identity, a, b, result_type in zip(ids, lefts, rights, types, strict=True)
    )
    return p.SetOperation(
        kind,
        not node.args.get("distinct"),
        _cast_to(left, types, context),
        _cast_to(right, types, context),
        outputs,
        span=context.text.span_of(node),
    )


def refuse_misread(node: exp.SetOperation, context: ParseContext) -> None:
    """INTERSECT binds tighter than UNION and EXCEPT, which associate to the left; some sqlglot
    versions differ. A Subquery was in brackets."""
    loose = (exp.Union, exp.Except)
    sides = (node.this, node.expression) if isinstance(node, exp.Intersect) else (node.expression,)
    if any(isinstance(side, loose) for side in sides):
        raise context.text.unsupported(
            "INTERSECT next to UNION or EXCEPT without parentheses",
            node,
            hint="put parentheses around the set operation to evaluate first",
        )


def _is_nullable(kind: p.SetKind, left: p.Attribute, right: p.Attribute) -> bool:
    match kind:
        case p.SetKind.UNION:
            return left.nullable or right.nullable
        case p.SetKind.EXCEPT:
            return left.nullable
        case p.SetKind.INTERSECT:
            return left.nullable and right.nullable


def _common(
    left: p.Attribute, right: p.Attribute, node: Node, context: ParseContext
) -> SqlType | None:
    if left.type is None or right.type is None:
        return None
    result = _wider(left.type, right.type)
    if result is None:
        text = context.text
        raise text.unsupported(
            f"a set operation of `{left.type}` and `{right.type}` in column `{left.name}`",
            node,
            hint="cast one side so that both have the same type",
        )
    return result


def _wider(left: SqlType, right: SqlType) -> SqlType | None:
    kinds = {left.kind, right.kind}
    if Kind.FLOAT in kinds and kinds & INTEGRAL:
        # Under ANSI rules Spark takes DOUBLE here, so that no digit of the integer is lost.
        return DOUBLE
    result = common_type(left, right)
    return rounded_type(left, right) if result is None else result


def _cast_to(plan: p.Plan, types: list[SqlType | None], context: ParseContext) -> p.Plan:
    attributes = plan.attributes
    changed = [
        target is not None and target != attribute.type
        for attribute, target in zip(attributes, types, strict=True)
    ]
    if not any(changed):
        return plan
    ids = context.fresh("p", [attribute.name for attribute in attributes])
    outputs = []
    for identity, attribute, target, change in zip(ids, attributes, types, changed, strict=True):
        expr: Expr = attribute.ref()
        if change and target is not None:
            expr = Cast(expr, target)
        kind = target if target is not None else attribute.type
        outputs.append(p.ComputedColumn(replace(attribute, id=identity, type=kind), expr))
    return p.Project(plan, tuple(outputs))


# One SELECT block, computed clause by clause as in Spark: FROM, WHERE, GROUP BY, HAVING, windows,
# QUALIFY, SELECT, DISTINCT, ORDER BY, LIMIT. Expressions are read over FROM columns first, and
# brought above the grouping afterwards.

_A_NAME = re.compile(r"[\w.`]*")
_BLOCK_PARTS = frozenset(
    {"expressions", "from", "joins", "laterals", "where", "group", "having", "windows", "qualify"}
    | {"distinct", "order", "limit", "offset", "hint", "with"}
)


_Generated = tuple[Node, p.Explode] | None
"""The generator of a SELECT list, and the rows that it explodes."""


class Item(Struct, frozen=True):
    """One column of the SELECT list, read over FROM columns."""

    name: str
    expr: Expr
    span: Span | None


def read_select(select: exp.Select, context: ParseContext) -> p.Plan:
    refuse_parts(select, _BLOCK_PARTS, context, "SELECT")
    source = read_from(select, context)
    where = select.args.get("where")
    if where is not None:
        text = context.text
        reader = ExprReader(context, Names(text, source.scope), "WHERE")
        parts = read_condition(where.this, reader)
        plan = apply_condition(source.plan, parts, text.span_of(where.this))
        source = replace(source, plan=plan)
    generated = read_generated(select.expressions, source, context)
    source = source if generated is None else replace(source, plan=generated[1])
    block = _read_block(select, source, generated, context)
    if generated is not None and (block.is_aggregated or block.windows.calls):
        construct = "groups" if block.is_aggregated else "windows"
        raise context.text.unsupported(
            f"`{generated[1].function}` in the SELECT list of a query with {construct}",
            generated[1].span,
            hint=f"write {AS_VIEW} after FROM, or expand the rows in a subquery in FROM",
        )
    return _planned(select, block, context)


class _Block(Struct, frozen=True):
    """Everything of a block, read before any of it is planned."""

    source: FromSource
    items: tuple[Item, ...]
    beside: tuple[JoinedSubquery, ...]
    """Plans for values of subqueries in the SELECT list."""
    grouping: GroupingClause | None
    having: tuple[RowCondition, ...]
    having_span: Span | None
    order: Order
    windows: WindowCollector
    qualify: Expr | None
    """The condition on window results."""

    @property
    def is_aggregated(self) -> bool:
        calls = self.windows.aggregates.calls
        return self.grouping is not None or bool(calls) or bool(self.having)


def _read_block(
    select: exp.Select, source: FromSource, generated: _Generated, context: ParseContext
) -> _Block:
    text = context.text
    named = {str(item.name).lower(): item for item in select.args.get("windows") or []}
    windows = WindowCollector(AggregateCollector(), named)
    items, beside = _items(select, source, context, windows, generated)
    aliases = _aliases(items)
    exprs = [item.expr for item in items]
    owner = "the SELECT list"
    plain = ExprReader(context, Names(text, source.scope, aliases), "GROUP BY")
    grouping = read_grouping(
        select.args.get("group"),
        plain,
        partial(_ordinal, text, exprs, "GROUP BY", owner),
        lambda: [expr for expr in exprs if not has_placeholder(expr)],
    )
    having = select.args.get("having")
    having_parts: tuple[RowCondition, ...] = ()
    if having is not None:
        keys = grouping.keys if grouping is not None else ()
        names = Names(text, source.scope, aliases, Prefer.GROUPED, keys)
        reader = ExprReader(context, names, "HAVING", windows.aggregates)
        having_parts = read_having(having.this, reader)
        if any(reads_window(expr) for part in having_parts for expr in part.expressions):
            raise text.unsupported("a window function in HAVING", having.this)
    plain = ExprReader(context, Names(text, source.scope, aliases), "QUALIFY", windows)
    qualify = read_qualify(select, plain, exprs, grouping)
    names = Names(text, source.scope, aliases, Prefer.ALIAS)
    reader = ExprReader(context, names, "ORDER BY", windows)
    order = read_order(select, reader, partial(_ordinal, text, exprs, "ORDER BY", owner))
    span = None if having is None else text.span_of(having.this)
    return _Block(source, items, beside, grouping, having_parts, span, order, windows, qualify)


def _items(
    select: exp.Select,
    source: FromSource,
    context: ParseContext,
    windows: WindowCollector,
    generated: _Generated,
) -> tuple[tuple[Item, ...], tuple[JoinedSubquery, ...]]:
    items: list[Item] = []
    beside: list[JoinedSubquery] = []
    for node in select.expressions:
        if node.is_star:
            items += _star(node, source, context)
            continue
        if generated is not None and node is generated[0]:
            span = generated[1].span
            items += [Item(column.name, column.ref(span), span) for column in generated[1].made]
            continue
        # Spark lets a later item use an earlier item's alias.
        names = Names(context.text, source.scope, _aliases(tuple(items)))
        reader = ExprReader(context, names, "SELECT", windows)
        inner = node.unalias()
        span = context.text.span_of(inner)
        reader, values = read_values(inner, reader)
        beside += values
        items.append(Item(_name(node, span, context), reader.read(inner), span))
    return tuple(items), tuple(beside)


def _name(node: Node, span: Span | None, context: ParseContext) -> str:
    if isinstance(node, exp.Aliases):
        raise context.text.unsupported("several aliases for one expression", node)
    if node.alias:
        return str(node.alias)
    inner = without_parentheses(node)
    for operand in (inner, _cast_operand(inner)):
        if isinstance(operand, exp.Column):
            return str(operand.name)
    if isinstance(inner, exp.Literal):
        return str(inner.name)
    written = "" if span is None else context.text.written(span)
    # A span may miss adjacent words: only a column may be named like one.
    return str(inner.sql("spark")) if _A_NAME.fullmatch(written) else written


def _cast_operand(node: Node) -> Node | None:
    """Operand of a cast, written as a function or not; Spark names a cast like its column."""
    if isinstance(node, exp.Cast):
        return without_parentheses(node.this)
    is_cast = function_name(node) in (*CAST_FUNCTIONS, "decimal")
    parts = arguments_of(node) if is_cast else ()
    return without_parentheses(parts[0]) if len(parts) == 1 else None


def _star(node: Node, source: FromSource, context: ParseContext) -> list[Item]:
    text = context.text
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
        exprs = result.get(item.name.lower(), ())
        if item.expr not in exprs:
            result[item.name.lower()] = (*exprs, item.expr)
    return result


def _planned(select: exp.Select, block: _Block, context: ParseContext) -> p.Plan:
    plan = block.source.plan
    finish: Callable[[Expr], Expr] = _unchanged
    if block.is_aggregated:
        plan, finish = _aggregated(select, block, context)
        plan = apply_condition(plan, block.having, block.having_span, finish)
    plan = join_subqueries(plan, block.beside, finish)
    if block.windows.calls:
        names = [(item.name, item.expr) for item in block.items]
        plan, finish = windowed(plan, block.windows, names, finish, context)
    if block.qualify is not None:
        plan = p.Select(plan, finish(block.qualify), span=block.qualify.span)
    outputs = [(item.name, finish(item.expr)) for item in block.items]
    order = block.order.map(finish)
    distinct = select.args.get("distinct")
    if distinct is not None and distinct.args.get("on") is not None:
        raise context.text.unsupported("DISTINCT ON", select)
    return _projected(plan, outputs, order, distinct is not None, select, context)


def _unchanged(expr: Expr) -> Expr:
    return expr


def _aggregated(
    select: exp.Select, block: _Block, context: ParseContext
) -> tuple[p.Plan, Callable[[Expr], Expr]]:
    grouping = block.grouping or GroupingClause(())
    calls = block.windows.aggregates.calls
    beside = {attribute.id for item in block.beside for attribute in item.plan.attributes}
    for key in grouping.keys:
        if key.columns & beside:
            raise context.text.unsupported(
                "GROUP BY a subquery's value", key.span, hint="join the subquery in FROM instead"
            )
    names = {item.expr: item.name for item in reversed(block.items)}
    key_names = [names.get(key) or _expr_name(key, context) for key in grouping.keys]
    refs = {expr.id: name for expr, name in names.items() if isinstance(expr, ColumnRef)}
    call_names = [
        refs.get(aggregate_placeholder(number))
        or (call.function if call.span is None else context.text.written(call.span))
        for number, call in enumerate(calls)
    ]
    plan = grouped(
        block.source.plan,
        list(zip(key_names, grouping.keys, strict=True)),
        list(zip(call_names, calls, strict=True)),
        context,
        context.text.span_of(select.args.get("group") or select),
        grouping.sets,
    )
    lift = Lift(
        context.text,
        tuple((output.expr, output.attribute.ref()) for output in plan.keys),
        {
            aggregate_placeholder(number): output.attribute.ref()
            for number, output in enumerate(plan.aggregates)
        },
        block.source.scope.ids(),
    )
    return plan, lift


def _expr_name(expr: Expr, context: ParseContext) -> str:
    if isinstance(expr, ColumnRef):
        return column_name(expr.id)
    return "key" if expr.span is None else context.text.written(expr.span)


def _projected(
    plan: p.Plan,
    outputs: list[tuple[str, Expr]],
    order: Order,
    is_distinct: bool,
    select: exp.Select,
    context: ParseContext,
) -> p.Plan:
    span = context.text.span_of(select.expressions[0]) if select.expressions else None
    present = [(attribute.name, attribute.id) for attribute in plan.attributes]
    projection = [
        (name, expr.id if isinstance(expr, ColumnRef) else None) for name, expr in outputs
    ]
    if present == projection:
        return limited(p.Distinct(plan, span=span) if is_distinct else plan, order)
    columns = context.computed("p", outputs)
    hidden, order = order.over(columns, context)
    if is_distinct and hidden:
        raise context.text.error(
            f"Query `{context.text.name}` orders by a column that SELECT DISTINCT does not return",
            order.span,
            hint="add the column to the SELECT list",
        )
    plan = p.Project(plan, (*columns, *hidden), span=span)
    plan = limited(p.Distinct(plan, span=span) if is_distinct else plan, order)
    return _without(plan, columns, context, span) if hidden else plan


def _without(
    plan: p.Plan, columns: tuple[p.ComputedColumn, ...], context: ParseContext, span: Span | None
) -> p.Plan:
    """The plan with just these columns, without hidden ones."""
    ids = context.fresh("p", [output.attribute.name for output in columns])
    outputs = tuple(
        p.ComputedColumn(
            replace(output.attribute, id=identity), output.attribute.ref(output.expr.span)
        )
        for identity, output in zip(ids, columns, strict=True)
    )
    return p.Project(plan, outputs, span=span)


# Window functions, named windows and QUALIFY. A window call becomes a column above the grouping and
# HAVING; its frame stays text for Spark. QUALIFY is a filter above that, below DISTINCT and ORDER
# BY. While a block is read, window results are placeholders.

_WINDOW_PLACEHOLDER = "?window"
_RANKING = {
    "row_number": INTEGER, "rank": INTEGER, "dense_rank": INTEGER, "ntile": INTEGER,
    "percent_rank": DOUBLE, "cume_dist": DOUBLE,
}  # fmt: skip


class WindowCollector(Struct):
    """Collects window and aggregate calls of expressions; an `ExprReader.special`."""

    aggregates: AggregateCollector
    named: Mapping[str, Node]
    """WINDOW clause entries by lower-case name."""
    calls: list[p.WindowCall] = field(default_factory=list)
    """Their attributes have no ids and names yet."""

    def __call__(self, reader: ExprReader, node: Node) -> Expr | None:
        if reader.in_aggregate or not isinstance(node, exp.Window):
            return self.aggregates(reader, node)
        call = self._read(reader, node)
        if call not in self.calls:
            self.calls.append(call)
        identity = window_placeholder(self.calls.index(call))
        return replace(call.attribute, id=identity).ref(call.span)

    def _read(self, reader: ExprReader, node: exp.Window) -> p.WindowCall:
        text = reader.text
        inside = replace(reader, special=self.aggregates, clause="a window function")
        inner = node.this
        if isinstance(inner, exp.Filter | exp.IgnoreNulls | exp.RespectNulls | exp.WithinGroup):
            raise text.unsupported("a window function with FILTER or IGNORE NULLS", node)
        name = function_name(inner)
        if name is None or name not in AGGREGATES | WINDOW_ONLY:
            raise text.unsupported("OVER after something that is not a window function", node)
        function = AGGREGATE_SYNONYMS.get(name, name)
        written = arguments_of(inner)
        is_counting = function == "count" and len(written) == 1 and isinstance(written[0], exp.Star)
        if not is_counting and any(isinstance(item, exp.Star | exp.Distinct) for item in written):
            raise text.unsupported(f"`{name}` over DISTINCT or `*` with OVER", node)
        arguments = () if is_counting else inside.read_all(written)
        spec = self._specification(reader, node)
        if function in ORDER_DEPENDENT:
            reader.context.note_volatile(function, text.span_of(node))
        partition_by = inside.read_all(spec.args.get("partition_by") or [])
        order = _window_order(inside, spec.args.get("order"))
        if any(
            reads_window(expr) for expr in (*arguments, *partition_by, *(k.expr for k in order))
        ):
            raise text.unsupported("a window function over the alias of another one", node)
        result = p.Attribute("", "", *_result(function, arguments))
        frame, span = self._frame(reader, spec), text.span_of(node)
        return p.WindowCall(result, function, arguments, partition_by, order, frame, span=span)

    def _specification(self, reader: ExprReader, node: exp.Window) -> Node:
        name = node.alias
        if not name:
            return node
        result = self.named.get(name.lower())
        has_own = any(node.args.get(item) for item in ("partition_by", "order", "spec"))
        if result is None or has_own:
            raise reader.text.error(
                f"Window `{name}` in query `{reader.text.name}` is not defined, or is extended in "
                "place",
                node,
                hint="define it in the WINDOW clause, or write its specification after OVER",
            )
        if result.args.get("alias"):
            raise reader.text.unsupported(
                f"window `{name}`, which is defined by another window",
                node,
                hint="write its full specification in the WINDOW clause",
            )
        return result

    def _frame(self, reader: ExprReader, node: Node) -> str | None:
        spec = node.args.get("spec")
        if spec is None:
            return None
        if spec.args.get("exclude"):
            raise reader.text.unsupported("EXCLUDE in a window frame", node)
        return str(spec.sql(dialect="spark"))


def _result(function: str, arguments: tuple[Expr, ...]) -> tuple[SqlType | None, bool]:
    if function in _RANKING:
        return _RANKING[function], False
    if function in ("lag", "lead", "nth_value"):
        return (known_type(arguments[0]) if arguments else None), True
    call = p.AggregateCall(function, arguments)
    return result_type(call), call_is_nullable(call)


def _window_order(reader: ExprReader, node: Node | None) -> tuple[p.SortKey, ...]:
    if node is None:
        return ()
    return tuple(sort_key(reader.read(item.this), item) for item in node.expressions)


def sort_key(expr: Expr, item: Node) -> p.SortKey:
    """A sort key with direction and place of NULLs; Spark puts NULLs first when ascending."""
    descending = bool(item.args.get("desc"))
    nulls_first = item.args.get("nulls_first")
    return p.SortKey(
        expr, descending, (not descending) if nulls_first is None else bool(nulls_first)
    )


def reads_window(expr: Expr) -> bool:
    """Whether an expression reads a window result that has no id yet."""
    return any(identity.startswith(_WINDOW_PLACEHOLDER) for identity in expr.columns)


def window_placeholder(position: int) -> str:
    return f"{_WINDOW_PLACEHOLDER}{position}"


def read_qualify(
    select: exp.Select,
    reader: ExprReader,
    selected: Sequence[Expr],
    grouping: GroupingClause | None,
) -> Expr | None:
    """Read QUALIFY with a reader that collects windows; Spark requires one. A name is a column
    before it is an alias; one that is both, with a window value, is ambiguous. Everything but ORDER
    BY must be read before, so that its aggregates are known."""
    node = select.args.get("qualify")
    if node is None:
        return None
    windows = reader.special
    assert isinstance(windows, WindowCollector), "QUALIFY is about windows"
    is_grouped = any((grouping, windows.aggregates.calls, select.args.get("having")))
    fresh = replace(windows, aggregates=AggregateCollector())
    condition = as_truth(replace(reader, special=fresh).read(node.this))
    if fresh.aggregates.calls:
        raise reader.text.unsupported(
            "an aggregate function in QUALIFY",
            next(iter(fresh.aggregates.calls)).span or node.this,
            hint="Spark does not accept it either; select it under an alias, and use the alias",
        )
    if not windows.calls:
        raise reader.text.error(
            f"QUALIFY of query `{reader.text.name}` has no window function to filter by",
            node.this,
            hint="use WHERE, or a window function in QUALIFY or in the SELECT list",
        )
    named = next((call for call in node.find_all(exp.Window) if call.alias), None)
    if is_grouped and named is not None:
        # How Spark resolves its columns was not tested.
        raise reader.text.unsupported(
            f"window `{named.alias}` in QUALIFY of a query that groups",
            named,
            hint="write its full specification after OVER",
        )
    for column in node.find_all(exp.Column):
        if is_grouped:
            _refuse_hidden(column, reader, selected, grouping.keys if grouping else ())
        else:
            _refuse_ambiguous(column, reader)
    if not is_grouped and _aggregates(select.args.get("order")):
        raise reader.text.unsupported(
            "QUALIFY in a query that groups only in ORDER BY", condition.span
        )
    return condition


def _aggregates(node: Node | None) -> bool:
    """Whether there is an aggregate function outside windows."""
    return node is not None and any(
        (function_name(part) or "") in AGGREGATES and not isinstance(part.parent, exp.Window)
        for part in node.find_all(exp.Anonymous, exp.Any)
    )


def _refuse_ambiguous(column: exp.Column, reader: ExprReader) -> None:
    """Refuse a column name that is also a window value's."""
    values = reader.names.aliases.get(column.name.lower(), ())
    is_plain = len(column.parts) == 1 and any(reads_window(value) for value in values)
    if is_plain and reader.names.scope.find(None, column.name):
        raise reader.text.error(
            f"Column `{column.name}` of QUALIFY is ambiguous in query `{reader.text.name}`",
            column,
            hint="give the window's value an alias that is not a column name",
            code="column_ambiguous",
        )


def _refuse_hidden(
    column: exp.Column, reader: ExprReader, selected: Sequence[Expr], keys: Collection[Expr]
) -> None:
    """Refuse a name above groups, unless it is an alias that no FROM column has, or a grouped
    column selected under its own name: how Spark resolves others depends on windows in QUALIFY."""
    name = column.name
    is_plain = len(column.parts) == 1
    aliased = reader.names.aliases.get(name.lower(), ())
    if is_plain and aliased and not reader.names.scope.find(None, name):
        return
    read = reader.read(column)
    if read in keys and read in selected and aliased == (read,):
        return
    raise reader.text.unsupported(
        f"`{name}` of QUALIFY in a query that groups",
        column,
        hint="use selected GROUP BY columns, or aliases that are not column names; or filter with "
        "WHERE in an outer query",
    )


def windowed(
    plan: p.Plan,
    windows: WindowCollector,
    items: Sequence[tuple[str, Expr]],
    finish: Callable[[Expr], Expr],
    context: ParseContext,
) -> tuple[p.Plan, Callable[[Expr], Expr]]:
    """Add the window calls to the plan; also returns what completes expressions over it. `items`
    are names and expressions of the SELECT list: a call among them gets its name."""
    calls = windows.calls
    refs = {expr.id: name for name, expr in reversed(items) if isinstance(expr, ColumnRef)}
    names = [refs.get(window_placeholder(n), call.function) for n, call in enumerate(calls)]
    built = [
        replace(call.map(finish), attribute=replace(call.attribute, id=identity, name=name))
        for identity, name, call in zip(context.fresh("w", names), names, calls, strict=True)
    ]
    result: dict[str, Expr] = {
        window_placeholder(number): call.attribute.ref() for number, call in enumerate(built)
    }
    window = p.Window(plan, tuple(built), span=built[0].span)
    return window, lambda expr: finish(expr).substitute(result)
