"""What an expiry asks stands right above every scan of its table, and nowhere else."""

from __future__ import annotations

import pytest

from impctl.data.schema import TIMESTAMP
from impctl.expr.nodes import Compare, CompareOp, Literal
from impctl.plan.nodes import LiveRows, Plan, Scan, Select, inputs_of, nodes_of
from impctl.plan.properties import scan_conditions
from impctl.rules.optimize import PlannedQueries, apply_rules
from impctl.sql.statement import parse_query
from tests.support.schemas import schema_of

CATALOG = {
    "t": schema_of("a bigint, b bigint, at timestamp"),
    "u": schema_of("a bigint, at timestamp"),
}
LIVE = {"t": LiveRows("at", Literal(7, TIMESTAMP))}
TEXTS = (
    "SELECT a FROM t",
    "SELECT a FROM t AS x(c, d, e) JOIN u ON x.c = u.a",
    "SELECT t.a FROM t LEFT JOIN t AS other ON t.a = other.b",
    "SELECT u.a FROM u WHERE EXISTS (SELECT 1 FROM t WHERE t.a = u.a)",
    "SELECT u.a FROM u WHERE u.a NOT IN (SELECT a FROM t WHERE a IS NOT NULL)",
    "WITH v AS (SELECT a FROM t) SELECT * FROM v JOIN v AS w ON v.a = w.a",
    "SELECT a FROM u UNION ALL SELECT b FROM t",
    "SELECT a, (SELECT MAX(b) FROM t) FROM u",
    "WITH RECURSIVE r(n) AS (SELECT a FROM u UNION SELECT l.b FROM r JOIN t l ON r.n = l.a) "
    "SELECT n FROM r",
)


def above(root: Plan, scan: Plan) -> Plan:
    (result,) = (node for node in nodes_of(root) if any(scan is below for below in inputs_of(node)))
    return result


@pytest.mark.parametrize("sql", TEXTS)
def test_every_scan_of_the_table_has_it_and_no_other(sql: str) -> None:
    query = parse_query(sql, CATALOG, live=LIVE)
    scans = [node for node in nodes_of(query.root) if isinstance(node, Scan)]
    assert any(scan.table == "t" for scan in scans)
    for scan in scans:
        node = above(query.root, scan)
        is_asked = isinstance(node, Select) and isinstance(node.predicate, Compare)
        assert is_asked == (scan.table == "t")
        if is_asked:
            assert isinstance(node, Select)
            (column,) = (a for a in scan.attributes if a.name == "at")
            assert node.predicate == Compare(CompareOp.GREATER, column.ref(), LIVE["t"].later_than)
    assert dict(query.live) == LIVE


@pytest.mark.parametrize("sql", TEXTS)
def test_the_rules_leave_it_at_the_scan(sql: str) -> None:
    root = apply_rules(parse_query(sql, CATALOG, live=LIVE).root)
    conditions = scan_conditions(root)
    for scan in (node for node in nodes_of(root) if isinstance(node, Scan)):
        if scan.table == "t":
            asked = [c for c in conditions[scan.access] if isinstance(c, Compare)]
            assert any(c.right == LIVE["t"].later_than for c in asked), sql


def test_plans_of_two_instants_are_two() -> None:
    planned = PlannedQueries()
    result = {
        at: planned.of(
            TEXTS[0],
            CATALOG,
            name="q",
            zone="UTC",
            live={"t": LiveRows("at", Literal(at, TIMESTAMP))},
            at=name,
        )
        for at, name in ((7, "first"), (8, "second"), (9, "second"))
    }
    # Under one name, another expiry is another plan all the same.
    assert [one.query.live[0][1].later_than.value for one in result.values()] == [7, 8, 9]
    again = planned.of(TEXTS[0], CATALOG, name="q", zone="UTC", live=LIVE, at="first")
    assert again is result[7]
