"""kill -9 at every write of maintaining recursive queries: the last sketch stands, or the next."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.behaviour.recursive_workload import KEPT, change, network
from tests.crash.test_killed_conversion import PARTS, STRIDE, put_back, ran, saved_as, writes
from tests.support.kept_workload import fragments_by_access, stored

NAMES = (KEPT, "of_seeds", "from_one")

Standing = dict[str, tuple[int, dict[str, set[int]]]]


def standing(folder: Path) -> Standing:
    """By query the version of `links` that its sketches stand for, and their fragments."""
    found = {}
    for name in NAMES:
        held = stored(folder, name)
        found[name] = held.versions["links"], fragments_by_access(held)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_killed_at_every_write_sketches_are_of_before_or_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: int
) -> None:
    folder = tmp_path / "base"
    folder.mkdir()
    cli = network(folder, capsys, NAMES)
    cli.good("capture")
    rng = random.Random(5)
    for _ in range(3):
        change(folder, rng)
    # New ways out of the regions that queries start in, to links that are there.
    ways = {"src": [7, 13, 30, 57, 43, 22], "dst": [57, 43, 22, 56, 42, 23]}
    write_deltalake(str(folder / "links"), pa.table(ways), mode="append")
    before = standing(folder)
    saved = saved_as(folder)
    last = writes(ran(folder, -1))
    after = standing(folder)
    assert all(before[name][1] != after[name][1] for name in NAMES), "every sketch moves"
    assert last > len(NAMES)
    for at in range(part, last, STRIDE):
        put_back(folder, saved)
        assert ran(folder, at).returncode == -9, at
        for name, found in standing(folder).items():
            assert found in (before[name], after[name]), (at, name)
        writes(ran(folder, -1))
        assert standing(folder) == after, at
