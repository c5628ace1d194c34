"""A named query always answers: without a sketch it is the query itself, told with a reason."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from impctl.tables.write.maintenance import create_table
from tests.support.run_cli import Cli, CliOf

WORKLOAD = """\
version: 1
tables:
  t: {path: t}
  u: {path: u}
queries:
  good:
    sql: SELECT g, COUNT(*) AS n FROM t GROUP BY g HAVING COUNT(*) > 2
    sketch: {t: g}
  total:
    sql: &total SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 20
    sketch: {t: x}
  strict:
    sql: *total
    sketch: {t: x}
    policy: strict
  drawn:
    sql: SELECT g, COUNT(*) AS n FROM t WHERE rand() < 2 GROUP BY g
  ties:
    sql: SELECT g FROM t GROUP BY g HAVING percentile_approx(x, 0.5) > 1
  unread:
    sql: SELECT g FROM t WHERE x > :low SORT BY g
    params: {low: 5}
  whole:
    sql: SELECT COUNT(*) AS n FROM t
    sketch: none
updates:
  - {name: dear, insert: {table: t, rows: [{g: 3, x: -5}]}}
  - {name: mended, delete: {table: t, where: x < 0}}
store: .impctl
"""


@pytest.fixture
def cli(tmp_path: Path, cli_of: CliOf) -> Cli:
    rows = {"g": [0, 0, 0, 1, 3, 3, 3, 5], "x": [5, 15, 25, 5, 5, 15, 25, 5]}
    for name in ("t", "u"):
        create_table(str(tmp_path / name), pa.table(rows))
    return cli_of(WORKLOAD)


def rewritten(cli: Cli, query: str, *more: str) -> tuple[str, str, str]:
    """SQL, action and the one warning of a rewrite that works."""
    ran = cli.good("rewrite", "--query", query, *more)
    (result,), (warning,) = ran.results, ran.document["warnings"]
    assert result["sketches"] == []
    return result["sql"], result["action"], warning


def test_a_query_that_was_never_captured_is_answered_and_told(cli: Cli) -> None:
    sql, action, warning = rewritten(cli, "good")
    assert (sql, action) == (
        "SELECT g, COUNT(*) AS n FROM t GROUP BY g HAVING COUNT(*) > 2",
        "no_sketch",
    )
    assert "not been captured" in warning
    assert "run `impctl capture" in warning
    assert not (cli.workload.parent / ".impctl").exists()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["maintain", "verify"])
def test_who_cannot_be_captured_is_not_told_to_capture(cli: Cli, command: str) -> None:
    assert cli(command, "--query", "good").error["code"] == "not_captured"
    strict = ("--strict",) if command == "maintain" else ()
    for query in ("ties", "unread"):
        ran = cli(command, "--query", query, *strict)
        assert ran.code == 3
        assert "`sketch: none`" in ran.error["hint"]
        assert ran.error["code"] == cli("capture", "--query", query).error["code"]


def test_with_require_sketch_it_fails_as_it_did(cli: Cli) -> None:
    assert cli("rewrite", "--query", "good", "--require-sketch").code == 7
    assert (
        cli("rewrite", "--query", "unread", "--require-sketch").error["code"] == "query_unsupported"
    )
    assert cli("rewrite", "--query", "whole", "--require-sketch").code == 3
    other = cli("rewrite", "--sql", "SELECT g FROM u GROUP BY g", "--require-sketch")
    assert other.refusal == (3, "sketch_required")
    cli.good("capture", "--query", "good")
    assert cli.one("rewrite", "--query", "good", "--require-sketch")["sketches"]


@pytest.mark.parametrize(
    ("query", "reason", "hint"),
    [
        ("drawn", "`rand` returns a different result", "remove it from the query"),
        ("ties", "`percentile_approx` has several correct results", "use `percentile`"),
        ("unread", "uses SORT BY", "`sketch: none`"),
    ],
)
def test_a_query_that_can_have_none_says_why_and_what_to_do(
    cli: Cli, query: str, reason: str, hint: str
) -> None:
    _, action, warning = rewritten(cli, query)
    assert action == "no_sketch"
    assert reason in warning
    assert hint in warning


def test_values_are_put_into_a_query_that_is_not_read(cli: Cli) -> None:
    sql, _, _ = rewritten(cli, "unread", "--param", "low=12")
    assert sql == "SELECT g FROM t WHERE x > 12 SORT BY g"


MOVING = """\
  moving:
    sql: SELECT g FROM t WHERE :day > DATE '2020-01-01' SORT BY g
    params: {day: {moves: daily}}
updates:
"""


def test_values_that_move_are_put_into_it_too(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMPCTL_NOW", "2026-03-01")
    cli.workload.write_text(WORKLOAD.replace("updates:\n", MOVING))
    sql, _, _ = rewritten(cli, "moving")
    assert sql == "SELECT g FROM t WHERE DATE '2026-03-01' > DATE '2020-01-01' SORT BY g"
    sql, _, _ = rewritten(cli, "moving", "--param", "day=2026-04-01")
    assert "DATE '2026-04-01' >" in sql


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT reflect('java.lang.System', 'exit', 1) FROM t SORT BY 1",
        "SELECT `reflect`('java.lang.System', 'exit', 1) FROM t SORT BY 1",
        "SELECT f(g) FROM t SORT BY 1",
        "SELECT db.abs(g) FROM t SORT BY 1",
        "SELECT g FROM (WITH c AS (DROP TABLE t) SELECT g FROM t) SORT BY g",
        "SELECT g FROM t VERSION AS OF 0 SORT BY g",
        "SELECT g FROM t WHERE x = ? SORT BY g",
        "SELECT TRANSFORM(g) USING 'sh' AS (b) FROM t",
        "SELECT g INTO v FROM t SORT BY g",
        "SELECT g FROM t JOIN secret SORT BY g",
        "SELECT g FROM parquet.`/etc` SORT BY g",
        "SELECT * FROM IDENTIFIER('secret') JOIN t SORT BY g",
        "DELETE FROM t",
        "WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a",
        "SELECT gg FROM t",
    ],
)
def test_what_may_do_more_than_read_the_tables_is_refused(cli: Cli, sql: str) -> None:
    assert cli("rewrite", "--sql", sql).code == 3


def test_a_sketch_lost_by_a_fact_comes_back_with_it(cli: Cli) -> None:
    """A sum over part of a group is at most the whole sum only while no value is negative."""
    cli.good("capture", "--query", "total")
    cli.good("apply", "dear")
    maintained = cli("maintain", "--query", "total")
    assert (maintained.code, maintained.document["warnings"]) == (3, [])
    sql, action, warning = rewritten(cli, "total")
    assert (sql, action) == (
        "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 20",
        "no_sketch",
    )
    assert "x" in warning
    cli.good("apply", "mended")
    assert cli.one("maintain", "--query", "total")["action"] == "exact"
    assert cli.one("rewrite", "--query", "total")["sketches"]


@pytest.mark.slow
def test_policy_strict_fails_as_documented(cli: Cli) -> None:
    assert cli("rewrite", "--query", "strict").code == 7
    cli.good("capture", "--query", "strict")
    cli.good("apply", "dear")
    assert cli("rewrite", "--query", "strict").code == 4
    assert cli("rewrite", "--query", "unread", "--policy", "strict").code == 7


def test_a_query_with_sketch_none_is_told_and_nothing_to_do(cli: Cli) -> None:
    checked = cli.one("check", "--query", "whole")
    assert (checked["supported"], checked["mode"]) == (False, "sketch_none")
    captured = cli.one("capture", "--query", "whole")
    assert (captured["action"], captured["sketches"]) == ("none", [])
    maintained = cli.one("maintain", "--query", "whole")
    assert (maintained["action"], maintained["reason_code"]) == ("none", "sketch_none")
    planned = cli.one("plan", "--query", "whole", "--detailed-exitcode")
    assert (planned["action"], planned["reason_code"]) == ("none", "sketch_none")
    status = cli.one("status", "--query", "whole")
    assert (status["stale"], status["mode"]) == (False, "sketch_none")
    ran = cli.good("rewrite", "--query", "whole")
    assert (ran.results[0]["sql"], ran.document["warnings"]) == (
        "SELECT COUNT(*) AS n FROM t",
        [],
    )


def test_a_sketch_that_is_neither_none_nor_a_mapping_is_refused(cli: Cli) -> None:
    cli.edit("sketch: none", "sketch: nothing")
    ran = cli("check")
    assert ran.code == 2
    assert "none" in str(ran.error)


def test_a_wrong_query_is_still_wrong(cli: Cli) -> None:
    cli.edit("COUNT(*) AS n FROM t\n", "COUNT(*) AS n FROM v\n")
    assert cli("rewrite", "--query", "whole").error["code"] == "table_unknown"
    assert cli("check", "--query", "whole").code == 3


@pytest.mark.spark
def test_answers_without_a_sketch_are_the_querys_own(cli: Cli) -> None:
    unread = cli.one("query", "--query", "unread")
    assert sorted(unread["rows"]) == [[0], [0], [3], [3]]
    assert unread["action"] == "no_sketch"
    assert sorted(cli.one("query", "--query", "total")["rows"]) == [[0, 45], [3, 45]]


def test_verify_says_what_it_left_out(cli: Cli) -> None:
    cli.good("capture", "--query", "good")
    ran = cli.good("verify", "--query", "whole")
    assert ran.results == []
    [warning] = ran.document["warnings"]
    assert warning == "`whole` is not verified: the workload file sets `sketch: none`"
