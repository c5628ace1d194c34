"""Open tables, user sessions of Spark, files for other readers, results of Spark as Arrow."""

from __future__ import annotations

import json
import shutil
import threading
import warnings
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import impctl
from impctl.errors import (
    EvaluationError,
    ImpctlError,
    ImpctlWarning,
    TableError,
    UnsafeSketchError,
    UsageError,
)
from impctl.service import context, pinned
from impctl.spark.session import FIXED, is_connect, session_beside
from impctl.store.store import Store
from impctl.tables.write.maintenance import create_laid_out_table, create_table
from tests.support.kept_workload import duck
from tests.support.run_cli import Cli, python, refused
from tests.tables import handmade
from tests.tables.handmade import VectoredTable

WORKLOAD = """\
version: 1
tables: {t: {path: t}, u: {path: u}}
queries:
  q:
    sql: SELECT g, COUNT(*) AS n FROM t GROUP BY g HAVING COUNT(*) > 1 ORDER BY g
    answer: true
store: .impctl
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    for name in ("t", "u"):
        create_table(str(tmp_path / name), pa.table({"g": [1, 1, 2]}))
    path = tmp_path / "w.yaml"
    path.write_text(WORKLOAD)
    return path


@pytest.fixture
def opened_tables(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of tables that were opened by reading the whole log."""
    tables: list[str] = []
    original = pinned.open_source

    def open_source(name: str, *rest: Any) -> Any:
        tables.append(name)
        return original(name, *rest)

    monkeypatch.setattr(pinned, "open_source", open_source)
    return tables


def groups(workload: impctl.OpenWorkload) -> list[tuple[Any, ...]]:
    return list(workload.query("q", by="state").rows)


@pytest.mark.slow
def test_the_log_is_read_once_and_then_followed(file: Path, opened_tables: list[str]) -> None:
    with impctl.open(file) as workload:
        workload.capture()
        assert groups(workload) == [(1, 2)]
        write_deltalake(str(file.parent / "t"), pa.table({"g": [2, 3]}), mode="append")
        assert groups(workload) == [(1, 2), (2, 2)]
        DeltaTable(str(file.parent / "t")).delete("g = 1")
        assert groups(workload) == [(2, 2)]
    assert opened_tables == ["t"]


def test_a_replaced_table_is_detected(file: Path, opened_tables: list[str]) -> None:
    with impctl.open(file) as workload:
        workload.capture()
        shutil.rmtree(file.parent / "t")
        create_table(str(file.parent / "t"), pa.table({"g": [7, 7]}))
        with pytest.warns(ImpctlWarning, match="recaptured"):
            assert groups(workload) == [(7, 2)]
        shutil.rmtree(file.parent / "t")
        with pytest.raises(ImpctlError, match="does not exist"):
            groups(workload)
    assert opened_tables.count("t") > 1


def test_a_changed_path_is_another_table(file: Path, opened_tables: list[str]) -> None:
    with impctl.open(file) as workload:
        workload.capture()
        write_deltalake(str(file.parent / "u"), pa.table({"g": [2]}), mode="append")
        file.write_text(WORKLOAD.replace("{path: t}", "{path: ./u}"))
        with pytest.warns(ImpctlWarning, match="recaptured"):
            assert groups(workload) == [(1, 2), (2, 2)]


def test_all_tables_are_reopened_after_some_time(
    file: Path, opened_tables: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with impctl.open(file) as workload:
        workload.capture()
        monkeypatch.setattr(context, "_LONGEST", 0.0)
        groups(workload)
    assert opened_tables == ["t", "t"]


@pytest.fixture
def loaded_queries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of queries whose whole state was read from the store."""
    names: list[str] = []
    load_runs = Store.load_runs

    def recorded(self: Store, query: str, beginning: str = "") -> Any:
        if not beginning:
            names.append(query)
        return load_runs(self, query, beginning)

    monkeypatch.setattr(Store, "load_runs", recorded)
    return names


@pytest.mark.slow
def test_state_stays_loaded_between_calls(file: Path, loaded_queries: list[str]) -> None:
    table = file.parent / "t"
    with impctl.open(file) as workload, impctl.open(file) as other:
        workload.capture()
        for number in range(4):
            write_deltalake(str(table), pa.table({"g": [number, 2]}), mode="append")
            workload.maintain()
        assert loaded_queries == ["q"], "only the first call loads it"
        # If another process maintains meanwhile, the state is loaded again.
        write_deltalake(str(table), pa.table({"g": [5, 5]}), mode="append")
        other.maintain()
        write_deltalake(str(table), pa.table({"g": [6, 6]}), mode="append")
        workload.maintain()
        assert loaded_queries == ["q"] * 3
        workload.capture()
        DeltaTable(str(table)).delete("g = 1")
        workload.maintain()
        assert loaded_queries == ["q"] * 4
        assert groups(workload) == [(2, 6), (5, 2), (6, 2)]
        assert groups(workload) == list(workload.query("q", by="engine").rows)


def test_a_closed_workload_drops_its_state(file: Path) -> None:
    workload = impctl.open(file)
    workload.capture()
    write_deltalake(str(file.parent / "t"), pa.table({"g": [7, 7]}), mode="append")
    workload.maintain()
    assert workload._states is not None
    workload.close()
    assert workload._states is None


USER_SETTINGS = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "Asia/Tokyo",
    "spark.sql.groupByOrdinal": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
}

SCRIPT = """
import sys, impctl
with impctl.open(sys.argv[1]) as opened:
    opened.capture("q")
    print(sorted(opened.query("q").rows))
    try:
        opened.query(sql="SELECT 1 / (x - x) FROM t")
    except impctl.ImpctlError as error:
        print(type(error).__name__)
with impctl.open(sys.argv[1]) as opened:
    print(opened.verify("q", results=True)[0].results_equal)
"""


class FakeConf:
    """Settings of a session, some of which cannot be changed."""

    def __init__(self, fixed: dict[str, str]) -> None:
        self.values = dict(fixed)
        self.fixed = set(fixed)

    @property
    def getAll(self) -> dict[str, str]:  # noqa: N802  # as Spark spells it
        return self.values

    def isModifiable(self, name: str) -> bool:  # noqa: N802
        return name not in self.fixed

    def get(self, name: str, default: str | None) -> str | None:
        return self.values.get(name, default)

    def set(self, name: str, value: str) -> None:
        assert name not in self.fixed
        self.values[name] = value


class FakeSession:
    """A session whose new sessions also have `conf`."""

    version = "4.3.0"

    def __init__(self, conf: FakeConf) -> None:
        self.conf = conf

    def newSession(self) -> FakeSession:  # noqa: N802
        return self


@pytest.mark.parametrize("name", ["spark.sql.ansi.enabled", "spark.sql.legacy.something"])
def test_an_unchangeable_wrong_setting_is_refused(name: str) -> None:
    session: Any = FakeSession(FakeConf({name: "false"}))
    with refused(UsageError, "spark_setting_refused", name):
        session_beside(session, {})


def test_an_unchangeable_right_setting_is_accepted() -> None:
    session: Any = FakeSession(FakeConf({"spark.sql.ansi.enabled": "TRUE"}))
    conf: Any = session_beside(session, {"spark.sql.session.timeZone": "+02:00"}).conf
    assert conf.values["spark.sql.session.timeZone"] == "+02:00"
    assert FIXED.items() - conf.values.items() == {("spark.sql.ansi.enabled", "true")}


def test_requested_settings_that_change_results_are_refused() -> None:
    session: Any = FakeSession(FakeConf({}))
    with pytest.raises(UsageError):
        session_beside(session, {"spark.sql.ansi.enabled": "false"})


@pytest.fixture
def user_session(spark: Any) -> Any:
    """A session with settings that change results of queries, and a view named `t`."""
    session = spark.newSession()
    for name, value in USER_SETTINGS.items():
        session.conf.set(name, value)
    session.createDataFrame([(99,)], "g int").createOrReplaceTempView("t")
    yield session
    # Activate the shared session for the next test.
    spark.createDataFrame([], "nothing int")


@pytest.mark.spark
def test_user_sessions_are_not_changed(folder: Path, user_session: Any) -> None:
    before, active = user_session.conf.getAll, type(user_session).active()
    with impctl.open(folder / "w.yaml", spark=user_session) as opened:
        opened.capture("q", "none")
        result = opened.query("q")
        assert sorted(result.rows) == [(0, 3, 45), (3, 3, 45)]
        # No file is read. Spark gets rows from Python, which activates the session.
        assert opened.query("none").rows == ()
        assert type(user_session).active() is active
        assert opened.verify("q", results=True)[0].results_equal
        with pytest.raises(EvaluationError):
            opened.query(sql="SELECT 1 / (x - x) AS broken FROM t")
        frame = opened.dataframe("q")
    assert frame.sparkSession is not user_session
    assert frame.sparkSession.conf.get("spark.sql.session.timeZone") == "UTC"
    assert frame.sparkSession.conf.get("spark.sql.parquet.datetimeRebaseModeInRead") == "CORRECTED"
    assert "spark.sql.legacy.timeParserPolicy" not in frame.sparkSession.conf.getAll
    assert user_session.conf.getAll == before
    assert user_session.table("t").collect()[0].g == 99
    assert [view.name for view in frame.sparkSession.catalog.listTables()] == []
    assert user_session.range(1).count() == 1


@pytest.mark.spark
def test_a_frame_is_lazy_and_joins_with_user_frames(folder: Path, user_session: Any) -> None:
    if is_connect(user_session):
        pytest.skip("Spark Connect joins no frames of two sessions; see the next test")
    opened = impctl.open(folder / "w.yaml", spark=user_session)
    opened.capture("q")
    frame = opened.dataframe("q")
    names = user_session.createDataFrame([(0, "zero"), (3, "three")], "g long, name string")
    assert {row.name for row in names.join(frame, "g").collect()} == {"zero", "three"}
    for file in (folder / "t").glob("*.parquet"):
        file.unlink()
    # The user's session ignores missing files, but a frame of impctl never does.
    with pytest.raises(Exception, match="FILE_NOT_EXIST|FileNotFound"):
        names.join(frame, "g").count()


@pytest.mark.spark
def test_a_suitable_connect_session_is_used(folder: Path, spark: Any) -> None:
    """Frames can be joined with the user's frames, and the session is not changed."""
    if not is_connect(spark):
        pytest.skip("a test of Spark Connect: set SPARK_REMOTE")
    before = spark.conf.getAll
    with impctl.open(folder / "w.yaml", spark=spark) as opened:
        opened.capture("q")
        frame = opened.dataframe("q")
    assert frame.sparkSession is spark
    names = spark.createDataFrame([(0, "zero"), (3, "three")], "g long, name string")
    assert {row.name for row in names.join(frame, "g").collect()} == {"zero", "three"}
    assert spark.conf.getAll == before
    assert [view.name for view in spark.catalog.listTables()] == []


@pytest.mark.spark
def test_the_active_session_is_found_from_another_thread(folder: Path, user_session: Any) -> None:
    before, active = user_session.conf.getAll, type(user_session).active()
    opened = impctl.open(folder / "w.yaml")
    opened.capture("q")
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(opened.query("q").row_count))
    thread.start()
    thread.join()
    assert result == [2]
    assert user_session.conf.getAll == before
    assert type(user_session).active() is active


@pytest.mark.spark
def test_spark_is_started_without_printing(folder: Path) -> None:
    ran = python("-W", "ignore", "-c", SCRIPT, folder / "w.yaml")
    assert ran.stderr == ""
    assert ran.stdout == "[(0, 3, 45), (3, 3, 45)]\nEvaluationError\nTrue\n"


FILES = 40
SQL = "SELECT g, SUM(x) AS s FROM t WHERE h < 60 GROUP BY g HAVING SUM(x) > 1400"


def workload(folder: Path, sql: str, options: str = "") -> impctl.OpenWorkload:
    text = f'version: 1\ntables: {{t: {{path: t}}}}\nqueries: {{q: {{sql: "{sql}"{options}}}}}\n'
    (folder / "w.yaml").write_text(text)
    return impctl.open(folder / "w.yaml", store=folder / "st")


def scattered() -> pa.Table:
    rng = np.random.default_rng(3)
    index = np.arange(4000)
    return pa.table(
        {"g": index // 50, "h": rng.integers(0, 100, 4000), "x": rng.integers(0, 99, 4000)}
    )


def duckdb_rows(table: impctl.TableFiles, names: list[str]) -> pa.Table:
    """The described rows, read by DuckDB in one statement."""
    physical = {name: table.names_in_files.get(name, name) for name in names}
    is_partitioned = "partition_values" in table.listing.column_names
    partition_columns = (
        table.listing.schema.field("partition_values").type.names if is_partitioned else []
    )
    columns = [
        f'l.partition_values."{name}" AS "{name}"'
        if name in partition_columns
        else f'r."{stored}" AS "{name}"'
        for name, stored in physical.items()
    ]
    with duck() as connection:
        connection.register("listing", table.listing)
        connection.register("deleted", table.deleted_rows)
        result = connection.sql(
            f"""
            SELECT * FROM (
              SELECT {", ".join(columns)}
              FROM read_parquet($files, filename=true, file_row_number=true,
                                union_by_name=true, hive_partitioning=false) AS r
              JOIN listing AS l ON l.file = r.filename
              ANTI JOIN deleted AS d
                ON d.file = r.filename AND d.position = r.file_row_number
            ) WHERE {table.predicate or "TRUE"}
            """,
            params={"files": list(table.files)},
        )
        rows = result.to_arrow_table()
    assert isinstance(rows, pa.Table)
    return rows


def polars_rows(table: impctl.TableFiles, names: list[str]) -> pa.Table:
    """The described rows, read by Polars file by file."""
    polars = pytest.importorskip("polars")
    deleted, values = table.deleted, table.partition_values
    frames = []
    for file in table.files:
        frame = polars.scan_parquet(file, hive_partitioning=False).with_row_index("at")
        if file in deleted:
            positions = polars.Series(deleted[file].to_pylist(), dtype=polars.UInt32)
            frame = frame.filter(~polars.col("at").is_in(positions.implode()))
        constants = {name: polars.lit(value) for name, value in values[file].items()}
        columns = {name: polars.col(table.names_in_files.get(name, name)) for name in names}
        frames.append(frame.select(**{**columns, **constants}).select(names))
    rows = polars.concat(frames, how="vertical_relaxed")
    if table.predicate is not None:
        rows = rows.filter(polars.sql_expr(table.predicate))
    result = rows.collect().to_arrow()
    assert isinstance(result, pa.Table)
    return result


def result_of(sql: str, **tables: pa.Table) -> list[tuple[Any, ...]]:
    """The sorted result of the query on these rows, by DuckDB."""
    with duck() as connection:
        for name, rows in tables.items():
            connection.register(name, rows)
        return sorted(connection.execute(sql).fetchall(), key=repr)


READERS = (duckdb_rows, polars_rows)


@pytest.mark.slow
def test_files_and_predicate_give_the_result(tmp_path: Path) -> None:
    rows = scattered()
    create_laid_out_table(
        str(tmp_path / "t"), (rows.slice(start, 100) for start in range(0, 4000, 100))
    )
    with workload(tmp_path, SQL) as opened:
        opened.capture()
        files = opened.files("q")
    table = files.tables["t"]
    assert (files.query, files.sql, files.versions, files.action) == ("q", SQL, {"t": 0}, "none")
    assert table.predicate is not None
    assert len(table.files) < table.files_total == FILES
    assert all(Path(file).is_absolute() for file in table.files)
    assert (table.deleted, table.deleted_rows.num_rows, table.names_in_files) == ({}, 0, {})
    assert set(map(str, table.partition_values.values())) == {"{}"}
    for rows_of in READERS:
        filtered = rows_of(table, ["g", "h", "x"])
        assert filtered.num_rows < table.listing.column("rows").to_numpy().sum()
        assert result_of(SQL, t=filtered) == result_of(SQL, t=rows) != []


PARTITIONED = (
    "SELECT g, COUNT(*) AS n FROM t WHERE day >= DATE '2024-01-02' GROUP BY g HAVING COUNT(*) < 9"
)


def test_deleted_rows_and_partition_values(tmp_path: Path) -> None:
    """With HAVING and `<`, incomplete groups or deleted rows would change the result."""
    days = [date(2024, 1, 1 + number % 3) for number in range(600)]
    groups = [min(number // 4, 20 + number % 7) for number in range(600)]
    rows = pa.table(
        {"g": pa.array(groups, pa.int64()), "day": pa.array([*days[:-1], None], pa.date32())}
    )
    table = VectoredTable(tmp_path / "t", rows, by=["day"])
    table.delete(lambda part: pc.is_in(part.column("g"), pa.array([0, 2, 4, 6, 8])))
    with workload(tmp_path, PARTITIONED, ", sketch: {t: g}") as opened:
        opened.capture()
        result = opened.files("q").tables["t"]
    assert result.predicate is not None
    assert result.deleted
    assert result.deleted_rows.column_names == ["file", "position"]
    assert sum(map(len, result.deleted.values())) == result.deleted_rows.num_rows > 0
    values = [entry["day"] for entry in result.partition_values.values()]
    assert {date(2024, 1, 2), date(2024, 1, 3)} == set(values), "day 1 is pruned"
    for rows_of in READERS:
        filtered = rows_of(result, ["g", "day"])
        assert result_of(PARTITIONED, t=filtered) == result_of(PARTITIONED, t=table.rows()) != []
        assert result_of(PARTITIONED, t=filtered) != result_of(PARTITIONED, t=rows)


def write_mapped(folder: Path, kind: Any = "long") -> None:
    """A table whose files have `col-2` for `x`, and `x` for `y`."""
    names = {"g": ("col-1", "long"), "x": ("col-2", "long"), "y": ("x", kind)}
    fields = [
        handmade.field(
            name,
            kind,
            **{"delta.columnMapping.id": n, "delta.columnMapping.physicalName": stored},
        )
        for n, (name, (stored, kind)) in enumerate(names.items(), start=1)
    ]
    configuration = {"delta.columnMapping.mode": "name"}
    meta = handmade.metadata(fields, configuration=configuration)
    handmade.commit(folder, 0, handmade.protocol("columnMapping"), meta)
    for n in range(4):
        part = pa.table({"col-1": [n, n, n], "col-2": [n, 5, 9], "x": [0, 100, 100 * n]})
        name = handmade.write_file(folder, f"{n}.parquet", part)
        size = (folder / name).stat().st_size
        handmade.commit(folder, n + 1, handmade.add(name, 3, size))


@pytest.mark.slow
def test_column_names_in_files_of_a_mapped_table(tmp_path: Path) -> None:
    write_mapped(tmp_path / "t")
    sql = "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 15"
    with workload(tmp_path, sql, ", sketch: {t: g}") as opened:
        opened.capture()
        table = opened.files("q").tables["t"]
    assert table.names_in_files == {"g": "col-1", "x": "col-2", "y": "x"}
    assert table.predicate is not None
    for rows_of in READERS:
        assert result_of(sql, t=rows_of(table, ["g", "x"])) == [(2, 16), (3, 17)]


def test_mapped_nested_columns_are_refused(tmp_path: Path) -> None:
    """Names inside nested columns are mapped too, but only top-level names are described."""
    inner = {"delta.columnMapping.id": 9, "delta.columnMapping.physicalName": "col-9"}
    write_mapped(
        tmp_path / "t", {"type": "struct", "fields": [handmade.field("k", "long", **inner)]}
    )
    opening = workload(tmp_path, "SELECT y FROM t", ", sketch: none")
    with opening as opened, refused(TableError, "column_unreadable"):
        opened.files("q")


def doubles(folder: Path, largest: float) -> pa.Table:
    numbers = np.arange(400, dtype=np.float64)
    x = np.where(numbers == 399, largest, numbers)
    rows = pa.table({"g": pa.array(numbers // 100, pa.int64()), "x": x})
    create_laid_out_table(str(folder), (rows.slice(start, 100) for start in range(0, 400, 100)))
    return rows


def test_no_predicate_if_files_may_hide_nan(tmp_path: Path) -> None:
    """DuckDB always skips row groups by statistics, which exclude NaN."""
    rows = doubles(tmp_path / "t", float("nan"))
    sql = "SELECT x, COUNT(*) AS n FROM t WHERE NOT x < 390 GROUP BY x HAVING COUNT(*) > 0"
    with workload(tmp_path, sql, ", sketch: {t: x}") as opened:
        opened.capture()
        files = opened.files("q")
    assert "NaN" in files.unused_sketches["t"]
    assert files.tables["t"].predicate is None
    # All NaN are equal in DuckDB, but not in Python.
    counted = f"SELECT COUNT(*), SUM(n) FROM ({sql})"
    for rows_of in READERS:
        filtered = rows_of(files.tables["t"], ["g", "x"])
        assert result_of(counted, t=filtered) == result_of(counted, t=rows)


@pytest.mark.slow
def test_lower_ranges_of_doubles_have_a_predicate(tmp_path: Path) -> None:
    rows = doubles(tmp_path / "t", float("nan"))
    sql = "SELECT x, COUNT(*) AS n FROM t WHERE x < 50 GROUP BY x HAVING COUNT(*) > 0"
    with workload(tmp_path, sql, ", sketch: {t: x}") as opened:
        opened.capture()
        table = opened.files("q").tables["t"]
    assert table.predicate is not None
    assert "x" in table.predicate
    assert len(table.files) == 1
    for rows_of in READERS:
        assert result_of(sql, t=rows_of(table, ["g", "x"])) == result_of(sql, t=rows)


LOW = "SELECT g, SUM(x) AS s FROM t WHERE h < 50 GROUP BY g HAVING SUM(x) < 900"
READ_TWICE = {
    "joined": f"SELECT a.g, a.s, b.n FROM ({LOW}) AS a JOIN (SELECT g, COUNT(*) AS n FROM t"
    " GROUP BY g HAVING COUNT(*) > 49) AS b ON a.g = b.g",
    "other ranges": f"{LOW} UNION ALL SELECT g, SUM(x) AS s FROM t WHERE h >= 50 GROUP BY g"
    " HAVING SUM(x) > 1600",
    "other column": f"{LOW} UNION ALL SELECT h, SUM(x) AS s FROM t WHERE g < 40 GROUP BY h"
    " HAVING SUM(x) < 600",
    "whole": f"{LOW} UNION ALL SELECT MIN(g), SUM(x) AS s FROM t",
}


@pytest.mark.parametrize("name", list(READ_TWICE))
def test_a_table_read_twice_gets_the_union(tmp_path: Path, name: str) -> None:
    """Otherwise one access would get incomplete groups."""
    rows = scattered()
    create_laid_out_table(
        str(tmp_path / "t"), (rows.slice(start, 100) for start in range(0, 4000, 100))
    )
    with workload(tmp_path, READ_TWICE[name]) as opened:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", impctl.ImpctlWarning)
            (captured,) = opened.capture()
        files = opened.files("q")
    assert captured.sketches
    table = files.tables["t"]
    for rows_of in READERS:
        filtered = rows_of(table, ["g", "h", "x"])
        assert result_of(READ_TWICE[name], t=filtered) == result_of(READ_TWICE[name], t=rows) != []
        assert (filtered.num_rows < rows.num_rows / 2) is (name in ("joined", "other ranges"))
    if name in ("joined", "other ranges"):
        assert table.predicate is not None
    else:
        assert table.predicate is None
        assert "several times" in files.unused_sketches["t"]


def test_no_sketch_means_all_files_and_no_predicate(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"g": [1, 2], "x": [1, 2]}))
    with workload(
        tmp_path, "SELECT g, COUNT(*) AS n FROM t GROUP BY g HAVING COUNT(*) > 1"
    ) as opened:
        with pytest.warns(impctl.ImpctlWarning, match="without a sketch"):
            files = opened.files("q")
        assert files.action == "no_sketch"
        assert files.tables["t"].predicate is None
        assert list(files.tables["t"].files) == DeltaTable(str(tmp_path / "t")).file_uris()
        with refused(UnsafeSketchError, "sketch_required"):
            opened.files(sql="SELECT x FROM t", require_sketch=True)
        opened.capture()
        assert opened.files("q", sketch="never").tables["t"].predicate is None
        assert opened.files("q", params=None).tables["t"].predicate is not None


def test_a_query_only_for_spark_gets_whole_tables(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"g": [1, 2], "x": [1, 2]}))
    with workload(tmp_path, "SELECT g FROM t", ", sketch: none") as opened:
        sql = "SELECT INTERVAL '1 02:03:04.5' DAY TO SECOND AS i FROM t"
        with pytest.warns(impctl.ImpctlWarning):
            files = opened.files(sql=sql)
    assert (files.query, files.sql, files.versions) == ("--sql", sql, {"t": 0})
    assert len(files.tables["t"].files) == 1


@pytest.mark.slow
def test_uses_are_counted(tmp_path: Path) -> None:
    rows = scattered()
    create_laid_out_table(
        str(tmp_path / "t"), (rows.slice(start, 100) for start in range(0, 4000, 100))
    )
    with workload(tmp_path, SQL) as opened:
        opened.capture()
        opened.files("q")
        (status,) = opened.status("q")
    assert status.uses == 1
    assert status.bytes_skipped > 0


TYPES_SQL = """
SELECT g AS x, note AS x, CAST(0.1 AS FLOAT) AS f, CAST('NaN' AS DOUBLE) AS nan,
  CAST(1.5 AS DECIMAL(38, 18)) AS dec, TIMESTAMP'2024-01-31 12:00:00.5Z' AS at,
  TIMESTAMP_NTZ'2024-01-31 12:00:00' AS local, X'00FF' AS bin, array(1, NULL) AS list,
  named_struct('k', 1, 'v', array('x')) AS struct, map('a', 1) AS map,
  INTERVAL '1 02:03:04.5' DAY TO SECOND AS took, DATE'+12024-01-31' AS far, '' AS empty
FROM t WHERE g = 7
"""
EXPECTED = [
    [
        7,
        "i",
        0.10000000149011612,
        "NaN",
        "1.500000000000000000",
        "2024-01-31T12:00:00.500000+00:00",
        "2024-01-31T12:00:00",
        "00ff",
        [1, None],
        {"k": 1, "v": ["x"]},
        [["a", 1]],
        "P1DT7384.5S",
        "+12024-01-31",
        "",
    ]
]


@pytest.fixture
def cli(folder: Path, capsys: pytest.CaptureFixture[str], spark: Any) -> Cli:
    return Cli(capsys, folder / "w.yaml")


@pytest.mark.spark
def test_all_types_as_arrow(folder: Path, spark: Any) -> None:
    with impctl.open(folder / "w.yaml", spark=spark) as opened, pytest.warns(impctl.ImpctlWarning):
        result = opened.query(sql=TYPES_SQL)
    table = result.to_arrow()
    assert result.columns == ("x", "x", *table.column_names[2:])
    assert table.schema.types[:5] == [
        pa.int64(),
        pa.string(),
        pa.float32(),
        pa.float64(),
        pa.decimal128(38, 18),
    ]
    assert table.column("at").type == pa.timestamp("us", "UTC")
    row = next(zip(*(column for column in table.drop_columns(["far"]).columns), strict=True))
    assert row[4].as_py() == Decimal("1.5")
    assert row[5].as_py() == datetime(2024, 1, 31, 12, 0, 0, 500_000, UTC)
    assert row[11].as_py() == timedelta(days=1, hours=2, minutes=3, seconds=4.5)
    with refused(impctl.ImpctlError, "beyond_python"):
        _ = result.rows


@pytest.mark.spark
def test_all_types_in_json_and_files(cli: Cli, folder: Path) -> None:
    result = cli.one("query", "--sql", TYPES_SQL)
    assert result["columns"][:2] == ["x", "x"]
    assert result["rows"] == EXPECTED
    written = cli.one("query", "--sql", TYPES_SQL, "--out", str(folder / "a.jsonl"))
    assert (written["rows"], written["row_count"]) == ([], 1)
    assert written["written"] == str(folder / "a.jsonl")
    (line,) = (folder / "a.jsonl").read_text().splitlines()
    document = json.loads(line)
    assert list(document)[:2] == ["x", "x_2"]
    assert [list(document.values())] == EXPECTED
    cli.good("query", "--sql", TYPES_SQL, "--out", str(folder / "a.parquet"))
    table = pq.read_table(folder / "a.parquet")
    assert table.column_names[:2] == ["x", "x_2"]
    assert table.column("dec").to_pylist() == [Decimal("1.5")]


@pytest.mark.spark
def test_queries_with_sketches_and_limits(cli: Cli, folder: Path) -> None:
    cli.good("capture", "--query", "q")
    all_rows = cli.one("query", "--query", "q")
    limited = cli.one("query", "--query", "q", "--limit", "1")
    assert (all_rows["row_count"], limited["row_count"], all_rows["limit"]) == (2, 2, None)
    assert sorted(all_rows["rows"]) == [[0, 3, 45], [3, 3, 45]]
    assert limited["rows"][0] in all_rows["rows"]
    cli.good("query", "--query", "q", "--limit", "1", "--out", str(folder / "a.csv"))
    lines = (folder / "a.csv").read_text().splitlines()
    assert lines[0] == "g,n,s"
    assert lines[1:] in (["0,3,45"], ["3,3,45"])
