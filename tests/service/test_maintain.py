"""Several queries share one commit; a failing query stops no other; `apply`."""

from __future__ import annotations

import errno
import math
import os
import signal
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.compile.session import MaintainedQuery
from impctl.service import verify as verify_module
from impctl.service.capture import capture
from impctl.service.context import Context, open_context
from impctl.service.maintain import maintain
from impctl.service.prepare import SketchedQuery
from impctl.service.results import MaintainResult, Outcome
from impctl.service.settings import Settings
from impctl.service.state_cache import StateCache
from impctl.service.step import Maintainer
from impctl.store.disk import RealDisk
from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table
from tests.crash.processes import VERSIONS, WANTED, rows, versions, write_batches
from tests.support.kept_workload import stored
from tests.support.run_cli import (
    ROWS,
    Capsys,
    Cli,
    CliOf,
    CliOnce,
    MonkeyPatch,
    Ran,
    interruptible,
    spied,
    write_files,
)

FILE = """
version: 1
tables: {t: {path: t}}
partitions: {t: {g: {boundaries: [2, 4, 6]}}}
queries:
  many: {sql: "SELECT g, COUNT(*) n FROM t GROUP BY g HAVING COUNT(*) > 2", sketch: {t: g}}
  sums:
    sql: "SELECT g, SUM(10 / x) s FROM t GROUP BY g HAVING SUM(10 / x) > 20"
    sketch: {t: g}
    policy: incremental
  each:
    sql: "SELECT g, SUM(x) s FROM t GROUP BY g HAVING SUM(x) > 20"
    sketch: {t: g}
    maintain: eager
store: .impctl
"""


def rows_of_groups(x: int, *groups: int) -> pa.Table:
    return pa.table({"g": pa.array(groups, pa.int64()), "x": pa.array([x] * len(groups))})


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    file = write_files(tmp_path, FILE, t=rows_of_groups(10, 0, 0, 0, 3, 3, 5))
    with open_context(Settings(workload=file)) as ctx:
        assert not capture(ctx, None).failures
    return file


def append(workload: Path, x: int, *groups: int) -> None:
    write_deltalake(str(workload.parent / "t"), rows_of_groups(x, *groups), mode="append")


def maintained(workload: Path, cache: StateCache | None = None, *failed: str) -> Outcome:
    """The outcome of a run in which exactly these queries fail."""
    with open_context(Settings(workload=workload)) as ctx:
        outcome = maintain(ctx, None, 1, cache)
    assert tuple(failure.query for failure in outcome.failures) == failed
    return outcome


def stored_versions(workload: Path) -> list[int]:
    return [stored(workload.parent, query).versions["t"] for query in ("many", "sums", "each")]


@pytest.fixture
def commits(monkeypatch: MonkeyPatch) -> list[bool]:
    """A True per synced commit. With `[False]` in it, all commits are refused.

    Slow commits are not reported: on a busy disk, the report would be another commit.
    """
    synced: list[bool] = []
    real = RealDisk.commit

    def commit(self: RealDisk, connection: sqlite3.Connection) -> None:
        if synced == [False]:
            raise OSError(errno.EIO, "no")
        is_synced = connection.execute("PRAGMA synchronous").fetchone() == (2,)
        synced.extend([True] if is_synced else [])
        real(self, connection)

    monkeypatch.setattr("impctl.store.store._WORTH_TELLING_MS", math.inf)
    monkeypatch.setattr(RealDisk, "commit", commit)
    return synced


@pytest.mark.slow
def test_all_queries_share_one_commit(workload: Path, commits: list[bool]) -> None:
    append(workload, 10, 5)
    append(workload, 10, 3)
    outcome = maintained(workload)
    assert commits == [True]
    assert stored_versions(workload) == [2, 2, 2]
    results = [r for r in outcome.results if isinstance(r, MaintainResult)]
    assert [len(r.steps) for r in results] == [0, 0, 2]


@pytest.mark.slow
def test_failing_query_does_not_stop_others(workload: Path) -> None:
    append(workload, 0, 5)
    maintained(workload, None, "sums")
    assert stored_versions(workload) == [1, 0, 1]


def test_failed_commit_stores_and_reports_nothing(workload: Path, commits: list[bool]) -> None:
    cache = StateCache()
    append(workload, 10, 5)
    commits.append(False)
    assert maintained(workload, cache, "many", "sums", "each").results == ()
    commits.clear()
    assert stored_versions(workload) == [0, 0, 0]
    maintained(workload, cache)
    assert stored_versions(workload) == [1, 1, 1]


@pytest.mark.slow
def test_cached_state_is_not_read_again(workload: Path, monkeypatch: MonkeyPatch) -> None:
    cache = StateCache()
    append(workload, 10, 5)
    maintained(workload, cache)
    loads = spied(monkeypatch, Store, "load_runs")
    append(workload, 10, 5)
    maintained(workload, cache)
    assert loads == []
    assert stored_versions(workload) == [2, 2, 2]
    # Another process maintained the queries: the cached state is stale.
    append(workload, 10, 5)
    maintained(workload)
    loads.clear()
    append(workload, 10, 5)
    maintained(workload, cache)
    assert sorted(query for _, query, *_ in loads) == ["each", "many", "sums"]


def test_cache_keeps_the_latest_states_that_fit(workload: Path, monkeypatch: MonkeyPatch) -> None:
    append(workload, 10, 5)
    unlimited = StateCache()
    maintained(workload, unlimited)
    # State sizes grow with the tables, so use a constant size.
    monkeypatch.setattr(MaintainedQuery, "state_bytes", lambda self: 10)
    for limit, cached in ((30, ["many", "sums", "each"]), (29, ["sums", "each"]), (9, [])):
        cache = StateCache(limit)
        append(workload, 10, 5)
        maintained(workload, cache)
        assert list(cache._states) == cached
    assert all(state.bytes > 0 for state in unlimited._states.values())


WORKLOAD = """\
version: 1
tables: {t: {path: t}}
partitions: {t: {g: {boundaries: [2]}}}
queries:
  safe: {sql: "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 5"}
  refused: {sql: "SELECT x, COUNT(*) AS n FROM t GROUP BY x ORDER BY n LIMIT 1"}
"""


@pytest.fixture
def cli(cli_once: CliOnce) -> Cli:
    def captured(cli: Cli) -> None:
        assert cli("capture").refusal == (3, "sketch_unsafe")

    rows = pa.table({"g": [1, 2, 3], "x": [10, -20, 30]})
    return cli_once("one is refused", partial(write_files, workload=WORKLOAD, t=rows), captured)


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--due",), ("--query", "refused")])
def test_without_a_safe_sketch_only_strict_runs_fail(cli: Cli, options: tuple[str, ...]) -> None:
    assert cli.by_query("maintain", *options)["refused"]["reason_code"] == "sketch_unsafe"
    assert "refused: without a sketch, " in cli.text("maintain", *options)
    assert cli("maintain", "--strict", *options).refusal == (3, "sketch_unsafe")


TWO_TABLES = """
version: 1
tables: {t: {path: t}, u: {path: u}}
partitions: {t: {g: {boundaries: [2, 4, 6]}}, u: {g: {boundaries: [2, 4, 6]}}}
queries:
  divides: {sql: "SELECT g, SUM(10 div x) s FROM t GROUP BY g HAVING SUM(10 div x) > 1"}
  corrupt: {sql: "SELECT g, COUNT(*) n FROM t GROUP BY g HAVING COUNT(*) > 1"}
  gone: {sql: "SELECT g, COUNT(*) n FROM u GROUP BY g HAVING COUNT(*) > 1"}
  good: {sql: "SELECT g, SUM(x) s FROM t GROUP BY g HAVING SUM(x) > 1"}
store: .impctl
"""
FAILED = {"divides", "corrupt", "gone"}


@pytest.fixture
def many(tmp_path: Path, table: str, capsys: Capsys) -> Cli:
    create_table(str(tmp_path / "u"), ROWS)
    file = tmp_path / "many.yaml"
    file.write_text(TWO_TABLES)
    return Cli(capsys, file)


def corrupt_state(root: Path, query: str) -> None:
    with closing(sqlite3.connect(root / "catalog.sqlite")) as catalog, catalog:
        sql = "UPDATE run SET checksum = checksum + 1 WHERE query_id = (SELECT id FROM query WHERE"
        assert catalog.execute(f"{sql} name = ?)", (query,)).rowcount > 0


@pytest.fixture
def damaged(many: Cli, table: str, tmp_path: Path) -> Cli:
    """Captured. Then one query divides by zero, one has corrupt state, one lacks a file."""
    many.good("capture")
    corrupt_state(tmp_path / ".impctl", "corrupt")
    write_deltalake(table, pa.table({"g": [0], "x": [0], "note": ["z"]}), mode="append")
    before = set(many.table("u").file_uris())
    many.append("u", ROWS)
    (added,) = set(many.table("u").file_uris()) - before
    Path(added.removeprefix("file://")).unlink()
    return many


def failures(ran: Ran) -> dict[str, str]:
    return {f["query"]: f["code"] for f in ran.error.get("failures", [ran.error])}


def actions(ran: Ran) -> list[tuple[str, str]]:
    return [(result["query"], result["action"]) for result in ran.results]


@pytest.mark.slow
def test_capture_continues_after_failures(many: Cli) -> None:
    text = TWO_TABLES.replace("u: {path: u}", "u: {path: nowhere}")
    many.workload.write_text(text.replace("div x) s FROM t GROUP", "div y) s FROM t GROUP"))
    for _ in range(2):
        ran = many("capture")
        assert ran.code == 3
        assert failures(ran) == {"divides": "column_unknown", "gone": "table_missing"}
        assert [r["query"] for r in ran.results] == ["corrupt", "good"]
    many.workload.write_text(TWO_TABLES)
    assert many("plan", "--detailed-exitcode").code == 2
    many.good("capture", "--query", "divides", "--query", "gone")
    assert many("plan", "--detailed-exitcode").code == 0


@pytest.mark.slow
def test_maintain_continues_after_failures(damaged: Cli, capsys: Capsys) -> None:
    ran = damaged("maintain", "--policy", "incremental")
    assert failures(ran).keys() == FAILED
    assert (ran.code, actions(ran)) == (3, [("good", "exact")])
    # Repeat: what is done stays done, and the failures are the same.
    again = damaged("maintain", "--policy", "incremental")
    assert failures(again) == failures(ran)
    assert actions(again) == [("good", "none")]
    assert run(build_app(), ["maintain", str(damaged.workload), "--policy", "incremental"]) == 3
    head, _, names = capsys.readouterr().err.splitlines()[-1].partition(": ")
    assert head == "3 of 4 queries failed"
    assert set(names.split(", ")) == {f"`{name}`" for name in FAILED}
    # A division by zero is only found by computing.
    planned = damaged("plan", "--policy", "incremental")
    assert failures(planned).keys() == {"corrupt", "gone"}
    assert (planned.code, actions(planned)) == (7, [("divides", "exact"), ("good", "none")])
    # Corrupt state is recaptured if the policy allows it.
    repaired = damaged.one("maintain", "--query", "corrupt")
    assert (repaired["action"], repaired["reason_code"]) == ("recapture", "catalog_corrupt")
    assert damaged.one("maintain", "--query", "corrupt")["action"] == "none"
    # Once the tables are repaired, the same command brings everything up to date.
    damaged.table("t").delete("x = 0")
    damaged.table("u").restore(0)
    damaged.good("capture", "--query", "divides", "--query", "gone")
    damaged.good("maintain")
    assert damaged("plan", "--detailed-exitcode").code == 0


@pytest.mark.slow
def test_unexpected_error_affects_one_query(many: Cli, monkeypatch: MonkeyPatch) -> None:
    many.captured().append("t", ROWS)
    step = Maintainer.step

    def fails(self: Maintainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.stored.query == "corrupt":
            raise KeyError("a bug")
        return step(self, *args, **kwargs)

    monkeypatch.setattr(Maintainer, "step", fails)
    ran = many("maintain")
    assert (ran.code, ran.error["code"], ran.error["query"]) == (1, "unexpected", "corrupt")
    assert "KeyError" in ran.error["message"]
    assert dict(actions(ran)) == {"divides": "exact", "gone": "none", "good": "exact"}
    monkeypatch.setattr(Maintainer, "step", step)
    again = actions(many.good("maintain"))
    assert [query for query, action in again if action == "exact"] == ["corrupt"]


def test_verify_continues_after_a_failure(many: Cli, monkeypatch: MonkeyPatch) -> None:
    """Spark is faked: a recapture gives the stored ranges, except for one query."""
    folder = many.captured().folder

    def needed(ctx: Context, query: SketchedQuery, *_: Any) -> Any:
        name = query.prepared.spec.name
        if name == "corrupt":
            raise RuntimeError("Spark stumbled")
        return {s.access: s.ranges for s in stored(folder, name).sketches}

    monkeypatch.setattr(Context, "spark", lambda _: None)
    monkeypatch.setattr(verify_module, "needed", needed)
    ran = many("verify")
    assert (ran.code, ran.error["query"]) == (1, "corrupt")
    covers = {r["query"]: r["covers"] for r in ran.results}
    assert covers == {"divides": True, "gone": True, "good": True}


NAMES = ["first", "file", "grow", "twice", "gone", "same"]


@pytest.fixture
def batches(tmp_path: Path, capsys: Capsys) -> Cli:
    return Cli(capsys, write_batches(tmp_path))


def all_rows(batches: Cli) -> dict[str, list[tuple[int, int]]]:
    return {name: rows(batches.folder / name) for name in WANTED}


def applied(ran: Ran) -> list[tuple[str, int]]:
    return [(result["name"], result["version"]) for result in ran.results]


@pytest.mark.slow
def test_repeated_apply_reports_the_versions(batches: Cli) -> None:
    done = batches.good("apply", "--all")
    assert [r["already_applied"] for r in done.results] == [False] * 6
    dry_run, again = batches.good("apply", "--all", "--dry-run"), batches.good("apply", "--all")
    assert dry_run.results == again.results
    assert applied(again) == applied(done)
    assert all(r["already_applied"] and not r["inserted"] + r["updated"] for r in again.results)
    assert all_rows(batches) == WANTED
    repeated = batches.one("apply", "same", "--again")
    assert (repeated["version"], repeated["inserted"]) == (5, 2)


@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize(("number", "name"), [(signal.SIGTERM, "--all"), (signal.SIGINT, "first")])
def test_interrupt_reports_applied_batches(
    batches: Cli, monkeypatch: MonkeyPatch, number: signal.Signals, name: str
) -> None:
    def interrupted_write(*args: Any, **options: Any) -> None:
        os.kill(os.getpid(), number)
        write_deltalake(*args, **options)

    with monkeypatch.context() as patch, interruptible():
        patch.setattr("impctl.tables.write.apply.write_deltalake", interrupted_write)
        interrupted = batches("apply", name)
    assert interrupted.refusal == (130, "interrupted")
    assert applied(interrupted) == [("first", 1)]
    assert "`first` (version 1 of `t`)" in interrupted.error["message"]
    assert "it skips batches that are already applied" in interrupted.error["hint"]
    assert versions(batches.folder) == {"t": 1, "u": 0}
    rest = batches.good("apply", "--all").results
    assert [r["name"] for r in rest if not r["already_applied"]] == NAMES[1:]
    assert (all_rows(batches), versions(batches.folder)) == (WANTED, VERSIONS)


def test_error_reports_applied_batches(batches: Cli, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(DeltaTable, "merge", Mock(side_effect=ZeroDivisionError))
    ran = batches("apply", "--all")
    assert (ran.code, ran.error["code"], ran.error["query"]) == (1, "unexpected", "grow")
    assert applied(ran) == [("first", 1), ("file", 1)]


MOVE = """\
version: 1
tables: {t: {path: t}}
queries: {q: {sql: SELECT id FROM t}}
updates:
  - name: move
    update:
      table: t
      set: {id: id + 1, town: New York}
"""


def test_error_in_a_value_has_its_location(cli_of: CliOf) -> None:
    error = cli_of(MOVE, t=pa.table({"id": [1], "town": ["Rome"]}))("apply", "move").error
    location = (error["location"]["line"], error["location"]["column"])
    assert (error["code"], error["query"], location) == ("column_unknown", "move", (8, 31))
    assert "`set` of `t.town`" in error["message"]
    assert "\"'New York'\"" in error["hint"]
