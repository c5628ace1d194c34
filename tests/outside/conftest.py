"""The small table that most cases change."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import write_deltalake

from tests.outside.place import Place, make_place
from tests.outside.rows import ROWS

FEED = {"delta.enableChangeDataFeed": "true"}


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    """`q` captured on `g` at version 0 of a table with a change feed; fragments 0 and 1."""
    write_deltalake(str(tmp_path / "t"), ROWS, configuration=FEED)
    found = make_place(tmp_path, capsys).captured()
    assert found.stored().sketches[0].fragments.ids == (0, 1)
    return found


@pytest.fixture
def without_feed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    """The same over a table that never had a change feed."""
    write_deltalake(str(tmp_path / "t"), ROWS)
    return make_place(tmp_path, capsys).captured()
