"""Snapshots read by Spark against what deltalake reads, as bags; NaN and zeros; listing."""

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
    answer = frame.toArrow()
    expected = pa.table(delta.scan().read_all()).select(answer.column_names)
    assert bag(answer) == bag(expected)


@needs_fixtures
@pytest.mark.parametrize("name", READABLE.split())
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
    sql, versions = "SELECT * FROM t", {"old": source.version}
    with pytest.raises(HistoryGoneError, match=f"Version {source.version} of table `old`"):
        run_sql(spark, sql, {"t": snapshot_frame(spark, source.snapshot())}, versions=versions)


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


def snapshot_of(folder: Path, data: pa.Table | None = None, **options: Any) -> Snapshot:
    write_deltalake(str(folder), rows() if data is None else data, **options)
    return open_source("t", str(folder)).snapshot()


def test_asked_columns_in_asked_order(spark, tmp_path):
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
def test_many_partitions_in_the_order_of_the_table(spark, tmp_path, has_vectors):
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
    snapshot = open_source("t", str(table.path)).snapshot()
    rows = table.rows().to_pylist()
    for columns in (None, ["v", "p"], ["v"], []):
        frame = snapshot_frame(spark, snapshot, columns)
        wanted = ["p", "v"] if columns is None else columns
        assert frame.columns == wanted
        expected = [tuple(row[name] for name in wanted) for row in rows]
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


def test_partitions_of_times_do_not_follow_the_sessions_zone(spark, in_zone, tmp_path):
    fields = [handmade.field("n", "long"), handmade.field("at", "timestamp")]
    texts = ["2024-01-01T02:00:00+02:00", "1969-07-20T20:17:40.000001Z", None]
    files = [
        handmade.added(
            tmp_path, f"{at}.parquet", pa.table({"n": [at]}), {"partitionValues": {"at": text}}
        )
        for at, text in enumerate(texts)
    ]
    handmade.create(tmp_path, fields, *files, partition_columns=["at"])
    snapshot = open_source("t", str(tmp_path)).snapshot()
    in_zone("Asia/Tokyo")
    result = snapshot_frame(spark, snapshot, ["at", "n"]).toArrow()
    read = result.column("at").cast(pa.timestamp("us", tz="UTC")).to_pylist()
    expected = {row["n"]: row["at"] for row in read_rows(snapshot, ["at", "n"]).to_pylist()}
    assert dict(zip(result.column("n").to_pylist(), read, strict=True)) == expected


def test_directories_beyond_ascii_are_not_trusted(spark, tmp_path):
    texts = pa.array([f"é{number}" for number in range(20)])
    write_deltalake(str(tmp_path), pa.table({"n": range(20), "p": texts}), partition_by=["p"])
    source = open_source("t", str(tmp_path))
    assert_same(snapshot_frame(spark, source.snapshot()), source.delta)


def test_no_columns_keep_the_number_of_rows(spark, tmp_path):
    frame = snapshot_frame(spark, snapshot_of(tmp_path), [])
    assert (frame.columns, frame.count()) == ([], 40)


def test_directories_that_say_something_else_are_not_believed(spark, tmp_path):
    snapshot = snapshot_of(tmp_path, partition_by=["part", "day"])
    lying = [
        replace(file, partition_values={**file.partition_values, "day": "7"})
        for file in snapshot.files
    ]
    answer = snapshot_frame(spark, snapshot, files=lying).toArrow()
    assert (set(answer["day"].to_pylist()), answer.num_rows) == ({7}, 40)


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
    assert snapshot_frame(spark, snapshot, files=first_gone).count() == 80 - gone


def test_hidden_file_is_refused(spark, tmp_path):
    snapshot = snapshot_of(tmp_path)
    hidden = replace(snapshot.files[0], uri=str(tmp_path / "_part-0.parquet"))
    with refused(TableError, "data_file_hidden"):
        snapshot_frame(spark, snapshot, files=[hidden])


def test_old_dates_are_read_as_written_whatever_the_session_says(spark, tmp_path):
    """Without Spark's mark in the file, `LEGACY` takes its days for those of another calendar."""
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
"""NaN is greater than all numbers, and both zeros are one."""


VALUES = {
    "nan": [0.5, 1.0, math.nan, 1.0, None, math.nan, 1.0, 1.0, math.nan, math.nan, None, None],
    "zeros": [-0.0, -0.0, 0.0, 0.0, -0.0, None, -1.0, -0.0, 0.0, 2.0],
}


Writer = Callable[[Any, Path, pa.Table], None]


def by_arrow(_: Any, path: Path, rows: pa.Table, *, has_dictionary: bool = True) -> None:
    path.mkdir()
    options = {"row_group_size": 2, "use_dictionary": has_dictionary, "write_page_index": True}
    pq.write_table(rows, path / "part-0.parquet", **options)
    convert_to_deltalake(path)


def by_deltalake(_: Any, path: Path, rows: pa.Table) -> None:
    write_deltalake(path, rows, writer_properties=WriterProperties(max_row_group_size=2))


def by_spark(spark: Any, path: Path, rows: pa.Table, **options: str) -> None:
    writer = spark.createDataFrame(rows).coalesce(1).write.options(**options)
    writer.option("maxRecordsPerFile", 2).parquet(str(path))
    for file in path.iterdir():
        if not file.name.endswith(".parquet"):
            file.unlink()
    convert_to_deltalake(path)


BLOOM = {"parquet.enable.dictionary": "false", "parquet.bloom.filter.enabled#d": "true"}
WRITERS: dict[str, Writer] = {
    "arrow": by_arrow,
    "arrow-plain": partial(by_arrow, has_dictionary=False),
    "deltalake": by_deltalake,
    "spark": by_spark,
    "spark-bloom": partial(by_spark, **BLOOM),
}


HIDING = {
    *product(("arrow", "arrow-plain", "deltalake"), ["nan"]),
    *product(("arrow", "deltalake", "spark", "spark-bloom"), ["zeros"]),
}
"""Where those conditions lose rows without a guard."""


def table_of(values: Sequence[float | None], kind: pa.DataType) -> pa.Table:
    return pa.table({"d": pa.array(values, kind), "i": pa.array(range(len(values)), pa.int64())})


def written(spark: Any, folder: Path, writer: str, rows: pa.Table) -> Snapshot:
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
def test_no_filter_loses_a_row(spark, tmp_path, values, kind):
    """Files of all writers at once, each guarded for itself."""
    rows = table_of(VALUES[values], kind)
    snapshots = [written(spark, tmp_path, writer, rows) for writer in WRITERS]
    assert {snapshot.column("d").type for snapshot in snapshots} <= {DOUBLE, FLOAT}
    frames = [snapshot_frame(spark, snapshot) for snapshot in snapshots]
    all_files = reduce(lambda left, right: left.unionAll(right), frames)
    conditions = CONDITIONS[values]
    (counts,) = all_files.selectExpr(*(f"COUNT_IF({one})" for one in conditions)).collect()
    assert all(counts)
    texts = [f"SELECT {at} AS at FROM t WHERE {one}" for at, one in enumerate(conditions)]
    filtered = run_sql(spark, " UNION ALL ".join(texts), {"t": all_files})
    assert Counter(filtered["at"].to_pylist()) == dict(enumerate(counts))


@pytest.mark.parametrize(("writer", "values"), list(product(WRITERS, VALUES)))
def test_columns_that_hide_a_value_are_known_and_others_left_alone(spark, tmp_path, writer, values):
    # Not the group of NaN alone, of which Spark's own files do not tell that it has no zero.
    snapshot = written(spark, tmp_path, writer, table_of(VALUES[values][:4], pa.float64()))
    hides = (writer, values) != ("spark", "nan")
    assert hiding_columns(snapshot) == ({"d"} if hides else frozenset())
    assert hiding_columns(snapshot, ["i"]) == frozenset()
    bare = snapshot_frame(spark, snapshot, is_guarded=False)
    condition, count = ("d >= 5", 1) if values == "nan" else ("d = 0", 4)
    assert (bare.where(condition).count() < count) == ((writer, values) in HIDING)


def test_the_guard_reaches_no_other_column(spark, tmp_path):
    by_deltalake(spark, tmp_path / "t", table_of(VALUES["nan"], pa.float64()))
    frame = snapshot_frame(spark, open_source("t", str(tmp_path / "t")).snapshot())
    with redirect_stdout(io.StringIO()) as printed:
        frame.where("d >= 5 AND i >= 3").explain()
    pushed = printed.getvalue().partition("PushedFilters: ")[2].partition("]")[0]
    assert "GreaterThanOrEqual(i,3)" in pushed
    assert "d" not in pushed.replace("GreaterThanOrEqual", "").replace("IsNotNull(i)", "")


def test_a_partition_of_nan(spark, tmp_path):
    rows = table_of([math.nan, 1.0, -0.0, None, 0.0, 7.0], pa.float64())
    snapshot = snapshot_of(tmp_path, rows, partition_by=["d"])
    frame = snapshot_frame(spark, snapshot)
    assert frame.where("d >= 5").count() == frame.where("d = 0").count() == 2
    assert not hiding_columns(snapshot)


def test_what_is_not_looked_into_is_suspect(spark, tmp_path, monkeypatch):
    """More files than are looked into, or a file that cannot be read."""
    snapshot = written(spark, tmp_path, "spark", table_of(VALUES["nan"], pa.float64()))
    with monkeypatch.context() as patch:
        patch.setattr(files, "MAX_FOOTERS", len(snapshot.files) - 1)
        assert hiding_columns(snapshot) == {"d"}
    snapshot = open_source("t", snapshot.path).snapshot()
    Path(snapshot.files[0].uri).write_bytes(b"no Parquet")
    assert hiding_columns(snapshot) == {"d"}


def inside(spark: Any) -> str:
    with few_listing_tasks(spark):
        return str(spark.conf.get(LISTING))


@pytest.fixture
def fresh(spark: Any) -> Any:
    """A session of its own, with Spark's default."""
    session = spark.newSession()
    session.conf.unset(LISTING)
    return session


def test_files_are_looked_at_in_few_tasks_per_core(fresh: Any) -> None:
    cores = 0 if is_connect(fresh) else fresh.sparkContext.defaultParallelism
    assert inside(fresh) == (str(max(8, 4 * cores)) if cores else "10000")
    assert fresh.conf.get(LISTING) == "10000"
    fresh.conf.set(LISTING, "77")
    assert inside(fresh) == "77", "what somebody chose stays"


def test_a_table_of_many_files_takes_no_task_for_each(fresh: Any, tmp_path: Path) -> None:
    if is_connect(fresh):
        pytest.skip("a server elsewhere does not tell its jobs")
    for number in range(40):
        write_deltalake(tmp_path / "t", pa.table({"x": [number]}), mode="append")
    snapshot = open_source("t", str(tmp_path / "t")).snapshot()
    tracker = fresh.sparkContext.statusTracker()
    fresh.sparkContext.setJobGroup("listing", "files are looked at")
    frame = snapshot_frame(fresh, snapshot)
    tasks = [
        tracker.getStageInfo(stage).numTasks
        for job in tracker.getJobIdsForGroup("listing")
        for stage in tracker.getJobInfo(job).stageIds
    ]
    assert frame.count() == 40
    assert len(tasks) == 1, "Spark looks at more than 32 files by a job"
    assert tasks[0] <= max(8, 4 * fresh.sparkContext.defaultParallelism) < 40
