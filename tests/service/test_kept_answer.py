"""Kept answers, without a JVM: captured, maintained, asked, refused, and what they gained."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from prometheus_client.parser import text_string_to_metric_families

from impctl.engine.batch import Batch
from impctl.engine.result_rows import KeptRows
from impctl.service import context, prepare, stored
from impctl.service.context import AnswerCounter
from impctl.service.results import COSTS_MORE
from impctl.service.status import _hint
from impctl.store import ledger as ledgers
from impctl.store.ledger import Ledger, Uses
from impctl.store.store import Store
from tests.support.kept_workload import stored as stored_query
from tests.support.random_cases import random_cases
from tests.support.run_cli import Cli, CliOnce, MonkeyPatch, Ran, Words, write_files

WORKLOAD = """\
version: 1
tables: {t: {path: t}}
partitions:
  t: {g: {boundaries: [2, 4, 6]}, day: {boundaries: [2026-11-10, 2026-11-20]}}
queries:
  kept:
    sql: &text >-
      SELECT g AS `key`, COUNT(*) AS n, SUM(x) AS s, AVG(y) AS a FROM t
      GROUP BY g HAVING COUNT(*) > 1 ORDER BY a DESC, g
    answer: true
  plain:
    sql: *text
  top:
    sql: SELECT g, SUM(y) AS s FROM t GROUP BY g ORDER BY s DESC, g LIMIT 2 OFFSET 1
    answer: true
  rows:
    sql: SELECT g, x FROM t WHERE x > 10
    answer: true
  window:
    sql: >-
      SELECT g, SUM(x) AS s FROM t WHERE day >= current_date - INTERVAL 5 DAYS
      GROUP BY g HAVING SUM(x) > 0
    answer: true
  late:  # Its constant that moves stands in what is made of the rows.
    sql: >-
      SELECT g, MAX(day) AS last, COUNT(*) AS n FROM t GROUP BY g
      HAVING MAX(day) >= current_date - INTERVAL 1 DAYS
    answer: true
  lacking:
    sql: SELECT g, MODE(x) AS n FROM t GROUP BY g HAVING COUNT(*) > 1
    answer: true
store: .impctl
"""

SCHEMA = pa.schema(
    [("g", pa.int64()), ("x", pa.int64()), ("y", pa.float64()), ("day", pa.date32())]
)


def rows_of(*rows: tuple[Any, ...]) -> pa.Table:
    columns = [list(column) for column in zip(*rows, strict=True)]
    days = pa.array([20400 + day for day in columns.pop()], pa.int32()).cast(pa.date32())
    return pa.table([*map(pa.array, columns), days], names=SCHEMA.names).cast(SCHEMA)


ROWS = rows_of(
    *((0, 5, 0.5, 1), (0, 15, 1.5, 2), (1, 25, None, 3)),
    *((3, 5, -2.0, 4), (3, 15, 2.0, 5), (3, 15, 2.0, 5)),
    *((5, None, 9.0, 6), (None, 15, 1.0, 7), (None, 15, 1.0, 8)),
)
MORE = rows_of((5, 7, 1.0, 9), (1, 11, 3.0, 9), (0, -20, -0.0, 10))
NOW = "2025-11-12T08:00:00"
KEPT = ["kept", "top", "rows", "window"]
CHOSEN = [f"--query={name}" for name in KEPT]


WRITE = partial(write_files, workload=WORKLOAD, t=ROWS)


@pytest.fixture
def cli(monkeypatch: MonkeyPatch, cli_once: CliOnce) -> Cli:
    monkeypatch.setenv("IMPCTL_NOW", NOW)
    return cli_once("answers to keep", WRITE)


@pytest.fixture
def held(monkeypatch: MonkeyPatch, cli_once: CliOnce) -> Cli:
    """The same with all of `KEPT` and `late` captured."""
    monkeypatch.setenv("IMPCTL_NOW", NOW)
    return cli_once("kept answers", WRITE, lambda cli: cli.captured(*CHOSEN, "--query=late"))


def asked(cli: Cli, query: str, by: str) -> list[Any]:
    result = cli.one("query", "--query", query, "--by", by)
    assert result["by"] == by
    rows = result["rows"]
    return rows if query in ("kept", "top") else sorted(rows, key=repr)


def changed(cli: Cli) -> None:
    """Rows come, and go, and one comes again."""
    cli.append("t", MORE)
    cli.table("t").delete("g = 3 AND x = 15")
    cli.append("t", rows_of((3, 15, 2.0, 5)))


@pytest.mark.slow
def test_what_is_kept_is_the_answer(held: Cli) -> None:
    assert asked(held, "kept", "state")[0] == [None, 2, 30, 1.0]
    changed(held)
    for query in KEPT:
        kept = asked(held, query, "state")
        assert kept == asked(held, query, "engine")
        assert kept
    assert asked(held, "top", "state") == [[1, 3.0], [None, 2.0]]


def test_auto_takes_what_is_kept_and_says_so(held: Cli) -> None:
    result = held.one("query", "--query", "kept", "--sketch", "auto")
    assert (result["by"], result["files_total"]) == ("state", 0)
    assert "materialized" in result["by_reason"]
    assert held.one("query", "--query", "kept", "--sketch", "always")["by"] == "engine"


@pytest.mark.slow
def test_other_constants_and_versions_are_not_in_the_state(held: Cli) -> None:
    changed(held)
    sql = "SELECT g AS `key`, COUNT(*) AS n, SUM(x) AS s, AVG(y) AS a FROM t GROUP BY g"
    other = held.one("query", "--sql", f"{sql} HAVING COUNT(*) > 2 ORDER BY a DESC, g")
    old = held.one("query", "--query", "kept", "--at", "0")
    assert (other["by"], old["by"]) == ("engine", "engine")
    assert old["rows"][-1] == [0, 2, 20, 1.0] or len(old["rows"]) == 3


def test_an_answer_that_cannot_be_kept_leaves_the_sketch(cli: Cli) -> None:
    (warning,) = cli.warnings("capture", "--query", "lacking")
    assert "not materialized" in warning
    assert "mode" in warning.lower()
    told = cli.one("explain", "--query", "lacking")
    assert (told["answer"]["kept"], told["mode"]) == (False, "exact")
    changed(cli)
    assert cli.one("maintain", "--query", "lacking")["action"] == "exact"
    assert cli("query", "--query", "lacking", "--by", "engine").error["code"] == "engine_cannot"


def test_check_says_whether_the_answer_would_be_kept(cli: Cli) -> None:
    told = {one["query"]: one["answer"] for one in cli.good("check").results}
    explained = {one["query"]: one["answer"] for one in cli.good("explain").results}
    assert told == explained
    assert told["plain"] is None
    assert told["lacking"]["kept"] is False
    assert told["kept"]["row_bytes"] > 0
    shown = cli.text("check")
    assert shown.count("result materialized (columns") == 5
    assert shown.count("result not materialized: ") == 1


CONDITIONS: list[tuple[str, str, Any]] = [
    ("kept", "`key` = 3", lambda row: row[0] == 3),
    ("kept", "3 = key and n > 1", lambda row: row[0] == 3 and row[1] > 1),
    ("kept", "key is null", lambda row: row[0] is None),
    ("kept", "n > 1 or key = 3", lambda row: row[1] > 1 or row[0] == 3),
    ("kept", "key = 3 and s < -100", lambda row: False),
    ("kept", "key = 77", lambda row: False),
    ("kept", "key = 3.0", lambda row: row[0] == 3),
    ("kept", "s > 1.5", lambda row: row[2] is not None and row[2] > 1.5),
    ("kept", "NULL", lambda row: False),
    ("kept", "a <= 0.5D OR s IS NULL", lambda row: row[2] is None or row[3] <= 0.5),
    ("kept", "s IN (30, 1.0)", lambda row: row[2] in (30, 1)),
    ("top", "g = 1", lambda row: row[0] == 1),
    ("rows", "x >= 15 and g = 0", lambda row: row[1] >= 15 and row[0] == 0),
]


IN_TURN = pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
"""Few of the cases in the fast run."""


@IN_TURN
def test_conditions_on_the_answer(held: Cli, step: int) -> None:
    changed(held)
    answers = {query: asked(held, query, "engine") for query in ("kept", "top", "rows")}
    for at, ((query, where, kept), by) in enumerate(product(CONDITIONS, ("state", "engine"))):
        if by == "engine" and at % step:
            continue
        wanted = [row for row in answers[query] if kept(row)]
        rows = held.one("query", "--query", query, "--by", by, "--where", where)["rows"]
        assert (rows if query != "rows" else sorted(rows, key=repr)) == wanted, where


def test_a_look_up_reads_the_rows_of_its_key(held: Cli, monkeypatch: MonkeyPatch) -> None:
    read: list[int] = []
    whole = KeptRows.whole

    def counting(self: KeptRows) -> Batch:
        result = whole(self)
        read.append(len(result))
        return result

    monkeypatch.setattr(KeptRows, "whole", counting)
    held.good("query", "--query", "kept", "--by", "state", "--where", "key = 3")
    held.good("query", "--query", "kept", "--by", "state", "--where", "key > 2")
    assert read == [1, 3]


BY_STATE, BY_ENGINE = ("--by", "state"), ("--by", "engine")


@IN_TURN
def test_conditions_that_are_none_and_those_that_only_spark_finds_the_truth_of(
    held: Cli, step: int
) -> None:
    """Each of the others lost rows, had too many or ended in a trace when it was evaluated."""
    others = (
        *("s = '30'", "s >= '30'", "s IN ('30', 1)", "a = NULL", "s = TRUE", "s LIKE NULL"),
        *("s BETWEEN '1' AND '9'", "CAST(a AS FLOAT) = CAST(0.5 AS FLOAT)", "s", "1"),
    )
    none = ("nothing = 1", "key = (SELECT 1)", "key = 1 ORDER BY n", "key =", "SUM(n) > 1")
    cases = [*((w, ()) for w in none), *product(others, (BY_STATE, BY_ENGINE))]
    for where, by in cases[::step]:
        ran = held("query", "--query", "kept", *by, "--where", where)
        assert ran.refusal == (2, "where_unread"), where
        assert not by or "the result" in ran.error["message"]


def test_rows_of_a_later_commit_have_its_versions(held: Cli, monkeypatch: MonkeyPatch) -> None:
    """Another process maintains the query when its rows are about to be read."""
    read = Store.load_runs

    def late(self: Store, query: str, beginning: str = "") -> Any:
        monkeypatch.setattr(Store, "load_runs", read)
        changed(held)
        held.good("maintain", "--query", "rows")
        return read(self, query, beginning)

    monkeypatch.setattr(Store, "load_runs", late)
    result = held.one("query", "--query", "rows", "--by", "state")
    assert result["versions"] == {"t": 3}
    assert sorted(result["rows"], key=repr) == asked(held, "rows", "engine")


def test_a_sum_beyond_the_greatest_double_is_told_by_nobody_but_spark(held: Cli) -> None:
    """In another order of additions it may be finite: nothing is known of its value."""
    held.append("t", rows_of((5, 7, 1.7e308, 9), (5, 7, 1.7e308, 9)))
    for by in ("state", "engine"):
        for query in ("kept", "top"):
            ran = held("query", "--query", query, "--by", by, "--policy", "incremental")
            assert ran.code != 0
            assert "depends on the order of a sum of doubles" in ran.error["message"]
        assert asked(held, "rows", by)


def damage(cli: Cli, query: str, arrangement: str = "answer.rows") -> None:
    """One bit of what is kept of the query under this name."""
    chosen = "WHERE arrangement = ? AND query_id = (SELECT id FROM query WHERE name = ?)"
    with closing(sqlite3.connect(cli.folder / ".impctl" / "catalog.sqlite")) as catalog, catalog:
        sql = f"SELECT sequence, content FROM run {chosen}"
        result = catalog.execute(sql, (arrangement, query)).fetchall()
        assert result
        for sequence, content in result:
            spoiled = bytearray(content)
            spoiled[len(spoiled) // 2] ^= 1
            sql = f"UPDATE run SET content = ? {chosen} AND sequence = ?"
            catalog.execute(sql, (spoiled, arrangement, query, sequence))


def query(cli: Cli, name: str, *words: str) -> Ran:
    return cli("query", "--query", name, "--sketch", "auto", *words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy"), [("rows", "auto"), ("top", "auto"), ("kept", "incremental")]
)
def test_damaged_rows_are_read_anew_with_a_warning(held: Cli, name: str, policy: str) -> None:
    wanted = asked(held, name, "engine")
    damage(held, name)
    ran = query(held, name, "--policy", policy)
    assert ran.code == 0, ran.document
    (result,) = ran.results
    assert (result["by"], result["action"]) == ("engine", "none")
    assert sorted(result["rows"], key=repr) == sorted(wanted, key=repr) != []
    (warning,) = ran.document["warnings"]
    assert f"the materialized result of query `{name}` is not used" in warning
    assert "checksum" in warning
    assert "`impctl capture`" in warning
    held.good("capture", "--query", name)
    assert asked(held, name, "state") == wanted


@pytest.mark.parametrize("words", [(), ("--where", "`key` = 3"), ("--where", "n > 0")])
def test_damaged_rows_are_refused_to_who_asks_for_them(held: Cli, words: Words) -> None:
    damage(held, "kept")
    ran = query(held, "kept", "--by", "state", *words)
    assert ran.refusal == (7, "state_corrupt")
    assert "impctl capture" in ran.error["hint"]
    assert query(held, "kept", "--policy", "strict", *words).refusal == (7, "state_corrupt")


@pytest.mark.slow
def test_damaged_rows_are_captured_anew_where_tables_changed(held: Cli) -> None:
    damage(held, "kept")
    changed(held)
    ran = query(held, "kept", "--by", "state")
    (result,) = ran.results
    assert (result["by"], result["action"]) == ("state", "recapture")
    assert result["rows"] == asked(held, "kept", "engine")
    (warning,) = ran.document["warnings"]
    assert "was recaptured" in warning
    assert "checksum" in warning


def test_a_policy_without_recapture_says_why_there_is_no_state(held: Cli) -> None:
    damage(held, "kept")
    changed(held)
    ran = query(held, "kept", "--by", "state", "--policy", "incremental")
    assert ran.refusal == (7, "state_corrupt")
    (result,) = query(held, "kept", "--policy", "incremental").results
    assert (result["by"], result["action"]) == ("engine", "no_sketch")
    assert result["rows"] == asked(held, "kept", "engine")


def test_a_query_that_was_never_captured_says_so(cli: Cli) -> None:
    ran = query(cli, "kept", "--by", "state")
    assert ran.refusal == (7, "not_captured")
    assert "impctl capture" in ran.error["hint"]
    assert query(cli, "plain", "--by", "state").error["code"] == "answer_not_kept"


@pytest.mark.slow
def test_other_state_that_is_damaged_spoils_no_answer(cli: Cli) -> None:
    """What maintaining needs is not read to answer; the next change finds it out."""
    cli.good("capture", "--query", "kept")
    wanted = asked(cli, "kept", "state")
    with closing(sqlite3.connect(cli.folder / ".impctl" / "catalog.sqlite")) as catalog:
        names = catalog.execute("SELECT DISTINCT arrangement FROM run")
        others = {name for (name,) in names} - {"answer.rows"}
    for name in others:
        damage(cli, "kept", name)
    assert others
    assert asked(cli, "kept", "state") == wanted
    changed(cli)
    (result,) = query(cli, "kept", "--by", "state").results
    assert (result["action"], result["rows"]) == ("recapture", asked(cli, "kept", "engine"))


@pytest.mark.slow
def test_what_gc_collects_is_no_part_of_an_answer(held: Cli) -> None:
    for _ in range(2):
        changed(held)
        held.good("maintain", *CHOSEN)
    held.good("gc", "--keep", "1")
    agree_after_changes(held)


def agree_after_changes(cli: Cli) -> None:
    changed(cli)
    for name in KEPT:
        assert asked(cli, name, "state") == asked(cli, name, "engine") != []


@pytest.mark.slow
def test_a_store_of_before_has_no_answers_until_they_are_asked_for(cli: Cli) -> None:
    """Without them it goes on; and what was kept goes where it is no longer asked for."""
    cli.good("capture", "--query", "plain")
    assert "answer" not in stored_query(cli.folder, "plain").state_meta
    changed(cli)
    assert cli.one("maintain", "--query", "plain")["action"] == "exact"
    result, older = (query(cli, "plain", *at).results[0] for at in ((), ("--at", "0")))
    assert result["by"] == "engine"
    assert older["rows"] != result["rows"]
    assert query(cli, "plain", "--by", "state").error["code"] == "answer_not_kept"
    cli.edit("sql: *text", "sql: *text\n    answer: true")
    (result,) = query(cli, "plain", "--by", "state").results
    assert (result["by"], result["action"]) == ("state", "recapture")
    assert sorted(result["rows"], key=repr) == asked(cli, "plain", "engine")
    cli.edit("sql: *text\n    answer: true", "sql: *text")
    assert query(cli, "plain", "--by", "state").error["code"] == "answer_not_kept"
    with Store.open(cli.folder / ".impctl", create=False) as store:
        assert "answer.rows" not in store.load_runs("plain")


@pytest.mark.slow
def test_new_ranges_take_answers_along(cli: Cli) -> None:
    cli.edit("g: {boundaries: [2, 4, 6]}", "g: {ranges: 3}")
    cli.good("capture", *CHOSEN)
    cli.append("t", rows_of(*((group, 11, 1.0, 9) for group in range(10, 90) for _ in range(2))))
    cli.good("maintain", *CHOSEN)
    before = {name: asked(cli, name, "state") for name in KEPT}
    done = cli.good("capture", "--rebalance", *CHOSEN).results
    assert "rebalance" in {result["action"] for result in done}
    assert {name: asked(cli, name, "state") for name in KEPT} == before
    agree_after_changes(cli)


Read = list[str]


@pytest.fixture
def ready(monkeypatch: MonkeyPatch, held: Cli) -> Cli:
    monkeypatch.setenv("IMPCTL_SKETCH", "auto")
    return held


@pytest.fixture
def read(monkeypatch: MonkeyPatch) -> Read:
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
def test_it_is_what_reading_says(
    ready: Cli, read: Read, monkeypatch: MonkeyPatch, query: str
) -> None:
    column = "`key`" if query == "kept" else "g"
    asked = [(), ("--where", f"{column} = 3"), ("--where", f"{column} IS NULL"), ("--limit", "1")]
    at_once = [answer(ready, query, *more) for more in asked]
    assert read == []
    assert {one["by"] for one in at_once} == {"state"}
    another_program(monkeypatch)
    assert at_once == [answer(ready, query, *more) for more in asked]
    assert set(read) == {query}


def test_a_condition_that_is_none_is_refused_as_ever(ready: Cli) -> None:
    ran = ready("query", "--query", "kept", "--where", "nothing = 1")
    assert ran.refusal == (2, "where_unread")


@pytest.mark.slow
def test_rows_that_came_are_maintained_first(ready: Cli, read: Read) -> None:
    ready.append("t", MORE)
    assert answer(ready, "kept")["action"] == "exact"
    assert read != []
    read.clear()
    after = answer(ready, "kept")
    assert read == []
    assert after["rows"] == answer(ready, "kept", "--by", "engine")["rows"]


@pytest.mark.slow
@pytest.mark.parametrize("query", ["window", "late"])
def test_a_moved_clock_is_first(
    ready: Cli, read: Read, monkeypatch: MonkeyPatch, query: str
) -> None:
    """Forth, which rows leave, and back, which they come again by."""
    for day in ("2025-11-17", "2025-11-08"):
        before = answer(ready, query)["rows"]
        monkeypatch.setenv("IMPCTL_NOW", f"{day}T09:00:00")
        read.clear()
        first = answer(ready, query)
        assert read != []
        read.clear()
        at_once = answer(ready, query)
        assert read == []
        assert at_once["rows"] == first["rows"] != before
        assert at_once["moments"] == first["moments"] == {"current_date": day}
        by_engine = answer(ready, query, "--by", "engine")["rows"]
        assert sorted(at_once["rows"], key=repr) == sorted(by_engine, key=repr)


def test_this_program_has_a_mark() -> None:
    """Without one, every result is read again: a package that it names is gone."""
    assert context.build_mark() != ""


def another_program(monkeypatch: MonkeyPatch, mark: str = "another") -> None:
    for module in (context, stored):
        monkeypatch.setattr(module, "build_mark", lambda: mark)


def older_store(monkeypatch: MonkeyPatch) -> None:
    load = Store.load

    def older(self: Store, query: str) -> Any:
        result = load(self, query)
        if result is not None:
            result.state_meta.pop("ending", None)
        return result

    monkeypatch.setattr(Store, "load", older)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(another_program, marks=pytest.mark.slow),
        pytest.param(lambda patch: another_program(patch, ""), marks=pytest.mark.slow),
        older_store,
    ],
    ids=["another program", "no files", "older store"],
)
def test_the_query_is_read_where_what_is_stored_does_not_say_all(
    ready: Cli, read: Read, monkeypatch: MonkeyPatch, make: Callable[[MonkeyPatch], None]
) -> None:
    before = answer(ready, "kept")
    make(monkeypatch)
    assert answer(ready, "kept") == before
    assert read != []


def test_a_definition_that_changed_is_not_told(ready: Cli, read: Read) -> None:
    ready.edit("HAVING COUNT(*) > 1 ORDER BY a DESC, g", "ORDER BY g")
    ran = ready("query", "--query", "kept", "--policy", "strict", "--require-sketch")
    assert ran.code != 0
    assert len(answer(ready, "kept")["rows"]) == 5
    assert read != []


def test_without_the_logs_entry_the_query_is_read(ready: Cli, read: Read) -> None:
    """The files are the same then, but they do not tell what their columns are called."""
    table = ready.folder / "t"
    before = answer(ready, "kept")
    assert read == []
    DeltaTable(table).create_checkpoint()
    (table / "_delta_log" / f"{0:020d}.json").unlink()
    after = answer(ready, "kept")
    assert read != []
    assert after["rows"] == before["rows"]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def answers(folder: Path, *names: str) -> tuple[int, ...]:
    return tuple(Ledger(folder).sums(name).answers for name in names)


def test_one_write_a_second_and_what_is_left_at_the_end(tmp_path: Path) -> None:
    clock = Clock()
    told = AnswerCounter(clock)
    assert told.add(tmp_path, "q")
    assert answers(tmp_path, "q") == (1,), "a program that asks once need not close anything"
    for _ in range(5):
        assert told.add(tmp_path, "q")
    assert answers(tmp_path, "q") == (1,)
    clock.now += 1.0
    assert told.add(tmp_path, "r")
    assert answers(tmp_path, "q", "r") == (6, 1)
    assert told.add(tmp_path, "r")
    other = tmp_path / "other"
    other.mkdir()
    assert all([told.add(other, "r"), told.add(other, "r")])
    assert all([told.write(), told.write()])
    assert answers(tmp_path, "q", "r") == (6, 2)
    assert answers(other, "q", "r") == (0, 2), "answers of two stores are not mixed"


def test_a_write_that_fails_is_made_up_for(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    clock = Clock()
    told = AnswerCounter(clock)
    assert told.add(tmp_path, "q")
    monkeypatch.setattr(ledgers, "_PATIENCE", 0.05)
    holder = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    clock.now += 1.0
    assert not told.add(tmp_path, "q")
    assert told.add(tmp_path, "q"), "it is not waited for at every answer"
    holder.close()
    clock.now += 1.0
    assert told.add(tmp_path, "q")
    assert answers(tmp_path, "q") == (4,)


LOW, HIGH = 30, 70
SQL = f"SELECT g, SUM(x) AS s FROM t WHERE h < {HIGH} GROUP BY g HAVING SUM(x) > 200"


def write_gains(folder: Path) -> None:
    for number in range(8):
        append(folder, number)
    partitions = {"t": {"g": {"ranges": 25}}}
    write_files(folder, {"tables": "t", "partitions": partitions, "queries": {"q": SQL}})


@pytest.fixture
def gains(cli_once: CliOnce) -> Cli:
    return cli_once("gain", write_gains)


@pytest.fixture
def captured(cli_once: CliOnce) -> Cli:
    return cli_once("gain captured", write_gains, Cli.captured)


def append(folder: Path, seed: int) -> None:
    """A file of a few groups beside each other; half of them are heavy now and then."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(5, 60))
    g = rng.integers(0, 10, count) + int(rng.integers(0, 90))
    h = rng.integers(0, 50, count) + int(rng.integers(0, 50))
    rows = pa.table({"g": g, "h": h, "x": rng.integers(0, 100, count)})
    write_deltalake(str(folder / "t"), rows, mode="append")


def told_by_the_log(folder: Path, ranges: list[tuple[float, float]]) -> dict[str, int]:
    """Files, rows and bytes by the add actions alone: all by `h`, and those in the ranges."""
    actions = DeltaTable(str(folder / "t")).get_add_actions(flatten=True)
    plain = [file for file in pa.table(actions).to_pylist() if file["min.h"] < HIGH]
    left = [
        file
        for file in plain
        if any(file["min.g"] < high and file["max.g"] >= low for low, high in ranges)
    ]
    sums = {}
    for name, files in (("", left), ("_plain", plain)):
        sums[f"files{name}"] = len(files)
        sums[f"rows{name}"] = sum(file["num_records"] for file in files)
        sums[f"bytes{name}"] = sum(file["size_bytes"] for file in files)
    return sums


def ranges_of(intervals: list[str]) -> list[tuple[float, float]]:
    """The printed intervals as numbers."""
    result = []
    for text in intervals:
        words = text.replace("L", "").split()
        if "<=" in words:
            result.append((float(words[0]), float(words[-1])))
        elif "<" in words:
            result.append((-np.inf, float(words[-1])))
        elif ">=" in words:
            result.append((float(words[-1]), np.inf))
        elif text.endswith("is not NULL"):
            result.append((-np.inf, np.inf))
    return result


@pytest.mark.slow
@random_cases(fast=10, check=15, total=200, all_when_long=True)
def test_the_ledger_equals_the_logs(captured: Cli, cases: range) -> None:
    uses = len(cases)
    rng, folder = random.Random(5), captured.folder
    expected = dict.fromkeys(told_by_the_log(folder, []), 0)
    for number in cases:
        if rng.random() < 0.2:
            append(folder, 100 + number)
        used = captured.one("rewrite")
        for name, value in told_by_the_log(folder, ranges_of(used["intervals"])).items():
            expected[name] += value
    result, status = captured.one("gain"), captured.one("status")
    assert result["uses"] == result["used"] == status["uses"] == uses
    assert {name: result[name] for name in expected} == expected
    assert result["upkeep_runs"] > 1
    assert status["bytes_left_out"] == expected["bytes_plain"] - expected["bytes"]
    assert captured.one("gain", "--since", "1d")["uses"] == uses


def families(path: Path) -> dict[str, dict[str, float]]:
    text = path.read_text()
    return {
        family.name: {s.labels.get("query", ""): s.value for s in family.samples}
        for family in text_string_to_metric_families(text)
    }


@pytest.mark.slow
def test_metrics_are_what_prometheus_reads(captured: Cli) -> None:
    captured.good("rewrite")
    out = captured.folder / "metrics" / "impctl.prom"
    append(captured.folder, 77)
    maintained = captured.one("maintain", "--metrics", str(out))
    result = families(out)
    assert result["impctl_maintain_success"] == {"q": 1.0}
    assert result["impctl_maintain_failures"] == {"": 0.0}
    assert result["impctl_maintain_changes"] == {"q": maintained["changes"]} != {"q": 0}
    captured.good("gain", "--metrics", str(out))
    result = families(out)
    assert result["impctl_uses"] == {"q": 1.0}
    assert set(result["impctl_left_out_bytes"]) == {"q"}
    assert [file.name for file in out.parent.iterdir()] == ["impctl.prom"]


def test_metrics_of_a_run_that_fails(captured: Cli) -> None:
    out, path = captured.folder / "impctl.prom", captured.path("t")
    write_deltalake(path, pa.table({"other": [1]}), mode="overwrite", schema_mode="overwrite")
    assert captured("maintain", "--metrics", str(out)).code != 0
    result = families(out)
    assert result["impctl_maintain_success"] == {"q": 0.0}
    assert result["impctl_maintain_failures"] == {"": 1.0}


def test_metrics_that_cannot_be_written_are_a_failure(captured: Cli) -> None:
    file = captured.folder / "file"
    file.write_text("")
    ran = captured("gain", "--metrics", str(file / "impctl.prom"))
    assert ran.error["code"] == "metrics_not_written"
    assert ran.error["message"].endswith("`: Not a directory")
    assert ran.results[0]["query"] == "q", "what was found is told all the same"
    assert captured.good("gain", "--metrics", "/dev/null").results


def test_a_query_that_was_never_used(gains: Cli) -> None:
    result = gains.one("gain")
    assert (result["uses"], result["verdict"], result["last_use"]) == (0, "not_used", None)
    gains.good("capture")
    assert gains.one("gain")["hint"] == "", "nobody had the time to use it"
    append(gains.folder, 77)
    gains.good("maintain")
    assert "stop maintaining the query" in gains.one("gain")["hint"]


def test_answers_from_kept_rows_are_told_as_no_uses(gains: Cli, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("IMPCTL_SKETCH", "auto")
    gains.edit(f'"{SQL}"', f'"{SQL}", "answer": true')
    gains.good("capture")
    append(gains.folder, 77)
    asked = [gains.one("query")["by"] for _ in range(3)]
    assert asked == ["state"] * 3, "the first reads the query and maintains, the others do not"
    result = gains.one("gain")
    assert (result["kept_answers"], result["uses"], result["verdict"]) == (3, 0, "answers")
    assert result["last_use"] is not None
    actions = gains.table("t").get_add_actions(flatten=True)
    size = sum(pa.table(actions)["size_bytes"].to_pylist())
    assert result["answers_bytes"] == 3 * size
    assert "3 answers from the materialized result" in gains.text("gain")
    shown, status = gains.text("status"), gains.one("status")
    assert "3 answers from the materialized result; last use" in shown
    assert ", result materialized" in shown
    assert status["keeps_answer"]
    assert (status["kept_answers"], status["last_use"]) == (3, result["last_use"])
    out = gains.folder / "impctl.prom"
    gains.good("gain", "--metrics", str(out))
    assert families(out)["impctl_kept_answers"] == {"q": 3.0}


@pytest.mark.parametrize(
    ("uses", "runs", "said"), [(2, 1, "too rarely"), (2, 3, "maintain it less often")]
)
def test_what_costs_more_than_it_saves_is_told_why(uses: int, runs: int, said: str) -> None:
    result = Uses(uses=uses, bytes=1, bytes_plain=100)
    assert said in _hint(COSTS_MORE, result, runs, lambda: "")


def test_several_queries_are_summed_up(gains: Cli) -> None:
    more = f'"{SQL}"}}, "kept": {{"sql": "{SQL}", "answer": true}}'
    gains.edit(f'"{SQL}"}}', more)
    gains.good("capture")
    for name in ("q", "kept", "kept"):
        gains.good("query", "--query", name, "--sketch", "auto")
    shown = gains.text("gain")
    assert "2 queries: 1 use of sketches, 2 answers from materialized results skipped" in shown
