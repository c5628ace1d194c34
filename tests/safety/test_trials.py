"""Random plans, tables, partitions and sketches: an accepted sketch never changes the result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from random import Random

import pytest
from msgspec.structs import replace

from impctl.plan.nodes import Plan, Query, Select
from impctl.rules.optimize import apply_rules
from impctl.safety import judge as judging
from impctl.safety import transfer
from impctl.safety.direction import Status, Wording
from impctl.safety.facts import Fact, FactKind, FactSource
from impctl.safety.judge import Analysis, Judges, PlanJudge, check_safety
from impctl.sql.statement import parse_query
from tests.plan import random_fixpoints, trials
from tests.plan.catalogs import CATALOG
from tests.support.random_cases import more_seeds, random_cases
from tests.support.reference_plan import ReferenceFailure, annotate


def check(
    cases: Iterable[int],
    make: Callable[[int], trials.Trial],
    accepted: float,
    statuses: Collection[Status] = (),
) -> None:
    """Run the trials; more than this share of the original plans must be accepted."""
    unruled, ruled = trials.Tally(by_status={}), trials.Tally()
    for seed in cases:
        trials.run_trial(seed, unruled, make=make)
        trials.run_trial(seed, ruled, make=make, rewrite=apply_rules)
    assert min(unruled.accepted, ruled.accepted) > unruled.trials * accepted
    assert unruled.failed * 50 < max(unruled.trials, 50)
    assert {*statuses} <= {*(unruled.by_status or ())}


@random_cases(60, 126, 3000, first=7_000_000, also=more_seeds("safety of plans"))
def test_plans(cases: Iterable[int]) -> None:
    check(cases, trials.make_trial, 1 / 3, {Status.EXACT, Status.KEYED, Status.CONTAINED})


@random_cases(50, 86, 3000, first=7_000_000, also="124 273 389 565")
def test_plans_with_barriers(cases: Iterable[int]) -> None:
    check(cases, trials.make_barrier_trial, 1 / 2)


@random_cases(60, 136, 20_000, also="183 311 729 1301 1573 1882 2169 2412")
def test_plans_that_can_fail(cases: Iterable[int]) -> None:
    """A sketch causes only failures that `part_failure` predicts, and few are predicted."""
    tally, safe = trials.Tally(), 0
    for seed in cases:
        trials.run_trial(seed, tally, make=trials.make_failing_trial)
        trial = trials.make_failing_trial(seed)
        safe += trials.foretold_failure(trial.root, trial) is None
    assert tally.accepted > tally.trials / 2
    assert tally.failed_in_part > 0
    assert safe > tally.trials / 2


@pytest.mark.slow
@random_cases(60, 94, 4000, first=3_000_000, also=more_seeds("safety of fixpoints"))
def test_fixpoints(cases: Iterable[int]) -> None:
    check(cases, random_fixpoints.make_fixpoint_trial, 1 / 3, {Status.EXACT, Status.KEYED})


@random_cases(50, 96, 4000, first=5_000_000, also=more_seeds("safety of UNION ALL"))
def test_fixpoints_of_union_all(cases: Iterable[int]) -> None:
    check(cases, random_fixpoints.make_bag_trial, 1 / 3, {Status.EXACT, Status.KEYED})


@pytest.mark.slow
@random_cases(60, 98, 4000, first=7_000_000, also=more_seeds("safety for the answer alone"))
def test_fixpoints_sketched_for_the_result_alone(cases: Iterable[int]) -> None:
    """Many sketches must be smaller than those of all rows, or this would test nothing."""
    check(cases, random_fixpoints.make_answer_trial, 1 / 4, {Status.CONTAINED, Status.KEYED})
    smaller = compared = 0
    for trial in map(random_fixpoints.make_answer_trial, cases):
        verdict = check_safety(Query("", trial.root), trial.sketched, trial.facts)
        if not verdict.safe or not random_fixpoints.is_for_answer(trial.root):
            continue
        try:
            result = annotate(trial.root, trial.tables)
        except ReferenceFailure:
            continue
        sketches = partial(
            trials.accurate_sketches, result, trial.root, trial.tables, trial.partitions
        )
        compared += 1
        smaller += sketches(barriers=False) != sketches(barriers=True)
    assert smaller > compared // 4, (smaller, compared)


@random_cases(84, 292, 2500, first=7_000_000, also=more_seeds("touch"))
def test_adding_ranges_of_changed_rows_keeps_keyed_sketches_safe(
    cases: Iterable[int],
) -> None:
    tally = trials.Tally()
    for seed in cases:
        trials.check_touch(seed, tally)
    assert tally.compared > tally.trials // 20


@random_cases(10, 17, 300, first=3_000_000)
def test_shared_judge_agrees_with_a_new_one(cases: range) -> None:
    for seed in cases:
        rng = Random(f"judging {seed}")
        trial = (trials.make_trial if rng.random() < 0.7 else trials.make_barrier_trial)(seed)
        wording = Wording.of("", trial.root)
        shared = PlanJudge(trial.root, wording)
        for _ in range(8):
            sketched = random_sketched(rng, trial.root)
            facts = [fact for fact in trial.facts if rng.random() < rng.choice((0.2, 0.8))]
            for barriers in (False, True):
                result = shared.of(sketched, facts, has_rank_barriers=barriers)
                judge = PlanJudge(trial.root, wording)
                fresh = judge.of(sketched, facts, has_rank_barriers=barriers)
                assert result.nodes == fresh.nodes
                assert result.states == fresh.states, (seed, sketched, facts, barriers)


@random_cases(10, 17, 300, first=3_010_000, also="12")
def test_more_facts_never_make_a_sketch_unsafe(cases: range) -> None:
    """`check_safety` relies on this to find the smallest set of assumptions."""
    improved = 0
    for seed in cases:
        rng = Random(f"more facts {seed}")
        trial = (trials.make_trial if rng.random() < 0.7 else trials.make_barrier_trial)(seed)
        judge = PlanJudge(trial.root, Wording.of("", trial.root))
        sketched = random_sketched(rng, trial.root, 0.6)
        few = [fact for fact in trial.facts if rng.random() < 0.4]
        for barriers in (False, True):
            less = judge.of(sketched, few, has_rank_barriers=barriers).root
            more = judge.of(sketched, trial.facts, has_rank_barriers=barriers).root
            improved += less.status is Status.UNSAFE and more.status is not Status.UNSAFE
            assert less.status is Status.UNSAFE or more.status is not Status.UNSAFE, seed
    assert improved


@random_cases(10, 17, 300, first=3_020_000)
def test_assumptions_do_not_depend_on_shared_judges(cases: range) -> None:
    needed = 0
    for seed in cases:
        rng = Random(f"assumptions {seed}")
        trial = trials.make_trial(seed)
        query, shared = Query("", trial.root), Judges()
        facts = [replace(fact, source=FactSource.STATISTICS) for fact in trial.facts]
        for _ in range(6):
            sketched = random_sketched(rng, trial.root)
            known = [fact for fact in facts if rng.random() < 0.9]
            rng.shuffle(known)
            result = check_safety(query, sketched, known, judges=shared)
            assert result == check_safety(query, sketched, known), (seed, sketched, known)
            needed += bool(result.assumptions)
    assert needed


def random_sketched(rng: Random, root: Plan, share: float = 0.5) -> dict[str, str]:
    scans = root.scans
    return {s.access: trials.random_partition(rng, s)[0] for s in scans if rng.random() < share}


def count_judged(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A list to which the state of each judged node is appended."""
    judged: list[object] = []
    original = judging.state_of

    def counted(*arguments: object, **options: object) -> object:
        judged.append(original(*arguments, **options))  # type: ignore[arg-type]
        return judged[-1]

    monkeypatch.setattr(judging, "state_of", counted)
    return judged


def test_candidates_share_unaffected_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = count_judged(monkeypatch)
    trial = next(t for t in map(trials.make_trial, range(400)) if len(t.root.scans) >= 4)
    query, judges = Query("", trial.root), Judges()
    size = len(judges.of(query).nodes)
    scans = trial.root.scans
    for scan in scans:
        check_safety(query, {scan.access: "no such column"}, (), judges=judges)
    once = len(judged)
    assert once < size * len(scans)
    for scan in scans:
        check_safety(query, {scan.access: "no such column"}, (), judges=judges)
    assert len(judged) == once


def test_fact_sources_and_unread_tables_do_not_matter(
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


def test_conditions_are_analyzed_once_per_access(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys of rows differ between candidates, but facts about columns do not."""
    calls = 0
    original = transfer.learn

    def counted(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(transfer, "learn", counted)
    root = parse_query("SELECT brand, price, sid FROM sales WHERE price > 3", CATALOG).root
    judge = PlanJudge(root, Wording.of("", root))
    (scan,) = root.scans
    assert sum(isinstance(node, Select) for node in judge.nodes) == 1
    states = [judge.of({scan.access: name}, ()).root for name in ("brand", "price", "sid")]
    assert len({tuple(state.keys.values()) for state in states}) == 3
    assert calls == 1
