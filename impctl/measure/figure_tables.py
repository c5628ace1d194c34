"""A record as one small table per figure, with its break-even, for a terminal.

Law: it shows only labels that differ within the figure and the metrics of its chart, with ratios;
values and break-even have the words of the report, which shows the same record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from impctl.bench.quantity import label_text, plain_name, readable, unit_of
from impctl.bench.summary import SIZES, break_even_words

if TYPE_CHECKING:
    from impctl.bench.record import Cell, Figure, Label, Record


class FigureTable(Struct, frozen=True):
    """A figure's table: `labels` and `metrics` are its columns, `rows` their values in order.

    `break_evens` are cases with their break-even; the name of the only case may be empty.
    """

    figure: Figure
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: tuple[tuple[Label | None, ...], ...]
    break_evens: tuple[tuple[str, str], ...]


def figure_tables(record: Record) -> tuple[FigureTable, ...]:
    """The table of every figure with cells."""
    evens = break_even_words(record)
    return tuple(
        _table(
            figure,
            cells,
            [(case, text) for (name, case), text in evens.items() if name == figure.name],
        )
        for figure in record.figures
        if (cells := record.cells_of(figure.name))
    )


def heading(name: str) -> str:
    """The name of a metric or label in words, without its unit."""
    return plain_name(name)


def metric_text(name: str, value: float) -> str:
    """Format a metric's value with its unit."""
    return readable(value, unit_of(name))


def value_text(table: FigureTable, column: int, value: Label | None) -> str:
    """Format a value of this column; a hyphen for None."""
    name = (*table.labels, *table.metrics)[column]
    if value is None:
        return "-"
    if isinstance(value, str) or column < len(table.labels):
        return label_text(name, value)
    return metric_text(name, value)


def _table(
    figure: Figure, cells: tuple[Cell, ...], result: Sequence[tuple[str, str]]
) -> FigureTable:
    labels = _labels(figure, cells)
    metrics = _metrics(figure, cells)
    rows = tuple(
        (
            *(cell.labels.get(label) for label in labels),
            *(None if (m := cell.metrics.get(name)) is None else m.median for name in metrics),
        )
        for cell in cells
    )
    return FigureTable(figure, labels, metrics, rows, tuple(result))


def _labels(figure: Figure, cells: tuple[Cell, ...]) -> tuple[str, ...]:
    """Labels with several values; of the two sizes, only the one that the chart draws."""
    names = dict.fromkeys(name for cell in cells for name in cell.labels)
    differing = [name for name in names if len({cell.labels.get(name) for cell in cells}) > 1]
    if figure.chart.x in SIZES:
        differing = [name for name in differing if name not in SIZES or name == figure.chart.x]
    return tuple(differing or list(names)[:1])


def _metrics(figure: Figure, cells: tuple[Cell, ...]) -> tuple[str, ...]:
    measured = dict.fromkeys(name for cell in cells for name in cell.metrics)
    drawn = [name for name in figure.chart.y if name in measured]
    ratios = [name for name in measured if name.endswith("_ratio") and name not in drawn]
    return tuple(drawn + ratios)
