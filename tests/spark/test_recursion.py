"""WITH RECURSIVE of UNION ALL: the engine's rows, limits and errors are those of Spark.

Each level is a job of Spark, so tables are small.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from impctl.compile.session import MaintainedQuery
from impctl.engine import operator as limits_of
from impctl.engine.operator import LEVEL_LIMITS, LevelLimits
from impctl.errors import UnsupportedError
from impctl.plan.nodes import scans_of
from impctl.sketch.sketch import range_filter
from impctl.spark.predicates import rewrite_sql
from impctl.spark.render import render_plan
from impctl.spark.run import run_sql
from tests.circuits.test_bags import QUERIES, answer_of, bag_case
from tests.circuits.test_recursion import (
    COLUMNS,
    DRAWN,
    Case,
    case_of_sql,
    change_of,
    expected,
    some_row,
)
from tests.support.carried_queries import Row
from tests.support.random_cases import quarter_then_rest
from tests.support.reference_plan import bag
from tests.support.restored_query import sketches_of

pytestmark = pytest.mark.spark

ASKED = ("how many", "two parts", "optional side", "as deep as said")
CHAIN = (
    "WITH RECURSIVE r(n){} AS (SELECT a FROM seeds UNION ALL SELECT l.b FROM r JOIN links l "
    "ON r.n = l.a) SELECT n FROM r"
)


def frames_of(spark: Any, tables: dict[str, list[Row]]) -> dict[str, Any]:
    return {
        name: spark.createDataFrame(change_of(name, rows, [1] * len(rows)).rows)
        for name, rows in tables.items()
    }


def of_spark(spark: Any, sql: str, frames: dict[str, Any]) -> Counter[tuple[object, ...]]:
    table: pa.Table = run_sql(spark, sql, frames)
    return bag(zip(*[column.to_pylist() for column in table.columns], strict=True))


def some_tables(rng: Random) -> dict[str, list[Row]]:
    return {
        table: [some_row(rng, table) for _ in range(7 if table == "links" else 2)]
        for table in COLUMNS
    }


def loaded(case: Case, tables: dict[str, list[Row]], *, with_answer: bool) -> MaintainedQuery:
    query = MaintainedQuery(case.compiled(with_answer=with_answer))
    query.load(DRAWN.whole(tables))
    return query


@pytest.mark.parametrize("name", quarter_then_rest(ASKED))
def test_rows_kept_are_those_of_spark_and_so_are_those_over_the_sketch(
    spark: Any, name: str
) -> None:
    rng = Random(f"spark {name}")
    case = bag_case(name)
    tables = some_tables(rng)
    query = loaded(case, tables, with_answer=True)
    changes = {t: change_of(t, *DRAWN.some_change(rng, t, rows, 4)) for t, rows in tables.items()}
    query.step(changes)
    frames = frames_of(spark, tables)
    whole = of_spark(spark, QUERIES[name], frames)
    assert answer_of(query, case) == whole
    assert sketches_of(query) == expected(case, tables)
    filters = {
        access: range_filter(kept, case.sketched[access])
        for access, kept in query.fragments().items()
    }
    text = rewrite_sql(case.query, filters)
    assert text != QUERIES[name]
    assert of_spark(spark, text, frames) == whole


@pytest.mark.parametrize("name", ["two parts", "as deep as said"])
def test_what_is_written_gives_the_rows_of_the_query(spark: Any, name: str) -> None:
    tables = some_tables(Random(f"written {name}"))
    root = bag_case(name).query.root
    views = {scan.access: f"view {place}" for place, scan in enumerate(scans_of(root))}
    frames = frames_of(spark, tables)
    own = {views[scan.access]: frames[scan.table] for scan in scans_of(root)}
    whole = of_spark(spark, QUERIES[name], frames)
    assert whole
    assert of_spark(spark, render_plan(root, views).sql, own) == whole


def chain(last: int) -> dict[str, list[Row]]:
    """A row at each of so many levels."""
    links: list[Row] = [{"a": n, "b": n + 1, "f": 1} for n in range(1, last)]
    return {"links": links, "seeds": [{"a": 1, "f": 0}]}


def both(spark: Any, sql: str, tables: dict[str, list[Row]]) -> list[int | str]:
    """How many rows Spark finds, and the engine; or the code of the error."""
    case = case_of_sql(sql, tuple(COLUMNS))
    result: list[int | str] = []
    for answer in (
        lambda: of_spark(spark, sql, frames_of(spark, tables)),
        lambda: answer_of(loaded(case, tables, with_answer=True), case),
    ):
        try:
            result.append(answer().total())
        except UnsupportedError as error:
            result.append(error.code)
    return result


@pytest.mark.long
def test_limits_are_those_of_spark(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert int(spark.conf.get("spark.sql.cteRecursionLevelLimit")) == LEVEL_LIMITS.levels
    assert int(spark.conf.get("spark.sql.cteRecursionRowLimit")) == LEVEL_LIMITS.rows
    by_clause = CHAIN.format(" MAX RECURSION LEVEL 3")
    assert both(spark, by_clause, chain(3)) == [3, 3]
    assert both(spark, by_clause, chain(4)) == ["recursion_limit"] * 2
    circle = chain(2)
    circle["links"].append({"a": 2, "b": 1, "f": 2})
    assert both(spark, by_clause, circle) == ["recursion_limit"] * 2
    none = CHAIN.format(" MAX RECURSION LEVEL 0")
    assert both(spark, none, chain(1)) == ["recursion_limit"] * 2
    assert both(spark, none, {**chain(1), "seeds": []}) == [0, 0]
    monkeypatch.setattr(limits_of, "LEVEL_LIMITS", LevelLimits(rows=4))
    spark.conf.set("spark.sql.cteRecursionRowLimit", 4)
    try:
        assert both(spark, CHAIN.format(""), chain(3)) == [3, 3]
        assert both(spark, CHAIN.format(""), chain(4)) == ["recursion_limit"] * 2
    finally:
        spark.conf.unset("spark.sql.cteRecursionRowLimit")
