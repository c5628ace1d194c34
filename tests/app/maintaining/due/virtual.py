"""A process that follows in virtual time: arrivals and times of work are given, nothing sleeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from impctl.aliases import QueryName
from impctl.app.maintaining.due.costs import OPENING_S
from impctl.app.maintaining.due.pending import Change, Pending
from impctl.app.maintaining.due.timetable import Timetable
from impctl.app.maintaining.due.when import Costs, Due, Waiting
from impctl.app.simulating.noise import Noise, steady
from impctl.workload.trigger_models import Trigger


@dataclass
class Query:
    """A query over the arrivals of some tables; a step takes `fixed + per_row * rows` seconds."""

    trigger: Trigger
    tables: frozenset[str]
    fixed: float = 0.3
    per_row: float = 1e-4
    fails: bool = False
    pinned: float = -1.0
    last: float | None = None

    def cost(self, rows: int) -> float:
        return self.fixed + self.per_row * rows


Arrival = tuple[float, str, int]
"""When a commit comes, to which table, and how many rows."""


@dataclass
class Ran:
    """One run: when it started and ended, what it did, how late it was, how old changes were."""

    start: float
    end: float
    done: list[QueryName]
    late: float | None
    ages: dict[QueryName, float]
    steps_late: int = 0


@dataclass
class Process:
    """The loop of `app.follow`, over a clock that is set forward."""

    queries: Mapping[QueryName, Query]
    arrivals: Sequence[Arrival]
    look: float
    noise: Noise = steady
    now: float = 0.0
    runs: list[Ran] = field(default_factory=list)
    stopped: tuple[float, float] | None = None
    """From when to when the process does not run."""

    def __post_init__(self) -> None:
        self.timetable = Timetable(self.look)

    def run(self, until: float) -> list[Ran]:
        while self.now < until:
            self.sees()
            due = self.timetable.due(self.now)
            if due:
                self.works(due)
                self.sees()
                continue
            start = self.timetable.next_start(self.now)
            pauses = [self.look] if start is None else [self.look, max(0.0, start - self.now)]
            self.now += min(pauses)
            if self.stopped is not None and self.stopped[0] <= self.now < self.stopped[1]:
                self.now = self.stopped[1]
        return self.runs

    def sees(self) -> None:
        self.timetable.saw([self._waiting(name, query) for name, query in self.queries.items()])

    def works(self, due: Sequence[Due]) -> None:
        start, took = self.now, OPENING_S
        ages = {}
        for one in due:
            query = self.queries[one.query]
            changes = self._pending(query).changes
            ages[one.query] = start - changes[0].at if changes else 0.0
            took += 0.0 if query.fails else one.cost * self.noise()
            if not query.fails:
                query.pinned = query.last = start
        self.now += took
        failed = [one.query for one in due if self.queries[one.query].fails]
        late = self.timetable.ran(due, self.now, took, failed=failed)
        steps = sum(1 for one in due if one.due_by is not None and self.now > one.due_by + 1e-9)
        names = [one.query for one in due]
        self.runs.append(Ran(start, self.now, names, late, ages, steps))

    def _waiting(self, name: QueryName, query: Query) -> Waiting:
        pending = self._pending(query)
        rows = pending.rows
        assert rows is not None
        cost = query.cost(rows) if pending.is_some else 0.0
        costs = Costs(cost, each_look=query.fixed, longest=query.cost(1_000))
        return Waiting(name, query.trigger, pending, costs, query.last)

    def _pending(self, query: Query) -> Pending:
        changes = tuple(
            Change(at, rows)
            for at, table, rows in self.arrivals
            if query.pinned < at <= self.now and table in query.tables
        )
        mark = (query.pinned, len(changes))
        return Pending(changes, None, changes[0].at if changes else None, mark)
