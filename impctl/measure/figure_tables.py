"""A record as one small table per figure, with its break-even, for a terminal.

Law: it shows only labels that differ within the figure and the metrics of its chart, with ratios;
values and break-even have the words of the report, which shows the same record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from impctl.bench.quantity import label_text, plain_name, readable, unit_of
from impctl.bench.summary import SIZES, break_even_words

if TYPE_CHECKING:
    from impctl.bench.record import Cell, Figure, Record


class FigureTable(Struct, frozen=True):
    """A figure's table: a column has its heading, its texts, and whether they are numbers.
    `break_evens` are cases with their break-even; the name of the only case may be empty."""

    figure: Figure
    columns: tuple[tuple[str, tuple[str, ...], bool], ...]
    break_evens: tuple[tuple[str, str], ...]


def figure_tables(record: Record) -> tuple[FigureTable, ...]:
    """The table of every figure with cells."""
    evens = break_even_words(record)
    tables = []
    for figure in record.figures:
        cells = record.cells_of(figure.name)
        if not cells:
            continue
        columns = (
            *(_label_column(name, cells) for name in _labels(figure, cells)),
            *(_metric_column(name, cells) for name in _metrics(figure, cells)),
        )
        cases = tuple((case, text) for (name, case), text in evens.items() if name == figure.name)
        tables.append(FigureTable(figure, columns, cases))
    return tuple(tables)


def heading(name: str) -> str:
    """The name of a metric or label in words, without its unit."""
    return plain_name(name)


def metric_text(name: str, value: float) -> str:
    """Format a metric's value with its unit."""
    return readable(value, unit_of(name))


def _label_column(name: str, cells: tuple[Cell, ...]) -> tuple[str, tuple[str, ...], bool]:
    values = [cell.labels.get(name) for cell in cells]
    texts = tuple("-" if value is None else label_text(name, value) for value in values)
    return heading(name), texts, not any(isinstance(value, str) for value in values)


def _metric_column(name: str, cells: tuple[Cell, ...]) -> tuple[str, tuple[str, ...], bool]:
    metrics = [cell.metrics.get(name) for cell in cells]
    texts = ("-" if metric is None else metric_text(name, metric.median) for metric in metrics)
    return heading(name), tuple(texts), True


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
