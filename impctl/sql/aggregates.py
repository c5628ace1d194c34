"""Aggregate functions and GROUP BY. Equal aggregate calls are one in the plan. Above the grouping,
expressions may read only grouping expressions and aggregate results, as in Spark. While a block is
read, aggregate results are placeholders."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import combinations, product
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace
from sqlglot import exp

from impctl.data.schema import BOOLEAN, BYTE, DOUBLE, LONG, Kind, SqlType, other
from impctl.expr.nodes import ColumnRef, Expr, Literal, Span
from impctl.expr.types import average_type, sum_type
from impctl.plan import nodes as p
from impctl.plan.explain import column_name
from impctl.plan.functions import AGGREGATE_SYNONYMS, AGGREGATES
from impctl.sql import literals
from impctl.sql.expressions import ExprReader, arguments_of, function_name
from impctl.sql.scope import ParseContext, attribute_for, known_type
from impctl.sql.text import Node, SqlText

if TYPE_CHECKING:
    from impctl.types import AttributeId

_PLACEHOLDER = "?aggregate"
_IGNORING_NULLS = frozenset({"first", "last", "any_value"})
_SAME_AS_ARGUMENT = frozenset({"min", "max", "first", "last", "any_value", "mode"})
_DOUBLE_RESULTS = frozenset(
    {"corr", "covar_pop", "covar_samp", "kurtosis", "skewness", "stddev", "stddev_pop"}
    | {"var_pop", "variance"}
)
_COUNTING = ("count", "count_if", "approx_count_distinct", "grouping", "grouping_id")
_SETS = (exp.Rollup, exp.Cube, exp.GroupingSets)
_DISTINCT_IS_IDLE = frozenset({"min", "max", "bool_and", "bool_or"})


class AggregateCollector(Struct):
    """Collects the aggregate calls of expressions; an `ExprReader.special`."""

    calls: dict[p.AggregateCall, int] = field(default_factory=dict)
    """Each call once, with its number."""

    def __call__(self, reader: ExprReader, node: Node) -> Expr | None:
        if reader.in_aggregate:
            return None
        call = _read_aggregate(reader, node)
        if call is None:
            return None
        identity = f"{_PLACEHOLDER}{self.calls.setdefault(call, len(self.calls))}"
        kind = result_type(call) or other("unknown")
        return ColumnRef(identity, kind, call_is_nullable(call), span=call.span)


def _read_aggregate(reader: ExprReader, node: Node) -> p.AggregateCall | None:
    condition, ignore_nulls, inner = None, False, node
    if isinstance(inner, exp.Filter):
        condition, inner = inner.expression.this, inner.this
    if isinstance(inner, exp.IgnoreNulls | exp.RespectNulls):
        ignore_nulls, inner = isinstance(inner, exp.IgnoreNulls), inner.this
    if isinstance(inner, exp.WithinGroup):
        raise reader.text.unsupported("WITHIN GROUP", node)
    name = function_name(inner)
    if name not in AGGREGATES or name is None:
        return None
    function = AGGREGATE_SYNONYMS.get(name, name)
    inside = replace(reader, in_aggregate=True, special=None, clause=f"`{name}`")
    arguments, distinct = _arguments(inside, inner, function)
    if ignore_nulls:
        if function not in _IGNORING_NULLS or len(arguments) != 1:
            raise reader.text.unsupported(f"IGNORE NULLS with `{name}`", node)
        arguments = (*arguments, literals.constant(True, None))
    span = reader.text.span_of(node)
    return p.AggregateCall(
        function,
        arguments,
        distinct and function not in _DISTINCT_IS_IDLE,
        None if condition is None else inside.read(condition),
        span=span,
    )


def _arguments(reader: ExprReader, node: Node, function: str) -> tuple[tuple[Expr, ...], bool]:
    written = arguments_of(node)
    distinct = len(written) == 1 and isinstance(written[0], exp.Distinct)
    if distinct:
        written = list(written[0].expressions)
    if any(isinstance(argument, exp.Star) or argument.is_star for argument in written):
        # In Spark `count(*, a)` counts rows in which no column is NULL.
        is_alone = len(written) == 1 and isinstance(written[0], exp.Star)
        if function == "count" and not distinct and is_alone:
            return (), False
        raise reader.text.unsupported(f"`{function}` of `*`", node, hint="list the columns")
    if not written and function != "grouping_id":
        raise reader.text.error(
            f"`{function}` needs an argument", node, hint="use count(*) to count rows"
        )
    for argument in written:
        if isinstance(argument, exp.IgnoreNulls | exp.RespectNulls | exp.Order | exp.Kwarg):
            raise reader.text.unsupported(f"`{function}` in this form", node)
    arguments = reader.read_all(written)
    if function == "count" and not distinct and len(arguments) == 1:
        constant = arguments[0]
        if isinstance(constant, Literal) and constant.value is not None:
            return (), False
    return arguments, distinct


def result_type(call: p.AggregateCall) -> SqlType | None:
    """Spark's result type of an aggregate call; None where impctl does not know it."""
    match call.function:
        case "count" | "count_if" | "approx_count_distinct" | "regr_count" | "grouping_id":
            return LONG
        case "grouping":
            return BYTE
        case "bool_and" | "bool_or":
            return BOOLEAN
    if call.function in _DOUBLE_RESULTS:
        return DOUBLE
    argument = known_type(call.arguments[0]) if call.arguments else None
    if argument is None:
        return None
    if call.function == "sum":
        return sum_type(argument)
    if call.function == "avg":
        return average_type(argument)
    if _is_middle(call) and (argument.is_integral or argument.is_fractional):
        return DOUBLE
    if call.function in _SAME_AS_ARGUMENT or call.function in ("min_by", "max_by"):
        return argument
    return None


def _is_middle(call: p.AggregateCall) -> bool:
    """Whether the call has one value in the middle; percentiles of a list of shares are a list."""
    if call.function != "percentile" or len(call.arguments) < 2:
        return call.function == "median"
    share = known_type(call.arguments[1])
    if share is None:
        return False
    return share.kind is Kind.DECIMAL or share.is_fractional or share.is_integral


def call_is_nullable(call: p.AggregateCall) -> bool:
    """Whether the result may be NULL; counts never are."""
    return call.function not in _COUNTING


class GroupingClause(Struct, frozen=True):
    """Grouping expressions, each once, and the grouping sets as positions among them."""

    keys: tuple[Expr, ...]
    sets: tuple[tuple[int, ...], ...] | None = None


def read_grouping(
    node: exp.Group | None,
    reader: ExprReader,
    ordinal: Callable[[Node], Expr | None],
    every: Callable[[], Sequence[Expr]],
) -> GroupingClause | None:
    """Read GROUP BY; `ordinal` resolves `GROUP BY 2`, `every` is what GROUP BY ALL means."""
    if node is None:
        return None
    if node.args.get("all"):
        return _grouping(reader, [[tuple(every())]], None)
    if node.args.get("totals"):
        raise reader.text.unsupported("WITH TOTALS", node)
    _refuse_trailing_sets(reader)

    def read(item: Node) -> tuple[Expr, ...]:
        item = item.this if isinstance(item, exp.Paren) else item
        if isinstance(item, exp.Tuple):
            return tuple(key for inner in item.expressions for key in read(inner))
        result = ordinal(item)
        return (result if result is not None else reader.read(item),)

    factors: list[list[tuple[Expr, ...]]] = []
    plain: list[tuple[Expr, ...]] = []
    items, trailing = _set_items(node)
    for item in items:
        if isinstance(item, _SETS):
            factors.append(_alternatives(item, [read(inner) for inner in item.expressions], reader))
        else:
            plain.append(read(item))
            factors.append([plain[-1]])
    for item in trailing:
        factors = [_alternatives(item, plain, reader)]
    has_sets = bool(trailing) or any(isinstance(item, _SETS) for item in items)
    return _grouping(reader, factors, node if has_sets else None)


def _set_items(node: exp.Group) -> tuple[list[Node], list[Node]]:
    """GROUP BY items and a WITH ROLLUP or WITH CUBE behind; older sqlglot keeps ROLLUP (...)
    apart."""
    items: list[Node] = list(node.expressions)
    trailing: list[Node] = []
    for name in ("rollup", "cube", "grouping_sets"):
        for item in node.args.get(name) or []:
            (items if item.expressions else trailing).append(item)
    return items, trailing


def _refuse_trailing_sets(reader: ExprReader) -> None:
    """`GROUP BY a GROUPING SETS (a)` without a comma means something else than with one."""
    tokens = reader.text.tokens
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        words = f"{token.text} {after.text}".upper()
        starts = "GROUPING SETS" in (words, token.text.upper())
        if starts and before.text.upper() not in (",", "BY", "GROUP BY", "("):
            raise reader.text.unsupported(
                "GROUPING SETS after a list of columns",
                reader.text.span(token.start, token.end + 1),
                hint="write GROUP BY GROUPING SETS (...)",
            )


def _alternatives(
    item: Node, groups: list[tuple[Expr, ...]], reader: ExprReader
) -> list[tuple[Expr, ...]]:
    """The grouping sets of one ROLLUP, CUBE or GROUPING SETS."""

    def joined(chosen: Sequence[tuple[Expr, ...]]) -> tuple[Expr, ...]:
        return tuple(key for group in chosen for key in group)

    if isinstance(item, exp.Rollup):
        return [joined(groups[:count]) for count in range(len(groups), -1, -1)]
    if isinstance(item, exp.Cube):
        if len(groups) > 8:
            raise reader.text.unsupported("CUBE over more than 8 columns", item)
        sizes = range(len(groups), -1, -1)
        return [joined(chosen) for size in sizes for chosen in combinations(groups, size)]
    return list(groups)


def _grouping(
    reader: ExprReader, factors: list[list[tuple[Expr, ...]]], sets: exp.Group | None
) -> GroupingClause:
    listed = (key for factor in factors for alternative in factor for key in alternative)
    keys = list(dict.fromkeys(listed))
    for key in keys:
        if any(part.startswith("?") for part in key.columns):
            raise reader.text.error(
                f"Query `{reader.text.name}` groups by an aggregate or window function",
                key.span,
                hint="compute it in a subquery, and group by the subquery's column",
            )
    if sets is None or (not keys and sum(1 for _ in product(*factors)) == 1):
        # GROUPING SETS (()) alone gives a row of no rows, as no GROUP BY does; twice it gives none.
        return GroupingClause(tuple(keys))
    if any(isinstance(key, Literal) for key in keys):
        raise reader.text.unsupported("a constant in ROLLUP, CUBE or GROUPING SETS", sets)
    chosen = [
        tuple(sorted({keys.index(key) for group in choice for key in group}))
        for choice in product(*factors)
    ]
    return GroupingClause(tuple(keys), tuple(chosen))


def grouped(
    plan: p.Plan,
    keys: Sequence[tuple[str, Expr]],
    calls: Sequence[tuple[str, p.AggregateCall]],
    context: ParseContext,
    span: Span | None,
    sets: tuple[tuple[int, ...], ...] | None = None,
) -> p.Aggregate:
    """The aggregate over a plan, from the names and expressions of its columns."""
    ids = context.fresh("a", [name for name, _ in (*keys, *calls)])
    key_columns = []
    for identity, (name, key) in zip(ids, keys, strict=False):
        attribute = attribute_for(identity, name, key)
        is_padded = sets is not None
        attribute = replace(attribute, nullable=True) if is_padded else attribute
        key_columns.append(p.ComputedColumn(attribute, key))
    results = tuple(
        p.AggregateOutput(
            p.Attribute(identity, name, result_type(call), call_is_nullable(call)), call
        )
        for identity, (name, call) in zip(ids[len(keys) :], calls, strict=True)
    )
    return p.Aggregate(plan, tuple(key_columns), results, sets, span=span)


class Lift(Struct, frozen=True):
    """Rewrites an expression over FROM columns to one above the grouping."""

    text: SqlText
    keys: tuple[tuple[Expr, ColumnRef], ...]
    results: dict[AttributeId, ColumnRef]
    """Aggregate results by their placeholder."""
    ungrouped: Collection[AttributeId]
    """FROM columns; none may be left."""

    def __call__(self, expr: Expr) -> Expr:
        return expr.rewrite(self._above)

    def _above(self, expr: Expr) -> Expr | None:
        for key, ref in self.keys:
            if expr == key:
                return replace(ref, span=expr.span)
        return self._column(expr) if isinstance(expr, ColumnRef) else None

    def _column(self, ref: ColumnRef) -> Expr:
        result = self.results.get(ref.id)
        if result is not None:
            return replace(result, span=ref.span)
        if ref.id in self.ungrouped:
            name = column_name(ref.id)
            raise self.text.error(
                f"Column `{name}` is neither grouped nor inside an aggregate function "
                f"in query `{self.text.name}`",
                ref.span,
                hint=f"add `{name}` to GROUP BY, or aggregate it",
                code="column_not_grouped",
            )
        return ref


def placeholder(position: int) -> AttributeId:
    return f"{_PLACEHOLDER}{position}"


def has_placeholder(expr: Expr) -> bool:
    """Whether an expression reads an aggregate or window result that has no identity yet."""
    return any(isinstance(item, ColumnRef) and item.id.startswith("?") for item in expr.walk())
