"""Snapshots read by Spark against what deltalake itself reads, as bags."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.errors import HistoryGoneError, TableError
from impctl.spark import snapshots
from impctl.spark.run import run_sql
from impctl.spark.snapshots import MAX_BRANCHES, snapshot_frame
from impctl.tables.rows import read_rows
from impctl.tables.source import open_source
from tests.tables import handmade
from tests.tables.vectored import VectoredTable

pytestmark = pytest.mark.spark

FIXTURES = Path(
    os.environ.get(
        "IMPCTL_FIXTURES",
        str(Path(__file__).parents[3] / "shared" / "data" / "delta-fixtures"),
    )
)
READABLE = (
    "cdf-table",
    "cdf-table-non-partitioned",
    "cdf-table-with-cdc-and-dvs",
    "checkpoint-cdf-table",
    "checkpoint-v2-table",
    "delta-0.8.0-null-partition",
    "delta-0.8.0-partitioned",
    "delta-0.8.0-special-partition",
    "delta-2.2.0-partitioned-types",
    "partition-type-primitives",
    "simple_table_with_cdc",
    "table-with-dv-small",
    "table_with_column_mapping",
    "table_with_deletion_logs",
    "table_with_liquid_clustering",
    "table_with_partitioning_mapping",
)
needs_fixtures = pytest.mark.skipif(
    not FIXTURES.is_dir(), reason="no Delta fixtures; set IMPCTL_FIXTURES to their folder"
)


def bag(table: pa.Table) -> Counter[tuple[object, ...]]:
    columns = []
    for column in table.columns:
        plain = column.cast(pa.string()) if "string" in str(column.type) else column
        if pa.types.is_timestamp(plain.type):
            plain = plain.cast(pa.timestamp("us")).cast(pa.int64())
        columns.append(plain.to_pylist())
    return Counter(zip(*columns, strict=True))


def assert_same(frame, delta: DeltaTable) -> None:
    answer = frame.toArrow()
    expected = pa.table(delta.scan().read_all()).select(answer.column_names)
    assert bag(answer) == bag(expected)


@needs_fixtures
@pytest.mark.parametrize("name", READABLE)
def test_fixture_reads_as_deltalake_reads_it(spark, name):
    source = open_source(name, str(FIXTURES / name))
    frame = snapshot_frame(spark, source.snapshot())
    assert frame.columns == list(source.snapshot().schema.names)
    assert_same(frame, source.delta)


@needs_fixtures
def test_every_version_with_deletion_vectors(spark):
    path = FIXTURES / "cdf-table-with-cdc-and-dvs"
    source = open_source("t", str(path))
    for version in range(0, source.version + 1, 6):
        frame = snapshot_frame(spark, source.snapshot(version))
        assert_same(frame, DeltaTable(str(path), version=version))


@needs_fixtures
def test_timestamps_beyond_nanoseconds_are_read_right(spark):
    """delta-rs reads these INT96 values as years around 1816."""
    source = open_source("t", str(FIXTURES / "table_with_edge_timestamps"))
    answer = snapshot_frame(spark, source.snapshot()).toArrow()
    years = {str(value)[:4] for name in answer.column_names[:1] for value in answer[name]}
    assert years == {"9999"}


@needs_fixtures
def test_missing_files_name_the_version(spark):
    source = open_source("old", str(FIXTURES / "checkpoints_vacuumed"))
    with pytest.raises(HistoryGoneError) as caught:
        run_sql(
            spark,
            "SELECT * FROM t",
            {"t": snapshot_frame(spark, source.snapshot())},
            versions={"old": source.version},
        )
    assert f"Version {source.version} of table `old`" in caught.value.message


@needs_fixtures
def test_unreadable_column_is_refused_by_name(spark):
    source = open_source("t", str(FIXTURES / "spark-variant-stable-feature-checkpoint"))
    with pytest.raises(TableError) as caught:
        snapshot_frame(spark, source.snapshot())
    assert "variant" in caught.value.message


def rows(count: int = 40) -> pa.Table:
    return pa.table(
        {
            "Some Name": pa.array(range(count), pa.int64()),
            "part": pa.array([f"p {n % 20}%/=" if n % 7 else None for n in range(count)]),
            "day": pa.array([n % 2 for n in range(count)], pa.int32()),
        }
    )


def test_asked_columns_in_asked_order(spark, tmp_path):
    write_deltalake(str(tmp_path), rows())
    frame = snapshot_frame(
        spark, open_source("t", str(tmp_path)).snapshot(), ["day", "some name", "DAY"]
    )
    assert frame.columns == ["day", "Some Name"]
    assert frame.count() == 40


def test_partition_columns_alone(spark, tmp_path):
    write_deltalake(str(tmp_path), rows(), partition_by=["day"])
    frame = snapshot_frame(spark, open_source("t", str(tmp_path)).snapshot(), ["day"])
    assert Counter(frame.toArrow()["day"].to_pylist()) == {0: 20, 1: 20}


def test_no_files_is_an_empty_frame_with_the_schema(spark, tmp_path):
    write_deltalake(str(tmp_path), rows())
    frame = snapshot_frame(spark, open_source("t", str(tmp_path)).snapshot(), files=[])
    assert frame.dtypes == [("Some Name", "bigint"), ("part", "string"), ("day", "int")]
    assert frame.count() == 0


@pytest.mark.parametrize("folder", ["plain", "a*b"])
def test_many_partitions_are_read_at_once(spark, tmp_path, folder):
    path = tmp_path / folder
    write_deltalake(str(path), rows(), partition_by=["part", "day"])
    source = open_source("t", str(path))
    assert len(source.snapshot().files) > MAX_BRANCHES
    frame = snapshot_frame(spark, source.snapshot())
    assert_same(frame, source.delta)
    branches = snapshots._branches(source.snapshot(), source.snapshot().files)
    assert len(branches) == 1


@pytest.mark.parametrize("columns", [None, ["v", "p"], ["v"], []])
@pytest.mark.parametrize("has_vectors", [False, True])
def test_many_partitions_in_the_order_of_the_table(spark, tmp_path, columns, has_vectors):
    """Spark itself puts partition columns last; a union goes by position."""
    count = MAX_BRANCHES + 4
    data = pa.table(
        {
            "p": pa.array([n % count for n in range(2 * count)], pa.int32()),
            "v": pa.array([1000 + n for n in range(2 * count)], pa.int32()),
        }
    )
    table = VectoredTable(tmp_path / "t", data, by=["p"])
    if has_vectors:
        table.delete(lambda rows: pc.equal(rows["v"], 1005))
    frame = snapshot_frame(spark, open_source("t", str(table.path)).snapshot(), columns)
    wanted = ["p", "v"] if columns is None else columns
    assert frame.columns == wanted
    expected = [tuple(row[name] for name in wanted) for row in table.rows().to_pylist()]
    assert sorted(tuple(row) for row in frame.collect()) == sorted(expected)


def test_a_text_called_as_the_folder_of_null_is_no_null(spark, tmp_path):
    texts = pa.array([*(f"p{number}" for number in range(MAX_BRANCHES)), "x"])
    write_deltalake(str(tmp_path), pa.table({"n": range(len(texts)), "p": texts}), partition_by="p")
    snapshot = open_source("t", str(tmp_path)).snapshot()
    log = next((tmp_path / "_delta_log").glob("*.json"))
    null = "__HIVE_DEFAULT_PARTITION__"
    (tmp_path / "p=x").rename(tmp_path / f"p={null}")
    log.write_text(log.read_text().replace("p=x/", f"p={null}/").replace('"x"', f'"{null}"'))
    source = open_source("t", str(tmp_path))
    assert null in {file.partition_values["p"] for file in source.snapshot().files}
    assert len(snapshots._branches(snapshot, snapshot.files)) == 1
    assert len(snapshots._branches(source.snapshot(), source.snapshot().files)) > 1
    assert_same(snapshot_frame(spark, source.snapshot()), source.delta)


def test_partitions_of_times_do_not_follow_the_sessions_zone(spark, tmp_path):
    fields = [handmade.field("n", "long"), handmade.field("at", "timestamp")]
    texts = ["2024-01-01T02:00:00+02:00", "1969-07-20T20:17:40.000001Z", None]
    files = []
    for number, text in enumerate(texts):
        name = handmade.write_file(tmp_path, f"{number}.parquet", pa.table({"n": [number]}))
        size = (tmp_path / name).stat().st_size
        files.append(handmade.add(name, 1, size, partitionValues={"at": text}))
    about = handmade.metadata(fields, partition_columns=["at"])
    handmade.commit(tmp_path, 0, handmade.protocol(), about, *files)
    snapshot = open_source("t", str(tmp_path)).snapshot()
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        result = snapshot_frame(spark, snapshot, ["at", "n"]).toArrow()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    read = result.column("at").cast(pa.timestamp("us", tz="UTC")).to_pylist()
    expected = read_rows(snapshot, ["at", "n"])
    assert dict(zip(result.column("n").to_pylist(), read, strict=True)) == {
        row["n"]: row["at"] for row in expected.to_pylist()
    }


def test_directories_beyond_ascii_are_not_trusted(spark, tmp_path):
    texts = pa.array([f"é{number}" for number in range(20)])
    write_deltalake(str(tmp_path), pa.table({"n": range(20), "p": texts}), partition_by=["p"])
    source = open_source("t", str(tmp_path))
    assert_same(snapshot_frame(spark, source.snapshot()), source.delta)


def test_no_columns_keep_the_number_of_rows(spark, tmp_path):
    write_deltalake(str(tmp_path), rows())
    frame = snapshot_frame(spark, open_source("t", str(tmp_path)).snapshot(), [])
    assert (frame.columns, frame.count()) == ([], 40)


def test_directories_that_say_something_else_are_not_believed(spark, tmp_path):
    write_deltalake(str(tmp_path), rows(), partition_by=["part", "day"])
    snapshot = open_source("t", str(tmp_path)).snapshot()
    lying = [
        replace(file, partition_values={**file.partition_values, "day": "7"})
        for file in snapshot.files
    ]
    answer = snapshot_frame(spark, snapshot, files=lying).toArrow()
    assert set(answer["day"].to_pylist()) == {7}
    assert answer.num_rows == 40


@pytest.mark.parametrize("partitions", [None, ["day"], ["part", "day"]])
def test_deleted_positions_of_several_files(spark, tmp_path, partitions):
    for _ in range(2):
        write_deltalake(str(tmp_path), rows(), partition_by=partitions, mode="append")
    snapshot = open_source("t", str(tmp_path)).snapshot()
    first_gone = [
        replace(file, deleted=np.array([0])) if number % 3 else file
        for number, file in enumerate(snapshot.files)
    ]
    gone = sum(number % 3 > 0 for number in range(len(snapshot.files)))
    frame = snapshot_frame(spark, snapshot, files=first_gone)
    assert frame.count() == 80 - gone


def test_hidden_file_is_refused(spark, tmp_path):
    write_deltalake(str(tmp_path), rows())
    snapshot = open_source("t", str(tmp_path)).snapshot()
    hidden = replace(snapshot.files[0], uri=str(tmp_path / "_part-0.parquet"))
    with pytest.raises(TableError) as caught:
        snapshot_frame(spark, snapshot, files=[hidden])
    assert caught.value.code == "data_file_hidden"


def test_old_dates_are_read_as_written_whatever_the_session_says(spark, tmp_path):
    """Without Spark's mark in the file, `LEGACY` takes its days for those of another calendar."""
    days = -719162
    rows = pa.table(
        {
            "d": pa.array([days], pa.int32()).cast(pa.date32()),
            "t": pa.array([days * 86_400_000_000], pa.timestamp("us", "UTC")),
        }
    )
    write_deltalake(str(tmp_path / "t"), rows)
    snapshot = open_source("t", str(tmp_path / "t")).snapshot()
    session = spark.newSession()
    for kind in ("datetime", "int96"):
        session.conf.set(f"spark.sql.parquet.{kind}RebaseModeInRead", "LEGACY")
    frame = snapshot_frame(session, snapshot)
    (result,) = frame.selectExpr("CAST(d AS STRING) d", "unix_micros(t) t").collect()
    assert result.d == "0001-01-01"
    assert result.t == days * 86_400_000_000
    assert frame.where("d = DATE '0001-01-01'").count() == 1
