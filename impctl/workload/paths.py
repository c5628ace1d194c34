"""Paths of the workload file: relative to the file itself, so that any working directory serves.

Law: a URI (`s3://...`, `file:///...`) passes through untouched; any other path comes out absolute.
Nothing is opened here. Out of scope: whether something stands at the path.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from yaml.nodes import Node

from impctl.workload.reading import FileReading

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def read_path(node: Node | None, where: str, base: Path, reading: FileReading) -> str | None:
    """The path written at `node`, as seen from the folder `base`."""
    written = reading.text(node, where)
    if node is None or written is None:
        return None
    if not written.isprintable():
        reading.report(node, f"{where} holds a line break or control character", "remove it")
        return None
    return resolve_path(base, written)


def resolve_path(base: Path, written: str) -> str:
    """`written` as seen from the folder `base`, which is absolute."""
    if _URI.match(written):
        return written
    return os.path.normpath(base / written)
