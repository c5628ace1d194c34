"""What a step is said to take: as estimates say, never above its bound or below its price."""

from __future__ import annotations

import random

import pytest

from impctl.app.maintaining.due.costs import UNKNOWN_S
from impctl.app.maintaining.estimates import Size, estimated
from impctl.app.simulating.kept_pieces import MostPriced, Price, price_of_step
from impctl.app.simulating.lines import CostsBy, lines_of
from impctl.app.simulating.step_costs import StepCosts
from impctl.store.records import RunCost, RunKind
from tests.support.random_cases import random_seeds

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
            found = lines.ms(moved, rows, size)
            assert (found is None) == (wanted is None)
            if found is not None:
                assert found == pytest.approx(wanted, rel=1e-6, abs=1e-6)
                assert found <= lines.most_ms(rows, size) + 1e-6
    by_runs = any(run.kind is RunKind.MAINTAIN for run in known)
    assert (lines.by is CostsBy.RUNS) == by_runs
    assert (lines.by is CostsBy.PRIORS) == (lines.ms(frozenset("a"), 1, 1) is None)


def prices(rng: random.Random) -> dict[frozenset[str], Price]:
    found = {}
    for tables in rng.sample(SETS[1:], rng.randrange(0, 5)):
        usual = rng.choice([1.0, 30.0, 800.0])
        rows = tuple(usual * scale for scale in (0.25, 1.0, 16.0, 256.0))
        columns = [
            tuple(rng.choice([0.0, rng.uniform(lowest, 50)]) for _ in rows)
            for lowest in (0, -20, 0)
        ]
        found[tables] = Price(rows, *columns)
    return found


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
