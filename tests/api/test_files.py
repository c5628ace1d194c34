"""`OpenWorkload.files`: over the rows it describes DuckDB and Polars give the query's answer."""

from __future__ import annotations

import warnings
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

import impctl
from impctl.errors import TableError, UnsafeSketchError
from impctl.tables.write.maintenance import create_laid_out_table
from tests.support.duck import duck
from tests.support.refused import refused
from tests.tables import handmade
from tests.tables.vectored import VectoredTable

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


READERS = pytest.mark.parametrize("rows_of", [duckdb_rows, polars_rows])


@pytest.mark.slow
@READERS
def test_files_and_predicate_give_the_answer(tmp_path: Path, rows_of: Any) -> None:
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
    left = rows_of(table, ["g", "h", "x"])
    assert left.num_rows < table.listing.column("rows").to_numpy().sum()
    assert answer(SQL, t=left) == answer(SQL, t=rows) != []


PARTED = (
    "SELECT g, COUNT(*) AS n FROM t WHERE day >= DATE '2024-01-02' GROUP BY g HAVING COUNT(*) < 9"
)


@READERS
def test_deleted_rows_and_partition_values(tmp_path: Path, rows_of: Any) -> None:
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
@READERS
def test_names_in_the_files_of_a_table_that_maps_them(tmp_path: Path, rows_of: Any) -> None:
    mapped(tmp_path / "t")
    sql = "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 15"
    with workload(tmp_path, sql, ", sketch: {t: g}") as opened:
        opened.capture()
        table = opened.files("q").tables["t"]
    assert table.names_in_files == {"g": "col-1", "x": "col-2", "y": "x"}
    assert table.predicate is not None
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


@READERS
def test_a_range_that_nan_lies_in_is_not_asked_of_files_that_may_hide_it(
    tmp_path: Path, rows_of: Any
) -> None:
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
    assert answer(counted, t=rows_of(files.tables["t"], ["g", "x"])) == answer(counted, t=rows)


@pytest.mark.slow
@READERS
def test_lower_ranges_of_doubles_are_asked_for(tmp_path: Path, rows_of: Any) -> None:
    rows = doubles(tmp_path / "t", float("nan"))
    sql = "SELECT x, COUNT(*) AS n FROM t WHERE x < 50 GROUP BY x HAVING COUNT(*) > 0"
    with workload(tmp_path, sql, ", sketch: {t: x}") as opened:
        opened.capture()
        table = opened.files("q").tables["t"]
    assert table.predicate is not None
    assert "x" in table.predicate
    assert len(table.files) == 1
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


@READERS
@pytest.mark.parametrize("name", list(TWICE))
def test_a_table_read_twice_is_asked_for_what_both_need(
    tmp_path: Path, rows_of: Any, name: str
) -> None:
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
    left = rows_of(table, ["g", "h", "x"])
    assert answer(TWICE[name], t=left) == answer(TWICE[name], t=rows) != []
    if name in ("joined", "other ranges"):
        assert table.predicate is not None
        assert left.num_rows < rows.num_rows / 2
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
