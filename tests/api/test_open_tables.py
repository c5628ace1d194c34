"""Tables stay open between calls; files for other readers; answers of Spark as Arrow."""

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
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that were opened by reading their whole log."""
    names: list[str] = []
    whole = pinned.open_source

    def open_source(name: str, *more: Any) -> Any:
        names.append(name)
        return whole(name, *more)

    monkeypatch.setattr(pinned, "open_source", open_source)
    return names


def groups(workload: impctl.OpenWorkload) -> list[tuple[Any, ...]]:
    return list(workload.query("q", by="state").rows)


@pytest.mark.slow
def test_a_log_is_read_once_and_then_followed(file: Path, opened: list[str]) -> None:
    with impctl.open(file) as workload:
        workload.capture()
        assert groups(workload) == [(1, 2)]
        write_deltalake(str(file.parent / "t"), pa.table({"g": [2, 3]}), mode="append")
        assert groups(workload) == [(1, 2), (2, 2)]
        DeltaTable(str(file.parent / "t")).delete("g = 1")
        assert groups(workload) == [(2, 2)]
    assert opened == ["t"]


def test_another_table_at_the_path_is_seen(file: Path, opened: list[str]) -> None:
    with impctl.open(file) as workload:
        workload.capture()
        shutil.rmtree(file.parent / "t")
        create_table(str(file.parent / "t"), pa.table({"g": [7, 7]}))
        with pytest.warns(ImpctlWarning, match="recaptured"):
            assert groups(workload) == [(7, 2)]
        shutil.rmtree(file.parent / "t")
        with pytest.raises(ImpctlError, match="does not exist"):
            groups(workload)
    assert opened.count("t") > 1


def test_another_path_in_the_file_is_another_table(file: Path, opened: list[str]) -> None:
    with impctl.open(file) as workload:
        workload.capture()
        write_deltalake(str(file.parent / "u"), pa.table({"g": [2]}), mode="append")
        file.write_text(WORKLOAD.replace("{path: t}", "{path: ./u}"))
        with pytest.warns(ImpctlWarning, match="recaptured"):
            assert groups(workload) == [(1, 2), (2, 2)]


def test_from_time_to_time_all_are_opened_anew(
    file: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with impctl.open(file) as workload:
        workload.capture()
        monkeypatch.setattr(context, "_LONGEST", 0.0)
        groups(workload)
    assert opened == ["t", "t"]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries whose whole state was read from the store."""
    names: list[str] = []
    load_runs = Store.load_runs

    def noted(self: Store, query: str, beginning: str = "") -> Any:
        if not beginning:
            names.append(query)
        return load_runs(self, query, beginning)

    monkeypatch.setattr(Store, "load_runs", noted)
    return names


@pytest.mark.slow
def test_state_stays_from_one_maintain_to_the_next(file: Path, loaded: list[str]) -> None:
    table = file.parent / "t"
    with impctl.open(file) as workload, impctl.open(file) as other:
        workload.capture()
        for number in range(4):
            write_deltalake(str(table), pa.table({"g": [number, 2]}), mode="append")
            workload.maintain()
        assert loaded == ["q"], "the first one loads it"
        # Who maintains meanwhile leaves state that is not ours.
        write_deltalake(str(table), pa.table({"g": [5, 5]}), mode="append")
        other.maintain()
        write_deltalake(str(table), pa.table({"g": [6, 6]}), mode="append")
        workload.maintain()
        assert loaded == ["q"] * 3
        workload.capture()
        DeltaTable(str(table)).delete("g = 1")
        workload.maintain()
        assert loaded == ["q"] * 4
        assert groups(workload) == [(2, 6), (5, 2), (6, 2)]
        assert groups(workload) == list(workload.query("q", by="engine").rows)


def test_a_closed_workload_keeps_nothing(file: Path) -> None:
    workload = impctl.open(file)
    workload.capture()
    write_deltalake(str(file.parent / "t"), pa.table({"g": [7, 7]}), mode="append")
    workload.maintain()
    assert workload._states is not None
    workload.close()
    assert workload._states is None


HOSTILE = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "Asia/Tokyo",
    "spark.sql.groupByOrdinal": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
}

ALONE = """
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


class Conf:
    """Settings of a session that can take only some of them at run time."""

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


class Session:
    """A session whose new sessions have `conf`."""

    version = "4.3.0"

    def __init__(self, conf: Conf) -> None:
        self.conf = conf

    def newSession(self) -> Session:  # noqa: N802
        return self


@pytest.mark.parametrize("name", ["spark.sql.ansi.enabled", "spark.sql.legacy.something"])
def test_a_setting_that_cannot_be_set_right_is_refused_by_name(name: str) -> None:
    session: Any = Session(Conf({name: "false"}))
    with refused(UsageError, "spark_setting_refused", name):
        session_beside(session, {})


def test_a_setting_that_is_right_already_need_not_be_set() -> None:
    session: Any = Session(Conf({"spark.sql.ansi.enabled": "TRUE"}))
    conf: Any = session_beside(session, {"spark.sql.session.timeZone": "+02:00"}).conf
    assert conf.values["spark.sql.session.timeZone"] == "+02:00"
    assert FIXED.items() - conf.values.items() == {("spark.sql.ansi.enabled", "true")}


def test_settings_asked_for_that_change_meaning_are_refused() -> None:
    session: Any = Session(Conf({}))
    with pytest.raises(UsageError):
        session_beside(session, {"spark.sql.ansi.enabled": "false"})


@pytest.fixture
def mine(spark: Any) -> Any:
    """A session with settings under which queries mean something else, and a view named `t`."""
    session = spark.newSession()
    for name, value in HOSTILE.items():
        session.conf.set(name, value)
    session.createDataFrame([(99,)], "g int").createOrReplaceTempView("t")
    yield session
    # As the next test expects it.
    spark.createDataFrame([], "nothing int")


@pytest.mark.spark
def test_a_session_stays_as_it_was(folder: Path, mine: Any) -> None:
    before, active = mine.conf.getAll, type(mine).active()
    with impctl.open(folder / "w.yaml", spark=mine) as opened:
        opened.capture("q", "none")
        answer = opened.query("q")
        assert sorted(answer.rows) == [(0, 3, 45), (3, 3, 45)]
        # No file is read, so that Spark is given rows by Python, which activates the session.
        assert opened.query("none").rows == ()
        assert type(mine).active() is active
        assert opened.verify("q", results=True)[0].results_equal
        with pytest.raises(EvaluationError):
            opened.query(sql="SELECT 1 / (x - x) AS broken FROM t")
        frame = opened.dataframe("q")
    assert frame.sparkSession is not mine
    assert frame.sparkSession.conf.get("spark.sql.session.timeZone") == "UTC"
    assert frame.sparkSession.conf.get("spark.sql.parquet.datetimeRebaseModeInRead") == "CORRECTED"
    assert "spark.sql.legacy.timeParserPolicy" not in frame.sparkSession.conf.getAll
    assert mine.conf.getAll == before
    assert mine.table("t").collect()[0].g == 99
    assert [view.name for view in frame.sparkSession.catalog.listTables()] == []
    assert mine.range(1).count() == 1


@pytest.mark.spark
def test_a_frame_is_lazy_and_goes_together_with_ones_own(folder: Path, mine: Any) -> None:
    if is_connect(mine):
        pytest.skip("Spark Connect joins no frames of two sessions; see the next test")
    opened = impctl.open(folder / "w.yaml", spark=mine)
    opened.capture("q")
    frame = opened.dataframe("q")
    names = mine.createDataFrame([(0, "zero"), (3, "three")], "g long, name string")
    assert {row.name for row in names.join(frame, "g").collect()} == {"zero", "three"}
    for file in (folder / "t").glob("*.parquet"):
        file.unlink()
    # `mine` ignores missing files; a frame of impctl does not, wherever it is computed.
    with pytest.raises(Exception, match="FILE_NOT_EXIST|FileNotFound"):
        names.join(frame, "g").count()


@pytest.mark.spark
def test_a_session_of_connect_that_fits_is_worked_in(folder: Path, spark: Any) -> None:
    """Frames can be joined with one's own, and nothing of the session is changed."""
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
def test_the_running_session_is_found_from_another_thread(folder: Path, mine: Any) -> None:
    before, active = mine.conf.getAll, type(mine).active()
    opened = impctl.open(folder / "w.yaml")
    opened.capture("q")
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(opened.query("q").row_count))
    thread.start()
    thread.join()
    assert result == [2]
    assert mine.conf.getAll == before
    assert type(mine).active() is active


@pytest.mark.spark
def test_without_a_session_spark_is_started_and_nothing_is_printed(folder: Path) -> None:
    ran = python("-W", "ignore", "-c", ALONE, folder / "w.yaml")
    assert ran.stderr == ""
    assert ran.stdout == "[(0, 3, 45), (3, 3, 45)]\nEvaluationError\nTrue\n"


FILES = 40
SQL = "SELECT g, SUM(x) AS s FROM t WHERE h < 60 GROUP BY g HAVING SUM(x) > 1400"


def workload(folder: Path, sql: str, more: str = "") -> impctl.OpenWorkload:
    text = f'version: 1\ntables: {{t: {{path: t}}}}\nqueries: {{q: {{sql: "{sql}"{more}}}}}\n'
    (folder / "w.yaml").write_text(text)
    return impctl.open(folder / "w.yaml", store=folder / "st")


def scattered() -> pa.Table:
    draw = np.random.default_rng(3)
    at = np.arange(4000)
    return pa.table(
        {"g": at // 50, "h": draw.integers(0, 100, 4000), "x": draw.integers(0, 99, 4000)}
    )


def duckdb_rows(table: impctl.TableFiles, names: list[str]) -> pa.Table:
    """The rows described, read by DuckDB in one statement."""
    in_file = {name: table.names_in_files.get(name, name) for name in names}
    parted = "partition_values" in table.listing.column_names
    own = table.listing.schema.field("partition_values").type.names if parted else []
    columns = [
        f'l.partition_values."{name}" AS "{name}"' if name in own else f'r."{inner}" AS "{name}"'
        for name, inner in in_file.items()
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
        read = result.to_arrow_table()
    assert isinstance(read, pa.Table)
    return read


def polars_rows(table: impctl.TableFiles, names: list[str]) -> pa.Table:
    """The rows described, read by Polars file by file."""
    polars = pytest.importorskip("polars")
    deleted, values = table.deleted, table.partition_values
    frames = []
    for file in table.files:
        frame = polars.scan_parquet(file, hive_partitioning=False).with_row_index("at")
        if file in deleted:
            gone = polars.Series(deleted[file].to_pylist(), dtype=polars.UInt32)
            frame = frame.filter(~polars.col("at").is_in(gone.implode()))
        own = {name: polars.lit(value) for name, value in values[file].items()}
        inner = {name: polars.col(table.names_in_files.get(name, name)) for name in names}
        frames.append(frame.select(**{**inner, **own}).select(names))
    rows = polars.concat(frames, how="vertical_relaxed")
    if table.predicate is not None:
        rows = rows.filter(polars.sql_expr(table.predicate))
    read = rows.collect().to_arrow()
    assert isinstance(read, pa.Table)
    return read


def answer(sql: str, **tables: pa.Table) -> list[tuple[Any, ...]]:
    """The query over just these rows; DuckDB reads its SQL as it is."""
    with duck() as connection:
        for name, rows in tables.items():
            connection.register(name, rows)
        return sorted(connection.execute(sql).fetchall(), key=repr)


READERS = (duckdb_rows, polars_rows)


@pytest.mark.slow
def test_files_and_predicate_give_the_answer(tmp_path: Path) -> None:
    rows = scattered()
    create_laid_out_table(str(tmp_path / "t"), (rows.slice(at, 100) for at in range(0, 4000, 100)))
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
        left = rows_of(table, ["g", "h", "x"])
        assert left.num_rows < table.listing.column("rows").to_numpy().sum()
        assert answer(SQL, t=left) == answer(SQL, t=rows) != []


PARTED = (
    "SELECT g, COUNT(*) AS n FROM t WHERE day >= DATE '2024-01-02' GROUP BY g HAVING COUNT(*) < 9"
)


def test_deleted_rows_and_partition_values(tmp_path: Path) -> None:
    """HAVING with `<`: a group seen in part, or with rows that are gone, is another answer."""
    days = [date(2024, 1, 1 + at % 3) for at in range(600)]
    groups = [min(at // 4, 20 + at % 7) for at in range(600)]
    rows = pa.table(
        {"g": pa.array(groups, pa.int64()), "day": pa.array([*days[:-1], None], pa.date32())}
    )
    table = VectoredTable(tmp_path / "t", rows, by=["day"])
    table.delete(lambda part: pc.is_in(part.column("g"), pa.array([0, 2, 4, 6, 8])))
    with workload(tmp_path, PARTED, ", sketch: {t: g}") as opened:
        opened.capture()
        result = opened.files("q").tables["t"]
    assert result.predicate is not None
    assert result.deleted
    assert result.deleted_rows.column_names == ["file", "position"]
    assert sum(map(len, result.deleted.values())) == result.deleted_rows.num_rows > 0
    values = [one["day"] for one in result.partition_values.values()]
    assert {date(2024, 1, 2), date(2024, 1, 3)} == set(values), "day 1 is pruned"
    for rows_of in READERS:
        left = rows_of(result, ["g", "day"])
        assert answer(PARTED, t=left) == answer(PARTED, t=table.rows()) != []
        assert answer(PARTED, t=left) != answer(PARTED, t=rows)


def mapped(folder: Path, kind: Any = "long") -> None:
    """`x` is called `col-2` in the files, and `y` is called `x` there."""
    names = {"g": ("col-1", "long"), "x": ("col-2", "long"), "y": ("x", kind)}
    fields = [
        handmade.field(
            name, kind, **{"delta.columnMapping.id": at, "delta.columnMapping.physicalName": inner}
        )
        for at, (name, (inner, kind)) in enumerate(names.items(), start=1)
    ]
    configuration = {"delta.columnMapping.mode": "name"}
    meta = handmade.metadata(fields, configuration=configuration)
    handmade.commit(folder, 0, handmade.protocol("columnMapping"), meta)
    for at in range(4):
        part = pa.table({"col-1": [at, at, at], "col-2": [at, 5, 9], "x": [0, 100, 100 * at]})
        name = handmade.write_file(folder, f"{at}.parquet", part)
        size = (folder / name).stat().st_size
        handmade.commit(folder, at + 1, handmade.add(name, 3, size))


@pytest.mark.slow
def test_names_in_the_files_of_a_table_that_maps_them(tmp_path: Path) -> None:
    mapped(tmp_path / "t")
    sql = "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 15"
    with workload(tmp_path, sql, ", sketch: {t: g}") as opened:
        opened.capture()
        table = opened.files("q").tables["t"]
    assert table.names_in_files == {"g": "col-1", "x": "col-2", "y": "x"}
    assert table.predicate is not None
    for rows_of in READERS:
        assert answer(sql, t=rows_of(table, ["g", "x"])) == [(2, 16), (3, 17)]


def test_what_other_readers_would_get_wrong_is_refused(tmp_path: Path) -> None:
    """Names are mapped inside a nested column, too, of which only the top ones are told."""
    inner = {"delta.columnMapping.id": 9, "delta.columnMapping.physicalName": "col-9"}
    mapped(tmp_path / "t", {"type": "struct", "fields": [handmade.field("k", "long", **inner)]})
    opening = workload(tmp_path, "SELECT y FROM t", ", sketch: none")
    with opening as opened, refused(TableError, "column_unreadable"):
        opened.files("q")


def doubles(folder: Path, top: float) -> pa.Table:
    at = np.arange(400, dtype=np.float64)
    x = np.where(at == 399, top, at)
    rows = pa.table({"g": pa.array(at // 100, pa.int64()), "x": x})
    create_laid_out_table(str(folder), (rows.slice(start, 100) for start in range(0, 400, 100)))
    return rows


def test_a_range_that_nan_lies_in_is_not_asked_of_files_that_may_hide_it(tmp_path: Path) -> None:
    """DuckDB passes over row groups by statistics that leave NaN out, however it is asked."""
    rows = doubles(tmp_path / "t", float("nan"))
    sql = "SELECT x, COUNT(*) AS n FROM t WHERE NOT x < 390 GROUP BY x HAVING COUNT(*) > 0"
    with workload(tmp_path, sql, ", sketch: {t: x}") as opened:
        opened.capture()
        files = opened.files("q")
    assert "NaN" in files.left_away["t"]
    assert files.tables["t"].predicate is None
    # NaN is one value to DuckDB, not to Python.
    counted = f"SELECT COUNT(*), SUM(n) FROM ({sql})"
    for rows_of in READERS:
        left = rows_of(files.tables["t"], ["g", "x"])
        assert answer(counted, t=left) == answer(counted, t=rows)


@pytest.mark.slow
def test_lower_ranges_of_doubles_are_asked_for(tmp_path: Path) -> None:
    rows = doubles(tmp_path / "t", float("nan"))
    sql = "SELECT x, COUNT(*) AS n FROM t WHERE x < 50 GROUP BY x HAVING COUNT(*) > 0"
    with workload(tmp_path, sql, ", sketch: {t: x}") as opened:
        opened.capture()
        table = opened.files("q").tables["t"]
    assert table.predicate is not None
    assert "x" in table.predicate
    assert len(table.files) == 1
    for rows_of in READERS:
        assert answer(sql, t=rows_of(table, ["g", "x"])) == answer(sql, t=rows)


LOW = "SELECT g, SUM(x) AS s FROM t WHERE h < 50 GROUP BY g HAVING SUM(x) < 900"
TWICE = {
    "joined": f"SELECT a.g, a.s, b.n FROM ({LOW}) AS a JOIN (SELECT g, COUNT(*) AS n FROM t"
    " GROUP BY g HAVING COUNT(*) > 49) AS b ON a.g = b.g",
    "other ranges": f"{LOW} UNION ALL SELECT g, SUM(x) AS s FROM t WHERE h >= 50 GROUP BY g"
    " HAVING SUM(x) > 1600",
    "other column": f"{LOW} UNION ALL SELECT h, SUM(x) AS s FROM t WHERE g < 40 GROUP BY h"
    " HAVING SUM(x) < 600",
    "whole": f"{LOW} UNION ALL SELECT MIN(g), SUM(x) AS s FROM t",
}


@pytest.mark.parametrize("name", list(TWICE))
def test_a_table_read_twice_is_asked_for_what_both_need(tmp_path: Path, name: str) -> None:
    """Else one access would see groups of which only the other one needs some rows."""
    rows = scattered()
    create_laid_out_table(str(tmp_path / "t"), (rows.slice(at, 100) for at in range(0, 4000, 100)))
    with workload(tmp_path, TWICE[name]) as opened:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", impctl.ImpctlWarning)
            (captured,) = opened.capture()
        files = opened.files("q")
    assert captured.sketches
    table = files.tables["t"]
    for rows_of in READERS:
        left = rows_of(table, ["g", "h", "x"])
        assert answer(TWICE[name], t=left) == answer(TWICE[name], t=rows) != []
        assert (left.num_rows < rows.num_rows / 2) is (name in ("joined", "other ranges"))
    if name in ("joined", "other ranges"):
        assert table.predicate is not None
    else:
        assert table.predicate is None
        assert "several times" in files.left_away["t"]


def test_without_a_sketch_all_files_and_no_predicate(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"g": [1, 2], "x": [1, 2]}))
    with workload(tmp_path, "SELECT g, COUNT(*) AS n FROM t GROUP BY g HAVING COUNT(*) > 1") as own:
        with pytest.warns(impctl.ImpctlWarning, match="without a sketch"):
            files = own.files("q")
        assert files.action == "no_sketch"
        assert files.tables["t"].predicate is None
        assert list(files.tables["t"].files) == DeltaTable(str(tmp_path / "t")).file_uris()
        with refused(UnsafeSketchError, "sketch_required"):
            own.files(sql="SELECT x FROM t", require_sketch=True)
        own.capture()
        assert own.files("q", sketch="never").tables["t"].predicate is None
        assert own.files("q", params=None).tables["t"].predicate is not None


def test_a_query_that_only_spark_reads_gets_whole_tables(tmp_path: Path) -> None:
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
    create_laid_out_table(str(tmp_path / "t"), (rows.slice(at, 100) for at in range(0, 4000, 100)))
    with workload(tmp_path, SQL) as opened:
        opened.capture()
        opened.files("q")
        (status,) = opened.status("q")
    assert status.uses == 1
    assert status.bytes_left_out > 0


TYPES = """
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
def test_every_type_as_arrow(folder: Path, spark: Any) -> None:
    with impctl.open(folder / "w.yaml", spark=spark) as opened, pytest.warns(impctl.ImpctlWarning):
        answer = opened.query(sql=TYPES)
    table = answer.to_arrow()
    assert answer.columns == ("x", "x", *table.column_names[2:])
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
        _ = answer.rows


@pytest.mark.spark
def test_every_type_in_the_document_and_in_files(cli: Cli, folder: Path) -> None:
    result = cli.one("query", "--sql", TYPES)
    assert result["columns"][:2] == ["x", "x"]
    assert result["rows"] == EXPECTED
    written = cli.one("query", "--sql", TYPES, "--out", str(folder / "a.jsonl"))
    assert (written["rows"], written["row_count"]) == ([], 1)
    assert written["written"] == str(folder / "a.jsonl")
    (line,) = (folder / "a.jsonl").read_text().splitlines()
    match = json.loads(line)
    assert list(match)[:2] == ["x", "x_2"]
    assert [list(match.values())] == EXPECTED
    cli.good("query", "--sql", TYPES, "--out", str(folder / "a.parquet"))
    read = pq.read_table(folder / "a.parquet")
    assert read.column_names[:2] == ["x", "x_2"]
    assert read.column("dec").to_pylist() == [Decimal("1.5")]


@pytest.mark.spark
def test_answers_through_sketches_too(cli: Cli, folder: Path) -> None:
    cli.good("capture", "--query", "q")
    whole = cli.one("query", "--query", "q")
    first = cli.one("query", "--query", "q", "--limit", "1")
    assert (whole["row_count"], first["row_count"], whole["limit"]) == (2, 2, None)
    assert sorted(whole["rows"]) == [[0, 3, 45], [3, 3, 45]]
    assert first["rows"][0] in whole["rows"]
    cli.good("query", "--query", "q", "--limit", "1", "--out", str(folder / "a.csv"))
    lines = (folder / "a.csv").read_text().splitlines()
    assert lines[0] == "g,n,s"
    assert lines[1:] in (["0,3,45"], ["3,3,45"])
