"""The tutorial's commands, run in order; what it prints is what they print, times aside."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
SOURCE = os.environ.get("IMPCTL_CRIMES", "")
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
TIME = re.compile(r"\d[\d.,]* (ms|s)\b")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.skipif(not SOURCE, reason="IMPCTL_CRIMES names no Parquet file of incidents"),
]


def shown() -> list[tuple[str, str]]:
    """Every command of the page with the lines below it."""
    found = []
    for block in BLOCK.findall(PAGE):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def timeless(text: str) -> list[str]:
    return sorted(TIME.sub("T", text).splitlines())


def test_every_command_prints_what_the_page_shows(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "workloads", tmp_path / "workloads")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    commands = shown()
    assert len(commands) >= 10
    for command, output in commands:
        program, *arguments = shlex.split(command)
        assert program == "impctl"
        done = subprocess.run(
            [sys.executable, "-m", "impctl", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)
        # Sorted, since the page shows stdout and stderr as a terminal mixes them.
        assert timeless(done.stdout + done.stderr) == timeless(output), command
