"""Drift, told by `maintain` and `status`, and ranges mended by `capture --rebalance`: against
recapture in Spark, and never with a larger range than there was.

By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for 200 cases.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table
from tests.store.builders import sketches_at
from tests.support.kept_workload import stored
from tests.support.random_cases import random_cases
from tests.support.run_cli import Cli, CliOf

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
def cli(tmp_path: Path, cli_of: CliOf) -> Cli:
    rng = random.Random(3)
    create_table(str(tmp_path / "t"), rows(rng, 300, 0, 60))
    create_table(str(tmp_path / "u"), pa.table({"g": pa.array(range(4), pa.int32())}))
    lines = [
        "version: 1",
        "tables: {t: {path: t}, u: {path: u}}",
        "partitions: {t: {x: {ranges: 12}, d: {ranges: 12}}}",
        "queries:",
        *(
            f'  {name}: {{sql: "{sql}", sketch: {{t: {SKETCHED.get(name, "x")}}}}}'
            for name, sql in QUERIES.items()
        ),
        "store: .impctl",
    ]
    return cli_of("\n".join(lines) + "\n")


def verified(cli: Cli) -> None:
    for result in cli.good("verify", "--results").results:
        assert result["covers"], result
        assert result["results_equal"] is True, result
        assert result["slack"] == 0 or result["query"] == "touched", result


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_rebalanced_sketches_are_right_and_stay_right(cli: Cli, tmp_path: Path, spark: Any) -> None:
    modes = {r["query"]: r["mode"] for r in cli.good("capture").results}
    assert modes == {**dict.fromkeys(QUERIES, "exact"), "touched": "touch"}
    rng = random.Random(4)
    for turn in range(2):
        low = 60 + 90 * turn
        write_deltalake(str(tmp_path / "t"), rows(rng, 400, low, low + 90), mode="append")
        DeltaTable(str(tmp_path / "t")).delete(f"x > {10 * turn} AND x < {10 * turn + 25}")
        results = cli.good("maintain", "--imbalance", "2").results
        assert {r["action"] for r in results} == {"exact", "touch"}
        assert {r["query"] for r in results if r["ranges"]["drifted"]} >= {"grouped", "touched"}
        mended = {r["query"]: r for r in cli.good("capture", "--rebalance").results}
        assert {r["action"] for r in mended.values()} == {"rebalance"}
        assert "derived" in mended["grouped"]["reason"]
        assert "rows of split" not in mended["keyed"]["reason"]
        assert "recaptured" in mended["joined"]["reason"]
        verified(cli)
        write_deltalake(str(tmp_path / "t"), rows(rng, 20, 0, low + 90), mode="append")
        assert {r["action"] for r in cli.good("maintain").results} == {"exact", "touch"}
        verified(cli)


WORKLOAD = """\
version: 1
tables: {{t: {{path: t}}}}
partitions: {{t: {{g: {{ranges: {fragments}}}}}}}
queries: {{q: {{sql: "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 100"}}}}
store: st
"""


def drawn(rng: np.random.Generator, count: int) -> pa.Table:
    """Values that crowd around a few places."""
    centre = rng.integers(0, 400, 3)
    g = rng.choice(centre, count) + rng.geometric(0.05, count)
    return pa.table({"g": g, "x": rng.integers(0, 20, count)})


def largest(folder: Path) -> int:
    """Rows of the largest range, by the table itself."""
    (sketch,) = stored(folder, "q", "st").sketches
    boundaries = np.array(sketch.partition.boundaries)
    values = DeltaTable(str(folder / "t")).to_pyarrow_table()["g"].to_numpy()
    return int(np.bincount(np.searchsorted(boundaries, values, side="right")).max())


@pytest.mark.slow
@random_cases(1, 2, 20)
def test_the_largest_range_is_never_larger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cases: range
) -> None:
    evened = 0
    for seed in cases:
        rng, folder = np.random.default_rng(seed), tmp_path / str(seed)
        folder.mkdir()
        choice = random.Random(seed)
        write_deltalake(str(folder / "t"), drawn(rng, 300))
        file = folder / "w.yaml"
        file.write_text(WORKLOAD.format(fragments=choice.choice([4, 12, 40])))
        cli = Cli(capsys, file)
        cli.good("capture")
        for _ in range(3):
            rows = drawn(rng, choice.choice([10, 300]))
            write_deltalake(str(folder / "t"), rows, mode="append")
            # Who asks for fewer ranges gets them by a capture.
            file.write_text(WORKLOAD.format(fragments=choice.choice([2, 4, 12, 40])))
            cli.good("maintain")
            before = largest(folder)
            result = cli.one("capture", "--rebalance")
            evened += result["action"] == "rebalance" and largest(folder) < before
            assert largest(folder) <= before, (seed, result["reason"])
    assert evened


FILE = """
version: 1
tables: {t: {path: t}, e: {path: e}}
partitions:
  t: {x: {ranges: 8}, g: {boundaries: [2, 4]}}
  e: {x: {ranges: 8}}
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
def drifting(tmp_path: Path, cli_of: CliOf) -> Cli:
    create_table(str(tmp_path / "t"), table(0, 100))
    create_table(str(tmp_path / "e"), table(0, 0))
    return cli_of(FILE).captured()


def drift(drifting: Cli, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """All new rows beyond the last boundary."""
    write_deltalake(str(tmp_path / "t"), table(100, 600), mode="append")
    return {r["query"]: r for r in drifting.good("maintain").results}


@pytest.mark.slow
def test_maintain_tells_and_rebalance_mends(drifting: Cli, tmp_path: Path) -> None:
    match = drift(drifting, tmp_path)
    assert match["big"]["ranges"]["drifted"]
    assert match["big"]["ranges"]["imbalance"] > 4 * match["big"]["ranges"]["at_capture"]
    assert match["big"]["ranges"]["hint"] == "run `impctl capture --rebalance`"
    again = {r["query"]: r for r in drifting.good("maintain").results}
    assert again["big"]["action"] == "none"
    assert again["big"]["ranges"] == match["big"]["ranges"]

    mended = {r["query"]: r for r in drifting.good("capture", "--rebalance").results}
    assert mended["big"]["action"] == mended["kept"]["action"] == "rebalance"
    assert "state derived from the stored one and" in mended["big"]["reason"]
    assert mended["fixed"]["action"] == "none"
    assert "the workload file sets the `boundaries` of `t.g`" in mended["fixed"]["reason"]
    for result in drifting.good("maintain").results:
        assert result["action"] == "none"
        assert not result["ranges"]["drifted"], result
    big = drifting.one("status", "--query", "big")
    (ranges,) = big["ranges"]
    assert (ranges["table"], ranges["attribute"], ranges["ranges"]) == ("t", "x", 8)
    assert (ranges["rows"], ranges["hint"]) == (600, None)
    assert ranges["imbalance"] < 2
    assert big["last_action"] == "rebalance"


@pytest.mark.slow
def test_rebalanced_twice_is_rebalanced_once(drifting: Cli, tmp_path: Path) -> None:
    drift(drifting, tmp_path)
    drifting.good("capture", "--rebalance", "--query", "big")
    again = drifting.one("capture", "--rebalance", "--query", "big")
    assert again["action"] == "none"
    assert again["reason"] == "splitting or merging ranges would not help"


def test_a_stale_sketch_is_maintained_first(drifting: Cli, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), table(100, 600), mode="append")
    big = drifting.one("capture", "--rebalance", "--query", "big")
    assert (big["action"], big["versions"]) == ("rebalance", {"t": 1})


@pytest.mark.slow
def test_earlier_versions_keep_their_ranges(drifting: Cli, tmp_path: Path) -> None:
    drift(drifting, tmp_path)
    before = stored(tmp_path, "big")
    with Store.open(tmp_path / ".impctl") as store:
        first = sketches_at(store, {"t": 0}, "big")
    drifting.good("capture", "--rebalance", "--query", "big")
    after = stored(tmp_path, "big")
    with Store.open(tmp_path / ".impctl") as store:
        assert sketches_at(store, {"t": 0}, "big") == first
    assert after.sketches[0].partition != before.sketches[0].partition
    assert first is not None
    then = drifting.one("rewrite", "--query", "big", "--at", "0")
    assert then["sketches"][0]["fragments"] == list(first[0].fragments.ids)
    assert then["sketches"][0]["total"] == first[0].partition.ranges
    now = drifting.one("rewrite", "--query", "big", "--at", "1")
    assert now["sketches"][0]["fragments"] == list(after.sketches[0].fragments.ids)


def test_a_dry_run_writes_nothing(drifting: Cli, tmp_path: Path) -> None:
    drift(drifting, tmp_path)
    before = drifting.good("status").results
    big = drifting.one("capture", "--rebalance", "--dry-run", "--query", "big")
    assert (big["action"], big["reason"]) == (
        "none",
        "would even out `t.x`: of 8 ranges, 1 split and 7 merged with neighbors, 8 in total",
    )
    assert drifting.good("status").results == before


@pytest.mark.slow
def test_the_threshold_is_a_setting(drifting: Cli, tmp_path: Path) -> None:
    drift(drifting, tmp_path)
    big = drifting.one("status", "--query", "big", "--imbalance", "100")
    assert not big["ranges"][0]["drifted"]


@pytest.mark.slow
def test_ranges_of_a_table_that_was_empty(drifting: Cli, tmp_path: Path) -> None:
    """One range holds everything from then on, until it is split."""
    DeltaTable(str(tmp_path / "e")).delete()
    write_deltalake(str(tmp_path / "e"), table(0, 80), mode="append")
    assert drifting.one("maintain", "--query", "empty")["ranges"]["drifted"]
    mended = drifting.one("capture", "--rebalance", "--query", "empty")
    assert mended["action"] == "rebalance"
    assert mended["sketches"][0]["total"] == 8


def test_a_query_that_was_never_captured_is_named(drifting: Cli, tmp_path: Path) -> None:
    drifting.workload.write_text(
        FILE.replace("  empty:", '  new: {sql: "SELECT x FROM t WHERE v > 3"}\n  empty:')
    )
    ran = drifting("capture", "--rebalance", "--query", "new", "--query", "big")
    assert ran.refusal == (7, "not_captured")
    assert [r["query"] for r in ran.results] == ["big"]
