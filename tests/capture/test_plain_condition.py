"""Ranges as SQL for DuckDB and Polars keep the rows of the ranges, of every type, and no others."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.data.schema import Kind, SqlType
from impctl.data.vector import from_arrow
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import FragmentSet, range_filter
from impctl.spark.predicates import plain_condition

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


Keep = Callable[[str], list[int]]
"""The numbers of the rows for which a condition is true."""


@contextmanager
def by_duckdb(rows: pa.Table) -> Iterator[Keep]:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'America/New_York'")
        connection.register("t", rows)

        def kept(condition: str) -> list[int]:
            result = connection.execute(f"SELECT n FROM t WHERE {condition}").fetchall()
            return sorted(n for (n,) in result)

        yield kept


@contextmanager
def by_polars(rows: pa.Table) -> Iterator[Keep]:
    polars = pytest.importorskip("polars")
    frame = polars.from_arrow(rows)
    yield lambda condition: sorted(frame.filter(polars.sql_expr(condition))["n"].to_list())


def chosen(size: int) -> Iterable[list[int]]:
    draw = random.Random(7)
    yield [size - 1]
    yield [0]
    yield list(range(size - 1))
    yield [size - 2]
    for _ in range(12):
        yield draw.sample(range(size), draw.randint(1, size - 1))


@pytest.mark.parametrize("reader", [by_duckdb, by_polars])
@pytest.mark.parametrize("name", list(CASES))
def test_the_rows_of_the_ranges_are_kept(reader: Any, name: str) -> None:
    kind, arrow, boundaries, values = CASES[name]
    column = pa.array([*values, None], arrow)
    rows = pa.table({NAME: column, "n": range(len(column))})
    partition = RangePartition("t", NAME, kind, boundaries)
    ids = partition.fragments_of(from_arrow(column, kind))
    assert len(np.unique(ids)) == partition.size, "each range has a value"
    with reader(rows) as kept:
        for fragments in chosen(partition.size):
            wanted = range_filter(FragmentSet.of(fragments, partition.size), partition)
            condition = plain_condition(wanted, NAME)
            assert condition is not None
            expected = np.flatnonzero(np.isin(ids, fragments)).tolist()
            assert kept(condition) == expected, condition


@pytest.mark.parametrize("reader", [by_duckdb, by_polars])
def test_no_range_keeps_nothing(reader: Any) -> None:
    partition = RangePartition("t", "g", SqlType(Kind.LONG), (1,))
    none = range_filter(FragmentSet.of([], partition.size), partition)
    condition = plain_condition(none, "g")
    assert condition is not None
    with reader(pa.table({"g": [1, None], "n": [0, 1]})) as kept:
        assert kept(condition) == []


@pytest.mark.parametrize(
    ("kind", "boundary"),
    [
        (Kind.STRING, "a\0b"),
        (Kind.DATE, 3_000_000),
        (Kind.TIMESTAMP, 2**62),
        (Kind.TIMESTAMP_NTZ, -(2**62)),
    ],
)
def test_what_engines_may_read_otherwise_has_no_text(kind: Kind, boundary: Any) -> None:
    partition = RangePartition("t", "g", SqlType(kind), (boundary,))
    wanted = range_filter(FragmentSet.of([0], partition.size), partition)
    assert plain_condition(wanted, "g") is None
