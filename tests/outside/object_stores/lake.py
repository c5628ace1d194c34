"""A started S3 server, tables in its buckets, workloads over them, and the same on a disk."""

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
        """An empty bucket of this name."""
        self._ask("PUT", f"/{name}")
        self.asked()

    def put(self, path: str, content: bytes) -> None:
        """An object with this content; its path begins with the bucket."""
        self._ask("PUT", f"/{path}", content)

    def delay(self, milliseconds: int) -> None:
        """From now on each request takes so much longer."""
        self._ask("GET", f"/_delay/{milliseconds}")

    def hollow(self, text: str) -> None:
        """From now on objects whose path has this text come without content; "" ends it."""
        self._ask("GET", f"/_hollow/{text}")

    def asked(self) -> list[str]:
        """Method and path of each request since this was last asked."""
        result = json.loads(self._ask("GET", "/_asked"))
        assert isinstance(result, list)
        return result

    def _ask(self, method: str, path: str, content: bytes | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, content)
            answer = connection.getresponse()
            told = answer.read()
            assert answer.status == 200, (method, path, answer.status, told)
            return told
        finally:
            connection.close()


def kinds(asked: list[str]) -> Counter[str]:
    """How many requests of each kind: what is listed, looked at, read or written."""
    return Counter(map(_kind, asked))


def _kind(request: str) -> str:
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
    """A server with no bucket, stopped at the end."""
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
    rows = [{"k": 1000 + at, "g": at % 12, "x": at} for at in range(count)]
    return [
        {"name": f"b{at}", "insert": {"table": "t", "rows": [row]}} for at, row in enumerate(rows)
    ]


def mixed(count: int) -> list[Batch]:
    """Of five batches three insert, one updates, one deletes."""
    result = appends(count)
    for at in range(3, count, 5):
        change = {"table": "t", "set": {"x": "x + 90"}, "where": f"k = {at}"}
        result[at] = {"name": f"b{at}", "update": change}
    for at in range(4, count, 5):
        result[at] = {"name": f"b{at}", "delete": {"table": "t", "where": f"k = {at * 10 + 4}"}}
    return result


class Lake(Struct, frozen=True):
    """A bucket of one test."""

    server: ObjectStore
    bucket: str
    folder: Path
    capsys: Capsys

    def uri(self, name: str) -> str:
        return f"s3://{self.bucket}/{name}"

    def make(self, name: str, rows: pa.Table = ROWS, **options: Any) -> str:
        """A table with a change feed."""
        write_deltalake(
            self.uri(name), rows, storage_options=self.options, configuration=FEED, **options
        )
        return self.uri(name)

    def empty(self, name: str) -> None:
        """Nothing of the table is left."""
        handler = DeltaStorageHandler(self.uri(name), self.options)
        store = pa_fs.PyFileSystem(handler)
        for result in store.get_file_info(pa_fs.FileSelector("", recursive=True)):
            if result.is_file:
                store.delete_file(result.path)

    @property
    def options(self) -> dict[str, str]:
        return dict(self.server.options)

    def delta(self, name: str) -> DeltaTable:
        """deltalake's own table, opened now."""
        return DeltaTable(self.uri(name), storage_options=self.options)

    def asked(self) -> list[str]:
        """The requests since this was last called."""
        return self.server.asked()

    def workload(self, path: str, batches: Sequence[Batch] = ()) -> Place:
        """A workload over the table at this path, in a folder of its own."""
        folder = self.folder / f"w{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        options = {"storage_options": self.options} if path.startswith("s3://") else {}
        queries = {"q": {"sql": SQL, "sketch": {"t": "g"}}}
        tables = {"t": {"path": path, **options}}
        more = {"partitions": {"t": {"g": {"boundaries": [*range(1, 10)]}}}, "updates": [*batches]}
        return Place(folder, Cli.asking(self.capsys, folder, queries, tables, **more))


class Place(Struct, frozen=True):
    """A workload with its store."""

    folder: Path
    cli: Cli

    def stored(self) -> StoredQuery:
        return stored(self.folder, "q")

    def ranges(self) -> tuple[int, ...]:
        return tuple(self.stored().sketches[0].ranges.ids)


def apply_by_deltalake(delta: DeltaTable, batches: Iterable[Batch]) -> None:
    """What a user of deltalake alone would do: one table, opened once."""
    for batch in batches:
        if "insert" in batch:
            rows = pa.Table.from_pylist(batch["insert"]["rows"], schema=ROWS.schema)
            write_deltalake(delta, rows, mode="append")
        elif "update" in batch:
            spec = batch["update"]
            delta.update(updates=spec["set"], predicate=spec["where"])
        else:
            delta.delete(batch["delete"]["where"])
