"""A table's log never makes impctl open anything outside of the table's folder."""

from __future__ import annotations

import os
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.run_cli import Capsys, Cli
from tests.tables import handmade

pytestmark = pytest.mark.timeout(120)

ROWS = pa.table({"g": [1, 2, 3], "x": [10, 20, 30]})
FED = pa.table({"g": [9], "x": [90], "_change_type": ["insert"]})
FIELDS = [handmade.field("g", handmade.LONG), handmade.field("x", handmade.LONG)]
WORKLOAD = """\
version: 1
tables: {t: {path: t}}
partitions: {t: {g: {boundaries: [2]}}}
queries:
  q: {sql: "SELECT g, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 5", answer: true}
"""
OPTIONS = "endpoint_override=127.0.0.1:{port}&scheme=http"
REMOTE = [
    f"s3://b/x.parquet?{OPTIONS}",
    f"S3://b/x.parquet?{OPTIONS}",
    f"s3a://b/x.parquet?{OPTIONS}",
    f"s3://b%2Fx.parquet?{OPTIONS}",
    f"s3://key:secret@b/x.parquet?{OPTIONS}&allow_bucket_creation=true",
    f"gs://b/x.parquet?{OPTIONS}",
    f"gcs://anonymous@b/x.parquet?{OPTIONS}",
    "abfs://c@127.0.0.1:{port}/x.parquet?enable_tls=false",
    "az://c/x.parquet?blob_storage_authority=127.0.0.1:{port}&blob_storage_scheme=http",
    "hdfs://127.0.0.1:{port}/x.parquet",
    "http://127.0.0.1:{port}/x.parquet",
    "file://127.0.0.1:{port}/x.parquet",
    "//127.0.0.1:{port}/x.parquet",
]
LOCAL = [
    "/{outside}",
    "file:///{outside}",
    "../outside.parquet",
    "a/../../outside.parquet",
    "%2e%2e/outside.parquet",
    "..%2Foutside.parquet",
    "link.parquet",
    "linked/outside.parquet",
    "pipe.parquet",
    "device.parquet",
    "folder.parquet",
]
PLACES = ("add", "added later", "changed", "removed")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, list[bytes]]]:
    """A port that listens on this machine, and what reached it. Keys lie in the environment."""
    reached: list[bytes] = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            reached.append(self.request.recv(4096))

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "of-the-user")
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,))
        thread.start()
        yield listening.server_address[1], reached
        listening.shutdown()
        thread.join()


@pytest.fixture
def hostile(tmp_path: Path, capsys: Capsys) -> Callable[[str, str], Cli]:
    """Makes a table whose log names a file in one of the places; it is captured where it can be."""
    outside = pa.table({"g": [7], "x": [70]})
    handmade.write_file(tmp_path, "outside.parquet", outside)

    def make(name: str, place: str) -> Cli:
        folder = tmp_path / f"{len(os.listdir(tmp_path))}"
        table = folder / "t"
        table.mkdir(parents=True)
        (folder / "outside.parquet").hardlink_to(tmp_path / "outside.parquet")
        (table / "link.parquet").symlink_to("../outside.parquet")
        (table / "linked").symlink_to("..")
        os.mkfifo(table / "pipe.parquet")
        (table / "device.parquet").symlink_to("/dev/zero")
        (table / "folder.parquet").mkdir()
        bad = name.replace("{outside}", str(folder / "outside.parquet").lstrip("/"))
        first = handmade.added(table, "first.parquet", ROWS)
        feed = {"configuration": {"delta.enableChangeDataFeed": "true"}}
        actions = [first, handmade.add(bad, 3)] if place == "add" else [first]
        handmade.create(table, FIELDS, *actions, **feed)
        cli = Cli.over(capsys, folder, WORKLOAD)
        if place != "add":
            cli.good("capture")
            handmade.commit(table, 1, *_later(table, place, bad))
        return cli

    return make


def _later(table: Path, place: str, bad: str) -> list[dict[str, Any]]:
    match place:
        case "added later":
            return [handmade.add(bad, 3)]
        case "changed":
            cdc = {"path": bad, "partitionValues": {}, "size": 1, "dataChange": False}
            return [{"cdc": cdc}, handmade.added(table, "second.parquet", FED.select(["g", "x"]))]
        case _:
            return [handmade.remove(bad, size=1, partitionValues={}, dataChange=True)]


@pytest.mark.parametrize("place", PLACES)
def test_no_request_is_sent(
    place: str, server: tuple[int, list[bytes]], hostile: Callable[[str, str], Cli]
) -> None:
    port, reached = server
    for name in REMOTE:
        cli = hostile(name.replace("{port}", str(port)), place)
        refuses(cli, place)
        assert reached == [], (name, place)


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("place", PLACES)
def test_no_other_file_is_opened(place: str, name: str, hostile: Callable[[str, str], Cli]) -> None:
    refuses(hostile(name, place), place)


def refuses(cli: Cli, place: str) -> None:
    """Commands that need the file say that they do not open it; none takes a row of it."""
    asked = ("query", "--query", "q", "--by", "engine")
    maintain = ("maintain", "--policy", "incremental")
    first = ("capture",) if place == "add" else maintain
    runs = [cli(*words) for words in (first, asked, ("check",))]
    codes = {ran.error["code"] for ran in runs if ran.code}
    assert all(ran.code in (0, 3) for ran in runs), codes
    assert place == "removed" or codes & {"file_outside_table", "data_file_irregular"}, codes
    if runs[1].code == 0:
        (answer,) = runs[1].results
        assert 7 not in dict(answer["rows"])
