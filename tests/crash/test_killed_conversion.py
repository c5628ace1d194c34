"""kill -9 at every write of a conversion: the old choice whole, or the new one."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.behaviour.typed_joins import GROUPINGS, QUERIES, change, write_workload
from tests.crash.killing import PARTS, STRIDE
from tests.support.kept_workload import fragments_by_access, stored
from tests.support.run_cli import Cli

NAMES = ("two", "self", "computed", "by_s")
LEAST = ("--disk", "0")


ROOM = ("--query", "self_kept", "--disk", "1GB")


def ran(
    folder: Path, at: int, *flags: str, command: str = "maintain"
) -> subprocess.CompletedProcess[str]:
    """The command, killed at a write; below zero not at all."""
    words = [command, str(folder / "w.yaml"), *flags, "--json"]
    return subprocess.run(
        [sys.executable, "-m", "tests.crash.killing", str(at), *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def writes(done: subprocess.CompletedProcess[str]) -> int:
    """How many writes a run had that went well."""
    assert done.returncode == 0, done.stderr
    counted = re.search(r"writes: (\d+)", done.stderr)
    assert counted is not None
    return int(counted[1])


def base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder with queries beside twins of which all is kept, one version behind."""
    folder = tmp_path / "base"
    folder.mkdir()
    queries = {**QUERIES, **GROUPINGS}
    asked = [(name, queries[name], "auto") for name in NAMES]
    pinned = [(f"{name}_kept", queries[name], "index") for name in NAMES]
    cli = Cli(capsys, write_workload(folder, [*asked, *pinned]))
    cli.good("capture")
    change(folder, random.Random(3), 0)
    return folder


def check(folder: Path) -> list[list[str]]:
    """Sketches of one version are those of all kept; the sides that are read."""
    found = []
    for name in NAMES:
        one, twin = stored(folder, name), stored(folder, f"{name}_kept")
        if one.versions == twin.versions:
            mine, theirs = map(fragments_by_access, (one, twin))
            assert mine == theirs, name
        found.append(one.state_meta.get("from_files", []))
    return found


def saved_as(folder: Path) -> Path:
    saved = folder.with_name("saved")
    shutil.copytree(folder, saved)
    return saved


def put_back(folder: Path, saved: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(saved, folder)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_killed_at_every_write_the_choice_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: int
) -> None:
    folder = base(tmp_path, capsys)
    saved = saved_as(folder)
    before = writes(ran(folder, -1))
    put_back(folder, saved)
    last = writes(ran(folder, -1, *LEAST))
    final = check(folder)
    assert all(final), final
    assert "aggregate0" in final[0], "groups go too"
    assert last > before + len(NAMES)
    choices = set()
    for at in range(before - 2 + part, last, STRIDE):
        put_back(folder, saved)
        assert ran(folder, at, *LEAST).returncode == -9, at
        for sides, whole in zip(check(folder), final, strict=True):
            assert sides in ([], whole), at
            choices.add(bool(sides))
        for turn in (1, 2):
            # A run that has nothing to do does not look at the budget.
            change(folder, random.Random(at), turn)
            writes(ran(folder, -1, *LEAST))
            assert check(folder) == final, at
    assert choices


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_killed_at_every_write_what_is_kept_again_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: int
) -> None:
    """Sides and groups that were read are made again after the capture of another query."""
    folder = base(tmp_path, capsys)
    writes(ran(folder, -1, *LEAST))
    for turn in (3, 4, 5):
        change(folder, random.Random(turn), turn)
        writes(ran(folder, -1))
    # Else what is worth keeping again goes by how quick the machine is.
    file = folder / "w.yaml"
    file.write_text(file.read_text().replace("join: auto}", "join: auto, state: keep}"))
    least = check(folder)
    assert "aggregate0" in least[0]
    saved = saved_as(folder)
    before = writes(ran(folder, -1, *ROOM[:2], command="capture"))
    assert check(folder) == least
    put_back(folder, saved)
    last = writes(ran(folder, -1, *ROOM, command="capture"))
    final = check(folder)
    assert not any(final), final
    assert last > before + len(NAMES)
    for at in range(before - 2 + part, last, STRIDE):
        put_back(folder, saved)
        assert ran(folder, at, *ROOM, command="capture").returncode == -9, at
        for sides, *both in zip(check(folder), least, final, strict=True):
            assert sides in both, at
        for turn in (1, 2):
            change(folder, random.Random(at), turn)
            writes(ran(folder, -1))
            check(folder)
        writes(ran(folder, -1, *ROOM, command="capture"))
        assert check(folder) == final, at
