"""Expressions as people write them, wherever they stand: whoever answers, it is Spark's answer.

What Spark answers, `query` answers by default, with Spark's types; the engine and the kept rows
give the same or say that they cannot. By hand, all of it in three time zones: `-m long` (hours).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import impctl
from impctl.errors import (
    EvaluationError,
    ImpctlError,
    QueryError,
    RecaptureNeededError,
    UnsupportedError,
    UsageError,
)
from impctl.tables.write.maintenance import create_table
from tests.expr.claims import is_alike, shown

pytestmark = pytest.mark.spark

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
"""What says that somebody cannot answer, not that the query fails. Whether a value can be computed
may depend on it: `not_exact`, or `answer_not_kept` after a capture."""


@cache
def expressions() -> tuple[str, ...]:
    text = Path(__file__).with_name("everyday_expressions.txt").read_text()
    return tuple(line for line in text.splitlines() if not line.startswith("#"))


def table_of(rows: Sequence[Sequence[Any]]) -> pa.Table:
    made = []
    for id, i, d, f, m, s, u, url, js, seconds, day, flag, x in rows:
        at = None if seconds is None else BASE + seconds * 1_000_000
        on = None if day is None else date.fromisoformat(day)
        money = None if m is None else Decimal(m)
        made.append((id, i, d, f, money, s, u, url, js, at, at, on, flag, x))
    types = (
        pa.int64(), pa.int32(), pa.float64(), pa.float32(), pa.decimal128(10, 2), pa.string(),
        pa.string(), pa.string(), pa.string(), pa.timestamp("us", "UTC"), pa.timestamp("us"),
        pa.date32(), pa.bool_(), pa.binary(),
    )  # fmt: skip
    columns = zip(COLUMNS, types, zip(*made, strict=True), strict=True)
    return pa.table({name: pa.array(values, kind) for name, kind, values in columns})


def written(shape: str, expression: str) -> str:
    if shape == "over groups":
        maxima = ", ".join(f"MAX({name}) AS {name}" for name in COLUMNS)
        return SHAPES[shape].format(expression, maxima)
    return SHAPES[shape].format(expression)


def plainly(spark: Any, sql: str) -> pa.Table | None:
    """Spark's own answer over the files; None where it fails."""
    from pyspark.errors import PySparkException

    try:
        result: pa.Table = spark.sql(sql).toArrow()
    except PySparkException:
        return None
    return result


def difference(result: pa.Table, expected: pa.Table, shape: str) -> str:
    """What is not as Spark has it; empty if all is.

    MIN and MAX do not keep the sign of a zero, which no function that impctl computes can tell.
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


def complaints(opened: Any, spark: Any, name: str, shape: str, sql: str) -> list[str]:
    """What is wrong with the answers of one query of the workload."""
    expected, said = plainly(spark, sql), []
    is_kept = is_to_be_kept(opened, name)
    if is_kept:
        # Else it is as good as never captured: Spark answers, or the engine by itself.
        try:
            opened.capture(name)
        except EvaluationError as error:
            if expected is not None:
                said.append(f"capture: {error}")
    for by in ("auto", "state", "engine"):
        try:
            arrow = opened.query(name, by=by).to_arrow()
        except ImpctlError as error:
            is_inexact = error.code in ("not_exact", "answer_not_kept")
            may_refuse = by == "engine" or (by == "state" and (is_inexact or not is_kept))
            is_refusal = is_inexact or isinstance(error, REFUSALS)
            is_refusal = is_refusal and not isinstance(error, EvaluationError)
            if expected is not None and not (may_refuse and is_refusal):
                said.append(f"{by}: {error.code}: {error}")
            continue
        if expected is None:
            said.append(f"{by}: answers where Spark fails: {arrow.to_pylist()}")
            continue
        wrong = difference(arrow, expected, shape)
        if wrong:
            said.append(f"{by}: {wrong}")
    return [f"{sql}: {one}" for one in said]


def is_to_be_kept(opened: Any, name: str) -> bool:
    """Whether impctl says beforehand that it keeps the answer's rows."""
    try:
        (explained,) = opened.explain(name)
    except ImpctlError:
        return False
    return explained.answer is not None and explained.answer.kept


def wrong_answers(
    folder: Path, spark: Any, zone: str, rows: str, cases: Sequence[tuple[str, str]]
) -> list[str]:
    """Complaints about these shapes of these expressions."""
    create_table(str(folder / "t"), table_of(ROWS[rows]))
    queries = {f"q{at}": (shape, written(shape, e)) for at, (shape, e) in enumerate(cases)}
    lines = ["version: 1", "tables: {t: {path: t}}", "partitions: {t: {id: {boundaries: [2]}}}"]
    lines += [f'spark: {{conf: {{spark.sql.session.timeZone: "{zone}"}}}}', "queries:"]
    for name, (_, sql) in queries.items():
        lines += [f"  {name}:", "    answer: true", "    sql: |", f"      {sql}"]
    (folder / "w.yaml").write_text("\n".join(lines) + "\n")
    spark.read.parquet(str(folder / "t")).createOrReplaceTempView("t")
    result = []
    with impctl.open(folder / "w.yaml", spark=spark) as opened:
        for name, (shape, sql) in queries.items():
            result += complaints(opened, spark, name, shape, sql)
    spark.catalog.dropTempView("t")
    return result


@pytest.mark.filterwarnings("ignore::impctl.ImpctlWarning")
@pytest.mark.parametrize("zone", ZONES)
def test_some_expressions(
    zone: str, spark: Any, in_zone: Callable[[str], None], tmp_path: Path
) -> None:
    in_zone(zone)
    random = Random(f"{zone} 1")
    cases = [(shape, random.choice(expressions())) for shape in SHAPES for _ in range(3)]
    assert wrong_answers(tmp_path, spark, zone, "ordinary", cases) == []


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
    assert wrong_answers(tmp_path, spark, zone, rows, cases) == []
