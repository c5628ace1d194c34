"""kill -9 at every write of maintaining recursive queries: the last sketch stands, or the next.

By ranks, and by absorption, of which functions are found again by the process that goes on.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.behaviour.absorbed_workload import SHIPS, asking, check_functions
from tests.behaviour.recursive_workload import KEPT, QUERIES, answers, by_duckdb, change, network
from tests.crash.killing import PARTS, STRIDE, put_back, ran, saved_as, writes
from tests.support.diagrams import with_diagrams
from tests.support.kept_workload import fragments_by_access, stored
from tests.support.run_cli import Cli

NAMES = (KEPT, "of_seeds", "from_one")
LEFT_OUT = "src = 7 OR src = 13"

Standing = dict[str, tuple[int, dict[str, set[int]]]]


def standing(folder: Path) -> Standing:
    """By query the version of `links` that its sketches stand for, and their fragments."""
    result = {}
    for name in NAMES:
        held = stored(folder, name)
        result[name] = held.versions["links"], fragments_by_access(held)
    return result


def moved(tmp_path: Path, capsys: pytest.CaptureFixture[str], provenance: str = "") -> Cli:
    """A folder with queries that are captured, and some versions behind."""
    folder = tmp_path / "base"
    folder.mkdir()
    cli = network(folder, capsys, NAMES)
    if provenance:
        asking(cli, provenance)
    cli.good("capture")
    rng = random.Random(5)
    for _ in range(3):
        change(folder, rng)
    # New ways out of the regions that queries start in, to links that are there.
    ways = {"src": [7, 13, 30, 57, 43, 22], "dst": [57, 43, 22, 56, 42, 23]}
    write_deltalake(str(folder / "links"), pa.table(ways), mode="append")
    return cli


def cases() -> Iterator[Any]:
    """How recursion is maintained, and the first write at which a run is killed."""
    for part in range(PARTS):
        yield pytest.param("", part, id=f"ranks-{part}")
        for name, said in SHIPS.items():
            marks = (with_diagrams, pytest.mark.long) if name == "eager" else with_diagrams
            yield pytest.param(said, part, id=f"{name}-{part}", marks=marks)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("provenance", "part"), [*cases()])
def test_killed_at_every_write_sketches_are_of_before_or_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], provenance: str, part: int
) -> None:
    cli = moved(tmp_path, capsys, provenance)
    folder = cli.workload.parent
    before = standing(folder)
    saved = saved_as(folder)
    last = writes(ran(folder, -1))
    after = standing(folder)
    assert all(before[name][1] != after[name][1] for name in NAMES), "every sketch moves"
    assert last > len(NAMES)
    for at in range(part, last, STRIDE):
        put_back(folder, saved)
        assert ran(folder, at).returncode == -9, at
        for name, result in standing(folder).items():
            assert result in (before[name], after[name]), (at, name)
        writes(ran(folder, -1))
        assert standing(folder) == after, at
        assert answers(cli, KEPT, "--by", "state") == by_duckdb(cli, QUERIES[KEPT])
        if provenance:
            assert check_functions(cli, (KEPT, "of_seeds"), LEFT_OUT)
            # What goes on from there: leaves that went and came, by their numbers.
            change(folder, random.Random(at))
            writes(ran(folder, -1))
            check_functions(cli, (KEPT, "of_seeds"), LEFT_OUT)
