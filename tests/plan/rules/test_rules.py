"""All rules together: the same bag of rows on random plans and data, the same root."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from impctl.plan.nodes import Plan, Select, TopK, Window, attributes_of, nodes_of
from impctl.plan.rules.best_fixpoints import best_fixpoints
from impctl.plan.rules.common_parts import common_parts
from impctl.plan.rules.order import RULES, apply_rules
from tests.plan.catalogs import plan_of, tree
from tests.plan.golden_pairs import pairs
from tests.plan.trials import make_trial
from tests.support.random_cases import random_cases
from tests.support.reference_expr import ReferenceFailure, ReferenceLimit
from tests.support.reference_plan import Tables, bag, evaluate

OFTEN = [rule for rule in RULES if rule not in (best_fixpoints, common_parts)]
"""Rules that change many a random plan; the others' own tests make plans for them."""

Answer = frozenset[tuple[tuple[object, ...], int]]


def answers(plan: Plan, tables: Tables, rng: Random, runs: int) -> set[Answer]:
    """The bags that several orders of tied rows lead to."""
    return {frozenset(bag(evaluate(plan, tables, None, rng.shuffle)).items()) for _ in range(runs)}


def is_open(plan: Plan) -> bool:
    """Whether SQL may leave the answer to chance (ties)."""
    return any(isinstance(node, TopK | Window) for node in nodes_of(plan))


@random_cases(25, 60, 600)
@pytest.mark.parametrize("rule", [*OFTEN, apply_rules], ids=lambda rule: rule.__name__)
def test_the_bag_of_rows_stays(rule: Callable[[Plan], Plan], cases: range) -> None:
    changed = compared = 0
    for seed in cases:
        trial = make_trial(seed)
        after = rule(trial.root)
        assert attributes_of(after) == attributes_of(trial.root), seed
        if after == trial.root:
            continue
        changed += 1
        rng = Random(seed)
        try:
            before = answers(trial.root, trial.tables, rng, 12 if is_open(trial.root) else 1)
        except (ReferenceFailure, ReferenceLimit):
            continue
        if len(before) > 1:
            continue
        compared += 1
        # What did not fail must not start to fail, so nothing is caught here.
        assert answers(after, trial.tables, rng, 1) == before, seed
    assert compared > len(cases) // 40
    assert changed >= compared


def test_apply_rules_reaches_a_fixpoint() -> None:
    for sql, _ in pairs("parse"):
        plan = apply_rules(plan_of(sql))
        assert apply_rules(plan) == plan, sql
        assert all(rule(plan) == plan for rule in RULES), sql


def test_the_rules_together() -> None:
    sql = (
        "SELECT s.brand, avg(price) a FROM sales s, stock t WHERE s.brand = t.brand AND shelf > 1 "
        "GROUP BY s.brand HAVING avg(price) > 10 AND s.brand <> 'x'"
    )
    assert tree(apply_rules(plan_of(sql))) == (
        "project brand, mean(sum of a, count of a) AS a\n"
        "  select mean(sum of a, count of a) > 10\n"
        "    aggregate by brand: sum(CAST(price AS double)) AS sum of a, "
        "count(price) AS count of a\n"
        "      join inner on sales#1.brand = stock#1.brand\n"
        "        select brand <> 'x'\n"
        "          scan sales#1: brand, price\n"
        "        select shelf > 1\n"
        "          scan stock#1: brand, shelf"
    )


@pytest.mark.parametrize(
    ("limit", "count"),
    [
        ("2.99", 2),
        ("2.99999999F", 3),
        ("CAST(2.99999999999999999999 AS DOUBLE)", 3),
        ("CAST(2.5 AS DOUBLE)", 2),
        ("CAST(2 AS FLOAT)", 2),
    ],
)
def test_a_rank_is_bounded_by_the_constant_as_spark_rounds_it(limit: str, count: int) -> None:
    plan = plan_of(
        "SELECT sid FROM (SELECT sid, RANK() OVER (PARTITION BY sid ORDER BY price) AS r"
        f" FROM sales) WHERE r <= {limit}"
    )
    (first,) = (node for node in nodes_of(apply_rules(plan)) if isinstance(node, TopK))
    assert first.count == count


@pytest.mark.parametrize(
    ("condition", "count", "is_all"),
    [
        ("r < 3", 2, True),
        ("r < 2.5", 2, True),
        ("3 > r", 2, True),
        ("2.5 >= r", 2, True),
        ("r = 1", 1, True),
        ("r = 2", 2, False),
        ("r = 2.5", 0, True),
        ("r <= -1", 0, True),
    ],
)
def test_a_rank_is_bounded_by_any_comparison(condition: str, count: int, is_all: bool) -> None:
    """`r = 2` leaves out rows among the first two, so its filter stays."""
    plan = apply_rules(
        plan_of(
            "SELECT sid FROM (SELECT sid, RANK() OVER (PARTITION BY sid ORDER BY price) AS r"
            f" FROM sales) WHERE {condition}"
        )
    )
    (first,) = (node for node in nodes_of(plan) if isinstance(node, TopK))
    assert first.count == count
    assert is_all is not any(isinstance(node, Select) for node in nodes_of(plan))
