"""State handed over to a circuit of the same plan that keeps other sides of its joins.

Law (of replaced state): a side holds the rows of its flow as they are at the versions the state
stands at, so it can be left out for a filter of their keys, and made again of rows that are read
at these versions. What both circuits keep is not touched; sketches and counts are the same bit for
bit.
Source: shared rule of state that is left out (docs/decisions/0099), after D. Tang et al.,
"Intermittent query processing" (PVLDB 2019), section 4.
Out of scope: which sides (`circuits.keeping`), reading (`app.capturing.partners`), committing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from impctl.circuits.session import MaintainedQuery
from impctl.engine.batch import Batch
from impctl.engine.distant_rows import DistantRows
from impctl.engine.row_index import RowIndex

ReadWhole = Callable[[str], Iterable[Batch]]
"""All rows of a side, by its name, at the versions the state stands at; in parts."""


def hand_over(before: MaintainedQuery, after: MaintainedQuery, read: ReadWhole) -> None:
    """Give `after`, which took up what both keep, the sides that it alone keeps or reads."""
    held = sides_of(before)
    for join in after.circuit:
        for at, side in enumerate(join.indexes):
            known = held[side.name]
            if isinstance(side, DistantRows) and isinstance(known, RowIndex):
                side.know(known.codes())
            elif isinstance(side, RowIndex) and isinstance(known, DistantRows):
                for rows in read(side.name):
                    join.keep_again(at, rows)


def filled_rows(session: MaintainedQuery) -> Mapping[str, int]:
    """How many rows came of each side that is not kept, while the circuit was filled."""
    sides = sides_of(session).values()
    return {one.name: one.filled_rows for one in sides if isinstance(one, DistantRows)}


def sides_of(session: MaintainedQuery) -> Mapping[str, RowIndex | DistantRows]:
    """The sides of a circuit's joins, by their names."""
    return {side.name: side for operator in session.circuit for side in operator.indexes}
