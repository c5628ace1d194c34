"""A plan as a tree of lines."""

from __future__ import annotations

from impctl.plan.explain import PlanLine, describe
from tests.plan.catalogs import plan_of


def test_lines_tell_operator_detail_and_place() -> None:
    sql = "SELECT brand, SUM(price * numSold) AS rev FROM sales WHERE ok GROUP BY brand"
    line = describe(plan_of(sql))
    assert (line.operator, line.detail) == ("aggregate", "by brand: sum(price * numSold) AS rev")
    (select,) = line.children
    assert (select.operator, select.detail) == ("select", "ok")
    assert sql[select.span.start : select.span.end] == "ok"
    (scan,) = select.children
    assert scan.operator == "scan"
    assert scan.detail.startswith("sales as sales#1: sid, brand, price")
    assert scan.children == ()


def test_notes_go_to_nodes_by_position() -> None:
    plan = plan_of("SELECT 1 FROM sales, stock")
    line = describe(plan, {0: "root", 2: "left", 3: "right"})
    assert line.detail == "1 [root]"
    left, right = line.children[0].children
    assert left.detail.endswith("[left]")
    assert right.detail.endswith("[right]")


def test_a_remark_stands_alone_where_there_is_no_detail() -> None:
    line = describe(plan_of("SELECT DISTINCT * FROM stock"), {0: "kept"})
    assert isinstance(line, PlanLine)
    assert (line.operator, line.detail) == ("distinct", "[kept]")
