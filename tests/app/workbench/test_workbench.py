"""What a run keeps of its tables, and until when."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from impctl.app.workbench.scratch import scratch_copy
from impctl.app.workbench.settings import Settings
from impctl.app.workbench.workbench import open_workbench
from impctl.spark import beside
from impctl.tables.write.create import create_table

WORKLOAD = """
version: 1
tables: {t: {path: t}, u: {path: u}}
partitions: {t: {id: {boundaries: [2]}}}
queries: {q: {sql: "SELECT id, COUNT(*) n FROM t GROUP BY id HAVING COUNT(*) > 1"}}
"""


def test_a_table_pinned_anew_is_read_anew(tmp_path: Path) -> None:
    for name in ("t", "u"):
        create_table(str(tmp_path / name), pa.table({"id": [1, 2]}))
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    with open_workbench(Settings(tmp_path / "w.yaml")) as desk:
        old, beside = desk.tables.snapshot("t"), desk.tables.snapshot("u")
        shutil.rmtree(tmp_path / "t")
        create_table(str(tmp_path / "t"), pa.table({"id": [1, 2, 3]}))
        found = desk.tables.repin("t")
        assert (found.version, found.table_id != old.table_id) == (old.version, True)
        assert (desk.tables.snapshot("t").table_id, desk.tables.snapshot("t").rows) == (
            found.table_id,
            3,
        )
        assert desk.tables.snapshot("u") is beside


@pytest.mark.parametrize("running", [None, object()])
def test_a_scratch_copy_knows_whether_spark_runs_in_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: object
) -> None:
    """Else its captures would be loaded row by row where a running Spark is far quicker."""
    monkeypatch.setattr(beside, "running_session", lambda: running)
    create_table(str(tmp_path / "t"), pa.table({"id": [1, 2]}))
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    with (
        open_workbench(Settings(tmp_path / "w.yaml")) as desk,
        scratch_copy(desk, ("t",)) as scratch,
    ):
        assert scratch.has_spark is (running is not None)
