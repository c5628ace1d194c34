"""Which attribute of each table access is sketched, with which partition, and why.

Law: only a safe choice is returned; every candidate that was looked at comes with its reason.
Order of preference: the attribute the file asks for (`sketch:`), then the file's partitions, then
grouping columns and the other columns the query reads.
Out of scope: the safety rules (`plan.safety.verdict`, `plan.safety.choose`), making ranges
(`app.preparing.partitions`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from impctl.aliases import AccessId, ColumnName, TableName
from impctl.app.preparing.facts import facts_of
from impctl.app.preparing.partitions import candidates, is_partitionable, partition_of
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.results.explanations import CandidateEntry
from impctl.app.workbench.pinned import PinnedTables
from impctl.app.workbench.workbench import Workbench
from impctl.errors import ImpctlError, UsageError
from impctl.expr.nodes import columns_of
from impctl.plan.nodes import Select, nodes_of
from impctl.plan.safety.choose import Choice, choose_attributes
from impctl.plan.safety.verdict import Verdict, check_kept
from impctl.sketch.partition import RangePartition


@dataclass(frozen=True, slots=True)
class Chosen:
    """The safe choice: attribute by access, its verdict, and all candidates with reasons."""

    sketched: Mapping[AccessId, ColumnName]
    verdict: Verdict
    candidates: tuple[CandidateEntry, ...]

    def partitions(
        self, desk: Workbench, prepared: PreparedQuery
    ) -> dict[AccessId, RangePartition]:
        """The partition of every sketched access; one per table and attribute."""
        tables = prepared.table_of
        made: dict[tuple[TableName, ColumnName], RangePartition] = {}
        for access, column in self.sketched.items():
            key = (tables[access], column)
            if key not in made:
                made[key] = partition_of(desk, *key)
        return {access: made[tables[access], column] for access, column in self.sketched.items()}


def choose(desk: Workbench, prepared: PreparedQuery) -> Chosen:
    """The sketches to capture; UnsafeSketchError says why none, or why not the one asked for."""
    query = prepared.planned
    facts = facts_of(desk.tables, prepared.scans)
    try:
        choice = choose_attributes(
            query,
            _candidates(desk, prepared),
            facts,
            wanted=_wanted(desk.tables, prepared),
            core=prepared.core,
            name=prepared.spec.name,
        )
    except ImpctlError as error:
        placed = error.at(prepared.spec.location) if error.location is None else error
        raise prepared.located(placed) from error.__cause__
    return Chosen(choice.sketched, choice.verdict, _entries(choice, prepared))


def judge_candidates(desk: Workbench, prepared: PreparedQuery) -> tuple[CandidateEntry, ...]:
    """Every candidate judged for itself: what `explain` shows where nothing can be chosen."""
    query = prepared.planned
    facts = facts_of(desk.tables, prepared.scans)
    columns = _candidates(desk, prepared)
    for table, name in _wanted(desk.tables, prepared).items():
        columns[table] = list(dict.fromkeys([name, *columns[table]]))
    entries = []
    for scan in prepared.scans:
        for column in columns[scan.table]:
            verdict = check_kept(query, prepared.core, {scan.access: column}, facts)
            entry = CandidateEntry(scan.table, column, verdict.safe, False, verdict.reason)
            entries.append(entry)
    return tuple(entries)


def _candidates(desk: Workbench, prepared: PreparedQuery) -> dict[TableName, list[ColumnName]]:
    """Columns to consider per table, best first."""
    found: dict[TableName, list[ColumnName]] = {}
    for table in prepared.tables:
        named = list(candidates(desk, table))
        found[table] = named if named else _proposed(desk.tables, prepared, table)
    return found


def _proposed(tables: PinnedTables, prepared: PreparedQuery, table: TableName) -> list[ColumnName]:
    """Without candidates in the file: the columns the query reads, those it filters on first."""
    read = {
        attribute.id: attribute.name
        for scan in prepared.scans
        if scan.table == table
        for attribute in scan.attributes
    }
    filtered = [
        read[identity]
        for node in nodes_of(prepared.root)
        if isinstance(node, Select)
        for identity in sorted(columns_of(node.predicate))
        if identity in read
    ]
    schema = tables.snapshot(table).schema
    able = [c.name for c in schema if c.name in set(read.values()) and is_partitionable(c)]
    return [name for name in dict.fromkeys((*filtered, *able)) if name in able]


def _wanted(tables: PinnedTables, prepared: PreparedQuery) -> dict[TableName, ColumnName]:
    """`sketch:` of the file, spelled as in the schema."""
    wanted: dict[TableName, ColumnName] = {}
    for table, name in prepared.spec.sketch.items():
        if table not in prepared.tables:
            raise UsageError(
                f"Query `{prepared.spec.name}` asks for a sketch of `{table}` but does not read it",
                hint=f"it reads: {', '.join(prepared.tables)}",
                code="sketch_table_unused",
                location=prepared.spec.location,
            )
        column = tables.snapshot(table).schema.find(name)
        if column is None or not is_partitionable(column):
            names = [c.name for c in tables.snapshot(table).schema if is_partitionable(c)]
            raise UsageError(
                f"Table `{table}` has no column `{name}` that can be sketched",
                hint=f"it has: {', '.join(names)}",
                code="column_unknown",
                location=prepared.spec.location,
            )
        wanted[table] = column.name
    return wanted


def _entries(choice: Choice, prepared: PreparedQuery) -> tuple[CandidateEntry, ...]:
    tables = prepared.table_of
    return tuple(
        CandidateEntry(tables[c.access], c.column, c.safe, c.chosen, c.reason)
        for c in choice.considered
    )
