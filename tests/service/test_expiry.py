"""Expiry: the edge of live rows, the files read for it, reports, and refusals."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.data.schema import DATE, TIMESTAMP
from impctl.errors import TableError
from impctl.expr.nodes import Literal
from impctl.service import prepare
from impctl.service.context import Context, open_context
from impctl.service.prepare import least_above, live_rows, next_expiry
from impctl.service.rewrite import files
from impctl.service.schedule.daemon import TableWatch
from impctl.service.settings import QueryRequest, Settings, SketchPolicy
from impctl.sql.parameters import NEVER, Clock, zone_of
from impctl.tables.source import open_source
from impctl.tables.write.maintenance import create_table
from tests.support.random_cases import random_seeds
from tests.support.run_cli import Cli, CliOnce, MonkeyPatch, Ran, spied, write_files

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
WORKLOAD = """\
version: 1
tables:
  links: {path: links, expiry: {column: seen_at, after: 1 hour}}
  all_links: {path: links}
  days: {path: links, expiry: {column: day, after: 2d}}
partitions: {links: &ranges {src: {boundaries: [1, 2, 3, 4]}}, all_links: *ranges, days: *ranges}
queries:
  sums:
    sql: SELECT src, SUM(cost) AS s FROM links GROUP BY src HAVING SUM(cost) > 30
    answer: true
  daily: {sql: "SELECT src, COUNT(*) AS n FROM days GROUP BY src HAVING COUNT(*) > 1"}
  bare: {sql: "SELECT src, cost FROM links WHERE cost > 20", sketch: none}
  beside:
    sql: >-
      SELECT a.src, COUNT(*) AS n FROM links a JOIN all_links b ON a.src = b.src
      GROUP BY a.src HAVING COUNT(*) > 2
    join: tree
    policy: strict
  far:
    sql: >-
      SELECT a.src, COUNT(*) AS n FROM links a JOIN all_links b ON a.cost = b.cost
      JOIN days c ON b.src = c.src GROUP BY a.src HAVING COUNT(*) > 2
    join: spark
    policy: strict
  pairs:
    sql: >-
      SELECT a.src, COUNT(*) AS n FROM links a JOIN links b ON a.src = b.src
      JOIN links c ON c.src = b.src GROUP BY a.src HAVING COUNT(*) > 0
    join: index
  reach:
    sql: >-
      WITH RECURSIVE r(n) AS (SELECT src FROM links WHERE src = 0 UNION
      SELECT l.src FROM r JOIN links l ON r.n + 1 = l.src) SELECT n FROM r
  today: {sql: "SELECT src, COUNT(*) AS n FROM links WHERE day = current_date() GROUP BY src"}
  numbered:
    sql: >-
      SELECT src, r FROM (SELECT src, COUNT(*) OVER (PARTITION BY src ORDER BY cost, seen_at)
      AS r FROM links) WHERE r > 1
store: st
spark: {master: "local[2]", conf: {spark.sql.session.timeZone: America/New_York}}
"""


def numbered_rows(*minutes: int | None) -> pa.Table:
    """Links seen at these minutes after noon; sources in turn, costs 0, 10, 20, ..."""
    times = [None if minute is None else NOON + timedelta(minutes=minute) for minute in minutes]
    local = [None if time is None else time.replace(tzinfo=None) for time in times]
    columns = {
        "src": pa.array([number % 5 for number in range(len(times))], pa.int64()),
        "cost": pa.array([10 * number for number in range(len(times))], pa.int64()),
        "seen_at": pa.array(times, pa.timestamp("us", tz="UTC")),
        "day": pa.array([None if time is None else time.date() for time in times], pa.date32()),
        "local": pa.array(local, pa.timestamp("us")),
    }
    return pa.table(columns)


def write_links(folder: Path) -> None:
    """Six files: one with rows that expire within the next hour or before, five with later ones."""
    links = numbered_rows(-10, -20, -30, -40, -50, -59, -60, -61, None, 30)
    write_files(folder, WORKLOAD, links=links)
    for number in range(5):
        more = numbered_rows(*[100 + 10 * number + minute for minute in range(5)])
        write_deltalake(str(folder / "links"), more, mode="append")


@pytest.fixture
def cli(cli_once: CliOnce) -> Cli:
    return cli_once("expiry", write_links)


@pytest.fixture
def captured(cli_once: CliOnce) -> Cli:
    """The same with a sketch of `sums`, captured at noon."""
    return cli_once("expiry captured", write_links, lambda cli: run_one(cli, "capture", "sums", 0))


def instant(minutes: float) -> str:
    return (NOON + timedelta(minutes=minutes)).isoformat()


def run_one(cli: Cli, command: str, query: str, minutes: float, *more: str) -> dict[str, Any]:
    return cli.one(command, "--query", query, "--now", instant(minutes), *more)


def result_rows(cli: Cli, query: str, minutes: float, *more: str) -> list[list[Any]]:
    return sorted(run_one(cli, "query", query, minutes, *more)["rows"])


def test_only_files_with_expired_rows_are_read(captured: Cli) -> None:
    ran = run_one(captured, "maintain", "sums", 10)
    assert (ran["action"], ran["reason_code"], ran["changes"]) == ("exact", "expired", 2)
    assert ran["reason"].endswith("2 rows expired; 1 of 6 files was read for them")
    assert ran["moments"] == {"now": instant(10)}
    assert ran["since"] == ran["versions"]
    # At 90 minutes, only rows of the first file expire; at 500, rows of all files.
    assert "1 of 6 files" in run_one(captured, "maintain", "sums", 90)["reason"]
    assert "6 of 6 files" in run_one(captured, "maintain", "sums", 500)["reason"]


@pytest.mark.slow
def test_nothing_runs_before_a_row_expires(captured: Cli) -> None:
    for minutes in (0, 0.5, 1 - 1 / 60):
        ran = run_one(captured, "maintain", "sums", minutes)
        assert (ran["action"], ran["reason_code"]) == ("none", "up_to_date")
        assert ran["moments"] == {"now": instant(0)}
    planned = captured.one("plan", "--query", "sums", "--now", instant(0.5))
    assert (planned["action"], planned["next_expiry"]) == ("none", instant(1))
    planned = captured.one("plan", "--query", "sums", "--now", instant(1))
    assert (planned["action"], planned["reason_code"]) == ("exact", "expired")
    stale = captured.one("status", "--query", "sums", "--now", instant(1))
    assert "rows may have expired between" in stale["stale_reason"]
    assert run_one(captured, "maintain", "sums", 1)["changes"] == 1
    assert run_one(captured, "status", "sums", 1)["next_expiry"] == instant(10)
    assert run_one(captured, "maintain", "sums", 5000)["removed"]
    assert run_one(captured, "status", "sums", 5000)["next_expiry"] == "never"
    assert run_one(captured, "maintain", "sums", 9000)["action"] == "none"


def expected_sums(cli: Cli, minutes: float) -> list[list[Any]]:
    sums: dict[int, int] = {}
    edge = NOON + timedelta(minutes=minutes - 60)
    for row in cli.table("links").to_pyarrow_table().to_pylist():
        if row["seen_at"] is not None and row["seen_at"] > edge:
            sums[row["src"]] = sums.get(row["src"], 0) + row["cost"]
    return sorted([src, total] for src, total in sums.items() if total > 30)


COMMANDS = [("maintain",), ("query",), ("rewrite",), ("plan",)]


@pytest.mark.slow
def test_the_clock_never_goes_back(cli: Cli) -> None:
    run_one(cli, "capture", "sums", 10)
    before = run_one(cli, "status", "sums", 10)
    for command, *flags in (("maintain", "--policy", "full"), *COMMANDS):
        ran = cli(command, "--query", "sums", "--now", instant(9), *flags)
        assert (ran.code, error_code(ran)) == (3, "clock_went_back"), command
    status = run_one(cli, "status", "sums", 9)
    assert "the current time went back" in status["stale_reason"]
    assert run_one(cli, "status", "sums", 10) == before
    assert run_one(cli, "capture", "sums", 9)["moments"] == {"now": instant(9)}
    assert result_rows(cli, "sums", 9) == expected_sums(cli, 9)


def error_of(ran: Ran) -> dict[str, Any]:
    """The error of the run, or of the first query that failed."""
    results = [result for result in ran.results if result.get("error")]
    failures = ran.document.get("failures") or []
    first = ran.document["error"] or results[0]["error"]
    return failures[0].get("error", first) if failures else first


def error_code(ran: Ran) -> str:
    return str(error_of(ran)["code"])


@pytest.mark.slow
def test_the_flag_wins_over_the_variable(cli: Cli, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("IMPCTL_NOW", instant(20))
    assert run_one(cli, "capture", "sums", 10)["moments"] == {"now": instant(10)}
    assert cli.one("maintain", "--query", "sums")["moments"] == {"now": instant(20)}
    assert cli("maintain", "--now", "noon").error["code"] == "now_syntax"


@pytest.mark.parametrize(
    ("column", "why"),
    [
        ("cost", "of type `bigint`"),
        ("local", "of type `timestamp_ntz`"),
        ("gone", "no such column"),
    ],
)
def test_unsuitable_expiry_columns(cli: Cli, column: str, why: str) -> None:
    cli.edit("seen_at, after: 1 hour", f"{column}, after: 1 hour")
    ran = cli("capture", "--query", "sums", "--now", instant(0))
    error = error_of(ran)
    assert (ran.code, error["code"]) == (2, "expiry_column")
    assert why in error["message"]
    assert error["location"]["line"] == 3
    assert "TIMESTAMP or DATE" in error["hint"]


@pytest.mark.slow
def test_reused_sketch_covers_live_rows_too(captured: Cli) -> None:
    text = "SELECT src, SUM(cost) AS s FROM links GROUP BY src HAVING SUM(cost) > 40"
    other = captured.one("query", "--sql", text, "--now", instant(10), "--by", "engine")
    assert other["reuse"]["query"] == "sums"
    assert sorted(other["rows"]) == [row for row in expected_sums(captured, 10) if row[1] > 40]


def test_unsupported_queries_of_expiring_tables_are_refused(cli: Cli) -> None:
    text = "SELECT src, cost FROM links TABLESAMPLE (50 PERCENT)"
    ran = cli("query", "--sql", text, "--now", instant(0))
    assert ran.code == 3
    assert "rows of table `links` expire" in error_of(ran)["hint"]


def test_rewrite_adds_the_expiry_condition(captured: Cli) -> None:
    # The sketch is from noon and nothing expired since; the text uses the instant of the run.
    ran = run_one(captured, "rewrite", "sums", 0.5)
    assert "`seen_at` > CAST('2026-03-01 11:00:30Z' AS TIMESTAMP) AND" in ran["sql"]
    assert "`src`" in ran["sql"]
    assert ran["moments"] == {"now": instant(0.5)}
    plain = run_one(captured, "rewrite", "sums", 0.5, "--sketch", "never")
    assert "WHERE `seen_at` > CAST('2026-03-01 11:00:30Z' AS TIMESTAMP)" in plain["sql"]
    # Days expire at midnight in New York, which is 5:00 UTC.
    run_one(captured, "capture", "daily", 0)
    daily = run_one(captured, "rewrite", "daily", 0)
    assert "`day` > CAST('2026-02-27' AS DATE)" in daily["sql"]
    assert run_one(captured, "status", "daily", 0)["next_expiry"] == "2026-03-03T05:00:00+00:00"


def test_predicate_for_file_readers_has_the_expiry(captured: Cli) -> None:
    with open_context(Settings(captured.workload, now=instant(0.5))) as ctx:
        result = files(ctx, QueryRequest("sums", sketch=SketchPolicy.ALWAYS))[0].tables["links"]
    assert result.predicate.startswith(
        "\"seen_at\" > CAST('2026-03-01 11:00:30+00:00' AS TIMESTAMPTZ)"
    )


def test_explain_has_it(cli: Cli) -> None:
    plan = run_one(cli, "explain", "sums", 0)["plan"]
    pushed = [text for line in plan for text in line["pushed"]]
    assert any("rows expire: at 2026-03-01T12:00:00+00:00" in text for text in pushed), pushed


@pytest.mark.slow
def test_join_trees_expire(cli: Cli) -> None:
    store = cli.path("another")
    run_one(cli, "capture", "beside", 0)
    for minutes in (10, 200):
        ran = cli.good("maintain", "--query", "beside", "--now", instant(minutes)).results
        assert {(result["action"], result["reason_code"]) for result in ran} == {
            ("exact", "expired")
        }
        maintained = run_one(cli, "status", "beside", minutes)["sketches"]
        captured = run_one(cli, "capture", "beside", minutes, "--store", store)["sketches"]
        assert all(sketch in captured for sketch in maintained)
        assert len(maintained) == len(captured) == 2


@pytest.mark.spark
def test_conservative_sketch_follows(cli: Cli) -> None:
    """Only Spark can capture this query with a window function."""
    run_one(cli, "capture", "numbered", 0)
    touched = run_one(cli, "maintain", "numbered", 10)
    assert (touched["action"], touched["reason_code"]) == ("touch", "expired")
    assert touched["changes"] == 2


def test_old_versions_are_read_at_their_instant(captured: Cli) -> None:
    expected = expected_sums(captured, 0)
    captured.append("links", numbered_rows(-5, 5))
    run_one(captured, "maintain", "sums", 10)
    assert result_rows(captured, "sums", 30, "--at", "links=5", "--by", "engine") == expected


def test_eager_steps_precede_expiry(cli: Cli) -> None:
    cli.edit("answer: true", "maintain: eager", 1)
    run_one(cli, "capture", "sums", 0)
    cli.append("links", numbered_rows(-59, -5, 5))
    results = cli.good("maintain", "--query", "sums", "--now", instant(10)).results
    steps = [(result["reason_code"], result["moments"]["now"]) for result in results]
    assert steps == [("incremental", instant(0)), ("expired", instant(10))]
    assert result_rows(cli, "sums", 10, "--by", "engine") == expected_sums(cli, 10)


@pytest.mark.slow
def test_trigger_counts_an_expiry_as_a_change(cli: Cli) -> None:
    cli.edit("answer: true", "trigger: {fresh_within: 5m}", 1)
    run_one(cli, "capture", "sums", 0)
    assert run_one(cli, "maintain", "sums", 0.9, "--due")["reason_code"] == "up_to_date"
    assert run_one(cli, "maintain", "sums", 2, "--due")["reason_code"] == "not_due"
    assert run_one(cli, "maintain", "sums", 6, "--due")["reason_code"] == "expired"


def test_follower_looks_when_a_row_expires(captured: Cli) -> None:
    watch = TableWatch()
    with open_context(Settings(captured.workload, now=instant(0))) as ctx:
        watch.pinned()
        ctx.tables.source("links")
        watch.saw(ctx)
        assert not watch.is_due(ctx)
    for minutes, is_due in ((0.9, False), (1, True)):
        with open_context(Settings(captured.workload, now=instant(minutes))) as later:
            assert watch.is_due(later) is is_due


def test_run_uses_an_instant_already_reached(cli: Cli, monkeypatch: MonkeyPatch) -> None:
    # As if a run read the clock, then waited for the lock while another one maintained.
    run_one(cli, "capture", "sums", 10)
    clocks = [Clock(NOON + timedelta(minutes=minute)) for minute in (9, 11)]
    monkeypatch.setattr(Context, "time", lambda _: clocks.pop(0) if clocks[1:] else clocks[0])
    ran = cli.one("maintain", "--query", "sums")
    assert (ran["reason_code"], ran["moments"]) == ("up_to_date", {"now": instant(10)})
    clocks[:] = [Clock(NOON + timedelta(minutes=9))]
    assert error_of(cli("maintain", "--query", "sums"))["code"] == "clock_went_back"


def test_changed_expiry_is_noticed(captured: Cli) -> None:
    captured.edit("after: 1 hour", "after: 2 hours")
    assert run_one(captured, "maintain", "sums", 0)["reason_code"] == "definition_changed"


@pytest.mark.spark
def test_spark_reads_only_live_rows(cli: Cli) -> None:
    for name in ("sums", "daily"):
        run_one(cli, "capture", name, 0)
        run_one(cli, "maintain", name, 10)
        by_spark = result_rows(cli, name, 10, "--by", "spark")
        assert by_spark == result_rows(cli, name, 10, "--by", "engine")
    assert result_rows(cli, "sums", 10, "--by", "spark") == expected_sums(cli, 10)
    assert len(result_rows(cli, "bare", 10, "--by", "spark")) == 12
    # At the instant of the sketches, not the current time.
    results = cli.good("verify", "--query", "sums", "--query", "daily").results
    assert [(entry["covers"], entry["slack"]) for entry in results] == [(True, 0)] * 2


@pytest.mark.spark
def test_distant_join_partners_are_live(cli: Cli) -> None:
    cli.good("capture", "--query", "far", "--now", instant(0))
    cli.append("links", numbered_rows(-70, -50, 5, None, 9))
    ran = cli.good("maintain", "--query", "far", "--now", instant(15)).results
    assert {result["action"] for result in ran} == {"exact"}
    for entry in cli.good("verify", "--query", "far").results:
        assert (entry["covers"], entry["slack"]) == (True, 0)
    assert any(cli.fragments("status", "--query", "far", "--now", instant(15)).values())
    ran = cli.good("maintain", "--query", "far", "--now", instant(36 * 60)).results
    assert {result["action"] for result in ran} == {"exact"}
    assert not any(cli.fragments("status", "--query", "far", "--now", instant(36 * 60)).values())


def test_rows_and_files_are_counted_once_in_a_self_join(cli: Cli) -> None:
    run_one(cli, "capture", "pairs", 0)
    ran = cli.good("maintain", "--query", "pairs", "--now", instant(58.5)).results[0]
    assert ran["reason"].endswith("6 rows expired; 1 of 6 files was read for them")


@pytest.mark.slow
def test_rows_read_by_base_and_step_of_a_recursion_count_once(cli: Cli) -> None:
    """Three rows expire; the base reads one of them, with source 0."""
    run_one(cli, "capture", "reach", 0)
    for ran in cli.good("maintain", "--query", "reach", "--now", instant(21)).results:
        assert ran["changes"] == 3
        assert ran["reason"].endswith("3 rows expired; 1 of 6 files was read for them")
    run = run_one(cli, "status", "reach", 21)["runs"][0]
    assert (run["changes"], run["reason"]) == (3, ran["reason"])
    ran = cli.good("maintain", "--query", "reach", "--now", instant(31)).results[0]
    assert ran["changes"] == 1
    assert ran["reason"].endswith("1 row expired; 1 of 6 files was read for them")


@pytest.mark.parametrize("query", ["pairs", "daily"])
def test_time_below_the_supported_range_is_an_error(cli: Cli, query: str) -> None:
    flags = ("--query", query, "--now", "0001-01-01")
    for command in ("check", "capture", "explain"):
        assert error_code(cli(command, *flags)) == "now_range"
    run_one(cli, "capture", query, 0)
    for command in ("query", "maintain"):
        assert error_code(cli(command, *flags)) in ("clock_went_back", "now_range")


@pytest.mark.slow
def test_expiry_beyond_the_last_time_is_never(cli: Cli) -> None:
    last = datetime(9999, 12, 31, 23, 30, tzinfo=UTC) - NOON
    rows = numbered_rows(last // timedelta(minutes=1))
    write_deltalake(cli.path("links"), rows, mode="overwrite")
    for query in ("pairs", "daily"):
        run_one(cli, "capture", query, 0)
        status = run_one(cli, "status", query, 0)
        assert (status["stale"], status["next_expiry"]) == (False, "never")


def test_check_accepts_now(cli: Cli) -> None:
    """The zone of the second value puts it below the supported range."""
    for invalid in ("noon", "0001-01-01T00:00:00+02:00"):
        assert error_code(cli("check", "--query", "today", "--now", invalid)) == "now_syntax"
    run_one(cli, "check", "today", 0)


def test_replay_warns_about_expiring_rows(cli: Cli) -> None:
    run_one(cli, "capture", "pairs", 0)
    warning = "the replay ignores rows that expire: figures cover commits only"
    assert warning in cli.warnings("simulate", "--query", "pairs")


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
"""Half an hour before Berlin skips the hour from two to three."""


def table_of(times: list[datetime | None]) -> pa.Table:
    return pa.table({"at": pa.array(times, pa.timestamp("us", tz="UTC")), "x": range(len(times))})


def micros(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


@pytest.mark.slow
@random_seeds(2, 5, 8)
def test_least_above_an_edge(tmp_path: Path, seed: int) -> None:
    random, path = Random(seed), str(tmp_path / "t")

    def with_statistics(columns: int) -> None:
        properties = {"delta.dataSkippingNumIndexedCols": str(columns)}
        DeltaTable(path).alter.set_table_properties(properties)

    all_times: list[datetime] = []
    for number in range(6):
        offsets = [random.randint(-5_000_000, 5_000_000) for _ in range(random.randint(1, 4))]
        times = [
            None if random.random() < 0.2 else NOW + timedelta(microseconds=offset)
            for offset in offsets
        ]
        if number == 0:
            create_table(path, table_of(times))
        else:
            # The second file has no statistics.
            with_statistics(0 if number == 1 else 32)
            write_deltalake(path, table_of(times), mode="append")
        all_times += [time for time in times if time is not None]
    snapshot = open_source("t", path).snapshot()
    for offset in (-6_000_000, -3_000_000, -1, 0, 1, 2_500_000, 6_000_000):
        edge = micros(NOW) + offset
        later = [micros(time) for time in all_times if micros(time) > edge]
        result = least_above(snapshot, "at", edge)
        if later:
            # Statistics are truncated to milliseconds, so maxima count as one more.
            assert edge < result <= min(later) < result + 2_000
        else:
            assert result is None


def test_files_with_only_live_rows_are_skipped(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    path = str(tmp_path / "t")
    create_table(path, table_of([NOW, NOW + timedelta(seconds=9)]))
    for seconds in (20, 30, 40):
        more = [NOW + timedelta(seconds=seconds), NOW + timedelta(seconds=seconds + 9)]
        write_deltalake(path, table_of(more), mode="append")
    read = spied(monkeypatch, prepare, "read_batches")
    snapshot = open_source("t", path).snapshot()
    result = least_above(snapshot, "at", micros(NOW) - 5_000_000)
    assert micros(NOW) - 2_000 < result <= micros(NOW)
    assert read == []
    assert least_above(snapshot, "at", micros(NOW) + 5_000_000) == micros(NOW) + 9_000_000
    assert [len(files) for _, _, files in read] == [1]
    # If all rows of a file expired, the next file counts.
    result = least_above(snapshot, "at", micros(NOW) + 9_500_000)
    assert micros(NOW) + 20_000_000 - 2_000 < result <= micros(NOW) + 20_000_000
    assert [len(files) for _, _, files in read] == [1]


def live_edge(ctx: Context, now: datetime, zone: str) -> Literal:
    """The constant that live rows are later than."""
    return live_rows(
        ctx.workload.tables["t"].expiry, ctx.tables.snapshot("t"), now, zone
    ).later_than


def expiring(column: str, after: str, zone: str = "UTC") -> dict[str, Any]:
    return {
        "tables": {"t": {"path": "t", "expiry": {"column": column, "after": after}}},
        "queries": {"q": f"SELECT {column} FROM t"},
        "spark": {"conf": {"spark.sql.session.timeZone": zone}},
    }


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "+05:30"])
def test_days_expire_at_their_midnight(tmp_path: Path, zone: str) -> None:
    days = [date(2026, 3, 25) + timedelta(days=number) for number in range(6)]
    midnights = [
        datetime(day.year, day.month, day.day, tzinfo=zone_of(zone)).astimezone(UTC) for day in days
    ]
    rows = pa.table({"day": pa.array([None, *days], pa.date32())})
    with open_context(Settings(write_files(tmp_path, expiring("day", "36h", zone), t=rows))) as ctx:
        for hours in range(-10, 60):
            now = NOW + timedelta(hours=hours)
            edge = live_edge(ctx, now, zone)
            assert edge.type == DATE
            live_days = [day for day in days if day > EPOCH.date() + timedelta(days=edge.value)]
            live_midnights = [
                midnight for midnight in midnights if midnight > now - timedelta(hours=36)
            ]
            assert len(live_days) == len(live_midnights), (now, zone)
            expected = (
                (min(live_midnights) + timedelta(hours=36)).isoformat() if live_midnights else NEVER
            )
            assert next_expiry(ctx, {"t": 0}, now.isoformat()) == expected


def test_edge_is_exact_to_the_microsecond(tmp_path: Path) -> None:
    file = write_files(tmp_path, expiring("at", "1 hour"), t=table_of([NOW]))
    with open_context(Settings(file)) as ctx:
        edge = live_edge(ctx, NOW, "Europe/Berlin")
    assert (edge.type, edge.value) == (TIMESTAMP, micros(NOW) - 3_600_000_000)


def test_unreadable_file_has_unknown_expiry(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    rows_of_t = table_of([NOW, NOW - timedelta(hours=2)])
    file = write_files(tmp_path, expiring("at", "1 hour"), t=rows_of_t)
    with open_context(Settings(file)) as ctx:
        assert next_expiry(ctx, {"t": 0}, NOW.isoformat()) == "2026-03-29T01:30:00+00:00"
    unreadable = Mock(side_effect=TableError("only Spark reads this"))
    monkeypatch.setattr(prepare, "read_batches", unreadable)
    with open_context(Settings(file)) as ctx:
        assert next_expiry(ctx, {"t": 0}, NOW.isoformat()) == ""
