"""A generator in the SELECT list is the LATERAL VIEW of what WHERE lets through."""

from __future__ import annotations

import pytest

from impctl.plan.nodes import Explode, Project, Select, attributes_of, nodes_of
from impctl.rules.optimize import apply_rules
from tests.plan.catalogs import plan_of

SAME = {
    "element": (
        "SELECT brand, explode(array(price, 1)) AS x FROM sales",
        "SELECT brand, x FROM sales LATERAL VIEW explode(array(price, 1)) e AS x",
    ),
    "place and element": (
        "SELECT posexplode(array(price)) AS (p, x), brand FROM sales WHERE price > 3",
        "SELECT p, x, brand FROM sales LATERAL VIEW posexplode(array(price)) e AS p, x"
        " WHERE price > 3",
    ),
    "outer": (
        "SELECT explode_outer(array(price)) x FROM sales",
        "SELECT x FROM sales LATERAL VIEW OUTER explode(array(price)) e AS x",
    ),
    "key and value": (
        "SELECT explode(map(brand, price)) AS (k, v) FROM sales",
        "SELECT k, v FROM sales LATERAL VIEW explode(map(brand, price)) e AS k, v",
    ),
    "distinct and sorted": (
        "SELECT DISTINCT explode(array(price)) AS x FROM sales ORDER BY x DESC LIMIT 3",
        "SELECT DISTINCT x FROM sales LATERAL VIEW explode(array(price)) e AS x"
        " ORDER BY x DESC LIMIT 3",
    ),
    "sorted by what is not selected": (
        "SELECT explode(array(price)) AS x FROM sales ORDER BY sid, x LIMIT 3",
        "SELECT x FROM sales LATERAL VIEW explode(array(price)) e AS x ORDER BY sid, x LIMIT 3",
    ),
}


@pytest.mark.parametrize(("listed", "viewed"), SAME.values(), ids=SAME)
def test_it_is_the_lateral_view(listed: str, viewed: str) -> None:
    made = plan_of(listed)
    assert any(isinstance(node, Explode) for node in nodes_of(made))
    assert apply_rules(made) == apply_rules(plan_of(viewed))


def test_a_name_in_where_is_the_table_s_and_in_order_by_the_generator_s() -> None:
    sql = (
        "SELECT explode(array(price)) AS brand FROM sales WHERE brand = 'a' ORDER BY brand LIMIT 2"
    )
    plan = plan_of(sql)
    (explode,) = (node for node in nodes_of(plan) if isinstance(node, Explode))
    assert isinstance(explode.child, Select)
    assert "brand" in {a.name for a in attributes_of(explode.child.child)}
    assert plan == plan_of(sql.replace("ORDER BY brand", "ORDER BY 1"))


def test_its_columns_stand_in_its_place() -> None:
    plan = plan_of("SELECT *, posexplode(array(sid)) AS (p, x), sid AS last FROM stock, sales")
    assert isinstance(plan, Project)
    assert [a.name for a in attributes_of(plan)][-3:] == ["p", "x", "last"]
