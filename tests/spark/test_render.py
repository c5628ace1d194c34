"""Plans, expressions and recursion rendered as SQL and run, compared with the original query."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import sqlglot

from impctl.compile.session import MaintainedQuery
from impctl.data import schema
from impctl.engine import operator as limits_of
from impctl.engine.operator import LEVEL_LIMITS, LevelLimits
from impctl.errors import QueryError, UnsupportedError
from impctl.expr import nodes
from impctl.expr.functions import one_row
from impctl.plan.nodes import Plan, Select
from impctl.rules.optimize import apply_rules
from impctl.sketch.sketch import range_filter
from impctl.spark.expressions import DIALECT, boundary, literal, render_expr
from impctl.spark.predicates import rewrite_sql
from impctl.spark.render import render_plan, whole_averages
from impctl.spark.run import run_sql
from impctl.sql.statement import parse_query
from impctl.sql.text import without_recursion_limits
from tests.compile.test_recursion import (
    BAG_QUERIES,
    COLUMNS,
    DRAWN,
    bag_case,
    case_of_sql,
    change_of,
    some_row,
)
from tests.compile.test_recursion import Case as CarriedCase
from tests.plan.catalogs import REACHED, listed, net_plan, schema_of
from tests.support.carried_queries import Row, rows_kept, sketches_of
from tests.support.random_cases import quarter_then_rest
from tests.support.reference_plan import bag, evaluate
from tests.support.run_cli import refused

CATALOG = {
    "t": schema_of("id bigint, group name string, v int, d double, m decimal(10,2), day date"),
    "u": schema_of("id bigint, w int"),
}
QUERIES = [sql for (sql,) in listed("for_spark", "rendered")]


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
    return {
        name: spark.createDataFrame(pa.table(columns)) for name, columns in (("t", t), ("u", u))
    }


def bag_of(table: pa.Table) -> Counter[tuple[object, ...]]:
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def is_supported(sql: str) -> bool:
    try:
        parse_query(sql, CATALOG)
    except QueryError:
        return False
    return True


def test_all_queries_are_supported():
    assert [sql for sql in QUERIES if not is_supported(sql)] == []


@pytest.mark.spark
@pytest.mark.parametrize("sql", quarter_then_rest(QUERIES))
def test_a_rendered_plan_gives_the_same_rows(spark, frames, sql):
    """Before and after the rules."""
    expected = run_sql(spark, sql, frames)
    plan = parse_query(sql, CATALOG).root
    for root in (plan, apply_rules(plan)):
        views = {scan.access: f"view {number}" for number, scan in enumerate(root.scans)}
        view_frames = {views[scan.access]: frames[scan.table] for scan in root.scans}
        result = run_sql(spark, render_plan(root, views), view_frames)
        assert bag_of(result) == bag_of(expected)
        assert [column.type for column in result.columns] == [c.type for c in expected.columns]


def test_rendered_names_ignore_user_names():
    root = parse_query("SELECT `group name` AS `x y` FROM t", CATALOG).root
    text = render_plan(root, {"t#1": "v"})
    assert text.count("group name") == 1
    assert "x y" not in text


AVERAGE_CATALOG = {"t": schema_of("g bigint, m decimal(38,18), d double")}


def plan_of(sql: str) -> Plan:
    return apply_rules(parse_query(sql, AVERAGE_CATALOG).root)


def text_of(sql: str) -> str:
    plan = plan_of(sql)
    assert whole_averages(plan).attributes == plan.attributes
    return render_plan(plan, {scan.access: "t" for scan in plan.scans})


def test_an_average_of_decimals_is_computed_once() -> None:
    text = text_of("SELECT g, AVG(m), AVG(m) + 1 FROM t GROUP BY g HAVING AVG(m) > 0")
    assert (text.count("AVG("), text.count("SUM("), text.count("COUNT(")) == (1, 0, 0)


def test_sums_and_counts_of_the_query_stay() -> None:
    text = text_of("SELECT g, SUM(m), COUNT(m) FROM t GROUP BY g HAVING AVG(m) > 0")
    assert (text.count("AVG("), text.count("SUM("), text.count("COUNT(")) == (1, 1, 1)


def test_plans_without_decimal_averages_stay() -> None:
    for sql in ("SELECT g FROM t GROUP BY g HAVING AVG(d) > 0", "SELECT g FROM t WHERE m > 0"):
        plan = plan_of(sql)
        assert whole_averages(plan) is plan


def test_an_average_without_its_aggregates_is_refused() -> None:
    (scan,) = plan_of("SELECT * FROM t").scans
    total, count = (nodes.ColumnRef(a.id, a.type) for a in (scan.attributes[1], scan.attributes[0]))
    predicate = nodes.Compare(
        nodes.CompareOp.GREATER,
        nodes.Mean(total, count, schema.decimal(38, 22)),
        nodes.Literal(0, schema.LONG),
    )
    with pytest.raises(QueryError, match="Spark cannot capture it"):
        whole_averages(Select(scan, predicate))


A, B = nodes.ColumnRef("t.a", schema.INTEGER), nodes.ColumnRef("t.b", schema.INTEGER)
P, Q = nodes.ColumnRef("t.p", schema.BOOLEAN), nodes.ColumnRef("t.q", schema.BOOLEAN)
S = nodes.ColumnRef("t.s", schema.STRING)
NAMES = {"t.a": "c0", "t.b": "c1", "t.p": "c2", "t.q": "c3", "t.s": "c4"}


def arithmetic(op, left, right):
    return nodes.Arithmetic(nodes.ArithmeticOp(op), left, right)


TEXTS = [
    (arithmetic("*", arithmetic("+", A, B), A), "(`c0` + `c1`) * `c0`"),
    (arithmetic("-", A, arithmetic("-", B, A)), "`c0` - (`c1` - `c0`)"),
    (arithmetic("div", A, B), "`c0` DIV `c1`"),
    (arithmetic("%", nodes.Negate(A), nodes.Literal(-3, schema.INTEGER)), "(-`c0`) % (-3)"),
    (nodes.Not(nodes.And((P, Q))), "NOT (`c2` AND `c3`)"),
    (nodes.And((nodes.Or((P, Q)), P)), "(`c2` OR `c3`) AND `c2`"),
    (nodes.Or((nodes.And((P, Q)), nodes.Not(P))), "(`c2` AND `c3`) OR (NOT `c2`)"),
    (nodes.IsNull(arithmetic("+", A, B)), "(`c0` + `c1`) IS NULL"),
    (nodes.Not(nodes.IsNull(A)), "NOT (`c0` IS NULL)"),
    (nodes.Compare(nodes.CompareOp.EQUAL, nodes.IsNull(A), P), "(`c0` IS NULL) = `c2`"),
    (nodes.InList(A, (nodes.Literal(1, schema.INTEGER), B)), "`c0` IN (1, `c1`)"),
    (nodes.Like(S, "a%"), "`c4` LIKE 'a%'"),
    (nodes.Like(S, "a#%", "#"), "`c4` LIKE 'a#%' ESCAPE '#'"),
    (nodes.Coalesce((A, B)), "COALESCE(`c0`, `c1`)"),
    (
        one_row(A, None),
        "CASE WHEN `c0` <= 1 THEN TRUE ELSE RAISE_ERROR('More than one row returned by a subquery "
        "used as an expression') END",
    ),
    (nodes.Cast(A, schema.LONG), "CAST(`c0` AS BIGINT)"),
    (nodes.Case(((P, A),), B), "CASE WHEN `c2` THEN `c0` ELSE `c1` END"),
    (nodes.Call("upper", (S,)), "UPPER(`c4`)"),
]


@pytest.mark.parametrize(("expr", "text"), TEXTS)
def test_text_of_an_expression(expr, text):
    assert render_expr(expr, NAMES).sql(DIALECT) == text


def test_a_function_name_cannot_carry_sql():
    with pytest.raises(QueryError):
        render_expr(nodes.Call("upper(x); --", (S,)), NAMES)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("column", "kind", "result"),
    [("m", schema.decimal(28, 2), schema.decimal(22, 6)), ("d", schema.DOUBLE, schema.DOUBLE)],
)
def test_mean_equals_avg(spark, column, kind, result):
    amounts = [["0.01", "0.02"], ["1.00", "1.00", "1.01"], [None], ["-0.01", "0.00", "0.00"]]
    rows = [(number, text) for number, texts in enumerate(amounts) for text in texts]
    decimals = pa.array([m and Decimal(m) for _, m in rows], pa.decimal128(18, 2))
    doubles = [m and float(m) for _, m in rows]
    table = pa.table({"g": [g for g, _ in rows], "m": decimals, "d": doubles})
    total, count = nodes.ColumnRef("total", kind), nodes.ColumnRef("count", schema.LONG)
    names = {"total": "total", "count": "n"}
    mean = render_expr(nodes.Mean(total, count, result), names).sql(DIALECT)
    sql = (
        f"SELECT g, a = mean OR (a IS NULL AND mean IS NULL) AS same, typeof(a) AS x, "
        f"typeof(mean) AS y FROM (SELECT g, a, {mean} AS mean FROM "
        f"(SELECT g, avg({column}) AS a, sum({column}) AS total, count({column}) AS n "
        "FROM t GROUP BY g))"
    )
    answer = run_sql(spark, sql, {"t": spark.createDataFrame(table)})
    assert answer["same"].to_pylist() == [True] * len(amounts)
    assert answer["x"].to_pylist() == answer["y"].to_pylist()


LITERAL_TEXTS = [
    (None, schema.NULL, "NULL"),
    (None, schema.INTEGER, "CAST(NULL AS INT)"),
    (True, schema.BOOLEAN, "TRUE"),
    (5, schema.INTEGER, "5"),
    (5, schema.LONG, "5L"),
    (-5, schema.LONG, "(-5L)"),
    (-(2**63), schema.LONG, "(-9223372036854775808L)"),
    (7, schema.BYTE, "7Y"),
    (7, schema.SHORT, "7S"),
    (1.5, schema.DOUBLE, "CAST('1.5' AS DOUBLE)"),
    (math.nan, schema.DOUBLE, "CAST('NaN' AS DOUBLE)"),
    (-math.inf, schema.FLOAT, "CAST('-Infinity' AS FLOAT)"),
    (Decimal("1.50"), schema.decimal(10, 2), "CAST('1.50' AS DECIMAL(10, 2))"),
    (Decimal("1E+3"), schema.decimal(10, 0), "CAST('1000' AS DECIMAL(10, 0))"),
    ("it's", schema.STRING, r"'it\'s'"),
    (b"\x00\xff", schema.BINARY, "X'00ff'"),
    (0, schema.DATE, "CAST('1970-01-01' AS DATE)"),
    (2_932_897, schema.DATE, "DATE_FROM_UNIX_DATE(2932897)"),
    (1, schema.TIMESTAMP, "CAST('1970-01-01 00:00:00.000001Z' AS TIMESTAMP)"),
    (1, schema.TIMESTAMP_NTZ, "CAST('1970-01-01 00:00:00.000001' AS TIMESTAMP_NTZ)"),
    (10**18, schema.TIMESTAMP, "TIMESTAMP_MICROS(1000000000000000000L)"),
]


@pytest.mark.parametrize(("value", "kind", "text"), LITERAL_TEXTS)
def test_text_of_a_constant(value, kind, text):
    assert literal(value, kind).sql(DIALECT) == text


def test_unsupported_constants_are_refused():
    with pytest.raises(QueryError):
        literal(1, schema.other("array<int>"))
    with pytest.raises(QueryError):
        literal(10**18, schema.TIMESTAMP_NTZ)


BOUNDARY_TEXTS = [
    (60100, schema.decimal(10, 2), "CAST('601.00' AS DECIMAL(10, 2))"),
    (10**37 + 1, schema.decimal(38, 0), f"CAST('{10**37 + 1}' AS DECIMAL(38, 0))"),
    (0.1, schema.FLOAT, "CAST('0.1' AS DOUBLE)"),
    (0.0, schema.DOUBLE, "CAST('-0.0' AS DOUBLE)"),
    (1, schema.BOOLEAN, "TRUE"),
    ("b", schema.STRING, "'b'"),
]


@pytest.mark.parametrize(("value", "kind", "text"), BOUNDARY_TEXTS)
def test_boundary_text(value, kind, text):
    assert boundary(value, kind).sql(DIALECT) == text


STRINGS = [
    "",
    "plain",
    "it's",
    'a "quote"',
    "back\\slash",
    "\\n is not a newline",
    "a\nnewline",
    "tab\tand\rreturn",
    "\x00zero",
    "\x0012",
    "\x1a",
    "100%_\\%",
    "é 漢 😀",
    "trailing\\",
    "`ticks`",
    "${spark.app.name} and ${nothing}",
]


def selection(expressions: list[str]) -> str:
    return "SELECT " + ", ".join(f"{text} AS c{number}" for number, text in enumerate(expressions))


def values_of(spark: Any, expressions: list[str]) -> list[Any]:
    """The values that Spark computes for expressions without a table."""
    return list(run_sql(spark, selection(expressions), {}).to_pylist()[0].values())


@pytest.mark.spark
def test_spark_reads_strings_back(spark):
    texts = [literal(text, schema.STRING).sql(DIALECT) for text in STRINGS]
    assert values_of(spark, texts) == STRINGS


NUMBERS = [
    (-(2**63), schema.LONG),
    (2**63 - 1, schema.LONG),
    (-(2**31), schema.INTEGER),
    (-128, schema.BYTE),
    (5e-324, schema.DOUBLE),
    (1.7976931348623157e308, schema.DOUBLE),
    (0.1, schema.DOUBLE),
    (math.inf, schema.DOUBLE),
    (Decimal("-0.00000000000000000000000000000000000001"), schema.decimal(38, 38)),
    (Decimal("99999999999999999999999999999999999999"), schema.decimal(38, 0)),
    (b"\x00\xff'", schema.BINARY),
]


@pytest.mark.spark
def test_spark_reads_values_back_with_their_type(spark):
    frame = spark.sql(selection([literal(*number).sql(DIALECT) for number in NUMBERS]))
    assert [kind for _, kind in frame.dtypes] == [kind.spark_name for _, kind in NUMBERS]
    assert list(frame.toArrow().to_pylist()[0].values()) == [value for value, _ in NUMBERS]


@pytest.mark.spark
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kathmandu"])
def test_timestamps_do_not_depend_on_the_zone(spark, in_zone, zone):
    instants = [-1, 0, 1_667_712_600_000_000, 253_402_300_799_999_999, 253_402_300_800_000_000]
    texts = [literal(instant, schema.TIMESTAMP).sql(DIALECT) for instant in instants]
    in_zone(zone)
    assert values_of(spark, [f"unix_micros({text})" for text in texts]) == instants


@pytest.mark.spark
def test_spark_reads_dates_back(spark):
    days = [-719_162, -1, 0, 2_932_896, 2_932_897]
    texts = [f"unix_date({literal(day, schema.DATE).sql(DIALECT)})" for day in days]
    assert values_of(spark, texts) == days


SPARK_QUERIES = [
    *("two parts", "as deep as said"),
    *(pytest.param(name, marks=pytest.mark.long) for name in ("how many", "optional side")),
]
CHAIN = (
    "WITH RECURSIVE r(n){} AS (SELECT a FROM seeds UNION ALL SELECT l.b FROM r JOIN links l "
    "ON r.n = l.a) SELECT n FROM r"
)


def frames_of(spark: Any, tables: dict[str, list[Row]]) -> dict[str, Any]:
    return {
        name: spark.createDataFrame(change_of(name, rows, [1] * len(rows)).rows)
        for name, rows in tables.items()
    }


def spark_rows(spark: Any, sql: str, frames: dict[str, Any]) -> Counter[tuple[object, ...]]:
    table: pa.Table = run_sql(spark, sql, frames)
    return bag(zip(*[column.to_pylist() for column in table.columns], strict=True))


def random_tables(rng: Random, link_count: int = 7, count: int = 2) -> dict[str, list[Row]]:
    sizes = {table: link_count if table == "links" else count for table in COLUMNS}
    return {table: [some_row(rng, table) for _ in range(size)] for table, size in sizes.items()}


def loaded_query(
    case: CarriedCase, tables: dict[str, list[Row]], *, with_answer: bool
) -> MaintainedQuery:
    query = MaintainedQuery(case.compiled(with_answer=with_answer))
    query.load(DRAWN.whole(tables))
    return query


@pytest.mark.spark
@pytest.mark.parametrize("name", SPARK_QUERIES)
def test_spark_gives_the_same_rows_for_query_rewrite_and_rendered_plan(
    spark: Any, name: str
) -> None:
    rng = Random(f"spark {name}")
    case = bag_case(name)
    tables = random_tables(rng)
    query = loaded_query(case, tables, with_answer=True)
    query.step({t: change_of(t, *DRAWN.some_change(rng, t, rows, 4)) for t, rows in tables.items()})
    frames = frames_of(spark, tables)
    expected = spark_rows(spark, BAG_QUERIES[name], frames)
    assert expected
    assert rows_kept(query, case.ruled) == expected
    assert sketches_of(query) == case.expected(tables)
    filters = {
        access: range_filter(ranges, case.sketched[access])
        for access, ranges in query.ranges().items()
    }
    text = rewrite_sql(case.query, filters)
    assert text != BAG_QUERIES[name]
    assert spark_rows(spark, text, frames) == expected
    root = case.query.root
    views = {scan.access: f"view {number}" for number, scan in enumerate(root.scans)}
    view_frames = {views[scan.access]: frames[scan.table] for scan in root.scans}
    assert spark_rows(spark, render_plan(root, views), view_frames) == expected


def chain(last: int) -> dict[str, list[Row]]:
    """Tables whose recursion has one row at each of `last` levels."""
    links: list[Row] = [{"a": n, "b": n + 1, "f": 1} for n in range(1, last)]
    return {"links": links, "seeds": [{"a": 1, "f": 0}]}


def row_counts(spark: Any, sql: str, tables: dict[str, list[Row]]) -> list[int | str]:
    """The row counts of Spark and of the engine, or the codes of their errors."""
    case = case_of_sql(sql, tuple(COLUMNS))
    result: list[int | str] = []
    for rows_of in (
        lambda: spark_rows(spark, sql, frames_of(spark, tables)),
        lambda: rows_kept(loaded_query(case, tables, with_answer=True), case.ruled),
    ):
        try:
            result.append(rows_of().total())
        except UnsupportedError as error:
            result.append(error.code)
    return result


@pytest.mark.spark
@pytest.mark.long
def test_limits_are_those_of_spark(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert int(spark.conf.get("spark.sql.cteRecursionLevelLimit")) == LEVEL_LIMITS.levels
    assert int(spark.conf.get("spark.sql.cteRecursionRowLimit")) == LEVEL_LIMITS.rows
    by_clause = CHAIN.format(" MAX RECURSION LEVEL 3")
    assert row_counts(spark, by_clause, chain(3)) == [3, 3]
    assert row_counts(spark, by_clause, chain(4)) == ["recursion_limit"] * 2
    cycle = chain(2)
    cycle["links"].append({"a": 2, "b": 1, "f": 2})
    assert row_counts(spark, by_clause, cycle) == ["recursion_limit"] * 2
    no_levels = CHAIN.format(" MAX RECURSION LEVEL 0")
    assert row_counts(spark, no_levels, chain(1)) == ["recursion_limit"] * 2
    assert row_counts(spark, no_levels, {**chain(1), "seeds": []}) == [0, 0]
    monkeypatch.setattr(limits_of, "LEVEL_LIMITS", LevelLimits(rows=4))
    spark.conf.set("spark.sql.cteRecursionRowLimit", 4)
    try:
        assert row_counts(spark, CHAIN.format(""), chain(3)) == [3, 3]
        assert row_counts(spark, CHAIN.format(""), chain(4)) == ["recursion_limit"] * 2
    finally:
        spark.conf.unset("spark.sql.cteRecursionRowLimit")


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
RECURSIVE_TEXTS = {**BAG_QUERIES, "nested": NESTED, "twice, with filters of its own": TWICE}


@pytest.fixture
def connection() -> Iterator[Any]:
    with duckdb.connect() as result:
        for name, columns in COLUMNS.items():
            result.execute(f"CREATE TABLE {name} ({', '.join(f'{c} BIGINT' for c in columns)})")
        yield result


def duckdb_sql(sql: str, *, is_ruled: bool) -> str:
    root = case_of_sql(sql, ()).query.root
    root = apply_rules(root) if is_ruled else root
    text = render_plan(root, {scan.access: scan.table for scan in root.scans})
    (result,) = sqlglot.transpile(without_recursion_limits(text), read=DIALECT, write="duckdb")
    return result


@pytest.mark.parametrize("name", RECURSIVE_TEXTS)
def test_rendered_recursion_gives_the_rows_of_the_plan(name: str, connection: Any) -> None:
    """Before and after the rules."""
    rng = Random(f"written {name}")
    plan = case_of_sql(RECURSIVE_TEXTS[name], ()).query.root
    texts = [duckdb_sql(RECURSIVE_TEXTS[name], is_ruled=is_ruled) for is_ruled in (False, True)]
    rows = 0
    for _ in range(4):
        tables = random_tables(rng, 8, 3)
        for table, content in tables.items():
            connection.execute(f"DELETE FROM {table}")
            placeholders = ", ".join("?" * len(COLUMNS[table]))
            values = [[row[column] for column in COLUMNS[table]] for row in content]
            connection.executemany(f"INSERT INTO {table} VALUES ({placeholders})", values)
        expected = bag(evaluate(plan, tables))
        for text in texts:
            assert bag(connection.execute(text).fetchall()) == expected, text
        rows += expected.total()
    assert rows


def test_names_of_entries_are_unique() -> None:
    root = case_of_sql(TWICE, ()).query.root
    views = {scan.access: f"recursion_c{index}" for index, scan in enumerate(root.scans)}
    tree = sqlglot.parse_one(render_plan(root, views), dialect=DIALECT)
    names = [entry.alias for entry in tree.find_all(sqlglot.exp.CTE)]
    assert len(names) == len(set(names)) == 2
    assert not set(names) & set(views.values())


def test_the_level_limit_is_rendered() -> None:
    root = case_of_sql(BAG_QUERIES["as deep as said"], ()).query.root
    text = render_plan(root, {scan.access: scan.table for scan in root.scans})
    assert text.startswith("WITH RECURSIVE `recursion_c0` MAX RECURSION LEVEL 4 AS (SELECT")


def test_recursion_with_union_is_refused() -> None:
    plan = net_plan(REACHED + "SELECT n FROM r")
    with refused(QueryError, "capture_unsupported", "with UNION for Spark"):
        render_plan(plan, {scan.access: scan.table for scan in plan.scans})
