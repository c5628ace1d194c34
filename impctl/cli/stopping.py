"""SIGTERM and SIGINT end a following process in order: a run under way is finished, if it is short.

Law: the first signal asks; a run that goes on longer than the grace after it, or a second signal,
is given up by KeyboardInterrupt, which leaves every query with its last commit. Handlers are put
back at the end, and a signal that the surroundings have switched off stays off.
Out of scope: exit codes (`cli.boundary`), what a run is (`service.schedule.daemon`).
"""

from __future__ import annotations

import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from impctl.cli.alarm import handle_alarm, set_alarm

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

GRACE = 10.0
"""Seconds for the run under way: most take less than one; one that has Spark recapture may not."""


class Stopping:
    """Notes which signal asked the process to end; `stopping` installs one."""

    def __init__(self, wake: tuple[socket.socket, socket.socket], signals: Sequence[int]) -> None:
        """`signals` are those that ask; `wake` a pair that ends the waiting."""
        self._reader, self._writer = wake
        self._signals = signals
        self.signal: int | None = None

    @property
    def is_asked(self) -> bool:
        return self.signal is not None

    def ask(self, number: int = signal.SIGTERM) -> None:
        """Ask to end, as the signal does."""
        self.signal = number
        self._writer.send(b"x")

    def wait(self, seconds: float) -> None:
        """Wait, or until asked."""
        select.select([self._reader], [], [], seconds)

    @contextmanager
    def working(self) -> Iterator[None]:
        """One run; Spark puts a SIGINT handler of its own in place when it starts."""
        try:
            yield
        finally:
            self.install()

    def install(self) -> None:
        """Have the signals come here; on the main thread only, as Python will have it."""
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                signal.signal(number, self._handle)
            handle_alarm(self._give_up)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.ask(number)
        set_alarm(GRACE)

    def _give_up(self, number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt


@contextmanager
def stopping() -> Iterator[Stopping]:
    """The signals handled as long as the block runs."""
    # Not a pipe, on which Windows cannot wait.
    wake = socket.socketpair()
    wake[1].setblocking(False)
    is_main = threading.current_thread() is threading.main_thread()
    asking = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before: dict[int, Callable[..., Any] | int | None] = {
        number: signal.getsignal(number) for number in asking
    }
    result = Stopping(wake, asking)
    rang = handle_alarm(signal.SIG_DFL) if is_main else None
    result.install()
    try:
        yield result
    finally:
        if is_main:
            set_alarm(0)
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            handle_alarm(rang)
        wake[0].close()
        wake[1].close()
