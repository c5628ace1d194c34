"""Rows of a query's result as a table of text.

Law: no value is cut; a value that does not fit a terminal is wrapped in its cell, in a pipe or a
file each row is one line. A table that needs no wrapping is the same whoever lays it out.
Out of scope: any meaning of the values (`service.formats` says how they read).
"""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING

from impctl.service.text import plain

if TYPE_CHECKING:
    from impctl.service.formats import TextColumn

NARROWEST = 80
_ANY = 1_000_000_000
"""Wider than any table."""
_GAP, _RULE = "   ", "\N{BOX DRAWINGS LIGHT HORIZONTAL}"


def table_lines(columns: Sequence[TextColumn], width: int | None = None) -> list[str]:
    """The table, numbers to the right; `width` characters at most, but 80 where it is less.

    Without a width it is as wide as its rows.
    """
    shown = [[plain(column.name), *map(_shown, column.texts)] for column in columns]
    widest = _ANY if width is None else max(NARROWEST, width)
    lines = _narrow(shown, [column.is_number for column in columns], widest)
    return _wrapped(columns, shown, widest) if lines is None else lines


def _shown(text: str | None) -> str:
    return "NULL" if text is None else plain(text)


def _narrow(
    shown: Sequence[Sequence[str]], is_number: Sequence[bool], widest: int
) -> list[str] | None:
    """The lines where all fits, each character one column wide; else None."""
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
    """Whether texts are of ASCII's visible characters, without spaces at their ends."""
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
