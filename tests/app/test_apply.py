"""`apply` commits each batch once, and tells what is in the tables however it ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.tables.write.maintenance import create_table
from tests.crash.applying import VERSIONS, WANTED, rows, versions, write_batches
from tests.support.run_cli import Cli, CliOf
from tests.support.signals import interruptible

NAMES = ["first", "file", "grow", "twice", "gone", "same"]


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys, write_batches(tmp_path))


def table_rows(folder: Path) -> dict[str, list[tuple[int, int]]]:
    return {name: rows(folder / name) for name in WANTED}


@pytest.mark.slow
def test_a_repeat_says_where_the_batches_are(cli: Cli, tmp_path: Path) -> None:
    done = cli.good("apply", "--all").results
    assert [r["already_applied"] for r in done] == [False] * 6
    foreseen = cli.good("apply", "--all", "--dry-run").results
    again = cli.good("apply", "--all").results
    assert foreseen == again
    assert [(r["name"], r["version"]) for r in again] == [(r["name"], r["version"]) for r in done]
    assert all(r["already_applied"] and not r["inserted"] + r["updated"] for r in again)
    assert table_rows(tmp_path) == WANTED
    repeated = cli.one("apply", "same", "--again")
    assert (repeated["version"], repeated["inserted"]) == (5, 2)


@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("names", [["--all"], ["first"]])
def test_a_signal_during_a_commit_is_told_with_what_is_in(
    cli: Cli,
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
        shot = cli("apply", *names)
    assert shot.refusal == (130, "interrupted")
    assert [(r["name"], r["version"]) for r in shot.results] == [("first", 1)]
    assert "`first` (version 1 of `t`)" in shot.error["message"]
    assert "it skips batches that are already applied" in shot.error["hint"]
    assert versions(tmp_path) == {"t": 1, "u": 0}
    rest = cli.good("apply", "--all").results
    assert [r["name"] for r in rest if not r["already_applied"]] == NAMES[1:]
    assert (table_rows(tmp_path), versions(tmp_path)) == (WANTED, VERSIONS)


def test_what_is_in_is_told_beside_an_unexpected_error(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeltaTable, "update", Mock(side_effect=ZeroDivisionError))
    ran = cli("apply", "--all")
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
