"""Each table's change, read once for all queries of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from impctl.compile.session import GroupedRows
from impctl.errors import SchemaChangedError, TableError, count_text
from impctl.expr.nodes import ColumnRef
from impctl.safety.facts import FactKind, broken_by
from impctl.service.fill import counted_rows, run_passes
from impctl.service.filters import files_by_conditions, files_of_table
from impctl.service.prepare import broken_assumption
from impctl.service.settings import Settings
from impctl.service.stored import mark_at
from impctl.spark.expressions import DIALECT, render_expr
from impctl.stopwatch import Stopwatch
from impctl.tables.changes import Changes, changed_files, check_same_columns, read_changes
from impctl.tables.log import ChangeSize, commits_of, size_of
from impctl.tables.rows import read_batches
from impctl.tables.snapshot import FilesMark, Snapshot
from impctl.tables.source import other_history
from impctl.tables.statistics import prune_to_values
from impctl.types import AccessId, ColumnName, TableName, TableVersion

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.compile.compile import Dataflow
    from impctl.compile.fill import Partials
    from impctl.compile.flows import Source
    from impctl.data.vector import Vector
    from impctl.service.context import Context, Reporter
    from impctl.service.maintenance_plan import QueryState
    from impctl.service.pinned import PinnedTables
    from impctl.sketch.sketch import RangePartition
    from impctl.store.records import Assumption

# Large changes, grouped by Spark before the engine. Law: sketch and state are those of processing
# the rows one by one. Spark reads the files in which the versions differ; rows in files of both
# cancel. Only one row per group and range reaches this process. Requires a plan over one table
# whose first grouping accepts partial aggregates.

_MEGABYTE = 1 << 20


class GroupedChange(Struct, frozen=True):
    """Inserted and deleted rows between two versions, grouped by one pass."""

    pass_: Partials
    came: GroupedRows
    went: GroupedRows
    partition: RangePartition

    @property
    def rows(self) -> int:
        """Rows of the files that differ."""
        return int(self.came.range_rows.sum() + self.went.range_rows.sum())


def is_large(
    shared: SharedChanges,
    settings: Settings,
    compiled: Dataflow | None,
    needs: Sequence[ChangeRequest],
) -> bool:
    """Whether Spark groups the change first: enough bytes changed, and the plan allows it."""
    if compiled is None or compiled.chain is None or len(needs) != 1:
        return False
    size = shared.size(needs[0].span)
    return size is not None and size.bytes > settings.large_change * _MEGABYTE


def grouped_change(
    ctx: Context,
    compiled: Dataflow,
    partitions: Mapping[AccessId, RangePartition],
    need: ChangeRequest,
    assumptions: Sequence[Assumption],
) -> GroupedChange:
    """The change, read and grouped by Spark. Raises AssumptionBrokenError for an inserted row that
    breaks the sketch's safety, SchemaChangedError, HistoryGoneError and TableRecreatedError as
    reading the change would."""
    from impctl.spark.snapshots import snapshot_frame

    chain = compiled.chain
    assert chain is not None
    partition = partitions[chain.scan.access]
    before = ctx.tables.snapshot(need.table, need.since)
    after = ctx.tables.snapshot(need.table, need.until)
    check_same_columns(before.columns, before.version, after, need.columns)
    if need.mark is not None and before.mark.digest != need.mark.digest:
        raise other_history(ctx.tables.source(need.table))
    removed, added = changed_files(before, after)
    ctx.reporter.step(f"grouping the change of {need.table} with Spark")
    sides = ((after, added), (before, removed))
    for assumption in assumptions:
        if assumption.table == need.table:
            column = after.column(assumption.column)
            broken = broken_by(FactKind(assumption.kind), ColumnRef(column.name, column.type))
            condition = render_expr(broken, {column.name: column.name}).sql(DIALECT)
            frame = snapshot_frame(ctx.spark(), after, [assumption.column], added)
            if not frame.where(condition).isEmpty():
                raise broken_assumption(assumption)
    # Only files with rows that pass the conditions right above the access.
    passing = [{file.uri for file in files_of_table(side, compiled)} for side, _ in sides]
    read = [
        (snapshot, [file for file in files if file.uri in uris])
        for (snapshot, files), uris in zip(sides, passing, strict=True)
    ]
    pass_, tables = run_passes(ctx, chain, partition, read)
    inserted, deleted = (
        GroupedRows(table, counted_rows(ctx, pass_, table, partition, *side))
        for table, side in zip(tables, sides, strict=True)
    )
    return GroupedChange(pass_, inserted, deleted, partition)


# Refills of bounded buffers, from few files. Law: the batches have every row with one of the
# requested values that meets the source's conditions, at the version that the step leads to. Memory
# is a batch and what the operator stores. No JVM is started.


def rows_with(
    snapshot: Snapshot, source: Source, keys: Mapping[ColumnName, Vector]
) -> Iterator[pa.Table]:
    """The rows of the files with these values; without keys, all that pass."""
    wanted = {file.uri for file in files_by_conditions(snapshot, source)}
    files = [file for file in prune_to_values(snapshot, keys) if file.uri in wanted]
    yield from read_batches(snapshot, source.scan.table_columns, files)


def refill_text(groups: int, rows: int) -> str:
    """The refilling, as in history and results; empty if there was none."""
    if groups == 0:
        return ""
    # A grouping's state refills what lies above it; then no row was read.
    origin = f" from {count_text(rows, 'row')} of the table" if rows else ""
    return f"refilled the buffers of {count_text(groups, 'group')}{origin}"


# Law: per table and span of versions, the change feed is read once, with the columns that any query
# of the run needs, and every query sees the same rows. If a column of one query is unreadable, each
# query reads its own, so that only that one fails.

Span = tuple[TableName, TableVersion, TableVersion]
"""A table's change: after one version, up to another."""


class ChangeRequest(Struct, frozen=True):
    """What one query reads: columns of a table between two versions. `mark` is that of the table's
    files when its sketch reached `since`. `net_by` are all columns of the table that the query
    reads, output ones included: a row with equal values in these did not change. None if unknown.
    """

    table: TableName
    table_id: str
    since: TableVersion
    until: TableVersion
    columns: tuple[ColumnName, ...]
    mark: FilesMark | None = None
    net_by: tuple[ColumnName, ...] | None = None

    @property
    def span(self) -> Span:
        return self.table, self.since, self.until


def needs_of(tables: PinnedTables, state: QueryState) -> tuple[ChangeRequest, ...]:
    """What has to be read of every table that changed, to maintain a restored query."""
    return tuple(
        ChangeRequest(
            pin.table,
            pin.table_id,
            pin.version,
            until,
            state.columns_of(pin.table),
            state.meta.files.get(pin.table),
            state.reads.get(pin.table),
        )
        for pin in state.stored.pins
        if (until := tables.source(pin.table).version) != pin.version
    )


class TableDelta(Struct, frozen=True, kw_only=True):
    """A table's change up to `until`, with the marks of that commit and its files. `ending` is the
    run's newest version, which a batch may stop before. With `grouped`, Spark has grouped the
    change, and `changes` has no rows. `read_ms` is 0 if it was read for another query."""

    table: TableName
    changes: Changes
    until: TableVersion
    ending: Snapshot
    mark: str | None
    files: FilesMark | None
    grouped: GroupedChange | None = None
    read_ms: float = 0.0

    @property
    def rows(self) -> int:
        return self.changes.rows if self.grouped is None else self.grouped.rows


def change_up_to(
    tables: PinnedTables,
    table: TableName,
    changes: Changes,
    until: TableVersion,
    read_ms: float = 0.0,
    grouped: GroupedChange | None = None,
) -> TableDelta:
    ending = tables.snapshot(table)
    return TableDelta(
        table=table,
        changes=changes,
        until=until,
        ending=ending,
        mark=mark_at(tables, table, until),
        # Between two batches of versions the log's entry has to suffice.
        files=ending.mark if ending.version == until else None,
        grouped=grouped,
        read_ms=read_ms,
    )


class SharedChanges(Struct):
    """Changes read so far in this run, and those announced."""

    tables: PinnedTables
    reporter: Reporter
    _columns: dict[Span, dict[ColumnName, None]] = field(default_factory=dict)
    _net_by: dict[Span, frozenset[ColumnName] | None] = field(default_factory=dict)
    """The columns that count for any query; None where one does not say."""
    _apart: set[Span] = field(default_factory=set)
    """Spans of which each query reads its own columns."""
    _read: dict[tuple[Span, FilesMark | None], Changes] = field(default_factory=dict)
    _sizes: dict[Span, ChangeSize | None] = field(default_factory=dict)
    _log_ms: dict[Span, float] = field(default_factory=dict)
    """Time for entries of the log, which the first reading of the change does not read again."""

    def announce(self, needs: Iterable[ChangeRequest]) -> None:
        """Announce reads, so that one read serves all."""
        for need in needs:
            self._columns.setdefault(need.span, {}).update(dict.fromkeys(need.columns))
            known = self._net_by.get(need.span, frozenset())
            if known is None or need.net_by is None:
                self._net_by[need.span] = None
            else:
                self._net_by[need.span] = known | set(need.net_by)

    def size(self, span: Span) -> ChangeSize | None:
        """The change's size by the log; None where an entry of it cannot be read."""
        if span not in self._sizes:
            table, since, until = span
            watch, source = Stopwatch(), self.tables.source(table)
            entries = source.entries(since, until)
            self._sizes[span] = None if entries is None else size_of(commits_of(source, entries))
            self._log_ms[span] = watch.ms
        return self._sizes[span]

    def delta(self, need: ChangeRequest) -> TableDelta:
        """The change as a step takes it, read once for all queries of the run."""
        changes, read_ms = self.read(need)
        return change_up_to(self.tables, need.table, changes, need.until, read_ms)

    def read(self, need: ChangeRequest) -> tuple[Changes, float]:
        """The change and the milliseconds that reading it took; 0 if it was read before."""
        span = need.span
        before = self._net_by.get(span)
        self.announce([need])
        if (span, need.mark) in self._read and self._net_by[span] == before:
            return self._read[span, need.mark], 0.0
        self.reporter.step(f"reading changes of {need.table}")
        watch = Stopwatch()
        columns, changes = tuple(self._columns[span]), None
        if span not in self._apart:
            try:
                changes = self._read_columns(need, columns)
                self._read[span, need.mark] = changes
            except (SchemaChangedError, TableError):
                if set(columns) == set(need.columns):
                    raise
                # A column that only others need cannot be read.
                self._apart.add(span)
        if changes is None:
            changes = self._read_columns(need, need.columns)
        return changes, watch.ms + self._log_ms.pop(span, 0.0)

    def _read_columns(self, need: ChangeRequest, columns: tuple[ColumnName, ...]) -> Changes:
        net_by, shared = need.net_by, self._net_by[need.span]
        if need.span not in self._apart:
            net_by = None if shared is None else tuple(sorted(shared))
        return read_changes(
            self.tables.source(need.table),
            need.since,
            need.until,
            columns,
            table_id=need.table_id,
            held=need.mark,
            net_by=net_by,
        )


def by_version(
    changes: Changes, until: TableVersion, batch_rows: int
) -> list[tuple[TableVersion, Changes]]:
    """Cut the change into batches of whole versions with at least `batch_rows` rows each; the last
    batch may be smaller. Each has the version that it reaches, the last one `until`."""
    if changes.ends is None or changes.rows == 0:
        return [(until, changes)]
    batches: list[tuple[TableVersion, Changes]] = []
    start, last = 0, len(changes.weights)
    for version, end in changes.ends.items():
        if start < end and (end == last or end - start >= batch_rows):
            part = changes.table.slice(start, end - start)
            reached = until if end == last else version
            batches.append((reached, Changes(part, changes.weights[start:end], changes.method)))
            start = end
    return batches
