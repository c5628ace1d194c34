"""Rows of a query's result as a table of text.

Law: no value is cut; a value that does not fit is wrapped in its cell.
Out of scope: any meaning of the values (`app.writing.texts` says how they read).
"""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING

from impctl.cli.output.wording import plain

if TYPE_CHECKING:
    from impctl.app.writing.texts import TextColumn

NARROWEST = 80


def table_lines(columns: Sequence[TextColumn]) -> list[str]:
    """The table, numbers to the right; as wide as the terminal, 80 columns without one."""
    # What draws it takes longer to load than many a command that prints no table.
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, safe_box=True, show_edge=False)
    for column in columns:
        name = Text(plain(column.name))
        table.add_column(name, justify="right" if column.is_number else "left", overflow="fold")
    for row in zip(*(column.texts for column in columns), strict=True):
        table.add_row(*(Text("NULL" if text is None else plain(text)) for text in row))
    page, width = StringIO(), max(NARROWEST, Console().width)
    Console(file=page, color_system=None, force_terminal=False, width=width).print(table)
    return [line.rstrip() for line in page.getvalue().splitlines()]
