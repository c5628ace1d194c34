"""Small files of a table by their path below its root, wherever the table lies.

Law: local tables are read from disk directly, all others through deltalake's object store.
Out of scope: data files (`tables.rows`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.fs as pa_fs
from deltalake.fs import DeltaStorageHandler


def local_path(path: str) -> str | None:
    """The local folder a path or `file:` URI means; None for any other URI."""
    if path.startswith("file:"):
        return unquote(urlsplit(path).path)
    return None if "://" in path else path


def object_store(path: str, options: Mapping[str, str] | None) -> Any:
    """A pyarrow filesystem rooted at a table that is not on the local disk."""
    return pa_fs.PyFileSystem(DeltaStorageHandler(path, None if options is None else dict(options)))


def read_text(path: str, options: Mapping[str, str] | None, name: str) -> str:
    """A text file below the table's root; OSError when it cannot be read."""
    folder = local_path(path)
    if folder is not None:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            return file.read()
    with object_store(path, options).open_input_file(name) as remote:
        return bytes(remote.read()).decode("utf-8")


def list_names(path: str, options: Mapping[str, str] | None, name: str) -> list[str]:
    """Names of the files in a folder below the table's root; OSError when it cannot be listed."""
    folder = local_path(path)
    if folder is not None:
        return os.listdir(os.path.join(folder, name))
    listed = object_store(path, options).get_file_info(pa_fs.FileSelector(name))
    return [str(info.base_name) for info in listed]
