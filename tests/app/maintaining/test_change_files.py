"""`maintain --changes`: files from which a program rebuilds every answer, commit by commit."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from impctl.app.maintaining.step import Maintainer
from impctl.errors import RecaptureNeededError
from impctl.store.disk import RealDisk
from tests.support import kept_workload
from tests.support.change_reader import Reader
from tests.support.kept_workload import QUERIES, answer_at, change, grow, stored, write_workload
from tests.support.run_cli import Cli

SLOW = pytest.mark.slow
LONG = (pytest.mark.slow, pytest.mark.long)


def readers(folder: Path) -> dict[str, Reader]:
    """Programs that have the answers as they are now."""
    found = {}
    for name in QUERIES:
        held = stored(folder, name)
        answer = answer_at(folder, name, dict(held.versions))
        found[name] = Reader(folder / "out" / name, answer, held.generation, held.versions)
    return found


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
    [(2, 3), pytest.param(12, 4, marks=SLOW), *(pytest.param(40, n, marks=LONG) for n in range(2))],
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

    def killed(self: RealDisk, connection: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RealDisk, "commit", killed)
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
    assert any("no file tells" in warning for warning in ran.document["warnings"])
    held = stored(tmp_path, "plain")
    answer = answer_at(tmp_path, "plain", dict(held.versions))
    program = Reader(tmp_path / "out" / "plain", answer, held.generation, held.versions)
    grow(tmp_path)
    again = cli.good("maintain", "--changes", str(tmp_path / "out"))
    assert not any("no file tells" in warning for warning in again.document["warnings"])
    program.read(held.generation + 1)
    assert program.answer == answer_at(tmp_path, "plain", {"a": 2})


def test_what_cannot_be_written_to_is_refused_before_anything_is_maintained(kept: Cli) -> None:
    folder = kept.workload.parent
    grow(folder)
    (folder / "taken").write_text("")
    for given in (folder / "a" / "out", folder / "a", folder / ".impctl" / "x", folder / "taken"):
        ran = kept("maintain", "--changes", str(given))
        assert (ran.code, ran.error["code"]) == (2, "changes_folder"), given
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
    assert (named.code, named.error["code"]) == (2, "answer_not_kept")
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

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pq, "write_table", full)
        ran = kept("maintain", "--changes", str(folder / "out"), "--query", "plain")
    assert (ran.code, ran.error["code"]) == (6, "changes_not_written")
    assert "No space left" in ran.error["message"]
    assert stored(folder, "plain").generation == 1
    assert not list((folder / "out" / "plain").iterdir())
    kept.good("maintain", "--changes", str(folder / "out"), "--query", "plain")
    assert len(list((folder / "out" / "plain").iterdir())) == 1
