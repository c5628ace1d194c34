"""A recapture that cannot make all sketches of a query again says which ones it has no more."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.tables.write.create import create_table
from tests.support.run_cli import Cli

WORKLOAD = """\
version: 1
tables: {t: {path: t}, u: {path: u}}
partitions: {t: {d: {boundaries: [1, 2, 3]}}, u: {r: {boundaries: [1, 2]}}}
queries:
  q: {sql: "SELECT u.r, SUM(t.x) AS s FROM t JOIN u ON t.g = u.g GROUP BY u.r HAVING SUM(t.x) > 40"}
store: s
"""


def rows(*values: int) -> pa.Table:
    return pa.table({"g": [1] * len(values), "d": [2] * len(values), "x": values})


def test_the_sketch_that_rested_on_a_broken_fact_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_table(str(tmp_path / "t"), rows(30, 20))
    create_table(str(tmp_path / "u"), pa.table({"g": [1, 2], "r": [0, 2]}))
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    cli = Cli(capsys, tmp_path / "w.yaml")
    (captured,) = cli.good("capture").results
    assert [one["table"] for one in captured["sketches"]] == ["t", "u"]

    write_deltalake(str(tmp_path / "t"), rows(7), mode="append")
    assert cli.good("maintain", "--policy", "full").document["warnings"] == []

    write_deltalake(str(tmp_path / "t"), rows(-5), mode="append")
    [warning] = cli.good("maintain").document["warnings"]
    assert "t.x is nonnegative" in warning
    assert warning.endswith("it has no sketch on `t.d` any more")
