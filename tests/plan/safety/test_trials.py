"""Random plans, tables, partitions and sketches: whatever is accepted must not change the answer.

IMPCTL_FUZZ multiplies the number of trials. The mutations at the end break one rule each and must
be found out, so that a passing run means something.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import chain, count
from typing import Any

import pytest

from impctl.aliases import AccessId, ColumnName
from impctl.plan.nodes import Query
from impctl.plan.rules.order import apply_rules
from impctl.plan.safety import combining, grouping, ordering, transfer
from impctl.plan.safety.facts import Fact
from impctl.plan.safety.relation import Relation
from impctl.plan.safety.status import Status
from impctl.plan.safety.verdict import Verdict, check_safety
from tests.plan.trials import Tally, Violation, check_touch, make_barrier_trial, run_trial
from tests.support.random_cases import random_cases

_FIRST_SEED = 7_000_000
_ENOUGH = 60_000
"""Trials within which a broken rule must show."""


@random_cases(84, 200, 3000, first=_FIRST_SEED)
def test_accepted_sketches_never_change_the_answer(cases: range) -> None:
    tally = Tally(by_status={})
    for seed in cases:
        run_trial(seed, tally)
    assert tally.accepted > tally.trials // 3
    assert tally.failed < tally.trials // 100
    assert set(tally.by_status or ()) == {Status.EXACT, Status.KEYED, Status.CONTAINED}


@random_cases(50, 120, 1500, first=_FIRST_SEED)
def test_accepted_sketches_are_right_after_the_plan_rules_too(cases: range) -> None:
    tally = Tally()
    for seed in cases:
        run_trial(seed, tally, rewrite=apply_rules)
    assert tally.accepted > tally.trials // 3


@random_cases(50, 120, 3000, first=_FIRST_SEED)
def test_accepted_sketches_with_barriers_never_change_the_answer(cases: range) -> None:
    tally = Tally()
    for seed in cases:
        run_trial(seed, tally, rewrite=apply_rules, make=make_barrier_trial)
    assert tally.accepted > tally.trials // 2


@random_cases(84, 200, 2500, first=_FIRST_SEED)
def test_touching_the_fragments_of_changed_rows_keeps_a_root_keyed_sketch_safe(
    cases: range,
) -> None:
    tally = Tally()
    for seed in cases:
        check_touch(seed, tally)
    assert tally.compared > tally.trials // 20


def _is_found_out(try_seed: Callable[[int, Tally], None], shown: int = _FIRST_SEED) -> bool:
    """Whether some trial shows that the rule is broken: `shown` is tried before all others."""
    tally = Tally()
    for seed in chain((shown,), count(_FIRST_SEED)):
        try:
            try_seed(seed, tally)
        except Violation:
            return True
        if tally.trials >= _ENOUGH:
            return False
    return False


def test_top_k_without_its_own_rows_is_found_out() -> None:
    assert _is_found_out(lambda seed, tally: run_trial(seed, tally, barriers=False))


def _touch_everything(
    query: Query, sketched: Mapping[AccessId, ColumnName], facts: Collection[Fact]
) -> Verdict:
    verdict = check_safety(query, sketched, facts)
    return replace(verdict, root_keyed=verdict.safe and len(sketched) == 1)


def test_touch_without_a_keyed_root_is_found_out() -> None:
    assert _is_found_out(lambda seed, tally: check_touch(seed, tally, check=_touch_everything))


def _accept(*arguments: Any) -> None:
    return None


def _at_most(*arguments: Any) -> tuple[Relation, str]:
    return Relation.AT_MOST, ""


_TRUE_UNION = combining._union
_TRUE_KEPT_SIDE = combining._kept_side
_TRUE_KEYS = grouping.grouped_keys


def _exact_union(left: Any, right: Any) -> Any:
    return replace(_TRUE_UNION(left, right), status=Status.EXACT)


def _free_outer_join(node: Any, kept: Any, other: Any, name: str, wording: Any) -> Any:
    return _TRUE_KEPT_SIDE(node, kept, replace(other, status=Status.EXACT), name, wording)


def _free_except(node: Any, left: Any, right: Any) -> Any:
    return replace(left, sketched=left.sketched | right.sketched)


def _keys_in_any_set(node: Any, child: Any) -> Any:
    return _TRUE_KEYS(replace(node, grouping_sets=None), child)


MUTATIONS: dict[str, tuple[tuple[Any, str, Any], ...]] = {
    "conditions are not checked": (
        (transfer, "find_objection", _accept),
        (combining, "find_objection", _accept),
    ),
    "ORDER BY is not checked": ((ordering, "order_objection", _accept),),
    "sums need no sign": ((grouping, "_of_sum", _at_most),),
    "a union is exact": ((combining, "_union", _exact_union),),
    "outer joins may hide partners": ((combining, "_kept_side", _free_outer_join),),
    "EXCEPT may hide its right side": ((combining, "_except", _free_except),),
    "a key in one grouping set is enough": ((grouping, "grouped_keys", _keys_in_any_set),),
}


SHOWN = {
    "sums need no sign": _FIRST_SEED + 3179,
    "EXCEPT may hide its right side": _FIRST_SEED + 1756,
    "a key in one grouping set is enough": _FIRST_SEED + 15_386,
}
"""Where rules that few trials depend on show; with other plans they are searched for as any."""


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_rule_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, attribute, broken in MUTATIONS[name]:
        monkeypatch.setattr(module, attribute, broken)

    def try_seed(seed: int, tally: Tally) -> None:
        # Only the answer counts here: a broken rule also upsets the minimal assumptions.
        try:
            run_trial(seed, tally)
        except Violation:
            raise
        except AssertionError:
            return

    assert _is_found_out(try_seed, SHOWN.get(name, _FIRST_SEED))
