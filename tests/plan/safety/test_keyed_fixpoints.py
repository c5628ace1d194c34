"""Fixpoints that are keyed: one sketch of all accesses below never changes the answer.

Examples say which fixpoints are keyed, and why others have to be barriers. IMPCTL_FUZZ multiplies
the number of trials that `make check` and `make test-all` run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from impctl.plan.nodes import Fixpoint, Plan, Query, nodes_of
from impctl.rules.optimize import apply_rules, core_of
from impctl.safety import judge
from impctl.safety.direction import Status
from impctl.safety.judge import Verdict, carried, check_safety
from tests.plan.keyed_plans import make_keyed_bag_trial, make_keyed_trial
from tests.plan.keyed_sketches import evened, keyed_positions, without_keyed
from tests.plan.network import BY_COST, KEYED, links, read, ruled
from tests.plan.trials import Tally, Trial, accurate_sketches, check_keys, instances_of, run_trial
from tests.support.random_cases import random_cases
from tests.support.reference_expr import ReferenceFailure
from tests.support.reference_plan import annotate, evaluate


def check(cases: Iterable[int], make: Callable[[int], Trial]) -> None:
    """Run the trials; all rows of a group must lie in the fragment of its key."""
    plain, ruled = Tally(by_status={}), Tally()
    keyed = groups = 0
    for seed in cases:
        run_trial(seed, plain, make=make)
        run_trial(seed, ruled, make=make, rewrite=apply_rules)
        trial = make(seed)
        verdict = check_safety(Query("", trial.root), trial.sketched, trial.facts)
        if verdict.safe and keyed_positions(trial.root, verdict):
            keyed += 1
            with suppress(ReferenceFailure):
                groups += check_keys(trial.root, trial, verdict)
    assert min(plain.accepted, ruled.accepted) > plain.trials // 2
    assert keyed > plain.trials // 3
    assert groups > plain.trials
    assert {Status.EXACT, Status.KEYED, Status.CONTAINED} <= {*(plain.by_status or ())}


@pytest.mark.slow
@random_cases(
    67,
    159,
    4000,
    first=5_000_000,
    also="69 103 114 152 153 159 174 183 277 297 318 322 328 334 355 370 378 390 392 395 412 "
    "464 510 536 564 565 598",
)
def test_trials_of_sets(cases: Iterable[int]) -> None:
    check(cases, make_keyed_trial)


@pytest.mark.slow
@random_cases(
    67,
    159,
    4000,
    first=5_000_000,
    also="93 104 118 140 177 200 239 241 242 255 278 290 296 307 310 346 350 386 408 428 442 "
    "454 465 510 518 541 584 596",
)
def test_trials_of_bags(cases: Iterable[int]) -> None:
    check(cases, make_keyed_bag_trial)


@pytest.mark.parametrize(
    ("make", "seeds"), [(make_keyed_trial, (2, 13)), (make_keyed_bag_trial, (19, 29))]
)
def test_trials_whose_step_makes_another_key(
    make: Callable[[int], Trial], seeds: Sequence[int]
) -> None:
    tally = Tally()
    for seed in seeds:
        run_trial(5_000_000 + seed, tally, make=make)
    assert tally.accepted == len(seeds)


@pytest.mark.parametrize("make", [make_keyed_trial, make_keyed_bag_trial], ids=["set", "bag"])
@random_cases(25, 43, 2000, first=5_000_000)
def test_a_plan_and_its_core_have_the_same_fixpoints_keyed(
    cases: range, make: Callable[[int], Trial]
) -> None:
    """What is captured goes by the core, what is read by the plan that is run."""
    for seed in cases:
        trial = make(seed)
        planned = Query("", apply_rules(trial.root))
        verdict = check_safety(planned, trial.sketched, trial.facts)
        if not verdict.safe:
            continue
        core = core_of(trial.root)
        own = judge.Judges().of(Query("", core))
        sketched = {a: c for a, c in trial.sketched.items() if a in own.accesses}
        result = check_safety(
            Query("", core),
            sketched,
            verdict.facts,
            has_rank_barriers=verdict.has_rank_barriers,
            has_keyed_fixpoints=verdict.has_keyed_fixpoints,
        )
        if result.safe:
            assert _groups(core, result) == _groups(planned.root, verdict), seed


def _groups(root: Plan, verdict: Verdict) -> set[frozenset[str]]:
    return {frozenset(verdict.key_columns[at]) for at in keyed_positions(root, verdict)}


PAIRS = (
    "WITH RECURSIVE r(t, n) AS (SELECT cost, dst FROM links WHERE src = 1 UNION "
    "SELECT {} FROM r JOIN r o ON {}) "
)
BEST = (
    "WITH RECURSIVE r(t, n, v) AS (SELECT cost, dst, src FROM links WHERE src = 1 UNION "
    "SELECT r.t, l.dst, r.v + l.src FROM r JOIN links l ON r.n = l.src) "
)
LEVELS = (
    "WITH RECURSIVE r(t, n, k) AS (SELECT cost, dst, 1 FROM links WHERE src = 1 UNION ALL "
    "SELECT r.t, l.dst, k + 1 FROM r JOIN links l ON r.n = l.src AND r.t = l.cost WHERE k < 4) "
)
FEW = "SELECT t, COUNT(*) FROM r GROUP BY t HAVING COUNT(*) <= 1"


def _judged(sql: str, sketched: Mapping[str, str]) -> tuple[Query, Verdict]:
    query = ruled(sql)
    return query, check_safety(query, sketched, ())


@pytest.mark.parametrize(
    ("sql", "sketched"),
    [
        (KEYED + FEW, BY_COST),
        (KEYED + "SELECT t FROM r GROUP BY t HAVING AVG(n) > 3", BY_COST),
        (KEYED + "SELECT t FROM r WHERE n = 9", BY_COST),
        (KEYED + "SELECT t FROM r WHERE n = 9 ORDER BY t LIMIT 1", BY_COST),
        (KEYED + "SELECT t, n FROM r WHERE n NOT IN (SELECT n FROM nodes)", BY_COST),
        (KEYED + "SELECT t FROM (SELECT t, n, COUNT(*) OVER (PARTITION BY t) AS k FROM r) x "
         "WHERE k = 2", BY_COST),
        # A step over another table, of which there is no sketch, joins rows of all keys.
        (KEYED.replace(" AND r.t = l.cost", "") + FEW, {"links#1": "cost"}),
        (KEYED.replace("SELECT r.t, l.dst", "SELECT l.cost, l.dst") + FEW, BY_COST),
        # From two rows of one key.
        (PAIRS.format("r.t, o.n", "r.n < o.n AND r.t = o.t") + FEW, {"links#1": "cost"}),
        (PAIRS.format("o.t, r.n", "r.n < o.n AND r.t = o.t") + FEW, {"links#1": "cost"}),
        # The best rows of groups within keys.
        (BEST + "SELECT t, n, MIN(v) FROM r GROUP BY t, n HAVING MIN(v) < 4", {"links#1": "cost"}),
        # Each row as often as it is derived.
        (LEVELS + FEW, BY_COST),
        # Groups by the key in the step.
        (KEYED.replace("JOIN links l", "JOIN (SELECT cost, src, MAX(dst) AS dst FROM links "
                       "GROUP BY cost, src) l") + FEW, BY_COST),
    ],
)  # fmt: skip
def test_keyed_where_a_key_is_kept_and_something_above_leaves_keys_out(
    sql: str, sketched: Mapping[str, str]
) -> None:
    query, verdict = _judged(sql, sketched)
    assert verdict.safe, verdict.reason
    (position,) = keyed_positions(query.root, verdict)
    assert set(verdict.key_columns[position]) == {*sketched}
    assert not any(
        isinstance(node, Fixpoint)
        for at, node in enumerate(nodes_of(query.root))
        if at in verdict.barrier_positions
    )


@pytest.mark.parametrize(
    ("sql", "sketched"),
    [
        # Nothing above leaves a key out.
        (KEYED + "SELECT t, COUNT(*) FROM r GROUP BY t", BY_COST),
        (KEYED + "SELECT DISTINCT t FROM r UNION SELECT n FROM nodes", BY_COST),
        # Keys are not what groups are by.
        (KEYED + "SELECT n FROM r GROUP BY n HAVING COUNT(*) <= 1", BY_COST),
        (KEYED + "SELECT n FROM nodes WHERE n NOT IN (SELECT n FROM r)", BY_COST),
        # The base has rows of all keys, the step has not.
        (KEYED + FEW, {"links#2": "cost"}),
        # The key is not the column that is sketched, or has ranges of its own.
        (KEYED + FEW, {"links#1": "cost", "links#2": "region"}),
        (KEYED + FEW, dict.fromkeys(BY_COST, "region")),
        (KEYED.replace(" AND r.t = l.cost", "") + FEW, BY_COST),
        # From two rows of any two keys.
        (PAIRS.format("r.t, o.n", "r.n < o.n") + FEW, {"links#1": "cost"}),
        (PAIRS.format("o.t, r.n", "r.n < o.n") + FEW, {"links#1": "cost"}),
        # A column of another type, though equal to the one that is sketched.
        (KEYED.replace("cost, dst FROM links WHERE src = 1", "src, dst FROM links WHERE src = cost")
         + FEW, BY_COST),
        # The best rows of groups that have rows of any key.
        (BEST + "SELECT n, MIN(v) FROM r GROUP BY n HAVING MIN(v) < 4", {"links#1": "cost"}),
        # Two tables.
        (KEYED.replace("SELECT cost, dst FROM links WHERE src = 1", "SELECT t, n FROM seeds")
         .replace("r.t = l.cost", "r.t = l.src") + FEW, {"seeds#1": "t", "links#1": "src"}),
    ],
)  # fmt: skip
def test_a_barrier_elsewhere(sql: str, sketched: Mapping[str, str]) -> None:
    query, verdict = _judged(sql, sketched)
    assert verdict.safe, verdict.reason
    assert keyed_positions(query.root, verdict) == frozenset()
    assert any(
        isinstance(list(nodes_of(query.root))[p], Fixpoint) for p in verdict.barrier_positions
    )


CE_R8 = {"links": links((1, 2, "A", 1), (1, 2, "A", 2), (2, 3, "A", 2))}
"""Key 1 reaches one node, key 2 two: the answer is key 1 alone."""


@pytest.mark.parametrize(
    ("sketches", "answer"),
    [
        ({"links#1": {1}, "links#2": {1}}, {(1, 1)}),
        ({"links#1": {1, 2}, "links#2": {1, 2}}, {(1, 1)}),
        # Of one access only, which the rule at use never does.
        ({"links#1": {1, 2}, "links#2": {1}}, {(1, 1), (2, 1)}),
    ],
)
def test_one_sketch_of_all_accesses_gives_the_answer_and_others_do_not(
    sketches: Mapping[str, set[int]], answer: set[tuple[int, int]]
) -> None:
    root = read(KEYED + FEW).root
    partitions: Any = dict.fromkeys(BY_COST, ("cost", (1, 2)))
    assert set(evaluate(root, CE_R8)) == {(1, 1)}
    assert set(evaluate(root, CE_R8, instances_of(root, CE_R8, partitions, sketches))) == answer


def test_its_sketch_is_that_of_the_keys_of_the_answer() -> None:
    query, verdict = _judged(KEYED + FEW, BY_COST)
    result = without_keyed(query.root, verdict, annotate(query.root, CE_R8))
    partitions: Any = dict.fromkeys(BY_COST, ("cost", (1, 2)))
    sketches = accurate_sketches(result, query.root, CE_R8, partitions)
    assert sketches == {"links#1": {1}, "links#2": set()}
    assert evened(query.root, verdict, sketches) == {"links#1": {1}, "links#2": {1}}


def test_a_verdict_is_carried_with_its_choice() -> None:
    """A plan that leaves no key out any more is still kept as the one that was accepted."""
    query, verdict = _judged(KEYED + "SELECT t FROM r WHERE n = 9", BY_COST)
    above = Query("", next(node for node in nodes_of(query.root) if isinstance(node, Fixpoint)))
    assert keyed_positions(above.root, carried(verdict, above, BY_COST)) == {0}
    assert keyed_positions(above.root, check_safety(above, BY_COST, ())) == frozenset()
