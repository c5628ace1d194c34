"""When queries are due, one by one: each key of a trigger, several of them, what cannot be held."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from impctl.service.schedule.daemon import Timetable
from impctl.service.schedule.due import (
    FIRST_MARGIN,
    LEAST_MARGIN,
    UNKNOWN_S,
    Change,
    Costs,
    Due,
    Margin,
    Pace,
    Pending,
    Waiting,
    costs_of,
    dues,
    in_order,
    shortest_bounds,
    taken,
)
from impctl.store.records import RunCost, RunKind
from impctl.workload.models import ON_COMMIT, Alone, Trigger, read_cron
from tests.support.random_cases import random_seeds

NOON = 1_795_780_800.0  # 2026-11-27 12:00 UTC
PACE = Pace(opening=1.0, margin=2.0, look=5.0)
NOTHING = Pending(mark=0)


def pending(*changes: tuple[float, int | None]) -> Pending:
    result = tuple(Change(NOON + at, rows) for at, rows in changes)
    return Pending(result, None, result[0].at, changes)


def waiting(trigger: Trigger, what: Pending, cost: float = 1.0, name: str = "q") -> Waiting:
    return Waiting(name, trigger, what, Costs(cost, each_look=0.1, longest=cost))


def due(trigger: Trigger, what: Pending, now: float = 100.0) -> Due:
    (result,) = dues([waiting(trigger, what)], PACE, NOON + now)
    return result


def at(result: Due) -> tuple[float | None, float | None, float | None]:
    """When it is due, by when, and when to start, from noon on."""
    times = (result.due_at, result.due_by, result.start_at)
    due_at, due_by, start = (None if one is None else one - NOON for one in times)
    return due_at, due_by, start


ONE = pending((10.0, 7), (20.0, 4))


@pytest.mark.parametrize(
    ("trigger", "times"),
    [
        (ON_COMMIT, (10.0, None, 10.0)),
        (Trigger(alone=Alone.USE), (None, None, None)),
        (Trigger(point="p"), (None, None, None)),
        (Trigger(rows=7), (10.0, None, 10.0)),
        (Trigger(rows=8), (20.0, None, 20.0)),
        (Trigger(rows=11), (20.0, None, 20.0)),
        (Trigger(rows=12), (None, None, None)),
        (Trigger(every=60.0), (60.0, None, 60.0)),
        (Trigger(cron=read_cron("30 12 * * *")), (1_800.0, None, 1_800.0)),
        # 2 * (1 s to open, 1 s of work), and the look.
        (Trigger(fresh_within=600.0), (610.0, 610.0, 601.0)),
        (Trigger(every=3_600.0, ready_within=5.0), (3_600.0, 3_605.0, 3_600.0)),
        (Trigger(every=3_600.0, ready_within=3.0), (3_600.0, 3_603.0, 3_596.0)),
        # The first of several that comes.
        (Trigger(fresh_within=600.0, rows=11), (20.0, None, 20.0)),
        (Trigger(fresh_within=600.0, rows=12), (610.0, 610.0, 601.0)),
        (Trigger(fresh_within=600.0, every=60.0), (60.0, None, 60.0)),
        (Trigger(fresh_within=30.0, every=60.0), (40.0, 40.0, 31.0)),
        (Trigger(point="p", rows=7), (10.0, None, 10.0)),
    ],
)
def test_what_is_pending_is_due(
    trigger: Trigger, times: tuple[float | None, float | None, float | None]
) -> None:
    result = due(trigger, ONE)
    assert at(result) == times
    assert result.is_pending
    assert result.is_now(NOON + 100) == (times[2] is not None and times[2] <= 100)


@pytest.mark.parametrize(
    ("trigger", "times"),
    [
        (ON_COMMIT, (None, None, None)),
        (Trigger(rows=1), (None, None, None)),
        (Trigger(fresh_within=1.0), (None, None, None)),
        (Trigger(every=60.0), (120.0, None, 120.0)),
        (Trigger(every=60.0, ready_within=1e-3), (120.0, 120.001, 120.0)),
    ],
)
def test_where_nothing_is_pending_nothing_is_due(
    trigger: Trigger, times: tuple[float | None, float | None, float | None]
) -> None:
    result = due(trigger, NOTHING)
    assert result.due_by is None or result.due_by == pytest.approx(NOON + 120.001)
    assert (at(result)[0], at(result)[2]) == (times[0], times[2])
    assert not result.is_pending
    assert not result.is_now(NOON + 1e9)


def test_rows_that_the_log_does_not_tell_are_enough() -> None:
    assert at(due(Trigger(rows=10**9), pending((1.0, 5), (3.0, None))))[0] == 3.0


def test_commits_that_only_move_rows_are_for_who_runs_at_each() -> None:
    moved = Pending((), None, NOON + 4.0, 1)
    assert at(due(ON_COMMIT, moved))[2] == 4.0
    assert due(ON_COMMIT, moved).is_now(NOON + 4)
    for trigger in (Trigger(fresh_within=1.0), Trigger(rows=1), Trigger(every=1.0)):
        assert not due(trigger, moved).is_now(NOON + 100)


@pytest.mark.parametrize(
    ("trigger", "is_due"),
    [
        (ON_COMMIT, True),
        (Trigger(fresh_within=1e6), True),
        (Trigger(rows=10**6), True),
        (Trigger(cron=read_cron("@yearly")), True),
        (Trigger(point="p", rows=10**6), True),
        (Trigger(alone=Alone.USE), False),
        (Trigger(point="p"), False),
    ],
)
def test_who_is_unsure_maintains(trigger: Trigger, is_due: bool) -> None:
    result = due(trigger, Pending(unsure="the log does not show it", mark=1))
    assert result.is_now(NOON + 100) == is_due


def test_a_run_that_was_made_ahead_is_not_made_again() -> None:
    trigger = Trigger(every=3_600.0, ready_within=3.0)
    one = waiting(trigger, ONE)
    (ahead,) = dues([one], PACE, NOON + 3_595)
    assert at(ahead)[2] == 3_596.0
    (then,) = dues([replace(one, last=NOON + 3_596.5)], PACE, NOON + 3_597)
    assert at(then)[2] == 3_600.0
    # What is left takes less than then: again as late as possible.
    small = replace(one, last=NOON + 3_590, costs=Costs(0.6))
    (again,) = dues([small], PACE, NOON + 3_597)
    assert at(again)[2] == pytest.approx(3_600 - 2 * 1.6)


def test_what_is_expected_counts_ahead_of_a_moment() -> None:
    trigger = Trigger(every=3_600.0, ready_within=10.0)
    (without,) = dues([waiting(trigger, ONE)], PACE, NOON)
    assert at(without)[2] == 3_600.0
    more = replace(waiting(trigger, ONE), costs=Costs(1.0, expected=4.0))
    (result,) = dues([more], PACE, NOON)
    assert at(result)[2] == 3_600.0 - 2 * (1 + 1 + 4)


def test_a_point_with_a_bound_is_kept_ready() -> None:
    trigger = Trigger(point="p", ready_within=3.0)
    (result,) = dues([waiting(trigger, ONE)], PACE, NOON + 50)
    assert result.is_now(NOON + 50)
    (small,) = dues([waiting(trigger, ONE, cost=0.4)], PACE, NOON + 50)
    assert not small.is_now(NOON + 50)


@random_seeds(6, 13, 20)
def test_starts_are_those_of_the_formula(seed: int) -> None:
    rng = random.Random(seed)
    pace = Pace(rng.uniform(0, 2), rng.uniform(1.5, 4), rng.uniform(0, 60))
    some = [
        waiting(
            Trigger(fresh_within=rng.choice([60.0, 600.0, 3_600.0, rng.uniform(1, 1e4)])),
            NOTHING if rng.random() < 0.2 else pending((rng.choice([0.0, 5.0, 77.0]), 1)),
            rng.uniform(0, 9),
            f"q{at}",
        )
        for at in range(rng.randrange(1, 9))
    ]

    def deadline(one: Waiting) -> float:
        assert one.pending.oldest is not None
        assert one.trigger.fresh_within is not None
        return one.pending.oldest + one.trigger.fresh_within

    for one, result in zip(some, dues(some, pace, NOON + 80), strict=True):
        if not one.pending.is_some:
            assert result.start_at is None
            continue
        before = [o for o in some if o.pending.is_some and deadline(o) <= deadline(one)]
        work = pace.opening + sum(o.costs.pending for o in before)
        assert result.due_by == deadline(one)
        assert result.start_at == pytest.approx(deadline(one) - pace.margin * work - pace.look)


def test_a_run_takes_what_is_due_in_the_order_of_deadlines() -> None:
    some = [
        waiting(Trigger(fresh_within=50.0), ONE, name="c"),
        waiting(Trigger(rows=1), ONE, name="a"),
        waiting(Trigger(fresh_within=40.0), ONE, name="b"),
        waiting(Trigger(fresh_within=5_000.0), ONE, name="far"),
        waiting(Trigger(point="p"), ONE, name="point"),
    ]
    result = dues(some, PACE, NOON + 100)
    assert [due.query for due in taken(result, some, NOON + 100)] == ["a", "b", "c"]
    assert taken(dues(some[3:], PACE, NOON + 100), some[3:], NOON + 100) == []


def test_cheap_ones_wait_for_idle_time_and_for_a_known_cost() -> None:
    cheap = Trigger(fresh_within=5_000.0, cheap=True)
    some = [waiting(cheap, ONE, 0.9, "cheap"), waiting(cheap, ONE, 1.0, "dear")]
    unknown = replace(waiting(cheap, ONE, 0.1, "unknown"), costs=Costs(0.1, is_known=False))
    nothing = waiting(cheap, NOTHING, 0.1, "nothing")
    all_of = [*some, unknown, nothing]
    result = taken(dues(all_of, PACE, NOON + 100), all_of, NOON + 100)
    assert [due.query for due in result] == ["cheap"]
    all_of.append(waiting(Trigger(rows=1), ONE, name="due"))
    result = taken(dues(all_of, PACE, NOON + 100), all_of, NOON + 100)
    assert [due.query for due in result] == ["due"]


def test_bounds_that_cannot_be_held_are_told_with_the_least_that_can() -> None:
    def told(trigger: Trigger, costs: Costs) -> list[tuple[str, str]]:
        return shortest_bounds(Waiting("q", trigger, ONE, costs), PACE)

    step = Costs(1.0, each_look=0.5, longest=8.0)
    assert told(Trigger(fresh_within=8.0), step) == []
    ((code, text),) = told(Trigger(fresh_within=7.0), step)
    assert code == "fresh_impossible"
    # The look, and twice (1 s to open, 8 s of work).
    assert "23 s" in text
    ((code, _),) = told(Trigger(fresh_within=4.0), Costs(0.1))
    assert code == "fresh_impossible", "shorter than a look"
    assert told(Trigger(every=60.0, ready_within=3.0), step) == []
    ((code, text),) = told(Trigger(every=60.0, ready_within=2.9), step)
    assert code == "ready_impossible"
    assert "3 s" in text


@pytest.mark.parametrize(
    ("times", "ordered"),
    [
        ([5.0, 9.0], [5.0, 9.0]),
        ([9.0, 5.0, 7.0, 11.0], [9.0, 9.0, 9.0, 11.0]),
        ([5.0, 5.0], [5.0, 5.0]),
        ([5.0, 500.0, 7.0], [5.0, 5.0, 7.0]),
        ([500.0, 7.0, 500.0], [3.0, 7.0, 7.0]),
        ([104.0, 106.0], [100.0, 100.0]),
        ([None, 7.0, None], [3.0, 7.0, 7.0]),
        ([2.0, None], [2.0, 2.0]),
        ([], []),
    ],
)
def test_times_of_commits_never_go_back_nor_lie_ahead(
    times: list[float | None], ordered: list[float]
) -> None:
    assert in_order(times, since=3.0, now=100.0) == ordered


def test_the_margin_learns_from_the_latest_runs() -> None:
    margin = Margin()
    assert margin.value == FIRST_MARGIN
    for _ in range(19):
        margin.ran(1.0, 1.0)
    assert margin.value == FIRST_MARGIN, "fewer than twenty"
    margin.ran(2.0, 2.0)
    assert margin.value == LEAST_MARGIN
    for _ in range(3):
        margin.ran(1.0, 5.0)
    assert margin.value == 5.0
    for _ in range(198):
        margin.ran(1.0, 1.0)
    assert margin.value == LEAST_MARGIN, "two of two hundred are left"
    margin.ran(0.0, 7.0)
    assert margin.value == LEAST_MARGIN, "nothing was thought of that one"


def run_of(rows: int, ms: float) -> RunCost:
    return RunCost(RunKind.MAINTAIN, rows, rows * 10, ms)


class Forecast:
    """A row a second."""

    def rows(self, query: str, since: float, until: float) -> float:
        return until - since

    def moved(self, query: str, since: float, until: float) -> tuple[str, ...]:
        return () if until - since < 1_500 else ("s",)


def test_costs_follow_the_recorded_runs() -> None:
    some = pending((0.0, 3_000))
    assert costs_of("q", ON_COMMIT, some, (), (0, 5)) == Costs(UNKNOWN_S, is_known=False)
    runs = [run_of(1_000, 200.0), run_of(2_000, 300.0), run_of(0, 100.0)]
    costs = costs_of("q", ON_COMMIT, some, runs, (0, 5))
    assert costs.is_known
    assert (costs.pending, costs.each_look) == (pytest.approx(0.4), pytest.approx(0.1))
    assert costs.longest == 0.3
    assert costs_of("q", ON_COMMIT, NOTHING, runs, (0, 5)).pending == 0.0
    hourly = Trigger(every=3_600.0)
    ahead = costs_of("q", hourly, some, runs, (NOON + 1_600, NOON + 2_600), Forecast())
    assert ahead.each_look == pytest.approx(0.2)
    assert ahead.expected == pytest.approx(0.2), "2,000 rows until the hour"


def test_costs_are_those_of_changes_of_the_same_tables() -> None:
    def over(table: str, rows: int, ms: float) -> RunCost:
        return replace(run_of(rows, ms), moved=(table,))

    runs = [over("r", 1_000, 200.0), over("r", 2_000, 300.0), over("s", 1_000, 5_000.0)]
    cheap = replace(pending((0.0, 1_000)), moved=("r",))
    dear = replace(cheap, moved=("s",))
    assert costs_of("q", ON_COMMIT, cheap, runs, (0, 5)).pending == pytest.approx(0.2)
    assert costs_of("q", ON_COMMIT, dear, runs, (0, 5)).pending == pytest.approx(5.0)
    # Until the moment s is expected: a run of both is not known, and all runs tell.
    hourly = Trigger(every=3_600.0)
    ahead = costs_of("q", hourly, dear, runs, (NOON + 1_600, NOON + 3_500), Forecast())
    assert ahead.each_look == pytest.approx(5.0)


def test_what_a_run_left_is_tried_again_after_the_clock_was_put_back() -> None:
    timetable = Timetable(5.0)
    timetable.saw([waiting(ON_COMMIT, pending((-9_000.0, 7)))])
    result = timetable.due(NOON)
    assert [due.query for due in result] == ["q"]
    timetable.ran(result, NOON, 1.0)
    assert not timetable.due(NOON + 1)
    assert timetable.due(NOON + 600)
    assert timetable.due(NOON - 3_600)
