"""The numbers to remember of a record, and where they hold.

Law: a speed-up that depends on the size of a change is told at one size, never over all of them:
else the choice of sizes would make the number. Out of scope: sentences (`summary`), HTML.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from impctl.bench.break_even import SIZES
from impctl.bench.break_even_words import earliest_break_even
from impctl.bench.contest import Contest, ends, middle
from impctl.bench.quantity import is_number, named, number, times
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.bench.record import Cell, Record

_USUAL = 1000
"""Changed rows that the papers' figures have in common."""


@dataclass(frozen=True, slots=True)
class Headline:
    """A number to remember, what it is, and where it holds."""

    value: str
    meaning: str
    where: str


@dataclass(frozen=True, slots=True)
class AtSize:
    """Contests at one size of a change, in `words` that are empty where none of them has a size."""

    words: str
    found: tuple[Contest, ...]


def headlines(
    record: Record, maintained: Sequence[Contest], used: Sequence[Contest]
) -> tuple[Headline, ...]:
    """Of maintaining at its sizes, break-even, queries with sketches, and checks."""
    result = []
    for size in by_size(maintained):
        at = f" at {size.words}" if size.words else ""
        meaning = f"median speed-up of maintaining a sketch over recapturing it{at}"
        result.append(_speed_up(size.found, meaning))
    if even := earliest_break_even(record):
        meaning = "size of a change above which recapture is faster, in the worst case"
        result.append(Headline(even[0], meaning, even[1]))
    if used:
        result.append(_speed_up(used, "median speed-up of a query with its sketch"))
    held = [cell for cell in record.cells if cell.covers is not None]
    if held:
        right = sum(cell.covers is True for cell in held)
        result.append(
            Headline(
                f"{number(right)} of {number(len(held))}",
                "sketches covered the recaptured sketch",
                slack_words(held),
            )
        )
    return tuple(result)


def by_size(contests: Sequence[Contest]) -> tuple[AtSize, ...]:
    """At the usual number of changed rows, and at the largest change where that is another one."""
    sizes = [size for size in (_usual(contests), _largest(contests)) if size is not None]
    if not sizes:
        return (AtSize("", tuple(contests)),) if contests else ()
    return tuple(size for at, size in enumerate(sizes) if at == 0 or size.found != sizes[0].found)


def slack_words(held: Sequence[Cell]) -> str:
    """How many of these sketches are larger than needed."""
    loose = sum(bool(cell.slack) for cell in held)
    return "none with slack" if loose == 0 else f"{number(loose)} with slack"


def _speed_up(contests: Sequence[Contest], meaning: str) -> Headline:
    least, most = ends(contests)
    span = f"from {times(least.ratio)} to {times(most.ratio)}, {number(len(contests))} measured"
    return Headline(times(middle(contests)), meaning, span if len(contests) > 1 else "one measured")


def _usual(contests: Sequence[Contest]) -> AtSize | None:
    """At a thousand changed rows, else at the number that most contests have."""
    counts = Counter(_amounts(contests, "changes"))
    if not counts:
        return None
    changes = _USUAL if _USUAL in counts else max(counts, key=lambda size: counts[size])
    return _at(contests, "changes", changes)


def _largest(contests: Sequence[Contest]) -> AtSize | None:
    """At the largest share of a table; of changed rows where no share is known."""
    for label in reversed(SIZES):
        if amounts := _amounts(contests, label):
            return _at(contests, label, max(amounts))
    return None


def _at(contests: Sequence[Contest], label: str, amount: float) -> AtSize:
    held = [contest for contest in contests if _amount(contest, label) == amount]
    return AtSize(named(label, amount), tuple(held))


def _amounts(contests: Sequence[Contest], label: str) -> list[float]:
    held = (_amount(contest, label) for contest in contests)
    return [amount for amount in held if amount is not None]


def _amount(contest: Contest, label: str) -> float | None:
    amount = contest.cell.labels.get(label)
    if not is_number(amount):
        return None
    # Tables of one suite differ a little in rows: one share of each has two digits in common.
    return float(f"{amount:.2g}") if label == "share" else amount
