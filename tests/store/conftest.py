"""A store for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from impctl.store.store import Store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / ".impctl"


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    """The store at `root`, open until the test ends."""
    with Store.open(root) as opened:
        yield opened
