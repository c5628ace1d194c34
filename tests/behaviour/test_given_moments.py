"""One value given for parameters of one name in several queries."""

from __future__ import annotations

from pathlib import Path

from tests.support.run_cli import Capsys, Cli

WORKLOAD = """\
version: 1
tables: {t: {path: t}}
queries:
  a: {sql: "SELECT g FROM t WHERE day >= :start", params: {start: {moves: daily}}}
  b: {sql: "SELECT g FROM t WHERE at >= :start", params: {start: {moves: hourly}}}
store: .impctl
"""


def test_a_day_for_one_query_is_no_hour_for_another(tmp_path: Path, capsys: Capsys) -> None:
    ran = Cli.over(capsys, tmp_path, WORKLOAD)("status", "--param", "start=2026-03-05")
    assert (ran.code, ran.error["code"]) == (2, "parameter_ambiguous")
