"""Types of aggregate calls, for plans built without SQL text."""

from __future__ import annotations

from impctl.data.schema import BOOLEAN, LONG, SqlType
from impctl.expr.nodes import Expr
from impctl.expr.types import average_type, sum_type, type_of
from impctl.plan.nodes import AggregateCall


def call_type(call: AggregateCall) -> SqlType | None:
    match call.function:
        case "count" | "count_if":
            return LONG
        case "bool_or" | "bool_and":
            return BOOLEAN
        case "sum":
            return summed_type(call.arguments)
        case "avg":
            found = type_of(call.arguments[0])
            return None if found is None else average_type(found)
        case _:
            return type_of(call.arguments[0])


def summed_type(arguments: tuple[Expr, ...]) -> SqlType | None:
    found = type_of(arguments[0]) if arguments else None
    return None if found is None else sum_type(found)
