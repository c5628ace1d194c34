"""Drift through the command line: told by `maintain` and `status`, mended by `--rebalance`.

What the mended sketches are worth is judged against Spark in `test_rebalance_in_spark`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.store.store import Store
from impctl.tables.write.create import create_table
from tests.store.builders import sketches_at
from tests.support.run_cli import Cli

FILE = """
version: 1
tables: {t: {path: t}, e: {path: e}}
partitions:
  t: {x: {fragments: 8}, g: {boundaries: [2, 4]}}
  e: {x: {fragments: 8}}
queries:
  big: {sql: "SELECT g, SUM(v) s FROM t GROUP BY g HAVING SUM(v) > 100", sketch: {t: x}}
  kept: {sql: "SELECT x, v FROM t WHERE v > 7", sketch: {t: x}}
  fixed: {sql: "SELECT g, SUM(v) s FROM t GROUP BY g HAVING SUM(v) > 100", sketch: {t: g}}
  empty: {sql: "SELECT x FROM e WHERE v > 7", sketch: {e: x}}
store: .impctl
"""


def table(low: int, high: int) -> pa.Table:
    values = [None, *range(low, high)]
    return pa.table(
        {
            "x": pa.array(values, pa.int64()),
            "g": pa.array([i % 7 for i in range(len(values))], pa.int32()),
            "v": pa.array([i % 10 for i in range(len(values))], pa.int64()),
        }
    )


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    create_table(str(tmp_path / "t"), table(0, 100))
    create_table(str(tmp_path / "e"), table(0, 0))
    file = tmp_path / "w.yaml"
    file.write_text(FILE)
    found = Cli(capsys, file)
    found.good("capture")
    return found


def drift(cli: Cli, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """All new rows beyond the last boundary."""
    write_deltalake(str(tmp_path / "t"), table(100, 600), mode="append")
    return {r["query"]: r for r in cli.good("maintain").results}


@pytest.mark.slow
def test_maintain_tells_and_rebalance_mends(cli: Cli, tmp_path: Path) -> None:
    found = drift(cli, tmp_path)
    assert found["big"]["ranges"]["drifted"]
    assert found["big"]["ranges"]["imbalance"] > 4 * found["big"]["ranges"]["at_capture"]
    assert found["big"]["ranges"]["hint"] == "run `impctl capture --rebalance`"
    again = {r["query"]: r for r in cli.good("maintain").results}
    assert again["big"]["action"] == "none"
    assert again["big"]["ranges"] == found["big"]["ranges"]

    mended = {r["query"]: r for r in cli.good("capture", "--rebalance").results}
    assert mended["big"]["action"] == mended["kept"]["action"] == "rebalance"
    assert "state derived from the stored one and" in mended["big"]["reason"]
    assert mended["fixed"]["action"] == "none"
    assert "`boundaries` of `t.g` stand in the workload file" in mended["fixed"]["reason"]
    for result in cli.good("maintain").results:
        assert result["action"] == "none"
        assert not result["ranges"]["drifted"], result
    (big,) = cli.good("status", "--query", "big").results
    (ranges,) = big["ranges"]
    assert (ranges["table"], ranges["attribute"], ranges["ranges"]) == ("t", "x", 8)
    assert (ranges["rows"], ranges["hint"]) == (600, None)
    assert ranges["imbalance"] < 2
    assert big["last_action"] == "rebalance"


@pytest.mark.slow
def test_rebalanced_twice_is_rebalanced_once(cli: Cli, tmp_path: Path) -> None:
    drift(cli, tmp_path)
    cli.good("capture", "--rebalance", "--query", "big")
    (again,) = cli.good("capture", "--rebalance", "--query", "big").results
    assert again["action"] == "none"
    assert again["reason"] == "no range can be split or merged to advantage"


def test_a_stale_sketch_is_maintained_first(cli: Cli, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), table(100, 600), mode="append")
    (big,) = cli.good("capture", "--rebalance", "--query", "big").results
    assert (big["action"], big["versions"]) == ("rebalance", {"t": 1})


@pytest.mark.slow
def test_earlier_versions_keep_their_ranges(cli: Cli, tmp_path: Path) -> None:
    drift(cli, tmp_path)
    with Store.open(tmp_path / ".impctl") as store:
        before = store.load("big")
        first = sketches_at(store, {"t": 0}, "big")
    cli.good("capture", "--rebalance", "--query", "big")
    with Store.open(tmp_path / ".impctl") as store:
        after = store.load("big")
        assert sketches_at(store, {"t": 0}, "big") == first
    assert before is not None
    assert after is not None
    assert after.sketches[0].partition != before.sketches[0].partition
    assert first is not None
    (then,) = cli.good("rewrite", "--query", "big", "--at", "0").results
    assert then["sketches"][0]["fragments"] == list(first[0].fragments.ids)
    assert then["sketches"][0]["total"] == first[0].partition.ranges
    (now,) = cli.good("rewrite", "--query", "big", "--at", "1").results
    assert now["sketches"][0]["fragments"] == list(after.sketches[0].fragments.ids)


def test_a_dry_run_writes_nothing(cli: Cli, tmp_path: Path) -> None:
    drift(cli, tmp_path)
    before = cli.good("status").results
    (big,) = cli.good("capture", "--rebalance", "--dry-run", "--query", "big").results
    assert (big["action"], big["reason"]) == (
        "none",
        "would even out `t.x`: of 8 ranges 1 split and 7 merged with neighbours, 8 in all",
    )
    assert cli.good("status").results == before


@pytest.mark.slow
def test_the_threshold_is_a_setting(cli: Cli, tmp_path: Path) -> None:
    drift(cli, tmp_path)
    (big,) = cli.good("status", "--query", "big", "--imbalance", "100").results
    assert not big["ranges"][0]["drifted"]


@pytest.mark.slow
def test_ranges_of_a_table_that_was_empty(cli: Cli, tmp_path: Path) -> None:
    """One range holds everything from then on, until it is split."""
    DeltaTable(str(tmp_path / "e")).delete()
    write_deltalake(str(tmp_path / "e"), table(0, 80), mode="append")
    (found,) = cli.good("maintain", "--query", "empty").results
    assert found["ranges"]["drifted"]
    (mended,) = cli.good("capture", "--rebalance", "--query", "empty").results
    assert mended["action"] == "rebalance"
    assert mended["sketches"][0]["total"] == 8


def test_a_query_that_was_never_captured_is_named(cli: Cli, tmp_path: Path) -> None:
    cli.workload.write_text(
        FILE.replace("  empty:", '  new: {sql: "SELECT x FROM t WHERE v > 3"}\n  empty:')
    )
    ran = cli("capture", "--rebalance", "--query", "new", "--query", "big")
    assert ran.code == 7
    assert ran.error["code"] == "not_captured"
    assert [r["query"] for r in ran.results] == ["big"]
