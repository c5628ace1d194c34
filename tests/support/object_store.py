"""A started S3 server, as tests see it: buckets, what to write into a workload, what was asked.

Law: the server lives as long as the `with` block, on this machine only.
Out of scope: the server itself (`tests.support.object_server`).
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ObjectStore:
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
        cwd=Path(__file__).parents[2],
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
