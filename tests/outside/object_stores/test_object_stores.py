"""Every command on tables in an object store: results, number of requests, other writers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.errors import RetryableError, TableRecreatedError
from impctl.tables import storage
from impctl.tables.source import open_source
from impctl.tables.storage import read_text
from impctl.tables.write.apply import (
    AppliedUpdate,
    TargetTable,
    UpdateKind,
    UpdateRequest,
    commit_update,
    prepare_batch,
)
from tests.outside.object_stores.lake import (
    FEED,
    ROWS,
    SQL,
    Batch,
    Lake,
    appends,
    apply_by_deltalake,
    kinds,
    mixed,
)
from tests.outside.workspace import check_sound
from tests.support.run_cli import Cli

DELAY = 5
"""Delay of each request in milliseconds, as on a network."""


@pytest.mark.slow
def test_commands_work_as_on_the_local_disk(lake: Lake) -> None:
    local = lake.folder / "beside"
    write_deltalake(str(local), ROWS, configuration=FEED)
    workspaces = [lake.workload(path, mixed(5)) for path in (lake.make("t"), str(local))]
    lake.server.delay(DELAY)
    outputs = []
    for workspace in workspaces:
        workspace.cli.good("check")
        workspace.cli.good("capture")
        assert workspace.ranges() == (1, 4, 6, 9)
        applied = workspace.cli.good("apply", "b0", "b1", "b2", "b3").results
        behind = workspace.cli.one("status")
        assert (behind["stale"], behind["pending_versions"]) == (True, {"t": 4})
        maintained = workspace.cli.one("maintain", "--policy", "incremental")
        assert maintained["reason_code"] == "incremental"
        assert workspace.ranges() == (0, 1, 4, 6, 9)
        workspace.cli.good("apply", "b4")
        first = workspace.cli.one("rewrite")
        assert workspace.ranges() == (0, 4, 6, 9)
        lake.take_requests()
        workspace.cli.good("gc")
        assert not lake.take_requests()
        current = workspace.cli.one("status")
        assert (current["stale"], current["pending_versions"]) == (False, {"t": 0})
        second = workspace.cli.one("rewrite")
        assert (second["sql"], second["versions"]) == (first["sql"], {"t": 5})
        assert first["files_kept"] < first["files_total"]
        outputs.append(
            [maintained["changes"], [(r["version"], r["inserted"]) for r in applied]]
            + [first[name] for name in ("sql", "intervals", "files_kept", "files_total")]
        )
    assert outputs[0] == outputs[1]
    check_sound(workspaces[1].stored(), SQL, local)


@pytest.mark.parametrize(
    ("path_part", "batch", "refusal"),
    [
        ("_change_data", 4, (6, "storage_failed")),
        ("part-", 0, (6, "storage_failed")),
        ("_delta_log/00000000000000000001", 0, (3, "table_unreadable")),
    ],
)
def test_an_object_without_content_is_an_error(
    lake: Lake, path_part: str, batch: int, refusal: tuple[int, str]
) -> None:
    """deltalake and pyarrow would abort the process if they trusted the announced length."""
    workspace = lake.workload(lake.make("t"), mixed(5))
    workspace.cli.good("capture")
    before = workspace.ranges()
    apply_by_deltalake(lake.delta("t"), [mixed(5)[batch]])
    lake.server.hollow(path_part)
    assert workspace.cli("maintain", "--policy", "incremental").refusal == refusal
    lake.server.hollow("")
    assert workspace.ranges() == before
    assert workspace.cli.one("maintain")["reason_code"] == "incremental"


def test_init_writes_a_workload_file(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in lake.options.items():
        monkeypatch.setenv(name.upper(), value)
    uri, file = lake.make("sales"), lake.folder / "first.yaml"
    lake.server.delay(DELAY)
    lake.take_requests()
    assert run(build_app(), ["init", uri, "--out", str(file)]) == 0
    requests = lake.take_requests()
    assert "credentials: ambient" in file.read_text()
    assert "secret" not in file.read_text()
    # Opened for inspection, and once more through the written file.
    assert kinds(requests)["LIST log"] == 2
    assert len(requests) <= 2 * 4 + 2, kinds(requests)
    Cli(lake.capsys, file).good("check")


@pytest.mark.slow
def test_doctor_works_without_spark(lake: Lake) -> None:
    workspace = lake.workload(lake.make("t"), mixed(2))
    workspace.cli.good("capture")
    workspace.cli.good("apply", "--all")
    lake.server.delay(DELAY)
    ran = workspace.cli.good("doctor", "--every", "1d")
    levels = {result["check"]: result["level"] for result in ran.results}
    assert {levels[check] for check in ("readable", "writable", "change_feed")} == {"ok"}
    assert "spark_reads" not in levels


@pytest.mark.spark
def test_a_missing_file_system_of_spark_is_named(lake: Lake, spark: Any) -> None:
    workspace = lake.workload(lake.make("t"))
    ran = workspace.cli("doctor", "--spark")
    levels = {result["check"]: result for result in ran.results}
    assert levels["readable"]["level"] == levels["spark_session"]["level"] == "ok"
    reads = levels["spark_reads"]
    assert (reads["level"], reads["subject"], ran.code) == ("problem", "t", 2)
    assert "no file system for `s3a://`" in reads["message"]
    assert "org.apache.hadoop:hadoop-aws:3" in reads["fix"]


MakeBatches = Callable[[int], list[Batch]]

BATCHES = 5
MAX_RATIO = 1.5
"""Maximum number of requests, compared with deltalake alone."""


def deltalake_requests(lake: Lake, batches: list[Batch]) -> int:
    """Number of requests of deltalake, which opens the table and applies the batches unchecked."""
    lake.make("own")
    lake.take_requests()
    apply_by_deltalake(lake.delta("own"), batches)
    return len(lake.take_requests())


@pytest.mark.slow
@pytest.mark.parametrize("make", [appends, mixed])
def test_requests_of_apply(lake: Lake, make: MakeBatches) -> None:
    batches = make(BATCHES)
    baseline = deltalake_requests(lake, batches)
    workspace = lake.workload(lake.make("t"), batches)
    lake.take_requests()
    workspace.cli.good("apply", "--all")
    requests = lake.take_requests()
    assert lake.delta("t").version() == BATCHES
    assert len(requests) <= MAX_RATIO * baseline, kinds(requests)
    # The log is listed once when it is opened, and three times by each commit of deltalake.
    assert kinds(requests)["LIST log"] == 1 + 3 * BATCHES
    assert kinds(requests)["HEAD data"] == kinds(requests)["HEAD commit"] == 0


def test_applied_batches_are_found_by_reading_the_log_once(lake: Lake) -> None:
    workspace = lake.workload(lake.make("t"), appends(BATCHES))
    workspace.cli.good("apply", "--all")
    lake.take_requests()
    lake.delta("t")
    open_count = len(lake.take_requests())
    results = workspace.cli.good("apply", "--all").results
    requests = lake.take_requests()
    versions = [(result["version"], result["already_applied"]) for result in results]
    assert versions == [(version, True) for version in range(1, BATCHES + 1)]
    # Each entry is read once; per batch there are requests beyond the log's end and at its end.
    assert len(requests) <= open_count + (BATCHES + 1) + 2 * BATCHES + 2, kinds(requests)
    # Each entry of a short log is read, even before a checkpoint, besides the reads of commits.
    lake.delta("t").create_checkpoint()
    extended = lake.workload(
        lake.uri("t"), [*appends(BATCHES)[:1], *appends(BATCHES + 2)[BATCHES:]]
    )
    lake.take_requests()
    results = extended.cli.good("apply", "--all").results
    counts = kinds(lake.take_requests())
    versions = [(result["version"], result["already_applied"]) for result in results]
    assert versions == [(1, True), (BATCHES + 1, False), (BATCHES + 2, False)]
    assert counts["GET commit"] <= BATCHES + 2 + 2 * 6, counts


@pytest.mark.slow
def test_requests_of_capture(lake: Lake) -> None:
    lake.make("t")
    lake.take_requests()
    pa.table(lake.delta("t").to_pyarrow_table(columns=["g", "x"]))
    baseline = len(lake.take_requests())
    lake.workload(lake.uri("t")).cli.good("capture")
    requests = lake.take_requests()
    assert len(requests) <= MAX_RATIO * baseline, kinds(requests)


@pytest.mark.slow
@pytest.mark.parametrize("make", [appends, mixed])
def test_requests_of_maintain(lake: Lake, make: MakeBatches) -> None:
    workspace = lake.workload(lake.make("t"))
    workspace.cli.good("capture")
    apply_by_deltalake(lake.delta("t"), make(BATCHES))
    lake.take_requests()
    lake.delta("t").load_cdf(starting_version=1, columns=["g", "x", "_change_type"]).read_all()
    baseline = len(lake.take_requests())
    ran = workspace.cli.good("maintain", "--policy", "incremental")
    requests = lake.take_requests()
    assert [result["reason_code"] for result in ran.results] == ["incremental"]
    assert len(requests) <= MAX_RATIO * baseline, (baseline, kinds(requests))


@pytest.mark.slow
def test_read_only_commands_open_the_log_once(lake: Lake) -> None:
    workspace = lake.workload(lake.make("t"), appends(3))
    workspace.cli.good("capture")
    workspace.cli.good("apply", "--all")
    workspace.cli.good("maintain")
    lake.take_requests()
    lake.delta("t")
    baseline = len(lake.take_requests())
    for command in ("check", "status", "rewrite", "explain"):
        workspace.cli.good(command)
        requests = lake.take_requests()
        assert len(requests) <= MAX_RATIO * baseline, (command, kinds(requests))


@pytest.mark.parametrize(
    ("characters", "requests"), [(0, 3), (1, 1), (99, 1), (100, 3), (101, 3), (1000, 3)]
)
def test_text_of_any_length_is_read_whole(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, characters: int, requests: int
) -> None:
    monkeypatch.setattr(storage, "_AT_FIRST", 100)
    text = "".join(chr(97 + index % 26) for index in range(characters))
    lake.server.put(f"{lake.bucket}/t/a.json", text.encode())
    lake.take_requests()
    assert read_text(lake.uri("t"), lake.options, "a.json") == text
    assert len(lake.take_requests()) <= requests


def test_a_missing_file_is_requested_once(lake: Lake) -> None:
    lake.make("t")
    lake.take_requests()
    with pytest.raises(FileNotFoundError):
        read_text(lake.uri("t"), lake.options, "_delta_log/missing.json")
    assert len(lake.take_requests()) == 1


ROOT = Path(__file__).parents[3]
INSERT = UpdateRequest("t", UpdateKind.INSERT, ({"k": 7},), name="b")
DELETE = UpdateRequest("t", UpdateKind.DELETE, where="k = 7", name="d")


def target(lake: Lake) -> TargetTable:
    return TargetTable(open_source("t", lake.uri("t"), lake.options))


@pytest.mark.slow
def test_concurrent_runs_apply_each_batch_once(lake: Lake) -> None:
    workspace = lake.workload(lake.make("t"), appends(6))
    lake.server.delay(20)
    arguments = ["-P", "-m", "impctl", "apply", str(workspace.cli.workload), "--all", "--json"]
    command = [sys.executable, *arguments]
    runs = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    codes = {run.wait(60) for run in runs}
    # If both commit a batch at the same time, one run fails and has to be repeated.
    assert codes <= {0, 6}
    workspace.cli.good("apply", "--all")
    keys = lake.delta("t").to_pyarrow_table(columns=["k"]).column("k").to_pylist()
    assert sorted(k for k in keys if k >= 1000) == [1000 + number for number in range(6)]


@pytest.mark.slow
def test_of_two_concurrent_commits_one_wins(lake: Lake) -> None:
    lake.make("t")
    first, second = (prepare_batch(target(lake), INSERT) for _ in range(2))
    assert commit_update(first) == AppliedUpdate(1, inserted=1)
    with pytest.raises(RetryableError, match="Another writer changed"):
        commit_update(second)
    source = open_source("t", lake.uri("t"), lake.options)
    assert commit_update(prepare_batch(TargetTable(source), INSERT)) == AppliedUpdate(1)


@pytest.mark.slow
def test_commits_of_others_in_between_are_read(lake: Lake) -> None:
    lake.make("t")
    followed = target(lake)
    commit_update(prepare_batch(followed, INSERT))
    write_deltalake(lake.uri("t"), ROWS, mode="append", storage_options=lake.options)
    done = commit_update(prepare_batch(followed, DELETE))
    assert done == AppliedUpdate(3, deleted=3)


@pytest.mark.slow
@pytest.mark.parametrize("update", [INSERT, DELETE], ids=["insert", "delete"])
def test_a_replaced_table_is_not_written(lake: Lake, update: UpdateRequest) -> None:
    lake.make("t")
    followed = target(lake)
    commit_update(prepare_batch(followed, UpdateRequest("t", UpdateKind.INSERT, ({"k": 1},))))
    ready = prepare_batch(followed, update)
    lake.empty("t")
    lake.make("t")
    write_deltalake(lake.uri("t"), ROWS, mode="append", storage_options=lake.options)
    with pytest.raises(TableRecreatedError):
        commit_update(ready)
    assert lake.delta("t").version() == 1
