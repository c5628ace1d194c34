"""Selections go down as far as they may, and no further."""

from __future__ import annotations

import pytest

from impctl.plan.nodes import attributes_of
from impctl.plan.rules.push_selections import push_selections
from tests.plan.catalogs import plan_of, tree
from tests.plan.golden_pairs import pairs

GOLDEN = pairs("push_selections")


@pytest.mark.parametrize(("sql", "expected"), GOLDEN, ids=[sql[:70] for sql, _ in GOLDEN])
def test_golden_pairs(sql: str, expected: str) -> None:
    plan = plan_of(sql)
    pushed = push_selections(plan)
    assert tree(pushed) == expected
    assert attributes_of(pushed) == attributes_of(plan)
    assert push_selections(pushed) == pushed


def test_a_merged_selection_keeps_its_place() -> None:
    sql = "SELECT sid FROM (SELECT * FROM sales WHERE price > 1) WHERE ok"
    pushed = push_selections(plan_of(sql))
    span = pushed.child.span  # type: ignore[union-attr]
    assert sql[span.start : span.end] == "price > 1) WHERE ok"
