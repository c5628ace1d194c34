"""The user's SQL with ranges: what changes in the text, and which rows stay."""

from __future__ import annotations

import math
from decimal import Decimal
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from impctl.data.schema import (
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    decimal,
)
from impctl.data.vector import from_arrow
from impctl.plan.nodes import scans_of
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import MAX_INTERVALS, FragmentSet, range_filter
from impctl.spark.expressions import DIALECT
from impctl.spark.predicates import filter_condition, rewrite_sql
from impctl.spark.run import run_sql
from impctl.sql.statement import parse_query
from tests.support.schemas import schema_of

CATALOG = {
    "sales": schema_of("sid bigint, Community Area string, price bigint"),
    "odd table": schema_of("sid bigint"),
}
PRICE = RangePartition("sales", "price", LONG, (601, 1001, 1501))
AREA = RangePartition("sales", "Community Area", STRING, ("it's",))


def some(partition, *ids):
    return range_filter(FragmentSet.of(ids, partition.size), partition)


def rewritten(sql, filters, **options):
    query = parse_query(sql, CATALOG)
    by_access = dict(zip([scan.access for scan in scans_of(query.root)], filters, strict=True))
    return rewrite_sql(query, {a: f for a, f in by_access.items() if f is not None}, **options)


FILTERED = "(SELECT * FROM sales WHERE `price` >= 1001L)"
TEXTS = [
    ("SELECT sid FROM sales", f"SELECT sid FROM {FILTERED} AS sales"),
    ("SELECT  sid\nFROM sales  s -- why\n", f"SELECT  sid\nFROM {FILTERED}  s -- why\n"),
    ("SELECT s.sid FROM sales AS s;", f"SELECT s.sid FROM {FILTERED} AS s;"),
    ("select sales.sid from Sales", "select sales.sid from "
     "(SELECT * FROM Sales WHERE `price` >= 1001L) AS Sales"),
    ("SELECT 'é', sid FROM /* ☃ */ sales", f"SELECT 'é', sid FROM /* ☃ */ {FILTERED} AS sales"),
    ("SELECT sid FROM `sales`", "SELECT sid FROM "
     "(SELECT * FROM `sales` WHERE `price` >= 1001L) AS `sales`"),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "text"), TEXTS)
def test_only_the_table_changes(sql, text):
    assert rewritten(sql, [some(PRICE, 2, 3)]) == text


CONDITIONS = [
    (some(PRICE, 2, 3), "`price` >= 1001L"),
    (some(PRICE, 0, 2, 4), "`price` < 601L OR (`price` >= 1001L AND `price` < 1501L) "
     "OR `price` IS NULL"),
    (some(PRICE), "FALSE"),
    (some(PRICE, 4), "`price` IS NULL"),
    (some(PRICE, 0, 1, 2, 3), "NOT (`price` IS NULL)"),
    (some(PRICE, 0, 1, 2, 3, 4), "TRUE"),
    (some(AREA, 0), r"`Community Area` < 'it\'s'"),
]  # fmt: skip


def condition_sql(wanted, *, is_nan_free=False):
    return filter_condition(wanted, is_nan_free=is_nan_free).sql(DIALECT)


@pytest.mark.parametrize(("wanted", "text"), CONDITIONS)
def test_condition(wanted, text):
    assert condition_sql(wanted) == text


def test_full_filter_and_no_filter_leave_the_text_alone():
    sql = "SELECT s.sid FROM sales s JOIN `odd table` o ON s.sid = o.sid"
    assert rewritten(sql, [some(PRICE, 0, 1, 2, 3, 4), None]) == sql


def test_words_that_sqlglot_does_not_know_stay_where_they_are():
    text = (
        "WITH RECURSIVE r(n) MAX RECURSION LEVEL 7 AS (SELECT sid FROM {} UNION ALL "
        "SELECT n + 1L FROM r WHERE n < 3) SELECT n FROM r"
    )
    result = rewritten(text.format("sales"), [some(PRICE, 2, 3)])
    assert result == text.format(f"{FILTERED} AS sales")


def test_each_access_has_its_own_filter():
    sql = "SELECT a.sid FROM sales a JOIN sales b ON a.sid = b.price"
    text = rewritten(sql, [some(PRICE, 0), some(PRICE, 3)])
    assert text == (
        "SELECT a.sid FROM (SELECT * FROM sales WHERE `price` < 601L) a "
        "JOIN (SELECT * FROM sales WHERE `price` >= 1501L) b ON a.sid = b.price"
    )


COMMON = "WITH q AS (SELECT * FROM sales) SELECT a.sid FROM q a JOIN q b ON a.sid = b.price"


def test_a_place_read_twice_gets_what_both_need():
    text = rewritten(COMMON, [some(PRICE, 0), some(PRICE, 1, 4)])
    assert "(SELECT * FROM sales WHERE `price` < 1001L OR `price` IS NULL) AS sales" in text


def test_a_place_read_twice_over_two_partitions_is_whole():
    """Either access would see ranges of its own in part."""
    assert rewritten(COMMON, [some(PRICE, 0), some(AREA, 1)]) == COMMON


def test_a_place_read_twice_is_whole_if_one_access_needs_all():
    assert rewritten(COMMON, [some(PRICE, 0), None]) == COMMON
    assert rewritten(COMMON, [some(PRICE, 0), some(PRICE, 0, 1, 2, 3, 4)]) == COMMON


def test_a_place_read_twice_has_not_too_many_ranges():
    many = RangePartition("sales", "price", LONG, tuple(range(100)))
    even = some(many, *range(0, 60, 2))
    odd = some(many, *range(61, 101, 2))
    text = rewritten(COMMON, [even, odd])
    assert text.count("`price` >=") <= MAX_INTERVALS


def test_nan_is_kept_apart_unless_there_is_none():
    doubles = RangePartition("sales", "price", DOUBLE, (1.5,))
    top = some(doubles, 1)
    assert condition_sql(top) == "`price` >= CAST('1.5' AS DOUBLE) OR ISNAN(`price`)"
    assert condition_sql(top, is_nan_free=True) == "`price` >= CAST('1.5' AS DOUBLE)"
    nan_free = rewritten("SELECT sid FROM sales", [top], nan_free=["sales#1"])
    assert "ISNAN" not in nan_free


def steps(values, step):
    return [value + change for value in values for change in (-step, 0, step)]


def doubles_around(values, dtype):
    near = [np.nextafter(dtype(v), dtype(d)) for v in values for d in (-math.inf, math.inf)]
    odd = [-0.0, 0.0, math.nan, math.inf, -math.inf, -1.0]
    return [float(v) for v in (*near, *(dtype(v) for v in values), *odd)]


TYPED = {
    "long": (LONG, (-5, 0, 2**53 + 1), pa.array([*steps((-5, 0, 2**53 + 1), 1), None])),
    "int": (INTEGER, (-5, 7), pa.array([*steps((-5, 7), 1), None], pa.int32())),
    "double": (DOUBLE, (-1.0, 0.0, 0.1), pa.array([*doubles_around((0.0, 0.1), np.float64), None])),
    "negative zero": (DOUBLE, (-0.0, 5.0), pa.array([*doubles_around((5.0,), np.float64), None])),
    "infinite": (DOUBLE, (-math.inf, 0.5, math.inf), pa.array(doubles_around((0.5,), np.float64))),
    "float": (FLOAT, (0.0, 0.1, 0.5),
              pa.array([*doubles_around((0.1, 0.5), np.float32), None], pa.float32())),
    "decimal": (decimal(10, 2), (-1, 150), pa.array(
        [*(Decimal(n).scaleb(-2) for n in steps((-1, 150), 1)), None], pa.decimal128(10, 2))),
    "wide decimal": (decimal(38, 10), (10**37,), pa.array(
        [Decimal(f"{n}e-10") for n in steps((10**37,), 1)], pa.decimal128(38, 10))),
    "string": (STRING, ("B", "a'b", "é"), pa.array(
        ["", "A", "B", "B\x00", "a", "a'b", "a'c", "z", "é", "ê", "😀", None])),
    "date": (DATE, (-1, 19_000), pa.array(
        [*steps((-1, 19_000), 1), None], pa.int32()).cast(pa.date32())),
    "timestamp": (TIMESTAMP, (0, 1_667_712_600_000_000), pa.array(
        [*steps((0, 1_667_712_600_000_000), 1), None], pa.int64()).cast(pa.timestamp("us", "UTC"))),
    "local timestamp": (TIMESTAMP_NTZ, (0, 1_667_712_600_000_000), pa.array(
        [*steps((0, 1_667_712_600_000_000), 1), None], pa.int64()).cast(pa.timestamp("us"))),
}  # fmt: skip
ZONED = ("date", "timestamp", "local timestamp")
TYPED_CASES = [(n, "UTC") for n in TYPED] + [(n, "America/New_York") for n in ZONED]


@pytest.mark.spark
@pytest.mark.parametrize(("name", "zone"), TYPED_CASES)
def test_a_filter_keeps_its_fragments_and_no_other(spark, in_zone, tmp_path, name, zone):
    """Also when Parquet's own statistics are used: every value is a file, so all may be skipped."""
    kind, boundaries, values = TYPED[name]
    partition = RangePartition("t", "odd name", kind, boundaries)
    ids = partition.fragments_of(from_arrow(values, kind))
    table = pa.table({"odd name": values, "place": range(len(values))})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=1)
    schema = f"`odd name` {kind.spark_name}, place bigint"
    frame = spark.read.schema(schema).parquet(str(tmp_path))
    in_zone(zone)
    for chosen in fragment_choices(partition):
        condition = condition_sql(some(partition, *chosen))
        answer = run_sql(spark, f"SELECT place FROM t WHERE {condition}", {"t": frame})
        expected = [place for place, fragment in enumerate(ids) if fragment in chosen]
        assert sorted(answer["place"].to_pylist()) == expected, condition


def fragment_choices(partition):
    choices = product([False, True], repeat=partition.size)
    return [[n for n, chosen in enumerate(choice) if chosen] for choice in choices][
        :: 3 if partition.size > 4 else 1
    ]


@pytest.mark.spark
def test_nan_behind_statistics_that_hide_it(spark, tmp_path):
    """Statistics of a row group leave NaN out; Spark itself would skip the row group."""
    pq.write_table(pa.table({"d": [1.0, math.nan]}), tmp_path / "t.parquet")
    frame = spark.read.schema("d double").parquet(str(tmp_path))
    partition = RangePartition("t", "d", DOUBLE, (5.0,))
    condition = condition_sql(some(partition, 1))
    answer = run_sql(spark, f"SELECT d FROM t WHERE {condition}", {"t": frame})
    assert answer.num_rows == 1
