"""The calls of one grouping: what to compute per row, what to remember per group.

Law: calls with the same argument share what is remembered; a call the engine does not keep is
named with its place.
Out of scope: how it is remembered (`engine.accumulators`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from impctl.aliases import AttributeId
from impctl.data.schema import DOUBLE, INTEGER, Kind, SqlType
from impctl.engine.accumulators import Accumulator, Count, sum_of
from impctl.engine.extremes import Extreme, has_rank
from impctl.engine.operators.aggregate import AggregateColumn
from impctl.expr.nodes import And, Case, Cast, Expr, Literal, Span
from impctl.expr.types import sum_type, type_of
from impctl.maintain.flows import BlockedError, known_type
from impctl.plan.nodes import Aggregate, AggregateCall, Attribute


@dataclass(frozen=True, slots=True)
class Calls:
    """Arguments to compute, output columns, and which outputs carry an error bound."""

    arguments: tuple[tuple[AttributeId, Expr], ...]
    columns: tuple[AggregateColumn, ...]
    inexact: frozenset[AttributeId]
    distinct: Mapping[AttributeId, SqlType]
    """Arguments of which every value counts once."""


def read_calls(node: Aggregate, buffer: int | None = None) -> Calls:
    """The calls of the grouping; BlockedError for one the engine does not keep.

    Extremes keep the best `buffer` values, or all.
    """
    slots: dict[tuple[Expr, bool], int] = {}
    columns: list[AggregateColumn] = []
    inexact: set[AttributeId] = set()
    for output in node.aggregates:
        call = _plain(output.call)
        span = call.span or node.span
        if not call.arguments:
            columns.append(_column(output.attribute, None, None, node.span))
            continue
        argument = call.arguments[0]
        slot = slots.setdefault((argument, call.distinct), len(slots))
        name = _slot_name(node, slot)
        guard = Count(name, slot)
        if call.function == "count":
            columns.append(_column(output.attribute, guard, None, node.span))
            continue
        if call.function == "sum":
            part: Accumulator | Extreme = _sum(argument, name, slot, call, span)
            if known_type(type_of(argument), None).is_fractional:
                inexact.add(output.attribute.id)
        else:
            part = _extreme(argument, name, slot, call, span, buffer)
        columns.append(_column(output.attribute, part, guard, node.span))
    arguments = tuple((_slot_name(node, slot), expr) for (expr, _), slot in slots.items())
    once = {
        _slot_name(node, slot): known_type(type_of(expr), node.span)
        for (expr, is_distinct), slot in slots.items()
        if is_distinct
    }
    return Calls(arguments, tuple(columns), frozenset(inexact), once)


def _slot_name(node: Aggregate, slot: int) -> AttributeId:
    first = node.aggregates[0].attribute.id
    return f"{first}/argument{slot}"


def _plain(call: AggregateCall) -> AggregateCall:
    """The call as COUNT, SUM, MIN or MAX of one argument, or COUNT(*); BlockedError for others.

    DISTINCT makes no difference to an extreme. FILTER (WHERE c) is the argument only where c.
    """
    function, arguments, condition = call.function, call.arguments, call.condition
    if function == "count_if" and len(arguments) == 1 and not call.distinct:
        function, condition = "count", _both(condition, arguments[0])
        arguments = ()
    if function in ("bool_and", "bool_or"):
        function = "min" if function == "bool_and" else "max"
    if function not in ("count", "sum", "min", "max"):
        raise BlockedError(f"{function.upper()} is not maintained by the engine", call.span)
    if len(arguments) > 1:
        raise BlockedError(f"{function.upper()} of several columns", call.span)
    if condition is not None:
        argument = arguments[0] if arguments else Literal(1, INTEGER)
        kind = known_type(type_of(argument), call.span)
        arguments = (Case(((condition, argument),), Literal(None, kind)),)
    is_distinct = call.distinct and function in ("count", "sum")
    return AggregateCall(function, arguments, distinct=is_distinct, span=call.span)


def _both(one: Expr | None, other: Expr) -> Expr:
    return other if one is None else And((one, other))


def _sum(
    argument: Expr, name: AttributeId, slot: int, call: AggregateCall, span: Span | None
) -> Accumulator:
    kind = known_type(type_of(argument), span)
    result = sum_type(kind)
    if result is None:
        raise BlockedError(f"SUM over `{kind}` is left to Spark", span)
    if call.distinct and kind.is_fractional:
        raise BlockedError("SUM(DISTINCT) over doubles is left to Spark", span)
    return sum_of(name, slot, kind, result, integral=_is_integral(argument))


def _extreme(
    argument: Expr,
    name: AttributeId,
    slot: int,
    call: AggregateCall,
    span: Span | None,
    buffer: int | None,
) -> Extreme:
    kind = known_type(type_of(argument), span)
    if not has_rank(kind):
        raise BlockedError(f"{call.function.upper()} over `{kind}` is not maintained", span)
    return Extreme(name, slot, reverse=call.function == "max", size=buffer)


def _is_integral(argument: Expr) -> bool:
    """Whether the argument is whole numbers as doubles, as AVG over integers is split."""
    if not isinstance(argument, Cast) or argument.type != DOUBLE:
        return False
    inner = type_of(argument.operand)
    return inner is not None and (inner.is_integral or inner.kind is Kind.BOOLEAN)


def _column(
    attribute: Attribute,
    accumulator: Accumulator | Extreme | None,
    guard: Count | None,
    span: Span | None,
) -> AggregateColumn:
    return AggregateColumn(attribute.id, known_type(attribute.type, span), accumulator, guard)
