"""Two ways to the same result: which was quicker, and by how much.

Law: a ratio compares two medians of one figure, so of one run on one machine; it is a win or a
loss by the rule that comparisons of records have, too (`band`), with the noise around the figure.
Out of scope: words for it (`summary`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from impctl.bench.band import side_of, time_band
from impctl.bench.break_even import SIZES
from impctl.bench.quantity import Unit, named, number, readable, times
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.bench.record import Cell, Figure, Label, Metric, Record

MAINTAIN = "maintain_ms"
RECAPTURE = "recapture_ms"
WITHOUT = "plain_ms"
WITH = "sketch_ms"
PRUNED = "pruned_ms"
VIEW = "view_ms"
FROM_STATE = "state_ms"
BY_ENGINE = "by_engine_ms"
TREE = "tree_ms"
INDEX = "index_ms"
TOTAL = "total_ms"
DUCKDB_RECAPTURE = "duckdb_ms"
DUCKDB_WITHOUT = "duckdb_plain_ms"
DUCKDB_WITH = "duckdb_sketch_ms"
STATE = "state_bytes"
STRATEGY = "strategy"
"""The label that names the way a whole workload was run."""

MAINTAINED, RECAPTURED, UNUSED = "incremental", "recapture", "none"
"""What that label says: sketches maintained, recaptured, or none at all."""


@dataclass(frozen=True, slots=True)
class Contest:
    """`ratio` is how many times as quick `ours` was as `other`; `band` the share that says nothing.

    `case` are the labels but the one on x, `place` is that one; `side` is 1 where `ours` was
    quicker, -1 where it was slower, 0 where noise or the spread of the runs may have made that.
    """

    figure: Figure
    cell: Cell
    case: str
    place: str
    ratio: float
    band: float
    side: int

    @property
    def is_won(self) -> bool:
        """Quicker, beyond the noise."""
        return self.side > 0

    @property
    def is_lost(self) -> bool:
        """Slower, beyond the noise."""
        return self.side < 0

    @property
    def name(self) -> str:
        """The cell's labels in words."""
        return ", ".join(text for text in (self.case, self.place) if text)

    @property
    def full_name(self) -> str:
        """With the figure it is in."""
        return f"{self.figure.title}: {self.name}" if self.name else self.figure.title


def contests(record: Record, ours: str, other: str) -> tuple[Contest, ...]:
    """Every cell that has both metrics, in the record's order."""
    return tuple(
        _contest(record, figure, cell, cell.metrics[ours], cell.metrics[other])
        for figure in record.figures
        for cell in record.cells_of(figure.name)
        if _are_amounts(cell.metrics.get(ours), cell.metrics.get(other))
    )


def workload_contests(record: Record, other: str) -> tuple[Contest, ...]:
    """Whole workloads: cells with maintained sketches against those that differ in strategy."""
    result = []
    for figure in record.figures:
        cells = record.cells_of(figure.name)
        theirs = {_without_strategy(c): c for c in cells if c.labels.get(STRATEGY) == other}
        for cell in cells:
            partner = theirs.get(_without_strategy(cell))
            if cell.labels.get(STRATEGY) != MAINTAINED or partner is None:
                continue
            if _are_amounts(cell.metrics.get(TOTAL), partner.metrics.get(TOTAL)):
                pair = cell.metrics[TOTAL], partner.metrics[TOTAL]
                result.append(_contest(record, figure, cell, *pair))
    return tuple(result)


def middle(result: Sequence[Contest]) -> float:
    """The median ratio."""
    return statistics.median(contest.ratio for contest in result)


def ends(result: Sequence[Contest]) -> tuple[Contest, Contest]:
    """The least and the greatest ratio."""

    def ratio(contest: Contest) -> float:
        return contest.ratio

    return min(result, key=ratio), max(result, key=ratio)


def total_words(result: Sequence[Contest], ours: str, other: str, way: str) -> str:
    """What all of them took together, in a sentence: `way` is how `ours` answers; "" for one."""
    if len(result) < 2:
        return ""
    took = sum(contest.cell.metrics[ours].median for contest in result)
    without = sum(contest.cell.metrics[other].median for contest in result)
    return (
        f"All {number(len(result))} together took {readable(without, Unit.MS)} with Spark "
        f"over all files and {readable(took, Unit.MS)} {way}: {times(without / took)} as "
        "fast."
    )


def by_case(result: Sequence[Contest]) -> dict[tuple[str, str], list[Contest]]:
    """Contests of one figure and case together, in their order."""
    groups: dict[tuple[str, str], list[Contest]] = {}
    for contest in result:
        groups.setdefault((contest.figure.name, contest.case), []).append(contest)
    return groups


def cell_name(record: Record, cell: Cell) -> str:
    """A cell by its figure's title and its labels."""
    figure = next((one for one in record.figures if one.name == cell.figure), None)
    if figure is None:
        return cell.figure
    return ": ".join(text for text in (figure.title, labels_name(figure, cell)) if text)


def labels_name(figure: Figure, cell: Cell) -> str:
    """All labels of a cell in words."""
    named = (case_name(figure, cell), place_name(figure, cell))
    return ", ".join(text for text in named if text)


def case_name(figure: Figure, cell: Cell) -> str:
    """All labels of a cell but the one on x, in words; a change has its size once."""
    size = [name for name in SIZES if name in cell.labels]
    hidden = {STRATEGY, figure.chart.x, *(size if figure.chart.x in SIZES else size[1:])}
    return ", ".join(named(name, cell.labels[name]) for name in cell.labels if name not in hidden)


def place_name(figure: Figure, cell: Cell) -> str:
    """The label on x, in words."""
    name = figure.chart.x
    return named(name, cell.labels[name]) if name in cell.labels else ""


def _contest(record: Record, figure: Figure, cell: Cell, ours: Metric, other: Metric) -> Contest:
    case, place = case_name(figure, cell), place_name(figure, cell)
    band = time_band(ours, other, record.noise_of(figure.name))
    ratio = other.median / ours.median
    return Contest(figure, cell, case, place, ratio, band, side_of(ours, other, band))


def _without_strategy(cell: Cell) -> tuple[tuple[str, Label], ...]:
    return tuple(item for item in cell.labels.items() if item[0] != STRATEGY)


def _are_amounts(*metrics: Metric | None) -> bool:
    """Are all there, finite and above zero?"""
    return all(one is not None and math.isfinite(one.median) and one.median > 0 for one in metrics)
