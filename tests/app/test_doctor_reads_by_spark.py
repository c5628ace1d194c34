"""`impctl doctor --spark`: a file of each table, read by Spark or by what stands in for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.app.examining.spark_reading import spark_findings
from impctl.app.workbench.settings import Settings
from impctl.app.workbench.workbench import open_workbench
from impctl.errors import UsageError
from impctl.tables.snapshot import Snapshot
from tests.support.run_cli import Cli


def add_tables(cli: Cli, tmp_path: Path) -> None:
    """`odd`, with a file that is none, and `bare`, without a row, before `t`."""
    write_deltalake(str(tmp_path / "odd"), pa.table({"x": [1]}))
    (data,) = (tmp_path / "odd").glob("*.parquet")
    data.write_bytes(b"no Parquet at all")
    write_deltalake(str(tmp_path / "bare"), pa.table({"x": pa.array([], pa.int64())}))
    text = cli.workload.read_text()
    more = "  odd: {path: odd}\n  bare: {path: bare}\n"
    cli.workload.write_text(text.replace("tables:\n", f"tables:\n{more}", 1))


@pytest.mark.spark
def test_one_table_that_cannot_be_read_hides_no_other(cli: Cli, tmp_path: Path, spark: Any) -> None:
    add_tables(cli, tmp_path)
    ran = cli("doctor", "--spark")
    told = {r["subject"]: r for r in ran.results if r["check"] == "spark_reads"}
    levels = {name: entry["level"] for name, entry in told.items()}
    assert levels == {"odd": "problem", "bare": "ok", "t": "ok"}
    assert told["odd"]["fix"]
    assert told["bare"]["message"] == "Spark has no file to read"
    assert told["t"]["message"] == "Spark read a file of 10 rows"


def test_each_table_is_told_of_whatever_is_wrong_with_others(cli: Cli, tmp_path: Path) -> None:
    add_tables(cli, tmp_path)

    def read(snapshot: Snapshot) -> int | None:
        if snapshot.table == "odd":
            raise UsageError("no file system", hint="add the JAR")
        return snapshot.rows or None

    with open_workbench(Settings(cli.workload)) as desk:
        found = {f.subject: (f.level, f.message, f.fix) for f in spark_findings(desk, read)}
    assert found == {
        "odd": ("problem", "no file system", "add the JAR"),
        "bare": ("ok", "Spark has no file to read", None),
        "t": ("ok", "Spark read a file of 10 rows", None),
    }
