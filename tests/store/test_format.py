"""Formats: older ones are brought up, newer ones refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from impctl.errors import StateCorruptError, UsageError
from impctl.store.catalog import FORMAT_VERSION
from impctl.store.store import Store
from tests.store.builders import capture, in_catalog, record


@pytest.fixture
def root(root: Path) -> Path:
    with Store.open(root) as store:
        store.commit_capture(capture(), {}, record())
    return root


@pytest.mark.parametrize("create", [True, False])
def test_a_newer_format_is_refused_with_a_hint(root: Path, create: bool) -> None:
    in_catalog(root, f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    with pytest.raises(UsageError, match=f"format {FORMAT_VERSION + 1}") as caught:
        Store.open(root, create=create)
    assert caught.value.code == "store_format_newer"
    assert "upgrade" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "statement",
    ["PRAGMA application_id = 7", "PRAGMA user_version = 0", "PRAGMA user_version = -1"],
)
def test_a_foreign_database_is_refused(root: Path, statement: str) -> None:
    in_catalog(root, statement)
    with pytest.raises(StateCorruptError):
        Store.open(root)


def test_a_creation_that_was_cut_short_is_finished(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    (root / "catalog.sqlite").touch()
    with Store.open(root, create=False) as store:
        assert store.queries() == ()
    assert (root / "catalog.sqlite").stat().st_size == 0
    with Store.open(root) as store:
        store.commit_capture(capture(), {}, record())
    with Store.open(root) as store:
        assert store.queries() == ("q",)
