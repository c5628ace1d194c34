"""Window functions by definition, for one ordered partition.

Law: `standings` tell ties apart from order; frames are those that SQL gives without being asked,
and rows up to the current one.
Out of scope: ordering the rows (`reference_plan`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from impctl.plan.nodes import AggregateCall, WindowCall
from impctl.types import AttributeId
from tests.support.reference_aggregate import aggregate_value
from tests.support.reference_expr import ReferenceLimit, Value, value_of

Values = Mapping[AttributeId, Value]


def window_values(
    call: WindowCall, rows: Sequence[Values], standings: list[tuple[object, ...]]
) -> list[Value]:
    """The call's value for each row of one ordered partition."""
    match call.function:
        case "row_number":
            return list(range(1, len(rows) + 1))
        case "rank":
            return [standings.index(one) + 1 for one in standings]
        case "dense_rank":
            distinct = list(dict.fromkeys(standings))
            return [distinct.index(one) + 1 for one in standings]
        case "percent_rank":
            others = len(rows) - 1
            return [standings.index(one) / others if others else 0.0 for one in standings]
        case "cume_dist":
            ends = [len(rows) - standings[::-1].index(one) for one in standings]
            return [end / len(rows) for end in ends]
        case "lag" | "lead":
            return [_elsewhere(call, rows, index) for index in range(len(rows))]
        case "count" | "sum" | "avg" | "min" | "max":
            plain = AggregateCall(call.function, call.arguments)
            return [
                aggregate_value(plain, list(rows[: _frame_end(call, standings, index)]))
                for index in range(len(rows))
            ]
        case _:
            raise ReferenceLimit(f"window function {call.function}")


def _elsewhere(call: WindowCall, rows: Sequence[Values], index: int) -> Value:
    """The argument of the row so many places before or after, else the default."""
    argument, *rest = call.arguments
    offset = int(value_of(rest[0], rows[index])) if rest else 1  # type: ignore[arg-type]  # a number
    wanted = index - offset if call.function == "lag" else index + offset
    if 0 <= wanted < len(rows):
        return value_of(argument, rows[wanted])
    return value_of(rest[1], rows[index]) if len(rest) > 1 else None


def sees_whole(call: WindowCall) -> bool:
    """Whether all rows of a partition are in the frame of each: by SQL's own rules."""
    if call.frame is None:
        return len(call.order) == 0
    return call.frame.lower().endswith("between unbounded preceding and unbounded following")


def _frame_end(call: WindowCall, standings: list[tuple[object, ...]], index: int) -> int:
    if sees_whole(call):
        return len(standings)
    if call.frame is None:
        return len(standings) - standings[::-1].index(standings[index])
    if call.frame.lower() == "rows between unbounded preceding and current row":
        return index + 1
    raise ReferenceLimit(f"frame {call.frame}")
