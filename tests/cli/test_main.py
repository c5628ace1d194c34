"""The console script as a process: help, version, speed, streams."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from impctl.cli import interrupt
from impctl.cli.application import COMMANDS, EXIT_CODES, build_app
from impctl.cli.boundary import run
from impctl.errors import INTERRUPTED, InterruptedRunError

HEAVY = ("numpy", "pyarrow", "deltalake", "sqlglot", "pydantic", "pyspark", "rich", "yaml")
SCRIPT = [sys.executable, "-P", "-m", "impctl"]


def start(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("IMPCTL_")}
    environment = {**kept, "COLUMNS": "80", **variables}
    return subprocess.run(
        [*SCRIPT, *words], capture_output=True, text=True, env=environment, check=False
    )


def test_importing_the_command_line_imports_nothing_heavy() -> None:
    code = "import sys, impctl.cli.application as m; m.build_app(); print(*sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert set(answer.stdout.split()).isdisjoint(HEAVY)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], [], ["maintain", "-h"], ["--version"]])
def test_help_is_fast(words: list[str]) -> None:
    """Beside what the parser of the command line needs to load, on any machine."""
    loading = min(seconds_used(sys.executable, "-P", "-c", "import typer") for _ in range(2))
    assert min(seconds_used(*SCRIPT, *words) for _ in range(2)) <= 5 * loading


def seconds_used(*command: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_a_signal_while_loading_ends_with_the_code_of_an_interruption() -> None:
    assert interrupt._INTERRUPTED == INTERRUPTED == InterruptedRunError("asked to end").exit_code


def test_help_lists_commands_and_exit_codes_within_80_columns() -> None:
    ran = start("--help")
    assert (ran.returncode, ran.stderr) == (0, "")
    for command in COMMANDS:
        assert f"\n  {command} " in ran.stdout
    for code, meaning in EXIT_CODES:
        assert f"{code:>5}  {meaning}\n" in ran.stdout
    assert "..." not in ran.stdout.partition("\n")[2], "no purpose is cut"
    assert max(map(len, ran.stdout.splitlines())) <= 80


def test_no_command_shows_the_help() -> None:
    assert start().stdout == start("--help").stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", list(COMMANDS))
def test_help_of_a_command_has_purpose_and_example(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a process for each: tests above see that help is printed by one."""
    monkeypatch.setenv("COLUMNS", "80")
    assert run(build_app(), [command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: impctl {command} ")
    assert f"  Example:\n    impctl {command} " in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_version_names_what_it_runs_on_without_starting_java(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    java.chmod(0o755)
    ran = start("--version", PATH=f"{tmp_path}:{os.environ['PATH']}", JAVA_HOME="")
    names = [line.split()[0] for line in ran.stdout.splitlines()]
    assert names == ["impctl", "pyspark", "deltalake", "pyarrow", "sqlglot", "java"]
    assert f"java {java} (PATH)" in ran.stdout
    assert not (tmp_path / "started").exists()


def test_a_missing_workload_file() -> None:
    ran = start("status", "no/such.yaml")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith(
        "error: There is no file `no/such.yaml` [workload_not_found]\nhint: "
    )


@pytest.mark.parametrize("command", ["check", "status", "maintain"])
def test_without_a_name_the_workload_file_is_that_of_the_folder(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(build_app(), [command]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "There is no file `impctl.yaml` here (the default workload file)" in shown.err
    assert "`impctl init TABLE`" in " ".join(shown.err.split())
    (tmp_path / "impctl.yaml").write_text("version: 2\n")
    assert run(build_app(), [command]) == 2
    assert "impctl.yaml:1:10: `version` must be the number 1" in capsys.readouterr().err


def test_the_same_as_json() -> None:
    ran = start("status", "no/such.yaml", "--json")
    assert (ran.returncode, ran.stderr) == (2, "")
    assert json.loads(ran.stdout)["error"]["code"] == "workload_not_found"


def test_a_reader_that_goes_away_is_no_error() -> None:
    for words, code in ((["--help"], 0), (["status", "no/such.yaml", "--json"], 2)):
        with subprocess.Popen(
            [*SCRIPT, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode == code


def test_streams_that_cannot_encode_a_name() -> None:
    ran = start("status", "grün.yaml", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert ran.returncode == 2
    assert "gr\\xfcn.yaml" in ran.stderr
