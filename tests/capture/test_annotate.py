"""Which way a sketch is captured, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from impctl.data.schema import LONG, Column
from impctl.errors import QueryError, UnsafeSketchError
from impctl.expr.nodes import CompareOp, conjuncts
from impctl.plan.nodes import Join, TopK, attributes_of, nodes_of, scans_of
from impctl.rules.optimize import apply_rules
from impctl.safety.facts import Fact, FactKind, FactSource
from impctl.safety.judge import check_safety
from impctl.spark.capture import PassKind, sketch_passes
from impctl.sql.statement import parse_query
from tests.support.schemas import schema_of

CATALOG = {
    "t": schema_of("id bigint, g string, h string, v int"),
    "u": schema_of("k bigint, g string, w int"),
}
FACTS = [Fact("t", "v", FactKind.NONNEGATIVE, FactSource.CONSTRAINT)]


def planned(sql, attribute, *, table="t", with_rules=False):
    query = parse_query(sql, CATALOG)
    if with_rules:
        query = replace(query, root=apply_rules(query.root))
    access = next(scan.access for scan in scans_of(query.root) if scan.table == table)
    verdict = check_safety(query, {access: attribute}, FACTS)
    return sketch_passes(query, verdict, {access: CATALOG[table].find(attribute)})


SUMS = "SELECT g, sum(v) AS s FROM t GROUP BY g"
WAYS = [
    ("SELECT g FROM t WHERE v > 3", "id", PassKind.ROWS),
    ("SELECT DISTINCT g FROM t WHERE v > 3", "id", PassKind.ROWS),
    ("SELECT g FROM t ORDER BY v DESC NULLS LAST, id LIMIT 3", "id", PassKind.ROWS),
    ("SELECT t.g FROM t JOIN u ON t.id = u.k", "id", PassKind.ROWS),
    ("SELECT t.g FROM t WHERE id IN (SELECT k FROM u)", "id", PassKind.ROWS),
    (SUMS, "id", PassKind.ROWS),
    ("SELECT sum(s) FROM (SELECT g, sum(v) AS s FROM t GROUP BY g) q", "id", PassKind.ROWS),
    ("SELECT sum(v) FROM t", "id", PassKind.ROWS),
    ("SELECT g, avg(v) FROM t GROUP BY g HAVING avg(v) > 3", "g", PassKind.KEYED),
    ("SELECT avg(v) FROM t GROUP BY g HAVING avg(v) > 3", "g", PassKind.KEYED),
    (SUMS + " ORDER BY s DESC NULLS LAST, g LIMIT 3", "g", PassKind.KEYED),
    (f"SELECT q.s FROM ({SUMS}) q JOIN u ON q.g = u.g WHERE q.s > 3", "g", PassKind.KEYED),
    (SUMS + " HAVING sum(v) > 3", "id", PassKind.GROUPS),
    (SUMS + " HAVING count(DISTINCT id) > 3", "g", PassKind.KEYED),
    (SUMS + " ORDER BY s DESC NULLS LAST, g LIMIT 3", "id", PassKind.GROUPS),
    ("SELECT sum(v) FROM t HAVING sum(v) > 3", "id", PassKind.GROUPS),
    (f"SELECT q.s FROM ({SUMS}) q JOIN u ON q.g = u.g WHERE q.s > 3", "id", PassKind.GROUPS),
    ("SELECT g FROM t WHERE v > 3 UNION ALL SELECT g FROM u", "id", PassKind.COLLECTED),
    ("SELECT g FROM t INTERSECT ALL SELECT g FROM u", "g", PassKind.COLLECTED),
    ("SELECT g FROM t EXCEPT ALL SELECT g FROM u", "id", PassKind.COLLECTED),
    (f"SELECT max(s) FROM ({SUMS}) q HAVING max(s) > 3", "id", PassKind.COLLECTED),
    (
        "SELECT g, h, count(*) FROM t GROUP BY ROLLUP (g, h) HAVING count(*) > 2",
        "id",
        PassKind.COLLECTED,
    ),
]


@pytest.mark.parametrize("with_rules", [False, True])
@pytest.mark.parametrize(("sql", "attribute", "way"), WAYS)
def test_the_cheapest_way_is_taken(sql, attribute, way, with_rules):
    passes = planned(sql, attribute, with_rules=with_rules)
    assert [pass_.way for pass_ in passes] == [way]


JOINED = "SELECT t.g FROM t JOIN u ON t.id = u.k"
SHARED = [
    (JOINED, {"t#1": "id", "u#1": "k"}, [{"t#1", "u#1"}]),
    (JOINED, {"t#1": "g", "u#1": "w"}, [{"t#1", "u#1"}]),
    (JOINED + " GROUP BY t.g HAVING sum(v) > 3", {"t#1": "id", "u#1": "w"}, [{"t#1", "u#1"}]),
    (JOINED + " GROUP BY t.g HAVING sum(v) > 3", {"t#1": "g", "u#1": "g"}, [{"t#1"}, {"u#1"}]),
    (JOINED + " AND t.g = u.g GROUP BY t.g HAVING sum(v) > 3", {"t#1": "g", "u#1": "g"}, None),
    ("SELECT g FROM t UNION ALL SELECT g FROM u", {"t#1": "g", "u#1": "g"}, [{"t#1"}, {"u#1"}]),
]


@pytest.mark.parametrize(("sql", "sketched", "wanted"), SHARED)
def test_accesses_that_follow_from_the_same_rows_share_a_pass(sql, sketched, wanted):
    query = parse_query(sql, CATALOG)
    verdict = check_safety(query, sketched, FACTS)
    tables = {scan.access: scan.table for scan in scans_of(query.root)}
    columns = {access: CATALOG[tables[access]].find(name) for access, name in sketched.items()}
    passes = sketch_passes(query, verdict, columns)
    assert [set(pass_.keys) for pass_ in passes] == (wanted or [set(sketched)])
    for pass_ in passes:
        known = {attribute.id for attribute in attributes_of(pass_.rows)}
        assert known >= set(pass_.keys.values())


def test_matched_rows_are_seen_through_what_equals_them():
    sql = "SELECT id FROM t WHERE id IN (SELECT k FROM u WHERE w > 3)"
    assert planned(sql, "k", table="u")[0].way is PassKind.ROWS
    assert planned(sql, "w", table="u")[0].way is PassKind.COLLECTED


def test_a_barrier_says_all_of_what_is_below_it():
    sql = (
        "SELECT q.id FROM (SELECT id FROM t ORDER BY v DESC NULLS LAST, id LIMIT 9) q "
        "JOIN u ON q.id = u.k"
    )
    (result,) = planned(sql, "id")
    assert not any(isinstance(node, Join) for node in nodes_of(result.rows))


def test_of_two_barriers_the_lower_one_says_what_is_below_it():
    sql = (
        "SELECT z.w, COUNT(*) FROM (SELECT q.id, u.w FROM "
        "(SELECT id FROM t ORDER BY v DESC NULLS LAST, id LIMIT 9) q JOIN u ON q.id = u.k "
        "ORDER BY u.w NULLS LAST, q.id, u.k, u.g LIMIT 5) z GROUP BY z.w"
    )
    query, sketched = parse_query(sql, CATALOG), {"t#1": "id", "u#1": "w"}
    verdict = check_safety(query, sketched, FACTS)
    assert verdict.barriers == 2
    columns = {access: CATALOG[access[0]].find(name) for access, name in sketched.items()}
    joined = {
        access: any(isinstance(node, Join) for node in nodes_of(result.rows))
        for result in sketch_passes(query, verdict, columns)
        for access in result.keys
    }
    assert joined == {"t#1": False, "u#1": True}


def test_no_pass_cuts_ties_off():
    passes = planned("SELECT id FROM t ORDER BY v DESC NULLS LAST, id LIMIT 9", "id")
    tops = [node for node in nodes_of(passes[0].rows) if isinstance(node, TopK)]
    assert [top.rank is not None and top.rank.function for top in tops] == ["rank"]


def test_unsafe_is_refused():
    with pytest.raises(UnsafeSketchError):
        planned("SELECT g, avg(v) FROM t GROUP BY g HAVING avg(v) > 3", "id")


def test_a_verdict_of_another_plan_is_noticed():
    query = parse_query("SELECT id FROM t", CATALOG)
    verdict = check_safety(query, {"t#1": "id"}, FACTS)
    with pytest.raises(ValueError, match="another plan"):
        sketch_passes(query, replace(verdict, barrier_positions=(0,)), {"t#1": Column("id", LONG)})


REFUSED = [
    ("SELECT g FROM t WHERE g IN (SELECT k FROM u)", "u", "w", "IN or EXISTS that compares"),
    ("SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k < t.id)", "u", "k", "EXISTS"),
]


@pytest.mark.parametrize(("sql", "table", "attribute", "construct"), REFUSED)
def test_what_is_not_captured_is_named_with_its_place(sql, table, attribute, construct):
    with pytest.raises(QueryError) as caught:
        planned(sql, attribute, table=table)
    assert construct in caught.value.message
    assert "line 1" in caught.value.message


@pytest.mark.parametrize("operation", ["INTERSECT", "EXCEPT"])
def test_null_is_among_what_a_set_operation_compares(operation):
    (result,) = planned(f"SELECT g, h FROM t {operation} SELECT g, g FROM u", "id")
    (join,) = (node for node in nodes_of(result.above) if isinstance(node, Join))
    assert {part.op for part in conjuncts(join.condition)} == {CompareOp.NULL_SAFE_EQUAL}
