"""What all sides of an OR ask for stands beside it, and nothing else changes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from random import Random

import pytest

from impctl.expr.nodes import And, Compare, CompareOp, Expr, Or
from impctl.plan.nodes import Join, Plan, Select, attributes_of, inputs_of, with_inputs
from impctl.rules.optimize import apply_rules
from impctl.rules.pushdown import common_parts
from tests.plan.catalogs import plan_of, tree
from tests.plan.random_exprs import ExprMaker
from tests.plan.trials import make_trial
from tests.support.random_cases import random_cases
from tests.support.reference_expr import ReferenceFailure, ReferenceLimit
from tests.support.reference_plan import bag, evaluate

WHERE = "SELECT sid FROM sales WHERE "
CASES = [
    ("ok AND price > 1 OR price > 1 AND sid > 2", "price > 1 AND (ok OR sid > 2)"),
    ("ok AND price > 1 OR sid > 2", "ok AND price > 1 OR sid > 2"),
    ("ok AND price > 1 OR ok OR ok AND sid > 2", "ok"),
    ("price = sid AND ok OR sid = price AND price > 3", "price = sid AND (ok OR price > 3)"),
    (
        "ok AND price > 1 OR price > 1 AND sid > 2 OR ok AND sid > 5",
        "ok AND price > 1 OR price > 1 AND sid > 2 OR ok AND sid > 5",
    ),
    # The division may be what the first part guards.
    (
        "sid > 0 AND price / sid > 1 OR price > 9 AND price / sid > 1",
        "sid > 0 AND price / sid > 1 OR price > 9 AND price / sid > 1",
    ),
]


@pytest.mark.parametrize(("written", "expected"), CASES)
def test_what_stands_beside(written: str, expected: str) -> None:
    assert tree(common_parts(plan_of(WHERE + written))) == tree(plan_of(WHERE + expected))


def test_an_equality_inside_an_or_joins() -> None:
    sql = (
        "SELECT sid FROM sales s, stock t WHERE (s.brand = t.brand AND price > 5 AND shelf > 1) "
        "OR (s.brand = t.brand AND price > 9 AND shelf > 0)"
    )
    text = tree(apply_rules(plan_of(sql)))
    assert "join inner on sales#1.brand = stock#1.brand AND" in text
    assert "join cross" not in text


@random_cases(30, 90, 1500, also="91 295 414 475 499 513 544 582")
def test_the_bag_of_rows_stays_where_a_part_is_common(cases: Collection[int]) -> None:
    changed = compared = 0
    for seed in cases:
        trial = make_trial(seed)
        before = _with_common_parts(trial.root, ExprMaker(Random(seed)))
        after = common_parts(before)
        changed += after != before
        rng = Random(seed)
        try:
            expected = bag(evaluate(before, trial.tables, None, rng.shuffle))
        except (ReferenceFailure, ReferenceLimit):
            continue
        compared += after != before
        # What did not fail must not start to fail, so nothing is caught here.
        result = bag(evaluate(after, trial.tables, None, Random(seed).shuffle))
        assert result == expected, seed
    assert compared > len(cases) // 5
    assert changed >= compared


def _with_common_parts(plan: Plan, maker: ExprMaker) -> Plan:
    """The plan with an OR of two or three sides in place of each condition, one part in each."""
    inputs = tuple(_with_common_parts(child, maker) for child in inputs_of(plan))
    plan = with_inputs(plan, inputs) if inputs else plan
    attributes = [attribute for child in inputs for attribute in attributes_of(child)]
    match plan:
        case Select():
            return replace(plan, predicate=_spread(plan.predicate, attributes, maker))
        case Join(condition=condition, null_aware=False) if condition is not None:
            return replace(plan, condition=_spread(condition, attributes, maker))
    return plan


def _spread(part: Expr, attributes: list, maker: ExprMaker) -> Expr:  # type: ignore[type-arg]
    sides = [
        And((part, maker.predicate(attributes, 1)))
        if maker.rng.random() < 0.5
        else And((maker.predicate(attributes, 1), _mirrored(part)))
        for _ in range(maker.rng.choice((2, 2, 3)))
    ]
    return Or(tuple(sides))


def _mirrored(part: Expr) -> Expr:
    if isinstance(part, Compare) and part.op is CompareOp.EQUAL:
        return replace(part, left=part.right, right=part.left)
    return part
