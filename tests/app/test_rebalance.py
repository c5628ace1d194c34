"""Rebalanced sketches against recapture in Spark under the new ranges, and used against none."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.write.create import create_table
from tests.support.run_cli import Cli

pytestmark = [pytest.mark.spark, pytest.mark.slow]

QUERIES = {
    "grouped": "SELECT g, SUM(v) s FROM t GROUP BY g HAVING SUM(v) > 900",
    "keyed": "SELECT x, SUM(v) s FROM t GROUP BY x HAVING SUM(v) > 12",
    "doubles": "SELECT d, COUNT(*) n FROM t GROUP BY d HAVING COUNT(*) > 12",
    "rows": "SELECT x, v FROM t WHERE v > 7",
    "joined": "SELECT t.g, COUNT(*) n FROM t JOIN u ON t.g = u.g GROUP BY t.g HAVING COUNT(*) > 9",
    "touched": "SELECT x, percentile(v, 0.5) m FROM t GROUP BY x HAVING percentile(v, 0.5) > 5",
}
SKETCHED = {"doubles": "d"}


def rows(rng: random.Random, count: int, low: int, high: int) -> pa.Table:
    doubles = [None, math.nan, -0.0, 0.0, math.inf, *(v / 8 for v in range(low, high))]
    return pa.table(
        {
            "x": pa.array(rng.choices([None, *range(low, high)], k=count), pa.int64()),
            "d": pa.array(rng.choices(doubles, k=count), pa.float64()),
            "g": pa.array(rng.choices(range(12), k=count), pa.int32()),
            "v": pa.array(rng.choices(range(10), k=count), pa.int64()),
        }
    )


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    rng = random.Random(3)
    create_table(str(tmp_path / "t"), rows(rng, 300, 0, 60))
    create_table(str(tmp_path / "u"), pa.table({"g": pa.array(range(4), pa.int32())}))
    lines = [
        "version: 1",
        "tables: {t: {path: t}, u: {path: u}}",
        "partitions: {t: {x: {fragments: 12}, d: {fragments: 12}}}",
        "queries:",
        *(
            f'  {name}: {{sql: "{sql}", sketch: {{t: {SKETCHED.get(name, "x")}}}}}'
            for name, sql in QUERIES.items()
        ),
        "store: .impctl",
    ]
    file = tmp_path / "w.yaml"
    file.write_text("\n".join(lines) + "\n")
    return Cli(capsys, file)


def verified(cli: Cli) -> None:
    for result in cli.good("verify", "--results").results:
        assert result["covers"], result
        assert result["results_equal"] is True, result
        assert result["slack"] == 0 or result["query"] == "touched", result


@pytest.mark.slow
@pytest.mark.long
def test_rebalanced_sketches_are_right_and_stay_right(cli: Cli, tmp_path: Path, spark: Any) -> None:
    modes = {r["query"]: r["mode"] for r in cli.good("capture").results}
    assert modes == {**dict.fromkeys(QUERIES, "exact"), "touched": "touch"}
    rng = random.Random(4)
    for turn in range(2):
        low = 60 + 90 * turn
        write_deltalake(str(tmp_path / "t"), rows(rng, 400, low, low + 90), mode="append")
        DeltaTable(str(tmp_path / "t")).delete(f"x > {10 * turn} AND x < {10 * turn + 25}")
        found = cli.good("maintain", "--imbalance", "2").results
        assert {r["action"] for r in found} == {"exact", "touch"}
        assert {r["query"] for r in found if r["ranges"]["drifted"]} >= {"grouped", "touched"}
        mended = {r["query"]: r for r in cli.good("capture", "--rebalance").results}
        assert {r["action"] for r in mended.values()} == {"rebalance"}
        assert "derived" in mended["grouped"]["reason"]
        assert "rows of split" not in mended["keyed"]["reason"]
        assert "captured anew" in mended["joined"]["reason"]
        verified(cli)
        write_deltalake(str(tmp_path / "t"), rows(rng, 20, 0, low + 90), mode="append")
        assert {r["action"] for r in cli.good("maintain").results} == {"exact", "touch"}
        verified(cli)
