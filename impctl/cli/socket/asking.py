"""A command handed to the process that listens on a socket, and its exit code handed on.

Law: nothing is loaded before it is known that nobody answers; until the other process said that it
began, nothing was done, and the command goes on as without a socket. From then on it is never done
a second time. Signals that would end the command end the one that does its work.
Out of scope: whether there is anybody to answer (`cli.socket.listening`).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from impctl.cli.interrupt import DROPPED_HINT, instead
from impctl.cli.socket.wire import (
    COMMANDS,
    PROGRAM,
    Lines,
    is_own_file,
    is_own_peer,
    send_request,
)

FLAG, VARIABLE = "--socket", "IMPCTL_SOCKET"
_OWN_FILES = ("/dev/fd/", "/proc/self/", "/proc/thread-self/")
"""Where files lie that a process has open, such as a shell's `<(...)`: no other one has them."""
_LOST = 1
"""The exit code of what is not known, as of `impctl.errors`."""


def answered_elsewhere(words: Sequence[str], environment: Mapping[str, str]) -> int | None:
    """The exit code of the command, done by the process that listens; None where none does."""
    path = _path(words, environment)
    if path is None or not hasattr(socket, "AF_UNIX") or not is_own_file(path):
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(path)
            if not is_own_peer(connection):
                return None
            send_request(connection, _request(words, environment), (0, 1, 2))
        except (OSError, ValueError):
            # Nobody listens any more, or a stream of this process is closed.
            return None
        lines = Lines(connection)
        begun = lines.next()
        if begun is None or "pid" not in begun:
            return None
        return _code(lines, int(begun["pid"]))


def _path(words: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """The socket that a command is to be answered over; None for what does its work itself."""
    if not words or words[0] not in COMMANDS or "--follow" in words or "--" in words:
        return None
    if any(own in word for word in words for own in _OWN_FILES):
        return None
    given = environment.get(VARIABLE) or None
    for number, word in enumerate(words):
        if word == FLAG and number + 1 < len(words):
            given = words[number + 1]
        elif word.startswith(f"{FLAG}="):
            given = word.partition("=")[2]
    return given


def _request(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, object]:
    mask = os.umask(0o077)
    os.umask(mask)
    return {
        "program": PROGRAM,
        "words": list(words),
        "folder": os.getcwd(),
        "environment": dict(environment),
        "umask": mask,
        "encodings": [sys.stdout.encoding, sys.stderr.encoding],
    }


def _code(lines: Lines, pid: int) -> int:
    """The exit code that comes when the other process is done."""

    def end() -> None:
        with suppress(OSError):
            os.kill(pid, signal.SIGINT)

    instead(end)
    done = lines.next()
    if done is not None and isinstance(done.get("code"), int):
        return int(done["code"])
    message = f"error: The process that answered has ended [lost]\nhint: {DROPPED_HINT}\n"
    os.write(2, message.encode())
    return _LOST
