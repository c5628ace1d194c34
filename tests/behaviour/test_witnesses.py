"""Sketches of witnesses where what they rest on changes: CHECKs, ways to maintain, sums."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Cli

SUMS = "SELECT b, MAX(s) AS m FROM (SELECT b, c, SUM(p) AS s FROM t GROUP BY b, c) GROUP BY b"


def workload(folder: Path, capsys: pytest.CaptureFixture[str], sql: str, column: str) -> Cli:
    query = {"sql": sql, "sketch": {"t": column}, "lineage": "witness", "policy": "incremental"}
    cuts: dict[str, list[object]] = {"id": [100, 200], "b": ["g", "p"]}
    text = {
        "version": 1,
        "tables": {"t": {"path": "t"}},
        "partitions": {"t": {column: {"boundaries": cuts[column]}}},
        "queries": {"q": query},
        "store": ".impctl",
    }
    return Cli.over(capsys, folder, json.dumps(text))


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    """Group `a` lies in the first range, `b` in the second."""
    rows = {"id": [1, 2, 150], "b": ["a", "a", "b"], "c": [1, 2, 1], "p": [10, 3, 7]}
    create_table(str(tmp_path / "t"), pa.table({**rows, "d": [1.5, 2.5, 3.5]}))
    return DeltaTable(str(tmp_path / "t"))


def test_without_the_check_that_it_rests_on_it_is_captured_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: DeltaTable
) -> None:
    table.alter.add_constraint({"positive": "p >= 0"})
    cli = workload(tmp_path, capsys, SUMS, "id")
    cli.good("capture")
    cli.good("maintain")
    table.alter.drop_constraint("positive")
    DeltaTable(str(tmp_path / "t")).delete("id = 2")
    ran = cli("maintain")
    assert ran.code == 7, ran.document
    assert ran.error["code"] == "engine_changed"
    assert cli("rewrite", "--require-sketch").code == 7
    assert cli.good("rewrite").results[0]["sketches"] == []
    cli.good("capture")
    (result,) = cli.good("rewrite").results
    assert result["sketches"][0]["fragments"] == [0, 1]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT DISTINCT c FROM t WHERE md5(b) > 'a'",
        "SELECT c, MAX(p) AS m FROM t WHERE md5(b) > 'a' GROUP BY c",
    ],
)
def test_a_witness_is_not_kept_by_touch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: DeltaTable, sql: str
) -> None:
    cli = workload(tmp_path, capsys, sql, "b")
    (result,) = cli.good("explain").results
    assert result["mode"] == "recapture"
    cli.workload.write_text(cli.workload.read_text().replace('"witness"', '"all"'))
    (result,) = cli.good("explain").results
    assert result["mode"] == "touch"


def test_above_sums_of_doubles_the_whole_lineage_is_held(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: DeltaTable
) -> None:
    sql = "SELECT b FROM (SELECT b, SUM(d) AS s FROM t GROUP BY b, c) GROUP BY b"
    cli = workload(tmp_path, capsys, sql, "id")
    told = " | ".join(line["why"] for line in cli.good("explain").results[0]["plan"])
    assert "its sketch holds only the rows that decide the result" in told, (
        "the sum is read by nobody"
    )
    table.alter.add_constraint({"up": "d >= 0"})
    sql = "SELECT b, MAX(s) AS m FROM (SELECT b, SUM(d) AS s FROM t GROUP BY b, c) GROUP BY b"
    cli = workload(tmp_path, capsys, sql, "id")
    told = " | ".join(line["why"] for line in cli.good("explain").results[0]["plan"])
    assert "sums of doubles vary from run to run" in told
    sql = (
        "SELECT c, MAX(s) AS m FROM (SELECT c, SUM(d) OVER (PARTITION BY b) AS s FROM t) GROUP BY c"
    )
    cli = workload(tmp_path, capsys, sql, "b")
    told = " | ".join(line["why"] for line in cli.good("explain").results[0]["plan"])
    assert "sums of doubles vary from run to run" in told, "those of windows are no other"
