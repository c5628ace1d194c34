"""Stores that others may write, and links where files of the store should be."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from impctl.errors import UsageError
from impctl.store.disk import Layout
from impctl.store.lock import read_owner
from impctl.store.store import Store
from tests.store.builders import LARGE, capture, maintain, record, rows, state_of

_STRANGER = 12345


@pytest.fixture
def root(root: Path) -> Path:
    with Store.open(root) as store:
        store.commit_capture(capture(), {"agg": [(0, rows(LARGE))]}, record())
    return root


def refused(root: Path, code: str, *words: str) -> None:
    """By readers and writers, and nothing in it is touched."""
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
def test_what_others_may_write_is_refused(root: Path, name: str, mode: int) -> None:
    path = root / name
    path.chmod(path.stat().st_mode | mode)
    refused(root, "store_untrusted", "other users can write to", f"chmod go-w {path}")
    with Store.open(root, is_shared=True) as store:
        assert store.queries() == ("q",)
    path.chmod(path.stat().st_mode & ~0o022)
    with Store.open(root) as store:
        store.commit_maintain(maintain(1, 1))


@pytest.mark.parametrize("mode", [0o750, 0o755, 0o700])
def test_what_others_may_read_is_no_matter(root: Path, mode: int) -> None:
    root.chmod(mode)
    with Store.open(root) as store:
        assert store.queries() == ("q",)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("name", _NAMES)
def test_what_belongs_to_another_user_is_refused(root: Path, name: str) -> None:
    os.chown(root / name, _STRANGER, _STRANGER)
    refused(root, "store_untrusted", str(_STRANGER), "chown", "IMPCTL_SHARED_STORE")
    with Store.open(root, is_shared=True) as store:
        store.commit_maintain(maintain(1, 1))


def test_a_folder_made_under_umask_002_is_refused_before_a_store_is_made(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    root.chmod(0o775)
    refused(root, "store_untrusted", "0775")
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize(
    "name",
    ["catalog.sqlite", "catalog.sqlite-wal", "catalog.sqlite-shm", "catalog.sqlite-journal"]
    + ["lock", "lock.recovery", "state"],
)
def test_no_file_is_opened_through_a_link(
    root: Path, tmp_path: Path, name: str, is_shared: bool
) -> None:
    """Whether it leads to something or to nothing yet, which an opening would create."""
    place, target = root / name, tmp_path / "target"
    if place.exists():
        shutil.move(place, target)
    for _ in range(2):
        place.symlink_to(target)
        for open_ in (Store.open, Store.exists):
            with pytest.raises(UsageError) as caught:
                open_(root, is_shared=is_shared)
            assert caught.value.code == "store_link"
            assert name in caught.value.message
        place.unlink()
        if target.exists():
            (shutil.rmtree if target.is_dir() else os.unlink)(target)
    assert not target.exists()


def test_a_run_is_not_read_through_a_link(root: Path, tmp_path: Path) -> None:
    (run,) = (root / "state").iterdir()
    shutil.move(run, tmp_path / "run")
    run.symlink_to(tmp_path / "run")
    with Store.open(root) as store, pytest.raises(Exception, match="cannot be read"):
        state_of(store, "q")


@pytest.mark.parametrize(
    "make", [lambda at, to: at.symlink_to(to), lambda at, to: at.symlink_to(to.parent / "no")]
)
def test_a_lock_put_there_while_a_store_is_open_is_not_followed(
    root: Path, tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    with Store.open(root) as store:
        (root / "lock").unlink()
        make(root / "lock", other)
        with pytest.raises(UsageError), store.lock(0):
            pass
        with pytest.raises(UsageError):
            read_owner(Layout(root))
    assert other.read_text() == "precious"
    assert not (tmp_path / "no").exists()


def test_the_folder_may_be_reached_by_a_link_of_ones_own(root: Path, tmp_path: Path) -> None:
    """It was named on purpose; what it leads to is looked at as any folder."""
    link = tmp_path / "link"
    link.symlink_to(root)
    with Store.open(link) as store:
        assert store.queries() == ("q",)
    root.chmod(0o777)
    refused(link, "store_untrusted", "0777")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give links away")
def test_the_folder_is_not_reached_by_another_users_link(root: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(root)
    os.lchown(link, _STRANGER, _STRANGER)
    for is_shared in (False, True):
        with pytest.raises(UsageError) as caught:
            Store.open(link, is_shared=is_shared)
        assert caught.value.code == "store_link"


def test_a_path_with_a_nul_is_a_mistake() -> None:
    with pytest.raises(UsageError) as caught:
        Store.open(Path("a\0b"))
    assert caught.value.code == "store_path"
