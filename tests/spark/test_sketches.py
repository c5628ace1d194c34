"""Sketches captured in Spark: the ways agree, the rows left out never matter."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import cache

import pyarrow as pa
import pytest

from impctl.data.schema import DOUBLE, INTEGER, LONG, STRING, Column, Schema, decimal
from impctl.errors import UnsafeSketchError, UsageError
from impctl.plan.nodes import scans_of
from impctl.rules.optimize import apply_rules
from impctl.safety.facts import Fact, FactKind, FactSource
from impctl.safety.judge import check_safety
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import range_filter
from impctl.spark import capture
from impctl.spark.capture import sketch_passes
from impctl.spark.predicates import rewrite_sql
from impctl.spark.run import run_sql
from impctl.spark.sketches import capture_sketches
from impctl.sql.statement import parse_query
from tests.support.random_cases import quarter_then_rest

pytestmark = pytest.mark.spark

CATALOG = {
    "t": Schema(
        (
            Column("id", LONG),
            Column("g", STRING),
            Column("h", INTEGER),
            Column("v", INTEGER),
            Column("d", DOUBLE),
            Column("m", decimal(10, 2)),
        )
    ),
    "u": Schema((Column("k", LONG), Column("g", STRING), Column("w", INTEGER))),
}
FACTS = [
    Fact(table, column, FactKind.NONNEGATIVE, FactSource.CONSTRAINT)
    for table, column in (("t", "v"), ("t", "m"), ("u", "w"))
]
ROWS = 60


def tables() -> dict[str, pa.Table]:
    groups = ["a", "b", "c", None, "e"]
    doubles = [1.5, -0.0, 0.0, math.nan, None, -3.0, 8.0]
    t = {
        "id": [None if n % 17 == 5 else n for n in range(ROWS)],
        "g": [groups[(n * n) % 5] for n in range(ROWS)],
        "h": [n % 4 if n % 9 else None for n in range(ROWS)],
        "v": [(n * 7) % 13 if n % 11 else None for n in range(ROWS)],
        "d": [doubles[n % 7] for n in range(ROWS)],
        "m": [f"{n % 10}.{n % 7}0" for n in range(ROWS)],
    }
    u = {
        "k": list(range(0, 40, 2)),
        "g": [groups[n % 5] for n in range(20)],
        "w": [n % 6 for n in range(20)],
    }
    kinds = {"h": pa.int32(), "v": pa.int32(), "w": pa.int32()}
    made = {"t": t, "u": u}
    result = {}
    for name, columns in made.items():
        arrays = {n: pa.array(values, kinds.get(n)) for n, values in columns.items()}
        if "m" in arrays:
            arrays["m"] = arrays["m"].cast(pa.decimal128(10, 2))
        result[name] = pa.table(arrays)
    return result


PARTITIONS = {
    ("t", "id"): RangePartition("t", "id", LONG, (10, 20, 25, 33, 50)),
    ("t", "g"): RangePartition("t", "g", STRING, ("b", "c", "d")),
    ("t", "h"): RangePartition("t", "h", INTEGER, (1, 2, 3)),
    ("t", "d"): RangePartition("t", "d", DOUBLE, (-1.0, 0.0, 2.0)),
    ("t", "m"): RangePartition("t", "m", decimal(10, 2), (200, 450, 700)),
    ("u", "k"): RangePartition("u", "k", LONG, (8, 16, 24)),
    ("u", "g"): RangePartition("u", "g", STRING, ("b", "c", "d")),
}

QUERIES = {
    "rows": "SELECT g, v + 1 AS x FROM t WHERE v > 9",
    "distinct rows": "SELECT DISTINCT g FROM t WHERE v > 9",
    "having avg": "SELECT g, avg(v) AS a FROM t GROUP BY g HAVING avg(v) > 5.5",
    "having sum": "SELECT g, sum(v) AS s FROM t GROUP BY g HAVING sum(v) > 60",
    "having by two": "SELECT g, h FROM t GROUP BY g, h HAVING sum(v) > 15 AND count(*) > 1",
    "having count": "SELECT h, count(d) AS n FROM t WHERE v > 2 GROUP BY h HAVING count(d) >= 8",
    "having max": "SELECT g FROM t GROUP BY g HAVING max(v) >= 12",
    "having double key": "SELECT d, count(*) AS n FROM t GROUP BY d HAVING count(*) > 8",
    "computed key": "SELECT v % 3 AS r, sum(m) AS s FROM t GROUP BY v % 3 HAVING sum(m) > 70",
    "global": "SELECT sum(v) AS s FROM t WHERE h = 2",
    "global having": "SELECT sum(v) AS s FROM t WHERE h = 2 HAVING sum(v) > 10000",
    "global having kept": "SELECT sum(v) AS s FROM t WHERE h = 2 HAVING sum(v) > 10",
    "top groups": "SELECT g, sum(v) AS s FROM t GROUP BY g ORDER BY s DESC NULLS LAST, g LIMIT 2",
    "top rows": "SELECT id, v FROM t ORDER BY v DESC NULLS LAST, id LIMIT 7",
    "top rows offset": "SELECT id, v FROM t ORDER BY v DESC NULLS LAST, id LIMIT 3 OFFSET 4",
    "join": "SELECT t.id, u.w FROM t JOIN u ON t.id = u.k WHERE u.w > 3",
    "join having": (
        "SELECT t.g, sum(t.v) AS s FROM t JOIN u ON t.id = u.k GROUP BY t.g HAVING sum(t.v) > 20"
    ),
    "left join": "SELECT t.id, u.w FROM t LEFT JOIN u ON t.id = u.k WHERE t.v > 8",
    "in": "SELECT id FROM t WHERE id IN (SELECT k FROM u WHERE w > 3)",
    "exists": "SELECT t.h FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.g = t.g AND u.w > 4)",
    "not in": "SELECT id FROM t WHERE h NOT IN (SELECT w FROM u WHERE w > 2)",
    "union all": "SELECT g FROM t WHERE v > 10 UNION ALL SELECT g FROM u WHERE w > 4",
    "union": "SELECT g FROM t WHERE v > 10 UNION SELECT g FROM u WHERE w > 4",
    "intersect": "SELECT g FROM t WHERE v > 11 INTERSECT SELECT g FROM u WHERE w > 4",
    "except": "SELECT g FROM t WHERE v > 3 EXCEPT SELECT g FROM u WHERE w > 4",
    "nested": (
        "SELECT h, max(s) AS x FROM (SELECT h, g, sum(v) AS s FROM t GROUP BY h, g) q "
        "GROUP BY h HAVING max(s) > 25"
    ),
    "nested filter": (
        "SELECT count(*) AS n FROM (SELECT g, sum(v) AS s FROM t GROUP BY g HAVING sum(v) > 60) q"
    ),
    "groups joined": (
        "SELECT q.g, u.w FROM (SELECT g, sum(v) AS s FROM t GROUP BY g) q JOIN u ON q.g = u.g "
        "WHERE q.s > 60 AND u.w > 3"
    ),
    "nested top": (
        "SELECT q.id, u.w FROM (SELECT id, v FROM t ORDER BY v DESC NULLS LAST, id LIMIT 9) q "
        "JOIN u ON q.id = u.k"
    ),
    "rollup": "SELECT g, h, count(*) AS n FROM t GROUP BY ROLLUP (g, h) HAVING count(*) > 5",
    "window": "SELECT id, sum(v) OVER (PARTITION BY g) AS s FROM t WHERE v > 10",
    "pivot": "SELECT * FROM (SELECT g, h, v FROM t) "
    "PIVOT (sum(v) AS s, count(*) AS n FOR h IN (1 AS one, 2 AS two)) WHERE one_s > 20",
    "lateral view": "SELECT t.id, w FROM t LATERAL VIEW explode(array(v, h)) e AS w WHERE w > 9",
    "lateral groups": "SELECT g, w, count(*) AS n FROM t "
    "LATERAL VIEW OUTER explode(split(g, 'c')) e AS w WHERE v > 3 "
    "GROUP BY g, w HAVING count(*) > 5",
    "lateral of groups": "SELECT g, i, x FROM (SELECT g, count(*) AS n FROM t GROUP BY g) q "
    "LATERAL VIEW posexplode(sequence(1, n)) e AS i, x WHERE x > 12",
    "qualify": "SELECT id, v FROM t QUALIFY v * 3 > sum(v) OVER (PARTITION BY g)",
    "qualify groups": "SELECT g, rank() OVER (ORDER BY sum(v) DESC NULLS LAST) AS r FROM t "
    "GROUP BY g QUALIFY r <= 3",
    "qualify within groups": "SELECT g, h, count(*) AS n FROM t GROUP BY g, h "
    "QUALIFY n > 2 AND sum(n) OVER (PARTITION BY g) > 12",
    "generator": "SELECT id, posexplode(array(v, h)) AS (p, w) FROM t WHERE v > 9",
    "generator of groups": "SELECT DISTINCT x, g FROM (SELECT explode_outer(sequence(1, n)) AS x, "
    "g FROM (SELECT g, count(*) AS n FROM t GROUP BY g) q) r WHERE x > 12",
    "self join": "SELECT a.id FROM t a JOIN t b ON a.id = b.v WHERE b.h = 1",
    "common table twice": "WITH q AS (SELECT * FROM t WHERE v > 4) "
    "SELECT a.id FROM q a JOIN q b ON a.id = b.v",
}


@pytest.fixture(scope="module")
def frames(spark):
    return {name: spark.createDataFrame(table) for name, table in tables().items()}


def bag(table: pa.Table) -> Counter[str]:
    return Counter(repr(tuple(row.values())) for row in table.to_pylist())


ODD_TYPES = {"d", "m"}
ODD_TYPED_QUERIES = {"rows", "having sum", "having double key", "top groups", "nested", "window"}
"""Doubles and decimals as partition attributes take other ways only below the plan."""


def partitions_of(name, table):
    """The attributes to try on a table of a query."""
    return [
        attribute
        for of, attribute in PARTITIONS
        if of == table and (attribute not in ODD_TYPES or name in ODD_TYPED_QUERIES)
    ]


def accesses():
    for name, sql in QUERIES.items():
        for scan in scans_of(parse_query(sql, CATALOG).root):
            yield name, scan.access


@pytest.mark.parametrize("sql", QUERIES.values(), ids=QUERIES)
def test_each_query_has_a_safe_sketch(sql):
    """One that is always refused would be compared with nothing."""
    parsed = parse_query(sql, CATALOG)
    columns = [
        (scan.access, attribute)
        for scan in scans_of(parsed.root)
        for table, attribute in PARTITIONS
        if table == scan.table
    ]
    assert any(check_safety(parsed, {access: name}, FACTS).safe for access, name in columns)


@pytest.fixture(scope="module")
def results(spark, frames):
    """By query: the bag of its rows over the tables."""
    return cache(lambda name: bag(run_sql(spark, QUERIES[name], frames)))


@pytest.mark.parametrize(
    "is_rest", [False, pytest.param(True, marks=(pytest.mark.slow, pytest.mark.long))]
)
@pytest.mark.parametrize(
    ("at", "name", "access"), quarter_then_rest((n, *case) for n, case in enumerate(accesses()))
)
def test_filtered_result_is_the_result(spark, frames, results, at, name, access, is_rest):
    """Every safe sketch gives the query's own result; the cheap way finds what collecting finds.

    Of each access one attribute, of a seldom type if there is one, then the others.
    """
    parsed = parse_query(QUERIES[name], CATALOG)
    (table,) = (scan.table for scan in scans_of(parsed.root) if scan.access == access)
    own = {scan.access: frames[scan.table] for scan in scans_of(parsed.root)}
    verdicts = {
        attribute: check_safety(parsed, {access: attribute}, FACTS)
        for attribute in partitions_of(name, table)
    }
    for attribute, verdict in verdicts.items():
        if not verdict.safe:
            column = Column(attribute, PARTITIONS[table, attribute].type)
            with pytest.raises(UnsafeSketchError):
                sketch_passes(parsed, verdict, {access: column})
    safe = [attribute for attribute, verdict in verdicts.items() if verdict.safe]
    preferred = [attribute for attribute in safe if attribute in ODD_TYPES] or safe
    for attribute in safe:
        if (attribute != preferred[at // 2 % len(preferred)]) != is_rest:
            continue
        partition, verdict = PARTITIONS[table, attribute], verdicts[attribute]
        result = capture_sketches(spark, parsed, verdict, {access: partition}, own)[access]
        assert result.size == partition.size
        collected = collected_sketch(spark, parsed, verdict, access, partition, own)
        assert result.ids == collected.ids, attribute
        filtered = rewrite_sql(parsed, {access: range_filter(result, partition)})
        assert bag(run_sql(spark, filtered, frames)) == results(name), attribute


def collected_sketch(spark, query, verdict, access, partition, own):
    """The sketch by the one way that treats every operator on its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture, "_basis", lambda whole, *_: capture._Basis(None, whole=whole))
        return capture_sketches(spark, query, verdict, {access: partition}, own)[access]


@pytest.mark.parametrize(
    "name", ["having sum", "having by two", "top groups", "nested", "join having"]
)
def test_rules_change_no_sketch(spark, frames, name):
    parsed = parse_query(QUERIES[name], CATALOG)
    ruled = replace(parsed, root=apply_rules(parsed.root))
    partition = PARTITIONS["t", "g"]
    access = next(scan.access for scan in scans_of(parsed.root) if scan.table == "t")
    own = {scan.access: frames[scan.table] for scan in scans_of(parsed.root)}
    result = [
        capture_sketches(
            spark, query, check_safety(query, {access: "g"}, FACTS), {access: partition}, own
        )
        for query in (parsed, ruled)
    ]
    assert result[0] == result[1]


def test_sketch_is_accurate(spark, frames):
    """By hand: groups with sum(v) > 60, then the fragments of their rows."""
    data = tables()["t"].to_pylist()
    sums: Counter[str | None] = Counter()
    for row in data:
        sums[row["g"]] += row["v"] or 0
    partition = PARTITIONS["t", "id"]
    bounds = partition.boundaries
    expected = {
        sum(row["id"] >= b for b in bounds) if row["id"] is not None else partition.null_fragment
        for row in data
        if sums[row["g"]] > 60
    }
    parsed = parse_query(QUERIES["having sum"], CATALOG)
    verdict = check_safety(parsed, {"t#1": "id"}, FACTS)
    result = capture_sketches(spark, parsed, verdict, {"t#1": partition}, {"t#1": frames["t"]})
    assert set(result["t#1"].ids) == expected
    assert expected


def test_barrier_rows_are_in_the_sketch(spark, frames):
    """Rows of a nested top-k count even if the join drops them."""
    parsed = parse_query(QUERIES["nested top"], CATALOG)
    verdict = check_safety(parsed, {"t#1": "id"}, FACTS)
    assert verdict.barriers == 1
    own = {scan.access: frames[scan.table] for scan in scans_of(parsed.root)}
    partition = RangePartition("t", "id", LONG, tuple(range(1, ROWS)))
    result = capture_sketches(spark, parsed, verdict, {"t#1": partition}, own)["t#1"]
    top = run_sql(spark, "SELECT id FROM t ORDER BY v DESC NULLS LAST, id LIMIT 9", frames)
    ids = {partition.null_fragment if i is None else i for i in top["id"].to_pylist()}
    assert set(result.ids) == ids


TOGETHER = {
    "rows": (QUERIES["join"], {"t#1": "id", "u#1": "k"}),
    "other columns": (QUERIES["join"], {"t#1": "d", "u#1": "g"}),
    "matched": (QUERIES["in"], {"t#1": "g", "u#1": "k"}),
    "itself": (QUERIES["self join"], {"t#1": "g", "t#2": "id"}),
    "keyed": (
        "SELECT t.g, count(*) AS n FROM t JOIN u ON t.g = u.g GROUP BY t.g HAVING count(*) > 20",
        {"t#1": "g", "u#1": "g"},
    ),
    "groups": (QUERIES["join having"], {"t#1": "id", "u#1": "g"}),
    "no groups": (
        "SELECT sum(t.v) AS s FROM t JOIN u ON t.id = u.k HAVING sum(t.v) > 10000",
        {"t#1": "id", "u#1": "g"},
    ),
    "NULL keys": (
        "SELECT t.h, sum(t.v) AS s FROM t JOIN u ON t.g = u.g GROUP BY t.h HAVING sum(t.v) > 40",
        {"t#1": "id", "u#1": "k"},
    ),
    "of different kinds": (
        "SELECT t.g, sum(t.v) AS s FROM t JOIN u ON t.id = u.k GROUP BY t.g HAVING sum(t.v) > 20",
        {"t#1": "g", "u#1": "k"},
    ),
}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("sql", "sketched"), TOGETHER.values(), ids=list(TOGETHER))
def test_accesses_together_have_the_sketches_they_have_alone(spark, frames, sql, sketched):
    parsed = parse_query(sql, CATALOG)
    verdict = check_safety(parsed, sketched, FACTS)
    tables = {scan.access: scan.table for scan in scans_of(parsed.root)}
    own = {access: frames[table] for access, table in tables.items()}
    partitions = {a: PARTITIONS[tables[a], attribute] for a, attribute in sketched.items()}
    result = capture_sketches(spark, parsed, verdict, partitions, own)
    for access, partition in partitions.items():
        alone = collected_sketch(spark, parsed, verdict, access, partition, own)
        assert result[access] == alone
    filters = {a: range_filter(result[a], p) for a, p in partitions.items()}
    expected = bag(run_sql(spark, parsed.sql, frames))
    assert bag(run_sql(spark, rewrite_sql(parsed, filters), frames)) == expected


def test_frames_without_the_attribute_are_refused(spark, frames):
    parsed = parse_query(QUERIES["having sum"], CATALOG)
    verdict = check_safety(parsed, {"t#1": "id"}, FACTS)
    own = {"t#1": frames["t"].select("g", "v")}
    with pytest.raises(UsageError):
        capture_sketches(spark, parsed, verdict, {"t#1": PARTITIONS["t", "id"]}, own)
