"""Rows that come late, in place of commits that bring all of theirs at once.

Of each commit a share is there at first; then, every so many seconds, the same share of what is
left, until nothing is: 0.9 makes of 10,000 rows 9,000, 900, 90, 9 and 1. Parts are whole rows,
rounded up.
Law: no row is lost and none comes twice, insertions and deletions each for themselves; what would
come after the end of what is replayed is left out. A commit whose rows a log does not tell, and one
that changes none, comes whole.
Out of scope: the commits (`simulating.histories`, `simulating.arrivals_file`).
Source: late data in the experiments of D. Tang et al., "Intermittent Query Processing", PVLDB
12(11), 2019, where a share of 0.9 comes every 60 seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import zip_longest

from impctl.app.simulating.arrived import time_of
from impctl.errors import Location, Problem, UsageError
from impctl.forecast import Arrival
from impctl.types import TableName
from impctl.values import dataclass
from impctl.workload.models import seconds_in, written
from impctl.workload.yaml import FileReading, Lines, YamlFault, compose, inside

MOST_COMMITS = 1_000_000
"""More of them are not replayed, so that a small share of many rows does not fill the memory."""

_WHERE = "`--late`"
_HINT = (
    "write `p: 0.9, every: 60s`: the share of rows that arrives at once, and the "
    "interval for the rest"
)
_SHARE_HINT = "a share above 0 and at most 1, such as 0.9"
_SPAN_HINT = "a number above 0 and its unit: `500ms`, `5s`, `10m`, `1h` or `7d`"
_KEYS = ("p", "every")
_MOST_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Late:
    """The share `p` of what is left comes `every` so many seconds, the first at once."""

    p: Fraction
    every: float

    @property
    def text(self) -> str:
        """As the flag says it, for people."""
        return f"p {float(self.p):g}, every {written(self.every)}"


def late_from(text: str) -> Late:
    """As a flag gives it, `p: 0.9, every: 60s`, in braces or not; UsageError for what is none."""
    opening = "" if text.lstrip().startswith("{") else "{"
    whole = f"{opening}{text}}}" if opening else text
    reading = FileReading(Lines("--late", whole), {})
    try:
        result = _read(reading, whole)
    except YamlFault as fault:
        place = _place(reading.lines.at(fault.index), opening)
        raise UsageError(f"{_WHERE} cannot be read: {text}", hint=_HINT, location=place) from None
    if isinstance(result, Late):
        return result
    place = reading.lines.at(0) if result.location is None else result.location
    raise UsageError(result.message, hint=result.hint or _HINT, location=_place(place, opening))


def _read(reading: FileReading, text: str) -> Late | Problem:
    """What a text says, or the first problem of it."""
    fields = reading.record(compose(text), _WHERE, (), _KEYS) or {}
    p = reading.cell(fields.get("p"), inside(_WHERE, "p"), "a share such as 0.9")
    every = reading.cell(fields.get("every"), inside(_WHERE, "every"), "a duration such as 60s")
    share = None if p is None else _share(p.written)
    seconds = None if every is None else seconds_in(every.written, needs_unit=True)
    if p is not None and share is None:
        told = f"{inside(_WHERE, 'p')} must be a share such as 0.9"
        reading.report(fields["p"], told, _SHARE_HINT)
    if every is not None and seconds is None:
        told = f"{inside(_WHERE, 'every')} must be a duration such as 60s"
        reading.report(fields["every"], told, _SPAN_HINT)
    if reading.problems:
        return reading.problems[0]
    if share is None or seconds is None:
        missing = next(key for key in _KEYS if key not in fields)
        return Problem(f"`{missing}` is missing in {_WHERE}", None, _HINT)
    return Late(share, seconds)


def _share(text: str) -> Fraction | None:
    """Exactly the share that is written; None where that is none."""
    is_number = text.strip().replace(".", "", 1).isdecimal() and text.isascii()
    share = Fraction(text.strip()) if is_number and len(text) <= _MOST_DIGITS else Fraction(0)
    return share if 0 < share <= 1 else None


def _place(location: Location, opening: str) -> Location:
    """The place in the text as it was given."""
    if location.line != 1 or location.column is None:
        return location
    return replace(location, column=max(1, location.column - len(opening)))


def spread(
    arrivals: Mapping[TableName, Sequence[Arrival]], late: Late, end: float
) -> dict[TableName, list[Arrival]]:
    """The parts of all commits by table, in the order of their times, none after `end`.

    Every commit has a time. UsageError where these are more than `MOST_COMMITS`.
    """
    left, result = MOST_COMMITS, {}
    for name, commits in arrivals.items():
        parts: list[Arrival] = []
        for each in commits:
            parts += _parts(each, late, end, left - len(parts))
        left -= len(parts)
        parts.sort(key=time_of)
        result[name] = parts
    return result


def _parts(each: Arrival, late: Late, end: float, most: int) -> Iterator[Arrival]:
    """One commit's; UsageError where they are more than `most`."""
    assert each.at is not None, "its time is known"
    if not each.rows or each.inserted is None or each.deleted is None:
        counts: Iterator[tuple[int | None, int | None]] = iter([(each.inserted, each.deleted)])
    else:
        pieces = _counts(each.inserted, late.p), _counts(each.deleted, late.p)
        counts = zip_longest(*pieces, fillvalue=0)
    seen, size = 0, 0
    for turn, (inserted, deleted) in enumerate(counts):
        at = each.at + turn * late.every
        if at > end:
            return
        if turn == most:
            raise _too_many()
        seen += (inserted or 0) + (deleted or 0)
        until = each.bytes * seen // each.rows if each.rows else each.bytes
        yield replace(
            each,
            at=at,
            inserted=inserted,
            deleted=deleted,
            bytes=until - size,
            is_after_gap=each.is_after_gap and not turn,
        )
        size = until


def _counts(rows: int, p: Fraction) -> Iterator[int]:
    """Of so many rows, those that come turn by turn; each is at least one."""
    while rows:
        left = rows * (p.denominator - p.numerator) // p.denominator
        yield rows - left
        rows = left


def _too_many() -> UsageError:
    return UsageError(
        f"{_WHERE} splits the replayed commits into more than {MOST_COMMITS:,} commits",
        hint="give a larger share, or replay a shorter time with `--since`",
    )
