"""`impctl` in separate processes that start quickly, so that thousands can be killed.

Law: a child is a real process that runs `impctl` from its first line to its exit code; only the
imports are done before the fork.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path

from msgspec import Struct

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.soak.preloaded"])


class Shot(Struct, frozen=True):
    """The outcome of killing a child; `code` is -9 if it was still running."""

    code: int
    seconds: float


class Child:
    """A running `impctl COMMAND WORKLOAD --json ...`, with its output in a file."""

    def __init__(self, workload: Path, log: Path, command: str, *words: str) -> None:
        self.log = log
        arguments = [command, str(workload), "--json", *words]
        self._running, ready = _CONTEXT.Pipe(duplex=False)
        self._process = _CONTEXT.Process(target=_run, args=(ready, str(log), arguments))
        self._process.start()
        ready.close()
        assert self._running.poll(60), "the child does not start"
        self._running.recv()
        self._began = time.monotonic()

    def end(self) -> int:
        """Wait for the child and return its exit code."""
        self._process.join(120)
        return self.kill()

    def kill_after(self, seconds: float) -> Shot:
        self._process.join(seconds)
        ran = time.monotonic() - self._began
        return Shot(self.kill(), ran)

    def kill(self) -> int:
        self._process.kill()
        self._process.join()
        code = self._process.exitcode
        self._process.close()
        self._running.close()
        assert code is not None
        return code


def moment(draw: random.Random, span: float) -> float:
    """When to kill a command that takes `span` seconds; sometimes too late."""
    return draw.uniform(0, 1.1 * span)


def _run(ready: Connection, log: str, arguments: list[str]) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    from impctl.cli.application import build_app
    from impctl.cli.boundary import run

    ready.send(os.getpid())
    code = run(build_app(), arguments)
    import sys

    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
