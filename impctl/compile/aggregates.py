"""The calls of one grouping: what to compute per row and to keep per group.

Calls with the same argument share state. An unsupported call is refused with its place in the SQL.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from impctl.compile.flows import BlockedError, Column, Flow, known_type, known_type_of
from impctl.data.schema import DOUBLE, INTEGER, Kind, SqlType, decimal
from impctl.engine import accumulators
from impctl.engine.accumulators import (
    Accumulator,
    AggregateColumn,
    Count,
    FloatSum,
    Part,
    Spread,
    sum_of,
)
from impctl.engine.exact_sums import Narrowed, Spanned
from impctl.engine.extremes import Extreme, FirstValue, has_rank
from impctl.expr import nodes as e
from impctl.expr.types import sum_type, type_of
from impctl.plan.nodes import Aggregate, AggregateCall, AggregateOutput, Attribute
from impctl.types import AttributeId

if TYPE_CHECKING:
    from impctl.compile.builder import CircuitBuilder

_DIGITS = {Kind.BYTE: 3, Kind.SHORT: 5, Kind.INTEGER: 10}
_EXACT_DIGITS = 15  # Decimals whose squares add up exactly in 38 digits, over at least 10^8 rows
_BY = {"min_by": False, "max_by": True}
_FUNCTIONS = ("count", "sum", "min", "max", *_BY, *accumulators.FUNCTIONS)


class Calls(Struct, frozen=True):
    arguments: tuple[tuple[AttributeId, e.Expr], ...]
    columns: tuple[AggregateColumn, ...]
    inexact: frozenset[AttributeId]
    integral: frozenset[AttributeId]  # Those whose bound is zero unless magnitudes add up to 2^53
    distinct: Mapping[AttributeId, SqlType]  # Arguments that count each value once
    first_types: Mapping[AttributeId, SqlType]  # Argument types of each `FirstValue`
    choice: AggregateCall | None  # A call whose value is ambiguous where rows tie


def read_calls(
    node: Aggregate, buffer: int | None = None, approximate: Collection[AttributeId] = ()
) -> Calls:
    """Read the calls of a grouping; BlockedError for one the engine does not maintain. Extremes
    keep the best `buffer` values, or all. Columns in `approximate` have error bounds."""
    slots = _Slots(f"{node.aggregates[0].attribute.id}/argument" if node.aggregates else "")
    columns: list[AggregateColumn] = []
    inexact: set[AttributeId] = set()
    integral: set[AttributeId] = set()
    choice = None
    for output in node.aggregates:
        call = plain_call(output.call)
        span = call.span or node.span
        kind = known_type(output.attribute.type, span)
        part, guard = _part(call, slots, span, buffer, frozenset(approximate))
        columns.append(AggregateColumn(output.attribute.id, kind, part, guard))
        if isinstance(part, Spread) or (call.function == "sum" and kind.is_fractional):
            inexact.add(output.attribute.id)
        if isinstance(part, FloatSum) and part.integral:
            integral.add(output.attribute.id)
        if isinstance(part, FirstValue) and not part.is_own_key:
            choice = choice or output.call
    first_types = {
        name: slots.types[name]
        for column in columns
        if isinstance(column.accumulator, FirstValue)
        for name in (column.accumulator.key, column.accumulator.value)
    }
    return Calls(
        slots.arguments,
        tuple(columns),
        frozenset(inexact),
        frozenset(integral),
        slots.distinct,
        first_types,
        choice,
    )


class _Slots:
    """The arguments of one grouping; equal ones share a slot."""

    def __init__(self, prefix: AttributeId) -> None:
        self._prefix = prefix
        self._found: dict[tuple[e.Expr, bool], int] = {}
        self.types: dict[AttributeId, SqlType] = {}

    def take(self, argument: e.Expr, span: e.Span | None, *, once: bool = False) -> Count:
        """The count of an argument, with its name and slot; `once` for DISTINCT."""
        slot = self._found.setdefault((argument, once), len(self._found))
        name = f"{self._prefix}{slot}"
        self.types[name] = known_type_of(argument, span)
        return Count(name, slot)

    @property
    def arguments(self) -> tuple[tuple[AttributeId, e.Expr], ...]:
        return tuple((f"{self._prefix}{slot}", expr) for (expr, _), slot in self._found.items())

    @property
    def distinct(self) -> dict[AttributeId, SqlType]:
        names = (f"{self._prefix}{slot}" for (_, once), slot in self._found.items() if once)
        return {name: self.types[name] for name in names}


def _part(
    call: AggregateCall,
    slots: _Slots,
    span: e.Span | None,
    buffer: int | None,
    approximate: frozenset[AttributeId],
) -> tuple[Part | None, Count | None]:
    """How a plain call's value is computed, and the count that must be positive, else it is
    NULL."""
    if not call.arguments:
        return None, None
    argument = call.arguments[0]
    if call.function in _BY:
        key, value = slots.take(call.arguments[1], span), slots.take(argument, span)
        reverse = _BY[call.function]
        return FirstValue(key.argument, value.argument, key.slot, value.slot, reverse), key
    if call.function in accumulators.FUNCTIONS:
        return _spread(call, slots, span), None
    guard = slots.take(argument, span, once=call.distinct)
    if call.function == "count":
        return guard, None
    if call.function == "sum":
        bounded = bool(argument.columns & approximate)
        return _sum(argument, guard, call, span, bounded=bounded), guard
    reverse = call.function == "max"
    if has_rank(slots.types[guard.argument]):
        return Extreme(guard.argument, guard.slot, reverse=reverse, size=buffer), guard
    return FirstValue(guard.argument, guard.argument, guard.slot, guard.slot, reverse), guard


def plain_call(call: AggregateCall) -> AggregateCall:
    """The call as one of `_FUNCTIONS`, or COUNT(*); BlockedError for others. DISTINCT does not
    change an extreme. FILTER (WHERE c) counts only arguments where c is true."""
    function, arguments, condition = call.function, call.arguments, call.condition
    if function == "count_if" and len(arguments) == 1 and not call.distinct:
        condition = arguments[0] if condition is None else e.And((condition, arguments[0]))
        function, arguments = "count", ()
    if function in ("bool_and", "bool_or"):
        function = "min" if function == "bool_and" else "max"
    reason = f"the engine does not support {function.upper()}"
    if function not in _FUNCTIONS:
        raise BlockedError(reason, call.span)
    if len(arguments) > 1 + (function in _BY):
        raise BlockedError(f"{reason} of several columns", call.span)
    if function in accumulators.FUNCTIONS and call.distinct:
        raise BlockedError(f"{reason} of distinct values", call.span)
    if condition is not None:
        arguments = tuple(
            e.Case(((condition, argument),), e.Literal(None, known_type_of(argument, call.span)))
            for argument in arguments or (e.Literal(1, INTEGER),)
        )
    is_distinct = call.distinct and function in ("count", "sum")
    return AggregateCall(function, arguments, distinct=is_distinct, span=call.span)


def is_ordered(call: AggregateCall) -> bool:
    """Whether a plain call's value depends on an order of values: a `FirstValue`."""
    if call.function in ("min", "max"):
        kind = type_of(call.arguments[0])
        return kind is not None and not has_rank(kind)
    return call.function in _BY


def refuse_choice(node: Aggregate, choice: AggregateCall | None) -> None:
    """BlockedError where a group may have several rows and an operator above counts rows."""
    if choice is not None:
        name = choice.function.upper()
        reason = (
            f"the engine does not support {name} below another grouping or a LIMIT, because rows "
            "may tie"
        )
        raise BlockedError(reason, choice.span or node.span)


def _sum(
    argument: e.Expr, guard: Count, call: AggregateCall, span: e.Span | None, *, bounded: bool
) -> Accumulator:
    kind = known_type_of(argument, span)
    result = sum_type(kind)
    if result is None:
        raise BlockedError(f"the engine does not support SUM over `{kind}`", span)
    if call.distinct and kind.is_fractional:
        raise BlockedError("the engine does not support SUM(DISTINCT) over doubles", span)
    integral = _is_integral(argument)
    # Whole numbers made of what has bounds are sure, or are not used.
    bounded = bounded and not integral
    return sum_of(guard.argument, guard.slot, kind, result, integral=integral, bounded=bounded)


def _spread(call: AggregateCall, slots: _Slots, span: e.Span | None) -> Spread:
    """Sums of the argument and of its squares: exact where 38 digits hold them, else doubles."""
    argument = call.arguments[0]
    kind = known_type_of(argument, span)
    if not kind.is_numeric:
        reason = f"the engine does not support {call.function.upper()} over `{kind}`"
        raise BlockedError(reason, span)
    factor = argument
    if kind.kind in _DIGITS:
        factor = e.Cast(argument, decimal(_DIGITS[kind.kind], 0))
    elif kind != DOUBLE and not (kind.kind is Kind.DECIMAL and kind.precision <= _EXACT_DIGITS):
        argument = factor = e.Cast(argument, DOUBLE)
    count = slots.take(argument, span)
    squares = slots.take(e.Arithmetic(e.ArithmeticOp.MULTIPLY, factor, factor), span)
    sums = []
    for part in (count, squares):
        kind_of_sum = slots.types[part.argument]
        result = sum_type(kind_of_sum)
        assert result is not None, "numbers have a sum"
        sums.append(sum_of(part.argument, part.slot, kind_of_sum, result, integral=False))
    total, squared = sums
    residues = None
    if isinstance(squared, FloatSum):
        lost = slots.take(accumulators.residue(factor), span)
        residues = FloatSum(lost.argument, lost.slot, integral=False)
    return Spread(call.function, count, total, squared, kind.scale, residues)


def _is_integral(argument: e.Expr) -> bool:
    """Whether the argument is integers as doubles, which is how AVG over integers is split."""
    if not isinstance(argument, e.Cast) or argument.type != DOUBLE:
        return False
    inner = type_of(argument.operand)
    return inner is not None and (inner.is_integral or inner.kind is Kind.BOOLEAN)


# MIN (MAX) of values with error bounds lies between the least (greatest) lower end and the least
# (greatest) upper end; NaN is the greatest value.

_Spans = Mapping[AttributeId, tuple[AttributeId, AttributeId]]


class Split(Struct, frozen=True):
    """A grouping whose extremes are over exact values, its input, and how its output is mapped."""

    node: Aggregate
    below: Flow
    spans: _Spans = field(default_factory=dict)  # Per output, the two outputs that bound its value

    def whole(self, builder: CircuitBuilder, flow: Flow, columns: tuple[Column, ...]) -> Flow:
        """The grouping's output, with error bounds on its extremes."""
        if not self.spans:
            return flow
        wire = builder.put(Narrowed(self.spans), flow)
        return Flow(wire, columns, flow.accesses, flow.approximate | self.spans.keys())


def split_extremes(builder: CircuitBuilder, node: Aggregate, below: Flow) -> Split:
    name = ""
    arguments: list[tuple[AttributeId, e.Expr]] = []
    inside: dict[AttributeId, tuple[AttributeId, AttributeId]] = {}
    outside: dict[AttributeId, tuple[AttributeId, AttributeId]] = {}
    outputs: list[AggregateOutput] = []
    for output in node.aggregates:
        call = plain_call(output.call)
        attribute = output.attribute
        is_extreme = call.function in ("min", "max") and attribute.type == DOUBLE
        if not is_extreme or not call.arguments[0].columns & below.approximate:
            outputs.append(output)
            continue
        name = name or builder.name("extreme")
        argument = f"{name}/{len(arguments)}"
        arguments.append((argument, call.arguments[0]))
        inside[argument] = (f"{argument}/low", f"{argument}/high")
        outside[attribute.id] = (f"{attribute.id}/low", f"{attribute.id}/high")
        for name_of_end, end in zip(outside[attribute.id], inside[argument], strict=True):
            part = replace(call, arguments=(e.ColumnRef(end, DOUBLE),))
            outputs.append(AggregateOutput(Attribute(name_of_end, attribute.name, DOUBLE), part))
    if not arguments:
        return Split(node, below)
    columns = (*below.columns, *((argument, DOUBLE) for argument, _ in arguments))
    flow = builder.project(below, (*below.refs(), *arguments), columns, node)
    ends = tuple((end, DOUBLE) for pair in inside.values() for end in pair)
    wire = builder.put(Spanned(inside), flow)
    spanned = replace(flow, wire=wire, columns=(*below.columns, *ends), rows=None)
    return Split(replace(node, aggregates=tuple(outputs)), spanned, outside)
