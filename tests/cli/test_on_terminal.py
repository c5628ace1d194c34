"""Names and literals that would drive a terminal, shown on a real one and in a pipe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.tables.write.maintenance import create_table
from tests.crash.small import some_rows

BIDI = "\u202e\u2066\u200f\u061c"
RAW = "\x1b"

COLUMN = f"g{BIDI}"
WORKLOAD = """\
version: 1
tables:
  t: {path: t}
partitions:
  t: {"COLUMN": {ranges: 4}}
queries:
  q:
    sql: "SELECT `COLUMN`, COUNT(*) AS n FROM t WHERE 'COLUMN \\e[31m' <> x
      GROUP BY `COLUMN` HAVING COUNT(*) > 2"
    sketch: {t: "COLUMN"}
""".replace("COLUMN", "g\\u202e\\u2066\\u200f\\u061c").replace("<> x", "<> 'a'")


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driven")
    create_table(str(folder / "t"), some_rows(60, 1).rename_columns([COLUMN, "x"]))
    file = folder / "w.yaml"
    file.write_text(WORKLOAD)
    assert run(build_app(), ["capture", str(file), "--quiet"]) == 0
    return file


def words(*arguments: object) -> list[str]:
    return ["-P", "-m", "impctl", *map(str, arguments)]


def on_terminal(*arguments: object) -> str:
    """All that a real terminal gets, a bar's own codes left out by TERM."""
    environment = {**os.environ, "TERM": "dumb", "PYTHONPATH": os.pathsep.join(sys.path)}
    return str(
        pexpect.run(
            sys.executable + " " + " ".join(f"'{word}'" for word in words(*arguments)),
            env=environment,
            encoding="utf-8",
            timeout=120,
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("capture",),
        ("check",),
        ("explain",),
        ("plan",),
        ("status", "-v"),
        ("doctor",),
        ("gc",),
        ("rewrite",),
        ("rewrite", "--query", f"no{BIDI}{RAW}[2J"),
        ("capture", "-vv", "--query", f"no{BIDI}{RAW}[2J"),
        (f"no{BIDI}{RAW}[2J",),
    ],
)
def test_nothing_drives_a_terminal(workload: Path, arguments: tuple[str, ...]) -> None:
    command, *rest = arguments
    shown = on_terminal(command, workload, *rest)
    assert shown
    assert not [sign for sign in BIDI + RAW if sign in shown], repr(shown)
    if command in ("check", "explain", "status", "rewrite"):
        assert "u202e" in shown


@pytest.mark.slow
def test_sql_is_exact_in_a_pipe_and_can_be_copied_from_a_terminal(workload: Path) -> None:
    assert "captured" in on_terminal("capture", workload)
    piped = subprocess.run(
        [sys.executable, *words("rewrite", workload)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert f"{BIDI} {RAW}[31m" in piped.stdout
    assert "\\u202e\\u2066\\u200f\\u061c \\u001b[31m" in on_terminal("rewrite", workload)
