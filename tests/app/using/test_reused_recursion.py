"""A sketch of a recursion for queries of other forms over it, from the command line; and VALUES in
queries: captured, maintained, asked, verified as any SELECT without FROM."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Cli, CliOf

REACH = (
    "WITH RECURSIVE {r}(n) AS (SELECT dst FROM links WHERE src = 1 "
    "UNION SELECT l.dst FROM {r} JOIN links l ON {r}.n = l.src AND l.cost < {cost}) "
)
OTHERS = (
    "SELECT COUNT(*), MAX(w) FROM q JOIN nodes ON nodes.n = q.n WHERE q.n < 30",
    "SELECT n FROM nodes WHERE n NOT IN (SELECT n FROM q) AND w > 4",
    "SELECT l.dst, COUNT(*) FROM q JOIN links l ON q.n = l.src GROUP BY l.dst HAVING COUNT(*) < 3",
    "SELECT a.n, b.n FROM q a JOIN q b ON a.n = b.n + 1",
)
WORKLOAD = f"""\
version: 1
tables: {{links: {{path: links}}, nodes: {{path: nodes}}}}
partitions: {{links: {{src: {{boundaries: {list(range(0, 60, 4))}}}}}}}
queries:
  reach:
    sql: "{REACH.format(r="r", cost=3)} SELECT n FROM r WHERE n > 3"
    sketch: {{links: src}}
  counted:
    sql: "SELECT src FROM links GROUP BY src HAVING COUNT(*) > 1"
    sketch: {{links: src}}
  unread:
    sql: "SELECT src FROM links WHERE dst > 1"
store: .impctl
"""
LINKS = [(1, 7, 0), (7, 12, 1), (12, 7, 2), (12, 29, 2), (29, 40, 9), (40, 41, 0), (7, 13, 5)]
NODES = [(n, n % 7) for n in range(50)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create_table(str(tmp_path / "links"), _table(("src", "dst", "cost"), LINKS))
    create_table(str(tmp_path / "nodes"), _table(("n", "w"), NODES))
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    return tmp_path


def _table(names: tuple[str, ...], rows: list[Any]) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.table(dict(zip(names, (pa.array(c, pa.int64()) for c in columns), strict=True)))


@pytest.fixture
def cli(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> Cli:
    monkeypatch.setenv("IMPCTL_BY", "engine")
    cli = Cli(capsys, folder / "w.yaml")
    cli.good("capture", "--query", "reach", "--query", "counted")
    return cli


def _by_sqlite(
    sql: str, links: list[Any], ends: tuple[str, ...] = ("src", "dst", "cost")
) -> list[Any]:
    database = sqlite3.connect(":memory:")
    for name, columns, rows in (("links", ends, links), ("nodes", ("n", "w"), NODES)):
        database.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
        marks = ", ".join("?" * len(rows[0]))
        database.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
    return sorted(map(list, database.execute(sql).fetchall()), key=str)


@pytest.mark.slow
@pytest.mark.parametrize("above", OTHERS)
def test_another_query_over_the_same_recursion_is_answered_by_its_sketch(
    cli: Cli, folder: Path, above: str
) -> None:
    sql = REACH.format(r="q", cost=3) + above
    links = list(LINKS)
    for more in ([], [(1, 50, 2)], [(50, 45, 1), (29, 3, 0)]):
        if more:
            links += more
            table = DeltaTable(str(folder / "links"))
            write_deltalake(table, _table(("src", "dst", "cost"), more), mode="append")
        result = cli.good("query", "--sql", sql).results[0]
        assert result["reuse"]["query"] == "reach"
        assert result["reuse"]["reason"] == "it holds all rows that the same recursion needs"
        # A query that shares no recursion is not spoken of.
        assert [entry["query"] for entry in result["reuse"]["candidates"]] == ["reach"]
        assert sorted(result["rows"], key=str) == _by_sqlite(sql, links)
        assert result["files_kept"] > 0
        is_joined = "nodes" in above
        assert set(result["versions"]) == ({"links", "nodes"} if is_joined else {"links"})
    written = cli.good("rewrite", "--sql", sql).results[0]
    assert "src" in written["sql"].split("UNION")[0].replace("src = 1", "")
    assert _by_sqlite(written["sql"], links) == _by_sqlite(sql, links)


def test_other_constants_inside_are_told(cli: Cli) -> None:
    sql = REACH.format(r="q", cost=4) + "SELECT COUNT(*) FROM q"
    result = cli.good("query", "--sql", sql).results[0]
    assert result["reuse"]["query"] is None
    told = {entry["query"]: entry["reason"] for entry in result["reuse"]["candidates"]}
    assert told == {
        "reach": "the constants inside WITH RECURSIVE differ, which changes what it derives"
    }


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
ENDS = ("src", "dst")
PAIRS = [(1, 2), (2, 3), (3, 1), (30, 31), (31, 32), (40, 41), (2, 5), (1, 7)]


@pytest.fixture
def with_rows(tmp_path: Path, cli_of: CliOf) -> Cli:
    create_table(str(tmp_path / "links"), _table(ENDS, PAIRS))
    queries = "".join(
        f'  {name}: {{sql: "{sql}", sketch: {{links: src}}, policy: incremental}}\n'
        for name, sql in QUERIES.items()
    )
    return cli_of(
        "version: 1\ntables: {links: {path: links}}\n"
        "partitions: {links: {src: {boundaries: [2, 10, 20, 31, 40]}}}\n"
        f"queries:\n{queries}store: st\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("query", QUERIES)
def test_it_is_kept_as_others_are(with_rows: Cli, tmp_path: Path, query: str) -> None:
    with_rows.good("capture", "--query", query)
    links = list(PAIRS)
    for came, gone in (([(32, 33), (2, 9)], None), ([], (2, 3)), ([(41, 1)], (1, 2))):
        table = DeltaTable(str(tmp_path / "links"))
        if came:
            write_deltalake(table, _table(ENDS, came), mode="append")
        if gone is not None:
            DeltaTable(str(tmp_path / "links")).delete(f"src = {gone[0]} AND dst = {gone[1]}")
        links = [link for link in links + came if link != gone]
        assert with_rows.good("maintain", "--query", query).results[0]["action"] == "exact"
        result = with_rows.one("query", "--query", query, "--by", "engine")
        assert sorted(result["rows"], key=str) == _by_sqlite(QUERIES[query], links, ENDS)
        written = with_rows.good("rewrite", "--query", query).results[0]["sql"]
        plain = re.sub(r"(\d)L\b", r"\1", written)
        assert _by_sqlite(plain, links, ENDS) == _by_sqlite(QUERIES[query], links, ENDS)


@pytest.mark.spark
def test_spark_reads_them_alike(with_rows: Cli, spark: Any) -> None:
    with_rows.good("capture")
    for query in QUERIES:
        result = with_rows.one("query", "--query", query, "--by", "spark")
        assert sorted(result["rows"], key=str) == _by_sqlite(QUERIES[query], PAIRS, ENDS)
    assert with_rows.good("verify", "--results").document["ok"]
