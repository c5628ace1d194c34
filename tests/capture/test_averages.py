"""Averages of decimals are Spark's own in what Spark is asked; others stay a sum and a count."""

from __future__ import annotations

import pytest

from impctl.data.schema import LONG, decimal
from impctl.errors import QueryError
from impctl.expr.nodes import ColumnRef, Compare, CompareOp, Literal, Mean
from impctl.plan.nodes import Plan, Select, attributes_of, scans_of
from impctl.rules.optimize import apply_rules
from impctl.spark.render import render_plan, whole_averages
from impctl.sql.statement import parse_query
from tests.support.schemas import schema_of

CATALOG = {"t": schema_of("g bigint, m decimal(38,18), d double")}


def ruled(sql: str) -> Plan:
    return apply_rules(parse_query(sql, CATALOG).root)


def spoken(sql: str) -> str:
    plan = ruled(sql)
    assert attributes_of(whole_averages(plan)) == attributes_of(plan)
    return render_plan(plan, {scan.access: "t" for scan in scans_of(plan)}).sql


def test_an_average_of_decimals_is_asked_for_once() -> None:
    text = spoken("SELECT g, AVG(m), AVG(m) + 1 FROM t GROUP BY g HAVING AVG(m) > 0")
    assert (text.count("AVG("), text.count("SUM("), text.count("COUNT(")) == (1, 0, 0)


def test_what_the_query_asks_for_itself_stays() -> None:
    text = spoken("SELECT g, SUM(m), COUNT(m) FROM t GROUP BY g HAVING AVG(m) > 0")
    assert (text.count("AVG("), text.count("SUM("), text.count("COUNT(")) == (1, 1, 1)


def test_other_averages_and_plans_without_any_stay_as_they_are() -> None:
    for sql in ("SELECT g FROM t GROUP BY g HAVING AVG(d) > 0", "SELECT g FROM t WHERE m > 0"):
        plan = ruled(sql)
        assert whole_averages(plan) is plan


def test_an_average_whose_sum_is_out_of_sight_is_refused() -> None:
    (scan,) = scans_of(ruled("SELECT * FROM t"))
    total, count = (ColumnRef(a.id, a.type) for a in (scan.attributes[1], scan.attributes[0]))
    mean = Mean(total, count, decimal(38, 22))
    predicate = Compare(CompareOp.GREATER, mean, Literal(0, LONG))
    with pytest.raises(QueryError, match="Spark cannot capture it"):
        whole_averages(Select(scan, predicate))
