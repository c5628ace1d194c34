"""Types of aggregate calls, for plans built without SQL text."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from impctl.data.schema import BOOLEAN, DOUBLE, LONG, SqlType
from impctl.expr.nodes import Expr
from impctl.expr.types import average_type, sum_type, type_of
from impctl.plan.nodes import AggregateCall, Attribute


def call_type(call: AggregateCall) -> SqlType | None:
    match call.function:
        case "count" | "count_if":
            return LONG
        case "bool_or" | "bool_and":
            return BOOLEAN
        case "sum":
            return summed_type(call.arguments)
        case "avg":
            result = type_of(call.arguments[0])
            return None if result is None else average_type(result)
        case "variance" | "var_pop" | "stddev" | "stddev_pop":
            return DOUBLE
        case _:
            return type_of(call.arguments[0])


def summed_type(arguments: tuple[Expr, ...]) -> SqlType | None:
    result = type_of(arguments[0]) if arguments else None
    return None if result is None else sum_type(result)


def other_call(
    rng: Random, attributes: Sequence[Attribute], condition: Expr | None = None
) -> AggregateCall:
    """A call whose value is not fixed to the last digit, or not at all where rows tie."""
    name = rng.choice(("variance", "stddev_pop", "min_by", "max_by"))
    one, other = rng.choice(attributes).ref(), rng.choice(attributes).ref()
    if name.endswith("_by"):
        return AggregateCall(name, (one, other), False, condition)
    numbers = [a for a in attributes if a.type is not None and a.type.is_numeric]
    if not numbers:
        return AggregateCall("count", (), False, condition)
    return AggregateCall(name, (rng.choice(numbers).ref(),), False, condition)
