"""The calls of one grouping: what to compute per row, what to remember per group.

Law: calls with the same argument share what is remembered; a call the engine does not keep is
named with its place.
Out of scope: how it is remembered (`engine.accumulators`).
"""

from __future__ import annotations

from dataclasses import dataclass

from impctl.aliases import AttributeId
from impctl.data.schema import DOUBLE, Kind
from impctl.engine.accumulators import Accumulator, Count, sum_of
from impctl.engine.operators.aggregate import AggregateColumn
from impctl.expr.nodes import Cast, Expr, Span
from impctl.expr.types import sum_type, type_of
from impctl.maintain.flows import BlockedError, known_type
from impctl.plan.nodes import Aggregate, AggregateCall, AggregateOutput, Attribute


@dataclass(frozen=True, slots=True)
class Calls:
    """Arguments to compute, output columns, and which outputs carry an error bound."""

    arguments: tuple[tuple[AttributeId, Expr], ...]
    columns: tuple[AggregateColumn, ...]
    inexact: frozenset[AttributeId]


def read_calls(node: Aggregate) -> Calls:
    """The calls of the grouping; BlockedError for one the engine does not keep."""
    slots: dict[Expr, int] = {}
    columns: list[AggregateColumn] = []
    inexact: set[AttributeId] = set()
    for output in node.aggregates:
        argument = _argument(output)
        if argument is None:
            columns.append(_column(output.attribute, None, None, node.span))
            continue
        slot = slots.setdefault(argument, len(slots))
        name = _slot_name(node, slot)
        guard = Count(name, slot)
        if output.call.function == "count":
            columns.append(_column(output.attribute, guard, None, node.span))
            continue
        total = _sum(argument, name, slot, output.call.span or node.span)
        if known_type(type_of(argument), None).is_fractional:
            inexact.add(output.attribute.id)
        columns.append(_column(output.attribute, total, guard, node.span))
    arguments = tuple((_slot_name(node, slot), expr) for expr, slot in slots.items())
    return Calls(arguments, tuple(columns), frozenset(inexact))


def _slot_name(node: Aggregate, slot: int) -> AttributeId:
    first = node.aggregates[0].attribute.id
    return f"{first}/argument{slot}"


def _argument(output: AggregateOutput) -> Expr | None:
    """The argument of a call the engine keeps; None for COUNT(*). BlockedError for others."""
    call: AggregateCall = output.call
    if call.function not in ("count", "sum"):
        raise BlockedError(
            f"{call.function.upper()} is not maintained by the engine yet", call.span
        )
    if call.distinct:
        raise BlockedError(
            f"{call.function.upper()}(DISTINCT) is not maintained by the engine yet", call.span
        )
    if call.condition is not None:
        raise BlockedError("FILTER (WHERE) is not maintained by the engine yet", call.span)
    if len(call.arguments) > 1:
        raise BlockedError(f"{call.function.upper()} of several columns", call.span)
    return call.arguments[0] if call.arguments else None


def _sum(argument: Expr, name: AttributeId, slot: int, span: Span | None) -> Accumulator:
    kind = known_type(type_of(argument), span)
    result = sum_type(kind)
    if result is None:
        raise BlockedError(f"SUM over `{kind}` is left to Spark", span)
    return sum_of(name, slot, kind, result, integral=_is_integral(argument))


def _is_integral(argument: Expr) -> bool:
    """Whether the argument is whole numbers as doubles, as AVG over integers is split."""
    if not isinstance(argument, Cast) or argument.type != DOUBLE:
        return False
    inner = type_of(argument.operand)
    return inner is not None and (inner.is_integral or inner.kind is Kind.BOOLEAN)


def _column(
    attribute: Attribute, accumulator: Accumulator | None, guard: Count | None, span: Span | None
) -> AggregateColumn:
    return AggregateColumn(attribute.id, known_type(attribute.type, span), accumulator, guard)
