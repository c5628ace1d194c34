"""Queries that ask the clock: their sketches follow it, by steps and never by a recapture.

Oracle: a capture from nothing at the same time, over the same ranges.
By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for ten times as many cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.write.maintenance import create_table
from tests.support.random_cases import random_seeds
from tests.support.run_cli import Capsys, Cli

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
    "given": """SELECT g, SUM(x) AS s FROM t
        WHERE day > date_sub(:today, 9) AND day <= :today AND at < :hour
        GROUP BY g HAVING SUM(x) > 10""",
    "late": """SELECT g, MAX(day) AS d FROM t GROUP BY g
        HAVING MAX(day) < current_date - INTERVAL 2 DAYS""",
    "few": """SELECT x, COUNT(*) AS n FROM t WHERE day <= current_date GROUP BY x
        HAVING COUNT(*) > 2 OR MAX(day) > current_date - INTERVAL 3 DAYS""",
    "since": """SELECT state, COUNT(*) AS n FROM (SELECT g, CASE WHEN MAX(day) >= current_date
        THEN 'new' ELSE 'old' END AS state FROM t GROUP BY g) GROUP BY state HAVING COUNT(*) > 3""",
    "windows": """SELECT t.g FROM t JOIN u ON t.g = u.g
        WHERE CASE WHEN u.x > 0 THEN t.day ELSE u.day END > current_date""",
    "months": """SELECT g, SUM(x) AS s FROM t WHERE at >= date_trunc('month', current_timestamp())
        GROUP BY g HAVING SUM(x) > 10""",
}
MOVING = "params: {today: {moves: daily}, hour: {moves: hourly}}"
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


def queries_text(queries: Mapping[str, str], options: str) -> str:
    parts = []
    for name, sql in queries.items():
        own = f"{options}\n    {MOVING}" if name == "given" else options
        text = " ".join(sql.split())
        parts.append(f"  {name}:\n    sql: >-\n      {text}\n    policy: strict\n    {own}")
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
        capsys: Capsys,
        monkeypatch: pytest.MonkeyPatch,
        seed: int,
        queries: Mapping[str, str],
        *,
        options: str = "maintain: lazy",
        zone: str = "UTC",
    ) -> None:
        self.folder, self.random = folder, Random(seed)
        self.monkeypatch = monkeypatch
        for table in ("t", "u"):
            create_table(str(folder / table), _rows(self.random, 60))
        for name in ("mine", "anew"):
            text = WORKLOAD.format(queries=queries_text(queries, options), store=name, zone=zone)
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
        result = {
            (r["query"], s["table"]): s["fragments"]
            for r in self.mine.good("status").results
            for s in r["sketches"]
        }
        assert result == expected


@random_seeds(2, 4, 12)
def test_sketches_follow_the_clock(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Each seed tries one half of the queries."""
    options = ["maintain: lazy", "maintain: eager", "buffer: 2", "buffer: 5"][seed % 4]
    zone = ["UTC", "+05:30", "Europe/Berlin"][seed % 3]
    queries = {name: QUERIES[name] for name in [*QUERIES][seed % 2 :: 2]}
    if zone == "Europe/Berlin" and "hours" in queries:
        # Arithmetic on times of a region is Spark's.
        queries["hours"] = queries["hours"].replace(" - INTERVAL 30 HOURS", "")
    ground = Ground(tmp_path, capsys, monkeypatch, seed, queries, options=options, zone=zone)
    now = START
    ground.at(now)
    ground.mine.good("capture")
    for hours in ground.random.sample(HOURS, 3):
        now += timedelta(hours=hours)
        ground.at(now)
        for _ in range(ground.random.randint(0, 2)):
            ground.change()
        ran = ground.mine.good("maintain")
        assert {result["action"] for result in ran.results} <= {"exact", "none"}
        ground.check()


@pytest.fixture
def ground(tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> Ground:
    """Two queries captured at the start."""
    queries = {name: QUERIES[name] for name in ("sums", "given")}
    result = Ground(tmp_path, capsys, monkeypatch, 0, queries)
    result.at(START)
    result.mine.good("capture")
    return result


def test_a_value_given_stands_for_the_clock(ground: Ground) -> None:
    one = ("--query", "given")
    at = ("--param", "today=2026-03-05", "--param", "hour=2026-03-06 07:00")
    (ran,) = ground.mine.good("maintain", *one, *at).results
    assert ran["action"] == "exact"
    assert ran["moments"] == {":today": "2026-03-05", ":hour": "2026-03-06T07:00:00+00:00"}
    (anew,) = ground.anew.good("capture", *one, *at).results
    (kept,) = ground.mine.good("status", *one, *at).results
    assert kept["sketches"] == anew["sketches"]
    assert not kept["stale"]
    (without,) = ground.mine.good("status", *one).results
    assert ":today changed from 2026-03-05 to 2026-03-01" in without["stale_reason"]
    (rewritten,) = ground.mine.good("rewrite", *one, *at).results
    assert "DATE '2026-03-05'" in rewritten["sql"]
    assert rewritten["action"] == "none"
    assert (
        ground.mine("maintain", *one, "--param", "today=1.3.2026").error["code"] == "parameter_type"
    )
    assert ground.mine("maintain", "--param", "day=2026-03-05").error["code"] == "parameter_unknown"


@pytest.mark.slow
def test_the_clock_is_named_and_nothing_is_done_twice(ground: Ground) -> None:
    ground.at(START + timedelta(days=2, hours=5))
    one = ("--query", "sums")
    (stale,) = ground.mine.good("status", *one).results
    assert stale["moments"] == {"current_date": "2026-03-01"}
    assert "current_date changed from 2026-03-01 to 2026-03-03" in stale["stale_reason"]
    (planned,) = ground.mine.good("plan", *one).results
    assert (planned["action"], planned["reason_code"]) == ("exact", "clock_moved")
    (ran,) = ground.mine.good("maintain", *one).results
    assert (ran["action"], ran["reason_code"]) == ("exact", "clock_moved")
    assert ran["moments"] == {"current_date": "2026-03-03"}
    assert ran["answer_changed"] == "maybe"
    (again,) = ground.mine.good("maintain", *one).results
    assert (again["action"], again["moments"]) == ("none", {"current_date": "2026-03-03"})


@pytest.mark.slow
def test_a_sketch_that_is_used_follows_first(ground: Ground) -> None:
    ground.at(START + timedelta(days=1))
    (ran,) = ground.mine.good("rewrite", "--query", "sums").results
    assert "DATE '2026-03-02'" in ran["sql"]
    assert (ran["action"], ran["moments"]) == ("exact", {"current_date": "2026-03-02"})


@pytest.mark.slow
def test_another_text_finds_a_sketch_that_stands_for_yesterday(ground: Ground) -> None:
    ground.at(START + timedelta(days=1))
    text = QUERIES["sums"].replace("> 10", "> 12")
    (ran,) = ground.mine.good("rewrite", "--sql", text).results
    assert ran["reuse"]["query"] == "sums"
    assert ran["moments"] == {"current_date": "2026-03-02"}
    assert "DATE '2026-03-02'" in ran["sql"]


@pytest.mark.slow
def test_an_older_version_has_the_clock_of_then(ground: Ground) -> None:
    one = ("--query", "sums")
    path = str(ground.folder / "t")
    version = DeltaTable(path).version()
    write_deltalake(path, _rows(ground.random, 5), mode="append")
    ground.at(START + timedelta(days=4))
    ground.mine.good("maintain", *one)
    (ran,) = ground.mine.good("rewrite", *one, "--at", str(version)).results
    assert ran["moments"] == {"current_date": "2026-03-01"}
    assert "DATE '2026-03-01'" in ran["sql"]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["now()", "current_timestamp", "date_trunc('minute', now())"])
def test_what_is_not_cut_is_refused_with_the_way_out(ground: Ground, moment: str) -> None:
    _say(ground, f"SELECT g, SUM(x) AS s FROM t WHERE at > {moment} GROUP BY g")
    error = ground.mine("capture").error
    assert error["code"] == "sketch_unsafe"
    assert "date_trunc('hour', now())" in error["message"]


def _say(ground: Ground, sql: str, policy: str = "auto") -> None:
    """Another query in place of all."""
    text = (ground.folder / "mine.yaml").read_text()
    start, rest = text.split("queries:\n")
    end = rest[rest.index("store:") :]
    query = f'  q: {{sql: "{sql}", policy: {policy}}}\n'
    (ground.folder / "mine.yaml").write_text(f"{start}queries:\n{query}{end}")


def _with(ground: Ground, sql: str, policy: str) -> None:
    """The same, captured at the start, three days ago."""
    _say(ground, sql, policy)
    ground.at(START)
    ground.mine.good("capture")
    ground.at(START + timedelta(days=3))


@pytest.mark.slow
def test_a_constant_above_a_grouping_turns_groups(ground: Ground) -> None:
    sql = "SELECT g, MAX(day) AS d FROM t GROUP BY g HAVING MAX(day) >= current_date"
    _with(ground, sql, "strict")
    (ran,) = ground.mine.good("maintain").results
    assert (ran["action"], ran["reason_code"]) == ("exact", "clock_moved")


def test_a_constant_in_what_is_summed_recaptures_and_says_so(ground: Ground) -> None:
    sql = "SELECT g, MAX(datediff(current_date, day)) AS d FROM t GROUP BY g HAVING d > 20"
    _with(ground, sql, "incremental")
    ran = ground.mine("maintain")
    assert (ran.code, ran.error["code"]) == (7, "clock_not_followed")
    assert "current_date changed from 2026-03-01 to 2026-03-04" in ran.error["message"]
    (done,) = ground.mine.good("maintain", "--policy", "auto").results
    assert (done["action"], done["reason_code"]) == ("recapture", "clock_not_followed")
    assert done["moments"] == {"current_date": "2026-03-04"}
    (again,) = ground.mine.good("maintain").results
    assert again["action"] == "none"


@pytest.mark.slow
def test_a_constant_that_is_only_put_out_moves_nothing(ground: Ground) -> None:
    sql = "SELECT g, current_date AS d, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 10"
    _with(ground, sql, "strict")
    (ran,) = ground.mine.good("maintain").results
    assert (ran["action"], ran["changes"], ran["answer_changed"]) == ("exact", 0, "maybe")


def test_a_column_of_the_name_is_not_taken_for_the_clock(tmp_path: Path, capsys: Capsys) -> None:
    create_table(str(tmp_path / "t"), pa.table({"current_date": [START.date()], "x": [1]}))
    file = tmp_path / "w.yaml"
    start = "version: 1\ntables: {t: {path: t}}\nqueries:\n"
    for part, code in {
        "current_date > DATE '2026-01-01'": 2,
        "t.current_date > current_date() - INTERVAL 3 DAYS": 0,
        "`current_date` > DATE '2026-01-01'": 0,
    }.items():
        file.write_text(f'{start}  q: {{sql: "SELECT x FROM t WHERE {part}"}}\n')
        ran = Cli(capsys, file)("check")
        assert ran.code == code, ran.document
        assert code == 0 or ran.error["code"] == "clock_ambiguous"


@pytest.mark.slow
def test_files_that_no_row_leaves_or_enters_are_not_read(ground: Ground) -> None:
    """The window's middle is left alone: its file may even be gone."""
    days = [START.date() + timedelta(days=n) for n in range(-13, 3)]
    for day in days:
        rows = {"day": [day], "at": [datetime(2026, 1, 1)], "g": [1], "x": [1]}
        table = pa.table(rows).cast(_rows(ground.random, 1).schema)
        mode = "overwrite" if day == days[0] else "append"
        write_deltalake(str(ground.folder / "t"), table, mode=mode)
    sql = "SELECT g, SUM(x) AS s FROM t WHERE day >= current_date - INTERVAL 9 DAYS GROUP BY g"
    _with(ground, f"{sql} HAVING SUM(x) > 10", "strict")
    actions = DeltaTable(str(ground.folder / "t")).get_add_actions(flatten=True)
    for row in pa.table(actions).to_pylist():
        # What leaves with three days is older than the first that stays.
        if row["min.day"] >= START.date() - timedelta(days=6):
            (ground.folder / "t" / row["path"]).unlink()
    (ran,) = ground.mine.good("maintain").results
    assert (ran["action"], ran["changes"]) == ("exact", 3)
