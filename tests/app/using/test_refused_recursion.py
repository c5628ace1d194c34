"""A recursion that nobody can run fails at once, with what `check` says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from impctl.app.workbench.workbench import Workbench
from impctl.tables.write.create import create_table
from tests.support.run_cli import Cli

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
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> Cli:
    def start(desk: Workbench) -> None:
        raise _StartedError

    monkeypatch.setattr(Workbench, "spark", start)
    create_table(str(tmp_path / "links"), pa.table({"src": [1, 2], "dst": [2, 3]}))
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    return Cli(capsys, tmp_path / "w.yaml")


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
    (checked,) = cli.good("check", "--query", "bag").results
    assert checked["supported"] is False
    # It is told where, here as everywhere.
    assert checked["place"] == cli("explain", "--query", "bag").error["location"]
    assert checked["place"]["line"] == 24
    assert "_StartedError" in cli("query", "--query", "bag").error["message"]
