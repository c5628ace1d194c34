"""A step of a fixpoint that is one join of its rows with one table, with plain columns.

Law: only what is surely that is taken for it: renamed columns, one join on equal keys, chosen
columns, nothing else; the rank of a row derived is that of the row it was joined from. Of such a
step it is known, without its operators, what a row of the fixpoint derives: a row for each row of
the table that has its key.
Out of scope: finding these rows (`engine.fixpoint.joined_moves`, `thin_fronts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from impctl.data.schema import Kind, SqlType
from impctl.engine.circuit import Circuit
from impctl.engine.fixpoint.joined_step import JoinedStep, ends_of, passed
from impctl.engine.operators.join import Join
from impctl.types import AttributeId
from impctl.values import dataclass

_RANK = -1
WHOLE_NUMBERS = frozenset(
    {Kind.BYTE, Kind.SHORT, Kind.INTEGER, Kind.LONG, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ}
)


@dataclass(frozen=True, slots=True)
class PlainStep(JoinedStep):
    """Its columns by where they come from.

    `rows` has for each column of that side which one it is of the fixpoint, by its place there; the
    rank's is -1. `heads` has for each column of the fixpoint whether it comes from the fixpoint's
    row, and the place there, or else the table's column.
    """

    rows: Mapping[AttributeId, int]
    heads: tuple[tuple[int, AttributeId | None], ...]
    is_of_numbers: bool
    """Whether there is one key, and that and all columns are whole numbers, where not NULL."""

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
    ends = ends_of(step, above.at, join, above.count)
    if ends is None:
        return None
    side, own = ends
    places = {name: place for place, name in enumerate(names[:-1])} | {rank: _RANK}
    rows = {name: places[given] for name, given in own.items()}
    heads = _heads(names, above.names, rows)
    keys = [rows[key] for key in join.sides[side].keys]
    if heads is None or _RANK in keys:
        return None
    of_table = dict(join.sides[1 - side].columns)
    kinds = [*dict(columns).values(), *(of_table[key] for key in join.sides[1 - side].keys)]
    are_numbers = len(keys) == 1 and all(kind.kind in WHOLE_NUMBERS for kind in kinds)
    return PlainStep(join, side, rows, heads, are_numbers)


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
