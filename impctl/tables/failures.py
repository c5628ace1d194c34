"""What deltalake and pyarrow say when something fails, made fit for a message.

Law: texts come out on one line without terminal escapes; a failure is called *missing* only when
the text says that a file or a version is not there.
Out of scope: which impctl error a failure becomes (the callers know what they were doing).
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping

import pyarrow as pa
from deltalake.exceptions import DeltaError

from impctl.errors import pass_out_of_memory

READ_FAILURES: tuple[type[Exception], ...] = (DeltaError, OSError, pa.ArrowException, ValueError)
"""What reading through deltalake or pyarrow may raise."""

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_SPACE = re.compile(r"\s+")
_MISSING = ("not found", "no such file", "notfound", "does not exist", "no files in log segment")
_CUT = "magic bytes not found"
"""What Arrow says of a file that is there, and is cut short or no Parquet file."""
_SYSTEM = re.compile(r"\(os error (\d+)\)|\bos \{ code: (\d+)", re.IGNORECASE)
"""How Rust writes an error of the operating system."""


_BACKTRACE = re.compile(r"(?: stack backtrace:)? 0: \S.* 1: \S.*")
"""Numbered frames, which Rust writes behind a message."""


def failure_text(error: BaseException) -> str:
    """The error's words on one line, without escapes, native backtrace and full stop.

    OutOfMemoryError where memory ran out, which says nothing about what was to be read.
    """
    pass_out_of_memory(error)
    text = _BACKTRACE.sub("", _SPACE.sub(" ", _ESCAPE.sub("", str(error)))).strip().rstrip(".")
    return text if text else type(error).__name__


def is_missing(error: BaseException) -> bool:
    """Whether the failure is that something is not there (any more)."""
    text = failure_text(error).lower().replace(_CUT, "")
    return isinstance(error, FileNotFoundError) or any(phrase in text for phrase in _MISSING)


def is_of_system(error: BaseException) -> bool:
    """Whether the operating system or an object store failed: the same may succeed later."""
    text = str(error)
    codes = (int(code or other) for code, other in _SYSTEM.findall(text))
    return any(code not in _STAYS_WRONG for code in codes) or _OF_STORE.search(text) is not None


_OF_STORE = re.compile(r"Generic (?:S3|GCS|MicrosoftAzure) error")
_STAYS_WRONG = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EACCES, errno.EPERM}
)


def without_values(text: str, options: Mapping[str, str]) -> str:
    """The text without the values of these options, but for those that say where to go.

    Libraries show a value that they cannot read; a key put under the wrong name is one.
    """
    for name, value in options.items():
        if len(value) >= _SHORTEST and not _IS_PLACE.search(name):
            text = text.replace(value, "***")
    return text


_SHORTEST = 6
_IS_PLACE = re.compile(r"endpoint|region|bucket|container|account_?name", re.IGNORECASE)
