"""QUALIFY above groups is a filter on what they and their windows give."""

from __future__ import annotations

import pytest

from impctl.plan.nodes import Aggregate, Select, Window, nodes_of
from impctl.rules.optimize import apply_rules
from tests.plan.catalogs import plan_of

SAME = {
    "alias of a window": (
        "SELECT brand, rank() OVER (ORDER BY sum(price)) AS r FROM sales GROUP BY brand"
        " QUALIFY r <= 2",
        "SELECT brand, r FROM (SELECT brand, rank() OVER (ORDER BY sum(price)) AS r FROM sales"
        " GROUP BY brand) q WHERE r <= 2",
    ),
    "column that is grouped by": (
        "SELECT brand, count(*) AS n, rank() OVER (ORDER BY brand) AS r FROM sales GROUP BY brand"
        " QUALIFY r > n AND sales.brand > 'a'",
        "SELECT * FROM (SELECT brand, count(*) AS n, rank() OVER (ORDER BY brand) AS r FROM sales"
        " GROUP BY brand) q WHERE r > n AND brand > 'a'",
    ),
    "above HAVING": (
        "SELECT brand, sum(price) AS s, rank() OVER (ORDER BY brand) AS r FROM sales"
        " GROUP BY brand HAVING sum(price) > 9 QUALIFY r = 2 AND s < 99",
        "SELECT * FROM (SELECT brand, sum(price) AS s, rank() OVER (ORDER BY brand) AS r"
        " FROM sales GROUP BY brand HAVING sum(price) > 9) q WHERE r = 2 AND s < 99",
    ),
}


@pytest.mark.parametrize(("qualified", "around"), SAME.values(), ids=SAME)
def test_it_is_a_filter_around_the_query(qualified: str, around: str) -> None:
    result, expected = (
        [type(node) for node in nodes_of(apply_rules(plan_of(sql)))] for sql in (qualified, around)
    )
    assert result == expected


def test_a_window_may_stand_in_it_over_an_alias() -> None:
    plan = plan_of(
        "SELECT brand, sum(price) AS s FROM sales GROUP BY brand HAVING count(*) > 1"
        " QUALIFY rank() OVER (PARTITION BY brand ORDER BY s) = 1"
    )
    nodes = list(nodes_of(plan))
    (at,) = (place for place, node in enumerate(nodes) if isinstance(node, Window))
    above, window, below, group = nodes[at - 1 : at + 3]
    assert isinstance(above, Select)
    assert isinstance(window, Window)
    assert isinstance(below, Select)
    assert isinstance(group, Aggregate)
    names = {output.attribute.id: output.attribute.name for output in group.aggregates}
    (call,) = window.calls
    assert names[call.order[0].expr.id] == "s"  # type: ignore[attr-defined]  # a column
    assert call.partition_by == (group.keys[0].attribute.ref(),)
