"""A text file written whole or not at all, wherever it is asked for.

Law: a reader sees the old text or the new one, never a part. A device, a pipe or a link stays one:
the text goes through it.
Out of scope: what is in it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


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


def part_of(path: Path) -> Path:
    """Where the text is put together: beside the file that a link leads to."""
    goal = Path(os.path.realpath(path))
    return goal.with_name(f".{goal.name}.part")


def is_special(path: Path) -> bool:
    """Whether a device or a pipe is there, which a file must not take the place of."""
    return path.exists() and not path.is_file() and not path.is_dir()
