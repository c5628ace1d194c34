"""kill -9 at every write of `maintain --changes`: who reads the files reads each change once."""

from __future__ import annotations

import copy
import random
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.crash.killing import PARTS, STRIDE, put_back, ran, saved_as, writes
from tests.support.change_reader import Reader
from tests.support.kept_workload import answer_at, change, grow, stored, write_workload
from tests.support.run_cli import Capsys, Cli

NAMES = ("plain", "top", "eager")
"""By rows, by comparing answers, and by several steps in one run."""

TREES = ("tree_rows", "tree_groups", "tree_first")
"""Of joins that are maintained without joining."""


def base(tmp_path: Path, capsys: Capsys, names: tuple[str, ...] = NAMES) -> Path:
    """A folder with a workload that is two versions behind, after one step with files."""
    folder = tmp_path / "base"
    folder.mkdir()
    cli = Cli(capsys, write_workload(folder, names))
    cli.good("capture")
    grow(folder)
    cli.good("maintain", "--changes", str(folder / "out"))
    grow(folder)
    change(folder, random.Random(8))
    grow(folder)
    return folder


def check(folder: Path, programs: dict[str, Reader]) -> None:
    """Every program has the answer of the commit that was made last, from whole files alone."""
    for name, program in programs.items():
        held = stored(folder, name)
        program.read(held.generation)
        assert program.versions == held.versions
        assert program.answer == answer_at(folder, name, dict(held.versions)), name
        for path in program.folder.glob("*.parquet"):
            pq.read_table(path)


def programs_of(folder: Path, names: tuple[str, ...]) -> dict[str, Reader]:
    result = {}
    for name in names:
        held = stored(folder, name)
        answer = answer_at(folder, name, dict(held.versions))
        result[name] = Reader(folder / "out" / name, answer, held.generation, held.versions)
    return result


@dataclass
class Scene:
    """A folder with a run to make."""

    folder: Path
    saved: Path
    programs: dict[str, Reader]

    @classmethod
    def of(cls, folder: Path, names: tuple[str, ...] = NAMES) -> Scene:
        return cls(folder, saved_as(folder), programs_of(folder, names))

    def put_back(self) -> dict[str, Reader]:
        put_back(self.folder, self.saved)
        return copy.deepcopy(self.programs)

    def ran(self, at: int) -> subprocess.CompletedProcess[str]:
        """`maintain --changes`, killed at a write; below zero not at all."""
        return ran(self.folder, at, "--changes", str(self.folder / "out"))

    def writes(self) -> int:
        """How many writes the run has."""
        programs = self.put_back()
        result = writes(self.ran(-1))
        check(self.folder, programs)
        return result

    def kill(self, at: int) -> bool:
        """Kill a run, read, let a table move on now and then, run again and read; whether a file of
        a commit that was not made had been left behind."""
        programs = self.put_back()
        assert self.ran(at).returncode == -9, at
        check(self.folder, programs)
        left = [
            path
            for program in programs.values()
            for path in program.folder.glob(f"{program.commit + 1:06}_*.parquet")
        ]
        if at % 2:
            grow(self.folder)
        writes(self.ran(-1))
        check(self.folder, programs)
        for program in programs.values():
            numbers = [path.name.split("_")[0] for path in program.folder.iterdir()]
            assert len(numbers) == len(set(numbers)), at
            assert all(re.fullmatch(r"\d{6}", number) for number in numbers), numbers
        return bool(left)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_killed_at_every_write_each_change_is_read_once(
    tmp_path: Path, capsys: Capsys, part: int
) -> None:
    scene = Scene.of(base(tmp_path, capsys))
    last = scene.writes()
    first = part * STRIDE // PARTS
    killed = [scene.kill(at) for at in range(first, last, STRIDE)]
    assert last > 60
    assert len(killed) >= last // STRIDE


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_trees_that_were_killed_at_every_write_go_on(
    tmp_path: Path, capsys: Capsys, part: int
) -> None:
    """Of each tree the answer, from whole files alone, and in the end a new capture's sketch."""
    scene = Scene.of(base(tmp_path, capsys, TREES), TREES)
    last = scene.writes()
    killed = 0
    for at in range(part * STRIDE // PARTS, last, STRIDE):
        scene.kill(at)
        killed += 1
        assert sketches(capsys, scene.folder, ".impctl") == sketches(capsys, scene.folder, "anew")
    assert last > 60
    assert killed >= last // STRIDE


def sketches(capsys: Capsys, folder: Path, store: str) -> dict[tuple[str, int], list[int]]:
    """Fragments of every access in a store, which is captured where there is none."""
    cli = Cli(capsys, folder / "w.yaml")
    if not (folder / store).exists():
        cli.good("capture", "--store", str(folder / store))
    return {
        (one["query"], at): sketch["fragments"]
        for one in cli.good("status", "--store", str(folder / store)).results
        for at, sketch in enumerate(one["sketches"])
    }


@pytest.mark.long
@pytest.mark.slow
def test_killed_at_some_writes_each_change_is_read_once(tmp_path: Path, capsys: Capsys) -> None:
    """The same for a few writes, of which one falls between a file and its commit."""
    scene = Scene.of(base(tmp_path, capsys))
    left = [scene.kill(at) for at in random.Random(3).sample(range(scene.writes()), 3)]
    assert any(left)
