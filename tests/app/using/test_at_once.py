"""A kept answer of which nothing moved is told without reading SQL, and otherwise with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.service import context, prepare, stored
from impctl.store.store import Store
from impctl.tables.write.maintenance import create_table
from tests.app.using.test_kept_answer import KEPT, MORE, NOW, ROWS, WORKLOAD
from tests.support.made_once import CliOnce
from tests.support.run_cli import Cli

Read = list[str]
LATE = """\
  late:
    sql: >-
      SELECT g, MAX(day) AS last, COUNT(*) AS n FROM t GROUP BY g
      HAVING MAX(day) >= current_date - INTERVAL 1 DAYS
    answer: true
"""
"""Its constant that moves stands in what is made of the rows."""


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, cli_once: CliOnce) -> Cli:
    monkeypatch.setenv("IMPCTL_NOW", NOW)
    monkeypatch.setenv("IMPCTL_SKETCH", "auto")

    def write(folder: Path) -> None:
        create_table(str(folder / "t"), ROWS)
        (folder / "w.yaml").write_text(WORKLOAD.replace("store:", f"{LATE}store:"))

    names = [f"--query={name}" for name in (*KEPT, "late")]
    return cli_once("at once", write, lambda cli: cli.captured(*names))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """The queries whose SQL was read since."""
    names: Read = []
    bind = prepare.bind

    def noted(*arguments: Any, name: str, **named: Any) -> Any:
        names.append(name)
        return bind(*arguments, name=name, **named)

    monkeypatch.setattr(prepare, "bind", noted)
    return names


def answer(cli: Cli, query: str, *more: str) -> Any:
    result = cli.one("query", "--query", query, *more)
    return {name: result[name] for name in result if not name.endswith("_ms")}


@pytest.mark.slow
@pytest.mark.parametrize("query", KEPT)
def test_it_is_what_is_told_of_a_query_that_is_read(
    cli: Cli, read: Read, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    column = "`key`" if query == "kept" else "g"
    asked = [(), ("--where", f"{column} = 3"), ("--where", f"{column} IS NULL"), ("--limit", "1")]
    at_once = [answer(cli, query, *more) for more in asked]
    assert read == []
    assert {one["by"] for one in at_once} == {"state"}
    another_program(monkeypatch)
    assert at_once == [answer(cli, query, *more) for more in asked]
    assert set(read) == {query}


def test_a_condition_that_is_none_is_refused_as_ever(cli: Cli) -> None:
    assert cli("query", "--query", "kept", "--where", "nothing = 1").refusal == (2, "where_unread")


@pytest.mark.slow
def test_rows_that_came_are_maintained_first(cli: Cli, read: Read) -> None:
    write_deltalake(str(cli.workload.parent / "t"), MORE, mode="append")
    assert answer(cli, "kept")["action"] == "exact"
    assert read != []
    read.clear()
    after = answer(cli, "kept")
    assert read == []
    assert after["rows"] == answer(cli, "kept", "--by", "engine")["rows"]


@pytest.mark.slow
@pytest.mark.parametrize("query", ["window", "late"])
def test_the_clock_that_moved_is_followed_first(
    cli: Cli, read: Read, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """Forth, which rows leave, and back, which they come again by."""
    for day in ("2025-11-17", "2025-11-08"):
        before = answer(cli, query)["rows"]
        monkeypatch.setenv("IMPCTL_NOW", f"{day}T09:00:00")
        read.clear()
        first = answer(cli, query)
        assert read != []
        read.clear()
        at_once = answer(cli, query)
        assert read == []
        assert at_once["rows"] == first["rows"] != before
        assert at_once["moments"] == first["moments"] == {"current_date": day}
        by_engine = answer(cli, query, "--by", "engine")["rows"]
        assert sorted(at_once["rows"], key=repr) == sorted(by_engine, key=repr)


def another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (context, stored):
        monkeypatch.setattr(module, "build_mark", lambda: "another")


def no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (context, stored):
        monkeypatch.setattr(module, "build_mark", lambda: "")


@pytest.mark.slow
@pytest.mark.parametrize("program", [another_program, no_files])
def test_another_program_reads_the_query(
    cli: Cli,
    read: Read,
    monkeypatch: pytest.MonkeyPatch,
    program: Callable[[pytest.MonkeyPatch], None],
) -> None:
    before = answer(cli, "kept")
    program(monkeypatch)
    assert answer(cli, "kept") == before
    assert read != []


def test_a_store_without_it_is_read(cli: Cli, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Store.load

    def older(self: Store, query: str) -> Any:
        result = load(self, query)
        if result is not None:
            result.state_meta.pop("ending", None)
        return result

    before = answer(cli, "kept")
    monkeypatch.setattr(Store, "load", older)
    assert answer(cli, "kept") == before
    assert read != []


def test_a_definition_that_changed_is_not_told(cli: Cli, read: Read) -> None:
    cli.edit("HAVING COUNT(*) > 1 ORDER BY a DESC, g", "ORDER BY g")
    ran = cli("query", "--query", "kept", "--policy", "strict", "--require-sketch")
    assert ran.code != 0
    assert len(answer(cli, "kept")["rows"]) == 5
    assert read != []


def test_without_the_logs_entry_the_query_is_read(cli: Cli, read: Read) -> None:
    """The files are the same then, but they do not tell what their columns are called."""
    table = cli.workload.parent / "t"
    before = answer(cli, "kept")
    assert read == []
    DeltaTable(table).create_checkpoint()
    (table / "_delta_log" / f"{0:020d}.json").unlink()
    after = answer(cli, "kept")
    assert read != []
    assert after["rows"] == before["rows"]
