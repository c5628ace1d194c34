"""A figure's cells as an HTML table: what a chart shows, in numbers anybody can read out.

Law: every cell is a row and every metric a column, medians with least and greatest; labels are
heads of their row; text is escaped. A column nothing stands in is left out.
Out of scope: drawing, what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from impctl.bench.quantity import is_number, label_text, plain_name, readable, spread_text, unit_of
from impctl.bench.report_text import prose
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.bench.record import Cell
    from impctl.bench.summary import Section

_NOTHING = '<span class="none">–</span>'


def table(cells: Sequence[Cell], caption: str) -> str:
    """The whole table in a box of its own that scrolls, focusable so that keys scroll it too."""
    columns = [column for column in _columns(cells) if any(column.show(cell) for cell in cells)]
    heads = "".join(
        f'<th scope="col"{_right(column.is_right)}>{escape(column.name)}</th>' for column in columns
    )
    return _box(heads, "\n".join(_row(cell, columns) for cell in cells), caption)


def plain_table(section: Section) -> str:
    """The table of a section; rows that follow each other with one name have it once."""
    heads = "".join(
        f'<th scope="col"{_right(at in section.numbers)}>{escape(name)}</th>'
        for at, name in enumerate(section.heads)
    )
    shown = []
    for name, group in groupby(section.rows, key=lambda row: row[0]):
        held = list(group)
        first = f'<th scope="rowgroup" rowspan="{len(held)}">{prose(name)}</th>'
        for at, row in enumerate(held):
            # The second column names the row within its group, where there is more than one.
            case = f'<th scope="row">{prose(row[1])}</th>' if row[1] else f"<td>{_NOTHING}</td>"
            data = "".join(
                f"<td{_right(column in section.numbers)}>{prose(text) or _NOTHING}</td>"
                for column, text in enumerate(row[2:], start=2)
            )
            shown.append(f"<tr>{'' if at else first}{case}{data}</tr>")
    return _box(heads, "\n".join(shown), section.title)


def _box(heads: str, rows: str, caption: str) -> str:
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f"<table><caption>{escape(caption)}</caption>"
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )


@dataclass(frozen=True, slots=True)
class _Column:
    """A heading and what stands below it as HTML; numbers stand to the right.

    A column of labels names its rows.
    """

    name: str
    show: Callable[[Cell], str]
    is_right: bool = False
    is_label: bool = False


def _columns(cells: Sequence[Cell]) -> list[_Column]:
    labels = dict.fromkeys(name for cell in cells for name in cell.labels)
    metrics = dict.fromkeys(name for cell in cells for name in cell.metrics)
    return [
        *(_label_column(name, cells) for name in labels),
        *(_metric_column(name) for name in metrics),
        _Column("runs", _runs, True),
        _Column("covers", lambda cell: _verdict(cell.covers)),
        _Column("slack", lambda cell: "" if cell.slack is None else f"{cell.slack:,}", True),
        _Column("equal", lambda cell: _verdict(cell.equal)),
        _Column("note", _note),
    ]


def _label_column(name: str, cells: Sequence[Cell]) -> _Column:
    def show(cell: Cell) -> str:
        return escape(label_text(name, cell.labels[name])) if name in cell.labels else ""

    counted = all(is_number(cell.labels[name]) for cell in cells if name in cell.labels)
    return _Column(plain_name(name), show, counted, is_label=True)


def _metric_column(name: str) -> _Column:
    unit = unit_of(name)

    def show(cell: Cell) -> str:
        metric = cell.metrics.get(name)
        if metric is None:
            return ""
        spread = spread_text(metric, unit)
        small = f" <small>{escape(spread)}</small>" if spread else ""
        return f"<b>{escape(readable(metric.median, unit))}</b>{small}"

    return _Column(plain_name(name), show, True)


def _runs(cell: Cell) -> str:
    # What was reckoned and not measured has no runs.
    runs = sorted({metric.runs for metric in cell.metrics.values()} - {0})
    if not runs:
        return ""
    return str(runs[0]) if len(runs) == 1 else f"{runs[0]}–{runs[-1]}"


def _note(cell: Cell) -> str:
    return f'<div class="note">{prose(cell.note)}</div>' if cell.note else ""


def _verdict(right: bool | None) -> str:
    if right is None:
        return ""
    return '<span class="yes">✓ yes</span>' if right else '<span class="no">✗ no</span>'


def _row(cell: Cell, columns: Sequence[_Column]) -> str:
    return f"<tr>{''.join(_field(cell, column) for column in columns)}</tr>"


def _field(cell: Cell, column: _Column) -> str:
    text, right = column.show(cell), _right(column.is_right)
    if column.is_label and text:
        return f'<th scope="row"{right}>{text}</th>'
    return f"<td{right}>{text or _NOTHING}</td>"


def _right(is_right: bool) -> str:
    return ' class="n"' if is_right else ""
