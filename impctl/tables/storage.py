"""Small files of a table by path, wherever it lies; protocol features; failures as messages."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from deltalake.exceptions import DeltaError

from impctl.errors import TableError, pass_out_of_memory

if TYPE_CHECKING:
    from impctl.types import TableName


# Characters that deltalake may misread in the log. Law: a text that is not unsure is the one in the
# log. deltalake 1.6.6 (Arrow's JSON reader) combines an escaped pair of surrogates by OR where it
# has to add, so it reads a character of every second plane beyond the first as one of the plane
# below. A text is never read too great.


def is_unsure(text: str) -> bool:
    """Whether the text may be another, greater one in the log."""
    return not text.isascii() and any(ord(char) >> 16 & 1 for char in text)


# Failures of deltalake and pyarrow as messages. Law: a text has one line and no terminal escapes. A
# failure is called *missing* only if its text says that a file or a version is missing.

READ_FAILURES: tuple[type[Exception], ...] = (DeltaError, OSError, pa.ArrowException, ValueError)
"""Exceptions of reading through deltalake or pyarrow."""

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_SPACE = re.compile(r"\s+")
_MISSING = ("not found", "no such file", "notfound", "does not exist", "no files in log segment")
_CUT = "magic bytes not found"
"""Arrow's messages for a file that exists but is truncated or not Parquet."""
_SYSTEM = re.compile(r"\(os error (\d+)\)|\bos \{ code: (\d+)", re.IGNORECASE)
"""Rust's format of an operating system error."""
_BACKTRACE = re.compile(r"(?: stack backtrace:)? 0: \S.* 1: \S.*")
"""Numbered frames, which Rust appends to a message."""


def failure_text(error: BaseException) -> str:
    """The error's text on one line, without escapes, native backtrace and full stop. Raises
    OutOfMemoryError if memory ran out, which says nothing about the data."""
    pass_out_of_memory(error)
    text = _BACKTRACE.sub("", _SPACE.sub(" ", _ESCAPE.sub("", str(error)))).strip().rstrip(".")
    return text if text else type(error).__name__


def is_missing(error: BaseException) -> bool:
    """Whether the failure is that something is missing."""
    text = failure_text(error).lower().replace(_CUT, "")
    return isinstance(error, FileNotFoundError) or any(phrase in text for phrase in _MISSING)


def is_of_system(error: BaseException) -> bool:
    """Whether the operating system or an object store failed: a retry may succeed."""
    text = str(error)
    codes = (int(code or other) for code, other in _SYSTEM.findall(text))
    return any(code not in _STAYS_WRONG for code in codes) or _OF_STORE.search(text) is not None


_OF_STORE = re.compile(r"Generic (?:S3|GCS|MicrosoftAzure) error")
_STAYS_WRONG = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EACCES, errno.EPERM}
)


def without_values(text: str, options: Mapping[str, str]) -> str:
    """The text without the values of these options, except those of locations. Libraries show a
    value that they cannot read, which may be a key under the wrong name."""
    for name, value in options.items():
        if len(value) >= _SHORTEST and not _IS_PLACE.search(name):
            text = text.replace(value, "***")
    return text


_SHORTEST = 6
_IS_PLACE = re.compile(r"endpoint|region|bucket|container|account_?name", re.IGNORECASE)


# Delta's protocol features. Law: an unknown reader feature is refused by name, because it may
# change what a file means. A known one is refused only if the table uses it in a way that impctl
# cannot read.

_READABLE = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        # A table may list these without using them: columns that do are found in `tables.snapshot`.
        "typeWidening",
        "typeWidening-preview",
        "variantType",
        "variantType-preview",
        "variantShredding",
        "variantShredding-preview",
        "collations",
        "collations-preview",
    }
)
_NAMED = (
    re.compile(r"[Ff]eature '([^']+)'"),
    re.compile(r"(catalog-managed) table"),
    re.compile(r"table features required: \[([^\]]+)\]"),
)


def check_reader_features(table: TableName, features: Collection[str]) -> None:
    """Raise TableError for the first unknown reader feature."""
    for feature in sorted(set(features) - _READABLE):
        raise unknown_feature(table, feature)


def check_column_mapping(
    table: TableName,
    configuration: Mapping[str, str],
    reader_version: int,
    reader_features: Collection[str],
) -> bool:
    """Whether names are mapped; raise TableError for a mode that is not by name, and for one that
    the table's protocol does not support: some readers follow it, others do not."""
    mode = configuration.get("delta.columnMapping.mode", "none").lower()
    is_supported = reader_version == 2 or "columnMapping" in reader_features
    if mode != "none" and not is_supported:
        raise TableError(
            f"Table `{table}` has `delta.columnMapping.mode` = `{mode}`, and its protocol does not"
            " support column mapping",
            hint="upgrade the table's protocol, or set the property to `none`",
            code="column_mapping_mode",
        )
    if mode not in ("none", "name"):
        raise TableError(
            f"Table `{table}` uses column mapping mode `{mode}`, which impctl does not support",
            hint="rewrite the table with `delta.columnMapping.mode` = `name`",
            code="column_mapping_mode",
        )
    return mode == "name"


def unknown_feature(table: TableName, feature: str) -> TableError:
    """The error for an unsupported reader feature."""
    return TableError(
        f"Table `{table}` needs reader feature `{feature}`, which impctl does not support",
        hint="drop the feature from the table, or read the table with the Delta JAR",
        code="reader_feature_unknown",
    )


def feature_named_in(text: str) -> str | None:
    """The feature that an error text of the reader complains about."""
    matches = (pattern.search(text) for pattern in _NAMED)
    return next((match[1] for match in matches if match is not None), None)


# Small files by their path below a table's root. Law: local tables are read from disk, all others
# through deltalake's object store. A file smaller than the first piece takes one request.

_AT_FIRST = 1 << 22
"""Bytes requested before a file's size is known: most log entries are smaller."""


def local_path(path: str) -> str | None:
    """The local folder of a path or `file:` URI; None for any other URI."""
    if path.startswith("file:"):
        return unquote(urlsplit(path).path)
    return None if "://" in path else path


def file_uri(path: str, logged: str) -> str:
    """The file that the log of the table at `path` names, decoded once, unlike in deltalake's
    list."""
    if logged.startswith("file:"):
        return unquote(urlsplit(logged).path)
    if "://" in logged or logged.startswith("/"):
        return unquote(logged)
    return _root(path) + unquote(logged)


def below_root(path: str, uri: str) -> str | None:
    """The file's path below the root of the table at `path`; None if it is outside."""
    root = _root(path)
    if not uri.startswith(root) or ("/.." in uri and ".." in uri[len(root) - 1 :].split("/")):
        return None
    return uri[len(root) :]


def first_outside(roots: Sequence[str], uris: Iterable[str]) -> str | None:
    """The first of these files that is below none of the roots."""
    starts = tuple(map(_root, roots))
    suspects = (uri for uri in uris if "/.." in uri or not uri.startswith(starts))
    return next(
        (uri for uri in suspects if all(below_root(root, uri) is None for root in roots)), None
    )


def _root(path: str) -> str:
    """The common prefix of all files below a table's root."""
    return path.rstrip("/") + "/"


def object_store(
    path: str, options: Mapping[str, str] | None, sizes: Mapping[str, int] | None = None
) -> Any:
    """A pyarrow filesystem rooted at a table that is not on the local disk. `sizes`, by path below
    the root, save asking the store for these."""
    # Both take long to load, and tables on the disk need neither.
    import pyarrow.fs as pa_fs
    from deltalake.fs import DeltaStorageHandler

    known = None if sizes is None else dict(sizes)
    handler = DeltaStorageHandler(path, None if options is None else dict(options), known)
    return pa_fs.PyFileSystem(handler)


def read_text(path: str, options: Mapping[str, str] | None, name: str) -> str:
    """A text file below the table's root; OSError if it cannot be read."""
    folder = local_path(path)
    if folder is not None:
        with open(os.path.join(folder, name), encoding="utf-8", opener=_open_regular) as file:
            return file.read()
    return _read_remote(path, options, name).decode("utf-8")


def read_range(
    path: str, options: Mapping[str, str] | None, name: str, start: int, length: int
) -> bytes:
    """Bytes of a file below the table's root, fewer at its end; OSError if it cannot be read."""
    folder = local_path(path)
    if folder is None:
        with object_store(path, options).open_input_file(name) as remote:
            remote.seek(start)
            return bytes(remote.read(length))
    with open(os.path.join(folder, name), "rb", opener=_open_regular) as file:
        file.seek(start)
        return file.read(length)


def _open_regular(path: str, flags: int) -> int:
    """A descriptor of a regular file; OSError at once for anything else, such as a FIFO."""
    file = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(errno.EINVAL, "It is not a regular file", path)


def _read_remote(path: str, options: Mapping[str, str] | None, name: str) -> bytes:
    """The file's bytes; its size is requested only if it exceeds the first piece."""
    try:
        # For a range beyond the end a store returns what exists.
        with object_store(path, options, {name: _AT_FIRST}).open_input_file(name) as remote:
            result = bytes(remote.read())
    except FileNotFoundError:
        raise
    except OSError:
        result = None  # an empty file has no range at all
    if result is not None and len(result) < _AT_FIRST:
        return result
    with object_store(path, options).open_input_file(name) as remote:
        return bytes(remote.read())


def list_names(path: str, options: Mapping[str, str] | None, name: str) -> list[str]:
    """Names of the files in a folder below the table's root; OSError if it cannot be listed."""
    folder = local_path(path)
    if folder is not None:
        return os.listdir(os.path.join(folder, name))
    import pyarrow.fs as pa_fs

    listed = object_store(path, options).get_file_info(pa_fs.FileSelector(name))
    return [str(info.base_name) for info in listed]
