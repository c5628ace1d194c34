"""Signals and standard streams of a process."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import TextIOWrapper
from types import FrameType
from typing import Any, TextIO

from msgspec import Struct

from impctl.errors import OutputFailedError
from impctl.service.text import RowsFormat

# SIGTERM and SIGHUP end a run as Ctrl-C does: cleaned up, and with that exit code.

Handler = Callable[[int, FrameType | None], Any] | int | None


def handle_alarm(handler: Handler) -> Handler:
    """Set the handler of the alarm and return the previous one. On the main thread only."""
    before = signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
    return before


def set_alarm(seconds: float) -> None:
    """Set an alarm after so many seconds; 0 cancels it."""
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


# The standard streams of a process: always open, with failures reported, and what they can show.
# Law: a failed write to stdout is the error `output_failed`, unless the reader is gone; a failed
# write to stderr never stops the work and is reported at the end. No opened file gets the number of
# a standard stream.

_ESCAPED = "backslashreplace"
_NOBODY = (errno.EPIPE, errno.EBADF, errno.EIO)
"""Errors of a closed stream, or of one whose reader or terminal is gone."""


class Stdout(TextIOWrapper):
    """Raises OutputFailedError if results cannot be written, and BrokenPipeError unchanged."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            raise _output_error(error) from error

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise _output_error(error) from error


class Stderr(TextIOWrapper):
    """Drops what cannot be written, and keeps the first error in `failure`."""

    failure: OSError | None = None

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._lost(error)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._lost(error)

    def _lost(self, error: OSError) -> None:
        # Nobody reads a stream that was closed.
        if error.errno not in _NOBODY and self.failure is None:
            self.failure = error


def open_streams() -> None:
    """Replace Python's streams by these, which escape text that they cannot encode."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # Writing there still fails, and the store's files get other numbers.
            os.open(os.devnull, os.O_RDONLY)
    for name, number, kind in (("stdout", 1, Stdout), ("stderr", 2, Stderr)):
        result = getattr(sys, name)
        if isinstance(result, TextIOWrapper):
            result.flush()
            encoding, buffer = result.encoding, result.detach()
        elif result is None:
            encoding, buffer = "utf-8", os.fdopen(number, "wb", closefd=False)
        else:
            continue
        is_unbuffered = name == "stderr" or os.isatty(number)
        stream = kind(buffer, encoding=encoding, errors=_ESCAPED, line_buffering=is_unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def lost_messages() -> OutputFailedError | None:
    """The error for messages that stderr did not accept, if any."""
    failure = getattr(sys.stderr, "failure", None)
    if failure is None:
        return None
    return OutputFailedError(
        f"Messages to stderr could not be written: {failure.strerror}",
        hint="the command itself is not affected; free space for its log",
    )


def discard_output(number: int) -> None:
    """Discard further output of this stream, so that the interpreter exits silently."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def _output_error(error: OSError) -> OSError | OutputFailedError:
    if error.errno == errno.EPIPE:
        return error
    return OutputFailedError(
        f"The output could not be written: {error.strerror}",
        hint="the work of the command is done, see `impctl status`; free space and run it again",
    )


# What a stream can show. Law: NO_COLOR and TERM=dumb turn colour off, FORCE_COLOR turns it on;
# otherwise a terminal has it. A bar is drawn only on a terminal, whatever the variables say, so
# that logs stay readable. Lines are as wide as the terminal, within limits; in a pipe or a file, a
# sentence is one line for programs to search. `COLUMNS` overrides both.


class Display(Struct, frozen=True):
    """How to show results. `verbosity`: -1 quiet, 0, 1 steps, 2 also traces and Spark's log."""

    json: bool = False
    verbosity: int = 0
    rows_format: RowsFormat = RowsFormat.TABLE
    escape_formulas: bool = False
    """Whether text in CSV is escaped so that spreadsheets do not evaluate it."""


NARROWEST_TEXT, WIDEST = 60, 120
_ASSUMED = 80
"""Columns of a terminal that does not report them."""


def has_colour(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether escape codes for colour may be written to `stream`."""
    if environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return False
    return bool(environment.get("FORCE_COLOR")) or stream.isatty()


def can_move(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether a bar may be drawn on `stream`."""
    return stream.isatty() and environment.get("TERM") != "dumb"


def columns_of(environment: Mapping[str, str], stream: TextIO) -> int | None:
    """Columns of the stream's terminal; None for a pipe or a file."""
    stated = environment.get("COLUMNS", "")
    if stated.isdecimal() and int(stated):
        return int(stated)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _ASSUMED
    except (OSError, ValueError):  # no terminal, or a stream in memory
        return None


def width_for(environment: Mapping[str, str], stream: TextIO) -> int | None:
    """The width of lines of sentences; None if a sentence is one line."""
    columns = columns_of(environment, stream)
    return None if columns is None else min(max(columns, NARROWEST_TEXT), WIDEST)


def wrapped(text: str, width: int | None, first: str, rest: str) -> list[str]:
    """Wrap the text, with `first` before the first line and `rest` before the others. Words are
    never broken: a path or a command stays one piece to copy. Without a width the text becomes one
    line, whatever line ends it has."""
    if width is None:
        return [(first + " ".join(line.strip() for line in text.splitlines())).rstrip()]
    import textwrap

    lines = textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [first.rstrip()]
