"""SIGTERM and SIGHUP end a run as Ctrl-C does: cleaned up, and with the exit code for that.

Law: a signal that the surroundings have switched off (`nohup`) or handle themselves stays as it
is; everything is put back at the end. Out of scope: what an interrupted run says
(`cli.boundary`).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SAME = 2.0
"""Seconds in which more of these signals count as one: `timeout` signals a process and then its
group, and the second must not break into the cleaning up that the first began."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt where the process is asked to end; on the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first: float | None = None

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if first is None or now - first >= _SAME:
            first = now
            raise KeyboardInterrupt

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    asked = [signal.Signals[name] for name in names]
    taken = [number for number in asked if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
