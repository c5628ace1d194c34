"""Signals that ask to end wait until a commit is told.

Law: what comes while a block runs is delivered when it ends, once, by the handler that was there
before; a signal that the surroundings have switched off stays off. Only the main thread is asked
to end, so elsewhere there is nothing to hold. Out of scope: kill -9, which nobody can hold.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


@contextmanager
def held_signals() -> Iterator[None]:
    """Deliver signals to end after the block, whatever came of it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before: dict[int, Callable[..., Any] | int] = {}

    def hold(number: int, frame: FrameType | None) -> None:
        came.append(number)

    try:
        for number in (getattr(signal, name) for name in _NAMES if hasattr(signal, name)):
            handler = signal.getsignal(number)
            # None is a handler that Python does not know and could not put back.
            if handler is not None and handler is not signal.SIG_IGN:
                before[number] = handler
                signal.signal(number, hold)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
