"""All rules together: the same bag of rows on random plans and data, the same root."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from random import Random

import pytest

from impctl.plan.nodes import Plan, Select, TopK, Window, attributes_of, nodes_of
from impctl.rules.normalize import best_fixpoints, split_averages
from impctl.rules.optimize import RULES, apply_rules
from impctl.rules.prune import prune_columns
from impctl.rules.pushdown import common_parts, push_selections
from tests.plan.bag_plans import make_bag_trial
from tests.plan.catalogs import plan_of, tree
from tests.plan.fixpoint_plans import make_fixpoint_trial
from tests.plan.golden_pairs import pairs
from tests.plan.trials import Trial, make_trial
from tests.support.random_cases import random_cases
from tests.support.reference_expr import ReferenceFailure, ReferenceLimit
from tests.support.reference_plan import Tables, bag, evaluate

OFTEN = [rule for rule in RULES if rule not in (best_fixpoints, common_parts)]
"""Rules that change many a random plan; the others' own tests make plans for them."""

RECURSIVE = (push_selections, prune_columns, apply_rules)
"""Rules that change many a plan with a fixpoint."""

Answer = frozenset[tuple[tuple[object, ...], int]]


def answers(plan: Plan, tables: Tables, rng: Random, runs: int) -> set[Answer]:
    """The bags that several orders of tied rows lead to."""
    return {frozenset(bag(evaluate(plan, tables, None, rng.shuffle)).items()) for _ in range(runs)}


def is_open(plan: Plan) -> bool:
    """Whether SQL may leave the answer to chance (ties)."""
    return any(isinstance(node, TopK | Window) for node in nodes_of(plan))


def check(
    cases: Collection[int],
    make: Callable[[int], Trial],
    rules: Sequence[Callable[[Plan], Plan]],
    least: float,
    *,
    has_open: bool = False,
) -> None:
    """Each rule must keep the answers, and change at least this share of the plans.

    Where ties leave an answer open, plans are tried in several orders of tied rows, or not at all.
    """
    compared: Counter[str] = Counter()
    for seed in cases:
        trial, rng = make(seed), Random(seed)
        changed = {rule.__name__: rule(trial.root) for rule in rules}
        changed = {name: after for name, after in changed.items() if after != trial.root}
        for after in changed.values():
            assert attributes_of(after) == attributes_of(trial.root), seed
        if not changed or (is_open(trial.root) and not has_open):
            continue
        try:
            before = answers(trial.root, trial.tables, rng, 12 if is_open(trial.root) else 1)
        except (ReferenceFailure, ReferenceLimit):
            continue
        if len(before) > 1:
            continue
        compared.update([*changed])
        for name, after in changed.items():
            # What did not fail must not start to fail, so nothing is caught here.
            assert answers(after, trial.tables, rng, 1) == before, (seed, name)
    assert all(compared[rule.__name__] > len(cases) * least for rule in rules), compared


@random_cases(
    25,
    88,
    600,
    also="28 29 77 91 105 111 160 227 233 256 283 413 421 475 499 503 514 544",
)
def test_the_bag_of_rows_stays(cases: Collection[int]) -> None:
    check(cases, make_trial, [*OFTEN, apply_rules], 1 / 40, has_open=True)


@random_cases(
    50,
    175,
    3000,
    first=4_000_000,
    also="51 64 82 85 159 180 195 209 249 256 307 324 406 436 478 488",
)
def test_the_rows_of_fixpoints_stay(cases: Collection[int]) -> None:
    check(cases, make_fixpoint_trial, RECURSIVE, 1 / 10)


@random_cases(
    50,
    175,
    3000,
    first=5_000_000,
    also="75 80 117 132 164 197 216 230 318 391 392 425 484 530 546 585 586",
)
def test_the_bag_of_rows_of_union_all_stays(cases: Collection[int]) -> None:
    check(cases, make_bag_trial, RECURSIVE, 1 / 10)


GOLDEN = [
    (rule, sql, expected)
    for rule in (prune_columns, push_selections, split_averages)
    for sql, expected in pairs(rule.__name__)
]


@pytest.mark.parametrize(("rule", "sql", "expected"), GOLDEN)
def test_golden_pairs(rule: Callable[[Plan], Plan], sql: str, expected: str) -> None:
    plan = plan_of(sql)
    after = rule(plan)
    assert tree(after) == expected
    assert attributes_of(after) == attributes_of(plan)
    assert rule(after) == after


def test_a_merged_selection_keeps_its_place() -> None:
    sql = "SELECT sid FROM (SELECT * FROM sales WHERE price > 1) WHERE ok"
    pushed = push_selections(plan_of(sql))
    span = pushed.child.span  # type: ignore[union-attr]
    assert sql[span.start : span.end] == "price > 1) WHERE ok"


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
        # Constants are as Spark rounds them.
        ("r <= 2.99", 2, True),
        ("r <= 2.99999999F", 3, True),
        ("r <= CAST(2.99999999999999999999 AS DOUBLE)", 3, True),
        ("r <= CAST(2.5 AS DOUBLE)", 2, True),
        ("r <= CAST(2 AS FLOAT)", 2, True),
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
