"""Rows of a query's result as a table of text.

Law: no value is cut; a value that does not fit is wrapped in its cell.
Out of scope: any meaning of the values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from io import StringIO

from impctl.app.results.results import RowValue
from impctl.cli.output.wording import plain

NARROWEST = 80


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[RowValue]]) -> list[str]:
    """The table, numbers to the right; as wide as the terminal, 80 columns without one."""
    # What draws it takes longer to load than many a command that prints no table.
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, safe_box=True, show_edge=False)
    for index, name in enumerate(columns):
        numeric = any(_is_number(row[index]) for row in rows)
        table.add_column(Text(plain(name)), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(_cell_text(cell))) for cell in row))
    page, width = StringIO(), max(NARROWEST, Console().width)
    Console(file=page, color_system=None, force_terminal=False, width=width).print(table)
    return [line.rstrip() for line in page.getvalue().splitlines()]


def _is_number(cell: RowValue) -> bool:
    return isinstance(cell, int | float | Decimal) and not isinstance(cell, bool)


def _cell_text(cell: RowValue) -> str:
    match cell:
        case None:
            return "NULL"
        case bool():
            return "true" if cell else "false"
        case bytes():
            return cell.hex()
        case datetime():
            return cell.isoformat(" ")
        case Decimal():
            return format(cell, "f")
        case float() if math.isnan(cell):
            return "NaN"
        case _:
            return str(cell)
