"""Every expression that the evaluator accepts, against Spark, on difficult values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import Struct

from impctl.data.schema import (
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Column,
    Kind,
    Schema,
    SqlType,
    decimal,
)
from impctl.data.vector import Vector, from_arrow
from impctl.errors import EvaluationError, ImpctlError, NotExactError
from impctl.expr.evaluate import Columns, Evaluator, find_blocker
from impctl.expr.functions import FUNCTIONS as FUNCTION_LIST
from impctl.expr.functions import ONE_ROW
from impctl.expr.nodes import Expr
from impctl.expr.numeric import INTEGRAL_BITS, mean, most_rows
from impctl.expr.types import average_type, fixed_offset, sum_type, type_of
from impctl.spark.expressions import render_expr
from tests.plan.catalogs import selected
from tests.support.random_cases import random_seeds
from tests.support.spark_values import asked

MOMENTS = [
    None, 0, -1, 1_711_846_799_999_999, 1_711_846_800_000_000, -12_219_292_800_000_001,
    1_635_642_000_000_000, -62_135_596_800_000_000,
]  # fmt: skip
"""Values around the epoch, European daylight saving changes, 1582 and year 1."""


def decimals(texts: str) -> list[Decimal | None]:
    return [None if text == "NULL" else Decimal(text) for text in texts.split()]


TYPES: dict[str, tuple[SqlType, pa.DataType, list[Any]]] = {
    "i": (INTEGER, pa.int32(), [None, 0, 1, -1, 7, 2**31 - 1, -(2**31), 3]),
    "l": (LONG, pa.int64(), [None, 0, 2, -3, 2**53 + 1, -(2**62), 5, 10]),
    "d": (DOUBLE, pa.float64(), [None, 0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, 1e16]),
    "e": (DOUBLE, pa.float64(), [1.0, math.nan, 0.0, 1.5, math.nan, 2.0, None, -1e300]),
    "f": (FLOAT, pa.float32(), [None, 0.5, -0.0, 0.1, math.nan, math.inf, 3.25, 1e10]),
    "m": (
        decimal(10, 2),
        pa.decimal128(10, 2),
        decimals("NULL 0.00 1.25 -2.50 99999999.99 0.01 -0.01 3.10"),
    ),
    "n": (
        decimal(38, 4),
        pa.decimal128(38, 4),
        decimals(
            "1.0000 NULL -12345678901234567890.1234 2.5000 0.0001 9007199254740993.0000 -7.0000 "
            "3.3333"
        ),
    ),
    "s": (STRING, pa.string(), [None, "", "a", "ab", "é", "B", "a%", "z\U0001f600"]),
    "b": (BOOLEAN, pa.bool_(), [None, True, False, True, False, None, True, False]),
    "t": (DATE, pa.date32(), [None, 0, 19000, -5, 18993, 1, 2, 3]),
    "w": (
        DATE,
        pa.date32(),
        # 0001-01-01, 1582-10-04, 1900-02-28, 2000-02-29, 2021-01-03, 9999-12-31
        [-719162, None, -141428, -25509, 11016, 18630, 2932896, -1],
    ),
    "h": (TIMESTAMP, pa.timestamp("us", "UTC"), MOMENTS),
    "k": (TIMESTAMP_NTZ, pa.timestamp("us"), MOMENTS),
    "u": (
        STRING,
        pa.string(),
        ["  x ", "aXbXc", "\U0001f600é\U0001f600", "x_%y", "a\nb", "", None, "xx"],
    ),
    "v": (STRING, pa.string(), ["12", "-7", "+3", "0", None, "0099", "5", "2147483647"]),
    "z": (STRING, pa.string(), ["2024-02-29", "0001-01-01", None, *["1969-12-31"] * 5]),
    "r": (
        decimal(6, 3),
        pa.decimal128(6, 3),
        decimals("2.500 -2.500 0.125 -0.125 1.235 999.999 0.000 NULL"),
    ),
    "j": (LONG, pa.int64(), [25, -25, 15, -15, 0, None, 2**63 - 1, -(2**63)]),
    "x": (
        decimal(38, 18),
        pa.decimal128(38, 18),
        decimals(
            "12345678901234567890.123456789012345678 -12345678901234567890.12345678901235 "
            "1.000000000000000005 -1E-18 99999999999999.999999999999999999 "
            "-10000000000000000.000000000000000005 5 NULL"
        ),
    ),
    "o": (
        decimal(38, 30),
        pa.decimal128(38, 30),
        decimals("0 4E-30 -4E-30 3 -99999999 1E-19 3.000000001 NULL"),
    ),
    "c": (
        decimal(28, 20),
        pa.decimal128(28, 20),
        decimals("0 4E-20 -4E-20 3 -99999999 1E-19 3.000000001 NULL"),
    ),
    "q": (DOUBLE, pa.float64(), [2.5, -2.5, -0.0, math.nan, math.inf, -1e300, None, 9.3e18]),
}
SCHEMA = Schema(tuple(Column(name, result[0]) for name, result in TYPES.items()))

EXPRESSIONS = [
    "i % 3", "l div 2", "l % -4", "-m", "i * 2.5", "m + 1", "m - n", "m * m", "m * 3",
    "m / 3", "n / 7", "m % 0.7", "m * 0.001", "l + m", "i + d", "d + e", "d - e",
    "d * e", "l / 4", "i / 7", "m * d", "abs(m)", "abs(d)", "abs(l)", "abs(i % 5)",
    "CAST(i AS BIGINT) * 2", "CAST(l AS DOUBLE)", "CAST(m AS DOUBLE)", "CAST(n AS DOUBLE)",
    "CAST(m AS DECIMAL(12,1))", "CAST(m AS INT)", "CAST(i AS DECIMAL(13,3))",
    "CAST(b AS INT)", "CAST(f AS DOUBLE)",
    "CAST(m AS DECIMAL(20,4)) * 3", "CAST(i % 5 AS TINYINT)",
    "i > 2", "l >= 2.5", "d > e", "d = e", "d <> e", "d < e", "d <= 0", "f > 0.1", "f = 0.1",
    "m > 1.2", "m = n", "n > 9007199254740992", "l = d", "i <=> NULLIF(i, 7)", "d <=> e",
    "s = 'a'", "s > 'a'", "s <> 'é'", "s >= 'B'", "b = true", "t > DATE '2022-01-01'",
    "t = DATE '1970-01-01'", "s IN ('a', 'B')", "i IN (1, 7)", "m IN (1.25, 3.1)",
    "s LIKE 'a%'", "s LIKE '_'", "s LIKE '%b'", "NOT (i > 1)",
    "i > 1 AND d > 1", "i > 1 OR d > 1", "i IS NULL", "d IS NOT NULL", "b AND i > 0", "NOT b",
    "i BETWEEN 0 AND 7", "CASE WHEN i > 2 THEN l ELSE 0 END", "CASE WHEN b THEN m ELSE 1 END",
    "CASE WHEN d > 1 THEN 'x' WHEN i > 0 THEN s END", "COALESCE(i, 5)", "COALESCE(m, n, 1)",
    "COALESCE(s, 'none')", "NULLIF(l, 2)", "IF(i > 0, 1.5, 2)", "i <> 0 AND 10 / i > 2",
    "CASE WHEN i = 0 THEN 0 ELSE 10 div i END", "i % 2 = 1", "m BETWEEN 0 AND 2.5",
]  # fmt: skip

FUNCTIONS = [
    "year(t)", "month(t)", "day(t)", "dayofmonth(t)", "quarter(t)", "EXTRACT(YEAR FROM t)",
    "EXTRACT(MONTH FROM t)", "date_add(t, 30)", "date_sub(t, i % 100)",
    "datediff(t, DATE '2000-02-29')", "date_diff(t, w)", "character_length(u)",
    "date_add(t, i % 7) > DATE '1970-01-01'",
    "IF(s IN ('', 'a', 'ab', 'B', 'a%'), upper(s), 'x')",
    "IF(s IN ('', 'a', 'ab', 'B', 'a%'), lower(s), 'x')",
    "length(s)", "char_length(concat(s, s))", "concat(s, '-', s)", "s || 'é'", "concat(s)",
    "substring(s, 1, 1)", "substring(s, 2)", "substr(s, 0, 2)", "substring(s, 1, 0)",
    "trim(concat('  ', s, ' '))", "ltrim(concat('  ', s, ' '))", "rtrim(concat('\t', s, ' '))",
    "startswith(s, 'a')", "endswith(s, 'b')", "contains(s, '%')", "contains(s, '')",
    "year(t) = 1970 AND length(s) > 0",
    "year(w)", "month(w)", "day(w)", "quarter(w)", "dayofweek(w)", "weekday(w)", "dayofyear(w)",
    "weekofyear(w)", "last_day(w)", "add_months(t, i % 50)",
    "add_months(IF(w > DATE '1000-01-01' AND w < DATE '3000-01-01', w, t), -13)",
    "trunc(w, 'YEAR')", "trunc(w, 'quarter')", "trunc(w, 'MM')", "trunc(t, 'week')",
    "EXTRACT(DOY FROM w)", "EXTRACT(WEEK FROM w)", "EXTRACT(DOW FROM w)", "EXTRACT(HOUR FROM h)",
    "year(h)", "month(h)", "day(h)", "dayofweek(h)", "hour(h)", "minute(h)", "second(h)",
    "year(k)", "month(k)", "dayofyear(k)", "weekofyear(k)", "hour(k)", "minute(k)", "second(k)",
    "date_trunc('YEAR', h)", "date_trunc('quarter', h)", "date_trunc('month', h)",
    "date_trunc('WEEK', h)", "date_trunc('hour', k)", "date_trunc('month', k)",
    "date_trunc('DAY', h)", "date_trunc('hour', h)",
    "date_trunc('minute', h)", "date_trunc('second', h)", "date_trunc('millisecond', h)",
    "to_date(h)", "to_date(k)", "CAST(h AS DATE)", "CAST(k AS DATE)", "CAST(w AS TIMESTAMP)",
    "CAST(w AS TIMESTAMP_NTZ)", "CAST(h AS TIMESTAMP_NTZ)", "CAST(k AS TIMESTAMP)",
    "t + 3", "t - i % 7", "t + INTERVAL 2 WEEKS", "t - INTERVAL 1 DAY",
    "IF(year(h) > 1900 AND year(h) < 3000, h, NULL) - INTERVAL 1 DAY",
    "IF(year(h) > 1900 AND year(h) < 3000, h, NULL) + INTERVAL 1 WEEK",
    "IF(year(k) > 1900 AND year(k) < 3000, k, NULL) + INTERVAL 36 HOURS",
    "IF(year(k) > 1900 AND year(k) < 3000, k, NULL) - INTERVAL 61 SECONDS",
    "timestampadd(MINUTE, i % 100, IF(year(h) > 1900 AND year(h) < 3000, h, NULL))",
    "timestampadd(DAY, i % 100, IF(year(k) > 1900 AND year(k) < 3000, k, NULL))",
    "dateadd(week, -3, IF(year(h) > 1900 AND year(h) < 3000, h, NULL))",
    "datediff(h, w)", "datediff(w, k)", "h < TIMESTAMP '1970-01-01 00:00:00Z'", "h = h", "k > k",
    "CASE WHEN h IS NULL THEN CAST(t AS TIMESTAMP) ELSE h END",
    "COALESCE(k, CAST(t AS TIMESTAMP_NTZ))",
    "left(u, 2)", "right(u, 2)", "right(s, 0)", "left(u, -1)", "substring(u, -2)",
    "substring(u, -2, 1)", "substring(u, -5, 3)", "substring(u, -5, 9)", "substring(u, 0)",
    "substring(u, 2, -1)", "replace(u, 'X', '--')", "replace(u, 'x')", "replace(u, '', 'z')",
    "reverse(u)", "instr(u, 'X')", "instr(u, '')", "instr(u, s)", "locate('b', u)",
    "position('b' IN u)", "octet_length(u)", "bit_length(u)", "length(u)", "len(u)", "trim(u)",
    "btrim(u)", "btrim(u, 'xa')", "trim(BOTH ' x' FROM u)", "trim(LEADING 'x' FROM u)",
    "trim(TRAILING 'cxX' FROM u)", "ltrim('x', u)", "rtrim('x', u)", "btrim(u, '')",
    "btrim(u, '\U0001f600')", "u LIKE 'x\\_%'", "u LIKE 'x!_!%_' ESCAPE '!'", "u LIKE 'a_b'",
    "u LIKE '_é_'", "u LIKE '%'", "u NOT LIKE '%X%'", "u LIKE ''", "u > s", "u < 'b'",
    "CAST(i AS STRING)", "CAST(b AS STRING)", "CAST(m AS STRING)", "CAST(n AS STRING)",
    "CAST(w AS STRING)", "CAST(v AS INT)", "CAST(v AS BIGINT)", "CAST(z AS DATE)", "date(z)",
    "CAST(i AS BOOLEAN)", "CAST(m AS BOOLEAN)", "CAST(l AS FLOAT)", "CAST(d AS FLOAT)",
    "round(r)", "round(r, 2)", "round(r, 1)", "round(r, 0)", "round(r, -1)", "round(r, 5)",
    "bround(r)", "bround(r, 2)", "bround(r, 1)", "bround(r, -2)", "round(i % 100, -1)",
    "bround(i % 100, -1)", "round(j % 100, -1)", "bround(j % 100, -1)", "round(j)", "round(j, 2)",
    "floor(r)", "ceil(r)", "ceiling(r)", "floor(m)", "ceil(n)", "floor(i)", "ceil(j)",
     "floor(IF(f < 9, f, 1))", "sign(i)", "sign(q)", "signum(r)", "sign(n)", "sign(j)", "sqrt(q)",
    "sqrt(i)", "sqrt(r)", "isnan(q)", "isnan(f)", "greatest(i, l)", "least(i, l, 3)",
    "greatest(d, e)", "least(d, e)", "greatest(m, n)", "greatest(s, u, 'b')", "least(s, u)",
    "greatest(t, w)", "least(h, h)", "greatest(d, i)", "nvl(i, l)", "ifnull(s, u)",
    "nvl2(i, s, u)", "nullif(u, '')", "if(b, w, t)", "w BETWEEN t AND DATE '2021-01-03'",
    "w IN (DATE '2000-02-29', DATE '9999-12-31')", "u IN ('', 'xx')", "CAST(1.005 AS DECIMAL(5,2))",
    "-(x)", "negative(x)", "abs(x)", "-(-x)", "x = -12345678901234567890.12345678901235",
    "-x = -12345678901234567890.12345678901235", "m div x", "x div nullif(m, 0)", "m div n",
    "x div 0.7", "IF(m <> 0, n div m, 0)", "w IS NULL OR m div 0.01 IN (125, 310)",
    "(x div 1E-9BD) < 0", "c = 0", "0 < c", "c IN (0, 1)", "c * 0 = 0", "o % 0.3", "least(c, 0)",
    "m / 3Y", "3Y / nullif(m, 0)", "m * 3Y", "m / 3S", "m / 3L", "m / -3Y", "r / 3Y > 0.416666",
    "m / (-(3))", "m / +3", "3 BETWEEN c AND m", "nullif(0, c)", "nullif(0Y, c)",
    "NULL / nullif(m, 0)", "round(d)", "round(d, 2)", "bround(d, 1)", "round(q, 1)", "bround(q)",
    "round(IF(d < 9, d, 1), -1)", "CAST(IF(d < 9 OR d > 1E200, d, 1) AS DECIMAL(10, 2))",
    "CAST(nullif(d, 1E16) / 8 AS DECIMAL(12, 2))", "bround(nullif(d, 1E16) / 3, 4)",
    "CAST(IF(abs(q) < 9 OR abs(q) > 1E301, q, 1) AS DECIMAL(20, 0)) IS NULL",
    "m * n", "r * r", "r / 7", "n + 1.5", "CASE WHEN m > r THEN m ELSE r END",
]  # fmt: skip
"""Calls, which the reference evaluator does not support."""


def rows() -> pa.Table:
    arrays = {name: pa.array(values, kind) for name, (_, kind, values) in TYPES.items()}
    return pa.table(arrays)


def normalized(value: Any) -> Any:
    """Normalize a value so that NaN equals NaN and -0.0 equals 0.0, as in SQL."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


ZONED = [sql for sql in FUNCTIONS if re.search(r"\b[hk]\b|TIMESTAMP", sql)]
"""Expressions that may depend on the session time zone."""
OFFSETS = ["+02:00", "-03:30", "UTC", "GMT+2"]
MORE_OFFSETS = [
    "GMT", "Z", "UTC+02:00", "UT", "UT-7", "+5", "-05", "+5:45", "GMT-4:3", "+13:7", "+0130",
    "UTC-1145", "-18:00", "+18", "GMT+00:01", "-0", "Etc/UTC",
]  # fmt: skip


def ours(sql: str, zone: str = "UTC") -> Vector:
    expr = selected(f"SELECT {sql} AS x FROM t", {"t": SCHEMA}, zone)
    assert find_blocker(expr) is None, find_blocker(expr)
    table = rows()
    columns = {f"t#1.{c.name}": from_arrow(table[c.name], c.type) for c in SCHEMA}
    return Evaluator(expr).values(columns, len(table))


def agrees(result: Any, expected: Any, bound: float) -> bool:
    """Compare exactly, or within the error bound of a double."""
    if bound and isinstance(result, float) and isinstance(expected, float):
        return abs(result - expected) <= bound
    if isinstance(result, Decimal) or isinstance(expected, Decimal):
        return str(result) == str(expected)
    return bool(result == expected)


def value_at(vector: Vector, row: int) -> Any:
    if vector.valid is not None and not vector.valid[row]:
        return None
    if vector.is_textual:
        return vector.values[row].as_py()
    value = vector.values[row]
    if vector.type.kind == "decimal":
        with localcontext(prec=60):
            return Decimal(int(value)).scaleb(-vector.type.scale)
    return value.item() if isinstance(value, np.generic) else value


def test_every_listed_function_is_tested() -> None:
    tried = set(re.findall(r"([a-z_]+)\(", " ".join([*EXPRESSIONS, *FUNCTIONS])))
    aliases = {"ucase", "lcase"}
    """The reader replaces these aliases."""
    assert set(FUNCTION_LIST) <= tried | aliases | {ONE_ROW}


@pytest.mark.parametrize(
    "sql", ["hour(h)", "date_trunc('day', h)", "CAST(h AS DATE)", "to_date(h)", "datediff(h, t)"]
)
def test_region_dependent_times_are_left_to_spark(sql: str) -> None:
    blocker = find_blocker(selected(f"SELECT {sql} AS x FROM t", {"t": SCHEMA}, "Europe/Berlin"))
    assert "time zone Europe/Berlin" in blocker.reason


def test_zone_independent_times_are_computed() -> None:
    expr = selected("SELECT hour(k) + month(t) AS x FROM t", {"t": SCHEMA}, "Asia/Tokyo")
    assert find_blocker(expr) is None


def as_numbers(column: pa.ChunkedArray) -> list[Any]:
    """Dates as days and timestamps as microseconds, because local times may precede year 1."""
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return [normalized(value) for value in column.to_pylist()]


def view_of(spark: Any, table: pa.Table) -> Any:
    """Load the rows into Spark, in a UTC session; `k` has no time zone.

    Spark reads Arrow timestamps as TIMESTAMP, with or without a zone. A cast would use the zone
    that the session has when a server evaluates it.
    """
    local = "timestampadd(MICROSECOND, unix_micros(k), TIMESTAMP_NTZ '1970-01-01 00:00:00') AS k"
    columns = (local if name == "k" else name for name in table.column_names)
    return spark.createDataFrame(table).selectExpr(*columns)


@pytest.mark.spark
@pytest.mark.parametrize("zone", OFFSETS)
def test_fixed_offsets_match_spark(zone: str, spark: Any, in_zone: Callable[[str], None]) -> None:
    view = view_of(spark, rows())
    in_zone(zone)
    wrong = []
    for sql, column in zip(ZONED, asked(view, ZONED), strict=True):
        vector = ours(sql, zone)
        values = [normalized(value_at(vector, row)) for row in range(len(vector))]
        if values != as_numbers(column):
            wrong.append((sql, values, as_numbers(column)))
    assert wrong == []


@pytest.mark.spark
def test_offset_names_match_spark(spark: Any, in_zone: Callable[[str], None]) -> None:
    for zone in (*OFFSETS, *MORE_OFFSETS):
        in_zone(zone)
        sql = "SELECT unix_micros(CAST(TIMESTAMP_NTZ '2024-07-01 00:00:00' AS TIMESTAMP))"
        (row,) = spark.sql(sql).collect()
        assert row[0] == 1_719_792_000_000_000 - (fixed_offset(zone) or 0), zone
        assert fixed_offset(zone) is not None, zone


@pytest.mark.spark
def test_expressions_match_spark(spark: Any) -> None:
    wrong = []
    texts = (*EXPRESSIONS, *FUNCTIONS)
    for sql, column in zip(texts, asked(view_of(spark, rows()), texts), strict=True):
        vector = ours(sql)
        for row, value in enumerate(as_numbers(column)):
            bound = 0.0 if vector.error is None else float(vector.error[row])
            result = normalized(value_at(vector, row))
            if not agrees(result, value, bound):
                wrong.append((sql, row, result, value))
    assert wrong == []


WIDTHS = (
    (1, 0), (3, 3), (5, 2), (10, 4), (12, 12), (18, 9), (19, 19), (20, 0), (25, 19), (34, 0),
    (35, 10), (38, 0), (38, 6), (38, 18), (38, 30), (38, 38),
)  # fmt: skip
"""Digits and digits after the point."""
_ARROW = {
    BYTE: pa.int8(), SHORT: pa.int16(), INTEGER: pa.int32(), LONG: pa.int64(),
    FLOAT: pa.float32(), DOUBLE: pa.float64(), BOOLEAN: pa.bool_(),
}  # fmt: skip
NUMBERS: dict[str, SqlType] = {
    **{f"c{digits}_{scale}": decimal(digits, scale) for digits, scale in WIDTHS},
    "y": BYTE, "h": SHORT, "i": INTEGER, "l": LONG, "f": FLOAT, "d": DOUBLE,
}  # fmt: skip
COLUMNS: dict[str, SqlType] = {**NUMBERS, "b": BOOLEAN}
NUMBER_SCHEMA = Schema(tuple(Column(name, kind) for name, kind in COLUMNS.items()))
_FLOATS = [0.0, -0.0, 1.5, -2.5, float("nan"), float("inf"), -1e300, 1e-300, 9.3e18, 0.1]
LITERALS = (
    "3Y", "-3Y", "127Y", "-128Y", "0Y", "10S", "-300S", "0S", "32767S", "7L", "-10L", "0L",
    "9223372036854775807L", "-9223372036854775808L", "0", "1", "-1", "3", "-7", "10", "1000",
    "2147483647", "-2147483648", "2147483648", "-9223372036854775808", "9223372036854775807",
    "9223372036854775808", "99999999999999999999999999999999999999", "3BD", "-3BD", "0BD",
    "1.50BD", "-0.001BD", "1e3BD", "1.5e3BD", "-1.5e-3BD", "1E-30BD", "12e20BD", "0.0", "-0.0",
    "1.5", "-2.50", "0.333333", "1.", ".5", "100.00", "0.00000000000000000001",
    "-12345678901234567890.12345678901235", "12345678901234567890.123456789012345678",
    "0.00000000000000000000000000000000000001", "1e3", "1.5e3", "-1e-3", "2D", "-1.5D", "0.1F",
    "-2F", "1e2F", "+3", "+(3)", "-(3)", "(3)", "(3Y)", "-(3Y)", "- 3", "-(2.5)", "+1.50BD",
    "CAST(3 AS BIGINT)", "CAST(NULL AS INT)",
    "-(12345678901234567890.123456789012345678)", "CAST(NULL AS DECIMAL(38,30))", "- -3", "NULL",
)  # fmt: skip
"""Every form in which Spark reads a number, signs and brackets included."""
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "<=>")


def values_of(kind: SqlType, rng: Random, count: int) -> list[Any]:
    """Limits of the type, ties of rounding, small numbers, any number of digits, NULL."""
    if kind == BOOLEAN:
        return [rng.choice([None, True, False]) for _ in range(count)]
    if kind.is_fractional:
        return [None if rng.random() < 0.15 else rng.choice(_FLOATS) for _ in range(count)]
    if kind.is_integral:
        half = 1 << (INTEGRAL_BITS[kind.kind] - 1)
        often = [None, 0, 1, -1, 2, 3, 10, -7, half - 1, -half, -half + 1]
        return [rng.choice(often) for _ in range(count)]
    return [_decimal(kind, rng) for _ in range(count)]


def _decimal(kind: SqlType, rng: Random) -> Decimal | None:
    largest, unit = 10**kind.precision - 1, 10**kind.scale
    digits = rng.randint(1, kind.precision)
    chosen = rng.randrange(9)
    if chosen == 0:
        return None
    size = (
        0, largest, largest - rng.randint(0, 6), 1, unit, 10 ** (digits - 1) * 5,
        # All these digits and a five, to test rounding of ties.
        rng.randrange(10**digits) // 10 * 10 + 5, rng.randrange(10**digits),
    )[chosen - 1]  # fmt: skip
    size = min(size, largest)
    with localcontext(prec=60):
        return Decimal(-size if rng.random() < 0.5 else size).scaleb(-kind.scale)


def rows_of(rng: Random, count: int) -> pa.Table:
    """A table of `count` rows with the columns of `SCHEMA` and the row number `at`."""
    arrays = {
        name: pa.array(
            values_of(kind, rng, count),
            _ARROW.get(kind) or pa.decimal128(kind.precision, kind.scale),
        )
        for name, kind in COLUMNS.items()
    }
    return pa.table({"at": pa.array(range(count), pa.int32()), **arrays})


class TextMaker(Struct, dict=True):
    """Draw random expressions."""

    rng: Random

    def any(self) -> str:
        """A number or a condition."""
        depth = self.rng.choice((1, 1, 1, 2, 2, 3))
        return self.condition(depth) if self.rng.random() < 0.4 else self.number(depth)

    def number(self, depth: int) -> str:
        rng = self.rng
        if depth <= 0:
            return rng.choice(LITERALS) if rng.random() < 0.35 else rng.choice([*NUMBERS])
        one = self.number(depth - 1)
        match rng.randrange(13):
            case 0:
                form = rng.choice(("-({})", "negative({})", "positive({})", "+({})"))
                return form.format(one)
            case 1 | 2 | 3 | 4:
                op = rng.choice(("+", "-", "*", "/", "%", "div", "div"))
                return f"({one}) {op} ({self.number(depth - 1)})"
            case 5:
                name = rng.choice(("abs", "abs", "sign", "signum", "floor", "ceil", "sqrt"))
                return f"{name}({one})"
            case 6:
                name = rng.choice(("round", "bround"))
                digits = rng.choice(("", ", 0", ", 1", ", 2", ", -1", ", -3", ", 10", ", 33"))
                return f"{name}({one}{digits})"
            case 7:
                return f"CAST({one} AS {self._type()})"
            case 8:
                name = rng.choice(("greatest", "least", "coalesce", "nvl", "nullif", "mod"))
                return f"{name}({one}, {self.number(depth - 1)})"
            case 9:
                return f"coalesce({one}, {self.number(depth - 1)}, {self.number(0)})"
            case 10:
                return f"if({self.condition(depth - 1)}, {one}, {self.number(depth - 1)})"
            case 11:
                return f"CASE WHEN {self.condition(0)} THEN {one} ELSE {self.number(0)} END"
            case _:
                when = f"CASE {self.number(0)} WHEN {self.number(0)} THEN {one}"
                return f"{when} WHEN {self.number(0)} THEN {self.number(0)} END"

    def _type(self) -> str:
        rng = self.rng
        if rng.random() < 0.6:
            digits, scale = rng.choice(WIDTHS)
            return f"DECIMAL({digits}, {scale})"
        return rng.choice(("INT", "BIGINT", "TINYINT", "SMALLINT", "DOUBLE", "FLOAT", "BOOLEAN"))

    def condition(self, depth: int) -> str:
        rng = self.rng
        if depth > 1 and rng.random() < 0.2:
            op = rng.choice(("AND", "OR"))
            return f"({self.condition(depth - 1)}) {op} ({self.condition(depth - 1)})"
        one, other = self.number(depth), self.number(rng.choice((0, 0, depth)))
        match rng.randrange(9):
            case 0 | 1 | 2 | 3 | 4:
                return f"({one}) {rng.choice(COMPARISONS)} ({other})"
            case 5:
                return f"({one}) IN ({other}, {self.number(0)})"
            case 6:
                return f"({one}) BETWEEN {self.number(0)} AND {self.number(0)}"
            case 7:
                return f"({one}) IS NULL"
            case _:
                return f"NOT (({one}) {rng.choice(COMPARISONS)} ({other}))"


ROWS = 14
TEXTS_PER_RUN = 120
NAMES = {f"t#1.{name}": name for name in COLUMNS}

CONTEXTS = (
    *(f"c10_4 {op} ({{}})" for op in "+-*/%"), *(f"({{}}) {op} c38_30" for op in "+-*/%"),
    "({}) >= c38_30", "({}) BETWEEN c38_30 AND c10_4", "nullif({}, c38_30)", "coalesce(c10_4, {})",
    "least({}, c38_6)", "c38_6 IN ({}, 1)", "if(b, {}, c18_9)", "-({})",
)  # fmt: skip
"""Contexts in which the type of a literal matters."""


class Case(Struct, dict=True):
    """An expression, the rows on which it succeeds, and its values there; None if unsupported."""

    sql: str
    expr: Expr
    rows: list[int]
    vector: Vector | None


def read(sql: str) -> Expr | None:
    """Parse the expression; None if it is refused."""
    try:
        return selected(f"SELECT {sql} AS x FROM t", {"t": NUMBER_SCHEMA})
    except ImpctlError:
        return None


def evaluated(sql: str, columns: Columns) -> Case | None:
    """Evaluate in the engine; exceptions that are not impctl's propagate."""
    expr = read(sql)
    if expr is None:
        return None
    if find_blocker(expr) is not None:
        return Case(sql, expr, [], None)
    every = range(ROWS)
    try:
        return Case(sql, expr, [*every], Evaluator(expr).values(columns, ROWS))
    except (EvaluationError, NotExactError):
        rows = [row for row in every if _works(expr, columns, row)]
    return Case(sql, expr, rows, Evaluator(expr).values(_rows_at(columns, rows), len(rows)))


def _rows_at(columns: Columns, rows: list[int]) -> dict[str, Vector]:
    return {name: vector.take(np.array(rows, dtype=np.int64)) for name, vector in columns.items()}


def _works(expr: Expr, columns: Columns, row: int) -> bool:
    try:
        Evaluator(expr).values(_rows_at(columns, [row]), 1)
    except (EvaluationError, NotExactError):
        return False
    return True


def columns_of_rows(table: pa.Table) -> dict[str, Vector]:
    return {f"t#1.{c.name}": from_arrow(table[c.name], c.type) for c in NUMBER_SCHEMA}


def random_texts(seed: int, count: int) -> Iterator[str]:
    maker = TextMaker(Random(seed))
    return (maker.any() for _ in range(count))


@random_seeds(1, 2, 20)
def test_only_impctl_errors_are_raised(seed: int) -> None:
    columns = columns_of_rows(rows_of(Random(seed), ROWS))
    cases = [evaluated(sql, columns) for sql in random_texts(100 + seed, 150)]
    values = [len(case.rows) for case in cases if case is not None and case.vector is not None]
    # Most expressions are computed on most rows.
    assert sum(values) > 50 * ROWS


def differences(spark: Any, cases: list[Case], table: pa.Table) -> list[Any]:
    """Differences of types or values from Spark, and of the SQL rendered for Spark."""
    from pyspark.errors import AnalysisException, ParseException

    rendered = [render_expr(case.expr, NAMES).sql(dialect="spark") for case in cases]
    texts = []
    for case, spark_sql in zip(cases, rendered, strict=True):
        where = f"at IN ({', '.join(map(str, case.rows))})" if case.rows else "false"
        texts += [f"CASE WHEN {where} THEN {sql} END" for sql in (case.sql, spark_sql)]
    columns = asked(spark.createDataFrame(table), texts)
    wrong: list[Any] = []
    for case, spark_sql, *pair in zip(cases, rendered, columns[::2], columns[1::2], strict=True):
        failures = [column for column in pair if isinstance(column, Exception)]
        if any(isinstance(error, (AnalysisException, ParseException)) for error in failures):
            # Spark refuses the expression itself, so there is no value to compare.
            continue
        if failures:
            wrong.append((case.sql, spark_sql, "Spark fails", str(failures[0])[:200]))
        else:
            wrong += column_differs(case, spark_sql, *pair, table)
    return wrong


def column_differs(
    case: Case, written: str, column: pa.ChunkedArray, rerendered: pa.ChunkedArray, table: pa.Table
) -> Iterator[Any]:
    from pyspark.sql.pandas.types import from_arrow_type

    kind, theirs = type_of(case.expr), from_arrow_type(column.type).simpleString()
    known = kind is not None and kind.kind is not Kind.OTHER
    if rerendered.type != column.type or (known and kind is not None and kind.spark_name != theirs):
        yield case.sql, written, str(kind), theirs, str(rerendered.type)
        return
    values = as_numbers(column)
    if values != as_numbers(rerendered):
        yield case.sql, written
    for index, row in enumerate(case.rows):
        assert case.vector is not None
        result = normalized(value_at(case.vector, index))
        if not agrees(result, values[row], 0.0):
            inputs = {name: str(table[name][row]) for name in COLUMNS if name in case.sql}
            yield case.sql, inputs, result, values[row]


def compared(spark: Any, texts: Iterator[str], seed: int) -> tuple[list[Any], int]:
    """Return the differences from Spark and the number of compared values."""
    table = rows_of(Random(seed), ROWS)
    columns = columns_of_rows(table)
    with localcontext(prec=60):
        cases = [case for sql in texts if (case := evaluated(sql, columns)) is not None]
        return differences(spark, cases, table), sum(len(case.rows) for case in cases)


@pytest.mark.spark
@random_seeds(0, 1, 10)
def test_random_numbers_match_spark(seed: int, spark: Any) -> None:
    wrong, values = compared(spark, random_texts(seed, TEXTS_PER_RUN), seed)
    assert wrong == []
    assert values > TEXTS_PER_RUN


@pytest.mark.spark
@pytest.mark.parametrize("share", [3, pytest.param(1, marks=pytest.mark.long)])
def test_literals_in_all_contexts_match_spark(share: int, spark: Any) -> None:
    """Use a third of the contexts for each literal; three adjacent literals cover all."""
    texts = [
        context.format(literal)
        for number, literal in enumerate(LITERALS)
        for index, context in enumerate(CONTEXTS)
        if (number + index) % share == 0
    ]
    wrong, values = compared(spark, iter(texts), 1)
    assert wrong == []
    assert values > 10 * len(LITERALS) * ROWS // share


KINDS = [
    *[(11, 0), (11, 2), (7, 2), (10, 2), (5, 5), (11, 11), (1, 0)],
    *[(12, 2), (20, 4), (25, 6), (28, 10), (38, 18)],
]


def averages(digits: int, scale: int, totals: list[int], counts: list[int]) -> list[int | None]:
    kind = decimal(digits, scale)
    total = Vector(sum_type(kind), np.array(totals))
    result = mean(total, Vector(LONG, np.array(counts)), average_type(kind))
    known = zip(result.values.tolist(), result.validity(), strict=True)
    return [int(value) if is_valid else None for value, is_valid in known]


def test_averages_are_rounded_as_doubles() -> None:
    # 0.0004375 as a decimal. The nearest double, which Spark uses, is smaller.
    for digits, seven_cents in ((7, 437), (12, 438)):
        result = averages(digits, 2, [7, -7, 0, 5], [160, 160, 160, 0])
        assert result == [seven_cents, -seven_cents, 0, None]


def test_too_many_rows_for_exact_sums_are_refused() -> None:
    most = most_rows(decimal(15, 6))
    assert averages(11, 2, [most], [most]) == [10_000]
    with pytest.raises(EvaluationError, match="more than 90,071 rows") as caught:
        averages(11, 2, [1], [most + 1])
    assert "CAST(... AS DECIMAL(12, 2))" in caught.value.hint


@pytest.mark.spark
def test_averages_match_spark(spark: Any, tmp_path: Any) -> None:
    random = np.random.default_rng(5)
    groups = np.repeat(np.arange(300), random.choice([1, 3, 7, 9, 64, 160], 300))
    columns, outputs = {"g": groups}, []
    for digits, scale in KINDS:
        name = f"{digits}_{scale}"
        most = 10 ** random.integers(1, min(digits, 18) + 1, len(groups))
        unscaled = [int(random.integers(-m + 1, m)) for m in most.tolist()]
        values = [Decimal(value).scaleb(-scale) for value in unscaled]
        columns[f"p{name}"] = pa.array(values, pa.decimal128(digits, scale))
        outputs += [f"AVG(p{name}) AS a{name}", f"SUM(p{name}) AS t{name}"]
    path = str(tmp_path / "x.parquet")
    pq.write_table(pa.table(columns), path)
    grouped = f"SELECT {', '.join(outputs)}, COUNT(*) AS n FROM parquet.`{path}` GROUP BY g"
    result = spark.sql(grouped).toArrow()
    counts = result["n"].to_pylist()
    for digits, scale in KINDS:
        theirs, totals = (result[f"{name}{digits}_{scale}"].to_pylist() for name in "at")
        ours = averages(digits, scale, [int(total.scaleb(scale)) for total in totals], counts)
        result_scale = average_type(decimal(digits, scale)).scale
        assert ours == [int(value.scaleb(result_scale)) for value in theirs], (digits, scale)
