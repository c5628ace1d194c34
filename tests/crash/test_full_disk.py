"""Stores on small file systems of their own that are full: of bytes, or of file names."""

from __future__ import annotations

import errno
import fcntl
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from impctl.errors import ImpctlError
from impctl.store.store import Store
from tests.crash.small import change, check_nothing_left, check_store, newest, write_workload
from tests.support.run_cli import Capsys, Cli

_OPTIONS = {"space": "size=4m", "names": "size=64m,nr_inodes=20"}


@pytest.fixture(params=list(_OPTIONS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def disk(kind: str, tmp_path: Path) -> Iterator[Path]:
    """An empty file system that holds little."""
    with _mounted(tmp_path / "disk", f"{_OPTIONS[kind]},mode=700") as folder:
        yield folder


class _mounted:
    def __init__(self, folder: Path, options: str) -> None:
        self._folder, self._options = folder, options

    def __enter__(self) -> Path:
        self._folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", self._options, "tmpfs", str(self._folder)]
        if shutil.which("mount") is None:
            pytest.skip("there is no mount")
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"a file system may not be mounted here: {done.stderr.strip()}")
        return self._folder

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "--lazy", str(self._folder)], check=True)


@pytest.fixture
def cli(disk: Path, tmp_path: Path, capsys: Capsys) -> Cli:
    return on_disk(tmp_path, capsys)


def on_disk(tmp_path: Path, capsys: Capsys) -> Cli:
    """The command line over a workload whose store is on the disk."""
    file = write_workload(tmp_path)
    file.write_text(file.read_text().replace("store: .impctl", "store: disk/.impctl"))
    return Cli(capsys, file)


@pytest.fixture
def fill(disk: Path, kind: str) -> Callable[[], None]:
    """Leaves no room at all on the disk."""

    def filled() -> None:
        with pytest.raises(OSError, match="No space left"):
            _fill(disk, kind)

    return filled


def _fill(disk: Path, kind: str) -> None:
    for number in range(100_000):
        if kind == "space":
            with open(disk / "fill", "ab") as file:
                file.write(bytes(4096))
        else:
            (disk / f"fill-{number}").touch()


def _clear(disk: Path) -> None:
    for file in disk.glob("fill*"):
        file.unlink()


def test_a_current_sketch_is_looked_at_and_used(
    cli: Cli, disk: Path, fill: Callable[[], None], tmp_path: Path
) -> None:
    cli.good("capture")
    fill()
    assert [len(result["sketches"]) for result in cli.good("status").results] == [1, 1]
    assert cli.good("rewrite", "--query", "by_g").results[0]["sql"]
    assert {result["reason_code"] for result in cli.good("maintain").results} == {"up_to_date"}
    cli.good("gc", "--dry-run")
    cli.good("gc")
    _clear(disk)
    change(tmp_path / "t", 3)
    cli.good("maintain")
    check_store(disk / ".impctl", tmp_path / "t")


def test_gc_makes_room(cli: Cli, disk: Path, fill: Callable[[], None], tmp_path: Path) -> None:
    """What a killed writer left takes the last of the disk: removed, the rest has its room."""
    cli.good("capture")
    for seed in range(3, 7):
        change(tmp_path / "t", seed)
        cli.good("maintain")
    state = disk / ".impctl" / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    for name in "abcd":
        (state / f"{name}.arrow").write_bytes(bytes(300_000))
    fill()
    (result,) = cli.good("gc", "--keep", "1").results
    kinds = [entry["kind"] for entry in result["entries"] if entry["removed"]]
    assert kinds.count("file") == 4
    assert "versions" in kinds
    check_nothing_left(disk / ".impctl")
    cli.good("maintain")
    assert {s.versions["t"] for s in check_store(disk / ".impctl", tmp_path / "t").values()} == {
        newest(tmp_path / "t")
    }


def test_gc_says_what_it_could_not_write(
    cli: Cli, disk: Path, fill: Callable[[], None], tmp_path: Path
) -> None:
    cli.good("capture")
    for seed in range(3, 7):
        change(tmp_path / "t", seed)
        cli.good("maintain")
    fill()
    before = check_store(disk / ".impctl", tmp_path / "t")
    ran = cli("gc", "--keep", "1")
    assert (ran.code, ran.error["code"]) == (6, "disk_full"), ran.document
    assert ran.results[0]["entries"] == []
    assert check_store(disk / ".impctl", tmp_path / "t") == before
    _clear(disk)
    assert cli.good("gc", "--keep", "1").results[0]["entries"]


@pytest.mark.parametrize("command", ["capture", "maintain", "rewrite"])
@pytest.mark.parametrize("is_new", [True, False])
def test_what_has_to_be_written_is_told_by_its_code(
    cli: Cli, disk: Path, fill: Callable[[], None], command: str, is_new: bool, tmp_path: Path
) -> None:
    """And once there is room the same command runs."""
    if not is_new:
        cli.good("capture")
        change(tmp_path / "t", 3)
    fill()
    arguments = (command, "--query", "by_g")
    if command == "rewrite":
        # It answers all the same, by the whole table.
        assert cli.good(*arguments).results[0]["sketches"] == []
        if is_new:
            return
        arguments = (*arguments, "--require-sketch")
    for _ in range(2):
        ran = cli(*arguments)
        assert (ran.code, ran.error["code"]) == (6, "disk_full"), ran.document
        assert "df -i" in ran.error["hint"]
        assert ".room-" not in ran.error["message"]
        cli.good("status")
    _clear(disk)
    if is_new:
        cli.good("capture")
    cli.good(*arguments)
    check_store(disk / ".impctl", tmp_path / "t")


def test_a_read_only_file_system_is_no_reason_to_try_again(tmp_path: Path, capsys: Capsys) -> None:
    with _mounted(tmp_path / "disk", "size=4m,mode=700,ro"):
        ran = on_disk(tmp_path, capsys)("capture")
        assert (ran.code, ran.error["code"]) == (2, "store_read_only"), ran.document


def test_a_stale_sketch_that_cannot_be_written_leaves_the_query_its_answer(
    tmp_path: Path, capsys: Capsys
) -> None:
    disk = tmp_path / "disk"
    with _mounted(disk, "size=16m,mode=700"):
        cli = on_disk(tmp_path, capsys)
        cli.good("capture")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert cli.good("rewrite", "--query", "by_g").results[0]["sketches"]
        change(tmp_path / "t", 3)
        ran = cli.good("rewrite", "--query", "by_g")
        assert ran.results[0]["sketches"] == []
        assert "answered without a sketch" in " ".join(ran.document["warnings"])
        needed = cli("rewrite", "--query", "by_g", "--require-sketch")
        assert (needed.code, needed.error["code"]) == (2, "store_read_only")


@pytest.mark.parametrize("where", ["file", "file/below", "n" * 300, "loop"])
def test_a_path_that_can_never_be_a_store_is_a_mistake(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ImpctlError) as caught:
        Store.open(tmp_path / where)
    assert (caught.value.exit_code, caught.value.code) == (2, "store_path")
    assert "`store`" in (caught.value.hint or "")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """None can be mounted here: the system call says what it says on one."""

    def flock(*_: object) -> None:
        raise OSError(number, "no locks")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(ImpctlError) as caught:
        Store.open(tmp_path / "store")
    assert (caught.value.exit_code, caught.value.code) == (2, "store_without_locks")
