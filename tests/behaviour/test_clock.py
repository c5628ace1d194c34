"""Queries that ask the clock: their sketches follow it, by steps and never by a recapture.

Oracle: a capture from nothing at the same time, over the same ranges.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.write.create import create_table
from tests.support.random_cases import few_seeds_then_rest
from tests.support.run_cli import Cli

QUERIES = {
    "sums": """SELECT g, SUM(x) AS s FROM t WHERE day >= current_date - INTERVAL 9 DAYS
        GROUP BY g HAVING SUM(x) > 10""",
    "averages": """SELECT g, AVG(x) AS a FROM t
        WHERE day BETWEEN current_date() - INTERVAL 9 DAYS AND current_date()
        GROUP BY g HAVING AVG(x) > 5 AND COUNT(*) > 1""",
    "first": """SELECT g, SUM(x) AS s FROM t
        WHERE day > date_sub(current_date, 9) AND day <= to_date(now())
        GROUP BY g ORDER BY s DESC, g LIMIT 2""",
    "extremes": """SELECT g, MAX(x) AS high, MIN(x) AS low FROM t
        WHERE day >= CAST(current_timestamp AS DATE) - INTERVAL 9 DAYS
        GROUP BY g HAVING MAX(x) > 15 OR MIN(x) < -15""",
    "rows": """SELECT g, x FROM t WHERE day >= current_date - INTERVAL 9 DAYS
        ORDER BY x DESC, g LIMIT 3""",
    "joined": """SELECT t.g, COUNT(*) AS n FROM t JOIN u ON t.g = u.g
        WHERE t.day >= current_date - INTERVAL 9 DAYS AND u.day <= current_date
        GROUP BY t.g HAVING COUNT(*) > 3""",
    "left": """SELECT t.g, COUNT(u.x) AS n FROM t LEFT JOIN u
        ON t.g = u.g AND u.day >= current_date - INTERVAL 9 DAYS
        GROUP BY t.g HAVING COUNT(u.x) < 3""",
    "there": """SELECT g, SUM(x) AS s FROM t WHERE EXISTS (
        SELECT 1 FROM u WHERE u.g = t.g AND u.day >= current_date - INTERVAL 3 DAYS)
        GROUP BY g HAVING SUM(x) > 10""",
    "twice": """SELECT a.g, COUNT(*) AS n FROM t a JOIN t b ON a.g = b.g
        WHERE a.day >= current_date - INTERVAL 3 DAYS AND b.day < current_date - INTERVAL 3 DAYS
        GROUP BY a.g HAVING COUNT(*) > 3""",
    "either": """SELECT g, COUNT(*) AS n FROM t
        WHERE day >= current_date - INTERVAL 3 DAYS OR x > 15
        GROUP BY g HAVING COUNT(*) > 2""",
    "values": """SELECT DISTINCT g FROM t WHERE day >= current_date - INTERVAL 3 DAYS AND x > 10""",
    "hours": """SELECT g, SUM(x) AS s FROM t
        WHERE at >= date_trunc('HOUR', now()) - INTERVAL 30 HOURS
        GROUP BY g HAVING SUM(x) > 10""",
    "months": """SELECT g, SUM(x) AS s FROM t WHERE at >= date_trunc('month', current_timestamp())
        GROUP BY g HAVING SUM(x) > 10""",
}
WORKLOAD = """\
version: 1
tables:
  t: {{path: t}}
  u: {{path: u}}
partitions:
  t:
    g: {{boundaries: [2, 4, 6, 8, 10]}}
  u:
    g: {{boundaries: [3, 6, 9]}}
queries:
{queries}
store: {store}
spark: {{master: "local[2]", conf: {{spark.sql.session.timeZone: "{zone}"}}}}
"""
START = datetime(2026, 3, 1)
HOURS = [0, 5, 24, 24, -24, 72, -48, 24 * 40, -24 * 40]
"""By how much the clock goes on, or back, between two runs."""


def _queries(options: str) -> str:
    parts = []
    for name, sql in QUERIES.items():
        text = " ".join(sql.split())
        parts.append(f"  {name}:\n    sql: >-\n      {text}\n    policy: strict\n    {options}")
    return "\n".join(parts)


def _rows(random: Random, count: int) -> pa.Table:
    """Rows around the start, some in the future, some without a day or a group."""
    days = [random.randint(-25, 25) for _ in range(count)]
    moments = [START + timedelta(days=n, hours=random.randint(0, 23)) for n in days]
    return pa.table(
        {
            "day": pa.array(
                [None if random.random() < 0.1 else at.date() for at in moments], pa.date32()
            ),
            "at": pa.array(
                [None if random.random() < 0.1 else at for at in moments],
                pa.timestamp("us", tz="UTC"),
            ),
            "g": pa.array(
                [None if random.random() < 0.1 else random.randint(0, 11) for _ in days],
                pa.int64(),
            ),
            "x": pa.array([random.randint(-20, 20) for _ in days], pa.int64()),
        }
    )


class Ground:
    """Two tables, a workload over them, and the same with a store of its own for the oracle."""

    def __init__(
        self,
        folder: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        seed: int,
        *,
        options: str = "maintain: lazy",
        zone: str = "UTC",
    ) -> None:
        self.folder, self.random = folder, Random(seed)
        self.monkeypatch = monkeypatch
        for table in ("t", "u"):
            create_table(str(folder / table), _rows(self.random, 60))
        for name in ("mine", "anew"):
            text = WORKLOAD.format(queries=_queries(options), store=name, zone=zone)
            (folder / f"{name}.yaml").write_text(text)
        self.mine = Cli(capsys, folder / "mine.yaml")
        self.anew = Cli(capsys, folder / "anew.yaml")

    def at(self, now: datetime | date) -> None:
        self.monkeypatch.setenv("IMPCTL_NOW", now.isoformat())

    def change(self) -> None:
        """A batch on one of the tables: rows in, or rows out that may long have left."""
        path = str(self.folder / self.random.choice(["t", "u"]))
        if self.random.random() < 0.6:
            write_deltalake(path, _rows(self.random, self.random.randint(1, 8)), mode="append")
        else:
            low = self.random.randint(-25, 20)
            day = START.date() + timedelta(days=low)
            DeltaTable(path).delete(f"day = '{day}' OR x = {self.random.randint(-20, 20)}")

    def check(self) -> None:
        """What is stored is what a capture from nothing finds."""
        (self.folder / "anew").mkdir(exist_ok=True)
        expected = {
            (r["query"], s["table"]): s["fragments"]
            for r in self.anew.good("capture").results
            for s in r["sketches"]
        }
        found = {
            (r["query"], s["table"]): s["fragments"]
            for r in self.mine.good("status").results
            for s in r["sketches"]
        }
        assert found == expected


@few_seeds_then_rest(3, 60)
def test_sketches_follow_the_clock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    options = ["maintain: lazy", "maintain: eager", "buffer: 2", "buffer: 5"][seed % 4]
    zone = ["UTC", "+05:30", "Europe/Berlin"][seed % 3]
    if zone == "Europe/Berlin":
        # Arithmetic on times of a region is Spark's.
        monkeypatch.setitem(
            QUERIES,
            "hours",
            "SELECT g, SUM(x) AS s FROM t WHERE at >= date_trunc('HOUR', now()) "
            "GROUP BY g HAVING SUM(x) > 10",
        )
    ground = Ground(tmp_path, capsys, monkeypatch, seed, options=options, zone=zone)
    now = START
    ground.at(now)
    ground.mine.good("capture")
    for _ in range(5):
        now += timedelta(hours=ground.random.choice(HOURS))
        ground.at(now)
        for _ in range(ground.random.randint(0, 2)):
            ground.change()
        ran = ground.mine.good("maintain")
        assert {result["action"] for result in ran.results} <= {"exact", "none"}
        ground.check()
