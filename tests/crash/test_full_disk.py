"""Full file systems, unwritable outputs, and `gc` of a real store."""

from __future__ import annotations

import errno
import fcntl
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.errors import ImpctlError, UsageError
from impctl.store.disk import BENCH_SCRATCH, scratch_folder
from impctl.store.store import Store
from tests.crash.processes import (
    change,
    check_no_leftovers,
    check_store,
    newest,
    write_workload,
)
from tests.support.run_cli import Capsys, Cli, Spoken, refused, spoken

_OPTIONS = {"space": "size=4m", "names": "size=64m,nr_inodes=20"}


@pytest.fixture(params=["space", pytest.param("names", marks=pytest.mark.slow)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def disk(kind: str, tmp_path: Path) -> Iterator[Path]:
    """An empty, small file system."""
    with _mounted(tmp_path / "disk", f"{_OPTIONS[kind]},mode=700") as folder:
        yield folder


@contextmanager
def _mounted(folder: Path, options: str) -> Iterator[Path]:
    folder.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount")
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a file system may not be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def cli(disk: Path, tmp_path: Path, capsys: Capsys) -> Cli:
    return disk_cli(tmp_path, capsys)


def disk_cli(tmp_path: Path, capsys: Capsys) -> Cli:
    """A CLI for a workload whose store is on the small disk."""
    file = write_workload(tmp_path)
    file.write_text(file.read_text().replace("store: .impctl", "store: disk/.impctl"))
    return Cli(capsys, file)


@pytest.fixture
def fill(disk: Path, kind: str) -> Callable[[], None]:
    """Fills the disk completely."""

    def write() -> None:
        for number in range(100_000):
            if kind == "space":
                with open(disk / "fill", "ab") as file:
                    file.write(bytes(4096))
            else:
                (disk / f"fill-{number}").touch()

    def filled() -> None:
        with pytest.raises(OSError, match="No space left"):
            write()

    return filled


def free_space(disk: Path) -> None:
    for file in disk.glob("fill*"):
        file.unlink()


def capture_and_maintain(cli: Cli, seeds: Iterable[int]) -> None:
    """Capture, then maintain after each change."""
    cli.good("capture")
    for seed in seeds:
        change(cli.workload.parent / "t", seed)
        cli.good("maintain")


def test_current_sketches_are_used(
    cli: Cli, disk: Path, fill: Callable[[], None], tmp_path: Path
) -> None:
    cli.good("capture")
    fill()
    assert [len(result["sketches"]) for result in cli.good("status").results] == [1, 1]
    assert cli.one("rewrite", "--query", "by_g")["sql"]
    assert {result["reason_code"] for result in cli.good("maintain").results} == {"up_to_date"}
    cli.good("gc", "--dry-run")
    cli.good("gc")
    free_space(disk)
    change(tmp_path / "t", 3)
    cli.good("maintain")
    check_store(disk / ".impctl", tmp_path / "t")


def test_gc_makes_room(cli: Cli, disk: Path, fill: Callable[[], None], tmp_path: Path) -> None:
    """Leftovers of a killed writer fill the disk; `gc` removes them."""
    capture_and_maintain(cli, (3, 4))
    state = disk / ".impctl" / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    for name in "abcd":
        (state / f"{name}.arrow").write_bytes(bytes(300_000))
    fill()
    entries = cli.one("gc", "--keep", "1")["entries"]
    kinds = [entry["kind"] for entry in entries if entry["removed"]]
    assert kinds.count("file") == 4
    assert "versions" in kinds
    check_no_leftovers(disk / ".impctl")
    cli.good("maintain")
    stored_queries = check_store(disk / ".impctl", tmp_path / "t")
    assert {stored.versions["t"] for stored in stored_queries.values()} == {newest(tmp_path / "t")}


def test_gc_on_a_full_disk(cli: Cli, disk: Path, fill: Callable[[], None], tmp_path: Path) -> None:
    capture_and_maintain(cli, (3, 4))
    fill()
    before = check_store(disk / ".impctl", tmp_path / "t")
    ran = cli("gc", "--keep", "1")
    assert (ran.refusal, ran.results[0]["entries"]) == ((6, "disk_full"), [])
    assert check_store(disk / ".impctl", tmp_path / "t") == before
    free_space(disk)
    assert cli.one("gc", "--keep", "1")["entries"]


@pytest.mark.parametrize("command", ["capture", "maintain", "rewrite"])
@pytest.mark.parametrize("is_new", [True, False])
def test_writing_to_a_full_disk_fails_with_its_code(
    cli: Cli, disk: Path, fill: Callable[[], None], command: str, is_new: bool, tmp_path: Path
) -> None:
    """The same command succeeds once there is space."""
    if not is_new:
        cli.good("capture")
        change(tmp_path / "t", 3)
    fill()
    arguments = (command, "--query", "by_g")
    if command == "rewrite":
        # It works without the sketch, on the full table.
        assert cli.good(*arguments).results[0]["sketches"] == []
        if is_new:
            return
        arguments = (*arguments, "--require-sketch")
    for _ in range(2):
        ran = cli(*arguments)
        assert ran.refusal == (6, "disk_full")
        assert "df -i" in ran.error["hint"]
        assert ".room-" not in ran.error["message"]
        cli.good("status")
    free_space(disk)
    if is_new:
        cli.good("capture")
    cli.good(*arguments)
    check_store(disk / ".impctl", tmp_path / "t")


def test_read_only_file_system_is_a_usage_error(tmp_path: Path, capsys: Capsys) -> None:
    with _mounted(tmp_path / "disk", "size=4m,mode=700,ro"):
        assert disk_cli(tmp_path, capsys)("capture").refusal == (2, "store_read_only")


def test_stale_sketch_on_read_only_store_is_not_used(tmp_path: Path, capsys: Capsys) -> None:
    disk = tmp_path / "disk"
    arguments = ("rewrite", "--query", "by_g")
    with _mounted(disk, "size=16m,mode=700"):
        cli = disk_cli(tmp_path, capsys).captured()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert cli.one(*arguments)["sketches"]
        change(tmp_path / "t", 3)
        ran = cli.good(*arguments)
        assert ran.results[0]["sketches"] == []
        assert "answered without a sketch" in " ".join(ran.document["warnings"])
        assert cli(*arguments, "--require-sketch").refusal == (2, "store_read_only")


@pytest.mark.parametrize("where", ["file", "file/below", "n" * 300, "loop"])
def test_invalid_store_path_is_a_usage_error(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with refused(ImpctlError, "store_path") as caught:
        Store.open(tmp_path / where)
    assert caught.value.exit_code == 2
    assert "`store`" in (caught.value.hint or "")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Such a file system cannot be mounted here, so the system call is mocked."""
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(number, "no locks")))
    with refused(ImpctlError, "store_without_locks") as caught:
        Store.open(tmp_path / "store")
    assert caught.value.exit_code == 2


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    result = write_workload(tmp_path)
    assert run(build_app(), ["capture", str(result), "--quiet"]) == 0
    return result


def shell(workload: Path, command: str, redirected: str) -> Spoken:
    """`impctl COMMAND` with redirected streams; `{}` is replaced by the workload."""
    words = command.replace("{}", f"'{workload}'")
    return spoken("bash", "-c", f"'{sys.executable}' -P -m impctl {words} {redirected}")


UNWRITABLE = (">/dev/full", ">&-")
ALL_UNWRITABLE = (">/dev/full 2>/dev/full", ">&- 2>&-")
COMMANDS = (
    *("--help", "--version", "maintain --help", "completion bash", "check {}"),
    *("rewrite {} --query by_g", "status {} --json", "maintain {}", "maintain {} --json"),
    *("maintain {} --follow --max-runs 1", "maintain {} --follow --max-runs 1 --json"),
)
CASES = [
    *((command, UNWRITABLE[at % 2]) for at, command in enumerate(COMMANDS)),
    *(
        pytest.param(command, streams[at % 2], marks=pytest.mark.long)
        for streams in (UNWRITABLE[::-1], ALL_UNWRITABLE)
        for at, command in enumerate(COMMANDS[-5:])
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "redirected"), CASES)
def test_unwritable_results(
    workload: Path, tmp_path: Path, capsys: Capsys, command: str, redirected: str
) -> None:
    change(tmp_path / "t", 2)
    process = shell(workload, command, redirected)
    assert (process.returncode, process.stdout) == (6, "")
    message = "" if "2>" in redirected else "[output_failed]"
    assert message in process.stderr
    assert bool(process.stderr) == bool(message)
    assert process.stderr.count("error: ") == bool(message)
    assert not any(text in process.stderr for text in ("Traceback", "Exception ignored"))
    if command.startswith("maintain {}"):  # its work is committed
        results = Cli(capsys, workload).good("status").results
        assert [result["stale"] for result in results] == [False, False]


@pytest.mark.slow
def test_closed_pipe_is_not_a_failure(workload: Path) -> None:
    for command in ("--help", "status {}", "status {} --json"):
        process = shell(workload, command, "| true; exit ${PIPESTATUS[0]}")
        assert (process.returncode, process.stdout, process.stderr) == (0, "", "")


@pytest.mark.slow
def test_unwritable_steps_do_not_stop_a_run(workload: Path, tmp_path: Path) -> None:
    change(tmp_path / "t", 2)
    process = shell(workload, "maintain {} -v --json", "2>/dev/full")
    document = json.loads(process.stdout)
    assert (process.returncode, document["error"]["code"]) == (6, "output_failed")
    version = DeltaTable(str(tmp_path / "t")).version()
    assert [result["versions"]["t"] for result in document["results"]] == [version, version]
    change(tmp_path / "t", 3)
    # A closed stream is intentional, so it is not a failure.
    assert shell(workload, "maintain {} -v", "2>&-").returncode == 0
    change(tmp_path / "t", 4)
    assert shell(workload, "maintain {} -v", "2>/dev/full").returncode == 6


@pytest.mark.slow
def test_most_severe_failure_sets_the_exit_code(workload: Path) -> None:
    process = shell(workload, "status {} --query not_there --json", ">/dev/full")
    assert process.returncode == 2
    assert all(code in process.stderr for code in ("[query_unknown]", "[output_failed]"))


@pytest.mark.slow
@pytest.mark.parametrize(("closed", "code"), [(">&-", 6), ("<&- >&- 2>&-", 6), ("2>&-", 0)])
def test_store_files_do_not_reuse_stream_numbers(
    workload: Path, capsys: Capsys, closed: str, code: int
) -> None:
    """Otherwise a write to the closed stdout would go to the first opened file."""
    before = {
        file: file.read_bytes()
        for file in (workload.parent / ".impctl").rglob("*")
        if file.is_file() and file.suffix not in (".lock", ".sqlite-shm", ".sqlite-wal")
    }
    for command in ("status {} -v", "maintain {}"):
        assert shell(workload, command, closed).returncode == code
    assert before == {file: file.read_bytes() for file in before}
    Cli(capsys, workload).good("status")


@pytest.fixture
def gc_cli(tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> Cli:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return Cli(capsys, write_workload(tmp_path))


def add_garbage(cli: Cli) -> None:
    """Leave four versions of each sketch, an unused state file and two abandoned folders."""
    capture_and_maintain(cli, (3, 4, 6))
    state = cli.workload.parent / ".impctl" / "state"
    state.mkdir(exist_ok=True)
    (state / "left.arrow").write_bytes(b"12345")
    for parent in (cli.workload.parent, cli.workload.parent / "temporary"):
        folder = parent / f"{BENCH_SCRATCH}dead"
        folder.mkdir()
        (folder / ".owner").touch()
        (folder / "part").write_bytes(b"1234567")


def listing(folder: Path) -> dict[str, int]:
    """Files with modification times, except for SQLite's temporary files."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(p): p.stat().st_mtime_ns for p in files if not p.name.endswith(("-shm", "-wal"))}


def test_gc_removes_what_its_dry_run_lists(gc_cli: Cli, tmp_path: Path) -> None:
    add_garbage(gc_cli)
    before = listing(tmp_path)
    planned = gc_cli.one("gc", "--keep", "1", "--dry-run")
    assert listing(tmp_path) == before
    assert (planned["dry_run"], {entry["removed"] for entry in planned["entries"]}) == (
        True,
        {False},
    )
    done = gc_cli.one("gc", "--keep", "1")
    entries = done["entries"]
    assert entries == [{**entry, "removed": True} for entry in planned["entries"]]
    assert done["bytes"] == planned["bytes"] == sum(entry["bytes"] for entry in entries)
    kinds = {"versions": 3, "file": 1, "folder": 1}
    assert [e["kind"] for e in entries] == [*("versions", "versions", "file", "folder", "folder")]
    assert all(entry["count"] == kinds[entry["kind"]] for entry in entries)
    assert [entry["bytes"] for entry in entries][2:] == [5, 7, 7]
    check_no_leftovers(tmp_path / ".impctl")
    check_store(tmp_path / ".impctl", tmp_path / "t")
    again = gc_cli.one("gc", "--keep", "1")
    assert (again["entries"], again["bytes"]) == ([], 0)
    assert gc_cli.good("maintain").results[0]["action"] == "none"


def test_no_temporary_folder(gc_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_garbage(gc_cli)
    missing = FileNotFoundError(errno.ENOENT, "No usable temporary directory found")
    monkeypatch.setattr(tempfile, "gettempdir", Mock(side_effect=missing))
    kinds = [entry["kind"] for entry in gc_cli.one("gc", "--keep", "1")["entries"]]
    assert kinds.count("folder") == 1
    with refused(UsageError, "no_temporary_folder"), scratch_folder(BENCH_SCRATCH):
        pass


def test_folder_of_a_live_owner_is_kept(gc_cli: Cli, tmp_path: Path) -> None:
    with scratch_folder(BENCH_SCRATCH, tmp_path) as scratch:
        (scratch / "x").write_text("x")
        assert gc_cli.one("gc")["entries"] == []
        assert (scratch / "x").exists()
    assert not (tmp_path / ".impctl").exists()


def test_scratch_is_removed_despite_a_corrupt_store(gc_cli: Cli, tmp_path: Path) -> None:
    add_garbage(gc_cli)
    (tmp_path / ".impctl" / "catalog.sqlite").write_bytes(b"no database, for sure" * 300)
    ran = gc_cli("gc")
    assert ran.refusal == (7, "catalog_corrupt")
    assert [entry["kind"] for entry in ran.results[0]["entries"]] == ["folder", "folder"]
    assert not (tmp_path / f"{BENCH_SCRATCH}dead").exists()
