"""Tables whose rows expire: sketches and answers are those of the live rows alone.

Oracle: the same queries captured from nothing over tables that hold no other rows than the live
ones, picked row by row in Python. Time goes on in random steps between random changes: late rows,
rows of the future, rows without a time, expired rows deleted and brought back to life.
By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for ten times as many cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.write.maintenance import create_table
from tests.behaviour.test_clock import queries_text
from tests.support.random_cases import random_seeds
from tests.support.run_cli import Capsys, Cli

QUERIES = {
    "sums": "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 10",
    "few": "SELECT g, COUNT(*) AS n FROM t GROUP BY g HAVING COUNT(*) < 3",
    "averages": "SELECT g, AVG(x) AS a FROM t GROUP BY g HAVING AVG(x) > 5",
    "first": "SELECT g, SUM(x) AS s FROM t GROUP BY g ORDER BY s DESC, g LIMIT 2",
    "extremes": """SELECT g, MAX(x) AS high, MIN(x) AS low FROM t
        GROUP BY g HAVING MAX(x) > 15 OR MIN(x) < -15""",
    "rows": "SELECT g, x FROM t ORDER BY x DESC, g LIMIT 3",
    "joined": """SELECT t.g, COUNT(*) AS n FROM t JOIN u ON t.g = u.g
        GROUP BY t.g HAVING COUNT(*) > 3""",
    "left": """SELECT t.g, COUNT(u.x) AS n FROM t LEFT JOIN u ON t.g = u.g AND u.x > 0
        GROUP BY t.g HAVING COUNT(u.x) < 3""",
    "there": """SELECT g, SUM(x) AS s FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.g = t.g)
        GROUP BY g HAVING SUM(x) > 10""",
    "missing": "SELECT g, x FROM t WHERE g NOT IN (SELECT g FROM u WHERE g IS NOT NULL)",
    "twice": """SELECT a.g, COUNT(*) AS n FROM t a JOIN t b ON a.g = b.g
        WHERE a.x > 0 GROUP BY a.g HAVING COUNT(*) > 3""",
    "kinds": "SELECT DISTINCT g FROM t WHERE x > 10",
    "reach": """WITH RECURSIVE r(n) AS (SELECT x FROM t WHERE g = 0 UNION
        SELECT l.x FROM r JOIN t l ON r.n = l.g) SELECT n FROM r""",
    "seeds": """WITH RECURSIVE r(n) AS (SELECT g FROM u WHERE x > 0 UNION
        SELECT l.x FROM r JOIN t l ON r.n = l.g) SELECT n, COUNT(*) AS c FROM r GROUP BY n""",
    "whole": """SELECT w.g, COUNT(*) AS n FROM everything w JOIN t ON w.g = t.g
        GROUP BY w.g HAVING COUNT(*) > 4""",
}
WORKLOAD = """\
version: 1
tables:
  t: {{path: {t}{of_t}}}
  u: {{path: {u}{of_u}}}
  everything: {{path: t}}
partitions:
  t:
    g: {{boundaries: [2, 4, 6, 8, 10]}}
  u:
    g: {{boundaries: [3, 6, 9]}}
  everything:
    g: {{boundaries: [5]}}
queries:
{queries}
store: {store}
spark: {{master: "local[2]", conf: {{spark.sql.session.timeZone: "{zone}"}}}}
"""
OF_T = ", expiry: {column: AT, after: 30 hours}"
OF_U = ", expiry: {column: day, after: 3d}"
OPTIONS = (
    "maintain: lazy",
    "maintain: eager",
    "join: files",
    "state: least",
    "buffer: 2",
    "answer: true",
)
START = datetime(2026, 3, 27, 12, tzinfo=UTC)
"""In Berlin the clock is put forward two days later."""


def _rows(random: Random, count: int, now: datetime) -> pa.Table:
    """Rows around an instant, some at the very edge of what is live."""

    def moment() -> datetime | None:
        if random.random() < 0.1:
            return None
        if random.random() < 0.2:
            return now - timedelta(hours=30) + timedelta(seconds=random.randint(-2, 2))
        return now + timedelta(minutes=random.randint(-60 * 80, 60 * 20))

    return pa.table(
        {
            "day": pa.array(
                [
                    None
                    if random.random() < 0.1
                    else now.date() + timedelta(days=random.randint(-6, 2))
                    for _ in range(count)
                ],
                pa.date32(),
            ),
            "at": pa.array([moment() for _ in range(count)], pa.timestamp("us", tz="UTC")),
            "g": pa.array(
                [None if random.random() < 0.1 else random.randint(0, 11) for _ in range(count)],
                pa.int64(),
            ),
            "x": pa.array([random.randint(-20, 20) for _ in range(count)], pa.int64()),
        }
    )


class Ground:
    """Two tables of which rows expire, a workload over them, and the oracle's own."""

    def __init__(
        self,
        folder: Path,
        capsys: Capsys,
        monkeypatch: pytest.MonkeyPatch,
        seed: int,
        queries: Mapping[str, str],
        *,
        options: str = "maintain: lazy",
        zone: str = "UTC",
    ) -> None:
        self.folder, self.random, self.zone = folder, Random(seed), zone
        self.monkeypatch, self.now, self.checks = monkeypatch, START, 0
        for table in ("t", "u"):
            create_table(str(folder / table), _rows(self.random, 60, START))
        self.capsys, self.names = capsys, [*queries]
        self.queries = queries_text(queries, options)
        self.mine = self._cli("mine", "t", "u", OF_T, OF_U)
        self.go(timedelta())

    def _cli(self, store: str, t: str, u: str, of_t: str = "", of_u: str = "") -> Cli:
        text = WORKLOAD.format(
            queries=self.queries, store=store, zone=self.zone, t=t, u=u, of_t=of_t, of_u=of_u
        )
        (self.folder / f"{store}.yaml").write_text(text)
        return Cli(self.capsys, self.folder / f"{store}.yaml")

    def go(self, by: timedelta) -> None:
        """Let time go on."""
        self.now += by
        self.monkeypatch.setenv("IMPCTL_NOW", self.now.isoformat())

    def change(self) -> None:
        """One commit on one of the tables."""
        random, path = self.random, str(self.folder / self.random.choice(["t", "u"]))
        kind = random.random()
        if kind < 0.5:
            write_deltalake(path, _rows(random, random.randint(1, 8), self.now), mode="append")
        elif kind < 0.75:
            edge = (self.now - timedelta(hours=random.randint(0, 60))).isoformat()
            where = f"(at < '{edge}' AND g = {random.randint(0, 11)}) OR x = {random.randint(0, 9)}"
            DeltaTable(path).delete(where)
        else:
            again = (self.now - timedelta(hours=random.randint(0, 40))).isoformat()
            DeltaTable(path).update(
                predicate=f"g = {random.randint(0, 11)}",
                updates={"at": f"CAST('{again}' AS TIMESTAMP)", "day": f"'{self.now.date()}'"},
            )

    def live(self, table: str) -> pa.Table:
        """The rows that are live now."""
        rows = DeltaTable(str(self.folder / table)).to_pyarrow_table()
        zone = ZoneInfo(self.zone)

        def lives(row: dict[str, Any]) -> bool:
            if table == "t":
                at = row["at"]
                return at is not None and at > self.now - timedelta(hours=30)
            day: date | None = row["day"]
            if day is None:
                return False
            midnight = datetime(day.year, day.month, day.day, tzinfo=zone)
            return midnight.astimezone(UTC) > self.now - timedelta(days=3)

        kept = [row for row in rows.to_pylist() if lives(row)]
        return pa.Table.from_pylist(kept, schema=rows.schema)

    def check(self) -> None:
        """What is stored is what a capture finds over the live rows alone."""
        self.checks += 1
        for table in ("t", "u"):
            create_table(str(self.folder / f"{table}{self.checks}"), self.live(table))
        store = f"anew{self.checks}"
        (self.folder / store).mkdir()
        anew = self._cli(store, f"t{self.checks}", f"u{self.checks}")
        expected = _fragments(anew.good("capture").results)
        fragments = _fragments(self.mine.good("status").results)
        # Of fewer rows more may be true, and then another table have a sketch as well.
        assert {query for query, _ in fragments} == set(self.names)
        assert fragments.items() <= expected.items()
        for name in self.names:
            mine = self.mine.good("query", "--query", name, "--by", "engine").results
            assert _answer(mine) == _answer(
                anew.good("query", "--query", name, "--by", "engine").results
            )


def _fragments(results: list[Any]) -> dict[tuple[str, str], tuple[int, ...]]:
    return {(r["query"], s["table"]): tuple(s["fragments"]) for r in results for s in r["sketches"]}


def _answer(results: list[Any]) -> list[str]:
    (one,) = results
    return sorted(map(repr, one["rows"]))


@pytest.mark.slow
@random_seeds(2, 4, 24)
def test_sketches_hold_what_is_live(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Each seed tries one half of the queries."""
    options = OPTIONS[seed % len(OPTIONS)]
    zone = ["UTC", "Europe/Berlin", "Asia/Kolkata"][seed % 3]
    queries = {name: QUERIES[name] for name in [*QUERIES][seed % 2 :: 2]}
    ground = Ground(tmp_path, capsys, monkeypatch, seed, queries, options=options, zone=zone)
    ground.mine.good("capture")
    seconds = [0, 1, 3600, 7200, 40_000, 200_000]
    for step in ground.random.sample(seconds, 3):
        ground.go(timedelta(seconds=step))
        for _ in range(ground.random.randint(0, 3)):
            ground.change()
        ran = ground.mine.good("maintain")
        assert {result["action"] for result in ran.results} <= {"exact", "none"}
    ground.check()


@pytest.mark.slow
def test_why_and_changes_are_told_as_of_the_instant_given(tmp_path: Path, capsys: Capsys) -> None:
    hours = [START + timedelta(hours=hour) for hour in (1, 0, 2)]
    links = {
        "a": pa.array([1, 2, 1], pa.int64()),
        "b": pa.array([2, 3, 3], pa.int64()),
        "at": pa.array(hours, pa.timestamp("us", tz="UTC")),
    }
    create_table(str(tmp_path / "links"), pa.table(links))
    sql = (
        "WITH RECURSIVE r(n) AS (SELECT b FROM links WHERE a = 1 UNION "
        "SELECT l.b FROM r JOIN links l ON r.n = l.a) SELECT n FROM r"
    )
    cli = Cli.over(
        capsys,
        tmp_path,
        "version: 1\ntables: {links: {path: links, expiry: {column: at, after: 1 day}}}\n"
        f"queries: {{reach: {{sql: '{sql}', answer: true}}}}\nstore: .impctl\n",
    )
    cli.good("capture", "--now", START.isoformat())
    edge = hours[0] + timedelta(days=1)
    for now, left, gone in ((edge - timedelta(seconds=1), [2, 3], []), (edge, [3], [[2]])):
        at = ("--now", now.isoformat())
        (told,) = cli.good("changes", "--query", "reach", *at).results
        assert [row[-1:] for row in told["rows"]] == gone
        for node in (2, 3):
            ran = cli("why", "--query", "reach", "--row", f"n={node}", *at)
            assert (ran.code == 0) == (node in left), ran.document
