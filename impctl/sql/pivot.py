"""PIVOT as one grouping in which every call counts the rows of one value only."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext

from msgspec import Struct
from msgspec.structs import replace
from sqlglot import exp

from impctl.data.schema import LONG, Kind, SqlType
from impctl.errors import count_text
from impctl.expr import nodes as e
from impctl.expr.types import MAX_PRECISION, type_of
from impctl.plan import nodes as p
from impctl.sql import literals
from impctl.sql.aggregates import (
    AggregateCollector,
    Lift,
    call_is_nullable,
    grouped,
    has_placeholder,
    placeholder,
)
from impctl.sql.expressions import ExprReader
from impctl.sql.scope import FromSource, Names, ParseContext, Scope, ScopeEntry, known_type
from impctl.sql.text import Node

# Values after IN of a PIVOT, as constants of the column's type, and their names: Spark's text for
# them in the type as written. None unless Spark's cast to the column's type surely changes nothing.
# Source: Spark's rule ResolvePivot.

_EXACT_DIGITS = 100
"""More than any decimal value or its scaling needs."""
_PLAIN_BELOW = 6
"""Zeros after the point up to which every notation of a decimal is plain."""


def constant_of(expr: e.Expr) -> e.Literal | None:
    """Constant value of an expression without columns, such as `CAST('1' AS INT)` or `1 + 1`."""
    if isinstance(expr, e.Literal):
        return expr
    result = literals.one_value(expr)
    if result is None:
        return None
    if not result.validity()[0]:
        return e.Literal(None, result.type, span=expr.span)
    value = _plain(result.values[0], result.type)
    return None if value is None else e.Literal(value, result.type, span=expr.span)


def _plain(value: object, kind: SqlType) -> e.LiteralValue:
    """A computed value as a literal holds it; None for unsupported kinds."""
    if kind.kind is Kind.STRING:
        return str(value)
    if kind.kind is Kind.BOOLEAN:
        return bool(value)
    if kind.is_integral:
        return int(str(value))
    if kind.kind is Kind.DECIMAL:
        with localcontext(prec=_EXACT_DIGITS):
            return Decimal(str(value)).scaleb(-kind.scale)
    return None


def as_column(value: e.Literal, column: SqlType | None) -> e.Literal | None:
    """The value in the column's type; None where Spark's cast would or might change it."""
    if value.value is None:
        return value
    if column is None:
        return None
    if value.type == column or (value.type.is_integral and column.is_integral):
        return value
    is_exact = value.type.is_integral or value.type.kind is Kind.DECIMAL
    if not is_exact or not (column.is_integral or column.kind is Kind.DECIMAL):
        return None
    with localcontext(prec=_EXACT_DIGITS):
        number = Decimal(str(value.value))
        unscaled = number.scaleb(column.scale)
        digits = column.precision if column.kind is Kind.DECIMAL else MAX_PRECISION
        if unscaled != unscaled.to_integral_value() or abs(unscaled) >= Decimal(10) ** digits:
            return None
        if column.is_integral:
            return e.Literal(int(number), column, span=value.span)
        return e.Literal(number.quantize(Decimal(1).scaleb(-column.scale)), column, span=value.span)


def name_of(values: Sequence[e.Literal]) -> str | None:
    """Spark's column name for one value, or several in brackets."""
    texts = [text for value in values if (text := _text(value)) is not None]
    if len(texts) < len(values):
        return None
    return texts[0] if len(texts) == 1 else f"{{{', '.join(texts)}}}"


def _text(value: e.Literal) -> str | None:
    if value.value is None:
        return "null"
    if isinstance(value.value, bool):
        return "true" if value.value else "false"
    if value.type.is_integral or value.type.kind is Kind.STRING:
        return str(value.value)
    if value.type.kind is Kind.DECIMAL and value.type.scale <= _PLAIN_BELOW:
        return f"{Decimal(str(value.value)):.{value.type.scale}f}"
    return None


# PIVOT as one grouping by all columns that neither an aggregate nor FOR reads, with names, NULLs
# and column order as in Spark. `f(x) FOR c IN (v)` is `f(x) FILTER (WHERE c <=> v)`. If every
# result is a number or a boolean, Spark first groups by `c` too, so that a group without a row of
# `v` has NULL even for COUNT; otherwise COUNT is 0.

_SKIPPING_NULL = frozenset(
    {"sum", "avg", "min", "max", "count", "count_if", "bool_and", "bool_or"}
    | {"stddev", "stddev_pop", "variance", "var_pop"}
)
"""Aggregates that ignore NULL, which Spark substitutes in rows of other values."""
_ALIAS_HINT = "give it a name with AS"


class _Results(Struct, frozen=True):
    """Computed for every value: expressions over placeholders of calls."""

    calls: tuple[p.AggregateCall, ...]
    columns: tuple[tuple[str | None, e.Expr], ...]
    """Suffixes of column names; None if there is only one expression."""

    @property
    def is_two_phase(self) -> bool:
        """Whether Spark groups by the values as well (`PivotFirst.supportsDataType`)."""
        kinds = [known_type(expr) for _, expr in self.columns]
        return all(k is not None and (k.is_numeric or k.kind is Kind.BOOLEAN) for k in kinds)

    def is_null_without_rows(self, expr: e.Expr) -> bool:
        """Whether the expression is NULL without rows, so that it needs no CASE."""
        calls = {placeholder(number): call for number, call in enumerate(self.calls)}
        return isinstance(expr, e.ColumnRef) and call_is_nullable(calls[expr.id])


def pivoted(source: FromSource, node: exp.Pivot, context: ParseContext) -> FromSource:
    """Compute `PIVOT (calls FOR columns IN (values))` of a plan, and its names."""
    field, scope = _field(node, context), source.scope
    collector = AggregateCollector()
    reader = ExprReader(context, Names(context.text, scope), "PIVOT", collector)
    columns = tuple(
        (_suffix(expression, node, context), reader.read(expression.unalias()))
        for expression in node.expressions
    )
    results = _Results(tuple(collector.calls), columns)
    _check_calls(node, results, context)
    plain = replace(reader, special=None)
    axes = field.this.expressions if isinstance(field.this, exp.Tuple) else [field.this]
    keys = _keys(scope, plain, axes, results)
    values = [_value(item, axes, plain) for item in field.expressions]
    filtered = [
        (name, _filtered(call, condition))
        for name, condition in values
        for call in (*results.calls, p.AggregateCall("count"))
    ]
    named_keys = [(entry.name, entry.expr) for entry in keys]
    span = context.text.span_of(node)
    groups = grouped(source.plan, named_keys, filtered, context, span)
    named: list[tuple[str, e.Expr]] = []
    width = len(results.calls) + 1
    for number, (name, _) in enumerate(values):
        *outputs, rows = groups.aggregates[number * width :][:width]
        refs = {placeholder(index): output.attribute.ref() for index, output in enumerate(outputs)}
        lift = Lift(context.text, (), refs, scope.ids())
        for suffix, expr in results.columns:
            value = lift(expr)
            if results.is_two_phase and not results.is_null_without_rows(expr):
                value = _where_there(value, rows.attribute)
            named.append((name if suffix is None else f"{name}_{suffix}", value))
    return _projected(scope, keys, groups, named, context)


def _field(node: exp.Pivot, context: ParseContext) -> exp.In:
    text = context.text
    fields = node.args.get("fields") or []
    if node.args.get("unpivot"):
        raise text.unsupported("UNPIVOT", node, hint="use UNION ALL of SELECTs instead")
    if len(fields) != 1 or not isinstance(fields[0], exp.In) or not fields[0].expressions:
        raise text.unsupported("PIVOT in this form", node)
    result: exp.In = fields[0]
    return result


def _suffix(item: Node, node: exp.Pivot, context: ParseContext) -> str | None:
    """Suffix of the column name; None if there is only one call."""
    if len(node.expressions) == 1:
        return None
    if not item.alias:
        raise context.text.unsupported(
            "a PIVOT with several aggregates of which one has no name", item, hint=_ALIAS_HINT
        )
    return str(item.alias)


def _check_calls(node: exp.Pivot, results: _Results, context: ParseContext) -> None:
    for call in results.calls:
        if call.function not in _SKIPPING_NULL:
            raise context.text.unsupported(
                f"`{call.function}` in PIVOT",
                call.span,
                hint="group by the columns and use FILTER (WHERE ...) for each value, or keep the "
                "query without a sketch (`sketch: none`)",
            )
    for item, (_, expr) in zip(node.expressions, results.columns, strict=True):
        reads_call = has_placeholder(expr)
        is_bare = reads_call and isinstance(expr, e.ColumnRef)
        if not is_bare and not (results.is_two_phase and reads_call):
            raise context.text.unsupported(
                "an expression around the aggregates of a PIVOT",
                item,
                hint="compute it in a SELECT around the PIVOT",
            )


def _keys(
    scope: Scope, reader: ExprReader, axes: list[Node], results: _Results
) -> list[ScopeEntry]:
    """Columns that the pivot does not read otherwise: Spark groups by these."""
    exprs = [*(reader.read(axis) for axis in axes), *(expr for _, expr in results.columns)]
    for call in results.calls:
        exprs += call.arguments if call.condition is None else (*call.arguments, call.condition)
    read = frozenset[str]().union(*(expr.columns for expr in exprs))
    return [entry for entry in scope.star(None) if not entry.expr.columns & read]


def _value(item: Node, axes: list[Node], reader: ExprReader) -> tuple[str, e.Expr]:
    """One value of IN: its column name, and the condition on its rows."""
    text = reader.text
    value = item.this if isinstance(item, exp.PivotAlias) else item
    parts = value.expressions if isinstance(value, exp.Tuple) else [value]
    if len(parts) != len(axes):
        raise text.error(
            f"A value of PIVOT has {count_text(len(parts), 'part')}, but FOR names "
            f"{count_text(len(axes), 'column')}",
            item,
            hint="write one value for each column",
        )
    conditions: list[e.Expr] = []
    values: list[e.Literal] = []
    for axis, part in zip(axes, parts, strict=True):
        left = reader.read(axis)
        written = constant_of(reader.read(part))
        if written is None:
            raise text.unsupported(
                "a PIVOT value that is not a constant, or that only Spark can compute",
                part,
                hint="write the value itself, for example -1.50",
            )
        right = as_column(written, type_of(left))
        if right is None:
            raise text.unsupported(
                "a PIVOT value whose type differs from its column's",
                part,
                hint="write a literal of the column's type, for example DATE '2026-01-01'",
            )
        values.append(written)
        conditions.append(_is_value(left, right, text.span_of(part)))
    condition = e.conjunction(conditions)
    if isinstance(item, exp.PivotAlias):
        return str(item.args["alias"].name), condition
    name = name_of(values)
    if name is None:
        raise text.unsupported("a PIVOT value without a name", item, hint=_ALIAS_HINT)
    return name, condition


def _is_value(column: e.Expr, value: e.Literal, span: e.Span | None) -> e.Expr:
    """`column <=> value`; for NULL in the form that the engine evaluates."""
    if value.value is None:
        return e.IsNull(column, span=span)
    return e.Compare(e.CompareOp.NULL_SAFE_EQUAL, column, value, span=span)


def _filtered(call: p.AggregateCall, condition: e.Expr) -> p.AggregateCall:
    both = condition if call.condition is None else e.And((call.condition, condition))
    return replace(call, condition=both)


def _where_there(value: e.Expr, rows: p.Attribute) -> e.Expr:
    """The value where a row was counted, else NULL."""
    some = e.Compare(e.CompareOp.GREATER, rows.ref(), e.Literal(0, LONG))
    kind = type_of(value)
    assert kind is not None, "only what Spark pivots in two phases comes here"
    return e.Case(((some, value),), e.Literal(None, kind))


def _projected(
    scope: Scope,
    keys: list[ScopeEntry],
    groups: p.Aggregate,
    columns: list[tuple[str, e.Expr]],
    context: ParseContext,
) -> FromSource:
    """Key columns under their old names, then those of the values, which belong to no relation."""
    refs = [key.attribute.ref() for key in groups.keys]
    named: list[tuple[str, e.Expr]] = [
        *((entry.name, ref) for entry, ref in zip(keys, refs, strict=True)),
        *columns,
    ]
    outputs = context.computed("p", named)
    owners = [*(entry.relation for entry in keys), *(None for _ in columns)]
    entries = tuple(
        ScopeEntry(owner, output.attribute.name, output.attribute.ref())
        for owner, output in zip(owners, outputs, strict=True)
    )
    plan = p.Project(groups, outputs, span=groups.span)
    return FromSource(plan, Scope(entries, scope.relations))
