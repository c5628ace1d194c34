"""Random templates, constants, tables and sketches: whatever may be reused must not lie.

IMPCTL_FUZZ multiplies the number of trials. The mutations at the end break one rule each and must
be found out, so that a passing run means something.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain, count
from typing import Any

import pytest

from impctl.expr.nodes import Expr, columns_of, conjuncts
from impctl.plan.nodes import Plan, Query, TopK
from impctl.plan.reuse import pairing
from impctl.plan.reuse import verdict as reuse
from impctl.plan.reuse.changed_columns import changed_columns
from impctl.plan.rules.order import apply_rules
from impctl.plan.safety.relation import Relation
from impctl.plan.safety.verdict import Verdict, check_safety
from tests.plan.reuse.reuse_trials import ReuseTally, run_reuse_trial
from tests.plan.trials import Violation
from tests.support.random_cases import random_cases

_FIRST_SEED = 9_000_000
_ENOUGH = 12_000
"""Trials within which a broken rule must show."""


@random_cases(167, 400, 2500, first=_FIRST_SEED)
def test_a_reused_sketch_never_changes_the_answer(cases: range) -> None:
    tally = ReuseTally()
    for seed in cases:
        run_reuse_trial(seed, tally)
    assert tally.accepted_changed > tally.trials // 20
    assert tally.failed < tally.trials // 100
    assert any("LIMIT asks for" in reason for reason in tally.refusals)


@random_cases(25, 60, 300, first=_FIRST_SEED)
def test_a_reused_sketch_is_right_after_the_plan_rules_too(cases: range) -> None:
    tally = ReuseTally()
    for seed in cases:
        run_reuse_trial(seed, tally, rewrite=apply_rules)
    assert tally.accepted_changed > tally.trials // 25


def _caught(
    monkeypatch: pytest.MonkeyPatch, target: object, name: str, broken: object, shown: int = 0
) -> None:
    """Some trial shows that the rule is broken: `shown` is tried before all others."""
    monkeypatch.setattr(target, name, broken)
    tally = ReuseTally()
    for seed in chain((shown,), count()):
        assert tally.trials <= _ENOUGH, f"{name} broken and not found in {tally.accepted_changed}"
        try:
            run_reuse_trial(seed, tally)
        except Violation:
            return


def _loose_top(asked: TopK, captured: TopK, child: Any) -> object:
    same = asked.count == captured.count
    return (frozenset() if same else None), dict(child.columns.relations)


def _equal(rule: Callable[..., Any]) -> Callable[..., Any]:
    def broken(*arguments: Any) -> Any:
        difference, relations = rule(*arguments)
        return difference, dict.fromkeys(relations, Relation.EQUAL)

    return broken


def _unchanged(rule: Callable[..., Any]) -> Callable[..., Any]:
    def broken(*arguments: Any) -> Any:
        _, relations = rule(*arguments)
        return frozenset(), relations

    return broken


def _told_by_columns(asked: Expr | None, captured: Expr | None) -> object:
    """A changed condition that reads no column counts as none."""
    difference = changed_columns(asked, captured)
    parts = () if asked is None else conjuncts(asked)
    return difference if all(map(columns_of, parts)) else frozenset()


MUTATIONS = {
    "a top-k takes any rows": ("_top", _loose_top, 3763),
    "an aggregate over fewer rows keeps its value": (
        "_aggregate",
        _equal(pairing._aggregate),
        4060,
    ),
    "a grouping forgets what differs": ("_aggregate", _unchanged(pairing._aggregate), 3763),
    "conditions need not imply": ("find_gap", lambda *_: None, 260),
    "a guard of constants makes no difference": ("changed_columns", _told_by_columns, 8818),
    "an outer or anti join may lose partners": ("_require_kept", lambda *_: None, 3857),
}
"""What is broken, how, and the trial that shows it; with other plans it is searched for."""


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_broken_rule_is_found_out(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, broken, shown = MUTATIONS[mutation]
    _caught(monkeypatch, pairing, name, broken, shown)


def test_safety_must_be_judged_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def always(*arguments: Any) -> object:
        return replace(check_safety(*arguments), safe=True)

    def of_core(verdict: Verdict, query: Query, core: Plan, sketched: Any) -> object:
        return always(replace(query, root=core), sketched, verdict.facts)

    monkeypatch.setattr(reuse, "of_core", of_core)
    _caught(monkeypatch, reuse, "check_safety", always)
