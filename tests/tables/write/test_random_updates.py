"""Deletes and updates by random conditions hit the rows that impctl's own evaluator names.

Partition columns matter: deltalake takes whole files by them and may drop the condition then.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from math import copysign, inf, nan
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.tables.rows import read_rows
from impctl.tables.source import open_source
from impctl.tables.write.apply import UpdateKind, UpdateRequest, apply_update
from tests.support.random_cases import random_seeds
from tests.tables.write.test_datafusion import matching_rows

ROWS = 10
DAYS = [date(2024, 1, 1), date(2024, 1, 2), None]
NUMBERS = [1.5, 0.0, 2.5, None, inf]
COLUMNS: dict[str, tuple[pa.DataType, Sequence[object]]] = {
    "i": (pa.int32(), [1, 2, 3, None]),
    "b": (pa.bool_(), [True, False, None]),
    "s": (pa.large_string(), ["a", "b", "c d", None, "B"]),
    "f": (pa.float64(), NUMBERS),
    "m": (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("2.00"), None]),
    "d": (pa.date32(), DAYS),
    "g": (pa.float64(), [1.5, -0.0, 0.0, nan, copysign(nan, -1.0), inf]),
}
PARTITIONS = ("i", "b", "s", "f", "d")
ATOMS = (
    *("i = 1", "i <> 2", "i > 1", "i IN (1, 3)", "i IS NULL", "i + 1 = 2", "i > 1.5", "i <=> 2"),
    *("b", "NOT b", "b IS NOT NULL", "s = 'a'", "s <> 'a'", "s < 'b'", "s LIKE 'a%'", "s <=> 'B'"),
    *("s IN ('a', 'c d')", "s IS NULL", "f = 1.5", "f > 2", "f <=> f", "f IS NULL", "m = 1.5"),
    *("m > 1", "m IS NULL", "m = i", "d = DATE '2024-01-01'", "d > DATE '2024-01-01'", "d IS NULL"),
    *("row < 5", "row % 2 = 0", "coalesce(b, i = 1)", "coalesce(i, 3) = 3", "1 = 1", "i = row"),
    *("CASE WHEN b THEN s = 'a' ELSE i = 2 END", "g = 0", "g > 1", "g < 0", "g = g", "g <> 1.5"),
    *("-g < 0", "g - g < 1", "g <=> -g", "g * 0e0 > 1", "g IN (0e0, 1.5e0)"),
    "CASE g WHEN 0 THEN b END",
)
OF_PARTITIONS = (
    "s = 'a'",
    "f > 2",
    "i + 1 = 2",
    "CASE WHEN i = 1 THEN TRUE ELSE FALSE END",
    "coalesce(b, i = 1)",
    "d = DATE '2024-01-01' OR s LIKE 'a%'",
)


def condition(random_: random.Random, depth: int = 0) -> str:
    share = random_.random()
    if depth > 2 or share < 0.45:
        return random_.choice(ATOMS)
    if share < 0.85:
        word = "AND" if share < 0.65 else "OR"
        return f"({condition(random_, depth + 1)} {word} {condition(random_, depth + 1)})"
    return f"NOT ({condition(random_, depth + 1)})"


def hit_and_meant(
    path: str, kind: UpdateKind, where: str, parts: list[str], random_: random.Random
) -> tuple[set[int], set[int], int]:
    """Rows that the batch deleted or changed, those it should have, and how many it counts."""
    drawn: dict[str, pa.Array] = {
        name: pa.array([random_.choice(values) for _ in range(ROWS)], kind)
        for name, (kind, values) in COLUMNS.items()
    }
    data = pa.table({**drawn, "row": list(range(ROWS))})
    write_deltalake(path, data.slice(0, 6), partition_by=parts or None)
    write_deltalake(path, data.slice(6), mode="append")
    source = open_source("t", path)
    snapshot = source.snapshot()
    meant = matching_rows(snapshot, where, read_rows(snapshot, snapshot.schema.names))
    assignments = {"row": "row + 1000"} if kind is UpdateKind.UPDATE else {}
    done = apply_update(source, UpdateRequest("t", kind, where=where, assignments=assignments))
    left = read_rows(open_source("t", path).snapshot(), ["row"]).column(0).to_pylist()
    return set(range(ROWS)) - set(left), meant, done.deleted + done.updated


@pytest.mark.slow
@pytest.mark.parametrize("where", OF_PARTITIONS)
def test_a_delete_by_partition_columns_alone_leaves_the_other_rows(
    tmp_path: Path, where: str
) -> None:
    hit, meant, counted = hit_and_meant(
        str(tmp_path / "t"), UpdateKind.DELETE, where, list(PARTITIONS), random.Random(1)
    )
    assert (hit, counted) == (meant, len(meant))
    assert 0 < len(meant) < ROWS


OF_NANS = ("g < 0", "g > 1", "-g < 0", "g - g < 1", "g - g > 5", "g <=> -g", "h < 1", "h <=> g")


@pytest.mark.slow
@pytest.mark.parametrize("where", OF_NANS)
def test_a_nan_is_above_all_numbers_whatever_its_sign(tmp_path: Path, where: str) -> None:
    values = [nan, copysign(nan, -1.0), inf, 1.0]
    doubles = {"g": values, "h": pa.array(values, pa.float32()), "row": list(range(4))}
    write_deltalake(str(tmp_path), pa.table(doubles))
    source = open_source("t", str(tmp_path))
    snapshot = source.snapshot()
    meant = matching_rows(snapshot, where, read_rows(snapshot, snapshot.schema.names))
    apply_update(source, UpdateRequest("t", UpdateKind.DELETE, where=where))
    left = read_rows(open_source("t", source.path).snapshot(), ["row"]).column(0).to_pylist()
    assert set(range(4)) - set(left) == meant


@pytest.mark.slow
@random_seeds(8, 16, 80)
def test_random_conditions_hit_the_rows_spark_would(tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)
    where = condition(random_)
    parts = random_.sample(PARTITIONS, random_.choice([0, 1, 1, 2]))
    kind = random_.choice([UpdateKind.DELETE, UpdateKind.DELETE, UpdateKind.UPDATE])
    hit, meant, counted = hit_and_meant(str(tmp_path / "t"), kind, where, parts, random_)
    assert (hit, counted) == (meant, len(meant)), (kind, parts, where)
