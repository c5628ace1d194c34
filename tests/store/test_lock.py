"""One writer at a time, over real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from impctl.errors import LockHeldError
from impctl.store.disk import Layout, RealDisk
from impctl.store.lock import WriterLock, read_owner
from impctl.store.store import Store
from tests.store.builders import capture, record, started

_HOLD = """
import sys, os, time
from pathlib import Path
from impctl.store.store import Store
store = Store.open(Path(sys.argv[1]))
with store.lock(5, owner="impctl maintain w.yaml"):
    if sys.argv[2] == "fork" and os.fork() == 0:
        os.close(1)
        time.sleep(60)
        os._exit(0)
    print("held", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def holder(root: Path, how: str = "plain") -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until told to go."""
    with started(_HOLD, root, how, start_new_session=True) as process:
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            # The whole session that this test started, an orphaned child included.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / ".impctl"
    Store.open(path).close()
    return path


def test_a_held_lock_names_its_owner(root: Path) -> None:
    with holder(root) as other, Store.open(root) as store:
        start = time.monotonic()
        with pytest.raises(LockHeldError) as caught, store.lock(0.2):
            pass
        assert 0.2 <= time.monotonic() - start < 2
        owner = store.lock_owner()
        assert store.load("q") is None  # readers never wait
    assert caught.value.exit_code == 6
    assert f"process {other.pid} on host `{os.uname().nodename}`" in caught.value.message
    assert "running `impctl maintain w.yaml`, for " in caught.value.message
    assert caught.value.hint
    assert owner.pid == other.pid


def test_waiting_ends_when_the_owner_goes(root: Path) -> None:
    with holder(root) as other, Store.open(root) as store:
        other.stdin.write("\n")
        other.stdin.flush()
        with store.lock(10) as held:
            assert held.recovered is None
            assert held.note is None
    assert read_owner(Layout(root)) is None


def test_a_killed_owner_frees_the_lock_and_leaves_a_note(root: Path) -> None:
    with holder(root) as other, Store.open(root) as store:
        other.kill()
        other.wait()
        assert store.lock_owner() is None
        with store.lock(5) as held:
            assert held.recovered.pid == other.pid
            assert f"process {other.pid}" in (held.note or "")
        with store.lock(0) as held:
            assert held.recovered is None


def test_a_child_does_not_keep_a_dead_owners_lock(root: Path) -> None:
    with holder(root, "fork") as other, Store.open(root) as store:
        with pytest.raises(LockHeldError), store.lock(0):
            pass
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        start = time.monotonic()
        with store.lock(0.1) as held:
            assert time.monotonic() - start < 20  # the child lives for a minute
            assert held.recovered is None or held.recovered.pid == other.pid
            store.commit_capture(capture(), {}, record())
            with Store.open(root) as third, pytest.raises(LockHeldError), third.lock(0):
                pass


def test_a_reused_pid_is_not_the_owner(root: Path) -> None:
    layout = Layout(root)
    with Store.open(root) as store, store.lock(0):
        note = json.loads(layout.lock.read_text())
        owner = read_owner(layout)
        assert owner.pid == os.getpid()
    layout.lock.write_text(json.dumps({**note, "process_start": "earlier"}))
    assert read_owner(layout) is None
    layout.lock.write_text(json.dumps({**note, "process_start": "earlier", "host": "elsewhere"}))
    assert read_owner(layout) is not None  # nobody can tell from here


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', "\x00\x01"])
def test_an_unreadable_note_does_not_hurt(root: Path, text: str) -> None:
    Layout(root).lock.write_text(text)
    with Store.open(root) as store, store.lock(0) as held:
        assert held.recovered is None


def test_two_stores_of_one_process_exclude_each_other(root: Path) -> None:
    with Store.open(root) as one, Store.open(root) as two:
        with one.lock(0), one.lock(0), pytest.raises(LockHeldError), two.lock(0):
            pass
        with two.lock(0):
            pass


def test_an_exception_frees_the_lock(root: Path) -> None:
    with Store.open(root) as store:
        with pytest.raises(ValueError, match="x"), store.lock(0):
            raise ValueError("x")
        with Store.open(root) as other, other.lock(0):
            pass


def test_close_frees_the_lock(root: Path) -> None:
    store = Store.open(root)
    context = store.lock(0)
    context.__enter__()
    store.close()
    with Store.open(root) as other, other.lock(0):
        pass


def test_a_lock_file_taken_away_is_not_mistaken_for_the_lock(root: Path) -> None:
    layout = Layout(root)
    first = WriterLock(layout, RealDisk())
    first.acquire(0, "a")
    layout.lock.unlink()
    second = WriterLock(layout, RealDisk())
    second.acquire(0, "b")
    first.release()
    with pytest.raises(LockHeldError):
        WriterLock(layout, RealDisk()).acquire(0, "c")
    second.release()


def test_only_one_of_many_waiters_holds_the_lock(root: Path) -> None:
    counter = root / "count"
    counter.write_text("0")
    script = """
import sys
from pathlib import Path
from impctl.store.store import Store
with Store.open(Path(sys.argv[1])) as store:
    for _ in range(40):
        with store.lock(30):
            path = Path(sys.argv[1]) / "count"
            path.write_text(str(int(path.read_text()) + 1))
"""
    workers = [started(script, root) for _ in range(3)]
    for worker in workers:
        worker.communicate()
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert counter.read_text() == "120"
