"""WITH RECURSIVE of UNION ALL written as SQL and run: by DuckDB, which means the same by it."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import sqlglot

from impctl.errors import QueryError
from impctl.plan.nodes import scans_of
from impctl.rules.optimize import apply_rules
from impctl.spark.expressions import DIALECT
from impctl.spark.render import render_plan
from impctl.sql.text import without_levels
from tests.circuits.test_bags import QUERIES
from tests.circuits.test_recursion import COLUMNS, case_of_sql, some_row
from tests.plan.network import REACHED, plan_of
from tests.support.reference_plan import bag, evaluate

duckdb = pytest.importorskip("duckdb")

NESTED = (
    "WITH RECURSIVE p(n) AS (SELECT a FROM seeds UNION ALL SELECT n + CAST(1 AS BIGINT) FROM p "
    "WHERE n < 4), q(m) AS (SELECT n FROM p UNION ALL SELECT q.m + CAST(1 AS BIGINT) FROM q "
    "JOIN p ON q.m = p.n WHERE q.m < 5) SELECT m, n FROM q JOIN p ON q.m = p.n"
)
TWICE = (
    "WITH RECURSIVE r(x, y, k) AS (SELECT a, b, 1 FROM links UNION ALL SELECT r.x, l.b, r.k + 1 "
    "FROM r JOIN links l ON r.y = l.a WHERE r.k < 3) SELECT s.y, t.y FROM r s JOIN r t "
    "ON s.y = t.x WHERE s.x = 1 AND t.x = 2"
)
TEXTS = {**QUERIES, "nested": NESTED, "twice, with filters of its own": TWICE}


@pytest.fixture
def connection() -> Iterator[Any]:
    with duckdb.connect() as result:
        for name, columns in COLUMNS.items():
            result.execute(f"CREATE TABLE {name} ({', '.join(f'{c} BIGINT' for c in columns)})")
        yield result


def written(sql: str, *, is_ruled: bool) -> str:
    root = case_of_sql(sql, ()).query.root
    root = apply_rules(root) if is_ruled else root
    text = render_plan(root, {scan.access: scan.table for scan in scans_of(root)}).sql
    (result,) = sqlglot.transpile(without_levels(text), read=DIALECT, write="duckdb")
    return result


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_written_gives_the_rows_of_the_plan(name: str, connection: Any) -> None:
    """Of the plan as it was read, and after the rules."""
    rng = Random(f"written {name}")
    plan = case_of_sql(TEXTS[name], ()).query.root
    texts = [written(TEXTS[name], is_ruled=is_ruled) for is_ruled in (False, True)]
    rows = 0
    for _ in range(4):
        tables = {
            table: [some_row(rng, table) for _ in range(8 if table == "links" else 3)]
            for table in COLUMNS
        }
        for table, content in tables.items():
            connection.execute(f"DELETE FROM {table}")
            marks = ", ".join("?" * len(COLUMNS[table]))
            values = [[row[column] for column in COLUMNS[table]] for row in content]
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
        expected = bag(evaluate(plan, tables))
        for text in texts:
            assert bag(connection.execute(text).fetchall()) == expected, text
        rows += expected.total()
    assert rows


def test_names_of_entries_are_no_views_and_no_other_entries() -> None:
    root = case_of_sql(TWICE, ()).query.root
    views = {scan.access: f"recursion_c{at}" for at, scan in enumerate(scans_of(root))}
    text = render_plan(root, views).sql
    tree = sqlglot.parse_one(text, dialect=DIALECT)
    names = [entry.alias for entry in tree.find_all(sqlglot.exp.CTE)]
    assert len(names) == len(set(names)) == 2
    assert not set(names) & set(views.values())


def test_how_many_levels_there_may_be_is_written() -> None:
    root = case_of_sql(QUERIES["as deep as said"], ()).query.root
    text = render_plan(root, {scan.access: scan.table for scan in scans_of(root)}).sql
    assert text.startswith("WITH RECURSIVE `recursion_c0` MAX RECURSION LEVEL 4 AS (SELECT")


def test_of_union_none_is_written() -> None:
    plan = plan_of(REACHED + "SELECT n FROM r")
    with pytest.raises(QueryError, match="with UNION for Spark") as caught:
        render_plan(plan, {scan.access: scan.table for scan in scans_of(plan)})
    assert caught.value.code == "capture_unsupported"
