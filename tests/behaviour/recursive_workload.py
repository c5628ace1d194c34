"""A network that changes, and recursive queries over it: for tests on real Delta tables.

Nodes lie in regions of `SPAN`; links are within a region but for a few, with circles, self-loops,
duplicates and NULL. impctl, DuckDB and SQLite read the texts. What is compared with fresh captures
and with DuckDB serves any workload beside its tables.
"""

from __future__ import annotations

import random
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Capsys, Cli

NODES, SPAN, LINKS = 60, 6, 90

REACH = (
    "WITH RECURSIVE r(n) AS (SELECT dst FROM links WHERE src = 7 "
    "UNION SELECT l.dst FROM r JOIN links l ON r.n = l.src) "
)
PAIRS = (
    "WITH RECURSIVE c(x, y) AS (SELECT src, dst FROM links "
    "UNION SELECT c.x, l.dst FROM c JOIN links l ON c.y = l.src) "
)
QUERIES = {
    "reach": REACH + "SELECT n FROM r",
    "of_seeds": "WITH RECURSIVE r(t, n) AS (SELECT t, n FROM seeds UNION SELECT r.t, l.dst FROM r "
    "JOIN links l ON r.n = l.src) SELECT t, COUNT(*) AS k FROM r GROUP BY t HAVING COUNT(*) < 9",
    "from_one": PAIRS + "SELECT y FROM c WHERE x = 13",
    "not_reached": REACH + "SELECT s.n FROM seeds s WHERE NOT EXISTS "
    "(SELECT 1 FROM r WHERE r.n = s.n)",
    "levels": "WITH RECURSIVE r(n, k) AS (SELECT dst, CAST(1 AS BIGINT) FROM links WHERE src = 7 "
    "UNION SELECT l.dst, CAST(k + 1 AS BIGINT) FROM r JOIN links l ON r.n = l.src WHERE k < 3) "
    "SELECT k, COUNT(*) AS c FROM r GROUP BY k",
    "by_groups": "WITH RECURSIVE r(n) AS (SELECT MAX(n) FROM seeds UNION SELECT g.top FROM r JOIN "
    "(SELECT src, MAX(dst) AS top FROM links GROUP BY src) g ON r.n = g.src) SELECT n FROM r",
}
OF_CONSTANTS = {
    "from_constant": "WITH RECURSIVE r(n) AS (SELECT CAST(7 AS BIGINT) UNION SELECT l.dst FROM r "
    "JOIN links l ON r.n = l.src) SELECT s.t, COUNT(*) AS k FROM r JOIN seeds s ON r.n = s.n "
    "GROUP BY s.t"
}
"""With a row that is in no table."""
LEFT_TO_SPARK = {
    "running": REACH + "SELECT n, SUM(n) OVER (ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND "
    "CURRENT ROW) AS s FROM r WHERE n IS NOT NULL",
}
"""What the engine does not run above the recursion."""
_WALKS = (
    "WITH RECURSIVE r(s, n, k){} AS (SELECT dst, dst, CAST(1 AS BIGINT) FROM links WHERE src < 20 "
    "UNION ALL SELECT r.s, l.dst, CAST(k + 1 AS BIGINT) FROM r JOIN links l ON r.n = l.src "
    "WHERE k < 3) "
)
BAGS = {
    "walks": _WALKS.format("") + "SELECT n, COUNT(*) AS c FROM r GROUP BY n",
    "from_one_start": _WALKS.format("") + "SELECT n, k FROM r WHERE s = 13",
    "as_deep": _WALKS.format(" MAX RECURSION LEVEL 4")
    + "SELECT k, COUNT(*) AS c FROM r GROUP BY k",
    "walks_of_reached": REACH[:-1] + ", w(n, k) AS (SELECT n, CAST(1 AS BIGINT) FROM r UNION ALL "
    "SELECT l.dst, CAST(k + 1 AS BIGINT) FROM w JOIN links l ON w.n = l.src WHERE k < 2) "
    "SELECT n, k FROM w WHERE n > 8",
    "seeds_in_steps": "WITH RECURSIVE r(n, k) AS (SELECT n, CAST(1 AS BIGINT) FROM seeds UNION ALL "
    "SELECT r.n, CAST(k + 1 AS BIGINT) FROM r LEFT SEMI JOIN links l ON r.n = l.src WHERE k < 3) "
    "SELECT n, k FROM r",
}
"""Those of UNION ALL, in which every row has its level."""
_COST = (
    "WITH RECURSIVE r(n, c) AS (SELECT dst, CAST(1 AS BIGINT) FROM links WHERE src = 7 "
    "UNION SELECT l.dst, CAST({} AS BIGINT) FROM r JOIN links l ON r.n = l.src) "
)
BEST = {
    "cheapest": _COST.format("r.c + l.src % 3") + "SELECT n, MIN(c) AS c FROM r GROUP BY n",
    "widest": _COST.format("LEAST(r.c, l.src % 3)") + "SELECT n, MAX(c) AS c FROM r GROUP BY n",
    "ways": "WITH RECURSIVE r(n, via, c) AS (SELECT dst, src, CAST(1 AS BIGINT) FROM links "
    "WHERE src = 7 UNION SELECT l.dst, l.src, CAST(r.c + 1 + l.src % 3 AS BIGINT) FROM r "
    "JOIN links l ON r.n = l.src), m AS (SELECT n, MIN(c) AS c FROM r GROUP BY n) "
    "SELECT r.n, r.via FROM r JOIN m ON r.n = m.n AND r.c = m.c",
}
"""Queries that ask for the best rows alone: along circles others have no end in other engines."""
KEPT = "reach"
"""The query whose answer is kept."""


def some_links(rng: random.Random, count: int) -> pa.Table:
    """Links, most of them within a region."""
    sources = [rng.choice([*range(NODES), None]) for _ in range(count)]
    targets = [_target(rng, source) for source in sources]
    return pa.table({"src": pa.array(sources, pa.int64()), "dst": pa.array(targets, pa.int64())})


def _target(rng: random.Random, source: int | None) -> int | None:
    if source is None or not rng.randrange(20):
        return rng.choice([*range(NODES), None])
    return source // SPAN * SPAN + rng.randrange(SPAN)


def network(folder: Path, capsys: Capsys, names: Sequence[str], lineage: str = "all") -> Cli:
    """The command line over a workload of these queries; the answer of `KEPT` is kept where the
    sketches hold all rows."""
    rng = random.Random(1)
    create_table(str(folder / "links"), some_links(rng, LINKS))
    seeds = {"t": pa.array([1, 1, 2, 3, 3], pa.int64()), "n": pa.array([7, 30, 13, None, 50])}
    create_table(str(folder / "seeds"), pa.table(seeds))
    every = {**QUERIES, **OF_CONSTANTS, **LEFT_TO_SPARK, **BAGS, **BEST}
    lines = [
        f'  {name}: {{sql: "{every[name]}", sketch: {{links: src}}, policy: incremental, '
        f"lineage: {lineage}, answer: {str(name == KEPT and lineage == 'all').lower()}}}"
        for name in names
    ]
    return write_workload(folder, capsys, "src", range(3, NODES, 3), lines)


def write_workload(
    folder: Path, capsys: Capsys, column: str, boundaries: Iterable[int], queries: Iterable[str]
) -> Cli:
    """The command line over the tables in the folder; links have ranges of a column."""
    tables = ", ".join(f"{log.parent.name}: {{path: {log.parent.name}}}" for log in _logs(folder))
    text = [
        "version: 1",
        f"tables: {{{tables}}}",
        f"partitions: {{links: {{{column}: {{boundaries: {[*boundaries]}}}}}}}",
        "queries:",
        *queries,
        "store: .impctl",
        'spark: {master: "local[2]"}',
    ]
    return Cli.over(capsys, folder, "\n".join(text) + "\n")


def _logs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/_delta_log"))


Answer = Counter[tuple[object, ...]]
Change = Callable[[Path, random.Random], None]


def changing(some_links: Callable[[random.Random, int], pa.Table], where: str, most: int) -> Change:
    """Some links go and some come, in one to three versions; those that go have `where` between a
    number below the most and one a little above."""

    def change(folder: Path, rng: random.Random) -> None:
        table = str(folder / "links")
        if rng.randrange(3):
            write_deltalake(table, some_links(rng, rng.randrange(1, 12)), mode="append")
        if rng.randrange(3):
            low = rng.randrange(most)
            high = low + rng.randrange(5)
            DeltaTable(table).delete(f"{where} BETWEEN {low} AND {high} AND dst % 2 = 0")
        if not rng.randrange(3):
            write_deltalake(table, some_links(rng, 3), mode="append")

    return change


change = changing(some_links, "src", NODES)


def tables_beside(cli: Cli) -> dict[str, pa.Table]:
    """The rows of all tables in the workload's folder."""
    logs = _logs(cli.workload.parent)
    return {log.parent.name: DeltaTable(str(log.parent)).to_pyarrow_table() for log in logs}


def all_by_duckdb(cli: Cli, queries: Mapping[str, str]) -> dict[str, Answer]:
    """The answers over all rows."""
    with duckdb.connect() as connection:
        for table, rows in tables_beside(cli).items():
            connection.register(table, rows)
        return {name: Counter(connection.execute(sql).fetchall()) for name, sql in queries.items()}


def by_duckdb(cli: Cli, sql: str) -> Answer:
    return all_by_duckdb(cli, {"": sql})[""]


def all_by_sqlite(cli: Cli, queries: Mapping[str, str]) -> dict[str, Answer]:
    connection = sqlite3.connect(":memory:")
    try:
        for table, rows in tables_beside(cli).items():
            connection.execute(f"CREATE TABLE {table} ({', '.join(rows.column_names)})")
            marks = ", ".join("?" for _ in rows.column_names)
            values = zip(*(column.to_pylist() for column in rows.columns), strict=True)
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
        return {name: Counter(connection.execute(sql).fetchall()) for name, sql in queries.items()}
    finally:
        connection.close()


def answers(cli: Cli, name: str, *arguments: str) -> Answer:
    (result,) = cli.good("query", "--query", name, *arguments).results
    return Counter(map(tuple, result["rows"]))


def through_sketches(cli: Cli, queries: Iterable[str]) -> dict[str, Answer]:
    """The engine's answers; a sketch that is not current is maintained first."""
    return {name: answers(cli, name, "--sketch", "always", "--by", "engine") for name in queries}


def written(cli: Cli, queries: Iterable[str]) -> dict[str, str]:
    """The texts that read through the sketches."""
    match = {}
    for name in queries:
        (result,) = cli.good("rewrite", "--query", name).results
        match[name] = result["sql"]
    return match


def fragments(cli: Cli, *arguments: str) -> dict[str, list[list[int]]]:
    return {
        result["query"]: [one["fragments"] for one in result["sketches"]]
        for result in cli.good("status", *arguments).results
    }


def captured_beside(cli: Cli, store: str) -> dict[str, list[list[int]]]:
    """The sketches of a capture into another store."""
    place = ("--store", str(cli.workload.parent / store))
    cli.good("capture", *place)
    return fragments(cli, *place)


def of_all(cli: Cli) -> dict[str, list[list[int]]]:
    """The sketches of another lineage's queries with `lineage: all`, of a store beside."""
    text = cli.workload.read_text()
    cli.workload.write_text(re.sub("lineage: (answer|witness)", "lineage: all", text))
    result = captured_beside(cli, "all")
    cli.workload.write_text(text)
    return result


def check_answers(
    cli: Cli, queries: Mapping[str, str], texts: Mapping[str, str], seed: int
) -> tuple[dict[str, list[list[int]]], dict[str, list[list[int]]]]:
    """Before and after a change that is maintained, answers over sketches of another lineage are
    those of all rows; the sketches, and those that hold all lineage, in which they lie."""
    rng = random.Random(seed)
    assert {result["mode"] for result in cli.good("capture").results} == {"exact"}
    # Sketches that are used after a change are maintained first.
    change(cli.workload.parent, rng)
    assert through_sketches(cli, queries) == all_by_duckdb(cli, queries)
    change(cli.workload.parent, rng)
    assert {result["action"] for result in cli.good("maintain").results} <= {"exact", "none"}
    expected = all_by_duckdb(cli, queries)
    assert through_sketches(cli, queries) == expected
    assert all_by_duckdb(cli, written(cli, texts)) == {name: expected[name] for name in texts}
    held, every = fragments(cli), of_all(cli)
    for name, sketches in held.items():
        for some, whole in zip(sketches, every[name], strict=True):
            assert {*some} <= {*whole}, name
    return held, every


def check_maintained(cli: Cli, change: Change, seed: int, turns: int) -> None:
    """After so many changes, maintained sketches must be those of a fresh capture."""
    rng = random.Random(seed)
    assert {result["mode"] for result in cli.good("capture").results} == {"exact"}
    for _ in range(turns):
        change(cli.workload.parent, rng)
        actions = {result["action"] for result in cli.good("maintain").results}
        assert actions <= {"exact", "none"}
    assert fragments(cli) == captured_beside(cli, "fresh")


def actions_by_strict(cli: Cli) -> set[str]:
    """What maintaining does under policy `strict` after a change, instead of `incremental`."""
    cli.workload.write_text(cli.workload.read_text().replace("incremental", "strict"))
    cli.good("capture")
    change(cli.workload.parent, random.Random(2))
    return {result["action"] for result in cli.good("maintain").results}
