"""What is expected of the tables of each query: when they change, and by how many rows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from impctl.forecast import Chance, Forecast, History, chance, effective_times, forecast, rate
from impctl.service.context import Texts, Workbench, known_histories
from impctl.service.results import NextChange
from impctl.types import QueryName, TableName
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.store.records import StoreReader
    from impctl.workload.models import ComingSpec, TableSpec

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


NEEDED = 5
"""Changes of a kind without which nothing is forecast."""
_PATIENCE = 2.0
"""Times the longest pause expected, after which a kind has ceased, as it seems."""
_LOOKED_AT = 4
"""Kinds that are forecast: those that came most often."""


@dataclass(frozen=True, slots=True)
class Forecasts:
    """Forecasts made so far: queries share tables, and so histories."""

    _known: dict[tuple[tuple[float, ...], tuple[float, ...]], Forecast | None] = field(
        default_factory=dict
    )

    def of(self, values: Sequence[float], times: Sequence[float]) -> Forecast | None:
        """As `forecast.forecast`."""
        key = (tuple(values), tuple(times))
        if key not in self._known:
            self._known[key] = forecast(values, times)
        return self._known[key]


@dataclass(frozen=True, slots=True)
class _Coming:
    """When a kind comes, in seconds from now on."""

    kind: Kind
    gap: Forecast
    since: float

    @property
    def order(self) -> tuple[bool, float]:
        """What is expected first comes first; of those that stayed away, the one seen last."""
        is_late = self.since > _PATIENCE * self.gap.high
        return is_late, self.since if is_late else self.gap.value - self.since


def next_change(kinds: Iterable[Kind], now: float, forecasts: Forecasts) -> NextChange:
    """The kind that is expected first."""
    known = sorted(kinds, key=lambda kind: (-len(kind.changes), sorted(kind.tables)))
    coming = []
    for kind in known[:_LOOKED_AT]:
        gap = None if len(kind.changes) < NEEDED else _gap(kind.changes, forecasts)
        if gap is not None:
            coming.append(_Coming(kind, gap, now - kind.changes[-1].at))
    if not coming:
        return NextChange(unknown=_why(known))
    first = min(coming, key=lambda each: each.order)
    rows = _rows(first.kind.changes, forecasts)
    return NextChange(
        tables=tuple(sorted(first.kind.tables)),
        in_s=max(0.0, first.gap.value - first.since),
        in_s_low=max(0.0, first.gap.low - first.since),
        in_s_high=max(0.0, first.gap.high - first.since),
        rows=None if rows is None else rows.value,
        rows_low=None if rows is None else rows.low,
        rows_high=None if rows is None else rows.high,
        by=first.gap.by,
        rows_by=None if rows is None else rows.by,
    )


def _gap(changes: Sequence[Change], forecasts: Forecasts) -> Forecast | None:
    """The time from one change to the next; what lies across a gap in what is known is left out."""
    pairs = [
        (after.at - before.at, before.at)
        for before, after in zip(changes, changes[1:], strict=False)
        if not after.is_after_gap
    ]
    return forecasts.of([gap for gap, _ in pairs], [*(at for _, at in pairs), changes[-1].at])


def _rows(changes: Sequence[Change], forecasts: Forecasts) -> Forecast | None:
    pairs = [
        (float(after.rows), before.at)
        for before, after in zip(changes, changes[1:], strict=False)
        if after.rows is not None
    ]
    return forecasts.of([rows for rows, _ in pairs], [*(at for _, at in pairs), changes[-1].at])


def _why(kinds: Sequence[Kind]) -> str:
    """Why nothing is forecast."""
    count = sum(len(kind.changes) for kind in kinds)
    known = {0: "no change is", 1: "1 change is"}.get(count, f"{count} changes are")
    same = " of the same tables" if count >= NEEDED else ""
    return f"{known} known, a forecast needs {NEEDED}{same}"


TAKES_OVER = 20
"""Commits after which a table's log knows better than the file."""
BY_THE_FILE = "the workload file"


@dataclass(frozen=True)
class Expectations:
    """What is to come, as it stands at `now` (seconds since 1970).

    `together` are the seconds within which commits are one change; None goes by the tables.
    """

    specs: Mapping[TableName, TableSpec]
    histories: Mapping[TableName, History]
    now: float
    together: float | None = None
    _forecasts: Forecasts = field(default_factory=Forecasts)
    _kinds: dict[Tables, list[Kind]] = field(default_factory=dict)

    def expected(self, tables: Iterable[TableName]) -> tuple[Expected, ...]:
        """The kinds of change of a query over these tables, the most frequent first."""
        asked = frozenset(tables)
        result = [expected_of(kind, self.now) for kind in self._kinds_of(asked)]
        result += self._by_the_file(sorted(asked & self._declared.keys()))
        result += [
            expected_of(Kind(frozenset([name]), self._days(name)), self.now)
            for name in sorted(asked & self._ended)
        ]
        return tuple(sorted(result, key=lambda each: (-each.per_day, sorted(each.tables))))

    def next_change(self, tables: Iterable[TableName]) -> NextChange:
        """What comes first of it."""
        asked = frozenset(tables)
        if asked and all(self.specs[name].never_changes for name in asked if name in self.specs):
            return NextChange(unknown="the workload file declares that its tables never change")
        by_log = next_change(self._kinds_of(asked), self.now, self._forecasts)
        declared = [self._next_by_the_file(name) for name in sorted(asked & self._declared.keys())]
        known = [each for each in (by_log, *declared) if each.in_s is not None]
        return min(known, key=lambda each: each.in_s or 0.0) if known else by_log

    def _kinds_of(self, tables: Tables) -> list[Kind]:
        """The kinds that the log tells of, found once for all queries over the same tables."""
        told = frozenset(name for name in tables if self._is_told_by_its_log(name))
        if told not in self._kinds:
            held = {name: self.histories.get(name, _NOTHING) for name in sorted(told)}
            self._kinds[told] = kinds_of(held, self.now, self.together)
        return self._kinds[told]

    def _is_told_by_its_log(self, table: TableName) -> bool:
        spec = self.specs.get(table)
        is_never = spec is not None and spec.never_changes
        return not is_never and table not in self._declared and table not in self._ended

    @cached_property
    def _declared(self) -> dict[TableName, tuple[ComingSpec, ...]]:
        """Tables of which the file says how often they change, with what holds now."""
        result = {}
        for name, spec in self.specs.items():
            paced = tuple(each for each in self._holding(spec) if each.every is not None)
            if paced and not self._has_taken_over(name, paced):
                result[name] = paced
        return result

    @cached_property
    def _ended(self) -> frozenset[TableName]:
        """Tables of which the file says when they change, and it is not now."""
        return frozenset(
            name for name, spec in self.specs.items() if spec.coming and not self._holding(spec)
        )

    def _holding(self, spec: TableSpec) -> list[ComingSpec]:
        return [
            each
            for each in spec.coming or ()
            if (each.since is None or each.since <= self.now)
            and (each.until is None or self.now < each.until)
        ]

    def _has_taken_over(self, table: TableName, holding: Sequence[ComingSpec]) -> bool:
        """Whether the log has enough commits since the expectation began."""
        begun = max((each.since for each in holding if each.since is not None), default=0.0)
        return sum(at >= begun for at in self._times(table)) >= TAKES_OVER

    def _times(self, table: TableName) -> list[float]:
        return effective_times(self.histories.get(table, _NOTHING).arrivals, self.now)

    def _by_the_file(self, tables: Sequence[TableName]) -> list[Expected]:
        """What the file says of these: tables with the same pauses come together, in one kind."""
        together: dict[tuple[object, ...], list[Expected]] = {}
        for name in tables:
            pace = tuple((each.every, each.since, each.until) for each in self._declared[name])
            together.setdefault(pace, []).append(self._declared_kind(name))
        return [
            Expected(
                frozenset().union(*(one.tables for one in kinds)),
                kinds[0].per_day,
                {name: rows for one in kinds for name, rows in one.rows.items()},
                {name: share for one in kinds for name, share in one.deletes.items()},
                kinds[0].chance,
            )
            for kinds in together.values()
        ]

    def _declared_kind(self, table: TableName) -> Expected:
        """One kind for all that the file says of a table: rates add up, rows are their mean."""
        pace = [(DAY / each.every, each) for each in self._declared[table] if each.every]
        per_day = sum(rate for rate, _ in pace)
        sized = [(rate, each) for rate, each in pace if each.rows is not None]
        weight = sum(rate for rate, _ in sized)
        changed = sum(rate * (each.rows or 0) for rate, each in sized)
        deleted = sum(rate * (each.rows or 0) * each.deletes for rate, each in sized)
        return Expected(
            frozenset([table]),
            per_day,
            {table: changed / weight if sized else None},
            {table: deleted / changed if changed else 0.0},
            min(1.0, per_day),
        )

    def _next_by_the_file(self, table: TableName) -> NextChange:
        first = min(self._declared[table], key=lambda each: each.every or 0.0)
        assert first.every is not None
        latest = self._times(table)[-1:]
        # Without a commit yet, nobody knows where in the pause it is now.
        since = self.now - latest[0] if latest else 0.0
        rows = None if first.rows is None else float(first.rows)
        return NextChange(
            tables=(table,), in_s=max(0.0, first.every - since), rows=rows, by=BY_THE_FILE
        )

    def _days(self, table: TableName) -> float:
        """For how many days the table is known; none of its commits counts."""
        held = replace(self.histories.get(table, _NOTHING), arrivals=())
        (kind,) = kinds_of({table: held}, self.now)
        return kind.days


def expectations(
    desk: Workbench,
    store: StoreReader | None,
    tables: Iterable[TableName],
    texts: Texts | None = None,
    now: float | None = None,
) -> Expectations:
    """What is to come for queries over these tables, by all that is known now.

    `texts` are entries of their logs that were read already; `now` is in seconds since 1970, None
    for what the machine's clock says.
    """
    histories = known_histories(desk.tables, store, tables, texts)
    return Expectations(desk.workload.tables, histories, time.time() if now is None else now)


_NOTHING = History("", -1, None)
"""Of a table whose commits nobody looked at."""


_RATHER = 0.5
"""Changes that are expected of a kind, from which on it is thought to come."""


class RowsToCome:
    """Of queries by the tables that they were captured from, as it stands at `now` (seconds since
    1970)."""

    def __init__(
        self,
        desk: Workbench,
        store: StoreReader | None,
        tables: Mapping[QueryName, Collection[TableName]],
        now: float,
    ) -> None:
        self._desk, self._store, self._tables, self._now = desk, store, tables, now
        self._per_day: dict[QueryName, float | None] = {}

    def rows(self, query: QueryName, since: float, until: float) -> float | None:
        """Rows expected to change between two times; None where nothing tells."""
        if query not in self._per_day:
            self._per_day[query] = self._rows_a_day(self._tables.get(query, ()))
        per_day = self._per_day[query]
        return None if per_day is None else per_day * max(0.0, until - since) / DAY

    def moved(self, query: QueryName, since: float, until: float) -> Collection[TableName]:
        """The tables of the kinds of change that come rather than not; else of the most frequent.

        A run until then carries on all of them.
        """
        days = max(0.0, until - since) / DAY
        kinds = self._expectations.expected(self._tables.get(query, ()))
        likely = [kind for kind in kinds if kind.per_day * days >= _RATHER]
        return frozenset().union(*(kind.tables for kind in likely or kinds[:1]))

    @cached_property
    def _expectations(self) -> Expectations:
        names = {name for tables in self._tables.values() for name in tables}
        return expectations(self._desk, self._store, sorted(names), now=self._now)

    def _rows_a_day(self, tables: Collection[TableName]) -> float | None:
        told = []
        for kind in self._expectations.expected(tables):
            rows = [count for count in kind.rows.values() if count is not None]
            if len(rows) == len(kind.rows):
                told.append(kind.per_day * sum(rows))
        return sum(told) if told else None
