"""MIN and MAX of values with bounds: the extremes of both ends, and the value between them.

Law: whatever the values within their bounds, their least (greatest) one lies between the least
(greatest) of the lower ends and that of the upper ends, NaN being the greatest of all.
Out of scope: extremes of exact values (`circuits.calls`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from impctl.circuits.calls import plain_call
from impctl.circuits.flows import Column, Flow
from impctl.circuits.plumbing import Plumbing
from impctl.data.schema import DOUBLE
from impctl.engine.exact_sums import Narrowed, Spanned
from impctl.expr.nodes import ColumnRef, Expr, columns_of
from impctl.plan.nodes import Aggregate, AggregateOutput, Attribute
from impctl.types import AttributeId
from impctl.values import dataclass

_Spans = Mapping[AttributeId, tuple[AttributeId, AttributeId]]


@dataclass(frozen=True, slots=True)
class Split:
    """A grouping whose extremes are of exact values, its input, and what becomes of its output."""

    node: Aggregate
    below: Flow
    spans: _Spans = field(default_factory=dict)
    """By output, the two outputs between which its value lies."""

    def whole(self, builder: Plumbing, flow: Flow, columns: tuple[Column, ...]) -> Flow:
        """The grouping's output, its extremes with their bounds."""
        if not self.spans:
            return flow
        at = builder.put(Narrowed(self.spans), flow)
        return Flow(at, columns, flow.accesses, flow.approximate | self.spans.keys())


def split_extremes(builder: Plumbing, node: Aggregate, below: Flow) -> Split:
    """The grouping with two calls for each extreme of a value that has bounds."""
    name = ""
    arguments: list[tuple[AttributeId, Expr]] = []
    inside: dict[AttributeId, tuple[AttributeId, AttributeId]] = {}
    outside: dict[AttributeId, tuple[AttributeId, AttributeId]] = {}
    outputs: list[AggregateOutput] = []
    for output in node.aggregates:
        call = plain_call(output.call)
        attribute = output.attribute
        is_extreme = call.function in ("min", "max") and attribute.type == DOUBLE
        if not is_extreme or not columns_of(call.arguments[0]) & below.approximate:
            outputs.append(output)
            continue
        name = name or builder.name("extreme")
        argument = f"{name}/{len(arguments)}"
        arguments.append((argument, call.arguments[0]))
        inside[argument] = (f"{argument}/low", f"{argument}/high")
        outside[attribute.id] = (f"{attribute.id}/low", f"{attribute.id}/high")
        for own, end in zip(outside[attribute.id], inside[argument], strict=True):
            part = replace(call, arguments=(ColumnRef(end, DOUBLE),))
            outputs.append(AggregateOutput(Attribute(own, attribute.name, DOUBLE), part))
    if not arguments:
        return Split(node, below)
    columns = (*below.columns, *((argument, DOUBLE) for argument, _ in arguments))
    flow = builder.project(below, (*below.refs(), *arguments), columns, node)
    ends = tuple((end, DOUBLE) for pair in inside.values() for end in pair)
    at = builder.put(Spanned(inside), flow)
    spanned = replace(flow, at=at, columns=(*below.columns, *ends), plan=None, computed=None)
    return Split(replace(node, aggregates=tuple(outputs)), spanned, outside)
