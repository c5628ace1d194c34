"""A record as one small table per figure, with its break-even, for a reader at a terminal.

Law: only labels that differ within the figure and the metrics that its chart draws are shown,
with ratios; values and break-even have the words of the report, which shows the same record.
Out of scope: lines and columns (`cli.output.measurements`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from impctl.bench.break_even import SIZES, break_even_words
from impctl.bench.quantity import label_text, plain_name, readable, unit_of
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.bench.record import Cell, Figure, Label, Record


@dataclass(frozen=True, slots=True)
class FigureTable:
    """A figure's table: `labels` and `metrics` are its columns, `rows` their values in order.

    `break_evens` are cases with their break-even; the name of the only case may be empty.
    """

    figure: Figure
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: tuple[tuple[Label | None, ...], ...]
    break_evens: tuple[tuple[str, str], ...]


def figure_tables(record: Record) -> tuple[FigureTable, ...]:
    """Every figure with cells."""
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
    """A metric's or label's name in words, without the unit that its values carry."""
    return plain_name(name)


def metric_text(name: str, value: float) -> str:
    """A metric's value with the unit that its name ends in."""
    return readable(value, unit_of(name))


def value_text(table: FigureTable, column: int, value: Label | None) -> str:
    """What stands in this column of a table; a hyphen for nothing."""
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
    """Labels with more than one value; of the two that tell a size the one that is drawn."""
    names = dict.fromkeys(name for cell in cells for name in cell.labels)
    differing = [name for name in names if len({cell.labels.get(name) for cell in cells}) > 1]
    if figure.chart.x in SIZES:
        differing = [name for name in differing if name not in SIZES or name == figure.chart.x]
    return tuple(differing or list(names)[:1])


def _metrics(figure: Figure, cells: tuple[Cell, ...]) -> tuple[str, ...]:
    """The metrics drawn, then ratios that are not among them."""
    measured = dict.fromkeys(name for cell in cells for name in cell.metrics)
    drawn = [name for name in figure.chart.y if name in measured]
    ratios = [name for name in measured if name.endswith("_ratio") and name not in drawn]
    return tuple(drawn + ratios)
