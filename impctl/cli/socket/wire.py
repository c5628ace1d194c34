"""What passes over the socket: one request with the caller's streams, then lines of JSON.

Law: both ends are processes of one user, which each asks the system; who else connects is not
answered. Light, since a command loads this before it knows whether it is answered.
Out of scope: asking (`cli.socket.asking`), answering (`cli.socket.answering`).
"""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from impctl.version import __version__

COMMANDS = ("query", "maintain", "status")
"""What is answered over a socket."""
STREAMS = 3
PROGRAM = [__version__, __file__]
"""Which program is at an end; both have the same."""
_LONGEST = 64 << 20
_LENGTH = struct.Struct("!Q")
_PEER = struct.Struct("3i")


def is_own_file(path: str) -> bool:
    """Whether a socket of this user lies there, which nobody else may connect to."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    is_private = not found.st_mode & 0o077 and found.st_uid == os.geteuid()
    return is_private and stat.S_ISSOCK(found.st_mode)


def is_own_peer(connection: socket.socket) -> bool:
    """Whether the process at the other end is this user's, as far as the system tells."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True
    told = connection.getsockopt(socket.SOL_SOCKET, option, _PEER.size)
    return bool(_PEER.unpack(told)[1] == os.geteuid())


def send_request(
    connection: socket.socket, request: Mapping[str, Any], streams: Sequence[int]
) -> None:
    """The request, with the streams that the answer goes to."""
    content = json.dumps(request).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(content))], list(streams))
    connection.sendall(content)


def receive_request(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """What `send_request` sent; ValueError or OSError where it did not come whole."""
    head, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, STREAMS)
    if len(head) != _LENGTH.size or len(streams) != STREAMS:
        raise ValueError("no request")
    (length,) = _LENGTH.unpack(head)
    if length > _LONGEST:
        raise ValueError("a request longer than any environment")
    content = bytearray()
    while len(content) < length:
        piece = connection.recv(min(1 << 16, length - len(content)))
        if not piece:
            raise ValueError("a request without its end")
        content += piece
    return json.loads(content), streams


def send_line(connection: socket.socket, line: Mapping[str, int | str]) -> None:
    """One line to the caller."""
    connection.sendall(json.dumps(line).encode() + b"\n")


class Lines:
    """The lines that come over a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""

    def next(self) -> dict[str, Any] | None:
        """The next line; None where the other end is gone."""
        while b"\n" not in self._rest:
            try:
                piece = self._connection.recv(1 << 12)
            except OSError:
                return None
            if not piece:
                return None
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found
