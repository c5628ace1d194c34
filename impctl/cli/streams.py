"""The standard streams of a process: always open, and honest about failures.

Law: what stdout does not accept is our error `output_failed`, unless its reader went away; what
stderr does not accept never stops the work and is reported at the end. No file that the process
opens can ever get the number of a standard stream.
"""

from __future__ import annotations

import errno
import os
import sys
from io import TextIOWrapper

from impctl.errors import OutputFailedError

_ESCAPED = "backslashreplace"
_NOBODY = (errno.EPIPE, errno.EBADF, errno.EIO)
"""Errors of a closed stream, or of one whose reader or terminal is gone."""


class Stdout(TextIOWrapper):
    """Raises OutputFailedError if results cannot be written, and BrokenPipeError unchanged."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            raise _told(error) from error

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise _told(error) from error


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
        # A stream that somebody closed is one that nobody wants.
        if error.errno not in _NOBODY and self.failure is None:
            self.failure = error


def open_streams() -> None:
    """Replace Python's streams by ours, which escape text that they cannot encode."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # Writing there fails as it would have; the store's files get other numbers.
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
        is_told_at_once = name == "stderr" or os.isatty(number)
        ours = kind(buffer, encoding=encoding, errors=_ESCAPED, line_buffering=is_told_at_once)
        setattr(sys, name, ours)
        setattr(sys, f"__{name}__", ours)


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


def _told(error: OSError) -> OSError | OutputFailedError:
    if error.errno == errno.EPIPE:
        return error
    return OutputFailedError(
        f"The output could not be written: {error.strerror}",
        hint="the work of the command is done, see `impctl status`; free space and run it again",
    )
