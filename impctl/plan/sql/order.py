"""ORDER BY, LIMIT and OFFSET.

Law: ORDER BY sees the SELECT list first; a column it needs beyond that is carried along hidden.
ORDER BY without LIMIT is a Sort, with LIMIT or OFFSET a TopK.
Out of scope: ORDER BY inside OVER (`plan.sql.window`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sqlglot import exp

from impctl.expr.nodes import (
    ColumnRef,
    Expr,
    Literal,
    Span,
    children,
    columns_of,
    walk,
    with_children,
)
from impctl.plan.nodes import ComputedColumn, Plan, Sort, SortKey, TopK
from impctl.plan.render_expr import column_name
from impctl.plan.sql.context import Reading, attribute_for
from impctl.plan.sql.expr import ExprReader
from impctl.plan.sql.subquery import bare
from impctl.plan.sql.text import SqlText
from impctl.plan.sql.window import sort_key
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Order:
    """The end of a block: sort keys, and how many rows to skip and to keep."""

    keys: tuple[SortKey, ...] = ()
    count: int | None = None
    offset: int = 0
    span: Span | None = None

    def finished(self, finish: Callable[[Expr], Expr]) -> Order:
        """The same order with completed expressions."""
        return replace(self, keys=tuple(replace(key, expr=finish(key.expr)) for key in self.keys))

    def over(
        self, columns: Sequence[ComputedColumn], reading: Reading
    ) -> tuple[tuple[ComputedColumn, ...], Order]:
        """The order above a projection, and the hidden columns it needs there."""
        offered = {output.attribute.id for output in columns}
        keys = [replace(key, expr=_through(key.expr, columns)) for key in self.keys]
        missing: dict[str, ColumnRef] = {}
        for key in keys:
            for part in walk(key.expr):
                if isinstance(part, ColumnRef) and part.id not in offered:
                    missing.setdefault(part.id, part)
        names = [column_name(identity) for identity in missing]
        ids = reading.fresh("h", names) if missing else ()
        hidden = tuple(
            ComputedColumn(attribute_for(identity, name, ref), ref)
            for identity, name, ref in zip(ids, names, missing.values(), strict=True)
        )
        keys = [replace(key, expr=_through(key.expr, hidden)) for key in keys]
        return hidden, replace(self, keys=tuple(keys))


def read_order(
    node: exp.Expression, reader: ExprReader, ordinal: Callable[[exp.Expression], Expr | None]
) -> Order:
    """ORDER BY, LIMIT and OFFSET of a block or set operation."""
    text = reader.text
    keys = []
    clause = node.args.get("order")
    for item in clause.expressions if clause is not None else []:
        if not isinstance(item, exp.Ordered) or item.args.get("with_fill"):
            raise text.unsupported("ORDER BY in this form", item)
        result = ordinal(bare(item.this))
        keys.append(sort_key(result if result is not None else reader.read(item.this), item))
    limit, offset = node.args.get("limit"), node.args.get("offset")
    if limit is not None and not isinstance(limit, exp.Limit):
        raise text.unsupported("FETCH", limit, hint="use LIMIT")
    count = None if limit is None else _count(limit.expression, text, "LIMIT")
    skipped = None if offset is None else _count(offset.expression, text, "OFFSET")
    return Order(tuple(keys), count, skipped or 0, text.span_of(clause or limit or offset))


def _count(node: exp.Expression, text: SqlText, clause: str) -> int | None:
    if isinstance(node, exp.Var) and node.name.upper() == "ALL":
        return None
    if isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit():
        return int(node.name)
    raise text.unsupported(f"{clause} with an expression", node, hint="write a whole number")


def limited(plan: Plan, order: Order) -> Plan:
    """The plan sorted and cut."""
    if order.count is not None or order.offset:
        return TopK(plan, order.keys, order.count, order.offset, span=order.span)
    return Sort(plan, order.keys, span=order.span) if order.keys else plan


def _through(expr: Expr, columns: Sequence[ComputedColumn]) -> Expr:
    """The expression reading a projection's columns wherever one computes a part of it."""
    for output in columns:
        if expr == output.expr and not isinstance(expr, Literal):
            return output.attribute.ref(expr.span)
    parts = children(expr)
    if not parts or not columns_of(expr):
        return expr
    return with_children(expr, tuple(_through(part, columns) for part in parts))
