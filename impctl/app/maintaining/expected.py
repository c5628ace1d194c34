"""What is expected of the tables of each query: by their histories, and by the workload file.

Law: the file's word holds where the log cannot know yet: until a table has `TAKES_OVER` commits
since the expectation began. A table that never changes, by the file, is in no kind of change; nor
is one out of the time that its expectations are for, but for the rate of what never came. Tables
of which the file says the same pauses are loaded together: one run carries them on.
Out of scope: finding kinds (`app.maintaining.kinds`), keeping histories
(`app.workbench.histories`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property

from impctl.app.maintaining.kinds import DAY, Expected, Kind, Tables, expected_of, kinds_of
from impctl.app.maintaining.next_change import Forecasts, next_change
from impctl.app.results.foreseen import NextChange
from impctl.app.workbench.histories import Texts, known_histories
from impctl.app.workbench.workbench import Workbench
from impctl.forecast import History, effective_times
from impctl.store.reader import StoreReader
from impctl.types import TableName
from impctl.values import dataclass
from impctl.workload.models import ComingSpec, TableSpec

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
