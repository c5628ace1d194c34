"""Plans against Spark itself: the text, and the plan written as SQL again, give the same rows.

Law: every query is answered three times by Spark: as written, as read, and as read and rewritten
by the rules; bags of rows and the types of the columns agree.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from impctl.plan.nodes import Plan, attributes_of, scans_of
from impctl.rules.optimize import apply_rules
from impctl.spark.render import render_plan
from impctl.sql.statement import parse_query
from tests.support.random_cases import quarter_then_rest
from tests.support.schemas import schema_of

pytestmark = pytest.mark.spark

COLUMNS = {
    "t": "a int, b int, s string, d date, m decimal(10,2), f double, g boolean, l bigint",
    "u": "a int, c int, s string, `my col` int",
}
CATALOG = {table: schema_of(columns) for table, columns in COLUMNS.items()}
_FILE = Path(__file__).parent / "golden" / "spark_queries.sql"
QUERIES = [text.strip() for text in _FILE.read_text(encoding="utf-8").split(";\n")[:-1]]


def rows_of_t(rng: Random) -> list[tuple[Any, ...]]:
    """Few values of every type, with NULL, NaN, -0.0 and duplicates."""

    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.15 else value

    rows = [
        (
            maybe(rng.randint(0, 4)),
            maybe(rng.randint(-3, 8)),
            maybe(rng.choice(["x", "xy", "Zed", "it's"])),
            maybe(datetime.date(2022, 1, rng.randint(1, 6))),
            maybe(Decimal(rng.randint(-500, 500)) / 100),
            maybe(rng.choice([0.0, -0.0, 1.5, float("nan"), 2.25, -1.0])),
            maybe(rng.random() < 0.5),
            maybe(rng.randint(0, 10**6)),
        )
        for _ in range(40)
    ]
    return rows + rows[:6]


def rows_of_u(rng: Random) -> list[tuple[Any, ...]]:
    """As `rows_of_t`, for the smaller table."""
    return [
        (
            rng.choice([None, 0, 1, 2, 3, 4]),
            rng.randint(-3, 8),
            rng.choice([None, "x", "xy", "q"]),
            rng.randint(0, 3),
        )
        for _ in range(12)
    ]


@pytest.fixture(scope="module")
def tables(spark: Any) -> Iterator[Any]:
    """The session with both tables as cached views."""
    rng = Random(5)
    for name, rows in (("t", rows_of_t(rng)), ("u", rows_of_u(rng))):
        frame = spark.createDataFrame(rows, COLUMNS[name]).coalesce(1)
        frame.createOrReplaceTempView(name)
        spark.catalog.cacheTable(name)
    yield spark
    for name in COLUMNS:
        spark.catalog.uncacheTable(name)
        spark.catalog.dropTempView(name)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if value != value else float(f"{value:.10g}") + 0.0
    return tuple(_plain(part) for part in value) if isinstance(value, list) else value


def _bag(frame: Any) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(_plain(value) for value in row) for row in frame.collect())


def _written(plan: Plan) -> str:
    rendered = render_plan(plan, {scan.access: scan.table for scan in scans_of(plan)})
    columns = ", ".join(f"`{rendered.names[item.id]}`" for item in attributes_of(plan))
    return f"SELECT {columns} FROM ({rendered.sql})"


def test_there_are_queries() -> None:
    assert len(QUERIES) > 100


@pytest.mark.parametrize("sql", quarter_then_rest(QUERIES))
def test_the_plan_answers_as_spark_does(tables: Any, sql: str) -> None:
    frame = tables.sql(sql)
    expected = _bag(frame)
    plan = parse_query(sql, CATALOG).root
    ours = [item.type for item in attributes_of(plan)]
    for kind, (name, theirs) in zip(ours, frame.dtypes, strict=True):
        assert kind is None or kind.spark_name == theirs, name
    assert _bag(tables.sql(_written(plan))) == expected
    assert _bag(tables.sql(_written(apply_rules(plan)))) == expected


@pytest.mark.parametrize("sql", [sql for sql in QUERIES if " pivot (" in sql])
def test_columns_of_a_pivot_are_called_as_spark_calls_them(tables: Any, sql: str) -> None:
    plan = parse_query(sql, CATALOG).root
    assert [item.name for item in attributes_of(plan)] == tables.sql(sql).columns
