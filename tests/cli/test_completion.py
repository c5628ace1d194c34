"""Shell completion by the protocol that bash speaks, in a real bash, and what it loads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from impctl.cli.application import COMMANDS
from impctl.workload.load import names_in

WORKLOAD = """\
version: 1
tables: {sales: {path: "${NOT_SET}"}}
queries:
  q_top: {sql: SELECT 1}
  q_brand: {sql: this is no SQL}
  "has space": {sql: x}
updates:
  - {name: s8, delete: {table: sales, where: "a = 1"}}
  - {name: old}
  - wrong
"""


@pytest.fixture(scope="module")
def script() -> str:
    """What `impctl completion bash` prints."""
    command = [sys.executable, "-P", "-m", "impctl", "completion", "bash"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def folder(tmp_path: Path, script: str) -> Path:
    """A folder with a workload, and `impctl` on the path as a console script would be."""
    (tmp_path / "completion.bash").write_text(script)
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "impctl"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m impctl "$@"\n')
    script.chmod(0o755)
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    path = f"{folder}/bin:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": root}


def completed(folder: Path, line: str) -> list[str]:
    """What bash offers for the last word of `line`, by the function that the script defines."""
    words = line.split(" ")
    listed = " ".join(f"'{word}'" for word in words)
    code = (
        "source ./completion.bash\n"
        'function=$(complete -p impctl | sed "s/.*-F \\([^ ]*\\) .*/\\1/")\n'
        f"COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}\n"
        '$function impctl; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    bash = shutil.which("bash")
    assert bash is not None
    ran = subprocess.run(
        [bash, "-c", code],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(folder),
        check=True,
    )
    assert ran.stderr == ""
    return ran.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("impctl st", ["status"]),
        ("impctl status w.yaml --run", ["--runs"]),
        ("impctl query w.yaml --query ", ["q_top", "q_brand"]),
        ("impctl explain w.yaml --json --query q_top --query q_", ["q_brand"]),
        ("impctl apply w.yaml s8 ", ["old"]),
        ("impctl maintain w.yaml --policy in", ["incremental"]),
        ("impctl completion ", ["bash", "zsh", "fish"]),
        ("impctl status w", []),
        ("impctl capture w.yaml --store w", []),
        ("impctl bench --report w", []),
        ("impctl status gone.yaml --query ", []),
        ("impctl status --query ", []),
    ],
)
def test_what_bash_offers(folder: Path, line: str, offered: list[str]) -> None:
    assert completed(folder, line) == offered


def test_every_command_is_offered(folder: Path) -> None:
    assert set(completed(folder, "impctl ")) == set(COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "queries: [", "queries: 3", "- a", "queries: {1: {}}", "\0"])
def test_a_file_that_is_wrong_offers_nothing(folder: Path, text: str) -> None:
    (folder / "w.yaml").write_text(text)
    assert names_in(folder / "w.yaml", "queries") == ()
    assert completed(folder, "impctl status w.yaml --query ") == []


@pytest.mark.parametrize(("shell", "word"), [("zsh", "compdef"), ("fish", "complete --command")])
def test_scripts_of_other_shells(folder: Path, shell: str, word: str) -> None:
    ran = subprocess.run(
        ["impctl", "completion", shell],
        capture_output=True,
        text=True,
        env=environment(folder),
        check=True,
    )
    assert word in ran.stdout
    assert "_IMPCTL_COMPLETE=complete_" + shell in ran.stdout


@pytest.mark.parametrize(
    ("shell", "variables"),
    [
        ("zsh", {"_TYPER_COMPLETE_ARGS": "impctl status w.yaml --query q_b"}),
        (
            "fish",
            {
                "_TYPER_COMPLETE_ARGS": "impctl status w.yaml --query q_b",
                "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            },
        ),
    ],
)
def test_the_protocols_of_other_shells(folder: Path, shell: str, variables: dict[str, str]) -> None:
    asked = {**environment(folder), "_IMPCTL_COMPLETE": f"complete_{shell}", **variables}
    ran = subprocess.run(
        ["impctl"], capture_output=True, text=True, cwd=folder, env=asked, check=False
    )
    assert "q_brand" in ran.stdout
    assert "q_top" not in ran.stdout


@pytest.mark.parametrize(
    ("line", "code"), [("impctl status w", 1), ("impctl status w.yaml --query ", 0)]
)
def test_fish_is_told_where_files_are_meant(folder: Path, line: str, code: int) -> None:
    asked = {
        **environment(folder),
        "_IMPCTL_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "is-args",
        "_TYPER_COMPLETE_ARGS": line,
    }
    ran = subprocess.run(["impctl"], capture_output=True, cwd=folder, env=asked, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (code, b"", b"")


def test_completing_names_loads_nothing_heavy(folder: Path) -> None:
    code = (
        "import sys\nfrom impctl.cli.main import main\n"
        "try: main()\nfinally: print(*sys.modules, file=sys.stderr)\n"
    )
    asked = {
        **environment(folder),
        "_IMPCTL_COMPLETE": "complete_bash",
        "COMP_WORDS": "impctl status w.yaml --query ",
        "COMP_CWORD": "4",
    }
    ran = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd=folder, env=asked,
        check=False,
    )  # fmt: skip
    assert ran.stdout.split() == ["q_top", "q_brand"]
    loaded = set(ran.stderr.split())
    assert "yaml" in loaded
    assert loaded.isdisjoint({"pyspark", "pyarrow", "numpy", "deltalake", "sqlglot"})
