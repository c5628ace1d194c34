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
from tests.crash.killing import PARTS, STRIDE, put_back, save_copy, writes
from tests.crash.processes import (
    MATERIALIZED,
    change,
    check_no_leftovers,
    check_store,
    newest,
    ran,
    start,
    wait_until_open,
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
def test_killed_commands_leave_a_usable_store(
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
        opened = wait_until_open(process, store)
        span = spans.get(command, 0.5)
        with suppress(subprocess.TimeoutExpired):
            process.wait(draw.uniform(0, span))
            spans[command] = min(span, time.monotonic() - opened)
        process.kill()
        process.communicate()
        killed += process.returncode == -9
        stored_queries = check_store(store, table)
        now = {name: stored.versions["t"] for name, stored in stored_queries.items()}
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
            check_no_leftovers(store)
            assert cli.one("gc", "--keep", "1", "--dry-run")["entries"] == []
    record_property("killed", killed)
    assert killed >= ROUNDS // 2


def _answer(cli: Cli, by: str) -> list[object]:
    result = cli.one("query", "--query", MATERIALIZED, "--by", by)
    assert result["by"] == by
    return sorted(result["rows"], key=repr)


@pytest.fixture
def cli(tmp_path: Path, capsys: Capsys) -> Cli:
    # Enough rows for state files beside the catalog.
    return Cli(capsys, write_workload(tmp_path, rows=30_000))


NAMES = ("plain", "top", "eager")
"""Changes from rows, from comparing results, and in several steps of one run."""

TREES = ("tree_rows", "tree_groups", "tree_first")
"""Joins maintained as join trees."""


def write_outdated(tmp_path: Path, capsys: Capsys, names: tuple[str, ...] = NAMES) -> Path:
    """A folder with a workload that is two versions behind, after one run with change files."""
    folder = tmp_path / "base"
    folder.mkdir()
    cli = Cli(capsys, write_kept(folder, names)).captured()
    grow(folder)
    cli.good("maintain", "--changes", str(folder / "out"))
    grow(folder)
    change_kept(folder, random.Random(8))
    grow(folder)
    return folder


def check_readers(folder: Path, programs: dict[str, Reader]) -> None:
    """Check that every reader has the result of the last commit, from complete files only."""
    for name, program in programs.items():
        stored_query = stored(folder, name)
        program.read(stored_query.generation)
        assert program.versions == stored_query.versions
        assert program.answer == answer_at(folder, name, dict(stored_query.versions)), name
        for path in program.folder.glob("*.parquet"):
            pq.read_table(path)


def readers_of(folder: Path, names: tuple[str, ...]) -> dict[str, Reader]:
    result = {}
    for name in names:
        stored_query = stored(folder, name)
        answer = answer_at(folder, name, dict(stored_query.versions))
        result[name] = Reader(
            folder / "out" / name, answer, stored_query.generation, stored_query.versions
        )
    return result


class Scene(Struct, dict=True):
    """A folder prepared for a run."""

    folder: Path
    saved: Path
    programs: dict[str, Reader]

    @classmethod
    def of(cls, folder: Path, names: tuple[str, ...] = NAMES) -> Scene:
        return cls(folder, save_copy(folder), readers_of(folder, names))

    def put_back(self) -> dict[str, Reader]:
        put_back(self.folder, self.saved)
        return copy.deepcopy(self.programs)

    def ran(self, index: int) -> subprocess.CompletedProcess[str]:
        """Run `maintain --changes`, killed at a write unless the index is negative."""
        return killing.ran(self.folder, index, "--changes", str(self.folder / "out"))

    def writes(self) -> int:
        """The number of writes of the run."""
        programs = self.put_back()
        result = writes(self.ran(-1))
        check_readers(self.folder, programs)
        return result

    def kill(self, index: int) -> bool:
        """Kill a run and read, sometimes change a table, then run again and read. Returns whether
        the killed run left a file of an unfinished commit."""
        programs = self.put_back()
        assert self.ran(index).returncode == -9, index
        check_readers(self.folder, programs)
        leftovers = [
            path
            for program in programs.values()
            for path in program.folder.glob(f"{program.commit + 1:06}_*.parquet")
        ]
        if index % 2:
            grow(self.folder)
        writes(self.ran(-1))
        check_readers(self.folder, programs)
        for program in programs.values():
            numbers = [path.name.split("_")[0] for path in program.folder.iterdir()]
            assert len(numbers) == len(set(numbers)), index
            assert all(re.fullmatch(r"\d{6}", number) for number in numbers), numbers
        return bool(leftovers)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("names", [NAMES, TREES], ids=["rows", "trees"])
@pytest.mark.parametrize("part", range(PARTS))
def test_killed_at_every_write_each_change_is_read_once(
    tmp_path: Path, capsys: Capsys, names: tuple[str, ...], part: int
) -> None:
    """For join trees, the sketches also equal recaptured ones."""
    scene = Scene.of(write_outdated(tmp_path, capsys, names), names)
    last = scene.writes()
    killed = range(part * STRIDE // PARTS, last, STRIDE)
    for index in killed:
        scene.kill(index)
        if names == TREES:
            maintained, recaptured = (
                store_sketches(capsys, scene.folder, store) for store in (".impctl", "fresh")
            )
            assert maintained == recaptured
    assert last > 60
    assert len(killed) >= last // STRIDE


def store_sketches(capsys: Capsys, folder: Path, store: str) -> dict[tuple[str, int], list[int]]:
    """The ranges of every access in a store, which is captured if missing."""
    cli = Cli(capsys, folder / "w.yaml")
    if not (folder / store).exists():
        cli.good("capture", "--store", str(folder / store))
    results = cli.good("status", "--store", str(folder / store)).results
    by_query = ((one["query"], one["sketches"]) for one in results)
    return {
        (q, index): sketch["ranges"]
        for q, sketches_ in by_query
        for index, sketch in enumerate(sketches_)
    }


@pytest.mark.long
@pytest.mark.slow
def test_killed_at_some_writes_each_change_is_read_once(tmp_path: Path, capsys: Capsys) -> None:
    """The same for a few writes, one of them between a file and its commit."""
    scene = Scene.of(write_outdated(tmp_path, capsys))
    had_leftovers = [
        scene.kill(index) for index in random.Random(3).sample(range(scene.writes()), 3)
    ]
    assert any(had_leftovers)


LEAST = ("--disk", "0")


class Conversion(Struct, frozen=True):
    """Queries whose state is converted, each with a twin whose state is kept."""

    names: tuple[str, ...]
    first: str
    """A query; capturing its twin raises the budget."""
    state_key: str
    """The key of the converted pieces in the state's metadata."""
    write_workload: Callable[[Path], Path]
    change: Callable[[Path, random.Random, int], None]
    keep: tuple[str, str]
    """The replacement in the workload file that sets `state: keep`."""
    later: tuple[int, ...] = ()
    """Seeds of the changes before pieces are kept again."""

    def begun(self, tmp_path: Path, capsys: Capsys) -> Path:
        """A folder with all state kept, one version behind."""
        folder = tmp_path / "base"
        folder.mkdir()
        Cli(capsys, self.write_workload(folder)).good("capture")
        self.change(folder, random.Random(3), 0)
        return folder

    def check(self, folder: Path) -> list[list[str]]:
        """Compare sketches with those of the twins at the same version; the converted pieces."""
        result = []
        for name in self.names:
            one, twin = stored(folder, name), stored(folder, f"{name}_kept")
            if one.versions == twin.versions:
                assert fragments_by_access(one) == fragments_by_access(twin), name
            result.append([*one.state_meta.get(self.state_key, [])])
        return result

    def check_least(self, pieces: list[list[str]]) -> None:
        """Check that everything convertible is converted."""
        if self is BUFFERS:
            assert pieces == [["top0"], ["aggregate0"]]
        else:
            assert all(pieces), pieces
            assert "aggregate0" in pieces[0], "groups are converted too"


def write_joins(folder: Path) -> Path:
    queries = {**typed_joins.QUERIES, **typed_joins.GROUPINGS}
    automatic = [(name, queries[name], "auto") for name in SIDES.names]
    pinned = [(f"{name}_kept", queries[name], "index") for name in SIDES.names]
    return typed_joins.write_workload(folder, [*automatic, *pinned])


SIDES = Conversion(
    ("two", "self", "computed", "by_s"),
    "self",
    "from_files",
    write_joins,
    typed_joins.change,
    ("join: auto}", "join: auto, state: keep}"),
    later=(3, 4, 5),
)
BUFFERS = Conversion(
    ("first", "ends"),
    "first",
    "buffers",
    lambda folder: buffers.write_bounded(folder, BUFFERS.names, 1500),
    buffers.change_best,
    ("incremental}", "incremental, state: keep}"),
)


pieces_and_parts = pytest.mark.parametrize(
    ("conversion", "part"),
    [
        pytest.param(conversion, part, id=f"{name}-{part}")
        for name, conversion in (("sides", SIDES), ("buffers", BUFFERS))
        for part in range(PARTS)
    ],
)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("are_kept_again", [False, True], ids=["converted", "kept again"])
@pieces_and_parts
def test_killed_conversions_are_atomic(
    tmp_path: Path, capsys: Capsys, conversion: Conversion, part: int, are_kept_again: bool
) -> None:
    """All pieces are converted if the budget is zero, and restored when the capture of another
    query has a larger budget."""
    folder = conversion.begun(tmp_path, capsys)
    command, query, flags, later_flags = "maintain", (), LEAST, LEAST
    if are_kept_again:
        writes(killing.ran(folder, -1, *LEAST))
        for turn in conversion.later:
            conversion.change(folder, random.Random(turn), turn)
            writes(killing.ran(folder, -1))
        # Otherwise the choice would depend on the speed of the machine.
        file = folder / "w.yaml"
        file.write_text(file.read_text().replace(*conversion.keep))
        command, query, later_flags = "capture", ("--query", f"{conversion.first}_kept"), ()
        flags = (*query, "--disk", "1GB")
    saved, initial = save_copy(folder), conversion.check(folder)
    before = writes(killing.ran(folder, -1, *query, command=command))
    assert conversion.check(folder) == initial
    put_back(folder, saved)
    last = writes(killing.ran(folder, -1, *flags, command=command))
    final = conversion.check(folder)
    least = initial if are_kept_again else final
    conversion.check_least(least)
    assert are_kept_again is not any(final)
    assert last > before + len(conversion.names)
    choices = set()
    for index in range(before - 2 + part, last, STRIDE):
        put_back(folder, saved)
        assert killing.ran(folder, index, *flags, command=command).returncode == -9, index
        for pieces, expected in zip(conversion.check(folder), least, strict=True):
            assert pieces in ([], expected), index
            choices.add(bool(pieces))
        for turn in (1, 2):
            # A run without changes ignores the budget. The first of these deletions exhausts the
            # buffers that have just been bounded.
            conversion.change(folder, random.Random(index), turn)
            writes(killing.ran(folder, -1, *later_flags))
            pieces_after = conversion.check(folder)
            assert are_kept_again or pieces_after == final or conversion is BUFFERS, index
        if are_kept_again:
            writes(killing.ran(folder, -1, *flags, command=command))
            assert not any(conversion.check(folder)), index
    assert choices


def spark_folders(folders: list[Path]) -> list[Path]:
    """Folders of Spark anywhere below these folders."""
    result = (path for folder in folders for path in folder.rglob("*"))
    return [path for path in result if path.name.startswith(("spark-", "blockmgr-"))]


@pytest.mark.spark
def test_spark_leftovers_are_removed_by_next_run(tmp_path: Path, launched_here: None) -> None:
    file = write_workload(tmp_path)
    temporary, disk = tmp_path / 'for "tem\\p" files', tmp_path / "disk"
    temporary.mkdir()
    disk.mkdir()
    conf = f"conf: {{spark.local.dir: '{disk},{tmp_path}/later'}}"
    file.write_text(file.read_text().replace("spark: {", f"spark: {{{conf}, "))
    environment = {**os.environ, "TMPDIR": str(temporary)}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    environment.pop("SPARK_LOCAL_DIRS", None)
    arguments = [sys.executable, "-P", "-m", "impctl", "query", str(file), "--query", "by_g"]
    arguments += ["--by", "spark"]
    subprocess.run([*arguments[:4], "capture", str(file)], env=environment, check=True)
    folders = [temporary, disk]

    def entries() -> list[Path]:
        return [path for folder in folders for path in folder.iterdir()]

    process = subprocess.Popen(
        arguments, env=environment, start_new_session=True, stdout=subprocess.DEVNULL
    )
    limit = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < limit:
        if any(path.name.startswith("blockmgr-") for path in spark_folders(folders)):
            break
        time.sleep(0.05)
    assert abandoned(folders) == ()  # its process is running
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()

    leftovers = spark_folders(folders)
    assert leftovers
    for path in leftovers:
        assert any(part.startswith(SPARK_SCRATCH) for part in path.parts), path
    assert entries()
    assert all(path.name.startswith(SPARK_SCRATCH) for path in entries())

    subprocess.run(arguments, env=environment, check=True, stdout=subprocess.DEVNULL)
    for _ in range(100):  # the JVM ends a little later
        if not entries():
            break
        time.sleep(0.1)
    assert entries() == []


KILLED_NAMES = (recursion.MATERIALIZED, "of_seeds", "from_one")
REMOVED_LINKS = "src = 7 OR src = 13"

SketchStates = dict[str, tuple[int, dict[str, set[int]]]]


def sketch_states(folder: Path) -> SketchStates:
    """The version of `links` and the ranges of each query's sketches."""
    stored_queries = {name: stored(folder, name) for name in KILLED_NAMES}
    return {
        n: (one.versions["links"], fragments_by_access(one)) for n, one in stored_queries.items()
    }


def outdated_cli(tmp_path: Path, capsys: Capsys, provenance: str = "") -> Cli:
    """A CLI for captured queries that are some versions behind."""
    folder = tmp_path / "base"
    folder.mkdir()
    cli = recursion.network(folder, capsys, KILLED_NAMES)
    if provenance:
        recursion.set_provenance(cli, provenance)
    cli.good("capture")
    rng = random.Random(5)
    for _ in range(3):
        recursion.change(folder, rng)
    # New links from the start regions of the queries to existing links.
    new_links = {"src": [7, 13, 30, 57, 43, 22], "dst": [57, 43, 22, 56, 42, 23]}
    write_deltalake(str(folder / "links"), pa.table(new_links), mode="append")
    return cli


def cases() -> Iterator[Any]:
    """The provenance mode and the first write at which a run is killed."""
    for part in range(PARTS):
        yield pytest.param("", part, id=f"ranks-{part}")
        for name, value in recursion.SHIPS.items():
            marks = (with_diagrams, pytest.mark.long) if name == "eager" else with_diagrams
            yield pytest.param(value, part, id=f"{name}-{part}", marks=marks)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("provenance", "part"), [*cases()])
def test_sketches_killed_at_every_write_are_old_or_new(
    tmp_path: Path, capsys: Capsys, provenance: str, part: int
) -> None:
    cli = outdated_cli(tmp_path, capsys, provenance)
    folder = cli.workload.parent
    before = sketch_states(folder)
    saved = save_copy(folder)
    last = writes(killing.ran(folder, -1))
    after = sketch_states(folder)
    assert all(before[name][1] != after[name][1] for name in KILLED_NAMES), "every sketch changes"
    assert last > len(KILLED_NAMES)
    for index in range(part, last, STRIDE):
        put_back(folder, saved)
        assert killing.ran(folder, index).returncode == -9, index
        for name, result in sketch_states(folder).items():
            assert result in (before[name], after[name]), (index, name)
        writes(killing.ran(folder, -1))
        assert sketch_states(folder) == after, index
        expected = recursion.by_duckdb(cli, recursion.QUERIES[recursion.MATERIALIZED])
        assert recursion.answers(cli, recursion.MATERIALIZED, "--by", "state") == expected
        if provenance:
            names = (recursion.MATERIALIZED, "of_seeds")
            assert recursion.check_removals(cli, names, REMOVED_LINKS)
            # The next change deletes and inserts leaves, which are identified by numbers.
            recursion.change(folder, random.Random(index))
            writes(killing.ran(folder, -1))
            recursion.check_removals(cli, names, REMOVED_LINKS)
