"""Rules over fixpoints: which columns stay, which filters go in."""

from __future__ import annotations

import pytest

from impctl.plan.nodes import Recursive, attributes_of, nodes_of
from impctl.plan.properties import indispensable
from impctl.plan.recursion import approximate_columns, is_linear, stable_columns
from impctl.rules.optimize import apply_rules, core_of
from impctl.rules.prune import prune_columns
from impctl.rules.pushdown import push_selections, tied_columns
from tests.plan.catalogs import tree
from tests.plan.network import CLOSURE, REACHED, fixpoint_of, fixpoints_of, plan_of


def test_fewer_columns_would_change_the_rows() -> None:
    """What pruning keeps: of two columns the one that nobody reads decides on the other."""
    plan = plan_of(CLOSURE + "SELECT x FROM c")
    (result,) = fixpoints_of(prune_columns(plan))
    assert [a.name for a in result.attributes] == ["x", "y"]
    assert len(attributes_of(result.base)) == len(attributes_of(result.step)) == 2
    (leaf,) = [node for node in nodes_of(result) if isinstance(node, Recursive)]
    assert [a.name for a in leaf.attributes] == ["x", "y"]
    (core,) = fixpoints_of(core_of(plan))
    assert len(core.attributes) == 2
    assert prune_columns(core) == core


STABLE = [
    # (step of c(x, y), stable columns, whether linear)
    ("SELECT c.x, l.dst FROM c JOIN links l ON c.y = l.src", "x", True),
    ("SELECT l.src, c.y FROM links l JOIN c ON c.x = l.dst", "y", True),
    ("SELECT a.x, b.y FROM c a JOIN c b ON a.y = b.x", "", False),
    ("SELECT a.x, b.y FROM c a JOIN c b ON a.x = b.x", "x", False),
    ("SELECT b.x, a.x FROM c a JOIN c b ON a.x = b.x", "x", False),
    ("SELECT y, x FROM c", "", True),
    ("SELECT x, y FROM c WHERE x > 3", "x y", True),
    ("SELECT l.src, l.dst FROM c JOIN links l ON c.x = l.src", "x", True),
    ("SELECT l.src, l.dst FROM c LEFT JOIN links l ON c.x = l.src", "", True),
    ("SELECT c.x, l.dst FROM c LEFT JOIN links l ON c.x = l.src", "x", True),
    ("SELECT x + 0, y FROM c", "y", True),
    ("(SELECT x, y + 1 FROM c UNION ALL SELECT x + 1, y FROM c)", "", True),
    ("(SELECT x, y + 1 FROM c UNION ALL SELECT x, y + 2 FROM c)", "x", True),
    # Rows that no row of the fixpoint is needed for have values of their own.
    ("(SELECT x, y FROM c UNION ALL SELECT src, dst FROM links)", "", True),
    ("(SELECT x, y FROM c UNION ALL SELECT a.x, b.y FROM c a JOIN c b ON a.y = b.x)", "", False),
    ("SELECT src, dst FROM links WHERE src IN (SELECT x FROM c)", "x", True),
]


@pytest.mark.parametrize(("step", "stable", "linear"), STABLE, ids=[case[0] for case in STABLE])
def test_stable_columns_are_those_all_rows_of_a_derivation_share(
    step: str, stable: str, linear: bool
) -> None:
    fixpoint = fixpoint_of(
        f"WITH RECURSIVE c(x, y) AS (SELECT src, dst FROM links UNION {step}) SELECT * FROM c"
    )
    names = {attribute.id: attribute.name for attribute in fixpoint.attributes}
    assert sorted(names[one] for one in stable_columns(fixpoint)) == stable.split()
    assert is_linear(fixpoint) is linear


def test_values_that_only_count_as_equal_are_not_the_same() -> None:
    """0.0 and -0.0 join, and a filter may tell them apart."""
    fixpoint = fixpoint_of(
        "WITH RECURSIVE c(w) AS (SELECT weight FROM links UNION "
        "SELECT l.weight FROM c JOIN links l ON c.w = l.weight) SELECT w FROM c"
    )
    assert stable_columns(fixpoint) == frozenset()


def test_a_filter_that_tells_zeros_apart_stays() -> None:
    """Of 0.0 and -0.0 a set has one."""
    sql = (
        "WITH RECURSIVE c(w, n) AS (SELECT weight, src FROM links UNION "
        "SELECT c.w, l.dst FROM c JOIN links l ON c.n = l.src) SELECT w FROM c WHERE {}"
    )
    for condition, goes in (("w = 0.0D", True), ("CAST(w AS STRING) = '-0.0'", False)):
        (result,) = fixpoints_of(push_selections(plan_of(sql.format(condition))))
        assert ("select" in tree(result)) is goes


@pytest.mark.parametrize(("parts", "stable"), [(8, {"x"}), (9, set())])
def test_of_steps_with_too_many_ways_nothing_is_said(parts: int, stable: set[str]) -> None:
    """Nine parts of one side with nine of the other are more than 64 ways."""
    side = " UNION ALL ".join(f"SELECT x, y + {number} AS y FROM c" for number in range(parts))
    fixpoint = fixpoint_of(
        "WITH RECURSIVE c(x, y) AS (SELECT src, dst FROM links UNION "
        f"SELECT a.x, b.y FROM ({side}) a JOIN ({side}) b ON a.x = b.x) SELECT * FROM c"
    )
    names = {attribute.id: attribute.name for attribute in fixpoint.attributes}
    assert {names[one] for one in stable_columns(fixpoint)} == stable
    assert not is_linear(fixpoint)


def test_a_filter_on_a_stable_column_goes_into_the_base() -> None:
    plan = push_selections(plan_of(CLOSURE + "SELECT y FROM c WHERE x = 1 AND y > 3"))
    assert tree(plan).splitlines()[:5] == [
        "project y",
        "  select y > 3",
        "    fixpoint c, each row once: x, y",
        "      project src, dst",
        "        select src = 1",
    ]
    assert push_selections(plan) == plan


@pytest.mark.parametrize(
    "condition", ["y = 1", "x = y", "x + y > 3", "1 = 0", "x > 0 OR y > 0", "x = rand()"]
)
def test_other_filters_stay(condition: str) -> None:
    (result,) = fixpoints_of(
        push_selections(plan_of(f"{CLOSURE}SELECT 1 FROM c WHERE {condition}"))
    )
    assert "select" not in tree(result)


def test_no_access_below_a_fixpoint_is_indispensable() -> None:
    """A step may have rows of its own."""
    assert indispensable(plan_of(REACHED + "SELECT n FROM r")) == frozenset()


def test_a_column_of_a_fixpoint_is_tied_to_no_table() -> None:
    plan = apply_rules(plan_of(REACHED + "SELECT 1 FROM r JOIN nodes m ON r.n = m.n"))
    assert {tied.column.access for tied in tied_columns(plan)} == set()


def test_sums_of_doubles_are_followed_through_a_plan() -> None:
    plan = plan_of(
        "SELECT s + 1, src, m FROM (SELECT src, SUM(weight) s, MAX(weight) m FROM links "
        "GROUP BY src) UNION ALL SELECT weight, src, weight FROM links"
    )
    first, second, third = (attribute.id for attribute in attributes_of(plan))
    assert approximate_columns(plan) == {first}
    assert second != third
