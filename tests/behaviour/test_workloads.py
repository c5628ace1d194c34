"""Complete workloads on Delta tables: the papers' example, crimes, and the shipped ones."""

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


def stored_ranges(cli: Cli, query: str = "q_top") -> list[int]:
    """The ranges of the stored sketch."""
    result: list[int] = cli.one("status", "--query", query)["sketches"][0]["ranges"]
    return result


def revenue(cli: Cli) -> list[tuple[str, int]]:
    """The result of `q_top`, sorted."""
    return sorted((brand, rev) for brand, rev in cli.one("query", "--query", "q_top")["rows"])


@pytest.mark.spark
def test_capture_maintain_query_and_verify(cli: Cli) -> None:
    captured = cli.good("capture").results
    assert [(r["query"], r["mode"]) for r in captured] == [("q_top", "exact"), ("q_brand", "exact")]
    assert stored_ranges(cli) == [2, 3]
    assert revenue(cli) == [("Apple", 5074)]

    cli.good("apply", "s8")
    (top, brand) = cli.good("maintain").results
    assert (top["action"], top["added"], top["removed"]) == ("exact", [1], [])
    assert top["changes"] == 1
    assert brand["action"] == "exact"
    assert stored_ranges(cli) == [1, 2, 3]
    assert revenue(cli) == [("Apple", 5074), ("HP", 6194)]

    cli.verified()


@pytest.mark.spark
def test_missing_range_is_unsound(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def capture_with_missing_range(*arguments: Any) -> StoredQuery:
        stored = captured_query(*arguments)
        (sketch,) = stored.sketches
        assert sketch.ranges.ids == (2, 3)
        fewer = RangeSet.of([2], sketch.ranges.size)
        return replace(stored, sketches=(replace(sketch, ranges=fewer),))

    monkeypatch.setattr(verify, "captured_query", capture_with_missing_range)
    cli.good("capture", "--query", "q_top")
    ran = cli("verify", "--query", "q_top")
    assert ran.refusal == (5, "sketch_unsound")
    (check_verified,) = ran.results
    assert (check_verified["covers"], check_verified["missing"], check_verified["slack"]) == (
        False,
        [3],
        0,
    )


@pytest.mark.spark
def test_deletes_and_updates(cli: Cli) -> None:
    """An eager query is maintained in one step per version."""
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


CRIMES_FILE = os.environ.get("IMPCTL_CRIMES", "")

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
    """A CLI for one in `every` incidents. Each of the last thirty days is a separate file."""
    sample = folder / "some.parquet"
    rows = pq.read_table(CRIMES_FILE)
    pq.write_table(rows.take([*range(0, len(rows), every)]), sample)
    generate_data(folder, Example.CRIMES, source=sample)
    days = [
        f"  - {{name: day-{n}, insert: {{table: crimes, file: crimes-batches/day-{n}.parquet}}}}"
        for n in range(1, DAYS + 1)
    ]
    text = CRIMES_WORKLOAD.format(
        updates="\n".join(days) + CORRECTIONS, in_area=5000 // every, in_block=150 // every
    )
    return Cli.over(capsys, folder / "data", text, "crimes.yaml")


def check_verified(cli: Cli, *options: str) -> list[dict[str, Any]]:
    results = cli.good("verify", *options).results
    assert [(one["covers"], one["slack"]) for one in results] == [(True, 0)] * len(results)
    return results


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(not CRIMES_FILE, reason="IMPCTL_CRIMES names no Parquet file of incidents")
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
            check_verified(cli)
    for result in check_verified(cli, "--results"):
        assert result["results_equal"] is True


WORKLOADS = Path(__file__).parents[2] / "workloads"
ANSWERED_BATCHES, EVERY = 2, 2
ROUNDS = ANSWERED_BATCHES // EVERY

Run = Callable[..., Tally]
Test = TypeVar("Test", bound=Callable[..., None])


@pytest.fixture
def run(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Replays a shipped workload over the tables in `data`, with HAVING limits scaled down."""
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


def generate_data(folder: Path, example: Example, **more: Any) -> None:
    generate(GenerateRequest(folder / "data", example, **more), SilentReporter())


def check(tally: Tally, queries: int, with_rows: int) -> None:
    """Check that all queries ran, all results are equal, and enough of them have rows."""
    summary = "\n".join(tally.told())
    assert not tally.wrong, summary
    assert not tally.cannot, summary
    assert not tally.unsure, summary
    assert tally.queries == queries
    assert tally.equal == {"state": queries * ROUNDS, "engine": queries * ROUNDS}, summary
    assert min(tally.rows["state"], tally.rows["engine"]) >= with_rows * ROUNDS, summary
    assert set(tally.actions) <= {"exact", "none"}, summary


def replay_test(*marks: pytest.MarkDecorator) -> Callable[[Test], Test]:
    """Add marks to a test that replays a workload."""

    def marked(test: Test) -> Test:
        for mark in (pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800), *marks):
            test = mark(test)
        return test

    return marked


@replay_test()
def test_the_running_example(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process maintains the last batch and removes old versions."""
    monkeypatch.setattr(replaying, "RESTART", ANSWERED_BATCHES)
    generate_data(tmp_path, Example.RUNNING)
    tally = run("running-example")
    check(tally, 2, 1)
    assert tally.restarts == 1


@replay_test()
def test_synthetic(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNTHETIC_LIMIT", "20")
    generate_data(tmp_path, Example.SYNTHETIC, rows=4000, groups=60)
    check(run("synthetic"), 7, 7)


@replay_test(pytest.mark.long)
def test_joins(run: Run, tmp_path: Path) -> None:
    for seed, table in enumerate("rs", start=1):
        generate_data(tmp_path, Example.SYNTHETIC, rows=2000, groups=200, seed=seed, table=table)
    check(run("joins", 0.05), 13, 13)


@replay_test(pytest.mark.long)
@pytest.mark.skipif(_generator() is None, reason="tpchgen-cli is not installed")
def test_tpch(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    command = [str(_generator()), "parquet", "-s", "0.01", "--output-dir", str(source)]
    subprocess.run(command, check=True, capture_output=True)
    generate_data(tmp_path, Example.TPCH, source=source)
    check(run("tpch", 0.005), 21, 16)


@replay_test()
@pytest.mark.skipif(not CRIMES_FILE, reason="IMPCTL_CRIMES names no Parquet file of incidents")
def test_crimes(run: Run, tmp_path: Path) -> None:
    sample = tmp_path / "some.parquet"
    pq.write_table(pq.read_table(CRIMES_FILE).slice(0, 20_000), sample)
    generate_data(tmp_path, Example.CRIMES, source=sample)
    check(run("crimes", 0.02), 3, 3)
