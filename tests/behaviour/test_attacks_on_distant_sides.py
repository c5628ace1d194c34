"""Sides of joins read by Spark, put together with what was built beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Cli

pytestmark = pytest.mark.spark

BELOW_A_TOP = (
    "SELECT q.g FROM (SELECT t.g, u.x FROM t JOIN u ON t.k = u.k ORDER BY u.x LIMIT 2) q "
    "WHERE q.g <> 'Z'"
)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("join", ["spark", "spark_unfiltered"])
def test_a_barrier_above_keeps_in_mind_which_sides_are_distant(
    join: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], spark: Any
) -> None:
    create_table(str(tmp_path / "t"), pa.table({"g": ["A", "B", "C"], "k": [1, 2, 3]}))
    create_table(str(tmp_path / "u"), pa.table({"k": [1, 2, 3], "x": [10, 20, 30]}))
    cli = Cli.over(
        capsys,
        tmp_path,
        "version: 1\ntables: {t: {path: t}, u: {path: u}}\n"
        "partitions: {t: {g: {boundaries: [B, C]}}}\n"
        f'queries: {{q: {{sql: "{BELOW_A_TOP}", sketch: {{t: g}}, join: {join}}}}}\n',
    )
    assert cli.good("capture").results[0]["mode"] == "exact"
    assert {side["strategy"] for side in cli.good("explain").results[0]["joins"]} == {"spark"}
    write_deltalake(str(tmp_path / "u"), pa.table({"k": [3], "x": [5]}), mode="append")
    assert cli.good("maintain").results[0]["action"] == "exact"
    for verified in cli.good("verify", "--results").results:
        assert verified["covers"], verified
        assert verified["results_equal"] is True, verified
