"""Long sentences broken into lines that a terminal shows whole.

Law: words are never broken, so that a path, a command or a place stays one piece to copy. Lines are
as wide as the terminal, within bounds that read; in a pipe or a file, where programs look for a
line, a sentence is one line. `COLUMNS` holds for both.
Out of scope: tables (`cli.output.table`), what is to be copied as a whole (`cli.output.text`).
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping
from typing import TextIO

NARROWEST, WIDEST = 60, 120
_ASSUMED = 80
"""Columns of a terminal that does not say."""


def columns_of(environment: Mapping[str, str], stream: TextIO) -> int | None:
    """Columns of the terminal that a stream goes to; None for a pipe or a file, which has none."""
    stated = environment.get("COLUMNS", "")
    if stated.isdecimal() and int(stated):
        return int(stated)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _ASSUMED
    except (OSError, ValueError):  # no terminal, or a stream in memory
        return None


def width_for(environment: Mapping[str, str], stream: TextIO) -> int | None:
    """How wide lines of sentences are there; None where a sentence is one line."""
    columns = columns_of(environment, stream)
    return None if columns is None else min(max(columns, NARROWEST), WIDEST)


def wrapped(text: str, width: int | None, first: str = "", rest: str | None = None) -> list[str]:
    """The text in lines after `first`, the second and further ones after `rest`.

    Without a width it is one line, whatever line ends it has.
    """
    if width is None:
        return [(first + " ".join(line.strip() for line in text.splitlines())).rstrip()]
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
