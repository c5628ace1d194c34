"""One writer at a time, with real processes; stores that other users can write."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from impctl.errors import LockHeldError, UsageError
from impctl.store.disk import RealDisk, StoreLayout
from impctl.store.lock import WriterLock, lock_owner, refuse_idle_lock
from impctl.store.store import Store
from tests.store.builders import LARGE, capture, maintain, record, rows, started, state_of
from tests.support.run_cli import refused

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
def holder(root: Path, mode: str = "plain") -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock until it reads a line."""
    with started(_HOLD, root, mode, start_new_session=True) as process:
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            # Kill the whole session of the process, including an orphaned child.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / ".impctl"
    Store.open(path).close()
    return path


def test_locked_store_names_the_owner(root: Path) -> None:
    with holder(root) as other, Store.open(root) as store:
        start = time.monotonic()
        with pytest.raises(LockHeldError) as caught, store.lock(0.2):
            pass
        assert 0.2 <= time.monotonic() - start < 2
        owner = lock_owner(root)
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
        with store.lock(10) as recovered:
            assert recovered is None
    assert lock_owner(root) is None


def test_a_killed_owner_frees_the_lock_and_leaves_a_note(root: Path) -> None:
    with holder(root) as other, Store.open(root) as store:
        other.kill()
        other.wait()
        assert lock_owner(root).is_dead
        with store.lock(5) as recovered:
            assert recovered.pid == other.pid
            assert f"process {other.pid}" in recovered.describe()
        with store.lock(0) as recovered:
            assert recovered is None


def test_child_does_not_keep_its_dead_parents_lock(root: Path) -> None:
    with holder(root, "fork") as other, Store.open(root) as store:
        with pytest.raises(LockHeldError), store.lock(0):
            pass
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        start = time.monotonic()
        with store.lock(0.1) as recovered:
            assert time.monotonic() - start < 20  # the child lives for a minute
            assert recovered is None or recovered.pid == other.pid
            store.commit_capture(capture(), {}, record())
            with Store.open(root) as third, pytest.raises(LockHeldError), third.lock(0):
                pass


def test_a_reused_pid_is_not_the_owner(root: Path) -> None:
    layout = StoreLayout(root)
    with Store.open(root) as store, store.lock(0):
        note = json.loads(layout.lock.read_text())
        owner = lock_owner(root)
        assert (owner.pid, owner.is_dead) == (os.getpid(), False)
    layout.lock.write_text(json.dumps({**note, "process_start": "earlier"}))
    assert lock_owner(root).is_dead
    layout.lock.write_text(json.dumps({**note, "process_start": "earlier", "host": "elsewhere"}))
    assert not lock_owner(root).is_dead  # unknown on another host


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', "\x00\x01"])
def test_unreadable_note_is_ignored(root: Path, text: str) -> None:
    StoreLayout(root).lock.write_text(text)
    with Store.open(root) as store, store.lock(0) as recovered:
        assert recovered is None


def test_two_stores_of_one_process_exclude_each_other(root: Path) -> None:
    with Store.open(root) as one, Store.open(root) as two:
        with one.lock(0), one.lock(0), pytest.raises(LockHeldError), two.lock(0):
            pass
        with two.lock(0):
            pass


def test_an_exception_and_close_free_the_lock(root: Path) -> None:
    store = Store.open(root)
    with pytest.raises(ValueError, match="x"), store.lock(0):
        raise ValueError("x")
    with Store.open(root) as other, other.lock(0):
        pass
    store.lock(0).__enter__()
    store.close()
    with Store.open(root) as other, other.lock(0):
        pass


def test_deleted_lock_file_is_not_the_lock(root: Path) -> None:
    layout = StoreLayout(root)
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
    for _ in range(20):
        with store.lock(30):
            path = Path(sys.argv[1]) / "count"
            path.write_text(str(int(path.read_text()) + 1))
"""
    workers = [started(script, root) for _ in range(3)]
    for worker in workers:
        worker.communicate()
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert counter.read_text() == "60"


_LINE = "{number} 1 0:{number} / {point} {options} shared:1 - {kind} server:/x {more}\n"


def test_lock_with_two_holders_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    with refused(UsageError, "store_without_locks", "two holders") as caught:
        Store.open(tmp_path / "store")
    assert "local disk" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("kind", "options", "more", "option"),
    [
        ("nfs", "rw,relatime", "rw,vers=3,nolock,local_lock=all", "nolock"),
        ("nfs4", "rw", "rw,vers=4.2,local_lock=flock", "local_lock=flock"),
        ("nfs4", "rw", "rw,vers=4.2,local_lock=none", None),
        ("cifs", "rw", "rw,nobrl", "nobrl"),
        ("lustre", "rw", "rw,localflock", "localflock"),
        ("ext4", "rw", "rw,nolock", None),
    ],
)
def test_machine_local_locks_are_refused(
    tmp_path: Path, kind: str, options: str, more: str, option: str | None
) -> None:
    mount_point = tmp_path / "a mount"
    path = mount_point / "store" / "lock"
    path.parent.mkdir(parents=True)
    path.touch()
    mounts = tmp_path / "mountinfo"
    root = _LINE.format(number=1, point="/", options="rw", kind="nfs", more="rw,nolock")
    escaped = str(mount_point).replace(" ", "\\040")
    mount = _LINE.format(number=2, point=escaped, options=options, kind=kind, more=more)
    beside = _LINE.format(number=3, point=f"{escaped}/st", options="rw", kind="nfs", more="nolock")
    mounts.write_text(root + mount + beside)
    with path.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if option is None:
            refuse_idle_lock(path, mounts)
            return
        with refused(UsageError, "store_without_locks", f"`{option}`"):
            refuse_idle_lock(path, mounts)


_STRANGER = 12345


@pytest.fixture
def guarded_root(root: Path) -> Path:
    with Store.open(root) as store:
        store.commit_capture(capture(), {"agg": [(0, rows(LARGE))]}, record())
    return root


def check_refused(root: Path, code: str, *words: str) -> None:
    """Check that readers and writers refuse the store and change nothing."""
    before = {path: path.lstat().st_mtime_ns for path in root.rglob("*")}
    for use in (Store.exists, Store.open, lambda path: Store.open(path, create=False)):
        with pytest.raises(UsageError) as caught:
            use(root)
        assert (caught.value.code, caught.value.exit_code) == (code, 2)
        assert caught.value.hint
        for word in words:
            assert word in f"{caught.value.message} {caught.value.hint}"
    assert {path: path.lstat().st_mtime_ns for path in root.rglob("*")} == before


_NAMES = ["", "catalog.sqlite", "state", "lock"]


@pytest.mark.slow
@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("mode", [0o020, 0o002, 0o022])
def test_store_writable_by_others_is_refused(guarded_root: Path, name: str, mode: int) -> None:
    path = guarded_root / name
    path.chmod(path.stat().st_mode | mode)
    check_refused(guarded_root, "store_untrusted", "other users can write to", f"chmod go-w {path}")
    with Store.open(guarded_root, is_shared=True) as store:
        assert store.queries() == ("q",)
    path.chmod(path.stat().st_mode & ~0o022)
    with Store.open(guarded_root) as store:
        store.commit_maintain(maintain(1, 1))


@pytest.mark.parametrize("mode", [0o750, 0o755, 0o700])
def test_store_readable_by_others_is_fine(guarded_root: Path, mode: int) -> None:
    guarded_root.chmod(mode)
    with Store.open(guarded_root) as store:
        assert store.queries() == ("q",)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("name", _NAMES)
def test_files_of_another_user_are_refused(guarded_root: Path, name: str) -> None:
    os.chown(guarded_root / name, _STRANGER, _STRANGER)
    check_refused(guarded_root, "store_untrusted", str(_STRANGER), "chown", "IMPCTL_SHARED_STORE")
    with Store.open(guarded_root, is_shared=True) as store:
        store.commit_maintain(maintain(1, 1))


def test_group_writable_folder_is_refused_for_new_store(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    root.chmod(0o775)
    check_refused(root, "store_untrusted", "0775")
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize(
    "name",
    ["catalog.sqlite", "catalog.sqlite-wal", "catalog.sqlite-shm", "catalog.sqlite-journal"]
    + ["lock", "lock.recovery", "state"],
)
def test_no_file_is_opened_through_a_link(
    guarded_root: Path, tmp_path: Path, name: str, is_shared: bool
) -> None:
    """Links are refused whether or not their target exists."""
    path, target = guarded_root / name, tmp_path / "target"
    if path.exists():
        shutil.move(path, target)
    for _ in range(2):
        path.symlink_to(target)
        for open_ in (Store.open, Store.exists):
            with refused(UsageError, "store_link", re.escape(name)):
                open_(guarded_root, is_shared=is_shared)
        path.unlink()
        if target.exists():
            (shutil.rmtree if target.is_dir() else os.unlink)(target)
    assert not target.exists()


def test_a_run_is_not_read_through_a_link(guarded_root: Path, tmp_path: Path) -> None:
    (run,) = (guarded_root / "state").iterdir()
    shutil.move(run, tmp_path / "run")
    run.symlink_to(tmp_path / "run")
    with Store.open(guarded_root) as store, pytest.raises(Exception, match="cannot be read"):
        state_of(store, "q")


@pytest.mark.parametrize(
    "make", [lambda a, b: a.symlink_to(b), lambda a, b: a.symlink_to(b.parent / "no")]
)
def test_link_replacing_an_open_lock_is_not_followed(
    guarded_root: Path, tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    with Store.open(guarded_root) as store:
        (guarded_root / "lock").unlink()
        make(guarded_root / "lock", other)
        with pytest.raises(UsageError), store.lock(0):
            pass
        with pytest.raises(UsageError):
            lock_owner(guarded_root)
    assert other.read_text() == "precious"
    assert not (tmp_path / "no").exists()


def test_store_may_be_opened_through_own_link(guarded_root: Path, tmp_path: Path) -> None:
    """The path is the user's choice. Its target is checked like any folder."""
    link = tmp_path / "link"
    link.symlink_to(guarded_root)
    with Store.open(link) as store:
        assert store.queries() == ("q",)
    guarded_root.chmod(0o777)
    check_refused(link, "store_untrusted", "0777")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give links away")
def test_another_users_link_is_refused(guarded_root: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(guarded_root)
    os.lchown(link, _STRANGER, _STRANGER)
    for is_shared in (False, True):
        with refused(UsageError, "store_link"):
            Store.open(link, is_shared=is_shared)


def test_path_with_a_nul_is_refused() -> None:
    with refused(UsageError, "store_path"):
        Store.open(Path("a\0b"))


@pytest.fixture(params=[0o000, 0o002, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.slow
@pytest.mark.usefixtures("umask")
def test_store_is_private_under_any_umask(tmp_path: Path) -> None:
    root = tmp_path / "new" / "deeper" / ".impctl"
    names: set[str] = set()
    with Store.open(root) as store:
        generation = store.commit_capture(capture(), {"agg": [(0, rows(LARGE))]}, record())
        for _ in range(2):  # while open, with SQLite's files beside the catalog
            with store.lock(0):
                names |= check(root)
            change = maintain(generation, 1, (0,), put=(("agg", 1, rows(LARGE, 2)),))
            generation = store.commit_maintain(change)
        store.collect(keep=1)
        names |= check(root)
    names |= check(root)
    assert {"catalog.sqlite", "catalog.sqlite-wal", "catalog.sqlite-shm", "lock", "state"} <= names
    for parent in (root.parent, root.parent.parent):
        assert parent.stat().st_mode & 0o022 == 0


def check(root: Path) -> set[str]:
    """Check that others cannot read anything; returns the names of all files and folders."""
    modes = {path.name: oct(path.stat().st_mode & 0o077) for path in [root, *root.rglob("*")]}
    assert modes == dict.fromkeys(modes, "0o0")
    return set(modes)
