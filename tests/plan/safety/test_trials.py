"""Random plans, tables, partitions and sketches: an accepted sketch never changes the answer.

Each trial judges its plan as it was read and after the plan rules. IMPCTL_FUZZ multiplies the
number of trials that `make check` and `make test-all` run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial

import pytest

from impctl.plan.nodes import Query
from impctl.rules.optimize import apply_rules
from impctl.safety.direction import Status
from impctl.safety.judge import check_safety
from tests.plan.answer_plans import is_for_answer, make_answer_trial
from tests.plan.bag_plans import make_bag_trial
from tests.plan.fixpoint_plans import make_fixpoint_trial
from tests.plan.trials import (
    Tally,
    Trial,
    accurate_sketches,
    check_touch,
    foretold_failure,
    make_barrier_trial,
    make_failing_trial,
    make_trial,
    run_trial,
)
from tests.support.random_cases import random_cases
from tests.support.reference_expr import ReferenceFailure
from tests.support.reference_plan import annotate


def check(
    cases: Iterable[int],
    make: Callable[[int], Trial],
    accepted: float,
    statuses: Collection[Status] = (),
) -> None:
    """Run the trials; at least this share of the plans as read must be accepted."""
    plain, ruled = Tally(by_status={}), Tally()
    for seed in cases:
        run_trial(seed, plain, make=make)
        run_trial(seed, ruled, make=make, rewrite=apply_rules)
    assert min(plain.accepted, ruled.accepted) > plain.trials * accepted
    assert plain.failed * 50 < max(plain.trials, 50)
    assert {*statuses} <= {*(plain.by_status or ())}


@random_cases(
    60,
    280,
    3000,
    first=7_000_000,
    also="74 116 123 138 153 157 169 183 186 192 208 217 233 258 270 280 305 330 395 412 417 "
    "473 477 501 510 512 535 557 565",
)
def test_plans(cases: Iterable[int]) -> None:
    check(cases, make_trial, 1 / 3, {Status.EXACT, Status.KEYED, Status.CONTAINED})


@random_cases(50, 175, 3000, first=7_000_000, also="124 273 389 565")
def test_plans_with_barriers(cases: Iterable[int]) -> None:
    check(cases, make_barrier_trial, 1 / 2)


@random_cases(60, 280, 20_000, also="183 311 729 1301 1573 1882 2169 2412")
def test_plans_that_can_fail(cases: Iterable[int]) -> None:
    """Through a sketch only what `part_failure` foretells fails, and it does not cry wolf."""
    tally, sure = Tally(), 0
    for seed in cases:
        run_trial(seed, tally, make=make_failing_trial)
        trial = make_failing_trial(seed)
        sure += foretold_failure(trial.root, trial) is None
    assert tally.accepted > tally.trials / 2
    assert tally.failed_in_part > 0
    assert sure > tally.trials / 2


@pytest.mark.slow
@random_cases(
    60,
    230,
    4000,
    first=3_000_000,
    also="76 83 89 101 113 126 152 158 161 166 167 188 203 212 240 293 300 306 318 327 328 339 "
    "343 361 362 386 395 432 433 434 453 469 479 492 494 507 513 551 555 573 582",
)
def test_fixpoints(cases: Iterable[int]) -> None:
    check(cases, make_fixpoint_trial, 1 / 3, {Status.EXACT, Status.KEYED})


@random_cases(
    50,
    225,
    4000,
    first=5_000_000,
    also="80 90 91 126 135 136 137 160 164 174 196 197 199 206 216 218 305 309 318 325 332 344 "
    "346 391 392 425 429 448 481 484 490 498 546 576",
)
def test_fixpoints_of_union_all(cases: Iterable[int]) -> None:
    check(cases, make_bag_trial, 1 / 3, {Status.EXACT, Status.KEYED})


@pytest.mark.slow
@random_cases(
    60,
    230,
    4000,
    first=7_000_000,
    also="61 68 75 91 111 129 139 165 177 214 226 229 235 239 269 278 287 288 323 324 353 366 "
    "411 429 432 442 473 502 532 535 539 551 554 559 575",
)
def test_fixpoints_sketched_for_the_answer_alone(cases: Iterable[int]) -> None:
    """Many of their sketches are smaller than those of all rows; else this would test nothing."""
    check(cases, make_answer_trial, 1 / 4, {Status.CONTAINED, Status.KEYED})
    smaller = looked = 0
    for trial in map(make_answer_trial, cases):
        verdict = check_safety(Query("", trial.root), trial.sketched, trial.facts)
        if not verdict.safe or not is_for_answer(trial.root):
            continue
        try:
            result = annotate(trial.root, trial.tables)
        except ReferenceFailure:
            continue
        sketches = partial(accurate_sketches, result, trial.root, trial.tables, trial.partitions)
        looked += 1
        smaller += sketches(barriers=False) != sketches(barriers=True)
    assert smaller > looked // 4, (smaller, looked)


@random_cases(
    84,
    292,
    2500,
    first=7_000_000,
    also="94 123 137 153 161 186 192 202 215 234 257 280 287 307 309 383 395 402 417 450 478 "
    "509 515 532 551 557 560",
)
def test_touching_the_fragments_of_changed_rows_keeps_a_root_keyed_sketch_safe(
    cases: Iterable[int],
) -> None:
    tally = Tally()
    for seed in cases:
        check_touch(seed, tally)
    assert tally.compared > tally.trials // 20
