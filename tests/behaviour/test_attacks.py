"""What an attack on soundness once found, kept from coming back.

Every case led a maintained sketch to a wrong answer; now it is sound, or handed to Spark.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Capsys, Cli

pytestmark = pytest.mark.spark

WORKLOAD = """\
version: 1
tables:
  t: {{path: t}}
partitions:
  t:
    g: {{boundaries: [B, C]}}
queries:
  q:
    sql: |
      {sql}
    sketch: {{t: g}}
spark: {{master: "local[2]", conf: {{spark.sql.session.timeZone: "{zone}"}}}}
"""


def decimals(scale: int, *values: str) -> pa.Array:
    return pa.array([Decimal(value) for value in values], pa.decimal128(38, scale))


def opened(folder: Path, capsys: Capsys, sql: str, zone: str = "UTC") -> Cli:
    return Cli.over(capsys, folder, WORKLOAD.format(sql=sql, zone=zone))


TWICE_ROUNDED = "195326090969723374956.00"
"""A decimal whose double differs from unscaled / 100 in double arithmetic."""

CASES: Mapping[str, tuple[str, dict[str, Any], dict[str, Any] | str]] = {
    "a FLOAT constant is single precision": (
        "SELECT g, COUNT(*) n FROM t WHERE f = 0.1F GROUP BY g HAVING COUNT(*) >= 2",
        {"g": ["C", "A"], "f": pa.array([0.1, 0.1], pa.float32())},
        {"g": ["A"], "f": pa.array([0.1], pa.float32())},
    ),
    "a decimal becomes a double by one rounding": (
        "SELECT g, SUM(CAST(d AS DOUBLE)) s FROM t GROUP BY g HAVING SUM(CAST(d AS DOUBLE)) > 1",
        {"g": ["A", "A", "C"], "id": [1, 2, 3], "d": decimals(2, TWICE_ROUNDED, "5.00", "7.00")},
        "id = 1",
    ),
    "equal decimals are one key as doubles": (
        "SELECT CAST(d AS DOUBLE) k, COUNT(*) n FROM t GROUP BY CAST(d AS DOUBLE)"
        " HAVING COUNT(*) >= 2",
        {"g": ["A"], "d": decimals(2, TWICE_ROUNDED)},
        {"g": ["C"], "d": decimals(2, TWICE_ROUNDED)},
    ),
    "a condition inside a sum is decided as Spark does": (
        "SELECT g, COUNT(*) n FROM t GROUP BY g"
        " HAVING SUM(CASE WHEN CAST(d AS DOUBLE) > 1.0D THEN -1 ELSE 1 END) > 0",
        {"g": ["C"], "d": decimals(18, "1.0")},
        {"g": ["A"], "d": decimals(18, "1.0")},
    ),
    "decimals that need more than 38 digits are compared by Spark": (
        "SELECT g, COUNT(*) n FROM t GROUP BY g HAVING SUM(a) <= SUM(b)",
        {"g": ["C"], "a": decimals(18, "1.0"), "b": decimals(0, "1")},
        {"g": ["A"], "a": decimals(18, "1.4"), "b": decimals(0, "1")},
    ),
    "IN brings all options to one type": (
        "SELECT g, COUNT(*) n FROM t WHERE x IN (9007199254740993, 0.5D) GROUP BY g"
        " HAVING COUNT(*) > 0",
        {"g": ["C"], "x": [9007199254740993]},
        {"g": ["A"], "x": [9007199254740992]},
    ),
    "constants keep all 38 digits": (
        "SELECT g, COUNT(*) n FROM t GROUP BY g"
        " HAVING SUM(d) > 12345678901234567890123456789.012345",
        {"g": ["C"], "d": decimals(6, "22345678901234567890123456789.5")},
        {"g": ["A"], "d": decimals(6, "12345678901234567890123456789.5")},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_once_wrong_now_sound(case: str, tmp_path: Path, capsys: Capsys, spark: Any) -> None:
    sql, rows, change = CASES[case]
    table = str(tmp_path / "t")
    create_table(table, pa.table(rows))
    cli = opened(tmp_path, capsys, sql)
    cli.good("capture")
    if isinstance(change, str):
        DeltaTable(table).delete(change)
    else:
        write_deltalake(table, pa.table(change), mode="append")
    cli.good("maintain")
    assert len(cli.verified(is_exact=False)) == 1


def test_another_time_zone_is_another_definition(
    tmp_path: Path, capsys: Capsys, spark: Any
) -> None:
    create_table(str(tmp_path / "t"), pa.table({"g": ["A"], "v": [1]}))
    sql = "SELECT g, COUNT(*) n FROM t GROUP BY g HAVING COUNT(*) > 0"
    opened(tmp_path, capsys, sql).good("capture")
    moved = opened(tmp_path, capsys, sql, zone="America/New_York")
    ran = moved("maintain", "--policy", "incremental")
    assert (ran.code, ran.error["code"]) == (7, "definition_changed")


def test_a_backup_put_in_place_of_the_table_is_noticed(
    tmp_path: Path, capsys: Capsys, spark: Any
) -> None:
    """Same identity, same version number, other rows."""
    table = tmp_path / "t"
    create_table(str(table), pa.table({"g": ["A"], "v": [1]}))
    shutil.copytree(table, tmp_path / "backup")
    write_deltalake(str(table), pa.table({"g": ["C"], "v": [10]}), mode="append")
    cli = opened(tmp_path, capsys, "SELECT g, SUM(v) s FROM t GROUP BY g HAVING SUM(v) > 5")
    cli.good("capture")
    shutil.rmtree(table)
    shutil.copytree(tmp_path / "backup", table)
    write_deltalake(str(table), pa.table({"g": ["B"], "v": [10]}), mode="append")
    ran = cli("maintain", "--policy", "incremental")
    assert (ran.code, ran.error["code"]) == (7, "table_recreated")
    assert cli.good("maintain").results[0]["action"] == "recapture"
    assert cli.good("query").results[0]["rows"] == [["B", 10]]


def test_touch_is_for_a_table_alone(tmp_path: Path, capsys: Capsys, spark: Any) -> None:
    """With a join the other table's changes matter too, and touch does not see them."""
    create_table(str(tmp_path / "t"), pa.table({"g": ["A", "B", "C"]}))
    create_table(str(tmp_path / "u"), pa.table({"g": ["A"], "v": [20]}))
    call = "MEDIAN(u.v)"
    sql = f"SELECT t.g, {call} m FROM t JOIN u ON t.g = u.g GROUP BY t.g HAVING {call} > 10"
    cli = opened(tmp_path, capsys, sql)
    text = cli.workload.read_text().replace("t: {path: t}", "t: {path: t}\n  u: {path: u}")
    cli.workload.write_text(text)
    assert cli.good("capture").results[0]["mode"] == "recapture"
    write_deltalake(str(tmp_path / "u"), pa.table({"g": ["C"], "v": [30]}), mode="append")
    assert cli.good("maintain").results[0]["action"] == "recapture"
    cli.verified(is_exact=False)


def test_a_state_that_could_not_be_filled_is_not_blamed_on_the_version(
    tmp_path: Path, capsys: Capsys, spark: Any
) -> None:
    """More values tie than the engine keeps apart, so every change means a recapture."""
    rows = {"g": ["A"] * 65, "k": [1] * 65, "v": list(range(65))}
    create_table(str(tmp_path / "t"), pa.table(rows))
    sql = "SELECT g, MAX_BY(v, k) m FROM t GROUP BY g HAVING MAX_BY(v, k) >= 0"
    cli = opened(tmp_path, capsys, sql)
    assert cli.good("capture").results[0]["mode"] == "recapture"
    write_deltalake(str(tmp_path / "t"), pa.table({"g": ["B"], "k": [1], "v": [1]}), mode="append")
    ran = cli("maintain", "--policy", "incremental")
    assert (ran.code, ran.error["code"]) == (7, "not_incremental")
    assert "could not build its state" in ran.error["message"]
    (done,) = cli.good("maintain").results
    assert (done["action"], done["reason_code"]) == ("recapture", "not_incremental")
