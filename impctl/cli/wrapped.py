"""Long sentences broken into lines that a terminal of 80 columns shows whole.

Law: words are never broken, so that a path, a command or a place stays one piece to copy; lines
are as wide as the terminal, and 80 columns where nobody says.
Out of scope: tables (`output_table`).
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping
from typing import TextIO

NARROWEST, WIDEST = 60, 120
_ASSUMED = 80


def width_of(environment: Mapping[str, str]) -> int:
    """Columns of the terminal, as COLUMNS or the terminal itself says, within bounds that read."""
    return _width(environment, 1) or _ASSUMED


def width_for(environment: Mapping[str, str], stream: TextIO) -> int | None:
    """Columns of the terminal that a stream goes to; None for a pipe or a file, which has none.

    A width that COLUMNS states holds for both.
    """
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        descriptor = -1  # a stream in memory, which no terminal shows
    return _width(environment, descriptor)


def _width(environment: Mapping[str, str], descriptor: int) -> int | None:
    stated = environment.get("COLUMNS", "")
    columns = int(stated) if stated.isdecimal() else 0
    if not columns:
        try:
            columns = os.get_terminal_size(descriptor).columns or _ASSUMED
        except OSError:
            return None
    return min(max(columns, NARROWEST), WIDEST)


def wrapped(text: str, width: int, first: str = "", rest: str | None = None) -> list[str]:
    """The text in lines after `first`, the second and further ones after `rest`."""
    following = " " * len(first) if rest is None else rest
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=following,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [first.rstrip()]
