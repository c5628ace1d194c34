"""Every command over tables in an object store whose answers take time, beside the local disk."""

from __future__ import annotations

from typing import Any

import pytest
from deltalake import write_deltalake

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from tests.outside.object_stores.lake import FEED, ROWS, SQL, Lake, Place, mixed
from tests.outside.oracle import check_sound
from tests.support.object_store import kinds
from tests.support.run_cli import Cli

DELAY = 20
"""Milliseconds that each request takes longer, as one over a network does."""


def both(lake: Lake, batches: int) -> tuple[Place, Place]:
    """One workload over a table in the store, and over the same one on the local disk."""
    beside = lake.folder / "beside"
    write_deltalake(str(beside), ROWS, configuration=FEED)
    return (
        lake.workload(lake.make("t"), mixed(batches)),
        lake.workload(str(beside), mixed(batches)),
    )


def test_batches_leave_the_sketch_that_they_leave_on_the_local_disk(lake: Lake) -> None:
    far, near = both(lake, 10)
    lake.server.delay(DELAY)
    for place in (far, near):
        place.cli.good("check")
        place.cli.good("capture")
    assert far.fragments() == near.fragments() == (1, 4, 6, 9)
    for batches, left in (
        (("b0", "b1", "b2", "b3"), (0, 1, 4, 6, 9)),
        (("b4", "b5", "b6", "b7", "b8", "b9"), (0, 4, 6, 9)),
    ):
        told = []
        for place in (far, near):
            applied = place.cli.good("apply", *batches).results
            (made,) = place.cli.good("maintain", "--policy", "incremental").results
            told.append(([(r["version"], r["inserted"]) for r in applied], made["changes"]))
            assert made["reason_code"] == "incremental"
        assert told[0] == told[1]
        assert far.fragments() == near.fragments() == left
        assert far.stored().versions == near.stored().versions
    check_sound(near.stored(), SQL, lake.folder / "beside")


def test_what_a_run_leaves_can_be_looked_at_and_tidied_up(lake: Lake) -> None:
    far, near = both(lake, 5)
    lake.server.delay(DELAY)
    shown = []
    for place in (far, near):
        place.cli.good("capture")
        place.cli.good("apply", "--all")
        (behind,) = place.cli.good("status").results
        (first,) = place.cli.good("rewrite").results
        place.cli.good("gc")
        (current,) = place.cli.good("status").results
        (second,) = place.cli.good("rewrite").results
        assert (second["sql"], second["versions"]) == (first["sql"], {"t": 5})
        assert (behind["stale"], behind["pending_versions"]) == (True, {"t": 5})
        assert (current["stale"], current["pending_versions"]) == (False, {"t": 0})
        shown.append([first[name] for name in ("sql", "intervals", "files_kept", "files_total")])
    assert shown[0] == shown[1]
    assert shown[0][2] < shown[0][3]


def test_tidying_up_the_store_asks_the_object_store_for_nothing(lake: Lake) -> None:
    place = lake.workload(lake.make("t"))
    place.cli.good("capture")
    lake.asked()
    place.cli.good("gc")
    assert not lake.asked()


def test_a_first_workload_file_is_written_from_the_tables(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_what_is_wrong_is_looked_for_without_spark(lake: Lake) -> None:
    place = lake.workload(lake.make("t"), mixed(2))
    place.cli.good("capture")
    place.cli.good("apply", "--all")
    lake.server.delay(DELAY)
    ran = place.cli.good("doctor", "--every", "1d")
    levels = {found["check"]: found["level"] for found in ran.results}
    assert {levels[check] for check in ("readable", "writable", "change_feed")} == {"ok"}
    assert "spark_reads" not in levels


@pytest.mark.spark
def test_a_file_system_that_spark_lacks_is_named(lake: Lake, spark: Any) -> None:
    place = lake.workload(lake.make("t"))
    ran = place.cli("doctor", "--spark")
    levels = {found["check"]: found for found in ran.results}
    assert levels["readable"]["level"] == levels["spark_session"]["level"] == "ok"
    reads = levels["spark_reads"]
    assert (reads["level"], reads["subject"], ran.code) == ("problem", "t", 2)
    assert "no file system for `s3a://`" in reads["message"]
    assert "org.apache.hadoop:hadoop-aws:3" in reads["fix"]
