"""What maintaining a query is going to take, in seconds, for planning when to start.

Law: learned from the recorded runs as `plan` estimates are (`app.maintaining.estimates`), of
changes of the same tables where there are such runs; where nothing tells, a second is thought of.
How far that is off, the margin says: as many times as the last runs took what was thought, 99 of
100 of them, but never less than 1.5, and 3 as long as fewer than 20 are known.
Out of scope: choosing another way by costs (`app.maintaining.estimates`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Protocol

from impctl.app.maintaining.due.moments import next_moment
from impctl.app.maintaining.due.pending import Pending
from impctl.app.maintaining.due.when import Costs
from impctl.app.maintaining.estimates import Size, estimated
from impctl.store.records import RunCost, RunKind
from impctl.types import QueryName, TableName
from impctl.workload.models import Trigger

OPENING_S = 0.05
"""What a run of a process that goes on takes before its first query."""

OPENING_FIRST_S = 1.0
"""The same of its first run, which loads what runs need."""

OPENING_FRESH_S = 2.0
"""The same of a process that is started for it."""

UNKNOWN_S = 1.0
"""What a query takes of which nobody knows."""

LEAST_MARGIN = 1.5
FIRST_MARGIN = 3.0
_FEWEST = 20
_LOOKED_BACK = 200
_OF_HUNDRED = 99


class ExpectedRows(Protocol):
    """What is going to change, by forecasts of arrivals."""

    def rows(self, query: QueryName, since: float, until: float) -> float | None:
        """Rows expected to change in the query's tables between two times; None: no forecast."""
        ...

    def moved(self, query: QueryName, since: float, until: float) -> Collection[TableName]:
        """The tables of which these are; none where there is no forecast."""
        ...


class Margin:
    """How many times as long as thought runs take."""

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=_LOOKED_BACK)

    def ran(self, thought: float, took: float) -> None:
        """Learn from one run."""
        if thought > 0:
            self._ratios.append(took / thought)

    @property
    def value(self) -> float:
        """The factor that thought times are multiplied with."""
        if len(self._ratios) < _FEWEST:
            return FIRST_MARGIN
        at = -(-len(self._ratios) * _OF_HUNDRED // 100) - 1
        return max(LEAST_MARGIN, sorted(self._ratios)[at])


def costs_of(
    query: QueryName,
    trigger: Trigger,
    pending: Pending,
    runs: Sequence[RunCost],
    look: tuple[float, float],
    expected: ExpectedRows | None = None,
) -> Costs:
    """What the query takes now; `look` is this look and the next one."""
    size = Size(pending.rows, pending.bytes) if pending.changes else Size(0, 0)
    is_known, cost = _seconds(runs, size, pending.moved)
    more, each_look = 0.0, _seconds(runs, Size(0, 0), ())[1] if is_known else 0.0
    if expected is not None and is_known:
        usual = expected.rows(query, *look)
        if usual is not None:
            each_look = _seconds(runs, Size(round(usual), 0), expected.moved(query, *look))[1]
        moment = next_moment(trigger, look[0])
        coming = None if moment is None else expected.rows(query, look[0], moment)
        if coming is not None and moment is not None:
            both = Size((pending.rows or 0) + round(coming), pending.bytes)
            moved = {*pending.moved, *expected.moved(query, look[0], moment)}
            more = max(0.0, _seconds(runs, both, moved)[1] - cost)
    longest = max((one.elapsed_ms for one in runs if one.kind is RunKind.MAINTAIN), default=0.0)
    return Costs(cost if pending.is_some else 0.0, more, each_look, longest / 1000, is_known)


def _seconds(
    runs: Sequence[RunCost], size: Size, moved: Collection[TableName]
) -> tuple[bool, float]:
    """Whether recorded runs tell, and what they say of a change of these tables; else a guess."""
    # Without a recapture's estimate, which asks the tables for their rows.
    mine = [one for one in runs if one.kind is RunKind.MAINTAIN]
    tables = sorted(moved)
    result = estimated(
        mine, RunKind.MAINTAIN, size, has_spark=True, table_rows=lambda: 0, moved=tables
    )
    if result.maintain_ms is not None:
        return True, result.maintain_ms / 1000
    guess = estimated(
        runs, RunKind.MAINTAIN, size, has_spark=True, table_rows=lambda: 0, moved=tables
    )
    return False, UNKNOWN_S if guess.maintain_ms is None else guess.maintain_ms / 1000
