"""A file written whole or not at all, wherever it is asked for.

Law: a reader sees the old content or the new one, never a part. A device, a pipe or a link stays
one: the content goes through it.
Out of scope: what is in it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def write_whole(path: Path, text: str) -> None:
    """Write the text; OSError where that cannot be done, and what stood there stays."""
    part = part_of(path)
    try:
        if is_special(path):
            path.write_text(text, encoding="utf-8")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        os.replace(part, os.path.realpath(path))
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write bytes to, which takes its place, safe on the disk, when all went well.

    Its folder must be there. Two that write the same file do not meet: the last one stands.
    """
    if is_special(path):
        with path.open("wb") as file:
            yield file
        return
    goal = Path(os.path.realpath(path))
    number, name = tempfile.mkstemp(prefix=f".{goal.name}.", suffix=".part", dir=goal.parent)
    try:
        with os.fdopen(number, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, _mode_for(goal))
        os.replace(name, goal)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _mode_for(goal: Path) -> int:
    """The rights of the file that was there, or those that a new file gets."""
    if goal.exists():
        return goal.stat().st_mode & 0o777
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask


def part_of(path: Path) -> Path:
    """Where the text is put together: beside the file that a link leads to."""
    goal = Path(os.path.realpath(path))
    return goal.with_name(f".{goal.name}.part")


def is_special(path: Path) -> bool:
    """Whether a device or a pipe is there, which a file must not take the place of."""
    return path.exists() and not path.is_file() and not path.is_dir()
