"""Every command over tables in an object store whose answers take time, beside the local disk."""

from __future__ import annotations

from typing import Any

import pytest
from deltalake import write_deltalake

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from tests.outside.object_stores.lake import FEED, ROWS, SQL, Lake, mixed
from tests.outside.oracle import check_sound
from tests.support.object_store import kinds
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
        assert place.fragments() == (1, 4, 6, 9)
        applied = place.cli.good("apply", "b0", "b1", "b2", "b3").results
        (behind,) = place.cli.good("status").results
        assert (behind["stale"], behind["pending_versions"]) == (True, {"t": 4})
        (made,) = place.cli.good("maintain", "--policy", "incremental").results
        assert made["reason_code"] == "incremental"
        assert place.fragments() == (0, 1, 4, 6, 9)
        place.cli.good("apply", "b4")
        (first,) = place.cli.good("rewrite").results
        assert place.fragments() == (0, 4, 6, 9)
        lake.asked()
        place.cli.good("gc")
        assert not lake.asked()
        (current,) = place.cli.good("status").results
        assert (current["stale"], current["pending_versions"]) == (False, {"t": 0})
        (second,) = place.cli.good("rewrite").results
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
    before = place.fragments()
    place.cli.good("apply", f"b{batch}")
    lake.server.hollow(text)
    assert place.cli("maintain", "--policy", "incremental").refusal == refusal
    lake.server.hollow("")
    assert place.fragments() == before
    assert place.cli.one("maintain")["reason_code"] == "incremental"


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
