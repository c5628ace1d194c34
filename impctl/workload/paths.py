"""Paths of the workload file: relative to the file itself, so that any working directory serves.

Law: a URI (`s3://...`, `file:///...`) passes through untouched; any other path comes out absolute.
A store is a folder of this machine: a URI for it is told apart here, of whatever scheme.
Nothing is opened here. Out of scope: whether something stands at the path.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from yaml.nodes import Node

    from impctl.workload.reading import FileReading

DEFAULT_FILE = Path("impctl.yaml")
"""The workload file where none is named, in the working directory."""

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)
"""Any number of slashes, as a `Path` keeps only one; a single letter is a drive."""


def read_path(node: Node | None, where: str, base: Path, reading: FileReading) -> str | None:
    """The path written at `node`, as seen from the folder `base`."""
    written = reading.text(node, where)
    if node is None or written is None:
        return None
    if not written.isprintable():
        reading.report(node, f"{where} contains a line break or a control character", "remove it")
        return None
    return resolve_path(base, written)


def resolve_path(base: Path, written: str) -> str:
    """`written` as seen from the folder `base`, which is absolute."""
    if _URI.match(written):
        return written
    return os.path.normpath(base / written)


def why_no_store(written: str) -> tuple[str, str] | None:
    """What is wrong with `written` as the place of a store, and a hint; None for a folder's path.

    Locks, and renames that happen whole or not at all, are what a store is built on; object stores
    have neither, so a URI is refused instead of read as the name of a folder.
    """
    match = _SCHEME.match(written)
    if match is None:
        return None
    scheme, rest = match.groups()
    if scheme.lower() == "file":
        return f"A store cannot be at a URI: file:///{rest}", f"write the path: /{rest}"
    hint = "give a folder on this machine; only tables can be in an object store"
    return f"A store cannot be at a URI: {scheme}://{rest}", hint
