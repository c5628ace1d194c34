"""Another table takes the place of one while a run reads it: what was read is thrown away."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake

from impctl.errors import TableRecreatedError
from impctl.service import capture, stored
from impctl.service import table_deltas as shared_changes
from impctl.service.pinned import PinnedTables
from impctl.tables.source import open_source
from tests.outside.conftest import FEED
from tests.outside.place import Place
from tests.outside.rows import ROWS, more

Act = Callable[[], None]


@pytest.fixture
def aside(place: Place, tmp_path: Path, request: pytest.FixtureRequest) -> Act:
    """Puts another table, or a backup that went another way, where the table is; once."""
    other = tmp_path / "other"
    if request.param == "backup":
        shutil.copytree(place.table, other)
    else:
        write_deltalake(str(other), ROWS.slice(3), configuration=FEED)
    place.append(1)
    place.captured()
    place.append()
    for group in (1, 3, 7):
        write_deltalake(str(other), more(group), mode="append")

    def replace() -> None:
        if other.exists():
            place.replace_by(other)

    return replace


def around(function: Any, *, before: Act | None = None, after: Act | None = None) -> Any:
    def called(*args: Any, **named: Any) -> Any:
        if before is not None:
            before()
        result = function(*args, **named)
        if after is not None:
            after()
        return result

    return called


@pytest.mark.parametrize(
    ("aside", "moment", "is_marked"),
    [
        ("backup", "before", False),
        ("backup", "after", True),
        ("new", "before", True),
        ("new", "after", False),
    ],
    indirect=["aside"],
)
def test_while_its_changes_are_read(
    place: Place, aside: Act, moment: str, is_marked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an entry to compare (a cleaned log, remote storage) the files tell the backup."""
    if not is_marked:
        monkeypatch.setattr(stored, "commit_mark", lambda *_: None)
    with monkeypatch.context() as patch:
        act = {moment: aside}
        patch.setattr(shared_changes, "read_commits", around(shared_changes.read_commits, **act))
        ran = place.cli("maintain", "--policy", "incremental")
        assert (ran.code, ran.error["code"]) in (
            (6, "table_replaced_meanwhile"),
            (7, "table_recreated"),
            (7, "history_gone"),
        ), ran.document
        assert ran.error["hint"]
    ran = place.cli.good("maintain", "--policy", "auto")
    assert ran.results[0]["reason_code"] == "table_recreated"
    place.check_sound()


@pytest.mark.parametrize("aside", ["backup"], indirect=True)
def test_while_it_is_captured(place: Place, aside: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    before = place.stored()
    with monkeypatch.context() as patch:
        patch.setattr(capture, "_computed", around(capture._computed, after=aside))
        ran = place.cli("capture")
        assert (ran.code, ran.error["code"]) == (6, "table_replaced_meanwhile")
        assert place.stored() == before
    place.captured()


def test_a_backup_that_was_there_for_a_moment_is_not_taken_for_the_table(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backup is pinned, and the table's own log stands there again when that is looked at."""
    other = tmp_path / "other"
    shutil.copytree(place.table, other)
    write_deltalake(str(other), more(3), mode="append")
    place.append(1)
    place.captured()

    def exchange() -> None:
        shutil.move(place.table, tmp_path / "aside")
        shutil.move(other, place.table)
        shutil.move(tmp_path / "aside", other)

    with monkeypatch.context() as patch:
        patch.setattr(PinnedTables, "pin", around(PinnedTables.pin, after=exchange))
        exchange()
        ran = place.cli("rewrite", "--policy", "incremental", "--require-sketch")
        assert (ran.code, ran.error["code"]) == (7, "table_recreated"), ran.document


def test_an_older_version_is_not_read_from_another_table(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, ROWS)
    write_deltalake(path, ROWS, mode="append")
    source = open_source("t", path)
    shutil.rmtree(path)
    for _ in range(2):
        write_deltalake(path, ROWS.slice(5), mode="append")
    with pytest.raises(TableRecreatedError, match="created again"):
        source.snapshot(0)
