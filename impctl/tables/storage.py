"""Small files of a table by their path below its root, wherever the table lies.

Law: local tables are read from disk directly, all others through deltalake's object store, a file
by one request where it is smaller than what is asked for at first.
Out of scope: data files (`tables.rows`).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

_AT_FIRST = 1 << 22
"""Bytes asked for before a file's size is known: most log entries are smaller."""


def local_path(path: str) -> str | None:
    """The local folder a path or `file:` URI means; None for any other URI."""
    if path.startswith("file:"):
        return unquote(urlsplit(path).path)
    return None if "://" in path else path


def file_uri(path: str, logged: str) -> str:
    """The file that the log of the table at `path` names, decoded once; deltalake's own list leaves
    the root encoded."""
    if logged.startswith("file:"):
        return unquote(urlsplit(logged).path)
    if "://" in logged or logged.startswith("/"):
        return unquote(logged)
    return _root(path) + unquote(logged)


def below_root(path: str, uri: str) -> str | None:
    """The file's path below the root of the table at `path`; None where it is not below it."""
    root = _root(path)
    if not uri.startswith(root) or ("/.." in uri and ".." in uri[len(root) - 1 :].split("/")):
        return None
    return uri[len(root) :]


def _root(path: str) -> str:
    """The part that all files below a table's root begin with."""
    return path.rstrip("/") + "/"


def object_store(
    path: str, options: Mapping[str, str] | None, sizes: Mapping[str, int] | None = None
) -> Any:
    """A pyarrow filesystem rooted at a table that is not on the local disk.

    Of files with a size in `sizes`, by their path below the root, the store is not asked for it.
    """
    # Both take long to load, and tables on the disk need neither.
    import pyarrow.fs as pa_fs
    from deltalake.fs import DeltaStorageHandler

    known = None if sizes is None else dict(sizes)
    handler = DeltaStorageHandler(path, None if options is None else dict(options), known)
    return pa_fs.PyFileSystem(handler)


def read_text(path: str, options: Mapping[str, str] | None, name: str) -> str:
    """A text file below the table's root; OSError when it cannot be read."""
    folder = local_path(path)
    if folder is not None:
        with open(os.path.join(folder, name), encoding="utf-8", opener=_open_regular) as file:
            return file.read()
    return _read_remote(path, options, name).decode("utf-8")


def read_range(
    path: str, options: Mapping[str, str] | None, name: str, start: int, length: int
) -> bytes:
    """Bytes of a file below the table's root, fewer at its end; OSError when it cannot be read."""
    folder = local_path(path)
    if folder is None:
        with object_store(path, options).open_input_file(name) as remote:
            remote.seek(start)
            return bytes(remote.read(length))
    with open(os.path.join(folder, name), "rb", opener=_open_regular) as file:
        file.seek(start)
        return file.read(length)


def _open_regular(path: str, flags: int) -> int:
    """A descriptor of a regular file; OSError for anything else, such as a FIFO, at once."""
    file = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(errno.EINVAL, "It is not a regular file", path)


def _read_remote(path: str, options: Mapping[str, str] | None, name: str) -> bytes:
    """The file's bytes; its size is asked for only where it is longer than a first piece."""
    try:
        # Of a range that goes beyond the end a store gives what is there.
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
    """Names of the files in a folder below the table's root; OSError when it cannot be listed."""
    folder = local_path(path)
    if folder is not None:
        return os.listdir(os.path.join(folder, name))
    import pyarrow.fs as pa_fs

    listed = object_store(path, options).get_file_info(pa_fs.FileSelector(name))
    return [str(info.base_name) for info in listed]
