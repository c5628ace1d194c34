"""What a record says in plain words: speed-ups, what sketches save, when not to use one.

Law: every sentence is computed from cells; what loses is said as plainly as what wins, and an
answer that was not right comes before any number. Out of scope: HTML, drawing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from impctl.bench.break_even_words import break_even_words, earliest_break_even
from impctl.bench.contest import (
    DUCKDB_RECAPTURE,
    MAINTAIN,
    RECAPTURE,
    RECAPTURED,
    UNUSED,
    WITH,
    WITHOUT,
    Contest,
    by_case,
    cell_name,
    contests,
    ends,
    middle,
    workload_contests,
)
from impctl.bench.losses import losses
from impctl.bench.quantity import is_number, named, number, times
from impctl.bench.record import Cell, Record
from impctl.bench.yardstick import UNSTEADY

_LISTED = 6
"""Cases named in one sentence at most: the tables hold all of them."""


@dataclass(frozen=True, slots=True)
class Headline:
    """A number to remember, what it is, and where it holds."""

    value: str
    meaning: str
    where: str


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
        _workloads(record),
        _when_not(record),
        _checks(record),
        _failures(record),
        _cases(record, maintained),
    ]
    return Summary(
        _alarms(record),
        tuple(_headlines(record, maintained, used)),
        tuple(section for section in sections if section is not None),
    )


def _unsteady(record: Record) -> Section | None:
    """A warning before any number, where the noise could make most of them."""
    if not math.isfinite(record.noise) or record.noise < UNSTEADY:
        return None
    text = (
        f"A fixed piece of work took up to {times(1 + record.noise)} its time during this run. "
        "Speed-ups smaller than that are not counted as won or lost; measure again on a machine "
        "that does nothing else."
    )
    return Section("The machine was not steady", (text,))


def range_text(found: Sequence[Contest]) -> str:
    """Least to greatest ratio with the median: `3.9× to 2,497×, median 180×`."""
    least, most = ends(found)
    if len(found) == 1 or times(least.ratio) == times(most.ratio):
        return times(middle(found))
    return f"{times(least.ratio)} to {times(most.ratio)}, median {times(middle(found))}"


def _headlines(
    record: Record, maintained: Sequence[Contest], used: Sequence[Contest]
) -> list[Headline]:
    found = []
    if maintained:
        least, most = ends(maintained)
        found.append(
            Headline(
                times(middle(maintained)),
                "median speed-up of maintaining a sketch over recapturing it",
                f"from {times(least.ratio)} to {times(most.ratio)}",
            )
        )
    if even := earliest_break_even(record):
        meaning = "size of a change from which on recapture is the quicker one, in the worst case"
        found.append(Headline(even[0], meaning, even[1]))
    if used:
        least, most = ends(used)
        found.append(
            Headline(
                times(middle(used)),
                "median speed-up of a query by its sketch",
                f"from {times(least.ratio)} to {times(most.ratio)}",
            )
        )
    held = [cell for cell in record.cells if cell.covers is not None]
    if held:
        right = sum(cell.covers is True for cell in held)
        found.append(
            Headline(
                f"{number(right)} of {number(len(held))}",
                "sketches covered what recapture found",
                _slack_words(held),
            )
        )
    return found


def _maintaining(found: Sequence[Contest]) -> Section | None:
    if not found:
        return None
    least, most = ends(found)
    won = sum(contest.is_won for contest in found)
    text = (
        f"Maintaining was quicker than recapture in {number(won)} of {_count(found, 'measurement')}"
        f"{_even(found)}. The median speed-up is {times(middle(found))}; the greatest is "
        f"{times(most.ratio)} ({most.full_name}), the least {times(least.ratio)} "
        f"({least.full_name})."
    )
    return Section("Maintaining against recapture", (text,))


def _cases(record: Record, found: Sequence[Contest]) -> Section | None:
    """Every case with its break-even: the size of a change at which recapture takes over."""
    if not found:
        return None
    evens = [break_even_words(record)]
    heads = ["Figure", "Case", "Median", "Least", "at", "Greatest", "at", "Break-even"]
    if duckdb := break_even_words(record, DUCKDB_RECAPTURE):
        evens.append(duckdb)
        heads.append("with DuckDB")
    rows = tuple(
        (*_case_row(group), *(even.get(key, "") for even in evens))
        for key, group in by_case(found).items()
    )
    text = (
        "Speed-up of maintaining over recapture. Break-even is the size of a change, in the share "
        "of its table or in rows, from which on recapture is the quicker one; “above” means that "
        "it lies beyond the largest change measured."
    )
    return Section("Case by case", (text,), (), tuple(heads), (2, 3, 5), rows)


def _case_row(group: Sequence[Contest]) -> tuple[str, ...]:
    least, most = ends(group)
    several = len(group) > 1
    return (
        group[0].figure.title,
        group[0].case,
        times(middle(group)),
        times(least.ratio),
        least.place if several else "",
        times(most.ratio),
        most.place if several else "",
    )


def _workloads(record: Record) -> Section | None:
    points = []
    for way, words in ((UNUSED, "no sketch"), (RECAPTURED, "recaptured sketches")):
        found = workload_contests(record, way)
        if found:
            won = sum(contest.is_won for contest in found)
            points.append(
                f"Over {words}: speed-up {range_text(found)}; quicker in {number(won)} of "
                f"{_count(found, 'workload')}{_even(found)}."
            )
    if not points:
        return None
    text = "Queries and updates in turn, every cost counted, with maintained sketches:"
    return Section("Whole workloads", (text,), tuple(points))


def _using(found: Sequence[Contest]) -> Section | None:
    if not found:
        return None
    won = sum(contest.is_won for contest in found)
    text = (
        f"With its sketch a query was quicker in {number(won)} of {_count(found, 'measurement')}"
        f"{_even(found)}; speed-up {range_text(found)}."
    )
    points = []
    for name in _text_labels(found):
        values = dict.fromkeys(contest.cell.labels[name] for contest in found)
        for value in values:
            held = [contest for contest in found if contest.cell.labels[name] == value]
            points.append(f"{named(name, value)}: {range_text(held)}.")
    return Section("What a sketch saves a query", (text,), tuple(points))


def _text_labels(found: Sequence[Contest]) -> list[str]:
    """Labels in words that every contest has and that take a few values."""
    shared = [
        name
        for name in found[0].cell.labels
        if all(name in contest.cell.labels for contest in found)
    ]
    return [
        name
        for name in shared
        if 2 <= len({contest.cell.labels[name] for contest in found}) <= _LISTED
        and not any(is_number(contest.cell.labels[name]) for contest in found)
    ]


def _when_not(record: Record) -> Section | None:
    if not record.cells:
        return None
    points = losses(record)
    calm = "Nothing measured here speaks against a sketch: no loss and no slack."
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
            f"{_slack_words(held)}."
        )
    if compared:
        same = sum(cell.equal is True for cell in compared)
        texts.append(
            f"{number(same)} of {number(len(compared))} results with a sketch equalled those "
            "without."
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
        f"The result with the sketch was another one: {cell_name(record, cell)}."
        for cell in record.cells
        if cell.equal is False
    ]
    return (*missing, *unequal)


def _slack_words(held: Sequence[Cell]) -> str:
    loose = sum(bool(cell.slack) for cell in held)
    return "none with slack" if loose == 0 else f"{number(loose)} with slack"


def _even(found: Sequence[Contest]) -> str:
    even = sum(not contest.is_won and not contest.is_lost for contest in found)
    return f" ({number(even)} within the noise)" if even else ""


def _count(found: Sequence[Contest], noun: str) -> str:
    return f"{number(len(found))} {noun}{'' if len(found) == 1 else 's'}"
