"""A query read and planned: what every use case but the fastest path starts from.

Law: a SQL error is reported at its place in the workload file.
Out of scope: choosing a sketch (`app.choice`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from impctl.aliases import AccessId, TableName
from impctl.app.isolated import located
from impctl.app.workbench import Workbench
from impctl.data.schema import Schema
from impctl.errors import ImpctlError, Location
from impctl.expr.nodes import Span
from impctl.plan.nodes import Plan, Project, Query, Scan, scans_of
from impctl.plan.parse import parse_query
from impctl.plan.rules import apply_rules
from impctl.workload.models import QuerySpec
from impctl.workload.sql_location import sql_location


@dataclass(frozen=True, slots=True)
class PreparedQuery:
    """The parsed query, its plan after the rules, and what of it a sketch depends on.

    `core` yields the same rows without their columns: what is only put out decides nothing about
    the sketch, so neither engine nor capture need remember it.
    """

    spec: QuerySpec
    query: Query
    root: Plan
    core: Plan

    @property
    def planned(self) -> Query:
        """The query with the plan after the rules."""
        return replace(self.query, root=self.root)

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
        return None if span is None else sql_location(self.spec, span.line, span.column)


class _Catalog(Mapping[TableName, Schema]):
    """Schemas of the workload's tables, read only for tables that a query names."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench

    def __getitem__(self, table: TableName) -> Schema:
        if table not in self._bench.workload.tables:
            raise KeyError(table)
        return self._bench.snapshot(table).schema

    def __iter__(self):  # type: ignore[no-untyped-def]  # Mapping's own signature
        return iter(self._bench.workload.tables)

    def __len__(self) -> int:
        return len(self._bench.workload.tables)


def prepare(bench: Workbench, spec: QuerySpec) -> PreparedQuery:
    """Parse and plan a query; QueryError names the place in the workload file."""
    try:
        query = parse_query(spec.sql, _Catalog(bench), name=spec.name)
        core = apply_rules(Project(query.root, ()))
        return PreparedQuery(spec, query, apply_rules(query.root), core)
    except ImpctlError as error:
        raise located(error, spec) from error
