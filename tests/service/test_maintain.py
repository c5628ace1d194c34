"""Steps of several queries are one commit; a query that fails stops no other; `apply`."""

from __future__ import annotations

import errno
import math
import os
import signal
import sqlite3
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
from impctl.service.kept_states import StateCache
from impctl.service.maintain import maintain
from impctl.service.results import MaintainResult, Outcome
from impctl.service.settings import Settings
from impctl.store.disk import RealDisk
from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table
from tests.crash.processes import VERSIONS, WANTED, rows, versions, write_batches
from tests.support.kept_workload import stored
from tests.support.run_cli import ROWS, Cli, CliOf, interruptible

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
    create_table(str(tmp_path / "t"), rows_of_groups(10, 0, 0, 0, 3, 3, 5))
    file = tmp_path / "w.yaml"
    file.write_text(FILE)
    with open_context(Settings(workload=file)) as ctx:
        assert not capture(ctx, None).failures
    return file


def append(workload: Path, x: int, *groups: int) -> None:
    write_deltalake(str(workload.parent / "t"), rows_of_groups(x, *groups), mode="append")


def maintained(workload: Path, kept: StateCache | None = None) -> Outcome:
    with open_context(Settings(workload=workload)) as ctx:
        return maintain(ctx, None, 1, kept)


def stored_versions(workload: Path) -> list[int]:
    with Store.open(workload.parent / ".impctl") as store:
        result = [store.load(query) for query in ("many", "sums", "each")]
        return [stored.versions["t"] for stored in result if stored is not None]


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A True per commit that waits for the disk; with `[False]` in it all are refused.

    That one took long is not told, which on a busy disk would be another.
    """
    seen: list[bool] = []
    real = RealDisk.commit

    def commit(self: RealDisk, connection: sqlite3.Connection) -> None:
        if seen == [False]:
            raise OSError(errno.EIO, "no")
        is_synced = connection.execute("PRAGMA synchronous").fetchone() == (2,)
        seen.extend([True] if is_synced else [])
        real(self, connection)

    monkeypatch.setattr("impctl.service.capture._WORTH_TELLING_MS", math.inf)
    monkeypatch.setattr(RealDisk, "commit", commit)
    return seen


@pytest.mark.slow
def test_all_queries_are_one_commit(workload: Path, commits: list[bool]) -> None:
    append(workload, 10, 5)
    append(workload, 10, 3)
    outcome = maintained(workload)
    assert not outcome.failures
    assert commits == [True]
    assert stored_versions(workload) == [2, 2, 2]
    results = [r for r in outcome.results if isinstance(r, MaintainResult)]
    assert [len(r.steps) for r in results] == [0, 0, 2]


@pytest.mark.slow
def test_a_query_that_fails_is_alone(workload: Path) -> None:
    append(workload, 0, 5)
    outcome = maintained(workload)
    assert [failure.query for failure in outcome.failures] == ["sums"]
    assert stored_versions(workload) == [1, 0, 1]


def test_where_the_commit_fails_nothing_is_told_and_nothing_kept(
    workload: Path, commits: list[bool]
) -> None:
    kept = StateCache()
    append(workload, 10, 5)
    commits.append(False)
    outcome = maintained(workload, kept)
    assert outcome.results == ()
    assert [failure.query for failure in outcome.failures] == ["many", "sums", "each"]
    commits.clear()
    assert stored_versions(workload) == [0, 0, 0]
    outcome = maintained(workload, kept)
    assert not outcome.failures
    assert stored_versions(workload) == [1, 1, 1]


@pytest.mark.slow
def test_state_that_was_kept_is_not_read_again(
    workload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = StateCache()
    append(workload, 10, 5)
    assert not maintained(workload, kept).failures
    read: list[str] = []
    real = Store.load_runs

    def load_runs(self: Store, query: str, beginning: str = "") -> object:
        read.append(query)
        return real(self, query, beginning)

    monkeypatch.setattr(Store, "load_runs", load_runs)
    append(workload, 10, 5)
    assert not maintained(workload, kept).failures
    assert read == []
    assert stored_versions(workload) == [2, 2, 2]
    # What another process did in between is no state of ours.
    append(workload, 10, 5)
    assert not maintained(workload).failures
    read.clear()
    append(workload, 10, 5)
    assert not maintained(workload, kept).failures
    assert sorted(read) == ["each", "many", "sums"]


def test_of_states_kept_the_latest_ones_that_fit_stay(
    workload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(workload, 10, 5)
    whole = StateCache()
    assert not maintained(workload, whole).failures
    # Sizes of states grow with the tables, so they are taken as equally large.
    monkeypatch.setattr(MaintainedQuery, "state_bytes", lambda self: 10)
    for limit, left in ((30, ["many", "sums", "each"]), (29, ["sums", "each"]), (9, [])):
        kept = StateCache(limit)
        append(workload, 10, 5)
        assert not maintained(workload, kept).failures
        assert list(kept._kept) == left
    assert all(held.bytes > 0 for held in whole._kept.values())


WORKLOAD = """\
version: 1
tables: {t: {path: t}}
partitions: {t: {g: {boundaries: [2]}}}
queries:
  safe: {sql: "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 5"}
  refused: {sql: "SELECT x, COUNT(*) AS n FROM t GROUP BY x ORDER BY n LIMIT 1"}
"""


@pytest.fixture
def cli(tmp_path: Path, cli_of: CliOf) -> Cli:
    create_table(str(tmp_path / "t"), pa.table({"g": [1, 2, 3], "x": [10, -20, 30]}))
    cli = cli_of(WORKLOAD)
    assert cli("capture").refusal == (3, "sketch_unsafe")
    return cli


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--due",), ("--query", "refused")])
def test_a_query_that_can_have_no_sketch_fails_only_strict_runs(
    cli: Cli, options: tuple[str, ...]
) -> None:
    told = {result["query"]: result for result in cli.good("maintain", *options).results}
    assert told["refused"]["reason_code"] == "sketch_unsafe"
    assert "refused: without a sketch, " in cli.text("maintain", *options)
    assert cli("maintain", "--strict", *options).refusal == (3, "sketch_unsafe")


def test_a_query_that_was_not_captured_fails_any_run(cli: Cli) -> None:
    cli.edit("refused:", "fresh: {sql: SELECT g FROM t WHERE g > 1}\n  refused:")
    assert cli("maintain").refusal == (7, "not_captured")


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
def many(tmp_path: Path, table: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    create_table(str(tmp_path / "u"), ROWS)
    file = tmp_path / "many.yaml"
    file.write_text(TWO_TABLES)
    return Cli(capsys, file)


def spoil_state(root: Path, query: str) -> None:
    """Alter the query's state where it is stored."""
    with Store.open(root) as store:
        assert store.run_refs(query)
    connection = sqlite3.connect(root / "catalog.sqlite")
    changed = connection.execute(
        "UPDATE run SET checksum = checksum + 1 WHERE query_id ="
        " (SELECT id FROM query WHERE name = ?)",
        (query,),
    ).rowcount
    connection.commit()
    connection.close()
    assert changed > 0


@pytest.fixture
def spoiled(many: Cli, table: str, tmp_path: Path) -> Cli:
    """Captured; then one query divides by zero, one has a corrupt state, one no history."""
    many.good("capture")
    spoil_state(tmp_path / ".impctl", "corrupt")
    write_deltalake(table, pa.table({"g": [0], "x": [0], "note": ["z"]}), mode="append")
    other = str(tmp_path / "u")
    held = set(DeltaTable(other).file_uris())
    write_deltalake(other, ROWS, mode="append")
    (added,) = set(DeltaTable(other).file_uris()) - held
    Path(added.removeprefix("file://")).unlink()
    return many


def failures(document: dict[str, Any]) -> dict[str, str]:
    error = document["error"]
    return {f["query"]: f["code"] for f in error.get("failures", [error])}


@pytest.mark.slow
def test_capture_goes_on(many: Cli) -> None:
    text = TWO_TABLES.replace("u: {path: u}", "u: {path: nowhere}")
    many.workload.write_text(text.replace("div x) s FROM t GROUP", "div y) s FROM t GROUP"))
    for _ in range(2):
        ran = many("capture")
        assert ran.code == 3
        assert failures(ran.document) == {"divides": "column_unknown", "gone": "table_missing"}
        assert [r["query"] for r in ran.results] == ["corrupt", "good"]
    many.workload.write_text(TWO_TABLES)
    assert many("plan", "--detailed-exitcode").code == 2
    many.good("capture", "--query", "divides", "--query", "gone")
    assert many("plan", "--detailed-exitcode").code == 0


@pytest.mark.slow
def test_maintain_goes_on_and_converges(
    spoiled: Cli, table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = spoiled("maintain", "--policy", "incremental")
    assert failures(ran.document).keys() == FAILED
    assert ran.code == 3
    assert [(r["query"], r["action"]) for r in ran.results] == [("good", "exact")]
    # The same again: what is done stays done, what failed fails alike.
    again = spoiled("maintain", "--policy", "incremental")
    assert failures(again.document) == failures(ran.document)
    assert [(r["query"], r["action"]) for r in again.results] == [("good", "none")]
    assert run(build_app(), ["maintain", str(spoiled.workload), "--policy", "incremental"]) == 3
    lines = capsys.readouterr().err.splitlines()
    head, _, names = lines[-1].partition(": ")
    assert head == "3 of 4 queries failed"
    assert set(names.split(", ")) == {f"`{name}`" for name in FAILED}
    # Mended from outside, the same command brings everything up to date.
    DeltaTable(table).delete("x = 0")
    DeltaTable(str(tmp_path / "u")).restore(0)
    spoiled.good("capture", "--query", "divides", "--query", "gone", "--query", "corrupt")
    spoiled.good("maintain")
    assert spoiled("plan", "--detailed-exitcode").code == 0


@pytest.mark.slow
def test_auto_recaptures_a_corrupt_state(spoiled: Cli) -> None:
    result = spoiled.one("maintain", "--query", "corrupt")
    assert (result["action"], result["reason_code"]) == ("recapture", "catalog_corrupt")
    assert spoiled.one("maintain", "--query", "corrupt")["action"] == "none"


@pytest.mark.slow
def test_plan_goes_on(spoiled: Cli) -> None:
    ran = spoiled("plan", "--policy", "incremental")
    assert failures(ran.document).keys() == {"corrupt", "gone"}
    assert ran.code == 7
    # What a query divides by is only found out by computing.
    assert [(r["query"], r["action"]) for r in ran.results] == [
        ("divides", "exact"),
        ("good", "exact"),
    ]


@pytest.mark.slow
def test_an_unexpected_error_is_one_querys_own(
    many: Cli, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from impctl.service.step import Maintainer

    many.good("capture")
    write_deltalake(table, ROWS, mode="append")
    step = Maintainer.step

    def stumbles(self: Maintainer, *args: Any, **kwargs: Any) -> Any:
        if self.taken.stored.query == "corrupt":
            raise KeyError("a bug")
        return step(self, *args, **kwargs)

    monkeypatch.setattr(Maintainer, "step", stumbles)
    ran = many("maintain")
    assert (ran.code, ran.error["code"], ran.error["query"]) == (1, "unexpected", "corrupt")
    assert "KeyError" in ran.error["message"]
    assert {r["query"]: r["action"] for r in ran.results} == {
        "divides": "exact",
        "gone": "none",
        "good": "exact",
    }
    monkeypatch.setattr(Maintainer, "step", step)
    assert [r["query"] for r in many.good("maintain").results if r["action"] == "exact"] == [
        "corrupt"
    ]


def test_verify_goes_on(many: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark is pretended: what is recaptured is what is stored, but for one query."""
    many.good("capture")
    stored_fragments = {}
    for name in ("divides", "gone", "good"):
        sketches = stored(many.workload.parent, name).sketches
        stored_fragments[name] = {s.access: s.ranges for s in sketches}

    def needed(ctx: Context, prepared: Any, *_: Any) -> Any:
        if prepared.spec.name == "corrupt":
            raise RuntimeError("Spark stumbled")
        return stored_fragments[prepared.spec.name]

    monkeypatch.setattr(Context, "spark", lambda _: None)
    monkeypatch.setattr(verify_module, "needed", needed)
    ran = many("verify")
    assert (ran.code, ran.error["query"]) == (1, "corrupt")
    assert {r["query"]: r["covers"] for r in ran.results} == {
        "divides": True,
        "gone": True,
        "good": True,
    }


NAMES = ["first", "file", "grow", "twice", "gone", "same"]


@pytest.fixture
def cli_of_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys, write_batches(tmp_path))


def table_rows(folder: Path) -> dict[str, list[tuple[int, int]]]:
    return {name: rows(folder / name) for name in WANTED}


@pytest.mark.slow
def test_a_repeat_says_where_the_batches_are(cli_of_batches: Cli, tmp_path: Path) -> None:
    done = cli_of_batches.good("apply", "--all").results
    assert [r["already_applied"] for r in done] == [False] * 6
    foreseen = cli_of_batches.good("apply", "--all", "--dry-run").results
    again = cli_of_batches.good("apply", "--all").results
    assert foreseen == again
    assert [(r["name"], r["version"]) for r in again] == [(r["name"], r["version"]) for r in done]
    assert all(r["already_applied"] and not r["inserted"] + r["updated"] for r in again)
    assert table_rows(tmp_path) == WANTED
    repeated = cli_of_batches.one("apply", "same", "--again")
    assert (repeated["version"], repeated["inserted"]) == (5, 2)


@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("names", [["--all"], ["first"]])
def test_a_signal_during_a_commit_is_told_with_what_is_in(
    cli_of_batches: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    names: list[str],
) -> None:
    def write_and_be_shot(*given: Any, **options: Any) -> None:
        os.kill(os.getpid(), number)
        write_deltalake(*given, **options)

    with monkeypatch.context() as patch, interruptible():
        patch.setattr("impctl.tables.write.apply.write_deltalake", write_and_be_shot)
        shot = cli_of_batches("apply", *names)
    assert shot.refusal == (130, "interrupted")
    assert [(r["name"], r["version"]) for r in shot.results] == [("first", 1)]
    assert "`first` (version 1 of `t`)" in shot.error["message"]
    assert "it skips batches that are already applied" in shot.error["hint"]
    assert versions(tmp_path) == {"t": 1, "u": 0}
    rest = cli_of_batches.good("apply", "--all").results
    assert [r["name"] for r in rest if not r["already_applied"]] == NAMES[1:]
    assert (table_rows(tmp_path), versions(tmp_path)) == (WANTED, VERSIONS)


def test_what_is_in_is_told_beside_an_unexpected_error(
    cli_of_batches: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeltaTable, "merge", Mock(side_effect=ZeroDivisionError))
    ran = cli_of_batches("apply", "--all")
    assert (ran.code, ran.error["code"], ran.error["query"]) == (1, "unexpected", "grow")
    assert [(r["name"], r["version"]) for r in ran.results] == [("first", 1), ("file", 1)]


def test_what_is_wrong_with_a_value_is_told_where_it_stands(tmp_path: Path, cli_of: CliOf) -> None:
    table = pa.table({"id": [1], "town": ["Rome"]})
    create_table(str(tmp_path / "t"), table)
    error = cli_of(
        "version: 1\n"
        "tables: {t: {path: t}}\n"
        "queries: {q: {sql: SELECT id FROM t}}\n"
        "updates:\n"
        "  - name: move\n"
        "    update:\n"
        "      table: t\n"
        "      set: {id: id + 1, town: New York}\n"
    )("apply", "move").error
    place = (error["location"]["line"], error["location"]["column"])
    assert (error["code"], error["query"], place) == ("column_unknown", "move", (8, 31))
    assert "`set` of `t.town`" in error["message"]
    assert "\"'New York'\"" in error["hint"]
