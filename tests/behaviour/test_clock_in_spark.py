"""The clock where Spark reads a side of a join, and where a sketch is kept by touch.

Oracle: a recapture by Spark, and the query without its sketch, on every day.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.write.maintenance import create_table
from tests.behaviour.test_clock import START, _rows
from tests.support.run_cli import Cli

pytestmark = [pytest.mark.spark]

WINDOW = "day > current_date - INTERVAL 9 DAYS AND day <= current_date"
FAR = f"t JOIN u ON t.g = u.g WHERE u.{WINDOW.replace('AND day', 'AND u.day')}"
QUERIES = {
    "far": (f"SELECT t.g, COUNT(*) AS n FROM {FAR} GROUP BY t.g HAVING COUNT(*) > 6", "spark"),
    "kept": (f"SELECT t.g, COUNT(*) AS n FROM {FAR} GROUP BY t.g HAVING COUNT(*) > 6", "index"),
    "above": (
        "SELECT t.g FROM t JOIN u ON t.g = u.g WHERE t.x > 0 GROUP BY t.g "
        "HAVING MAX(u.day) > current_date + INTERVAL 12 DAYS",
        "spark_unfiltered",
    ),
    "touched": (
        "SELECT g, r FROM (SELECT g, COUNT(*) OVER (PARTITION BY g ORDER BY x, at, day) AS r "
        f"FROM t WHERE {WINDOW}) WHERE r > 2",
        "auto",
    ),
}
DAYS = (1, 2, -4, 30)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("IMPCTL_NOW", START.isoformat())
    random = Random(4)
    for table in ("t", "u"):
        create_table(str(tmp_path / table), _rows(random, 60))
    queries = "".join(
        f'  {name}: {{sql: "{sql}", sketch: {{t: g}}, join: {join}, policy: incremental}}\n'
        for name, (sql, join) in QUERIES.items()
    )
    return Cli.over(
        capsys,
        tmp_path,
        "version: 1\ntables: {t: {path: t}, u: {path: u}}\n"
        "partitions:\n  t: {g: {boundaries: [2, 4, 6, 8, 10]}}\n"
        f'queries:\n{queries}store: .impctl\nspark: {{master: "local[2]"}}\n',
    )


@pytest.mark.slow
@pytest.mark.long
def test_days_pass(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any) -> None:
    cli.good("capture")
    random, now, changed = Random(5), START, 0
    for turn, days in enumerate(DAYS):
        now += timedelta(days=days)
        monkeypatch.setenv("IMPCTL_NOW", now.isoformat())
        if turn % 2:
            write_deltalake(str(tmp_path / "u"), _rows(random, 5), mode="append")
            DeltaTable(str(tmp_path / "t")).delete(f"x = {random.randint(-20, 20)}")
        for ran in cli.good("maintain").results:
            assert ran["action"] == ("touch" if ran["query"] == "touched" else "exact"), ran
            assert ran["reason_code"] == "clock_moved", ran
            changed += len(ran["added"]) + len(ran["removed"])
        result = {one["query"] for one in cli.verified(may_slack="touched")}
        assert result == QUERIES.keys()
    assert changed > 0


def test_a_day_above_a_window_by_touch_is_refused_by_name(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    text = (tmp_path / "w.yaml").read_text()
    start, end = text[: text.index("queries:")], text[text.index("store:") :]
    sql = (
        "SELECT g FROM (SELECT g, MAX(day) OVER (PARTITION BY g ORDER BY day, x) AS d FROM t) "
        "WHERE d > current_date"
    )
    query = f'queries:\n  q: {{sql: "{sql}", sketch: {{t: g}}, policy: incremental}}\n'
    (tmp_path / "w.yaml").write_text(f"{start}{query}{end}")
    cli.good("capture")
    monkeypatch.setenv("IMPCTL_NOW", (START + timedelta(days=1)).isoformat())
    ran = cli("maintain")
    assert ran.error["code"] == "clock_not_followed"
    assert "stores no groups" in ran.error["message"]
