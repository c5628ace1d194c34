"""kill -9 at every write of a conversion of buffers: the old choice whole, or the new one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.app.maintaining.keeping.test_buffers import change, write_workload
from tests.crash.killing import PARTS, STRIDE
from tests.crash.test_killed_conversion import put_back, ran, saved_as, writes
from tests.support.kept_workload import fragments_by_access, stored
from tests.support.run_cli import Cli

PIECES = {"first": ["top0"], "ends": ["aggregate0"]}
LEAST = ("--disk", "0")
ROOM = ("--query", "first_kept", "--disk", "1GB")


def check(folder: Path) -> list[list[str]]:
    """Sketches of one version are those of all kept; the pieces that are bounded."""
    found = []
    for name in PIECES:
        one, twin = stored(folder, name), stored(folder, f"{name}_kept")
        if one.versions == twin.versions:
            mine, theirs = map(fragments_by_access, (one, twin))
            assert mine == theirs, name
        found.append([*one.state_meta.get("buffers", {})])
    return found


def begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder with all kept, one version behind."""
    folder = tmp_path / "base"
    folder.mkdir()
    cli = Cli(capsys, write_workload(folder, PIECES, 1500))
    cli.good("capture")
    change(folder, random.Random(3), 0)
    return folder


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_killed_at_every_write_buffers_are_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: int
) -> None:
    folder = begun(tmp_path, capsys)
    saved = saved_as(folder)
    before = writes(ran(folder, -1))
    put_back(folder, saved)
    last = writes(ran(folder, -1, *LEAST))
    final = check(folder)
    assert final == [*PIECES.values()]
    assert last > before + len(PIECES)
    choices = set()
    for at in range(before - 2 + part, last, STRIDE):
        put_back(folder, saved)
        assert ran(folder, at, *LEAST).returncode == -9, at
        for pieces, whole in zip(check(folder), final, strict=True):
            assert pieces in ([], whole), at
            choices.add(bool(pieces))
        for turn in (1, 2):
            # The first of these deletions uses up what has just been bounded.
            change(folder, random.Random(at), turn)
            writes(ran(folder, -1, *LEAST))
            check(folder)
    assert choices


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_killed_at_every_write_what_is_kept_again_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: int
) -> None:
    folder = begun(tmp_path, capsys)
    writes(ran(folder, -1, *LEAST))
    file = folder / "w.yaml"
    file.write_text(file.read_text().replace("incremental}", "incremental, state: keep}"))
    least = check(folder)
    assert least == [*PIECES.values()]
    saved = saved_as(folder)
    before = writes(ran(folder, -1, *ROOM[:2], command="capture"))
    put_back(folder, saved)
    last = writes(ran(folder, -1, *ROOM, command="capture"))
    assert not any(check(folder))
    assert last > before + len(PIECES)
    for at in range(before - 2 + part, last, STRIDE):
        put_back(folder, saved)
        assert ran(folder, at, *ROOM, command="capture").returncode == -9, at
        for pieces, held in zip(check(folder), least, strict=True):
            assert pieces in ([], held), at
        for turn in (1, 2):
            change(folder, random.Random(at), turn)
            writes(ran(folder, -1))
            check(folder)
        writes(ran(folder, -1, *ROOM, command="capture"))
        assert not any(check(folder)), at
