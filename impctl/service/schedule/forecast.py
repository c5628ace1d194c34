"""What is expected of the tables of each query: when they change, and by how many rows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, field

from impctl.forecast import Commit, Forecast, History, effective_times, forecast, rate
from impctl.service.context import Context, known_histories
from impctl.service.results import NextChange
from impctl.types import TableName

if TYPE_CHECKING:
    from impctl.store.reader import StoreReader
    from impctl.workload.models import ExpectedChanges, TableSpec

# Kinds of change, from tables' histories: which tables move together, how often, by how many rows.
# Law: commits close to each other are one change, since one run processes them; each
# commit is in one change. A table that did not change in n days has the rate 1/(2n + 2), never 0.
# Rows that a log does not count are not guessed.

DAY = 86_400.0
_TOGETHER = 300.0
"""Usual seconds between two runs that cron starts."""
_STRETCHES = 1000
"""Most stretches of time that a rate is counted over."""
_LATEST = 16
"""Latest changes that give the number of rows."""

Tables = frozenset[TableName]


class GroupedCommits(Struct, frozen=True):
    """Commits that one run carries on: the time of the first, and the commits of each table.
    `is_after_gap`: changes before it are unknown."""

    at: float
    moved: Mapping[TableName, Sequence[Commit]]
    is_after_gap: bool

    @property
    def rows(self) -> int | None:
        """Rows of all tables together; None if a log does not count them."""
        return _sum(commit.rows for commits in self.moved.values() for commit in commits)


class ChangeKind(Struct, frozen=True):
    """Changes of one set of tables, oldest first, and the days covered."""

    tables: Tables
    days: float
    changes: tuple[GroupedCommits, ...] = ()


class Expected(Struct, frozen=True):
    """The expected frequency per day of a kind, and rows of each table, None if its log does not
    tell; `deletes` is the share of deleted rows, `chance` the probability within a day."""

    tables: Tables
    per_day: float
    rows: Mapping[TableName, float | None]
    deletes: Mapping[TableName, float] = field(default_factory=dict)
    chance: float = 0.0


def kinds_of(histories: Mapping[TableName, History], now: float) -> list[ChangeKind]:
    """The kinds of change of these tables; a table that never changed is one by itself."""
    times = {name: effective_times(history.arrivals, now) for name, history in histories.items()}
    # Half the pause between commits of the table that changes most often.
    gaps = (np.diff(np.array(result)) for result in times.values() if len(result) > 1)
    together = min([_TOGETHER, *(float(np.median(gap)) / 2 for gap in gaps)])
    result: dict[Tables, list[GroupedCommits]] = {}
    for change in _changes(histories, times, together):
        result.setdefault(frozenset(change.moved), []).append(change)
    seen_tables = frozenset[TableName]().union(*result)
    days = {name: _days(history, times[name], now) for name, history in histories.items()}
    kinds = [
        ChangeKind(tables, min(days[name] for name in tables), tuple(changes))
        for tables, changes in result.items()
    ]
    return kinds + [
        ChangeKind(frozenset([name]), days[name]) for name in histories if name not in seen_tables
    ]


def expected_of(kind: ChangeKind, now: float) -> Expected:
    """The expected frequency and size of a kind of change."""
    if not kind.changes:
        # Recent observations would make it even less likely, but it may begin any day.
        least = 1 / (2 * kind.days + 2)
        return Expected(kind.tables, least, dict.fromkeys(kind.tables), {}, least)
    latest = kind.changes[-_LATEST:]
    means: dict[TableName, float | None] = {}
    deletes: dict[TableName, float] = {}
    for name in kind.tables:
        commits = [change.moved[name] for change in latest]
        # Rows are counted where deleted ones are.
        known = [
            (rows, _sum(commit.deleted for commit in part) or 0)
            for part in commits
            if (rows := _sum(commit.rows for commit in part)) is not None
        ]
        rows = sum(rows for rows, _ in known)
        means[name] = statistics.fmean(rows for rows, _ in known) if known else None
        deletes[name] = sum(deleted for _, deleted in known) / rows if rows else 0.0
    days = min(int(kind.days), _STRETCHES)
    daily = _counts([change.at for change in kind.changes], now, DAY, days)
    within_a_day = rate((daily > 0).astype(np.float64), 7)
    return Expected(kind.tables, _per_day(kind, now), means, deletes, within_a_day)


def _per_day(kind: ChangeKind, now: float) -> float:
    """Changes a day, counted in stretches about as long as the pause between two of them."""
    times = [change.at for change in kind.changes]
    gaps = [b.at - a.at for a, b in zip(kind.changes, kind.changes[1:], strict=False)]
    looked = kind.days * DAY
    width = min(DAY, max(1.0, statistics.median(gaps))) if gaps else DAY
    width = max(width, looked / _STRETCHES)
    return rate(_counts(times, now, width, int(looked // width))) * DAY / width


def _counts(
    times: Sequence[float], now: float, width: float, stretches: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """How many of the times lie in each of the stretches before now, the latest last."""
    back = ((now - np.array(times)) // width).astype(np.int64)
    counted = stretches - 1 - back[back < stretches]
    return np.bincount(counted, minlength=stretches).astype(np.float64)


def _changes(
    histories: Mapping[TableName, History], times: Mapping[TableName, Sequence[float]], pause: float
) -> Iterator[GroupedCommits]:
    """The commits of all tables by time, close ones merged."""
    commits = sorted(
        (moment, name, number)
        for name, result in times.items()
        for number, moment in enumerate(result)
    )
    first = 0
    for end in range(1, len(commits) + 1):
        if end == len(commits) or commits[end][0] - commits[first][0] > pause:
            moved: dict[TableName, list[Commit]] = {}
            for _, name, number in commits[first:end]:
                moved.setdefault(name, []).append(histories[name].arrivals[number])
            is_after_gap = any(commit.is_after_gap for part in moved.values() for commit in part)
            yield GroupedCommits(commits[first][0], moved, is_after_gap)
            first = end


def _sum(counts: Iterable[int | None]) -> int | None:
    """The sum; None if one is unknown."""
    result = 0
    for count in counts:
        if count is None:
            return None
        result += count
    return result


def _days(history: History, times: Sequence[float], now: float) -> float:
    """For how long the table's commits are known, without gaps."""
    since = [] if history.since is None else [history.since]
    start = min([*times[:1], *since, now])
    missed = sum(
        after - before
        for before, after, arrival in zip(times, times[1:], history.arrivals[1:], strict=False)
        if arrival.is_after_gap
    )
    return max(0.0, now - start - missed) / DAY


# The next change: when, which tables, how many rows, with intervals. Law: a kind seen fewer than
# five times is not forecast, with the reason. Times are never before now. A kind absent for twice
# its interval counts only if no other kind does.

NEEDED = 5
"""Fewer changes of a kind give no forecast."""
_PATIENCE = 2.0
"""Times the longest expected pause after which a kind is taken to have ceased."""
_LOOKED_AT = 4
"""Number of most frequent kinds that are forecast."""


def _gap(before: GroupedCommits, change: GroupedCommits) -> float | None:
    """The time from one change to the next; None across a gap in the log."""
    return None if change.is_after_gap else change.at - before.at


# Expectations of the file and of histories. Law: the file holds until a table has `TAKES_OVER`
# commits since the expectation began. A table that never changes, by the file, is in no kind of
# change; nor is one outside the period of its expectations, except for the rate of what never came.
# Tables with the same pauses are loaded together: one run processes them.

_RATHER = 0.5
"""Expected changes of a kind, from which on it probably comes."""
TAKES_OVER = 20
"""Commits after which a table's log overrides the file."""
BY_THE_FILE = "the workload file"


class Expectations(Struct, frozen=True, dict=True):
    """Expected changes at `now` (seconds since 1970)."""

    specs: Mapping[TableName, TableSpec]
    histories: Mapping[TableName, History]
    now: float
    _kinds: dict[Tables, list[ChangeKind]] = field(default_factory=dict)
    _expected: dict[Tables, tuple[Expected, ...]] = field(default_factory=dict)
    _forecasts: dict[tuple[tuple[float, ...], ...], Forecast | None] = field(default_factory=dict)

    def expected(self, tables: Iterable[TableName]) -> tuple[Expected, ...]:
        """The kinds of change of a query over these tables, the most frequent first."""
        names = frozenset(tables)
        if names not in self._expected:
            result = [expected_of(kind, self.now) for kind in self._kinds_of(names)]
            result += self._by_the_file(sorted(names & self._declared.keys()))
            for name in sorted(names & self._ended):
                days = _days(self.histories.get(name, _NOTHING), (), self.now)
                result.append(expected_of(ChangeKind(frozenset([name]), days), self.now))
            result.sort(key=lambda kind: (-kind.per_day, sorted(kind.tables)))
            self._expected[names] = tuple(result)
        return self._expected[names]

    def rows(self, tables: Iterable[TableName], since: float, until: float) -> float | None:
        """Rows expected to change in these tables between two times, in the mean over all kinds of
        observed change with counted rows; None without any."""
        sums = []
        for kind in self.expected(tables):
            counts = [count for count in kind.rows.values() if count is not None]
            if len(counts) == len(kind.rows):
                sums.append(kind.per_day * sum(counts))
        return sum(sums) * max(0.0, until - since) / DAY if sums else None

    def moved(self, tables: Iterable[TableName], since: float, until: float) -> Tables:
        """The tables of all probable kinds of change, which a run then carries on; else of the
        first."""
        days, kinds = max(0.0, until - since) / DAY, self.expected(tables)
        likely = [kind for kind in kinds if kind.per_day * days >= _RATHER]
        return frozenset().union(*(kind.tables for kind in likely or kinds[:1]))

    def next_change(self, tables: Iterable[TableName]) -> NextChange:
        """The first of them to come."""
        names = frozenset(tables)
        if names and all(self.specs[name].never_changes for name in names if name in self.specs):
            return NextChange(unknown="the workload file declares that its tables never change")
        by_log = self._next_by_the_log(self._kinds_of(names))
        declared = [self._next_by_the_file(name) for name in sorted(names & self._declared.keys())]
        known = [change for change in (by_log, *declared) if change.in_s is not None]
        return min(known, key=lambda change: change.in_s or 0.0) if known else by_log

    def _kinds_of(self, tables: Tables) -> list[ChangeKind]:
        """The kinds by the log, computed once for all queries over the same tables."""
        never = {name for name, spec in self.specs.items() if spec.never_changes}
        by_log = tables.difference(never, self._declared, self._ended)
        if by_log not in self._kinds:
            known = {name: self.histories.get(name, _NOTHING) for name in sorted(by_log)}
            self._kinds[by_log] = kinds_of(known, self.now)
        return self._kinds[by_log]

    @cached_property
    def _declared(self) -> dict[TableName, tuple[ExpectedChanges, ...]]:
        result = {}
        for name, spec in self.specs.items():
            paced = tuple(coming for coming in self._holding(spec) if coming.every is not None)
            # Until the log has enough commits since the expectation began.
            begun = max((coming.since for coming in paced if coming.since is not None), default=0.0)
            if paced and sum(moment >= begun for moment in self._times(name)) < TAKES_OVER:
                result[name] = paced
        return result

    @cached_property
    def _ended(self) -> frozenset[TableName]:
        return frozenset(
            name for name, spec in self.specs.items() if spec.coming and not self._holding(spec)
        )

    def _holding(self, spec: TableSpec) -> list[ExpectedChanges]:
        return [
            coming
            for coming in spec.coming or ()
            if (coming.since is None or coming.since <= self.now)
            and (coming.until is None or self.now < coming.until)
        ]

    def _times(self, table: TableName) -> list[float]:
        return effective_times(self.histories.get(table, _NOTHING).arrivals, self.now)

    def _by_the_file(self, tables: Sequence[TableName]) -> Iterator[Expected]:
        """Kinds declared in the file: tables with the same pauses come together, in one kind. Rates
        of a table add up; its rows are their mean."""
        together: dict[tuple[object, ...], list[TableName]] = {}
        for name in tables:
            pace = tuple((spec.every, spec.since, spec.until) for spec in self._declared[name])
            together.setdefault(pace, []).append(name)
        for names in together.values():
            rates = [DAY / spec.every for spec in self._declared[names[0]] if spec.every]
            rows: dict[TableName, float | None] = {}
            deletes: dict[TableName, float] = {}
            for name in names:
                paced = zip(rates, self._declared[name], strict=True)
                sized = [(rate, spec) for rate, spec in paced if spec.rows is not None]
                weight = sum(rate for rate, _ in sized)
                changed = sum(rate * (spec.rows or 0) for rate, spec in sized)
                deleted = sum(rate * (spec.rows or 0) * spec.deletes for rate, spec in sized)
                rows[name] = changed / weight if sized else None
                deletes[name] = deleted / changed if changed else 0.0
            per_day = sum(rates)
            yield Expected(frozenset(names), per_day, rows, deletes, min(1.0, per_day))

    def _next_by_the_log(self, kinds: Iterable[ChangeKind]) -> NextChange:
        known = sorted(kinds, key=lambda kind: (-len(kind.changes), sorted(kind.tables)))
        coming = []
        for kind in known[:_LOOKED_AT]:
            gap = None if len(kind.changes) < NEEDED else self._forecast(kind.changes, _gap)
            if gap is not None:
                since = self.now - kind.changes[-1].at
                is_late = since > _PATIENCE * gap.high
                # The earliest expected first; of overdue ones, the one seen last.
                order = (is_late, since if is_late else gap.value - since)
                coming.append((order, kind, gap, since))
        if not coming:
            count = sum(len(kind.changes) for kind in known)
            some = {0: "no change is", 1: "1 change is"}.get(count, f"{count} changes are")
            same = " of the same tables" if count >= NEEDED else ""
            return NextChange(unknown=f"{some} known, a forecast needs {NEEDED}{same}")
        _, first, gap, since = min(coming, key=itemgetter(0))
        rows = self._forecast(first.changes, lambda _, change: change.rows)
        return NextChange(
            tables=tuple(sorted(first.tables)),
            in_s=max(0.0, gap.value - since),
            in_s_low=max(0.0, gap.low - since),
            in_s_high=max(0.0, gap.high - since),
            rows=None if rows is None else rows.value,
            rows_low=None if rows is None else rows.low,
            rows_high=None if rows is None else rows.high,
            by=gap.by,
            rows_by=None if rows is None else rows.by,
        )

    def _forecast(
        self,
        changes: Sequence[GroupedCommits],
        value: Callable[[GroupedCommits, GroupedCommits], float | None],
    ) -> Forecast | None:
        """Cached, as queries share tables, and so histories."""
        values, times = [], []
        for before, change in pairwise(changes):
            number = value(before, change)
            if number is not None:
                values.append(float(number))
                times.append(before.at)
        key = (tuple(values), (*times, changes[-1].at))
        if key not in self._forecasts:
            self._forecasts[key] = forecast(*key)
        return self._forecasts[key]

    def _next_by_the_file(self, table: TableName) -> NextChange:
        first = min(self._declared[table], key=lambda coming: coming.every or 0.0)
        assert first.every is not None
        latest = self._times(table)[-1:]
        # Without a commit yet, nobody knows where in the pause it is now.
        since = self.now - latest[0] if latest else 0.0
        rows = None if first.rows is None else float(first.rows)
        return NextChange(
            tables=(table,), in_s=max(0.0, first.every - since), rows=rows, by=BY_THE_FILE
        )


def expectations(
    ctx: Context, store: StoreReader | None, tables: Iterable[TableName], now: float | None = None
) -> Expectations:
    """Expected changes for queries over these tables, by all that is known now. `now` is in seconds
    since 1970, None for that of the run."""
    histories = known_histories(ctx.tables, store, tables)
    return Expectations(ctx.workload.tables, histories, ctx.now() if now is None else now)


_NOTHING = History("", -1, None)
"""History of a table whose commits nobody read."""
