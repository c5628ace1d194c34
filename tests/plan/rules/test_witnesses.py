"""Sketches of witnesses: over them, and over wider ones, a query gives its answer.

IMPCTL_FUZZ multiplies the number of trials. The mutations break one condition of the proof each.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, count
from typing import Any

import pytest

from impctl.plan.nodes import Query, Witness, nodes_of
from impctl.plan.rules import witnesses
from impctl.plan.rules.order import apply_rules
from impctl.plan.safety.verdict import check_safety
from tests.plan.trials import (
    Tally,
    Trial,
    Violation,
    make_barrier_trial,
    make_trial,
    run_trial,
)
from tests.plan.witness_plans import kept_by_witnesses, make_witness_trial
from tests.support.random_cases import random_cases
from tests.support.reference_expr import ReferenceFailure
from tests.support.reference_plan import annotate

_FIRST_SEED = 9_000_000
_ENOUGH = 40_000
"""Trials within which a broken condition must show."""


def _tried(seed: int, tally: Tally, make: Callable[[int], Trial]) -> None:
    run_trial(seed, tally, rewrite=apply_rules, make=make, kept=kept_by_witnesses)


@pytest.mark.parametrize("make", [make_trial, make_witness_trial, make_barrier_trial])
@random_cases(25, 60, 500, first=_FIRST_SEED)
def test_a_query_gives_its_answer_over_witnesses(
    cases: range, make: Callable[[int], Trial]
) -> None:
    tally = Tally()
    for seed in cases:
        _tried(seed, tally, make)
    assert tally.accepted > tally.trials // 3


@random_cases(25, 60, 400, first=_FIRST_SEED)
def test_witnesses_are_part_of_the_lineage_and_often_less(cases: range) -> None:
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


def _is_found_out(shown: int) -> bool:
    """Whether some trial shows it: `shown` is tried before all others."""
    tally = Tally()
    for seed in chain((shown,), count(_FIRST_SEED)):
        try:
            _tried(seed, tally, make_witness_trial)
        except Violation:
            return True
        except AssertionError:
            continue
        if tally.trials >= _ENOUGH:
            return False
    return False


def _always(*arguments: Any) -> Any:
    class Everything:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    return Everything()


MUTATIONS: dict[str, tuple[str, Any]] = {
    "any function has a witness": (
        "_order_of",
        lambda call, true=witnesses._order_of: true(call) or (),
    ),
    "a value over part of a group may be a better one": ("_allowed", _always),
    "conditions on the partner's side come after it": (
        "_partners",
        lambda node, true=witnesses._partners: (
            None if (found := true(node)) is None else (found[0], ())
        ),
    ),
    "MIN goes by the greatest": (
        "_order_of",
        lambda call, true=witnesses._order_of: (
            None
            if (order := true(call)) is None
            else tuple(type(key)(key.expr, not key.descending, key.nulls_first) for key in order)
        ),
    ),
    "NULL decides before values": (
        "_order_of",
        lambda call, true=witnesses._order_of: (
            None
            if (order := true(call)) is None
            else tuple(type(key)(key.expr, key.descending, True) for key in order)
        ),
    ),
    "what a condition reads of a partner does not tell partners apart": (
        "_partners",
        lambda node, true=witnesses._partners: (
            None if (found := true(node)) is None else ((), found[1])
        ),
    ),
}


SHOWN = {
    "any function has a witness": _FIRST_SEED + 4282,
    "a value over part of a group may be a better one": _FIRST_SEED + 20_862,
    "conditions on the partner's side come after it": _FIRST_SEED + 3766,
}
"""Where a condition that few trials depend on shows; with other plans it is searched for."""


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_condition_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attribute, broken = MUTATIONS[name]
    monkeypatch.setattr(witnesses, attribute, broken)
    assert _is_found_out(SHOWN.get(name, _FIRST_SEED))
