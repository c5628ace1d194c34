"""Materialized results without Spark: capture, maintenance, queries, refusals and savings."""

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
def captured(monkeypatch: MonkeyPatch, cli_once: CliOnce) -> Cli:
    """The workload with all of `KEPT` and `late` captured."""
    monkeypatch.setenv("IMPCTL_NOW", NOW)
    return cli_once("kept answers", WRITE, lambda cli: cli.captured(*CHOSEN, "--query=late"))


def query_rows(cli: Cli, query: str, by: str) -> list[Any]:
    result = cli.one("query", "--query", query, "--by", by)
    assert result["by"] == by
    rows = result["rows"]
    return rows if query in ("kept", "top") else sorted(rows, key=repr)


def change_table(cli: Cli) -> None:
    """Insert rows, delete some and insert one again."""
    cli.append("t", MORE)
    cli.table("t").delete("g = 3 AND x = 15")
    cli.append("t", rows_of((3, 15, 2.0, 5)))


@pytest.mark.slow
def test_materialized_rows_equal_computed_rows(captured: Cli) -> None:
    assert query_rows(captured, "kept", "state")[0] == [None, 2, 30, 1.0]
    change_table(captured)
    for query in KEPT:
        rows = query_rows(captured, query, "state")
        assert rows == query_rows(captured, query, "engine")
        assert rows
    assert query_rows(captured, "top", "state") == [[1, 3.0], [None, 2.0]]


def test_auto_reports_use_of_the_materialized_result(captured: Cli) -> None:
    result = captured.one("query", "--query", "kept", "--sketch", "auto")
    assert (result["by"], result["files_total"]) == ("state", 0)
    assert "materialized" in result["by_reason"]
    assert captured.one("query", "--query", "kept", "--sketch", "always")["by"] == "engine"


@pytest.mark.slow
def test_other_constants_and_versions_need_the_engine(captured: Cli) -> None:
    change_table(captured)
    sql = "SELECT g AS `key`, COUNT(*) AS n, SUM(x) AS s, AVG(y) AS a FROM t GROUP BY g"
    other = captured.one("query", "--sql", f"{sql} HAVING COUNT(*) > 2 ORDER BY a DESC, g")
    old = captured.one("query", "--query", "kept", "--at", "0")
    assert (other["by"], old["by"]) == ("engine", "engine")
    assert old["rows"][-1] == [0, 2, 20, 1.0] or len(old["rows"]) == 3


def test_unsupported_result_does_not_affect_the_sketch(cli: Cli) -> None:
    (warning,) = cli.warnings("capture", "--query", "lacking")
    assert "not materialized" in warning
    assert "mode" in warning.lower()
    explained = cli.one("explain", "--query", "lacking")
    assert (explained["answer"]["kept"], explained["mode"]) == (False, "exact")
    change_table(cli)
    assert cli.one("maintain", "--query", "lacking")["action"] == "exact"
    assert cli("query", "--query", "lacking", "--by", "engine").error["code"] == "engine_cannot"


def test_check_says_if_the_result_is_materialized(cli: Cli) -> None:
    checked = {one["query"]: one["answer"] for one in cli.good("check").results}
    explained = {one["query"]: one["answer"] for one in cli.good("explain").results}
    assert checked == explained
    assert checked["plain"] is None
    assert checked["lacking"]["kept"] is False
    assert checked["kept"]["row_bytes"] > 0
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


EVERY_STEP = pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
"""Only every fifth case in the fast run."""


@EVERY_STEP
def test_conditions_on_the_result(captured: Cli, step: int) -> None:
    change_table(captured)
    answers = {query: query_rows(captured, query, "engine") for query in ("kept", "top", "rows")}
    for index, ((query, where, matches), by) in enumerate(product(CONDITIONS, ("state", "engine"))):
        if by == "engine" and index % step:
            continue
        expected = [row for row in answers[query] if matches(row)]
        rows = captured.one("query", "--query", query, "--by", by, "--where", where)["rows"]
        assert (rows if query != "rows" else sorted(rows, key=repr)) == expected, where


def test_lookup_reads_only_rows_of_its_key(captured: Cli, monkeypatch: MonkeyPatch) -> None:
    row_counts: list[int] = []
    whole = KeptRows.whole

    def counting(self: KeptRows) -> Batch:
        result = whole(self)
        row_counts.append(len(result))
        return result

    monkeypatch.setattr(KeptRows, "whole", counting)
    captured.good("query", "--query", "kept", "--by", "state", "--where", "key = 3")
    captured.good("query", "--query", "kept", "--by", "state", "--where", "key > 2")
    assert row_counts == [1, 3]


BY_STATE, BY_ENGINE = ("--by", "state"), ("--by", "engine")


@EVERY_STEP
def test_invalid_and_spark_only_conditions_are_refused(captured: Cli, step: int) -> None:
    """Each of the others once returned wrong rows or raised an unexpected error."""
    spark_only = (
        *("s = '30'", "s >= '30'", "s IN ('30', 1)", "a = NULL", "s = TRUE", "s LIKE NULL"),
        *("s BETWEEN '1' AND '9'", "CAST(a AS FLOAT) = CAST(0.5 AS FLOAT)", "s", "1"),
    )
    invalid = ("nothing = 1", "key = (SELECT 1)", "key = 1 ORDER BY n", "key =", "SUM(n) > 1")
    cases = [*((w, ()) for w in invalid), *product(spark_only, (BY_STATE, BY_ENGINE))]
    for where, by in cases[::step]:
        ran = captured("query", "--query", "kept", *by, "--where", where)
        assert ran.refusal == (2, "where_unread"), where
        assert not by or "the result" in ran.error["message"]


def test_rows_of_a_later_commit_have_its_versions(captured: Cli, monkeypatch: MonkeyPatch) -> None:
    """Another process maintains the query just before its rows are read."""
    load = Store.load_runs

    def maintain_first(self: Store, query: str, beginning: str = "") -> Any:
        monkeypatch.setattr(Store, "load_runs", load)
        change_table(captured)
        captured.good("maintain", "--query", "rows")
        return load(self, query, beginning)

    monkeypatch.setattr(Store, "load_runs", maintain_first)
    result = captured.one("query", "--query", "rows", "--by", "state")
    assert result["versions"] == {"t": 3}
    assert sorted(result["rows"], key=repr) == query_rows(captured, "rows", "engine")


def test_overflowing_sum_is_refused_without_spark(captured: Cli) -> None:
    """Added in another order, the sum may be finite, so its value is unknown."""
    captured.append("t", rows_of((5, 7, 1.7e308, 9), (5, 7, 1.7e308, 9)))
    for by in ("state", "engine"):
        for query in ("kept", "top"):
            ran = captured("query", "--query", query, "--by", by, "--policy", "incremental")
            assert ran.code != 0
            assert "depends on the order of a sum of doubles" in ran.error["message"]
        assert query_rows(captured, "rows", by)


def damage(cli: Cli, query: str, arrangement: str = "answer.rows") -> None:
    """Flip one bit of the query's stored arrangement."""
    chosen = "WHERE arrangement = ? AND query_id = (SELECT id FROM query WHERE name = ?)"
    with closing(sqlite3.connect(cli.folder / ".impctl" / "catalog.sqlite")) as catalog, catalog:
        sql = f"SELECT sequence, content FROM run {chosen}"
        result = catalog.execute(sql, (arrangement, query)).fetchall()
        assert result
        for sequence, content in result:
            damaged = bytearray(content)
            damaged[len(damaged) // 2] ^= 1
            sql = f"UPDATE run SET content = ? {chosen} AND sequence = ?"
            catalog.execute(sql, (damaged, arrangement, query, sequence))


def query(cli: Cli, name: str, *words: str) -> Ran:
    return cli("query", "--query", name, "--sketch", "auto", *words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy"), [("rows", "auto"), ("top", "auto"), ("kept", "incremental")]
)
def test_damaged_rows_are_recomputed_with_a_warning(captured: Cli, name: str, policy: str) -> None:
    expected = query_rows(captured, name, "engine")
    damage(captured, name)
    ran = query(captured, name, "--policy", policy)
    assert ran.code == 0, ran.document
    (result,) = ran.results
    assert (result["by"], result["action"]) == ("engine", "none")
    assert sorted(result["rows"], key=repr) == sorted(expected, key=repr) != []
    (warning,) = ran.document["warnings"]
    assert f"the materialized result of query `{name}` is not used" in warning
    assert "checksum" in warning
    assert "`impctl capture`" in warning
    captured.good("capture", "--query", name)
    assert query_rows(captured, name, "state") == expected


@pytest.mark.parametrize("words", [(), ("--where", "`key` = 3"), ("--where", "n > 0")])
def test_query_by_state_refuses_damaged_rows(captured: Cli, words: Words) -> None:
    damage(captured, "kept")
    ran = query(captured, "kept", "--by", "state", *words)
    assert ran.refusal == (7, "state_corrupt")
    assert "impctl capture" in ran.error["hint"]
    assert query(captured, "kept", "--policy", "strict", *words).refusal == (7, "state_corrupt")


@pytest.mark.slow
def test_damaged_rows_are_recaptured_after_a_change(captured: Cli) -> None:
    damage(captured, "kept")
    change_table(captured)
    ran = query(captured, "kept", "--by", "state")
    (result,) = ran.results
    assert (result["by"], result["action"]) == ("state", "recapture")
    assert result["rows"] == query_rows(captured, "kept", "engine")
    (warning,) = ran.document["warnings"]
    assert "was recaptured" in warning
    assert "checksum" in warning


def test_incremental_policy_does_not_recapture_damage(captured: Cli) -> None:
    damage(captured, "kept")
    change_table(captured)
    ran = query(captured, "kept", "--by", "state", "--policy", "incremental")
    assert ran.refusal == (7, "state_corrupt")
    (result,) = query(captured, "kept", "--policy", "incremental").results
    assert (result["by"], result["action"]) == ("engine", "no_sketch")
    assert result["rows"] == query_rows(captured, "kept", "engine")


def test_query_by_state_needs_a_capture(cli: Cli) -> None:
    ran = query(cli, "kept", "--by", "state")
    assert ran.refusal == (7, "not_captured")
    assert "impctl capture" in ran.error["hint"]
    assert query(cli, "plain", "--by", "state").error["code"] == "answer_not_kept"


@pytest.mark.slow
def test_damaged_maintenance_state_spoils_no_result(cli: Cli) -> None:
    """Queries do not read maintenance state; the damage is found at the next change."""
    cli.good("capture", "--query", "kept")
    expected = query_rows(cli, "kept", "state")
    with closing(sqlite3.connect(cli.folder / ".impctl" / "catalog.sqlite")) as catalog:
        names = catalog.execute("SELECT DISTINCT arrangement FROM run")
        others = {name for (name,) in names} - {"answer.rows"}
    for name in others:
        damage(cli, "kept", name)
    assert others
    assert query_rows(cli, "kept", "state") == expected
    change_table(cli)
    (result,) = query(cli, "kept", "--by", "state").results
    assert (result["action"], result["rows"]) == ("recapture", query_rows(cli, "kept", "engine"))


@pytest.mark.slow
def test_gc_leaves_materialized_results_intact(captured: Cli) -> None:
    for _ in range(2):
        change_table(captured)
        captured.good("maintain", *CHOSEN)
    captured.good("gc", "--keep", "1")
    agree_after_changes(captured)


def agree_after_changes(cli: Cli) -> None:
    change_table(cli)
    for name in KEPT:
        assert query_rows(cli, name, "state") == query_rows(cli, name, "engine") != []


@pytest.mark.slow
def test_results_are_stored_only_while_requested(cli: Cli) -> None:
    """Stores without results are maintained; a result no longer requested is removed."""
    cli.good("capture", "--query", "plain")
    assert "answer" not in stored_query(cli.folder, "plain").state_meta
    change_table(cli)
    assert cli.one("maintain", "--query", "plain")["action"] == "exact"
    result, older = (query(cli, "plain", *options).results[0] for options in ((), ("--at", "0")))
    assert result["by"] == "engine"
    assert older["rows"] != result["rows"]
    assert query(cli, "plain", "--by", "state").error["code"] == "answer_not_kept"
    cli.edit("sql: *text", "sql: *text\n    answer: true")
    (result,) = query(cli, "plain", "--by", "state").results
    assert (result["by"], result["action"]) == ("state", "recapture")
    assert sorted(result["rows"], key=repr) == query_rows(cli, "plain", "engine")
    cli.edit("sql: *text\n    answer: true", "sql: *text")
    assert query(cli, "plain", "--by", "state").error["code"] == "answer_not_kept"
    with Store.open(cli.folder / ".impctl", create=False) as store:
        assert "answer.rows" not in store.load_runs("plain")


@pytest.mark.slow
def test_rebalance_preserves_results(cli: Cli) -> None:
    cli.edit("g: {boundaries: [2, 4, 6]}", "g: {ranges: 3}")
    cli.good("capture", *CHOSEN)
    cli.append("t", rows_of(*((group, 11, 1.0, 9) for group in range(10, 90) for _ in range(2))))
    cli.good("maintain", *CHOSEN)
    before = {name: query_rows(cli, name, "state") for name in KEPT}
    done = cli.good("capture", "--rebalance", *CHOSEN).results
    assert "rebalance" in {result["action"] for result in done}
    assert {name: query_rows(cli, name, "state") for name in KEPT} == before
    agree_after_changes(cli)


Parsed = list[str]


@pytest.fixture
def auto_cli(monkeypatch: MonkeyPatch, captured: Cli) -> Cli:
    monkeypatch.setenv("IMPCTL_SKETCH", "auto")
    return captured


@pytest.fixture
def parsed(monkeypatch: MonkeyPatch) -> Parsed:
    """The queries whose SQL has been parsed."""
    names: Parsed = []
    bind = prepare.bind

    def recording_bind(*arguments: Any, name: str, **named: Any) -> Any:
        names.append(name)
        return bind(*arguments, name=name, **named)

    monkeypatch.setattr(prepare, "bind", recording_bind)
    return names


def answer(cli: Cli, query: str, *more: str) -> Any:
    result = cli.one("query", "--query", query, *more)
    return {name: result[name] for name in result if not name.endswith("_ms")}


@pytest.mark.slow
@pytest.mark.parametrize("query", KEPT)
def test_stored_query_gives_the_result_of_parsing(
    auto_cli: Cli, parsed: Parsed, monkeypatch: MonkeyPatch, query: str
) -> None:
    column = "`key`" if query == "kept" else "g"
    conditions = [
        (),
        ("--where", f"{column} = 3"),
        ("--where", f"{column} IS NULL"),
        ("--limit", "1"),
    ]
    unparsed = [answer(auto_cli, query, *more) for more in conditions]
    assert parsed == []
    assert {one["by"] for one in unparsed} == {"state"}
    use_other_build(monkeypatch)
    assert unparsed == [answer(auto_cli, query, *more) for more in conditions]
    assert set(parsed) == {query}


def test_condition_on_unknown_column_is_refused(auto_cli: Cli) -> None:
    ran = auto_cli("query", "--query", "kept", "--where", "nothing = 1")
    assert ran.refusal == (2, "where_unread")


@pytest.mark.slow
def test_new_rows_are_maintained_first(auto_cli: Cli, parsed: Parsed) -> None:
    auto_cli.append("t", MORE)
    assert answer(auto_cli, "kept")["action"] == "exact"
    assert parsed != []
    parsed.clear()
    after = answer(auto_cli, "kept")
    assert parsed == []
    assert after["rows"] == answer(auto_cli, "kept", "--by", "engine")["rows"]


@pytest.mark.slow
@pytest.mark.parametrize("query", ["window", "late"])
def test_new_time_is_applied_first(
    auto_cli: Cli, parsed: Parsed, monkeypatch: MonkeyPatch, query: str
) -> None:
    """Forward, which removes rows, and back, which restores them."""
    for day in ("2025-11-17", "2025-11-08"):
        before = answer(auto_cli, query)["rows"]
        monkeypatch.setenv("IMPCTL_NOW", f"{day}T09:00:00")
        parsed.clear()
        first = answer(auto_cli, query)
        assert parsed != []
        parsed.clear()
        unparsed = answer(auto_cli, query)
        assert parsed == []
        assert unparsed["rows"] == first["rows"] != before
        assert unparsed["moments"] == first["moments"] == {"current_date": day}
        by_engine = answer(auto_cli, query, "--by", "engine")["rows"]
        assert sorted(unparsed["rows"], key=repr) == sorted(by_engine, key=repr)


def test_build_mark_exists() -> None:
    """Without one, every query would be parsed again. A missing package would cause that."""
    assert context.build_mark() != ""


def use_other_build(monkeypatch: MonkeyPatch, mark: str = "another") -> None:
    for module in (context, stored):
        monkeypatch.setattr(module, "build_mark", lambda: mark)


def drop_ending(monkeypatch: MonkeyPatch) -> None:
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
        pytest.param(use_other_build, marks=pytest.mark.slow),
        pytest.param(lambda patch: use_other_build(patch, ""), marks=pytest.mark.slow),
        drop_ending,
    ],
    ids=["another program", "no files", "older store"],
)
def test_query_is_parsed_if_the_store_is_insufficient(
    auto_cli: Cli, parsed: Parsed, monkeypatch: MonkeyPatch, make: Callable[[MonkeyPatch], None]
) -> None:
    before = answer(auto_cli, "kept")
    make(monkeypatch)
    assert answer(auto_cli, "kept") == before
    assert parsed != []


def test_changed_definition_is_parsed(auto_cli: Cli, parsed: Parsed) -> None:
    auto_cli.edit("HAVING COUNT(*) > 1 ORDER BY a DESC, g", "ORDER BY g")
    ran = auto_cli("query", "--query", "kept", "--policy", "strict", "--require-sketch")
    assert ran.code != 0
    assert len(answer(auto_cli, "kept")["rows"]) == 5
    assert parsed != []


def test_query_is_parsed_if_the_log_entry_is_missing(auto_cli: Cli, parsed: Parsed) -> None:
    """The files are the same, but they do not give the column names."""
    table = auto_cli.folder / "t"
    before = answer(auto_cli, "kept")
    assert parsed == []
    DeltaTable(table).create_checkpoint()
    (table / "_delta_log" / f"{0:020d}.json").unlink()
    after = answer(auto_cli, "kept")
    assert parsed != []
    assert after["rows"] == before["rows"]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def answers(folder: Path, *names: str) -> tuple[int, ...]:
    return tuple(Ledger(folder).sums(name).answers for name in names)


def test_uses_are_written_once_a_second_and_at_the_end(tmp_path: Path) -> None:
    clock = Clock()
    counter = AnswerCounter(clock)
    assert counter.add(tmp_path, "q")
    assert answers(tmp_path, "q") == (1,), "a single use needs no final write"
    for _ in range(5):
        assert counter.add(tmp_path, "q")
    assert answers(tmp_path, "q") == (1,)
    clock.now += 1.0
    assert counter.add(tmp_path, "r")
    assert answers(tmp_path, "q", "r") == (6, 1)
    assert counter.add(tmp_path, "r")
    other = tmp_path / "other"
    other.mkdir()
    assert all([counter.add(other, "r"), counter.add(other, "r")])
    assert all([counter.write(), counter.write()])
    assert answers(tmp_path, "q", "r") == (6, 2)
    assert answers(other, "q", "r") == (0, 2), "answers of two stores are not mixed"


def test_failed_write_is_retried(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    clock = Clock()
    counter = AnswerCounter(clock)
    assert counter.add(tmp_path, "q")
    monkeypatch.setattr(ledgers, "_PATIENCE", 0.05)
    holder = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    clock.now += 1.0
    assert not counter.add(tmp_path, "q")
    assert counter.add(tmp_path, "q"), "not every use waits for the lock"
    holder.close()
    clock.now += 1.0
    assert counter.add(tmp_path, "q")
    assert answers(tmp_path, "q") == (4,)


LOW, HIGH = 30, 70
SQL = f"SELECT g, SUM(x) AS s FROM t WHERE h < {HIGH} GROUP BY g HAVING SUM(x) > 200"


def write_gains(folder: Path) -> None:
    for number in range(8):
        append(folder, number)
    partitions = {"t": {"g": {"ranges": 25}}}
    write_files(folder, {"tables": "t", "partitions": partitions, "queries": {"q": SQL}})


@pytest.fixture
def gains_cli(cli_once: CliOnce) -> Cli:
    return cli_once("gain", write_gains)


@pytest.fixture
def captured_gains(cli_once: CliOnce) -> Cli:
    return cli_once("gain captured", write_gains, Cli.captured)


def append(folder: Path, seed: int) -> None:
    """Append a file of a few adjacent groups."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(5, 60))
    g = rng.integers(0, 10, count) + int(rng.integers(0, 90))
    h = rng.integers(0, 50, count) + int(rng.integers(0, 50))
    rows = pa.table({"g": g, "h": h, "x": rng.integers(0, 100, count)})
    write_deltalake(str(folder / "t"), rows, mode="append")


def log_sums(folder: Path, ranges: list[tuple[float, float]]) -> dict[str, int]:
    """Files, rows and bytes from add actions alone: selected by `h`, and in the ranges."""
    actions = DeltaTable(str(folder / "t")).get_add_actions(flatten=True)
    plain = [file for file in pa.table(actions).to_pylist() if file["min.h"] < HIGH]
    in_ranges = [
        file
        for file in plain
        if any(file["min.g"] < high and file["max.g"] >= low for low, high in ranges)
    ]
    sums = {}
    for name, files in (("", in_ranges), ("_plain", plain)):
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
def test_the_ledger_equals_the_logs(captured_gains: Cli, cases: range) -> None:
    uses = len(cases)
    rng, folder = random.Random(5), captured_gains.folder
    expected = dict.fromkeys(log_sums(folder, []), 0)
    for number in cases:
        if rng.random() < 0.2:
            append(folder, 100 + number)
        used = captured_gains.one("rewrite")
        for name, value in log_sums(folder, ranges_of(used["intervals"])).items():
            expected[name] += value
    result, status = captured_gains.one("gain"), captured_gains.one("status")
    assert result["uses"] == result["used"] == status["uses"] == uses
    assert {name: result[name] for name in expected} == expected
    assert result["upkeep_runs"] > 1
    assert status["bytes_skipped"] == expected["bytes_plain"] - expected["bytes"]
    assert captured_gains.one("gain", "--since", "1d")["uses"] == uses


def families(path: Path) -> dict[str, dict[str, float]]:
    text = path.read_text()
    return {
        family.name: {s.labels.get("query", ""): s.value for s in family.samples}
        for family in text_string_to_metric_families(text)
    }


@pytest.mark.slow
def test_prometheus_parses_the_metrics(captured_gains: Cli) -> None:
    captured_gains.good("rewrite")
    out = captured_gains.folder / "metrics" / "impctl.prom"
    append(captured_gains.folder, 77)
    maintained = captured_gains.one("maintain", "--metrics", str(out))
    result = families(out)
    assert result["impctl_maintain_success"] == {"q": 1.0}
    assert result["impctl_maintain_failures"] == {"": 0.0}
    assert result["impctl_maintain_changes"] == {"q": maintained["changes"]} != {"q": 0}
    captured_gains.good("gain", "--metrics", str(out))
    result = families(out)
    assert result["impctl_uses"] == {"q": 1.0}
    assert set(result["impctl_skipped_bytes"]) == {"q"}
    assert [file.name for file in out.parent.iterdir()] == ["impctl.prom"]


def test_metrics_of_a_run_that_fails(captured_gains: Cli) -> None:
    out, path = captured_gains.folder / "impctl.prom", captured_gains.path("t")
    write_deltalake(path, pa.table({"other": [1]}), mode="overwrite", schema_mode="overwrite")
    assert captured_gains("maintain", "--metrics", str(out)).code != 0
    result = families(out)
    assert result["impctl_maintain_success"] == {"q": 0.0}
    assert result["impctl_maintain_failures"] == {"": 1.0}


def test_metrics_that_cannot_be_written_are_a_failure(captured_gains: Cli) -> None:
    file = captured_gains.folder / "file"
    file.write_text("")
    ran = captured_gains("gain", "--metrics", str(file / "impctl.prom"))
    assert ran.error["code"] == "metrics_not_written"
    assert ran.error["message"].endswith("`: Not a directory")
    assert ran.results[0]["query"] == "q", "the results are reported all the same"
    assert captured_gains.good("gain", "--metrics", "/dev/null").results


def test_a_query_that_was_never_used(gains_cli: Cli) -> None:
    result = gains_cli.one("gain")
    assert (result["uses"], result["verdict"], result["last_use"]) == (0, "not_used", None)
    gains_cli.good("capture")
    assert gains_cli.one("gain")["hint"] == "", "too early for a hint"
    append(gains_cli.folder, 77)
    gains_cli.good("maintain")
    assert "stop maintaining the query" in gains_cli.one("gain")["hint"]


def test_materialized_answers_are_not_sketch_uses(gains_cli: Cli, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("IMPCTL_SKETCH", "auto")
    gains_cli.edit(f'"{SQL}"', f'"{SQL}", "answer": true')
    gains_cli.good("capture")
    append(gains_cli.folder, 77)
    sources = [gains_cli.one("query")["by"] for _ in range(3)]
    assert sources == ["state"] * 3, "the first reads the query and maintains, the others do not"
    result = gains_cli.one("gain")
    assert (result["materialized_reads"], result["uses"], result["verdict"]) == (3, 0, "answers")
    assert result["last_use"] is not None
    actions = gains_cli.table("t").get_add_actions(flatten=True)
    size = sum(pa.table(actions)["size_bytes"].to_pylist())
    assert result["answers_bytes"] == 3 * size
    assert "3 answers from the materialized result" in gains_cli.text("gain")
    shown, status = gains_cli.text("status"), gains_cli.one("status")
    assert "3 answers from the materialized result; last use" in shown
    assert ", result materialized" in shown
    assert status["materialized"]
    assert (status["materialized_reads"], status["last_use"]) == (3, result["last_use"])
    out = gains_cli.folder / "impctl.prom"
    gains_cli.good("gain", "--metrics", str(out))
    assert families(out)["impctl_materialized_reads"] == {"q": 3.0}


@pytest.mark.parametrize(
    ("uses", "runs", "hint"), [(2, 1, "too rarely"), (2, 3, "maintain it less often")]
)
def test_hint_explains_costs_above_savings(uses: int, runs: int, hint: str) -> None:
    result = Uses(uses=uses, bytes=1, bytes_plain=100)
    assert hint in _hint(COSTS_MORE, result, runs, lambda: "")


def test_several_queries_are_summed_up(gains_cli: Cli) -> None:
    more = f'"{SQL}"}}, "kept": {{"sql": "{SQL}", "answer": true}}'
    gains_cli.edit(f'"{SQL}"}}', more)
    gains_cli.good("capture")
    for name in ("q", "kept", "kept"):
        gains_cli.good("query", "--query", name, "--sketch", "auto")
    shown = gains_cli.text("gain")
    assert "2 queries: 1 use of sketches, 2 answers from materialized results" in shown
    assert "sketches and materialized results skipped" in shown
