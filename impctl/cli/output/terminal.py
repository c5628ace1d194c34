"""What the two streams can show, and text that fits them."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, TextIO

from impctl.service.text import plain

if TYPE_CHECKING:
    from impctl.service.formats import TextColumn


# What the two streams can show: colour, and lines that move. Law: NO_COLOR and TERM=dumb turn
# colour off, FORCE_COLOR turns it on, else a terminal has it; lines move on a terminal only,
# whatever the variables say, so that logs stay readable.


def has_colour(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether escape codes for colour may be written to `stream`."""
    if environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return False
    return bool(environment.get("FORCE_COLOR")) or stream.isatty()


def can_move(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether a bar may be drawn on `stream`."""
    return stream.isatty() and environment.get("TERM") != "dumb"


def marked(word: str, colour: str) -> str:
    """Colour the word; `colour` is an ANSI number."""
    return f"\x1b[{colour}m{word}\x1b[0m"


def unmarked(word: str, colour: str) -> str:
    """Return the word unchanged."""
    return word


# Long sentences broken into lines that a terminal shows whole. Law: words are never broken, so
# that a path, a command or a place stays one piece to copy. Lines are as wide as the terminal,
# within bounds that read; in a pipe or a file, where programs look for a line, a sentence is one
# line. `COLUMNS` holds for both.

NARROWEST_TEXT, WIDEST = 60, 120
_ASSUMED = 80
"""Columns of a terminal that does not report them."""


def columns_of(environment: Mapping[str, str], stream: TextIO) -> int | None:
    """Columns of the stream's terminal; None for a pipe or a file."""
    stated = environment.get("COLUMNS", "")
    if stated.isdecimal() and int(stated):
        return int(stated)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _ASSUMED
    except (OSError, ValueError):  # no terminal, or a stream in memory
        return None


def width_for(environment: Mapping[str, str], stream: TextIO) -> int | None:
    """The width of lines of sentences; None if a sentence is one line."""
    columns = columns_of(environment, stream)
    return None if columns is None else min(max(columns, NARROWEST_TEXT), WIDEST)


def wrapped(text: str, width: int | None, first: str = "", rest: str | None = None) -> list[str]:
    """Wrap the text, with `first` before the first line and `rest` before the others. Without a
    width it becomes one line, whatever line ends it has."""
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


# Rows of a query's result as a table of text. Law: no value is cut; a value that does not fit a
# terminal is wrapped in its cell, in a pipe or a file each row is one line. A table that needs no
# wrapping is the same whoever lays it out.

NARROWEST_TABLE = 80
_ANY = 1_000_000_000
"""Wider than any table."""
_GAP, _RULE = "   ", "\N{BOX DRAWINGS LIGHT HORIZONTAL}"


def table_lines(columns: Sequence[TextColumn], width: int | None = None) -> list[str]:
    """Render a table, numbers to the right; at most `width` columns, but 80 if that is less.
    Without a width it is as wide as its rows."""
    shown = [[plain(column.name), *map(_shown, column.texts)] for column in columns]
    widest = _ANY if width is None else max(NARROWEST_TABLE, width)
    lines = _narrow(shown, [column.is_number for column in columns], widest)
    return _wrapped(columns, shown, widest) if lines is None else lines


def _shown(text: str | None) -> str:
    return "NULL" if text is None else plain(text)


def _narrow(
    shown: Sequence[Sequence[str]], is_number: Sequence[bool], widest: int
) -> list[str] | None:
    """The lines if everything fits and each character is one column wide; else None."""
    widths = [max(map(len, texts)) for texts in shown]
    total = sum(widths) + len(_GAP) * (len(widths) - 1)
    if not widths or total > widest or not all(map(_is_simple, shown)):
        return None
    cells = [
        [text.rjust(width) if right else text.ljust(width) for text in texts]
        for texts, width, right in zip(shown, widths, is_number, strict=True)
    ]
    lines = [_GAP.join(row).rstrip() for row in zip(*cells, strict=True)]
    return [lines[0], _RULE * total, *lines[1:]]


def _is_simple(texts: Sequence[str]) -> bool:
    return all(t.isascii() and t.isprintable() and t == t.strip() != "" for t in texts)


def _wrapped(
    columns: Sequence[TextColumn], shown: Sequence[Sequence[str]], widest: int
) -> list[str]:
    # What draws it takes longer to load than many a command that prints no table.
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, safe_box=True, show_edge=False)
    for column, texts in zip(columns, shown, strict=True):
        justify = "right" if column.is_number else "left"
        table.add_column(Text(texts[0]), justify=justify, overflow="fold")  # type: ignore[arg-type]  # one of its two words
    for row in zip(*(texts[1:] for texts in shown), strict=True):
        table.add_row(*map(Text, row))
    page = StringIO()
    Console(file=page, color_system=None, force_terminal=False, width=widest).print(table)
    return [line.rstrip() for line in page.getvalue().splitlines()]
