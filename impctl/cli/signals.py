"""Signals of a process: SIGTERM and SIGHUP end a run as Ctrl-C does, cleaned up and with that code.

Law: imports only small modules of Python, so that signals are handled before anything else is
loaded.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | None


def handle_alarm(handler: Handler) -> Handler:
    """Set the handler of the alarm and return the previous one. On the main thread only."""
    before = signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
    return before


def set_alarm(seconds: float) -> None:
    """Set an alarm after `seconds`; 0 cancels it."""
    signal.setitimer(signal.ITIMER_REAL, seconds)


# Law: a signal that the environment ignores (`nohup`) or handles itself stays as it is. While a
# process loads there is nothing to clean up, and any library could turn an exception into another,
# so a signal is reported and the process ends at once. The results of a finished run are printed
# even if a signal arrives: without them, a caller would not know what was committed.

INTERRUPTED_MESSAGE = "Interrupted"
DROPPED_HINT = "run the command again; committed work remains, the rest was dropped"

_INTERRUPTED = 128 + signal.SIGINT
"""Equals `impctl.errors.INTERRUPTED`, which takes too long to load before signals are handled."""
_SAME = 2.0
"""Seconds in which further signals count as the same one: `timeout` signals a process and then its
group, and the second must not interrupt the cleanup that the first began."""
_PRINTING = 2.0
"""Seconds that a finished run has to print its results after a signal: perhaps nobody reads."""
_NAMES = ("SIGTERM", "SIGHUP", "SIGINT")


class _Handler:
    """Runs `instead` on a signal, else raises KeyboardInterrupt."""

    def __init__(self, action: Callable[[], object] | None) -> None:
        self.instead = action
        self._first: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.instead is not None:
            self.instead()
            return
        now = time.monotonic()
        if self._first is None or now - self._first >= _SAME:
            self._first = now
            raise KeyboardInterrupt


_handlers: list[_Handler] = []
"""The handler of this process, if it was started as a command."""


def take_signals(action: Callable[[], object]) -> list[signal.Signals]:
    """Handle signals without a handler by `action`, until `raise_on_signal`; return them. On the
    main thread only."""
    if threading.current_thread() is not threading.main_thread():
        return []
    known = [signal.Signals[name] for name in _NAMES if hasattr(signal, name)]
    free = (signal.SIG_DFL, signal.default_int_handler)
    handled = [number for number in known if signal.getsignal(number) in free]
    handler = _Handler(action)
    _handlers[:] = [handler]
    for number in handled:
        signal.signal(number, handler)
    return handled


def ignoring(numbers: Sequence[signal.Signals]) -> None:
    """Ignore signals, so that the process keeps its exit code. At exit, the interpreter resets
    handlers to the default, but not this one."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def raise_on_signal() -> None:
    """Raise KeyboardInterrupt on signals from now on: there is something to clean up."""
    set_signal_action(None)


def delay_interrupts() -> None:
    """Let signals stop the output from now on only if it takes long."""
    first: float | None = None

    def late(*_: object) -> None:
        raise KeyboardInterrupt

    def ask() -> None:
        nonlocal first
        now = time.monotonic()
        if first is None:
            first = now
            handle_alarm(late)
            set_alarm(_PRINTING)
        elif now - first >= _SAME:
            raise KeyboardInterrupt

    set_signal_action(ask)


def exit_on_signal(code: int) -> None:
    """Exit on a signal from now on: only the interpreter has to end."""
    set_alarm(0)
    set_signal_action(lambda: os._exit(code))


def set_signal_action(action: Callable[[], object] | None) -> None:
    """Set what a signal does from now on, if signals are handled."""
    for handler in _handlers:
        handler.instead = action


def exit_answer(arguments: Sequence[str], environment: Mapping[str, str]) -> Callable[[], None]:
    """Make the function that reports the interruption and exits. It uses no library, which may be
    partly loaded."""
    words = [word for word in arguments if not word.startswith("-")]
    command = f'"{words[0]}"' if words and words[0].isascii() and words[0].isalpha() else "null"
    if any(name.startswith("_IMPCTL_COMPLETE") for name in environment):
        number, text = 1, ""  # whatever is written lands in a prompt
    elif "--json" in arguments:
        parts = f'"message": "{INTERRUPTED_MESSAGE}", "hint": "{DROPPED_HINT}"'
        error = f'{{"code": "interrupted", {parts}}}'
        head = f'"schema_version": 1, "command": {command}, "ok": false, "results": []'
        number, text = 1, f'{{{head}, "warnings": [], "error": {error}}}\n'
    else:
        number, text = 2, f"error: {INTERRUPTED_MESSAGE} [interrupted]\nhint: {DROPPED_HINT}\n"

    def answer() -> None:
        with suppress(OSError):
            os.write(number, text.encode())
        os._exit(_INTERRUPTED)

    return answer
