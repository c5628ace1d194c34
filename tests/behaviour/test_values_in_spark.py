"""Expressions, numbers and sums in all positions: every way to answer matches Spark."""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake

import impctl
from impctl.errors import (
    EvaluationError,
    ImpctlError,
    QueryError,
    RecaptureNeededError,
    UnsupportedError,
    UsageError,
)
from impctl.expr import numeric
from impctl.service import verify
from impctl.service.verify import rounded_answer, same_rows
from impctl.spark.run import run_sql
from impctl.spark.snapshots import snapshot_frame
from impctl.tables.source import open_source
from impctl.tables.write.maintenance import create_table
from tests.expr.test_claims import is_alike, shown
from tests.support.random_cases import random_seeds
from tests.support.run_cli import Capsys, Cli

pytestmark = pytest.mark.spark


def rows_of(columns: dict[str, Any], digits: int, scale: int) -> pa.Table:
    kind = pa.decimal128(digits, scale)
    return pa.table(
        {
            name: pa.array([Decimal(v) for v in values], kind)
            if isinstance(values[0], str)
            else pa.array(values, pa.int32())
            for name, values in columns.items()
        }
    )


@pytest.fixture
def create_sketched(
    tmp_path: Path, capsys: Capsys, spark: Any
) -> Callable[[str, str, pa.Table], Cli]:
    def open_with(sql: str, column: str, rows: pa.Table) -> Cli:
        create_table(str(tmp_path / "t"), rows)
        return sketched(tmp_path, capsys, sql, column, [5])

    return open_with


def sketched(folder: Path, capsys: Capsys, sql: str, column: str, boundaries: list[int]) -> Cli:
    """One query over `t`, sketched on a column with these boundaries."""
    queries = {"q": {"sql": sql, "sketch": {"t": column}}}
    partitions = {"t": {column: {"boundaries": boundaries}}}
    return Cli.asking(capsys, folder, queries, partitions=partitions)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT g FROM t GROUP BY g HAVING AVG(p) < 0.000438",
        "SELECT g FROM t GROUP BY g ORDER BY AVG(p), g LIMIT 1",
    ],
)
def test_averages_of_short_decimals(create_sketched: Any, tmp_path: Path, sql: str) -> None:
    cents = ["0.01"] * 7 + ["0.00"] * 153
    rows = rows_of({"g": [1] * 160 + [9], "p": [*cents, "5.00"]}, 7, 2)
    cli = create_sketched(sql, "g", rows)
    cli.good("capture")
    cli.verified(is_exact=False)
    # Add the same average in another range, by maintenance only.
    write_deltalake(str(tmp_path / "t"), rows_of({"g": [7] * 160, "p": cents}, 7, 2), mode="append")
    cli.good("maintain")
    cli.verified(is_exact=False)


def checked_rows(cli: Cli) -> list[Any]:
    """The rows through the sketch, after checking that they equal those without it."""
    cli.verified(is_exact=False)
    answer = cli.one("query", "--query", "q")
    rows = answer["rows"]
    assert isinstance(rows, list)
    return rows


@pytest.mark.parametrize(
    ("digits", "scale", "values", "limit"),
    [
        (7, 2, ["0.01"] * 7 + ["0.00"] * 153, "< 0.000438"),
        (38, 18, ["1E-18"] + ["0"] * 99, "> 0"),
        (25, 6, ["0.000001"] + ["0"] * 7, "> 0.0000001"),
    ],
)
def test_averages_captured_by_spark(
    create_sketched: Any, tmp_path: Path, digits: int, scale: int, values: list[str], limit: str
) -> None:
    columns = {"g": [1] * len(values), "p": values, "d": ["1"] * len(values)}
    rows = rows_of(columns, digits, scale)
    # Spark computes sums of distinct values, and so the whole condition.
    sql = (
        f"SELECT g FROM t GROUP BY g HAVING AVG(p) {limit} AND SUM(DISTINCT CAST(d AS DOUBLE)) > 0"
    )
    cli = create_sketched(sql, "g", rows)
    assert cli.one("capture")["mode"] != "exact"
    assert checked_rows(cli) == [[1]]


def test_spark_captures_groups_too_large_for_doubles(
    create_sketched: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numeric, "EXACT_DOUBLE", 10**9)
    few, many = ["5.00"] * 50, ["7.00"] * 101
    rows = rows_of({"g": [1] * 50 + [9] * 101, "p": few + many}, 7, 2)
    cli = create_sketched("SELECT g FROM t GROUP BY g HAVING AVG(p) > 6", "g", rows)
    cli.good("capture")
    assert checked_rows(cli) == [[9]]
    more = rows_of({"g": [1] * 60, "p": ["9.00"] * 60}, 7, 2)
    write_deltalake(str(tmp_path / "t"), more, mode="append")
    cli.good("maintain")
    assert sorted(checked_rows(cli)) == [[1], [9]]


def test_a_quotient_is_rounded_once(create_sketched: Any, tmp_path: Path) -> None:
    a = 45 * 10**30
    rows = rows_of({"g": [9], "a": ["1"], "b": ["1"]}, 38, 0)
    cli = create_sketched("SELECT g FROM t GROUP BY g HAVING MIN(a / b) <= 0", "g", rows)
    cli.good("capture")
    added = rows_of({"g": [1], "a": [str(a)], "b": [str(2 * 10**6 * a + 1)]}, 38, 0)
    write_deltalake(str(tmp_path / "t"), added, mode="append")
    cli.good("maintain")
    assert checked_rows(cli) == [[1]]


@pytest.mark.parametrize("condition", ["x >= CAST(0 AS BIGINT)", "x >= +0"])
def test_rounded_decimal_in_comparison_has_no_sign(create_sketched: Any, condition: str) -> None:
    tiny = ["3E-19", "-4E-19", "1"]
    rows = rows_of({"g": [1, 1, 2], "p": [1, 9, 1], "x": tiny}, 38, 30)
    sql = f"SELECT g FROM t WHERE {condition} GROUP BY g HAVING SUM(x) > 0"
    cli = create_sketched(sql, "p", rows)
    assert cli("capture").refusal == (3, "sketch_unsafe")


@pytest.mark.parametrize(
    ("digits", "scale", "value", "condition"),
    [
        (38, 18, "12345678901234567890.123456789012345678",
         "-x = -12345678901234567890.12345678901235"),
        (10, 4, "1.0000", "x / 3Y > 0.333333"),
        (10, 4, "1.0000", "x / -(3) < -0.333333"),
        (38, 30, "3.000000000000000000000000000004", "3 BETWEEN x AND 4 AND x > 3"),
        (38, 30, "3.000000000000000000000000000004", "nullif(3, x) IS NULL"),
        (38, 0, "9223372036854775807", "x div 0.1 = -10"),
    ],
)  # fmt: skip
def test_boundary_values(
    create_sketched: Any, digits: int, scale: int, value: str, condition: str
) -> None:
    rows = rows_of({"g": [1, 9], "x": [value, "0"]}, digits, scale)
    cli = create_sketched(f"SELECT g FROM t WHERE {condition} GROUP BY g", "g", rows)
    cli.good("capture")
    assert checked_rows(cli) == [[1]]


def test_a_quotient_that_wraps_has_no_sign(create_sketched: Any) -> None:
    rows = rows_of({"g": [1, 1], "p": [1, 9], "x": ["9223372036854775807", "1"]}, 38, 0)
    sql = "SELECT g FROM t WHERE x >= 0 GROUP BY g HAVING SUM(x div 0.1) > 0"
    assert create_sketched(sql, "p", rows)("capture").refusal == (3, "sketch_unsafe")


SHAPES = {
    "list": "SELECT id, {} AS v FROM t WHERE id < 9",
    "over groups": "SELECT g, {} AS v FROM (SELECT i AS g, {} FROM t GROUP BY i) AS t",
    "key": "SELECT {0} AS k, COUNT(*) AS c FROM t GROUP BY {0}",
    "condition": "SELECT id FROM t WHERE ({}) IS NOT NULL AND id < 9",
    "order": "SELECT id FROM t WHERE id < 9 ORDER BY {}, id LIMIT 3",
    "inside": "SELECT i % 2 AS g, MAX({0}) AS a, COUNT({0}) AS c FROM t GROUP BY i % 2",
}
COLUMNS = ("id", "i", "d", "f", "m", "s", "u", "url", "js", "ts", "n", "day", "flag", "x")
ORDINARY = [
    (1, 1, 1.5, 3.1415, "12.34", "ab", "40", "https://a.org/x/y", '{"a": 1}', 0, "2026-03-29",
     True, b"ab"),
    (2, 3, -2.25, 0.1, "-0.50", "b", "7", "https://b.org/", '{"b": 2}', 1, "2026-01-01", False,
     b""),
    (3, 4, 1e16, 2.5, "0.00", "Abc de", "-3", "https://c.org/z", "{}", 3600, "2024-02-29", None,
     b"\x00a"),
    (4, 5, 0.1, -1.0, "99.99", " a ", "100", "x", '{"a": 5}', 7200, "1999-12-31", True, b"zz"),
    (5, 3, None, None, None, None, None, None, None, None, None, None, None),
]  # fmt: skip
EDGES = [
    (0, 0, math.nan, math.nan, "0.00", "", "0", "", "", -1, "1970-01-01", False, b"\xff"),
    (2**62, 2**31 - 1, math.inf, math.inf, "99999999.99", "é%_", "007", "//", "{", 10**9,
     "9999-12-31", True, b"\xc3\xa9"),
    (-(2**62), -(2**31), -math.inf, -0.0, "-99999999.99", "a\nb", "1e3", "a/b/c", "null",
     -(10**9), "1582-10-15", None, b"a"),
    (7, -1, -0.0, 1e-10, "0.01", "AB", " 5 ", "/", '{"a": null}', 86399, "2026-10-25", False,
     b"AB"),
]  # fmt: skip
ROWS = {"ordinary": ORDINARY, "edges": EDGES}
BASE = 1_774_744_200_000_000
"""2026-03-29 00:30 UTC, half an hour before summer time begins in Europe."""
ZONES = ("UTC", "Europe/Berlin", "+05:30")
REFUSALS = (QueryError, RecaptureNeededError, UnsupportedError, UsageError)
"""Errors of a component that cannot answer, as opposed to failing queries. Further ones depend on
values: `not_exact`, or `answer_not_kept` after a capture."""


@cache
def expressions() -> tuple[str, ...]:
    text = Path(__file__).with_name("everyday_expressions.txt").read_text()
    return tuple(line for line in text.splitlines() if not line.startswith("#"))


def table_of(rows: Sequence[Sequence[Any]]) -> pa.Table:
    values_by_row = []
    for id, i, d, f, m, s, u, url, js, seconds, day, flag, x in rows:
        time = None if seconds is None else BASE + seconds * 1_000_000
        date_ = None if day is None else date.fromisoformat(day)
        money = None if m is None else Decimal(m)
        values_by_row.append((id, i, d, f, money, s, u, url, js, time, time, date_, flag, x))
    types = (
        pa.int64(), pa.int32(), pa.float64(), pa.float32(), pa.decimal128(10, 2), pa.string(),
        pa.string(), pa.string(), pa.string(), pa.timestamp("us", "UTC"), pa.timestamp("us"),
        pa.date32(), pa.bool_(), pa.binary(),
    )  # fmt: skip
    columns = zip(COLUMNS, types, zip(*values_by_row, strict=True), strict=True)
    return pa.table({name: pa.array(values, kind) for name, kind, values in columns})


def shape_sql(shape: str, expression: str) -> str:
    if shape == "over groups":
        maxima = ", ".join(f"MAX({name}) AS {name}" for name in COLUMNS)
        return SHAPES[shape].format(expression, maxima)
    return SHAPES[shape].format(expression)


def spark_result(spark: Any, sql: str) -> pa.Table | None:
    """Spark's result over the files; None if it fails."""
    from pyspark.errors import PySparkException

    try:
        result: pa.Table = spark.sql(sql).toArrow()
    except PySparkException:
        return None
    return result


def difference(result: pa.Table, expected: pa.Table, shape: str) -> str:
    """The difference to Spark's result; empty if they are equal.

    MIN and MAX do not keep the sign of a zero, which no function of impctl depends on.
    """
    for one, other in zip(result.schema, expected.schema, strict=True):
        if not is_alike(one.type, other.type):
            return f"{one.type} instead of {other.type}"
    ours, theirs = (
        [repr(row) for row in zip(*map(shown, table.columns), strict=True)]
        for table in (result, expected)
    )
    if shape in ("over groups", "inside"):
        ours, theirs = (
            [row.replace("(-0.0, -1.0)", "(0.0, 1.0)") for row in rows] for rows in (ours, theirs)
        )
    if shape != "order":
        ours, theirs = sorted(ours), sorted(theirs)
    return "" if ours == theirs else f"{ours} instead of {theirs}"


def find_errors(workload: Any, spark: Any, name: str, shape: str, sql: str) -> list[str]:
    """Errors in the results of one query of the workload."""
    expected, messages = spark_result(spark, sql), []
    is_kept = will_be_materialized(workload, name)
    if is_kept:
        # Otherwise the capture has no effect: Spark or the engine answers.
        try:
            workload.capture(name)
        except EvaluationError as error:
            if expected is not None:
                messages.append(f"capture: {error}")
    for by in ("auto", "state", "engine"):
        try:
            arrow = workload.query(name, by=by).to_arrow()
        except ImpctlError as error:
            is_inexact = error.code in ("not_exact", "answer_not_kept")
            may_refuse = by == "engine" or (by == "state" and (is_inexact or not is_kept))
            is_refusal = is_inexact or isinstance(error, REFUSALS)
            is_refusal = is_refusal and not isinstance(error, EvaluationError)
            if expected is not None and not (may_refuse and is_refusal):
                messages.append(f"{by}: {error.code}: {error}")
            continue
        if expected is None:
            messages.append(f"{by}: answers where Spark fails: {arrow.to_pylist()}")
            continue
        error_text = difference(arrow, expected, shape)
        if error_text:
            messages.append(f"{by}: {error_text}")
    return [f"{sql}: {one}" for one in messages]


def will_be_materialized(workload: Any, name: str) -> bool:
    """Whether `explain` shows that the result will be materialized."""
    try:
        (explained,) = workload.explain(name)
    except ImpctlError:
        return False
    return explained.answer is not None and explained.answer.kept


def find_all_errors(
    folder: Path, spark: Any, zone: str, rows: str, cases: Sequence[tuple[str, str]]
) -> list[str]:
    """Errors in the results of these expressions in these shapes."""
    create_table(str(folder / "t"), table_of(ROWS[rows]))
    queries = {f"q{index}": (shape, shape_sql(shape, e)) for index, (shape, e) in enumerate(cases)}
    lines = ["version: 1", "tables: {t: {path: t}}", "partitions: {t: {id: {boundaries: [2]}}}"]
    lines += [f'spark: {{conf: {{spark.sql.session.timeZone: "{zone}"}}}}', "queries:"]
    for name, (_, sql) in queries.items():
        lines += [f"  {name}:", "    answer: true", "    sql: |", f"      {sql}"]
    (folder / "w.yaml").write_text("\n".join(lines) + "\n")
    spark.read.parquet(str(folder / "t")).createOrReplaceTempView("t")
    result = []
    with impctl.open(folder / "w.yaml", spark=spark) as workload:
        for name, (shape, sql) in queries.items():
            result += find_errors(workload, spark, name, shape, sql)
    spark.catalog.dropTempView("t")
    return result


@pytest.mark.filterwarnings("ignore::impctl.ImpctlWarning")
@pytest.mark.parametrize("zone", ZONES)
def test_few_expressions(
    zone: str, spark: Any, in_zone: Callable[[str], None], tmp_path: Path
) -> None:
    """Test each shape in one zone; the long test covers all combinations."""
    in_zone(zone)
    random = Random(f"{zone} 1")
    cases = [(shape, random.choice(expressions())) for shape in SHAPES]
    cases = cases[ZONES.index(zone) :: len(ZONES)]
    assert find_all_errors(tmp_path, spark, zone, "ordinary", cases) == []


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::impctl.ImpctlWarning")
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("zone", ZONES)
def test_all_expressions(
    zone: str, shape: str, rows: str, spark: Any, in_zone: Callable[[str], None], tmp_path: Path
) -> None:
    in_zone(zone)
    cases = [(shape, expression) for expression in expressions()]
    assert find_all_errors(tmp_path, spark, zone, rows, cases) == []


HOUR = {"start": "2026-03-01T01:00:00+00:00", "end": "2026-03-01T02:00:00+00:00"}
QUERIES: dict[str, tuple[str, list[list[Any]]]] = {
    "window": ("SELECT window(ts, '1 hour') AS w, COUNT(*) AS n FROM t WHERE id > 2"
               " GROUP BY window(ts, '1 hour')", [[HOUR, 2]]),
    "starts": ("SELECT hour(window.start) AS h, SUM(id) AS s FROM t GROUP BY window(ts, '1 hour')"
               " HAVING SUM(id) > 3", [[1, 7]]),
    "session": ("SELECT COUNT(*) AS n FROM t GROUP BY session_window(ts, '40 minutes')", [[4]]),
    "ordered": ("SELECT g, COUNT(x) FROM t GROUP BY g ORDER BY COUNT(x) DESC, g LIMIT 1", [[1, 2]]),
    "json": ("SELECT id, from_json(s, 'x INT').x AS v FROM t WHERE id = 2", [[2, 7]]),
    "split": ("SELECT split(url, '/')[1] AS p, COUNT(*) AS n FROM t GROUP BY split(url, '/')[1]",
              [["b", 4]]),
    "placing": ("SELECT overlay(url PLACING 'xy' FROM 2 FOR 1) AS o FROM t WHERE id = 1",
                [["axyb/c"]]),
    "bits": ("SELECT x & 6 AS a, x | 1 AS o, x ^ 3 AS e, ~x AS n, x << 2 AS l FROM t"
             " WHERE x & 1 = 1 AND id > 2", [[2, 3, 0, -4, 12]]),
    "try_cast": ("SELECT TRY_CAST(url AS INT) AS n, TRY_CAST('12' AS BIGINT) AS m FROM t LIMIT 1",
                 [[None, 12]]),
    "all": ("SELECT id, g FROM t WHERE id > 2 ORDER BY ALL", [[3, 2], [4, 2]]),
}  # fmt: skip
NOT_QUERIES = ("INSERT INTO t SELECT * FROM t", "SELECT TRANSFORM(id) USING 'cat' FROM t",
               "WITH n AS (SELECT 1) INSERT INTO t SELECT * FROM t")  # fmt: skip


def test_spark_answers_unsupported_queries(tmp_path: Path, capsys: Capsys, spark: Any) -> None:
    start = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
    times = [start + datetime.timedelta(minutes=30 * k) for k in range(4)]
    rows = {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "g": pa.array([1, 1, 2, 2], pa.int32()),
        "x": pa.array([1, 2, 3, 4], pa.int32()),
        "ts": pa.array(times, pa.timestamp("us", tz="UTC")),
        "s": ['{"x":7}'] * 4,
        "url": ["a/b/c"] * 4,
    }
    create_table(str(tmp_path / "t"), pa.table(rows))
    queries = {name: sql for name, (sql, _) in QUERIES.items()}
    queries |= {f"no{index}": sql for index, sql in enumerate(NOT_QUERIES)}
    cli = Cli.asking(capsys, tmp_path, queries, partitions={"t": {"g": {"boundaries": [2]}}})
    checked = {result["query"] for result in cli("check").results}
    assert checked >= set(QUERIES)
    for name, (_, expected) in QUERIES.items():
        ran = cli.good("query", "--query", name)
        assert ran.results[0]["rows"] == expected, name
        assert name == "ordered" or ran.results[0]["by"] == "spark", name
        assert len(ran.document["warnings"]) == 1, name
    for index in range(len(NOT_QUERIES)):
        ran = cli("query", "--query", f"no{index}")
        assert (ran.code, ran.document["results"]) == (3, []), index


SHOWN_QUERIES = {
    "listed": "SELECT g, SORT_ARRAY(COLLECT_LIST(x)) AS m FROM t GROUP BY g HAVING COUNT(*) > 9",
    "set": "SELECT g, SIZE(COLLECT_SET(x)) AS m, PERCENTILE_APPROX(x, 0.5) AS p FROM t GROUP BY g"
    " HAVING SUM(x) > 22",
    "top": "SELECT g, MAX(x) AS x, SIZE(COLLECT_LIST(x)) AS m FROM t GROUP BY g"
    " ORDER BY COUNT(*) DESC, g LIMIT 3",
    "joined": "SELECT a.g, a.m FROM (SELECT g, SIZE(COLLECT_SET(x)) AS m, COUNT(*) AS n FROM t"
    " GROUP BY g) a JOIN (SELECT g, SUM(x) AS s FROM t GROUP BY g) b ON a.g = b.g AND a.n < b.s",
}
"""The outputs depend on whole groups, so equal results show that the groups were complete."""


def test_outputs_use_complete_groups(tmp_path: Path, capsys: Capsys) -> None:
    rng = random.Random(5)
    write_deltalake(str(tmp_path / "t"), _rows(rng, 400))
    cli = Cli.asking(capsys, tmp_path, SHOWN_QUERIES, partitions={"t": {"g": {"ranges": 20}}})
    cli.good("capture")
    for _ in range(2):
        write_deltalake(str(tmp_path / "t"), _rows(rng, 30), mode="append")
        DeltaTable(str(tmp_path / "t")).delete(f"g = {rng.randrange(40)}")
        cli.good("maintain")
    cli.verified()
    for name in SHOWN_QUERIES:
        assert _answer(cli, name, "always") == _answer(cli, name, "never"), name


def _rows(rng: random.Random, count: int) -> pa.Table:
    groups = [rng.randrange(40) for _ in range(count)]
    return pa.table({"g": groups, "x": [rng.randrange(5) for _ in range(count)]})


def _answer(cli: Cli, name: str, use: str) -> list[Any]:
    result = cli.one("query", "--query", name, "--sketch", use)
    assert result["rows"]
    return sorted(map(repr, result["rows"]))


HUGE = [9 * 10**18, 1, 1, -9 * 10**18]
CANCELLING_ROWS = pa.table(
    {
        "g": [1] * 4 + [2] * 4 + [3] * 4,
        "n": pa.array([*HUGE, 3, 4, 5, 7, -2, 2, 5, 6], pa.int64()),
        "x": [1e16, 1.0, 1.0, -1e16, 0.25, 0.5, 1.0, 2.0, -1e3, 1e3, 0.5, 0.125],
        "y": [1e9 + k for k in range(12)],
    }
)
VALUES = """
    AVG(n) AS average, SUM(x) AS total, SUM(x) FILTER (WHERE n <> 3) AS filtered,
    stddev(y) AS spread, var_pop(y) AS variance, SUM(x) + 1 AS shifted, -AVG(x) AS negated,
    3 * SUM(x) - COUNT(*) AS scaled, SUM(x) / COUNT(*) AS quotient,
    SUM(y) / (SUM(x) + 1) AS inverse, SUM(x) * SUM(x) AS product,
    abs(SUM(x)) AS size, sqrt(abs(SUM(x))) AS root,
    CASE WHEN g > 1 THEN SUM(x) ELSE AVG(x) END AS chosen, coalesce(SUM(x), 0D) AS filled
"""
SPREADS = (4, 5)
"""Variances of values far from zero have larger errors."""
CANCELLING_SHAPES = {
    "values": f"SELECT g, {' '.join(VALUES.split())} FROM t GROUP BY g",
    "nested": "SELECT MAX(s) AS a, SUM(s) AS b, AVG(s) AS c FROM"
    " (SELECT g, SUM(x) AS s FROM t WHERE id > 0 GROUP BY g)",
    "united": "SELECT g, SUM(x) AS v FROM t GROUP BY g UNION ALL SELECT g, 1D FROM t WHERE g = 2",
    "joined": "SELECT a.id, v FROM t AS a JOIN (SELECT g, SUM(x) AS v FROM t GROUP BY g) AS b"
    " ON a.g = b.g",
    "windowed": "SELECT id, SUM(x) OVER (PARTITION BY g) AS v FROM t",
    "ranked": "SELECT g, SUM(x) AS v FROM t GROUP BY g ORDER BY g LIMIT 2",
}


@pytest.fixture
def sums(tmp_path: Path, capsys: Capsys, spark: Any) -> Cli:
    rows = CANCELLING_ROWS.append_column("id", pa.array(range(1, 13), pa.int64()))
    create_table(str(tmp_path / "t"), rows)
    more = {"partitions": {"t": {"g": {"boundaries": [2, 3]}}}, "defaults": {"answer": True}}
    return Cli.asking(capsys, tmp_path, CANCELLING_SHAPES, **more)


def test_tolerance_is_tight(sums: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """For values that do not cancel, a relative difference of 1e-6 is an error."""
    answers_by_query = {}

    def record(ctx: Any, prepared: Any, versions: Any) -> Any:
        answers_by_query[prepared.spec.name] = result = rounded_answer(ctx, prepared, versions)
        return result

    monkeypatch.setattr(verify, "rounded_answer", record)
    for result in sums.captured().verified(is_exact=False):
        assert result["answer_equal"] is True, result
    rows, errors = answers_by_query["values"]
    assert len(rows[0]) == 16
    for index, row in enumerate(rows):
        for column, value in enumerate(row):
            if row[0] != 2 or not isinstance(value, float):
                continue
            wrong = [list(one) for one in rows]
            wrong[index][column] = value * (1 + (1e-3 if column in SPREADS else 1e-6))
            assert not same_rows(wrong, rows, errors=errors), column


def test_wrong_stored_value_is_reported(
    sums: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    materialized = verify._materialized

    def wrong(ctx: Any, prepared: Any, stored: Any) -> Any:
        rows = materialized(ctx, prepared, stored)
        assert rows is not None
        return [(g, v + 1 if g == 2 else v) for g, v in rows]

    monkeypatch.setattr(verify, "_materialized", wrong)
    one = ("--query", "ranked")
    ran = sums.captured(*one)("verify", "--results", *one)
    assert ran.error["code"] == "sketch_unsound"


PROPERTIES = WriterProperties(max_row_group_size=2)


def rows_with_nan(rows: list[tuple[int, float | None]], kind: pa.DataType) -> pa.Table:
    schema = pa.schema({"g": pa.int64(), "d": kind})
    return pa.table([[g for g, _ in rows], [d for _, d in rows]], schema=schema)


def without_pushdown(spark: Any, folder: Path, sql: str) -> list[tuple[Any, ...]]:
    """Spark's result without filter pushdown."""
    spark.conf.set("spark.sql.parquet.filterPushdown", "false")
    try:
        return with_pushdown(spark, folder, sql)
    finally:
        spark.conf.unset("spark.sql.parquet.filterPushdown")


def with_pushdown(spark: Any, folder: Path, sql: str) -> list[tuple[Any, ...]]:
    """Spark's result over the files with its default settings."""
    frame = snapshot_frame(spark, open_source("t", str(folder / "t")).snapshot(), is_guarded=False)
    return shown_with_nan(run_sql(spark, sql, {"t": frame}).to_pylist())


def shown_with_nan(rows: list[Any]) -> list[tuple[Any, ...]]:
    plain = [tuple(row.values()) if isinstance(row, dict) else tuple(row) for row in rows]
    # -0.0 becomes 0.0, and NaN equals NaN.
    return sorted([tuple(repr(v + 0 if isinstance(v, float) else v) for v in r) for r in plain])


HIDDEN = [(1, 6.0), (1, 7.0), (1, 0.5), (1, math.nan), (2, 8.0), (2, 1.0), (3, 1.0), (3, math.nan)]
COUNTED_QUERY = "SELECT g, COUNT(*) AS c FROM t WHERE d >= 5 GROUP BY g HAVING COUNT(*) = 1"


@pytest.mark.parametrize("column", ["g", "d"])
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=["double", "float"])
def test_nan_hidden_by_statistics_is_counted(spark, tmp_path, capsys, kind, column):
    """Three rows of group 1 pass, one of them NaN; of group 3, only the NaN."""
    sql = COUNTED_QUERY if column == "g" else "SELECT g FROM t WHERE d >= 5"
    write_deltalake(tmp_path / "t", rows_with_nan(HIDDEN, kind), writer_properties=PROPERTIES)
    cli = sketched(tmp_path, capsys, sql, column, [2, 3])
    cli.good("capture")
    expected = without_pushdown(spark, tmp_path, sql)
    assert expected != with_pushdown(spark, tmp_path, sql)
    verified = cli.one("verify", "--results")
    assert (verified["covers"], verified["results_equal"]) == (True, True)
    assert result_rows(cli.one("query", "--query", "q")) == expected
    # Users run this SQL on Spark with default settings.
    assert with_pushdown(spark, tmp_path, cli.one("rewrite", "--query", "q")["sql"]) == expected
    setting = spark.conf.get("spark.sql.parquet.filterPushdown")
    with impctl.open(cli.workload) as workload:
        frame = workload.dataframe("q")
        assert shown_with_nan([row.asDict() for row in frame.collect()]) == expected
    assert spark.conf.get("spark.sql.parquet.filterPushdown") == setting == "true"


def result_rows(result: dict[str, Any]) -> list[tuple[Any, ...]]:
    rows = result["rows"]
    return shown_with_nan([[math.nan if cell == "NaN" else cell for cell in row] for row in rows])


POOL = [None, 0.0, -0.0, 0.5, 1.0, 1.0, 2.0, 6.0, math.nan, math.nan]
CONSTANTS = ["0", "0.5", "-0.0D", "1", "2", "5", "7", "double('NaN')"]


def random_condition(rng: random.Random) -> str:
    one, other = rng.choice(CONSTANTS), rng.choice(CONSTANTS)
    atom = rng.choice(
        [
            *(f"d {op} {one}" for op in ("<", "<=", "=", "<>", ">=", ">", "<=>")),
            f"d IN ({one}, {other})",
            f"d BETWEEN {one} AND {other}",
        ]
    )
    atom = f"NOT ({atom})" if rng.random() < 0.4 else atom
    return f"({atom} OR g < 1)" if rng.random() < 0.2 else atom


def random_sql(rng: random.Random) -> str:
    where = " AND ".join(random_condition(rng) for _ in range(rng.choice([1, 1, 2])))
    having = f"COUNT(*) {rng.choice(['=', '>=', '<='])} {rng.randint(1, 3)}"
    return rng.choice(
        [
            f"SELECT g, d FROM t WHERE {where}",
            f"SELECT g, COUNT(*) AS c FROM t WHERE {where} GROUP BY g HAVING {having}",
            f"SELECT d, COUNT(*) AS c FROM t WHERE {where} GROUP BY d HAVING {having}",
            f"SELECT t.g FROM t JOIN (SELECT g AS h, d AS e FROM t WHERE {where}) u ON d = e",
        ]
    )


@random_seeds(1, 2, 8)
def test_all_ways_give_correct_results(spark, tmp_path, capsys, seed):
    rng = random.Random(seed)
    kind = rng.choice([pa.float64(), pa.float32()])
    for batch in range(2):
        rows = [(rng.randint(0, 4), rng.choice(POOL)) for _ in range(rng.randint(2, 14))]
        rows.sort(key=lambda row: repr(row[1]) if rng.random() < 0.3 else "")
        write_deltalake(
            tmp_path / "t",
            rows_with_nan(rows, kind),
            mode="append" if batch else "error",
            writer_properties=PROPERTIES,
        )
        if not batch:
            sql = random_sql(rng)
            column = rng.choice(["g", "d"])
            other = "d" if column == "g" else "g"
            cli = sketched(tmp_path, capsys, sql, column, rng.choice([[1, 3], [0, 2], [5]]))
            if cli("capture").code == 3:
                cli = sketched(tmp_path, capsys, sql, other, [1, 3])
                if cli("capture").code == 3:
                    return
        else:
            cli.good("maintain")
        label = (seed, sql, rows)
        expected = without_pushdown(spark, tmp_path, sql)
        (verified, *_) = cli.good("verify", "--results").results
        assert (verified["covers"], verified["results_equal"]) == (True, True), label
        answer = cli.one("query", "--query", "q")
        assert result_rows(answer) == expected, label
        text = cli.one("rewrite", "--query", "q")
        assert with_pushdown(spark, tmp_path, text["sql"]) == expected, label
