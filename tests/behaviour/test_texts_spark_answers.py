"""Expressions that impctl does not compute, or does not read: Spark answers, and `query` says so.

Law: `check` says beforehand that such a query has no sketch; no answer is missing, none is wrong.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Cli

pytestmark = pytest.mark.spark

HOUR = {"start": "2026-03-01T01:00:00+00:00", "end": "2026-03-01T02:00:00+00:00"}
QUERIES: dict[str, tuple[str, list[list[Any]]]] = {
    "window": ("SELECT window(ts, '1 hour') AS w, COUNT(*) AS n FROM t WHERE id > 2"
               " GROUP BY window(ts, '1 hour')", [[HOUR, 2]]),
    "starts": ("SELECT hour(window.start) AS h, SUM(id) AS s FROM t GROUP BY window(ts, '1 hour')"
               " HAVING SUM(id) > 3", [[1, 7]]),
    "session": ("SELECT COUNT(*) AS n FROM t GROUP BY session_window(ts, '40 minutes')", [[4]]),
    "ordered": ("SELECT g, COUNT(x) FROM t GROUP BY g ORDER BY COUNT(x) DESC, g LIMIT 1", [[1, 2]]),
    "json": ("SELECT id, from_json(s, 'x INT').x AS v FROM t WHERE id = 2", [[2, 7]]),
    "split": ("SELECT split(url, '/')[1] AS p, COUNT(*) AS n FROM t GROUP BY split(url, '/')[1]",
              [["b", 4]]),
    "placing": ("SELECT overlay(url PLACING 'xy' FROM 2 FOR 1) AS o FROM t WHERE id = 1",
                [["axyb/c"]]),
    "bits": ("SELECT x & 6 AS a, x | 1 AS o, x ^ 3 AS e, ~x AS n, x << 2 AS l FROM t"
             " WHERE x & 1 = 1 AND id > 2", [[2, 3, 0, -4, 12]]),
    "try_cast": ("SELECT TRY_CAST(url AS INT) AS n, TRY_CAST('12' AS BIGINT) AS m FROM t LIMIT 1",
                 [[None, 12]]),
    "all": ("SELECT id, g FROM t WHERE id > 2 ORDER BY ALL", [[3, 2], [4, 2]]),
}  # fmt: skip
NOT_QUERIES = ("INSERT INTO t SELECT * FROM t", "SELECT TRANSFORM(id) USING 'cat' FROM t",
               "WITH n AS (SELECT 1) INSERT INTO t SELECT * FROM t")  # fmt: skip


def test_spark_answers_what_impctl_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spark: Any
) -> None:
    start = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
    times = [start + datetime.timedelta(minutes=30 * k) for k in range(4)]
    rows = {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "g": pa.array([1, 1, 2, 2], pa.int32()),
        "x": pa.array([1, 2, 3, 4], pa.int32()),
        "ts": pa.array(times, pa.timestamp("us", tz="UTC")),
        "s": ['{"x":7}'] * 4,
        "url": ["a/b/c"] * 4,
    }
    create_table(str(tmp_path / "t"), pa.table(rows))
    texts = {name: {"sql": sql} for name, (sql, _) in QUERIES.items()}
    texts |= {f"no{at}": {"sql": sql} for at, sql in enumerate(NOT_QUERIES)}
    workload = {
        "version": 1,
        "tables": {"t": {"path": "t"}},
        "partitions": {"t": {"g": {"boundaries": [2]}}},
        "spark": {"master": "local[2]"},
        "queries": texts,
    }
    cli = Cli.over(capsys, tmp_path, yaml.safe_dump(workload))
    told = {result["query"] for result in cli("check").results}
    assert told >= set(QUERIES)
    for name, (_, expected) in QUERIES.items():
        ran = cli.good("query", "--query", name)
        assert ran.results[0]["rows"] == expected, name
        assert name == "ordered" or ran.results[0]["by"] == "spark", name
        assert len(ran.document["warnings"]) == 1, name
    for at in range(len(NOT_QUERIES)):
        ran = cli("query", "--query", f"no{at}")
        assert (ran.code, ran.document["results"]) == (3, []), at
