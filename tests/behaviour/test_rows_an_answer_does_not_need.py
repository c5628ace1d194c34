"""Rows on which a query would fail, but which Spark does not need for its answer.

Law: maintaining does not fail where Spark answers the query; it says that the sketch stays behind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Cli

pytestmark = pytest.mark.spark

WORKLOAD = """\
version: 1
tables: {t: {path: t}, u: {path: u}}
partitions: {t: {id: {boundaries: [3, 5]}}}
spark: {master: "local[2]"}
queries:
  q:
    sql: >
      SELECT t.g, SUM(x) AS s FROM t JOIN u ON t.g = u.k
      GROUP BY t.g HAVING SUM(x) > (SELECT 6 / COUNT(*) FROM u)
    sketch: {t: id}
"""


def test_a_subquery_that_no_group_is_compared_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spark: Any
) -> None:
    rows = {"id": [1, 2, 3, 4, 5, 6], "g": [1, 1, 2, 2, 3, 3], "x": [1, 2, 3, 4, 5, 6]}
    create_table(str(tmp_path / "t"), pa.table(rows))
    create_table(str(tmp_path / "u"), pa.table({"k": [1, 2, 3]}))
    cli = Cli.over(capsys, tmp_path, WORKLOAD).captured()
    explained = cli.one("explain")
    assert (explained["mode"], "a row fails" in explained["reason"]) == ("recapture", True)
    DeltaTable(str(tmp_path / "u")).delete()
    ran = cli.good("maintain")
    assert ran.results == []
    assert "`q` was not maintained" in ran.document["warnings"][0]
    assert "Division by zero" in ran.document["warnings"][0]
    assert cli.one("query")["rows"] == []
    write_deltalake(str(tmp_path / "u"), pa.table({"k": [2, 3]}), mode="append")
    assert {result["action"] for result in cli.good("maintain").results} == {"recapture"}
    assert sorted(cli.one("query")["rows"]) == [[2, 7], [3, 11]]
