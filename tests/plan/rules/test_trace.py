"""Following a column to the result: where it can be, and where the answer must be None."""

from __future__ import annotations

import pytest

from impctl.data.schema import LONG, Column
from impctl.plan.lineage import follow, trace
from impctl.plan.nodes import Aggregate, attributes_of, nodes_of, scans_of
from impctl.sql.statement import parse_query
from tests.support.schemas import schema_of

CATALOG = {
    "t": schema_of("id bigint, g string, v bigint"),
    "u": schema_of("k bigint, g string, w bigint, d double"),
}

TRACED = [
    ("SELECT v FROM t WHERE v > 3", "t#1", "id"),
    ("SELECT DISTINCT id, v FROM t", "t#1", "id"),
    ("SELECT count(*) FROM t GROUP BY id", "t#1", "id"),
    ("SELECT count(*) FROM t JOIN u ON t.id = u.k GROUP BY u.k", "t#1", "id"),
    ("SELECT t.v FROM t LEFT JOIN u ON t.id = u.k", "t#1", "id"),
    ("SELECT u.w FROM t RIGHT JOIN u ON t.id = u.k", "u#1", "k"),
    ("SELECT v FROM t WHERE id IN (SELECT k FROM u)", "u#1", "k"),
    ("SELECT sum(v) OVER (PARTITION BY id) FROM t", "t#1", "id"),
    ("SELECT g, id, count(*) FROM t GROUP BY GROUPING SETS ((g, id), (id))", "t#1", "id"),
]
LOST = [
    ("SELECT DISTINCT v FROM t", "t#1", "id"),
    ("SELECT count(*) FROM t GROUP BY id + 1", "t#1", "id"),
    ("SELECT count(*) FROM t JOIN u ON t.id = u.d GROUP BY u.d", "t#1", "id"),
    ("SELECT count(*) FROM t LEFT JOIN u ON t.id = u.k GROUP BY u.k", "t#1", "id"),
    ("SELECT t.v FROM t LEFT JOIN u ON t.id = u.k", "u#1", "k"),
    ("SELECT t.v FROM t FULL JOIN u ON t.id = u.k", "t#1", "id"),
    ("SELECT v FROM t WHERE id IN (SELECT k FROM u)", "u#1", "w"),
    ("SELECT sum(v) OVER (PARTITION BY g) FROM t", "t#1", "id"),
    ("SELECT g, id, count(*) FROM t GROUP BY ROLLUP (id, g)", "t#1", "id"),
    ("SELECT id FROM t UNION ALL SELECT k FROM u", "t#1", "id"),
]


def traced(sql, access, attribute):
    query = parse_query(sql, CATALOG)
    table = next(scan.table for scan in scans_of(query.root) if scan.access == access)
    return query.root, trace(query.root, access, CATALOG[table].find(attribute))


@pytest.mark.parametrize(("sql", "access", "attribute"), TRACED)
def test_followed(sql, access, attribute):
    root, result = traced(sql, access, attribute)
    ids = [a.id for a in attributes_of(result.plan)]
    assert result.key.id in ids
    assert {a.id for a in attributes_of(root)} <= set(ids)
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(("sql", "access", "attribute"), LOST)
def test_lost(sql, access, attribute):
    assert traced(sql, access, attribute)[1] is None


def test_a_pruned_attribute_is_read_again():
    query = parse_query("SELECT v FROM t", {"t": schema_of("v bigint")})
    result = trace(query.root, "t#1", Column("id", LONG))
    assert [a.name for a in scans_of(result.plan)[0].attributes] == ["v", "id"]


def followed(sql):
    root = parse_query(sql, CATALOG).root
    origin = next(node for node in nodes_of(root) if isinstance(node, Aggregate))
    return follow(root, origin, tuple(key.attribute.id for key in origin.keys)), origin


def test_group_keys_survive_projection():
    result, origin = followed("SELECT s FROM (SELECT g, v, sum(v) AS s FROM t GROUP BY g, v) q")
    assert result is not None
    assert len(attributes_of(result)) == len(origin.keys) == 2


GROUPS = "(SELECT g, sum(v) AS s FROM t GROUP BY g)"


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT u.w FROM u LEFT JOIN {GROUPS} q ON q.g = u.g",
        f"SELECT u.w FROM u WHERE u.g IN (SELECT q.g FROM {GROUPS} q)",
        f"SELECT DISTINCT s FROM {GROUPS} q ORDER BY s LIMIT 3",
        f"SELECT g FROM {GROUPS} q UNION ALL SELECT g FROM u",
    ],
)
def test_groups_that_rows_do_not_stem_from(sql):
    assert followed(sql)[0] is None
