"""Tenants with a network each, and recursive queries that a tenant passes or fails as a whole.

Links are within a tenant; tenants are small and of about one size, with circles, duplicates, and
NULL among tenants and nodes. Texts are such as impctl, DuckDB and SQLite read.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from impctl.tables.write.maintenance import create_table
from tests.behaviour.recursive_workload import changing, write_workload
from tests.support.run_cli import Capsys, Cli

TENANTS, NODES, LINKS = 40, 5, 200

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
"""Of accesses below a fixpoint that is keyed."""
BARRIER = {
    "not_keyed": "WITH RECURSIVE r(t, n) AS (SELECT t, n FROM seeds "
    "UNION SELECT r.t, l.dst FROM r JOIN links l ON r.t = l.t AND r.n = l.src) "
    "SELECT t, COUNT(*) AS k FROM r GROUP BY t HAVING COUNT(*) <= 2",
    "over_all": ENTRY + "SELECT n FROM r GROUP BY n HAVING COUNT(*) < 9",
    "whole": ENTRY + "SELECT t, COUNT(*) AS k FROM r GROUP BY t",
}
"""Seeds that are not sketched; groups of several tenants; nothing that leaves tenants out."""

KEPT = "mean"
"""The query whose answer is kept."""


def some_links(rng: random.Random, count: int) -> pa.Table:
    """Links of some tenants."""
    rows = [[_tenant(rng), rng.randrange(NODES), rng.randrange(NODES)] for _ in range(count)]
    for row in rows:
        if rng.random() < 0.03:
            row[rng.randrange(1, 3)] = None
    columns = zip(*rows, strict=True)
    return pa.table(
        {name: pa.array(column, pa.int64()) for name, column in zip("tsd", columns, strict=True)}
    ).rename_columns(["t", "src", "dst"])


def _tenant(rng: random.Random) -> int | None:
    return rng.randrange(TENANTS) if rng.random() < 0.97 else None


def tenants(folder: Path, capsys: Capsys, names: Sequence[str] = (*KEYED, *BARRIER)) -> Cli:
    """The command line over a workload of these queries."""
    rng = random.Random(3)
    create_table(str(folder / "links"), some_links(rng, LINKS))
    some = [(t, rng.randrange(NODES)) for t in range(0, TENANTS, 3)]
    seeds = {"t": [t for t, _ in some], "n": [n for _, n in some]}
    create_table(str(folder / "seeds"), pa.table(seeds))
    create_table(str(folder / "names"), pa.table({"t": [0, 6], "name": ["a", "b"]}))
    lines = [
        f'  {name}: {{sql: "{sql}", sketch: {{links: t}}, policy: incremental, '
        f"answer: {str(name == KEPT).lower()}}}"
        for name, sql in {**KEYED, **BARRIER}.items()
        if name in names
    ]
    return write_workload(folder, capsys, "t", range(2, TENANTS, 2), lines)


change = changing(some_links, "t", TENANTS)
