"""A process that follows, look by look and commit by commit: slow, and plainly as `app.follow`.

Every commit is a change of its own in what is pending, and every look is made.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from impctl.app.maintaining.due.costs import OPENING_FIRST_S, OPENING_S
from impctl.app.maintaining.due.moments import next_moment
from impctl.app.maintaining.due.pending import Change, Pending
from impctl.app.maintaining.due.timetable import Timetable
from impctl.app.maintaining.due.when import Costs, Waiting
from impctl.app.simulating.step_costs import StepCosts
from impctl.workload.trigger_models import Alone, Trigger

Commit = tuple[float, str, int]
"""When it came, its table, and its rows."""


@dataclass
class SlowQuery:
    trigger: Trigger
    tables: frozenset[str]
    costs: StepCosts
    rows_per_s: float = 0.0
    pinned: float = -1.0
    last: float | None = None

    def seconds(self, commits: Sequence[Commit], more: float = 0.0) -> float:
        moved = frozenset(table for _, table, _ in commits)
        return self.costs.step(moved, sum(rows for _, _, rows in commits) + more, 0).seconds


@dataclass
class SlowRun:
    queries: Mapping[str, SlowQuery]
    commits: Sequence[Commit]
    look: float
    runs: int = 0
    late: int = 0
    work: float = 0.0
    looks: int = 0
    ages: list[float] = field(default_factory=list)

    def run(self, since: float, until: float) -> None:
        timetable, now, opening = Timetable(self.look), since, OPENING_FIRST_S
        on_commit = [q for q in self.queries.values() if q.trigger.alone is Alone.COMMIT]
        timed = {n: q for n, q in self.queries.items() if q.trigger.alone is None}
        while now < until:
            self.looks += 1
            ready = [query for query in on_commit if self.pending(query, now)]
            timetable.saw([self.waiting(name, query, now) for name, query in timed.items()])
            due = timetable.due(now)
            asked = [*ready, *(timed[one.query] for one in due)]
            if asked:
                took = [query.seconds(self.pending(query, now)) for query in asked]
                end = now + opening + sum(took)
                opening = OPENING_S
                self.runs += 1
                self.work += sum(took)
                self.late += sum(one.due_by is not None and end > one.due_by + 1e-6 for one in due)
                self.ages += [end - self.pending(query, now)[0][0] for query in asked]
                for query in asked:
                    query.pinned = query.last = now
                if due:
                    own = sum(took[len(ready) :])
                    timetable.ran(due, end, timetable.pace.opening + own)
                now = end
            start = timetable.next_start(now)
            now += self.look if start is None else min(self.look, max(0.0, start - now))

    def pending(self, query: SlowQuery, now: float) -> list[Commit]:
        """Commits are in order of time."""
        first = bisect_right(self.commits, query.pinned, key=itemgetter(0))
        last = bisect_right(self.commits, now, key=itemgetter(0))
        return [commit for commit in self.commits[first:last] if commit[1] in query.tables]

    def waiting(self, name: str, query: SlowQuery, now: float) -> Waiting:
        found = self.pending(query, now)
        changes = tuple(Change(at, rows) for at, _, rows in found)
        moved_at = changes[0].at if changes else None
        cost = query.seconds(found) if found else 0.0
        more = 0.0
        if found and query.trigger.ready_within is not None:
            moment = next_moment(query.trigger, found[0][0])
            coming = 0.0 if moment is None else query.rows_per_s * max(0.0, moment - now)
            more = max(0.0, query.seconds(found, coming) - cost)
        costs = Costs(cost, more, is_known=query.costs.is_known)
        pending = Pending(changes, None, moved_at, query.last)
        return Waiting(name, query.trigger, pending, costs, query.last)
