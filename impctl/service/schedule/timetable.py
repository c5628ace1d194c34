"""The timetable of a process that follows: when the next run starts, and for which queries."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from sortedcontainers import SortedKeyList

from impctl.errors import ImpctlError
from impctl.service.schedule.due import (
    OPENING_FIRST_S,
    OPENING_S,
    CommitLog,
    Due,
    Margin,
    Pace,
    Waiting,
    dues,
    looked_at,
    now_of,
    shortest_bounds,
    taken,
)
from impctl.service.settings import DEFAULT_MAX_WAIT, FollowRequest
from impctl.values import dataclass
from impctl.workload.models import ON_COMMIT, QuerySpec, Trigger

if TYPE_CHECKING:
    from impctl.service.context import Workbench
    from impctl.types import QueryName

MAX_WAIT_DEPRECATED = "max_wait_deprecated"
_DEPRECATED = (
    "`--max-wait` is deprecated: write `trigger: {fresh_within: ...}` in the workload file"
    f" [{MAX_WAIT_DEPRECATED}]"
)


def followed_trigger(spec: QuerySpec, request: FollowRequest) -> Trigger:
    """The query's trigger: its own, else what the flags say, else each commit."""
    if spec.trigger is not None:
        return spec.trigger
    if request.pending_rows is None and request.max_wait is None:
        return ON_COMMIT
    wait = DEFAULT_MAX_WAIT if request.max_wait is None else request.max_wait
    return Trigger(rows=request.pending_rows, fresh_within=wait)


class Followed:
    """Queries on `commit`, and the timetable of the others."""

    def __init__(self, specs: Sequence[QuerySpec], request: FollowRequest) -> None:
        self._triggers = {spec.name: followed_trigger(spec, request) for spec in specs}
        self._timed = [spec for spec in specs if not self._triggers[spec.name].is_on_commit]
        self._look = request.interval
        self._log = CommitLog()
        self._timetable = Timetable(request.interval)
        self._warned: set[tuple[str, str]] = set()
        self._warnings = [] if request.max_wait is None else [_DEPRECATED]
        self._untold = list(self._warnings)
        self.on_commit = tuple(n for n, trigger in self._triggers.items() if trigger.is_on_commit)
        self.timed = frozenset(spec.name for spec in self._timed)

    @property
    def has_timed(self) -> bool:
        """Whether any query waits for something else than a commit."""
        return bool(self._timed)

    def told(self) -> str:
        """What the queries wait for, in a few words."""
        return "; ".join(f"{spec.name}: {self._triggers[spec.name].text}" for spec in self._timed)

    def look(self, desk: Workbench) -> bool:
        """See what is pending at the versions that `desk` has pinned; whether that went well."""
        try:
            waiting = looked_at(desk, self._timed, self._look, self._log, self._triggers)
        except ImpctlError:
            return False
        self._timetable.saw(waiting)
        for one in waiting:
            for code, text in shortest_bounds(one, self._timetable.pace):
                if (code, one.query) not in self._warned:
                    self._warned.add((code, one.query))
                    self._warnings.append(f"{text} [{code}]")
                    self._untold.append(self._warnings[-1])
        return True

    def due(self, desk: Workbench, put_off: Collection[QueryName]) -> list[Due]:
        """What is due by the timetable, the earliest deadline first."""
        return self._timetable.due(now_of(desk), put_off) if self._timed else []

    def pause(self, desk: Workbench) -> float | None:
        """Seconds until the next start; None where none is in sight. Never less than 0."""
        now = now_of(desk)
        start = self._timetable.next_start(now)
        return None if start is None else max(0.0, start - now)

    def ran(
        self,
        desk: Workbench,
        done: Sequence[Due],
        took: float,
        *,
        failed: Collection[QueryName],
        put_off: Collection[QueryName],
    ) -> float | None:
        """Note a run that is over; milliseconds it was late, None where nothing had a bound.

        What is `put_off` of what `failed` is tried again at a time of its own.
        """
        now = now_of(desk)
        late = self._timetable.ran(done, now, took, failed=failed, put_off=put_off)
        return None if late is None else late * 1000

    def untold(self) -> list[str]:
        """The same warnings for who reads along, each as soon as it is known."""
        result, self._untold = self._untold, []
        return result

    def warnings(self) -> tuple[str, ...]:
        """What is to be told since this was asked last."""
        result, self._warnings = tuple(self._warnings), []
        return result


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
