"""What a record says in plain words: speed-ups, what sketches save, when not to use one.

Law: every sentence is computed from cells; what loses is said as plainly as what wins, and an
answer that was not right comes before any number. Out of scope: HTML, drawing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from impctl.bench.break_even_words import break_even_words
from impctl.bench.contest import (
    DUCKDB_RECAPTURE,
    FROM_STATE,
    INDEX,
    MAINTAIN,
    RECAPTURE,
    RECAPTURED,
    TREE,
    UNUSED,
    WITH,
    WITHOUT,
    Contest,
    by_case,
    cell_name,
    contests,
    ends,
    middle,
    total_words,
    workload_contests,
)
from impctl.bench.headlines import Headline, by_size, headlines, slack_words
from impctl.bench.losses import losses
from impctl.bench.quantity import is_number, named, number, times
from impctl.bench.quickest import quickest
from impctl.bench.yardstick import UNSTEADY
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.bench.record import Record

_VALUES = 6
"""Values of a label that are told one by one, at most."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with paragraphs, points and a table; `numbers` are columns of numbers."""

    title: str
    paragraphs: tuple[str, ...]
    points: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """`alarms` are wrong answers: nothing else counts while there is one."""

    alarms: tuple[str, ...]
    headlines: tuple[Headline, ...]
    sections: tuple[Section, ...]


def summarize(record: Record) -> Summary:
    """The whole summary of a record."""
    maintained = contests(record, MAINTAIN, RECAPTURE)
    used = contests(record, WITH, WITHOUT)
    sections = [
        _unsteady(record),
        _maintaining(maintained),
        _using(used),
        _answering(record),
        _trees(record),
        _workloads(record),
        _when_not(record),
        _checks(record),
        _failures(record),
        _cases(record, maintained),
    ]
    return Summary(
        _alarms(record),
        headlines(record, maintained, used),
        tuple(section for section in sections if section is not None),
    )


def _unsteady(record: Record) -> Section | None:
    """A warning before any number, where the noise could make most of them."""
    if not math.isfinite(record.noise) or record.noise < UNSTEADY:
        return None
    text = (
        f"A fixed piece of work took as much as {times(1 + record.noise)} its fastest time "
        "during this run. Speed-ups smaller than the noise around their figure are not counted as "
        "won or lost. Measure again on an idle machine."
    )
    return Section("The machine was not steady", (text,))


def range_text(result: Sequence[Contest]) -> str:
    """Least to greatest ratio with the median: `3.9× to 2,497×, median 180×`."""
    least, most = ends(result)
    if len(result) == 1 or times(least.ratio) == times(most.ratio):
        return times(middle(result))
    return f"{times(least.ratio)} to {times(most.ratio)}, median {times(middle(result))}"


def _maintaining(result: Sequence[Contest]) -> Section | None:
    if not result:
        return None
    least, most = ends(result)
    won = sum(contest.is_won for contest in result)
    medians = " and ".join(
        f"{times(middle(size.found))}{f' at {size.words}' if size.words else ''}"
        for size in by_size(result)
    )
    text = (
        f"Maintaining was faster than recapture in {number(won)} of "
        f"{_count(result, 'measurement')}{_undecided(result)}. The median speed-up is "
        f"{medians}. The greatest is {times(most.ratio)} ({most.full_name}), the least "
        f"{times(least.ratio)} ({least.full_name})."
    )
    return Section("Maintaining compared with recapture", (text,))


def _cases(record: Record, result: Sequence[Contest]) -> Section | None:
    """Every case with its break-even: the size of a change at which recapture takes over."""
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


def _speed_ups(group: Sequence[Contest]) -> tuple[str, ...]:
    """Median, least and greatest over the sizes of one case."""
    least, most = ends(group)
    several = len(group) > 1
    return (
        times(middle(group)),
        times(least.ratio),
        least.place if several else "",
        times(most.ratio),
        most.place if several else "",
    )


def _over(rivals: Iterable[tuple[str, Sequence[Contest]]], what: str) -> tuple[str, ...]:
    """A sentence for each rival that was measured."""
    return tuple(
        f"Over {words}: speed-up {range_text(result)}; faster in "
        f"{number(sum(contest.is_won for contest in result))} of "
        f"{_count(result, what)}{_undecided(result)}."
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


def _using(result: Sequence[Contest]) -> Section | None:
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
        values = dict.fromkeys(contest.cell.labels[name] for contest in result)
        for value in values:
            held = [contest for contest in result if contest.cell.labels[name] == value]
            points.append(f"{named(name, value)}: {range_text(held)}{_undecided(held)}.")
    texts = (text, total) if total else (text,)
    return Section("What a sketch saves a query", texts, tuple(points))


def _answering(record: Record) -> Section | None:
    points = quickest(record)
    if not points:
        return None
    text = "The fastest way to each answer; a sketch or a view includes its upkeep:"
    materialized = contests(record, FROM_STATE, WITHOUT)
    total = total_words(materialized, FROM_STATE, WITHOUT, "from their materialized results")
    return Section("Fastest way to answer", (total, text) if total else (text,), points)


def _trees(record: Record) -> Section | None:
    """Joins as trees, against the index join and against asking DuckDB anew."""
    points = _over(
        (
            ("an index join", contests(record, TREE, INDEX)),
            ("running DuckDB again", contests(record, TREE, DUCKDB_RECAPTURE)),
        ),
        "measurement",
    )
    if not points:
        return None
    text = "A step of a join tree, which writes no joined rows, on the same changes:"
    return Section("Joins without writing joined rows", (text,), points)


def _text_labels(result: Sequence[Contest]) -> list[str]:
    """Labels in words that every contest has and that take a few values."""
    shared = [
        name
        for name in result[0].cell.labels
        if all(name in contest.cell.labels for contest in result)
    ]
    return [
        name
        for name in shared
        if 2 <= len({contest.cell.labels[name] for contest in result}) <= _VALUES
        and not any(is_number(contest.cell.labels[name]) for contest in result)
    ]


def _when_not(record: Record) -> Section | None:
    if not record.cells:
        return None
    points = losses(record)
    calm = "No measurement here is against a sketch: no loss and no slack."
    return Section("When not to use a sketch", () if points else (calm,), points)


def _checks(record: Record) -> Section | None:
    held = [cell for cell in record.cells if cell.covers is not None]
    compared = [cell for cell in record.cells if cell.equal is not None]
    if not held and not compared:
        return None
    texts = []
    if held:
        right = sum(cell.covers is True for cell in held)
        texts.append(
            f"{number(right)} of {number(len(held))} sketches covered recapture; "
            f"{slack_words(held)}."
        )
    if compared:
        same = sum(cell.equal is True for cell in compared)
        texts.append(
            f"{number(same)} of {number(len(compared))} results with a sketch were equal to "
            "those without."
        )
    return Section("Checked answers", (" ".join(texts),))


def _failures(record: Record) -> Section | None:
    if not record.failures:
        return None
    return Section("What could not be measured", (), record.failures)


def _alarms(record: Record) -> tuple[str, ...]:
    missing = [
        f"The sketch did not cover recapture: {cell_name(record, cell)}."
        for cell in record.cells
        if cell.covers is False
    ]
    unequal = [
        f"The result with the sketch was different: {cell_name(record, cell)}."
        for cell in record.cells
        if cell.equal is False
    ]
    return (*missing, *unequal)


def _undecided(result: Sequence[Contest]) -> str:
    """How many were neither won nor lost."""
    count = sum(not contest.is_won and not contest.is_lost for contest in result)
    return f" ({number(count)} within the noise)" if count else ""


def _count(result: Sequence[Contest], noun: str) -> str:
    return f"{number(len(result))} {noun}{'' if len(result) == 1 else 's'}"
