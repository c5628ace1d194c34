"""What a record says in plain words: speed-ups, savings of sketches, and where a sketch loses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import Struct

from impctl.bench.break_even import (
    BY_ENGINE,
    DUCKDB_RECAPTURE,
    DUCKDB_WITH,
    DUCKDB_WITHOUT,
    FROM_STATE,
    INDEX,
    MAINTAIN,
    PRUNED,
    RECAPTURE,
    RECAPTURED,
    SIZES,
    STATE,
    TREE,
    UNUSED,
    VIEW,
    WITH,
    WITHOUT,
    WayComparison,
    break_even_words,
    by_case,
    cell_name,
    comparisons,
    earliest_break_even,
    extreme_ratios,
    labels_name,
    median_ratio,
    total_words,
    workload_contests,
)
from impctl.bench.machine import UNSTEADY
from impctl.bench.quantity import (
    Unit,
    is_number,
    named,
    number,
    plain_name,
    readable,
    times,
    unit_of,
)
from impctl.bench.timing import side_of, time_band

if TYPE_CHECKING:
    from impctl.bench.record import Cell, Figure, Record


# The fastest way per case. Law: every case is reported once, with the least median and the distance
# of the next; within the noise both are named and neither wins.

_WAYS: Mapping[str, str] = {WITH: "Spark with the sketch", WITHOUT: "Spark without sketch"}
"""Names of ways whose metric's name does not say who answers."""


def quickest(record: Record) -> tuple[str, ...]:
    """A sentence for each case answered from state, by the engine and by others."""
    return tuple(
        _ranking(record, figure, cell)
        for figure in record.figures
        for cell in record.cells_of(figure.name)
        if FROM_STATE in cell.metrics and BY_ENGINE in cell.metrics
    )


def _ranking(record: Record, figure: Figure, cell: Cell) -> str:
    ways = (FROM_STATE, BY_ENGINE, VIEW, DUCKDB_WITH, DUCKDB_WITHOUT, WITH, WITHOUT)
    ranked = [
        (cell.metrics[way], _WAYS.get(way, plain_name(way)))
        for way in ways
        if way in cell.metrics and cell.metrics[way].median > 0
    ]
    ranked.sort(key=lambda pair: pair[0].median)
    (first, name), (second, other), *slower = ranked
    others = "; ".join(
        f"{words} {times(metric.median / first.median)} as long" for metric, words in slower
    )
    sentence = f"{name} ({readable(first.median, Unit.MS)})"
    if side_of(first, second, time_band(first, second, record.noise_of(cell.figure))) > 0:
        sentence += f", then {other}, {times(second.median / first.median)} as long"
    else:
        sentence += f" or {other}, within the noise"
    case = labels_name(figure, cell)
    return f"{case}: {sentence}; {others}." if others else f"{case}: {sentence}."


# The numbers to remember. Law: a speed-up that depends on the size of a change is reported at one
# size, never over all: else the choice of sizes would determine it.

_USUAL = 1000
"""Changed rows that the papers' figures have in common."""


class Headline(Struct, frozen=True):
    """A number to remember, its meaning, and where it holds."""

    value: str
    meaning: str
    where: str


class AtSize(Struct, frozen=True):
    """Contests at one size of a change; `words` is empty if none has a size."""

    words: str
    found: tuple[WayComparison, ...]


def headlines(
    record: Record, maintained: Sequence[WayComparison], used: Sequence[WayComparison]
) -> tuple[Headline, ...]:
    """Headlines on maintenance by size, break-even, queries with sketches, and checks."""
    result = []
    for size in by_size(maintained):
        at_size = f" at {size.words}" if size.words else ""
        meaning = f"median speed-up of maintaining a sketch over recapturing it{at_size}"
        result.append(_speed_up(size.found, meaning))
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


def by_size(contests: Sequence[WayComparison]) -> tuple[AtSize, ...]:
    """Contests at the usual number of changed rows, and at the largest change if it differs."""
    sizes = [size for size in (_usual(contests), _largest(contests)) if size is not None]
    if not sizes:
        return (AtSize("", tuple(contests)),) if contests else ()
    return tuple(
        size for index, size in enumerate(sizes) if index == 0 or size.found != sizes[0].found
    )


def slack_words(cells: Sequence[Cell]) -> str:
    """How many of these sketches are larger than needed."""
    loose = sum(bool(cell.slack) for cell in cells)
    return "none with slack" if loose == 0 else f"{number(loose)} with slack"


def _speed_up(contests: Sequence[WayComparison], meaning: str) -> Headline:
    least, most = extreme_ratios(contests)
    span = f"from {times(least.ratio)} to {times(most.ratio)}, {number(len(contests))} measured"
    return Headline(
        times(median_ratio(contests)), meaning, span if len(contests) > 1 else "one measured"
    )


def _usual(contests: Sequence[WayComparison]) -> AtSize | None:
    """Contests at a thousand changed rows, else at the most frequent number."""
    counts = Counter(_amounts(contests, "changes"))
    if not counts:
        return None
    changes = _USUAL if _USUAL in counts else max(counts, key=lambda size: counts[size])
    return _at(contests, "changes", changes)


def _largest(contests: Sequence[WayComparison]) -> AtSize | None:
    """Contests at the largest share of a table, or of changed rows if no share is known."""
    for label in reversed(SIZES):
        if amounts := _amounts(contests, label):
            return _at(contests, label, max(amounts))
    return None


def _at(contests: Sequence[WayComparison], label: str, amount: float) -> AtSize:
    equal = tuple(contest for contest in contests if _amount(contest, label) == amount)
    return AtSize(named(label, amount), equal)


def _amounts(contests: Sequence[WayComparison], label: str) -> list[float]:
    amounts = (_amount(contest, label) for contest in contests)
    return [amount for amount in amounts if amount is not None]


def _amount(contest: WayComparison, label: str) -> float | None:
    amount = contest.cell.labels.get(label)
    if not is_number(amount):
        return None
    # Tables of one suite differ a little in rows: one share of each has two digits in common.
    return float(f"{amount:.2g}") if label == "share" else amount


# Where a sketch does not pay. Law: every loss beyond the noise is reported or counted; a winner is
# never mentioned here.

_LISTED = 6
"""Maximum cases listed per sentence: the tables have all of them."""


_LOSSES = (
    (MAINTAIN, RECAPTURE, "Recapture was faster than maintaining"),
    (MAINTAIN, DUCKDB_RECAPTURE, "Recapture in DuckDB was faster"),
    (WITH, WITHOUT, "The query was slower with its sketch"),
    (WITH, PRUNED, "The query was slower with its sketch than with statistics alone"),
    (WITH, VIEW, "A manually maintained view was faster than the sketch"),
    (WITH, DUCKDB_WITHOUT, "The query in DuckDB was faster than Spark with the sketch"),
    (DUCKDB_WITH, DUCKDB_WITHOUT, "The query in DuckDB was slower with the sketch"),
    (FROM_STATE, VIEW, "A manually maintained view was faster than the materialized result"),
    (FROM_STATE, DUCKDB_WITHOUT, "The query in DuckDB was faster than the materialized result"),
    (BY_ENGINE, DUCKDB_WITHOUT, "The query in DuckDB was faster than the engine with the sketch"),
    (BY_ENGINE, WITH, "With the sketch, Spark was faster than the engine"),
    (TREE, INDEX, "The index join was faster than the tree"),
    (
        TREE,
        DUCKDB_RECAPTURE,
        "Running the query again in DuckDB was faster than a step of the tree",
    ),
)
"""Our metric, the one compared with it, and what a loss says."""

_WORKLOAD_LOSSES = {
    UNUSED: "The workload was faster without a sketch",
    RECAPTURED: "The workload was faster with recaptured sketches",
}


def losses(record: Record) -> tuple[str, ...]:
    """A sentence for each case where a sketch lost, then slack and state."""
    result = [_loss_text(comparisons(record, ours, other), says) for ours, other, says in _LOSSES]
    result += [
        _loss_text(workload_contests(record, way), says) for way, says in _WORKLOAD_LOSSES.items()
    ]
    return (
        *chain.from_iterable(result),
        *_undecided_losses(record),
        *_slack(record),
        *_state(record),
    )


def _undecided_losses(record: Record) -> list[str]:
    """Slower, but within the noise: neither lost nor won, but to be reported."""
    pairs = ((MAINTAIN, RECAPTURE), (WITH, WITHOUT), (WITH, PRUNED))
    result = [contest for pair in pairs for contest in comparisons(record, *pair)]
    for way in (UNUSED, RECAPTURED):
        result += workload_contests(record, way)
    slower = [contest for contest in result if contest.ratio < 1 and not contest.is_lost]
    if not slower:
        return []
    worst, _ = extreme_ratios(slower)
    return [
        f"Not decided: {_cells(len(slower))} slower with a sketch, but within the noise or "
        f"the spread of the runs. The slowest was {times(worst.ratio)} as fast "
        f"({worst.full_name}), where equal work may take {readable(worst.band, Unit.SHARE)} "
        "longer."
    ]


def _loss_text(result: Sequence[WayComparison], says: str) -> list[str]:
    """A sentence for each figure with a loss: its cases and the worst of each."""
    figures: dict[str, list[str]] = {}
    for (name, case), group in by_case(result).items():
        lost_contests = [contest for contest in group if contest.is_lost]
        if lost_contests:
            worst = min(lost_contests, key=lambda contest: contest.ratio)
            place = f" at {worst.place}" if len(lost_contests) > 1 else ""
            text = f"{_where(group, lost_contests)} ({times(worst.ratio)} as fast{place})"
            figures.setdefault(name, []).append(f"{case} {text}" if case else text)
    titles = {contest.figure.name: contest.figure.title for contest in result}
    return [f"{says} in “{titles[name]}”: {_listed(cases)}." for name, cases in figures.items()]


def _listed(cases: Sequence[str]) -> str:
    omitted = len(cases) - _LISTED
    more = [f"and {omitted} more in its table"] if omitted > 0 else []
    return "; ".join([*cases[:_LISTED], *more])


def _where(group: Sequence[WayComparison], losing: Sequence[WayComparison]) -> str:
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
        f"Sketches larger than needed: {_cells(len(loose))} with slack, the most "
        f"{number(slack)} {'range' if slack == 1 else 'ranges'} "
        f"({cell_name(record, cell)}). A sketch with slack is correct, but skips less."
    ]


def _state(record: Record) -> list[str]:
    sizes = [(cell.metrics[STATE].median, cell) for cell in record.cells if STATE in cell.metrics]
    finite = [(size, cell) for size, cell in sizes if math.isfinite(size) and size > 0]
    if not finite:
        return []
    size, cell = max(finite, key=lambda pair: pair[0])
    return [
        f"State is stored: at most {readable(size, unit_of(STATE))} "
        f"({cell_name(record, cell)}). If that is too much, recapture stores none."
    ]


def _cells(count: int) -> str:
    return "1 cell" if count == 1 else f"{number(count)} cells"


# Law: every sentence is computed from cells; losses are stated as plainly as wins, and a wrong
# answer comes before any number.

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
    maintained = comparisons(record, MAINTAIN, RECAPTURE)
    used = comparisons(record, WITH, WITHOUT)
    sections = [
        _unsteady(record),
        _maintaining(maintained),
        _using(used),
        _answering(record),
        _trees(record),
        _workloads(record),
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


def range_text(result: Sequence[WayComparison]) -> str:
    """Least to greatest ratio with the median: `3.9× to 2,497×, median 180×`."""
    least, most = extreme_ratios(result)
    if len(result) == 1 or times(least.ratio) == times(most.ratio):
        return times(median_ratio(result))
    return f"{times(least.ratio)} to {times(most.ratio)}, median {times(median_ratio(result))}"


def _maintaining(result: Sequence[WayComparison]) -> Section | None:
    if not result:
        return None
    least, most = extreme_ratios(result)
    won = sum(contest.is_won for contest in result)
    medians = " and ".join(
        f"{times(median_ratio(size.found))}{f' at {size.words}' if size.words else ''}"
        for size in by_size(result)
    )
    text = (
        f"Maintaining was faster than recapture in {number(won)} of "
        f"{_count(result, 'measurement')}{_undecided(result)}. The median speed-up is "
        f"{medians}. The greatest is {times(most.ratio)} ({most.full_name}), the least "
        f"{times(least.ratio)} ({least.full_name})."
    )
    return Section("Maintaining compared with recapture", (text,))


def _cases(record: Record, result: Sequence[WayComparison]) -> Section | None:
    """Every case with its break-even: the size of a change above which recapture is faster."""
    if not result:
        return None
    evens = {"Break-even": break_even_words(record)}
    if duckdb := break_even_words(record, DUCKDB_RECAPTURE):
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
        for key, group in by_case(result).items()
    )
    numbers = tuple(2 + len(evens) + column for column in (0, 1, 3))
    text = (
        "Break-even is the size of a change above which recapture is faster, as a share of "
        "its table or in rows. “Above” means that it is larger than every measured change. "
        "The others are speed-ups of maintaining over recapture, at the sizes of a case."
    )
    return Section("Case by case", (text,), (), heads, numbers, rows)


def _speed_ups(group: Sequence[WayComparison]) -> tuple[str, ...]:
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


def _over(rivals: Iterable[tuple[str, Sequence[WayComparison]]], text: str) -> tuple[str, ...]:
    return tuple(
        f"Over {words}: speed-up {range_text(result)}; faster in "
        f"{number(sum(contest.is_won for contest in result))} of "
        f"{_count(result, text)}{_undecided(result)}."
        for words, result in rivals
        if result
    )


def _workloads(record: Record) -> Section | None:
    points = _over(
        (
            ("no sketch", workload_contests(record, UNUSED)),
            ("recaptured sketches", workload_contests(record, RECAPTURED)),
        ),
        "workload",
    )
    if not points:
        return None
    text = "Queries and updates in turn, including all costs, with maintained sketches:"
    return Section("Whole workloads", (text,), points)


def _using(result: Sequence[WayComparison]) -> Section | None:
    if not result:
        return None
    won = sum(contest.is_won for contest in result)
    text = (
        f"With its sketch, a query was faster in {number(won)} of "
        f"{_count(result, 'measurement')}{_undecided(result)}; speed-up {range_text(result)}."
    )
    total = total_words(result, WITH, WITHOUT, "with their sketches")
    points = []
    for name in _text_labels(result):
        for value in dict.fromkeys(contest.cell.labels[name] for contest in result):
            equal = [contest for contest in result if contest.cell.labels[name] == value]
            points.append(f"{named(name, value)}: {range_text(equal)}{_undecided(equal)}.")
    texts = (text, total) if total else (text,)
    return Section("What a sketch saves a query", texts, tuple(points))


def _answering(record: Record) -> Section | None:
    points = quickest(record)
    if not points:
        return None
    text = "The fastest way to each answer; a sketch or a view includes its upkeep:"
    materialized = comparisons(record, FROM_STATE, WITHOUT)
    total = total_words(materialized, FROM_STATE, WITHOUT, "from their materialized results")
    return Section("Fastest way to answer", (total, text) if total else (text,), points)


def _trees(record: Record) -> Section | None:
    """Join trees, compared with the index join and with running DuckDB again."""
    points = _over(
        (
            ("an index join", comparisons(record, TREE, INDEX)),
            ("running DuckDB again", comparisons(record, TREE, DUCKDB_RECAPTURE)),
        ),
        "measurement",
    )
    if not points:
        return None
    text = "A step of a join tree, which writes no joined rows, on the same changes:"
    return Section("Joins without writing joined rows", (text,), points)


def _text_labels(result: Sequence[WayComparison]) -> list[str]:
    """Text labels that every contest has, with a few values."""
    names = []
    for name in result[0].cell.labels:
        values = {contest.cell.labels.get(name) for contest in result}
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


def _undecided(result: Sequence[WayComparison]) -> str:
    count = sum(not contest.is_won and not contest.is_lost for contest in result)
    return f" ({number(count)} within the noise)" if count else ""


def _count(result: Sequence[WayComparison], noun: str) -> str:
    return f"{number(len(result))} {noun}{'' if len(result) == 1 else 's'}"
