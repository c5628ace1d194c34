"""Looking at files: in few tasks, unless somebody chose, and the session is left as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.spark.session import LISTING, few_listing_tasks, is_connect
from impctl.spark.snapshots import snapshot_frame
from impctl.tables.source import open_source

pytestmark = pytest.mark.spark


def inside(spark: Any) -> str:
    with few_listing_tasks(spark):
        return str(spark.conf.get(LISTING))


@pytest.fixture
def fresh(spark: Any) -> Any:
    """A session of its own, with Spark's default."""
    session = spark.newSession()
    session.conf.unset(LISTING)
    return session


def test_files_are_looked_at_in_few_tasks_per_core(fresh: Any) -> None:
    cores = 0 if is_connect(fresh) else fresh.sparkContext.defaultParallelism
    assert inside(fresh) == (str(max(8, 4 * cores)) if cores else "10000")
    assert fresh.conf.get(LISTING) == "10000"


def test_what_somebody_chose_stays(fresh: Any) -> None:
    fresh.conf.set(LISTING, "77")
    assert inside(fresh) == "77"


def test_a_table_of_many_files_takes_no_task_for_each(fresh: Any, tmp_path: Path) -> None:
    if is_connect(fresh):
        pytest.skip("a server elsewhere does not tell its jobs")
    for number in range(40):
        write_deltalake(tmp_path / "t", pa.table({"x": [number]}), mode="append")
    snapshot = open_source("t", str(tmp_path / "t")).snapshot()
    tracker = fresh.sparkContext.statusTracker()
    fresh.sparkContext.setJobGroup("listing", "files are looked at")
    frame = snapshot_frame(fresh, snapshot)
    tasks = [
        tracker.getStageInfo(stage).numTasks
        for job in tracker.getJobIdsForGroup("listing")
        for stage in tracker.getJobInfo(job).stageIds
    ]
    assert frame.count() == 40
    assert len(tasks) == 1, "Spark looks at more than 32 files by a job"
    assert tasks[0] <= max(8, 4 * fresh.sparkContext.defaultParallelism) < 40
