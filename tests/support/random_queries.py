"""Random SQL over one small table, random rows for it, and random changes.

The values are chosen to hurt: NULL, NaN, -0.0, duplicates, boundary values, values that cancel.
Sums of the doubles are exact in any order, so that two evaluators can be compared.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from decimal import Decimal

import pyarrow as pa

from impctl.data.schema import DOUBLE, INTEGER, LONG, STRING, Column, Schema, decimal
from impctl.sketch.partition import RangePartition

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
    """Rows to insert and delete, with weights; `rows` is brought up to date.

    Now and then nothing, everything, or a row deleted and inserted again.
    """
    kind = rng.random()
    if kind < 0.08:
        return [], []
    if kind < 0.14:
        gone = list(rows)
        rows.clear()
        return gone, [-1] * len(gone)
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
