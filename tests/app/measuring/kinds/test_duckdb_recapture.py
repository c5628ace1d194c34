"""DuckDB beside Spark: values in the names of folders, and texts that Spark alone knows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from sqlglot import exp

from impctl.bench.parquet_sql import ParquetSql
from impctl.data.schema import LONG
from impctl.expr.nodes import ColumnRef
from impctl.expr.signature import SEVERAL_ROWS, one_row
from impctl.measure.duckdb import _translated, duckdb_plain
from impctl.service.context import open_workbench
from impctl.service.prepare import prepare
from impctl.service.settings import Settings
from impctl.spark.expressions import render_expr
from impctl.tables.rows import why_not_plain
from impctl.tables.source import open_source
from tests.tables import handmade

WORKLOAD = """\
version: 1
tables: {t: {path: t}}
queries: {q: {sql: "SELECT p, d, SUM(x) AS s FROM t GROUP BY p, d HAVING SUM(x) > 1"}}
"""


def test_values_of_folders_are_columns(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    rows = pa.table(
        {
            "p": ["a b", "50% off", "ä/ö", None, None, "a b"],
            "d": pa.array([1, 1, 2, 2, 2, 3], pa.int32()).cast(pa.date32()),
            "x": [2, 3, 4, 5, 6, 1],
        }
    )
    write_deltalake(str(tmp_path / "t"), rows, partition_by=["p", "d"])
    file = tmp_path / "w.yaml"
    file.write_text(WORKLOAD)
    with open_workbench(Settings(file)) as desk:
        prepared = prepare(desk, desk.workload.queries["q"])
        connection = ParquetSql.open()
        assert connection is not None
        offered = duckdb_plain(connection, desk.tables, prepared)
        assert offered.run is not None, offered.reason
        result = offered.run()
        connection.close()
    assert isinstance(result, pa.Table)
    shown = {(row["p"], str(row["d"]), int(row["s"])) for row in result.to_pylist()}
    day = "1970-01-0"
    assert shown == {
        ("a b", f"{day}2", 2),
        ("50% off", f"{day}2", 3),
        ("ä/ö", f"{day}3", 4),
        (None, f"{day}3", 11),
    }


def test_partitions_that_no_folder_names_are_not_plain(tmp_path: Path) -> None:
    name = handmade.write_file(tmp_path / "h", "a.parquet", pa.table({"id": [1]}))
    handmade.commit(
        tmp_path / "h",
        0,
        handmade.protocol(),
        handmade.metadata(
            [handmade.field("id", "long"), handmade.field("p", "string")], partition_columns=["p"]
        ),
        handmade.add(name, 1, partitionValues={"p": "a"}),
    )
    snapshot = open_source("h", str(tmp_path / "h")).snapshot()
    assert why_not_plain(snapshot, reads_folders=True) == "it has partition columns"


@pytest.mark.parametrize("rows", [1, 2])
def test_a_second_row_of_a_subquery_fails_there_too(rows: int) -> None:
    duckdb = pytest.importorskip("duckdb")
    check = render_expr(one_row(ColumnRef("q.n", LONG), None), {"q.n": "n"})
    counted = exp.select(exp.alias_(exp.Literal.number(rows), "n")).subquery("q")
    text = _translated(exp.select("n").from_(counted).where(check))
    if rows == 1:
        assert duckdb.sql(text).fetchall() == [(1,)]
    else:
        with pytest.raises(duckdb.Error, match=SEVERAL_ROWS):
            duckdb.sql(text).fetchall()
