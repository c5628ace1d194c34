"""Joins, set operations, extremes and top-k on real Delta tables, with Spark as the oracle.

After every batch, on one table or on both, each sketch covers the recaptured one with slack 0, and
each query gives the same with its sketches as without.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.write.create import create_table
from tests.support.algebra import QUERIES, rows
from tests.support.run_cli import Cli

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SKETCHED = {name: sql for name, sql in QUERIES.items() if name != "full"}
"""No sketch of a full join is safe."""
ROUNDS = 2 * int(os.environ.get("IMPCTL_FUZZ", "1"))
"""By hand: `IMPCTL_FUZZ=3` for six."""


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    rng = random.Random(7)
    create_table(str(tmp_path / "t"), rows(rng, 30, is_left=True))
    create_table(str(tmp_path / "u"), rows(rng, 12, is_left=False))
    lines = [
        "version: 1",
        "tables: {t: {path: t}, u: {path: u}}",
        "partitions:",
        "  t: {g: {boundaries: [1, 2, 4]}, x: {boundaries: [0, 2]}}",
        "  u: {g: {boundaries: [1, 3]}, y: {boundaries: [0, 2]}}",
        "queries:",
        *(f'  {name}: {{sql: "{sql}"}}' for name, sql in SKETCHED.items()),
        "store: .impctl",
    ]
    file = tmp_path / "w.yaml"
    file.write_text("\n".join(lines) + "\n")
    return Cli(capsys, file)


def test_everything_is_exact_and_right(cli: Cli, tmp_path: Path, spark: Any) -> None:
    captured = cli.good("capture").results
    assert {r["query"]: r["mode"] for r in captured} == dict.fromkeys(SKETCHED, "exact")
    rng = random.Random(11)
    for turn in range(ROUNDS):
        write_deltalake(str(tmp_path / "t"), rows(rng, 5, is_left=True), mode="append")
        if turn % 2 == 0:
            write_deltalake(str(tmp_path / "u"), rows(rng, 3, is_left=False), mode="append")
        if turn % 3 == 1:
            DeltaTable(str(tmp_path / "t")).delete(f"g = {rng.randrange(6)}")
            DeltaTable(str(tmp_path / "u")).update(updates={"y": "y + 1"}, predicate="g < 2")
        for result in cli.good("maintain").results:
            assert result["action"] in ("exact", "none"), result
        if turn % 2:
            for result in cli.good("verify", "--results").results:
                assert result["covers"], result
                assert result["slack"] == 0, result
                assert result["results_equal"] is True, result
