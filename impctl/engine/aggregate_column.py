"""An output of a grouping: what gives it its value.

Law: a column is a function of the group's state alone.
Out of scope: keeping that state (`engine.operators.aggregate`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from impctl.data.schema import SqlType
from impctl.data.vector import Vector
from impctl.engine.accumulators import Accumulator, Count, Values
from impctl.engine.extremes import Extreme
from impctl.engine.ordered_values import First
from impctl.engine.spread import Spread
from impctl.types import AttributeId
from impctl.values import dataclass

ROWS = "rows"
"""The state column with a group's rows."""

Part = Accumulator | Extreme | Spread | First
"""What gives an output its value."""


@dataclass(frozen=True, slots=True)
class AggregateColumn:
    """An output: the part that gives its value, NULL where `guard` counts nothing."""

    id: AttributeId
    type: SqlType
    accumulator: Part | None
    """None is COUNT(*)."""
    guard: Count | None


def parts_of(columns: Sequence[AggregateColumn]) -> tuple[Accumulator | Extreme, ...]:
    """What these columns remember per group, each once."""
    result: dict[Accumulator | Extreme, None] = {}
    for column in columns:
        part = column.accumulator
        parts = part.parts if isinstance(part, Spread) else (column.guard, part)
        for one in parts:
            if one is not None and not isinstance(one, First | Spread):
                result.setdefault(one)
    return tuple(result)


def outputs_of(columns: Sequence[AggregateColumn], state: Values) -> dict[AttributeId, Vector]:
    """The values of these columns, one per group of `state`; none for a `First`."""
    values: dict[AttributeId, Vector] = {}
    for column in columns:
        if column.accumulator is None:
            values[column.id] = Vector(column.type, state[ROWS])
            continue
        if isinstance(column.accumulator, First):
            continue
        value = column.accumulator.value(state, column.type)
        valid = value.valid
        if column.guard is not None:
            valid = state[f"count{column.guard.slot}"] > 0
        if valid is not None and bool(valid.all()):
            valid = None
        values[column.id] = Vector(column.type, value.values, valid, value.error)
    return values


def clear_empty(state: Values, accumulators: Sequence[Accumulator | Extreme]) -> None:
    """What is left of a sum over nothing is rounding dust: clear it."""
    counts = {a.argument: a.slot for a in accumulators if isinstance(a, Count)}
    for accumulator in accumulators:
        slot = counts.get(accumulator.argument)
        empty = state[ROWS if slot is None else f"count{slot}"] == 0
        if not bool(empty.any()) or isinstance(accumulator, Count):
            continue
        for name in accumulator.columns:
            state[name] = np.where(empty, np.zeros(1, state[name].dtype), state[name])
