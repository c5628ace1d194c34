"""Expiry: instants at the ends of time, files told once, and what knows nothing of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.tables.write.create import create_table
from tests.support.run_cli import Cli, Ran

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
WORKLOAD = """\
version: 1
tables:
  links: {path: links, expiry: {column: seen_at, after: 1 hour}}
  days: {path: links, expiry: {column: day, after: 2d}}
partitions: {links: {src: {boundaries: [1, 2]}}, days: {src: {boundaries: [1, 2]}}}
queries:
  pairs:
    sql: >-
      SELECT a.src, COUNT(*) AS n FROM links a JOIN links b ON a.src = b.src
      JOIN links c ON c.src = b.src GROUP BY a.src HAVING COUNT(*) > 0
    join: index
  reach:
    sql: >-
      WITH RECURSIVE r(n) AS (SELECT src FROM links WHERE src = 0 UNION
      SELECT l.src FROM r JOIN links l ON r.n + 1 = l.src) SELECT n FROM r
  daily: {sql: "SELECT src, COUNT(*) AS n FROM days GROUP BY src HAVING COUNT(*) > 0"}
  today: {sql: "SELECT src, COUNT(*) AS n FROM links WHERE day = current_date() GROUP BY src"}
store: st
"""


def _rows(*times: datetime) -> pa.Table:
    return pa.table(
        {
            "src": pa.array([at % 3 for at in range(len(times))], pa.int64()),
            "seen_at": pa.array(times, pa.timestamp("us", tz="UTC")),
            "day": pa.array([time.date() for time in times], pa.date32()),
        }
    )


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    create_table(str(tmp_path / "links"), _rows(*(NOON - timedelta(minutes=m) for m in range(9))))
    write_deltalake(str(tmp_path / "links"), _rows(*[NOON + timedelta(hours=9)] * 3), mode="append")
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    return Cli(capsys, tmp_path / "w.yaml")


def _failed(ran: Ran) -> str:
    found = ran.document["error"]
    code = found["code"] if found else ran.results[0]["error"]["code"]
    assert isinstance(code, str)
    return code


def test_rows_and_files_are_told_once_however_often_their_table_is_read(cli: Cli) -> None:
    cli.good("capture", "--query", "pairs", "--now", NOON.isoformat())
    ran = cli.good("maintain", "--query", "pairs", "--now", "2026-03-01T12:58:30Z").results[0]
    assert ran["reason"].endswith("7 rows expired, for which 1 of 2 files was read")


@pytest.mark.slow
def test_of_a_recursion_a_row_counts_once_where_base_and_step_read_it(cli: Cli) -> None:
    """Of the three that expire one alone is seen by the base, which asks for source 0."""
    cli.good("capture", "--query", "reach", "--now", NOON.isoformat())
    until = ("--query", "reach", "--now", "2026-03-01T12:54:00Z")
    for ran in cli.good("maintain", *until).results:
        assert ran["changes"] == 3
        assert ran["reason"].endswith("3 rows expired, for which 1 of 2 files was read")
    run = cli.good("status", *until).results[0]["runs"][0]
    assert (run["changes"], run["reason"]) == (3, ran["reason"])
    ran = cli.good("maintain", "--query", "reach", "--now", "2026-03-01T12:55:00Z").results[0]
    assert ran["changes"] == 1
    assert ran["reason"].endswith("1 row expired, for which 1 of 2 files was read")


@pytest.mark.parametrize("query", ["pairs", "daily"])
def test_a_time_before_all_times_is_an_error_of_whoever_gives_it(cli: Cli, query: str) -> None:
    first = ("--query", query, "--now", "0001-01-01")
    for command in ("check", "capture", "explain"):
        assert _failed(cli(command, *first)) == "now_range"
    cli.good("capture", "--query", query, "--now", NOON.isoformat())
    for command in ("query", "maintain"):
        assert _failed(cli(command, *first)) in ("clock_went_back", "now_range")


def test_a_time_that_its_zone_puts_before_all_times_is_none(cli: Cli) -> None:
    assert _failed(cli("check", "--now", "0001-01-01T00:00:00+02:00")) == "now_syntax"


@pytest.mark.slow
def test_what_would_expire_after_all_times_never_does(cli: Cli, tmp_path: Path) -> None:
    last = datetime(9999, 12, 31, 23, 30, tzinfo=UTC)
    write_deltalake(str(tmp_path / "links"), _rows(last), mode="overwrite")
    for query in ("pairs", "daily"):
        cli.good("capture", "--query", query, "--now", NOON.isoformat())
        (kept,) = cli.good("status", "--query", query, "--now", NOON.isoformat()).results
        assert (kept["stale"], kept["next_expiry"]) == (False, "never")


def test_check_takes_the_instant(cli: Cli) -> None:
    assert _failed(cli("check", "--query", "today", "--now", "noon")) == "now_syntax"
    cli.good("check", "--query", "today", "--now", NOON.isoformat())


def test_a_replay_says_that_it_knows_no_expiries(cli: Cli) -> None:
    cli.good("capture", "--query", "pairs", "--now", NOON.isoformat())
    told = "rows that expire are not replayed: figures are those of the commits alone"
    assert told in cli.good("simulate", "--query", "pairs").document["warnings"]
