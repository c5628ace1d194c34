"""Scratch folders: gone at the end, kept while their owner lives, collected once it is dead."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from impctl.store.disk import BENCH_SCRATCH, abandoned, remove_abandoned, scratch_folder
from impctl.store.records import Leftover
from tests.store.builders import Crash, FailingDisk, no_space, started

_OWNER = """
import sys
from pathlib import Path
from tests.support.signals import interruptible
from impctl.store.disk import scratch_folder
with interruptible(), scratch_folder(".impctl-bench-", Path(sys.argv[1])) as folder:
    (folder / "t").mkdir()
    (folder / "t" / "part").write_bytes(b"12345")
    print(folder, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@contextmanager
def owner(place: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process with a scratch folder."""
    with started(_OWNER, place, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_it_is_private_and_gone_at_the_end_however_that_comes(tmp_path: Path) -> None:
    def work() -> None:
        with scratch_folder(BENCH_SCRATCH, tmp_path) as folder:
            assert folder.parent == tmp_path
            assert folder.stat().st_mode & 0o077 == 0
            (folder / "a" / "b").mkdir(parents=True)
            (folder / "a" / "b" / "c").write_text("x")
            (folder / "a" / "link").symlink_to(tmp_path)
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert list(tmp_path.iterdir()) == []


def test_a_living_owner_keeps_it_and_a_dead_one_does_not(tmp_path: Path) -> None:
    with owner(tmp_path) as (process, folder):
        assert abandoned([tmp_path]) == ()
        assert not remove_abandoned(Leftover(folder, 0), FailingDisk(no_space))
        assert (folder / "t" / "part").exists()
        process.kill()
        process.wait()
        assert abandoned([tmp_path]) == (Leftover(folder, 5),)
        assert (folder / "t" / "part").exists()
        # The next one who needs a folder there cleans up first.
        with scratch_folder(BENCH_SCRATCH, tmp_path) as following:
            assert list(tmp_path.iterdir()) == [following]


@pytest.mark.usefixtures("heard_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_to_end_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    with owner(tmp_path) as (process, folder):
        assert folder.exists()
        process.send_signal(number)
        if number is not signal.SIGINT:
            process.send_signal(number)  # as `timeout` does, to the process and to its group
        process.wait()
    assert list(tmp_path.iterdir()) == []


def test_what_is_nobodys_for_sure_and_nothing_else(tmp_path: Path) -> None:
    empty, full, old = (tmp_path / f"{BENCH_SCRATCH}{name}" for name in ("empty", "full", "old"))
    for folder in (empty, full, old, tmp_path / "elsewhere"):
        folder.mkdir()
    for folder in (full, old):
        (folder / "part").write_text("123")  # of a version that knew no owners
    os.utime(old, (0, 0))
    (tmp_path / f"{BENCH_SCRATCH}link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / f"{BENCH_SCRATCH}file").write_text("mine")
    assert [left.path for left in abandoned([tmp_path])] == [empty, old]
    assert abandoned([tmp_path / "missing", tmp_path / f"{BENCH_SCRATCH}file"]) == ()


def test_links_to_files_of_a_table_count_nothing(tmp_path: Path) -> None:
    folder = tmp_path / f"{BENCH_SCRATCH}x"
    folder.mkdir()
    (tmp_path / "data").write_bytes(b"0" * 1000)
    os.link(tmp_path / "data", folder / "data")
    (folder / ".owner").touch()
    (folder / "own").write_bytes(b"0" * 10)
    (left,) = abandoned([tmp_path])
    assert left.bytes == 10
    assert remove_abandoned(left, FailingDisk(no_space))
    assert (tmp_path / "data").stat().st_size == 1000


@pytest.mark.parametrize("failure", [Crash, no_space], ids=["crash", "no space"])
def test_a_removal_that_is_cut_short_is_taken_up_by_the_next(
    tmp_path: Path, failure: type[Crash]
) -> None:
    at = 0
    while True:
        folder = tmp_path / f"{BENCH_SCRATCH}{at}"
        (folder / "t" / "log").mkdir(parents=True)
        for name in (".owner", "a", "t/b", "t/log/c"):
            (folder / name).write_text(name)
        disk = FailingDisk(failure)
        disk.arm(at)
        (left,) = abandoned([tmp_path])
        if failure is Crash:
            try:
                done = remove_abandoned(left, disk)
            except Crash:
                done = False
        else:
            done = remove_abandoned(left, disk)
        assert done == (not folder.exists())
        if at >= len(disk.steps):
            assert done
            return
        assert not done
        (left,) = abandoned([tmp_path])
        assert remove_abandoned(left, FailingDisk(no_space))
        at += 1
