"""Fixpoints of UNION ALL judged: sketches hold all derivations, so rows keep their counts."""

from __future__ import annotations

from typing import Any

import pytest

from impctl.plan.nodes import Fixpoint, nodes_of
from impctl.safety.judge import check_safety
from tests.plan.network import BY_REGION, links, read
from tests.plan.trials import accurate_sketches, instances_of
from tests.support.reference_plan import annotate, bag, evaluate

COUNTED = (
    "WITH RECURSIVE r(n) AS (SELECT dst FROM links WHERE src = 1 UNION ALL "
    "SELECT l.dst FROM r JOIN links l ON r.n = l.src) SELECT n, COUNT(*) FROM r GROUP BY n"
)


def test_one_derivation_of_each_row_is_not_enough() -> None:
    """CE-R5: two ways lead to 4; a sketch that holds one of them counts one."""
    tables: Any = {"links": links((1, 2, "A"), (1, 3, "A"), (2, 4, "B"), (3, 4, "C"))}
    query = read(COUNTED)
    verdict = check_safety(query, BY_REGION, ())
    assert verdict.safe
    (position,) = verdict.barrier_positions
    assert isinstance(list(nodes_of(query.root))[position], Fixpoint)
    partitions: Any = dict.fromkeys(BY_REGION, ("region", ("A", "B", "C")))
    result = annotate(query.root, tables)
    sketches = accurate_sketches(result, query.root, tables, partitions)
    instances = instances_of(query.root, tables, partitions, sketches)
    assert set(evaluate(query.root, tables, instances)) == {(2, 1), (3, 1), (4, 2)}
    witness = dict.fromkeys(BY_REGION, range(3))
    assert bag(evaluate(query.root, tables, witness)) == bag([(2, 1), (3, 1), (4, 1)])


@pytest.mark.parametrize(
    "above",
    ["SELECT AVG(n) FROM r", "SELECT kind FROM nodes WHERE n NOT IN (SELECT n FROM r)"],
)
def test_anything_may_stand_above(above: str) -> None:
    sql = COUNTED.replace("SELECT n, COUNT(*) FROM r GROUP BY n", above)
    assert check_safety(read(sql), {"links#1": "region", "links#2": "cost"}, ()).safe


@pytest.mark.parametrize(("kind", "is_fixed"), [("UNION", True), ("UNION ALL", False)])
def test_rows_of_a_bag_are_not_told_apart_by_their_columns(kind: str, *, is_fixed: bool) -> None:
    """Two that are equal may be numbered either way, and a table joined tells them apart then."""
    sql = (
        f"WITH RECURSIVE r(n, l) AS (SELECT dst, 1 FROM links WHERE src = 1 {kind} "
        "SELECT l.dst, r.l + 1 FROM r JOIN links l ON r.n = l.src WHERE r.l < 3) "
        "SELECT m.kind FROM (SELECT n, ROW_NUMBER() OVER (ORDER BY n, l) AS k FROM r) q "
        "JOIN nodes m ON m.n = q.k"
    )
    verdict = check_safety(read(sql), {**BY_REGION, "nodes#1": "kind"}, ())
    assert verdict.safe is is_fixed
    assert is_fixed or "row_number" in verdict.reason
