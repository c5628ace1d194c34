"""Tables with a column of every join key type, and queries that join on each."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from impctl.tables.write.maintenance import create_table

KEYS = {
    "i": (pa.int32(), [None, -1, 0, 1, 2, 3]),
    "l": (pa.int64(), [None, -(2**63), 0, 7, 2**63 - 1]),
    "f": (pa.float64(), [None, 0.0, -0.0, float("nan"), 1.5]),
    "n": (pa.decimal128(9, 2), [None, Decimal("0.00"), Decimal("-1.25"), Decimal("9999999.99")]),
    "w": (pa.decimal128(30, 3), [None, Decimal("0.001"), Decimal("123456789012345678901.125")]),
    "s": (pa.string(), [None, "", "a", "ä", "😀"]),
    "b": (pa.binary(), [None, b"", b"\x00\xff"]),
    "d": (pa.date32(), [None, dt.date(1, 1, 1), dt.date(1582, 10, 15), dt.date(2024, 2, 29)]),
    "z": (
        pa.timestamp("us", tz="UTC"),
        [
            None,
            dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC),
            dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
        ],
    ),
    "o": (pa.bool_(), [None, True, False]),
}
QUERIES = {
    **{key: f"SELECT t.x FROM t JOIN u ON t.{key} = u.{key} WHERE u.y > 1" for key in KEYS},
    "two": "SELECT t.x, SUM(u.y) s FROM t JOIN u ON t.i = u.i AND t.s <=> u.s GROUP BY t.x "
    "HAVING SUM(u.y) > 3",
    "self": "SELECT a.x FROM t a JOIN t b ON a.i = b.i AND a.x < b.x",
    "computed": "SELECT t.x FROM t JOIN u ON t.i + 1 = u.i",
}

GROUPINGS = {
    **{
        f"by_{key}": f"SELECT t.{key}, COUNT(*) n, SUM(t.n) s, MIN(u.s) FROM t JOIN u ON t.i = u.i "
        f"GROUP BY t.{key} HAVING COUNT(*) > 1 AND MAX(u.f) > 0"
        for key in KEYS
    },
    "by_two": "SELECT t.s, u.b, COUNT(DISTINCT t.l) c, MIN_BY(u.s, t.d) FROM t JOIN u "
    "ON t.i = u.i GROUP BY t.s, u.b HAVING COUNT(DISTINCT t.l) > 1",
    "alone": "SELECT s, d, COUNT(*) c, SUM(n) m FROM t GROUP BY s, d HAVING COUNT(*) > 1",
    "keyed": "SELECT x, COUNT(*), MAX(f) FROM t GROUP BY x HAVING COUNT(*) > 4",
    "once": "SELECT DISTINCT t.f, u.o FROM t JOIN u ON t.i = u.i WHERE t.x > 0",
    "exists": "SELECT t.x FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.f = t.f AND u.y > 0)",
    "beside": "SELECT t.x, k FROM t JOIN (SELECT s, n, COUNT(*) k FROM u GROUP BY s, n) v "
    "ON t.s = v.s AND t.x >= k",
    "inside": "SELECT t.x FROM t WHERE t.s IN (SELECT s FROM u GROUP BY s HAVING SUM(y) > 3)",
    "above": "SELECT s, COUNT(*) FROM (SELECT DISTINCT t.s, u.b FROM t JOIN u ON t.i = u.i) "
    "GROUP BY s HAVING COUNT(*) > 1",
    "first": "SELECT t.x, SUM(t.n) m FROM t JOIN u ON t.i = u.i GROUP BY t.x ORDER BY m LIMIT 2",
}
"""Groupings by each key type, and operators above them."""

_LEFT = "SELECT t.x, t.s, u.i h, u.b FROM t LEFT JOIN u ON t.i = u.i AND t.x < u.y"
OTHERS = {
    "padded": f"SELECT v.x, COUNT(*) FROM ({_LEFT}) v JOIN u w ON v.b <=> w.b GROUP BY v.x "
    "HAVING COUNT(*) > 2",
    "own": f"SELECT w.y, COUNT(*) FROM ({_LEFT}) v JOIN u w ON v.s = w.s GROUP BY w.y "
    "HAVING COUNT(v.h) > 1",
    "groups": f"SELECT h, COUNT(*), MIN(s) FROM ({_LEFT}) GROUP BY h HAVING COUNT(*) > 1",
    "merged": "SELECT w.x FROM (SELECT s FROM t UNION ALL SELECT s FROM u) v JOIN t w "
    "ON v.s = w.s WHERE w.x > 0",
    "left": "SELECT w.x FROM (SELECT d FROM t EXCEPT SELECT d FROM u) v JOIN t w ON v.d = w.d",
    "alone": "SELECT s, COUNT(*) FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.z = t.z) "
    "GROUP BY s HAVING COUNT(*) > 1",
    "no_one": "SELECT o, COUNT(*) FROM t WHERE i NOT IN (SELECT i FROM u WHERE y > 2) "
    "GROUP BY o HAVING COUNT(*) > 1",
}
"""Sides and groupings over other joins and set operations."""


def some(rng: random.Random, count: int, value: str) -> pa.Table:
    columns = {
        key: pa.array([rng.choice(values) for _ in range(count)], kind)
        for key, (kind, values) in KEYS.items()
    }
    columns[value] = pa.array([rng.randint(0, 4) for _ in range(count)], pa.int64())
    return pa.table(columns)


def write_workload(folder: Path, queries: Iterable[tuple[str, str, str]]) -> Path:
    """Create two tables and a workload of queries, given as name, SQL and `join` option."""
    rng = random.Random(3)
    create_table(str(folder / "t"), some(rng, 25, "x"))
    create_table(str(folder / "u"), some(rng, 15, "y"))
    lines = "".join(f'  {name}: {{sql: "{sql}", join: {join}}}\n' for name, sql, join in queries)
    file = folder / "w.yaml"
    file.write_text(
        "version: 1\ntables: {t: {path: t}, u: {path: u}}\n"
        "partitions:\n  t: {x: {boundaries: [1, 3]}}\n  u: {y: {boundaries: [2, 3]}}\n"
        f"queries:\n{lines}store: .impctl\n"
    )
    return file


def change(folder: Path, rng: random.Random, turn: int) -> None:
    """Append to both tables; on odd turns append to one, delete from it and update the other."""
    write_deltalake(str(folder / "t"), some(rng, 6, "x"), mode="append")
    if turn % 2 == 0:
        write_deltalake(str(folder / "u"), some(rng, 4, "y"), mode="append")
    else:
        DeltaTable(str(folder / "t")).delete(f"x = {turn % 5}")
        DeltaTable(str(folder / "u")).update(updates={"y": "y + 1"}, predicate="y < 2")
