"""Maintenance of time-dependent queries and of tables whose rows expire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.write.maintenance import create_table
from tests.support.kept_workload import duck, stored
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
  t: {{path: {t}}}
  u: {{path: {u}}}
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
SCHEMA = pa.schema(
    {"day": pa.date32(), "at": pa.timestamp("us", "UTC"), "g": pa.int64(), "x": pa.int64()}
)
Value = TypeVar("Value")
START = datetime(2026, 3, 1)
HOURS = [0, 5, 24, 24, -24, 72, -48, 24 * 40, -24 * 40]
"""Hours by which the clock moves between two runs."""


def queries_text(queries: Mapping[str, str], options: str) -> str:
    parts = []
    for name, sql in queries.items():
        lines = f"{options}\n    {MOVING}" if name == "given" else options
        text = " ".join(sql.split())
        parts.append(f"  {name}:\n    sql: >-\n      {text}\n    policy: strict\n    {lines}")
    return "\n".join(parts)


def _maybe(random: Random, value: Callable[[], Value]) -> Value | None:
    return None if random.random() < 0.1 else value()


def _group(random: Random) -> int | None:
    return _maybe(random, lambda: random.randint(0, 11))


def _rows(random: Random, count: int) -> pa.Table:
    """Rows around `START`, some in the future, some without a day or a group."""
    days = [random.randint(-25, 25) for _ in range(count)]
    moments = [START + timedelta(days=n, hours=random.randint(0, 23)) for n in days]
    columns = [
        [_maybe(random, moment.date) for moment in moments],
        [None if random.random() < 0.1 else moment for moment in moments],
        [_group(random) for _ in days],
        [random.randint(-20, 20) for _ in days],
    ]
    return pa.table(columns, schema=SCHEMA)


class Ground:
    """Two tables and two workloads over them: the tested one, and one for fresh captures."""

    def __init__(
        self,
        folder: Path,
        capsys: Capsys,
        monkeypatch: pytest.MonkeyPatch,
        seed: int,
        queries: Mapping[str, str],
        options: str = "maintain: lazy",
        zone: str = "UTC",
    ) -> None:
        self.folder, self.random, self.zone = folder, Random(seed), zone
        self.capsys, self.monkeypatch, self.names = capsys, monkeypatch, {*queries}
        self.queries = queries_text(queries, options)
        for table in ("t", "u"):
            create_table(str(folder / table), self.rows(60))
        self.mine, self.fresh = self.cli("mine"), self.cli("fresh")

    def rows(self, count: int) -> pa.Table:
        return _rows(self.random, count)

    def cli(self, store: str, t: str = "t", u: str = "u") -> Cli:
        text = WORKLOAD.format(queries=self.queries, store=store, zone=self.zone, t=t, u=u)
        return Cli.over(self.capsys, self.folder, text, f"{store}.yaml")

    def at(self, now: datetime | date) -> None:
        self.monkeypatch.setenv("IMPCTL_NOW", now.isoformat())

    def change(self) -> None:
        """Insert into one of the tables, or delete rows, possibly outside all windows."""
        path = str(self.folder / self.random.choice(["t", "u"]))
        if self.random.random() < 0.6:
            write_deltalake(path, self.rows(self.random.randint(1, 8)), mode="append")
        else:
            low = self.random.randint(-25, 20)
            day = START.date() + timedelta(days=low)
            DeltaTable(path).delete(f"day = '{day}' OR x = {self.random.randint(-20, 20)}")

    def check(self) -> None:
        """Check that the stored ranges equal those of a fresh capture."""
        (self.folder / "fresh").mkdir(exist_ok=True)
        expected = self.fresh.fragments("capture")
        assert self.mine.fragments() == expected


@random_seeds(2, 4, 12)
def test_maintained_as_time_passes(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Each seed uses half of the queries."""
    options = ["maintain: lazy", "maintain: eager", "buffer: 2", "buffer: 5"][seed % 4]
    zone = ["UTC", "+05:30", "Europe/Berlin"][seed % 3]
    queries = {name: QUERIES[name] for name in [*QUERIES][seed % 2 :: 2]}
    if zone == "Europe/Berlin" and "hours" in queries:
        # Only Spark supports arithmetic on times of a region.
        queries["hours"] = queries["hours"].replace(" - INTERVAL 30 HOURS", "")
    ground = Ground(tmp_path, capsys, monkeypatch, seed, queries, options, zone)
    now = START
    ground.at(now)
    ground.mine.good("capture")
    for step, hours in enumerate(ground.random.sample(HOURS, 3)):
        now += timedelta(hours=hours)
        ground.at(now)
        for _ in range(ground.random.randint(0, 2)):
            ground.change()
        assert ground.mine.actions() <= {"exact", "none"}
        if step == 2 or seed > 1:  # the fast run compares at the end
            ground.check()


@pytest.fixture
def ground(tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> Ground:
    """Two queries, captured at `START`."""
    queries = {name: QUERIES[name] for name in ("sums", "given")}
    result = Ground(tmp_path, capsys, monkeypatch, 0, queries)
    result.at(START)
    result.mine.good("capture")
    return result


def test_parameters_set_the_current_time(ground: Ground) -> None:
    cli, only = ground.mine, ("--query", "given")
    params = ("--param", "today=2026-03-05", "--param", "hour=2026-03-06 07:00")
    ran = cli.one("maintain", *only, *params)
    assert ran["action"] == "exact"
    assert ran["moments"] == {":today": "2026-03-05", ":hour": "2026-03-06T07:00:00+00:00"}
    status = cli.one("status", *only, *params)
    assert status["sketches"] == ground.fresh.one("capture", *only, *params)["sketches"]
    assert not status["stale"]
    stale_reason = cli.one("status", *only)["stale_reason"]
    assert ":today changed from 2026-03-05 to 2026-03-01" in stale_reason
    rewritten = cli.one("rewrite", *only, *params)
    assert "DATE '2026-03-05'" in rewritten["sql"]
    assert rewritten["action"] == "none"
    wrong = cli("maintain", *only, "--param", "today=1.3.2026")
    assert wrong.error["code"] == "parameter_type"
    assert cli("maintain", "--param", "day=2026-03-05").error["code"] == "parameter_unknown"


@pytest.mark.slow
def test_moved_clock_is_reported_and_handled_once(ground: Ground) -> None:
    ground.at(START + timedelta(days=2, hours=5))
    one = ("--query", "sums")
    stale = ground.mine.one("status", *one)
    assert stale["moments"] == {"current_date": "2026-03-01"}
    assert "current_date changed from 2026-03-01 to 2026-03-03" in stale["stale_reason"]
    planned = ground.mine.one("plan", *one)
    assert (planned["action"], planned["reason_code"]) == ("exact", "clock_moved")
    ran = ground.mine.one("maintain", *one)
    assert (ran["action"], ran["reason_code"]) == ("exact", "clock_moved")
    assert (ran["moments"], ran["answer_changed"]) == ({"current_date": "2026-03-03"}, "maybe")
    again = ground.mine.one("maintain", *one)
    assert (again["action"], again["moments"]) == ("none", {"current_date": "2026-03-03"})


@pytest.mark.slow
def test_stale_sketch_is_maintained_first(ground: Ground) -> None:
    ground.at(START + timedelta(days=1))
    ran = ground.mine.one("rewrite", "--query", "sums")
    assert "DATE '2026-03-02'" in ran["sql"]
    assert (ran["action"], ran["moments"]) == ("exact", {"current_date": "2026-03-02"})


@pytest.mark.slow
def test_reuse_maintains_the_sketch_of_yesterday(ground: Ground) -> None:
    ground.at(START + timedelta(days=1))
    ran = ground.mine.one("rewrite", "--sql", QUERIES["sums"].replace("> 10", "> 12"))
    assert (ran["reuse"]["query"], ran["moments"]) == ("sums", {"current_date": "2026-03-02"})
    assert "DATE '2026-03-02'" in ran["sql"]


@pytest.mark.slow
def test_older_version_has_its_moments(ground: Ground) -> None:
    one = ("--query", "sums")
    path = str(ground.folder / "t")
    version = DeltaTable(path).version()
    write_deltalake(path, ground.rows(5), mode="append")
    ground.at(START + timedelta(days=4))
    ground.mine.good("maintain", *one)
    ran = ground.mine.one("rewrite", *one, "--at", str(version))
    assert ran["moments"] == {"current_date": "2026-03-01"}
    assert "DATE '2026-03-01'" in ran["sql"]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["now()", "current_timestamp", "date_trunc('minute', now())"])
def test_untruncated_time_is_refused_with_a_hint(ground: Ground, moment: str) -> None:
    set_query(ground, f"SELECT g, SUM(x) AS s FROM t WHERE at > {moment} GROUP BY g")
    error = ground.mine("capture").error
    assert error["code"] == "sketch_unsafe"
    assert "date_trunc('hour', now())" in error["message"]


def set_query(ground: Ground, sql: str, policy: str = "auto") -> None:
    """Replace all queries of the workload by one."""
    text = (ground.folder / "mine.yaml").read_text()
    start, rest = text.split("queries:\n")
    end = rest[rest.index("store:") :]
    query = f'  q: {{sql: "{sql}", policy: {policy}}}\n'
    (ground.folder / "mine.yaml").write_text(f"{start}queries:\n{query}{end}")


def capture_at_start(ground: Ground, sql: str, policy: str) -> None:
    """Replace the queries, capture at `START`, and advance the clock by three days."""
    set_query(ground, sql, policy)
    ground.at(START)
    ground.mine.good("capture")
    ground.at(START + timedelta(days=3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        pytest.param(
            "SELECT g, MAX(day) AS d FROM t GROUP BY g HAVING MAX(day) >= current_date",
            {"action": "exact", "reason_code": "clock_moved"},
            id="condition above a grouping",
        ),
        pytest.param(
            "SELECT g, current_date AS d, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 10",
            {"action": "exact", "changes": 0, "answer_changed": "maybe"},
            id="output column only",
        ),
    ],
)
def test_changed_moment(ground: Ground, sql: str, expected: dict[str, object]) -> None:
    capture_at_start(ground, sql, "strict")
    ran = ground.mine.one("maintain")
    assert {name: ran[name] for name in expected} == expected


def test_moment_in_an_aggregate_needs_a_recapture(ground: Ground) -> None:
    sql = "SELECT g, MAX(datediff(current_date, day)) AS d FROM t GROUP BY g HAVING d > 20"
    capture_at_start(ground, sql, "incremental")
    ran = ground.mine("maintain")
    assert ran.refusal == (7, "clock_not_followed")
    assert "current_date changed from 2026-03-01 to 2026-03-04" in ran.error["message"]
    done = ground.mine.one("maintain", "--policy", "auto")
    assert (done["action"], done["reason_code"]) == ("recapture", "clock_not_followed")
    assert done["moments"] == {"current_date": "2026-03-04"}
    assert ground.mine.one("maintain")["action"] == "none"


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        ("current_date > DATE '2026-01-01'", 2),
        ("t.current_date > current_date() - INTERVAL 3 DAYS", 0),
        ("`current_date` > DATE '2026-01-01'", 0),
    ],
)
def test_column_named_current_date(
    tmp_path: Path, capsys: Capsys, condition: str, code: int
) -> None:
    create_table(str(tmp_path / "t"), pa.table({"current_date": [START.date()], "x": [1]}))
    ran = Cli.asking(capsys, tmp_path, {"q": f"SELECT x FROM t WHERE {condition}"})("check")
    assert ran.code == code, ran.document
    assert code == 0 or ran.error["code"] == "clock_ambiguous"


@pytest.mark.slow
def test_unaffected_files_of_window_are_not_read(ground: Ground) -> None:
    """Files in the middle of the window are not read: they may even be missing."""
    days = [START.date() + timedelta(days=n) for n in range(-13, 3)]
    for day in days:
        rows = pa.table([[day], [datetime(2026, 1, 1)], [1], [1]], schema=SCHEMA)
        mode = "overwrite" if day == days[0] else "append"
        write_deltalake(str(ground.folder / "t"), rows, mode=mode)
    sql = "SELECT g, SUM(x) AS s FROM t WHERE day >= current_date - INTERVAL 9 DAYS GROUP BY g"
    capture_at_start(ground, f"{sql} HAVING SUM(x) > 10", "strict")
    actions = DeltaTable(str(ground.folder / "t")).get_add_actions(flatten=True)
    for row in pa.table(actions).to_pylist():
        # Rows that leave the window within three days are older.
        if row["min.day"] >= START.date() - timedelta(days=6):
            (ground.folder / "t" / row["path"]).unlink()
    ran = ground.mine.one("maintain")
    assert (ran["action"], ran["changes"]) == ("exact", 3)


WINDOW = "day > current_date - INTERVAL 9 DAYS AND day <= current_date"
JOINED_WINDOW = f"t JOIN u ON t.g = u.g WHERE u.{WINDOW.replace('AND day', 'AND u.day')}"
JOINED_GROUPS = f"SELECT t.g, COUNT(*) AS n FROM {JOINED_WINDOW} GROUP BY t.g HAVING COUNT(*) > 6"
SPARK_CLOCK_QUERIES = {
    "far": (JOINED_GROUPS, "spark"),
    "kept": (JOINED_GROUPS, "index"),
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
def cli(tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("IMPCTL_NOW", START.isoformat())
    random = Random(4)
    for table in ("t", "u"):
        create_table(str(tmp_path / table), _rows(random, 60))
    return over_t_and_u(tmp_path, capsys, SPARK_CLOCK_QUERIES)


def over_t_and_u(folder: Path, capsys: Capsys, queries: Mapping[str, tuple[str, str]]) -> Cli:
    """A CLI for queries with their join strategies, sketched on the groups of `t`."""
    common = {"sketch": {"t": "g"}, "policy": "incremental"}
    definitions = {n: {"sql": sql, "join": join, **common} for n, (sql, join) in queries.items()}
    partitions = {"t": {"g": {"boundaries": [2, 4, 6, 8, 10]}}}
    return Cli.asking(capsys, folder, definitions, "tu", partitions=partitions)


@pytest.mark.spark
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
        assert {one["query"] for one in cli.verified(may_slack="touched")} == {*SPARK_CLOCK_QUERIES}
    assert changed > 0


@pytest.mark.spark
def test_clock_above_a_window_is_not_followed(
    cli: Cli, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    sql = (
        "SELECT g FROM (SELECT g, MAX(day) OVER (PARTITION BY g ORDER BY day, x) AS d FROM t) "
        "WHERE d > current_date"
    )
    over_t_and_u(tmp_path, capsys, {"q": (sql, "auto")}).good("capture")
    monkeypatch.setenv("IMPCTL_NOW", (START + timedelta(days=1)).isoformat())
    ran = cli("maintain")
    assert ran.error["code"] == "clock_not_followed"
    assert "stores no groups" in ran.error["message"]


def test_parameter_with_two_frequencies(tmp_path: Path, capsys: Capsys) -> None:
    moves = {"day": "daily", "at": "hourly"}
    queries = {
        column: {
            "sql": f"SELECT g FROM t WHERE {column} >= :start",
            "params": {"start": {"moves": frequency}},
        }
        for column, frequency in moves.items()
    }
    cli = Cli.asking(capsys, tmp_path, queries)
    assert cli("status", "--param", "start=2026-03-05").refusal == (2, "parameter_ambiguous")


EXPIRING_QUERIES = {
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
OF_T = ", expiry: {column: AT, after: 30 hours}"
OF_U = ", expiry: {column: day, after: 3d}"
OPTIONS = (
    *("maintain: lazy", "maintain: eager", "join: files", "state: least"),
    *("buffer: 2", "answer: true"),
)
EXPIRY_START = datetime(2026, 3, 27, 12, tzinfo=UTC)
"""Two days before the start of daylight saving time in Berlin."""


def _live_rows(random: Random, count: int, now: datetime) -> pa.Table:
    """Rows around an instant, some about to expire or just expired."""

    def moment() -> datetime | None:
        if random.random() < 0.1:
            return None
        if random.random() < 0.2:
            return now - timedelta(hours=30) + timedelta(seconds=random.randint(-2, 2))
        return now + timedelta(minutes=random.randint(-60 * 80, 60 * 20))

    columns = [
        [
            _maybe(random, lambda: now.date() + timedelta(days=random.randint(-6, 2)))
            for _ in range(count)
        ],
        [moment() for _ in range(count)],
        [_group(random) for _ in range(count)],
        [random.randint(-20, 20) for _ in range(count)],
    ]
    return pa.table(columns, schema=SCHEMA)


class ExpiringGround(Ground):
    """A `Ground` with tables whose rows expire."""

    def __init__(self, *arguments: Any) -> None:
        self.now, self.checks = EXPIRY_START, 0
        super().__init__(*arguments)
        self.mine = self.cli("mine", f"t{OF_T}", f"u{OF_U}")
        self.go(timedelta())

    def rows(self, count: int) -> pa.Table:
        return _live_rows(self.random, count, self.now)

    def go(self, by: timedelta) -> None:
        """Advance the clock."""
        self.now += by
        self.at(self.now)

    def change(self) -> None:
        """One commit on one of the tables."""
        random, path = self.random, str(self.folder / self.random.choice(["t", "u"]))
        kind = random.random()
        if kind < 0.5:
            write_deltalake(path, self.rows(random.randint(1, 8)), mode="append")
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

        def is_live(row: dict[str, Any]) -> bool:
            if table == "t":
                time = row["at"]
                return time is not None and time > self.now - timedelta(hours=30)
            day: date | None = row["day"]
            if day is None:
                return False
            midnight = datetime(day.year, day.month, day.day, tzinfo=zone)
            return midnight.astimezone(UTC) > self.now - timedelta(days=3)

        live = [row for row in rows.to_pylist() if is_live(row)]
        return pa.Table.from_pylist(live, schema=rows.schema)

    def check(self) -> None:
        """Check that ranges and results equal those of a capture over only the live rows."""
        self.checks += 1
        for table in ("t", "u"):
            create_table(str(self.folder / f"{table}{self.checks}"), self.live(table))
        store = f"fresh{self.checks}"
        (self.folder / store).mkdir()
        fresh_cli = self.cli(store, f"t{self.checks}", f"u{self.checks}")
        expected = fresh_cli.fragments("capture")
        ranges = self.mine.fragments()
        # Fewer rows may satisfy more facts, so that the capture also sketches another table.
        assert {query for query, _ in ranges} == self.names
        assert ranges.items() <= expected.items()
        for name in self.names:
            arguments = ("query", "--query", name, "--by", "engine")
            mine, theirs = (
                sorted(map(repr, cli.one(*arguments)["rows"])) for cli in (self.mine, fresh_cli)
            )
            assert mine == theirs


@pytest.mark.slow
@random_seeds(2, 4, 24)
def test_sketches_cover_live_rows(
    tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Each seed uses half of the queries."""
    options = OPTIONS[seed % len(OPTIONS)]
    zone = ["UTC", "Europe/Berlin", "Asia/Kolkata"][seed % 3]
    queries = {name: EXPIRING_QUERIES[name] for name in [*EXPIRING_QUERIES][seed % 2 :: 2]}
    ground = ExpiringGround(tmp_path, capsys, monkeypatch, seed, queries, options, zone)
    ground.mine.good("capture")
    seconds = [0, 1, 3600, 7200, 40_000, 200_000]
    for step in ground.random.sample(seconds, 3):
        ground.go(timedelta(seconds=step))
        for _ in range(ground.random.randint(0, 3)):
            ground.change()
        assert ground.mine.actions() <= {"exact", "none"}
    ground.check()


@pytest.mark.slow
def test_why_and_changes_at_a_given_instant(tmp_path: Path, capsys: Capsys) -> None:
    hours = [EXPIRY_START + timedelta(hours=hour) for hour in (1, 0, 2)]
    links = pa.schema({"a": pa.int64(), "b": pa.int64(), "at": pa.timestamp("us", tz="UTC")})
    create_table(str(tmp_path / "links"), pa.table([[1, 2, 1], [2, 3, 3], hours], schema=links))
    sql = (
        "WITH RECURSIVE r(n) AS (SELECT b FROM links WHERE a = 1 UNION "
        "SELECT l.b FROM r JOIN links l ON r.n = l.a) SELECT n FROM r"
    )
    expiring = {"links": {"path": "links", "expiry": {"column": "at", "after": "1 day"}}}
    cli = Cli.asking(capsys, tmp_path, {"reach": {"sql": sql, "answer": True}}, expiring)
    cli.good("capture", "--now", EXPIRY_START.isoformat())
    edge = hours[0] + timedelta(days=1)
    for now, nodes, deleted in ((edge - timedelta(seconds=1), [2, 3], []), (edge, [3], [[2]])):
        now_option = ("--now", now.isoformat())
        changes = cli.one("changes", "--query", "reach", *now_option)
        assert [row[-1:] for row in changes["rows"]] == deleted
        for node in (2, 3):
            ran = cli("why", "--query", "reach", "--row", f"n={node}", *now_option)
            assert (ran.code == 0) == (node in nodes), ran.document


SUMS = "SELECT g, SUM(x) AS s, COUNT(*) AS n FROM t WHERE {} GROUP BY g"
LATEST_QUERIES = {
    "latest": SUMS.format("day = (SELECT MAX(day) FROM t)"),
    "first": SUMS.format("day IN (SELECT MIN(day) FROM t)"),
    "since": SUMS.format("day >= (SELECT MAX(day) FROM t) - INTERVAL 1 DAY"),
    "hours": SUMS.format("ts > (SELECT MAX(ts) - INTERVAL 30 HOURS FROM t)"),
    "before": SUMS.format(
        "day = (SELECT MAX(day) FROM t WHERE day < (SELECT MAX(day) FROM t)) AND x > 2"
    ),
    "rows": "SELECT day, g, x FROM t WHERE x >= (SELECT AVG(x) FROM t) AND g = 1",
    "named": "SELECT name, COUNT(*) AS n FROM t JOIN d ON t.g = d.g "
    "WHERE day = (SELECT MAX(day) FROM t) GROUP BY name",
}
FIRST, LATEST_DAYS = date(2026, 1, 1), 6


def rows(day: int | None, count: int, start: int = 0) -> pa.Table:
    """Rows with this day, or with NULL."""
    moment = FIRST if day is None else FIRST + timedelta(days=day)
    midnight = datetime.combine(moment, datetime.min.time(), UTC)
    columns = [
        [None if day is None else moment] * count,
        [midnight + timedelta(hours=row % 24) for row in range(count)],
        [row % 3 for row in range(start, start + count)],
        [None if row % 5 == 4 else row % 7 for row in range(count)],
    ]
    return pa.table(columns, schema=SCHEMA).rename_columns(["day", "ts", "g", "x"])


def over_days(
    folder: Path, capsys: Capsys, names: Sequence[str] = tuple(LATEST_QUERIES), **more: Any
) -> Cli:
    """A CLI for a table with one file per day and a second table."""
    create_table(str(folder / "t"), rows(0, 8))
    for day in range(1, LATEST_DAYS):
        append(day, 8)(folder)
    create_table(str(folder / "d"), pa.table({"g": [0, 1, 2], "name": ["a", "b", "a"]}))
    common = {"answer": True, "policy": "incremental", **more.pop("common", {})}
    definitions = {name: {"sql": LATEST_QUERIES[name], **common} for name in names}
    return Cli.asking(capsys, folder, definitions, "td", **more)


Change = Callable[[Path], object]


def append(day: int | None, count: int, start: int = 0) -> Change:
    return lambda folder: write_deltalake(str(folder / "t"), rows(day, count, start), mode="append")


def delete(condition: str | None) -> Change:
    return lambda folder: DeltaTable(str(folder / "t")).delete(condition)


def day_of(day: int) -> str:
    return f"day = DATE '{FIRST + timedelta(days=day)}'"


CHANGES: dict[str, Change] = {
    "more of the latest day": append(5, 3, 1),
    "a later day": append(6, 4),
    "the same rows again": append(6, 4),
    "some of an early day": append(1, 2),
    "part of the latest day is deleted": delete(f"{day_of(6)} AND g = 0"),
    "the latest day is deleted": delete(day_of(6)),
    "the day before is deleted": delete(day_of(5)),
    "rows without a day": append(None, 3),
    "a much later day": append(60, 2),
    "the first day is deleted": delete(day_of(0)),
    "values are updated": lambda folder: DeltaTable(str(folder / "t")).update(
        updates={"x": "x + 3"}, predicate="g = 1"
    ),
    "only rows without a day remain": delete("day IS NOT NULL"),
    "rows with days are inserted": append(3, 5),
    "all rows are deleted": delete(None),
    "rows are inserted": append(2, 4),
}


LatestAnswers = dict[str, Counter[tuple[str, ...]]]


def _texts(rows: Sequence[Sequence[object]]) -> Counter[tuple[str, ...]]:
    return Counter(tuple(map(str, row)) for row in rows)


def materialized_answers(cli: Cli, names: Sequence[str]) -> LatestAnswers:
    """The materialized results, as strings."""
    results = {name: cli.one("query", "--query", name, "--by", "state") for name in names}
    return {name: _texts(result["rows"]) for name, result in results.items()}


def duckdb_answers(folder: Path, names: Sequence[str]) -> LatestAnswers:
    with duck() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for table in ("t", "d"):
            connection.register(table, DeltaTable(str(folder / table)).to_pyarrow_table())
        return {name: _texts(connection.execute(LATEST_QUERIES[name]).fetchall()) for name in names}


@pytest.mark.parametrize(
    ("more", "names", "batch_size"),
    [
        ({}, ("hours", "named"), 2),
        pytest.param({}, ("latest", "hours", "named"), 1, marks=pytest.mark.slow),
        pytest.param({"budget": {"disk": "0MB"}}, (*LATEST_QUERIES,), 3, marks=pytest.mark.slow),
    ],
)
def test_latest_day_is_maintained(
    tmp_path: Path, capsys: Capsys, more: dict[str, Any], names: Sequence[str], batch_size: int
) -> None:
    """`batch_size` changes are maintained at once."""
    cli = over_days(tmp_path, capsys, names, **more)
    assert {result["mode"] for result in cli("capture").results} == {"exact"}
    assert materialized_answers(cli, names) == duckdb_answers(tmp_path, names)
    for start in range(0, len(CHANGES), batch_size):
        changes = [*CHANGES][start : start + batch_size]
        for name in changes:
            CHANGES[name](tmp_path)
        assert {result["action"] for result in cli("maintain").results} == {"exact"}, changes
        assert materialized_answers(cli, names) == duckdb_answers(tmp_path, names), changes


def test_no_table_rows_are_stored(tmp_path: Path, capsys: Capsys) -> None:
    cli = over_days(tmp_path, capsys, ["latest", "since", "hours", "rows"]).captured()
    for result in cli.good("explain").results:
        (side,) = result["joins"]
        assert (side["strategy"], side["tables"]) == ("files", ["t"])
        assert stored(tmp_path, result["query"]).state_meta["from_files"] == [side["side"]]


def test_join_index_stores_rows(tmp_path: Path, capsys: Capsys) -> None:
    cli = over_days(tmp_path, capsys, ["latest"], common={"join": "index"}).captured()
    assert {side["strategy"] for side in cli.one("explain")["joins"]} == {"index"}
    append(6, 4)(tmp_path)
    cli.good("maintain")
    assert materialized_answers(cli, ["latest"]) == duckdb_answers(tmp_path, ["latest"])


def test_files_without_affected_rows_are_not_opened(tmp_path: Path, capsys: Capsys) -> None:
    cli = over_days(tmp_path, capsys, ["latest", "since", "hours"]).captured()
    for uri in DeltaTable(str(tmp_path / "t"), version=2).file_uris():
        Path(uri).unlink()
    append(6, 4)(tmp_path)
    assert cli.actions() == {"exact"}
    expected = Counter([("0", "3", "2"), ("1", "1", "1"), ("2", "2", "1")])
    assert materialized_answers(cli, ["latest"])["latest"] == expected
