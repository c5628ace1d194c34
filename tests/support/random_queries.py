"""One query for every operator, and random SQL over one small table, with rows and changes."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from impctl.compile.compile import Dataflow, compile_plan
from impctl.compile.flows import BlockedError
from impctl.data.schema import DOUBLE, INTEGER, LONG, STRING, Column, Schema, decimal
from impctl.plan.nodes import Query
from impctl.rules.optimize import apply_rules
from impctl.safety.judge import Verdict, check_safety
from impctl.sketch.sketch import RangePartition
from impctl.sql.statement import parse_query

QUERIES = {
    "inner": "SELECT t.g, SUM(u.y) s FROM t JOIN u ON t.g = u.g GROUP BY t.g HAVING COUNT(*) > 2",
    "self": "SELECT a.g, b.x FROM t a JOIN t b ON a.g = b.g AND a.x < b.x WHERE a.s = 'a'",
    "left": "SELECT t.g, u.y FROM t LEFT JOIN u ON t.g = u.g AND u.y > 1 WHERE t.x > 0",
    "full": "SELECT t.x, u.y FROM t FULL JOIN u ON t.g = u.g",
    "exists": "SELECT g, x FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.g = t.g AND u.y > t.x)",
    "not_in": "SELECT g, x FROM t WHERE g NOT IN (SELECT g FROM u WHERE y > 3)",
    "except": "SELECT g FROM t EXCEPT SELECT g FROM u",
    "except_all": "SELECT g FROM t EXCEPT ALL SELECT g FROM u",
    "except_all_grouped": "SELECT g, COUNT(*) n FROM (SELECT g, x FROM t WHERE x > 0 EXCEPT ALL "
    "SELECT g, y FROM u) q GROUP BY g HAVING COUNT(*) > 3",
    "intersect_all": "SELECT g, x FROM t INTERSECT ALL SELECT g, y FROM u",
    "distinct_below": "SELECT g, COUNT(*) n FROM (SELECT DISTINCT g, y FROM u) q GROUP BY g "
    "HAVING COUNT(*) > 1",
    "union": "SELECT g, s FROM t UNION SELECT g, 'u' FROM u",
    "extremes": "SELECT g, MAX(x) m FROM t GROUP BY g HAVING MAX(x) > 4",
    "text": "SELECT g, MIN(s) m FROM t GROUP BY g HAVING MIN(s) < 'b' AND MAX(s) >= 'a'",
    "spread": "SELECT g, STDDEV(x) v FROM t GROUP BY g HAVING STDDEV(x) > 2.1 OR VAR_POP(x) < 1.1",
    "beside": "SELECT g, MAX_BY(x, x) m FROM t GROUP BY g HAVING MAX_BY(x, x) > 2",
    "distinct": "SELECT g, COUNT(DISTINCT s) n FROM t GROUP BY g HAVING COUNT(DISTINCT s) > 1",
    "top": "SELECT g, COUNT(*) n, MIN(x) low FROM t GROUP BY g ORDER BY n DESC, g LIMIT 2",
    "single": "SELECT g, x FROM t WHERE g > (SELECT MIN(g) FROM u WHERE y > 0)",
    "per_group": "SELECT g, x FROM t WHERE x >= (SELECT 1 + MAX(y) FROM u WHERE u.g = t.g)",
    "per_own": "SELECT g, x FROM t WHERE x < (SELECT MAX(x) FROM t o WHERE t.g = o.g AND s = 'a')",
    "dated": "SELECT year(d) y, COUNT(*) n FROM t GROUP BY year(d) HAVING COUNT(*) > 3",
}

FIRST_ROWS = {
    "top_joined": "SELECT q.x, u.y FROM (SELECT g, x FROM t ORDER BY x DESC NULLS LAST, g"
    " LIMIT 4) q JOIN u ON q.g = u.g",
    "top_counted": "SELECT g, COUNT(*) n FROM (SELECT g, x FROM t ORDER BY x DESC LIMIT 6) q"
    " GROUP BY g HAVING COUNT(*) > 1",
    "top_filtered": "SELECT g FROM (SELECT g, SUM(x) s FROM t GROUP BY g"
    " ORDER BY s NULLS LAST, g DESC LIMIT 3 OFFSET 1) q WHERE s > 0",
    "top_skipping": "SELECT g, x FROM t ORDER BY x NULLS LAST, g DESC LIMIT 4 OFFSET 2",
    "top_united": "(SELECT g FROM t ORDER BY g DESC LIMIT 2) UNION ALL (SELECT g FROM u)",
    "top_in": "SELECT g, x FROM t WHERE g IN (SELECT g FROM u ORDER BY y DESC, g LIMIT 2)",
    "top_twice": "SELECT g FROM (SELECT g, x FROM t ORDER BY x DESC, g LIMIT 6) q"
    " ORDER BY g DESC LIMIT 2",
    "numbered": "SELECT g, x FROM (SELECT g, x, row_number() OVER (PARTITION BY g"
    " ORDER BY x DESC NULLS LAST) n FROM t) q WHERE n <= 2",
    "numbered_joined": "SELECT q.n, u.y FROM (SELECT g, x, row_number() OVER (PARTITION BY g"
    " ORDER BY x) n FROM t) q JOIN u ON q.g = u.g AND q.n = u.y WHERE n < 4",
    "ranked_second": "SELECT s, x FROM (SELECT s, x, rank() OVER (PARTITION BY s"
    " ORDER BY x DESC) r FROM t) q WHERE r = 2",
    "ranked_densely": "SELECT s, r, COUNT(*) n FROM (SELECT s, dense_rank() OVER (PARTITION BY s"
    " ORDER BY d) r FROM t) q WHERE r < 3 GROUP BY s, r HAVING COUNT(*) > 2",
    "ranked_groups": "SELECT s, g FROM (SELECT s, g, COUNT(*) n, rank() OVER (PARTITION BY s"
    " ORDER BY COUNT(*) DESC, g) r FROM t GROUP BY s, g) q WHERE r <= 1 AND n > 1",
}
"""First rows below other operators, per partition, with OFFSET: one query for every shape."""


def rows(rng: random.Random, count: int, *, is_left: bool) -> pa.Table:
    def some(values: list[Any]) -> list[Any]:
        return [rng.choice(values) for _ in range(count)]

    groups = pa.array(some([None, 0, 1, 2, 3, 4, 5]), pa.int32())
    if not is_left:
        return pa.table({"g": groups, "y": pa.array(some([None, -1, 0, 1, 2, 3, 4]), pa.int64())})
    return pa.table(
        {
            "g": groups,
            "x": pa.array(some([None, -1, 0, 1, 2, 3, 5]), pa.int64()),
            "s": pa.array(some([None, "a", "b", ""]), pa.string()),
            "d": pa.array(some([None, 0, 364, 365, 19000]), pa.int32()).cast(pa.date32()),
        }
    )


Row = Mapping[str, object]

SCHEMA = Schema(
    (
        Column("id", LONG),
        Column("g", INTEGER),
        Column("s", STRING),
        Column("x", LONG),
        Column("d", DOUBLE),
        Column("m", decimal(10, 2)),
    )
)
ARROW = pa.schema(
    [
        ("id", pa.int64()),
        ("g", pa.int32()),
        ("s", pa.string()),
        ("x", pa.int64()),
        ("d", pa.float64()),
        ("m", pa.decimal128(10, 2)),
    ]
)
_POOLS: dict[str, Sequence[object]] = {
    "id": [None, 0, 1, 2, 3, 4, 5, 6],
    "g": [None, 0, 1, 1, 2],
    "s": [None, "", "a", "a", "b", "é"],
    "x": [None, -3, -1, 0, 1, 2, 5],
    "d": [None, 0.0, -0.0, 0.5, -1.5, 2.0, math.nan, math.inf],
    "m": [None, Decimal("0.00"), Decimal("1.25"), Decimal("-2.50"), Decimal("3.10")],
}
PARTITIONS = (
    RangePartition("t", "id", LONG, (1, 3, 5)),
    RangePartition("t", "g", INTEGER, (1, 2)),
    RangePartition("t", "s", STRING, ("a", "b")),
    RangePartition("t", "x", LONG, (0, 1)),
    RangePartition("t", "d", DOUBLE, (0.0, 2.0)),
    RangePartition("t", "m", decimal(10, 2), (0, 125)),
)


def random_row(rng: random.Random) -> Row:
    """A row, every column from its pool."""
    return {name: rng.choice(pool) for name, pool in _POOLS.items()}


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Rows as an Arrow table."""
    arrays = [pa.array([row[f.name] for row in rows], f.type) for f in ARROW]
    return pa.Table.from_arrays(arrays, schema=ARROW)


def random_change(rng: random.Random, rows: list[Row]) -> tuple[list[Row], list[int]]:
    """Rows to insert and delete, with weights; this updates `rows`.

    Sometimes nothing, everything, or a row deleted and inserted again.
    """
    kind = rng.random()
    if kind < 0.08:
        return [], []
    if kind < 0.14:
        deleted = list(rows)
        rows.clear()
        return deleted, [-1] * len(deleted)
    changed: list[Row] = []
    weights: list[int] = []
    for _ in range(rng.randint(1, 5)):
        if rows and rng.random() < 0.5:
            row = rows.pop(rng.randrange(len(rows)))
            changed.append(row)
            weights.append(-1)
            if rng.random() < 0.3:
                rows.append(row)
                changed.append(row)
                weights.append(1)
        else:
            row = rng.choice(rows) if rows and rng.random() < 0.3 else random_row(rng)
            rows.append(row)
            changed.append(row)
            weights.append(1)
    return changed, weights


def random_sql(rng: random.Random) -> str:
    """A query of the operators the engine maintains."""
    kind = rng.random()
    if kind < 0.12:
        return f"SELECT id, x + 1 AS y FROM t WHERE {_condition(rng)}"
    if kind < 0.7:
        return _grouped(rng, "t")
    inner = _grouped(rng, "t", named=True)
    return _outer(rng, inner)


def _grouped(rng: random.Random, source: str, *, named: bool = False) -> str:
    keys = rng.sample(["g", "s", "x % 2", "d", "m", "id"], rng.choice([0, 1, 1, 1, 2]))
    names = [f"{key} AS k{i}" for i, key in enumerate(keys)]
    calls = [f"{_call(rng)} AS c{i}" for i in range(rng.randint(1, 2))]
    where = f" WHERE {_condition(rng)}" if rng.random() < 0.5 else ""
    group = f" GROUP BY {', '.join(keys)}" if keys else ""
    having = f" HAVING {_having(rng)}" if rng.random() < 0.8 or not named else ""
    return f"SELECT {', '.join([*names, *calls])} FROM {source}{where}{group}{having}"


def _outer(rng: random.Random, inner: str) -> str:
    columns = [f"k{i}" for i in range(2) if f"AS k{i}" in inner]
    if rng.random() < 0.3 or not columns:
        return f"SELECT * FROM ({inner}) u WHERE c0 {_op(rng)} {rng.choice([0, 1, 3])}"
    key = rng.choice(columns)
    having = (
        f"{rng.choice(['COUNT(*)', 'SUM(c0)', 'AVG(c0)', 'COUNT(c0)'])} {_op(rng)} {_number(rng)}"
    )
    return f"SELECT {key}, SUM(c0) AS total FROM ({inner}) u GROUP BY {key} HAVING {having}"


def _call(rng: random.Random) -> str:
    return rng.choice(
        [
            "COUNT(*)",
            "COUNT(x)",
            "COUNT(d)",
            "SUM(x)",
            "SUM(x * 2 - 1)",
            "SUM(m)",
            "SUM(d)",
            "AVG(x)",
            "AVG(m)",
            "AVG(d)",
            "SUM(CASE WHEN x > 0 THEN x ELSE 0 END)",
            "SUM(COALESCE(m, 1))",
            f"{rng.choice(['STDDEV', 'STDDEV_POP', 'VARIANCE', 'VAR_POP'])}({rng.choice('xmd')})",
        ]
    )


def _having(rng: random.Random) -> str:
    atoms = [_atom(rng) for _ in range(rng.choice([1, 1, 2]))]
    return f" {rng.choice(['AND', 'OR'])} ".join(atoms)


def _atom(rng: random.Random) -> str:
    if rng.random() < 0.1:
        return f"{_call(rng)} IS {rng.choice(['', 'NOT '])}NULL"
    atom = f"{_call(rng)} {_op(rng)} {_number(rng)}"
    return f"NOT ({atom})" if rng.random() < 0.15 else atom


def _number(rng: random.Random) -> str:
    return rng.choice(["0", "1", "2", "3", "-1", "1.5", "0.25"])


def _op(rng: random.Random) -> str:
    return rng.choice([">", ">=", "<", "<=", "=", "<>"])


def _condition(rng: random.Random) -> str:
    return rng.choice(
        [
            f"x {_op(rng)} {rng.randint(-1, 2)}",
            f"d {_op(rng)} 0.5",
            "s IN ('a', 'é')",
            "s LIKE 'a%' OR g IS NULL",
            "m BETWEEN 0 AND 2",
            "NOT (x = 1 AND g = 1)",
            "x IS NOT NULL AND x <> 0 AND x % 2 <> 0",
            "COALESCE(g, 7) > 1",
        ]
    )


class RandomCircuit(Struct, frozen=True):
    """`query` is as parsed, `compiled` is built from it after the rules."""

    query: Query
    partition: RangePartition
    verdict: Verdict
    compiled: Dataflow


def random_circuit(rng: random.Random) -> RandomCircuit | None:
    """None for a query that the engine does not maintain."""
    sql, partition = random_sql(rng), rng.choice(PARTITIONS)
    original, query, verdict = _read(sql, partition.attribute)
    access = query.root.scans[0].access
    try:
        compiled = compile_plan(query.root, {access: partition}, verdict.key_columns)
    except BlockedError:
        return None
    return RandomCircuit(original, partition, verdict, compiled)


@cache
def _read(sql: str, attribute: str) -> tuple[Query, Query, Verdict]:
    """The query as parsed and after the rules, and its safety.

    Cached, because the tests of one seed have the same queries.
    """
    original = parse_query(sql, {"t": SCHEMA})
    query = replace(original, root=apply_rules(original.root))
    access = query.root.scans[0].access
    return original, query, check_safety(query, {access: attribute}, [])
