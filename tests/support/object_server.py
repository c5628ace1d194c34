"""An S3 server as a process of its own: moto, with a delay per request and a list of what came.

Law: every request of the S3 protocol is told, as it came, and none of the server's own.
Out of scope: starting and asking it (`tests.support.object_store`).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

Start = Callable[..., Any]


class Counted:
    """The application that tells its requests at `/_asked` and is slowed down at `/_delay/MS`."""

    def __init__(self, served: Callable[[dict[str, Any], Start], Iterable[bytes]]) -> None:
        self._served = served
        self._asked: list[str] = []
        self._delay = 0.0
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        path, query = environ["PATH_INFO"], environ["QUERY_STRING"]
        if path == "/_asked":
            with self._lock:
                told, self._asked = self._asked, []
            return self._answer(start, json.dumps(told))
        if path.startswith("/_delay/"):
            self._delay = int(path.rpartition("/")[2]) / 1000
            return self._answer(start, "null")
        with self._lock:
            self._asked.append(f"{environ['REQUEST_METHOD']} {path}?{query}".rstrip("?"))
        time.sleep(self._delay)
        return self._served(environ, start)

    @staticmethod
    def _answer(start: Start, text: str) -> Iterable[bytes]:
        content = text.encode()
        start("200 OK", [("Content-Length", str(len(content)))])
        return [content]


class Quiet(WSGIRequestHandler):
    """Keeps connections open, as object stores do, and writes no log."""

    protocol_version = "HTTP/1.1"

    def log(self, *_args: Any, **_kwargs: Any) -> None:
        """Requests are told by `Counted`."""


def main() -> None:
    served = Counted(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, served, threaded=True, request_handler=Quiet)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    # Whoever started it holds the other end, and no server outlives it.
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
