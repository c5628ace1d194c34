"""Answers of Spark as Arrow, in files and on stdout: types, names that stand twice, odd values."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import impctl
from tests.support.refused import refused
from tests.support.run_cli import Cli

pytestmark = pytest.mark.spark

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


def test_a_folder_that_is_missing_is_told_before_the_query_runs(cli: Cli, folder: Path) -> None:
    broken = "SELECT 1 / (x - x) AS broken FROM t"
    ran = cli("query", "--sql", broken, "--out", str(folder / "no" / "a.csv"))
    assert ran.refusal == (6, "answer_not_written")
    ran = cli("query", "--sql", broken, "--out", str(folder / "a.csv"))
    assert ran.refusal == (3, "evaluation_failed")
    assert not (folder / "a.csv").exists()
