"""A month's window over ninety days, a thousand rows a day: exact, quick, and Spark's answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from random import Random
from statistics import median

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Capsys, Cli, Ran

WINDOW = "day > current_date - INTERVAL 30 DAYS AND day <= current_date"
QUERIES = {
    "sums": f"SELECT g, SUM(x) AS s FROM t WHERE {WINDOW} GROUP BY g HAVING SUM(x) > 8300",
    "averages": f"SELECT g, AVG(x) AS a FROM t WHERE {WINDOW} GROUP BY g HAVING AVG(x) > 53",
    "first": f"SELECT g, SUM(x) AS s FROM t WHERE {WINDOW} GROUP BY g ORDER BY s DESC, g LIMIT 10",
    "joined": f"""SELECT d.name, COUNT(*) AS n FROM t JOIN d ON t.g = d.g
        WHERE {WINDOW} AND d.since <= current_date GROUP BY d.name HAVING COUNT(*) > 850""",
}
START = date(2026, 1, 1)
ROWS, GROUPS = 1_000, 200


def rows_of(random: Random, day: date) -> pa.Table:
    """A day's rows; some come late or early, some have no day."""
    days = [day + timedelta(days=random.choice([0] * 20 + [-1, 2])) for _ in range(ROWS)]
    return pa.table(
        {
            "day": pa.array([None if random.random() < 0.01 else d for d in days], pa.date32()),
            "g": pa.array([random.randrange(GROUPS) for _ in days], pa.int64()),
            "x": pa.array([random.randrange(100) for _ in days], pa.int64()),
        }
    )


class Days:
    """The table, its dimension, and one workload with two stores: kept, and captured anew."""

    def __init__(self, folder: Path, capsys: Capsys, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch, self.random = folder, patch, Random(1)
        first = [rows_of(self.random, START - timedelta(days=back)) for back in range(40)]
        create_table(str(folder / "t"), pa.concat_tables(first))
        since = [START + timedelta(days=at - 60) for at in range(GROUPS)]
        names = pa.array([f"n{at % 10}" for at in range(GROUPS)])
        dimension = {"g": pa.array(range(GROUPS), pa.int64()), "name": names, "since": since}
        create_table(str(folder / "d"), pa.table(dimension))
        ranges = ", ".join(str(at) for at in range(10, GROUPS, 10))
        queries = "\n".join(
            f'  {name}: {{sql: "{" ".join(sql.split())}", sketch: {{t: g}}}}'
            for name, sql in QUERIES.items()
        )
        for store in ("kept", "anew"):
            (folder / f"{store}.yaml").write_text(
                "version: 1\ntables: {t: {path: t}, d: {path: d}}\n"
                f"partitions: {{t: {{g: {{boundaries: [{ranges}]}}}}}}\n"
                f'queries:\n{queries}\nstore: {store}\nspark: {{master: "local[2]"}}\n'
            )
        self.kept, self.anew = (Cli(capsys, folder / f"{s}.yaml") for s in ("kept", "anew"))

    def at(self, day: date) -> None:
        self.patch.setenv("IMPCTL_NOW", day.isoformat())

    def arrive(self, day: date) -> None:
        """The day's rows, and now and then some taken back, whether they left already or not."""
        write_deltalake(str(self.folder / "t"), rows_of(self.random, day), mode="append")
        if day.day % 10 == 0:
            DeltaTable(str(self.folder / "t")).delete(f"x = {day.month} AND g < 40")

    def maintained(self) -> float:
        """Milliseconds that all queries took; none by a recapture."""
        ran = self.kept.good("maintain")
        assert {result["action"] for result in ran.results} == {"exact"}
        return sum(float(result["elapsed_ms"]) for result in ran.results)

    def check(self) -> None:
        """Slack 0: what a capture from nothing finds."""
        anew, kept = self.anew.good("capture"), self.kept.good("status")
        fragments = _fragments(kept)
        assert fragments == _fragments(anew)
        assert any(len(fragments[query, "t"]) < 20 for query in QUERIES)
        assert all(fragments[query, "t"] for query in QUERIES)


def _fragments(ran: Ran) -> dict[tuple[str, str], list[int]]:
    return {(r["query"], s["table"]): s["fragments"] for r in ran.results for s in r["sketches"]}


@dataclass
class Lived:
    """Times of a day's rows alone, and of rows and the day together; days on which Spark agreed."""

    plain: list[float] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)
    asked: int = 0


def lived(days: Days, count: int, verify_every: int | None) -> Lived:
    """So many days, as rows and the day both go on; Spark is asked on every `verify_every`-th."""
    done = Lived()
    days.at(START)
    days.kept.good("capture")
    for number in range(1, count + 1):
        day = START + timedelta(days=number)
        if number % 3 == 0:
            days.arrive(day)
            done.plain.append(days.maintained())
            days.at(day)
            days.maintained()
        else:
            days.at(day)
            days.arrive(day)
            done.moved.append(days.maintained())
        days.check()
        if verify_every and number % verify_every == 0:
            assert {one["query"] for one in days.kept.verified()} == set(QUERIES)
            done.asked += 1
    return done


@pytest.mark.slow
def test_a_window_moves_for_days(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived(Days(tmp_path, capsys, monkeypatch), 3, None)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
def test_a_window_moves_for_ninety_days(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = lived(Days(tmp_path, capsys, monkeypatch), 90, 15)
    times = f"rows {median(done.plain):.1f} ms, rows and day {median(done.moved):.1f} ms"
    (tmp_path / "times.txt").write_text(times)
    assert median(done.moved) <= 3 * median(done.plain), times
