"""The user's SQL with range filters: changes in the text, and selected rows."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import product
from typing import Any

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
    Kind,
    SqlType,
    decimal,
)
from impctl.data.vector import from_arrow
from impctl.sketch.sketch import (
    MAX_INTERVALS,
    RangeFilter,
    RangePartition,
    RangeSet,
    range_filter,
    ranges_between,
)
from impctl.spark.expressions import DIALECT
from impctl.spark.predicates import (
    PLAIN_DIALECT,
    filter_condition,
    place_filters,
    plain_filter,
    rewrite_sql,
)
from impctl.spark.run import run_sql
from impctl.sql.statement import parse_query
from tests.plan.catalogs import schema_of

CATALOG = {
    "sales": schema_of("sid bigint, Community Area string, price bigint"),
    "odd table": schema_of("sid bigint"),
}
PRICE = RangePartition("sales", "price", LONG, (601, 1001, 1501))
AREA = RangePartition("sales", "Community Area", STRING, ("it's",))


def only(partition, *ids):
    return range_filter(RangeSet.of(ids, partition.size), partition)


def rewritten(sql, filters, **options):
    query = parse_query(sql, CATALOG)
    by_access = dict(zip([scan.access for scan in query.root.scans], filters, strict=True))
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
def test_only_the_table_reference_changes(sql, text):
    assert rewritten(sql, [only(PRICE, 2, 3)]) == text


CONDITIONS = [
    (only(PRICE, 2, 3), "`price` >= 1001L"),
    (only(PRICE, 0, 2, 4), "`price` < 601L OR (`price` >= 1001L AND `price` < 1501L) "
     "OR `price` IS NULL"),
    (only(PRICE), "FALSE"),
    (only(PRICE, 4), "`price` IS NULL"),
    (only(PRICE, 0, 1, 2, 3), "NOT (`price` IS NULL)"),
    (only(PRICE, 0, 1, 2, 3, 4), "TRUE"),
    (only(AREA, 0), r"`Community Area` < 'it\'s'"),
]  # fmt: skip


def condition_sql(filtered, *, is_nan_free=False):
    return filter_condition(filtered, is_nan_free=is_nan_free).sql(DIALECT)


@pytest.mark.parametrize(("filtered", "text"), CONDITIONS)
def test_condition_text(filtered, text):
    assert condition_sql(filtered) == text


def test_full_and_absent_filters_do_not_change_the_text():
    sql = "SELECT s.sid FROM sales s JOIN `odd table` o ON s.sid = o.sid"
    assert rewritten(sql, [only(PRICE, 0, 1, 2, 3, 4), None]) == sql


def test_syntax_unknown_to_sqlglot_is_preserved():
    text = (
        "WITH RECURSIVE r(n) MAX RECURSION LEVEL 7 AS (SELECT sid FROM {} UNION ALL "
        "SELECT n + 1L FROM r WHERE n < 3) SELECT n FROM r"
    )
    result = rewritten(text.format("sales"), [only(PRICE, 2, 3)])
    assert result == text.format(f"{FILTERED} AS sales")


def test_each_access_has_its_own_filter():
    sql = "SELECT a.sid FROM sales a JOIN sales b ON a.sid = b.price"
    assert rewritten(sql, [only(PRICE, 0), only(PRICE, 3)]) == (
        "SELECT a.sid FROM (SELECT * FROM sales WHERE `price` < 601L) a "
        "JOIN (SELECT * FROM sales WHERE `price` >= 1501L) b ON a.sid = b.price"
    )


COMMON = "WITH q AS (SELECT * FROM sales) SELECT a.sid FROM q a JOIN q b ON a.sid = b.price"


def test_a_shared_reference_gets_the_union_of_filters():
    text = rewritten(COMMON, [only(PRICE, 0), only(PRICE, 1, 4)])
    assert "(SELECT * FROM sales WHERE `price` < 1001L OR `price` IS NULL) AS sales" in text


def test_a_shared_reference_with_two_columns_is_not_filtered():
    """A filter on one column would hide rows that the other access needs."""
    assert rewritten(COMMON, [only(PRICE, 0), only(AREA, 1)]) == COMMON


def test_a_shared_reference_is_not_filtered_if_one_needs_all():
    assert rewritten(COMMON, [only(PRICE, 0), None]) == COMMON
    assert rewritten(COMMON, [only(PRICE, 0), only(PRICE, 0, 1, 2, 3, 4)]) == COMMON


def test_ranges_of_a_shared_reference_are_limited():
    many = RangePartition("sales", "price", LONG, tuple(range(100)))
    text = rewritten(COMMON, [only(many, *range(0, 60, 2)), only(many, *range(61, 101, 2))])
    assert text.count("`price` >=") <= MAX_INTERVALS


def test_nan_has_a_condition_unless_the_column_has_none():
    top = only(RangePartition("sales", "price", DOUBLE, (1.5,)), 1)
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
def test_a_filter_selects_exactly_its_ranges(spark, in_zone, tmp_path, name, zone):
    """Also with Parquet statistics: each value has its own row group, so any may be skipped."""
    kind, boundaries, values = TYPED[name]
    partition = RangePartition("t", "odd name", kind, boundaries)
    ids = partition.range_ids_of(from_arrow(values, kind))
    table = pa.table({"odd name": values, "place": range(len(values))})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=1)
    frame = spark.read.schema(f"`odd name` {kind.spark_name}, place bigint").parquet(str(tmp_path))
    in_zone(zone)
    choices = range_choices(partition)
    conditions = [condition_sql(only(partition, *ids_chosen)) for ids_chosen in choices]
    texts = [f"SELECT {n}, place FROM t WHERE {text}" for n, text in enumerate(conditions)]
    result = run_sql(spark, " UNION ALL ".join(texts), {"t": frame})
    selected = defaultdict(list)
    for n, position in zip(*map(pa.ChunkedArray.to_pylist, result.columns), strict=True):
        selected[n].append(position)
    for n, ids_chosen in enumerate(choices):
        expected = [position for position, range_id in enumerate(ids) if range_id in ids_chosen]
        assert sorted(selected[n]) == expected, conditions[n]


def range_choices(partition):
    choices = [np.flatnonzero(flags).tolist() for flags in product([0, 1], repeat=partition.size)]
    return choices[:: 3 if partition.size > 4 else 1]


@pytest.mark.spark
def test_nan_hidden_by_statistics_is_found(spark, tmp_path):
    """Row-group statistics exclude NaN, so Spark itself would skip the row group."""
    pq.write_table(pa.table({"d": [1.0, math.nan]}), tmp_path / "t.parquet")
    frame = spark.read.schema("d double").parquet(str(tmp_path))
    condition = condition_sql(only(RangePartition("t", "d", DOUBLE, (5.0,)), 1))
    assert run_sql(spark, f"SELECT d FROM t WHERE {condition}", {"t": frame}).num_rows == 1


NAME = 'a "b'
_DAY = date(2024, 1, 31).toordinal() - date(1970, 1, 1).toordinal()
_NOON = int(datetime(2024, 1, 31, 12, tzinfo=UTC).timestamp()) * 1_000_000

CASES: dict[str, tuple[SqlType, pa.DataType, tuple[Any, ...], list[Any]]] = {
    "byte": (SqlType(Kind.BYTE), pa.int8(), (-5, 0, 100), [-128, -6, -5, -1, 0, 99, 100, 127]),
    "long": (
        SqlType(Kind.LONG),
        pa.int64(),
        (-(2**53) - 1, 0, 2**62),
        [-(2**63), -(2**53) - 2, -(2**53) - 1, -1, 0, 2**62 - 1, 2**62, 2**63 - 1],
    ),
    "double": (
        SqlType(Kind.DOUBLE),
        pa.float64(),
        (-1.5, 0.0, 1e-300, 0.1),
        [float("-inf"), -1.5, -1.4, -0.0, 0.0, 1e-300, 0.09999999999999999, 0.1, float("inf")],
    ),
    "float": (SqlType(Kind.FLOAT), pa.float32(), (0.1, 2.0), [0.0999, 0.1, 1.99, 2.0, 3.0]),
    "decimal": (
        SqlType(Kind.DECIMAL, 20, 2),
        pa.decimal128(20, 2),
        (-150, 0, 12345678901234567801),
        [Decimal(v) for v in ("-1.51", "-1.50", "0.00", "123456789012345678.00")]
        + [Decimal("123456789012345678.01"), Decimal("123456789012345678.02")],
    ),
    "string": (
        SqlType(Kind.STRING),
        pa.string(),
        ("\t", "a'b", "a\\b\n", "ü", "😀"),
        ["", "\t", "a", "a'b", "a'c", "a\\b", "a\\b\n", "z", "ü", "\uffff", "😀", "😀x"],
    ),
    "date": (
        SqlType(Kind.DATE),
        pa.date32(),
        (-719161, _DAY),
        [date(1, 1, 1), date(1582, 10, 10), date(2024, 1, 30), date(2024, 1, 31)],
    ),
    "timestamp": (
        SqlType(Kind.TIMESTAMP),
        pa.timestamp("us", "UTC"),
        (_NOON, _NOON + 1),
        [datetime(2024, 1, 31, 11, 59, 59, 999_999, UTC), datetime(2024, 1, 31, 12, tzinfo=UTC)]
        + [datetime(2024, 1, 31, 12, 0, 0, 1, UTC), datetime(1600, 1, 1, tzinfo=UTC)],
    ),
    "timestamp_ntz": (
        SqlType(Kind.TIMESTAMP_NTZ),
        pa.timestamp("us"),
        (_NOON, _NOON + 1),
        [datetime(2024, 1, 31, 11, 59, 59, 999_999), datetime(2024, 1, 31, 12)]
        + [datetime(2024, 1, 31, 12, 0, 0, 1), datetime(1600, 1, 1)],
    ),
}


Select = Callable[[str], list[int]]
"""Returns the numbers of the rows for which a condition is true."""


@contextmanager
def by_duckdb(rows: pa.Table) -> Iterator[Select]:
    with pytest.importorskip("duckdb").connect() as connection:
        connection.execute("SET TimeZone = 'America/New_York'")
        connection.register("t", rows)

        def select(condition: str) -> list[int]:
            result = connection.execute(f"SELECT n FROM t WHERE {condition}").fetchall()
            return sorted(n for (n,) in result)

        yield select


@contextmanager
def by_polars(rows: pa.Table) -> Iterator[Select]:
    polars = pytest.importorskip("polars")
    frame = polars.from_arrow(rows)
    yield lambda condition: sorted(frame.filter(polars.sql_expr(condition))["n"].to_list())


def range_samples(size: int) -> Iterable[list[int]]:
    rng = random.Random(7)
    yield [size - 1]
    yield [0]
    yield list(range(size - 1))
    yield [size - 2]
    for _ in range(12):
        yield rng.sample(range(size), rng.randint(1, size - 1))


@pytest.mark.parametrize("reader", [by_duckdb, by_polars])
@pytest.mark.parametrize("name", list(CASES))
def test_plain_filters_select_the_rows_of_the_ranges(reader: Any, name: str) -> None:
    kind, arrow, boundaries, values = CASES[name]
    column = pa.array([*values, None], arrow)
    rows = pa.table({NAME: column, "n": range(len(column))})
    partition = RangePartition("t", NAME, kind, boundaries)
    ids = partition.range_ids_of(from_arrow(column, kind))
    assert len(np.unique(ids)) == partition.size, "each range has a value"
    with reader(rows) as select:
        for ranges in range_samples(partition.size):
            filtered = range_filter(RangeSet.of(ranges, partition.size), partition)
            condition = plain_filter(filtered, NAME)
            assert condition is not None
            expected = np.flatnonzero(np.isin(ids, ranges)).tolist()
            assert select(condition.sql(PLAIN_DIALECT)) == expected, condition


@pytest.mark.parametrize("reader", [by_duckdb, by_polars])
def test_an_empty_filter_selects_nothing(reader: Any) -> None:
    condition = plain_filter(only(RangePartition("t", "g", SqlType(Kind.LONG), (1,))), "g")
    with reader(pa.table({"g": [1, None], "n": [0, 1]})) as select:
        assert condition is not None
        assert select(condition.sql(PLAIN_DIALECT)) == []


@pytest.mark.parametrize(
    ("kind", "boundary"),
    [
        (Kind.STRING, "a\0b"),
        (Kind.DATE, 3_000_000),
        (Kind.TIMESTAMP, 2**62),
        (Kind.TIMESTAMP_NTZ, -(2**62)),
    ],
)
def test_ambiguous_constants_have_no_plain_filter(kind: Kind, boundary: Any) -> None:
    assert plain_filter(only(RangePartition("t", "g", SqlType(kind), (boundary,)), 0), "g") is None


TABLE = {"t": schema_of("a bigint, b bigint")}
A = RangePartition("t", "a", LONG, (1, 2, 3))
B = RangePartition("t", "b", LONG, (1, 2, 3))
APART = "SELECT x.a FROM t x, t y, t z"
SHARED = "WITH q AS (SELECT * FROM t) SELECT x.a FROM q x, t y, q z"
"""The first and the last access share one table reference."""


def ranges_read(
    sql: str, filters: Sequence[RangeFilter | None], group: Sequence[int]
) -> list[set[int] | None]:
    """The ranges that each access reads (None: all) if the accesses in `group` share a filter."""
    query = parse_query(sql, TABLE)
    names = [scan.access for scan in query.root.scans]
    by_access = {n: ranges for n, ranges in zip(names, filters, strict=True) if ranges is not None}
    result = place_filters(query, by_access, [frozenset(names[index] for index in group)])
    return [set(range_ids(result, name)) if name in result else None for name in names]


def range_ids(result: Mapping[str, RangeFilter], name: str) -> Iterator[int]:
    for interval in result[name].intervals:
        yield from ranges_between(interval, result[name].partition)


WHOLE = only(A, 0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("sql", "filters", "group", "read"),
    [
        (APART, [only(A, 0), only(A, 2), only(A, 3)], (), [{0}, {2}, {3}]),
        (APART, [only(A, 0), only(A, 2), only(A, 3)], (0, 1), [{0, 2}, {0, 2}, {3}]),
        (APART, [only(A, 0), None, only(A, 3)], (0, 1), [None, None, {3}]),
        (APART, [only(A, 0), WHOLE, only(A, 3)], (0, 1), [None, None, {3}]),
        (APART, [only(A, 0), only(B, 0), only(A, 3)], (0, 1), [None, None, {3}]),
        (SHARED, [only(A, 0), only(A, 0), only(A, 3)], (), [{0, 3}, {0}, {0, 3}]),
        (SHARED, [only(A, 0), only(A, 0), only(A, 3)], (0, 1), [{0, 3}, {0, 3}, {0, 3}]),
        (SHARED, [only(A, 0), only(A, 0), None], (0, 1), [None, None, None]),
    ],
    ids=[
        "no group",
        "a group reads the union",
        "one access without a filter",
        "one access with a full filter",
        "one access with another column",
        "a shared reference",
        "a shared reference widens the group",
        "a reference shared with an unfiltered access",
    ],
)
def test_ranges_read_by_grouped_accesses(
    sql: str, filters: list[RangeFilter | None], group: tuple[int, ...], read: list[set[int] | None]
) -> None:
    assert ranges_read(sql, filters, group) == read
