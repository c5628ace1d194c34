"""A recursion that nobody can run fails at once, with what `check` says of it.

Of WITH entries that nothing uses Spark is not handed what it refuses, and what they name is told.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from impctl.plan.nodes import Fixpoint, nodes_of
from impctl.service.context import Workbench
from impctl.service.resolve import is_for_others
from impctl.tables.write.maintenance import create_table
from tests.plan.network import read
from tests.support.run_cli import Cli, CliOf

WORKLOAD = """\
version: 1
tables: {links: {path: links}}
queries:
  set:
    sql: |
      WITH RECURSIVE r(n) AS (
        SELECT dst FROM links WHERE src = 1
        UNION
        SELECT dst FROM links WHERE src NOT IN (SELECT n FROM r))
      SELECT n FROM r
  plain:
    sql: |
      WITH RECURSIVE r(n) AS (
        SELECT dst FROM links WHERE src = 1
        UNION
        SELECT dst FROM links JOIN r ON src = n)
      SELECT n FROM r SORT BY n
    sketch: none
  bag:
    sql: |
      WITH RECURSIVE r(n) AS (
        SELECT dst FROM links WHERE src = 1
        UNION ALL
        SELECT DISTINCT dst FROM links JOIN r ON src = n)
      SELECT n FROM r
store: .impctl
"""


class _StartedError(Exception):
    """Spark was asked for."""


@pytest.fixture
def cli(tmp_path: Path, cli_of: CliOf, monkeypatch: Any) -> Cli:
    monkeypatch.setattr(Workbench, "spark", Mock(side_effect=_StartedError))
    create_table(str(tmp_path / "links"), pa.table({"src": [1, 2], "dst": [2, 3]}))
    return cli_of(WORKLOAD)


@pytest.mark.slow
@pytest.mark.parametrize(("query", "line"), [("set", 9), ("plain", 17)])
@pytest.mark.parametrize("command", ["query", "rewrite", "explain"])
def test_it_fails_as_check_does(cli: Cli, query: str, line: int, command: str) -> None:
    checked = cli("check", "--query", query)
    ran = cli(command, "--query", query)
    assert checked.code == ran.code == 3
    assert ran.error["code"] == "query_unsupported"
    assert ran.error["location"]["line"] == line
    for part in ("code", "message", "hint", "location"):
        assert ran.error[part] == checked.error[part]


def test_a_bag_that_impctl_does_not_read_is_handed_to_spark(cli: Cli) -> None:
    checked = cli.one("check", "--query", "bag")
    assert checked["supported"] is False
    # It is told where, here as everywhere.
    assert checked["place"] == cli("explain", "--query", "bag").error["location"]
    assert checked["place"]["line"] == 24
    assert "_StartedError" in cli("query", "--query", "bag").error["message"]


SET = "(SELECT dst FROM links UNION SELECT l.dst FROM {r} JOIN links l ON {r}.n = l.src)"
UNUSED = {
    "alone": f"WITH RECURSIVE u(n) AS {SET.format(r='u')} SELECT a FROM t WHERE a > 1",
    "read by another": (
        f"WITH RECURSIVE u(n) AS {SET.format(r='u')}, v AS (SELECT n + 1 AS m FROM u) "
        "SELECT a FROM t WHERE a > 1"
    ),
    "within another": (
        f"WITH v AS (WITH RECURSIVE u(n) AS {SET.format(r='u')} SELECT n FROM u) "
        "SELECT a FROM t WHERE a > 1"
    ),
    "beside one that is used": (
        f"WITH RECURSIVE u(n) AS {SET.format(r='u')}, r(n) AS {SET.format(r='r')} "
        "SELECT a FROM t JOIN r ON t.a = r.n WHERE a > 1"
    ),
}


@pytest.fixture
def unused(tmp_path: Path, cli_of: CliOf) -> Cli:
    create_table(str(tmp_path / "t"), pa.table({"a": [1, 2, 3]}))
    create_table(str(tmp_path / "links"), pa.table({"src": [1, 2, 3], "dst": [2, 3, 1]}))
    queries = "".join(f'  q{n}: {{sql: "{sql}"}}\n' for n, sql in enumerate(UNUSED.values()))
    tables = "tables: {t: {path: t}, links: {path: links}}"
    sketched = f'  wished: {{sql: "{UNUSED["alone"]}", sketch: {{links: src}}}}\n'
    return cli_of(f"version: 1\n{tables}\nqueries:\n{queries}{sketched}")


@pytest.mark.spark
def test_spark_runs_what_uses_none_of_them(unused: Cli, spark: Any) -> None:
    for number in range(len(UNUSED)):
        result = unused.one("query", "--query", f"q{number}", "--by", "spark", "--sketch", "never")
        assert (result["by"], sorted(result["rows"])) == ("spark", [[2], [3]])


def test_the_text_is_for_others_all_the_same(unused: Cli) -> None:
    unused.good("capture", "--query", "q0")
    assert unused.one("rewrite", "--query", "q0")["runs_on_spark"] is False


def test_a_sketch_of_a_table_that_only_these_name(unused: Cli) -> None:
    ran = unused("capture", "--query", "wished")
    error = ran.document["error"] or ran.results[0]["error"]
    assert error["code"] == "sketch_table_unused"
    assert error["message"].endswith("`links`, which only an unused WITH entry names")


def test_a_bag_that_nothing_uses_is_no_matter() -> None:
    query = read(
        "WITH RECURSIVE u(n) AS (SELECT dst FROM links UNION ALL SELECT n + 1 FROM u WHERE n < 9) "
        "SELECT n FROM nodes"
    )
    assert not any(isinstance(node, Fixpoint) for node in nodes_of(query.root))
    assert [one.is_set for one in query.unused] == [False]
    assert not is_for_others(query)


def test_a_recursion_that_ends_by_its_best_rows_is_warned_of(unused: Cli, tmp_path: Path) -> None:
    text = (
        "WITH RECURSIVE r(n, k) AS (SELECT dst, 1 FROM links WHERE src = 1 UNION "
        "SELECT l.dst, r.k + 1 FROM r JOIN links l ON r.n = l.src{}) "
        "SELECT n, MIN(k) AS k FROM r GROUP BY n"
    )
    sketched = "sketch: {links: src}"
    queries = f'{{best: {{sql: "{text.format("")}", {sketched}}}, '
    queries += f'plain: {{sql: "SELECT dst FROM links WHERE src > 1", {sketched}}}}}'
    (tmp_path / "w.yaml").write_text(
        f"version: 1\ntables: {{links: {{path: links}}}}\nqueries: {queries}\n"
        "partitions: {links: {src: {boundaries: [2, 3]}}}\n"
    )
    unused.good("capture")
    told = {q: unused.good("rewrite", "--query", q).document["warnings"] for q in ("best", "plain")}
    assert "[best_rows_only]" in told["best"][-1]
    assert not any("best_rows_only" in one for one in told["plain"])
