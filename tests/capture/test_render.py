"""Plans written as SQL and run, against the queries they were read from."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

from impctl.plan.nodes import attributes_of, scans_of
from impctl.rules.optimize import apply_rules
from impctl.spark.render import render_plan
from impctl.spark.run import run_sql
from impctl.sql.statement import parse_query
from tests.support.random_cases import quarter_then_rest
from tests.support.schemas import schema_of

CATALOG = {
    "t": schema_of("id bigint, group name string, v int, d double, m decimal(10,2), day date"),
    "u": schema_of("id bigint, w int"),
}
QUERIES = [
    "SELECT * FROM t",
    "SELECT count(*) FROM t",
    "SELECT 1 FROM t",
    "SELECT id AS x, id AS y, v + 1, -v, 'it\\'s' AS s FROM t WHERE NOT (v > 3 AND d < 1.5)",
    "SELECT id FROM t WHERE v BETWEEN 2 AND 5 OR v IN (7, 8) OR `group name` LIKE 'a%'",
    "SELECT CASE v WHEN 1 THEN 'one' WHEN 2 THEN 'two' END AS c, coalesce(v, 0) FROM t",
    "SELECT id FROM t WHERE day >= DATE'2024-01-10' AND day < '2024-01-20'",
    "SELECT v / 2, v % 3, v div 2, m * 1.5, m / 3, d * 2 FROM t",
    "SELECT upper(`group name`), substring(`group name`, 1, 1), year(day) FROM t",
    "SELECT `group name`, sum(v), avg(m), avg(v), count(v), min(d), max(day) FROM t GROUP BY 1",
    "SELECT v, avg(m) AS a, avg(m) * 2, sum(m) FROM t GROUP BY v"
    " HAVING avg(m) > 1.5 OR count(m) > 9",
    "SELECT v FROM t GROUP BY v ORDER BY avg(m) FILTER (WHERE id > 5) DESC NULLS LAST, v LIMIT 3",
    "SELECT id FROM t WHERE m > (SELECT avg(m) FROM t)",
    "SELECT u.id, a.x FROM u LEFT JOIN (SELECT v, avg(m) x FROM t GROUP BY v) a ON u.w = a.v"
    " WHERE a.x IS NULL OR a.x > 2",
    "SELECT avg(m) FROM t GROUP BY v UNION SELECT avg(x) FROM (SELECT avg(m) x FROM t GROUP BY v)",
    "SELECT v % 2, count(DISTINCT d), sum(v) FILTER (WHERE id > 5) FROM t GROUP BY v % 2",
    "SELECT sum(v) FROM t WHERE id < 0",
    "SELECT `group name` FROM t GROUP BY `group name` HAVING sum(v) > 10 AND avg(d) IS NOT NULL",
    "SELECT DISTINCT v, `group name` FROM t",
    "SELECT id, v FROM t ORDER BY v DESC NULLS LAST, id LIMIT 5",
    "SELECT id, v FROM t ORDER BY v ASC NULLS FIRST, id DESC LIMIT 5 OFFSET 2",
    "SELECT id, v FROM t ORDER BY v DESC NULLS FIRST, id LIMIT 3",
    "SELECT id, v FROM t ORDER BY v NULLS LAST, id LIMIT 3",
    "SELECT t.id, w FROM t JOIN u ON t.id = u.id",
    "SELECT t.id, w FROM t LEFT JOIN u ON t.id = u.id AND w > 2",
    "SELECT t.id, w FROM t RIGHT JOIN u ON t.id = u.id",
    "SELECT t.id, w FROM t FULL JOIN u ON t.id = u.id",
    "SELECT a.id, b.id FROM u a CROSS JOIN u b",
    "SELECT id FROM t WHERE id IN (SELECT id FROM u)",
    "SELECT id FROM t WHERE v NOT IN (SELECT w FROM u)",
    "SELECT id FROM t WHERE v NOT IN (SELECT w FROM u WHERE w IS NOT NULL)",
    "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.id = t.id AND u.w < t.v)",
    "SELECT id FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.id = t.id)",
    "SELECT id FROM t UNION SELECT id FROM u",
    "SELECT id FROM t UNION ALL SELECT w FROM u",
    "SELECT v FROM t EXCEPT SELECT w FROM u",
    "SELECT v FROM t EXCEPT ALL SELECT w FROM u",
    "SELECT v FROM t INTERSECT ALL SELECT w FROM u",
    "SELECT v FROM t UNION ALL (SELECT w FROM u ORDER BY w DESC NULLS LAST, id LIMIT 2)",
    "SELECT `group name`, v, count(*) FROM t GROUP BY ROLLUP (`group name`, v)",
    "SELECT `group name`, v, sum(v) FROM t GROUP BY CUBE (`group name`, v)",
    "SELECT `group name`, v % 2, grouping(`group name`), grouping(v % 2), count(*) FROM t "
    "GROUP BY ROLLUP (`group name`, v % 2)",
    "SELECT grouping_id(`group name`, v), grouping_id(), sum(v) FROM t "
    "GROUP BY GROUPING SETS ((`group name`, v), (v), ())",
    "SELECT id, rank() OVER (PARTITION BY `group name` ORDER BY v DESC, id) AS r FROM t",
    "SELECT id, sum(v) OVER (ORDER BY id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) FROM t",
    "WITH q AS (SELECT v, count(*) AS n FROM t GROUP BY v) SELECT a.v, b.n FROM q a JOIN q b "
    "ON a.n = b.n",
    "SELECT s FROM (SELECT `group name` AS g, sum(v) AS s FROM t GROUP BY `group name`) ORDER BY s",
]


@pytest.fixture(scope="module")
def frames(spark):
    count = 24
    days = pa.array([19_720 + n for n in range(count)], pa.int32()).cast(pa.date32())
    t = {
        "id": list(range(count)),
        "group name": [["a", "ab", None, "c"][n % 4] for n in range(count)],
        "v": pa.array([n % 7 if n % 5 else None for n in range(count)], pa.int32()),
        "d": [n / 8 if n % 6 else None for n in range(count)],
        "m": pa.array([f"{n}.{n % 10}5" for n in range(count)]).cast(pa.decimal128(10, 2)),
        "day": days,
    }
    w = pa.array([1, 2, 2, None, 5, 5, 6, 3], pa.int32())
    u = {"id": [0, 1, 1, 4, 9, 30, None, 12], "w": w}
    return {name: spark.createDataFrame(pa.table(made)) for name, made in (("t", t), ("u", u))}


def bag(table: pa.Table) -> Counter[tuple[object, ...]]:
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def is_supported(sql: str) -> bool:
    from impctl.errors import QueryError

    try:
        parse_query(sql, CATALOG)
    except QueryError:
        return False
    return True


def test_most_queries_are_read():
    assert [sql for sql in QUERIES if not is_supported(sql)] == []


@pytest.mark.spark
@pytest.mark.parametrize("with_rules", [False, True], ids=["as read", "after rules"])
@pytest.mark.parametrize("sql", quarter_then_rest(QUERIES))
def test_rendered_plan_is_the_query(spark, frames, sql, with_rules):
    root = parse_query(sql, CATALOG).root
    root = apply_rules(root) if with_rules else root
    views = {scan.access: f"view {place}" for place, scan in enumerate(scans_of(root))}
    rendered = render_plan(root, views)
    own = {views[scan.access]: frames[scan.table] for scan in scans_of(root)}
    answer = run_sql(spark, rendered.sql, own)
    expected = run_sql(spark, sql, frames)
    assert bag(answer) == bag(expected)
    assert answer.column_names == [rendered.names[a.id] for a in attributes_of(root)]
    assert [column.type for column in answer.columns] == [c.type for c in expected.columns]


def test_names_do_not_depend_on_the_users():
    root = parse_query("SELECT `group name` AS `x y` FROM t", CATALOG).root
    text = render_plan(root, {"t#1": "v"}).sql
    assert text.count("group name") == 1
    assert "x y" not in text
