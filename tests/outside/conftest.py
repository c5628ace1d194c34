"""The small table that most cases change, captured once."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import write_deltalake

from tests.outside.place import ROWS, Place, make_place
from tests.support.run_cli import Capsys, MadeOnce, made_once

__all__ = ["made_once"]

FEED = {"delta.enableChangeDataFeed": "true"}


@pytest.fixture
def place(made_once: MadeOnce, capsys: Capsys) -> Place:
    """`q` captured on `g` at version 0 of a table with a change feed; fragments 0 and 1."""

    def make(folder: Path) -> None:
        write_deltalake(str(folder / "t"), ROWS, configuration=FEED)
        made = make_place(folder, capsys).captured()
        assert made.stored().sketches[0].ranges.ids == (0, 1)

    return make_place(made_once.folder("place", make), capsys)


@pytest.fixture
def without_feed(made_once: MadeOnce, capsys: Capsys) -> Place:
    """The same over a table that never had a change feed."""

    def make(folder: Path) -> None:
        write_deltalake(str(folder / "t"), ROWS)
        make_place(folder, capsys).captured()

    return make_place(made_once.folder("without_feed", make), capsys)


@pytest.fixture(params=["feed", "files"])
def either(request: pytest.FixtureRequest) -> Place:
    """The table with a change feed and without."""
    result = request.getfixturevalue("place" if request.param == "feed" else "without_feed")
    assert isinstance(result, Place)
    return result
