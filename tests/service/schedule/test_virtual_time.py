"""Days of following in virtual time: no avoidable lateness, and no needless runs."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from math import inf
from operator import itemgetter
from typing import Any

import pytest
from msgspec import Struct, field

from impctl.service.schedule import simulate
from impctl.service.schedule.daemon import FinishedRun, Scheduler
from impctl.service.schedule.due import (
    FIRST_MARGIN,
    OPENING_FIRST_S,
    OPENING_S,
    Costs,
    Due,
    PendingChange,
    PendingChanges,
    Waiting,
    dues,
    next_moment,
)
from impctl.store.records import RunCost, RunKind
from impctl.types import QueryName
from impctl.workload.models import ON_COMMIT, SimpleTrigger, Trigger
from impctl.workload.scalars import read_cron
from tests.support.random_cases import random_cases
from tests.support.run_cli import MonkeyPatch, spied

TimedRows = tuple[float, str, int]
"""Time, table and number of rows of a commit."""

StepTime = Callable[[Sequence[TimedRows], float], float]
"""Seconds of a step over these commits and a number of additional rows."""


def line(fixed: float, per_row: float = 0.0) -> StepTime:
    return lambda commits, more: fixed + per_row * (sum(rows for _, _, rows in commits) + more)


class Query(Struct, dict=True):
    trigger: Trigger
    tables: frozenset[str] = frozenset("a")
    seconds: StepTime = line(0.3, 1e-4)
    rows_per_s: float = 0.0
    is_known: bool = True
    fails: bool = False
    pinned: float = -1.0
    last: float | None = None


class PlayedRun(Struct, dict=True):
    """One run: its start and end, the oldest change of each query, seconds of all steps, the
    number of late steps, and how late it was."""

    start: float
    end: float
    oldest: dict[QueryName, float]
    work: float
    steps_late: int
    late: float | None = None

    @property
    def done(self) -> list[QueryName]:
        return list(self.oldest)

    @property
    def ages(self) -> list[float]:
        """Age of each query's oldest change at the start, in seconds."""
        return [self.start - oldest for oldest in self.oldest.values()]


class Process(Struct, dict=True):
    """A scheduler with a virtual clock that jumps from look to look."""

    queries: Mapping[QueryName, Query]
    commits: Sequence[TimedRows]
    look: float
    noise: Callable[[], float] = lambda: 1.0
    now: float = 0.0
    outage: tuple[float, float] | None = None
    """Start and end of a time in which the process does not run."""
    has_no_pause: bool = False
    """Whether it looks again right after a run."""
    runs: list[PlayedRun] = field(default_factory=list)

    def __post_init__(self) -> None:
        triggers = {name: query.trigger for name, query in self.queries.items()}
        clock = lambda: self.now  # noqa: E731
        self.scheduler = Scheduler(triggers, self.look, clock, self, self.perform)
        self.commits_of: dict[frozenset[str], list[TimedRows]] = {}

    def run(self, until: float) -> list[PlayedRun]:
        while self.now < until:
            ready, due = self.scheduler.due()
            count = len(self.runs)
            if ready or due:
                late, _ = self.scheduler.run(ready, due)
                if len(self.runs) > count:
                    self.runs[-1].late = late
            if not self.has_no_pause or len(self.runs) == count:
                self.now += self.scheduler.pause()
            if self.outage is not None and self.outage[0] <= self.now < self.outage[1]:
                self.now = self.outage[1]
        return self.runs

    def is_new(self) -> bool:
        return True

    def waiting(self) -> list[Waiting]:
        timed = (name for name, query in self.queries.items() if not query.trigger.is_on_commit)
        return [self.waiting_of(name) for name in timed]

    def perform(self, names: Sequence[QueryName], due: Sequence[Due]) -> FinishedRun:
        start, pending = self.now, {name: self.pending(self.queries[name]) for name in names}
        seconds, oldest = {}, {}
        for name in [name for name in names if pending[name]]:
            query = self.queries[name]
            oldest[name] = pending[name][0][0]
            seconds[name] = 0.0
            if not query.fails:
                seconds[name] = query.seconds(pending[name], 0.0) * self.noise()
                query.pinned = query.last = start
        work = sum(seconds.values())
        if oldest:
            self.now += (OPENING_S if self.runs else OPENING_FIRST_S) + work
            late = sum(item.due_by is not None and self.now > item.due_by + 1e-6 for item in due)
            self.runs.append(PlayedRun(start, self.now, oldest, work, late))
        failed = [name for name in names if self.queries[name].fails]
        expected = self.scheduler.pace.opening + sum(seconds.get(item.query, 0.0) for item in due)
        return FinishedRun(self.now, expected, failed, waiting=self.waiting())

    def waiting_of(self, name: QueryName) -> Waiting:
        query = self.queries[name]
        result = self.pending(query)
        changes = tuple(PendingChange(time, rows) for time, _, rows in result)
        cost, extra = query.seconds(result, 0.0) if result else 0.0, 0.0
        if result and query.trigger.ready_within is not None:
            moment = next_moment(query.trigger, result[0][0])
            coming = 0.0 if moment is None else query.rows_per_s * max(0.0, moment - self.now)
            extra = max(0.0, query.seconds(result, coming) - cost)
        mark = (query.pinned, len(changes))
        pending = PendingChanges(changes, None, result[0][0] if result else None, mark)
        costs = Costs(cost, extra, is_known=query.is_known)
        return Waiting(name, query.trigger, pending, costs, query.last)

    def pending(self, query: Query) -> list[TimedRows]:
        """Pending commits, found by bisection since there may be days of them."""
        relevant = self.commits_of.get(query.tables)
        if relevant is None:
            relevant = self.commits_of[query.tables] = [
                commit for commit in self.commits if commit[1] in query.tables
            ]
        first = bisect_right(relevant, query.pinned, key=itemgetter(0))
        return relevant[first : bisect_right(relevant, self.now, key=itemgetter(0))]


DAY = 86_400.0


def minutely(rng: random.Random, days: float) -> list[TimedRows]:
    """A commit about every minute, with a few rows."""
    result, time = [], 0.0
    while time < days * DAY:
        time += rng.expovariate(1 / 60)
        result.append((time, "a", rng.randrange(1, 60)))
    return result


def loads(rng: random.Random, days: float) -> list[TimedRows]:
    """One load a day, followed by small corrections."""
    result = []
    for day in range(int(days)):
        start = day * DAY + 3 * 3600 + rng.uniform(0, 600)
        result.append((start, "b", rng.randrange(20_000, 60_000)))
        result += [(start + rng.uniform(0, 4 * 3600), "c", rng.randrange(1, 9)) for _ in range(12)]
    return sorted(result)


def bursts(rng: random.Random, days: float) -> list[TimedRows]:
    """Hours without commits, then many at once to several tables."""
    arrivals: list[TimedRows] = []
    time = 0.0
    while time < days * DAY:
        time += rng.expovariate(1 / 7_200)
        count = rng.randrange(2, 40)
        arrivals += [(time + rng.uniform(0, 90), rng.choice("abc"), 50) for _ in range(count)]
    return sorted(arrivals)


def fourteen(rng: random.Random, bound: Trigger) -> dict[str, Query]:
    tables = ("a", "b", "c", "ab", "bc", "abc")
    return {
        f"q{number}": Query(
            bound, frozenset(tables[number % 6]), line(rng.uniform(0.05, 0.6), 2e-5)
        )
        for number in range(14)
    }


HISTORIES = {
    "steady": (minutely, 0.2, 1.0),
    "loads": (loads, 1.0, 4.0),
    "bursts": (bursts, 0.5, 3.0),
}


def _noisy(rng: random.Random) -> Callable[[], float]:
    """Random factors for step times on a busy machine."""

    def factor() -> float:
        spread = rng.lognormvariate(0.0, 0.35)
        return spread * (8.0 if rng.random() < 0.01 else 1.0)

    return factor


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "bound", "is_long"),
    [
        *(("steady", 600.0, False), ("loads", 3_600.0, False), ("bursts", 600.0, False)),
        *(
            pytest.param(name, bound, True, marks=pytest.mark.long)
            for name in HISTORIES
            for bound in (600.0, 3_600.0)
        ),
    ],
)
def test_nothing_is_late_and_little_early(name: str, bound: float, is_long: bool) -> None:
    rng = random.Random(f"{name}{bound}")
    make, few, many = HISTORIES[name]
    days = many if is_long else few
    arrivals = make(rng, days)
    queries = fourteen(rng, Trigger(fresh_within=bound))
    process = Process(queries, arrivals, 30.0, _noisy(rng))
    runs = process.run(days * DAY + 2 * bound)
    assert [run.late for run in runs if run.late] == []
    assert sum(run.steps_late for run in runs) == 0
    # Every change is in every sketch, and none was older than the bound.
    for query in queries.values():
        relevant = [
            time for time, table, _ in arrivals if table in query.tables and time < days * DAY
        ]
        assert query.pinned >= max(relevant, default=-1.0)
    ages = [age for run in runs for age in run.ages]
    assert max(ages) <= bound
    # Runs start as late as is safe: they are early to share runs, and for margin and look.
    assert sum(ages) / len(ages) > 0.75 * bound
    steps = sum(len(run.done) for run in runs)
    counts = [sum(table in query.tables for _, table, _ in arrivals) for query in queries.values()]
    commits = sum(counts)
    assert steps < commits
    assert len(runs) < 2 * days * DAY / bound + 4


def test_each_look_runs_without_bounds() -> None:
    rng = random.Random(5)
    queries = {"q": Query(ON_COMMIT)}
    runs = Process(queries, minutely(rng, 0.1), 30.0, _noisy(rng)).run(0.1 * DAY)
    assert len(runs) > 80
    assert all(run.ages[0] <= 30.0 + 3 for run in runs)


def query_of(bound: float, fixed: float, per_row: float = 0.0, **settings: Any) -> Query:
    return Query(Trigger(fresh_within=bound, **settings), seconds=line(fixed, per_row))


def test_start_leaves_time_for_earlier_deadlines() -> None:
    process = Process(
        {"first": query_of(100.0, 2.0), "second": query_of(400.0, 4.0)}, [(0.0, "a", 1)], 10.0
    )
    scheduler, first = process.scheduler, process.queries["first"]

    def start() -> float | None:
        assert scheduler.due() == ([], [])
        return scheduler.next_start()

    # Three times (1 s for the first opening + 2 s of work), plus the look.
    assert start() == pytest.approx(100.0 - 3 * 3 - 10.0)
    first.pinned = 0.0
    assert start() == pytest.approx(400.0 - 3 * 5 - 10.0)
    scheduler.run([], [])
    assert scheduler.pace.opening == 1.0, "nothing was loaded for that"
    (due, _) = dues(scheduler.waiting, scheduler.pace, 0.0)
    scheduler.run([], [due])
    assert start() == pytest.approx(400.0 - 3 * 4.05 - 10.0)
    first.pinned = -1.0
    first.trigger = Trigger(fresh_within=399.0)
    # `second` waits for `first`, which has the earlier deadline, so `second` decides the start.
    assert start() == pytest.approx(400.0 - 3 * 6.05 - 10.0)


def test_nearly_due_queries_join_in_deadline_order() -> None:
    bounds = {"late": 105.0, "soon": 100.0, "far": 200.0}
    queries = {name: query_of(bound, 0.1) for name, bound in bounds.items()}
    runs = Process(queries, [(0.0, "a", 1)], 5.0).run(300.0)
    assert [run.done for run in runs] == [["soon", "late"], ["far"]]


def test_process_runs_at_once_after_an_outage_and_reports_lateness() -> None:
    bounds = {"b": 600.0, "a": 300.0, "c": 7_200.0}
    queries = {name: query_of(bound, 1.0) for name, bound in bounds.items()}
    process = Process(queries, [(10.0, "a", 1)], 10.0, outage=(50.0, 4_000.0))
    first, *_ = process.run(5_000.0)
    assert (first.start, first.done) == (4_000.0, ["a", "b"])
    assert (first.late, first.steps_late) == (pytest.approx(4_000.0 + 3.0 - 310.0), 2)


@pytest.mark.slow
@pytest.mark.parametrize("bound", [300.0, 900.0])
def test_failing_query_does_not_move_other_starts(bound: float) -> None:
    rng = random.Random(3)
    days = 25 * bound / DAY
    arrivals = minutely(rng, days)
    trigger = Trigger(fresh_within=bound)

    def starts(fails: bool) -> list[tuple[float, list[str]]]:
        queries = {
            f"q{number}": Query(trigger, seconds=line(0.5 + number / 8, 1e-4))
            for number in range(4)
        }
        if fails:
            bad = Query(Trigger(fresh_within=bound / 2), seconds=line(20.0, 1e-4), fails=True)
            queries = {"bad": bad, **queries}
        process = Process(queries, arrivals, 10.0)
        runs = process.run(days * DAY)
        result = [(run.start, [name for name in run.done if name != "bad"]) for run in runs]
        return [(start, names) for start, names in result if names]

    with_bad, without = starts(True), starts(False)
    assert len(without) > 20
    assert [names for _, names in with_bad] == [names for _, names in without]
    # The bad query adds looks, so starts shift by at most the pause between two looks.
    assert all(abs(a - b) <= 10.0 for (a, _), (b, _) in zip(with_bad, without, strict=True))


def test_failed_query_waits_for_a_change_or_ten_minutes() -> None:
    queries = {"bad": Query(Trigger(fresh_within=60.0), fails=True)}
    runs = Process(queries, [(0.0, "a", 1), (1_500.0, "a", 1)], 5.0).run(2_000.0)
    starts = [round(run.start) for run in runs]
    assert len(starts) == 4, starts
    assert 600 <= starts[1] - starts[0] <= 610
    assert 600 <= starts[2] - starts[1] <= 610
    assert 1_500 <= starts[3] <= 1_510, "a new change is tried at once"


def test_moment_without_changes_runs_nothing() -> None:
    arrivals = [(100.0, "a", 1), (4_000.0, "a", 1)]
    queries = {"q": Query(Trigger(every=900.0), seconds=line(0.01, 1e-4))}
    runs = Process(queries, arrivals, 7.0).run(9_000.0)
    assert [run.start for run in runs] == [900.0, 4_500.0]


@pytest.mark.slow
def test_work_is_done_before_a_moment() -> None:
    """Ten rows every ten seconds for an hour, 10 ms each: 36 s of work, 3 s allowed at the end."""
    arrivals = [(10.0 * number, "a", 10) for number in range(1, 361)]
    ready = Trigger(every=3_600.0, ready_within=3.0)
    queries = {"q": Query(ready, seconds=line(0.05, 0.01))}
    runs = Process(queries, arrivals, 5.0, has_no_pause=True).run(3_700.0)
    assert len(runs) > 2
    ahead, at_moment = runs[:-1], runs[-1]
    assert all(run.start < 3_600.0 for run in ahead)
    assert 3_600.0 <= at_moment.start < 3_600.5
    assert at_moment.end <= 3_603.0
    assert at_moment.late == 0.0
    # Without the bound, all work happens at the moment.
    alone = {"q": Query(Trigger(every=3_600.0), seconds=line(0.05, 0.01))}
    (run,) = Process(alone, arrivals, 5.0).run(3_700.0)
    assert run.end > 3_630.0


@pytest.mark.slow
def test_impossible_ready_bound_is_not_retried_often() -> None:
    arrivals = [(10.0 * number, "a", 10) for number in range(1, 361)]
    ready = Trigger(every=3_600.0, ready_within=1.0)
    queries = {"q": Query(ready, seconds=line(10.0, 0.0))}
    runs = Process(queries, arrivals, 5.0).run(3_700.0)
    assert len(runs) <= 3


def test_cheap_queries_use_idle_time() -> None:
    queries = {
        "cheap": query_of(3_600.0, 0.5, cheap=True),
        "costly": query_of(3_600.0, 1.5, cheap=True),
        "plain": query_of(3_600.0, 0.5),
    }
    first, *others = Process(queries, [(10.0, "a", 1)], 5.0).run(4_000.0)
    assert (first.done, first.start) == (["cheap"], 10.0)
    assert {name for run in others for name in run.done} == {"costly", "plain"}


def test_rows_trigger_waits() -> None:
    arrivals = [(float(number * 10), "a", 4) for number in range(1, 21)]
    queries = {"q": Query(Trigger(rows=10), seconds=line(0.01, 1e-4))}
    runs = Process(queries, arrivals, 5.0).run(300.0)
    assert [run.start for run in runs] == [
        pytest.approx(30.0 * number, abs=1.5) for number in range(1, 7)
    ]
    assert bisect_left([run.start for run in runs], 200.0) == 6, "two are too few"


MOMENT = 6 * 3_600.0
ROWS = 200_000
SOME_SEEDS, ALL_SEEDS = (1, 2, 4, 11, 12, 13, 14, 15), range(20)
"""Seeds of nights. In night 4 a step takes far longer than estimated; in 1 and 11 some work is left
at the moment itself; 1, 2, 4 and 11 have different shapes."""
LOOK = 10.0
READY = Trigger(cron=read_cron("0 6 * * *"), ready_within=2.0)


def evenly(rng: random.Random) -> list[float]:
    return [rng.uniform(0, MOMENT) for _ in range(rng.randrange(40, 160))]


def gusty(rng: random.Random) -> list[float]:
    """Hours without commits, then several within minutes, up to the moment."""
    result = []
    for _ in range(rng.randrange(3, 12)):
        start = rng.uniform(0, MOMENT)
        result += [start + rng.expovariate(1 / 120) for _ in range(rng.randrange(3, 20))]
    return result


def rising(rng: random.Random) -> list[float]:
    """Commits become denser towards the moment."""
    return [MOMENT * rng.random() ** 0.4 for _ in range(rng.randrange(40, 160))]


def a_load(rng: random.Random) -> list[float]:
    """Most commits within half an hour, and a few corrections at any time."""
    start = rng.uniform(0, MOMENT - 3_600)
    result = [start + rng.uniform(0, 1_800) for _ in range(rng.randrange(3, 60))]
    return result + [rng.uniform(0, MOMENT) for _ in range(20)]


Shape = Callable[[random.Random], list[float]]
SHAPES: tuple[Shape, ...] = (evenly, gusty, rising, a_load)


def night(rng: random.Random, shape: Shape) -> list[TimedRows]:
    """All rows of a night, in commits of different sizes, some in the last minutes."""
    last = [MOMENT - rng.uniform(0, 600.0) for _ in range(rng.randrange(20, 80))]
    times = sorted(time for time in [*shape(rng), *last] if time < MOMENT)
    weights = [rng.lognormvariate(0.0, 0.5) for _ in times]
    rows = [int(ROWS * weight / sum(weights)) for weight in weights]
    rows[0] += ROWS - sum(rows)
    return [(time, "a", count) for time, count in zip(times, rows, strict=True)]


class Night(Struct, frozen=True):
    """A night: seconds from the moment until all earlier changes are in, the runs, and the
    largest ratio of a step's time to its estimate."""

    left: float
    runs: list[PlayedRun]
    longest: float


def play_night(rows_per_s: float, seed: int, max_factor: float = inf) -> Night:
    """One night of a process started at its beginning, which expects `rows_per_s`. Steps take at
    most `max_factor` times their estimate."""
    rng = random.Random(f"night {seed}")
    arrivals = night(rng, SHAPES[seed % len(SHAPES)])
    query = Query(READY, seconds=line(0.05, 1e-4), rows_per_s=rows_per_s)
    next_factor, factors = _noisy(rng), [0.0]

    def noise() -> float:
        factors.append(min(next_factor(), max_factor))
        return factors[-1]

    process = Process({"q": query}, arrivals, LOOK, noise, has_no_pause=True)
    runs = process.run(MOMENT + 300.0)
    assert query.pinned >= arrivals[-1][0]
    return Night(max(0.0, runs[-1].end - MOMENT), runs, max(factors))


MEAN = ROWS / MOMENT
"""Mean rows per second of a night."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows_per_s", "seeds"),
    [
        (0.0, SOME_SEEDS),
        (MEAN, SOME_SEEDS),
        *(pytest.param(each, ALL_SEEDS, marks=pytest.mark.long) for each in (0.0, MEAN)),
    ],
)
def test_moments_leave_two_seconds_at_most(rows_per_s: float, seeds: Sequence[int]) -> None:
    """It holds if steps stay within the margin, three times their estimate in a new process.
    The work is done as late as that allows."""
    nights = [play_night(rows_per_s, seed, FIRST_MARGIN) for seed in seeds]
    assert all(night.left <= 2.0 for night in nights)
    assert min(night.longest for night in nights) < 2.0 < max(night.longest for night in nights)
    least = MOMENT - FIRST_MARGIN * (OPENING_FIRST_S + 0.05 + 1e-4 * ROWS) - LOOK
    assert min(night.runs[0].start for night in nights) >= least
    assert max(len(night.runs) for night in nights) <= 4
    # In most nights, changes come after the last run ahead.
    assert sum(night.left > 0 for night in nights) > len(nights) / 2


TRIGGERS = (
    ON_COMMIT,
    Trigger(alone=SimpleTrigger.USE),
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


def costs(fixed_ms: float, row_ms: float, rng: random.Random | None = None) -> simulate.StepCosts:
    """Costs from runs. With `rng`, tables differ, some have no runs, and state adds costs."""
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
            extra = tuple(sorted(rng.uniform(-0.1, 1.0) * fixed_ms for _ in range(3)))
            prices[tables] = simulate.Price(
                (1.0, 10.0, 60.0), (1.0, 2.0, 3.0), extra, (0.0, 0.5, 1.0)
            )
    return simulate.StepCosts.of(runs, prices)


def random_commits(rng: random.Random, until: float, pause: float | None = None) -> list[TimedRows]:
    """Steady, bursty or rare commits."""
    result: list[TimedRows] = []
    time = 0.0
    pause = pause or rng.choice([4.0, 30.0, 200.0])
    while time < until:
        time += round(rng.expovariate(1 / pause) * 4) / 4
        for _ in range(rng.choice([1, 1, 1, 3])):
            result.append((time, rng.choice("aaabc"), rng.choice([1, 3, 20, 70])))
    return result


VirtualQuery = tuple[str, Trigger, frozenset[str], simulate.StepCosts]


class Replay(Struct, frozen=True):
    """Queries, and the commits after which they are run."""

    queries: list[VirtualQuery]
    commits: list[TimedRows]
    look: float
    until: float
    rows_per_s: float = 0.02
    since: float = 0.0

    def replay(self) -> simulate.RunTotals:
        changes_of = {
            table: [PendingChange(time, rows) for time, name, rows in self.commits if name == table]
            for table in "abc"
        }
        queries = []
        for name, trigger, tables, cost in self.queries:
            stream = simulate.CommitStream.of({table: changes_of[table] for table in tables})
            queries.append(simulate.ReplayedQuery(name, trigger, stream, cost, self.rows_per_s))
        return simulate.VirtualRun(queries, self.look).run(self.since, self.until)

    def every_look(self) -> list[PlayedRun]:
        queries = {
            name: Query(trigger, tables, _priced(cost), self.rows_per_s, cost.is_known)
            for name, trigger, tables, cost in self.queries
            if trigger.alone in (None, SimpleTrigger.COMMIT)
        }
        return Process(queries, self.commits, self.look, now=self.since).run(self.until)

    def assert_alike(self) -> None:
        result, expected = self.replay(), self.every_look()
        ages = [run.end - oldest for run in expected for oldest in run.oldest.values()]
        assert (result.runs, result.ages) == (len(expected), pytest.approx(ages, abs=1e-6))
        work, late = sum(run.work for run in expected), sum(run.steps_late for run in expected)
        assert (result.work_s, result.late) == (pytest.approx(work), late)


def _priced(cost: simulate.StepCosts) -> StepTime:
    def seconds(commits: Sequence[TimedRows], more: float) -> float:
        moved = frozenset(table for _, table, _ in commits)
        return cost.step(moved, sum(rows for _, _, rows in commits) + more, 0).seconds

    return seconds


@pytest.mark.slow
@pytest.mark.parametrize("trigger", TRIGGERS)
def test_replay_of_a_trigger_matches_every_look(trigger: Trigger) -> None:
    """Two queries with this trigger, and one with another."""
    number = TRIGGERS.index(trigger)
    rng = random.Random(f"trigger {number}")
    other = TRIGGERS[(number + 4) % len(TRIGGERS)]
    queries: list[VirtualQuery] = [
        ("one", trigger, frozenset("a"), costs(300.0, 2.0, rng)),
        ("two", trigger, frozenset("ab"), costs(40.0, 30.0, rng)),
        ("other", other, frozenset("abc"), costs(300.0, 2.0, rng)),
    ]
    Replay(queries, random_commits(rng, 1_500.0, pause=12.0), 5.0, 1_500.0, 0.02).assert_alike()


@pytest.mark.slow
@random_cases(fast=8, check=15, total=150)
def test_replay_matches_every_look(cases: range) -> None:
    for seed in cases:
        rng = random.Random(seed)
        until = 3_000.0
        commits = random_commits(rng, until)
        fixed, row = rng.choice([20.0, 300.0, 4_000.0]), rng.choice([0.0, 2.0, 30.0])
        same = rng.choice([*(None for _ in TRIGGERS), *TRIGGERS])
        queries: list[VirtualQuery] = [
            (
                f"q{number}",
                rng.choice(TRIGGERS) if same is None else same,
                frozenset(rng.choice(["a", "b", "ab", "abc"])),
                costs(fixed * rng.uniform(0.5, 2), row, rng),
            )
            for number in range(rng.randrange(1, 6))
        ]
        look = rng.choice([2.0, 5.0, 16.0, 61.0])
        Replay(queries, commits, look, until, rng.choice([0.0, 0.02, 1.0])).assert_alike()


@pytest.mark.slow
@random_cases(fast=4, check=9, total=30)
def test_on_commit_runs_mix_with_delayed_ones(cases: range) -> None:
    """Long on-commit steps, so that other queries become due while they run."""
    for seed in cases:
        rng = random.Random(seed)
        commits = random_commits(rng, 3_000.0)
        queries: list[VirtualQuery] = [
            ("each", ON_COMMIT, frozenset("a"), costs(rng.choice([3_000.0, 20_000.0]), 5.0, rng)),
            ("bound", Trigger(fresh_within=60.0), frozenset("ab"), costs(200.0, 3.0, rng)),
            ("clock", rng.choice(TRIGGERS), frozenset("ab"), costs(900.0, 1.0, rng)),
        ]
        Replay(queries, commits, rng.choice([2.0, 5.0, 16.0]), 3_000.0, 0.02).assert_alike()


@pytest.mark.slow
@random_cases(fast=3, check=7, total=20)
def test_expected_rows_count_from_the_first_row(cases: range) -> None:
    for seed in cases:
        rng = random.Random(seed)
        commits: list[TimedRows] = sorted(
            (rng.randrange(4 * 3_000) / 4, "a", rng.choice([1, 30])) for _ in range(300)
        )
        ready = Trigger(every=600.0, ready_within=rng.choice([1.0, 3.0]))
        queries = single(ready, costs(40.0, rng.choice([5.0, 20.0])))
        Replay(queries, commits, rng.choice([2.0, 5.0]), 3_000.0, 1.5).assert_alike()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 10])
def test_query_run_ahead_may_be_due_again_before_its_moment(seed: int) -> None:
    """Its latest safe start moves back until it is after that run."""
    rng = random.Random(seed)
    ready = Trigger(every=600.0, ready_within=2.0)
    queries: list[VirtualQuery] = [
        (
            f"q{number}",
            ready,
            frozenset(rng.choice(["a", "ab"])),
            costs(rng.choice([20.0, 300.0, 4_000.0]) * rng.uniform(0.5, 2), 30.0, rng),
        )
        for number in range(4)
    ]
    commits = random_commits(rng, 3_000.0, pause=rng.choice([4.0, 30.0]))
    Replay(queries, commits, 2.0, 3_000.0, 1.0).assert_alike()


def single(trigger: Trigger, cost: simulate.StepCosts) -> list[VirtualQuery]:
    return [("q", trigger, frozenset("a"), cost)]


def test_on_use_nothing_runs_and_changes_keep_aging() -> None:
    queries = single(Trigger(alone=SimpleTrigger.USE), costs(1.0, 0.0))
    totals = Replay(queries, [(10.0, "a", 1), (50.0, "a", 1)], 5.0, 100.0).replay()
    assert (totals.runs, totals.steps, totals.left) == (0, 0, [90.0])


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


@random_cases(fast=3, check=15, total=100)
def test_moments_without_pending_changes_are_skipped(cases: range) -> None:
    """Few commits around midnight, some exactly at a moment."""
    since, until = 79_000.0, 93_000.0
    for seed in cases:
        rng = random.Random(seed)
        moments = [70.0 * rng.randrange(1_130, 1_300) for _ in range(7)]
        commits: list[TimedRows] = sorted(
            (rng.choice([rng.uniform(since, until), moment]), rng.choice("ab"), 9)
            for moment in moments[: rng.randrange(1, 7)]
        )
        queries: list[VirtualQuery] = [
            (
                f"q{number}",
                (CLOCKS[seed % len(CLOCKS)], rng.choice(CLOCKS), rng.choice(TRIGGERS))[number],
                frozenset(rng.choice(["a", "b", "ab"])),
                costs(rng.choice([20.0, 4_000.0]), rng.choice([0.0, 30.0]), rng),
            )
            for number in range(rng.randrange(1, 4))
        ]
        Replay(queries, commits, rng.choice([13.0, 61.0]), until, 1e-4, since).assert_alike()


@pytest.mark.parametrize(
    "trigger", [Trigger(every=60.0), Trigger(cron=read_cron("* * * * *")), CLOCKS[5]]
)
def test_replay_time_depends_on_runs_alone(trigger: Trigger, monkeypatch: MonkeyPatch) -> None:
    calls = spied(monkeypatch, Scheduler, "due")
    years = 30 * 365.0 * 86_400
    commits: list[TimedRows] = [(years / 5 * number + 1.25, "a", 1) for number in range(1, 5)]
    totals = Replay(single(trigger, costs(20.0, 0.0)), commits, 5.0, years, 0.0).replay()
    assert (totals.runs, len(totals.ages)) == (4, 4)
    assert max(totals.ages) < 620.0
    assert len(calls) < 400, "of millions of moments"
