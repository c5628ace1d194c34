"""kill -9 of real commands, at random moments and at every write: the old state, or the new."""

from __future__ import annotations

import copy
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from msgspec import Struct

from impctl.service.settings import FUZZ
from impctl.store.disk import SPARK_SCRATCH, abandoned
from tests.behaviour import recursive_workload as recursion
from tests.behaviour import typed_joins
from tests.crash import killing
from tests.crash.killing import PARTS, STRIDE, put_back, saved_as, writes
from tests.crash.processes import (
    MATERIALIZED,
    change,
    check_nothing_left,
    check_store,
    newest,
    ran,
    start,
    until_open,
    write_workload,
)
from tests.service.budget import test_bounds as buffers
from tests.support.diagrams import with_diagrams
from tests.support.kept_workload import Reader, answer_at, fragments_by_access, grow, stored
from tests.support.kept_workload import change as change_kept
from tests.support.kept_workload import write_workload as write_kept
from tests.support.run_cli import Capsys, Cli

ROUNDS = 6 * int(os.environ.get(FUZZ, "1"))
COMMANDS: tuple[tuple[str, ...], ...] = (
    *(("maintain",), ("capture",), ("maintain",), ("gc", "--keep", "1")),
    ("capture", "--rebalance"),
    ("query", "--query", MATERIALIZED, "--by", "state"),
)


@pytest.mark.slow
def test_killed_commands_leave_a_store_that_goes_on(
    cli: Cli, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    workload, table, store = cli.workload, tmp_path / "t", tmp_path / ".impctl"
    assert ran(workload, "capture").code == 0
    draw = random.Random(5)
    spans: dict[str, float] = {}
    killed, versions = 0, {"by_g": 0, "by_x": 0}
    for number in range(4 * ROUNDS):
        # How many still run when they are killed depends on the machine and its load.
        if number >= ROUNDS and killed >= ROUNDS // 2:
            break
        change(table, number + 2)
        command, *words = COMMANDS[number % len(COMMANDS)]
        process = start(workload, command, *words)
        opened = until_open(process, store)
        span = spans.get(command, 0.5)
        with suppress(subprocess.TimeoutExpired):
            process.wait(draw.uniform(0, span))
            spans[command] = min(span, time.monotonic() - opened)
        process.kill()
        process.communicate()
        killed += process.returncode == -9
        held = check_store(store, table)
        now = {name: stored.versions["t"] for name, stored in held.items()}
        assert all(now[name] >= version for name, version in versions.items())
        versions = now
        assert {result["query"] for result in cli.good("status").results} == set(now)
        if number % 3 == 2:
            cli.good("maintain")
            current = {stored.versions["t"] for stored in check_store(store, table).values()}
            assert current == {newest(table)}
            by_state, by_engine = (_answer(cli, by) for by in ("state", "engine"))
            assert by_state == by_engine != []
            cli.good("gc", "--keep", "1")
            check_nothing_left(store)
            assert cli.one("gc", "--keep", "1", "--dry-run")["entries"] == []
    record_property("killed", killed)
    assert killed >= ROUNDS // 2


def _answer(cli: Cli, by: str) -> list[object]:
    result = cli.one("query", "--query", MATERIALIZED, "--by", by)
    assert result["by"] == by
    return sorted(result["rows"], key=repr)


@pytest.fixture
def cli(tmp_path: Path, capsys: Capsys) -> Cli:
    # Rows enough for files of state beside the catalog.
    return Cli(capsys, write_workload(tmp_path, rows=30_000))


NAMES = ("plain", "top", "eager")
"""By rows, by comparing answers, and by several steps in one run."""

TREES = ("tree_rows", "tree_groups", "tree_first")
"""Of joins that are maintained without joining."""


def base(tmp_path: Path, capsys: Capsys, names: tuple[str, ...] = NAMES) -> Path:
    """A folder with a workload that is two versions behind, after one step with files."""
    folder = tmp_path / "base"
    folder.mkdir()
    cli = Cli(capsys, write_kept(folder, names)).captured()
    grow(folder)
    cli.good("maintain", "--changes", str(folder / "out"))
    grow(folder)
    change_kept(folder, random.Random(8))
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


class Scene(Struct, dict=True):
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
        return killing.ran(self.folder, at, "--changes", str(self.folder / "out"))

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
@pytest.mark.parametrize("names", [NAMES, TREES], ids=["rows", "trees"])
@pytest.mark.parametrize("part", range(PARTS))
def test_killed_at_every_write_each_change_is_read_once(
    tmp_path: Path, capsys: Capsys, names: tuple[str, ...], part: int
) -> None:
    """Of a tree the sketches are those of a new capture as well."""
    scene = Scene.of(base(tmp_path, capsys, names), names)
    last = scene.writes()
    killed = range(part * STRIDE // PARTS, last, STRIDE)
    for at in killed:
        scene.kill(at)
        if names == TREES:
            held, anew = (sketches(capsys, scene.folder, one) for one in (".impctl", "anew"))
            assert held == anew
    assert last > 60
    assert len(killed) >= last // STRIDE


def sketches(capsys: Capsys, folder: Path, store: str) -> dict[tuple[str, int], list[int]]:
    """Fragments of every access in a store, which is captured where there is none."""
    cli = Cli(capsys, folder / "w.yaml")
    if not (folder / store).exists():
        cli.good("capture", "--store", str(folder / store))
    results = cli.good("status", "--store", str(folder / store)).results
    every = ((one["query"], one["sketches"]) for one in results)
    return {(q, at): sketch["ranges"] for q, some in every for at, sketch in enumerate(some)}


@pytest.mark.long
@pytest.mark.slow
def test_killed_at_some_writes_each_change_is_read_once(tmp_path: Path, capsys: Capsys) -> None:
    """The same for a few writes, of which one falls between a file and its commit."""
    scene = Scene.of(base(tmp_path, capsys))
    left = [scene.kill(at) for at in random.Random(3).sample(range(scene.writes()), 3)]
    assert any(left)


LEAST = ("--disk", "0")


class Pieces(Struct, frozen=True):
    """Queries beside twins of which all is kept, and what of theirs is converted."""

    names: tuple[str, ...]
    first: str
    """A query, whose twin's capture makes room."""
    held: str
    """What the state's description calls the pieces that were converted."""
    write_workload: Callable[[Path], Path]
    change: Callable[[Path, random.Random, int], None]
    keep: tuple[str, str]
    """How the workload file comes to keep what it has."""
    later: tuple[int, ...] = ()
    """Changes before pieces are kept again."""

    def begun(self, tmp_path: Path, capsys: Capsys) -> Path:
        """A folder with all kept, one version behind."""
        folder = tmp_path / "base"
        folder.mkdir()
        Cli(capsys, self.write_workload(folder)).good("capture")
        self.change(folder, random.Random(3), 0)
        return folder

    def check(self, folder: Path) -> list[list[str]]:
        """Sketches of one version are those of all kept; the pieces that were converted."""
        result = []
        for name in self.names:
            one, twin = stored(folder, name), stored(folder, f"{name}_kept")
            if one.versions == twin.versions:
                assert fragments_by_access(one) == fragments_by_access(twin), name
            result.append([*one.state_meta.get(self.held, [])])
        return result

    def check_least(self, pieces: list[list[str]]) -> None:
        """All is converted that can be."""
        if self is BUFFERS:
            assert pieces == [["top0"], ["aggregate0"]]
        else:
            assert all(pieces), pieces
            assert "aggregate0" in pieces[0], "groups go too"


def write_joins(folder: Path) -> Path:
    queries = {**typed_joins.QUERIES, **typed_joins.GROUPINGS}
    asked = [(name, queries[name], "auto") for name in SIDES.names]
    pinned = [(f"{name}_kept", queries[name], "index") for name in SIDES.names]
    return typed_joins.write_workload(folder, [*asked, *pinned])


SIDES = Pieces(
    ("two", "self", "computed", "by_s"),
    "self",
    "from_files",
    write_joins,
    typed_joins.change,
    ("join: auto}", "join: auto, state: keep}"),
    later=(3, 4, 5),
)
BUFFERS = Pieces(
    ("first", "ends"),
    "first",
    "buffers",
    lambda folder: buffers.write_bounded(folder, BUFFERS.names, 1500),
    buffers.change_best,
    ("incremental}", "incremental, state: keep}"),
)


pieces_and_parts = pytest.mark.parametrize(
    ("of", "part"),
    [
        pytest.param(of, part, id=f"{name}-{part}")
        for name, of in (("sides", SIDES), ("buffers", BUFFERS))
        for part in range(PARTS)
    ],
)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("are_kept_again", [False, True], ids=["converted", "kept again"])
@pieces_and_parts
def test_killed_anywhere_the_choice_is_whole(
    tmp_path: Path, capsys: Capsys, of: Pieces, part: int, are_kept_again: bool
) -> None:
    """All pieces are converted where there is no room; they are made again after the capture of
    another query made room."""
    folder = of.begun(tmp_path, capsys)
    command, other, flags, usual = "maintain", (), LEAST, LEAST
    if are_kept_again:
        writes(killing.ran(folder, -1, *LEAST))
        for turn in of.later:
            of.change(folder, random.Random(turn), turn)
            writes(killing.ran(folder, -1))
        # Else what is worth keeping again goes by how quick the machine is.
        file = folder / "w.yaml"
        file.write_text(file.read_text().replace(*of.keep))
        command, other, usual = "capture", ("--query", f"{of.first}_kept"), ()
        flags = (*other, "--disk", "1GB")
    saved, first = saved_as(folder), of.check(folder)
    before = writes(killing.ran(folder, -1, *other, command=command))
    assert of.check(folder) == first
    put_back(folder, saved)
    last = writes(killing.ran(folder, -1, *flags, command=command))
    final = of.check(folder)
    least = first if are_kept_again else final
    of.check_least(least)
    assert are_kept_again is not any(final)
    assert last > before + len(of.names)
    choices = set()
    for at in range(before - 2 + part, last, STRIDE):
        put_back(folder, saved)
        assert killing.ran(folder, at, *flags, command=command).returncode == -9, at
        for pieces, whole in zip(of.check(folder), least, strict=True):
            assert pieces in ([], whole), at
            choices.add(bool(pieces))
        for turn in (1, 2):
            # A run that has nothing to do does not look at the budget. The first of these deletions
            # uses up the buffers that have just been bounded.
            of.change(folder, random.Random(at), turn)
            writes(killing.ran(folder, -1, *usual))
            held = of.check(folder)
            assert are_kept_again or held == final or of is BUFFERS, at
        if are_kept_again:
            writes(killing.ran(folder, -1, *flags, command=command))
            assert not any(of.check(folder)), at
    assert choices


def spark_folders(places: list[Path]) -> list[Path]:
    """Folders that Spark made, wherever they lie below these places."""
    result = (path for place in places for path in place.rglob("*"))
    return [path for path in result if path.name.startswith(("spark-", "blockmgr-"))]


@pytest.mark.spark
def test_what_spark_left_is_gone_with_the_next_run(tmp_path: Path, launched_here: None) -> None:
    file = write_workload(tmp_path)
    temporary, disk = tmp_path / 'for "tem\\p" files', tmp_path / "disk"
    temporary.mkdir()
    disk.mkdir()
    conf = f"conf: {{spark.local.dir: '{disk},{tmp_path}/later'}}"
    file.write_text(file.read_text().replace("spark: {", f"spark: {{{conf}, "))
    environment = {**os.environ, "TMPDIR": str(temporary)}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    environment.pop("SPARK_LOCAL_DIRS", None)
    words = [sys.executable, "-P", "-m", "impctl", "query", str(file), "--query", "by_g"]
    words += ["--by", "spark"]
    subprocess.run([*words[:4], "capture", str(file)], env=environment, check=True)
    places = [temporary, disk]

    def entries() -> list[Path]:
        return [path for place in places for path in place.iterdir()]

    process = subprocess.Popen(
        words, env=environment, start_new_session=True, stdout=subprocess.DEVNULL
    )
    until = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < until:
        if any(path.name.startswith("blockmgr-") for path in spark_folders(places)):
            break
        time.sleep(0.05)
    assert abandoned(places) == ()  # its process lives
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()

    left = spark_folders(places)
    assert left
    for path in left:
        assert any(part.startswith(SPARK_SCRATCH) for part in path.parts), path
    assert entries()
    assert all(path.name.startswith(SPARK_SCRATCH) for path in entries())

    subprocess.run(words, env=environment, check=True, stdout=subprocess.DEVNULL)
    for _ in range(100):  # the JVM ends a little later than its program
        if not entries():
            break
        time.sleep(0.1)
    assert entries() == []


KILLED_NAMES = (recursion.MATERIALIZED, "of_seeds", "from_one")
LEFT_OUT = "src = 7 OR src = 13"

Standing = dict[str, tuple[int, dict[str, set[int]]]]


def standing(folder: Path) -> Standing:
    """By query the version of `links` that its sketches stand for, and their fragments."""
    held = {name: stored(folder, name) for name in KILLED_NAMES}
    return {n: (one.versions["links"], fragments_by_access(one)) for n, one in held.items()}


def moved(tmp_path: Path, capsys: Capsys, provenance: str = "") -> Cli:
    """A folder with queries that are captured, and some versions behind."""
    folder = tmp_path / "base"
    folder.mkdir()
    cli = recursion.network(folder, capsys, KILLED_NAMES)
    if provenance:
        recursion.set_provenance(cli, provenance)
    cli.good("capture")
    rng = random.Random(5)
    for _ in range(3):
        recursion.change(folder, rng)
    # New ways out of the regions that queries start in, to links that are there.
    ways = {"src": [7, 13, 30, 57, 43, 22], "dst": [57, 43, 22, 56, 42, 23]}
    write_deltalake(str(folder / "links"), pa.table(ways), mode="append")
    return cli


def cases() -> Iterator[Any]:
    """How recursion is maintained, and the first write at which a run is killed."""
    for part in range(PARTS):
        yield pytest.param("", part, id=f"ranks-{part}")
        for name, said in recursion.SHIPS.items():
            marks = (with_diagrams, pytest.mark.long) if name == "eager" else with_diagrams
            yield pytest.param(said, part, id=f"{name}-{part}", marks=marks)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("provenance", "part"), [*cases()])
def test_killed_at_every_write_sketches_are_of_before_or_after(
    tmp_path: Path, capsys: Capsys, provenance: str, part: int
) -> None:
    cli = moved(tmp_path, capsys, provenance)
    folder = cli.workload.parent
    before = standing(folder)
    saved = saved_as(folder)
    last = writes(killing.ran(folder, -1))
    after = standing(folder)
    assert all(before[name][1] != after[name][1] for name in KILLED_NAMES), "every sketch moves"
    assert last > len(KILLED_NAMES)
    for at in range(part, last, STRIDE):
        put_back(folder, saved)
        assert killing.ran(folder, at).returncode == -9, at
        for name, result in standing(folder).items():
            assert result in (before[name], after[name]), (at, name)
        writes(killing.ran(folder, -1))
        assert standing(folder) == after, at
        expected = recursion.by_duckdb(cli, recursion.QUERIES[recursion.MATERIALIZED])
        assert recursion.answers(cli, recursion.MATERIALIZED, "--by", "state") == expected
        if provenance:
            told = (recursion.MATERIALIZED, "of_seeds")
            assert recursion.check_removals(cli, told, LEFT_OUT)
            # What goes on from there: leaves that went and came, by their numbers.
            recursion.change(folder, random.Random(at))
            writes(killing.ran(folder, -1))
            recursion.check_removals(cli, told, LEFT_OUT)
