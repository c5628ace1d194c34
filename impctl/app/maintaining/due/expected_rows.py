"""Rows that are going to change in the tables of stored queries, by what is expected of these.

Law: in the mean, as all kinds of change together; nothing is read before it is asked for. A kind
that never came, or whose rows no log tells, adds none. Fulfils `due.costs.ExpectedRows`.
Out of scope: when the next change comes (`app.maintaining.next_change`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property

from impctl.app.maintaining.expected import Expectations, expectations
from impctl.app.maintaining.kinds import DAY
from impctl.app.workbench.workbench import Workbench
from impctl.store.reader import StoreReader
from impctl.types import QueryName, TableName

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
