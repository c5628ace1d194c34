"""What the table itself says of its values: CHECK needs no re-check, NOT NULL is not believed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction

from impctl.safety.facts import FactKind
from impctl.service.prepare import _said_by_checks
from impctl.tables.snapshot import take_snapshot
from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Capsys, Cli
from tests.support.small_workload import ROWS

LEAST = "SELECT g, MAX(x) s FROM t GROUP BY g HAVING COALESCE(MAX(x), 100) > 50"
"""A sketch on `k` is safe only while no `x` is NULL."""
NUMBERS = pa.table(
    {"g": [1, 2], "k": [5, 1], "x": [10, 60]},
    schema=pa.schema([("g", pa.int64()), ("k", pa.int64()), pa.field("x", pa.int64(), False)]),
)


@pytest.fixture
def summed(cli: Cli) -> Cli:
    """HAVING SUM(x) > 20 sketched on x: safe only as long as x is not negative."""
    text = cli.workload.read_text().replace("COUNT(*) > 2", "SUM(x) > 20")
    cli.workload.write_text(text.replace("sketch: {t: g}", "sketch: {t: x}"))
    return cli


def workload(folder: Path, capsys: Capsys, sql: str) -> Cli:
    """One query over `t`, sketched on `k`."""
    return Cli.over(
        capsys,
        folder,
        "version: 1\ntables: {t: {path: t}}\npartitions: {t: {k: {boundaries: [3]}}}\n"
        f"queries: {{q: {{sql: '{sql}', sketch: {{t: k}}}}}}\n",
    )


def assumptions(cli: Cli) -> list[str]:
    (result,) = cli.good("capture", "--dry-run").results
    match = result["assumptions"]
    assert isinstance(match, list)
    return match


def test_statistics_are_an_assumption(summed: Cli) -> None:
    assert assumptions(summed) == ["`t.x` >= 0"]


@pytest.mark.parametrize("check", ["x >= 0", "x > 0 AND g < 100", "note = 'a' OR x > 0"])
def test_a_check_constraint_is_none(summed: Cli, table: str, tmp_path: Path, check: str) -> None:
    if check.startswith("note"):
        # An OR gives no sign: the fact from statistics stays an assumption.
        DeltaTable(table).alter.add_constraint({"c": "x > 0 OR g IS NULL"})
        assert assumptions(summed) == ["`t.x` >= 0"]
        return
    assert ROWS.num_rows == 10
    check = check.replace("g < 100", "(g IS NULL OR g < 100)")
    DeltaTable(table).alter.add_constraint({"c": check})
    assert assumptions(summed) == []


def test_a_check_of_a_double_lets_nan_in(tmp_path: Path, capsys: Capsys) -> None:
    rows = pa.table({"g": [1, 2], "k": [1, 1], "d": [-10.0, -10.0]})
    path = str(tmp_path / "t")
    write_deltalake(path, rows)
    DeltaTable(path).alter.add_constraint({"c": "d <= 0"})
    nan = pa.array(np.array([math.copysign(math.nan, -1)]))
    write_deltalake(path, pa.table({"g": [1], "k": [5], "d": nan}), mode="append")
    sql = "SELECT g, SUM(d) s FROM t GROUP BY g HAVING SUM(d) < -5"
    ran = workload(tmp_path, capsys, sql)("capture", "--dry-run")
    assert (ran.code, ran.error["code"]) == (3, "sketch_unsafe")


def test_not_null_is_not_believed_of_rows_that_lack_the_column(
    tmp_path: Path, capsys: Capsys
) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, NUMBERS.select(["g", "k"]))
    DeltaTable(path).alter.add_columns([Field("x", PrimitiveType("long"), nullable=False)])
    write_deltalake(path, NUMBERS, mode="append")
    ran = workload(tmp_path, capsys, LEAST)("capture", "--dry-run")
    assert (ran.code, ran.error["code"]) == (3, "sketch_unsafe")


@pytest.mark.slow
def test_not_null_is_an_assumption_where_statistics_bear_it_out(
    tmp_path: Path, capsys: Capsys
) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, NUMBERS)
    cli = workload(tmp_path, capsys, LEAST)
    assert assumptions(cli) == ["`t.x` has no NULL"]
    cli.good("capture")
    write_deltalake(path, NUMBERS, mode="append")
    cli.good("maintain")
    # A file without the column, as writers that look at nothing add it.
    pq.write_table(NUMBERS.select(["g", "k"]), tmp_path / "t" / "late.parquet")
    size = (tmp_path / "t" / "late.parquet").stat().st_size
    late = AddAction("late.parquet", size, {}, 0, True, "{}")
    delta = DeltaTable(path)
    delta.create_write_transaction([late], mode="append", schema=delta.schema())
    ran = cli("maintain", "--policy", "incremental")
    assert (ran.code, ran.error["code"]) == (7, "assumption_broken")
    assert "`t.x` has no NULL" in ran.error["message"]


@pytest.mark.parametrize(
    ("check", "kinds"),
    [
        ("x >= 0", [FactKind.NONNEGATIVE]),
        ("x < -1", [FactKind.NONPOSITIVE]),
        ("fine >= 0.0", [FactKind.NONNEGATIVE]),
        ("fine >= 0", []),
        ("fine <= CAST(0 AS BIGINT)", []),
    ],
)
def test_a_check_that_rounds_first_tells_no_sign(
    tmp_path: Path, check: str, kinds: list[FactKind]
) -> None:
    """`fine >= 0` makes DECIMAL(38, 37) of -4E-38, which is no negative number any more."""
    empty = pa.table({"x": pa.array([], pa.int32()), "fine": pa.array([], pa.decimal128(38, 38))})
    create_table(str(tmp_path / "t"), empty)
    snapshot = take_snapshot(DeltaTable(str(tmp_path / "t")), "t", None)
    said = _said_by_checks(replace(snapshot, configuration={"delta.constraints.c": check}), "t")
    assert [fact.kind for fact in said] == kinds
