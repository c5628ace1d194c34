"""A judge that remembers finds what one without memory finds, for any sketches and facts after
any others; and what it did once it does not do again.
By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for 3,000 cases.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from impctl.plan.nodes import Plan, Query, Select, scans_of
from impctl.safety import judge as judging
from impctl.safety import transfer
from impctl.safety.facts import Fact, FactKind, FactSource
from impctl.safety.judge import Analysis, Judges, PlanJudge, Status, check_safety
from impctl.safety.messages import Wording
from impctl.sql.statement import parse_query
from tests.plan.catalogs import CATALOG
from tests.plan.trials import make_barrier_trial, make_trial, random_partition
from tests.support.random_cases import random_cases


@random_cases(10, 17, 300, first=3_000_000)
def test_what_is_remembered_is_what_is_found_anew(cases: range) -> None:
    for seed in cases:
        rng = Random(f"judging {seed}")
        trial = (make_trial if rng.random() < 0.7 else make_barrier_trial)(seed)
        wording = Wording.of("", trial.root)
        shared = PlanJudge(trial.root, wording)
        for _ in range(8):
            sketched = some_sketched(rng, trial.root)
            facts = [fact for fact in trial.facts if rng.random() < rng.choice((0.2, 0.8))]
            for barriers in (False, True):
                result = shared.of(sketched, facts, has_rank_barriers=barriers)
                judge = PlanJudge(trial.root, wording)
                anew = judge.of(sketched, facts, has_rank_barriers=barriers)
                assert result.nodes == anew.nodes
                assert result.states == anew.states, (seed, sketched, facts, barriers)


@random_cases(10, 17, 300, first=3_010_000, also="12")
def test_a_fact_more_never_makes_a_sketch_unsafe(cases: range) -> None:
    """`check_safety` refuses by all facts, and tells the smallest set of them by this."""
    grown = 0
    for seed in cases:
        rng = Random(f"more facts {seed}")
        trial = (make_trial if rng.random() < 0.7 else make_barrier_trial)(seed)
        judge = PlanJudge(trial.root, Wording.of("", trial.root))
        sketched = some_sketched(rng, trial.root, 0.6)
        few = [fact for fact in trial.facts if rng.random() < 0.4]
        for barriers in (False, True):
            less = judge.of(sketched, few, has_rank_barriers=barriers).root
            more = judge.of(sketched, trial.facts, has_rank_barriers=barriers).root
            grown += less.status is Status.UNSAFE and more.status is not Status.UNSAFE
            assert less.status is Status.UNSAFE or more.status is not Status.UNSAFE, seed
    assert grown


@random_cases(10, 17, 300, first=3_020_000)
def test_the_assumptions_told_are_those_of_a_judge_without_memory(cases: range) -> None:
    needed = 0
    for seed in cases:
        rng = Random(f"assumptions {seed}")
        trial = make_trial(seed)
        query, shared = Query("", trial.root), Judges()
        facts = [replace(fact, source=FactSource.STATISTICS) for fact in trial.facts]
        for _ in range(6):
            sketched = some_sketched(rng, trial.root)
            known = [fact for fact in facts if rng.random() < 0.9]
            rng.shuffle(known)
            result = check_safety(query, sketched, known, judges=shared)
            assert result == check_safety(query, sketched, known), (seed, sketched, known)
            needed += bool(result.assumptions)
    assert needed


def some_sketched(rng: Random, root: Plan, share: float = 0.5) -> dict[str, str]:
    scans = scans_of(root)
    return {s.access: random_partition(rng, s)[0] for s in scans if rng.random() < share}


def count_judged(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A list that grows by the state of each node that is judged from now on."""
    judged: list[object] = []
    plain = judging.state_of

    def counted(*arguments: object, **options: object) -> object:
        judged.append(plain(*arguments, **options))  # type: ignore[arg-type]
        return judged[-1]

    monkeypatch.setattr(judging, "state_of", counted)
    return judged


def test_candidates_share_what_does_not_concern_them(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = count_judged(monkeypatch)
    trial = next(t for t in map(make_trial, range(400)) if len(scans_of(t.root)) >= 4)
    query, judges = Query("", trial.root), Judges()
    size = len(judges.of(query).nodes)
    scans = scans_of(trial.root)
    for scan in scans:
        check_safety(query, {scan.access: "no such column"}, (), judges=judges)
    once = len(judged)
    assert once < size * len(scans)
    for scan in scans:
        check_safety(query, {scan.access: "no such column"}, (), judges=judges)
    assert len(judged) == once


def test_who_says_a_fact_and_what_nobody_reads_is_no_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged = count_judged(monkeypatch)
    root = parse_query("SELECT brand, SUM(price) s FROM sales GROUP BY brand", CATALOG).root
    judge = PlanJudge(root, Wording.of("", root))

    def result(column: str, source: FactSource, kind: FactKind = FactKind.NONNEGATIVE) -> Analysis:
        return judge.of({}, [Fact("sales", column, kind, source)])

    before = result("price", FactSource.STATISTICS)
    once = len(judged)
    assert result("PRICE", FactSource.CONSTRAINT).judged is before.judged
    assert result("price", FactSource.PREDICATE).judged is before.judged
    assert len(judged) == once > 0
    assert judge.known([Fact("stock", "price", FactKind.NOT_NULL, FactSource.STATISTICS)]) == 0
    other = result("price", FactSource.STATISTICS, FactKind.NONPOSITIVE)
    assert other.root.columns.signs != before.root.columns.signs


def test_a_condition_is_asked_once_for_candidates_of_one_access(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The keys of the rows differ by candidate; what is known of the columns does not."""
    asked = 0
    plain = transfer.learn

    def counted(*arguments: object) -> object:
        nonlocal asked
        asked += 1
        return plain(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(transfer, "learn", counted)
    root = parse_query("SELECT brand, price, sid FROM sales WHERE price > 3", CATALOG).root
    judge = PlanJudge(root, Wording.of("", root))
    (scan,) = scans_of(root)
    assert sum(isinstance(node, Select) for node in judge.nodes) == 1
    states = [judge.of({scan.access: name}, ()).root for name in ("brand", "price", "sid")]
    assert len({tuple(state.keys.values()) for state in states}) == 3
    assert asked == 1
