"""Inserted rows keep exact values; CHECK constraints work as in Spark; tables are cloned."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from math import copysign, nan
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.errors import EvaluationError, TableError, UsageError
from impctl.tables.rows import read_rows
from impctl.tables.snapshot import CHANGE_FEED, Snapshot
from impctl.tables.source import open_source
from impctl.tables.write import maintenance
from impctl.tables.write.apply import UpdateKind, UpdateRequest, apply_update
from impctl.tables.write.maintenance import clone_table, create_table
from impctl.tables.write.rows import file_to_insert, rows_to_insert
from tests.tables import handmade

INSERT, DELETE, UPDATE = UpdateKind

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


WRONG: dict[str, list[object]] = {
    "id": [128, 1.0, True, "1"],
    "l": [2**63],
    "f": [1e300],
    "g": ["1", True, 10**400],
    "m": [1.155, "12345.67", float("nan"), "x", "1_0", "１２", " 12 "],
    "s": [5],
    "y": ["x"],
    "b": [1],
    "d": [datetime(2024, 1, 1), "2024-13-01", "20240101", "2024-W01-1"],
    "t": [
        *("noon", "20240101T000000", "0001-01-01T00:00:00+14:00", "9999-12-31T23:00:00-02:00"),
    ],
    "n": ["2024-01-01T１2:00", datetime(2024, 1, 1, tzinfo=UTC)],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_wrong_value_is_named_with_its_row(snapshot: Snapshot, name: str, value: object) -> None:
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
def test_file_values_of_similar_types_are_cast(
    snapshot: Snapshot, tmp_path: Path, column: str, values: pa.Array, stored: object
) -> None:
    path = str(tmp_path / "batch.parquet")
    pq.write_table(pa.table({"id": [1], column: values}), path)
    assert file_to_insert(snapshot, path).column(column).to_pylist() == [stored]


INSTANT = pa.array([0], pa.timestamp("us"))
STORED_OTHERWISE = {
    "l": [pa.array([True]), pa.array(["7"]), pa.array([2.0]), INSTANT],
    "b": [pa.array([2]), pa.array(["yes"])],
    "m": [pa.array([1.005]), pa.array([Decimal("1.005")]), pa.array(["1.50"])],
    "f": [pa.array([0.1]), pa.array([2**24 + 1])],
    "g": [pa.array([2**53 + 1]), pa.array([Decimal("0.1")])],
    "s": [pa.array([1.0]), pa.array([b"x"]), INSTANT, pa.array([True])],
    "y": [pa.array(["x"])],
    "d": [pa.array([19000], pa.int32()), INSTANT],
    "t": [
        *(pa.array([1_700_000_000]), pa.array(["2024-01-01T00:00:00"])),
        pa.array([1], pa.timestamp("ns")),
    ],
    "n": [pa.array([0], ZONED)],
}


@pytest.mark.parametrize(
    ("column", "values"), [(name, one) for name, some in STORED_OTHERWISE.items() for one in some]
)
def test_lossy_file_values_are_refused(
    snapshot: Snapshot, tmp_path: Path, column: str, values: pa.Array
) -> None:
    path = str(tmp_path / "batch.parquet")
    pq.write_table(pa.table({"id": [1], column: values}), path)
    with pytest.raises(UsageError, match=f"Column `{column}` of .* does not fit") as caught:
        file_to_insert(snapshot, path)
    assert f"the type of `sales.{column}`" in (caught.value.hint or "")


def test_old_dates_of_spark_2_are_not_inserted(snapshot: Snapshot, tmp_path: Path) -> None:
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


def test_csv_columns_are_matched_in_any_case(snapshot: Snapshot, tmp_path: Path) -> None:
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


COLUMNS = {"id": "integer", "X": "integer", "d": "double", "m": "decimal(10,2)", "s": "string"}


def make(path: Path, check: str, *, is_invariant: bool = False) -> str:
    rule = f'{{"expression": {{"expression": "{check}"}}}}'
    more: dict[str, Any] = {"delta.invariants": rule} if is_invariant else {}
    fields = [handmade.field(n, t, **(more if n == "X" else {})) for n, t in COLUMNS.items()]
    configuration = {} if is_invariant else {"delta.constraints.c": check}
    row = {
        "id": pa.array([1], pa.int32()),
        "X": pa.array([4], pa.int32()),
        "d": pa.array([1.0]),
        "m": pa.array([Decimal("1.00")], pa.decimal128(10, 2)),
        "s": pa.array(["a"]),
    }
    file = handmade.added(path, "a.parquet", pa.table(row))
    return handmade.create(path, fields, file, configuration=configuration)


def insert(path: str, **row: object) -> int:
    request = UpdateRequest("t", INSERT, rows=({"id": 2, **row},))
    return apply_update(open_source("t", path), request).inserted


def update(path: str, **assignments: str) -> int:
    request = UpdateRequest("t", UPDATE, assignments=assignments)
    return apply_update(open_source("t", path), request).updated


@pytest.mark.parametrize("is_invariant", [False, True])
@pytest.mark.parametrize(
    ("check", "row"),
    [
        ("X / 2 <= 2", {"X": 5}),
        ("X > 0", {}),
        ("d <= 0", {"d": copysign(nan, -1.0)}),
        ("NOT (d > 0)", {"d": copysign(nan, -1.0)}),
        ("length(s) < 3", {"s": "abc"}),
    ],
)
def test_rows_violating_a_constraint_are_refused(
    tmp_path: Path, check: str, row: dict[str, object], is_invariant: bool
) -> None:
    path = make(tmp_path, check, is_invariant=is_invariant)
    with pytest.raises(UsageError, match="breaks its constraint"):
        insert(path, **row)
    assert open_source("t", path).version == 0


def test_constraint_may_fail_with_an_error(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError):
        insert(make(tmp_path, "X + 1 > 0"), X=2**31 - 1)


@pytest.mark.parametrize(
    ("check", "good"),
    [("X > 0", {"X": 1}), ("m > 0", {"m": 1}), ("d >= 0", {"d": nan}), ("s IN ('a')", {"s": "a"})],
)
def test_rows_satisfying_a_constraint_are_written(
    tmp_path: Path, check: str, good: dict[str, object]
) -> None:
    assert insert(make(tmp_path, check), **good) == 1


@pytest.mark.parametrize("check", ["X > 0 AND unknown(X)", "Y > 0", "X"])
def test_unsupported_constraints_stop_all_writes(tmp_path: Path, check: str) -> None:
    path = make(tmp_path, check)
    with pytest.raises(TableError, match="its constraint `.*` cannot be") as caught:
        insert(path, X=1)
    assert caught.value.code == "table_not_writable"
    with pytest.raises(TableError, match="its constraint `.*` cannot be"):
        update(path, X="2")


def test_constraint_unreadable_by_deltalake(tmp_path: Path) -> None:
    path = make(tmp_path, 's <> "A"')
    with pytest.raises(TableError, match="cannot write to table `t`") as caught:
        update(path, s="'a'")
    assert caught.value.code == "table_not_writable"
    assert open_source("t", path).version == 0


def test_updates_of_other_columns_skip_constraints(tmp_path: Path) -> None:
    assert update(make(tmp_path, "X / 2 <= 2"), id="7") == 1


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        ("X > 0 AND X <= 100", {"X": "X + 1"}, {"X": "X - 5"}),
        ("X BETWEEN 1 AND 9 OR s IS NULL", {"X": "9"}, {"X": "10"}),
        ("X IN (4, 5)", {"X": "5"}, {"X": "6"}),
        ("0 <= d", {"d": "d * 2"}, {"d": "-d"}),
        ("m >= 0", {"m": "m + 1"}, {"m": "-m"}),
        ("s IN ('a', 'b')", {"s": "'b'"}, {"s": "'c'"}),
        ("s LIKE 'a%' AND s IS NOT NULL", {"s": "'ab'"}, {"s": "'b'"}),
        ("X <> id", {"X": "7"}, {"X": "id"}),
        ("X / 2 <= 2", {"X": "4"}, {"X": "5"}),
        ("X * 2 < 10", {"x": "1"}, {"x": "5"}),
        ("X < 4.5", {"X": "1"}, {"X": "5"}),
        ("d <= 1", {"d": "0.5"}, {"d": "1.5"}),
        ("NOT (d > 2)", {"d": "0.5"}, {"d": "d * 9"}),
        ("d > 0 OR NOT (d >= 0)", {"d": "0.5"}, {"d": "0e0"}),
        ("m < 1.5", {"m": "1"}, {"m": "m + 0.5"}),
        ("length(s) < 3", {"s": "'a'"}, {"s": "'abc'"}),
        ("coalesce(X, 1) > 0", {"X": "NULL"}, {"X": "0"}),
    ],
)
def test_updates_keep_constraints(
    tmp_path: Path, check: str, good: dict[str, str], bad: dict[str, str]
) -> None:
    path = make(tmp_path, check)
    assert update(path, **good) == 1
    with pytest.raises(UsageError, match="does not accept the batch"):
        update(path, **bad)


def test_a_new_table_has_a_change_feed(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("v", pa.int64(), nullable=False)])
    for name, data, rows in (
        ("rows", pa.table({"v": [1, 2]}, schema=schema), 2),
        ("schema", schema, 0),
    ):
        create_table(str(tmp_path / name), data)
        snapshot = open_source("t", str(tmp_path / name)).snapshot()
        assert (snapshot.rows, snapshot.has_change_feed, snapshot.not_null) == (rows, True, {"v"})


def test_existing_table_is_not_overwritten(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    create_table(path, pa.table({"v": [1]}))
    with pytest.raises(UsageError, match="A table already exists at this path"):
        create_table(path, pa.table({"v": [2]}))
    assert read_rows(open_source("t", path).snapshot(), ["v"]).column(0).to_pylist() == [1]


def contents(path: Path) -> dict[str, bytes]:
    files = (file for file in sorted(path.rglob("*")) if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def make_origin(path: Path) -> Path:
    rows, feed = pa.table({"k": ["a", "a/b"], "v": [1, 2]}), {CHANGE_FEED: "true"}
    write_deltalake(path, rows, partition_by=["k"], configuration=feed)
    DeltaTable(str(path)).update(updates={"v": "v + 1"})
    return path


@pytest.mark.parametrize("can_link", [True, False])
def test_clone_does_not_affect_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_link: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no hard links here")

    if not can_link:
        monkeypatch.setattr(maintenance.os, "link", refuse)
    origin, target = make_origin(tmp_path / "a"), tmp_path / "b"
    before = contents(origin)
    clone_table(str(origin), str(target))
    assert contents(target) == before
    shared = [os.path.samefile(origin / name, target / name) for name in before]
    assert any(shared) is can_link
    assert not any(os.path.samefile(origin / n, target / n) for n in before if "_delta_log" in n)
    table = DeltaTable(str(target))
    table.delete("v = 2")
    table.create_checkpoint()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert contents(origin) == before
    assert read_rows(open_source("t", str(target)).snapshot(), ["v"]).num_rows == 1


def test_clone_refusals(tmp_path: Path) -> None:
    origin = make_origin(tmp_path / "a")
    (tmp_path / "b").mkdir()
    with pytest.raises(UsageError, match="The path already exists"):
        clone_table(str(origin), str(tmp_path / "b"))
    with pytest.raises(UsageError, match="cloned into itself"):
        clone_table(str(origin), str(origin / "inside"))
    with pytest.raises(TableError, match="no Delta table to clone"):
        clone_table(str(tmp_path / "b"), str(tmp_path / "c"))
    with pytest.raises(UsageError, match="Only tables on the local disk"):
        clone_table("s3://bucket/t", str(tmp_path / "c"))
