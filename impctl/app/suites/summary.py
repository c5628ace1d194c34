"""A record as one small table per figure, with its break-even, for a reader at a terminal.

Law: only labels that differ within the figure and the metrics that its chart draws are shown,
with ratios; nothing is rounded here. Out of scope: how values look (`cli.output_suite`).
"""

from __future__ import annotations

from dataclasses import dataclass

from impctl.bench.break_even import SIZES, break_evens
from impctl.bench.break_even import BreakEven as BreakEven
from impctl.bench.record import Cell, Figure, Label, Record


@dataclass(frozen=True, slots=True)
class FigureSummary:
    """A figure's table: `labels` and `metrics` are its columns, `rows` their values in order."""

    figure: Figure
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: tuple[tuple[Label | None, ...], ...]
    break_evens: tuple[BreakEven, ...]


def summaries(record: Record) -> tuple[FigureSummary, ...]:
    """Every figure with cells."""
    found = break_evens(record)
    return tuple(
        _summary(figure, cells, tuple(entry for entry in found if entry.figure == figure.name))
        for figure in record.figures
        if (cells := record.cells_of(figure.name))
    )


def _summary(
    figure: Figure, cells: tuple[Cell, ...], found: tuple[BreakEven, ...]
) -> FigureSummary:
    labels = _labels(figure, cells)
    metrics = _metrics(figure, cells)
    rows = tuple(
        (
            *(cell.labels.get(label) for label in labels),
            *(None if (m := cell.metrics.get(name)) is None else m.median for name in metrics),
        )
        for cell in cells
    )
    return FigureSummary(figure, labels, metrics, rows, found)


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
