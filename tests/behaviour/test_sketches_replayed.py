"""Twenty queries over a social network by trees, over batches and restarts: Spark's sketches.

By hand 200 batches, and the same for TPC-H: `tests.behaviour.sketches_replayed`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.large_joins.social import social_tables
from impctl.tables.write.maintenance import create_table
from tests.behaviour.sketches_replayed import replayed

NETWORK = Path(__file__).with_name("network.yaml")


def network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tables, and the workload over them."""
    for name, table in social_tables(400, 1).items():
        create_table(str(folder / name), table)
    monkeypatch.setenv("IMPCTL_DATA", str(folder))
    file = folder / "network.yaml"
    file.write_text(NETWORK.read_text(encoding="utf-8"), encoding="utf-8")
    return file


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.filterwarnings("ignore::impctl.ImpctlWarning")
def test_sketches_stay_sparks(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    done = replayed(network(tmp_path, monkeypatch), tmp_path / "replay", spark, 12, 12, few=20)
    assert not done.wrong, "\n".join(done.told())
    assert not done.cannot
    assert done.restarts == 1
    assert set(done.actions) == {"exact"}
    assert done.verified >= 40
    assert len(done.left_out) > 10
