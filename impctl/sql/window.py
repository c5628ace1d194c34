"""Window functions, named windows and QUALIFY. A window call becomes a column above the grouping
and HAVING; its frame stays text for Spark. QUALIFY is a filter above that, below DISTINCT and ORDER
BY. While a block is read, window results are placeholders."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace
from sqlglot import exp

from impctl.data.schema import DOUBLE, INTEGER, SqlType
from impctl.expr.nodes import ColumnRef, Expr
from impctl.plan.functions import AGGREGATE_SYNONYMS, AGGREGATES, ORDER_DEPENDENT, WINDOW_ONLY
from impctl.plan.nodes import AggregateCall, Attribute, Plan, SortKey, Window, WindowCall
from impctl.sql.aggregates import AggregateCollector, GroupingClause, call_is_nullable, result_type
from impctl.sql.expressions import ExprReader, arguments_of, function_name
from impctl.sql.scope import ParseContext, known_type
from impctl.sql.subqueries import as_truth
from impctl.sql.text import Node

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
    calls: list[WindowCall] = field(default_factory=list)
    """Their attributes have no ids and names yet."""

    def __call__(self, reader: ExprReader, node: Node) -> Expr | None:
        if reader.in_aggregate or not isinstance(node, exp.Window):
            return self.aggregates(reader, node)
        call = self._read(reader, node)
        if call not in self.calls:
            self.calls.append(call)
        identity = window_placeholder(self.calls.index(call))
        return replace(call.attribute, id=identity).ref(call.span)

    def _read(self, reader: ExprReader, node: exp.Window) -> WindowCall:
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
            reader.reading.note_volatile(function, text.span_of(node))
        partition_by = inside.read_all(spec.args.get("partition_by") or [])
        order = read_order(inside, spec.args.get("order"))
        if any(
            reads_window(expr) for expr in (*arguments, *partition_by, *(k.expr for k in order))
        ):
            raise text.unsupported("a window function over the alias of another one", node)
        result = Attribute("", "", *_result(function, arguments))
        frame, span = self._frame(reader, spec), text.span_of(node)
        return WindowCall(result, function, arguments, partition_by, order, frame, span=span)

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
    call = AggregateCall(function, arguments)
    return result_type(call), call_is_nullable(call)


def read_order(reader: ExprReader, node: Node | None) -> tuple[SortKey, ...]:
    if node is None:
        return ()
    return tuple(sort_key(reader.read(item.this), item) for item in node.expressions)


def sort_key(expr: Expr, item: Node) -> SortKey:
    """A sort key with direction and place of NULLs; Spark puts NULLs first when ascending."""
    descending = bool(item.args.get("desc"))
    nulls_first = item.args.get("nulls_first")
    return SortKey(expr, descending, (not descending) if nulls_first is None else bool(nulls_first))


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
            fresh.aggregates.calls[0].span or node.this,
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
    """Whether an aggregate function is there that is no window's."""
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
    plan: Plan,
    windows: WindowCollector,
    items: Sequence[tuple[str, Expr]],
    finish: Callable[[Expr], Expr],
    reading: ParseContext,
) -> tuple[Plan, Callable[[Expr], Expr]]:
    """Add the window calls to the plan; also returns what completes expressions over it. `items`
    are names and expressions of the SELECT list: a call among them gets its name."""
    calls = windows.calls
    refs = {expr.id: name for name, expr in reversed(items) if isinstance(expr, ColumnRef)}
    names = [refs.get(window_placeholder(n), call.function) for n, call in enumerate(calls)]
    built = [
        replace(call.map(finish), attribute=replace(call.attribute, id=identity, name=name))
        for identity, name, call in zip(reading.fresh("w", names), names, calls, strict=True)
    ]
    result: dict[str, Expr] = {
        window_placeholder(number): call.attribute.ref() for number, call in enumerate(built)
    }
    window = Window(plan, tuple(built), span=built[0].span)
    return window, lambda expr: finish(expr).substitute(result)
