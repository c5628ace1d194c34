"""`rewrite --files`: text and files together give the query's answer, to a reader without Delta."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import sqlglot
from deltalake import DeltaTable, write_deltalake

from impctl.bench.parquet_sql import ParquetSql
from impctl.tables.write.maintenance import create_laid_out_table
from tests.support.run_cli import Cli, CliOf

SQL = "SELECT g, SUM(x) AS s FROM t WHERE h < 60 GROUP BY g HAVING SUM(x) > 1400"
FILES = 40


@pytest.fixture
def cli(tmp_path: Path, cli_of: CliOf) -> Cli:
    random = np.random.default_rng(3)
    at = np.arange(4000)
    rows = {"g": at // 50, "h": random.integers(0, 100, 4000), "x": random.integers(0, 100, 4000)}
    table = pa.table(rows)
    parts = (table.slice(start, 100) for start in range(0, 4000, 100))
    create_laid_out_table(str(tmp_path / "t"), parts)
    return cli_of(
        f'version: 1\ntables: {{t: {{path: t}}}}\nqueries: {{q: {{sql: "{SQL}"}}}}\nstore: st\n'
    )


def answer(sql: str, files: list[str]) -> list[dict[str, object]]:
    connection = ParquetSql.open()
    assert connection is not None
    connection.view("t", files)
    (sql,) = sqlglot.transpile(sql, read="spark", write="duckdb")
    return sorted(connection.run(sql).to_pylist(), key=lambda row: str(row["g"]))


@pytest.mark.slow
@pytest.mark.skipif(not ParquetSql.is_installed(), reason="needs DuckDB")
def test_text_and_files_give_the_answer(cli: Cli) -> None:
    cli.good("capture")
    folder = cli.workload.parent
    result = cli.good("rewrite", "--files", str(folder / "left.json")).results[0]
    left = json.loads((folder / "left.json").read_text())
    assert list(left) == ["t"]
    assert len(left["t"]) == result["files_kept"] < result["files_total"] == FILES
    whole = [str(path) for path in (folder / "t").glob("*.parquet")]
    assert answer(result["sql"], left["t"]) == answer(SQL, whole) != []


def test_rows_that_are_not_those_of_the_files_are_refused(cli: Cli) -> None:
    folder = cli.workload.parent
    rows = DeltaTable(str(folder / "t")).to_pyarrow_table()
    write_deltalake(
        str(folder / "t"), rows, mode="overwrite", partition_by=["h"], schema_mode="overwrite"
    )
    cli.good("capture")
    cli.good("rewrite")
    assert cli("rewrite", "--files", str(folder / "left.json")).refusal == (3, "files_not_plain")
    assert not (folder / "left.json").exists()


@pytest.mark.parametrize(("least", "is_refused"), [(390, True), (5, False)])
def test_rows_with_nan_that_readers_of_files_pass_over_are_refused(
    cli: Cli, least: int, is_refused: bool
) -> None:
    """DuckDB passes over a file whose greatest number is too small, though it has a NaN."""
    folder = cli.workload.parent
    at = np.arange(400, dtype=np.float64)
    table = pa.table({"x": np.where(at == 150, np.nan, at)})
    create_laid_out_table(str(folder / "d"), (table.slice(i, 100) for i in range(0, 400, 100)))
    condition = f"NOT x < {least}" if is_refused else f"x < {least}"
    sql = f"SELECT x, COUNT(*) AS n FROM d WHERE {condition} GROUP BY x HAVING COUNT(*) > 0"
    cli.workload.write_text(
        "version: 1\ntables: {d: {path: d}}\n"
        f'queries: {{q: {{sql: "{sql}", sketch: {{d: x}}}}}}\nstore: st\n'
    )
    cli.good("capture")
    assert cli.good("rewrite").results[0]["intervals"]
    ran = cli("rewrite", "--files", str(folder / "left.json"))
    assert (ran.code != 0) is is_refused
    assert (folder / "left.json").exists() is not is_refused
    if is_refused:
        assert ran.refusal == (3, "files_not_plain")
        cli.good("rewrite", "--files", str(folder / "left.json"), "--sketch", "never")


@pytest.mark.slow
def test_a_sketch_that_does_not_pay_is_left_out_of_the_text(cli: Cli) -> None:
    """Each file has every `h`, and most of these pass: asking every row for them saves nothing."""
    scattered = "SELECT h, SUM(x) AS s FROM t GROUP BY h HAVING SUM(x) > 1000"
    cli.edit(SQL, scattered)
    cli.good("capture")
    result = {}
    for use in ("always", "auto", "never"):
        (result[use],) = cli.good("rewrite", "--sketch", use).results
    assert result["always"]["intervals"]
    assert result["always"]["left_away"] == {}
    assert "it skips none of the 40 files" in result["auto"]["left_away"]["t"]
    assert result["auto"]["intervals"] == result["auto"]["sketches"] == []
    assert result["auto"]["sql"] == result["never"]["sql"] != result["always"]["sql"]


@pytest.mark.slow
def test_a_sketch_that_pays_is_kept(cli: Cli) -> None:
    cli.good("capture")
    always = cli.good("rewrite").results
    assert cli.good("rewrite", "--sketch", "auto").results == always
