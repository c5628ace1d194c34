"""Flag or variable before workload file before default; what a run keeps of its tables, and for
how long."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from impctl.errors import UsageError
from impctl.measure.scratch import scratch_copy
from impctl.service.context import open_workbench
from impctl.service.settings import (
    DEFAULT_LOCK_TIMEOUT,
    Policy,
    Settings,
    lock_timeout_of,
    policy_of,
    spark_of,
    store_folder,
    store_of,
)
from impctl.spark import session
from impctl.tables.write.maintenance import create_table
from impctl.workload.load import load_workload
from impctl.workload.models import SparkSpec, Workload

FILE = """
version: 1
tables: {t: {path: t}}
queries:
  q: {sql: "SELECT a FROM t GROUP BY a", policy: strict}
store: kept
spark: {master: "local[2]", conf: {a: "1", b: "2"}}
"""


@pytest.fixture
def workload(tmp_path: Path) -> Workload:
    (tmp_path / "w.yaml").write_text(FILE)
    return load_workload(tmp_path / "w.yaml", {})


def test_the_file_holds_where_nothing_is_set(workload: Workload) -> None:
    settings = Settings(Path(workload.file))
    assert Path(store_of(settings, workload)) == Path(workload.file).parent / "kept"
    assert policy_of(settings, workload.queries["q"]) is Policy.STRICT
    assert lock_timeout_of(settings) == DEFAULT_LOCK_TIMEOUT
    assert spark_of(workload, None) == workload.spark


def test_what_is_set_wins(workload: Workload, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(
        Path(workload.file), store=Path("mine"), policy=Policy.AUTO, lock_timeout=0.0
    )
    assert store_of(settings, workload) == str(tmp_path / "mine")
    assert policy_of(settings, workload.queries["q"]) is Policy.AUTO
    assert lock_timeout_of(settings) == 0.0


def test_a_spark_profile_wins_key_by_key(workload: Workload) -> None:
    merged = spark_of(workload, SparkSpec(None, {"b": "3", "c": "4"}))
    assert merged == SparkSpec("local[2]", {"a": "1", "b": "3", "c": "4"})
    assert spark_of(workload, SparkSpec("yarn", {})).master == "yarn"


def test_a_store_asked_for_at_a_uri_is_refused() -> None:
    for given in ("s3://bucket/kept", Path("s3://bucket/kept")):
        with pytest.raises(UsageError, match=r"cannot be at a URI: s3://bucket/kept") as caught:
            store_folder(given)
        assert "object store" in (caught.value.hint or "")
    assert store_folder("kept") == Path("kept")


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
        repin = desk.tables.repin("t")
        assert (repin.version, repin.table_id != old.table_id) == (old.version, True)
        assert (desk.tables.snapshot("t").table_id, desk.tables.snapshot("t").rows) == (
            repin.table_id,
            3,
        )
        assert desk.tables.snapshot("u") is beside


@pytest.mark.parametrize("running", [None, object()])
def test_a_scratch_copy_knows_whether_spark_runs_in_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: object
) -> None:
    """Else its captures would be loaded row by row where a running Spark is far quicker."""
    monkeypatch.setattr(session, "running_session", lambda: running)
    create_table(str(tmp_path / "t"), pa.table({"id": [1, 2]}))
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    with (
        open_workbench(Settings(tmp_path / "w.yaml")) as desk,
        scratch_copy(desk, ("t",)) as scratch,
    ):
        assert scratch.has_spark is (running is not None)
