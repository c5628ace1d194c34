"""The console blocks of a page: its commands run in order and print what the page shows.

A block of another language whose first line is `# NAME.EXT` is a file in the reader's folder. It is
written as soon as its folder exists.

After changing a message, run `python -m tests.docs.consoles [PAGE ...]` to write the new output
into the pages. Times are not compared, and a page keeps its times.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from contextlib import chdir
from pathlib import Path
from unittest import mock

from msgspec import Struct

from tests.support.run_cli import Spoken, called, spoken

ROOT = Path(__file__).parents[2]
_CONSOLE = re.compile(r"(?<=^```console\n).*?(?=^```)", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^```\w+\n(# ([\w/-]+\.\w+)\n.*?)^```", re.MULTILINE | re.DOTALL)
_TIME = re.compile(r"\d[\d.,]* (ms|s)\b")


class Page(Struct, frozen=True):
    """A page with commands; `columns` is the width of its terminal, and `is_whole` means that it
    shows all output of the commands."""

    name: str
    columns: int = 100
    needs_crimes: bool = False
    is_whole: bool = True

    @property
    def path(self) -> Path:
        return ROOT / "docs" / self.name


TUTORIAL = Page("tutorial.md", 80, needs_crimes=True)
PAGES = (
    Page("how-it-works.md"),
    Page("recursive-queries.md"),
    Page("reuse.md"),
    Page("time.md"),
    *(
        Page(f"{name}.md", is_whole=False)
        for name in (
            *("first-steps", "materialized-results", "output-formats", "changes", "why"),
            *("state-on-disk", "configuration"),
        )
    ),
)
"""Pages whose commands need neither Spark nor external data."""


class Shown(Struct, frozen=True):
    """A command of a page with the lines below it, and its actual output."""

    command: str
    output: str
    printed: str
    exit_code: int
    is_whole: bool

    @property
    def is_true(self) -> bool:
        fails = "error:" in self.output
        shown, printed = without_times(self.output), without_times(self.printed)
        is_shown = shown == printed if self.is_whole else shown <= printed
        return fails == (self.exit_code != 0) and is_shown


def run(page: Page, folder: Path) -> list[Shown]:
    """Run every command of the page in this folder, with the files that the page shows."""
    text = page.path.read_text(encoding="utf-8")
    shutil.copytree(ROOT / "workloads", folder / "workloads")
    files = [(folder / name, content) for content, name in _FILE.findall(text)]
    # Readers do not have the settings of other tests.
    environment = {name: value for name, value in os.environ.items() if "IMPCTL_" not in name}
    environment |= {"COLUMNS": str(page.columns)}
    if page.needs_crimes:
        environment["IMPCTL_CRIMES"] = os.environ["IMPCTL_CRIMES"]
    result = []
    for block in _CONSOLE.findall(text):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            for path, content in [(path, _) for path, _ in files if path.parent.is_dir()]:
                path.write_text(content, encoding="utf-8")
                files.remove((path, content))
            with chdir(folder), mock.patch.dict(os.environ, environment, clear=True):
                completed = _run(*shlex.split(command, comments=True))
            printed = f"{completed.stdout}\n{completed.stderr}"
            result.append(Shown(command, output, printed, completed.returncode, page.is_whole))
    return result


def _run(program: str, *words: str) -> Spoken:
    """Run impctl in this process, which avoids starting one for each command."""
    assert program in ("impctl", "python"), program
    return called(*words) if program == "impctl" else spoken(sys.executable, *words)


def without_times(text: str) -> Counter[str]:
    """Count the lines without times and blank lines. Their order is ignored, because a terminal
    mixes stdout and stderr."""
    lines = (line.rstrip() for line in _TIME.sub("T", text).splitlines())
    return Counter(filter(None, lines))


def main(names: list[str]) -> None:
    for page in (*PAGES, TUTORIAL):
        if names and page.name not in names:
            continue
        text = page.path.read_text(encoding="utf-8")
        position = 0
        with tempfile.TemporaryDirectory() as folder:
            for shown in run(page, Path(folder)):
                before = f"$ {shown.command}\n{shown.output}"
                position = text.index(before, position)
                if page.is_whole and not shown.is_true:
                    after = f"$ {shown.command}\n{shown.printed}"
                    text = text[:position] + after + text[position + len(before) :]
                    sys.stdout.write(f"{page.name}: {shown.command} ({shown.exit_code})\n")
                position += 1
        page.path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
