"""WHERE and HAVING, and subqueries as joins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace
from sqlglot import exp

from impctl.data.schema import BOOLEAN
from impctl.errors import QueryError, count_text
from impctl.expr import nodes as e
from impctl.expr.functions import one_row
from impctl.expr.types import groups_as_compared, type_of
from impctl.plan import nodes as p
from impctl.plan.functions import AGGREGATES
from impctl.sql.aggregates import grouped
from impctl.sql.expressions import COMPARISONS, ExprReader, arguments_of, function_name
from impctl.sql.relations import part, read_from
from impctl.sql.scope import FromSource, Names, Scope
from impctl.sql.text import Node
from impctl.types import AttributeId

# Values and marks of subqueries that a condition reads, joined to every row. Such a join drops or
# repeats a row only if no condition on its columns can be true of that row, so these joins may
# stand below the condition in any order.


class JoinedSubquery(Struct, frozen=True):
    """A plan joined to the rows: INNER without condition has one row, LEFT at most one partner;
    rows with (SEMI) or without (ANTI) a partner are kept."""

    kind: p.JoinKind
    plan: p.Plan
    condition: e.Expr | None
    span: e.Span | None
    null_aware: bool = False


class SubqueryValue(Struct, frozen=True):
    """A subquery's value or mark, its plan, and equalities with the row."""

    value: e.Expr
    beside: JoinedSubquery
    keys: tuple[e.Expr, ...] = ()


class RowCondition(Struct, frozen=True):
    """A condition that may read plans joined beside the rows; without a predicate, the join
    decides."""

    predicate: e.Expr | None
    beside: tuple[JoinedSubquery, ...] = ()
    span: e.Span | None = None

    @property
    def expressions(self) -> tuple[e.Expr, ...]:
        every = (self.predicate, *(subquery.condition for subquery in self.beside))
        return tuple(expr for expr in every if expr is not None)


def join_subqueries(
    plan: p.Plan, items: Iterable[JoinedSubquery], finish: Callable[[e.Expr], e.Expr]
) -> p.Plan:
    """Join these to the plan; `finish` completes conditions that were read before."""
    for item in items:
        condition = None if item.condition is None else finish(item.condition)
        plan = p.Join(item.kind, plan, item.plan, condition, item.null_aware, span=item.span)
    return plan


# A subquery's form without parentheses, and its plan. Read on its own, it does not see the
# enclosing query.

UNKNOWN = frozenset({"column_unknown", "table_unknown"})
"""Error codes of unknown names."""
_OUTSIDE = (
    "a subquery with grouping, DISTINCT ON, LIMIT or a set operation cannot refer to columns of "
    "the enclosing query"
)
_CONSTRUCTS = (
    ("laterals", "LATERAL VIEW"),
    ("qualify", "QUALIFY"),
    ("with", "WITH"),
    ("group", "GROUP BY"),
    ("having", "HAVING"),
    ("windows", "WINDOW"),
    ("limit", "LIMIT"),
    ("offset", "OFFSET"),
    ("order", "ORDER BY"),
    ("sort", "SORT BY"),
    ("distinct", "DISTINCT"),
)
"""By argument of the query."""


def without_parentheses(node: Node) -> Node:
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def has_tail(query: Node) -> bool:
    """Whether the query has ORDER BY, LIMIT, OFFSET or WITH."""
    return any(query.args.get(name) for name in ("order", "limit", "offset", "with", "with_"))


def unwrapped(query: Node) -> Node:
    """Remove parentheses around a query that add nothing."""
    while isinstance(query, exp.Subquery | exp.Paren) and not query.args.get("alias"):
        if isinstance(query, exp.Subquery) and has_tail(query):
            break
        query = query.this
    return query


def read_uncorrelated(query: Node, reader: ExprReader) -> p.Plan:
    """Read a subquery alone; it cannot see the enclosing query's columns."""
    try:
        return reader.context.plan_of(query)
    except QueryError as error:
        raise explain_outer_name(error, query, reader) from None


def explain_outer_name(error: QueryError, query: Node, reader: ExprReader) -> QueryError:
    """The error of a subquery read alone: an unknown name may be the enclosing query's."""
    if error.code not in UNKNOWN:
        return error
    column = next((c for c in query.find_all(exp.Column) if _stands_at(c, error, reader)), None)
    if column is not None and _reads(reader, column):
        construct, name = _construct(query), column.sql("spark")
        beside = f" with {construct}" if construct else " that cannot be joined directly"
        return reader.text.unsupported(
            f"`{name}` of the enclosing query in a subquery{beside}",
            column,
            hint="join the subquery's tables in FROM, or keep the query without a sketch "
            "(`sketch: none`)",
        )
    hint = _OUTSIDE if error.hint is None else f"{error.hint}; {_OUTSIDE}"
    return QueryError(error.message, hint=hint, code=error.code, location=error.location)


def _stands_at(column: exp.Column, error: QueryError, reader: ExprReader) -> bool:
    span, location = reader.text.span_of(column), error.location
    if span is None or location is None:
        return False
    return (span.line, span.column) == (location.line, location.column)


def _reads(reader: ExprReader, column: exp.Column) -> bool:
    """Whether the enclosing query has the column, though it may not be readable here."""
    try:
        reader.read(column)
    except QueryError as error:
        return error.code not in UNKNOWN
    return True


def _construct(query: Node) -> str | None:
    """Name of the construct that prevents joining a subquery directly."""
    if isinstance(query, exp.SetOperation):
        return "a set operation"
    present = {name.rstrip("_") for name, value in query.args.items() if value}
    return next((words for name, words in _CONSTRUCTS if name in present), None)


# Scalar subqueries as joins. An aggregate without GROUP BY joins as its one row. Any other subquery
# of one column becomes the least of its values, NULL without rows, and a failure with several, as
# in Spark. A subquery whose WHERE equates its columns with columns of the enclosing query becomes
# the aggregate grouped by these columns, joined on them. A row without a group then compares with
# NULL and is dropped either way; this needs a comparison with nothing but arithmetic in between,
# and an aggregate that is NULL without rows (not COUNT, nor an expression that turns NULL into a
# value). Both sides need one type, else values of several groups could equal one outer value.

_NULL_WHEN_EMPTY = frozenset({"sum", "avg", "mean", "min", "max"})
_PASSES_NULL = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Neg, exp.Paren, exp.Literal)


def _read_single(node: Node, reader: ExprReader) -> RowCondition:
    """A condition: a join, or a predicate with the values and marks of subqueries it reads."""
    joined = _membership(node, reader)
    if joined is not None:
        return RowCondition(None, (joined,), joined.span)
    read = _marks(node, reader)
    for subquery in scalar_subqueries(node):
        read[id(subquery)] = _read(subquery, node, reader)
    if not read:
        return RowCondition(reader.read(node))
    span = reader.text.span_of(node)
    values = {key: item.value for key, item in read.items()}
    predicate = replace(reader, beside={**reader.beside, **values}).read(node)
    keys = [key for item in read.values() for key in item.keys]
    predicate = e.And((*keys, predicate), span=span) if keys else predicate
    return RowCondition(predicate, tuple(item.beside for item in read.values()), span)


def read_values(node: Node, reader: ExprReader) -> tuple[ExprReader, tuple[JoinedSubquery, ...]]:
    """A reader that knows the values of the expression's subqueries, and the plans of these."""
    values: dict[int, e.Expr] = {}
    beside = []
    for subquery in scalar_subqueries(node):
        if any(
            isinstance(outer, exp.Window) or function_name(outer) in AGGREGATES
            for outer in _above(subquery, node)
        ):
            raise reader.text.unsupported(
                "a subquery inside an aggregate or window function",
                subquery,
                hint="join the subquery in FROM instead",
            )
        result = _read(subquery, None, reader)
        values[id(subquery)] = result.value
        beside.append(result.beside)
    known = replace(reader, beside={**reader.beside, **values}) if values else reader
    return known, tuple(beside)


def scalar_subqueries(node: Node) -> list[exp.Subquery]:
    """Subqueries of the expression itself, in text order; none inside another query."""
    result: list[exp.Subquery] = []
    pending = [node]
    while pending:
        current = pending.pop()
        if isinstance(current, exp.Subquery):
            result.append(current)
        elif not is_membership(current) and not isinstance(current, exp.Query):
            pending += reversed(list(current.iter_expressions()))
    return result


def _above(inner: Node, top: Node) -> Iterator[Node]:
    """The ancestors of the inner node up to the top, from the inside out."""
    current = inner
    while current is not top and isinstance(current.parent, Node):
        current = current.parent
        yield current


def _read(subquery: exp.Subquery, condition: Node | None, reader: ExprReader) -> SubqueryValue:
    """The subquery's value; `condition` drops rows that have none."""
    query, span = unwrapped(subquery), reader.text.span_of(subquery)
    try:
        plan = reader.context.plan_of(query)
    except QueryError as error:
        result = None
        if error.code in UNKNOWN and condition is not None and _drops_null(subquery, condition):
            result = _by_groups(query, reader, reader.text.span_of(condition))
        if result is None:
            raise explain_outer_name(error, query, reader) from None
        plan, keys = result
        value = plan.attributes[-1].ref(span)
        return SubqueryValue(value, JoinedSubquery(p.JoinKind.INNER, plan, None, span), keys)
    if len(plan.attributes) != 1:
        raise reader.text.error(
            f"A subquery used as a value has {len(plan.attributes)} columns",
            subquery,
            hint="select one column",
        )
    if not _is_one_row(plan):
        plan = _one_of(plan, reader, span)
    beside = JoinedSubquery(p.JoinKind.INNER, plan, None, span)
    return SubqueryValue(plan.attributes[0].ref(span), beside)


def _drops_null(subquery: Node, condition: Node) -> bool:
    """Whether the condition's form makes it not true where the subquery's value is NULL."""
    if type(condition) not in COMPARISONS or isinstance(
        condition, exp.NullSafeEQ | exp.NullSafeNEQ
    ):
        return False
    between = [part for part in _above(subquery, condition) if part is not condition]
    return all(isinstance(part, _PASSES_NULL) for part in between)


def _one_of(plan: p.Plan, reader: ExprReader, span: e.Span | None) -> p.Plan:
    """The single value of a column; NULL without rows, a failure with several."""
    (column,) = plan.attributes
    calls = [
        (column.name, p.AggregateCall("min", (column.ref(span),), span=span)),
        ("rows", p.AggregateCall("count", span=span)),
    ]
    single = grouped(plan, (), calls, reader.context, span)
    least, rows = (output.attribute for output in single.aggregates)
    checked = p.Select(single, one_row(rows.ref(span), span), span=span)
    (identity,) = reader.context.fresh("p", [column.name])
    output = p.Attribute(identity, column.name, column.type)
    return p.Project(checked, (p.ComputedColumn(output, least.ref(span)),))


def _is_one_row(plan: p.Plan) -> bool:
    while isinstance(plan, p.Project | p.Sort):
        plan = plan.child
    return isinstance(plan, p.Aggregate) and not plan.keys and plan.grouping_sets is None


def _by_groups(
    query: Node, reader: ExprReader, span: e.Span | None
) -> tuple[p.Plan, tuple[e.Expr, ...]] | None:
    """An aggregate over rows equated with the enclosing query's: one row per group."""
    if not isinstance(query, exp.Select) or len(query.expressions) != 1:
        return None
    parts = {name.rstrip("_") for name, value in query.args.items() if value}
    where = query.args.get("where")
    if where is None or not parts <= {"expressions", "from", "joins", "where"}:
        return None
    if not _is_null_when_empty(query.expressions[0].unalias()):
        return None
    scope = read_from(query, reader.context).scope
    inner = ExprReader(reader.context, Names(reader.text, scope), "WHERE")
    local: list[Node] = []
    keys: list[Node] = []
    outside: list[e.Expr] = []
    for condition in _conjuncts(where.this):
        if _value_reads(inner, condition):
            local.append(condition)
            continue
        pair = _pair(condition, inner)
        if pair is None:
            return None
        keys.append(pair[0])
        outside.append(reader.read(pair[1]))
    by_key = query.copy()
    named = [
        exp.alias_(key.copy(), f"impctl_key{number}", copy=False) for number, key in enumerate(keys)
    ]
    by_key.set("expressions", [*named, *by_key.expressions])
    by_key.set("where", exp.Where(this=exp.and_(*local, copy=True)) if local else None)
    by_key.set("group", exp.Group(expressions=[key.copy() for key in keys]))
    right = read_uncorrelated(by_key, reader)
    refs = [attribute.ref(span) for attribute in right.attributes]
    for key, expr, ref in zip(keys, outside, refs, strict=False):
        if not groups_as_compared(type_of(expr), type_of(ref)):
            raise reader.text.unsupported(
                "a subquery whose WHERE equates values of different types with the query's",
                key,
                hint="cast the subquery's side to the type of the other side",
            )
    equal = [
        e.Compare(e.CompareOp.EQUAL, expr, ref, span=span)
        for expr, ref in zip(outside, refs, strict=False)
    ]
    return right, tuple(equal)


def _conjuncts(node: Node) -> list[Node]:
    """In order; a loop, since chains may be deep."""
    pending, result = [node], []
    while pending:
        current = without_parentheses(pending.pop())
        if isinstance(current, exp.And):
            pending += [current.expression, current.this]
        else:
            result.append(current)
    return result


def _is_null_when_empty(value: Node) -> bool:
    """Whether the value over no rows is NULL: arithmetic over aggregates that are NULL then."""
    if function_name(value) in _NULL_WHEN_EMPTY:
        return True
    if not isinstance(value, _PASSES_NULL) or isinstance(value, exp.Literal):
        return False
    others = [
        part
        for part in value.iter_expressions()
        if not isinstance(without_parentheses(part), exp.Literal)
    ]
    return bool(others) and all(_is_null_when_empty(without_parentheses(part)) for part in others)


def _value_reads(reader: ExprReader, node: Node) -> bool:
    """Whether the subquery's columns are enough for an expression."""
    try:
        reader.read(node)
    except QueryError as error:
        if error.code in UNKNOWN:
            return False
        raise
    return True


def _pair(condition: Node, inner: ExprReader) -> tuple[Node, Node] | None:
    """An equality's inner side and its outer one; None for another condition."""
    if not isinstance(condition, exp.EQ):
        return None
    sides = (condition.this, condition.expression)
    is_inner = [_value_reads(inner, side) for side in sides]
    if is_inner[0] == is_inner[1]:
        return None
    left, right = sides if is_inner[0] else (sides[1], sides[0])
    # A name is the subquery's own wherever it has such a column.
    is_mixed = any(_value_reads(inner, column) for column in right.find_all(exp.Column))
    return None if is_mixed else (left, right)


# IN and EXISTS under OR, as marks: the distinct values of the subquery are LEFT joined to the rows
# by equality, so a row has at most one partner, and the mark is NULL without one. That tells true
# from not true, which is enough under AND and OR. Below NOT, or with other comparisons, false and
# NULL or the number of partners would matter: refused.


def is_membership(node: Node) -> bool:
    return isinstance(node, exp.Exists) or (
        isinstance(node, exp.In) and node.args.get("query") is not None
    )


def nested_memberships(node: Node) -> list[Node]:
    """IN and EXISTS of the condition that are below AND, OR and parentheses only."""
    result: list[Node] = []
    pending = [node]
    while pending:
        current = pending.pop()
        if is_membership(current):
            result.append(current)
        elif isinstance(current, exp.Paren | exp.And | exp.Or):
            pending += [part for part in current.iter_expressions() if isinstance(part, Node)]
    return result


def _mark_of(subquery: JoinedSubquery, node: Node, reader: ExprReader) -> SubqueryValue:
    """What is true of rows with a partner; QueryError if the condition has more than
    equalities."""
    span, plan = reader.text.span_of(node), subquery.plan
    conditions = () if subquery.condition is None else e.conjuncts(subquery.condition)
    columns = plan.ids
    inner: list[e.Expr] = []
    outer: list[e.Expr] = []
    within: list[e.Expr] = []
    for condition in conditions:
        if condition.columns <= columns:
            within.append(condition)
            continue
        pair = _sides(condition, columns)
        if pair is None:
            raise reader.text.unsupported(
                "IN or EXISTS under OR with a subquery that is correlated by more than equalities",
                node,
                hint="write the query as a UNION of both cases, or join the subquery in FROM",
            )
        inner.append(pair[0])
        outer.append(pair[1])
    if within:
        plan = p.Select(plan, e.conjunction(within, span), span=span)
    named = [(f"key {number}", expr) for number, expr in enumerate(inner)]
    keys = reader.context.computed("p", named)
    (identity,) = reader.context.fresh("p", ["mark"])
    marked = p.Attribute(identity, "mark", BOOLEAN, nullable=False)
    truth = p.ComputedColumn(marked, e.Literal(True, BOOLEAN))
    distinct = p.Distinct(p.Project(plan, (*keys, truth), span=span), span=span)
    equal = tuple(
        e.Compare(e.CompareOp.EQUAL, outer_expr, key.attribute.ref(span), span=span)
        for outer_expr, key in zip(outer, keys, strict=True)
    )
    joined = e.conjunction(equal, span) if equal else e.Literal(True, BOOLEAN)
    beside = JoinedSubquery(p.JoinKind.LEFT, distinct, joined, span)
    is_missing = e.IsNull(replace(marked, nullable=True).ref(span), span=span)
    return SubqueryValue(e.Not(is_missing, span=span), beside)


def _sides(condition: e.Expr, columns: frozenset[AttributeId]) -> tuple[e.Expr, e.Expr] | None:
    """An equality's side of the subquery and that of the row; None for another condition."""
    if not (isinstance(condition, e.Compare) and condition.op is e.CompareOp.EQUAL):
        return None
    for left, right in ((condition.left, condition.right), (condition.right, condition.left)):
        if left.columns <= columns and right.columns.isdisjoint(columns):
            is_hashable = groups_as_compared(type_of(left), type_of(right))
            return (left, right) if is_hashable else None
    return None


# WHERE and HAVING: IN and EXISTS as semi and anti joins, scalar subqueries. A subquery of plain
# FROM and WHERE joins directly, its correlated conditions becoming part of the join condition; NOT
# IN keeps its meaning for NULL. A subquery that groups, limits or combines is read on its own and
# may not be correlated.

_PLAIN_PARTS = frozenset({"expressions", "from", "joins", "where", "hint", "distinct"})


def read_condition(node: Node, reader: ExprReader) -> tuple[RowCondition, ...]:
    """The conjuncts of a condition, in order."""
    return tuple(_read_single(conjunct, reader) for conjunct in _conjuncts(node))


def as_truth(condition: e.Expr) -> e.Expr:
    """A whole condition of HAVING or QUALIFY, which Spark casts to BOOLEAN. Anywhere else, also
    below AND, it refuses non-boolean conditions."""
    if type_of(condition) == BOOLEAN:
        return condition
    return e.Cast(condition, BOOLEAN, span=condition.span)


def read_having(node: Node, reader: ExprReader) -> tuple[RowCondition, ...]:
    """Read the conjuncts of HAVING, like `read_condition`."""
    parts = read_condition(node, reader)
    predicate = parts[0].predicate if len(parts) == 1 else None
    return parts if predicate is None else (replace(parts[0], predicate=as_truth(predicate)),)


def apply_condition(
    plan: p.Plan,
    parts: Sequence[RowCondition],
    span: e.Span | None,
    finish: Callable[[e.Expr], e.Expr] = lambda expr: expr,
) -> p.Plan:
    """Apply a condition to a plan; `finish` completes expressions that were read before."""
    plain = [finish(expr) for item in parts if not item.beside for expr in item.expressions]
    if plain:
        plan = p.Select(plan, e.conjunction(plain, span), span=span)
    for item in parts:
        plan = join_subqueries(plan, item.beside, finish)
        if item.beside and item.predicate is not None:
            plan = p.Select(plan, finish(item.predicate), span=item.span)
    return plan


def _membership(node: Node, reader: ExprReader) -> JoinedSubquery | None:
    negated = isinstance(node, exp.Not)
    inner = without_parentheses(node.this) if negated else node
    kind = p.JoinKind.ANTI if negated else p.JoinKind.SEMI
    span = reader.text.span_of(node)
    counted = _counted(inner)
    if counted is not None:
        return _exists(counted, kind, span, reader)
    if isinstance(inner, exp.Exists):
        return _exists(inner.this, kind, span, reader)
    if isinstance(inner, exp.In) and is_membership(inner):
        return _in(inner, kind, span, reader)
    return None


def _counted(node: Node) -> Node | None:
    """Rows of `(SELECT COUNT(*) FROM ...) > 0`, which is EXISTS of them."""
    least = "0" if isinstance(node, exp.GT) else "1" if isinstance(node, exp.GTE) else None
    if least is None or not isinstance(node.expression, exp.Literal) or node.expression.is_string:
        return None
    side = without_parentheses(node.this)
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


def _marks(node: Node, reader: ExprReader) -> dict[int, SubqueryValue]:
    """Marks of IN and EXISTS under OR, by the `id` of their nodes."""
    result = {}
    for nested in nested_memberships(node):
        read = _membership(nested, reader)
        if read is not None:
            result[id(nested)] = _mark_of(read, nested, reader)
    return result


def _exists(
    query: Node, kind: p.JoinKind, span: e.Span | None, reader: ExprReader
) -> JoinedSubquery:
    query = unwrapped(query)
    if not _is_plain(query):
        right = read_uncorrelated(query, reader)
        return JoinedSubquery(kind, right, None, span)
    source, correlated = _opened(query, reader)
    # The values do not matter, but what changes the number of rows does, and is refused.
    _values(query, _correlated(source.scope, reader), reader)
    condition = e.conjunction(correlated, span) if correlated else None
    return JoinedSubquery(kind, source.plan, condition, span)


def _in(node: exp.In, kind: p.JoinKind, span: e.Span | None, reader: ExprReader) -> JoinedSubquery:
    subject = without_parentheses(node.this)
    operands = reader.read_all(subject.expressions if isinstance(subject, exp.Tuple) else [subject])
    query = unwrapped(node.args["query"])
    correlated: tuple[e.Expr, ...] = ()
    if _is_plain(query) and not any(item.is_star for item in query.expressions):
        source, correlated = _opened(query, reader)
        right = source.plan
        values = _values(query, source.scope, reader)
    else:
        right = read_uncorrelated(query, reader)
        values = tuple(attribute.ref(span) for attribute in right.attributes)
    if len(values) != len(operands):
        raise reader.text.error(
            f"IN compares {count_text(len(operands), 'column')} with a subquery that returns "
            f"{len(values)}",
            node,
            hint="select as many columns as there are before IN",
        )
    equals = e.conjunction(
        tuple(
            e.Compare(e.CompareOp.EQUAL, *reader.alike(left, value), span=span)
            for left, value in zip(operands, values, strict=True)
        ),
        span,
    )
    if kind is p.JoinKind.ANTI and correlated:
        # A comparison that is NULL counts as a match, but only among the correlated rows.
        equals = e.Or((equals, e.IsNull(equals, span=span)), span=span)
    null_aware = kind is p.JoinKind.ANTI and not correlated
    condition = e.conjunction((equals, *correlated), span)
    return JoinedSubquery(kind, right, condition, span, null_aware)


def _values(query: Node, scope: Scope, reader: ExprReader) -> tuple[e.Expr, ...]:
    inner = ExprReader(reader.context, Names(reader.text, scope), "a subquery")
    listed = (item.unalias() for item in query.expressions if not item.is_star)
    return inner.read_all(list(listed))


def _is_plain(query: Node) -> bool:
    """Whether a subquery has only FROM and WHERE, so that it can join directly."""
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


def _opened(query: Node, reader: ExprReader) -> tuple[FromSource, tuple[e.Expr, ...]]:
    """A plain subquery's rows, and its conditions on columns of the enclosing query."""
    if not isinstance(query, exp.Select):
        raise reader.text.unsupported("this subquery", query)
    source = _from_of(query, reader)
    where = query.args.get("where")
    if where is None:
        return source, ()
    scope = _correlated(source.scope, reader)
    inner = ExprReader(reader.context, Names(reader.text, scope), "WHERE")
    parts = read_condition(where.this, inner)
    correlated, local = _separated(parts, reader.names.scope, query, reader)
    span = reader.text.span_of(where.this)
    return FromSource(apply_condition(source.plan, local, span), source.scope), correlated


def _from_of(query: exp.Select, reader: ExprReader) -> FromSource:
    """FROM clause of a subquery; its ON conditions do not see the enclosing query's columns."""
    try:
        return read_from(query, reader.context)
    except QueryError as error:
        if error.code not in UNKNOWN:
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
    """Columns of a subquery, then of the enclosing query, but of none outside that."""
    return replace(scope, outer=replace(reader.names.scope, outer=None))


def _separated(
    parts: tuple[RowCondition, ...], outer: Scope, query: Node, reader: ExprReader
) -> tuple[tuple[e.Expr, ...], tuple[RowCondition, ...]]:
    outside = outer.ids()
    correlated: list[e.Expr] = []
    local: list[RowCondition] = []
    for item in parts:
        if not any(expr.columns & outside for expr in item.expressions):
            local.append(item)
        elif not item.beside:
            correlated += item.expressions
        else:
            construct = (
                "a comparison of a column of the enclosing query with a subquery"
                if item.predicate is not None
                else "a subquery that refers to a query two levels above"
            )
            hint = "use joins instead"
            raise reader.text.unsupported(construct, item.span or query, hint=hint)
    return tuple(correlated), tuple(local)
