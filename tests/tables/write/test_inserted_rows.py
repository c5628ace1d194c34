"""Rows to insert keep exact values, or are refused with their place."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from impctl.errors import TableError, UsageError
from impctl.tables.snapshot import Snapshot
from impctl.tables.source import open_source
from impctl.tables.write.rows import file_to_insert, rows_to_insert

SCHEMA = pa.schema(
    [
        pa.field("Id", pa.int8(), nullable=False),
        ("l", pa.int64()),
        ("f", pa.float32()),
        ("g", pa.float64()),
        ("m", pa.decimal128(6, 2)),
        ("s", pa.string()),
        ("y", pa.binary()),
        ("b", pa.bool_()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us", tz="UTC")),
        ("n", pa.timestamp("us")),
        ("k", pa.string()),
        ("st", pa.struct([("x", pa.int64())])),
    ]
)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    path = str(tmp_path_factory.mktemp("sales") / "t")
    write_deltalake(path, SCHEMA.empty_table(), partition_by=["k"])
    return open_source("sales", path).snapshot()


def test_values_of_every_type(snapshot: Snapshot) -> None:
    noon = datetime(2024, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    row = {
        "id": 1,
        "L": 2**63 - 1,
        "f": 1,
        "g": 0.1,
        "m": 1.15,
        "s": "x",
        "y": b"\xff",
        "b": True,
        "d": "2024-02-29",
        "t": noon,
        "n": datetime(2024, 1, 1),
        "k": "",
    }
    (result,) = rows_to_insert(snapshot, [row]).to_pylist()
    assert result == {
        "Id": 1,
        "l": 2**63 - 1,
        "f": 1.0,
        "g": 0.1,
        "m": Decimal("1.15"),
        "s": "x",
        "y": b"\xff",
        "b": True,
        "d": date(2024, 2, 29),
        "t": datetime(2024, 1, 1, 10, tzinfo=UTC),
        "n": datetime(2024, 1, 1),
        "k": None,
        "st": None,
    }


def test_missing_columns_are_null(snapshot: Snapshot) -> None:
    rows = rows_to_insert(snapshot, [{"id": 1}, {"id": 2, "s": "x"}])
    assert rows.column("s").to_pylist() == [None, "x"]
    assert rows.column("m").null_count == 2


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        ("m", "-1.5", Decimal("-1.50")),
        ("m", "+15e-1", Decimal("1.50")),
        ("d", "0001-01-01", date(1, 1, 1)),
        ("t", "2024-01-01", datetime(2024, 1, 1, tzinfo=UTC)),
        ("t", "2024-01-01 12:00:00.5+02:00", datetime(2024, 1, 1, 10, 0, 0, 500000, tzinfo=UTC)),
        ("t", "2024-01-01T12:00Z", datetime(2024, 1, 1, 12, tzinfo=UTC)),
        ("n", "2024-01-01T12:00:00.000001", datetime(2024, 1, 1, 12, 0, 0, 1)),
    ],
)
def test_texts_of_numbers_and_times(
    snapshot: Snapshot, name: str, value: str, stored: object
) -> None:
    rows = rows_to_insert(snapshot, [{"id": 1, name: value}])
    assert rows.column(name).to_pylist() == [stored]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", 128),
        ("id", 1.0),
        ("id", True),
        ("id", "1"),
        ("l", 2**63),
        ("f", 1e300),
        ("g", "1"),
        ("g", True),
        ("g", 10**400),
        ("m", 1.155),
        ("m", "12345.67"),
        ("m", float("nan")),
        ("m", "x"),
        ("s", 5),
        ("y", "x"),
        ("b", 1),
        ("d", datetime(2024, 1, 1)),
        ("d", "2024-13-01"),
        ("d", "20240101"),
        ("d", "2024-W01-1"),
        ("m", "1_0"),
        ("m", "１２"),
        ("m", " 12 "),
        ("t", "noon"),
        ("t", "20240101T000000"),
        ("t", "0001-01-01T00:00:00+14:00"),
        ("t", "9999-12-31T23:00:00-02:00"),
        ("n", "2024-01-01T１2:00"),
        ("n", datetime(2024, 1, 1, tzinfo=UTC)),
    ],
)
def test_wrong_value_is_named_with_its_place(snapshot: Snapshot, name: str, value: object) -> None:
    with pytest.raises(UsageError) as caught:
        rows_to_insert(snapshot, [{"id": 1}, {"id": 2, name: value}])
    column = snapshot.column(name)
    assert f"`{column.name}` in row 2 is not a valid `{column.type}`" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"id": 1, "nope": 1}, "no column `nope`, which is in row 1"),
        ({"id": 1, "ID": 1}, "`Id` is given twice in row 1"),
        ({"s": "x"}, "`sales.Id` is NOT NULL"),
        ({"id": 1, "st": {"x": 1}}, "`sales.st` has type `struct<`x`: bigint>`"),
    ],
)
def test_wrong_row_is_explained(snapshot: Snapshot, row: dict[str, object], problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        rows_to_insert(snapshot, [row])
    assert problem in caught.value.message
    assert caught.value.exit_code == 2


def test_parquet_file(snapshot: Snapshot, tmp_path: Path) -> None:
    path = str(tmp_path / "batch.parquet")
    pq.write_table(pa.table({"S": ["x", None], "ID": [1, 2], "m": [Decimal("1.50"), None]}), path)
    file = file_to_insert(snapshot, path)
    assert file.column("Id").to_pylist() == [1, 2]
    assert file.column("m").to_pylist() == [Decimal("1.50"), None]
    assert file.column("l").null_count == 2


ZONED = pa.timestamp("ms", tz="America/New_York")


@pytest.mark.parametrize(
    ("column", "values", "stored"),
    [
        ("l", pa.array([7], pa.uint8()), 7),
        ("f", pa.array([2**24], pa.int32()), 2.0**24),
        ("g", pa.array([0.1], pa.float32()), float(np.float32(0.1))),
        ("m", pa.array([7], pa.int8()), Decimal("7.00")),
        ("m", pa.array([Decimal("1.500")]), Decimal("1.50")),
        ("s", pa.array(["x"]).dictionary_encode(), "x"),
        ("t", pa.array([1000], ZONED), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ("t", pa.array([date(2024, 1, 2)]), datetime(2024, 1, 2, tzinfo=UTC)),
        ("t", pa.array([0], pa.timestamp("us")), datetime(1970, 1, 1, tzinfo=UTC)),
        ("n", pa.array([0], pa.timestamp("ns")), datetime(1970, 1, 1)),
    ],
)
def test_file_values_of_a_like_type_are_taken(
    snapshot: Snapshot, tmp_path: Path, column: str, values: pa.Array, stored: object
) -> None:
    path = str(tmp_path / "batch.parquet")
    pq.write_table(pa.table({"id": [1], column: values}), path)
    assert file_to_insert(snapshot, path).column(column).to_pylist() == [stored]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("l", pa.array([True])),
        ("l", pa.array(["7"])),
        ("l", pa.array([2.0])),
        ("l", pa.array([0], pa.timestamp("us"))),
        ("b", pa.array([2])),
        ("b", pa.array(["yes"])),
        ("m", pa.array([1.005])),
        ("m", pa.array([Decimal("1.005")])),
        ("m", pa.array(["1.50"])),
        ("f", pa.array([0.1])),
        ("f", pa.array([2**24 + 1])),
        ("g", pa.array([2**53 + 1])),
        ("g", pa.array([Decimal("0.1")])),
        ("s", pa.array([1.0])),
        ("s", pa.array([b"x"])),
        ("s", pa.array([0], pa.timestamp("us"))),
        ("s", pa.array([True])),
        ("y", pa.array(["x"])),
        ("d", pa.array([19000], pa.int32())),
        ("d", pa.array([0], pa.timestamp("us"))),
        ("t", pa.array([1_700_000_000])),
        ("t", pa.array(["2024-01-01T00:00:00"])),
        ("t", pa.array([1], pa.timestamp("ns"))),
        ("n", pa.array([0], ZONED)),
    ],
)
def test_file_values_that_spark_would_store_otherwise_are_refused(
    snapshot: Snapshot, tmp_path: Path, column: str, values: pa.Array
) -> None:
    path = str(tmp_path / "batch.parquet")
    pq.write_table(pa.table({"id": [1], column: values}), path)
    with pytest.raises(UsageError, match=f"Column `{column}` of .* does not fit") as caught:
        file_to_insert(snapshot, path)
    assert f"the type of `sales.{column}`" in (caught.value.hint or "")


def test_old_days_of_spark_2_are_not_inserted_as_others(snapshot: Snapshot, tmp_path: Path) -> None:
    path = str(tmp_path / "old.parquet")
    for day, is_fine in ((date(1582, 10, 15), True), (date(1500, 1, 1), False)):
        rows = pa.table({"D": [day], "id": pa.array([1], pa.int8())}).replace_schema_metadata(
            {"org.apache.spark.version": "2.4.8"}
        )
        pq.write_table(rows, path)
        if is_fine:
            assert file_to_insert(snapshot, path).column("d").to_pylist() == [day]
            continue
        with pytest.raises(TableError) as caught:
            file_to_insert(snapshot, path)
        assert caught.value.code == "legacy_calendar"


def test_csv_file(snapshot: Snapshot, tmp_path: Path) -> None:
    path = tmp_path / "batch.csv"
    path.write_text('Id,s,m,d,k\n1,x,1.50,2024-02-29,001\n2,"",,,\n', encoding="utf-8")
    select = file_to_insert(snapshot, str(path)).select(["Id", "s", "m", "d", "k"])
    assert select.to_pylist() == [
        {"Id": 1, "s": "x", "m": Decimal("1.50"), "d": date(2024, 2, 29), "k": "001"},
        {"Id": 2, "s": "", "m": None, "d": None, "k": None},
    ]


def test_csv_values_have_their_columns_types_however_the_header_is_spelled(
    snapshot: Snapshot, tmp_path: Path
) -> None:
    path = tmp_path / "batch.csv"
    path.write_text("ID,S,M,K,T\n1,007,1.10,1e3,2024-01-01T00:00:00Z\n", encoding="utf-8")
    result = file_to_insert(snapshot, str(path)).select(["s", "m", "k"])
    assert result.to_pylist() == [{"s": "007", "m": Decimal("1.10"), "k": "1e3"}]
    path.write_text("ID,S,K\n1,true,2024-01-01\n2,false,\n", encoding="utf-8")
    result = file_to_insert(snapshot, str(path)).select(["s", "k"])
    assert result.to_pylist() == [{"s": "true", "k": "2024-01-01"}, {"s": "false", "k": None}]


def test_file_problems(snapshot: Snapshot, tmp_path: Path) -> None:
    for name, data, problem in [
        ("a.parquet", pa.table({"id": [1000]}), "`Id` of .* does not fit `tinyint`"),
        ("b.parquet", pa.table({"id": [1], "zz": [1]}), "no column `zz`"),
        ("c.parquet", pa.table({"id": [1], "ID": [1]}), "appears twice"),
        ("d.parquet", pa.table({"s": ["x"]}), "`sales.Id` is NOT NULL"),
    ]:
        pq.write_table(data, tmp_path / name)
        with pytest.raises(UsageError, match=problem):
            file_to_insert(snapshot, str(tmp_path / name))
    with pytest.raises(UsageError, match="does not exist"):
        file_to_insert(snapshot, str(tmp_path / "nope.parquet"))
    with pytest.raises(UsageError, match="neither Parquet nor CSV"):
        file_to_insert(snapshot, str(tmp_path / "x.json"))
    pa_csv.write_csv(pa.table({"Id": ["x"]}), tmp_path / "e.csv")
    with pytest.raises(UsageError, match="cannot be read"):
        file_to_insert(snapshot, str(tmp_path / "e.csv"))
