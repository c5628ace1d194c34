"""Turns AVG into a sum and a count, which can be kept up to date.

Law: the results are Spark's: integers and floats are summed as doubles, decimals as decimals, and
`Mean` divides as AVG does. Equal sums and counts are kept once. AVG(DISTINCT ...) and arguments of
a type that is not known stay as they are. The columns above keep their identities; those of the
aggregate below get new ones.
Out of scope: computing the mean (`expr.evaluate`).
"""

from __future__ import annotations

from dataclasses import replace

from impctl.data.schema import DOUBLE, LONG, Kind, SqlType
from impctl.expr.nodes import Cast, Expr, Mean
from impctl.expr.types import average_type, sum_type, type_of
from impctl.plan.nodes import (
    Aggregate,
    AggregateCall,
    AggregateOutput,
    Attribute,
    ComputedColumn,
    Plan,
    Project,
    inputs_of,
    with_inputs,
)


def split_averages(root: Plan) -> Plan:
    """The plan with every AVG over numbers split."""
    inputs = inputs_of(root)
    split = tuple(split_averages(child) for child in inputs)
    if any(new is not old for new, old in zip(split, inputs, strict=True)):
        root = with_inputs(root, split)
    if isinstance(root, Aggregate) and any(_is_splittable(item.call) for item in root.aggregates):
        return _split(root)
    return root


def _is_splittable(call: AggregateCall) -> bool:
    if call.function != "avg" or call.distinct or len(call.arguments) != 1:
        return False
    argument = type_of(call.arguments[0])
    return argument is not None and average_type(argument) is not None


def _split(plan: Aggregate) -> Plan:
    keys = tuple(replace(key, attribute=_below(key.attribute)) for key in plan.keys)
    calls: list[AggregateOutput] = []
    outputs = [
        ComputedColumn(old.attribute, new.attribute.ref())
        for old, new in zip(plan.keys, keys, strict=True)
    ]
    plain = [item for item in plan.aggregates if not _is_splittable(item.call)]
    for item in plain:
        _shared(calls, item.call, item.attribute)
    for item in plan.aggregates:
        if not _is_splittable(item.call):
            outputs.append(
                ComputedColumn(item.attribute, _shared(calls, item.call, item.attribute))
            )
            continue
        total, count = _sum_and_count(item, calls)
        kind = item.attribute.type or DOUBLE
        mean = Mean(total, count, _mean_type(item.call) or kind, span=item.call.span)
        outputs.append(ComputedColumn(item.attribute, mean))
    aggregate = replace(plan, keys=keys, aggregates=tuple(calls))
    return Project(aggregate, tuple(outputs), span=plan.span)


def _mean_type(call: AggregateCall) -> SqlType | None:
    argument = type_of(call.arguments[0])
    return None if argument is None else average_type(argument)


def _sum_and_count(item: AggregateOutput, calls: list[AggregateOutput]) -> tuple[Expr, Expr]:
    argument = item.call.arguments[0]
    kind = type_of(argument)
    summed = argument
    if kind is not None and kind.kind is not Kind.DECIMAL and kind != DOUBLE:
        summed = Cast(argument, DOUBLE, span=argument.span)
    summed_type = type_of(summed)
    total = Attribute(
        f"{item.attribute.id}/sum",
        f"sum of {item.attribute.name}",
        None if summed_type is None else sum_type(summed_type),
    )
    count = Attribute(f"{item.attribute.id}/count", f"count of {item.attribute.name}", LONG, False)
    return (
        _shared(calls, replace(item.call, function="sum", arguments=(summed,)), total),
        _shared(calls, replace(item.call, function="count"), count),
    )


def _shared(calls: list[AggregateOutput], call: AggregateCall, wanted: Attribute) -> Expr:
    """The result of an equal call that is there already, or of this one, added."""
    for known in calls:
        if known.call == call:
            return known.attribute.ref(call.span)
    added = AggregateOutput(_below(wanted), call)
    calls.append(added)
    return added.attribute.ref(call.span)


def _below(attribute: Attribute) -> Attribute:
    """The attribute under a new identity, for use below the projection."""
    return replace(attribute, id=f"split.{attribute.id}")
