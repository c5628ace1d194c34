"""Sketches of witnesses: over them, and over wider ones, a query gives its answer.

IMPCTL_FUZZ multiplies the number of trials that `make check` and `make test-all` run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from impctl.plan.nodes import Query, Witness, nodes_of
from impctl.rules.optimize import apply_rules
from impctl.safety.judge import check_safety
from tests.plan.trials import Tally, Trial, make_barrier_trial, make_trial, run_trial
from tests.plan.witness_plans import kept_by_witnesses, make_witness_trial
from tests.support.random_cases import random_cases
from tests.support.reference_expr import ReferenceFailure
from tests.support.reference_plan import annotate


def check(cases: Collection[int], make: Callable[[int], Trial]) -> None:
    tally = Tally()
    for seed in cases:
        run_trial(seed, tally, rewrite=apply_rules, make=make, kept=kept_by_witnesses)
    assert tally.accepted > tally.trials // 3


@random_cases(
    25,
    88,
    500,
    first=9_000_000,
    also="41 43 49 67 79 114 123 125 131 133 144 145 150 189 218 227 246 250 262 283 305 306 "
    "321 326 335 343 363 364 365 380 395 403 438 450 453 454 457 461 502 528 536 545 551 "
    "553 557 575 578 585",
)
def test_plans(cases: Collection[int]) -> None:
    check(cases, make_trial)


@random_cases(25, 88, 500, first=9_000_000, also="31 51 95 174 201 261 265 356 402 432 461 523")
def test_plans_with_barriers(cases: Collection[int]) -> None:
    check(cases, make_barrier_trial)


@random_cases(0, 40, 500, first=9_000_000, also="280")
def test_conditions_on_partners_that_can_fail(cases: Collection[int]) -> None:
    check(cases, partial(make_witness_trial, casts=True))


@random_cases(
    25,
    88,
    500,
    first=9_000_000,
    also="28 35 37 43 51 71 76 83 84 107 131 150 170 174 175 179 181 212 224 226 239 259 274 282 "
    "288 298 308 320 341 349 350 358 384 389 416 434 468 494 501 508 517 536 549 552 590",
)
def test_plans_that_one_row_decides(cases: Collection[int]) -> None:
    """Their witnesses are part of the lineage, and often less."""
    check(cases, make_witness_trial)
    fewer = placed = 0
    for seed in cases:
        trial = make_witness_trial(seed)
        root = apply_rules(trial.root)
        verdict = check_safety(Query("", root), trial.sketched, trial.facts)
        if not verdict.safe:
            continue
        kept = kept_by_witnesses(root, trial, verdict)
        if not any(isinstance(node, Witness) for node in nodes_of(kept)):
            continue
        try:
            whole, some = (annotate(plan, trial.tables).lineage for plan in (root, kept))
        except ReferenceFailure:
            continue
        placed += 1
        assert some <= whole, seed
        fewer += some < whole
    assert placed > len(cases) // 4
    assert fewer > placed // 4
