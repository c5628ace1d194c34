"""Scalar functions by name: the one list of what is computed without Spark.

Law: each gives what Spark gives, or does not take these arguments; every entry is tested against
Spark. What Spark alone knows (regions' time zones, case tables, how Java writes a double) is
refused. A TIMESTAMP goes in as the local time of the session's zone, and comes out as an instant.
Out of scope: what has an operator or a node of its own (`expr.evaluate`), casts (`expr.cast`).
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.data.schema import TIMESTAMP, SqlType
from impctl.data.vector import Vector
from impctl.expr.date_functions import DATE_FUNCTIONS
from impctl.expr.nodes import Call
from impctl.expr.number_functions import CARRIES_BOUNDS, NUMBER_FUNCTIONS
from impctl.expr.one_row import ONE_ROW, ONE_ROW_FUNCTION
from impctl.expr.signature import Function
from impctl.expr.spans import over_bounds
from impctl.expr.text_functions import TEXT_FUNCTIONS
from impctl.expr.types import type_of
from impctl.expr.zones import fixed_offset, moved_by, offset_of

FUNCTIONS: dict[str, Function] = {
    **NUMBER_FUNCTIONS,
    **DATE_FUNCTIONS,
    **TEXT_FUNCTIONS,
    ONE_ROW: ONE_ROW_FUNCTION,
}
"""All of them."""


def call_objection(call: Call) -> str | None:
    """Why the engine does not compute this call as Spark does; None where it does."""
    result = FUNCTIONS.get(call.name)
    if result is None:
        return f"the engine does not support function `{call.name}`"
    types = [type_of(argument) for argument in call.arguments]
    has_zone = any(kind == TIMESTAMP for kind in (call.type, *types))
    if has_zone and fixed_offset(call.zone) is None:
        return (
            f"the engine does not support `{call.name}` of timestamps in the time zone {call.zone}"
        )
    if result.takes(call.arguments):
        return None
    listed = ", ".join("?" if kind is None else f"`{kind}`" for kind in types)
    return f"the engine does not support function `{call.name}` of {listed}"


def compute(call: Call, arguments: Sequence[Vector], result: SqlType) -> Vector:
    """The call's value per row; there is no objection to the call."""
    offset = offset_of(call.zone)
    local = [moved_by(part, offset) if part.type == TIMESTAMP else part for part in arguments]
    function = FUNCTIONS[call.name].compute
    has_bounds = any(argument.error is not None for argument in local)
    if has_bounds and call.name not in CARRIES_BOUNDS:
        match = over_bounds(call.name, function, local, result)
    else:
        match = function(local, result)
    return moved_by(match, -offset) if result == TIMESTAMP else match
