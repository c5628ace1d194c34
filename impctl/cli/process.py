"""The standard streams of a process, and what a terminal can show."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
from io import TextIOWrapper
from typing import TextIO

from msgspec import Struct

from impctl.errors import OutputFailedError
from impctl.service.text import RowsFormat

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
