"""Rules over fixpoints of UNION ALL: fewer columns, filters that go in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from impctl.plan.nodes import (
    ComputedColumn,
    Project,
    Recursive,
    SetKind,
    SetOperation,
    attributes_of,
    nodes_of,
)
from impctl.plan.recursion import is_linear, reads_once, stable_columns
from impctl.rules.optimize import apply_rules, core_of
from impctl.rules.prune import prune_columns
from tests.plan.bag_plans import make_bag_trial
from tests.plan.catalogs import tree
from tests.plan.network import fixpoint_of, fixpoints_of, plan_of
from tests.support.random_cases import random_cases


@random_cases(20, 40, 2000)
def test_columns_go_from_all_parts_alike(cases: range) -> None:
    fewer = 0
    for seed in cases:
        root = make_bag_trial(seed).root
        (before,), (after,) = (fixpoints_of(plan) for plan in (root, prune_columns(root)))
        leaves = [node for node in nodes_of(after.step) if isinstance(node, Recursive)]
        widths = {len(attributes_of(part)) for part in (after, after.base, after.step, *leaves)}
        assert widths == {len(after.attributes)}, seed
        assert set(after.attributes) <= set(before.attributes)
        fewer += len(after.attributes) < len(before.attributes)
        assert reads_once(after)
    assert fewer > len(cases) // 20


WALKS = (
    "WITH RECURSIVE c(x, y, l, cost) AS (SELECT src, dst, 1, cost FROM links UNION ALL "
    "SELECT c.x, n.dst, c.l + 1, c.cost + n.cost FROM c JOIN links n ON c.y = n.src "
    "WHERE c.l < 3) "
)


@pytest.mark.parametrize(
    ("above", "kept"),
    [
        ("SELECT COUNT(*) FROM c", "y l"),
        ("SELECT 1 FROM c", "y l"),
        ("SELECT x FROM c", "x y l"),
        ("SELECT y FROM c", "y l"),
        ("SELECT SUM(cost) FROM c", "y l cost"),
        ("SELECT DISTINCT y, x FROM c", "x y l"),
        ("SELECT x, y, l, cost FROM c", "x y l cost"),
    ],
)
def test_columns_that_nobody_needs_go(above: str, kept: str) -> None:
    plan = prune_columns(plan_of(WALKS + above))
    (result,) = fixpoints_of(plan)
    assert [a.name for a in result.attributes] == kept.split()
    assert prune_columns(plan) == plan


def test_one_column_stays_where_none_is_needed() -> None:
    sql = (
        "WITH RECURSIVE r(a, b) AS (SELECT n, n FROM nodes UNION ALL SELECT r.a, r.b FROM r "
        "CROSS JOIN links) SELECT COUNT(*) FROM r"
    )
    (result,) = fixpoints_of(prune_columns(plan_of(sql)))
    assert [a.name for a in result.attributes] == ["a"]


def test_columns_that_stand_side_by_side_in_a_union_stay() -> None:
    """No SELECT stands between here: the columns match by their places."""
    fixpoint = fixpoint_of(
        "WITH RECURSIVE r(a, b) AS (SELECT n, n FROM nodes UNION ALL SELECT a, b FROM r) "
        "SELECT a, b FROM r"
    )
    leaves = [
        Recursive(
            fixpoint.id, tuple(replace(a, id=f"{side}.{a.name}") for a in fixpoint.attributes)
        )
        for side in "xy"
    ]
    made = tuple(replace(a, id=f"u.{a.name}") for a in fixpoint.attributes)
    bare = replace(fixpoint, step=SetOperation(SetKind.UNION, True, leaves[0], leaves[1], made))
    (first, _) = fixpoint.attributes
    root = Project(bare, (ComputedColumn(replace(first, id="out"), first.ref()),))
    (after,) = fixpoints_of(prune_columns(root))
    assert (after.step, after.attributes) == (bare.step, bare.attributes)


def test_columns_of_a_set_stay_where_those_of_a_bag_go() -> None:
    (result,) = fixpoints_of(
        prune_columns(plan_of(WALKS.replace("UNION ALL", "UNION") + "SELECT y FROM c"))
    )
    assert [a.name for a in result.attributes] == ["x", "y", "l", "cost"]


def test_a_filter_on_a_stable_column_moves_into_the_base() -> None:
    core = core_of(plan_of(WALKS + "SELECT y FROM c WHERE x = 1 AND y > 2"))
    (result,) = fixpoints_of(core)
    assert "select src = 1" in tree(result.base)
    assert "select y > 2" in tree(core).partition("fixpoint")[0]
    whole = fixpoint_of(WALKS + "SELECT y FROM c")
    names = {a.id: a.name for a in whole.attributes}
    assert {names[column] for column in stable_columns(whole)} == {"x"}
    assert is_linear(whole)
    assert reads_once(whole)


@pytest.mark.parametrize(
    ("step", "once"),
    [
        ("SELECT n + 1 FROM r", True),
        ("(SELECT n + 1 FROM r UNION ALL SELECT n + 2 FROM r)", True),
        ("(SELECT n + 1 FROM r UNION ALL SELECT n FROM nodes)", False),
        ("SELECT a.n FROM r a JOIN r b ON a.n = b.n", False),
        ("SELECT n + 1 FROM r WHERE n IN (SELECT src FROM links)", True),
    ],
)
def test_whether_each_row_is_made_of_one(step: str, once: bool) -> None:  # noqa: FBT001
    sql = f"WITH RECURSIVE r(n) AS (SELECT n FROM nodes UNION {step}) SELECT n FROM r"
    fixpoint = fixpoint_of(sql)
    assert reads_once(fixpoint) is once


def test_the_rules_leave_a_bag_a_bag() -> None:
    for text in ("", " MAX RECURSION LEVEL 9"):
        sql = WALKS.replace("cost)", f"cost){text}", 1) + "SELECT y FROM c WHERE x = 1"
        (result,) = fixpoints_of(apply_rules(plan_of(sql)))
        assert not result.is_set
        assert result.levels == (9 if text else None)
