"""Constants as SQL text: typed, independent of the session, readable by Spark."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest

from impctl.data.schema import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    NULL,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    decimal,
    other,
)
from impctl.errors import QueryError
from impctl.spark.expressions import DIALECT, boundary, literal
from impctl.spark.run import run_sql

TEXTS = [
    (None, NULL, "NULL"),
    (None, INTEGER, "CAST(NULL AS INT)"),
    (True, BOOLEAN, "TRUE"),
    (5, INTEGER, "5"),
    (5, LONG, "5L"),
    (-5, LONG, "(-5L)"),
    (-(2**63), LONG, "(-9223372036854775808L)"),
    (7, BYTE, "7Y"),
    (7, SHORT, "7S"),
    (1.5, DOUBLE, "CAST('1.5' AS DOUBLE)"),
    (math.nan, DOUBLE, "CAST('NaN' AS DOUBLE)"),
    (-math.inf, FLOAT, "CAST('-Infinity' AS FLOAT)"),
    (Decimal("1.50"), decimal(10, 2), "CAST('1.50' AS DECIMAL(10, 2))"),
    (Decimal("1E+3"), decimal(10, 0), "CAST('1000' AS DECIMAL(10, 0))"),
    ("it's", STRING, r"'it\'s'"),
    (b"\x00\xff", BINARY, "X'00ff'"),
    (0, DATE, "CAST('1970-01-01' AS DATE)"),
    (2_932_897, DATE, "DATE_FROM_UNIX_DATE(2932897)"),
    (1, TIMESTAMP, "CAST('1970-01-01 00:00:00.000001Z' AS TIMESTAMP)"),
    (1, TIMESTAMP_NTZ, "CAST('1970-01-01 00:00:00.000001' AS TIMESTAMP_NTZ)"),
    (10**18, TIMESTAMP, "TIMESTAMP_MICROS(1000000000000000000L)"),
]


@pytest.mark.parametrize(("value", "kind", "text"), TEXTS)
def test_text(value, kind, text):
    assert literal(value, kind).sql(DIALECT) == text


def test_what_cannot_be_written_is_refused():
    with pytest.raises(QueryError):
        literal(1, other("array<int>"))
    with pytest.raises(QueryError):
        literal(10**18, TIMESTAMP_NTZ)


BOUNDARY_TEXTS = [
    (60100, decimal(10, 2), "CAST('601.00' AS DECIMAL(10, 2))"),
    (10**37 + 1, decimal(38, 0), f"CAST('{10**37 + 1}' AS DECIMAL(38, 0))"),
    (0.1, FLOAT, "CAST('0.1' AS DOUBLE)"),
    (0.0, DOUBLE, "CAST('-0.0' AS DOUBLE)"),
    (1, BOOLEAN, "TRUE"),
    ("b", STRING, "'b'"),
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


@pytest.mark.spark
def test_spark_reads_strings_back(spark):
    columns = [
        f"{literal(text, STRING).sql(DIALECT)} AS c{place}" for place, text in enumerate(STRINGS)
    ]
    answer = run_sql(spark, f"SELECT {', '.join(columns)}", {})
    assert list(answer.to_pylist()[0].values()) == STRINGS


NUMBERS = [
    (-(2**63), LONG),
    (2**63 - 1, LONG),
    (-(2**31), INTEGER),
    (-128, BYTE),
    (5e-324, DOUBLE),
    (1.7976931348623157e308, DOUBLE),
    (0.1, DOUBLE),
    (math.inf, DOUBLE),
    (Decimal("-0.00000000000000000000000000000000000001"), decimal(38, 38)),
    (Decimal("99999999999999999999999999999999999999"), decimal(38, 0)),
    (b"\x00\xff'", BINARY),
]


@pytest.mark.spark
def test_spark_reads_values_back_in_their_type(spark):
    columns = [
        f"{literal(value, kind).sql(DIALECT)} AS c{place}"
        for place, (value, kind) in enumerate(NUMBERS)
    ]
    frame = spark.sql(f"SELECT {', '.join(columns)}")
    assert [kind for _, kind in frame.dtypes] == [kind.spark_name for _, kind in NUMBERS]
    assert list(frame.toArrow().to_pylist()[0].values()) == [value for value, _ in NUMBERS]


@pytest.mark.spark
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kathmandu"])
def test_moments_do_not_depend_on_the_zone(spark, in_zone, zone):
    moments = [-1, 0, 1_667_712_600_000_000, 253_402_300_799_999_999, 253_402_300_800_000_000]
    columns = [
        f"unix_micros({literal(moment, TIMESTAMP).sql(DIALECT)}) AS c{place}"
        for place, moment in enumerate(moments)
    ]
    in_zone(zone)
    answer = run_sql(spark, f"SELECT {', '.join(columns)}", {}).to_pylist()[0]
    assert list(answer.values()) == moments


@pytest.mark.spark
def test_days_come_back(spark):
    days = [-719_162, -1, 0, 2_932_896, 2_932_897]
    columns = [
        f"unix_date({literal(day, DATE).sql(DIALECT)}) AS c{place}"
        for place, day in enumerate(days)
    ]
    answer = run_sql(spark, f"SELECT {', '.join(columns)}", {}).to_pylist()[0]
    assert list(answer.values()) == days
