"""Window functions: `function(...) OVER (...)`, named windows included.

Law: a window call becomes one more column above the grouping and HAVING; the frame stays text,
for Spark. While a block is read, window results are placeholders.
Out of scope: where the Window node goes (`parse_select`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from impctl.data.schema import DOUBLE, INTEGER, SqlType, other
from impctl.expr.nodes import ColumnRef, Expr, Span, columns_of
from impctl.plan.functions import AGGREGATE_SYNONYMS, AGGREGATES, ORDER_DEPENDENT, WINDOW_ONLY
from impctl.plan.nodes import AggregateCall, SortKey
from impctl.plan.sql.aggregate import AggregateCollector, call_is_nullable, result_type
from impctl.plan.sql.call import arguments_of, function_name
from impctl.plan.sql.context import known_type
from impctl.plan.sql.expr import ExprReader

_PLACEHOLDER = "?window"
_RANKING = {
    "row_number": INTEGER,
    "rank": INTEGER,
    "dense_rank": INTEGER,
    "ntile": INTEGER,
    "percent_rank": DOUBLE,
    "cume_dist": DOUBLE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadWindow:
    """A window call before it has an identity."""

    function: str
    arguments: tuple[Expr, ...]
    partition_by: tuple[Expr, ...]
    order: tuple[SortKey, ...]
    frame: str | None
    type: SqlType | None
    nullable: bool
    span: Span | None = field(default=None, compare=False)


@dataclass(slots=True)
class WindowCollector:
    """Takes window calls, and aggregate calls, out of expressions; an `ExprReader.special`."""

    aggregates: AggregateCollector
    named: Mapping[str, exp.Expression]
    """WINDOW clause entries by lower-case name."""
    calls: list[ReadWindow] = field(default_factory=list)

    def __call__(self, reader: ExprReader, node: exp.Expression) -> Expr | None:
        if reader.in_aggregate or not isinstance(node, exp.Window):
            return self.aggregates(reader, node)
        call = self._read(reader, node)
        if call not in self.calls:
            self.calls.append(call)
        kind = call.type or other("unknown")
        return ColumnRef(
            f"{_PLACEHOLDER}{self.calls.index(call)}", kind, call.nullable, span=call.span
        )

    def _read(self, reader: ExprReader, node: exp.Window) -> ReadWindow:
        text = reader.text
        inside = replace(reader, special=self.aggregates, clause="a window function")
        inner = node.this
        if isinstance(inner, exp.Filter | exp.IgnoreNulls | exp.RespectNulls | exp.WithinGroup):
            raise text.unsupported("a window function with FILTER or IGNORE NULLS", node)
        name = function_name(inner)
        if name is None or name not in AGGREGATES | WINDOW_ONLY:
            raise text.unsupported("OVER after something that is no window function", node)
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
        if any(reads_window(e) for e in (*arguments, *partition_by, *(k.expr for k in order))):
            raise text.unsupported("a window function over another one's alias", node)
        kind, nullable = _result(function, arguments)
        return ReadWindow(
            function=function,
            arguments=arguments,
            partition_by=partition_by,
            order=order,
            frame=self._frame(reader, spec),
            type=kind,
            nullable=nullable,
            span=text.span_of(node),
        )

    def _specification(self, reader: ExprReader, node: exp.Window) -> exp.Expression:
        name = node.alias
        if not name:
            return node
        found = self.named.get(name.lower())
        has_own = any(node.args.get(item) for item in ("partition_by", "order", "spec"))
        if found is None or has_own:
            raise reader.text.error(
                f"Window `{name}` is not defined, or extended in place, in `{reader.text.name}`",
                node,
                hint="define it in the WINDOW clause, or write it out after OVER",
            )
        if found.args.get("alias"):
            raise reader.text.unsupported(
                f"window `{name}`, which is defined by another one",
                node,
                hint="write its specification out in the WINDOW clause",
            )
        return found

    def _frame(self, reader: ExprReader, node: exp.Expression) -> str | None:
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


def read_order(reader: ExprReader, node: exp.Expression | None) -> tuple[SortKey, ...]:
    """ORDER BY inside OVER."""
    if node is None:
        return ()
    return tuple(sort_key(reader.read(item.this), item) for item in node.expressions)


def sort_key(expr: Expr, item: exp.Expression) -> SortKey:
    """A sort key with direction and place of NULLs; Spark puts NULLs first when ascending."""
    descending = bool(item.args.get("desc"))
    nulls_first = item.args.get("nulls_first")
    return SortKey(expr, descending, (not descending) if nulls_first is None else bool(nulls_first))


def reads_window(expr: Expr) -> bool:
    """Whether an expression reads a window result that has no identity yet."""
    return any(identity.startswith(_PLACEHOLDER) for identity in columns_of(expr))


def placeholder(position: int) -> str:
    """What stands for the result of the collector's call at that position."""
    return f"{_PLACEHOLDER}{position}"
