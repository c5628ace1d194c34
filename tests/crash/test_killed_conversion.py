"""kill -9 at every write of a conversion: the old choice whole, or the new one.

Converted are sides of joins and groups, which are read instead, and buffers, which are bounded.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.app.maintaining.keeping import test_buffers as buffers
from tests.behaviour import typed_joins
from tests.behaviour.typed_joins import GROUPINGS, QUERIES
from tests.crash.killing import PARTS, STRIDE, put_back, ran, saved_as, writes
from tests.support.kept_workload import fragments_by_access, stored
from tests.support.run_cli import Cli

LEAST = ("--disk", "0")


@dataclass(frozen=True)
class Pieces:
    """Queries beside twins of which all is kept, and what of theirs is converted."""

    names: tuple[str, ...]
    first: str
    """A query, whose twin's capture makes room."""
    held: str
    """What the state's description calls the pieces that were converted."""
    write_workload: Callable[[Path], Path]
    change: Callable[[Path, random.Random, int], None]
    keep: tuple[str, str]
    """How the workload file comes to keep what it has."""
    later: tuple[int, ...] = ()
    """Changes before pieces are kept again."""

    def begun(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
        """A folder with all kept, one version behind."""
        folder = tmp_path / "base"
        folder.mkdir()
        Cli(capsys, self.write_workload(folder)).good("capture")
        self.change(folder, random.Random(3), 0)
        return folder

    def check(self, folder: Path) -> list[list[str]]:
        """Sketches of one version are those of all kept; the pieces that were converted."""
        result = []
        for name in self.names:
            one, twin = stored(folder, name), stored(folder, f"{name}_kept")
            if one.versions == twin.versions:
                mine, theirs = map(fragments_by_access, (one, twin))
                assert mine == theirs, name
            result.append([*one.state_meta.get(self.held, [])])
        return result

    def check_least(self, pieces: list[list[str]]) -> None:
        """All is converted that can be."""
        if self is BUFFERS:
            assert pieces == [["top0"], ["aggregate0"]]
        else:
            assert all(pieces), pieces
            assert "aggregate0" in pieces[0], "groups go too"


def write_joins(folder: Path) -> Path:
    queries = {**QUERIES, **GROUPINGS}
    asked = [(name, queries[name], "auto") for name in SIDES.names]
    pinned = [(f"{name}_kept", queries[name], "index") for name in SIDES.names]
    return typed_joins.write_workload(folder, [*asked, *pinned])


SIDES = Pieces(
    ("two", "self", "computed", "by_s"),
    "self",
    "from_files",
    write_joins,
    typed_joins.change,
    ("join: auto}", "join: auto, state: keep}"),
    later=(3, 4, 5),
)
BUFFERS = Pieces(
    ("first", "ends"),
    "first",
    "buffers",
    lambda folder: buffers.write_workload(folder, BUFFERS.names, 1500),
    buffers.change,
    ("incremental}", "incremental, state: keep}"),
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.parametrize("of", [SIDES, BUFFERS], ids=["sides", "buffers"]),
    pytest.mark.parametrize("part", range(PARTS)),
]


def test_killed_at_every_write_the_choice_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], of: Pieces, part: int
) -> None:
    folder = of.begun(tmp_path, capsys)
    saved = saved_as(folder)
    before = writes(ran(folder, -1))
    put_back(folder, saved)
    last = writes(ran(folder, -1, *LEAST))
    final = of.check(folder)
    of.check_least(final)
    assert last > before + len(of.names)
    choices = set()
    for at in range(before - 2 + part, last, STRIDE):
        put_back(folder, saved)
        assert ran(folder, at, *LEAST).returncode == -9, at
        for pieces, whole in zip(of.check(folder), final, strict=True):
            assert pieces in ([], whole), at
            choices.add(bool(pieces))
        for turn in (1, 2):
            # A run that has nothing to do does not look at the budget. The first of these deletions
            # uses up the buffers that have just been bounded.
            of.change(folder, random.Random(at), turn)
            writes(ran(folder, -1, *LEAST))
            assert of.check(folder) == final or of is BUFFERS, at
    assert choices


def test_killed_at_every_write_what_is_kept_again_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], of: Pieces, part: int
) -> None:
    """Pieces that were converted are made again after the capture of another query."""
    folder = of.begun(tmp_path, capsys)
    writes(ran(folder, -1, *LEAST))
    for turn in of.later:
        of.change(folder, random.Random(turn), turn)
        writes(ran(folder, -1))
    # Else what is worth keeping again goes by how quick the machine is.
    file = folder / "w.yaml"
    file.write_text(file.read_text().replace(*of.keep))
    least = of.check(folder)
    of.check_least(least)
    saved = saved_as(folder)
    room = ("--query", f"{of.first}_kept", "--disk", "1GB")
    before = writes(ran(folder, -1, *room[:2], command="capture"))
    assert of.check(folder) == least
    put_back(folder, saved)
    last = writes(ran(folder, -1, *room, command="capture"))
    assert not any(of.check(folder))
    assert last > before + len(of.names)
    for at in range(before - 2 + part, last, STRIDE):
        put_back(folder, saved)
        assert ran(folder, at, *room, command="capture").returncode == -9, at
        for pieces, held in zip(of.check(folder), least, strict=True):
            assert pieces in ([], held), at
        for turn in (1, 2):
            of.change(folder, random.Random(at), turn)
            writes(ran(folder, -1))
            of.check(folder)
        writes(ran(folder, -1, *room, command="capture"))
        assert not any(of.check(folder)), at
