"""A query read and planned: what every use case but the fastest path starts from.

Law: a SQL error is reported at its place in the workload file. The plan has the parameters' values
in it; `query.sql` is the text with them, which Spark runs.
Out of scope: choosing a sketch (`app.preparing.choice`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from impctl.app.preparing.expiry import LiveAt, has_expiry
from impctl.app.preparing.query_source import QuerySource
from impctl.app.workbench.pinned import PinnedTables
from impctl.app.workbench.workbench import Workbench
from impctl.data.schema import Schema
from impctl.errors import ImpctlError, Location, UsageError
from impctl.expr.nodes import Span
from impctl.plan.lineage import for_answer
from impctl.plan.nodes import LiveRows, Plan, Query, Scan, scans_of
from impctl.sql.parameters import RUN, BoundSql, Clock, bind
from impctl.sql.statement import NO_EXPIRY
from impctl.sql.views import expand_views
from impctl.types import AccessId, TableName
from impctl.values import dataclass
from impctl.workload.models import Lineage, QuerySpec


@dataclass(frozen=True, slots=True)
class PreparedQuery:
    """The query as parsed, `planned` with the plan after the rules, and what a sketch depends on.

    `core` yields the same rows without their columns: what is only put out decides nothing about
    the sketch, so neither engine nor capture need remember it. Both say where the lineage of the
    answer alone is asked for.
    """

    spec: QuerySpec
    bound: BoundSql
    query: Query
    planned: Query
    core: Plan
    source: QuerySource | None = None
    """Where the text came from; None where it has no views and parameters."""
    now: str = ""
    """The instant at which rows of tables with an expiry have to be live, where it reads one."""

    @property
    def root(self) -> Plan:
        """The plan after the rules."""
        return self.planned.root

    @property
    def moments(self) -> Mapping[str, str]:
        """The constants of the clock in the text and in expiries, by name, with their values."""
        return {**self.bound.moments, RUN: self.now} if self.now else self.bound.moments

    @property
    def moves_above(self) -> bool:
        """Whether constants of the clock may stand elsewhere than right above scans."""
        return bool(self.bound.moments)

    @property
    def scans(self) -> tuple[Scan, ...]:
        """Table accesses of the plan that is maintained."""
        return scans_of(self.root)

    @property
    def tables(self) -> tuple[TableName, ...]:
        return tuple(dict.fromkeys(scan.table for scan in self.scans))

    @property
    def table_of(self) -> Mapping[AccessId, TableName]:
        """The table that each access reads."""
        return {scan.access: scan.table for scan in self.scans}

    def place(self, span: Span | None) -> Location | None:
        """Where a part of the SQL text stands in the workload file."""
        if span is None:
            return None
        return self._source.place(span.line, span.column)

    def located(self, error: ImpctlError) -> ImpctlError:
        """The error with its place in the SQL text turned into one in the workload file."""
        return self._source.placed(error)

    @property
    def _source(self) -> QuerySource:
        return QuerySource(self.spec, bound=self.bound) if self.source is None else self.source


class _Catalog(Mapping[TableName, Schema]):
    """Schemas of the workload's tables, read only for tables that a query names."""

    def __init__(self, desk: Workbench) -> None:
        self._desk = desk

    def __getitem__(self, table: TableName) -> Schema:
        if table not in self._desk.workload.tables:
            raise KeyError(table)
        return self._desk.tables.snapshot(table).schema

    def __iter__(self):  # type: ignore[no-untyped-def]  # Mapping's own signature
        return iter(self._desk.workload.tables)

    def __len__(self) -> int:
        return len(self._desk.workload.tables)


def prepare(
    desk: Workbench, spec: QuerySpec, held: Mapping[str, str] | None = None
) -> PreparedQuery:
    """Parse and plan a query; QueryError names the place in the workload file.

    Constants of the clock are those of the run, or those `held`, by name.
    """
    workload = desk.workload
    source = QuerySource(spec, workload.views)
    try:
        clock = desk.clock if held is None else replace(desk.clock, held=held)
        views = {full: (view.name, view.sql) for full, view in workload.views.items()}
        expanded = expand_views(spec.sql, views, workload.names, name=spec.name)
        source = replace(source, expanded=expanded)
        bound = bind(expanded.sql, spec.params, name=spec.name, clock=clock, follows=spec.follows)
        source = replace(source, bound=bound)
        names, plans = workload.names, desk.memory.plans
        zone = desk.session_zone
        live, now = live_at(desk, clock)
        result = plans.of(
            bound.sql,
            _Catalog(desk),
            name=spec.name,
            zone=zone,
            names=names,
            live=live,
            at=now,
        )
        now = now if result.query.live else ""
        ruled, core = result.ruled, result.core
        if spec.lineage is Lineage.ANSWER:
            ruled, core = replace(ruled, root=for_answer(ruled.root)), for_answer(core)
        prepared = PreparedQuery(spec, bound, result.query, ruled, core, source, now)
        _refuse_ambiguous(desk, prepared)
        return prepared
    except ImpctlError as error:
        raise source.placed(error) from error.__cause__


def live_at(desk: Workbench, clock: Clock) -> tuple[Mapping[TableName, LiveRows], str]:
    """What queries see of tables with an expiry, and the instant; nothing where there is none."""
    if not has_expiry(desk.workload.tables.values()):
        return NO_EXPIRY, ""
    now = clock.value(RUN)
    assert isinstance(now, datetime)
    return LiveAt(desk, now), clock.text(RUN)


def column_like_clock(
    tables: PinnedTables, bound: BoundSql, read: Iterable[TableName]
) -> tuple[TableName, str] | None:
    """A name taken for the clock's that is a column of a table read: Spark prefers that."""
    for name in bound.bare:
        for table in read:
            if tables.snapshot(table).schema.find(name) is not None:
                return table, name
    return None


def _refuse_ambiguous(desk: Workbench, prepared: PreparedQuery) -> None:
    """UsageError where a name may be the clock's or a column's."""
    read = {scan.table for scan in scans_of(prepared.query.root)} if prepared.bound.bare else ()
    result = column_like_clock(desk.tables, prepared.bound, read)
    if result is not None:
        table, name = result
        raise UsageError(
            f"`{name}` in query `{prepared.spec.name}` may mean the column of `{table}` or "
            "the current time",
            hint=f"write `{name}()` for the current time, or `{table}.{name}` for the column",
            code="clock_ambiguous",
        )
