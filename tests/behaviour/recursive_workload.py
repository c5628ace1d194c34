"""Changing networks and recursive queries over them, for tests on real Delta tables."""

from __future__ import annotations

import random
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.write.maintenance import create_table
from tests.support.diagrams import with_diagrams
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
"""The recursion starts from a constant row, which is in no table."""
SPARK_ONLY = {
    "running": REACH + "SELECT n, SUM(n) OVER (ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND "
    "CURRENT ROW) AS s FROM r WHERE n IS NOT NULL"
}
"""Operators above the recursion that the engine does not support."""
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
"""UNION ALL recursions, in which every row has its level."""
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
"""Queries for the best rows only. Other engines do not terminate on cycles."""
MATERIALIZED = "reach"
"""The query with a materialized result."""


def some_links(rng: random.Random, count: int) -> pa.Table:
    """Random links, most of them within a region."""
    sources = [rng.choice([*range(NODES), None]) for _ in range(count)]
    targets = [_target(rng, source) for source in sources]
    return pa.table({"src": pa.array(sources, pa.int64()), "dst": pa.array(targets, pa.int64())})


def _target(rng: random.Random, source: int | None) -> int | None:
    if source is None or not rng.randrange(20):
        return rng.choice([*range(NODES), None])
    return source // SPAN * SPAN + rng.randrange(SPAN)


def network(folder: Path, capsys: Capsys, names: Sequence[str], lineage: str = "all") -> Cli:
    """A CLI for a workload with these queries. The result of `MATERIALIZED` is materialized if the
    sketches have all lineage."""
    rng = random.Random(1)
    create_table(str(folder / "links"), some_links(rng, LINKS))
    seeds = {"t": pa.array([1, 1, 2, 3, 3], pa.int64()), "n": pa.array([7, 30, 13, None, 50])}
    create_table(str(folder / "seeds"), pa.table(seeds))
    every = {**QUERIES, **OF_CONSTANTS, **SPARK_ONLY, **BAGS, **BEST}
    lines = [
        f'  {name}: {{sql: "{every[name]}", sketch: {{links: src}}, policy: incremental, '
        f"lineage: {lineage}, answer: {str(name == MATERIALIZED and lineage == 'all').lower()}}}"
        for name in names
    ]
    return write_workload(folder, capsys, "src", range(3, NODES, 3), lines)


def write_workload(
    folder: Path, capsys: Capsys, column: str, boundaries: Iterable[int], queries: Iterable[str]
) -> Cli:
    """A CLI for the tables in the folder; `links` is partitioned into ranges of a column."""
    tables = ", ".join(f"{table}: {{path: {table}}}" for table in _tables(folder))
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


def _tables(folder: Path) -> list[str]:
    return [log.parent.name for log in sorted(folder.glob("*/_delta_log"))]


Answer = Counter[tuple[object, ...]]
Change = Callable[[Path, random.Random], None]


def link_changes(
    some_links: Callable[[random.Random, int], pa.Table], where: str, most: int
) -> Change:
    """A function that inserts and deletes some links, in up to three versions. Deleted links have
    a `where` value in a small interval that starts below `most`."""

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


change = link_changes(some_links, "src", NODES)


def all_tables(cli: Cli) -> dict[str, pa.Table]:
    """The rows of all tables in the workload's folder."""
    folder = cli.workload.parent
    return {name: DeltaTable(str(folder / name)).to_pyarrow_table() for name in _tables(folder)}


def all_by_duckdb(cli: Cli, queries: Mapping[str, str]) -> dict[str, Answer]:
    """The results over all rows."""
    with duckdb.connect() as connection:
        for table, rows in all_tables(cli).items():
            connection.register(table, rows)
        return {name: Counter(connection.execute(sql).fetchall()) for name, sql in queries.items()}


def by_duckdb(cli: Cli, sql: str) -> Answer:
    return all_by_duckdb(cli, {"": sql})[""]


def all_by_sqlite(cli: Cli, queries: Mapping[str, str]) -> dict[str, Answer]:
    connection = sqlite3.connect(":memory:")
    try:
        for table, rows in all_tables(cli).items():
            connection.execute(f"CREATE TABLE {table} ({', '.join(rows.column_names)})")
            marks = ", ".join("?" for _ in rows.column_names)
            values = zip(*(column.to_pylist() for column in rows.columns), strict=True)
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
        return {name: Counter(connection.execute(sql).fetchall()) for name, sql in queries.items()}
    finally:
        connection.close()


def answers(cli: Cli, name: str, *arguments: str) -> Answer:
    return Counter(map(tuple, cli.one("query", "--query", name, *arguments)["rows"]))


def through_sketches(cli: Cli, queries: Iterable[str]) -> dict[str, Answer]:
    """The engine's results through sketches, which are maintained first if they are stale."""
    return {name: answers(cli, name, "--sketch", "always", "--by", "engine") for name in queries}


def rewritten_queries(cli: Cli, queries: Iterable[str]) -> dict[str, str]:
    """The SQL of the queries rewritten with their sketches."""
    return {name: cli.one("rewrite", "--query", name)["sql"] for name in queries}


def ranges(cli: Cli, *arguments: str) -> dict[str, list[list[int]]]:
    return {
        result["query"]: [one["ranges"] for one in result["sketches"]]
        for result in cli.good("status", *arguments).results
    }


def captured_in(cli: Cli, store: str) -> dict[str, list[list[int]]]:
    """The ranges captured into another store."""
    options = ("--store", str(cli.workload.parent / store))
    cli.good("capture", *options)
    return ranges(cli, *options)


def all_lineage_ranges(cli: Cli) -> dict[str, list[list[int]]]:
    """The ranges of the same queries with `lineage: all`, captured into another store."""
    text = cli.workload.read_text()
    cli.workload.write_text(re.sub("lineage: (answer|witness)", "lineage: all", text))
    result = captured_in(cli, "all")
    cli.workload.write_text(text)
    return result


def check_answers(
    cli: Cli, queries: Mapping[str, str], texts: Mapping[str, str], seed: int
) -> tuple[dict[str, list[list[int]]], dict[str, list[list[int]]]]:
    """Check that results through sketches of a smaller lineage are correct, before and after
    maintenance. Returns the stored ranges and those of the full lineage, which cover them."""
    rng = random.Random(seed)
    assert {result["mode"] for result in cli.good("capture").results} == {"exact"}
    # A stale sketch is maintained before its first use.
    change(cli.workload.parent, rng)
    assert through_sketches(cli, queries) == all_by_duckdb(cli, queries)
    change(cli.workload.parent, rng)
    assert cli.actions() <= {"exact", "none"}
    expected = all_by_duckdb(cli, queries)
    assert through_sketches(cli, queries) == expected
    assert all_by_duckdb(cli, rewritten_queries(cli, texts)) == {
        name: expected[name] for name in texts
    }
    stored_ranges, full = ranges(cli), all_lineage_ranges(cli)
    for name, sketches in stored_ranges.items():
        for range_ids, full_range_ids in zip(sketches, full[name], strict=True):
            assert {*range_ids} <= {*full_range_ids}, name
    return stored_ranges, full


def check_maintained(cli: Cli, change: Change, seed: int, turns: int) -> None:
    """Check that after `turns` changes the maintained sketches equal freshly captured ones."""
    rng = random.Random(seed)
    assert {result["mode"] for result in cli.good("capture").results} == {"exact"}
    for _ in range(turns):
        change(cli.workload.parent, rng)
        assert cli.actions() <= {"exact", "none"}
    assert ranges(cli) == captured_in(cli, "fresh")


def actions_under_strict(cli: Cli) -> set[str]:
    """The actions of `maintain` after a change under policy `strict`, instead of `incremental`."""
    cli.edit("incremental", "strict")
    cli.good("capture")
    change(cli.workload.parent, random.Random(2))
    return cli.actions()


SHIPS = {"lazy": "absorption", "eager": "{kind: absorption, ship: eager, nodes: 1000000}"}


def fast_by(ship: str) -> pytest.MarkDecorator:
    """Parametrizes `provenance`: this `ship` mode always, the other one in `make check` only."""
    marks = {name: () if name == ship else (pytest.mark.slow,) for name in SHIPS}
    return pytest.mark.parametrize(
        "provenance",
        [
            pytest.param(value, id=name, marks=(with_diagrams, *marks[name]))
            for name, value in SHIPS.items()
        ],
    )


BY_RANKS = "ranks"


def set_provenance(cli: Cli, provenance: str, policy: str = "incremental") -> None:
    """Give all queries of the workload this provenance and policy."""
    cli.edit("policy: incremental", f"policy: {policy}")
    cli.edit("lineage: all", f"provenance: {provenance}, lineage: all")


class Both:
    """The same queries over the same tables, by absorption and by ranks."""

    def __init__(self, cli: Cli, provenance: str) -> None:
        self.cli = cli
        text = cli.workload.read_text().replace("store: .impctl", f"store: .{BY_RANKS}")
        self.ranks = Cli.over(cli.capsys, cli.workload.parent, text, f"{BY_RANKS}.yaml")
        set_provenance(cli, provenance)

    def good(self, *arguments: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        return tuple(one.good(*arguments).results for one in (self.cli, self.ranks))  # type: ignore[return-value]


def check_removals(cli: Cli, names: Iterable[str], condition: str) -> int:
    """Check that `why --without` reports from the state the rows that DuckDB loses without these
    links. Returns the number of rows."""
    count = 0
    for name in names:
        result = cli.one("why", "--query", name, "--without", f"links: {condition}")
        assert result["by"] == "state", name
        removed = change_counts(result)
        assert removed == removed_by_duckdb(cli, QUERIES[name], condition), name
        count += removed.total()
    return count


def change_counts(result: dict[str, Any]) -> Counter[tuple[object, ...]]:
    """The rows of a change with their counts, negative ones for inserted rows."""
    counts: Counter[tuple[object, ...]] = Counter()
    for row in result["rows"]:
        values = dict(zip(result["columns"], row, strict=True))
        change, copies = values.pop("_change"), values.pop("_copies")
        counts[tuple(values.values())] += copies if change == "delete" else -copies
    return counts


def removed_by_duckdb(cli: Cli, sql: str, condition: str) -> Counter[tuple[object, ...]]:
    """The rows of the result minus those of the result without these links."""
    with duckdb.connect() as connection:
        for table, rows in all_tables(cli).items():
            connection.register(f"all_{table}", rows)
        connection.execute("CREATE VIEW seeds AS SELECT * FROM all_seeds")
        counts: Counter[tuple[object, ...]] = Counter()
        for selected, sign in (("true", 1), (f"({condition}) IS NOT TRUE", -1)):
            view = f"CREATE OR REPLACE VIEW links AS SELECT * FROM all_links WHERE {selected}"
            connection.execute(view)
            for row in connection.execute(sql).fetchall():
                counts[row] += sign
    return Counter({row: count for row, count in counts.items() if count})


TENANTS, NODES_OF_TENANTS, LINKS_OF_TENANTS = 40, 5, 200

ENTRY = (
    "WITH RECURSIVE r(t, n) AS (SELECT t, dst FROM links WHERE src = 0 "
    "UNION SELECT r.t, l.dst FROM r JOIN links l ON r.t = l.t AND r.n = l.src) "
)
LEVELS = (
    "WITH RECURSIVE r(t, n, k) AS (SELECT t, dst, 1 FROM links WHERE src = 0 "
    "UNION ALL SELECT r.t, l.dst, k + 1 FROM r JOIN links l ON r.t = l.t AND r.n = l.src "
    "WHERE k < 4) "
)
KEYED = {
    "few": ENTRY + "SELECT t, COUNT(*) AS k FROM r GROUP BY t HAVING COUNT(*) <= 1",
    "many": ENTRY + "SELECT t, COUNT(*) AS k FROM r GROUP BY t HAVING COUNT(*) > 3",
    "paths": LEVELS + "SELECT t, COUNT(*) AS k FROM r GROUP BY t HAVING COUNT(*) <= 3",
    "mean": ENTRY + "SELECT t FROM r GROUP BY t HAVING AVG(n) > 3",
    "reached": ENTRY + "SELECT t FROM r WHERE n = 4",
    "unnamed": ENTRY + "SELECT r.t, r.n FROM r WHERE r.n = 2 AND NOT EXISTS "
    "(SELECT 1 FROM names m WHERE m.t = r.t)",
    "first": ENTRY
    + "SELECT t, MAX(n) AS m FROM r GROUP BY t ORDER BY m DESC NULLS LAST, t NULLS LAST LIMIT 3",
    "shared": "WITH RECURSIVE l AS (SELECT t, src, dst FROM links), "
    "r(t, n) AS (SELECT t, dst FROM l WHERE src = 0 "
    "UNION SELECT r.t, o.dst FROM r JOIN links o ON r.t = o.t AND r.n = o.src) "
    "SELECT DISTINCT x.t FROM (SELECT t, MAX(n) AS m FROM r GROUP BY t HAVING COUNT(*) <= 1) x "
    "JOIN l ON l.src = x.m AND l.dst = 2",
    "beside": ENTRY + "SELECT r.t, l.t AS o FROM r JOIN links l ON r.n = l.dst AND l.src = 3 "
    "GROUP BY r.t, l.t HAVING COUNT(*) > 1",
}
"""Queries whose accesses are below a keyed fixpoint."""
BARRIER = {
    "not_keyed": "WITH RECURSIVE r(t, n) AS (SELECT t, n FROM seeds "
    "UNION SELECT r.t, l.dst FROM r JOIN links l ON r.t = l.t AND r.n = l.src) "
    "SELECT t, COUNT(*) AS k FROM r GROUP BY t HAVING COUNT(*) <= 2",
    "over_all": ENTRY + "SELECT n FROM r GROUP BY n HAVING COUNT(*) < 9",
    "whole": ENTRY + "SELECT t, COUNT(*) AS k FROM r GROUP BY t",
}
"""Seeds without a sketch; groups across tenants; no condition that skips tenants."""

MATERIALIZED_OF_TENANTS = "mean"
"""The query with a materialized result."""


def some_links_of_tenants(rng: random.Random, count: int) -> pa.Table:
    """Links of some tenants."""

    def tenant() -> int | None:
        return rng.randrange(TENANTS) if rng.random() < 0.97 else None

    rows = [
        [tenant(), rng.randrange(NODES_OF_TENANTS), rng.randrange(NODES_OF_TENANTS)]
        for _ in range(count)
    ]
    for row in rows:
        if rng.random() < 0.03:
            row[rng.randrange(1, 3)] = None
    schema = pa.schema({"t": pa.int64(), "src": pa.int64(), "dst": pa.int64()})
    return pa.table([*map(list, zip(*rows, strict=True))], schema=schema)


def tenants(folder: Path, capsys: Capsys, names: Sequence[str] = (*KEYED, *BARRIER)) -> Cli:
    """A CLI for a workload with these queries."""
    rng = random.Random(3)
    create_table(str(folder / "links"), some_links_of_tenants(rng, LINKS_OF_TENANTS))
    some = [(t, rng.randrange(NODES_OF_TENANTS)) for t in range(0, TENANTS, 3)]
    seeds = {"t": [t for t, _ in some], "n": [n for _, n in some]}
    create_table(str(folder / "seeds"), pa.table(seeds))
    create_table(str(folder / "names"), pa.table({"t": [0, 6], "name": ["a", "b"]}))
    lines = [
        f'  {name}: {{sql: "{sql}", sketch: {{links: t}}, policy: incremental, '
        f"answer: {str(name == MATERIALIZED_OF_TENANTS).lower()}}}"
        for name, sql in {**KEYED, **BARRIER}.items()
        if name in names
    ]
    return write_workload(folder, capsys, "t", range(2, TENANTS, 2), lines)


change_tenants = link_changes(some_links_of_tenants, "t", TENANTS)
