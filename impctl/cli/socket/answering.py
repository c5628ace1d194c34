"""The process that listens: all that a command loads is loaded, each command is a fork of it.

Law: a fork does what a process of its own would do, in the caller's folder and environment, on the
caller's streams; what listens computes nothing, opens no table and has no threads that a fork
would miss. A caller of another user, of another program, or after the program's files changed,
is not answered. The socket is its owner's alone, and goes with the process, which goes when the one
that started it does.
Out of scope: who starts it (`cli.socket.listening`), who asks (`cli.socket.asking`).
"""

from __future__ import annotations

import atexit
import gc
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from impctl.app.workbench.build_mark import build_mark, mark_now
from impctl.cli.socket.wire import COMMANDS, PROGRAM, is_own_peer, receive_request, send_line

Run = Callable[[Sequence[str]], int]
"""Does what the command line does; gives the exit code."""

MOST = 32
"""Commands that are done at once; who comes after them does its work itself."""
_PATIENCE = 10.0
"""Seconds for a request to come whole."""
_LEAVING = 10.0
"""Seconds that commands have to end once nobody is to be answered any more."""
_BREATH = 0.05
"""Seconds until a caller who could not be taken in is tried again."""
_CALLER_GONE = 129
"""As of a command whose terminal went away."""


class Answering:
    """Answers on one socket until the stream `life` ends."""

    def __init__(self, listener: socket.socket, life: int, run: Run) -> None:
        self._listener, self._life, self._run = listener, life, run
        self._calls: dict[int, socket.socket] = {}
        """The callers of commands that are being done, by process."""
        self._selector = selectors.DefaultSelector()
        self._ended, self._wake = socket.socketpair()

    def serve(self) -> None:
        """Answer; returns when the one who started this is gone."""
        self._ended.setblocking(False)
        self._wake.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake.fileno())
        for source in (self._listener, self._life, self._ended):
            self._selector.register(source, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in self._selector.select()}
            self._reap()
            if self._life in ready and not os.read(self._life, 1):
                return
            if self._listener in ready:
                self._accept()

    def leave(self) -> None:
        """Give what is being done some time to end."""
        until = time.monotonic() + _LEAVING
        while self._calls and time.monotonic() < until:
            self._selector.select(0.1)
            self._reap()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            time.sleep(_BREATH)  # out of files, as a rule: the caller waits, others end meanwhile
            return
        is_answered = is_own_peer(connection) and len(self._calls) < MOST
        if not is_answered or mark_now() != build_mark():
            connection.close()
            return
        try:
            pid = os.fork()
        except OSError:
            connection.close()  # no process to be had: the caller does it himself
            return
        if pid == 0:
            self._answer(connection)
        self._calls[pid] = connection

    def _reap(self) -> None:
        """Tell callers of what ended how it did."""
        with suppress(OSError):
            while self._ended.recv(1 << 12):
                pass
        for pid in list(self._calls):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done == 0:
                continue
            code = os.waitstatus_to_exitcode(status)
            with self._calls.pop(pid) as connection, suppress(OSError):
                connection.setblocking(False)
                send_line(connection, {"code": code if code >= 0 else 128 - code})

    def _answer(self, connection: socket.socket) -> None:
        """In the fork: do what is asked, and end."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._listener.close()
            for other in self._calls.values():
                other.close()
            connection.settimeout(_PATIENCE)
            request, streams = receive_request(connection)
            if request["program"] == PROGRAM and request["words"][0] in COMMANDS:
                _become(request, streams)
                send_line(connection, {"pid": os.getpid()})
                code = self._run(request["words"])
        except (OSError, ValueError, LookupError):
            code = _CALLER_GONE
        finally:
            atexit._run_exitfuncs()
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            os._exit(code)


def _become(request: dict[str, Any], streams: Sequence[int]) -> None:
    """Take the caller's place: its streams, folder, environment and words."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    for name, number, encoding in zip(
        ("stdout", "stderr"), (1, 2), request["encodings"], strict=True
    ):
        opened = os.fdopen(number, "w", encoding=encoding, closefd=False)
        setattr(sys, name, opened)
        setattr(sys, f"__{name}__", opened)
    os.umask(request["umask"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.argv = ["impctl", *request["words"]]


def main() -> None:
    """Listen on the socket that the process was started for, until its stdin ends."""
    path = sys.argv[1]
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(path)
    except OSError as error:
        sys.stdout.write(f"{error.strerror or error}\n")
        return
    finally:
        os.umask(before)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        build_mark()
        run = _loaded()
        gc.freeze()  # what is loaded stays, and pages that nobody writes to are shared
        listener.listen(MOST)
        with suppress(BrokenPipeError):  # who started this is gone, which ends it below
            os.write(1, b"ready\n")
        os.dup2(2, 1)  # the pipe of the one who started this is for that word alone
        answering = Answering(listener, 0, run)
        answering.serve()
    finally:
        with suppress(OSError):
            os.unlink(path)
    listener.close()
    answering.leave()


def _loaded() -> Run:
    """What does a command, all that most of them need loaded; nothing is opened or computed."""
    from importlib import import_module

    from impctl.cli.application import build_app
    from impctl.cli.interrupt import answer_for, take_signals, told
    from impctl.cli.main import done
    from impctl.unneeded import hide_pandas

    hide_pandas()
    for name in _NEEDED:
        import_module(f"impctl.{name}")
    apps = {name: build_app([name]) for name in COMMANDS}

    def run(words: Sequence[str]) -> int:
        take_signals(answer_for(words, os.environ))
        code = done(words, apps[words[0]])
        told(code)
        return code

    return run


_NEEDED = (
    "app.maintain",
    "app.maintaining.run",
    "app.query",
    "app.results.ending",
    "app.status",
    "app.using.told",
    "app.workbench.workbench",
    "app.writing.texts",
    "cli.output.answer",
    "cli.output.json",
    "cli.output.text",
    "cli.progress",
    "plan.written_ending",
    "workload.load",
)

if __name__ == "__main__":
    main()
