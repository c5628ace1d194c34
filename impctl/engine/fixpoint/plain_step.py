"""A step of a fixpoint that is one join of its rows with one table, with plain columns.

Law: only what is surely that is taken for it: renamed columns, one join on equal keys, chosen
columns, nothing else; the rank of a row derived is that of the row it was joined from. Of such a
step it is known, without its operators, what a row of the fixpoint derives: a row for each row of
the table that has its key.
Out of scope: finding these rows (`engine.fixpoint.joined_moves`, `thin_fronts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from impctl.aliases import AttributeId
from impctl.data.schema import Kind, SqlType
from impctl.engine.circuit import Circuit
from impctl.engine.operators.join import Join
from impctl.engine.operators.project import Project
from impctl.engine.row_index import RowIndex
from impctl.values import dataclass

ROWS, TABLE = -1, -2
"""The sources of the step."""
_RANK = -1
WHOLE_NUMBERS = frozenset(
    {Kind.BYTE, Kind.SHORT, Kind.INTEGER, Kind.LONG, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ}
)


@dataclass(frozen=True, slots=True)
class PlainStep:
    """`side` is the join's input that the fixpoint's rows are.

    `rows` has for each column of that side which one it is of the fixpoint, by its place there; the
    rank's is -1. `heads` has for each column of the fixpoint whether it comes from the fixpoint's
    row, and the place there, or else the table's column.
    """

    join: Join
    side: int
    rows: Mapping[AttributeId, int]
    heads: tuple[tuple[int, AttributeId | None], ...]
    is_of_numbers: bool
    """Whether there is one key, and that and all columns are whole numbers, where not NULL."""

    @property
    def own(self) -> RowIndex:
        """The fixpoint's rows by their keys."""
        found = self.join.indexes[self.side]
        assert isinstance(found, RowIndex)
        return found

    @property
    def table(self) -> RowIndex:
        """The table's rows by theirs."""
        found = self.join.indexes[1 - self.side]
        assert isinstance(found, RowIndex)
        return found

    @property
    def key_places(self) -> tuple[int, ...]:
        """Which columns of the fixpoint are the keys."""
        return tuple(self.rows[key] for key in self.join.sides[self.side].keys)

    @property
    def is_by_rows(self) -> bool:
        """Whether a row has one column, its key, so that whoever knows the row finds its rank; and
        what it derives is of the table alone."""
        return self.is_of_numbers and len(self.heads) == 1 and self.heads[0][1] is not None


def plain_step(
    step: Circuit, columns: Sequence[tuple[AttributeId, SqlType]], rank: AttributeId
) -> PlainStep | None:
    """The step as such a one, if it is."""
    operators = tuple(step)
    names = [*(name for name, _ in columns), rank]
    above = passed(step, len(operators) - 1, names)
    join = operators[above.at] if above.at >= 0 else None
    if not isinstance(join, Join) or join.reads:
        return None
    ends = [
        passed(step, wire, [name for name, _ in side.columns])
        for wire, side in zip(step.wires[above.at], join.sides, strict=True)
    ]
    side = 0 if ends[0].at == ROWS else 1
    own, table = ends[side], ends[1 - side]
    if (own.at, table.at, table.count) != (ROWS, TABLE, 0):
        return None
    if above.count + 1 + own.count != len(operators):
        return None
    places = {name: place for place, name in enumerate(names[:-1])} | {rank: _RANK}
    rows = {name: places[given] for name, given in own.names.items()}
    heads = _heads(names, above.names, rows)
    keys = [rows[key] for key in join.sides[side].keys]
    if heads is None or _RANK in keys:
        return None
    of_table = dict(join.sides[1 - side].columns)
    kinds = [*dict(columns).values(), *(of_table[key] for key in join.sides[1 - side].keys)]
    are_numbers = len(keys) == 1 and all(kind.kind in WHOLE_NUMBERS for kind in kinds)
    return PlainStep(join, side, rows, heads, are_numbers)


@dataclass(frozen=True, slots=True)
class Passed:
    """The position below projections, how many these are, and what their columns are there."""

    at: int
    count: int
    names: Mapping[AttributeId, AttributeId]


def passed(step: Circuit, at: int, names: Sequence[AttributeId]) -> Passed:
    """Past all projections from `at` on down that only choose and rename these columns."""
    operators, count = tuple(step), 0
    found: dict[AttributeId, AttributeId] = {name: name for name in names}
    while at >= 0 and isinstance(operator := operators[at], Project):
        below = {name: operator.passes(column) for name, column in found.items()}
        found = {name: column for name, column in below.items() if column is not None}
        if len(found) < len(below):
            break
        (at,) = step.wires[at]
        count += 1
    return Passed(at, count, found)


def _heads(
    names: Sequence[AttributeId],
    above: Mapping[AttributeId, AttributeId],
    rows: Mapping[AttributeId, int],
) -> tuple[tuple[int, AttributeId | None], ...] | None:
    """Where the columns of a row derived come from; None where its rank is not the row's."""
    *columns, rank = ((rows.get(above[name], _RANK), above[name]) for name in names)
    if rows.get(rank[1]) != _RANK or any(rows.get(name) == _RANK for _, name in columns):
        return None
    return tuple((place, None if place >= 0 else name) for place, name in columns)
