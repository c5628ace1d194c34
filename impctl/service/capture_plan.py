"""Plan a capture: the sketched attribute of each access, its partition, and its maintenance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from impctl.errors import ImpctlError, RecaptureNeededError, UsageError
from impctl.plan.lineage import for_all, why_unused
from impctl.plan.nodes import Fixpoint, Select
from impctl.safety.choose import Costs, JudgedCandidate, SafeChoice, choose_attributes
from impctl.safety.judge import Judges, check_with_core
from impctl.service.estimate import ALIKE, LEAST_ROWS, NOTHING, SketchEstimates, estimates
from impctl.service.fill import is_loaded_here
from impctl.service.filters import files_by_table, files_of_table, wanted_files
from impctl.service.maintenance_plan import plan_after_capture
from impctl.service.partitions import candidates, is_partitionable, occurrences, partition_of
from impctl.service.prepare import (
    PreparedQuery,
    SketchedQuery,
    assumption_of,
    assumption_text,
    facts_of,
    prepare,
    sketched_nodes,
)
from impctl.service.results import (
    ENGINE,
    SKETCH_NONE_REASON,
    SPARK,
    CandidateEntry,
    CaptureResult,
    ReadEntry,
    SketchEntry,
)
from impctl.service.stored import is_up_to_date
from impctl.sketch.sketch import MaintenanceMode
from impctl.tables.sample import clustered_columns
from impctl.tables.snapshot import bytes_of, rows_in
from impctl.types import ColumnName, TableName
from impctl.workload.models import LineageMode, QuerySpec

if TYPE_CHECKING:
    from impctl.compile.compile import MaintenancePlan
    from impctl.service.context import Context, Versions
    from impctl.service.pinned import PinnedTables
    from impctl.store.reader import StoreReader
    from impctl.store.records import Assumption

# Whether lineage of the answer alone makes sketches smaller. Law: without a statement here some
# sketch may be smaller, or the file only has it as default. A table lacks a sketch only if none is
# safe for this.

LINEAGE_UNUSED = "lineage_unused"


def lineage_warnings(tables: PinnedTables, query: SketchedQuery) -> list[str]:
    """Warn of `lineage: answer` that leaves a table without a sketch or has no effect."""
    prepared, spec = query.prepared, query.prepared.spec
    if spec.lineage is not LineageMode.ANSWER:
        return []
    subject = f"{spec.lineage_place or spec.location}: `lineage: answer` of query `{spec.name}`"
    unsketched: dict[TableName, CandidateEntry] = {}
    for entry in _unsketched_candidates(tables, query):
        unsketched.setdefault(entry.table, entry)
    if unsketched:
        table_of = prepared.table_of
        in_part = {table_of[access] for access in query.partitions}
        where = {
            t: f" ({entry.occurrence})" if t in in_part else "" for t, entry in unsketched.items()
        }
        return [
            f"{subject} leaves `{table}`{where[table]} without a sketch: {entry.reason}; with "
            f"`lineage: all`, a sketch on `{table}.{entry.attribute}` is safe "
            f"[{LINEAGE_UNUSED}]"
            for table, entry in unsketched.items()
        ]
    if spec.lineage_place is None:
        return []
    why = why_unused(prepared.root, *sketched_nodes(prepared, query.verdict, query.attributes))
    return [f"{subject} has no effect: {why} [{LINEAGE_UNUSED}]"] if why else []


def _unsketched_candidates(tables: PinnedTables, query: SketchedQuery) -> Iterator[CandidateEntry]:
    """Candidates that fixpoints could have beside the chosen ones if all were sketched."""
    prepared, chosen = query.prepared, query.attributes
    planned = replace(prepared.planned, root=for_all(prepared.root))
    core = for_all(prepared.core)
    facts, names = facts_of(tables, prepared.scans), occurrences(prepared)
    nodes = prepared.root.walk()
    inside = {s.access: s for n in nodes if isinstance(n, Fixpoint) for s in n.scans}
    for access, scan in inside.items():
        for entry in query.candidates if access not in chosen else ():
            is_of_it = (entry.table, entry.occurrence) == (scan.table, names[access])
            sketched = {**chosen, access: entry.attribute}
            if is_of_it and not entry.safe and check_with_core(planned, core, sketched, facts).safe:
                yield entry


# Law: only a safe choice is returned; every candidate has its reason. Preference: the attribute of
# `sketch:`; then, of the file's partitions or else of all columns that the query reads or the table
# is clustered by, the one expected to read least; grouping columns first if that is unknown.

_NOT_READ = 1.5
"""A sketch on a column that the query does not read adds one to read and filter (decision 0041)."""
_CLUSTERED, _OTHERS = 0.25, 4
"""Unread columns are candidates if files overlap by them this little; at most so many."""


def choose_sketches(
    ctx: Context, prepared: PreparedQuery, *, every: bool = True, judges: Judges | None = None
) -> SketchedQuery:
    """Choose sketches, or raise UnsafeSketchError; without `every`, estimate only possible ones.
    Accesses of one table and attribute have one partition."""
    facts = facts_of(ctx.tables, prepared.scans, reads_checks=True)
    result = NOTHING

    def weigh(options: Sequence[JudgedCandidate]) -> Costs:
        nonlocal result
        if prepared.spec.lineage is not LineageMode.ALL:
            # The sample shows which rows lead to answers with barriers, not which of them decide.
            return {}
        result = estimates(ctx, prepared, options, every=every)
        return _costs(result, options, prepared)

    try:
        choice = choose_attributes(
            prepared.planned,
            _candidates(ctx, prepared),
            facts,
            requested=_requested(ctx.tables, prepared),
            core=prepared.core,
            weigh=weigh,
            name=prepared.spec.name,
            judges=judges,
        )
    except ImpctlError as error:
        placed = error.at(prepared.spec.location) if error.location is None else error
        raise prepared.located(placed) from error.__cause__
    tables = prepared.table_of
    keys = {a: (tables[a], column) for a, column in choice.sketched.items()}
    known = {
        key: partition_of(ctx, *key, result.together.get(key, 1))
        for key in dict.fromkeys(keys.values())
    }
    partitions = {access: known[key] for access, key in keys.items()}
    candidates = _entries(choice, prepared, result)
    return SketchedQuery(prepared, choice.verdict, partitions, candidates)


def _costs(
    result: SketchEstimates, options: Sequence[JudgedCandidate], prepared: PreparedQuery
) -> Costs:
    """Bytes each sketch is expected to read, and the cost of its upkeep and use. Between two uses
    `maintain` runs once and reads the state. Costs within a tenth of the best are equal: estimates
    are not finer, and sketches on grouping columns, which come first, are simpler to keep."""
    read = {(s.table, a.name) for s in prepared.scans for a in s.attributes}
    costs = {
        key: expected.bytes * (1.0 if key in read else _NOT_READ) + expected.upkeep
        for option in options
        if (expected := result.of.get(key := (option.scan.table, option.column))) is not None
    }
    best = min(costs.values(), default=0.0)
    return {key: best if cost <= best * ALIKE else cost for key, cost in costs.items()}


def judge_candidates(
    ctx: Context, prepared: PreparedQuery, judges: Judges | None = None
) -> tuple[CandidateEntry, ...]:
    """Judge every candidate alone; `explain` shows this if nothing can be chosen."""
    query = prepared.planned
    facts = facts_of(ctx.tables, prepared.scans, reads_checks=True)
    columns = _candidates(ctx, prepared)
    for table, name in _requested(ctx.tables, prepared).items():
        columns[table] = list(dict.fromkeys([name, *columns[table]]))
    judges = Judges() if judges is None else judges
    names = occurrences(prepared)
    entries = []
    for scan in prepared.scans:
        occurrence = names[scan.access]
        for column in columns[scan.table]:
            verdict = check_with_core(query, prepared.core, {scan.access: column}, facts, judges)
            entry = CandidateEntry(
                scan.table, column, verdict.safe, False, verdict.reason, occurrence=occurrence
            )
            entries.append(entry)
    return tuple(entries)


def _candidates(ctx: Context, prepared: PreparedQuery) -> dict[TableName, list[ColumnName]]:
    result: dict[TableName, list[ColumnName]] = {}
    for table in prepared.tables:
        named = list(candidates(ctx, table))
        result[table] = named if named else _proposed(ctx.tables, prepared, table)
    return result


def _proposed(tables: PinnedTables, prepared: PreparedQuery, table: TableName) -> list[ColumnName]:
    """Without candidates in the file: the columns the query reads, filtered ones first; for a large
    table also its partition and clustering columns."""
    read = {
        attribute.id: attribute.name
        for scan in prepared.scans
        if scan.table == table
        for attribute in scan.attributes
    }
    filtered = [
        read[identity]
        for node in prepared.root.walk()
        if isinstance(node, Select)
        for identity in sorted(node.predicate.columns)
        if identity in read
    ]
    snapshot = tables.snapshot(table)
    able = [c.name for c in snapshot.schema if is_partitionable(c)]
    read_names = [name for name in able if name in set(read.values())]
    others: list[ColumnName] = []
    if snapshot.likely_rows >= LEAST_ROWS:
        others = [name for name in able if name not in read_names]
        others = clustered_columns(snapshot, others, _CLUSTERED)[:_OTHERS]
    return [name for name in dict.fromkeys((*filtered, *read_names, *others)) if name in able]


def _requested(tables: PinnedTables, prepared: PreparedQuery) -> dict[TableName, ColumnName]:
    """`sketch:` of the file, spelled as in the schema."""
    requested: dict[TableName, ColumnName] = {}
    for table, name in prepared.spec.sketch.items():
        if table not in prepared.tables:
            raise UsageError(
                f"Query `{prepared.spec.name}` requests a sketch of "
                f"`{table}`{_why_not(prepared, table)}",
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
        requested[table] = column.name
    return requested


def _why_not(prepared: PreparedQuery, table: TableName) -> str:
    """Why the plan does not read a table."""
    if table not in prepared.query.tables:
        return " but does not read it"
    if all(scan.table != table for scan in prepared.query.root.scans):
        return ", which only an unused WITH entry names"
    return ", but nothing it reads from that table affects the result"


def _entries(
    choice: SafeChoice, prepared: PreparedQuery, result: SketchEstimates
) -> tuple[CandidateEntry, ...]:
    tables, names = prepared.table_of, occurrences(prepared)
    return tuple(
        CandidateEntry(
            tables[c.access],
            c.column,
            c.safe,
            c.chosen,
            f"{c.reason}; {result.reason}" if c.chosen and result.reason else c.reason,
            result.of.get((tables[c.access], c.column)),
            names[c.access],
        )
        for c in choice.considered
    )


# Law: a plan is made from the SQL, the tables' metadata and a sample of values; nothing is written
# and no Spark started. A run does what its plan says, unless the engine turns out unable to fill
# the state.


class CapturePlan(SketchedQuery, frozen=True, kw_only=True):
    """The choice of sketches, and how they and the state are computed and kept."""

    plan: MaintenancePlan

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        return tuple(assumption_of(fact) for fact in self.verdict.assumptions)

    def result(self, versions: Versions) -> CaptureResult:
        """What is reported of the capture before it is made."""
        tables = self.prepared.table_of
        return CaptureResult(
            query=self.prepared.spec.name,
            sketches=tuple(
                SketchEntry(tables[access], partition.attribute, (), partition.ranges)
                for access, partition in self.partitions.items()
            ),
            versions=versions,
            mode=self.plan.mode.value,
            considered=self.candidates,
            assumptions=tuple(map(assumption_text, self.assumptions)),
        )

    def by(self, ctx: Context) -> str:
        compiled = self.plan.compiled
        is_exact = self.plan.mode is MaintenanceMode.EXACT and compiled is not None
        if not is_exact or compiled is None or not is_loaded_here(ctx, compiled):
            return SPARK
        return f"{ENGINE} and {SPARK}" if compiled.asks_spark else ENGINE

    def reads(self, ctx: Context) -> tuple[ReadEntry, ...]:
        """What is read of each table, after the query's conditions."""
        compiled, prepared = self.plan.compiled, self.prepared
        snapshots = {scan.access: ctx.tables.snapshot(scan.table) for scan in prepared.scans}
        if self.plan.mode is MaintenanceMode.EXACT and compiled is not None:
            tables = {snapshot.table: snapshot for snapshot in snapshots.values()}
            left = {name: files_of_table(result, compiled) for name, result in tables.items()}
        else:
            left = files_by_table(snapshots, wanted_files(prepared.root, snapshots))
        return tuple(
            ReadEntry(table, now.version, rows_in(now, files), len(files), bytes_of(files))
            for table, files in left.items()
            for now in [ctx.tables.snapshot(table)]
        )


def plan_capture(
    ctx: Context,
    prepared: PreparedQuery,
    *,
    every: bool = False,
    reads: bool = True,
    judges: Judges | None = None,
) -> CapturePlan:
    """Decide the capture; UnsafeSketchError if no attribute is safe. `every` as for
    `choose_sketches`, `reads` as for `plan_after_capture`."""
    query = choose_sketches(ctx, prepared, every=every, judges=judges)
    plan = plan_after_capture(ctx, query, reads=reads)
    return CapturePlan(prepared, query.verdict, query.partitions, query.candidates, plan=plan)


def planned_capture(ctx: Context, store: StoreReader | None, spec: QuerySpec) -> CaptureResult:
    """Explain the capture of a query instead of running it."""
    if not spec.is_sketched:
        return CaptureResult(query=spec.name, reason=SKETCH_NONE_REASON)
    planned, state = plan_capture(ctx, prepare(ctx, spec)), "stale"
    # What cannot be read back is replaced by the capture.
    with suppress(RecaptureNeededError):
        stored = None if store is None else store.load(spec.name)
        if stored is None:
            state = "none"
        elif is_up_to_date(ctx, spec, stored):
            state = "current"
    return replace(
        planned.result(ctx.tables.versions_of(planned.prepared.tables)),
        dry_run=True,
        by=planned.by(ctx),
        reads=planned.reads(ctx),
        stored=state,
    )
