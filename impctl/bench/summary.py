"""What a record says in words: speed-ups, break-even, savings of sketches, and where they lose.

Law: every sentence is computed from cells; losses are stated as plainly as wins, and a wrong answer
comes before any number.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec import Struct

from impctl.bench.quantity import (
    Unit,
    is_number,
    label_text,
    metric_text,
    named,
    number,
    plain_name,
    readable,
    spread_text,
    times,
    unit_of,
)
from impctl.bench.record import UNSTEADY, band_of, side_of
from impctl.errors import count_text

if TYPE_CHECKING:
    from impctl.bench.record import Cell, Figure, Label, Metric, Record

# Two ways to one result. Law: a ratio compares two medians of one figure, so of one run on one
# machine. Wins and losses follow the rule of record comparison (`band_of`), with the figure's
# noise.

SIZES = ("changes", "share")
"""Labels for the size of a change: rows, and their share of the table."""


PAIRS = {
    ("maintain_ms", "recapture_ms"): ("over recapture", "Recapture was faster than maintaining"),
    ("maintain_ms", "duckdb_ms"): ("over recapture in DuckDB", "Recapture in DuckDB was faster"),
    ("sketch_ms", "plain_ms"): (
        "of the query with its sketch",
        "The query was slower with its sketch",
    ),
    ("sketch_ms", "pruned_ms"): (
        "of that over statistics alone",
        "The query was slower with its sketch than with statistics alone",
    ),
    ("sketch_ms", "view_ms"): (
        "of that over a manually maintained view",
        "A manually maintained view was faster than the sketch",
    ),
    ("sketch_ms", "duckdb_plain_ms"): (
        "of that over DuckDB",
        "The query in DuckDB was faster than Spark with the sketch",
    ),
    ("duckdb_sketch_ms", "duckdb_plain_ms"): (
        "of DuckDB with the sketch",
        "The query in DuckDB was slower with the sketch",
    ),
    ("state_ms", "view_ms"): (
        "of the materialized result over a manually maintained view",
        "A manually maintained view was faster than the materialized result",
    ),
    ("state_ms", "duckdb_plain_ms"): (
        "",
        "The query in DuckDB was faster than the materialized result",
    ),
    ("by_engine_ms", "duckdb_plain_ms"): (
        "of the engine with the sketch over DuckDB",
        "The query in DuckDB was faster than the engine with the sketch",
    ),
    ("by_engine_ms", "sketch_ms"): ("", "With the sketch, Spark was faster than the engine"),
    ("tree_ms", "index_ms"): (
        "of the tree over the index join",
        "The index join was faster than the tree",
    ),
    ("tree_ms", "duckdb_ms"): (
        "of the tree over running DuckDB again",
        "Running the query again in DuckDB was faster than a step of the tree",
    ),
}
"""Metrics to compare, ours first; what a speed-up is of, where figures show it, and what a report
says if the other was faster."""


class Contest(Struct, frozen=True):
    """`ratio` is how many times as fast our way was as the other; differences within `band` mean
    nothing. `case` are the labels except the one on x, which is `place`. `side` is 1 if our way was
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
    def full_name(self) -> str:
        return _full_name(self.figure, ", ".join(filter(None, (self.case, self.place))))


def contests(record: Record, ours: str, other: str) -> tuple[Contest, ...]:
    """Compare our metric with the other in every cell that has both, in the record's order."""
    result = []
    for figure in record.figures:
        for cell in record.cells_of(figure.name):
            mine, theirs = cell.metrics.get(ours), cell.metrics.get(other)
            if mine is None or theirs is None or not (_is_amount(mine) and _is_amount(theirs)):
                continue
            band = band_of(ours, mine, theirs, record.noise_of(figure.name))
            names = case_name(figure, cell), place_name(figure, cell)
            ratio, side = theirs.median / mine.median, side_of(mine, theirs, band)
            result.append(Contest(figure, cell, *names, ratio, band, side))
    return tuple(result)


def _is_amount(metric: Metric) -> bool:
    return math.isfinite(metric.median) and metric.median > 0


def median_ratio(group: Sequence[Contest]) -> float:
    return statistics.median(contest.ratio for contest in group)


def extreme_ratios(group: Sequence[Contest]) -> tuple[Contest, Contest]:
    """The contests with the least and the greatest ratio."""
    ratio = attrgetter("ratio")
    return min(group, key=ratio), max(group, key=ratio)


def range_text(group: Sequence[Contest]) -> str:
    """Least to greatest ratio with the median: `3.9× to 2,497×, median 180×`."""
    least, most = extreme_ratios(group)
    if len(group) == 1 or times(least.ratio) == times(most.ratio):
        return times(median_ratio(group))
    return f"{times(least.ratio)} to {times(most.ratio)}, median {times(median_ratio(group))}"


def by_case(group: Sequence[Contest]) -> dict[tuple[str, str], list[Contest]]:
    """Group contests by figure and case, in their order."""
    cases: dict[tuple[str, str], list[Contest]] = {}
    for contest in group:
        cases.setdefault((contest.figure.name, contest.case), []).append(contest)
    return cases


def cell_name(record: Record, cell: Cell) -> str:
    """The title of the cell's figure and its labels."""
    figure = next((figure for figure in record.figures if figure.name == cell.figure), None)
    return cell.figure if figure is None else _full_name(figure, labels_name(figure, cell))


def _full_name(figure: Figure, name: str) -> str:
    return f"{figure.title}: {name}" if name else figure.title


def labels_name(figure: Figure, cell: Cell) -> str:
    """All labels of a cell in words."""
    return ", ".join(filter(None, (case_name(figure, cell), place_name(figure, cell))))


def case_name(figure: Figure, cell: Cell) -> str:
    """The labels of a cell except the one on x, in words; the size of a change once."""
    size = [name for name in SIZES if name in cell.labels]
    hidden = {"strategy", figure.chart.x, *(size if figure.chart.x in SIZES else size[1:])}
    return ", ".join(named(name, cell.labels[name]) for name in cell.labels if name not in hidden)


def place_name(figure: Figure, cell: Cell) -> str:
    """The label on x, in words."""
    name = figure.chart.x
    return named(name, cell.labels[name]) if name in cell.labels else ""


# A figure as a table. Law: for a terminal it has only labels that differ within the figure and the
# metrics of its chart, with ratios; its words are those of the page.


class FigureColumn(Struct, frozen=True):
    """A column; a field is its text, empty for none, and the range beside it. `kind` is `label`,
    `metric`, `check`, `note`, or empty; numbers stand to the right."""

    name: str
    kind: str
    is_right: bool
    fields: tuple[tuple[str, str], ...]


def label_column(name: str, cells: Sequence[Cell]) -> FigureColumn:
    is_right = all(is_number(cell.labels[name]) for cell in cells if name in cell.labels)
    texts = [label_text(name, cell.labels[name]) if name in cell.labels else "" for cell in cells]
    return FigureColumn(plain_name(name), "label", is_right, tuple((text, "") for text in texts))


def metric_column(name: str, cells: Sequence[Cell]) -> FigureColumn:
    unit = unit_of(name)
    fields = tuple(
        (readable(metric.median, unit), spread_text(metric, unit)) if metric else ("", "")
        for metric in (cell.metrics.get(name) for cell in cells)
    )
    return FigureColumn(plain_name(name), "metric", True, fields)


class FigureTable(Struct, frozen=True):
    """A figure's table. `break_evens` are cases with their break-even; the name of the only case
    may be empty."""

    figure: Figure
    columns: tuple[FigureColumn, ...]
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
            *(label_column(name, cells) for name in _labels(figure, cells)),
            *(metric_column(name, cells) for name in _metrics(figure, cells)),
        )
        cases = tuple((case, text) for (name, case), text in evens.items() if name == figure.name)
        tables.append(FigureTable(figure, columns, cases))
    return tuple(tables)


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


# Break-even: the size of a change from which recapture is cheaper. Law: between measured sizes
# costs are straight lines on logarithmic axes; beyond them only the side is reported. Of several
# crossings the first counts, which favors recapture. Only cases with positive costs and sizes
# count. Texts have two digits, since the size is interpolated.


class BreakEven(Struct, frozen=True):
    """Break-even of one series, which has `cell`, in the label `size`: the share of the table, else
    changed rows. `side` is 0 if the costs cross at `amount`; 1 if maintaining is always cheaper, up
    to the largest size measured; -1 if it never is, not even at the smallest."""

    figure: Figure
    cell: Cell
    size: str
    side: int
    amount: float

    @property
    def case(self) -> str:
        return case_name(self.figure, self.cell)

    @property
    def text(self) -> str:
        """A crossing in every unit: `3.2 % (160,000 changes)`; a limit of what was measured in the
        unit of the axis."""
        texts = self._texts()
        if self.side:
            return f"{'above' if self.side > 0 else 'below'} {texts[self.figure.chart.x]}"
        first, *others = texts.values()
        return f"{first} ({others[0]})" if others else first

    @property
    def short_text(self) -> str:
        """The break-even in one size: the share of the table if known."""
        texts = self._texts()
        return ("", "above ", "below ")[self.side] + texts.get("share", texts[self.size])

    def _texts(self) -> dict[str, str]:
        """`3.2 %` and `160,000 changes`, by label: both if the cell has both sizes."""
        amounts = {self.size: self.amount}
        changes, share = (self.cell.labels.get(name) for name in SIZES)
        if is_number(changes) and is_number(share):
            if self.size == "changes":
                amounts["share"] = self.amount * share / changes
            else:
                amounts["changes"] = self.amount * changes / share
        return {n: _size_text(n, amounts[n]) for n in reversed(SIZES) if n in amounts}


def break_evens(record: Record, other: str = "recapture_ms") -> tuple[BreakEven, ...]:
    """Break-evens of every series of every figure over the size of a change. Maintaining is
    compared with the metric `other`."""
    result: list[BreakEven] = []
    for figure in record.figures:
        if figure.chart.x not in SIZES:
            continue
        cells = [cell for cell in record.cells_of(figure.name) if _has_costs(cell, other)]
        size = "share" if all("share" in cell.labels for cell in cells) else "changes"
        series: dict[tuple[tuple[str, Label], ...], list[Cell]] = {}
        for cell in cells:
            key = tuple(item for item in cell.labels.items() if item[0] not in SIZES)
            series.setdefault(key, []).append(cell)
        for members in series.values():
            if len(members) > 1:
                side, amount = _side_and_amount(size, members, other)
                result.append(BreakEven(figure, members[0], size, side, amount))
    return tuple(result)


def break_even_words(record: Record, other: str = "recapture_ms") -> dict[tuple[str, str], str]:
    """Break-even in words, by figure and case."""
    return {(even.figure.name, even.case): even.text for even in break_evens(record, other)}


def earliest_break_even(record: Record) -> tuple[str, str] | None:
    """The earliest break-even with recapture in words, and where it is; None without any."""
    evens = break_evens(record)
    if not evens:
        return None
    # Of equal sides, shares come first, because they are comparable.
    first = min(evens, key=lambda even: (even.side, even.size != "share", even.amount))
    if first.side > 0:
        return first.short_text, "above every measured change"
    return first.short_text, _full_name(first.figure, first.case)


def _has_costs(cell: Cell, other: str) -> bool:
    """Whether both costs and the size of the change are positive amounts."""
    if not {"maintain_ms", other} <= cell.metrics.keys() or "changes" not in cell.labels:
        return False
    costs = [cell.metrics[name].median for name in ("maintain_ms", other)]
    sizes = [cell.labels[name] for name in SIZES if name in cell.labels]
    return all(is_number(amount) and amount > 0 for amount in (*costs, *sizes))


def _side_and_amount(size: str, cells: Sequence[Cell], other: str) -> tuple[int, float]:
    points = sorted(
        (float(cell.labels[size]), cell.metrics["maintain_ms"].median / cell.metrics[other].median)
        for cell in cells
    )
    if points[0][1] > 1:
        return -1, points[0][0]
    for (left, low), (right, high) in zip(points, points[1:], strict=False):
        if high > 1:
            # Where the ratio of the costs is 1, by interpolation of logarithms.
            part = -math.log(low) / (math.log(high) - math.log(low))
            return 0, math.exp(math.log(left) + part * (math.log(right) - math.log(left)))
    return 1, points[-1][0]


def _size_text(name: str, amount: float) -> str:
    amount = float(f"{amount:.2g}")
    if name == "share":
        return readable(amount, Unit.SHARE)
    return f"{number(amount)} changes"


# The numbers to remember. Law: a speed-up that depends on the size of a change is reported at one
# size, never over all: else the choice of sizes would determine it.

_USUAL = 1000
"""Changed rows that the papers' figures have in common."""


class Headline(Struct, frozen=True):
    """A number to remember, its meaning, and where it holds."""

    value: str
    meaning: str
    where: str


def headlines(
    record: Record, maintained: Sequence[Contest], used: Sequence[Contest]
) -> tuple[Headline, ...]:
    """Headlines on maintenance by size, break-even, queries with sketches, and checks."""
    result = []
    for words, group in by_size(maintained).items():
        at_size = f" at {words}" if words else ""
        meaning = f"median speed-up of maintaining a sketch over recapturing it{at_size}"
        result.append(_speed_up(group, meaning))
    if even := earliest_break_even(record):
        meaning = "size of a change above which recapture is faster, in the worst case"
        result.append(Headline(even[0], meaning, even[1]))
    if used:
        result.append(_speed_up(used, "median speed-up of a query with its sketch"))
    checked = [cell for cell in record.cells if cell.covers is not None]
    if checked:
        right = f"{number(sum(cell.covers is True for cell in checked))} of {number(len(checked))}"
        meaning = "sketches covered the recaptured sketch"
        result.append(Headline(right, meaning, slack_words(checked)))
    return tuple(result)


def by_size(group: Sequence[Contest]) -> dict[str, list[Contest]]:
    """Contests at the usual number of changed rows, and at the largest change if it differs, by
    that size in words; all of them if none has a size."""
    if not group:
        return {}
    sizes: dict[str, list[Contest]] = {}
    if counts := Counter(_amounts(group, "changes")):
        usual = _USUAL if _USUAL in counts else max(counts, key=lambda size: counts[size])
        sizes[named("changes", usual)] = _at_size(group, "changes", usual)
    # The largest share of a table, or number of changed rows if no share is known.
    for label in reversed(SIZES):
        if amounts := _amounts(group, label):
            largest = _at_size(group, label, max(amounts))
            if largest not in sizes.values():
                sizes[named(label, max(amounts))] = largest
            break
    return sizes or {"": list(group)}


def slack_words(cells: Sequence[Cell]) -> str:
    """How many of these sketches are larger than needed."""
    loose = sum(bool(cell.slack) for cell in cells)
    return "none with slack" if loose == 0 else f"{number(loose)} with slack"


def _speed_up(group: Sequence[Contest], meaning: str) -> Headline:
    least, most = extreme_ratios(group)
    span = f"from {times(least.ratio)} to {times(most.ratio)}, {number(len(group))} measured"
    return Headline(times(median_ratio(group)), meaning, span if len(group) > 1 else "one measured")


def _at_size(group: Sequence[Contest], label: str, amount: float) -> list[Contest]:
    return [contest for contest in group if _amount(contest, label) == amount]


def _amounts(group: Sequence[Contest], label: str) -> list[float]:
    amounts = (_amount(contest, label) for contest in group)
    return [amount for amount in amounts if amount is not None]


def _amount(contest: Contest, label: str) -> float | None:
    amount = contest.cell.labels.get(label)
    if not is_number(amount):
        return None
    # Tables of one suite differ a little in rows: one share of each has two digits in common.
    return float(f"{amount:.2g}") if label == "share" else amount


# Where a sketch does not pay. Law: every loss beyond the noise is reported or counted; a winner is
# never mentioned here.

_LISTED = 6
"""Maximum cases listed per sentence: the tables have all of them."""


def losses(record: Record) -> tuple[str, ...]:
    """A sentence for each case where a sketch lost, then slack and state."""
    lost = (text for pair, (_, says) in PAIRS.items() for text in _loss_texts(record, pair, says))
    return (*lost, *_undecided_losses(record), *_slack(record), *_state(record))


def _undecided_losses(record: Record) -> list[str]:
    """Slower, but within the noise: neither lost nor won, but to be reported."""
    pairs = ("maintain_ms", "recapture_ms"), ("sketch_ms", "plain_ms"), ("sketch_ms", "pruned_ms")
    close = [contest for pair in pairs for contest in contests(record, *pair)]
    slower = [contest for contest in close if contest.ratio < 1 and not contest.is_lost]
    if not slower:
        return []
    worst, _ = extreme_ratios(slower)
    return [
        f"Not decided: {count_text(len(slower), 'cell')} slower with a sketch, but within the "
        f"noise or the spread of the runs. The slowest was {times(worst.ratio)} as fast "
        f"({worst.full_name}), where equal work may take {readable(worst.band, Unit.SHARE)} "
        "longer."
    ]


def _loss_texts(record: Record, pair: tuple[str, str], says: str) -> list[str]:
    """A sentence for each figure with a loss: its cases and the worst of each."""
    figures: dict[Figure, list[str]] = {}
    for (_, case), group in by_case(contests(record, *pair)).items():
        lost_contests = [contest for contest in group if contest.is_lost]
        if lost_contests:
            worst = min(lost_contests, key=lambda contest: contest.ratio)
            place = f" at {worst.place}" if len(lost_contests) > 1 else ""
            text = f"{_where(group, lost_contests)} ({times(worst.ratio)} as fast{place})"
            figures.setdefault(worst.figure, []).append(f"{case} {text}" if case else text)
    return [f"{says} in “{figure.title}”: {_listed(cases)}." for figure, cases in figures.items()]


def _listed(cases: Sequence[str]) -> str:
    omitted = len(cases) - _LISTED
    more = [f"and {omitted} more in its table"] if omitted > 0 else []
    return "; ".join([*cases[:_LISTED], *more])


def _where(group: Sequence[Contest], losing: Sequence[Contest]) -> str:
    """`from 100,000 changes on` if every larger x is lost too, else the places themselves."""
    name = losing[0].figure.chart.x
    if len(losing) == len(group) > 1:
        return "everywhere"
    if len(losing) == len(group):
        return f"at {losing[0].place}" if losing[0].place else "there"
    if all(is_number(contest.cell.labels.get(name)) for contest in group):
        in_order = sorted(group, key=lambda contest: float(contest.cell.labels[name]))
        ending = in_order[-len(losing) :]
        if all(contest.is_lost for contest in ending) and len(losing) > 1:
            return f"from {ending[0].place} on"
    places = [contest.place for contest in losing]
    return f"at {' and '.join(places) if len(places) < 3 else ', '.join(places[:_LISTED])}"


def _slack(record: Record) -> list[str]:
    loose = [(cell.slack, cell) for cell in record.cells if cell.slack]
    if not loose:
        return []
    slack, cell = max(loose, key=lambda pair: pair[0])
    return [
        f"Sketches larger than needed: {count_text(len(loose), 'cell')} with slack, the most "
        f"{count_text(slack, 'range')} ({cell_name(record, cell)}). "
        "A sketch with slack is correct, but skips less."
    ]


def _state(record: Record) -> list[str]:
    metrics = ((cell.metrics.get("state_bytes"), cell) for cell in record.cells)
    sizes = [(metric.median, cell) for metric, cell in metrics if metric and _is_amount(metric)]
    if not sizes:
        return []
    size, cell = max(sizes, key=lambda pair: pair[0])
    return [
        f"State is stored: at most {metric_text('state_bytes', size)} "
        f"({cell_name(record, cell)}). If that is too much, recapture stores none."
    ]


# The summary itself.

_VALUES = 6
"""Maximum values of a label to list."""


class Section(Struct, frozen=True):
    """A heading with paragraphs, points and a table; `numbers` are columns of numbers."""

    title: str
    paragraphs: tuple[str, ...]
    points: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


class Summary(Struct, frozen=True):
    """`alarms` are wrong answers: nothing else counts while there is one."""

    alarms: tuple[str, ...]
    headlines: tuple[Headline, ...]
    sections: tuple[Section, ...]


def summarize(record: Record) -> Summary:
    """Summarize a record."""
    maintained = contests(record, "maintain_ms", "recapture_ms")
    used = contests(record, "sketch_ms", "plain_ms")
    sections = [
        _unsteady(record),
        _maintaining(maintained),
        _using(used),
        _when_not(record),
        _checks(record),
        Section("What could not be measured", (), record.failures) if record.failures else None,
        _cases(record, maintained),
    ]
    return Summary(
        _alarms(record),
        headlines(record, maintained, used),
        tuple(section for section in sections if section is not None),
    )


def _unsteady(record: Record) -> Section | None:
    """A warning before any number, if noise could explain most of them."""
    if not math.isfinite(record.noise) or record.noise < UNSTEADY:
        return None
    text = (
        f"A fixed piece of work took as much as {times(1 + record.noise)} its fastest time "
        "during this run. Speed-ups smaller than the noise around their figure are not counted as "
        "won or lost. Measure again on an idle machine."
    )
    return Section("The machine was not steady", (text,))


def _maintaining(group: Sequence[Contest]) -> Section | None:
    if not group:
        return None
    least, most = extreme_ratios(group)
    medians = " and ".join(
        f"{times(median_ratio(group))}{f' at {words}' if words else ''}"
        for words, group in by_size(group).items()
    )
    text = (
        f"Maintaining was faster than recapture in {_won_of(group)}. The median speed-up is "
        f"{medians}. The greatest is {times(most.ratio)} ({most.full_name}), the least "
        f"{times(least.ratio)} ({least.full_name})."
    )
    return Section("Maintaining compared with recapture", (text,))


def _cases(record: Record, group: Sequence[Contest]) -> Section | None:
    """Every case with its break-even: the size of a change above which recapture is faster."""
    if not group:
        return None
    evens = {"Break-even": break_even_words(record)}
    if duckdb := break_even_words(record, "duckdb_ms"):
        evens["with DuckDB"] = duckdb
    heads = ("Figure", "Case", *evens, "Median", "Least", "at", "Greatest", "at")
    # What to look for stands where a narrow screen still has it.
    rows = tuple(
        (
            group[0].figure.title,
            group[0].case,
            *(even.get(key, "") for even in evens.values()),
            *_speed_ups(group),
        )
        for key, group in by_case(group).items()
    )
    numbers = tuple(2 + len(evens) + column for column in (0, 1, 3))
    text = (
        "Break-even is the size of a change above which recapture is faster, as a share of "
        "its table or in rows. “Above” means that it is larger than every measured change. "
        "The others are speed-ups of maintaining over recapture, at the sizes of a case."
    )
    return Section("Case by case", (text,), (), heads, numbers, rows)


def _speed_ups(group: Sequence[Contest]) -> tuple[str, ...]:
    """Median, least and greatest over the sizes of one case."""
    least, most = extreme_ratios(group)
    several = len(group) > 1
    return (
        times(median_ratio(group)),
        times(least.ratio),
        least.place if several else "",
        times(most.ratio),
        most.place if several else "",
    )


def _using(group: Sequence[Contest]) -> Section | None:
    if not group:
        return None
    text = f"With its sketch, a query was faster in {_won_of(group)}; speed-up {range_text(group)}."
    total = _total_words(group)
    points = []
    for name in _text_labels(group):
        for value in dict.fromkeys(contest.cell.labels[name] for contest in group):
            equal = [contest for contest in group if contest.cell.labels[name] == value]
            points.append(f"{named(name, value)}: {range_text(equal)}{_undecided(equal)}.")
    texts = (text, total) if total else (text,)
    return Section("What a sketch saves a query", texts, tuple(points))


def _total_words(group: Sequence[Contest]) -> str:
    """A sentence on the total times; empty for one contest."""
    if len(group) < 2:
        return ""
    took = sum(contest.cell.metrics["sketch_ms"].median for contest in group)
    without = sum(contest.cell.metrics["plain_ms"].median for contest in group)
    return (
        f"All {number(len(group))} together took {readable(without, Unit.MS)} with Spark "
        f"over all files and {readable(took, Unit.MS)} with their sketches: "
        f"{times(without / took)} as fast."
    )


def _text_labels(group: Sequence[Contest]) -> list[str]:
    """Text labels that every contest has, with a few values."""
    names = []
    for name in group[0].cell.labels:
        values = {contest.cell.labels.get(name) for contest in group}
        if 2 <= len(values) <= _VALUES and not any(v is None or is_number(v) for v in values):
            names.append(name)
    return names


def _when_not(record: Record) -> Section | None:
    if not record.cells:
        return None
    points = losses(record)
    calm = "No measurement here is against a sketch: no loss and no slack."
    return Section("When not to use a sketch", () if points else (calm,), points)


def _checks(record: Record) -> Section | None:
    checked = [cell for cell in record.cells if cell.covers is not None]
    compared = [cell for cell in record.cells if cell.equal is not None]
    if not checked and not compared:
        return None
    texts = []
    if checked:
        right = sum(cell.covers is True for cell in checked)
        texts.append(
            f"{number(right)} of {number(len(checked))} sketches covered recapture; "
            f"{slack_words(checked)}."
        )
    if compared:
        same = sum(cell.equal is True for cell in compared)
        texts.append(
            f"{number(same)} of {number(len(compared))} results with a sketch were equal to "
            "those without."
        )
    return Section("Checked answers", (" ".join(texts),))


def _alarms(record: Record) -> tuple[str, ...]:
    missing = [cell_name(record, cell) for cell in record.cells if cell.covers is False]
    unequal = [cell_name(record, cell) for cell in record.cells if cell.equal is False]
    return (
        *(f"The sketch did not cover recapture: {name}." for name in missing),
        *(f"The result with the sketch was different: {name}." for name in unequal),
    )


def _undecided(group: Sequence[Contest]) -> str:
    count = sum(not contest.is_won and not contest.is_lost for contest in group)
    return f" ({number(count)} within the noise)" if count else ""


def _won_of(group: Sequence[Contest]) -> str:
    won = sum(contest.is_won for contest in group)
    return f"{number(won)} of {count_text(len(group), 'measurement')}{_undecided(group)}"
