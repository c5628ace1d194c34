"""Constants of time are what Spark makes of them, in sessions of several time zones."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from impctl.data.vector import from_arrow
from impctl.expr.evaluate import Evaluator, find_blocker
from impctl.expr.nodes import Expr, Literal
from tests.plan.catalogs import selected
from tests.support.schemas import schema_of

SCHEMA = schema_of("h timestamp, n timestamp_ntz, d date")
NOON = datetime(2024, 2, 29, 12, 0, 0, 5)
CONSTANTS = [
    "TIMESTAMP '2024-02-29 12:00:00'",
    "TIMESTAMP '2024-02-29T23:59:59.999999'",
    "TIMESTAMP '2024-02-29'",
    "TIMESTAMP '2024-02-29 12:00:00+01:30'",
    "TIMESTAMP '0001-01-03 00:00:00'",
    "TIMESTAMP '1582-10-10 00:00:00'",
    "TIMESTAMP_NTZ '2024-02-29 12:00:00.5'",
    "TIMESTAMP '2024-03-31 12:00:00' - INTERVAL 1 MONTH",
    "TIMESTAMP '2024-02-29 12:00:00' - INTERVAL 1 YEAR",
    "TIMESTAMP '2024-02-29 00:30:00' + INTERVAL 3 DAYS",
    "TIMESTAMP '2024-02-29 00:30:00' - INTERVAL 2 WEEKS",
    "TIMESTAMP '2024-02-29 00:30:00' - INTERVAL 31 MINUTES",
    "TIMESTAMP '2024-02-29 00:30:00' + INTERVAL 86401 SECONDS",
    "TIMESTAMP '2024-01-01 00:00:00Z' - INTERVAL 1 MONTH",
    "TIMESTAMP_NTZ '2024-01-31 10:00:00' + INTERVAL 1 MONTH",
    "DATE '2024-03-31' - INTERVAL 1 MONTH",
    "DATE '2024-03-31' + INTERVAL 5 HOURS",
    "CAST('2024-03-31' AS DATE) - INTERVAL 30 DAYS",
    "CAST('2024-03-31 10:00:00' AS TIMESTAMP)",
    "CAST('2024-03-31' AS TIMESTAMP) + INTERVAL 1 DAY",
    "CAST('2024-03-31 10:00:00' AS TIMESTAMP_NTZ)",
    "CAST(DATE '2024-03-31' AS TIMESTAMP)",
    "CAST(TIMESTAMP '2024-03-31 23:30:00Z' AS DATE)",
    "date('2024-03-31')",
    "timestamp('2024-03-31 01:02:03')",
    "to_date('2024-03-31')",
    "to_timestamp('2024-03-31 01:02:03')",
    "date_sub(DATE '2024-03-31', 30)",
    "add_months(CAST('2024-03-31' AS DATE), -1)",
    "date_trunc('MONTH', TIMESTAMP '2024-03-31 01:02:03')",
    "trunc(DATE '2024-03-31', 'YEAR')",
    "last_day(DATE '2024-02-01')",
]
CONDITIONS = [
    "h >= '2024-02-29'",
    "h < '2024-02-29 12:00:00.000005'",
    "'2024-02-29T12:00:00' <= h",
    "h > DATE '2024-02-29'",
    "h = '2024-02-29 12:00:00+00:00'",
    "n >= '2024-02-29 12:00:00'",
    "n < DATE '2024-03-01'",
    "d >= '2024-02-29'",
    "d < CAST('2024-03-31' AS DATE) - INTERVAL 1 MONTH",
    "h BETWEEN '2024-02-28 12:00:00' AND TIMESTAMP '2024-02-29 12:00:00'",
    "h BETWEEN DATE '2024-02-29' AND DATE '2024-02-29'",
    "h IN ('2024-02-29', TIMESTAMP '2024-02-29 12:00:00', DATE '2024-03-01')",
    "d IN ('2024-02-29', '2024-03-01')",
    "h <> '2024-02-29' AND h IS NOT NULL",
    "CASE h WHEN '2024-02-29' THEN true ELSE false END",
    "h >= TIMESTAMP '2024-03-01 00:00:00' - INTERVAL 1 DAY",
]
ZONES = ("UTC", "+05:30", "-03:00")


def expr_of(sql: str, zone: str) -> Expr:
    return selected(f"SELECT {sql} AS x FROM t", {"t": SCHEMA}, zone)


def rows() -> pa.Table:
    moments = [NOON + timedelta(microseconds=step) for step in (-5, -1, 0, 1)]
    moments += [datetime(2024, 2, 29) + timedelta(hours=h, microseconds=m)
                for h in (-30, -24, -6, -3, 0, 3, 6, 24) for m in (-1, 0)]  # fmt: skip
    aware = pa.array([*(m.replace(tzinfo=UTC) for m in moments), None], pa.timestamp("us", "UTC"))
    local = pa.array([*moments, None], pa.timestamp("us"))
    return pa.table({"h": aware, "n": local, "d": local.cast(pa.date32(), safe=False)})


@pytest.mark.parametrize("sql", CONSTANTS)
def test_constants_of_time_are_literals_where_the_zone_is_an_offset(sql: str) -> None:
    for zone in ZONES:
        assert isinstance(expr_of(sql, zone), Literal)


@pytest.mark.parametrize("sql", CONDITIONS)
def test_the_engine_has_conditions_with_them(sql: str) -> None:
    assert find_blocker(expr_of(sql, "UTC")) is None


@pytest.mark.parametrize(
    "sql",
    [
        "TIMESTAMP '2024-02-29 12:00:00'",
        "CAST('2024-02-29 12:00:00' AS TIMESTAMP)",
        "CAST(DATE '2024-02-29' AS TIMESTAMP)",
        "TIMESTAMP '2024-02-29 12:00:00Z' + INTERVAL 1 DAY",
        "DATE '2024-02-29' + INTERVAL 1 HOUR",
        "to_timestamp('2024-02-29 12:00:00')",
        "h >= '2024-02-29'",
        "h >= DATE '2024-02-29'",
    ],
)
def test_in_a_region_they_are_left_to_spark(sql: str) -> None:
    expr = expr_of(sql, "Europe/Berlin")
    assert not isinstance(expr, Literal)
    assert find_blocker(expr) is not None


@pytest.mark.parametrize(
    "sql",
    [
        "CAST('2024-2-9' AS DATE)",
        "CAST(' 2024-02-29' AS TIMESTAMP)",
        "CAST('2024-02-30' AS DATE)",
        "CAST('2024-02-29 12:00:00 Europe/Berlin' AS TIMESTAMP)",
        "CAST('12:00:00' AS TIMESTAMP)",
        "CAST('2024-02-29 12:00:00Z' AS TIMESTAMP_NTZ)",
        "TIMESTAMP '9999-12-31 00:00:00' + INTERVAL 1 YEAR",
        "to_date('2024-02-29', 'yyyy-MM-dd')",
    ],
)
def test_what_leaves_something_open_is_left_to_spark(sql: str) -> None:
    assert not isinstance(expr_of(sql, "UTC"), Literal)


def micros(value: Any) -> Any:
    if isinstance(value, datetime):
        epoch = datetime(1970, 1, 1, tzinfo=value.tzinfo)
        return (value - epoch) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - date(1970, 1, 1)).days
    return value


@pytest.mark.spark
@pytest.mark.parametrize("zone", ZONES)
def test_spark_computes_the_same(zone: str, spark: Any, in_zone: Callable[[str], None]) -> None:
    from impctl.spark.run import run_sql

    in_zone(zone)
    selected = ", ".join(f"{sql} AS x{at}" for at, sql in enumerate(CONSTANTS))
    result = run_sql(spark, f"SELECT {selected}", {})
    for sql, column in zip(CONSTANTS, result.columns, strict=True):
        expr = expr_of(sql, zone)
        assert isinstance(expr, Literal)
        assert expr.value == micros(column[0].as_py()), (sql, zone)


READ = """timestamp_micros(h) AS h, date_from_unix_date(d) AS d,
    TIMESTAMP_NTZ '1970-01-01 00:00:00' + (n DIV 1000000) * INTERVAL '1' SECOND
    + make_dt_interval(0, 0, 0, (n % 1000000) / 1000000D) AS n"""


def written(table: pa.Table) -> list[str]:
    """The rows as numbers, so that no zone has a say in them."""
    columns = [[micros(value) for value in table[name].to_pylist()] for name in "hnd"]
    texts = [["NULL" if value is None else str(value) for value in column] for column in columns]
    return [f"({', '.join(row)})" for row in zip(*texts, strict=True)]


@pytest.mark.spark
@pytest.mark.parametrize("zone", ZONES)
def test_conditions_are_true_of_the_same_rows(
    zone: str, spark: Any, in_zone: Callable[[str], None]
) -> None:
    from impctl.spark.run import run_sql

    in_zone(zone)
    table = rows()
    columns = {f"t#1.{c.name}": from_arrow(table[c.name], c.type) for c in SCHEMA}
    view = f"SELECT {READ} FROM VALUES {', '.join(written(table))} AS v(h, n, d)"
    selected = ", ".join(f"({sql}) AS x{at}" for at, sql in enumerate(CONDITIONS))
    result = run_sql(spark, f"SELECT {selected} FROM ({view})", {})
    for sql, column in zip(CONDITIONS, result.columns, strict=True):
        vector = Evaluator(expr_of(sql, zone)).values(columns, len(table))
        ours = [bool(value) if ok else None
                for value, ok in zip(vector.values, vector.validity(), strict=True)]  # fmt: skip
        assert ours == column.to_pylist(), (sql, zone)
