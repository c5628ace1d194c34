"""A query in a run of virtual time: what is pending of its tables' commits, and what that takes.

Law: the same `Pending` and `Costs` as a look finds, but for changes that are summed up where no
trigger tells them apart. Out of scope: when runs start (`simulating.virtual_run`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from impctl.app.maintaining.due.moments import next_moment
from impctl.app.maintaining.due.pending import Change, Pending
from impctl.app.maintaining.due.when import Costs, Waiting
from impctl.app.simulating.arrived import Commits, merged
from impctl.app.simulating.step_costs import Step, StepCosts
from impctl.types import QueryName, TableName
from impctl.values import dataclass
from impctl.workload.models import Trigger


@dataclass(frozen=True, slots=True)
class Amount:
    """Commits one after the other: when the first came, their tables, rows and bytes."""

    oldest: float
    moved: frozenset[TableName]
    rows: int
    bytes: int


@dataclass(slots=True)
class Stream:
    """The commits of a query's tables in one order, and the table of each."""

    all: Commits
    tables: Sequence[TableName]
    _asked: tuple[int, float] = (-1, 0.0)
    _told: Amount | None = None

    @classmethod
    def made(cls, of: Mapping[TableName, Commits]) -> Stream:
        """Of these tables."""
        told = sorted((at, name) for name, commits in of.items() for at in commits.times)
        return cls(merged(of), [name for _, name in told])

    def pending(self, seen: int, now: float) -> Amount | None:
        """What came by now, but for the first commits that were seen; None where nothing did."""
        # Queries of one run ask the same, one after the other.
        if self._asked != (seen, now):
            self._asked, self._told = (seen, now), self._pending(seen, now)
        return self._told

    def _pending(self, seen: int, now: float) -> Amount | None:
        commits = self.all
        last = commits.until(now)
        if last <= seen:
            return None
        return Amount(
            commits.times[seen],
            frozenset(self.tables[seen:last]),
            commits.rows[last] - commits.rows[seen],
            commits.bytes[last] - commits.bytes[seen],
        )


@dataclass(slots=True)
class ReplayedQuery:
    """A query over commits; of these its sketch has the first `seen`, all that came by `last`."""

    name: QueryName
    trigger: Trigger
    stream: Stream
    costs: StepCosts
    rows_per_s: float = 0.0
    seen: int = 0
    last: float | None = None

    @property
    def is_timed(self) -> bool:
        """Whether a timetable may start it by itself: not where its use or a point alone may."""
        asked = self.trigger
        clocks = (asked.rows, asked.every, asked.cron, asked.fresh_within, asked.ready_within)
        return any(one is not None for one in clocks)

    @property
    def is_on_clock(self) -> bool:
        """Whether moments of a clock make it due."""
        return self.trigger.every is not None or self.trigger.cron is not None

    def oldest(self, now: float) -> float | None:
        """When the first commit came that its sketch does not have; None without one."""
        times = self.stream.all.times
        return times[self.seen] if self.seen < len(times) and times[self.seen] <= now else None

    def next_after(self, now: float) -> float | None:
        """When the next commit comes after now."""
        return self.stream.all.next_after(now)

    def pending(self, now: float) -> Amount | None:
        """What its sketch does not have of what came; None where that is nothing."""
        return self.stream.pending(self.seen, now)

    def step(self, amount: Amount, more_rows: float = 0.0) -> Step:
        """What a step takes that carries this on, and some rows more."""
        return self.costs.step(amount.moved, amount.rows + more_rows, amount.bytes)

    def most(self, until: float, now: float) -> float:
        """No less than a step is thought to take at any time until then; 0 where nothing comes."""
        commits = self.stream.all
        last = commits.until(until)
        if last == self.seen:
            return 0.0
        rows = commits.rows[last] - commits.rows[self.seen]
        ready = self.trigger.ready_within is not None
        coming = self.rows_per_s * max(0.0, until - now) if ready else 0.0
        return self.costs.most(rows + coming, commits.bytes[last] - commits.bytes[self.seen])

    def pin(self, at: float) -> None:
        """Bring its sketch to what came by then."""
        self.seen, self.last = self.stream.all.until(at), at

    def waiting(self, now: float) -> Waiting | None:
        """What waits for it; None where nothing can make it due by itself."""
        result = self.pending(now)
        if result is None:
            if self.trigger.every is None and self.trigger.cron is None:
                return None
            return Waiting(self.name, self.trigger, Pending(), Costs(0.0), self.last)
        cost = self.step(result).seconds
        more = max(0.0, self._expected(result, now) - cost)
        costs = Costs(cost, more, is_known=self.costs.is_known)
        pending = Pending(self._changes(result, now), None, result.oldest, self.last)
        return Waiting(self.name, self.trigger, pending, costs, self.last)

    def enough_at(self) -> tuple[float, int] | None:
        """When as many rows are pending as the trigger asks for, and how many came before that.

        None where they never are, or it asks for none.
        """
        wanted, commits = self.trigger.rows, self.stream.all
        if wanted is None:
            return None
        result = bisect_left(commits.rows, commits.rows[self.seen] + wanted)
        if result == len(commits.rows):
            return None
        return commits.times[result - 1], commits.rows[result - 1] - commits.rows[self.seen]

    def _expected(self, amount: Amount, now: float) -> float:
        """What it takes with the rows that usually come until the moment that is next."""
        if self.trigger.ready_within is None:
            return 0.0
        moment = next_moment(self.trigger, amount.oldest)
        coming = 0.0 if moment is None else self.rows_per_s * max(0.0, moment - now)
        return self.step(amount, coming).seconds

    def _changes(self, amount: Amount, now: float) -> tuple[Change, ...]:
        """One change; or two, the one that makes enough of them apart."""
        enough = self.enough_at()
        if enough is None or enough[0] > now:
            return (Change(amount.oldest, amount.rows),)
        at, before = enough
        return Change(amount.oldest, before), Change(at, amount.rows - before)
