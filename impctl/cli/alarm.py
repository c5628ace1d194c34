"""A KeyboardInterrupt after some seconds, by a timer of the system or, where it has none, a thread.

Law: at most one alarm is set; taken back, it does not ring. Where the system has no such signal
(Windows) the alarm comes as one more SIGINT, which whoever has asked once before takes as the end.
Out of scope: what rings it (`cli.stopping`, `cli.interrupt`).
"""

import _thread
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | None

_SIGNAL: signal.Signals | None = getattr(signal, "SIGALRM", None)
_timers: list[threading.Timer] = []


def handle_alarm(handler: Handler) -> Handler:
    """What rings from now on; returns what did before. On the main thread only."""
    if _SIGNAL is None:
        return None
    before = signal.getsignal(_SIGNAL)
    signal.signal(_SIGNAL, signal.SIG_DFL if handler is None else handler)
    return before


def set_alarm(seconds: float) -> None:
    """Ring once after so many seconds; 0 takes the alarm back."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        return
    while _timers:
        _timers.pop().cancel()
    if seconds > 0:
        timer = threading.Timer(seconds, _thread.interrupt_main)
        timer.daemon = True
        timer.start()
        _timers.append(timer)
