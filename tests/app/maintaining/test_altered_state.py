"""A byte of stored state that is not as it was written is found before anything is told by it."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from impctl.data import pages
from impctl.store import states
from tests.app.maintaining.test_join_trees import changed, sketches
from tests.app.maintaining.test_join_trees import cli as cli  # noqa: PLC0414 - a fixture
from tests.support.run_cli import Cli

FEW = ("groups_tree", "groups_index", "top_index", "one_index")


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(4, marks=pytest.mark.slow),
        pytest.param(None, id="all", marks=[pytest.mark.slow, pytest.mark.long]),
    ],
)
@pytest.mark.filterwarnings("ignore::impctl.ImpctlWarning")
def test_any_byte_is_found_or_not_used(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, count: int | None
) -> None:
    """By hand all of them (`count` is None), one after the other."""
    monkeypatch.setattr(states, "BLOB_LIMIT", 0)
    monkeypatch.setattr(pages, "PAGE", 64)
    folder, names = cli.workload.parent, [f"--query={name}" for name in FEW]
    cli.good("capture", *names)
    rng = random.Random(3)
    changed(folder, rng, 1)
    shutil.copytree(folder / "store", folder / "aside")
    before = sketches(cli, FEW)
    cli.good("maintain", *names)
    wanted = sketches(cli, FEW)
    assert wanted != before
    files = sorted(path.name for path in (folder / "aside" / "state").iterdir())
    every = [
        (name, place)
        for name in files
        for place in range((folder / "aside" / "state" / name).stat().st_size)
    ]
    result = 0
    for name, place in every if count is None else rng.sample(every, count):
        altered(folder, name, place, 1 << rng.randrange(8))
        ran = cli("maintain", *names)
        error = ran.document["error"]
        failures = [] if error is None else error.get("failures") or [error]
        failed = {one["query"] for one in failures}
        assert {one["code"] for one in failures} <= {"state_corrupt"}
        assert ran.code == (7 if failed else 0)
        now = sketches(cli, FEW)
        for query in FEW:
            assert now[query] == (before if query in failed else wanted)[query], (name, place)
        result += len(failed)
    assert result
    assert result < len(every) if count is None else result <= count


def altered(folder: Path, name: str, place: int, bit: int) -> None:
    """The store as it was, but for one bit."""
    shutil.rmtree(folder / "store")
    shutil.copytree(folder / "aside", folder / "store")
    file = folder / "store" / "state" / name
    whole = bytearray(file.read_bytes())
    whole[place] ^= bit
    file.write_bytes(whole)
