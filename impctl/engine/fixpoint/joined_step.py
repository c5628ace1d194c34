"""A step of a fixpoint that joins its rows with a table's once: where the two sides come from.

Law: each side of the join is what comes into the step, its columns chosen and renamed at most, and
there is nothing in the step beside. Out of scope: what stands above the join (`plain_step`,
`valued_step`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from impctl.engine.circuit import Circuit
from impctl.engine.operators.join import Join
from impctl.engine.operators.project import Project
from impctl.engine.row_index import RowIndex
from impctl.types import AttributeId
from impctl.values import dataclass

_ROWS, _TABLE = -1, -2
"""The sources of the step."""


@dataclass(frozen=True, slots=True)
class JoinedStep:
    """`side` is the join's input that the fixpoint's rows are."""

    join: Join
    side: int

    @property
    def own(self) -> RowIndex:
        """The fixpoint's rows by their keys."""
        result = self.join.indexes[self.side]
        assert isinstance(result, RowIndex)
        return result

    @property
    def table(self) -> RowIndex:
        """The table's rows by their keys."""
        result = self.join.indexes[1 - self.side]
        assert isinstance(result, RowIndex)
        return result


def ends_of(
    step: Circuit, at: int, join: Join, above: int
) -> tuple[int, Mapping[AttributeId, AttributeId]] | None:
    """Which side of the join at this position the fixpoint's rows are, and what its columns are of
    these; None where it is no such step. `above` is how many operators stand above the join."""
    ends = [
        passed(step, wire, [name for name, _ in side.columns])
        for wire, side in zip(step.wires[at], join.sides, strict=True)
    ]
    side = 0 if ends[0].at == _ROWS else 1
    own, table = ends[side], ends[1 - side]
    if (own.at, table.at, table.count) != (_ROWS, _TABLE, 0):
        return None
    if above + 1 + own.count != len(tuple(step)):
        return None
    return side, own.names


@dataclass(frozen=True, slots=True)
class Passed:
    """The position below projections, how many these are, and what their columns are there."""

    at: int
    count: int
    names: Mapping[AttributeId, AttributeId]


def passed(step: Circuit, at: int, names: Sequence[AttributeId]) -> Passed:
    """Past all projections from `at` on down that only choose and rename these columns."""
    operators, count = tuple(step), 0
    result: dict[AttributeId, AttributeId] = {name: name for name in names}
    while at >= 0 and isinstance(operator := operators[at], Project):
        below = {name: operator.passes(column) for name, column in result.items()}
        result = {name: column for name, column in below.items() if column is not None}
        if len(result) < len(below):
            break
        (at,) = step.wires[at]
        count += 1
    return Passed(at, count, result)
