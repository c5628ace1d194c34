"""Kinds of change, out of the histories of tables: which of them move together, how often, by how
many rows.

Law: commits that lie closer together than `together` seconds are one change, since one run carries
them on; each commit is in one change. A table that never changed may change: in n days its rate is
1/(2n + 2), never 0. Rows that a log does not tell are not guessed at.
Out of scope: when the next one comes (`app.maintaining.next_change`), what the workload file says
(`app.maintaining.expected`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

import numpy as np

from impctl.forecast import Chance, History, chance, effective_times, rate
from impctl.types import TableName
from impctl.values import dataclass

DAY = 86_400.0
_TOGETHER = 300.0
"""Seconds between two runs that cron starts, as a rule."""
_STRETCHES = 1000
"""Stretches of time that a rate is counted over, at most."""
_LATEST = 16
"""Changes that tell how many rows one has."""

Tables = frozenset[TableName]


@dataclass(frozen=True, slots=True)
class Moved:
    """What one commit, or several of a change, did to a table; None where the log does not tell."""

    rows: int | None
    deleted: int | None


@dataclass(frozen=True, slots=True)
class Change:
    """Commits that one run carries on: when the first of them came, and the tables they changed.

    `is_after_gap` says that changes before it are not known.
    """

    at: float
    moved: Mapping[TableName, Moved]
    is_after_gap: bool

    @property
    def rows(self) -> int | None:
        """Rows of all tables together."""
        result = [each.rows for each in self.moved.values() if each.rows is not None]
        return sum(result) if len(result) == len(self.moved) else None


@dataclass(frozen=True, slots=True)
class Kind:
    """The changes of one set of tables, oldest first, and how many days were looked at."""

    tables: Tables
    days: float
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class Expected:
    """A kind of change that is expected: how often a day, and how many rows of each table.

    `rows` has None for a table whose log does not tell; `deletes` is the share of rows that are
    deletions. `chance` is that it comes within a day.
    """

    tables: Tables
    per_day: float
    rows: Mapping[TableName, float | None]
    deletes: Mapping[TableName, float] = field(default_factory=dict)
    chance: float = 0.0


def kinds_of(
    histories: Mapping[TableName, History], now: float, together: float | None = None
) -> list[Kind]:
    """The kinds of change of these tables, a table that never changed being one by itself."""
    times = {name: effective_times(held.arrivals, now) for name, held in histories.items()}
    pause = _pause(times.values()) if together is None else together
    result: dict[Tables, list[Change]] = {}
    for each in _changes(histories, times, pause):
        result.setdefault(frozenset(each.moved), []).append(each)
    seen = frozenset[TableName]().union(*result)
    days = {name: _days(held, times[name], now) for name, held in histories.items()}
    kinds = [
        Kind(tables, min(days[name] for name in tables), tuple(changes))
        for tables, changes in result.items()
    ]
    return kinds + [Kind(frozenset([name]), days[name]) for name in histories if name not in seen]


def expected_of(kind: Kind, now: float) -> Expected:
    """How often a kind of change comes, and how large it is."""
    if not kind.changes:
        # What was seen of late would make it less likely still: but it may begin any day.
        least = 1 / (2 * kind.days + 2)
        return Expected(kind.tables, least, dict.fromkeys(kind.tables), {}, least)
    latest = kind.changes[-_LATEST:]
    moved = {name: [each.moved[name] for each in latest] for name in kind.tables}
    return Expected(
        kind.tables,
        _per_day(kind, now),
        {name: _mean([each.rows for each in result]) for name, result in moved.items()},
        {name: _deleted(result) for name, result in moved.items()},
        _within_a_day(kind, now).value,
    )


def _mean(numbers: Sequence[int | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return statistics.fmean(known) if known else None


def _deleted(moved: Sequence[Moved]) -> float:
    """Which share of the rows were deletions."""
    known = [(each.rows, each.deleted) for each in moved]
    told = [(rows, gone) for rows, gone in known if rows is not None and gone is not None]
    rows = sum(rows for rows, _ in told)
    return sum(gone for _, gone in told) / rows if rows else 0.0


def _per_day(kind: Kind, now: float) -> float:
    """Changes a day, counted in stretches about as long as the pause between two of them."""
    times = [each.at for each in kind.changes]
    gaps = [b.at - a.at for a, b in zip(kind.changes, kind.changes[1:], strict=False)]
    looked = kind.days * DAY
    width = min(DAY, max(1.0, statistics.median(gaps))) if gaps else DAY
    width = max(width, looked / _STRETCHES)
    return rate(_counts(times, now, width, int(looked // width))) * DAY / width


def _within_a_day(kind: Kind, now: float) -> Chance:
    days = min(int(kind.days), _STRETCHES)
    counts = _counts([each.at for each in kind.changes], now, DAY, days)
    return chance(counts > 0, 0, 7)


def _counts(
    times: Sequence[float], now: float, width: float, stretches: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """How many of the times lie in each of the stretches before now, the latest last."""
    back = ((now - np.array(times)) // width).astype(np.int64)
    kept = stretches - 1 - back[back < stretches]
    return np.bincount(kept, minlength=stretches).astype(np.float64)


def _changes(
    histories: Mapping[TableName, History], times: Mapping[TableName, Sequence[float]], pause: float
) -> Iterator[Change]:
    """The commits of all tables in the order of their times, those close together as one."""
    commits = sorted(
        (at, name, number) for name, result in times.items() for number, at in enumerate(result)
    )
    first = 0
    for end in range(1, len(commits) + 1):
        if end == len(commits) or commits[end][0] - commits[first][0] > pause:
            parts = commits[first:end]
            yield _one(histories, parts)
            first = end


def _one(
    histories: Mapping[TableName, History], commits: Sequence[tuple[float, TableName, int]]
) -> Change:
    moved: dict[TableName, Moved] = {}
    is_after_gap = False
    for _, name, number in commits:
        each = histories[name].arrivals[number]
        before = moved.get(name, Moved(0, 0))
        moved[name] = Moved(_sum(before.rows, each.rows), _sum(before.deleted, each.deleted))
        is_after_gap |= each.is_after_gap
    return Change(commits[0][0], moved, is_after_gap)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _pause(times: Iterable[Sequence[float]]) -> float:
    """Half of what lies between two commits of the table that changes most often."""
    medians = [float(np.median(np.diff(np.array(result)))) for result in times if len(result) > 1]
    return min([_TOGETHER, *(median / 2 for median in medians)])


def _days(held: History, times: Sequence[float], now: float) -> float:
    """For how long the table's commits are known, gaps left out."""
    start = held.since if held.since is not None and held.since <= now else None
    start = min([*times[:1], *([] if start is None else [start]), now])
    missed = sum(
        after - before
        for before, after, each in zip(times, times[1:], held.arrivals[1:], strict=False)
        if each.is_after_gap
    )
    return max(0.0, now - start - missed) / DAY
