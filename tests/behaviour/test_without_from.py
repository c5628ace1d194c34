"""Queries with a part that reads no table are captured, maintained and answered like any other."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Capsys, Cli

QUERIES = {
    "SELECT g, COALESCE(city, (SELECT 'none')) AS c FROM t WHERE id > 3": (
        [[1, "none"], [2, "c"]],
        [[1, "none"], [2, "c"], [3, "none"]],
    ),
    "SELECT (SELECT MAX(id) FROM t) AS m": ([[12]], [[20]]),
    "WITH k AS (SELECT 5 AS v) SELECT g FROM t WHERE id > (SELECT v FROM k)": (
        [[1], [2]],
        [[1], [2], [3]],
    ),
}


@pytest.mark.parametrize("sql", QUERIES)
def test_results_are_kept_and_maintained(tmp_path: Path, capsys: Capsys, sql: str) -> None:
    rows = pa.table({"g": [1, 1, 2, 2], "id": [1, 11, 2, 12], "city": ["a", None, "b", "c"]})
    create_table(str(tmp_path / "t"), rows)
    cli = Cli.over(
        capsys,
        tmp_path,
        "version: 1\ntables: {t: {path: t}}\npartitions: {t: {id: {boundaries: [4, 10]}}}\n"
        f'queries: {{q: {{answer: true, sql: "{sql}"}}}}\n',
    ).captured()
    before, after = QUERIES[sql]
    assert sorted(cli.one("query", "--by", "state")["rows"]) == before
    more = pa.table({"g": [3], "id": [20], "city": pa.array([None], pa.string())})
    write_deltalake(str(tmp_path / "t"), more, mode="append")
    cli.good("maintain", "--policy", "incremental")
    assert sorted(cli.one("query", "--by", "state")["rows"]) == after
