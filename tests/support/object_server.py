"""An S3 server in a separate process: objects in memory, a delay, and a list of requests.

It supports what deltalake uses of the protocol: objects are put (optionally only if absent), read
whole or in part, listed and deleted. Signatures are not checked. All requests are recorded, except
those to the server itself: `/_asked` returns and clears the list, `/_delay/MS` delays the next
requests, and after `/_hollow/TEXT` objects with that text in their path are read with correct
headers but no content.
Out of scope: starting and calling it (`tests.outside.object_stores.lake`).
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

_OBJECTS: dict[str, tuple[bytes, datetime]] = {}
"""Content and time of writing, by bucket and key, as in the path."""
_LOCK = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    """Keeps connections open, as object stores do, and writes no log."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet for each response
    requests: list[str] = []
    delay = 0.0
    hollow = ""

    def log_message(self, *_args: object) -> None:
        """Requests are recorded in `requests`."""

    def handle_one_request(self) -> None:
        """As inherited, but one function handles every method."""
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        content = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        path, _, query = self.path.partition("?")
        if path == "/_asked":
            with _LOCK:
                recorded, _Handler.requests = self.requests, []
            self._answer(200, json.dumps(recorded).encode())
        elif path.startswith("/_delay/"):
            _Handler.delay = int(path.rpartition("/")[2]) / 1000
            self._answer(200)
        elif path.startswith("/_hollow/"):
            _Handler.hollow = path.removeprefix("/_hollow/")
            self._answer(200)
        else:
            with _LOCK:
                self.requests.append(f"{self.command} {self.path}")
            time.sleep(self.delay)
            with _LOCK:
                self._serve(unquote(path)[1:], parse_qs(query, keep_blank_values=True), content)
        self.wfile.flush()

    def _serve(self, path: str, query: dict[str, list[str]], content: bytes) -> None:
        result = _OBJECTS.get(path)
        match self.command:
            case "PUT" if "/" not in path:
                self._answer(200)
            case "PUT" if result is not None and self.headers.get("If-None-Match") == "*":
                self._fail(412, "PreconditionFailed")
            case "PUT":
                _OBJECTS[path] = content, datetime.now(UTC)
                self._answer(200, ETag=_tag(content))
            case "GET" if "list-type" in query:
                self._answer(200, _listing(path, {name: one[0] for name, one in query.items()}))
            case "GET" | "HEAD" if result is None:
                self._fail(404, "NoSuchKey")
            case "GET" | "HEAD":
                self._read(*result)
            case "POST" if "delete" in query:
                named = ElementTree.fromstring(content).findall(".//{*}Key")
                keys = [str(key.text) for key in named]
                for key in keys:
                    _OBJECTS.pop(f"{path}/{key}", None)
                deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
                self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())
            case "DELETE":
                _OBJECTS.pop(path, None)
                self._answer(204)
            case _:
                self._fail(501, "NotImplemented")

    def _read(self, content: bytes, written: datetime) -> None:
        about = {"ETag": _tag(content), "Last-Modified": format_datetime(written, usegmt=True)}
        requested = self.headers.get("Range")
        if requested is None:
            self._answer(200, content, **about)
            return
        first, last = requested.removeprefix("bytes=").split("-")
        start = int(first) if first else max(len(content) - int(last), 0)
        end = min(int(last) + 1, len(content)) if first and last else len(content)
        if start >= len(content):
            self._fail(416, "InvalidRange")
            return
        content_range = {"Content-Range": f"bytes {start}-{end - 1}/{len(content)}"}
        self._answer(206, content[start:end], **about, **content_range)

    def _fail(self, status: int, code: str) -> None:
        self._answer(
            status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        )

    def _answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        if self.command == "GET" and self.hollow and self.hollow in self.path:
            content = b""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _tag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


def _listing(bucket: str, query: dict[str, str]) -> bytes:
    """Keys below a prefix; with a delimiter, deeper keys are grouped by common prefix."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
    contents, folders = [], set()
    for path in sorted(_OBJECTS):
        key = path.removeprefix(f"{bucket}/")
        if key == path or not key.startswith(prefix) or key <= query.get("start-after", ""):
            continue
        below, result, _ = key.removeprefix(prefix).partition(delimiter or "\0")
        if delimiter and result:
            folders.add(f"{prefix}{below}{delimiter}")
            continue
        content, written = _OBJECTS[path]
        contents.append(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{written:%FT%T.000Z}</LastModified>"
            f"<ETag>{_tag(content)}</ETag><Size>{len(content)}</Size></Contents>"
        )
    deeper = [f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in folders]
    body = "".join([*contents, *deeper, "<IsTruncated>false</IsTruncated>"])
    return f"<ListBucketResult>{body}</ListBucketResult>".encode()


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    # The parent process holds the other end, so the server ends with it.
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
