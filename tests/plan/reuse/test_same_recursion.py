"""Sketches of one query for any other over an equal recursion: the answer is that of the tables.

Law: sketches are captured by the slow reference for the one query, by its core and its barriers,
and used for the other. IMPCTL_FUZZ multiplies the number of trials that `make check` and
`make test-all` run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from impctl.expr.nodes import Compare, CompareOp
from impctl.plan.nodes import (
    Fixpoint,
    Join,
    JoinKind,
    Plan,
    Query,
    attributes_of,
    nodes_of,
    scans_of,
)
from impctl.reuse.verdict import _made, _Renaming, check_reuse
from impctl.rules.optimize import apply_rules, core_of
from impctl.safety.judge import carried, check_safety
from tests.plan.bag_plans import BagMaker
from tests.plan.fixpoint_plans import FixpointMaker
from tests.plan.keyed_plans import KeyedMaker
from tests.plan.keyed_sketches import evened, without_keyed
from tests.plan.network import CLOSURE, REACHED, ruled
from tests.plan.reuse.reuse_trials import with_other_constants
from tests.plan.trials import (
    Trial,
    Violation,
    _widened,
    accurate_sketches,
    instances_of,
    make_trial,
    random_partitions,
)
from tests.support.random_cases import random_cases
from tests.support.reference_expr import ReferenceFailure
from tests.support.reference_plan import annotate, bag, evaluate

_MAKERS = (FixpointMaker, FixpointMaker, BagMaker, KeyedMaker)


def _pair(seed: int) -> tuple[Trial, Plan]:
    """A trial of the captured query, and another query, most often over an equal recursion."""
    rng = Random(f"same recursion {seed}")
    maker = rng.choice(_MAKERS)(rng)
    fixpoint = maker.fixpoint()
    captured, asked = maker.above(fixpoint), _renamed(maker.above(fixpoint), "a")
    if rng.random() < 0.2:
        other = with_other_constants(rng, fixpoint, narrower=rng.random() < 0.5)
        assert isinstance(other, Fixpoint)
        asked = _renamed(maker.above(other), "b")
    if rng.random() < 0.1:
        # Once more, as where a text names the entry twice.
        asked = _twice(rng, asked, _renamed(fixpoint, "c"))
    partitions = random_partitions(rng, captured, 0.8, alike=True)
    return replace(make_trial(seed), root=captured, partitions=partitions), asked


def _twice(rng: Random, plan: Plan, other: Plan) -> Plan:
    pairs = [(a, b) for a in attributes_of(plan) for b in attributes_of(other) if a.type == b.type]
    if not pairs:
        return plan
    a, b = rng.choice(pairs)
    kind = rng.choice((JoinKind.INNER, JoinKind.ANTI, JoinKind.LEFT))
    return Join(kind, plan, other, Compare(CompareOp.EQUAL, a.ref(), b.ref()))


def _renamed(plan: Plan, mark: str) -> Plan:
    """The same plan under identities of its own, those of accesses and fixpoints among them."""
    names = {made.id: f"{mark}.{made.id}" for node in nodes_of(plan) for made in _made(node)}
    accesses = {scan.access: f"{mark}.{scan.access}" for scan in scans_of(plan)}
    ids = {node.id: f"{mark}.{node.id}" for node in nodes_of(plan) if isinstance(node, Fixpoint)}
    return _Renaming(names, accesses, ids).plan(plan)


class _Tally:
    trials = allowed = others = compared = failed = 0


def _run(seed: int, tally: _Tally) -> None:
    trial, asked = _pair(seed)
    tally.trials += 1
    rng = Random(seed + 7)
    captured, asked = (Query("", apply_rules(plan)) for plan in (trial.root, asked))
    verdict = check_reuse(asked, captured, trial.sketched, trial.facts)
    if not verdict.allowed:
        return
    tally.allowed += 1
    tally.others += "same recursion" in verdict.reason
    kept = check_safety(captured, trial.sketched, trial.facts)
    core = Query("", core_of(captured.root))
    own = {scan.access for scan in scans_of(core.root)}
    partitions = {access: result for access, result in trial.partitions.items() if access in own}
    model = carried(kept, core, {access: column for access, (column, _) in partitions.items()})
    try:
        result = without_keyed(core.root, model, annotate(core.root, trial.tables))
        held: Any = accurate_sketches(result, core.root, trial.tables, partitions)
        for tried in (held, _widened(rng, held, partitions)):
            held = evened(core.root, model, tried)
            pairs = [(here, there) for here, there in verdict.accesses.items() if there in held]
            instances = instances_of(
                asked.root,
                trial.tables,
                {here: partitions[there] for here, there in pairs},
                {here: held[there] for here, there in pairs},
            )
            tally.compared += 1
            whole = bag(evaluate(asked.root, trial.tables))
            if bag(evaluate(asked.root, trial.tables, instances)) != whole:
                raise Violation(f"seed {seed}: {verdict.reason}")
    except ReferenceFailure:
        tally.failed += 1


@random_cases(
    60,
    230,
    6000,
    first=8_000_000,
    also="61 66 87 106 112 134 158 176 191 201 215 224 233 238 262 267 277 285 286 291 313 348 "
    "356 362 369 389 396 402 408 418 420 422 427 448 495 501 509 514 527 531 548 558 574 "
    "582 584",
)
def test_what_is_allowed_gives_the_asked_answer(cases: Iterable[int]) -> None:
    tally = _Tally()
    for seed in cases:
        _run(seed, tally)
    assert tally.others > tally.trials // 4
    assert tally.failed < tally.trials // 20


ABOVE = REACHED + "SELECT n FROM r WHERE n > 1"
LINKS = {"links#1": "src", "links#2": "src"}
BAG = (
    "WITH RECURSIVE r(n, k, m) AS (SELECT dst, 1, src FROM links UNION ALL "
    "SELECT l.dst, r.k + 1, r.m FROM r JOIN links l ON r.n = l.src WHERE r.k < 5) "
)


@pytest.mark.parametrize(
    ("captured", "asked", "reason"),
    [
        (ABOVE, REACHED + "SELECT COUNT(*) FROM r", None),
        (ABOVE, REACHED + "SELECT n FROM nodes WHERE n NOT IN (SELECT n FROM r)", None),
        (ABOVE, REACHED + "SELECT a.n FROM r a JOIN r b ON a.n = b.n + 1", None),
        (
            ABOVE,
            (REACHED + "SELECT COUNT(*) FROM r").replace("src = 1", "src = 2"),
            "the constants inside WITH RECURSIVE differ, which changes what it derives",
        ),
        (ABOVE, "SELECT src FROM links WHERE dst > 1", "more than the constants"),
        # A filter that moved in makes another recursion of the text's own.
        (
            CLOSURE + "SELECT y FROM c WHERE x = 1",
            CLOSURE + "SELECT COUNT(*) FROM c",
            "more than the constants",
        ),
        (
            CLOSURE + "SELECT y FROM c WHERE x = 1",
            CLOSURE + "SELECT MAX(y) FROM c WHERE x = 1 AND y > 2 HAVING MAX(y) > 3",
            None,
        ),
        # The same columns of a bag are needed, or others.
        (BAG + "SELECT n FROM r WHERE n > 2", BAG + "SELECT COUNT(*) FROM r WHERE n < 9", None),
        (BAG + "SELECT n FROM r", BAG + "SELECT m, COUNT(*) FROM r GROUP BY m", "more than"),
    ],
)
def test_what_must_be_equal(captured: str, asked: str, reason: str | None) -> None:
    verdict = check_reuse(ruled(asked), ruled(captured), LINKS, ())
    assert verdict.allowed is (reason is None), verdict.reason
    assert reason is None or reason in verdict.reason


def test_each_place_of_the_recursion_is_served() -> None:
    twice = REACHED + "SELECT a.n FROM r a JOIN r b ON a.n = b.n + 1"
    verdict = check_reuse(ruled(twice), ruled(ABOVE), LINKS, ())
    assert sorted(verdict.accesses.values()) == ["links#1", "links#1", "links#2", "links#2"]


def test_what_is_outside_is_read_whole() -> None:
    outside = REACHED + "SELECT l.dst FROM r JOIN links l ON l.src = r.n AND l.cost > {}"
    captured, asked = (ruled(outside.format(cost)) for cost in (5, 2))
    sketched = {scan.access: "src" for scan in scans_of(captured.root)}
    assert len(sketched) == 3
    verdict = check_reuse(asked, captured, sketched, ())
    assert verdict.allowed
    assert verdict.reason.endswith("the other tables of the sketch are read in full")
    fixpoint = next(node for node in nodes_of(asked.root) if isinstance(node, Fixpoint))
    assert set(verdict.accesses) == {scan.access for scan in scans_of(fixpoint)}
