"""Only columns that are read stay, and the root keeps its own."""

from __future__ import annotations

import pytest

from impctl.plan.nodes import attributes_of
from impctl.plan.rules.prune_columns import prune_columns
from tests.plan.catalogs import plan_of, tree
from tests.plan.golden_pairs import pairs

GOLDEN = pairs("prune_columns")


@pytest.mark.parametrize(("sql", "expected"), GOLDEN, ids=[sql[:70] for sql, _ in GOLDEN])
def test_golden_pairs(sql: str, expected: str) -> None:
    plan = plan_of(sql)
    pruned = prune_columns(plan)
    assert tree(pruned) == expected
    assert attributes_of(pruned) == attributes_of(plan)
    assert prune_columns(pruned) == pruned
