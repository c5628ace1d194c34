"""Real incidents, a batch a day for thirty days, then corrections; Spark verifies some steps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.run_cli import Cli

SOURCE = os.environ.get("IMPCTL_CRIMES", "")

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(not SOURCE, reason="IMPCTL_CRIMES names no Parquet file of incidents"),
]

WORKLOAD = """\
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
      GROUP BY `Community Area` HAVING COUNT(*) > 5000
    sketch: {{crimes: Community Area}}
  q_arrests:
    sql: |
      SELECT `Primary Type`, AVG(CASE WHEN Arrest THEN 1 ELSE 0 END) AS rate FROM crimes
      GROUP BY `Primary Type` HAVING AVG(CASE WHEN Arrest THEN 1 ELSE 0 END) > 0.12
    sketch: {{crimes: Primary Type}}
  q_blocks:
    sql: |
      SELECT Block, COUNT(*) AS incidents FROM crimes GROUP BY Block HAVING COUNT(*) > 150
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


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], spark: Any) -> Cli:
    days = [
        f"  - {{name: day-{n}, insert: {{table: crimes, file: crimes-batches/day-{n}.parquet}}}}"
        for n in range(1, DAYS + 1)
    ]
    file = tmp_path / "crimes.yaml"
    file.write_text(WORKLOAD.format(updates="\n".join(days) + CORRECTIONS))
    return Cli(capsys, file)


def generated(folder: Path) -> None:
    """The table without its last thirty days, and a file for each of these."""
    from impctl.measure.generate import generate
    from impctl.service.context import SilentReporter
    from impctl.service.settings import Example, GenerateRequest

    request = GenerateRequest(folder, Example.CRIMES, source=Path(SOURCE).resolve())
    generate(request, SilentReporter())


def verified(cli: Cli, *options: str) -> list[dict[str, Any]]:
    results = cli.good("verify", *options).results
    for result in results:
        assert result["covers"], result
        assert result["slack"] == 0, result
    return results


@pytest.mark.parametrize("days", [6, pytest.param(DAYS, marks=pytest.mark.long)])
def test_days_and_corrections(cli: Cli, days: int) -> None:
    generated(cli.workload.parent)
    captured = cli.good("capture").results
    assert {r["mode"] for r in captured} == {"exact"}
    verified(cli)
    names = [f"day-{n}" for n in range(1, days + 1)] + [f"fix-{n}" for n in range(1, 5)]
    for number, name in enumerate(names):
        (applied,) = cli.good("apply", name).results
        assert applied["inserted"] + applied["deleted"] + applied["updated"] > 0, applied
        for result in cli.good("maintain", "--policy", "incremental").results:
            assert result["action"] == "exact", result
            assert result["changes"] > 0
        if number % 12 == 11:
            verified(cli)
    for result in verified(cli, "--results"):
        assert result["results_equal"] is True
