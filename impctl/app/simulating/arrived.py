"""Commits that came, to be replayed: of each table in the order of their times, with sums of rows.

Law: times are seconds since 1970, never going back within a table, none after the end of what is
replayed. Rows that a log does not tell are taken by the bytes of the commit, as the other commits
of its table have them, and counted (`guessed`).
Out of scope: where they come from (`simulating.histories`, `simulating.arrivals_file`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import accumulate

from impctl.app.maintaining.keeping.numbers import ROWS_UNKNOWN
from impctl.forecast import Arrival, History, effective_times
from impctl.types import TableName
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Commits:
    """The commits of one table: `times` rising, `rows` and `bytes` of all before each, and of all.

    `guessed` counts those whose rows the log does not tell.
    """

    times: Sequence[float]
    rows: Sequence[int]
    bytes: Sequence[int]
    guessed: int = 0

    def __len__(self) -> int:
        return len(self.times)

    def until(self, at: float) -> int:
        """How many came by then."""
        return bisect_right(self.times, at)

    def next_after(self, at: float) -> float | None:
        """When the next one comes; None where none does."""
        result = bisect_right(self.times, at)
        return self.times[result] if result < len(self.times) else None


@dataclass(frozen=True, slots=True)
class Replay:
    """What is replayed, from `since` to `until`; the `source` is told to people.

    `histories` has the same commits as the choice of state is given them.
    """

    since: float
    until: float
    commits: Mapping[TableName, Commits]
    histories: Mapping[TableName, History]
    source: str
    warnings: tuple[str, ...] = field(default=())

    @property
    def count(self) -> int:
        """All commits."""
        return sum(len(one) for one in self.commits.values())

    @property
    def rows(self) -> int:
        """Rows of all commits."""
        return sum(one.rows[-1] for one in self.commits.values())


def replay_of(
    arrivals: Mapping[TableName, Sequence[Arrival]],
    tail: float,
    source: str,
    warnings: tuple[str, ...] = (),
) -> Replay:
    """The commits of each table in whatever order, until `tail` seconds after the last."""
    times = [each.at for arrival in arrivals.values() for each in arrival if each.at is not None]
    since, until = min(times, default=0.0), max(times, default=0.0) + tail
    histories = {
        name: History("", len(result), since, tuple(sorted(result, key=time_of)))
        for name, result in arrivals.items()
    }
    commits = {name: commits_of(held.arrivals, since, until) for name, held in histories.items()}
    return Replay(since, until, commits, histories, source, warnings)


def time_of(each: Arrival) -> float:
    """When it came, by what is written; 0 where nothing is."""
    return each.at or 0.0


def commits_of(arrivals: Sequence[Arrival], since: float, until: float) -> Commits:
    """The commits of a table that came not before `since` and not after `until`."""
    known = [each for each in arrivals if each.at is None or each.at <= until]
    times = effective_times(known, until)
    first = bisect_left(times, since)
    kept = known[first : bisect_right(times, until)]
    guess = _share(known)
    rows = [guess(each) if each.rows is None else each.rows for each in kept]
    return Commits(
        times[first : first + len(kept)],
        [0, *accumulate(rows)],
        [0, *accumulate(each.bytes for each in kept)],
        sum(each.rows is None for each in kept),
    )


class _Share:
    """Rows of a commit by its bytes, as those that tell both have them."""

    def __init__(self, rows: int, size: int, count: int) -> None:
        self._rows, self._size, self._count = rows, size, count

    def __call__(self, each: Arrival) -> int:
        if not self._count:
            return ROWS_UNKNOWN
        if not self._size or not each.bytes:
            return max(1, round(self._rows / self._count))
        return max(1, round(each.bytes * self._rows / self._size))


def _share(known: Iterable[Arrival]) -> _Share:
    told = [(each.rows, each.bytes) for each in known if each.rows is not None]
    return _Share(sum(rows for rows, _ in told), sum(size for _, size in told), len(told))


def merged(of: Mapping[TableName, Commits]) -> Commits:
    """The commits of several tables in the order of their times, then of the tables' names."""
    told = sorted(
        (at, name, one.rows[place + 1] - one.rows[place], one.bytes[place + 1] - one.bytes[place])
        for name, one in of.items()
        for place, at in enumerate(one.times)
    )
    return Commits(
        [at for at, _, _, _ in told],
        [0, *accumulate(rows for _, _, rows, _ in told)],
        [0, *accumulate(size for _, _, _, size in told)],
    )
