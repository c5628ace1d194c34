"""Random tables of many files, and queries that are read through sketches of them.

Law: seed by seed the same. Conditions on groups are mostly such that a group seen in part may pass
where the whole does not; ranges are few or many, rows sorted, nearly so, or not at all.
Out of scope: running them (`tests.behaviour.test_random_use_in_spark`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pyarrow as pa

SCHEMA = pa.schema(
    [
        ("g", pa.int64()),
        ("h", pa.int64()),
        ("x", pa.int64()),
        ("d", pa.float64()),
        ("s", pa.string()),
    ]
)
CONDITIONS = (
    "",
    "",
    " WHERE h < 15",
    " WHERE x > 0",
    " WHERE d >= 5 AND g < 50",
    " WHERE g BETWEEN 3 AND 40 OR h = 2",
)
Row = tuple[int | None, int, int, float | None, str | None]


@dataclass(frozen=True, slots=True)
class RandomUse:
    """The files of a table, one query over it, and how many ranges are asked for, if any."""

    files: tuple[pa.Table, ...]
    sql: str
    fragments: int | None


def random_use(seed: int) -> RandomUse:
    rng = Random(f"use {seed}")
    rows = _rows(rng)
    size = max(1, len(rows) // rng.choice((1, 7, 40)))
    files = [rows[at : at + size] for at in range(0, len(rows), size)]
    fragments = rng.choice((None, 5, 40, 300))
    return RandomUse(tuple(map(table_of, files)), _sql(rng), fragments)


def table_of(rows: list[Row]) -> pa.Table:
    return pa.table(list(map(list, zip(*rows, strict=True))), schema=SCHEMA)


def _rows(rng: Random) -> list[Row]:
    groups = rng.choice((10, 60, 200))
    rows = [_row(rng, groups) for _ in range(rng.choice((50, 400)))]
    order = rng.choice(("g", "nearly", "h", "none"))
    if order in ("g", "nearly"):
        rows.sort(key=lambda row: -1 if row[0] is None else row[0])
    if order == "h":
        rows.sort(key=lambda row: row[1])
    if order == "nearly":
        for _ in range(len(rows) // 20):
            one, other = rng.randrange(len(rows)), rng.randrange(len(rows))
            rows[one], rows[other] = rows[other], rows[one]
    return rows


def _row(rng: Random, groups: int) -> Row:
    group = rng.randrange(groups) if rng.random() > 0.03 else None
    number: float | None = float(rng.randint(-3, 40))
    if rng.random() < 0.05:
        number = rng.choice((math.nan, None))
    text = None if group is None else f"k{group:03}"
    return group, rng.randint(-3, 20), rng.randint(0, 6), number, text


def _sql(rng: Random) -> str:
    key, other = rng.choice("gshd"), rng.choice("gh")
    where = rng.choice(CONDITIONS)
    grouped = f"SELECT {key}, COUNT(*) AS n FROM t{where} GROUP BY {key} HAVING"
    shared = rng.choice("gh")
    if rng.random() < 0.3:
        return rng.choice(_with_subqueries(rng, grouped, key, shared))
    return rng.choice(
        (
            f"{grouped} {_having(rng)}",
            f"{grouped} {_having(rng)} AND {_having(rng)}",
            f"WITH c AS (SELECT * FROM t{where}) SELECT p.{shared}, q.n"
            f" FROM (SELECT {shared} FROM c GROUP BY {shared} HAVING {_having(rng)}) p"
            f" JOIN (SELECT {other}, COUNT(*) AS n FROM c GROUP BY {other}"
            f" HAVING {_having(rng)}) q ON p.{shared} = q.{other}",
            f"SELECT p.g, q.n FROM (SELECT g FROM t{where} GROUP BY g HAVING {_having(rng)}) p"
            f" JOIN (SELECT g, COUNT(*) AS n FROM t GROUP BY g HAVING {_having(rng)}) q"
            " ON p.g = q.g",
            f"SELECT g, x, h FROM t{where or ' WHERE x > 3'}",
            f"SELECT {other}, SUM(x) AS s FROM t{where} GROUP BY {other}"
            f" ORDER BY s DESC, {other} LIMIT 5",
        )
    )


def _with_subqueries(rng: Random, grouped: str, key: str, shared: str) -> tuple[str, ...]:
    """Subqueries of one value, and IN and EXISTS under OR."""
    few = rng.choice((" WHERE x > 4", " WHERE h < 3", " WHERE h > 90", " WHERE g = 3"))
    value = rng.choice(("AVG(x)", "MAX(h)", "COUNT(*)", "MIN(x)"))
    sign = rng.choice("<>")
    return (
        f"{grouped} {_having(rng)} OR {key} IN (SELECT {key} FROM t{few})",
        f"SELECT g, x, h FROM t{few} OR EXISTS (SELECT 1 FROM t u WHERE u.{shared} = t.h AND"
        " u.x > 5)",
        f"SELECT g, x, h FROM t WHERE x {sign} 1 + (SELECT {value} FROM t{few})",
        f"{grouped} SUM(x) {sign} 2 * (SELECT {value} FROM t{few})",
        f"SELECT {key}, (SELECT DISTINCT h FROM t WHERE h = 3) AS one, SUM(x) AS s FROM t"
        f" GROUP BY {key} HAVING {_having(rng)}",
        f"SELECT g, x FROM t WHERE x {sign} 0.5 * (SELECT AVG(x) FROM t u WHERE u.{shared} ="
        f" t.{shared})",
        f"SELECT {value} AS n FROM t{few} ORDER BY n LIMIT 3",
    )


def _having(rng: Random) -> str:
    bound = rng.randint(1, 12)
    return rng.choice(
        (
            f"COUNT(*) < {bound}",
            f"COUNT(*) > {bound}",
            f"SUM(x) BETWEEN {bound} AND {bound + 8}",
            f"SUM(x) > {bound}",
            f"AVG(x) < {bound / 2}",
            f"MIN(x) = {bound % 4}",
            f"MAX(d) > {bound}",
            f"COUNT(DISTINCT x) = {bound % 4}",
        )
    )


def arriving(seed: int, files: tuple[pa.Table, ...]) -> Iterator[pa.Table]:
    """A few rows more, now and then."""
    rng = Random(f"arriving {seed}")
    if rng.random() < 0.5:
        rows = pa.concat_tables(files)
        yield rows.take([rng.randrange(rows.num_rows) for _ in range(9)])
