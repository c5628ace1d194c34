"""Commits made ready, settings named, recorded steps put into runs, figures taken; what a step is
said to take, never above its bound or below its price; the page."""

from __future__ import annotations

import random

import pytest

from impctl.errors import UsageError
from impctl.forecast import Arrival
from impctl.service.cost_model import Size, estimated
from impctl.service.schedule.due import UNKNOWN_S
from impctl.service.schedule.replay import commits_of, merged
from impctl.service.schedule.simulate import (
    CostsBy,
    MostPriced,
    Price,
    StepCosts,
    disks_from,
    lines_of,
    price_of_step,
    quantile,
    runs_in,
    settings_of,
    trigger_from,
)
from impctl.store.records import RunCost, RunKind, RunRecord
from impctl.workload.models import ON_COMMIT, Trigger
from tests.support.random_cases import random_seeds


def arrival(at: float | None, rows: int | None, size: int = 0) -> Arrival:
    gone = None if rows is None else 0
    return Arrival(0, at, rows, gone, 1, size, "WRITE")


def test_rows_that_a_log_does_not_tell_go_by_bytes() -> None:
    told = [arrival(1, 10, 100), arrival(2, 30, 300), arrival(3, None, 50), arrival(4, None)]
    commits = commits_of(told, 0.0, 9.0)
    assert [*commits.rows] == [0, 10, 40, 45, 65]
    assert (commits.guessed, len(commits)) == (2, 4)
    assert [*commits_of([arrival(1, None, 7)], 0.0, 9.0).rows] == [0, 100]


def test_commits_before_and_after_are_no_part_of_it() -> None:
    told = [arrival(1, 1), arrival(5, 2), arrival(4, 4), arrival(None, 8), arrival(9, 16)]
    commits = commits_of(told, 5.0, 8.0)
    assert ([*commits.times], [*commits.rows]) == ([5.0, 5.0, 5.0], [0, 2, 6, 14])
    assert commits.next_after(5.0) is None
    assert commits.next_after(4.9) == 5.0
    assert len(commits_of(told, 6.0, 8.0)) == 0


def test_commits_of_several_tables_keep_their_order() -> None:
    one = commits_of([arrival(1, 1), arrival(4, 2)], 0.0, 9.0)
    other = commits_of([arrival(2, 4, 7), arrival(4, 8)], 0.0, 9.0)
    result = merged({"b": one, "a": other})
    assert ([*result.times], [*result.rows]) == ([1, 2, 4, 4], [0, 1, 5, 13, 15])
    assert [*result.bytes] == [0, 0, 7, 7, 7]


def test_every_budget_by_every_trigger_and_none_twice() -> None:
    fresh, each = Trigger(fresh_within=600.0), ON_COMMIT
    assert [one.name for one in settings_of(None, [], [])] == ["as it is"]
    settings = settings_of(10**9, disks_from(["500MB, all", "500MB"]), [fresh, each, fresh])
    assert [one.name for one in settings] == [
        "as it is",
        *("500 MB, fresh_within 10m", "500 MB, commit"),
        *("all kept, fresh_within 10m", "all kept, commit"),
    ]
    assert [one.name for one in settings_of(10**9, [], [fresh])] == [
        "as it is",
        "1 GB, fresh_within 10m",
    ]
    assert [one.name for one in settings_of(None, [0], [])] == ["as it is", "0 B"]
    assert settings_of(10**9, [], [])[0].disk == 10**9


def test_a_trigger_is_read_as_in_the_file() -> None:
    assert trigger_from("commit") == ON_COMMIT
    assert trigger_from("fresh_within: 10m") == Trigger(fresh_within=600.0)
    assert trigger_from("{rows: 5, every: 1h}") == Trigger(rows=5, every=3_600.0)
    with pytest.raises(UsageError) as caught:
        trigger_from("{rows: 5, evry: 1h}")
    assert str(caught.value.location) == "--trigger:1:11"
    assert "every" in (caught.value.hint or "")


def record(ended: float, took_ms: float, commit_ms: float = 0.0) -> RunRecord:
    return RunRecord(
        action="exact",
        reason_code="",
        reason="",
        started_at=ended,
        elapsed_ms=took_ms + commit_ms,
        read_ms=took_ms / 2,
        engine_ms=took_ms / 2,
        commit_ms=commit_ms,
        changes=1,
        added=0,
        removed=0,
        versions={},
    )


def test_steps_close_together_are_one_run() -> None:
    a, b = ("a", record(10.0, 500.0, 900.0)), ("b", record(13.0, 1_000.0))
    assert runs_in([], 1.0) == 0
    assert runs_in([a, b], 1.2) == 1
    assert runs_in([a, b], 1.0) == 2, "b began 1.1 s after the commit of a was over"
    assert runs_in([a, ("a", record(10.1, 50.0))], 1.2) == 2, "no query comes twice in a run"


def test_a_quantile_is_one_of_the_numbers() -> None:
    assert quantile([], 0.5) is None
    assert quantile([3.0], 0.99) == 3.0
    hundred = [float(at) for at in range(1, 101)]
    assert [quantile(hundred, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 50.0, 99.0, 100.0]


SETS = [frozenset(), frozenset("a"), frozenset("b"), frozenset("ab"), frozenset("abc")]


def runs(rng: random.Random) -> list[RunCost]:
    """Of any kind, over any tables; noisy, some with Spark."""
    kinds = rng.choice([[RunKind.MAINTAIN], [RunKind.RECAPTURE], list(RunKind), []])
    return [
        RunCost(
            rng.choice(kinds),
            rng.choice([0, 1, 40, 5_000]),
            rng.choice([0, 900, 70_000]),
            rng.uniform(0, 900) * rng.choice([1, 1, 1, 20]),
            rng.random() < 0.2,
            rng.choice([0.0, 4_000.0]),
            tuple(sorted(rng.choice(SETS))),
        )
        for _ in range(rng.randrange(0, 12) if kinds else 0)
    ]


@random_seeds(5, 33, 60)
def test_lines_are_those_of_the_estimates(seed: int) -> None:
    rng = random.Random(seed)
    known = runs(rng)
    lines = lines_of(known)
    for moved in SETS[1:]:
        for rows, size in [(0, 0), (3, 100), (70_000, 10), (2, 10**8), (10**7, 10**9)]:
            wanted = estimated(
                known,
                RunKind.MAINTAIN,
                Size(rows, size),
                has_spark=True,
                table_rows=lambda: 0,
                moved=sorted(moved),
            ).maintain_ms
            result = lines.ms(moved, rows, size)
            assert (result is None) == (wanted is None)
            if result is not None:
                assert result == pytest.approx(wanted, rel=1e-6, abs=1e-6)
                assert result <= lines.most_ms(rows, size) + 1e-6
    by_runs = any(run.kind is RunKind.MAINTAIN for run in known)
    assert (lines.by is CostsBy.RUNS) == by_runs
    assert (lines.by is CostsBy.PRIORS) == (lines.ms(frozenset("a"), 1, 1) is None)


def prices(rng: random.Random) -> dict[frozenset[str], Price]:
    result = {}
    for tables in rng.sample(SETS[1:], rng.randrange(0, 5)):
        usual = rng.choice([1.0, 30.0, 800.0])
        rows = tuple(usual * scale for scale in (0.25, 1.0, 16.0, 256.0))
        columns = [
            tuple(rng.choice([0.0, rng.uniform(lowest, 50)]) for _ in rows)
            for lowest in (0, -20, 0)
        ]
        result[tables] = Price(rows, *columns)
    return result


@random_seeds(5, 33, 60)
def test_no_step_takes_more_than_the_most_of_a_larger_one(seed: int) -> None:
    rng = random.Random(seed)
    costs = StepCosts(lines_of(runs(rng)), prices(rng))
    for _ in range(200):
        rows, more = rng.choice([0, 1, 7, 300, 10**6]), rng.choice([0, 1, 90, 10**5])
        step = costs.step(rng.choice(SETS[1:]), rows, 0)
        assert 0 <= step.seconds <= costs.most(rows + more, 0) + 1e-9
        assert step.reads >= 0


def test_prices_lie_on_lines_between_sizes() -> None:
    price = Price((10.0, 20.0, 40.0), (1.0, 3.0, 7.0), (0.0, -1.0, 1.0), (0.5, 1.0, 1.0))
    of = {frozenset("a"): price}
    assert price_of_step(of, frozenset("a"), 3) == (1.0, 0.0, 0.5)
    assert price_of_step(of, frozenset("a"), 20) == (3.0, -1.0, 1.0)
    assert price_of_step(of, frozenset("a"), 30) == (5.0, 0.0, 1.0)
    assert price_of_step(of, frozenset("a"), 1_000) == (7.0, 1.0, 1.0)
    assert price_of_step(of, frozenset("b"), 30) == (0.0, 0.0, 0.0)
    most = MostPriced.of(of.values())
    assert most.at(20) == (3.0, 0.0)
    assert most.at(21) == (7.0, 1.0)


def test_tables_that_come_together_by_chance_are_priced_by_the_largest_kinds() -> None:
    def flat(ms: float) -> Price:
        return Price((1.0,), (ms,), (ms,), (ms,))

    of = {frozenset("a"): flat(1.0), frozenset("b"): flat(2.0), frozenset("ab"): flat(10.0)}
    of[frozenset("c")] = flat(20.0)
    assert price_of_step(of, frozenset("ab"), 5)[0] == 10.0
    assert price_of_step(of, frozenset("abc"), 5)[0] == 30.0
    assert price_of_step({frozenset("abc"): flat(9.0)}, frozenset("ab"), 5)[0] == 0.0


def test_a_step_is_its_line_and_what_state_adds_but_no_less_than_its_price() -> None:
    known = [RunCost(RunKind.MAINTAIN, rows, 0, 100.0) for rows in (1, 2, 3)]
    for more, ms, wanted in [(30.0, 5.0, 0.13), (-60.0, 5.0, 0.04), (-99.0, 5.0, 0.005)]:
        costs = StepCosts(lines_of(known), {frozenset("a"): Price((1.0,), (ms,), (more,), (0.0,))})
        assert costs.step(frozenset("a"), 2, 0).seconds == pytest.approx(wanted)
    unknown = StepCosts(lines_of([]), {frozenset("a"): Price((1.0,), (7.0,), (2.0,), (0.0,))})
    assert unknown.step(frozenset("a"), 2, 0).seconds == pytest.approx(0.007)
    assert unknown.step(frozenset("b"), 2, 0).seconds == UNKNOWN_S
    assert not unknown.is_known
