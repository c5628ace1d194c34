"""Lists, sets, modes and approximate percentiles beside conditions: whole groups, on Spark."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.run_cli import Capsys, Cli

pytestmark = pytest.mark.spark

QUERIES = {
    "listed": "SELECT g, SORT_ARRAY(COLLECT_LIST(x)) AS m FROM t GROUP BY g HAVING COUNT(*) > 9",
    "set": "SELECT g, SIZE(COLLECT_SET(x)) AS m, PERCENTILE_APPROX(x, 0.5) AS p FROM t GROUP BY g"
    " HAVING SUM(x) > 22",
    "top": "SELECT g, MAX(x) AS x, SIZE(COLLECT_LIST(x)) AS m FROM t GROUP BY g"
    " ORDER BY COUNT(*) DESC, g LIMIT 3",
    "joined": "SELECT a.g, a.m FROM (SELECT g, SIZE(COLLECT_SET(x)) AS m, COUNT(*) AS n FROM t"
    " GROUP BY g) a JOIN (SELECT g, SUM(x) AS s FROM t GROUP BY g) b ON a.g = b.g AND a.n < b.s",
}
"""What is shown is fixed by whole groups, so that equal answers tell that they were whole."""


def test_what_is_shown_is_of_whole_groups(tmp_path: Path, capsys: Capsys) -> None:
    rng = random.Random(5)
    write_deltalake(str(tmp_path / "t"), _rows(rng, 400))
    workload = {
        "version": 1,
        "tables": {"t": {"path": "t"}},
        "queries": {name: {"sql": sql} for name, sql in QUERIES.items()},
        "partitions": {"t": {"g": {"ranges": 20}}},
        "spark": {"master": "local[2]"},
    }
    cli = Cli.over(capsys, tmp_path, json.dumps(workload))
    cli.good("capture")
    for _ in range(2):
        write_deltalake(str(tmp_path / "t"), _rows(rng, 30), mode="append")
        DeltaTable(str(tmp_path / "t")).delete(f"g = {rng.randrange(40)}")
        cli.good("maintain")
    cli.verified()
    for name in QUERIES:
        assert _answer(cli, name, "always") == _answer(cli, name, "never"), name


def _rows(rng: random.Random, count: int) -> pa.Table:
    groups = [rng.randrange(40) for _ in range(count)]
    return pa.table({"g": groups, "x": [rng.randrange(5) for _ in range(count)]})


def _answer(cli: Cli, name: str, use: str) -> list[Any]:
    (result,) = cli.good("query", "--query", name, "--sketch", use).results
    assert result["rows"]
    return sorted(map(repr, result["rows"]))
