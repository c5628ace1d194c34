"""A mark of the very program that runs: of the rooms that read SQL and tell answers, and sqlglot.

Law: two marks are equal only for the same files, as names, sizes and times tell; so what was
written by a program that has been changed since, under the same version, is not taken for its own.
Where there are no files to look at there is no mark, and nothing is taken as known.
Out of scope: releases (`version`), what is kept under a mark (`app.capturing.kept_ending`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_ROOMS = ("data", "expr", "plan", "engine", "circuits", "workload")


@cache
def build_mark() -> str:
    """The mark of the program when it was first asked for, which is when a command begins.

    Empty where the program does not lie in files.
    """
    package = Path(__file__).parents[2]
    reader = find_spec("sqlglot")
    if reader is None or reader.origin is None:
        return ""
    try:
        lines = [line for room in _ROOMS for line in _lines(package / room)]
        lines.append(_line(reader.origin, os.stat(reader.origin)))
    except OSError:
        return ""
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _lines(folder: Path) -> Iterator[str]:
    """One line of each file that is read as Python."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _lines(Path(entry.path))
            elif entry.name.endswith(".py"):
                yield _line(entry.path, entry.stat())


def _line(path: str, result: os.stat_result) -> str:
    return f"{path} {result.st_size} {result.st_mtime_ns}"
