"""Update expressions computed by deltalake equal impctl's own, which follow Spark."""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.data.schema import Schema
from impctl.data.vector import Vector, from_arrow
from impctl.errors import EvaluationError, UnsupportedError
from impctl.expr.cast import cast
from impctl.expr.evaluate import Condition, Evaluator
from impctl.plan.nodes import Project, Scan, Select
from impctl.sql.statement import parse_query
from impctl.tables.rows import read_rows
from impctl.tables.schema import arrow_type
from impctl.tables.snapshot import Snapshot
from impctl.tables.source import DeltaSource, open_source
from impctl.tables.write.apply import UpdateKind, UpdateRequest, apply_update

NAN = float("nan")
ROWS = pa.table(
    {
        "i": pa.array([0, 1, -7, 2**31 - 1, -(2**31), None, 29, 1299], pa.int32()),
        "l": pa.array([0, 3, -9, 2**62, -(2**63), 5, None, 57], pa.int64()),
        "m": pa.array(
            [Decimal(t) for t in ("0", "1.15", "-2.25", "99999999.99", "0.01", "-0.01", "7")]
            + [None],
            pa.decimal128(10, 2),
        ),
        "f": [0.0, -0.0, 1.5, NAN, None, float("inf"), -2.5, 1e300],
        "s": ["", "a", "it's", None, "b%", "5", "é", "a_b"],
        "b": [True, False, None, True, False, None, True, False],
        "d": pa.array([0, 1, -1, 19000, None, 2932896, -719162, 7], pa.int32()).cast(pa.date32()),
        "row": list(range(8)),
    }
)

CONDITIONS = [
    "i = 1",
    "i <> 1 AND l > 0",
    "NOT (i > 1) OR b",
    "b",
    "i IS NULL",
    "i IN (1, 29, 1299)",
    "i NOT IN (1, 29)",
    "i IN (1, f, 29e0)",
    "l IN (3, i, 4611686018427387904)",
    "i BETWEEN -7 AND 29",
    "l > i",
    "l = 4611686018427387904",
    "i > 3000000000",
    "i = 29.0",
    "m > 1.1",
    "m >= 1.15",
    "m = i",
    "m * 2 > 2.3",
    "f = 0",
    "f < 0",
    "f > 1e200",
    "f >= 1.5",
    "f = f",
    "f <> 0",
    "f > m",
    "f <=> f",
    "s <=> s",
    "s = 'a'",
    "s > 'a'",
    "s = 'it\\'s'",
    "s LIKE 'a%'",
    "s NOT LIKE '%_b'",
    "s IN ('a', 'é')",
    "d > DATE '2000-01-01'",
    "d = '1970-01-02'",
    "d IS NOT NULL AND d < DATE '1970-01-01'",
    "i % 2 = 1",
    "i / 2 > 10",
    "CASE WHEN i > 0 THEN b ELSE f > 0 END",
    "coalesce(b, i > 0)",
    "1 / 2 > 0.4",
]

REFUSED = [
    "i IN (1, NULL)",
    "l IN (3, 5e0)",
    "l IN (3, f)",
    "m IN (1.15, f)",
    "f IN (l, 1.5e0)",
    "f = cast('NaN' AS double)",
    "s > 1",
    "upper(s) = 'A'",
    "i / i = 1",
    "m / 3 > 1",
    "-CAST(m AS DECIMAL(38, 18)) = 1.5",
    "f % i = 1",
    "s LIKE 'a\\\\_b'",
]

FAILING = [
    ("i", "i * 1.1"),
    ("i", "i + 1"),
    ("i", "i * 2"),
    ("i", "-i"),
    ("i", "l"),
    ("i", "f"),
    ("i", "coalesce(i, 0) - 1"),
    ("i", "CASE WHEN s = 'a' THEN 7 WHEN b THEN l END"),
    ("l", "l * 2"),
    ("l", "l + i"),
    ("l", "l - 1"),
    ("l", "l * l"),
    ("l", "i * 1000000"),
    ("m", "m * 1.155"),
    ("m", "m + 0.005"),
    ("m", "m - i"),
    ("m", "m * 100"),
    ("m", "i"),
]
"""Columns, and values to set them to that fail on some rows."""
OTHERS = {
    "i": ["i % 7", "i div 7", "i / 3", "m", "m * 1.5", "NULL", "cast(m AS int) * 10"],
    "l": ["cast(i AS bigint) * 3000000000"],
    "m": ["-m", "m % 2", "1.005"],
    "f": ["f * 1.1", "f + i", "f / 3", "i / 3", "m", "l", "-f", "f * 1e10"],
    "s": ["'x'", "coalesce(s, 'none')"],
    "b": ["i > 0", "NOT b"],
    "d": ["DATE '2024-02-29'", "CASE WHEN i = 1 THEN d END"],
}
"""Values that fail on no row."""
BATCHES: list[dict[str, str]] = [
    *({target: value} for target, value in FAILING),
    *(
        {target: values[at] for target, values in OTHERS.items() if at < len(values)}
        for at in range(max(map(len, OTHERS.values())))
    ),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table of ROWS; every test works on a copy."""
    path = tmp_path_factory.mktemp("made") / "t"
    write_deltalake(str(path), ROWS, configuration={"delta.enableChangeDataFeed": "true"})
    return path


@pytest.fixture
def source(made: Path, tmp_path: Path) -> DeltaSource:
    return open_source("t", str(shutil.copytree(made, tmp_path / "t")))


def columns_of(scan: Scan, schema: Schema, data: pa.Table) -> dict[str, Vector]:
    result = {}
    for attribute in scan.attributes:
        column = schema.find(attribute.name)
        result[attribute.id] = from_arrow(data.column(column.name), column.type)
    return result


def matching_rows(snapshot: Snapshot, condition: str, data: pa.Table) -> set[int]:
    """Rows for which impctl's own evaluator finds the condition true."""
    root = parse_query(f"SELECT row FROM t WHERE {condition}", {"t": snapshot.schema}).root
    assert isinstance(root, Project)
    if isinstance(root.child, Scan):
        return set(data.column("row").to_pylist())
    assert isinstance(root.child, Select)
    assert isinstance(root.child.child, Scan)
    columns = columns_of(root.child.child, snapshot.schema, data)
    truth = Condition(root.child.predicate).truth(columns, len(data))
    assert not truth.is_unsure.any()
    rows = data.column("row").to_pylist()
    return {row for row, ok in zip(rows, truth.may_true, strict=True) if ok}


def rows_left(source: DeltaSource) -> set[int]:
    """`row` of each row that is in the table now."""
    newest = open_source("t", source.path).snapshot()
    return set(read_rows(newest, ["row"]).column(0).to_pylist())


@pytest.mark.parametrize("condition", CONDITIONS)
def test_delete_hits_the_rows_spark_would(source: DeltaSource, condition: str) -> None:
    snapshot = source.snapshot()
    expected = matching_rows(snapshot, condition, ROWS)
    done = apply_update(source, UpdateRequest("t", UpdateKind.DELETE, where=condition))
    assert set(range(8)) - rows_left(source) == expected
    assert done.deleted == len(expected)


@pytest.mark.parametrize("condition", ["i + 1 > 2", "cast(f AS bigint) = 1"])
def test_overflow_inside_a_condition_fails_before_anything_is_written(
    source: DeltaSource, condition: str
) -> None:
    """As in Spark; deltalake would compare the exact sum of the row that holds the greatest int."""
    with pytest.raises(EvaluationError, match="fails on a row of table `t`"):
        apply_update(source, UpdateRequest("t", UpdateKind.DELETE, where=condition))
    assert open_source("t", source.path).version == 0


@pytest.mark.parametrize("condition", REFUSED)
def test_what_cannot_be_promised_is_refused(source: DeltaSource, condition: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        apply_update(source, UpdateRequest("t", UpdateKind.DELETE, where=condition))
    assert caught.value.exit_code == 3
    assert caught.value.hint
    assert open_source("t", source.path).version == 0


@pytest.mark.parametrize(
    ("target", "value"), [("i", "'5'"), ("s", "f"), ("m", "f"), ("b", "i"), ("d", "i"), ("s", "d")]
)
def test_values_spark_would_not_store_alike_are_refused(
    source: DeltaSource, target: str, value: str
) -> None:
    request = UpdateRequest("t", UpdateKind.UPDATE, assignments={target: value})
    with pytest.raises(UnsupportedError, match="An update of table `t` cannot use"):
        apply_update(source, request)


@pytest.mark.parametrize("batch", BATCHES)
def test_update_stores_the_values_spark_would(source: DeltaSource, batch: dict[str, str]) -> None:
    original = read_all(source)
    expected = {
        target: expected_values(source.snapshot(), target, value) for target, value in batch.items()
    }
    failing = {row for row in range(8) if None in (result[row] for result in expected.values())}
    assert bool(failing) == (tuple(batch.items())[0] in FAILING)
    for row in failing:
        with pytest.raises(EvaluationError):
            apply_update(source, update_of([row], batch))
    assert open_source("t", source.path).version == 0
    good = [row for row in range(8) if row not in failing]
    assert apply_update(source, update_of(good, batch)).updated == len(good) > 0
    for row, after in enumerate(read_all(source)):
        kept = [*after] if row in failing else [name for name in after if name not in batch]
        assert str([after[name] for name in kept]) == str([original[row][name] for name in kept])
        for target in batch if row in good else ():
            result = expected[target][row]
            stored = from_arrow(pa.array([after[target]], arrow_type(result.type)), result.type)
            assert shown(stored) == shown(result), (row, target)


def update_of(rows: list[int], batch: dict[str, str]) -> UpdateRequest:
    where = f"row IN ({', '.join(map(str, rows))})"
    assignments = {target.upper(): value for target, value in batch.items()}
    return UpdateRequest("t", UpdateKind.UPDATE, where=where, assignments=assignments)


def read_all(source: DeltaSource) -> list[dict[str, Any]]:
    """All rows, in the order of `row`."""
    snapshot = open_source("t", source.path).snapshot()
    rows = read_rows(snapshot, snapshot.schema.names).to_pylist()
    return sorted(rows, key=lambda row: int(row["row"]))


def shown(vector: Vector) -> str:
    return repr(vector.values[0]) if vector.validity()[0] else "NULL"


def expected_values(snapshot: Snapshot, target: str, value: str) -> list[Vector | None]:
    """What impctl's own evaluator makes of the value on each row; None where it fails."""
    root = parse_query(f"SELECT {value} AS v FROM t", {"t": snapshot.schema}).root
    assert isinstance(root, Project)
    assert isinstance(root.child, Scan)
    kind = snapshot.column(target).type
    result: list[Vector | None] = []
    for row in range(8):
        columns = columns_of(root.child, snapshot.schema, ROWS.slice(row, 1))
        try:
            result.append(cast(Evaluator(root.outputs[0].expr).values(columns, 1), kind))
        except EvaluationError:
            result.append(None)
    return result
