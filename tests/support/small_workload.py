"""A small workload on a real Delta table, and the command line to run on it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Cli

WORKLOAD = """\
version: 1
tables:
  t: {path: t}
partitions:
  t:
    g: {boundaries: [2, 4, 6]}
    x: {boundaries: [10, 20]}
queries:
  q:
    sql: |
      SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t
      GROUP BY g HAVING COUNT(*) > 2
    sketch: {t: g}
    policy: POLICY
store: .impctl
spark: {master: "local[2]"}
"""

ROWS = pa.table(
    {
        "g": pa.array([0, 0, 0, 1, 3, 3, 3, 5, 7, None], pa.int64()),
        "x": pa.array([5, 15, 25, 5, 5, 15, 25, 5, 15, 25], pa.int64()),
        "note": pa.array(list("abcdefghij"), pa.string()),
    }
)


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A Delta table with a change feed; fragments of g in the sketch of `q`: 0 and 1."""
    path = str(tmp_path / "t")
    create_table(path, ROWS)
    return path


@pytest.fixture
def cli(tmp_path: Path, table: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The workload with policy `incremental`: what cannot be maintained is an error."""
    file = tmp_path / "w.yaml"
    file.write_text(WORKLOAD.replace("POLICY", "incremental"))
    return Cli(capsys, file)
