"""`changes`: what came and went, told without a commit: by state, or by two answers."""

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

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.app.maintaining.step import Maintainer
from impctl.app.using.changed import Answer, Changed
from impctl.app.workbench.settings import Settings
from impctl.app.workbench.workbench import Workbench, open_workbench
from impctl.errors import RecaptureNeededError
from impctl.plan.sql.clock import Clock
from impctl.tables.write.create import create_table
from tests.support.change_reader import Answer as Rows
from tests.support.change_reader import answer_of, applied
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
from tests.support.run_cli import Cli


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
        for name, found in looked.items():
            held = dict(stored(folder, name).versions)
            assert found.since == held
            assert found.by == "state"
            after = applied(answer_at(folder, name, held), found.changes)
            assert after == answer_at(folder, name, dict(found.versions)), (step, name)
            told[name] += found.changes.num_rows
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
                found = answer.next(now)
                assert found.by == "state"
                rows[name] = applied(rows[name], found.changes)
                assert rows[name] == answer_at(folder, name, dict(found.versions)), (step, name)
            now.close()


def answer_of_changes(found: Changed) -> Rows:
    assert not found.since
    return applied(Counter(), found.changes)


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
                    patch.setattr(Maintainer, "_meta", refuse)
                now = desk.next_run(())
                for name, answer in answers.items():
                    found = answer.next(now)
                    by.add((step, str(found.by)))
                    rows[name] = applied(rows[name], found.changes)
                    wanted = answer_at(folder, name, dict(found.versions))
                    assert rows[name] == wanted, (step, name)
                now.close()
    expected = {(step, "state" if step < fails_at else "engine") for step in range(fails_at + 2)}
    assert by == expected


def refuse(*_: object) -> None:
    raise RecaptureNeededError("history is gone", code="history_gone")


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
        (result,) = kept.good("changes", "--query", name, *given, "--out", str(out)).results
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
    (result,) = cli.good("changes", "--since", "0").results
    assert result["row_count"] > 0
    assert result["by"] == "engine"


@pytest.mark.slow
def test_the_whole_answer_is_that_of_the_store(kept: Cli) -> None:
    folder = kept.workload.parent
    grow(folder)
    for name in QUERIES:
        held = stored(folder, name)
        out = folder / "all.parquet"
        (result,) = kept.good("changes", "--query", name, "--all", "--out", str(out)).results
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
        (result,) = kept.good("changes", "--query", "groups").results
    assert result["row_count"] > 0


def test_a_limit_shows_the_first_rows_and_counts_all(kept: Cli) -> None:
    grow(kept.workload.parent)
    (whole,) = kept.good("changes", "--query", "plain").results
    (result,) = kept.good("changes", "--query", "plain", "--limit", "1").results
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
    assert (ran.code, ran.error["code"]) == (exit_code, error_code), ran.document
    assert ran.error["hint"]


def test_another_reading_of_the_query_is_refused(kept: Cli) -> None:
    kept.workload.write_text(kept.workload.read_text().replace("x > 2", "x > 1"))
    ran = kept("changes", "--query", "plain")
    assert (ran.code, ran.error["code"]) == (7, "definition_changed")


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


@pytest.mark.slow
def test_changes_follow_the_clock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what only the clock puts out moves, by `changes` and by `maintain --changes`."""
    create_table(str(tmp_path / "t"), days(*range(8)))
    file = tmp_path / "w.yaml"
    file.write_text(CLOCKED.replace("POLICY", "auto"))
    cli = Cli(capsys, file)
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
        found = connection.execute(QUERIES["plain"]).fetchall()
    return Counter(json.dumps([s, "NaN" if d is not None and d != d else d]) for s, d in found)


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
    assert (ran.code, ran.error["code"]) == (7, code)
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
    (result,) = Cli(capsys, file).good("changes", "--since", "0").results
    assert result["rows"] == []
