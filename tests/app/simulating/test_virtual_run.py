"""Runs in virtual time against looking at every look; what triggers promise; the same again.

The slow process looks at every look and takes commit by commit, plainly as
`service.schedule.daemon`: every commit is a change of its own in what is pending.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import pytest

from impctl.forecast import Arrival
from impctl.service.schedule.daemon import Timetable
from impctl.service.schedule.due import (
    OPENING_FIRST_S,
    OPENING_S,
    Change,
    Costs,
    Pending,
    Waiting,
    next_moment,
)
from impctl.service.schedule.replay import Commits, commits_of
from impctl.service.schedule.simulate import (
    CostsBy,
    Price,
    QueryLines,
    Ran,
    ReplayedQuery,
    StepCosts,
    Stream,
    VirtualRun,
)
from impctl.store.records import RunCost, RunKind
from impctl.workload.models import ON_COMMIT, Alone, Trigger, read_cron
from tests.support.random_cases import random_cases

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
        result = self.pending(query, now)
        changes = tuple(Change(at, rows) for at, _, rows in result)
        moved_at = changes[0].at if changes else None
        cost = query.seconds(result) if result else 0.0
        more = 0.0
        if result and query.trigger.ready_within is not None:
            moment = next_moment(query.trigger, result[0][0])
            coming = 0.0 if moment is None else query.rows_per_s * max(0.0, moment - now)
            more = max(0.0, query.seconds(result, coming) - cost)
        costs = Costs(cost, more, is_known=query.costs.is_known)
        pending = Pending(changes, None, moved_at, query.last)
        return Waiting(name, query.trigger, pending, costs, query.last)


TRIGGERS = (
    ON_COMMIT,
    Trigger(alone=Alone.USE),
    Trigger(fresh_within=40.0),
    Trigger(fresh_within=300.0),
    Trigger(fresh_within=600.0, rows=60),
    Trigger(rows=25),
    Trigger(every=90.0),
    Trigger(every=120.0, rows=40),
    Trigger(every=300.0, fresh_within=200.0),
    Trigger(cron=read_cron("*/7 * * * *")),
    Trigger(fresh_within=400.0, cheap=True),
    Trigger(every=600.0, ready_within=2.0),
    Trigger(point="nightly"),
    Trigger(point="nightly", ready_within=1.0),
    Trigger(point="nightly", rows=30),
)


def costs(fixed_ms: float, row_ms: float, rng: random.Random | None = None) -> StepCosts:
    """What runs say; with `rng` tables differ, some are never told, and state adds something."""
    runs = [RunCost(RunKind.MAINTAIN, rows, 0, fixed_ms + row_ms * rows) for rows in (1, 9, 50, 99)]
    prices = {}
    if rng is not None:
        for table in "ab":
            factor = rng.choice([0.2, 1.0, 4.0])
            runs += [
                RunCost(RunKind.MAINTAIN, n, 0, factor * (fixed_ms + row_ms * n), moved=(table,))
                for n in (2, 30, 80)
            ]
        for tables in (frozenset("a"), frozenset("b"), frozenset("ab")):
            more = tuple(rng.uniform(-0.1, 1.0) * fixed_ms for _ in range(3))
            prices[tables] = Price((1.0, 10.0, 60.0), (1.0, 2.0, 3.0), more, (0.0, 0.5, 1.0))
    return StepCosts(QueryLines(runs, CostsBy.RUNS), prices)


def commits_by_table(commits: list[Commit]) -> dict[str, Commits]:
    return {
        table: commits_of(
            [
                Arrival(n, at, rows, 0, 1, 0, "WRITE")
                for n, (at, name, rows) in enumerate(commits)
                if name == table
            ],
            0.0,
            1e9,
        )
        for table in "abc"
    }


def drawn(rng: random.Random, until: float, pause: float | None = None) -> list[Commit]:
    """Steady, in bursts, or hardly any."""
    result: list[Commit] = []
    at = 0.0
    pause = pause or rng.choice([4.0, 30.0, 200.0])
    while at < until:
        at += round(rng.expovariate(1 / pause) * 4) / 4
        for _ in range(rng.choice([1, 1, 1, 3])):
            result.append((at, rng.choice("aaabc"), rng.choice([1, 3, 20, 70])))
    return result


Query = tuple[str, Trigger, frozenset[str], StepCosts]


@dataclass(frozen=True)
class Replay:
    """Queries, and the commits after which they are run."""

    queries: list[Query]
    commits: list[Commit]
    look: float
    until: float
    rows_per_s: float = 0.02
    since: float = 0.0

    def fast(self) -> Ran:
        of = commits_by_table(self.commits)
        made = []
        for name, trigger, tables, cost in self.queries:
            stream = Stream.made({table: of[table] for table in tables})
            made.append(ReplayedQuery(name, trigger, stream, cost, self.rows_per_s))
        return VirtualRun(made, self.look).run(self.since, self.until)

    def slow(self) -> SlowRun:
        made = {
            name: SlowQuery(trigger, tables, cost, self.rows_per_s)
            for name, trigger, tables, cost in self.queries
        }
        result = SlowRun(made, self.commits, self.look)
        result.run(self.since, self.until)
        return result

    def assert_alike(self) -> None:
        result, wanted = self.fast(), self.slow()
        assert result.runs == wanted.runs
        assert result.ages == pytest.approx(wanted.ages, abs=1e-6)
        assert result.work_s == pytest.approx(wanted.work)
        assert result.late == wanted.late


@pytest.mark.slow
@pytest.mark.parametrize("trigger", TRIGGERS)
def test_every_trigger_runs_as_if_every_look_were_made(trigger: Trigger) -> None:
    """Two queries with this trigger, and one with another."""
    number = TRIGGERS.index(trigger)
    rng = random.Random(f"trigger {number}")
    other = TRIGGERS[(number + 4) % len(TRIGGERS)]
    queries: list[Query] = [
        ("one", trigger, frozenset("a"), costs(300.0, 2.0, rng)),
        ("two", trigger, frozenset("ab"), costs(40.0, 30.0, rng)),
        ("other", other, frozenset("abc"), costs(300.0, 2.0, rng)),
    ]
    Replay(queries, drawn(rng, 1_500.0, pause=12.0), 5.0, 1_500.0, 0.02).assert_alike()


@pytest.mark.slow
@random_cases(fast=8, check=24, total=150)
def test_runs_are_those_of_making_every_look(cases: range) -> None:
    for seed in cases:
        rng = random.Random(seed)
        until = 3_000.0
        commits = drawn(rng, until)
        fixed, row = rng.choice([20.0, 300.0, 4_000.0]), rng.choice([0.0, 2.0, 30.0])
        same = rng.choice([*(None for _ in TRIGGERS), *TRIGGERS])
        queries: list[Query] = [
            (
                f"q{at}",
                rng.choice(TRIGGERS) if same is None else same,
                frozenset(rng.choice(["a", "b", "ab", "abc"])),
                costs(fixed * rng.uniform(0.5, 2), row, rng),
            )
            for at in range(rng.randrange(1, 6))
        ]
        look = rng.choice([2.0, 5.0, 16.0, 61.0])
        Replay(queries, commits, look, until, rng.choice([0.0, 0.02, 1.0])).assert_alike()


@pytest.mark.slow
@random_cases(fast=4, check=17, total=30)
def test_runs_on_commit_go_beside_those_that_wait(cases: range) -> None:
    """Long steps on commit, so that starts of others come while they run, in the same runs too."""
    for seed in cases:
        rng = random.Random(seed)
        commits = drawn(rng, 3_000.0)
        queries: list[Query] = [
            ("each", ON_COMMIT, frozenset("a"), costs(rng.choice([3_000.0, 20_000.0]), 5.0, rng)),
            ("bound", Trigger(fresh_within=60.0), frozenset("ab"), costs(200.0, 3.0, rng)),
            ("clock", rng.choice(TRIGGERS), frozenset("ab"), costs(900.0, 1.0, rng)),
        ]
        Replay(queries, commits, rng.choice([2.0, 5.0, 16.0]), 3_000.0, 0.02).assert_alike()


@pytest.mark.slow
@random_cases(fast=3, check=12, total=20)
def test_what_is_expected_until_a_moment_counts_from_the_first_row(cases: range) -> None:
    for seed in cases:
        rng = random.Random(seed)
        commits: list[Commit] = sorted(
            (rng.randrange(4 * 3_000) / 4, "a", rng.choice([1, 30])) for _ in range(300)
        )
        ready = Trigger(every=600.0, ready_within=rng.choice([1.0, 3.0]))
        queries: list[Query] = [("q", ready, frozenset("a"), costs(40.0, rng.choice([5.0, 20.0])))]
        Replay(queries, commits, rng.choice([2.0, 5.0]), 3_000.0, 1.5).assert_alike()


def test_on_commit_there_is_a_run_for_each_look_that_sees_a_commit() -> None:
    times = [3.0, 11.0, 12.0, 44.0, 45.5]
    commits: list[Commit] = [(at, "a", 1) for at in times]
    queries: list[Query] = [("q", ON_COMMIT, frozenset("a"), costs(1_000.0, 0.0))]
    fast = Replay(queries, commits, 5.0, 100.0).fast()
    # Looks at 0, 5 (runs 2 s), 12 (1.05 s), 18.05, ... 43.05, 48.05.
    assert fast.runs == 3
    assert fast.ages == pytest.approx([4.0, 2.05, 48.05 + 1.05 - 44.0])
    assert fast.work_s == pytest.approx(3.0)


def test_on_use_nothing_runs_and_what_is_left_is_as_old_as_it_is() -> None:
    queries: list[Query] = [("q", Trigger(alone=Alone.USE), frozenset("a"), costs(1.0, 0.0))]
    fast = Replay(queries, [(10.0, "a", 1), (50.0, "a", 1)], 5.0, 100.0).fast()
    assert (fast.runs, fast.steps, fast.left) == (0, 0, [90.0])


def test_a_bound_shorter_than_a_look_is_late() -> None:
    queries: list[Query] = [("q", Trigger(fresh_within=2.0), frozenset("a"), costs(1.0, 0.0))]
    fast = Replay(queries, [(31.0, "a", 1)], 30.0, 100.0).fast()
    assert fast.late == 1
    assert fast.ages == pytest.approx([60.0 + 1.0 + 0.001 - 31.0])


CLOCKS = (
    Trigger(every=61.0),
    Trigger(every=70.0),  # the last of a day is 20 s before midnight
    Trigger(every=7.0),
    Trigger(every=3_600.0, timezone="Europe/Vienna"),
    Trigger(every=90.0, fresh_within=40.0),
    Trigger(every=600.0, ready_within=2.0),
    Trigger(every=5_000.0, rows=40),
    Trigger(cron=read_cron("*/7 1-3,22 * * *")),
    Trigger(cron=read_cron("@hourly"), cheap=True),
)


@random_cases(fast=10, check=25, total=100)
def test_moments_at_which_nothing_is_pending_are_passed_over(cases: range) -> None:
    """Few commits around midnight, some at a moment, so that looks go on from the right one."""
    since, until = 79_000.0, 93_000.0
    for seed in cases:
        rng = random.Random(seed)
        moments = [70.0 * rng.randrange(1_130, 1_300) for _ in range(7)]
        commits: list[Commit] = sorted(
            (rng.choice([rng.uniform(since, until), moment]), rng.choice("ab"), 9)
            for moment in moments[: rng.randrange(1, 7)]
        )
        queries: list[Query] = [
            (
                f"q{at}",
                (CLOCKS[seed % len(CLOCKS)], rng.choice(CLOCKS), rng.choice(TRIGGERS))[at],
                frozenset(rng.choice(["a", "b", "ab"])),
                costs(rng.choice([20.0, 4_000.0]), rng.choice([0.0, 30.0]), rng),
            )
            for at in range(rng.randrange(1, 4))
        ]
        Replay(queries, commits, rng.choice([13.0, 61.0]), until, 1e-4, since).assert_alike()


@pytest.mark.parametrize(
    "trigger", [Trigger(every=60.0), Trigger(cron=read_cron("* * * * *")), CLOCKS[5]]
)
def test_decades_take_as_long_as_their_runs(
    trigger: Trigger, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    due = Timetable.due

    def counted(self: Timetable, *words: Any) -> Any:
        nonlocal asked
        asked += 1
        return due(self, *words)

    monkeypatch.setattr(Timetable, "due", counted)
    years = 30 * 365.0 * 86_400
    commits: list[Commit] = [(years / 5 * at + 1.25, "a", 1) for at in range(1, 5)]
    queries: list[Query] = [("q", trigger, frozenset("a"), costs(20.0, 0.0))]
    fast = Replay(queries, commits, 5.0, years, 0.0).fast()
    assert (fast.runs, len(fast.ages)) == (4, 4)
    assert max(fast.ages) < 620.0
    assert asked < 400, "of millions of moments"
