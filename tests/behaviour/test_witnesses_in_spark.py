"""Sketches of witnesses on real tables: smaller ones, the same answers, kept by changes alone.

Engine and Spark find the same sketch after every second batch, with ties, NULL and NaN in it.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Cli

pytestmark = pytest.mark.spark

QUERIES = {
    "best": "SELECT g, MAX(v) AS best FROM t GROUP BY g HAVING MAX(v) > 60",
    "both": "SELECT g, MAX(d) AS m, MIN(v) AS b FROM t GROUP BY g ORDER BY b NULLS LAST, g LIMIT 4",
    "one": "SELECT MAX(v) AS top, MIN(d) AS low FROM t WHERE g IS NOT NULL",
    "once": "SELECT DISTINCT g FROM t WHERE v > 20",
    "partner": "SELECT k, w FROM s WHERE EXISTS (SELECT 1 FROM t WHERE t.g = s.k AND t.v > 60)",
    "among": "SELECT k FROM s WHERE k IN (SELECT g FROM t WHERE v > 70)",
    "filtered": "SELECT g, MAX(v) FILTER (WHERE d > 1) AS b FROM t GROUP BY g HAVING MAX(v) > 50",
    "nested": "SELECT MAX(b) AS m FROM (SELECT g, MIN(v) AS b FROM t GROUP BY g)",
    "joined": "SELECT w, MAX(v) AS b FROM t JOIN s ON g = k GROUP BY w HAVING MAX(v) > 30",
    "counted": "SELECT g, MAX(v) AS b, COUNT(*) AS n FROM t GROUP BY g HAVING MAX(v) > 60",
}
WHOLE = {"counted"}
"""Where all rows of a group count."""
ROWS = 600


def rows_of(rng: random.Random, start: int, count: int) -> pa.Table:
    def some(values: list[Any]) -> list[Any]:
        return [rng.choice(values) for _ in range(count)]

    return pa.table(
        {
            "id": pa.array(range(start, start + count), pa.int64()),
            "g": pa.array(some([*range(12), None]), pa.int64()),
            "v": pa.array(some([*range(100), 99, None, None]), pa.int32()),
            "d": pa.array(some([-0.0, 0.0, 0.5, 2.5, math.nan, math.inf, None]), pa.float64()),
        }
    )


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    create_table(str(tmp_path / "t"), rows_of(random.Random(1), 0, ROWS))
    keys = pa.table({"k": [*range(14), None], "w": [n % 5 for n in range(15)]})
    create_table(str(tmp_path / "s"), keys)
    lines = [
        f'  {name}_{lineage}: {{sql: "{sql}", sketch: {{t: id}}, lineage: {lineage}, '
        "policy: incremental}"
        for name, sql in QUERIES.items()
        for lineage in ("all", "witness")
    ]
    text = [
        "version: 1",
        "tables: {t: {path: t}, s: {path: s}}",
        f"partitions: {{t: {{id: {{boundaries: {list(range(20, ROWS + 400, 20))}}}}}}}",
        "queries:",
        *lines,
        "store: .impctl",
        'spark: {master: "local[2]"}',
    ]
    return Cli.over(capsys, tmp_path, "\n".join(text) + "\n")


def fragments(results: list[dict[str, Any]]) -> dict[str, set[int]]:
    return {
        result["query"]: set(sketch["fragments"])
        for result in results
        for sketch in result["sketches"]
        if sketch["table"] == "t"
    }


@pytest.mark.slow
@pytest.mark.long
def test_witnesses_suffice_and_are_fewer_and_are_kept(cli: Cli) -> None:
    captured = cli.good("capture").results
    assert {result["mode"] for result in captured} == {"exact"}
    held = fragments(captured)
    for name in QUERIES:
        whole, some = held[f"{name}_all"], held[f"{name}_witness"]
        assert some <= whole
        assert (some == whole) is (name in WHOLE), name
    cli.verified()
    rng, folder = random.Random(2), cli.workload.parent
    for step in range(4):
        write_deltalake(str(folder / "t"), rows_of(rng, ROWS + 90 * step, 90), mode="append")
        gone = f"id % 7 = {step} OR (v >= 97 AND id % 2 = {step % 2})"
        DeltaTable(str(folder / "t")).delete(gone)
        for result in cli.good("maintain").results:
            assert result["action"] == "exact", result
        if step % 2:
            cli.verified()


def test_a_sketch_of_witnesses_serves_its_own_text_alone(cli: Cli) -> None:
    cli.good("capture", "--query", "best_witness")
    asked = "SELECT g, MAX(v) AS best FROM t GROUP BY g HAVING MAX(v) > 80"
    (result,) = cli.good("rewrite", "--sql", asked).results
    candidates = result["reuse"]["candidates"]
    assert [candidate["allowed"] for candidate in candidates] == [False]
    assert "witness" in candidates[0]["reason"]
    cli.good("capture", "--query", "best_all")
    (result,) = cli.good("rewrite", "--sql", asked).results
    assert result["reuse"]["query"] == "best_all"


def test_changing_what_a_sketch_holds_is_another_definition(cli: Cli) -> None:
    cli.good("capture", "--query", "best_all", "--query", "best_witness")
    text = cli.workload.read_text()
    cli.workload.write_text(text.replace("lineage: all", "lineage: witness"))
    ran = cli("maintain", "--query", "best_all")
    assert ran.code == 7, ran.document
    failure = ran.error
    assert failure["code"] == "definition_changed"


def test_explain_says_what_each_operator_keeps(cli: Cli) -> None:
    plans = {
        result["query"]: " | ".join(line["why"] for line in result["plan"])
        for result in cli.good("explain").results
    }
    assert "its sketch holds only the rows that decide the result" in plans["best_witness"]
    assert "COUNT needs all rows of a group" in plans["counted_witness"]
    assert "its sketch holds" not in plans["best_all"]
