"""`capture --rebalance` never leaves the largest range larger than it was.

By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for 200 cases.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.app.workbench.settings import Settings
from impctl.app.workbench.workbench import open_workbench
from tests.support.random_cases import random_cases
from tests.support.run_cli import Cli

WORKLOAD = """\
version: 1
tables: {{t: {{path: t}}}}
partitions: {{t: {{g: {{fragments: {fragments}}}}}}}
queries: {{q: {{sql: "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 100"}}}}
store: st
"""


def drawn(rng: np.random.Generator, count: int) -> pa.Table:
    """Values that crowd around a few places."""
    centre = rng.integers(0, 400, 3)
    g = rng.choice(centre, count) + rng.geometric(0.05, count)
    return pa.table({"g": g, "x": rng.integers(0, 20, count)})


def largest(cli: Cli, folder: Path) -> int:
    """Rows of the largest range, by the table itself."""
    with open_workbench(Settings(cli.workload)) as desk:
        store = desk.reading_store()
        stored = None if store is None else store.load("q")
        assert stored is not None
        (sketch,) = stored.sketches
        boundaries = np.array(sketch.partition.boundaries)
    values = DeltaTable(str(folder / "t")).to_pyarrow_table()["g"].to_numpy()
    return int(np.bincount(np.searchsorted(boundaries, values, side="right")).max())


@pytest.mark.slow
@random_cases(1, 2, 20)
def test_the_largest_range_is_never_larger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cases: range
) -> None:
    evened = 0
    for seed in cases:
        rng, folder = np.random.default_rng(seed), tmp_path / str(seed)
        folder.mkdir()
        choice = random.Random(seed)
        write_deltalake(str(folder / "t"), drawn(rng, 300))
        file = folder / "w.yaml"
        file.write_text(WORKLOAD.format(fragments=choice.choice([4, 12, 40])))
        cli = Cli(capsys, file)
        cli.good("capture")
        for _ in range(3):
            rows = drawn(rng, choice.choice([10, 300]))
            write_deltalake(str(folder / "t"), rows, mode="append")
            # Who asks for fewer ranges gets them by a capture.
            file.write_text(WORKLOAD.format(fragments=choice.choice([2, 4, 12, 40])))
            cli.good("maintain")
            before = largest(cli, folder)
            (found,) = cli.good("capture", "--rebalance").results
            evened += found["action"] == "rebalance" and largest(cli, folder) < before
            assert largest(cli, folder) <= before, (seed, found["reason"])
    assert evened
