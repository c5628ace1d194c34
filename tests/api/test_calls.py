"""What calls return, warn and raise, on a real table and without Spark; what came and went of a
kept answer, for programs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections import Counter
from dataclasses import asdict
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import impctl
from impctl.errors import (
    ImpctlWarning,
    LockHeldError,
    QueriesFailedError,
    QueryError,
    RecaptureNeededError,
    UsageError,
    WorkloadError,
)
from tests.behaviour.test_lock import held_lock
from tests.support.change_reader import applied
from tests.support.kept_workload import answer_at, grow, write_workload
from tests.support.refused import refused
from tests.support.small_workload import ROWS


def append(folder: Path, *groups: int) -> None:
    rows = {"g": list(groups), "x": [5] * len(groups), "note": ["z"] * len(groups)}
    write_deltalake(str(folder / "t"), pa.table(rows, schema=ROWS.schema), mode="append")


def test_capture_maintain_status_rewrite(folder: Path) -> None:
    with impctl.open(folder / "w.yaml") as opened:
        assert opened.queries == ("q", "many", "none")
        (captured,) = opened.capture("q")
        assert isinstance(captured, impctl.CaptureResult)
        assert captured.sketches[0].fragments == (0, 1)
        assert captured.spark_ms == 0
        append(folder, 5, 5)
        (status,) = opened.status("q")
        assert (status.stale, status.pending_versions) == (True, {"t": 1})
        (foreseen,) = opened.maintain("q", dry_run=True)
        assert foreseen.foreseen
        (maintained,) = opened.maintain("q")
        assert (maintained.action, maintained.added) == ("exact", (2,))
        assert asdict(maintained)["versions"] == {"t": 1}
        rewritten = opened.rewrite("q")
        assert rewritten.intervals == ("g < 6L",)
        assert [entry.query for entry in opened.explain()] == ["q", "many", "none"]


def test_older_versions(folder: Path) -> None:
    """The same memory of plans serves the newest versions and the older ones."""
    with impctl.open(folder / "w.yaml") as opened:
        opened.capture("q")
        then = opened.rewrite("q")
        append(folder, 5, 5)
        now = opened.rewrite("q")
        for at in (0, {"t": 0}):
            older = opened.rewrite("q", at=at)
            assert (older.sql, older.versions, older.action) == (then.sql, {"t": 0}, "kept")
        assert opened.rewrite("q", at=1).sql == opened.rewrite("q").sql == now.sql != then.sql
        with refused(RecaptureNeededError, "no_sketch_at", "no stored sketch for version 7"):
            opened.rewrite("q", at=7)


@pytest.mark.slow
@pytest.mark.parametrize("at", [True, -1, 1.0, "x", {"t": None}, {"u": 0}, {}, []])
def test_what_is_no_version(folder: Path, at: Any) -> None:
    with impctl.open(folder / "w.yaml") as opened:
        opened.capture("q")
        with pytest.raises(UsageError) as caught:
            opened.rewrite("q", at=at)
        assert caught.value.code in ("at_syntax", "at_table_unknown")


@pytest.mark.slow
def test_every_call_pins_the_newest_versions(folder: Path) -> None:
    opened = impctl.open(folder / "w.yaml")
    opened.capture("q")
    for version in (1, 2, 3):
        append(folder, 5)
        assert opened.rewrite("q").versions == {"t": version}
    text = (folder / "w.yaml").read_text()
    (folder / "w.yaml").write_text(text.replace("  none:\n", "  renamed:\n"))
    assert opened.queries == ("q", "many", "renamed")


def test_a_change_of_directory_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    opened = impctl.open("w.yaml", store="kept")
    monkeypatch.chdir("/")
    opened.capture("q")
    assert (folder / "kept").is_dir()


def test_one_query_raises_its_own_error(folder: Path) -> None:
    opened = impctl.open(folder / "w.yaml")
    with refused(RecaptureNeededError, "not_captured"):
        opened.maintain("q")
    with refused(UsageError, "query_unknown"):
        opened.status("qq")
    (folder / "w.yaml").write_text(
        (folder / "w.yaml").read_text().replace("SUM(x)", "SUM(missing)", 1)
    )
    with pytest.raises(QueryError) as wrong:
        opened.capture("q")
    assert str(wrong.value.location).startswith(f"{folder / 'w.yaml'}:11:")


def test_several_queries_lose_nothing_to_one_that_fails(folder: Path) -> None:
    opened = impctl.open(folder / "w.yaml")
    opened.capture("q", "none")
    append(folder, 5, 5)
    with pytest.raises(QueriesFailedError) as caught:
        opened.maintain()
    failed = caught.value
    assert [(done.query, done.action) for done in failed.results] == [
        ("q", "exact"),
        ("none", "exact"),
    ]
    assert {name: error.code for name, error in failed.failures.items()} == {"many": "not_captured"}
    assert (failed.code, failed.exit_code) == ("queries_failed", 7)
    assert "1 of 3 queries failed (`many`)" in failed.message
    assert not opened.status("q")[0].stale


def test_warnings_point_at_the_line_of_the_call(folder: Path) -> None:
    opened = impctl.open(folder / "w.yaml")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        opened.capture("many")
        opened.rewrite(sql="SELECT MIN(x) FROM t")
    assert [(result.category, result.filename) for result in told] == [
        (ImpctlWarning, __file__)
    ] * 2
    assert "skips almost nothing" in str(told[0].message)
    assert "runs without a sketch" in str(told[1].message)


@pytest.mark.slow
@pytest.mark.parametrize("value", [15, "15"])
def test_values_become_typed_literals(folder: Path, value: Any) -> None:
    opened = impctl.open(folder / "w.yaml")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImpctlWarning)
        opened.capture("many")
        given = {"low": value, "word": "x' OR 1=1 --"}
        sql = opened.rewrite("many", params=given).sql
    assert "x >= 15" in sql
    assert "' OR" not in sql.replace("\\'", "")


@pytest.mark.parametrize(
    "value",
    [None, 1.5, True, Decimal(1), date(2024, 1, 1), "1 OR 1=1", 2**63, [1], float("nan")],
)
def test_values_of_another_type_are_refused(folder: Path, value: Any) -> None:
    opened = impctl.open(folder / "w.yaml")
    with refused(UsageError, "parameter_type"):
        opened.rewrite("many", params={"low": value})


def test_a_lock_held_elsewhere_is_waited_for_and_told(folder: Path) -> None:
    opened = impctl.open(folder / "w.yaml", lock_timeout=0)
    opened.capture("q")
    with held_lock(folder / ".impctl"), pytest.raises(LockHeldError):
        opened.capture("q")


def test_threads_share_an_object(folder: Path) -> None:
    opened = impctl.open(folder / "w.yaml", lock_timeout=0)
    opened.capture("q")
    append(folder, 5, 5)
    result: list[str] = []

    def maintain() -> None:
        result.append(opened.maintain("q")[0].action)

    threads = [threading.Thread(target=maintain) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result) == ["exact", "none", "none", "none"]


def test_arguments_win_over_variables_and_both_are_checked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMPCTL_STORE", str(folder / "variable"))
    monkeypatch.setenv("IMPCTL_POLICY", "strict")
    opened = impctl.open(folder / "w.yaml", policy="auto")
    assert [entry.policy for entry in opened.status("q")] == ["auto"]
    opened.capture("q")
    assert (folder / "variable").is_dir()
    monkeypatch.setenv("IMPCTL_BATCH_ROWS", "none")
    with pytest.raises(UsageError, match="IMPCTL_BATCH_ROWS"):
        opened.maintain("q")
    monkeypatch.setenv("IMPCTL_POLICY", "lax")
    with pytest.raises(UsageError, match="IMPCTL_POLICY") as caught:
        impctl.open(folder / "w.yaml")
    assert "strict" in str(caught.value.hint)
    with pytest.raises(UsageError, match="lock_timeout"):
        impctl.open(folder / "w.yaml", policy="auto", lock_timeout=-1)


def test_what_is_wrong_with_the_file_is_said_when_it_is_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        impctl.open(tmp_path / "missing.yaml")
    (tmp_path / "w.yaml").write_text("version: 1\ntables: {}\nquries: {}\n")
    with pytest.raises(WorkloadError) as caught:
        impctl.open(tmp_path / "w.yaml")
    assert caught.value.problems


def test_a_closed_object_and_a_wrong_session_are_refused(folder: Path) -> None:
    with impctl.open(folder / "w.yaml") as opened:
        pass
    with refused(UsageError, "workload_closed"):
        opened.status()
    with pytest.raises(UsageError, match="SparkSession"):
        impctl.open(folder / "w.yaml", spark="local[2]")  # type: ignore[arg-type]


def test_progress_is_told_and_nothing_printed(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[tuple[str, int, int]] = []
    opened = impctl.open(folder / "w.yaml", progress=lambda *step: told.append(step))
    opened.capture("q")
    append(folder, 5)
    opened.maintain("q")
    assert told
    assert all(isinstance(line, str) and done <= total for line, done, total in told)
    assert capfd.readouterr() == ("", "")


def test_importing_costs_nothing_and_work_without_spark_imports_no_pyspark(folder: Path) -> None:
    program = (
        "import sys, impctl\n"
        "before = {name for name in sys.modules if name.startswith('impctl')}\n"
        "assert before == {'impctl', 'impctl.version'}, before\n"
        "assert 'open' in dir(impctl)\n"
        "with impctl.open(sys.argv[1]) as opened:\n"
        "    opened.capture('q'); opened.maintain('q'); opened.status(); opened.rewrite('q')\n"
        "assert 'pyspark' not in sys.modules\n"
    )
    ran = subprocess.run(
        [sys.executable, "-P", "-c", program, str(folder / "w.yaml")],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_the_table_is_only_read(folder: Path) -> None:
    opened = impctl.open(folder / "w.yaml")
    opened.capture("q")
    opened.maintain("q")
    assert DeltaTable(str(folder / "t")).version() == 0


# The tables are so small that no sketch saves anything.
@pytest.mark.filterwarnings("ignore:the sketch of query:impctl.ImpctlWarning")
def test_changes_as_arrow_and_in_files(tmp_path: Path) -> None:
    with impctl.open(write_workload(tmp_path, ("plain", "groups"))) as opened:
        opened.capture()
        whole = opened.changes("plain", whole=True)
        assert isinstance(whole, impctl.ChangesResult)
        before = applied(Counter(), whole.to_arrow())
        assert before == answer_at(tmp_path, "plain", {"a": 0})
        grow(tmp_path)
        changes = opened.changes("plain")
        assert (changes.since, changes.versions, changes.by) == ({"a": 0}, {"a": 1}, "state")
        assert changes.columns == ("_change", "_copies", "s", "d")
        now = answer_at(tmp_path, "plain", {"a": 1})
        assert applied(before, changes.to_arrow()) == now
        assert opened.changes("plain", since=0).row_count == changes.row_count
        done = opened.maintain(changes=tmp_path / "out")
        (path,) = done[0].change_files
        assert applied(before, pq.read_table(path)) == now
        assert opened.changes("plain").row_count == 0
        # A call without a folder writes nothing.
        grow(tmp_path)
        assert opened.maintain()[0].change_files == ()


@pytest.mark.filterwarnings("ignore:the sketch of query:impctl.ImpctlWarning")
def test_an_answer_that_is_not_kept(tmp_path: Path) -> None:
    file = write_workload(tmp_path, ("plain",))
    file.write_text(file.read_text().replace("answer: true", "answer: false"))
    with impctl.open(file) as opened:
        opened.capture()
        with pytest.raises(UsageError, match="The result of query `plain` is not materialized"):
            opened.changes("plain")
