"""VALUES in queries: captured, maintained, asked, verified as any SELECT without FROM."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.write.create import create_table
from tests.support.run_cli import Cli

QUERIES = {
    "reach": (
        "WITH RECURSIVE r(n) AS (VALUES (CAST(1 AS BIGINT)), (CAST(30 AS BIGINT)) UNION "
        "SELECT l.dst FROM r JOIN links l ON r.n = l.src) SELECT n FROM r"
    ),
    "counted": (
        "WITH v(x, t) AS (VALUES (CAST(1 AS BIGINT), 'a'), (CAST(2 AS BIGINT), NULL)) "
        "SELECT t, COUNT(*) AS c FROM v JOIN links ON src = x GROUP BY t HAVING COUNT(*) > 1"
    ),
}
LINKS = [(1, 2), (2, 3), (3, 1), (30, 31), (31, 32), (40, 41), (2, 5), (1, 7)]


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    create_table(str(tmp_path / "links"), _table(LINKS))
    queries = "".join(
        f'  {name}: {{sql: "{sql}", sketch: {{links: src}}, policy: incremental}}\n'
        for name, sql in QUERIES.items()
    )
    (tmp_path / "w.yaml").write_text(
        "version: 1\ntables: {links: {path: links}}\n"
        "partitions: {links: {src: {boundaries: [2, 10, 20, 31, 40]}}}\n"
        f"queries:\n{queries}store: st\n"
    )
    return Cli(capsys, tmp_path / "w.yaml")


def _table(rows: list[Any]) -> pa.Table:
    src, dst = zip(*rows, strict=True)
    return pa.table({"src": pa.array(src, pa.int64()), "dst": pa.array(dst, pa.int64())})


def _by_sqlite(sql: str, links: list[Any]) -> list[Any]:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE links (src, dst)")
    database.executemany("INSERT INTO links VALUES (?, ?)", links)
    return sorted(map(list, database.execute(sql).fetchall()), key=str)


@pytest.mark.slow
@pytest.mark.parametrize("query", QUERIES)
def test_it_is_kept_as_others_are(cli: Cli, tmp_path: Path, query: str) -> None:
    cli.good("capture", "--query", query)
    links = list(LINKS)
    for came, gone in (([(32, 33), (2, 9)], None), ([], (2, 3)), ([(41, 1)], (1, 2))):
        table = DeltaTable(str(tmp_path / "links"))
        if came:
            write_deltalake(table, _table(came), mode="append")
        if gone is not None:
            DeltaTable(str(tmp_path / "links")).delete(f"src = {gone[0]} AND dst = {gone[1]}")
        links = [link for link in links + came if link != gone]
        assert cli.good("maintain", "--query", query).results[0]["action"] == "exact"
        (found,) = cli.good("query", "--query", query, "--by", "engine").results
        assert sorted(found["rows"], key=str) == _by_sqlite(QUERIES[query], links)
        written = cli.good("rewrite", "--query", query).results[0]["sql"]
        plain = re.sub(r"(\d)L\b", r"\1", written)
        assert _by_sqlite(plain, links) == _by_sqlite(QUERIES[query], links)


@pytest.mark.spark
def test_spark_reads_them_alike(cli: Cli, spark: Any) -> None:
    cli.good("capture")
    for query in QUERIES:
        (found,) = cli.good("query", "--query", query, "--by", "spark").results
        assert sorted(found["rows"], key=str) == _by_sqlite(QUERIES[query], LINKS)
    assert cli.good("verify", "--results").document["ok"]
