"""A CHECK constraint keeps out what it keeps out in Spark, whatever deltalake makes of it."""

from __future__ import annotations

from decimal import Decimal
from math import copysign, nan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from impctl.errors import EvaluationError, TableError, UsageError
from impctl.tables.source import open_source
from impctl.tables.write.apply import UpdateKind, UpdateRequest, apply_update
from tests.tables import handmade

COLUMNS = {"id": "integer", "X": "integer", "d": "double", "m": "decimal(10,2)", "s": "string"}


def make(path: Path, check: str, *, is_invariant: bool = False) -> str:
    rule = f'{{"expression": {{"expression": "{check}"}}}}'
    more: dict[str, Any] = {"delta.invariants": rule} if is_invariant else {}
    fields = [handmade.field(n, t, **(more if n == "X" else {})) for n, t in COLUMNS.items()]
    configuration = {} if is_invariant else {"delta.constraints.c": check}
    row = {
        "id": pa.array([1], pa.int32()),
        "X": pa.array([4], pa.int32()),
        "d": pa.array([1.0]),
        "m": pa.array([Decimal("1.00")], pa.decimal128(10, 2)),
        "s": pa.array(["a"]),
    }
    file = handmade.added(path, "a.parquet", pa.table(row))
    return handmade.create(path, fields, file, configuration=configuration)


def insert(path: str, **row: object) -> int:
    request = UpdateRequest("t", UpdateKind.INSERT, rows=({"id": 2, **row},))
    return apply_update(open_source("t", path), request).inserted


def update(path: str, **assignments: str) -> int:
    request = UpdateRequest("t", UpdateKind.UPDATE, assignments=assignments)
    return apply_update(open_source("t", path), request).updated


@pytest.mark.parametrize("is_invariant", [False, True])
@pytest.mark.parametrize(
    ("check", "row"),
    [
        ("X / 2 <= 2", {"X": 5}),
        ("X > 0", {}),
        ("d <= 0", {"d": copysign(nan, -1.0)}),
        ("NOT (d > 0)", {"d": copysign(nan, -1.0)}),
        ("length(s) < 3", {"s": "abc"}),
    ],
)
def test_rows_that_break_a_constraint_in_spark_are_not_inserted(
    tmp_path: Path, check: str, row: dict[str, object], is_invariant: bool
) -> None:
    path = make(tmp_path, check, is_invariant=is_invariant)
    with pytest.raises(UsageError, match="breaks its constraint"):
        insert(path, **row)
    assert open_source("t", path).version == 0


def test_a_constraint_that_fails_in_spark_fails(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError):
        insert(make(tmp_path, "X + 1 > 0"), X=2**31 - 1)


@pytest.mark.parametrize(
    ("check", "good"),
    [("X > 0", {"X": 1}), ("m > 0", {"m": 1}), ("d >= 0", {"d": nan}), ("s IN ('a')", {"s": "a"})],
)
def test_rows_that_keep_a_constraint_are_written(
    tmp_path: Path, check: str, good: dict[str, object]
) -> None:
    assert insert(make(tmp_path, check), **good) == 1


@pytest.mark.parametrize("check", ["X > 0 AND unknown(X)", "Y > 0", "X"])
def test_constraints_impctl_cannot_test_stop_inserts_and_updates(
    tmp_path: Path, check: str
) -> None:
    path = make(tmp_path, check)
    with pytest.raises(TableError, match="its constraint `.*` cannot be") as caught:
        insert(path, X=1)
    assert caught.value.code == "table_not_writable"
    with pytest.raises(TableError, match="its constraint `.*` cannot be"):
        update(path, X="2")


@pytest.mark.parametrize(
    ("check", "column", "value"),
    [
        ("X / 2 <= 2", "X", "5"),
        ("X * 2 < 10", "x", "1"),
        ("X < 4.5", "X", "1"),
        ("d <= 1", "d", "0.5"),
        ("NOT (d > 2)", "d", "0.5"),
        ("d > 0 OR NOT (d >= 0)", "d", "0.5"),
        ("d = 1", "d", "1.0"),
        ("m < 1.5", "m", "1"),
        ("length(s) < 3", "s", "'a'"),
        ('s <> "A"', "s", "'a'"),
        ("s LIKE 'a\\\\_%'", "s", "'a'"),
        ("coalesce(X, 1) > 0", "X", "1"),
    ],
)
def test_updates_of_columns_whose_constraint_deltalake_reads_otherwise_are_refused(
    tmp_path: Path, check: str, column: str, value: str
) -> None:
    path = make(tmp_path, check)
    with pytest.raises(TableError, match="has a different meaning in deltalake") as caught:
        update(path, **{column: value})
    assert caught.value.code == "table_not_writable"


def test_updates_of_other_columns_cannot_break_a_constraint(tmp_path: Path) -> None:
    assert update(make(tmp_path, "X / 2 <= 2"), id="7") == 1


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        ("X > 0 AND X <= 100", {"X": "X + 1"}, {"X": "X - 5"}),
        ("X BETWEEN 1 AND 9 OR s IS NULL", {"X": "9"}, {"X": "10"}),
        ("X IN (4, 5)", {"X": "5"}, {"X": "6"}),
        ("0 <= d", {"d": "d * 2"}, {"d": "-d"}),
        ("m >= 0", {"m": "m + 1"}, {"m": "-m"}),
        ("s IN ('a', 'b')", {"s": "'b'"}, {"s": "'c'"}),
        ("s LIKE 'a%' AND s IS NOT NULL", {"s": "'ab'"}, {"s": "'b'"}),
        ("X <> id", {"X": "7"}, {"X": "id"}),
    ],
)
def test_updates_under_constraints_that_both_read_alike(
    tmp_path: Path, check: str, good: dict[str, str], bad: dict[str, str]
) -> None:
    path = make(tmp_path, check)
    assert update(path, **good) == 1
    with pytest.raises(UsageError, match="does not accept the batch"):
        update(path, **bad)
