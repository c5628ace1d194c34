"""Random plans with a fixpoint, as those without: sketches equal the reference's lineage.

Fixpoints of UNION ALL have levels that end them.

By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for 10,000 plans of each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from impctl.compile.compile import compile_plan
from impctl.compile.flows import BlockedError
from impctl.engine.fixpoint.fixpoint import Fixpoint as FixpointOperator
from impctl.plan.nodes import Query
from impctl.plan.recursion import keyed_rows
from impctl.rules.optimize import apply_rules
from impctl.safety.judge import check_safety
from impctl.types import AccessId, AttributeId
from tests.circuits.plan_cases import partitions_of
from tests.circuits.test_plans_against_reference import several_cases
from tests.plan.bag_plans import make_bag_trial
from tests.plan.fixpoint_plans import make_fixpoint_trial
from tests.plan.keyed_plans import make_keyed_bag_trial, make_keyed_trial
from tests.plan.trials import Trial
from tests.support.random_cases import random_cases


@pytest.mark.slow
@random_cases(0, 30, 1_000, also="5 12 16 28 59 62 70 78 87 106 108 109 128 132 138 142 143 146")
def test_sketches_of_random_plans_with_a_fixpoint(cases: Sequence[int]) -> None:
    with_a_fixpoint(cases, make_fixpoint_trial)


@pytest.mark.slow
@random_cases(0, 30, 1_000, also="2 14 17 18 31 34 64 72 76 90 94 114 127 130 146")
def test_sketches_of_random_plans_with_a_fixpoint_of_a_bag(cases: Sequence[int]) -> None:
    with_a_fixpoint(cases, make_bag_trial)


def with_a_fixpoint(cases: Sequence[int], make: Callable[[int], Trial]) -> None:
    seen = several_cases(cases, make)
    assert seen["exact"] > len(cases) // 3, seen
    for kind in ("Fixpoint", "inner", "Aggregate", "TopK", "union", "semi", "anti", "left"):
        assert seen[f"with {kind}"] > len(cases) // 50, seen


@pytest.mark.slow
@random_cases(0, 30, 1_000, also="0 1 4 25 39 45 52 56 59 61 64 103 127")
def test_sketches_of_random_plans_whose_fixpoints_are_keyed(cases: Sequence[int]) -> None:
    with_keys(cases, make_keyed_trial)


@random_cases(0, 30, 1_000, also="15 32 37 73 80 85 86 118")
def test_sketches_of_random_plans_whose_bag_fixpoints_are_keyed(cases: Sequence[int]) -> None:
    with_keys(cases, make_keyed_bag_trial)


def with_keys(cases: Sequence[int], make: Callable[[int], Trial]) -> None:
    """One sketch for all accesses below: the fragments of the keys of the rows that are used."""
    seen = several_cases(cases, make)
    assert seen["exact"] > len(cases) // 2, seen
    assert seen["exact"] - seen["with barrier"] > len(cases) // 2, seen
    for kind in ("Aggregate", "TopK", "semi", "anti", "tree", "groups read"):
        assert seen[f"with {kind}"] > len(cases) // 50, seen


def test_nothing_below_carries_fragments() -> None:
    """What is kept of base and step is kept without: a row's own value tells its fragment."""
    seen = 0
    for trial in map(make_keyed_trial, range(40)):
        if not _keys(trial):
            continue
        root = apply_rules(trial.root)
        verdict = check_safety(Query("", root), trial.sketched, trial.facts)
        compiled = compile_plan(
            root, partitions_of(trial), verdict.key_columns, barriers=verdict.barrier_positions
        )
        (own,) = (one for one in compiled.circuit if isinstance(one, FixpointOperator))
        assert own.form[2] == (0, 0)
        seen += 1
    assert seen > 10


def test_other_ranges_for_each_access_are_no_circuit() -> None:
    trial = next(
        one
        for one in map(make_keyed_trial, range(100))
        if any(len(keys) > 1 for keys in _keys(one).values())
    )
    root, partitions = apply_rules(trial.root), partitions_of(trial)
    verdict = check_safety(Query("", root), trial.sketched, trial.facts)
    (access, *_) = next(iter(_keys(trial).values()))
    own = partitions[access]
    partitions[access] = replace(own, boundaries=(*own.boundaries, 1000))
    with pytest.raises(BlockedError, match="with different ranges"):
        compile_plan(root, partitions, verdict.key_columns, barriers=verdict.barrier_positions)


def _keys(trial: Trial) -> Mapping[AttributeId, tuple[AccessId, ...]]:
    root = apply_rules(trial.root)
    verdict = check_safety(Query("", root), trial.sketched, trial.facts)
    return keyed_rows(root, verdict.key_columns) if verdict.safe else {}
