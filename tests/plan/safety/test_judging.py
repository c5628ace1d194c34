"""A judge that remembers finds what one without memory finds, for any sketches and facts after
any others; and what it did once it does not do again."""

from __future__ import annotations

from random import Random

import pytest

from impctl.plan.nodes import Query, scans_of
from impctl.plan.safety import judging
from impctl.plan.safety.judging import PlanJudge
from impctl.plan.safety.verdict import Judges, check_safety
from impctl.plan.safety.wording import Wording
from tests.plan.trials import make_barrier_trial, make_trial, random_partition
from tests.support.random_cases import few_then_rest


@few_then_rest(150, 3000, first=3_000_000)
def test_what_is_remembered_is_what_is_found_anew(cases: range) -> None:
    for seed in cases:
        rng = Random(f"judging {seed}")
        trial = (make_trial if rng.random() < 0.7 else make_barrier_trial)(seed)
        wording = Wording.of("", trial.root)
        shared = PlanJudge(trial.root, wording)
        for _ in range(8):
            sketched = {
                scan.access: random_partition(rng, scan)[0]
                for scan in scans_of(trial.root)
                if rng.random() < 0.5
            }
            facts = [fact for fact in trial.facts if rng.random() < rng.choice((0.2, 0.8))]
            for barriers in (False, True):
                found = shared.of(sketched, facts, has_rank_barriers=barriers)
                judge = PlanJudge(trial.root, wording)
                anew = judge.of(sketched, facts, has_rank_barriers=barriers)
                assert found.nodes == anew.nodes
                assert found.states == anew.states, (seed, sketched, facts, barriers)


def test_candidates_share_what_does_not_concern_them(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = 0
    plain = judging.state_of

    def counted(*arguments: object, **options: object) -> object:
        nonlocal judged
        judged += 1
        return plain(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(judging, "state_of", counted)
    trial = next(t for t in map(make_trial, range(400)) if len(scans_of(t.root)) >= 4)
    query, judges = Query("", trial.root), Judges()
    size = len(judges.of(query).nodes)
    scans = scans_of(trial.root)
    for scan in scans:
        check_safety(query, {scan.access: "no such column"}, (), judges=judges)
    once = judged
    assert once < size * len(scans)
    for scan in scans:
        check_safety(query, {scan.access: "no such column"}, (), judges=judges)
    assert judged == once
