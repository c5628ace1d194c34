"""Real incidents, a batch a day for thirty days: averages of whole numbers everywhere, no Spark.

Eleven queries, joined, compared, grouped and ordered by averages: every one of the 330 steps is
exact, and its sketch is what a capture at that version finds.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.behaviour.test_crimes import DAYS, SOURCE, generated
from tests.support.run_cli import Cli

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(not SOURCE, reason="IMPCTL_CRIMES names no Parquet file of incidents"),
]

_RATE = "AVG(CASE WHEN Arrest THEN 1 ELSE 0 END)"
_HOME = "AVG(CASE WHEN Domestic THEN 1 ELSE 0 END)"
_RATES = f"SELECT `Primary Type` AS p, {_RATE} AS rate FROM crimes GROUP BY `Primary Type`"
_HOURS = "SELECT `Community Area` AS a, AVG(HOUR(Date)) AS h FROM crimes GROUP BY `Community Area`"
_COUNTS = "SELECT `Community Area` AS a, COUNT(*) AS n FROM crimes GROUP BY `Community Area`"
BY_AREA = {
    "areas": f"{_COUNTS} HAVING COUNT(*) > 5000",
    "blocks": "SELECT Block, COUNT(*) AS n FROM crimes GROUP BY Block HAVING COUNT(*) > 150",
    "late": f"SELECT c.Block FROM crimes c JOIN ({_HOURS}) r "
    "ON c.`Community Area` = r.a AND HOUR(c.Date) > r.h + 10.5",
    "left": f"SELECT c.`Community Area`, COUNT(r.h) AS n FROM crimes c LEFT JOIN ({_HOURS}) r "
    "ON c.`Community Area` = r.a AND r.h > 13 GROUP BY c.`Community Area` HAVING COUNT(r.h) > 2000",
    "many": f"{_COUNTS} HAVING COUNT(*) > (SELECT AVG(n) FROM ({_COUNTS}))",
}
BY_TYPE = {
    "arrests": f"{_RATES} HAVING {_RATE} > 0.12",
    "join": f"SELECT c.Block, COUNT(*) AS n FROM crimes c JOIN ({_RATES}) r "
    "ON c.`Primary Type` = r.p WHERE r.rate > 0.2 GROUP BY c.Block",
    "above": "SELECT `Primary Type` AS p FROM crimes GROUP BY `Primary Type` "
    "HAVING AVG(HOUR(Date)) > (SELECT AVG(HOUR(Date)) FROM crimes)",
    "top": f"SELECT `Primary Type`, {_HOME} AS rate FROM crimes GROUP BY `Primary Type` "
    "ORDER BY rate DESC, `Primary Type` LIMIT 5",
    "exists": f"SELECT a.p, a.rate FROM ({_RATES}) a WHERE EXISTS (SELECT 1 FROM (SELECT "
    f"`Primary Type` AS p, {_HOME} AS d FROM crimes GROUP BY `Primary Type`) b "
    "WHERE b.p = a.p AND b.d > a.rate)",
    "same": f"SELECT ROUND(rate, 2) AS r, COUNT(*) AS n FROM ({_RATES}) GROUP BY ROUND(rate, 2)",
}


def workload(folder: Path, store: str) -> Path:
    """The file with these queries, keeping its sketches in `store`."""
    queries = [(name, sql, "Community Area") for name, sql in BY_AREA.items()]
    queries += [(name, sql, "Primary Type") for name, sql in BY_TYPE.items()]
    lines = [
        "version: 1",
        "tables: {crimes: {path: crimes}}",
        "partitions:",
        "  crimes:",
        "    Community Area: {boundaries: [10, 20, 30, 40, 50, 60, 70]}",
        "    Primary Type: {boundaries: [B, C, D, H, L, N, O, P, R, S, T, W]}",
        "queries:",
    ]
    for name, sql, attribute in queries:
        lines += [
            f"  {name}:",
            "    sql: |",
            f"      {sql}",
            f"    sketch: {{crimes: {attribute}}}",
        ]
    lines.append("updates:")
    for day in range(1, DAYS + 1):
        file = f"crimes-batches/day-{day}.parquet"
        lines.append(f"  - {{name: day-{day}, insert: {{table: crimes, file: {file}}}}}")
    lines.append(f"store: {store}")
    path = folder / f"{store.strip('.')}.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def sketches(cli: Cli) -> dict[str, object]:
    return {entry["query"]: entry["sketches"] for entry in cli.good("status").results}


def test_every_step_is_exact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generated(tmp_path)
    kept = Cli(capsys, workload(tmp_path, ".kept"))
    captured = kept.good("capture").results
    assert [(r["mode"], r["spark_ms"]) for r in captured] == [("exact", 0.0)] * 11
    anew = Cli(capsys, workload(tmp_path, ".anew"))
    steps = set()
    for day in range(1, DAYS + 1):
        kept.good("apply", f"day-{day}")
        # Whether a capture would be quicker is not the question.
        for result in kept.good("maintain", "--policy", "incremental").results:
            assert result["action"] == "exact", (result["query"], result["reason"])
            steps.add((day, result["query"]))
        shutil.rmtree(tmp_path / ".anew", ignore_errors=True)
        anew.good("capture")
        assert sketches(kept) == sketches(anew), day
    assert len(steps) == 11 * DAYS
