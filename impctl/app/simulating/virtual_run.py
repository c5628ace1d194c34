"""A process that follows, in virtual time: the loop of `app.follow` over commits that came.

Law: looks, starts and what a run takes are as there, by the same timetable; each run takes what
was thought of it, but for a noise that is asked for, and pins what had come when it started. Looks
at which nothing can start are skipped, by a bound on what can be pending, and so are moments of the
clock at which nothing is: the time this takes depends on runs, not on looks or moments.
Nothing sleeps, and nothing depends on what time it is.
Out of scope: figures (`simulating.figures`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import groupby
from math import ceil, floor, inf
from operator import itemgetter

from impctl.app.maintaining.due.costs import OPENING_FIRST_S, OPENING_S
from impctl.app.maintaining.due.moments import last_moment, next_moment
from impctl.app.maintaining.due.timetable import Timetable
from impctl.app.maintaining.due.when import Due, Pace
from impctl.app.simulating.noise import Noise, steady
from impctl.app.simulating.replayed_query import ReplayedQuery
from impctl.values import dataclass
from impctl.workload.models import Trigger

_SLACK = 1e-6
"""Seconds by which sums of floats may be off."""


@dataclass(slots=True)
class Ran:
    """What the runs came to: of each step its age when it was done, in seconds.

    An age is that of the oldest change in the step. `late` counts steps that were done after their
    bound, `left` are ages of what was pending at the end.
    """

    runs: int = 0
    work_s: float = 0.0
    reads: float = 0.0
    late: int = 0
    ages: list[float] = field(default_factory=list)
    left: list[float] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Queries maintained, over all runs."""
        return len(self.ages)


@dataclass(frozen=True, slots=True)
class Idle:
    """A time before which nothing starts; `is_start` says that the process wakes at it."""

    until: float
    is_start: bool

    def lets_sleep(self, now: float, look: float) -> bool:
        """Whether the next look, or start, is known without asking the timetable."""
        return self.until > now + look or (self.is_start and self.until > now)


class VirtualRun:
    """Queries on `commit`, which run at each look, and a timetable of the others."""

    def __init__(
        self, queries: Sequence[ReplayedQuery], look: float, noise: Noise = steady
    ) -> None:
        self._queries = {query.name: query for query in queries}
        self._on_commit = [query for query in queries if query.trigger.is_on_commit]
        self._timed = [query for query in queries if query.is_timed]
        self._has_bounds_alone = all(
            query.trigger == Trigger(fresh_within=query.trigger.fresh_within)
            for query in self._timed
        )
        self._timetable = Timetable(look)
        self._look = look
        self._noise = noise
        self._opening = OPENING_FIRST_S
        self.ran = Ran()

    def run(self, since: float, until: float) -> Ran:
        """From one time to another, looking first at `since`."""
        now = since
        while now < until:
            ready = [query for query in self._on_commit if query.pending(now) is not None]
            idle = self._idle_until(now)
            due = [] if idle.lets_sleep(now, self._look) and not ready else self._due(now)
            if ready or due:
                now = self._works(ready, due, now)
                now += self._pause(now)
            else:
                moment = self._idle_moment(now, until)
                now = now + self._quiet(now, idle) if moment is None else moment
        for query in self._queries.values():
            pending = query.pending(until)
            if pending is not None:
                self.ran.left.append(until - pending.oldest)
        return self.ran

    def _due(self, now: float) -> list[Due]:
        result = (query.waiting(now) for query in self._timed)
        self._timetable.saw([one for one in result if one is not None])
        return self._timetable.due(now)

    def _works(self, ready: Sequence[ReplayedQuery], due: Sequence[Due], now: float) -> float:
        """One run; gives when it is over."""
        asked = [*ready, *(self._queries[one.query] for one in due)]
        oldest, took = [], []
        for query in asked:
            pending = query.pending(now)
            assert pending is not None, "nothing runs without something pending"
            step = query.step(pending)
            oldest.append(pending.oldest)
            took.append(step.seconds * self._noise())
            self.ran.reads += step.reads
            query.pin(now)
        end = now + self._opening + sum(took)
        self._opening = OPENING_S
        self.ran.runs += 1
        self.ran.work_s += sum(took)
        self.ran.late += sum(one.due_by is not None and end > one.due_by + _SLACK for one in due)
        self.ran.ages += [end - at for at in oldest]
        if due:
            opening = self._timetable.pace.opening
            self._timetable.ran(due, end, opening + sum(took[len(ready) :]))
        return end

    def _pause(self, now: float) -> float:
        """Until the next look, or the next start."""
        start = self._timetable.next_start(now) if self._timed else None
        return self._look if start is None else min(self._look, max(0.0, start - now))

    def _quiet(self, now: float, idle: Idle) -> float:
        """The pause where nothing started now, over all looks at which nothing can start."""
        if idle.until <= now + self._look:
            is_known = idle.lets_sleep(now, self._look)
            pause = idle.until - now if is_known else self._pause(now)
            if pause < self._look:
                return pause
        event = self._event_after(now)
        looks = []
        if idle.until < inf:
            looks.append(floor((idle.until - now - _SLACK) / self._look))
        if event < inf:
            looks.append(ceil((event - now) / self._look))
        return self._look * max(1, min(looks)) if looks else inf

    def _idle_moment(self, now: float, until: float) -> float | None:
        """The last moment after now to which the clock alone wakes the process, of those queries
        of which nothing is pending then; None without one. Looks go on from there.

        It is before anything else that may start a query, and before the next commit of these.
        """
        idle, first = set[Trigger](), [self._event_after(now), until]
        for query in self._timed:
            if not query.is_on_clock:
                continue
            if query.oldest(now) is None:
                idle.add(query.trigger)
                first.append(query.next_after(now) or inf)
            else:
                first.append(self._moment(query, now))
        if not idle:
            return None
        end = min(*first, self._other_until(now, self._timetable.pace, min(first)))
        woken = [self._woken(trigger, now, end) for trigger in idle]
        return max((at for at in woken if at is not None), default=None)

    def _woken(self, trigger: Trigger, now: float, end: float) -> float | None:
        """The last moment before `end`, where the one before it is a look away at least."""
        result = last_moment(trigger, now, end)
        if result is None:
            return None
        # From a moment on the next thing is a look, which passes over moments that come sooner.
        earlier = last_moment(trigger, result - self._look, result)
        return result if earlier is None else None

    def _event_after(self, now: float) -> float:
        """When the next commit comes for a query on `commit`."""
        coming = (query.next_after(now) for query in self._on_commit)
        return min((at for at in coming if at is not None), default=inf)

    def _idle_until(self, now: float) -> Idle:
        """A time before which no timed query starts, whatever comes until then.

        A start is a deadline less the work until it, and work is no more than all that is pending
        by the deadline takes.
        """
        pace = self._timetable.pace
        sure = self._first_start(now, pace) if self._has_bounds_alone else Idle(now, False)
        if sure.is_start:
            return sure
        moment = min((self._moment(query, now) for query in self._timed), default=inf)
        other = self._other_until(now, pace, moment)
        return Idle(max(sure.until, min(moment, other)), moment < other)

    def _other_until(self, now: float, pace: Pace, moment: float) -> float:
        """A time before which nothing but a moment of the clock starts any; what is not before
        `moment` need not be known to be more."""
        other = inf
        bounds: set[float] = set()
        for query in self._timed:
            other = min(other, *self._other_starts(query, now), inf)
            bounds.update(self._deadlines(query, now))
        in_order = sorted(bounds)
        longest = self._most_work(in_order[-1], now, pace) if in_order else 0.0
        for deadline in in_order:
            if deadline - longest - self._look >= min(moment, other):
                break
            other = min(other, deadline - self._most_work(deadline, now, pace) - self._look)
        return other

    def _most_work(self, until: float, now: float, pace: Pace) -> float:
        """No less than what is reckoned with for all that is pending at any time until then."""
        most = sum(query.most(until, now) for query in self._timed)
        return pace.margin * (pace.opening + most)

    def _first_start(self, now: float, pace: Pace) -> Idle:
        """The first start of what is pending, to the last digit that of the timetable; where
        something comes before it, when that comes. Of queries whose triggers are bounds alone."""
        work, coming = [], inf
        for query in self._timed:
            assert query.trigger.fresh_within is not None
            result, following = query.pending(now), query.next_after(now)
            if following is not None:
                coming = min(coming, following)
            if result is not None:
                deadline = result.oldest + query.trigger.fresh_within
                work.append((deadline, query.step(result).seconds))
        start, sums = inf, 0.0
        for deadline, same in groupby(sorted(work), key=itemgetter(0)):
            for _, seconds in same:
                sums += seconds
            start = min(start, deadline - pace.margin * (pace.opening + sums) - self._look)
        return Idle(min(start, coming), is_start=start < coming)

    def _moment(self, query: ReplayedQuery, now: float) -> float:
        """The next moment of its clock; it wakes the process, be anything pending or not."""
        trigger = query.trigger
        if trigger.every is None and trigger.cron is None:
            return inf
        pending = query.pending(now)
        moment = next_moment(trigger, now if pending is None else pending.oldest)
        return inf if moment is None else moment

    def _deadlines(self, query: ReplayedQuery, now: float) -> Iterator[float]:
        """Ends of bounds of what is pending, or comes next."""
        trigger = query.trigger
        if trigger.fresh_within is None and trigger.ready_within is None:
            return
        pending = query.pending(now)
        oldest = query.next_after(now) if pending is None else pending.oldest
        if oldest is None:
            return
        if trigger.fresh_within is not None:
            yield oldest + trigger.fresh_within
        if trigger.ready_within is not None:
            moment = next_moment(trigger, oldest)
            if moment is not None:
                yield moment

    def _other_starts(self, query: ReplayedQuery, now: float) -> Iterator[float]:
        """When something else may start it: enough rows, idle time, a point far ahead."""
        trigger = query.trigger
        if trigger.rows is not None:
            enough = query.enough_at()
            if enough is not None:
                yield enough[0]
        is_ahead_of_point = trigger.ready_within is not None and trigger.point is not None
        if trigger.cheap or is_ahead_of_point:
            is_some = query.pending(now) is not None
            yield now if is_some else query.next_after(now) or inf
