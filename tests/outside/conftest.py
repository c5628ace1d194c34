"""Workspaces with the small table that most tests change, captured once."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import write_deltalake

from tests.outside.workspace import ROWS, Workspace, make_workspace
from tests.support.run_cli import Capsys, MadeOnce, made_once

__all__ = ["made_once"]

FEED = {"delta.enableChangeDataFeed": "true"}


@pytest.fixture
def workspace(made_once: MadeOnce, capsys: Capsys) -> Workspace:
    """`q` captured on `g` at version 0 of a table with a change feed; ranges 0 and 1."""

    def make(folder: Path) -> None:
        write_deltalake(str(folder / "t"), ROWS, configuration=FEED)
        created = make_workspace(folder, capsys).capture()
        assert created.stored().sketches[0].ranges.ids == (0, 1)

    return make_workspace(made_once.folder("workspace", make), capsys)


@pytest.fixture
def without_feed(made_once: MadeOnce, capsys: Capsys) -> Workspace:
    """The same on a table that never had a change feed."""

    def make(folder: Path) -> None:
        write_deltalake(str(folder / "t"), ROWS)
        make_workspace(folder, capsys).capture()

    return make_workspace(made_once.folder("without_feed", make), capsys)


@pytest.fixture(params=["feed", "files"])
def either(request: pytest.FixtureRequest) -> Workspace:
    """The workspace with a change feed and without."""
    result = request.getfixturevalue("workspace" if request.param == "feed" else "without_feed")
    assert isinstance(result, Workspace)
    return result
