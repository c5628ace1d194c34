"""The process that answers other commands, started and ended with the one that follows.

Law: it listens before the first run and no longer than the process that started it lives, however
that ends. A path where somebody answers already is refused; one left behind is taken over.
Out of scope: answering (`cli.socket.answering`), how a client finds it (`cli.socket.asking`).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from impctl.cli.socket.wire import is_own_file
from impctl.errors import UsageError

_ENDING = 2.0
"""Seconds that it has to end before it is left to itself."""
_START = "from impctl.cli.socket.answering import main; main()"


@contextmanager
def listening(path: Path | None) -> Iterator[None]:
    """Commands that name this socket are answered in the meantime; UsageError where they cannot."""
    if path is None:
        yield
        return
    if not hasattr(socket, "AF_UNIX") or not hasattr(os, "fork"):
        raise UsageError("This system has no Unix sockets", hint="leave `--socket` out")
    _make_room(path)
    # A session of its own: Ctrl-C is for the process that follows, which ends this one.
    process = subprocess.Popen(
        [sys.executable, "-c", _START, str(path.absolute())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with process.stdout:
            said = process.stdout.readline().decode(errors="replace").strip()
        if said != "ready":
            raise UsageError(
                f"Nothing can listen on socket `{path}`: {said or 'it ended at once'}",
                hint="name a short path in a folder of your own",
                code="socket_failed",
            )
        yield
    finally:
        with suppress(OSError):
            process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING)


def _make_room(path: Path) -> None:
    """Remove a socket that nobody listens on any more; UsageError for anything else that is there.

    A process that was killed leaves its socket behind.
    """
    if not os.path.lexists(path):
        return
    if not is_own_file(str(path)):
        raise UsageError(
            f"`{path}` is there already, and is no socket of yours alone",
            hint="name a path where nothing is",
            code="socket_failed",
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        try:
            other.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise UsageError(
        f"Another process listens on socket `{path}`",
        hint="end it, or give this one a socket of its own",
        code="socket_taken",
    )
