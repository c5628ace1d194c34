"""Examples of user documents: their commands run, in order, and print what the page shows.

A `console` block has commands with lines of their output below; other lines of the output may be
omitted. A `yaml` block whose first line is `# FOLDER/NAME.yaml` is written to that file after
`init` or `bench --generate`; any other `yaml` block adds keys to a workload file, which must be
valid. Commands in indented blocks only have to parse.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from impctl.cli.application import build_app
from impctl.service.settings import ENVVARS
from impctl.workload.load import workload_of
from tests.support.sources import ROOT

RUN = (
    "first-steps.md",
    "materialized-results.md",
    "output-formats.md",
    "changes.md",
    "why.md",
    "state-on-disk.md",
    "configuration.md",
)
"""Pages with a tested example; the tutorials and the Python page have tests of their own."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w/-]+\.yaml)\n")
TIME = re.compile(r"\d[\d.,]* (ms|s)\b")
INDENTED = re.compile(r"^    impctl (.+)$", re.MULTILINE)
BASE = """
version: 1
tables: {sales: {path: sales}}
queries: {q: {sql: SELECT COUNT(*) AS n FROM sales}}
"""


@cache
def blocks(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))


def commands(page: str) -> Iterator[tuple[str, list[str]]]:
    """Every command of the page's console blocks, with the lines shown below it."""
    for kind, text in blocks(page):
        if kind == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                yield command, output.splitlines()


def timeless(lines: list[str]) -> Counter[str]:
    return Counter(TIME.sub("T", line.rstrip()) for line in lines if line.strip())


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN)
def test_commands_print_what_the_page_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for entry in ENVVARS:
        monkeypatch.delenv(entry.name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("COLUMNS", "100")
    examples = list(commands(page))
    assert examples
    for command, shown in examples:
        program, *arguments = shlex.split(command, comments=True)
        assert program == "impctl"
        done = subprocess.run(
            [sys.executable, "-P", "-m", "impctl", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)
        output = done.stdout + "\n" + done.stderr
        assert timeless(shown) - timeless(output.splitlines()) == Counter(), (command, output)
        if arguments[0] == "init" or "--generate" in arguments:
            write_files(page, tmp_path)


def write_files(page: str, folder: Path) -> None:
    for kind, text in blocks(page):
        if kind == "yaml" and (name := FILE.match(text)):
            (folder / name[1]).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("page", RUN)
def test_yaml_of_the_page_is_valid(page: str) -> None:
    for kind, text in blocks(page):
        if kind == "yaml":
            added = yaml.safe_load(text)
            whole = {**yaml.safe_load(BASE), **added}
            for key in ("tables", "queries"):
                whole[key] = {**yaml.safe_load(BASE)[key], **added.get(key, {})}
            # Read as it is on the page where that is a whole file, positions and all.
            source = text if "version" in added else yaml.safe_dump(whole)
            workload_of(Path("page.yaml"), source, {"KEY": "k", "SECRET": "s"})


@pytest.mark.parametrize("page", RUN)
def test_other_commands_of_the_page_parse(page: str) -> None:
    app: Any = typer.main.get_command(build_app())
    for line in INDENTED.findall((ROOT / "docs" / page).read_text(encoding="utf-8")):
        name, *words = shlex.split(re.split(r" [>|] ", line)[0], comments=True)
        app.commands[name].make_context(name, words)
