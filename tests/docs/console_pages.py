"""Pages that show commands and what they print: read, and run again in order."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_TIME = re.compile(r"\d[\d.,]* (ms|s)\b")


def check_page(page: str, folder: Path, columns: int) -> None:
    """Every command of the page prints in the folder what the page shows, times aside."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": str(columns)}
    commands = _shown(page)
    assert len(commands) >= 10
    for command, output in commands:
        program, *arguments = shlex.split(command)
        assert program == "impctl"
        done = subprocess.run(
            [sys.executable, "-m", "impctl", *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)
        # Sorted, since the page shows stdout and stderr as a terminal mixes them.
        said = _timeless(done.stdout + "\n" + done.stderr)
        assert said == _timeless(output), (command, said)


def _shown(page: str) -> list[tuple[str, str]]:
    """Every command of the page with the lines below it."""
    found = []
    for block in _BLOCK.findall(page):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def _timeless(text: str) -> list[str]:
    lines = (line.rstrip() for line in _TIME.sub("T", text).splitlines())
    return sorted(filter(None, lines))
