"""Text on the two streams: sentences, details, remarks, and rows in their format.

Law: results go to stdout, remarks to stderr. Control characters of user text are escaped. Sentences
are as wide as the terminal and whole in a pipe; a command or a statement is never broken.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from io import StringIO, TextIOWrapper
from typing import TYPE_CHECKING, TextIO

from impctl.cli.process import columns_of, has_colour, width_for, wrapped
from impctl.service.text import RowsFormat, plain

if TYPE_CHECKING:
    from impctl.cli.process import Display
    from impctl.service.formats import TextColumn
    from impctl.service.results import ArrowAnswer, GainResult


class Text:
    """Where results are printed, and what was printed of the run so far."""

    def __init__(self, stdout: TextIO, stderr: TextIO, display: Display) -> None:
        self.stdout = stdout
        self.quiet = display.verbosity < 0
        self.heading = ""
        """The subject of the findings printed last."""
        self.progress = ""
        """The progress of the run, shown after the time of a result."""
        self.gains: list[GainResult] = []
        self.stderr = stderr
        self._display = display
        self._has_names = False
        self.words: dict[str, str] = {}
        """The queries processed, with a word for the line that sums up, or none."""

    def document(self, text: str) -> None:
        """Print a text that is a whole document, unchanged."""
        self.stdout.write(text.rstrip("\n") + "\n")

    def head(
        self,
        query: str,
        text: str,
        word: str = "",
        *,
        is_idle: bool = False,
        rest: str | None = None,
    ) -> None:
        """Print the first line of a query's result, and count the query as processed with this
        word. Of several sketches of it, an idle one does not give the word."""
        if query not in self.words or (word and not is_idle):
            self.words[query] = word
        self.line(f"{query}: {text}", rest=rest)

    def line(self, text: str, first: str = "", rest: str | None = None) -> None:
        """Print a sentence after `first`; further lines begin with `rest`, or indented more."""
        for line in self.wrapped(text, first, f"{first}  " if rest is None else rest):
            self.stdout.write(line + "\n")

    def detail(self, text: str) -> None:
        """Print an indented sentence, if there is one."""
        if text:
            self.line(text, "  ")

    def details(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.detail(text)

    def raw(self, text: str) -> None:
        """Print a line that is not wrapped."""
        self.stdout.write(plain(text) + "\n")

    def whole(self, text: str) -> None:
        """Print a command or statement on one line, so that it can be copied."""
        self.raw("  " + text)

    def wrapped(self, text: str, first: str, rest: str) -> list[str]:
        return wrapped(plain(text), self.width, first, rest)

    @property
    def width(self) -> int | None:
        """Columns of a line on stdout; None if lines are not wrapped."""
        return width_for(os.environ, self.stdout)

    def remark(self, text: str, indent: str = "  ") -> None:
        """Print a sentence about the result on stderr, unless quiet."""
        for line in wrapped(plain(text), width_for(os.environ, self.stderr), indent, indent + "  "):
            self.note(line)

    def note(self, line: str) -> None:
        """Print a line on stderr, unless quiet."""
        if not self.quiet:
            self.stderr.write(line + "\n")

    def marked(self, word: str, colour: str, stream: TextIO) -> str:
        """Colour the word, an ANSI number, if the stream has colour."""
        return f"\x1b[{colour}m{word}\x1b[0m" if has_colour(stream, os.environ) else word

    def rows(self, result: ArrowAnswer) -> None:
        """Print only the rows, unless they were written to a file. What programs read is UTF-8
        whatever the locale, and escaped only for a terminal. A CSV has its names once."""
        if result.written is not None:
            return
        from impctl.service.formats import text_columns, text_of

        rows_format, stdout = self._display.rows_format, self.stdout
        if rows_format is RowsFormat.TABLE:
            width = columns_of(os.environ, stdout)
            for line in table_lines(text_columns(result.shown, " "), width):
                stdout.write(line + "\n")
            return
        is_terminal = stdout.isatty()
        if isinstance(stdout, TextIOWrapper):
            stdout.reconfigure(encoding="utf-8")
        escape_formulas = self._display.escape_formulas
        pieces = text_of(result.shown, rows_format, escape_formulas=escape_formulas)
        if self._has_names and rows_format is RowsFormat.CSV:
            next(pieces)
        self._has_names = True
        for text in pieces:
            stdout.write(plain(text) if is_terminal else text)


# Rows as a table of text. Law: no value is cut. A value that does not fit a terminal is wrapped in
# its cell; in a pipe or a file each row is one line. Both ways of drawing give the same table where
# nothing is wrapped.

NARROWEST_TABLE = 80
_ANY = 1_000_000_000
"""Wider than any table."""
_GAP, _RULE = "   ", "\N{BOX DRAWINGS LIGHT HORIZONTAL}"


def table_lines(columns: Sequence[TextColumn], width: int | None = None) -> list[str]:
    """Render a table, numbers to the right; at most `width` columns, but 80 if that is less.
    Without a width it is as wide as its rows."""
    shown = [
        [plain(column.name), *("NULL" if text is None else plain(text) for text in column.texts)]
        for column in columns
    ]
    widest = _ANY if width is None else max(NARROWEST_TABLE, width)
    lines = _narrow(shown, [column.is_number for column in columns], widest)
    return _drawn_by_rich(columns, shown, widest) if lines is None else lines


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


def _drawn_by_rich(
    columns: Sequence[TextColumn], shown: Sequence[Sequence[str]], widest: int
) -> list[str]:
    # Rich takes longer to load than many a command that prints no table.
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
