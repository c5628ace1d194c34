"""An S3 server, tables in its buckets, and workloads on them or on local tables."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake import DeltaTable, write_deltalake
from deltalake.fs import DeltaStorageHandler
from msgspec import Struct

from impctl.store.records import StoredQuery
from tests.support.kept_workload import stored
from tests.support.run_cli import Capsys, Cli


class ObjectStore(Struct, frozen=True):
    """An S3 server on this machine."""

    port: int

    @property
    def options(self) -> Mapping[str, str]:
        """Storage options that reach it."""
        return {
            "aws_access_key_id": "key",
            "aws_secret_access_key": "secret",
            "aws_region": "us-east-1",
            "aws_endpoint_url": f"http://127.0.0.1:{self.port}",
            "aws_allow_http": "true",
        }

    def make_bucket(self, name: str) -> None:
        """Create an empty bucket."""
        self._send("PUT", f"/{name}")
        self.take_requests()

    def put(self, path: str, content: bytes) -> None:
        """Write an object; its path starts with the bucket."""
        self._send("PUT", f"/{path}", content)

    def delay(self, milliseconds: int) -> None:
        """Delay each request from now on."""
        self._send("GET", f"/_delay/{milliseconds}")

    def hollow(self, text: str) -> None:
        """Send objects whose path contains this text without content from now on; "" ends it."""
        self._send("GET", f"/_hollow/{text}")

    def take_requests(self) -> list[str]:
        """Method and path of each request since the last call."""
        result = json.loads(self._send("GET", "/_asked"))
        assert isinstance(result, list)
        return result

    def _send(self, method: str, path: str, content: bytes | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, content)
            response = connection.getresponse()
            body = response.read()
            assert response.status == 200, (method, path, response.status, body)
            return body
        finally:
            connection.close()


def kinds(requests: list[str]) -> Counter[str]:
    """Number of requests of each kind."""
    return Counter(map(_kind_of, requests))


def _kind_of(request: str) -> str:
    method, _, target = request.partition(" ")
    path, _, query = target.partition("?")
    if "list-type" in query:
        return "LIST log" if "_delta_log" in query else "LIST"
    name = path.rpartition("/")[2]
    if "_delta_log" not in path:
        return f"{method} data"
    known = {"_last_checkpoint": "_last_checkpoint"}
    return f"{method} {known.get(name, 'checkpoint' if 'checkpoint' in name else 'commit')}"


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """A server without buckets, stopped at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.object_server"],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield ObjectStore(int(process.stdout.readline()))
        finally:
            process.stdin.close()
            process.wait(10)


FEED = {"delta.enableChangeDataFeed": "true"}
_KEYS = range(400)
ROWS = pa.table({"k": [*_KEYS], "g": [k // 40 for k in _KEYS], "x": [k * 7 % 50 for k in _KEYS]})
SQL = "SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY g HAVING SUM(x) > 1005"

Batch = Mapping[str, Any]


def appends(count: int) -> list[Batch]:
    """Batches of one row each, into all groups."""
    rows = [{"k": 1000 + number, "g": number % 12, "x": number} for number in range(count)]
    return [
        {"name": f"b{number}", "insert": {"table": "t", "rows": [row]}}
        for number, row in enumerate(rows)
    ]


def mixed(count: int) -> list[Batch]:
    """Of every five batches, three insert, one updates and one deletes."""
    result = appends(count)
    for number in range(3, count, 5):
        change = {"table": "t", "set": {"x": "x + 90"}, "where": f"k = {number}"}
        result[number] = {"name": f"b{number}", "update": change}
    for number in range(4, count, 5):
        result[number] = {
            "name": f"b{number}",
            "delete": {"table": "t", "where": f"k = {number * 10 + 4}"},
        }
    return result


class Lake(Struct, frozen=True):
    """The bucket of one test."""

    server: ObjectStore
    bucket: str
    folder: Path
    capsys: Capsys

    def uri(self, name: str) -> str:
        return f"s3://{self.bucket}/{name}"

    def make(self, name: str, rows: pa.Table = ROWS, **options: Any) -> str:
        """Create a table with a change feed."""
        write_deltalake(
            self.uri(name), rows, storage_options=self.options, configuration=FEED, **options
        )
        return self.uri(name)

    def empty(self, name: str) -> None:
        """Delete all files of the table."""
        handler = DeltaStorageHandler(self.uri(name), self.options)
        store = pa_fs.PyFileSystem(handler)
        for result in store.get_file_info(pa_fs.FileSelector("", recursive=True)):
            if result.is_file:
                store.delete_file(result.path)

    @property
    def options(self) -> dict[str, str]:
        return dict(self.server.options)

    def delta(self, name: str) -> DeltaTable:
        """The table, opened now with deltalake."""
        return DeltaTable(self.uri(name), storage_options=self.options)

    def take_requests(self) -> list[str]:
        """The requests since the last call."""
        return self.server.take_requests()

    def workload(self, path: str, batches: Sequence[Batch] = ()) -> Workspace:
        """A workload on the table at this path, in a new folder."""
        folder = self.folder / f"w{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        options = {"storage_options": self.options} if path.startswith("s3://") else {}
        queries = {"q": {"sql": SQL, "sketch": {"t": "g"}}}
        tables = {"t": {"path": path, **options}}
        sections = {
            "partitions": {"t": {"g": {"boundaries": [*range(1, 10)]}}},
            "updates": [*batches],
        }
        return Workspace(folder, Cli.asking(self.capsys, folder, queries, tables, **sections))


class Workspace(Struct, frozen=True):
    """A workload with its store."""

    folder: Path
    cli: Cli

    def stored(self) -> StoredQuery:
        return stored(self.folder, "q")

    def ranges(self) -> tuple[int, ...]:
        return tuple(self.stored().sketches[0].ranges.ids)


def apply_by_deltalake(delta: DeltaTable, batches: Iterable[Batch]) -> None:
    """Apply the batches with deltalake alone, to one table opened once."""
    for batch in batches:
        if "insert" in batch:
            rows = pa.Table.from_pylist(batch["insert"]["rows"], schema=ROWS.schema)
            write_deltalake(delta, rows, mode="append")
        elif "update" in batch:
            spec = batch["update"]
            delta.update(updates=spec["set"], predicate=spec["where"])
        else:
            delta.delete(batch["delete"]["where"])
