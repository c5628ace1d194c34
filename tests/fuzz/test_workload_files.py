"""Workload files of any content: read, or refused with the place and a hint.

By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for 240 cases.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from impctl.tables.write.maintenance import create_table
from tests.fuzz.bounded import told
from tests.fuzz.yaml_changes import changed
from tests.support.random_cases import random_cases
from tests.support.run_cli import Capsys, Cli
from tests.support.small_workload import ROWS

OF_ITS_OWN = """\
version: 1
name: all
tables:
  t: {path: t, storage_options: {timeout: 30s}}
partitions:
  t:
    g: {boundaries: [2, 4, 6]}
    x: {ranges: 4}
queries:
  q:
    sql: |
      SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t
      WHERE note <> :word GROUP BY g HAVING COUNT(*) > :low
    params: {low: 2, word: it's}
    sketch: {t: g}
    policy: auto
    maintain: lazy
    join: auto
    buffer: 100
  other: {sql: "SELECT x, MAX(g) FROM t GROUP BY x HAVING MAX(g) > 3"}
updates:
  - {name: new, insert: {table: t, rows: [{g: 1, x: 2, note: n}]}}
  - {name: old, delete: {table: t, where: "x = 5"}}
  - {name: set, update: {table: t, set: {x: "x + 1"}, where: "g = 3"}}
store: .impctl
spark: {master: "local[2]", conf: {spark.ui.enabled: false}}
"""
SHIPPED = sorted((Path(__file__).parents[2] / "workloads").rglob("*.yaml"))


def check_file(cli: Cli, text: str, what: str) -> int:
    cli.workload.write_bytes(text.encode("utf-8", "surrogatepass"))
    code = told(cli, "check", what=what).code
    told(cli, "status", what=what)
    if code == 0:
        told(cli, "apply", "--all", "--dry-run", what=what)
    return code


@pytest.mark.slow
@random_cases(4, 16, 96, also="23", all_when_long=True)
def test_a_file_of_every_section(cases: range, tmp_path: Path, capsys: Capsys) -> None:
    create_table(str(tmp_path / "t"), ROWS)
    cli = Cli(capsys, tmp_path / "w.yaml")
    assert check_file(cli, OF_ITS_OWN, "as it is") == 0
    codes = [check_file(cli, changed(seed, OF_ITS_OWN), f"seed {seed}") for seed in cases]
    assert codes.count(2) > len(codes) / 2
    assert codes.count(0) + codes.count(3) > len(codes) / 50


@random_cases(1, 3, 24)
def test_the_files_that_come_with_impctl(cases: range, tmp_path: Path, capsys: Capsys) -> None:
    """Suites among them: their data is not there, so nothing is measured."""
    cli = Cli(capsys, tmp_path / "w.yaml")
    for seed in cases:
        file = SHIPPED[seed % len(SHIPPED)]
        text = changed(seed // len(SHIPPED), file.read_text())
        cli.workload.write_bytes(text.encode("utf-8", "surrogatepass"))
        for command in ("check", "explain"):
            told(cli, command, what=f"seed {seed}, {file.name}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        b"\xff\xfe" + "version: 1".encode("utf-16-le"),
        b"version: 1\n" * 90_000,
        b"[" * 900_000,
        b"{a: " * 200_000,
        b"- " * 400_000,
        b"? " * 400_000,
        b"a: &a [*a, *a]",
        b"\xed\xa0\x80",
        b"#" * 1_000_000,
        b"'" + b"x" * 1_000_000,
        b"version: " + b"9" * 1_000_000,
        b"".join(b"k%d: 1\n" % number for number in range(90_000)),
        b"!!" * 100_000,
        b"&a " * 100_000,
    ],
    ids=lambda content: repr(content[:16]),
)
def test_files_of_the_largest_size(content: bytes, tmp_path: Path, capsys: Capsys) -> None:
    file = tmp_path / "w.yaml"
    file.write_bytes(content)
    ran = told(Cli(capsys, file), "check", what=repr(content[:20]))
    assert ran.code == 2
