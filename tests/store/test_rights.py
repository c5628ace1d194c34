"""Whatever the umask is, nobody else may write what the store has made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from impctl.store.store import Store
from tests.store.builders import LARGE, capture, maintain, record, rows


@pytest.fixture(params=[0o000, 0o002, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.slow
@pytest.mark.usefixtures("umask")
def test_files_and_folders_of_a_store_are_their_owners(tmp_path: Path) -> None:
    root = tmp_path / "new" / "deeper" / ".impctl"
    seen: set[str] = set()
    with Store.open(root) as store:
        generation = store.commit_capture(capture(), {"agg": [(0, rows(LARGE))]}, record())
        for _ in range(2):  # while it is open, with SQLite's own files beside the catalog
            with store.lock(0):
                seen |= check(root)
            generation = store.commit_maintain(
                maintain(generation, 1, (0,), put=(("agg", 1, rows(LARGE, 2)),))
            )
        store.collect(keep=1)
        seen |= check(root)
    seen |= check(root)
    names = {"catalog.sqlite", "catalog.sqlite-wal", "catalog.sqlite-shm", "lock", "state"}
    assert names <= seen
    for parent in (root.parent, root.parent.parent):
        assert parent.stat().st_mode & 0o022 == 0


def check(root: Path) -> set[str]:
    """Nothing of it can even be read by others; the names of all there is."""
    paths = [root, *root.rglob("*")]
    assert {path.name: oct(path.stat().st_mode & 0o077) for path in paths} == {
        path.name: "0o0" for path in paths
    }
    return {path.name for path in paths}
