"""Whole workloads on real Delta tables: the papers' example, incidents, TPC-DS, shipped ones."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from benchmarks.data import _generator
from impctl.bench.data import running_example_table
from impctl.measure.files import generate
from impctl.service import verify
from impctl.service.capture import captured_query
from impctl.service.context import SilentReporter
from impctl.service.settings import Example, GenerateRequest
from impctl.sketch.sketch import RangeSet
from impctl.store.records import StoredQuery
from impctl.tables.write.maintenance import create_table
from tests.behaviour import replayed as replaying
from tests.behaviour.replayed import Tally, replayed
from tests.support.run_cli import Capsys, Cli

WORKLOAD = Path(__file__).parents[2] / "workloads" / "running-example.yaml"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys, spark: Any) -> Cli:
    create_table(str(tmp_path / "sales"), running_example_table())
    monkeypatch.setenv("IMPCTL_DATA", str(tmp_path))
    monkeypatch.setenv("IMPCTL_STORE", str(tmp_path / "store"))
    return Cli(capsys, WORKLOAD)


def ranges(cli: Cli, query: str = "q_top") -> list[int]:
    """The stored sketch's fragments."""
    result: list[int] = cli.one("status", "--query", query)["sketches"][0]["ranges"]
    return result


def revenue(cli: Cli) -> list[tuple[str, int]]:
    """The answer of `q_top`, sorted."""
    return sorted((brand, rev) for brand, rev in cli.one("query", "--query", "q_top")["rows"])


@pytest.mark.spark
def test_captured_maintained_used_and_verified(cli: Cli) -> None:
    captured = cli.good("capture").results
    assert [(r["query"], r["mode"]) for r in captured] == [("q_top", "exact"), ("q_brand", "exact")]
    assert ranges(cli) == [2, 3]
    assert revenue(cli) == [("Apple", 5074)]

    cli.good("apply", "s8")
    (top, brand) = cli.good("maintain").results
    assert (top["action"], top["added"], top["removed"]) == ("exact", [1], [])
    assert top["changes"] == 1
    assert brand["action"] == "exact"
    assert ranges(cli) == [1, 2, 3]
    assert revenue(cli) == [("Apple", 5074), ("HP", 6194)]

    cli.verified()


@pytest.mark.spark
def test_a_sketch_that_lacks_a_range_is_unsound(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*given: Any) -> StoredQuery:
        stored = captured_query(*given)
        (sketch,) = stored.sketches
        assert sketch.ranges.ids == (2, 3)
        fewer = RangeSet.of([2], sketch.ranges.size)
        return replace(stored, sketches=(replace(sketch, ranges=fewer),))

    monkeypatch.setattr(verify, "captured_query", lacking)
    cli.good("capture", "--query", "q_top")
    ran = cli("verify", "--query", "q_top")
    assert ran.refusal == (5, "sketch_unsound")
    (verified,) = ran.results
    assert (verified["covers"], verified["missing"], verified["slack"]) == (False, [3], 0)


@pytest.mark.spark
def test_deletes_and_updates_keep_it_accurate(cli: Cli) -> None:
    """An eager query has a step per version."""
    cli.good("capture")
    cli.good("apply", "--all")
    by_query = {r["query"]: r for r in cli.good("maintain").results}
    assert {name: r["action"] for name, r in by_query.items()} == {
        "q_top": "exact",
        "q_brand": "exact",
    }
    assert [step["versions"]["sales"] for step in by_query["q_brand"]["steps"]] == [1, 2, 3]
    assert by_query["q_top"]["steps"] == []
    cli.verified()
    assert revenue(cli) == [("HP", 6194)]
    assert cli.good("maintain").results[0]["action"] == "none"


SOURCE = os.environ.get("IMPCTL_CRIMES", "")

CRIMES_WORKLOAD = """\
version: 1
tables:
  crimes: {{path: crimes}}
partitions:
  crimes:
    Community Area: {{boundaries: [10, 20, 30, 40, 50, 60, 70]}}
    Primary Type: {{ranges: 16}}
queries:
  q_areas:
    sql: |
      SELECT `Community Area`, COUNT(*) AS incidents FROM crimes
      GROUP BY `Community Area` HAVING COUNT(*) > {in_area}
    sketch: {{crimes: Community Area}}
  q_arrests:
    sql: |
      SELECT `Primary Type`, AVG(CASE WHEN Arrest THEN 1 ELSE 0 END) AS rate FROM crimes
      GROUP BY `Primary Type` HAVING AVG(CASE WHEN Arrest THEN 1 ELSE 0 END) > 0.12
    sketch: {{crimes: Primary Type}}
  q_blocks:
    sql: |
      SELECT Block, COUNT(*) AS incidents FROM crimes GROUP BY Block HAVING COUNT(*) > {in_block}
    sketch: {{crimes: Community Area}}
updates:
{updates}
store: .impctl
"""
DAYS = 30
CORRECTIONS = """
  - name: fix-1
    delete: {table: crimes, where: "`Primary Type` = 'THEFT' AND Domestic"}
  - name: fix-2
    update:
      table: crimes
      set: {Arrest: true}
      where: "`Primary Type` = 'ROBBERY' AND `Community Area` < 20"
  - name: fix-3
    update: {table: crimes, set: {Community Area: 77}, where: "`Community Area` = 25"}
  - name: fix-4
    delete: {table: crimes, where: "`Community Area` = 77"}
"""


def crimes_cli(folder: Path, capsys: Capsys, every: int) -> Cli:
    """Over one in `every` incidents; each of the last thirty days is a file of its own."""
    some = folder / "some.parquet"
    rows = pq.read_table(SOURCE)
    pq.write_table(rows.take([*range(0, len(rows), every)]), some)
    made(folder, Example.CRIMES, source=some)
    days = [
        f"  - {{name: day-{n}, insert: {{table: crimes, file: crimes-batches/day-{n}.parquet}}}}"
        for n in range(1, DAYS + 1)
    ]
    text = CRIMES_WORKLOAD.format(
        updates="\n".join(days) + CORRECTIONS, in_area=5000 // every, in_block=150 // every
    )
    return Cli.over(capsys, folder / "data", text, "crimes.yaml")


def verified(cli: Cli, *options: str) -> list[dict[str, Any]]:
    results = cli.good("verify", *options).results
    assert [(one["covers"], one["slack"]) for one in results] == [(True, 0)] * len(results)
    return results


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(not SOURCE, reason="IMPCTL_CRIMES names no Parquet file of incidents")
@pytest.mark.parametrize(
    ("days", "every"), [(2, 10), pytest.param(DAYS, 1, marks=pytest.mark.long)]
)
def test_days_and_corrections(
    tmp_path: Path, capsys: Capsys, spark: Any, days: int, every: int
) -> None:
    cli = crimes_cli(tmp_path, capsys, every)
    captured = cli.good("capture").results
    assert {r["mode"] for r in captured} == {"exact"}
    names = [f"day-{n}" for n in range(1, days + 1)] + [f"fix-{n}" for n in range(1, 5)]
    for number, name in enumerate(names):
        applied = cli.one("apply", name)
        assert applied["inserted"] + applied["deleted"] + applied["updated"] > 0, applied
        for result in cli.good("maintain", "--policy", "incremental").results:
            assert result["action"] == "exact", result
            assert result["changes"] > 0
        if number % 12 == 11:
            verified(cli)
    for result in verified(cli, "--results"):
        assert result["results_equal"] is True


WORKLOADS = Path(__file__).parents[2] / "workloads"
ANSWERED_BATCHES, EVERY = 2, 2
ROUNDS = ANSWERED_BATCHES // EVERY

Run = Callable[..., Tally]
Test = TypeVar("Test", bound=Callable[..., None])


@pytest.fixture
def run(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Replays a shipped workload over the tables below `data`, with limits so much lower."""
    monkeypatch.setenv("IMPCTL_DATA", str(tmp_path / "data"))

    def replay(name: str, scale: float = 1) -> Tally:
        def lower(result: re.Match[str]) -> str:
            return f"{result[1]} > {int(int(result[2]) * scale)}"

        text = (WORKLOADS / f"{name}.yaml").read_text()
        copy = tmp_path / f"{name}.yaml"
        copy.write_text(re.sub(r"(HAVING COUNT\([^)]*\)) > (\d+)", lower, text))
        folder = tmp_path / "replay"
        return replayed(copy, folder, spark, ANSWERED_BATCHES, EVERY)

    return replay


def made(folder: Path, example: Example, **more: Any) -> None:
    generate(GenerateRequest(folder / "data", example, **more), SilentReporter())


def check(tally: Tally, queries: int, with_rows: int) -> None:
    """All are kept and run, all are equal, and so many have rows each time."""
    said = "\n".join(tally.told())
    assert not tally.wrong, said
    assert not tally.cannot, said
    assert not tally.unsure, said
    assert tally.queries == queries
    assert tally.equal == {"state": queries * ROUNDS, "engine": queries * ROUNDS}, said
    assert min(tally.rows["state"], tally.rows["engine"]) >= with_rows * ROUNDS, said
    assert set(tally.actions) <= {"exact", "none"}, said


def replays(*marks: pytest.MarkDecorator) -> Callable[[Test], Test]:
    """Marks a test that replays a workload."""

    def marked(test: Test) -> Test:
        for mark in (pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800), *marks):
            test = mark(test)
        return test

    return marked


@replays()
def test_the_running_example(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last batch is maintained by another process, and then old versions are removed."""
    monkeypatch.setattr(replaying, "RESTART", ANSWERED_BATCHES)
    made(tmp_path, Example.RUNNING)
    tally = run("running-example")
    check(tally, 2, 1)
    assert tally.restarts == 1


@replays()
def test_synthetic(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNTHETIC_LIMIT", "20")
    made(tmp_path, Example.SYNTHETIC, rows=4000, groups=60)
    check(run("synthetic"), 7, 7)


@replays(pytest.mark.long)
def test_joins(run: Run, tmp_path: Path) -> None:
    for seed, table in enumerate("rs", start=1):
        made(tmp_path, Example.SYNTHETIC, rows=2000, groups=200, seed=seed, table=table)
    check(run("joins", 0.05), 13, 13)


@replays(pytest.mark.long)
@pytest.mark.skipif(_generator() is None, reason="tpchgen-cli is not installed")
def test_tpch(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    command = [str(_generator()), "parquet", "-s", "0.01", "--output-dir", str(source)]
    subprocess.run(command, check=True, capture_output=True)
    made(tmp_path, Example.TPCH, source=source)
    check(run("tpch", 0.005), 21, 16)


@replays()
@pytest.mark.skipif(not SOURCE, reason="IMPCTL_CRIMES names no Parquet file of incidents")
def test_crimes(run: Run, tmp_path: Path) -> None:
    some = tmp_path / "some.parquet"
    pq.write_table(pq.read_table(SOURCE).slice(0, 20_000), some)
    made(tmp_path, Example.CRIMES, source=some)
    check(run("crimes", 0.02), 3, 3)
