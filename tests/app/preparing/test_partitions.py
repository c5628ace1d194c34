"""Boundaries of the workload file in the column's own type, or a refusal with its place."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

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
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Column,
    Schema,
    SqlType,
    decimal,
    other,
)
from impctl.errors import Location, UsageError
from impctl.service.partitions import candidates, is_partitionable, partition_of
from impctl.sketch.partition import RangePartition
from impctl.workload.models import BoundaryLiteral, PartitionSpec
from tests.support.refused import refused

PLACE = Location("w.yaml", 7, 5)


def bench_of(kind: SqlType, *boundaries: BoundaryLiteral, column: str = "a") -> Any:
    """As much of a run as a partition is made from."""
    schema = Schema((Column("a", kind), Column("other", LONG)))
    spec = PartitionSpec("t", column, boundaries or None, None if boundaries else 4, PLACE)
    tables = SimpleNamespace(snapshot=lambda table: SimpleNamespace(schema=schema))
    return SimpleNamespace(workload=SimpleNamespace(partitions=[spec]), tables=tables)


def partition(kind: SqlType, *boundaries: BoundaryLiteral) -> RangePartition:
    return partition_of(bench_of(kind, *boundaries), "t", "a")


EAST = timezone(timedelta(hours=2))
NOON = datetime(2022, 1, 17, 12)
MICROS = 1_642_420_800_000_000
DIGITS = "1234567890123456789012345678901234567.8"


@pytest.mark.parametrize(
    ("kind", "value", "canonical"),
    [
        (BYTE, -128, -128),
        (SHORT, 32767, 32767),
        (INTEGER, 5, 5),
        (INTEGER, 5.0, 5),
        (INTEGER, "-7", -7),
        (LONG, 2**63 - 1, 2**63 - 1),
        (LONG, 1e3, 1000),
        (FLOAT, 0.5, 0.5),
        (DOUBLE, 1, 1.0),
        (DOUBLE, 0.1, 0.1),
        (DOUBLE, -1e308, -1e308),
        (decimal(10, 2), 5, 500),
        (decimal(10, 2), 1.25, 125),
        (decimal(10, 2), "1.20", 120),
        (decimal(10, 2), "-0.010", -1),
        (decimal(38, 1), DIGITS, int(DIGITS.replace(".", ""))),
        (decimal(38, 0), 10**38 - 1, 10**38 - 1),
        (STRING, "é😀", "é😀"),
        (STRING, "", ""),
        (STRING, "1", "1"),
        (DATE, date(1970, 1, 1), 0),
        (DATE, date(1969, 12, 31), -1),
        (DATE, "2022-01-17", 19009),
        (TIMESTAMP, NOON, MICROS),
        (TIMESTAMP, NOON.replace(tzinfo=UTC), MICROS),
        (TIMESTAMP, NOON.replace(tzinfo=EAST), MICROS - 7_200_000_000),
        (TIMESTAMP, "2022-01-17 12:00:00", MICROS),
        (TIMESTAMP, "2022-01-17T14:00:00+02:00", MICROS),
        (TIMESTAMP, date(2022, 1, 17), MICROS - 43_200_000_000),
        (TIMESTAMP, NOON.replace(microsecond=1), MICROS + 1),
        (TIMESTAMP, datetime(1969, 12, 31, 23, 59, 59, 999_999), -1),
        (TIMESTAMP_NTZ, NOON, MICROS),
        (TIMESTAMP_NTZ, "2022-01-17 12:00:00.000001", MICROS + 1),
        (TIMESTAMP_NTZ, date(1970, 1, 1), 0),
    ],
)
def test_a_boundary_in_canonical_form(
    kind: SqlType, value: BoundaryLiteral, canonical: int | float | str
) -> None:
    result = partition(kind, value)
    assert result == RangePartition("t", "a", kind, (canonical,))
    assert type(result.boundaries[0]) is type(canonical)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (INTEGER, 1.5),
        (INTEGER, "one"),
        (INTEGER, ""),
        (LONG, date(2022, 1, 17)),
        (LONG, NOON),
        (LONG, "NaN"),
        (DOUBLE, "x"),
        (DOUBLE, date(2022, 1, 17)),
        (decimal(10, 2), 1.255),
        (decimal(10, 2), "0.001"),
        (decimal(10, 0), "1e-1"),
        (STRING, 5),
        (STRING, 0.5),
        (STRING, date(2022, 1, 17)),
        (DATE, 19009),
        (DATE, NOON),
        (DATE, "17.1.2022"),
        (DATE, "2022-02-30"),
        (TIMESTAMP, 1_642_420_800),
        (TIMESTAMP, "noon"),
        (TIMESTAMP_NTZ, 0.5),
    ],
)
def test_what_is_not_of_the_columns_type_is_refused(kind: SqlType, value: BoundaryLiteral) -> None:
    with refused(UsageError, "boundary_type", r"is not a value of `t\.a`") as caught:
        partition(kind, value)
    assert caught.value.location == PLACE
    assert str(kind) in str(caught.value)


@pytest.mark.parametrize("kind", [INTEGER, decimal(10, 2)])
def test_one_wrong_boundary_among_good_ones(kind: SqlType) -> None:
    with pytest.raises(UsageError, match=r"2\.005"):
        partition(kind, 1, 2.005, 3)


def test_text_that_increases_as_numbers_only() -> None:
    assert partition(LONG, "9", "10").boundaries == (9, 10)
    with pytest.raises(UsageError, match="must increase"):
        partition(STRING, "9", "10")


def test_boundaries_that_become_equal() -> None:
    with refused(UsageError, "boundaries_not_increasing"):
        partition(decimal(10, 2), "1.0", "1.00")


PARTITIONABLE = [BYTE, SHORT, INTEGER, LONG, FLOAT, DOUBLE, decimal(38, 2), STRING, DATE]
PARTITIONABLE += [TIMESTAMP, TIMESTAMP_NTZ]


@pytest.mark.parametrize("kind", PARTITIONABLE, ids=str)
def test_columns_that_ranges_can_be_made_of(kind: SqlType) -> None:
    assert is_partitionable(Column("a", kind))
    assert candidates(bench_of(kind, column="A"), "t") == ("a",)


@pytest.mark.parametrize("kind", [BOOLEAN, BINARY, other("array<int>")], ids=str)
def test_columns_that_they_cannot(kind: SqlType) -> None:
    assert not is_partitionable(Column("a", kind))
    with refused(UsageError, "column_not_partitionable") as caught:
        candidates(bench_of(kind), "t")
    assert caught.value.location == PLACE


def test_a_column_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="no column `ohter`") as caught:
        candidates(bench_of(LONG, column="ohter"), "t")
    assert (caught.value.code, caught.value.location) == ("column_unknown", PLACE)
    assert caught.value.hint == "did you mean `other`?"


def test_candidates_of_other_tables_are_left_alone() -> None:
    assert candidates(bench_of(LONG, column="nowhere"), "u") == ()
