"""Signals to end, heard in a block of a test as the command hears them.

Out of scope: whether the surroundings ignore them (the fixture `heard_signals`).
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from impctl.cli.interrupt import interrupting, take_signals


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt where the process is asked to end; put back at the end."""
    taken = take_signals(lambda: None)
    interrupting()
    try:
        yield
    finally:
        for number in taken:
            is_int = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_int else signal.SIG_DFL)
