"""A JVM that is being started: it ends with its start, where that does not come to its end.

Law: once a start is given up, nothing of it runs and reads files that are about to be removed:
pyspark leaves its child alone then, and a JVM that finds no place to tell where it listens never
ends. Only the child of this very start is ended: a JVM that is up, or that another thread has
started, is not touched.
Out of scope: what it is started with (`spark.launch`), Windows, where a script starts it.
"""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from subprocess import Popen
from typing import Any

_ENDED_WITHIN_SECONDS = 10
_starts = threading.Lock()


@contextmanager
def ended_with_its_start() -> Iterator[None]:
    """The block starts a JVM; an exception, of whatever kind, ends one that is not up yet.

    One start at a time: each changes what the whole process sees, and puts back what it found.
    """
    with _starts:
        if os.name == "nt":
            yield
            return
        reader, writer = os.pipe()
        try:
            with _children_hold(writer):
                yield
        except BaseException:
            os.close(writer)
            writer = -1
            if not _is_up():
                _end(reader)
            raise
        finally:
            os.close(reader)
            if writer >= 0:
                os.close(writer)


def _is_up() -> bool:
    from pyspark import SparkContext

    return SparkContext._gateway is not None


@contextmanager
def _children_hold(writer: int) -> Iterator[None]:
    """What pyspark starts in this thread tells its number through `writer` and keeps that open.

    So do all processes below it: the pipe ends with the last of them. The child itself tells, since
    an interrupt can come before its parent has got the number.
    """
    from pyspark import java_gateway

    module: Any = java_gateway
    given = getattr(module, "Popen", Popen)
    thread = threading.get_ident()

    def start(*words: Any, **options: Any) -> Any:
        if threading.get_ident() != thread:
            return given(*words, **options)
        prepare: Callable[[], object] | None = options.get("preexec_fn")

        def tell() -> None:
            if prepare is not None:
                prepare()
            os.write(writer, str(os.getpid()).encode())

        held = {"preexec_fn": tell, "pass_fds": (*options.get("pass_fds", ()), writer)}
        return given(*words, **{**options, **held})

    module.Popen = start
    try:
        yield
    finally:
        module.Popen = given


def _end(reader: int) -> None:
    """End the child that told its number, if any, and wait for those below it, which soon end."""
    until = time.monotonic() + _ENDED_WITHIN_SECONDS
    told = _read(reader, until)
    if told:
        # A child that was waited for is not ours any more, nor is its number.
        with suppress(ChildProcessError):
            if os.waitpid(int(told), os.WNOHANG) == (0, 0):
                # It has no work yet that it could lose.
                os.kill(int(told), signal.SIGKILL)
                os.waitpid(int(told), 0)
    while told:
        told = _read(reader, until)


def _read(reader: int, until: float) -> bytes:
    """What the pipe has next; nothing at its end, or when time is up."""
    with selectors.DefaultSelector() as selector:
        selector.register(reader, selectors.EVENT_READ)
        if not selector.select(max(0.0, until - time.monotonic())):
            return b""
    return os.read(reader, 64)
