"""Joins whose sides are read by Spark, on real Delta tables: the same sketches as with an index.

Every type a join key may have goes to Spark and comes back; after every batch, on one table or on
both, each sketch covers the recaptured one with slack 0 and the results are equal.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.typed_joins import QUERIES, change, write_workload
from tests.support.run_cli import Cli

pytestmark = [pytest.mark.spark]


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    queries = [
        *((name, sql, "spark") for name, sql in QUERIES.items()),
        ("kept", QUERIES["two"], "index"),
        ("unfiltered", QUERIES["two"], "spark_unfiltered"),
    ]
    return Cli(capsys, write_workload(tmp_path, queries))


@pytest.mark.slow
@pytest.mark.long
def test_every_type_of_key_goes_to_spark_and_back(cli: Cli, tmp_path: Path, spark: Any) -> None:
    captured = cli.good("capture").results
    assert {r["mode"] for r in captured} == {"exact"}
    rng = random.Random(5)
    for turn in range(2):
        change(tmp_path, rng, turn)
        for result in cli.good("maintain").results:
            assert result["action"] == "exact", result
    cli.verified()


def test_explain_says_which_sides_are_kept(cli: Cli, spark: Any) -> None:
    result = {r["query"]: r["joins"] for r in cli.good("explain").results}
    assert {side["strategy"] for side in result["kept"]} == {"index"}
    assert {side["strategy"] for side in result["two"]} == {"spark"}
    assert all(side["rows"] and side["bytes"] for side in result["two"]), json.dumps(result["two"])
