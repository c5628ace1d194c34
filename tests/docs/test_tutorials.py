"""The tutorials' commands, run in order; what they print is what the pages show, times aside."""

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
            [sys.executable, "-P", "-m", "impctl", *arguments],
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


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.skipif(
    not os.environ.get("IMPCTL_CRIMES", ""),
    reason="IMPCTL_CRIMES names no Parquet file of incidents",
)
def test_every_command_prints_what_the_page_shows(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "workloads", tmp_path / "workloads")
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    check_page(page, tmp_path, columns=80)


@pytest.mark.slow
def test_every_command_of_the_network_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What other tests ask for, a reader does not.
    monkeypatch.delenv("IMPCTL_SKETCH", raising=False)
    monkeypatch.delenv("IMPCTL_BY", raising=False)
    page = (ROOT / "docs" / "network-tutorial.md").read_text(encoding="utf-8")
    for language, name in (("python", "net.py"), ("yaml", "net.yaml")):
        found = re.search(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        assert found is not None
        (tmp_path / name).write_text(found[1])
    subprocess.run([sys.executable, "net.py"], cwd=tmp_path, check=True)
    check_page(page, tmp_path, columns=100)
