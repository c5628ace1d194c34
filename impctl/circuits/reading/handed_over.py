"""State handed over to a circuit of the same plan that keeps other sides of its joins, or groups,
or other buffers.

Law (of replaced state): a side holds the rows of its flow as they are at the versions the state
stands at, so it can be left out for a filter of their keys, and made again of rows that are read
at these versions; groups are made of the rows below them in the same way. Of first rows and values
of MIN and MAX the best are told by all, and all by the rows that fill buffers again. What both
circuits keep is not touched; sketches and counts are the same bit for bit.
Source: shared rule of state that is left out (docs/decisions/0099), after D. Tang et al.,
"Intermittent query processing" (PVLDB 2019), section 4.
Out of scope: which sides (`circuits.keeping`), reading (`app.capturing.partners`), committing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from impctl.circuits.refills import Refilled, TableRows
from impctl.circuits.session import MaintainedQuery
from impctl.engine.batch import Batch
from impctl.engine.lookups import DistantRows
from impctl.engine.operator import Operator
from impctl.engine.trace import RowIndex

ReadWhole = Callable[[str], Iterable[Batch]]
"""All rows of a side, or below a grouping, by its name, at the versions the state stands at; in
parts."""


def hand_over(
    before: MaintainedQuery, after: MaintainedQuery, read: ReadWhole, table_rows: TableRows
) -> None:
    """Give `after`, which took up what both keep, what it alone keeps or reads.

    Both readers give rows at the versions the state stands at, and so do those of groups that
    `before` reads, should a buffer be above them.
    """
    held = sides_of(before)
    for join in after.circuit:
        for at, side in enumerate(join.indexes):
            known = held[side.name]
            if isinstance(side, DistantRows) and isinstance(known, RowIndex):
                side.know(known.codes())
            elif isinstance(side, RowIndex) and isinstance(known, DistantRows):
                for rows in read(side.name):
                    join.keep_again(at, rows)
    for was, now in zip(before.circuit, after.circuit, strict=True):
        if now.group_keys and now.reads and not was.reads:
            now.know(was.group_codes())
        elif now.group_keys and was.reads and not now.reads:
            for rows in read(now.piece):
                now.keep_again(0, rows)
        elif now.is_bounded and not was.is_bounded:
            now.shed()
        elif was.is_bounded and not now.is_bounded and not now.reads:
            now.keep_all(_refilled(before, was).whole(table_rows))


def _refilled(session: MaintainedQuery, operator: Operator) -> Refilled:
    """What fills the operator's buffers again."""
    return next(one for one in session.compiled.refills if one.operator is operator)


def filled_rows(session: MaintainedQuery) -> Mapping[str, int]:
    """How many rows came of each side that is not kept, while the circuit was filled, and how many
    groups of each grouping that keeps none."""
    return {one.name: one.filled_rows for one in session.circuit.reads}


def group_bytes(session: MaintainedQuery) -> Mapping[str, int]:
    """What the groups took of each grouping that keeps none, while the circuit was filled."""
    readers = (one for one in session.circuit if one.group_keys and one.reads)
    return {one.piece: one.group_bytes() for one in readers}


def buffer_groups(session: MaintainedQuery) -> Mapping[str, int]:
    """How many groups have first rows of each piece that could be bounded."""
    # Of values the grouping itself tells, that of all rows among grouping sets too.
    choices = (one for one in session.compiled.buffers if not one.is_values)
    names = {one.piece for one in choices if not one.pinned}
    return {one.piece: one.buffer_groups() for one in session.circuit if one.piece in names}


def sides_of(session: MaintainedQuery) -> Mapping[str, RowIndex | DistantRows]:
    """The sides of a circuit's joins, by their names."""
    return {side.name: side for operator in session.circuit for side in operator.indexes}
