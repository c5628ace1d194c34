"""Fragments in Spark against `RangePartition.fragments_of`, on the values that hurt."""

from __future__ import annotations

import math
from decimal import Decimal
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    SqlType,
    decimal,
)
from impctl.data.vector import from_arrow
from impctl.sketch.partition import RangePartition
from impctl.spark.sketches import CASE_TREE_BOUNDARIES, with_fragment

pytestmark = pytest.mark.spark

BIG = 2**53
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1


def around(boundaries, *extremes):
    near = [value + step for value in boundaries for step in (-1, 0, 1)]
    return [*near, *extremes]


@pytest.fixture
def check(spark, tmp_path):
    """Asserts that Spark and RangePartition map the values alike."""
    return partial(check_in, spark, tmp_path)


def check_in(spark, folder, kind: SqlType, boundaries, values: pa.Array) -> None:
    partition = RangePartition("t", "odd `name", kind, tuple(boundaries))
    pq.write_table(
        pa.table({"odd `name": values, "place": range(len(values))}), folder / "rows.parquet"
    )
    schema = f"`odd ``name` {kind.spark_name}, place bigint"
    frame = spark.read.schema(schema).parquet(str(folder / "rows.parquet"))
    assert dict(frame.dtypes)["odd `name"] == kind.spark_name
    result = with_fragment(frame, partition, "odd `name", "frag")
    assert result.columns == ["odd `name", "place", "frag"]
    assert dict(result.dtypes)["frag"] == "int"
    answer = result.select("place", "frag").toArrow().sort_by("place")["frag"].to_pylist()
    assert answer == partition.fragments_of(from_arrow(values, kind)).tolist()


INTEGER_BOUNDARIES = {
    "none": [],
    "one": [0],
    "small": [-5, 0, 7],
    "edge of doubles": [-BIG + 1, BIG - 1],
    "beyond doubles": [-BIG - 1, -BIG, BIG, BIG + 1, BIG + 2],
    "ends": [LONG_MIN, LONG_MAX],
    "many": list(range(-1000, 1000, 3)),
    "many beyond doubles": [BIG + 2 * step for step in range(CASE_TREE_BOUNDARIES + 1)],
}


@pytest.mark.parametrize("name", INTEGER_BOUNDARIES)
def test_long(check, name):
    boundaries = INTEGER_BOUNDARIES[name]
    extremes = [LONG_MIN, LONG_MIN + 1, -BIG - 1, -BIG, 0, BIG, BIG + 1, LONG_MAX - 1, LONG_MAX]
    near = [v for v in around(boundaries, *extremes) if LONG_MIN <= v <= LONG_MAX]
    check(LONG, boundaries, pa.array([*near, None], pa.int64()))


@pytest.mark.parametrize(("kind", "arrow"), [(INTEGER, pa.int32()), (BYTE, pa.int8())])
def test_narrow_integers(check, kind, arrow):
    values = [*around([-3, 100], -128, 127), None]
    check(kind, [-3, 100], pa.array(values, arrow))


def test_boolean(check):
    check(BOOLEAN, [1], pa.array([False, True, None]))


DOUBLE_BOUNDARIES = {
    "zero": [0.0],
    "negative zero": [-0.0],
    "fractions": [-1e300, -0.1, 0.1, 5e-324, 1e16][:2] + [5e-324, 0.1, 1e16],
    "infinite": [-math.inf, 0.5, math.inf],
    "many": [step / 7 for step in range(-500, 500)],
}


@pytest.mark.parametrize("name", DOUBLE_BOUNDARIES)
@pytest.mark.parametrize(("kind", "arrow"), [(DOUBLE, pa.float64()), (FLOAT, pa.float32())])
def test_doubles(check, name, kind, arrow):
    boundaries = DOUBLE_BOUNDARIES[name]
    near = [f(b, d) for b in boundaries for d in (-math.inf, math.inf) for f in (np.nextafter,)]
    odd = [0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 1.7976931348623157e308, 5e-324]
    if kind is FLOAT:
        with np.errstate(over="ignore"):
            values = np.array([*boundaries, *near, *odd]).astype(np.float32)
    else:
        values = np.array([*boundaries, *near, *odd])
    check(kind, boundaries, pa.array([*values.tolist(), None], arrow))


@pytest.mark.parametrize(
    ("precision", "scale"), [(10, 2), (18, 4), (18, 18), (28, 8), (38, 2), (38, 38)]
)
@pytest.mark.parametrize("count", [3, CASE_TREE_BOUNDARIES + 20])
def test_decimals(check, precision, scale, count):
    largest = 10**precision - 1
    boundaries = [largest // 3 + step for step in range(-count // 2, count // 2)]
    unscaled = [v for v in around(boundaries, -largest, largest, 0) if abs(v) <= largest]
    values = [Decimal(f"{v}e-{scale}") for v in unscaled]
    check(
        decimal(precision, scale),
        boundaries,
        pa.array([*values, None], pa.decimal128(precision, scale)),
    )


def test_small_decimals_of_a_wide_type(check):
    values = [Decimal(v).scaleb(-8) for v in around([-150, 0, 10**15])]
    check(decimal(28, 8), [-150, 0, 10**15], pa.array(values, pa.decimal128(28, 8)))


@pytest.mark.parametrize("count", [3, CASE_TREE_BOUNDARIES + 20])
def test_strings(check, count):
    words = ["", "B", "a", "ab", "Ä", "z", "\ud7ff", "\uffff", "\U0001f600"]
    words += [f"word{number:03}" for number in range(count)]
    boundaries = sorted(words[1:])
    values = [*words, *(word + "\x00" for word in words), *(word[:-1] for word in words), None]
    check(STRING, boundaries, pa.array(values, pa.string()))


@pytest.mark.parametrize("count", [2, CASE_TREE_BOUNDARIES + 20])
def test_binary(check, count):
    boundaries = sorted({bytes([number * 3 % 256, 200]) for number in range(count)})
    values = [*boundaries, *(b + b"\x00" for b in boundaries), b"", b"\xff" * 4, None]
    check(BINARY, boundaries, pa.array(values, pa.binary()))


def test_dates(check):
    values = pa.array([*around([-1, 0, 19_000], -719_162, 2_932_896), None], pa.int32())
    check(DATE, [-1, 0, 19_000], values.cast(pa.date32()))


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize("kind", [TIMESTAMP, TIMESTAMP_NTZ])
@pytest.mark.parametrize("boundaries", [[-1, 0, 1_700_000_000_000_000], [253_402_300_799_999_999]])
def test_timestamps(spark, check, zone, kind, boundaries):
    values = pa.array([*around(boundaries, 1_667_712_600_000_000), None], pa.int64())
    arrow = pa.timestamp("us", tz="UTC" if kind is TIMESTAMP else None)
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        check(kind, boundaries, values.cast(arrow))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_random_longs_agree(check):
    rng = np.random.default_rng(7)
    boundaries = sorted({int(v) for v in rng.integers(-(2**53) + 1, 2**53, 500)})
    values = pa.array(np.concatenate([rng.integers(LONG_MIN, LONG_MAX, 2000), boundaries]))
    check(LONG, boundaries, values)
