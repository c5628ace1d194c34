"""Kept answers through the command line, without a JVM: captured, maintained, asked, refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.engine.batch import Batch
from impctl.engine.operators.kept import KeptRows
from impctl.store.store import Store
from impctl.tables.write.create import create_table
from tests.support.made_once import MadeOnce
from tests.support.run_cli import Cli

WORKLOAD = """\
version: 1
tables:
  t: {path: t}
partitions:
  t:
    g: {boundaries: [2, 4, 6]}
    day: {boundaries: [2026-11-10, 2026-11-20]}
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
    (0, 5, 0.5, 1),
    (0, 15, 1.5, 2),
    (1, 25, None, 3),
    (3, 5, -2.0, 4),
    (3, 15, 2.0, 5),
    (3, 15, 2.0, 5),
    (5, None, 9.0, 6),
    (None, 15, 1.0, 7),
    (None, 15, 1.0, 8),
)
MORE = rows_of((5, 7, 1.0, 9), (1, 11, 3.0, 9), (0, -20, -0.0, 10))
NOW = "2025-11-12T08:00:00"
KEPT = ["kept", "top", "rows", "window"]


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("IMPCTL_NOW", NOW)
    create_table(str(tmp_path / "t"), ROWS)
    file = tmp_path / "w.yaml"
    file.write_text(WORKLOAD)
    return Cli(capsys, file)


@pytest.fixture
def held(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, made_once: MadeOnce
) -> Cli:
    """The same with all of `KEPT` captured."""
    monkeypatch.setenv("IMPCTL_NOW", NOW)

    def capture(folder: Path) -> None:
        create_table(str(folder / "t"), ROWS)
        (folder / "w.yaml").write_text(WORKLOAD)
        captured(Cli(capsys, folder / "w.yaml"))

    return Cli(capsys, made_once.folder("kept answers", capture) / "w.yaml")


def captured(cli: Cli, *more: str) -> None:
    chosen = [f"--query={name}" for name in KEPT]
    cli.good("capture", *chosen, *more)


def asked(cli: Cli, query: str, by: str) -> list[Any]:
    (result,) = cli.good("query", "--query", query, "--by", by).results
    assert result["by"] == by
    rows = result["rows"]
    return rows if query in ("kept", "top") else sorted(rows, key=repr)


def changed(cli: Cli) -> None:
    """Rows come, and go, and one comes again."""
    path = str(cli.workload.parent / "t")
    write_deltalake(path, MORE, mode="append")
    DeltaTable(path).delete("g = 3 AND x = 15")
    write_deltalake(path, rows_of((3, 15, 2.0, 5)), mode="append")


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
    (result,) = held.good("query", "--query", "kept", "--sketch", "auto").results
    assert (result["by"], result["files_total"]) == ("state", 0)
    assert "kept" in result["by_reason"]
    (result,) = held.good("query", "--query", "kept", "--sketch", "always").results
    assert result["by"] == "engine"


@pytest.mark.slow
def test_other_constants_and_versions_are_not_in_the_state(held: Cli) -> None:
    changed(held)
    sql = "SELECT g AS `key`, COUNT(*) AS n, SUM(x) AS s, AVG(y) AS a FROM t GROUP BY g"
    (other,) = held.good("query", "--sql", f"{sql} HAVING COUNT(*) > 2 ORDER BY a DESC, g").results
    assert other["by"] == "engine"
    (old,) = held.good("query", "--query", "kept", "--at", "0").results
    assert old["by"] == "engine"
    assert old["rows"][-1] == [0, 2, 20, 1.0] or len(old["rows"]) == 3


def test_an_answer_that_cannot_be_kept_leaves_the_sketch(cli: Cli) -> None:
    ran = cli.good("capture", "--query", "lacking")
    (warning,) = ran.document["warnings"]
    assert "not kept" in warning
    assert "mode" in warning.lower()
    (told,) = cli.good("explain", "--query", "lacking").results
    assert told["answer"]["kept"] is False
    assert told["mode"] == "exact"
    changed(cli)
    (maintained,) = cli.good("maintain", "--query", "lacking").results
    assert maintained["action"] == "exact"
    assert cli("query", "--query", "lacking", "--by", "engine").error["code"] == "engine_cannot"


def test_check_says_whether_the_answer_would_be_kept(cli: Cli) -> None:
    told = {one["query"]: one["answer"] for one in cli.good("check").results}
    explained = {one["query"]: one["answer"] for one in cli.good("explain").results}
    assert told == explained
    assert told["plain"] is None
    assert told["lacking"]["kept"] is False
    assert told["kept"]["row_bytes"] > 0
    cli.capsys.readouterr()
    assert run(build_app(), ["check", str(cli.workload)]) == 0
    shown = " ".join(cli.capsys.readouterr().out.split())
    assert shown.count("answer kept of") == 4
    assert shown.count("answer not kept: ") == 1


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


def test_conditions_on_the_answer(held: Cli) -> None:
    changed(held)
    answers = {query: asked(held, query, "engine") for query in KEPT}
    for query, where, kept in CONDITIONS:
        wanted = [row for row in answers[query] if kept(row)]
        for by in ("state", "engine"):
            (found,) = held.good("query", "--query", query, "--by", by, "--where", where).results
            rows = found["rows"]
            assert (rows if query != "rows" else sorted(rows, key=repr)) == wanted, where


def test_a_look_up_reads_the_rows_of_its_key(held: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    whole = KeptRows.whole

    def counting(self: KeptRows) -> Batch:
        found = whole(self)
        read.append(len(found))
        return found

    monkeypatch.setattr(KeptRows, "whole", counting)
    held.good("query", "--query", "kept", "--by", "state", "--where", "key = 3")
    held.good("query", "--query", "kept", "--by", "state", "--where", "key > 2")
    assert read == [1, 3]


def test_conditions_that_are_none_and_those_that_only_spark_finds_the_truth_of(held: Cli) -> None:
    """Each of the others lost rows, had too many or ended in a trace when it was evaluated."""
    for where in ("nothing = 1", "key = (SELECT 1)", "key = 1 ORDER BY n", "key =", "SUM(n) > 1"):
        ran = held("query", "--query", "kept", "--where", where)
        assert (ran.code, ran.error["code"]) == (2, "where_unread"), where
    for where in (
        *("s = '30'", "s >= '30'", "s IN ('30', 1)", "a = NULL", "s = TRUE", "s LIKE NULL"),
        *("s BETWEEN '1' AND '9'", "CAST(a AS FLOAT) = CAST(0.5 AS FLOAT)", "s", "1"),
    ):
        for by in ("state", "engine"):
            ran = held("query", "--query", "kept", "--by", by, "--where", where)
            assert (ran.code, ran.error["code"]) == (2, "where_unread"), where
            assert "of the answer" in ran.error["message"]


def test_rows_of_a_later_commit_are_told_with_its_versions(
    held: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process maintains the query when its rows are about to be read."""
    read = Store.load_runs

    def late(self: Store, query: str, beginning: str = "") -> Any:
        monkeypatch.setattr(Store, "load_runs", read)
        changed(held)
        held.good("maintain", "--query", "rows")
        return read(self, query, beginning)

    monkeypatch.setattr(Store, "load_runs", late)
    (result,) = held.good("query", "--query", "rows", "--by", "state").results
    assert result["versions"] == {"t": 3}
    assert sorted(result["rows"], key=repr) == asked(held, "rows", "engine")


@pytest.mark.parametrize("by", ["state", "engine"])
def test_a_sum_beyond_the_greatest_double_is_told_by_nobody_but_spark(cli: Cli, by: str) -> None:
    """In another order of additions it may be finite: nothing is known of its value."""
    captured(cli, "--policy", "incremental")
    write_deltalake(
        str(cli.workload.parent / "t"),
        rows_of((5, 7, 1.7e308, 9), (5, 7, 1.7e308, 9)),
        mode="append",
    )
    for query in ("kept", "top"):
        ran = cli("query", "--query", query, "--by", by, "--policy", "incremental")
        assert ran.code != 0
        assert "depends on the order of a sum of doubles" in ran.error["message"]
    assert asked(cli, "rows", by)
