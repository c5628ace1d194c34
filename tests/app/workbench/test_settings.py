"""Flag or variable before workload file before default; None is the only "unset"."""

from __future__ import annotations

from pathlib import Path

import pytest

from impctl.app.workbench.settings import (
    DEFAULT_LOCK_TIMEOUT,
    Policy,
    Settings,
    lock_timeout_of,
    policy_of,
    spark_of,
    store_folder,
    store_of,
)
from impctl.errors import UsageError
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
