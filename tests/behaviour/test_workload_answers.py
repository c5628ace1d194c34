"""Every query of the shipped workloads by its kept answer and by the engine, against Spark's own.

Small tables, a few batches; `python -m tests.behaviour.answers_replayed` runs the same by hand over
tables of any size. Limits of HAVING are lowered as the tables are smaller, so that rows are left.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from benchmarks.data import _generator
from impctl.measure.generate import generate
from impctl.service.context import SilentReporter
from impctl.service.settings import Example, GenerateRequest
from tests.behaviour.answers_replayed import ReplayTally, replayed

WORKLOADS = Path(__file__).parents[2] / "workloads"
CRIMES = os.environ.get("IMPCTL_CRIMES", "")
BATCHES, EVERY = 4, 2
ROUNDS = BATCHES // EVERY

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

Run = Callable[..., ReplayTally]


@pytest.fixture
def run(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Replays a shipped workload over the tables below `data`, with limits so much lower."""
    monkeypatch.setenv("IMPCTL_DATA", str(tmp_path / "data"))

    def replay(name: str, scale: float = 1) -> ReplayTally:
        def lower(result: re.Match[str]) -> str:
            return f"{result[1]} > {int(int(result[2]) * scale)}"

        text = (WORKLOADS / f"{name}.yaml").read_text()
        copy = tmp_path / f"{name}.yaml"
        copy.write_text(re.sub(r"(HAVING COUNT\([^)]*\)) > (\d+)", lower, text))
        return replayed(copy, tmp_path / "replay", spark, BATCHES, EVERY)

    return replay


def made(folder: Path, example: Example, **more: Any) -> None:
    generate(GenerateRequest(folder / "data", example, **more), SilentReporter())


def check(tally: ReplayTally, queries: int, with_rows: int) -> None:
    """All are kept and run, all are equal, and so many have rows each time."""
    said = "\n".join(tally.told())
    assert not tally.wrong, said
    assert not tally.cannot, said
    assert not tally.unsure, said
    assert tally.queries == queries
    assert tally.equal == {"state": queries * ROUNDS, "engine": queries * ROUNDS}, said
    assert min(tally.rows["state"], tally.rows["engine"]) >= with_rows * ROUNDS, said
    assert set(tally.actions) <= {"exact", "none"}, said


def test_the_running_example(run: Run, tmp_path: Path) -> None:
    made(tmp_path, Example.RUNNING)
    check(run("running-example"), 2, 1)


def test_synthetic(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNTHETIC_LIMIT", "20")
    made(tmp_path, Example.SYNTHETIC, rows=4000, groups=60)
    check(run("synthetic"), 7, 7)


@pytest.mark.slow
@pytest.mark.long
def test_joins(run: Run, tmp_path: Path) -> None:
    for seed, table in enumerate("rs", start=1):
        made(tmp_path, Example.SYNTHETIC, rows=2000, groups=200, seed=seed, table=table)
    check(run("joins", 0.05), 13, 13)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(_generator() is None, reason="tpchgen-cli is not installed")
def test_tpch(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    command = [str(_generator()), "parquet", "-s", "0.01", "--output-dir", str(source)]
    subprocess.run(command, check=True, capture_output=True)
    made(tmp_path, Example.TPCH, source=source)
    check(run("tpch", 0.005), 21, 16)


@pytest.mark.skipif(not CRIMES, reason="IMPCTL_CRIMES names no Parquet file of incidents")
def test_crimes(run: Run, tmp_path: Path) -> None:
    some = tmp_path / "some.parquet"
    pq.write_table(pq.read_table(CRIMES).slice(0, 20_000), some)
    made(tmp_path, Example.CRIMES, source=some)
    check(run("crimes", 0.02), 3, 3)
