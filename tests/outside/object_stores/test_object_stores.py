"""Every command over tables in an object store: as on a disk, in few requests, beside writers."""

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
from tests.outside.place import check_sound
from tests.support.run_cli import Cli

DELAY = 5
"""Milliseconds that each request takes longer, as one over a network does."""


@pytest.mark.slow
def test_commands_do_what_they_do_on_the_local_disk(lake: Lake) -> None:
    beside = lake.folder / "beside"
    write_deltalake(str(beside), ROWS, configuration=FEED)
    places = [lake.workload(path, mixed(5)) for path in (lake.make("t"), str(beside))]
    lake.server.delay(DELAY)
    shown = []
    for place in places:
        place.cli.good("check")
        place.cli.good("capture")
        assert place.ranges() == (1, 4, 6, 9)
        applied = place.cli.good("apply", "b0", "b1", "b2", "b3").results
        behind = place.cli.one("status")
        assert (behind["stale"], behind["pending_versions"]) == (True, {"t": 4})
        made = place.cli.one("maintain", "--policy", "incremental")
        assert made["reason_code"] == "incremental"
        assert place.ranges() == (0, 1, 4, 6, 9)
        place.cli.good("apply", "b4")
        first = place.cli.one("rewrite")
        assert place.ranges() == (0, 4, 6, 9)
        lake.asked()
        place.cli.good("gc")
        assert not lake.asked()
        current = place.cli.one("status")
        assert (current["stale"], current["pending_versions"]) == (False, {"t": 0})
        second = place.cli.one("rewrite")
        assert (second["sql"], second["versions"]) == (first["sql"], {"t": 5})
        assert first["files_kept"] < first["files_total"]
        shown.append(
            [made["changes"], [(r["version"], r["inserted"]) for r in applied]]
            + [first[name] for name in ("sql", "intervals", "files_kept", "files_total")]
        )
    assert shown[0] == shown[1]
    check_sound(places[1].stored(), SQL, beside)


@pytest.mark.parametrize(
    ("text", "batch", "refusal"),
    [
        ("_change_data", 4, (6, "storage_failed")),
        ("part-", 0, (6, "storage_failed")),
        ("_delta_log/00000000000000000001", 0, (3, "table_unreadable")),
    ],
)
def test_an_object_without_content_is_no_empty_object(
    lake: Lake, text: str, batch: int, refusal: tuple[int, str]
) -> None:
    """deltalake and pyarrow end the process where they trust the length that was announced."""
    place = lake.workload(lake.make("t"), mixed(5))
    place.cli.good("capture")
    before = place.ranges()
    apply_by_deltalake(lake.delta("t"), [mixed(5)[batch]])
    lake.server.hollow(text)
    assert place.cli("maintain", "--policy", "incremental").refusal == refusal
    lake.server.hollow("")
    assert place.ranges() == before
    assert place.cli.one("maintain")["reason_code"] == "incremental"


def test_a_first_workload_file_from_the_tables(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in lake.options.items():
        monkeypatch.setenv(name.upper(), value)
    uri, file = lake.make("sales"), lake.folder / "first.yaml"
    lake.server.delay(DELAY)
    lake.asked()
    assert run(build_app(), ["init", uri, "--out", str(file)]) == 0
    asked = lake.asked()
    assert "credentials: ambient" in file.read_text()
    assert "secret" not in file.read_text()
    # Opened to see what is there, and once more through the file that was written.
    assert kinds(asked)["LIST log"] == 2
    assert len(asked) <= 2 * 4 + 2, kinds(asked)
    Cli(lake.capsys, file).good("check")


@pytest.mark.slow
def test_what_is_wrong_is_looked_for_without_spark(lake: Lake) -> None:
    place = lake.workload(lake.make("t"), mixed(2))
    place.cli.good("capture")
    place.cli.good("apply", "--all")
    lake.server.delay(DELAY)
    ran = place.cli.good("doctor", "--every", "1d")
    levels = {result["check"]: result["level"] for result in ran.results}
    assert {levels[check] for check in ("readable", "writable", "change_feed")} == {"ok"}
    assert "spark_reads" not in levels


@pytest.mark.spark
def test_a_file_system_that_spark_lacks_is_named(lake: Lake, spark: Any) -> None:
    place = lake.workload(lake.make("t"))
    ran = place.cli("doctor", "--spark")
    levels = {result["check"]: result for result in ran.results}
    assert levels["readable"]["level"] == levels["spark_session"]["level"] == "ok"
    reads = levels["spark_reads"]
    assert (reads["level"], reads["subject"], ran.code) == ("problem", "t", 2)
    assert "no file system for `s3a://`" in reads["message"]
    assert "org.apache.hadoop:hadoop-aws:3" in reads["fix"]


Maker = Callable[[int], list[Batch]]

BATCHES = 5
MOST = 1.5
"""Requests of impctl for each of deltalake's own."""


def own_requests(lake: Lake, batches: list[Batch]) -> int:
    """Of deltalake, which opens the table, applies the batches and checks nothing."""
    lake.make("own")
    lake.asked()
    apply_by_deltalake(lake.delta("own"), batches)
    return len(lake.asked())


@pytest.mark.slow
@pytest.mark.parametrize("make", [appends, mixed])
def test_apply(lake: Lake, make: Maker) -> None:
    batches = make(BATCHES)
    own = own_requests(lake, batches)
    place = lake.workload(lake.make("t"), batches)
    lake.asked()
    place.cli.good("apply", "--all")
    asked = lake.asked()
    assert lake.delta("t").version() == BATCHES
    assert len(asked) <= MOST * own, kinds(asked)
    # The log is listed when it is opened, and by deltalake's own commits: thrice each.
    assert kinds(asked)["LIST log"] == 1 + 3 * BATCHES
    assert kinds(asked)["HEAD data"] == kinds(asked)["HEAD commit"] == 0


def test_batches_that_are_in_are_found_by_reading_the_log_once(lake: Lake) -> None:
    place = lake.workload(lake.make("t"), appends(BATCHES))
    place.cli.good("apply", "--all")
    lake.asked()
    lake.delta("t")
    opened = len(lake.asked())
    results = place.cli.good("apply", "--all").results
    asked = lake.asked()
    told = [(result["version"], result["already_applied"]) for result in results]
    assert told == [(version, True) for version in range(1, BATCHES + 1)]
    # Each entry once for what it holds; per batch a look beyond the log's end and one at its end.
    assert len(asked) <= opened + (BATCHES + 1) + 2 * BATCHES + 2, kinds(asked)
    # Of a short log each entry is read, also behind a checkpoint, beside what each commit reads.
    lake.delta("t").create_checkpoint()
    more = lake.workload(lake.uri("t"), [*appends(BATCHES)[:1], *appends(BATCHES + 2)[BATCHES:]])
    lake.asked()
    results = more.cli.good("apply", "--all").results
    known = kinds(lake.asked())
    told = [(result["version"], result["already_applied"]) for result in results]
    assert told == [(1, True), (BATCHES + 1, False), (BATCHES + 2, False)]
    assert known["GET commit"] <= BATCHES + 2 + 2 * 6, known


@pytest.mark.slow
def test_capture_reads_what_a_reader_of_the_column_reads(lake: Lake) -> None:
    lake.make("t")
    lake.asked()
    pa.table(lake.delta("t").to_pyarrow_table(columns=["g", "x"]))
    own = len(lake.asked())
    lake.workload(lake.uri("t")).cli.good("capture")
    asked = lake.asked()
    assert len(asked) <= MOST * own, kinds(asked)


@pytest.mark.slow
@pytest.mark.parametrize("make", [appends, mixed])
def test_maintain_reads_what_a_reader_of_the_change_feed_reads(lake: Lake, make: Maker) -> None:
    place = lake.workload(lake.make("t"))
    place.cli.good("capture")
    apply_by_deltalake(lake.delta("t"), make(BATCHES))
    lake.asked()
    lake.delta("t").load_cdf(starting_version=1, columns=["g", "x", "_change_type"]).read_all()
    own = len(lake.asked())
    ran = place.cli.good("maintain", "--policy", "incremental")
    asked = lake.asked()
    assert [result["reason_code"] for result in ran.results] == ["incremental"]
    assert len(asked) <= MOST * own, (own, kinds(asked))


@pytest.mark.slow
def test_commands_that_look_open_the_log_once(lake: Lake) -> None:
    place = lake.workload(lake.make("t"), appends(3))
    place.cli.good("capture")
    place.cli.good("apply", "--all")
    place.cli.good("maintain")
    lake.asked()
    lake.delta("t")
    own = len(lake.asked())
    for command in ("check", "status", "rewrite", "explain"):
        place.cli.good(command)
        asked = lake.asked()
        assert len(asked) <= MOST * own, (command, kinds(asked))


@pytest.mark.parametrize(
    ("characters", "requests"), [(0, 3), (1, 1), (99, 1), (100, 3), (101, 3), (1000, 3)]
)
def test_they_are_read_whole_whatever_their_length(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, characters: int, requests: int
) -> None:
    monkeypatch.setattr(storage, "_AT_FIRST", 100)
    text = "".join(chr(97 + at % 26) for at in range(characters))
    lake.server.put(f"{lake.bucket}/t/a.json", text.encode())
    lake.asked()
    assert read_text(lake.uri("t"), lake.options, "a.json") == text
    assert len(lake.asked()) <= requests


def test_one_that_is_missing_is_asked_for_once(lake: Lake) -> None:
    lake.make("t")
    lake.asked()
    with pytest.raises(FileNotFoundError):
        read_text(lake.uri("t"), lake.options, "_delta_log/missing.json")
    assert len(lake.asked()) == 1


ROOT = Path(__file__).parents[3]
INSERT = UpdateRequest("t", UpdateKind.INSERT, ({"k": 7},), name="b")
DELETE = UpdateRequest("t", UpdateKind.DELETE, where="k = 7", name="d")


def table(lake: Lake) -> TargetTable:
    return TargetTable(open_source("t", lake.uri("t"), lake.options))


@pytest.mark.slow
def test_of_two_runs_at_once_each_batch_is_in_once(lake: Lake) -> None:
    place = lake.workload(lake.make("t"), appends(6))
    lake.server.delay(20)
    words = ["-P", "-m", "impctl", "apply", str(place.cli.workload), "--all", "--json"]
    command = [sys.executable, *words]
    runs = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    codes = {run.wait(60) for run in runs}
    # A batch that both commit at the same moment ends one of the runs, to be run again.
    assert codes <= {0, 6}
    place.cli.good("apply", "--all")
    pylist = lake.delta("t").to_pyarrow_table(columns=["k"]).column("k").to_pylist()
    assert sorted(k for k in pylist if k >= 1000) == [1000 + at for at in range(6)]


@pytest.mark.slow
def test_of_two_commits_at_once_one_gets_in(lake: Lake) -> None:
    lake.make("t")
    one, two = (prepare_batch(table(lake), INSERT) for _ in range(2))
    assert commit_update(one) == AppliedUpdate(1, inserted=1)
    with pytest.raises(RetryableError, match="Another writer changed"):
        commit_update(two)
    source = open_source("t", lake.uri("t"), lake.options)
    assert commit_update(prepare_batch(TargetTable(source), INSERT)) == AppliedUpdate(1)


@pytest.mark.slow
def test_what_others_write_in_between_is_seen(lake: Lake) -> None:
    lake.make("t")
    followed = table(lake)
    commit_update(prepare_batch(followed, INSERT))
    write_deltalake(lake.uri("t"), ROWS, mode="append", storage_options=lake.options)
    done = commit_update(prepare_batch(followed, DELETE))
    assert done == AppliedUpdate(3, deleted=3)


@pytest.mark.slow
@pytest.mark.parametrize("request_of", [INSERT, DELETE], ids=["insert", "delete"])
def test_a_table_put_in_its_place_is_not_written(lake: Lake, request_of: UpdateRequest) -> None:
    lake.make("t")
    followed = table(lake)
    commit_update(prepare_batch(followed, UpdateRequest("t", UpdateKind.INSERT, ({"k": 1},))))
    ready = prepare_batch(followed, request_of)
    lake.empty("t")
    lake.make("t")
    write_deltalake(lake.uri("t"), ROWS, mode="append", storage_options=lake.options)
    with pytest.raises(TableRecreatedError):
        commit_update(ready)
    assert lake.delta("t").version() == 1
