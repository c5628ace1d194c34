"""Snapshots read by Spark and by deltalake, compared as bags; NaN and zeros; file listing."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial, reduce
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, WriterProperties, convert_to_deltalake, write_deltalake
from msgspec.structs import replace

from impctl.data.schema import DOUBLE, FLOAT
from impctl.errors import HistoryGoneError, TableError
from impctl.spark import snapshots
from impctl.spark.run import run_sql
from impctl.spark.session import LISTING, few_listing_tasks, is_connect
from impctl.spark.snapshots import MAX_BRANCHES, snapshot_frame
from impctl.tables import files
from impctl.tables.files import hiding_columns
from impctl.tables.rows import read_rows
from impctl.tables.snapshot import Snapshot
from impctl.tables.source import open_source
from tests.plan.catalogs import listed
from tests.support.run_cli import refused
from tests.tables import handmade
from tests.tables.handmade import VectoredTable

pytestmark = pytest.mark.spark

FIXTURES = handmade.fixture_folder()


READABLE = """
    cdf-table cdf-table-non-partitioned cdf-table-with-cdc-and-dvs checkpoint-cdf-table
    checkpoint-v2-table delta-0.8.0-null-partition delta-0.8.0-partitioned
    delta-0.8.0-special-partition delta-2.2.0-partitioned-types partition-type-primitives
    simple_table_with_cdc table-with-dv-small table_with_column_mapping table_with_deletion_logs
    table_with_liquid_clustering table_with_partitioning_mapping
"""


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
    result = frame.toArrow()
    expected = pa.table(delta.scan().read_all()).select(result.column_names)
    assert bag(result) == bag(expected)


@needs_fixtures
@pytest.mark.parametrize("name", READABLE.split())
def test_fixtures_read_like_deltalake(spark, name):
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
def test_timestamps_beyond_nanoseconds_are_read(spark):
    """delta-rs reads these INT96 values as years around 1816."""
    source = open_source("t", str(FIXTURES / "table_with_edge_timestamps"))
    result = snapshot_frame(spark, source.snapshot()).toArrow()
    years = {str(value)[:4] for name in result.column_names[:1] for value in result[name]}
    assert years == {"9999"}


@needs_fixtures
def test_missing_files_name_the_version(spark):
    source = open_source("old", str(FIXTURES / "checkpoints_vacuumed"))
    sql, versions = "SELECT * FROM t", {"old": source.version}
    with pytest.raises(HistoryGoneError, match=f"Version {source.version} of table `old`"):
        run_sql(spark, sql, {"t": snapshot_frame(spark, source.snapshot())}, versions=versions)


@needs_fixtures
def test_an_unreadable_column_is_refused(spark):
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


def snapshot_of(folder: Path, data: pa.Table | None = None, **options: Any) -> Snapshot:
    write_deltalake(str(folder), rows() if data is None else data, **options)
    return open_source("t", str(folder)).snapshot()


def test_requested_columns_in_requested_order(spark, tmp_path):
    frame = snapshot_frame(spark, snapshot_of(tmp_path), ["day", "some name", "DAY"])
    assert (frame.columns, frame.count()) == (["day", "Some Name"], 40)


def test_partition_columns_alone(spark, tmp_path):
    frame = snapshot_frame(spark, snapshot_of(tmp_path, partition_by=["day"]), ["day"])
    assert Counter(frame.toArrow()["day"].to_pylist()) == {0: 20, 1: 20}


def test_no_files_is_an_empty_frame_with_the_schema(spark, tmp_path):
    frame = snapshot_frame(spark, snapshot_of(tmp_path), files=[])
    assert frame.dtypes == [("Some Name", "bigint"), ("part", "string"), ("day", "int")]
    assert frame.count() == 0


@pytest.mark.parametrize("folder", ["plain", "a*b"])
def test_many_partitions_are_read_at_once(spark, tmp_path, folder):
    path = tmp_path / folder
    write_deltalake(str(path), rows(), partition_by=["part", "day"])
    source = open_source("t", str(path))
    assert len(source.snapshot().files) > MAX_BRANCHES
    assert_same(snapshot_frame(spark, source.snapshot()), source.delta)
    assert len(snapshots._branches(source.snapshot(), source.snapshot().files)) == 1


@pytest.mark.parametrize("has_vectors", [False, True])
def test_many_partitions_keep_the_column_order(spark, tmp_path, has_vectors):
    """Spark puts partition columns last, and a union matches columns by position."""
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
    snapshot = open_source("t", str(table.path)).snapshot()
    rows = table.rows().to_pylist()
    for columns in (None, ["v", "p"], ["v"], []):
        frame = snapshot_frame(spark, snapshot, columns)
        names = ["p", "v"] if columns is None else columns
        assert frame.columns == names
        expected = [tuple(row[name] for name in names) for row in rows]
        assert sorted(tuple(row) for row in frame.collect()) == sorted(expected)


def test_a_value_named_like_the_null_folder_is_not_null(spark, tmp_path):
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


def test_timestamp_partitions_ignore_the_session_zone(spark, in_zone, tmp_path):
    fields = [handmade.field("n", "long"), handmade.field("at", "timestamp")]
    texts = ["2024-01-01T02:00:00+02:00", "1969-07-20T20:17:40.000001Z", None]
    files = [
        handmade.added(
            tmp_path,
            f"{number}.parquet",
            pa.table({"n": [number]}),
            {"partitionValues": {"at": text}},
        )
        for number, text in enumerate(texts)
    ]
    handmade.create(tmp_path, fields, *files, partition_columns=["at"])
    snapshot = open_source("t", str(tmp_path)).snapshot()
    in_zone("Asia/Tokyo")
    result = snapshot_frame(spark, snapshot, ["at", "n"]).toArrow()
    values = result.column("at").cast(pa.timestamp("us", tz="UTC")).to_pylist()
    expected = {row["n"]: row["at"] for row in read_rows(snapshot, ["at", "n"]).to_pylist()}
    assert dict(zip(result.column("n").to_pylist(), values, strict=True)) == expected


def test_non_ascii_partition_values(spark, tmp_path):
    texts = pa.array([f"é{number}" for number in range(20)])
    write_deltalake(str(tmp_path), pa.table({"n": range(20), "p": texts}), partition_by=["p"])
    source = open_source("t", str(tmp_path))
    assert_same(snapshot_frame(spark, source.snapshot()), source.delta)


def test_no_columns_keep_the_row_count(spark, tmp_path):
    frame = snapshot_frame(spark, snapshot_of(tmp_path), [])
    assert (frame.columns, frame.count()) == ([], 40)


def test_partition_values_come_from_the_log(spark, tmp_path):
    snapshot = snapshot_of(tmp_path, partition_by=["part", "day"])
    changed = [
        replace(file, partition_values={**file.partition_values, "day": "7"})
        for file in snapshot.files
    ]
    result = snapshot_frame(spark, snapshot, files=changed).toArrow()
    assert (set(result["day"].to_pylist()), result.num_rows) == ({7}, 40)


@pytest.mark.parametrize("partitions", [None, ["day"], ["part", "day"]])
def test_deleted_positions_of_several_files(spark, tmp_path, partitions):
    for _ in range(2):
        write_deltalake(str(tmp_path), rows(), partition_by=partitions, mode="append")
    snapshot = open_source("t", str(tmp_path)).snapshot()
    files = [
        replace(file, deleted=np.array([0])) if number % 3 else file
        for number, file in enumerate(snapshot.files)
    ]
    deleted = sum(number % 3 > 0 for number in range(len(snapshot.files)))
    assert snapshot_frame(spark, snapshot, files=files).count() == 80 - deleted


def test_hidden_file_is_refused(spark, tmp_path):
    snapshot = snapshot_of(tmp_path)
    hidden = replace(snapshot.files[0], uri=str(tmp_path / "_part-0.parquet"))
    with refused(TableError, "data_file_hidden"):
        snapshot_frame(spark, snapshot, files=[hidden])


def test_old_dates_ignore_the_rebase_mode_of_the_session(spark, tmp_path):
    """For files without Spark's marker, `LEGACY` would read days in another calendar."""
    days = -719162
    columns = {
        "d": pa.array([days], pa.int32()).cast(pa.date32()),
        "t": pa.array([days * 86_400_000_000], pa.timestamp("us", "UTC")),
    }
    snapshot = snapshot_of(tmp_path / "t", pa.table(columns))
    session = spark.newSession()
    for kind in ("datetime", "int96"):
        session.conf.set(f"spark.sql.parquet.{kind}RebaseModeInRead", "LEGACY")
    frame = snapshot_frame(session, snapshot)
    (result,) = frame.selectExpr("CAST(d AS STRING) d", "unix_micros(t) t").collect()
    assert (result.d, result.t) == ("0001-01-01", days * 86_400_000_000)
    assert frame.where("d = DATE '0001-01-01'").count() == 1


CONDITIONS = {
    name: [text for (text,) in listed("for_spark", section)]
    for name, section in (
        ("nan", "conditions that NaN meets"),
        ("zeros", "conditions that zeros meet"),
    )
}
"""NaN is greater than all numbers, and both zeros are equal."""


VALUES = {
    "nan": [0.5, 1.0, math.nan, 1.0, None, math.nan, 1.0, 1.0, math.nan, math.nan, None, None],
    "zeros": [-0.0, -0.0, 0.0, 0.0, -0.0, None, -1.0, -0.0, 0.0, 2.0],
}


Writer = Callable[[Any, Path, pa.Table], None]


def write_by_arrow(_: Any, path: Path, rows: pa.Table, *, has_dictionary: bool = True) -> None:
    path.mkdir()
    options = {"row_group_size": 2, "use_dictionary": has_dictionary, "write_page_index": True}
    pq.write_table(rows, path / "part-0.parquet", **options)
    convert_to_deltalake(path)


def write_by_deltalake(_: Any, path: Path, rows: pa.Table) -> None:
    write_deltalake(path, rows, writer_properties=WriterProperties(max_row_group_size=2))


def write_by_spark(spark: Any, path: Path, rows: pa.Table, **options: str) -> None:
    writer = spark.createDataFrame(rows).coalesce(1).write.options(**options)
    writer.option("maxRecordsPerFile", 2).parquet(str(path))
    for file in path.iterdir():
        if not file.name.endswith(".parquet"):
            file.unlink()
    convert_to_deltalake(path)


BLOOM = {"parquet.enable.dictionary": "false", "parquet.bloom.filter.enabled#d": "true"}
WRITERS: dict[str, Writer] = {
    "arrow": write_by_arrow,
    "arrow-plain": partial(write_by_arrow, has_dictionary=False),
    "deltalake": write_by_deltalake,
    "spark": write_by_spark,
    "spark-bloom": partial(write_by_spark, **BLOOM),
}


UNGUARDED_LOSSES = {
    *product(("arrow", "arrow-plain", "deltalake"), ["nan"]),
    *product(("arrow", "deltalake", "spark", "spark-bloom"), ["zeros"]),
}
"""Where those conditions drop rows without a guard."""


def table_of(values: Sequence[float | None], kind: pa.DataType) -> pa.Table:
    return pa.table({"d": pa.array(values, kind), "i": pa.array(range(len(values)), pa.int64())})


def written_table(spark: Any, folder: Path, writer: str, rows: pa.Table) -> Snapshot:
    WRITERS[writer](spark, folder / writer, rows)
    return open_source("t", str(folder / writer)).snapshot()


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(pa.float64(), id="double"),
        pytest.param(pa.float32(), id="float", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("values", VALUES)
def test_no_filter_drops_rows(spark, tmp_path, values, kind):
    """Files of all writers in one query, each with its own guard."""
    rows = table_of(VALUES[values], kind)
    snapshots = [written_table(spark, tmp_path, writer, rows) for writer in WRITERS]
    assert {snapshot.column("d").type for snapshot in snapshots} <= {DOUBLE, FLOAT}
    frames = [snapshot_frame(spark, snapshot) for snapshot in snapshots]
    all_files = reduce(lambda first, second: first.unionAll(second), frames)
    conditions = CONDITIONS[values]
    (counts,) = all_files.selectExpr(
        *(f"COUNT_IF({condition})" for condition in conditions)
    ).collect()
    assert all(counts)
    texts = [f"SELECT {n} AS at FROM t WHERE {condition}" for n, condition in enumerate(conditions)]
    filtered = run_sql(spark, " UNION ALL ".join(texts), {"t": all_files})
    assert Counter(filtered["at"].to_pylist()) == dict(enumerate(counts))


@pytest.mark.parametrize(("writer", "values"), list(product(WRITERS, VALUES)))
def test_only_columns_that_hide_values_are_detected(spark, tmp_path, writer, values):
    # Without the row group of NaN alone: Spark's files do not tell that it has no zero.
    snapshot = written_table(spark, tmp_path, writer, table_of(VALUES[values][:4], pa.float64()))
    is_hiding = (writer, values) != ("spark", "nan")
    assert hiding_columns(snapshot) == ({"d"} if is_hiding else frozenset())
    assert hiding_columns(snapshot, ["i"]) == frozenset()
    unguarded = snapshot_frame(spark, snapshot, is_guarded=False)
    condition, count = ("d >= 5", 1) if values == "nan" else ("d = 0", 4)
    assert (unguarded.where(condition).count() < count) == ((writer, values) in UNGUARDED_LOSSES)


def test_the_guard_affects_no_other_column(spark, tmp_path):
    write_by_deltalake(spark, tmp_path / "t", table_of(VALUES["nan"], pa.float64()))
    frame = snapshot_frame(spark, open_source("t", str(tmp_path / "t")).snapshot())
    with redirect_stdout(io.StringIO()) as printed:
        frame.where("d >= 5 AND i >= 3").explain()
    pushed = printed.getvalue().partition("PushedFilters: ")[2].partition("]")[0]
    assert "GreaterThanOrEqual(i,3)" in pushed
    assert "d" not in pushed.replace("GreaterThanOrEqual", "").replace("IsNotNull(i)", "")


def test_partitions_of_nan_and_zeros(spark, tmp_path):
    rows = table_of([math.nan, 1.0, -0.0, None, 0.0, 7.0], pa.float64())
    snapshot = snapshot_of(tmp_path, rows, partition_by=["d"])
    frame = snapshot_frame(spark, snapshot)
    assert frame.where("d >= 5").count() == frame.where("d = 0").count() == 2
    assert not hiding_columns(snapshot)


def test_uninspected_files_may_hide_values(spark, tmp_path, monkeypatch):
    """There are more files than are inspected, or a file cannot be read."""
    snapshot = written_table(spark, tmp_path, "spark", table_of(VALUES["nan"], pa.float64()))
    with monkeypatch.context() as patch:
        patch.setattr(files, "MAX_FOOTERS", len(snapshot.files) - 1)
        assert hiding_columns(snapshot) == {"d"}
    snapshot = open_source("t", snapshot.path).snapshot()
    Path(snapshot.files[0].uri).write_bytes(b"no Parquet")
    assert hiding_columns(snapshot) == {"d"}


def listing_tasks(spark: Any) -> str:
    with few_listing_tasks(spark):
        return str(spark.conf.get(LISTING))


@pytest.fixture
def new_session(spark: Any) -> Any:
    """A new session with Spark's default."""
    session = spark.newSession()
    session.conf.unset(LISTING)
    return session


def test_listing_uses_few_tasks_per_core(new_session: Any) -> None:
    cores = 0 if is_connect(new_session) else new_session.sparkContext.defaultParallelism
    assert listing_tasks(new_session) == (str(max(8, 4 * cores)) if cores else "10000")
    assert new_session.conf.get(LISTING) == "10000"
    new_session.conf.set(LISTING, "77")
    assert listing_tasks(new_session) == "77", "a user setting is not changed"


def test_listing_many_files_takes_few_tasks(new_session: Any, tmp_path: Path) -> None:
    if is_connect(new_session):
        pytest.skip("a remote server does not report its jobs")
    for number in range(40):
        write_deltalake(tmp_path / "t", pa.table({"x": [number]}), mode="append")
    snapshot = open_source("t", str(tmp_path / "t")).snapshot()
    tracker = new_session.sparkContext.statusTracker()
    new_session.sparkContext.setJobGroup("listing", "files are looked at")
    frame = snapshot_frame(new_session, snapshot)
    tasks = [
        tracker.getStageInfo(stage).numTasks
        for job in tracker.getJobIdsForGroup("listing")
        for stage in tracker.getJobInfo(job).stageIds
    ]
    assert frame.count() == 40
    assert len(tasks) == 1, "Spark lists more than 32 files in a job"
    assert tasks[0] <= max(8, 4 * new_session.sparkContext.defaultParallelism) < 40
