"""The timetable of a process that follows: when the next run starts, and for what.

Law: pure but for what it was told, and timed by whoever asks, so that tests run days of it in a
second. A query that failed counts in no other's start and takes no other along; what a run left
pending is not tried again before something is new, or ten minutes have passed.
Out of scope: looking (`app.maintaining.due.looking`), sleeping and running (`app.follow`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from sortedcontainers import SortedKeyList

from impctl.app.maintaining.due.costs import OPENING_FIRST_S, OPENING_S, Margin
from impctl.app.maintaining.due.when import Due, Pace, Waiting, dues, taken
from impctl.types import QueryName
from impctl.values import dataclass

_QUIET = 600.0
"""Seconds after which what a run left pending is tried again, whatever a look says."""


@dataclass(frozen=True, slots=True)
class _Left:
    """What was pending of a query when a run took it, and when that was."""

    mark: object
    at: float


class Timetable:
    """Queries by the starts of their next runs; times are seconds since 1970."""

    def __init__(self, look: float) -> None:
        self._look = look
        self._waiting: tuple[Waiting, ...] = ()
        self._left: dict[QueryName, _Left] = {}
        self._failed: set[QueryName] = set()
        self._opening = OPENING_FIRST_S
        self._by_start = SortedKeyList(key=_start)
        self.margin = Margin()

    @property
    def pace(self) -> Pace:
        """How runs of this process go."""
        return Pace(self._opening, self.margin.value, self._look)

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """The queries as they were told last."""
        return self._waiting

    def saw(self, waiting: Iterable[Waiting]) -> None:
        """Take what a look found in place of what the one before did."""
        self._waiting = tuple(waiting)

    def due(self, now: float, put_off: Collection[QueryName] = ()) -> list[Due]:
        """What a run that starts now maintains, the earliest deadline first."""
        asked = [one for one in self._waiting if self._is_asked(one, now, put_off)]
        # What failed is reckoned apart, so that it moves no other's start.
        apart = [one for one in asked if one.query in self._failed]
        others = [one for one in asked if one.query not in self._failed]
        result = [*dues(others, self.pace, now), *dues(apart, self.pace, now)]
        chosen = taken(result, asked, now, self._failed)
        names = {due.query for due in chosen}
        self._by_start.clear()
        self._by_start.update(
            due for due in result if due.start_at is not None and due.query not in names
        )
        return chosen

    def next_start(self, now: float) -> float | None:
        """When the next run starts, after `due` was asked; None where none is in sight.

        A moment of the clock is one too, although nothing is pending yet.
        """
        later = self._by_start.irange_key(min_key=now, inclusive=(False, True))
        due: Due | None = next(later, None)
        return None if due is None else due.start_at

    def ran(
        self,
        done: Sequence[Due],
        now: float,
        took: float,
        *,
        failed: Collection[QueryName] = (),
        put_off: Collection[QueryName] = (),
    ) -> float | None:
        """Note a run that is over; how late it was in seconds, None where nothing had a bound.

        To be told before what the run left is looked at. Of what `failed`, that which is `put_off`
        is tried again at a time of its own.
        """
        names = {due.query for due in done}
        self._failed = (self._failed - names) | names.intersection(failed)
        mine = [one for one in self._waiting if one.query in names]
        for one in mine:
            self._left[one.query] = _Left(one.pending.mark, now)
        for query in put_off:
            self._left.pop(query, None)
        is_whole = not names.intersection(failed)
        if mine and is_whole and all(one.costs.is_known for one in mine):
            self.margin.ran(self._opening + sum(one.costs.pending for one in mine), took)
        if mine:
            self._opening = OPENING_S
        late = [now - due.due_by for due in done if due.due_by is not None]
        return max(0.0, *late) if late else None

    def _is_asked(self, one: Waiting, now: float, put_off: Collection[QueryName]) -> bool:
        """Whether the query counts now: put off it does not, nor as a run has just left it."""
        if one.query in put_off:
            return False
        left = self._left.get(one.query)
        # A clock that was put back may not make the quiet longer.
        if left is None or left.mark != one.pending.mark or not 0 <= now - left.at < _QUIET:
            return True
        return not one.pending.is_some


def _start(due: Due) -> float:
    assert due.start_at is not None
    return due.start_at
