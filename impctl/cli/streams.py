"""The two standard streams of a process: open whatever it was started with, and honest on failure.

Law: what stdout does not take is an error of ours, `output_failed`, except where its reader went
away; what stderr does not take never stops the work, and is told at the end. No file that the
process opens can ever get the number of a standard stream.
Out of scope: what is written; who ends the run (`cli.boundary`).
"""

from __future__ import annotations

import errno
import os
import sys
from io import TextIOWrapper

from impctl.errors import OutputFailedError

_ESCAPED = "backslashreplace"
_NOBODY = (errno.EPIPE, errno.EBADF, errno.EIO)
"""How a system says that a stream was closed, or its reader or terminal is gone."""


class Stdout(TextIOWrapper):
    """Where results go: OutputFailedError where they cannot, BrokenPipeError as it is."""

    def write(self, text: str, /) -> int:
        """As everywhere."""
        try:
            return super().write(text)
        except OSError as error:
            raise _told(error) from error

    def flush(self) -> None:
        """As everywhere."""
        try:
            super().flush()
        except OSError as error:
            raise _told(error) from error


class Stderr(TextIOWrapper):
    """Where all else goes; what cannot be written is lost, and `failure` says why."""

    failure: OSError | None = None

    def write(self, text: str, /) -> int:
        """As everywhere, but without an error."""
        try:
            return super().write(text)
        except OSError as error:
            self._lost(error)
            return len(text)

    def flush(self) -> None:
        """As everywhere, but without an error."""
        try:
            super().flush()
        except OSError as error:
            self._lost(error)

    def _lost(self, error: OSError) -> None:
        # A stream that somebody closed is one that nobody wants.
        if error.errno not in _NOBODY and self.failure is None:
            self.failure = error


def open_streams() -> None:
    """Put ours in the place of Python's; text that a stream cannot encode is escaped."""
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
    """What became of messages that stderr did not take."""
    failure = getattr(sys.stderr, "failure", None)
    if failure is None:
        return None
    return OutputFailedError(
        f"Messages to stderr could not be written: {failure.strerror}",
        hint="the command itself is not affected; free space for its log",
    )


def give_up(number: int) -> None:
    """Nothing more can be written to this stream; keep the interpreter's exit silent about it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def _told(error: OSError) -> OSError | OutputFailedError:
    if error.errno == errno.EPIPE:
        return error
    return OutputFailedError(
        f"The output could not be written: {error.strerror}",
        hint="the work of the command is done, see `impctl status`; free space and run it again",
    )
