"""Choose the sketched attribute of each table access, and its partition."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from impctl.errors import ImpctlError, UsageError
from impctl.expr.nodes import columns_of
from impctl.plan.lineage import for_all, why_unused
from impctl.plan.nodes import Fixpoint, Select, nodes_of, scans_of
from impctl.plan.recursion import is_recursive
from impctl.safety.choose import Costs, JudgedCandidate, SafeChoice, choose_attributes
from impctl.safety.judge import Judges, Verdict, check_with_core, keyed_groups
from impctl.service.estimate import ALIKE, LEAST_ROWS, NOTHING, SketchEstimates, estimates
from impctl.service.partitions import candidates, is_partitionable, occurrences, partition_of
from impctl.service.prepare import PreparedQuery, facts_of, sketched_nodes
from impctl.service.results import CandidateEntry
from impctl.sketch.sketch import RangeSet
from impctl.tables.sample import clustered_columns
from impctl.types import AccessId, ColumnName, TableName
from impctl.workload.models import LineageMode

if TYPE_CHECKING:
    from impctl.service.context import Context
    from impctl.service.pinned import PinnedTables
    from impctl.sketch.partition import RangePartition
    from impctl.store.records import StoredSketch

# Sketches that are one sketch: those of all accesses below a fixpoint that is keyed. Law: what is
# said here holds of any fixpoint that can be keyed, whether its sketches were captured so or with
# its barrier: a wider sketch gives the same answer. Rows of a fixpoint that is keyed are all
# there, or not at all, only where all accesses below read the same ranges.

Groups = Collection[frozenset[AccessId]]


def groups_of(prepared: PreparedQuery, sketches: Sequence[StoredSketch]) -> Groups:
    """Per fixpoint that can be keyed with these sketches, the accesses that share a filter: by the
    plan that runs, and by the plan that sketches are maintained by."""
    judges, result = Judges(), set[frozenset[AccessId]]()
    for root in (prepared.core, prepared.root):
        if sketches and is_recursive(root):
            by = judges.of(replace(prepared.query, root=root))
            own = {s.access: s.attribute for s in sketches if s.access in by.accesses}
            result.update(keyed_groups(root, own, by))
    return result


def united_groups(
    prepared: PreparedQuery, sketches: Sequence[StoredSketch]
) -> tuple[StoredSketch, ...]:
    """The sketches, each group united; none if their ranges differ."""
    result = {sketch.access: sketch for sketch in sketches}
    for group in groups_of(prepared, sketches):
        own = [result.pop(access) for access in group if access in result]
        if len({sketch.partition.id for sketch in own}) == 1:
            ids = {one for sketch in own for one in sketch.ranges.ids}
            every = RangeSet.of(sorted(ids), own[0].partition.size)
            result |= {sketch.access: replace(sketch, ranges=every) for sketch in own}
    return tuple(result[sketch.access] for sketch in sketches if sketch.access in result)


# Whether the lineage of the answer alone, where it is asked for, makes sketches any smaller. Law:
# where nothing is said, some sketch may hold less than with the lineage of all, or the file asks
# for it by default only. What is said to change nothing has the sketches of all lineage; a table
# is said to lack a sketch only where one is safe with that.

LINEAGE_UNUSED = "lineage_unused"


def lineage_warnings(
    tables: PinnedTables, prepared: PreparedQuery, chosen: AttributeChoice
) -> list[str]:
    """Warn of `lineage: answer` that leaves a table without a sketch or has no effect."""
    spec = prepared.spec
    if spec.lineage is not LineageMode.ANSWER:
        return []
    what = f"{spec.lineage_place or spec.location}: `lineage: answer` of query `{spec.name}`"
    lost: dict[TableName, CandidateEntry] = {}
    for one in _lost(tables, prepared, chosen):
        lost.setdefault(one.table, one)
    if lost:
        table_of = prepared.table_of
        in_part = {table_of[access] for access in chosen.sketched}
        where = {t: f" ({one.occurrence})" if t in in_part else "" for t, one in lost.items()}
        return [
            f"{what} leaves `{table}`{where[table]} without a sketch: {one.reason}; with "
            f"`lineage: all`, a sketch on `{table}.{one.attribute}` is safe "
            f"[{LINEAGE_UNUSED}]"
            for table, one in lost.items()
        ]
    if spec.lineage_place is None:
        return []
    why = why_unused(prepared.root, *sketched_nodes(prepared, chosen.verdict, chosen.sketched))
    return [f"{what} has no effect: {why} [{LINEAGE_UNUSED}]"] if why else []


def _lost(
    tables: PinnedTables, prepared: PreparedQuery, chosen: AttributeChoice
) -> Iterator[CandidateEntry]:
    """Candidates that fixpoints could have beside the chosen ones if all were sketched."""
    query = replace(prepared.planned, root=for_all(prepared.root))
    core = for_all(prepared.core)
    facts, names = facts_of(tables, prepared.scans), occurrences(prepared)
    nodes = nodes_of(prepared.root)
    inside = {s.access: s for n in nodes if isinstance(n, Fixpoint) for s in scans_of(n)}
    for access, scan in inside.items():
        for one in chosen.candidates if access not in chosen.sketched else ():
            is_of_it = (one.table, one.occurrence) == (scan.table, names[access])
            sketched = {**chosen.sketched, access: one.attribute}
            if is_of_it and not one.safe and check_with_core(query, core, sketched, facts).safe:
                yield one


# Which attribute of each table access is sketched, with which partition, and why. Law: only a
# safe choice is returned; every candidate that was looked at comes with its reason. Order of
# preference: the attribute the file asks for (`sketch:`), then, of the file's partitions or else
# of all columns that the query reads or the table is clustered by, the one whose sketch is
# expected to leave the least to read; where that cannot be told, grouping columns first.

_NOT_READ = 1.5
"""A sketch on a column that the query does not read adds a column to read and filter (0042)."""
_CLUSTERED, _OTHERS = 0.25, 4
"""Unread columns are candidates if files overlap by them this little; at most so many."""


class AttributeChoice(Struct, frozen=True):
    sketched: Mapping[AccessId, ColumnName]
    verdict: Verdict
    candidates: tuple[CandidateEntry, ...]
    together: Mapping[tuple[TableName, ColumnName], int]
    """How many proposed ranges are merged into one, by the estimate."""

    def partitions(self, ctx: Context, prepared: PreparedQuery) -> dict[AccessId, RangePartition]:
        """The partition of every sketched access; one per table and attribute."""
        tables = prepared.table_of
        made: dict[tuple[TableName, ColumnName], RangePartition] = {}
        for access, column in self.sketched.items():
            key = (tables[access], column)
            if key not in made:
                made[key] = partition_of(ctx, *key, self.together.get(key, 1))
        return {access: made[tables[access], column] for access, column in self.sketched.items()}


def choose(
    ctx: Context, prepared: PreparedQuery, *, every: bool = True, judges: Judges | None = None
) -> AttributeChoice:
    """Choose sketches, or raise UnsafeSketchError; without `every`, estimate only possible ones."""
    query = prepared.planned
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
            query,
            _candidates(ctx, prepared),
            facts,
            wanted=_wanted(ctx.tables, prepared),
            core=prepared.core,
            weigh=weigh,
            name=prepared.spec.name,
            judges=judges,
        )
    except ImpctlError as error:
        placed = error.at(prepared.spec.location) if error.location is None else error
        raise prepared.located(placed) from error.__cause__
    entries = _entries(choice, prepared, result)
    return AttributeChoice(choice.sketched, choice.verdict, entries, result.together)


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
    for table, name in _wanted(ctx.tables, prepared).items():
        columns[table] = list(dict.fromkeys([name, *columns[table]]))
    judges = Judges() if judges is None else judges
    names = occurrences(prepared)
    entries = []
    for scan in prepared.scans:
        at = names[scan.access]
        for column in columns[scan.table]:
            it = check_with_core(query, prepared.core, {scan.access: column}, facts, judges)
            entry = CandidateEntry(scan.table, column, it.safe, False, it.reason, occurrence=at)
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
        for node in nodes_of(prepared.root)
        if isinstance(node, Select)
        for identity in sorted(columns_of(node.predicate))
        if identity in read
    ]
    snapshot = tables.snapshot(table)
    able = [c.name for c in snapshot.schema if is_partitionable(c)]
    mine = [name for name in able if name in set(read.values())]
    others: list[ColumnName] = []
    if snapshot.likely_rows >= LEAST_ROWS:
        others = [name for name in able if name not in mine]
        others = clustered_columns(snapshot, others, _CLUSTERED)[:_OTHERS]
    return [name for name in dict.fromkeys((*filtered, *mine, *others)) if name in able]


def _wanted(tables: PinnedTables, prepared: PreparedQuery) -> dict[TableName, ColumnName]:
    """`sketch:` of the file, spelled as in the schema."""
    wanted: dict[TableName, ColumnName] = {}
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
        wanted[table] = column.name
    return wanted


def _why_not(prepared: PreparedQuery, table: TableName) -> str:
    """Why the plan does not read a table."""
    if table not in prepared.query.tables:
        return " but does not read it"
    if all(scan.table != table for scan in scans_of(prepared.query.root)):
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
