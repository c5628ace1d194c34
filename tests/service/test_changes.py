"""Changes of results: reported with and without a commit, and consistent with each result."""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from msgspec import Struct
from msgspec.structs import replace

from impctl.compile.answers import answer_of_rows
from impctl.compile.compile import Dataflow, compile_answer
from impctl.compile.session import MaintainedQuery, TableChange
from impctl.data.schema import STRING, Column, Kind, Schema, SqlType, decimal
from impctl.errors import EvaluationError, NotExactError, RecaptureNeededError, StorageError
from impctl.rules.finalize import AnswerPlan, answer_plan
from impctl.rules.optimize import apply_rules
from impctl.service.changes import FollowedAnswer
from impctl.service.context import Context, open_context
from impctl.service.decide import SharedChanges
from impctl.service.result_changes import (
    CHANGE,
    COPIES,
    DELETE,
    INSERT,
    SURE,
    RowsOf,
    changes_between,
    changes_by_rows,
    whole_answer,
)
from impctl.service.settings import Settings
from impctl.service.step import Maintainer
from impctl.sql.parameters import Clock
from impctl.sql.statement import parse_query
from impctl.store.disk import RealDisk
from tests.compile.test_plans import kept_beside, random_case
from tests.service.schedule.test_daemon import followed
from tests.support import kept_workload
from tests.support.kept_workload import (
    QUERIES,
    Reader,
    answer_at,
    answer_of,
    applied,
    change,
    grow,
    identity,
    stored,
    write_workload,
)
from tests.support.kept_workload import Answer as Rows
from tests.support.random_cases import random_cases
from tests.support.random_queries import (
    PARTITIONS,
    SCHEMA,
    Row,
    random_change,
    random_row,
    table_of,
)
from tests.support.reference_plan import listed
from tests.support.run_cli import (
    Capsys,
    Cli,
    CliOf,
    CliOnce,
    MonkeyPatch,
    Ran,
    Words,
    write_running_example,
)


@contextmanager
def context_of(cli: Cli) -> Iterator[Context]:
    with open_context(Settings(cli.workload)) as ctx:
        yield ctx


MakeCli = Callable[..., Cli]


@pytest.fixture
def make_cli(tmp_path: Path, capsys: Capsys) -> MakeCli:
    """Make a command line over some of the queries, with edited settings."""

    def make_cli(*names: str, **edits: str) -> Cli:
        cli = Cli(capsys, write_workload(tmp_path, names))
        for key, value in edits.items():
            text = cli.workload.read_text()
            cli.workload.write_text(re.sub(f"{key}: .*", f"{key}: {value}", text))
        return cli

    return make_cli


def digest(folder: Path) -> dict[str, str]:
    """Hashes of all files except SQLite's shared memory, which readers also write."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith("-shm")
    }


class Follower:
    """Follows the results of several queries by applying reported changes."""

    def __init__(self, ctx: Context, names: Iterable[str] = QUERIES) -> None:
        self.ctx = ctx
        self.answers = {name: FollowedAnswer(ctx, ctx.workload.queries[name]) for name in names}
        self.rows: dict[str, Rows] = {}
        for name, answer in self.answers.items():
            whole = answer.whole(ctx)
            assert not whole.since
            self.rows[name] = applied(Counter(), whole.answer)

    def look(self, folder: Path) -> set[str]:
        """Apply new changes. Return their sources."""
        context, by = self.ctx.next_run(()), set()
        for name, answer in self.answers.items():
            result = answer.next(context)
            by.add(str(result.by))
            self.rows[name] = applied(self.rows[name], result.answer)
            assert self.rows[name] == answer_at(folder, name, dict(result.versions)), name
        context.close()
        return by


FEW = ("groups", "joined", "top", "eager", "tree_rows")
"""A query of each kind."""


def test_results_are_compared_without_usable_state(kept: Cli, monkeypatch: MonkeyPatch) -> None:
    """Also if a step fails after it changed stored rows."""
    rng, error = random.Random(6), RecaptureNeededError("history is gone", code="history_gone")
    with context_of(kept) as ctx:
        follower = Follower(ctx, FEW)
        for step, by in enumerate(("state", "engine", "engine")):
            grow(kept.folder)
            change(kept.folder, rng)
            with monkeypatch.context() as patch:
                if step == 1:
                    patch.setattr(Maintainer, "_meta", Mock(side_effect=error))
                assert follower.look(kept.folder) == {by}, step


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ((SharedChanges, "read"), ({"state"}, {"state"})),
        ((Maintainer, "_meta"), ({"state"}, {"engine"})),
    ],
    ids=["before a step", "within a step"],
)
def test_look_is_repeated_after_a_storage_error(
    kept: Cli, monkeypatch: MonkeyPatch, method: tuple[type, str], expected: tuple[set[str], ...]
) -> None:
    """Effects of the failed step on the state in memory are not reported."""
    rng, failure = random.Random(7), Mock(side_effect=StorageError("the disk is away"))
    with context_of(kept) as ctx:
        follower = Follower(ctx, FEW)
        for sources in expected:
            grow(kept.folder)
            change(kept.folder, rng)
            with monkeypatch.context() as patch:
                patch.setattr(*method, failure)
                for answer in follower.answers.values():
                    with pytest.raises(StorageError):
                        answer.next(ctx.next_run(()))
            assert follower.look(kept.folder) == sources


def test_since_needs_no_stored_result(make_cli: MakeCli) -> None:
    cli = make_cli("plain", answer="false")
    grow(cli.folder)
    result = cli.one("changes", "--since", "0")
    assert (result["row_count"] > 0, result["by"]) == (True, "engine")


def test_changes_need_neither_spark_nor_lock(kept: Cli, monkeypatch: MonkeyPatch) -> None:
    grow(kept.folder)
    monkeypatch.setattr(Context, "spark", None)
    with context_of(kept) as ctx, ctx.writing("a test"):
        assert kept.one("changes", "--query", "groups")["row_count"] > 0


def test_limit_shows_first_rows_but_counts_all(kept: Cli) -> None:
    grow(kept.folder)
    whole = kept.one("changes", "--query", "plain")
    result = kept.one("changes", "--query", "plain", "--limit", "1")
    assert result["rows"] == whole["rows"][:1]
    assert result["row_count"] == whole["row_count"] > 1


@pytest.mark.parametrize(
    ("words", "exit_code", "error_code"),
    [
        (("--query", "plain", "--all"), 2, "answer_not_kept"),
        (("--query", "single"), 7, "not_captured"),
        (("--query", "nobody"), 2, "query_unknown"),
        ((), 2, "query_ambiguous"),
        (("--query", "plain", "--since", "x"), 2, "at_syntax"),
        (("--query", "plain", "--since", "b=0"), 2, "at_table_unknown"),
        (("--query", "plain", "--all", "--since", "0"), 2, "usage"),
        (("--query", "plain", "--follow", "--since", "0"), 2, "usage"),
    ],
)
def test_refusals_have_a_hint(
    cli_once: CliOnce, words: Words, exit_code: int, error_code: str
) -> None:
    def write(folder: Path) -> None:
        file = write_workload(folder, ("plain", "single"))
        file.write_text(file.read_text().replace("answer: true", "answer: false"))

    cli = cli_once("no answers kept", write, lambda cli: cli.captured("--query", "plain"))
    ran = cli("changes", *words)
    assert ran.refusal == (exit_code, error_code), ran.document
    assert ran.error["hint"]


def test_changed_definition_is_refused(kept: Cli) -> None:
    kept.edit("x > 2", "x > 1")
    assert kept("changes", "--query", "plain").refusal == (7, "definition_changed")


CLOCKED = {
    "recent": "SELECT g, day, current_date AS today FROM t"
    " WHERE day >= current_date - INTERVAL 2 DAYS",
    "counts": "SELECT g, COUNT(*) AS n FROM t"
    " WHERE day >= current_date - INTERVAL 2 DAYS GROUP BY g",
}


def days(*numbers: int) -> pa.Table:
    """Rows of the days from 2026-03-01 on."""
    first = 20_513
    return pa.table(
        {
            "g": pa.array([number % 5 for number in numbers], pa.int64()),
            "day": pa.array([first + number for number in numbers], pa.int32()).cast(pa.date32()),
        }
    )


def expected_result(folder: Path, name: str, today: int) -> Rows:
    rows = [
        (row["g"], row["day"])
        for row in pq.ParquetDataset(folder / "t").read().to_pylist()
        if (row["day"] - days(today)["day"][0].as_py()).days >= -2
    ]
    if name == "counts":
        return answer_of(list(Counter(g for g, _ in rows).items()))
    return answer_of([(*row, days(today)["day"][0].as_py()) for row in rows])


def test_changes_follow_the_clock(tmp_path: Path, cli_of: CliOf, monkeypatch: MonkeyPatch) -> None:
    """Output that depends only on time changes too, in `changes` and in `maintain --changes`."""
    settings = {"sketch": {"t": "g"}, "answer": True}
    queries = {name: {"sql": sql, **settings} for name, sql in CLOCKED.items()}
    partitions = {"t": {"g": {"boundaries": [2, 4]}}}
    cli = cli_of({"queries": queries, "partitions": partitions}, t=days(*range(8)))
    monkeypatch.setenv("IMPCTL_NOW", "2026-03-05T10:00:00Z")
    cli.good("capture")
    rows = {name: expected_result(tmp_path, name, 4) for name in ("recent", "counts")}
    for today in (5, 7):
        cli.append("t", days(today, today))
        monkeypatch.setenv("IMPCTL_NOW", f"2026-03-0{today + 1}T10:00:00Z")
        for name, before in rows.items():
            out = tmp_path / "c.parquet"
            cli.good("changes", "--query", name, "--out", str(out))
            after = expected_result(tmp_path, name, today)
            assert applied(before, pq.read_table(out)) == after, name
        for result in maintained(cli).results:
            (path,) = result["change_files"]
            assert f"current_date-2026-03-0{today + 1}" in path
            after = expected_result(tmp_path, result["query"], today)
            assert applied(rows[result["query"]], pq.read_table(path)) == after, result
            rows[result["query"]] = after


@pytest.mark.parametrize("name", CLOCKED)
def test_changes_are_reported_once_if_the_date_changes_between_looks(
    tmp_path: Path, cli_of: CliOf, monkeypatch: MonkeyPatch, name: str
) -> None:
    query = {"sql": CLOCKED[name], "answer": True}
    cli = cli_of({"queries": {name: query}}, t=days(*range(6)))
    monkeypatch.setenv("IMPCTL_NOW", "2026-03-06T10:00:00Z")
    cli.good("capture")
    answer, rows = None, expected_result(tmp_path, name, 5)
    for today, source in ((5, "state"), (5, "state"), (7, "engine"), (7, "engine")):
        cli.append("t", days(today))
        settings = Settings(cli.workload, now=f"2026-03-0{today + 1}T10:00:00Z")
        with open_context(settings) as ctx:
            answer = FollowedAnswer(ctx, ctx.workload.queries[name]) if answer is None else answer
            result = answer.next(ctx)
        assert result.by == source
        rows = applied(rows, result.answer)
        assert rows == expected_result(tmp_path, name, today)


def test_follow_prints_a_document_per_look_with_changes(kept: Cli) -> None:
    folder, rows = kept.folder, Counter[tuple[object, ...]]()

    def react(line: dict[str, Any]) -> None:
        (result,) = line["results"]
        assert result["columns"][:2] == ["_change", "_copies"]
        for change_, copies, *row in result["rows"]:
            # JSON has the text NaN for it, as `identity` does.
            rows[tuple(map(identity, row))] += copies if change_ == "insert" else -copies
        assert min(rows.values()) >= 0
        assert +rows == answer_at(folder, "plain", result["versions"])
        grow(folder)

    options = ("--query", "plain", "--all", "--max-runs", "3")
    code, lines = followed(kept.workload, *options, command="changes", react=react)
    assert code == 0
    assert [(line["command"], line["ok"]) for line in lines] == [("changes", True)] * 3
    assert [line["run"]["number"] for line in lines] == [1, 2, 3]
    assert [line["results"][0]["versions"] for line in lines] == [
        {"a": version} for version in range(3)
    ]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("changes", "--since", "0"), "version_gone"),
        (("query", "--at", "0", "--by", "engine"), "data_files_gone"),
    ],
)
def test_files_of_an_older_version_are_gone(make_cli: MakeCli, words: Words, code: str) -> None:
    """No command brings them back, and none is advised."""
    cli = make_cli("plain").captured()
    table = cli.table("a")
    table.delete("x = 3")
    cli.good("maintain")
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    ran = cli(words[0], "--query", "plain", *words[1:])
    assert ran.refusal == (7, code)
    assert "capture" not in ran.error["hint"]
    assert f"`{words[1]}` takes" in ran.error["hint"]


def test_both_results_use_one_instant(cli_of: CliOf, monkeypatch: MonkeyPatch) -> None:
    """No rows differ, although each reading of the clock gives another day."""
    days = [datetime(2026, 3, day, tzinfo=UTC) for day in range(1, 9)]
    query = {"sql": "SELECT day FROM t WHERE day >= current_date", "sketch": "none"}
    cli = cli_of({"queries": {"q": query}}, t=pa.table({"day": [day.date() for day in days]}))
    looks = iter(days)
    monkeypatch.setattr(Context, "time", lambda _: Clock(next(looks)))
    assert cli.one("changes", "--since", "0")["rows"] == []


def reader(folder: Path, name: str) -> Reader:
    sketch = stored(folder, name)
    answer = answer_at(folder, name, dict(sketch.versions))
    return Reader(folder / "out" / name, answer, sketch.generation, sketch.versions)


def readers(folder: Path, names: Sequence[str] = tuple(QUERIES)) -> dict[str, Reader]:
    return {name: reader(folder, name) for name in names}


def read_files(folder: Path, programs: Mapping[str, Reader]) -> None:
    for name, program in programs.items():
        sketch = stored(folder, name)
        program.read(sketch.generation)
        assert program.versions == sketch.versions
        assert program.answer == answer_at(folder, name, dict(sketch.versions)), name


def maintained(cli: Cli, *words: str) -> Ran:
    return cli.good("maintain", "--changes", cli.path("out"), *words)


def files_in(cli: Cli, name: str) -> int:
    return len(list((cli.folder / "out" / name).iterdir()))


@pytest.mark.slow
@random_cases(fast=3, check=6, total=80)
def test_changes_from_looks_and_files_give_the_current_result(kept: Cli, cases: range) -> None:
    """Single looks (which commit nothing), a follower beside other commits, and readers of
    `maintain` files all reach the current result."""
    folder, rng = kept.folder, random.Random(len(cases))
    programs, row_counts = readers(folder), Counter[str]()
    with context_of(kept) as ctx:
        follower = Follower(ctx)
        for step in range(len(cases)):
            grow(folder)
            for _ in range(rng.choice([1, 1, 2])):
                change(folder, rng)
            before = digest(folder)
            with context_of(kept) as now:
                looks = {n: FollowedAnswer(now, now.workload.queries[n]).next(now) for n in QUERIES}
            for name, result in looks.items():
                versions = dict(stored(folder, name).versions)
                assert (result.since, result.by) == (versions, "state")
                after = applied(answer_at(folder, name, versions), result.answer)
                assert after == answer_at(folder, name, dict(result.versions)), (step, name)
                row_counts[name] += result.row_count
            assert follower.look(folder) == {"state"}, step
            assert digest(folder) == before
            if step % 3 == 1:
                written = {name for one in maintained(kept).results for name in one["change_files"]}
                assert all(Path(name).exists() for name in written)
                read_files(folder, programs)
    assert all(row_counts[name] for name in QUERIES)
    # An eager query has one file per version.
    assert len(programs["eager"].taken) > len(programs["groups"].taken) > 0


@pytest.mark.slow
def test_changes_since_old_versions_and_all_rows(kept: Cli) -> None:
    """From an empty result to the stored one, and between two compared results."""
    folder, rng, out = kept.folder, random.Random(8), kept.folder / "c.parquet"
    for _ in range(3):
        change(folder, rng)
    grow(folder)
    kept.good("maintain")
    for name in QUERIES:
        versions = dict(stored(folder, name).versions)
        for since in ({}, dict.fromkeys(versions, 0)):
            flags = [word for table in since for word in ("--since", f"{table}=0")] or ["--all"]
            result = kept.one("changes", "--query", name, *flags, "--out", str(out))
            assert (result["since"], result["versions"]) == (since, versions)
            assert not since or result["by"] == "engine"
            before = answer_at(folder, name, since) if since else Counter()
            assert applied(before, pq.read_table(out)) == answer_at(folder, name, versions), name


def test_files_of_uncommitted_steps_are_replaced(kept: Cli, monkeypatch: MonkeyPatch) -> None:
    """The killed run goes version by version, the next one in larger steps."""
    folder, names = kept.folder, ("eager", "groups", "joined", "top")
    queries = [f"--query={name}" for name in names]
    programs = readers(folder, names)
    for _ in range(3):
        grow(folder)
    with monkeypatch.context() as patch:
        patch.setattr(RealDisk, "commit", Mock(side_effect=KeyboardInterrupt))
        assert kept("maintain", "--changes", str(folder / "out"), *queries).code == 130
    assert files_in(kept, "eager") == 3
    for _ in range(2):
        maintained(kept, "--batch-rows", "1000", *queries)
        grow(folder)
        read_files(folder, programs)
        for name, program in programs.items():
            assert files_in(kept, name) == len(program.taken), name


def test_change_file_names_its_versions(kept: Cli) -> None:
    grow(kept.folder)
    (path,) = maintained(kept, "--query", "joined").results[0]["change_files"]
    assert path == str(kept.folder / "out" / "joined" / "000002_a-0-1_b-0-0.parquet")
    table = pq.read_table(path)
    assert table.column_names == ["_change", "_copies", "s", "w"]
    since, versions = {"a": 0, "b": 0}, {"a": 1, "b": 0}
    metadata = {"query": "joined", "commit": 2, "since": since, "versions": versions}
    assert Reader.said(table) == metadata


def test_step_without_changes_writes_an_empty_file(kept: Cli) -> None:
    nothing = kept_workload.rows_of_a(random.Random(2), 1).set_column(3, "x", [[0]])
    kept.append("a", nothing)
    (path,) = maintained(kept, "--query", "plain").results[0]["change_files"]
    assert pq.read_table(path).num_rows == 0
    assert maintained(kept, "--query", "plain").results[0]["change_files"] == []
    assert files_in(kept, "plain") == 1


@pytest.mark.slow
def test_recapture_reports_the_difference_of_results(kept: Cli) -> None:
    programs = readers(kept.folder)
    grow(kept.folder)
    change(kept.folder, random.Random(9))
    ran = maintained(kept, "--policy", "full")
    assert {one["action"] for one in ran.results} == {"recapture"}
    read_files(kept.folder, programs)


def test_recapture_after_steps(make_cli: MakeCli, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """Committed steps of the run have files, and the recapture has the next number."""
    cli = make_cli("eager", policy="auto").captured()
    program = reader(tmp_path, "eager")
    for _ in range(4):
        grow(tmp_path)
    step, calls = Maintainer.step, 0

    def third_fails(self: Maintainer, *args: object, **keywords: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RecaptureNeededError("history is gone", code="history_gone")
        return step(self, *args, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(Maintainer, "step", third_fails)
    (result,) = maintained(cli).results
    assert result["action"] == "recapture"
    names = [Path(path).name for path in result["change_files"]]
    assert names == ["000002_a-0-1.parquet", "000003_a-1-2.parquet", "000004_a-2-4.parquet"]
    program.read(4)
    assert program.answer == answer_at(tmp_path, "eager", {"a": 4})


def test_changes_start_at_first_stored_result(make_cli: MakeCli, tmp_path: Path) -> None:
    def warns(ran: Ran) -> bool:
        return any("no file with its changes" in warning for warning in ran.document["warnings"])

    cli = make_cli("plain", answer="false", policy="auto").captured()
    cli.edit("answer: false", "answer: true")
    grow(tmp_path)
    ran = maintained(cli)
    assert (ran.results[0]["change_files"], warns(ran)) == ([], True)
    program = reader(tmp_path, "plain")
    grow(tmp_path)
    assert not warns(maintained(cli))
    program.read(program.commit + 1)
    assert program.answer == answer_at(tmp_path, "plain", {"a": 2})


def test_refused_folder_and_dry_run_have_no_effect(kept: Cli) -> None:
    folder = kept.folder
    grow(folder)
    (folder / "taken").write_text("")
    reserved = (folder / "a" / "out", folder / "a", folder / ".impctl" / "x", kept.workload)
    codes = {**dict.fromkeys(reserved, "output_reserved"), folder / "taken": "changes_folder"}
    for path, code in codes.items():
        assert kept("maintain", "--changes", str(path)).refusal == (2, code), path
    maintained(kept, "--dry-run")
    assert not (folder / "out").exists()
    assert all(stored(folder, name).generation == 1 for name in QUERIES)
    assert not (folder / "a" / "out").exists()


def test_queries_without_result_have_no_file(make_cli: MakeCli, tmp_path: Path) -> None:
    cli = make_cli("plain", "single")
    cli.edit("answer: true", "answer: false", 1)
    cli.good("capture")
    named = cli("maintain", "--changes", str(tmp_path / "out"), "--query", "plain")
    assert named.refusal == (2, "answer_not_kept")
    grow(tmp_path)
    written = [(one["query"], len(one["change_files"])) for one in maintained(cli).results]
    assert written == [("plain", 0), ("single", 1)]


def test_full_disk_stops_the_commit(kept: Cli, monkeypatch: MonkeyPatch) -> None:
    grow(kept.folder)
    with monkeypatch.context() as patch:
        patch.setattr(pq, "write_table", Mock(side_effect=OSError(28, "No space left on device")))
        ran = kept("maintain", "--changes", kept.path("out"), "--query", "plain")
    assert ran.refusal == (6, "changes_not_written")
    assert "No space left" in ran.error["message"]
    assert (stored(kept.folder, "plain").generation, files_in(kept, "plain")) == (1, 0)
    maintained(kept, "--query", "plain")
    assert files_in(kept, "plain") == 1


ROWS = 4_000
WORKLOAD = """\
version: 1
tables: {t: {path: t}}
partitions:
  t: {g: {ranges: 50}}
queries:
  exact: {sql: "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 3000"}
  touch: {sql: "SELECT g, CORR(x, y) AS c FROM t GROUP BY g HAVING CORR(x, y) > 0.99"}
  shown: {sql: "SELECT g, x, y, note FROM t WHERE x < 3"}
store: .impctl
"""


@pytest.fixture
def cli(tmp_path: Path, cli_of: CliOf) -> Cli:
    numbers = list(range(ROWS))
    rows = {
        "g": [n // 40 for n in numbers],
        "x": [n % 97 for n in numbers],
        "y": [float(n * 7919 % 101) for n in numbers],
        "note": [f"n{n % 5}" for n in numbers],
        "other": numbers,
    }
    write_deltalake(str(tmp_path / "t"), pa.table(rows))
    return cli_of(WORKLOAD)


@pytest.mark.slow
def test_deletion_changes_only_the_deleted_rows(cli: Cli) -> None:
    cli.good("capture", "--query", "exact")
    cli.table("t").delete("other IN (5, 6, 3999)")
    assert [entry["rows"] for entry in cli.one("plan", "--query", "exact")["pending"]] == [3]
    result = cli.one("maintain", "--query", "exact")
    assert (result["action"], result["changes"]) == ("exact", 3)


def updated(cli: Cli, query: str, *update: Any) -> tuple[int, str]:
    """The number of changes of an update, and whether the result may have changed."""
    cli.good("capture", "--query", query)
    cli.table("t").update(*update)
    result = cli.one("maintain", "--query", query)
    return result["changes"], result["answer_changed"]


def test_unread_columns_change_nothing(cli: Cli) -> None:
    assert updated(cli, "exact", {"other": "other + 1"}) == (0, "no")


@pytest.mark.slow
def test_output_only_column_may_change_the_result(cli: Cli) -> None:
    """The result reads `note`, but the circuit does not."""
    assert updated(cli, "shown", {"note": "'new'"}, None, "other = 1") == (2, "maybe")


@pytest.mark.spark
def test_touch_adds_ranges_of_rows_with_another_changed_column(cli: Cli) -> None:
    cli.good("capture", "--query", "touch")
    cli.table("t").update({"y": "CAST(x AS DOUBLE)"}, predicate="g = 60")
    result = cli.one("maintain", "--query", "touch")
    assert (result["action"], len(result["added"])) == ("touch", 1)
    cli.good("verify", "--query", "touch")


@pytest.fixture
def demo(tmp_path: Path, capsys: Capsys) -> Cli:
    demo = Cli(capsys, write_running_example(tmp_path / "demo")).captured()
    demo.good("apply", "s8")
    return demo


def runs_of(demo: Cli, count: int) -> list[tuple[str, int | None]]:
    first, *_ = demo.good("status", "--runs", str(count)).results
    return [(run["action"], run["changes"]) for run in first["runs"]]


@pytest.mark.slow
def test_recapture_has_no_change_count(demo: Cli, tmp_path: Path) -> None:
    file = tmp_path / "m.prom"
    planned = demo.good("maintain", "--policy", "full", "--dry-run").results
    done = demo.good("maintain", "--policy", "full", "--metrics", str(file)).results
    for result in (*planned, *done):
        assert (result["action"], result["changes"]) == ("recapture", None)
    samples = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    assert any(line.startswith("impctl_maintain_recaptured{") for line in samples)
    assert not any(line.startswith("impctl_maintain_changes{") for line in samples)
    assert [changes for _, changes in runs_of(demo, 1)] == [None]


JOINED = {
    "queries": {
        "q": "SELECT u.r, SUM(t.x) AS s FROM t JOIN u ON t.g = u.g"
        " GROUP BY u.r HAVING SUM(t.x) > 40"
    },
    "partitions": {"t": {"d": {"boundaries": [1, 2, 3]}}, "u": {"r": {"boundaries": [1, 2]}}},
}


def rows_of(*values: int) -> pa.Table:
    return pa.table({"g": [1] * len(values), "d": [2] * len(values), "x": values})


def test_sketch_lost_by_a_broken_assumption_is_named(cli_of: CliOf) -> None:
    cli = cli_of(JOINED, t=rows_of(30, 20), u=pa.table({"g": [1, 2], "r": [0, 2]}))
    assert [one["table"] for one in cli.one("capture")["sketches"]] == ["t", "u"]
    cli.append("t", rows_of(7))
    assert cli.warnings("maintain", "--policy", "full") == []
    cli.append("t", rows_of(-5))
    [warning] = cli.warnings("maintain")
    assert "`t.x` >= 0" in warning
    assert warning.endswith("it no longer has a sketch on `t.d`")


_OTHERS = (
    "SELECT s, d FROM t WHERE x > -2",
    "SELECT DISTINCT g, d FROM t",
    "SELECT DISTINCT s FROM t WHERE x IS NOT NULL",
    "SELECT a.id, b.s, b.d FROM t a JOIN t b ON a.g = b.g WHERE b.x > 0",
    "SELECT a.g, COUNT(*) AS n, SUM(b.d) AS w FROM t a LEFT JOIN t b ON a.id = b.x GROUP BY a.g",
    "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM t u WHERE u.g = t.x)",
    "SELECT id, d FROM t LIMIT 3",
    "SELECT d, s FROM t ORDER BY x DESC, id LIMIT 4",
    "SELECT g, SUM(d) AS w FROM t GROUP BY g ORDER BY w DESC LIMIT 2",
    "SELECT g, ROUND(SUM(d), 1) AS w FROM t GROUP BY g HAVING SUM(d) > 0.3",
    "SELECT s, AVG(x) AS w FROM t GROUP BY s ORDER BY w LIMIT 2 OFFSET 1",
    "SELECT s FROM t UNION ALL SELECT s FROM t WHERE g = 1",
    "SELECT MAX(d) AS most, COUNT(*) AS n FROM t",
)


class Case(Struct, frozen=True):
    sql: str
    answer: AnswerPlan
    compiled: Dataflow


def draw_case(rng: random.Random) -> Case | None:
    if rng.random() < 0.4:
        result = random_case(rng)
        return None if result is None else Case(result.query.sql, result.answer, result.compiled)
    return case_of(rng.choice(_OTHERS), rng)


def case_of(sql: str, rng: random.Random) -> Case | None:
    query = parse_query(sql, {"t": SCHEMA})
    ruled = replace(query, root=apply_rules(query.root))
    has_trees = rng.random() < 0.5
    for partition in rng.sample(PARTITIONS, len(PARTITIONS)):
        compiled = kept_beside(ruled, partition, has_trees=has_trees)
        if compiled is not None:
            return Case(sql, answer_plan(ruled), compiled)
    return None


def draw_row(rng: random.Random) -> Row:
    row = random_row(rng)
    return {**row, "d": rng.choice([0.1, 0.2, 0.3, 0.7, row["d"]])}


def applied_changes(answer: Rows, changes: pa.Table, label: str) -> Rows:
    """The result after the changes. Each row is reported once, as inserted or deleted."""
    rows = list(zip(changes[CHANGE].to_pylist(), kept_workload.rows_of(changes), strict=True))
    assert len({row for _, row in rows}) == len(rows), f"{label}: reported twice"
    assert {kind for kind, _ in rows} <= {INSERT, DELETE}, label
    return applied(answer, changes, label)


def rows_kept(case: Case) -> RowsOf:
    kept = case.compiled.kept
    return RowsOf(case.answer.ending, kept.whole(), kept.bounded)


def step(
    case: Case, session: MaintainedQuery, change: pa.Table, weights: Sequence[int]
) -> pa.Table:
    """The changes of one step, as `maintain` reports them."""
    kept, before = case.compiled.kept, rows_kept(case)
    kept.note()
    session.step({"t": TableChange(change, np.array(weights, dtype=np.int64))})
    delta = kept.noted()
    compared = changes_between(before, rows_kept(case), "UTC")
    if case.answer.ending.is_cut:
        return compared
    result = changes_by_rows(case.answer.ending, delta, kept.bounded, "UTC")
    tables = [
        table.select([n for n in table.column_names if n != SURE]) for table in (result, compared)
    ]
    assert listed(tables[0]) == listed(tables[1]), case.sql
    return result


@pytest.mark.slow
@random_cases(20, 32, 400)
def test_changes_rebuild_results(cases: range) -> None:
    counts: Counter[str] = Counter()
    for case in cases:
        one_case(random.Random(f"changes {case}"), counts, f"case {case}")
    assert counts["steps"] > 2 * len(cases)
    for kind in ("cut", "deletes", "copies", "empty", "unsure", "sure"):
        assert counts[kind] > len(cases) // 20, kind


def one_case(rng: random.Random, counts: Counter[str], label: str) -> None:
    case = draw_case(rng)
    if case is None:
        return
    label = f"{label}: {case.sql}"
    session = MaintainedQuery(case.compiled)
    rows = [draw_row(rng) for _ in range(rng.randint(0, 9))]
    try:
        session.load([("t", table_of(rows))])
        answer = applied_changes(Counter(), whole_answer(rows_kept(case), "UTC"), label)
        for _ in range(6):
            change, weights = random_change(rng, rows)
            result = step(case, session, table_of(change), weights)
            answer = applied_changes(answer, result, label)
            kept = case.compiled.kept.whole()
            rows_now = answer_of_rows(case.answer.ending, kept, "UTC")
            expected = Counter(kept_workload.rows_of(rows_now))
            assert answer == expected, label
            check_order(result, label)
            count(counts, case, result)
    except (NotExactError, EvaluationError):
        # Doubles were too close to a limit to decide a condition, or a value overflowed.
        return


def check_order(changes: pa.Table, label: str) -> None:
    """Deleted rows come first; each part is sorted by the first column, NULL first."""
    kinds = changes[CHANGE].to_pylist()
    assert kinds == sorted(kinds), label
    position = 3 if SURE in changes.column_names else 2
    keys = [rank(value) for value in changes.column(position).to_pylist()]
    for (kind, key), (next_kind, next_key) in pairwise(zip(kinds, keys, strict=True)):
        assert kind != next_kind or key <= next_key, label


def rank(value: object) -> tuple[int, object]:
    if value is None:
        return (0, 0)
    if isinstance(value, float) and math.isnan(value):
        return (2, 0)
    return (1, value.encode() if isinstance(value, str) else value)


def count(counts: Counter[str], case: Case, changes: pa.Table) -> None:
    counts["steps"] += 1
    counts["cut"] += case.answer.ending.is_cut
    counts["deletes"] += DELETE in changes[CHANGE].to_pylist()
    counts["copies"] += any(copies > 1 for copies in changes[COPIES].to_pylist())
    counts["empty"] += len(changes) == 0
    if SURE in changes.column_names:
        counts["unsure"] += False in changes[SURE].to_pylist()
        counts["sure"] += True in changes[SURE].to_pylist()


def one_step(
    sql: str,
    rows: Sequence[Mapping[str, object]],
    change: Sequence[Mapping[str, object]],
    weights: Sequence[int],
) -> pa.Table:
    """The changes of one step of a query over these rows; missing columns are NULL."""
    case = case_of(sql, random.Random(1))
    session = MaintainedQuery(case.compiled)
    nothing = dict.fromkeys(column.name for column in SCHEMA.columns)
    session.load([("t", table_of([{**nothing, **row} for row in rows]))])
    return step(case, session, table_of([{**nothing, **row} for row in change]), weights)


ROW, FIVE = {"id": 1, "s": "a"}, [{"id": number, "x": number} for number in range(5)]
ZERO, MINUS, NAN = ({"id": 1, "d": d} for d in (0.0, -0.0, math.nan))
SUM = "SELECT g, SUM(d) AS w FROM t GROUP BY g"
TOP = "SELECT id FROM t ORDER BY x DESC LIMIT 2"
STEPS: dict[str, tuple[Any, ...]] = {
    "a sum that rounds to the same": (SUM, [{"g": 1, "d": 1e16}], [{"g": 1, "d": 0.25}], [1], []),
    "a row that came back": ("SELECT id, s FROM t", [ROW], [ROW] * 2, [-1, 1], []),
    "copies": ("SELECT s FROM t", [ROW], [ROW] * 3, [1, 1, 1], [(INSERT, 3, "a")]),
    "zero and minus zero are two rows, and NaN is one": (
        *("SELECT d FROM t", [ZERO, NAN], [ZERO, MINUS, NAN, NAN], [-1, 1, -1, 1]),
        [(DELETE, 1, 0.0), (INSERT, 1, -0.0)],
    ),
    "what a limit lets in": (TOP, FIVE, [FIVE[4]], [-1], [(DELETE, 1, 4), (INSERT, 1, 2)]),
}


@pytest.mark.parametrize("case", STEPS.values(), ids=STEPS)
def test_changes_of_step(case: tuple[Any, ...]) -> None:
    *arguments, expected = case
    changes = one_step(*arguments).to_pylist()
    assert repr([tuple(row.values()) for row in changes]) == repr(expected)


@pytest.mark.parametrize(
    ("sql", "doubles", "sure"),
    [
        # The sum of these doubles depends on the order of additions.
        ("SELECT g, SUM(d) AS w FROM t GROUP BY g", [0.1, 0.2, 0.3], False),
        # Rounded, it is the same in any order.
        ("SELECT g, ROUND(SUM(d), 2) AS w FROM t GROUP BY g", [0.1, 0.2, 0.3], True),
        # Far from the limit, and too close to it to call.
        ("SELECT g FROM t GROUP BY g HAVING SUM(d) > 0.2", [0.1, 0.2, 0.3], True),
        ("SELECT g FROM t GROUP BY g HAVING SUM(d) >= 0.6", [0.1, 0.2, 0.3], False),
        # Of two groups with equal rows, the less sure one counts: it is rounded at a tie.
        ("SELECT ROUND(SUM(d), 0) AS w FROM t GROUP BY d > 2.9D", [3.0, 0.1, 2.4], False),
        # A LIMIT loses error bounds: unsure, unless no sum is involved.
        ("SELECT g, SUM(d) AS w FROM t GROUP BY g ORDER BY g LIMIT 1", [0.5], False),
    ],
)
def test_sure_column(sql: str, doubles: list[float], sure: bool) -> None:
    changes = one_step(sql, [], [{"g": 1, "d": d} for d in doubles], [1] * len(doubles))
    assert changes[SURE].to_pylist() == [sure]


def run_once(answer: AnswerPlan, *changes: pa.Table) -> pa.Table:
    """The rows stored by a run over these changes, in the order of `Batch`."""
    compiled = compile_answer(answer)
    compiled.circuit.start()
    (source,) = compiled.sources
    for rows in changes:
        compiled.circuit.step(source.scan.read(rows, np.ones(len(rows), dtype=np.int64)))
    return compiled.kept.whole()


@pytest.mark.parametrize("more", ["", " ORDER BY d LIMIT 1"])
def test_sure_column_needs_sums_of_doubles(more: str) -> None:
    assert SURE not in one_step(f"SELECT d FROM t{more}", [], [{"d": 0.1}], [1]).column_names


def test_unordered_limit_does_not_depend_on_row_order() -> None:
    query = parse_query("SELECT id, s FROM t LIMIT 2", {"t": SCHEMA})
    answer = answer_plan(replace(query, root=apply_rules(query.root)))
    outcomes = set()
    for seed in range(8):
        row = random_row(random.Random(0))
        rows = [{**row, "id": number % 4, "s": "ab"[number % 2]} for number in range(6)]
        random.Random(seed).shuffle(rows)
        kept = run_once(answer, *map(table_of, ([row] for row in rows)))
        outcomes.add(repr(listed(answer_of_rows(answer.ending, kept, "UTC"))))
    assert len(outcomes) == 1


COLUMNS: dict[str, tuple[SqlType, pa.DataType]] = {
    "yes": (SqlType(Kind.BOOLEAN), pa.bool_()),
    "tiny": (SqlType(Kind.BYTE), pa.int8()),
    "single": (SqlType(Kind.FLOAT), pa.float32()),
    "text": (STRING, pa.string()),
    "raw": (SqlType(Kind.BINARY), pa.binary()),
    "wide": (decimal(38, 10), pa.decimal128(38, 10)),
    "day": (SqlType(Kind.DATE), pa.date32()),
    "at": (SqlType(Kind.TIMESTAMP), pa.timestamp("us", tz="Europe/Berlin")),
    "local": (SqlType(Kind.TIMESTAMP_NTZ), pa.timestamp("us")),
}
TYPES = [kind for _, kind in COLUMNS.values()]


def test_types_are_those_of_spark() -> None:
    """Extreme values of each type, sorted, NULL first."""
    names = list(COLUMNS)
    schema = Schema(tuple(Column(name, kind) for name, (kind, _) in COLUMNS.items()))
    query = parse_query(f"SELECT {', '.join(names)} FROM t", {"t": schema})
    answer = answer_plan(replace(query, root=apply_rules(query.root)))
    last, first = datetime(9999, 12, 31, 23, 59, 59, 999999), datetime(1, 1, 1)
    rows = [
        (None,) * len(names),
        (False, -128, -0.0, "", b"", Decimal("-" + "9" * 28 + ".5"), first.date(), first, first),
        (True, 127, 3.5, "\U0001f600", b"\xff\x00", Decimal("1e-10"), last.date(), last, last),
    ]
    columns = []
    for values, kind in zip(zip(*rows, strict=True), TYPES, strict=True):
        if pa.types.is_timestamp(kind):
            # A zone would lead to years before 1 or after 9999, which Python lacks.
            columns.append(pa.array(values, pa.timestamp("us")).cast(pa.int64()).view(kind))
        else:
            columns.append(pa.array(values, kind))
    table = pa.table(columns, names=names)
    kept = run_once(answer, table.take([2, 1, 0]))
    result = whole_answer(RowsOf(answer.ending, kept), "Europe/Berlin")
    assert result.schema.types[2:] == TYPES
    assert result.select(names).combine_chunks().equals(table)


@pytest.mark.slow
@random_cases(fast=8, check=12, total=300)
def test_no_is_never_wrong(cli_once: CliOnce, cases: range) -> None:
    """Every third commit changes an output-only column, which the circuit does not read."""

    def write(folder: Path) -> None:
        file = write_workload(folder)
        file.write_text(file.read_text().replace("answer: true", "answer: false"))

    cli, rng = cli_once("never an answer", write, Cli.captured), random.Random(len(cases))

    def answers() -> dict[str, Rows]:
        return {name: answer_at(cli.folder, name, {}) for name in QUERIES}

    before, verdicts = answers(), Counter[str]()
    for number in range(len(cases)):
        if number % 3 == 2:
            cli.table("a").update(updates={"d": "d + 1"}, predicate=f"g = {rng.randint(0, 5)}")
        else:
            change(cli.folder, rng)
        after = answers()
        for name, result in cli.by_query("maintain").items():
            verdicts[result["answer_changed"]] += 1
            assert result["answer_changed"] != "no" or after[name] == before[name], (number, name)
        before = after
    assert verdicts["no"] > len(cases) // 2
    assert verdicts["maybe"] > len(cases) // 2


def test_groups_failing_before_and_after_change_nothing(cli: Cli) -> None:
    cli.good("capture", "--query", "exact")
    rows = {"g": [7], "x": [1], "y": [0.0], "note": ["n"], "other": [0]}
    cli.append("t", pa.table(rows))
    assert cli.one("maintain", "--query", "exact")["answer_changed"] == "no"


@pytest.mark.slow
def test_new_column_may_change_result(tmp_path: Path, cli_of: CliOf) -> None:
    """A column can change without changed rows: then `no` is not allowed."""
    rows = {"g": [*range(10)], "x": [100] * 10}
    write_deltalake(str(tmp_path / "t"), pa.table(rows))
    query = "SELECT g, SUM(x) FROM t GROUP BY g HAVING SUM(x) > 50"
    cli = cli_of({"tables": "t", "queries": {"q": query}}).captured()
    assert cli.one("maintain")["answer_changed"] == "no", "nothing is new"
    assert cli.one("maintain", "--dry-run")["answer_changed"] in (None, "no")
    wider = pa.table({"g": [99], "x": [1], "more": [1]})
    write_deltalake(cli.path("t"), wider, mode="append", schema_mode="merge")
    assert cli.one("maintain")["answer_changed"] == "maybe"
