"""What inserted rows do to the facts a sketch rests on; deleted rows do nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.errors import AssumptionBrokenError
from impctl.safety.facts import Fact, FactKind, FactSource
from impctl.service.prepare import assumption_of, assumption_text, columns_assumed, recheck
from impctl.store.records import Assumption
from impctl.tables.changes import read_changes
from impctl.tables.snapshot import Snapshot
from impctl.tables.source import open_source
from impctl.tables.write.maintenance import create_table

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("d", pa.float64()),
        ("m", pa.decimal128(38, 2)),
        ("s", pa.string()),
    ]
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    table = pa.table([[1], [1.0], [1], ["x"]], schema=SCHEMA)
    create_table(str(tmp_path / "t"), table)
    return str(tmp_path / "t")


@pytest.fixture
def snapshot(path: str) -> Snapshot:
    return open_source("t", path).snapshot(0)


def assumed(column: str, kind: FactKind, table: str = "t") -> Assumption:
    return assumption_of(Fact(table, column, kind, FactSource.STATISTICS))


def look_at(snapshot: Snapshot, assumption: Assumption, rows: list[tuple[Any, int]]) -> None:
    kind = SCHEMA.field(assumption.column).type
    table = pa.table({assumption.column: pa.array([value for value, _ in rows], kind)})
    recheck([assumption], snapshot, table, np.array([w for _, w in rows], dtype=np.int64))


NONNEGATIVE, NONPOSITIVE = FactKind.NONNEGATIVE, FactKind.NONPOSITIVE
NOT_NULL, NAN_FREE = FactKind.NOT_NULL, FactKind.NAN_FREE
CASES: list[tuple[str, FactKind, list[Any], list[Any]]] = [
    ("i", NONNEGATIVE, [0, 5, None, 2**63 - 1], [-1, -(2**63)]),
    ("d", NONNEGATIVE, [0.0, -0.0, None, math.inf, math.nan], [-5e-324, -math.inf]),
    ("m", NONNEGATIVE, [0, None, 10**30], [-1, -(10**30)]),
    ("i", NONPOSITIVE, [0, -5, None], [1, 2**63 - 1]),
    ("d", NONPOSITIVE, [0.0, -0.0, None, -math.inf], [5e-324, math.inf, math.nan]),
    ("m", NONPOSITIVE, [0, None, -(10**30)], [1, 10**30]),
    ("i", NOT_NULL, [0, -1], [None]),
    ("d", NOT_NULL, [0.0, math.nan], [None]),
    ("s", NOT_NULL, ["", "x"], [None]),
    ("d", NAN_FREE, [0.0, math.inf, None], [math.nan]),
]


@pytest.mark.parametrize(("column", "kind", "good", "bad"), CASES)
def test_inserted_rows_count_and_deleted_ones_do_not(
    snapshot: Snapshot, column: str, kind: FactKind, good: list[Any], bad: list[Any]
) -> None:
    assumption = assumed(column, kind)
    inserted = [(value, 1) for value in good]
    for rows in ([], inserted, [*((value, -1) for value in bad), *inserted]):
        look_at(snapshot, assumption, rows)
    for value in bad:
        with pytest.raises(AssumptionBrokenError, match=f"`t.{column}` (>= 0|<= 0|has no)"):
            look_at(snapshot, assumption, [*inserted, (value, 1)])


def test_other_tables_are_another_matter(snapshot: Snapshot) -> None:
    look_at(snapshot, assumed("i", NONNEGATIVE, table="u"), [(-1, 1)])


def test_all_assumptions_are_looked_at(snapshot: Snapshot) -> None:
    rows = pa.table({"i": pa.array([1]), "d": pa.array([None], pa.float64())})
    facts = [assumed("i", NONNEGATIVE), assumed("i", NOT_NULL), assumed("d", NOT_NULL)]
    recheck(facts[:2], snapshot, rows, np.array([1]))
    with pytest.raises(AssumptionBrokenError, match="`t.d` has no NULL"):
        recheck(facts, snapshot, rows, np.array([1]))


def test_changes_of_a_real_table(path: str) -> None:
    """An update's old image is a deletion: only its new one is held against the facts."""
    write_deltalake(path, pa.table([[-3], [0.0], [0], ["y"]], schema=SCHEMA), mode="append")
    DeltaTable(path).update(updates={"i": "3"}, predicate="i = -3")
    source = open_source("t", path)
    facts = [assumed("i", NONNEGATIVE)]
    mended = read_changes(source, 1, 2, ["i"])
    assert sorted(mended.table.column("i").to_pylist()) == [-3, 3]
    recheck(facts, source.snapshot(2), mended.table, mended.weights)
    broken = read_changes(source, 0, 1, ["i"])
    with pytest.raises(AssumptionBrokenError):
        recheck(facts, source.snapshot(1), broken.table, broken.weights)


def test_columns_and_words() -> None:
    facts = [
        assumed("d", NONNEGATIVE),
        assumed("i", NOT_NULL),
        assumed("d", NAN_FREE),
        assumed("x", NOT_NULL, table="u"),
    ]
    assert columns_assumed(facts, "t") == ("d", "i")
    assert columns_assumed(facts, "v") == ()
    assert assumption_text(facts[0]) == "`t.d` >= 0"
