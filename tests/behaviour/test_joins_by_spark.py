"""Joins whose sides are read by Spark, on real Delta tables: the same sketches as with an index.

Every type a join key may have goes to Spark and comes back; after every batch, on one table or on
both, each sketch covers the recaptured one with slack 0 and the results are equal.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.write.create import create_table
from tests.support.run_cli import Cli

pytestmark = [pytest.mark.spark]

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


def some(rng: random.Random, count: int, value: str) -> pa.Table:
    columns = {
        key: pa.array([rng.choice(values) for _ in range(count)], kind)
        for key, (kind, values) in KEYS.items()
    }
    columns[value] = pa.array([rng.randint(0, 4) for _ in range(count)], pa.int64())
    return pa.table(columns)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    rng = random.Random(3)
    create_table(str(tmp_path / "t"), some(rng, 25, "x"))
    create_table(str(tmp_path / "u"), some(rng, 15, "y"))
    queries = "".join(
        f'  {name}: {{sql: "{sql}", join: {join}}}\n'
        for name, sql, join in [
            *((name, sql, "spark") for name, sql in QUERIES.items()),
            ("kept", QUERIES["two"], "index"),
            ("unfiltered", QUERIES["two"], "spark_unfiltered"),
        ]
    )
    file = tmp_path / "w.yaml"
    file.write_text(
        "version: 1\ntables: {t: {path: t}, u: {path: u}}\n"
        "partitions:\n  t: {x: {boundaries: [1, 3]}}\n  u: {y: {boundaries: [2, 3]}}\n"
        f"queries:\n{queries}store: .impctl\n"
    )
    return Cli(capsys, file)


def test_every_type_of_key_goes_to_spark_and_back(cli: Cli, tmp_path: Path, spark: Any) -> None:
    captured = cli.good("capture").results
    assert {r["mode"] for r in captured} == {"exact"}
    rng = random.Random(5)
    for turn in range(2):
        write_deltalake(str(tmp_path / "t"), some(rng, 6, "x"), mode="append")
        if turn == 0:
            write_deltalake(str(tmp_path / "u"), some(rng, 4, "y"), mode="append")
        if turn:
            DeltaTable(str(tmp_path / "t")).delete(f"x = {turn}")
            DeltaTable(str(tmp_path / "u")).update(updates={"y": "y + 1"}, predicate="y < 2")
        for result in cli.good("maintain").results:
            assert result["action"] == "exact", result
    for result in cli.good("verify", "--results").results:
        assert result["covers"], result
        assert result["slack"] == 0, result
        assert result["results_equal"] is True, result


def test_explain_says_which_sides_are_kept(cli: Cli, spark: Any) -> None:
    found = {r["query"]: r["joins"] for r in cli.good("explain").results}
    assert {side["strategy"] for side in found["kept"]} == {"index"}
    assert {side["strategy"] for side in found["two"]} == {"spark"}
    assert all(side["rows"] and side["bytes"] for side in found["two"]), json.dumps(found["two"])
