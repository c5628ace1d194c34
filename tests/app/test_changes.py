"""Changes of answers: told by `changes` without a commit, by state or by two answers; and in the
files of `maintain --changes`, from which a program rebuilds every answer, commit by commit."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.errors import RecaptureNeededError
from impctl.service.changes import Answer, Changed
from impctl.service.context import Workbench, open_workbench
from impctl.service.settings import Settings
from impctl.service.step import Maintainer
from impctl.sql.parameters import Clock
from impctl.store.disk import RealDisk
from impctl.tables.write.maintenance import create_table
from tests.support import kept_workload
from tests.support.change_reader import Answer as Rows
from tests.support.change_reader import Reader, answer_of, applied
from tests.support.duck import duck
from tests.support.following import followed
from tests.support.kept_workload import (
    QUERIES,
    answer_at,
    change,
    grow,
    stored,
    write_workload,
)
from tests.support.random_cases import random_cases
from tests.support.run_cli import Cli, CliOf


@contextmanager
def desk_of(file: Path) -> Iterator[Workbench]:
    with open_workbench(Settings(file)) as desk:
        yield desk


def digest(folder: Path) -> dict[str, str]:
    """Every file's contents, but for SQLite's shared memory, which readers write to as well."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith("-shm")
    }


@pytest.mark.slow
@random_cases(fast=3, check=8, total=50)
def test_what_is_told_leads_from_the_answer_kept_to_that_of_now(kept: Cli, cases: range) -> None:
    folder, draw = kept.workload.parent, random.Random(len(cases))
    told = Counter[str]()
    for step in range(len(cases)):
        grow(folder)
        change(folder, draw)
        before = digest(folder)
        with desk_of(kept.workload) as desk:
            looked = {n: Answer(desk, desk.workload.queries[n]).next(desk) for n in QUERIES}
        for name, result in looked.items():
            held = dict(stored(folder, name).versions)
            assert result.since == held
            assert result.by == "state"
            after = applied(answer_at(folder, name, held), result.changes)
            assert after == answer_at(folder, name, dict(result.versions)), (step, name)
            told[name] += result.changes.num_rows
        assert digest(folder) == before
        if step % 3 == 1:
            kept.good("maintain")
    assert all(told[name] for name in QUERIES)


@pytest.mark.slow
def test_looks_one_after_the_other_tell_what_came_in_between(kept: Cli) -> None:
    """As `--follow` looks: in memory, whatever others commit meanwhile."""
    folder, draw = kept.workload.parent, random.Random(5)
    with desk_of(kept.workload) as desk:
        answers = {name: Answer(desk, desk.workload.queries[name]) for name in QUERIES}
        rows: dict[str, Rows] = {n: answer_of_changes(a.whole(desk)) for n, a in answers.items()}
        for step in range(3):
            change(folder, draw)
            if step == 1:
                kept.good("maintain")
            now = desk.next_run(())
            for name, answer in answers.items():
                result = answer.next(now)
                assert result.by == "state"
                rows[name] = applied(rows[name], result.changes)
                assert rows[name] == answer_at(folder, name, dict(result.versions)), (step, name)
            now.close()


def answer_of_changes(result: Changed) -> Rows:
    assert not result.since
    return applied(Counter(), result.changes)


def test_where_the_state_cannot_be_carried_on_two_answers_are_compared(
    kept: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the middle of a step, when the rows kept have moved on already."""
    folder, draw, fails_at = kept.workload.parent, random.Random(6), 1
    with desk_of(kept.workload) as desk:
        answers = {name: Answer(desk, desk.workload.queries[name]) for name in QUERIES}
        rows: dict[str, Rows] = {n: answer_of_changes(a.whole(desk)) for n, a in answers.items()}
        by = set()
        for step in range(fails_at + 2):
            grow(folder)
            change(folder, draw)
            with monkeypatch.context() as patch:
                if step == fails_at:
                    gone = RecaptureNeededError("history is gone", code="history_gone")
                    patch.setattr(Maintainer, "_meta", Mock(side_effect=gone))
                now = desk.next_run(())
                for name, answer in answers.items():
                    result = answer.next(now)
                    by.add((step, str(result.by)))
                    rows[name] = applied(rows[name], result.changes)
                    wanted = answer_at(folder, name, dict(result.versions))
                    assert rows[name] == wanted, (step, name)
                now.close()
    expected = {(step, "state" if step < fails_at else "engine") for step in range(fails_at + 2)}
    assert by == expected


@pytest.mark.slow
def test_since_older_versions_two_answers_are_compared(kept: Cli) -> None:
    folder, draw = kept.workload.parent, random.Random(8)
    for _ in range(3):
        change(folder, draw)
    grow(folder)
    kept.good("maintain")
    for name in ("groups", "joined", "top", "eager"):
        held = dict(stored(folder, name).versions)
        then = dict.fromkeys(held, 0)
        given = [word for table in held for word in ("--since", f"{table}=0")]
        out = folder / "c.parquet"
        result = kept.one("changes", "--query", name, *given, "--out", str(out))
        assert (result["by"], result["since"], result["versions"]) == ("engine", then, held)
        after = applied(answer_at(folder, name, then), pq.read_table(out))
        assert after == answer_at(folder, name, held), name


def test_since_needs_no_answer_that_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_workload(tmp_path, ("plain",))
    file.write_text(file.read_text().replace("answer: true", "answer: false"))
    cli = Cli(capsys, file)
    grow(tmp_path)
    result = cli.one("changes", "--since", "0")
    assert result["row_count"] > 0
    assert result["by"] == "engine"


@pytest.mark.slow
def test_the_whole_answer_is_that_of_the_store(kept: Cli) -> None:
    folder = kept.workload.parent
    grow(folder)
    for name in QUERIES:
        held = stored(folder, name)
        out = folder / "all.parquet"
        result = kept.one("changes", "--query", name, "--all", "--out", str(out))
        assert result["since"] == {}
        assert result["versions"] == held.versions
        rows = applied(Counter(), pq.read_table(out))
        assert rows == answer_at(folder, name, dict(held.versions)), name


def test_spark_is_not_started_nor_the_lock_taken(
    kept: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = kept.workload.parent
    grow(folder)
    monkeypatch.setattr(Workbench, "spark", None)
    with desk_of(kept.workload) as desk, desk.writing("a test"):
        result = kept.one("changes", "--query", "groups")
    assert result["row_count"] > 0


def test_a_limit_shows_the_first_rows_and_counts_all(kept: Cli) -> None:
    grow(kept.workload.parent)
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
def test_what_cannot_be_told_is_an_error_that_says_what_to_do(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    exit_code: int,
    error_code: str,
) -> None:
    file = write_workload(tmp_path, ("plain", "single"))
    file.write_text(file.read_text().replace("answer: true", "answer: false"))
    cli = Cli(capsys, file)
    cli.good("capture", "--query", "plain")
    ran = cli("changes", *words)
    assert ran.refusal == (exit_code, error_code), ran.document
    assert ran.error["hint"]


def test_another_reading_of_the_query_is_refused(kept: Cli) -> None:
    kept.edit("x > 2", "x > 1")
    assert kept("changes", "--query", "plain").refusal == (7, "definition_changed")


CLOCKED = """\
version: 1
tables: {t: {path: t}}
partitions: {t: {g: {boundaries: [2, 4]}}}
queries:
  recent:
    sql: SELECT g, day, current_date AS today FROM t WHERE day >= current_date - INTERVAL 2 DAYS
    sketch: {t: g}
    answer: true
    policy: POLICY
  counts:
    sql: SELECT g, COUNT(*) AS n FROM t WHERE day >= current_date - INTERVAL 2 DAYS GROUP BY g
    sketch: {t: g}
    answer: true
    policy: POLICY
store: .impctl
"""


def days(*numbers: int) -> pa.Table:
    """Rows of the days from 2026-03-01 on."""
    first = 20_513
    return pa.table(
        {
            "g": pa.array([number % 5 for number in numbers], pa.int64()),
            "day": pa.array([first + number for number in numbers], pa.int32()).cast(pa.date32()),
        }
    )


def expected(folder: Path, name: str, today: int) -> Rows:
    rows = [
        (row["g"], row["day"])
        for row in pq.ParquetDataset(folder / "t").read().to_pylist()
        if (row["day"] - days(today)["day"][0].as_py()).days >= -2
    ]
    if name == "counts":
        return answer_of(list(Counter(g for g, _ in rows).items()))
    return answer_of([(*row, days(today)["day"][0].as_py()) for row in rows])


def test_changes_follow_the_clock(
    tmp_path: Path, cli_of: CliOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what only the clock puts out moves, by `changes` and by `maintain --changes`."""
    create_table(str(tmp_path / "t"), days(*range(8)))
    cli = cli_of(CLOCKED.replace("POLICY", "auto"))
    monkeypatch.setenv("IMPCTL_NOW", "2026-03-05T10:00:00Z")
    cli.good("capture")
    rows = {name: expected(tmp_path, name, 4) for name in ("recent", "counts")}
    for today in (5, 7):
        write_deltalake(str(tmp_path / "t"), days(today, today), mode="append")
        monkeypatch.setenv("IMPCTL_NOW", f"2026-03-0{today + 1}T10:00:00Z")
        for name, before in rows.items():
            out = tmp_path / "c.parquet"
            cli.good("changes", "--query", name, "--out", str(out))
            wanted = expected(tmp_path, name, today)
            assert applied(before, pq.read_table(out)) == wanted, name
        ran = cli.good("maintain", "--changes", str(tmp_path / "out"))
        for one in ran.results:
            (path,) = one["change_files"]
            assert f"current_date-2026-03-0{today + 1}" in path
            wanted = expected(tmp_path, one["query"], today)
            assert applied(rows[one["query"]], pq.read_table(path)) == wanted, one
            rows[one["query"]] = wanted


def test_follow_prints_a_document_per_look_that_found_something(kept: Cli) -> None:
    folder, rows = kept.workload.parent, Counter[str]()

    def react(line: dict[str, Any]) -> None:
        nonlocal rows
        rows = documented(rows, line)
        assert rows == documented_answer(folder, line["results"][0]["versions"])
        grow(folder)

    options = ("--query", "plain", "--all", "--max-runs", "3")
    code, lines = followed(kept.workload, *options, command="changes", react=react)
    assert code == 0
    assert [(line["command"], line["ok"]) for line in lines] == [("changes", True)] * 3
    assert [line["run"]["number"] for line in lines] == [1, 2, 3]
    assert [line["results"][0]["versions"] for line in lines] == [{"a": at} for at in range(3)]


def documented(rows: Counter[str], line: dict[str, Any]) -> Counter[str]:
    """The answer after a document's changes, each row as its text."""
    (result,) = line["results"]
    assert result["columns"][:2] == ["_change", "_copies"]
    after = rows.copy()
    for change_, copies, *row in result["rows"]:
        after[json.dumps(row)] += copies if change_ == "insert" else -copies
    assert all(count >= 0 for count in after.values())
    return +after


def documented_answer(folder: Path, versions: dict[str, int]) -> Counter[str]:
    a = DeltaTable(str(folder / "a"), version=versions["a"]).to_pyarrow_table()
    with duck() as connection:
        connection.register("a", a)
        result = connection.execute(QUERIES["plain"]).fetchall()
    return Counter(json.dumps([s, "NaN" if d is not None and d != d else d]) for s, d in result)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("changes", "--since", "0"), "version_gone"),
        (("query", "--at", "0", "--by", "engine"), "data_files_gone"),
    ],
)
def test_files_of_an_older_version_that_were_vacuumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: str
) -> None:
    """Nothing that is done now brings them back, and nothing of the kind is advised."""
    cli = Cli(capsys, write_workload(tmp_path, ("plain",)))
    cli.good("capture")
    table = DeltaTable(str(tmp_path / "a"))
    table.delete("x = 3")
    cli.good("maintain")
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    ran = cli(words[0], "--query", "plain", *words[1:])
    assert ran.refusal == (7, code)
    assert "capture" not in ran.error["hint"]
    assert f"`{words[1]}` takes" in ran.error["hint"]


def test_both_answers_since_a_version_are_of_one_instant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row came or went, though it is another day whenever somebody looks at the clock."""
    days = [datetime(2026, 3, day, tzinfo=UTC) for day in range(1, 9)]
    create_table(str(tmp_path / "t"), pa.table({"day": [day.date() for day in days]}))
    file = tmp_path / "w.yaml"
    sql = "SELECT day FROM t WHERE day >= current_date"
    text = f"version: 1\ntables:\n  t: {{path: t}}\nqueries:\n  q: {{sql: {sql}, sketch: none}}\n"
    file.write_text(f"{text}store: .impctl\n")
    looks = iter(days)
    monkeypatch.setattr(Workbench, "time", lambda _: Clock(next(looks)))
    assert Cli(capsys, file).one("changes", "--since", "0")["rows"] == []


LONG = (pytest.mark.slow, pytest.mark.long)


def readers(folder: Path) -> dict[str, Reader]:
    """Programs that have the answers as they are now."""
    result = {}
    for name in QUERIES:
        held = stored(folder, name)
        answer = answer_at(folder, name, dict(held.versions))
        result[name] = Reader(folder / "out" / name, answer, held.generation, held.versions)
    return result


def run_steps(cli: Cli, steps: int, seed: int) -> dict[str, Reader]:
    """Random changes, maintained some at a time; each time every program reads on."""
    folder, draw = cli.workload.parent, random.Random(seed)
    programs = readers(folder)
    for _ in range(steps):
        for _ in range(draw.choice([1, 1, 2])):
            change(folder, draw)
        ran = cli.good("maintain", "--changes", str(folder / "out"))
        written = {name for one in ran.results for name in one["change_files"]}
        assert all(Path(name).exists() for name in written)
        for name, program in programs.items():
            held = stored(folder, name)
            program.read(held.generation)
            assert program.versions == held.versions
            assert program.answer == answer_at(folder, name, dict(held.versions)), name
    return programs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "seed"),
    [(2, 3), (12, 4), *(pytest.param(40, n, marks=LONG) for n in range(2))],
)
def test_programs_that_read_the_files_have_every_answer(kept: Cli, steps: int, seed: int) -> None:
    programs = run_steps(kept, steps, seed)
    assert sum(len(program.taken) for program in programs.values()) > 4 * steps
    # Versions passed one by one leave a file each.
    assert len(programs["eager"].taken) >= len(programs["groups"].taken)


def test_files_of_several_steps_that_were_never_committed_are_gone_with_the_next_commit(
    kept: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version by version before the kill, all at once after it."""
    folder = kept.workload.parent
    names = ("eager", "groups", "joined", "top")
    asked = [f"--query={name}" for name in names]
    programs = {name: one for name, one in readers(folder).items() if name in names}
    for _ in range(3):
        grow(folder)
    with monkeypatch.context() as patch:
        patch.setattr(RealDisk, "commit", Mock(side_effect=KeyboardInterrupt))
        assert kept("maintain", "--changes", str(folder / "out"), *asked).code == 130
    assert len(list((folder / "out" / "eager").iterdir())) == 3
    for _ in range(2):
        kept.good("maintain", "--changes", str(folder / "out"), "--batch-rows", "1000", *asked)
        grow(folder)
        for name, program in programs.items():
            held = stored(folder, name)
            program.read(held.generation)
            assert program.answer == answer_at(folder, name, dict(held.versions)), name
            assert len(list(program.folder.iterdir())) == len(program.taken), name


def test_a_file_says_what_it_leads_from_and_to(kept: Cli) -> None:
    folder = kept.workload.parent
    grow(folder)
    ran = kept.good("maintain", "--changes", str(folder / "out"), "--query", "joined")
    (path,) = ran.results[0]["change_files"]
    assert path == str(folder / "out" / "joined" / "000002_a-0-1_b-0-0.parquet")
    table = pq.read_table(path)
    assert table.column_names == ["_change", "_copies", "s", "w"]
    assert Reader.said(table) == {
        "query": "joined",
        "commit": 2,
        "since": {"a": 0, "b": 0},
        "versions": {"a": 1, "b": 0},
    }


def test_a_step_that_changes_nothing_leaves_a_file_all_the_same(kept: Cli) -> None:
    folder = kept.workload.parent
    nothing = kept_workload.rows_of_a(random.Random(2), 1).set_column(3, "x", [[0]])
    kept_workload.write_deltalake(str(folder / "a"), nothing, mode="append")
    ran = kept.good("maintain", "--changes", str(folder / "out"), "--query", "plain")
    (path,) = ran.results[0]["change_files"]
    assert pq.read_table(path).num_rows == 0
    again = kept.good("maintain", "--changes", str(folder / "out"), "--query", "plain")
    assert again.results[0]["change_files"] == []
    assert len(list((folder / "out" / "plain").iterdir())) == 1


@pytest.mark.slow
def test_a_recapture_is_told_as_the_difference_of_two_answers(kept: Cli) -> None:
    folder = kept.workload.parent
    programs = readers(folder)
    grow(folder)
    change(folder, random.Random(9))
    ran = kept.good("maintain", "--changes", str(folder / "out"), "--policy", "full")
    assert {one["action"] for one in ran.results} == {"recapture"}
    for name, program in programs.items():
        held = stored(folder, name)
        program.read(held.generation)
        assert program.answer == answer_at(folder, name, dict(held.versions)), name


def test_a_recapture_after_some_steps_goes_on_from_these(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of a run that are committed have their files, and the recapture the number after."""
    file = write_workload(tmp_path, ("eager",))
    file.write_text(file.read_text().replace("incremental", "auto"))
    cli = Cli(capsys, file)
    cli.good("capture")
    held = stored(tmp_path, "eager")
    answer = answer_at(tmp_path, "eager", dict(held.versions))
    program = Reader(tmp_path / "out" / "eager", answer, held.generation, held.versions)
    for _ in range(4):
        grow(tmp_path)
    step, made = Maintainer.step, 0

    def third_fails(self: Maintainer, *args: object, **words: object) -> object:
        nonlocal made
        made += 1
        if made == 3:
            raise RecaptureNeededError("history is gone", code="history_gone")
        return step(self, *args, **words)  # type: ignore[arg-type]

    monkeypatch.setattr(Maintainer, "step", third_fails)
    ran = cli.good("maintain", "--changes", str(tmp_path / "out"))
    assert [one["action"] for one in ran.results] == ["recapture"]
    names = [Path(path).name for path in ran.results[0]["change_files"]]
    assert names == ["000002_a-0-1.parquet", "000003_a-1-2.parquet", "000004_a-2-4.parquet"]
    program.read(4)
    assert program.answer == answer_at(tmp_path, "eager", {"a": 4})


def test_of_an_answer_that_was_not_kept_before_changes_begin_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_workload(tmp_path, ("plain",))
    text = file.read_text()
    cli = Cli(capsys, file)
    file.write_text(text.replace("answer: true", "answer: false").replace("incremental", "auto"))
    cli.good("capture")
    file.write_text(text.replace("incremental", "auto"))
    grow(tmp_path)
    ran = cli.good("maintain", "--changes", str(tmp_path / "out"))
    assert ran.results[0]["change_files"] == []
    assert any("no file with its changes" in warning for warning in ran.document["warnings"])
    held = stored(tmp_path, "plain")
    answer = answer_at(tmp_path, "plain", dict(held.versions))
    program = Reader(tmp_path / "out" / "plain", answer, held.generation, held.versions)
    grow(tmp_path)
    again = cli.good("maintain", "--changes", str(tmp_path / "out"))
    assert not any("no file with its changes" in warning for warning in again.document["warnings"])
    program.read(held.generation + 1)
    assert program.answer == answer_at(tmp_path, "plain", {"a": 2})


def test_what_cannot_be_written_to_is_refused_before_anything_is_maintained(kept: Cli) -> None:
    folder = kept.workload.parent
    grow(folder)
    (folder / "taken").write_text("")
    reserved = (folder / "a" / "out", folder / "a", folder / ".impctl" / "x", kept.workload)
    for given in reserved:
        assert kept("maintain", "--changes", str(given)).refusal == (2, "output_reserved"), given
    taken = str(folder / "taken")
    assert kept("maintain", "--changes", taken).refusal == (2, "changes_folder")
    assert all(stored(folder, name).generation == 1 for name in QUERIES)
    assert not (folder / "a" / "out").exists()


def test_queries_without_an_answer_are_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_workload(tmp_path, ("plain", "single"))
    file.write_text(file.read_text().replace("answer: true", "answer: false", 1))
    cli = Cli(capsys, file)
    cli.good("capture")
    named = cli("maintain", "--changes", str(tmp_path / "out"), "--query", "plain")
    assert named.refusal == (2, "answer_not_kept")
    grow(tmp_path)
    ran = cli.good("maintain", "--changes", str(tmp_path / "out"))
    assert [(one["query"], len(one["change_files"])) for one in ran.results] == [
        ("plain", 0),
        ("single", 1),
    ]


def test_a_dry_run_writes_no_changes(kept: Cli) -> None:
    folder = kept.workload.parent
    grow(folder)
    kept.good("maintain", "--changes", str(folder / "out"), "--dry-run")
    assert not (folder / "out").exists()


def test_a_folder_that_fills_up_stops_the_commit(
    kept: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = kept.workload.parent
    grow(folder)
    with monkeypatch.context() as patch:
        patch.setattr(pq, "write_table", Mock(side_effect=OSError(28, "No space left on device")))
        ran = kept("maintain", "--changes", str(folder / "out"), "--query", "plain")
    assert ran.refusal == (6, "changes_not_written")
    assert "No space left" in ran.error["message"]
    assert stored(folder, "plain").generation == 1
    assert not list((folder / "out" / "plain").iterdir())
    kept.good("maintain", "--changes", str(folder / "out"), "--query", "plain")
    assert len(list((folder / "out" / "plain").iterdir())) == 1
