"""Two ways to one result: which is faster, and from which size of a change on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from impctl.bench.quantity import Unit, is_number, named, number, readable, times
from impctl.bench.timing import side_of, time_band

if TYPE_CHECKING:
    from impctl.bench.record import Cell, Figure, Label, Metric, Record


# Law: a ratio compares two medians of one figure, so of one run on one machine. Wins and losses
# follow the rule of record comparison (`band`), with the figure's noise.

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
"""The label for how a whole workload was run."""

MAINTAINED, RECAPTURED, UNUSED = "incremental", "recapture", "none"
"""Values of that label: sketches maintained, recaptured, or not used."""

# Break-even: the size of a change from which recapture is cheaper. Law: between measured sizes
# costs are straight lines on logarithmic axes; beyond them only the side is reported (`beyond`,
# `before`). Of several crossings the first counts, which favors recapture.

SIZES = ("changes", "share")
"""Labels for the size of a change: rows, and their share of the table."""


class BreakEven(Struct, frozen=True):
    """Break-even of one series, in the label `size`: the share of the table, else changed rows.
    Exactly one is set: `at`, where the costs cross; `beyond`, the largest size measured, if
    maintaining is always cheaper; `before`, the smallest, if it never is."""

    figure: str
    labels: Mapping[str, Label]
    size: str
    at: float | None = None
    beyond: float | None = None
    before: float | None = None


def break_evens(record: Record, *, other: str = RECAPTURE) -> tuple[BreakEven, ...]:
    """Break-evens of every series of every figure that varies the size of a change. Maintaining is
    compared with the metric `other`."""
    result: list[BreakEven] = []
    for figure in record.figures:
        cells = [
            cell
            for cell in record.cells_of(figure.name)
            if {MAINTAIN, other} <= cell.metrics.keys() and "changes" in cell.labels
        ]
        size = "share" if all("share" in cell.labels for cell in cells) else "changes"
        series: dict[tuple[tuple[str, Label], ...], list[Cell]] = {}
        for cell in cells:
            key = tuple(item for item in cell.labels.items() if item[0] not in SIZES)
            series.setdefault(key, []).append(cell)
        result += [
            _break_even(figure.name, dict(key), size, members, other)
            for key, members in series.items()
            if len(members) > 1
        ]
    return tuple(result)


def _break_even(
    figure: str, labels: Mapping[str, Label], size: str, cells: Sequence[Cell], other: str
) -> BreakEven:
    points = sorted(
        (float(cell.labels[size]), cell.metrics[MAINTAIN].median / cell.metrics[other].median)
        for cell in cells
    )
    if points[0][1] > 1:
        return BreakEven(figure, labels, size, before=points[0][0])
    for (left, low), (right, high) in zip(points, points[1:], strict=False):
        if high > 1:
            return BreakEven(figure, labels, size, at=_crossing(left, low, right, high))
    return BreakEven(figure, labels, size, beyond=points[-1][0])


def _crossing(left: float, low: float, right: float, high: float) -> float:
    """The size at which the ratio of the costs is 1, by interpolation of logarithms."""
    low, high = math.log(low), math.log(high)
    part = -low / (high - low)
    return math.exp(math.log(left) + part * (math.log(right) - math.log(left)))


class WayComparison(Struct, frozen=True):
    """`ratio` is how many times as fast `ours` was as `other`; differences within `band` mean
    nothing. `case` are the labels except the one on x, which is `place`. `side` is 1 if `ours` was
    faster, -1 if slower, 0 if noise or the spread of the runs may explain the difference."""

    figure: Figure
    cell: Cell
    case: str
    place: str
    ratio: float
    band: float
    side: int

    @property
    def is_won(self) -> bool:
        """Faster, beyond the noise."""
        return self.side > 0

    @property
    def is_lost(self) -> bool:
        """Slower, beyond the noise."""
        return self.side < 0

    @property
    def name(self) -> str:
        return ", ".join(filter(None, (self.case, self.place)))

    @property
    def full_name(self) -> str:
        return f"{self.figure.title}: {self.name}" if self.name else self.figure.title


def comparisons(record: Record, ours: str, other: str) -> tuple[WayComparison, ...]:
    """Compare the two metrics in every cell that has both, in the record's order."""
    return tuple(
        _contest(record, figure, cell, cell.metrics[ours], cell.metrics[other])
        for figure in record.figures
        for cell in record.cells_of(figure.name)
        if _are_amounts(cell.metrics.get(ours), cell.metrics.get(other))
    )


def workload_contests(record: Record, other: str) -> tuple[WayComparison, ...]:
    """Compare whole workloads: cells with maintained sketches and those of another strategy."""
    result = []
    for figure in record.figures:
        cells = record.cells_of(figure.name)
        other_cells = {_without_strategy(c): c for c in cells if c.labels.get(STRATEGY) == other}
        for cell in cells:
            partner = other_cells.get(_without_strategy(cell))
            if cell.labels.get(STRATEGY) != MAINTAINED or partner is None:
                continue
            if _are_amounts(cell.metrics.get(TOTAL), partner.metrics.get(TOTAL)):
                pair = cell.metrics[TOTAL], partner.metrics[TOTAL]
                result.append(_contest(record, figure, cell, *pair))
    return tuple(result)


def median_ratio(result: Sequence[WayComparison]) -> float:
    """The median ratio."""
    return statistics.median(contest.ratio for contest in result)


def extreme_ratios(result: Sequence[WayComparison]) -> tuple[WayComparison, WayComparison]:
    """The contests with the least and the greatest ratio."""
    ratio = attrgetter("ratio")
    return min(result, key=ratio), max(result, key=ratio)


def total_words(result: Sequence[WayComparison], ours: str, other: str, name: str) -> str:
    """A sentence on the total times; `way` is how `ours` answers. Empty for one contest."""
    if len(result) < 2:
        return ""
    took = sum(contest.cell.metrics[ours].median for contest in result)
    without = sum(contest.cell.metrics[other].median for contest in result)
    return (
        f"All {number(len(result))} together took {readable(without, Unit.MS)} with Spark "
        f"over all files and {readable(took, Unit.MS)} {name}: {times(without / took)} as "
        "fast."
    )


def by_case(result: Sequence[WayComparison]) -> dict[tuple[str, str], list[WayComparison]]:
    """Group contests by figure and case, in their order."""
    groups: dict[tuple[str, str], list[WayComparison]] = {}
    for contest in result:
        groups.setdefault((contest.figure.name, contest.case), []).append(contest)
    return groups


def cell_name(record: Record, cell: Cell) -> str:
    """The title of the cell's figure and its labels."""
    figure = next((figure for figure in record.figures if figure.name == cell.figure), None)
    if figure is None:
        return cell.figure
    return ": ".join(filter(None, (figure.title, labels_name(figure, cell))))


def labels_name(figure: Figure, cell: Cell) -> str:
    """All labels of a cell in words."""
    return ", ".join(filter(None, (case_name(figure, cell), place_name(figure, cell))))


def case_name(figure: Figure, cell: Cell) -> str:
    """The labels of a cell except the one on x, in words; the size of a change once."""
    size = [name for name in SIZES if name in cell.labels]
    hidden = {STRATEGY, figure.chart.x, *(size if figure.chart.x in SIZES else size[1:])}
    return ", ".join(named(name, cell.labels[name]) for name in cell.labels if name not in hidden)


def place_name(figure: Figure, cell: Cell) -> str:
    """The label on x, in words."""
    name = figure.chart.x
    return named(name, cell.labels[name]) if name in cell.labels else ""


def _contest(
    record: Record, figure: Figure, cell: Cell, ours: Metric, other: Metric
) -> WayComparison:
    case, case_place = case_name(figure, cell), place_name(figure, cell)
    band = time_band(ours, other, record.noise_of(figure.name))
    ratio = other.median / ours.median
    return WayComparison(figure, cell, case, case_place, ratio, band, side_of(ours, other, band))


def _without_strategy(cell: Cell) -> tuple[tuple[str, Label], ...]:
    return tuple(item for item in cell.labels.items() if item[0] != STRATEGY)


def _are_amounts(*metrics: Metric | None) -> bool:
    """Whether all exist and are finite and positive."""
    return all(
        metric is not None and math.isfinite(metric.median) and metric.median > 0
        for metric in metrics
    )


# Break-even in words: `3.2 % (160,000 changes)`, or its side of the measured sizes. Law: two
# digits, since it is interpolated; only cases with positive costs and sizes count.


class _Case(Struct, frozen=True):
    """A series with its figure and one of its cells."""

    even: BreakEven
    figure: Figure
    cell: Cell

    @property
    def text(self) -> str:
        return _break_even_text(self.even, self.cell, self.figure.chart.x)

    @property
    def short_text(self) -> str:
        """The break-even in one size: the share of the table if known."""
        side, amount = self.place
        texts = _size_texts(self.even.size, amount, self.cell)
        return ("below ", "", "above ")[side] + texts.get("share", texts[self.even.size])

    @property
    def place(self) -> tuple[int, float]:
        """0 below what was measured, 1 at a crossing, 2 above it; and the size."""
        sides = (self.even.before, self.even.at, self.even.beyond)
        return next((side, amount) for side, amount in enumerate(sides) if amount is not None)


def break_even_words(record: Record, other: str = RECAPTURE) -> dict[tuple[str, str], str]:
    """Break-even in words, by figure and case; `other` is the metric compared with maintaining.
    Cells without a place on an axis are ignored."""
    return {
        (case.figure.name, case_name(case.figure, case.cell)): case.text
        for case in _cases(record, other)
    }


def earliest_break_even(record: Record) -> tuple[str, str] | None:
    """The earliest break-even with recapture in words, and where it is; None without any."""
    cases = _cases(record, RECAPTURE)
    if not cases:
        return None
    # Of equal sides, shares come first, because they are comparable.
    first = min(cases, key=lambda case: (case.place[0], case.even.size != "share", case.place[1]))
    name = case_name(first.figure, first.cell)
    where = f"{first.figure.title}: {name}" if name else first.figure.title
    if first.even.beyond is not None:
        where = "above every measured change"
    return first.short_text, where


def _cases(record: Record, other: str) -> list[_Case]:
    known = replace(record, cells=tuple(cell for cell in record.cells if _has_costs(cell, other)))
    figures = {figure.name: figure for figure in record.figures}
    result = []
    for even in break_evens(known, other=other):
        figure = figures[even.figure]
        if figure.chart.x in SIZES:
            cells = record.cells_of(even.figure)
            cell = next(
                even_cell for even_cell in cells if even.labels.items() <= even_cell.labels.items()
            )
            result.append(_Case(even, figure, cell))
    return result


def _has_costs(cell: Cell, other: str) -> bool:
    """Whether both costs and the size of the change are positive amounts."""
    costs = [cell.metrics[name].median for name in (MAINTAIN, other) if name in cell.metrics]
    sizes = [cell.labels[name] for name in SIZES if name in cell.labels]
    return all(is_number(amount) and amount > 0 for amount in (*costs, *sizes))


def _break_even_text(even: BreakEven, cell: Cell, axis: str) -> str:
    """A crossing in every unit; a limit of what was measured in the unit of the axis."""
    if even.at is not None:
        first, *others = _size_texts(even.size, even.at, cell).values()
        return f"{first} ({others[0]})" if others else first
    for sign, amount in (("above", even.beyond), ("below", even.before)):
        if amount is not None:
            return f"{sign} {_size_texts(even.size, amount, cell)[axis]}"
    return ""


def _size_texts(size: str, amount: float, cell: Cell) -> dict[str, str]:
    """`3.2 %` and `160,000 changes`, by label: both if the cell has both sizes."""
    amounts = {size: amount}
    changes, share = (cell.labels.get(name) for name in SIZES)
    if is_number(changes) and is_number(share):
        rows, part = ("changes", amount * changes / share), ("share", amount * share / changes)
        amounts.update([part] if size == "changes" else [rows])
    return {name: _size_text(name, amounts[name]) for name in reversed(SIZES) if name in amounts}


def _size_text(name: str, amount: float) -> str:
    amount = float(f"{amount:.2g}")
    if name == "share":
        return readable(amount, Unit.SHARE)
    return f"{number(amount)} changes"
