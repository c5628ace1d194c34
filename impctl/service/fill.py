"""Rows read for a circuit: to fill it, and to look up, refill or group what it does not store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from impctl.compile.fill import Transient
from impctl.compile.flows import RANGE_COLUMN, Readable, Source, Strategy
from impctl.compile.jointree.cost import TreeChoice
from impctl.compile.session import (
    GroupedRows,
    MaintainedQuery,
    TouchedQuery,
    Turn,
    read_in_turn,
)
from impctl.data.keys import group_rows
from impctl.data.schema import INTEGER, Kind
from impctl.data.vector import Vector, from_arrow
from impctl.engine.batch import Batch, empty_batch
from impctl.engine.fixpoint.absorption import PROVENANCE_TOO_LARGE
from impctl.engine.tags import RowTags
from impctl.errors import (
    EvaluationError,
    JoinTooLargeError,
    NotExactError,
    OutOfMemoryError,
    TableError,
)
from impctl.expr.nodes import ColumnRef
from impctl.plan.lineage import MovedConditions
from impctl.plan.nodes import Aggregate, Distinct, Fixpoint
from impctl.plan.recursion import is_recursive, outer_fixpoints
from impctl.rules.pushdown import column_behind
from impctl.safety.facts import FactKind, broken_by
from impctl.service.context import Context, Versions, limited, limits_of
from impctl.service.filters import (
    Slices,
    Uris,
    files_by_conditions,
    files_of_table,
    files_under,
    one_ahead,
    wanted_files,
)
from impctl.service.maintenance_plan import chooser_for, chosen_plan, plan_after_capture
from impctl.service.memory_limit import batch_size, within_memory
from impctl.service.prepare import PreparedQuery, SketchedQuery, broken_assumption, kept_plan
from impctl.sketch.sketch import MaintenanceMode, RangePartition
from impctl.spark.expressions import DIALECT, render_expr
from impctl.spark.render import render_plan
from impctl.stopwatch import Stopwatch
from impctl.store.records import SideRead
from impctl.tables.changes import changed_files
from impctl.tables.rows import read_batches, read_rows, rows_with
from impctl.tables.snapshot import DataFile, Snapshot, arrow_type, rows_in
from impctl.tables.statistics import known_counts, prune_to_values, spread_counts
from impctl.types import AccessId, ColumnName, TableName
from impctl.workload.models import JoinStrategy, Policy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from impctl.compile.compile import Dataflow, MaintenancePlan
    from impctl.compile.fill import Chain, Partials, RangeRows
    from impctl.data.vector import Ints
    from impctl.expr.nodes import Expr
    from impctl.service.context import Partitions, RangesByAccess
    from impctl.store.records import Assumption


# The range of a row is that of the engine's scan.


def tagged_frame(
    ctx: Context,
    snapshot: Snapshot,
    columns: Sequence[ColumnName],
    partition: RangePartition | None,
    files: Sequence[DataFile] | None = None,
) -> DataFrame:
    """Rows of the snapshot, or of some of its files, in at least these columns. With a partition
    also its attribute, and the range as `RANGE_COLUMN`."""
    from impctl.spark.sketches import with_range_id
    from impctl.spark.snapshots import snapshot_frame

    if partition is None:
        return snapshot_frame(ctx.spark(), snapshot, columns, files)
    read = list(dict.fromkeys([*columns, partition.attribute]))
    frame = snapshot_frame(ctx.spark(), snapshot, read, files)
    return with_range_id(frame, partition, partition.attribute, RANGE_COLUMN)


# Law: the rows of a side are those of its plan at the versions that a step leads to, with ranges
# of the engine's scan; from files, rows of other keys may be included. Files that conditions, joins
# or keys exclude are skipped. Reads of files are counted and timed, and start no JVM.

_SLICE_ROWS = 8_000_000
"""Rows of the longest joined table per slice of pairs: some hundred megabytes."""

_MANY_KEYS = 100_000
"""So many keys occur in most files and take longer to sort than a search by them saves."""


class PartnerReader(Struct, frozen=True):
    """Reads sides of a circuit's joins, and whole joins, at `versions` (others: pinned): each side
    as its capture chose, from files or in Spark."""

    ctx: Context
    compiled: Dataflow
    partitions: Mapping[AccessId, RangePartition]
    versions: Versions
    _done: dict[str, SideRead] = field(default_factory=dict)

    def rows(self, side: str, keys: Sequence[Vector]) -> Batch:
        """As `engine.lookups.RowReader`: the rows of a side with these keys; HistoryGoneError for a
        missing file."""
        self.ctx.reporter.step(f"reading rows with {len(keys[0]):,} join keys")
        readable = self.compiled.read_side(side)
        if side not in self._from_files:
            return self._by_spark(readable, keys)
        watch = Stopwatch()
        result = self._by_files(readable, keys)
        ms, count, hits = watch.ms, len(keys[0]), 0
        if len(result):
            # Rows of other keys may be included.
            columns = [result.columns[key] for key in readable.keys]
            hits = min(count, len(group_rows(columns, len(result)).codes))
        self._note(SideRead(side, count, hits, len(result), ms))
        return result

    def reads(self) -> tuple[SideRead, ...]:
        """What was read of each side in files, even if nothing."""
        return tuple(self._done.get(side, SideRead(side)) for side in sorted(self._from_files))

    @property
    def _from_files(self) -> Collection[str]:
        return self.compiled.sides_by(Strategy.FILES)

    def _note(self, read: SideRead) -> None:
        done = self._done.get(read.side, SideRead(read.side))
        self._done[read.side] = SideRead(
            read.side,
            done.keys + read.keys,
            done.hits + read.hits,
            done.rows + read.rows,
            done.ms + read.ms,
        )

    def _snapshot(self, table: TableName) -> Snapshot:
        return self.ctx.tables.snapshot(table, self.versions.get(table))

    # Read by Spark

    def _by_spark(self, readable: Readable, keys: Sequence[Vector]) -> Batch:
        from impctl.spark.run import with_keys

        names = [name for name, _ in readable.columns]
        places = [names.index(key) for key in readable.keys]
        table = pa.table([_typed(key) for key in keys], [f"k{index}" for index in range(len(keys))])
        spark, files = self.ctx.spark(), self._files(readable)
        for key, values in zip(readable.keys, keys, strict=True):
            column = column_behind(readable.plan, key)
            if column is not None and len(values) <= _MANY_KEYS:
                # Skip files that hold none of the requested values.
                (scan,) = (scan for scan in readable.plan.scans if scan.access == column.access)
                matching = prune_to_values(
                    self._snapshot(scan.table), {column.attribute.name: values}
                )
                files[column.access] &= {file.uri for file in matching}
        return self._spark_rows(readable, files, lambda rows: with_keys(spark, rows, places, table))

    def pairs(self, joined: Readable) -> Iterator[Batch]:
        """All rows of a join, slice by slice."""
        from impctl.spark.run import slice_of

        files = self._files(joined)
        longest = max(self._snapshot(scan.table).likely_rows for scan in joined.plan.scans)
        slices = max(1, -(-longest // _SLICE_ROWS))
        for number in range(slices):
            yield self._spark_rows(joined, files, partial(slice_of, number=number, slices=slices))

    def _files(self, readable: Readable) -> Uris:
        snapshots = {scan.access: self._snapshot(scan.table) for scan in readable.plan.scans}
        return wanted_files(readable.plan, snapshots)

    def _spark_rows(
        self, readable: Readable, files: Uris, chosen: Callable[[DataFrame], DataFrame]
    ) -> Batch:
        from impctl.spark.run import plain_failures, selected

        views = {
            scan.access: f"impctl_side{index}" for index, scan in enumerate(readable.plan.scans)
        }
        frames = {}
        for scan in readable.plan.scans:
            snapshot, partition = self._snapshot(scan.table), self.partitions.get(scan.access)
            names = [a.name for a in scan.attributes if a.name != RANGE_COLUMN]
            chosen_files = [file for file in snapshot.files if file.uri in files[scan.access]]
            frames[views[scan.access]] = tagged_frame(
                self.ctx, snapshot, names, partition, chosen_files
            )
        spark = self.ctx.spark()
        with plain_failures(self.versions):
            table = chosen(selected(spark, render_plan(readable.plan, views), frames)).toArrow()
        columns = {
            name: from_arrow(table.column(index), kind)
            for index, (name, kind) in enumerate(readable.columns)
        }
        first = len(readable.columns)
        tags = tuple(
            RowTags(from_arrow(table.column(first + position), INTEGER).values.astype(np.int32))
            for position in range(len(readable.accesses))
        )
        return Batch(columns, np.ones(table.num_rows, dtype=np.int64), tags)

    # Read by the engine

    def _by_files(self, readable: Readable, keys: Sequence[Vector]) -> Batch:
        reading = Transient(readable, self.partitions)
        snapshots = {access: self._snapshot(side.table) for access, side in reading.sources.items()}
        sizes = {access: snapshot.likely_rows for access, snapshot in snapshots.items()}
        files = wanted_files(readable.rows, snapshots)

        def read(source: Source, keys: Mapping[ColumnName, Sequence[Vector]]) -> pa.Table:
            snapshot, columns = snapshots[source.access], source.scan.table_columns
            chosen = [file for file in snapshot.files if file.uri in files[source.access]]
            if not keys:
                return read_rows(snapshot, columns, chosen)
            parts = list(rows_with(snapshot, columns, keys, chosen, self.ctx.tables.once))
            return pa.concat_tables(parts) if parts else read_rows(snapshot, columns, [])

        tables = read_in_turn(readable, reading.sources, keys, sizes, read)
        return empty_batch(len(readable.accesses)) if tables is None else reading.rows(tables)

    def whole(self, side: str) -> Iterator[Batch]:
        """As `engine.lookups.RowReader`: all rows of a side that is read from files. A single table
        is read in parts, which bound the memory; rows of groups are not, since a group may lie in
        several parts."""
        assert side in self._from_files
        readable = self.compiled.read_side(side)
        sources = Transient(readable, self.partitions).sources
        nodes = readable.rows.walk()
        if len(sources) > 1 or any(isinstance(node, Aggregate | Distinct) for node in nodes):
            yield self._by_files(readable, ())
            return
        ((access, source),) = sources.items()
        snapshot = self._snapshot(source.table)
        uris = wanted_files(readable.rows, {access: snapshot})[access]
        yield from self._batches(readable, source, uris)

    def moved(self, side: str, before: Expr, after: Expr) -> Iterator[Batch]:
        """As `engine.lookups.RowReader`: the rows of a one-table side that meet exactly one of two
        conditions, in parts."""
        assert side in self._from_files
        watch, rows = Stopwatch(), 0
        self.ctx.reporter.step("reading rows affected by a changed scalar")
        readable = self.compiled.read_side(side)
        ((_, source),) = Transient(readable, self.partitions).sources.items()
        snapshot = self._snapshot(source.table)
        moved = MovedConditions((before,), (after,)).rows_that_move
        uris = {uri for parts in moved for uri in files_under(readable.rows, parts, snapshot)}
        for batch in self._batches(readable, source, uris):
            rows += len(batch)
            yield batch
        self._note(SideRead(side, 1, 1, rows, watch.ms))

    def _batches(
        self, readable: Readable, source: Source, uris: Collection[str]
    ) -> Iterator[Batch]:
        snapshot = self._snapshot(source.table)
        chosen = [file for file in snapshot.files if file.uri in uris]
        for rows in read_batches(snapshot, source.scan.table_columns, chosen):
            yield Transient(readable, self.partitions).rows({source.access: rows})


def _typed(key: Vector) -> pa.Array:
    """The keys as Spark takes them; the loop over wide numbers is bounded by the keys requested."""
    kind, mask = key.type, None if key.valid is None else ~key.valid
    if key.is_textual:
        return key.to_arrow()
    if kind.kind is Kind.DECIMAL:
        # Made from text, because arithmetic on Decimals rounds to 28 digits.
        values = [
            Decimal(f"{value}e-{kind.scale}") if ok else None
            for value, ok in zip(key.values.tolist(), key.validity().tolist(), strict=True)
        ]
        return pa.array(values, arrow_type(kind))
    if kind.kind is Kind.DATE:
        return pa.array(key.values.astype(np.int32), mask=mask).cast(pa.date32())
    return pa.array(key.values, mask=mask).cast(arrow_type(kind))


# Rows per range of files that a capture need not read. Law: none is opened. What the log says is
# exact; the rest is spread like the rows that were read (`compile.fill`). Counts serve only to
# balance ranges; no sketch depends on them.


def count_left_out(
    counted: RangeRows, partition: RangePartition, snapshot: Snapshot, read: Sequence[DataFile]
) -> None:
    """Add the rows of all files but these, which are counted already."""
    uris = {file.uri for file in read}
    left_out = {uri for uri in snapshot.uris if uri not in uris}
    if not left_out:
        return
    like = counted.counts(partition)
    known, unknown = known_counts(snapshot, partition, left_out)
    counted.fill(partition, known)
    if unknown:
        counted.estimate(partition, spread_counts(snapshot, partition, unknown, like))


def rows_by_spark(
    ctx: Context, partition: RangePartition, snapshot: Snapshot, files: Sequence[DataFile]
) -> Ints:
    from impctl.spark.sketches import rows_per_range
    from impctl.spark.snapshots import snapshot_frame

    counts, unknown = known_counts(snapshot, partition, {file.uri for file in files})
    if not unknown:
        return counts
    frame = snapshot_frame(ctx.spark(), snapshot, [partition.attribute], unknown)
    return counts + rows_per_range(frame, partition)


# Sketches alone, by Spark. Law: reads exactly the given versions, natively from the file list, and
# of each access the files that conditions and joins keep. The fastest capture, the oracle of
# `verify` and the baseline of `bench`; it shares only the partition with the engine. For lineage of
# the answer alone, Spark traces back from the answer. For one derivation per row of a fixpoint the
# choice is the engine's: the sketch is compared with the rows.


def capture_sketches_alone(
    ctx: Context, query: SketchedQuery, versions: Versions | None = None
) -> RangesByAccess:
    """The sketches alone, at `versions` (default: the pinned ones)."""
    return _SparkPass(ctx, query, versions if versions is not None else {}).sketches()


def needed(
    ctx: Context, query: SketchedQuery, ranges: RangesByAccess, versions: Versions
) -> RangesByAccess:
    """The ranges that these sketches need at these versions: those of a recapture. But where one
    derivation per row suffices, their ranges stay if all rows can be derived over them; then only
    ranges that no derivation uses are unneeded."""
    spark_pass = _SparkPass(ctx, query, versions)
    result = dict(spark_pass.sketches())
    for fixpoint in outer_fixpoints(spark_pass.kept.query.root):
        if fixpoint.chooses and spark_pass.derives_all(fixpoint, ranges):
            for access in {scan.access for scan in fixpoint.scans} & ranges.keys():
                unneeded = result[access].minus(ranges[access])
                result[access] = result[access].minus(unneeded)
    return result


class _SparkPass:
    def __init__(self, ctx: Context, query: SketchedQuery, versions: Versions) -> None:
        from impctl.spark.snapshots import snapshot_frame

        prepared, partitions = query.prepared, query.partitions
        self.ctx, self.name, self.partitions = ctx, prepared.spec.name, partitions
        self.kept, self.versions = kept_plan(query), versions
        self.frames: dict[AccessId, DataFrame] = {}
        snapshots = {
            scan.access: ctx.tables.snapshot(scan.table, versions.get(scan.table))
            for scan in prepared.scans
        }
        left = wanted_files(self.kept.query.root, snapshots)
        for scan in prepared.scans:
            snapshot = snapshots[scan.access]
            names = [attribute.name for attribute in scan.attributes]
            if scan.access in partitions:
                names.append(partitions[scan.access].attribute)
            columns = list(dict.fromkeys(names))
            files = [file for file in snapshot.files if file.uri in left[scan.access]]
            self.frames[scan.access] = snapshot_frame(ctx.spark(), snapshot, columns, files)

    def sketches(self) -> RangesByAccess:
        """Sketches of all derivations; of fixpoints for all rows, or those of the answer."""
        from impctl.spark.recursion import capture_recursive
        from impctl.spark.sketches import capture_sketches

        query, versions = self.kept.query, self.versions
        arguments = (self.ctx.spark(), query, self.kept.verdict, self.partitions, self.frames)
        if is_recursive(query.root):
            limits = limits_of(self.ctx)
            return capture_recursive(*arguments, versions=versions, limits=limits, tell=self._tell)
        return capture_sketches(*arguments, versions=versions)

    def derives_all(self, fixpoint: Fixpoint, ranges: RangesByAccess) -> bool:
        """Whether the fixpoint has all its rows over the sketches."""
        from impctl.spark.recursion import derives_all

        return derives_all(
            self.ctx.spark(),
            fixpoint,
            self.partitions,
            ranges,
            self.frames,
            versions=self.versions,
            limits=limits_of(self.ctx),
            tell=self._tell,
        )

    def _tell(self, line: str) -> None:
        self.ctx.reporter.step(f"{self.name}: {line}")


# Filled by the engine from files, without a JVM. Law: a whole table is the change from the empty
# one, so loading is stepping and gives the state of maintenance; only pairs of a join with a side
# that Spark reads differ. Files that the conditions right above their accesses exclude are counted,
# not read. Rows pass in batches, smaller where joins multiply them, so memory is the state's. State
# beyond the limit (`memory`) is given up in time.

_LARGEST_LOAD = 32_000_000
"""Rows that the engine loads while Spark starts and passes over them."""

_LARGEST_LOAD_BESIDE_SPARK = 1_000_000
"""The same if Spark is running already and would return few rows."""


def is_loaded_here(ctx: Context, compiled: Dataflow) -> bool:
    """Whether the engine is quicker to fill this circuit, or the only way."""
    if compiled.chain is None:
        return True
    snapshot = ctx.tables.snapshot(compiled.chain.scan.table)
    rows = rows_in(snapshot, files_of_table(snapshot, compiled))
    if rows is None or rows > _LARGEST_LOAD:
        return False
    if ctx.has_spark and compiled.chain.has_few_partials:
        return rows <= _LARGEST_LOAD_BESIDE_SPARK
    return True


def loaded(ctx: Context, compiled: Dataflow, partitions: Partitions) -> MaintainedQuery | None:
    """Fill a circuit in the engine; None if it cannot and Spark has to.

    OutOfMemoryError over the memory limit; EvaluationError if functions take more nodes
    (`PROVENANCE_TOO_LARGE`).

    Spark takes over for a column that only it can read, an inexact intermediate value, or an
    overflow that depends on the order of batches. Missing files are an error at once.
    """
    session = MaintainedQuery(limited(ctx, compiled))
    files_read: dict[int, tuple[DataFile, ...]] = {}

    def rows_of(turn: Turn) -> Iterator[pa.Table]:
        # Without rows dropped by conditions at the accesses or on known scalars.
        snapshot = ctx.tables.snapshot(turn.table)
        files = files_of_table(snapshot, compiled, turn.sources)
        files_read.update(dict.fromkeys(turn.sources, files))
        columns = compiled.columns_of(turn.table, turn.sources)
        batches = read_batches(snapshot, columns, files, most=batch_size(limit.bytes))
        slices = Slices(compiled, limit.bytes, limit.check)
        for rows in one_ahead(batches, reader):
            yield from slices.of(rows)

    try:
        with within_memory(ctx) as limit, ThreadPoolExecutor(1) as reader:
            pairs = PartnerReader(ctx, compiled, partitions, {}).pairs
            turns = session.turns(lambda table: ctx.tables.snapshot(table).likely_rows)
            session.load_in_turn(turns, rows_of, pairs)
        for partition in session.range_rows.partitions:
            snapshot = ctx.tables.snapshot(partition.table)
            read = files_read[session.counting_source(partition)]
            count_left_out(session.range_rows, partition, snapshot, read)
    except OutOfMemoryError:
        session.give_up()
        raise
    except (EvaluationError, JoinTooLargeError, NotExactError, TableError) as error:
        session.give_up()
        if error.code == PROVENANCE_TOO_LARGE:
            raise
        return None
    return session


# Filled from partial aggregates and counts of Spark. Law: reads exactly the given versions,
# natively from the file list, and only files that the query's conditions keep.

_VIEW = "impctl_pass"


def from_partials(ctx: Context, compiled: Dataflow, partitions: Partitions) -> MaintainedQuery:
    chain = compiled.chain
    assert chain is not None
    scan = chain.scan
    partition = partitions[scan.access]
    snapshot = ctx.tables.snapshot(scan.table)
    files = files_of_table(snapshot, compiled)
    pass_, (table,) = run_passes(ctx, chain, partition, [(snapshot, files)])
    session = MaintainedQuery(compiled)
    session.fill(pass_, table, partition)
    session.range_rows.fill(partition, counted_rows(ctx, pass_, table, partition, snapshot, files))
    count_left_out(session.range_rows, partition, snapshot, files)
    return session


def counted_rows(
    ctx: Context,
    pass_: Partials,
    table: pa.Table,
    partition: RangePartition,
    snapshot: Snapshot,
    files: Sequence[DataFile],
) -> Ints:
    """Rows per range of these files, from the result of a pass if it counts every row: then nothing
    below its grouping skips a file either."""
    counted = pass_.rows_per_range(table, partition)
    return rows_by_spark(ctx, partition, snapshot, files) if counted is None else counted


def filled_touch_state(ctx: Context, query: SketchedQuery, result: RangesByAccess) -> TouchedQuery:
    ((access, partition),) = query.partitions.items()
    touched = TouchedQuery(partition, result[access])
    snapshot = ctx.tables.snapshot(partition.table)
    snapshots = {scan.access: ctx.tables.snapshot(scan.table) for scan in query.prepared.scans}
    left = wanted_files(query.prepared.root, snapshots)[access]
    files = [file for file in snapshot.files if file.uri in left]
    touched.range_rows.fill(partition, rows_by_spark(ctx, partition, snapshot, files))
    count_left_out(touched.range_rows, partition, snapshot, files)
    return touched


def run_passes(
    ctx: Context,
    chain: Chain,
    partition: RangePartition,
    reads: Sequence[tuple[Snapshot, Sequence[DataFile]]],
) -> tuple[Partials, list[pa.Table]]:
    """A pass over the files of each snapshot, and its results."""
    from impctl.spark.run import run_sql

    scan, columns = chain.scan, [attribute.name for attribute in chain.scan.attributes]
    for counts_specials in (False, True):
        pass_, tables = chain.partials(counts_specials=counts_specials), list[pa.Table]()
        sql = render_plan(pass_.plan, {scan.access: _VIEW})
        for snapshot, files in reads:
            partitioned = partition if pass_.has_range else None
            views = {_VIEW: tagged_frame(ctx, snapshot, columns, partitioned, files)}
            versions = {scan.table: snapshot.version}
            tables.append(run_sql(ctx.spark(), sql, views, versions=versions))
        if not any(map(pass_.needs_specials, tables)):
            break
    return pass_, tables


# Law: fills a circuit by the engine or from Spark's partial aggregates, whichever is faster.

COULD_NOT = (
    "the engine could not build its state (a join is too large, a row fails, or "
    "doubles are too close to compare)"
)
_NOT_BESIDE = "the engine could not build its state along with the sketch"
_BY_RANKS = "its recursion is maintained by ranks, not by absorption"
_STOPPED = (Policy.STRICT, Policy.INCREMENTAL)
"""Policies under which too large functions are an error."""
_AS_TREES = "its joins are trees, because their other inputs could not be stored"


class Filled(Struct, frozen=True):
    session: MaintainedQuery
    uses_spark: bool


def best_filled(
    ctx: Context, query: SketchedQuery, plan: MaintenancePlan
) -> tuple[MaintenancePlan, Filled | None]:
    """Fill the plan's circuit, or a lesser one; else recapture alone. If the state does not fit in
    memory, joins are tried as trees, if the workload leaves that open and trees can list a
    requested answer; then without the answer, which needs less exactness. Recursion by absorption
    falls back to ranks if it takes too much, of nodes only if the policy allows it, else
    EvaluationError."""
    prepared, why, code = query.prepared, COULD_NOT, ""
    for tried, variant in _alternatives(ctx, query, plan):
        plan = tried
        try:
            filled = filled_circuit(ctx, variant, plan)
        except (EvaluationError, OutOfMemoryError) as exceeded:
            if exceeded.code == PROVENANCE_TOO_LARGE and ctx.policy(prepared.spec) in _STOPPED:
                raise
            why, code, filled = exceeded.message, f" [{exceeded.code}]", None
        if filled is not None:
            plan = replace(plan, compiled=filled.session.compiled)
            return _without_provenance(prepared, plan, why, code), filled
    plan = replace(plan, mode=MaintenanceMode.RECAPTURE, reason=why, compiled=None)
    return _without_provenance(prepared, plan, why, code), None


def _without_provenance(
    prepared: PreparedQuery, plan: MaintenancePlan, why: str, code: str
) -> MaintenancePlan:
    if prepared.spec.provenance is None or plan.provenance:
        return plan
    if plan.compiled is None:
        return replace(plan, no_provenance=why + code)
    return replace(plan, reason=f"{plan.reason}; {_BY_RANKS}: {why}", no_provenance=why + code)


def _alternatives(
    ctx: Context, query: SketchedQuery, plan: MaintenancePlan
) -> Iterator[tuple[MaintenancePlan, SketchedQuery]]:
    yield plan, query
    prepared = query.prepared
    chooser = replace(chooser_for(ctx, prepared, reads=False), absorbs=None)
    if plan.provenance:
        alike = replace(chooser, trees=TreeChoice(plan.has_tree))
        has_answer = plan.answer is not None
        plan = chosen_plan(query, alike, has_answer=has_answer)
        yield plan, query
    planted = replace(chooser, trees=TreeChoice(is_tree=True, reason=_AS_TREES))
    is_open = prepared.spec.join is JoinStrategy.AUTO and not plan.has_tree
    if plan.answer is not None and is_open:
        planned = chosen_plan(query, planted)
        if planned.has_tree and planned.answer is not None:
            yield replace(planned, reason=f"{planned.reason}; {_AS_TREES}"), query
    if plan.answer is not None:
        prepared = replace(prepared, spec=replace(prepared.spec, answer=False))
        query = replace(query, prepared=prepared)
        alike = replace(chooser, trees=TreeChoice(plan.has_tree))
        yield replace(chosen_plan(query, alike), no_answer=_NOT_BESIDE), query
    if is_open:
        tree = chosen_plan(query, planted)
        if tree.has_tree:
            reason = plan.no_answer if plan.answer is None else _NOT_BESIDE
            yield replace(tree, reason=f"{tree.reason}; {_AS_TREES}", no_answer=reason), query


def filled_circuit(ctx: Context, query: SketchedQuery, plan: MaintenancePlan) -> Filled | None:
    """A session with the plan's circuit, filled at the pinned versions. By the engine if faster and
    possible, else from a pass of Spark; None if neither yields a state and only the sketch can be
    captured. OutOfMemoryError over the engine's memory limit."""
    compiled = plan.compiled
    assert compiled is not None
    if is_loaded_here(ctx, compiled):
        session = loaded(ctx, compiled, query.partitions)
        if session is not None:
            return Filled(session, uses_spark=compiled.asks_spark)
        if compiled.chain is None:
            return None
        # That circuit has already processed a part of the table.
        compiled = plan_after_capture(ctx, query).compiled
        assert compiled is not None
    try:
        return Filled(from_partials(ctx, compiled, query.partitions), uses_spark=True)
    except (EvaluationError, NotExactError):
        # The pass, or the engine on its result, met a value it cannot compute, or doubles too close
        # to call. If Spark cannot compute it either, the capture of the sketch alone says so.
        return None


# Large changes, grouped by Spark before the engine. Law: sketch and state are those of processing
# the rows one by one. Spark reads the files in which the versions differ; rows in files of both
# cancel. Only one row per group and range reaches this process. Requires a plan over one table
# whose first grouping accepts partial aggregates.


class GroupedChange(Struct, frozen=True):
    """Inserted and deleted rows between two versions, grouped by one pass."""

    pass_: Partials
    inserted: GroupedRows
    deleted: GroupedRows
    partition: RangePartition

    @property
    def rows(self) -> int:
        """Rows of the files that differ."""
        return int(self.inserted.range_rows.sum() + self.deleted.range_rows.sum())


def grouped_change(
    ctx: Context,
    compiled: Dataflow,
    partitions: Mapping[AccessId, RangePartition],
    before: Snapshot,
    after: Snapshot,
    assumptions: Sequence[Assumption],
) -> GroupedChange:
    """The change between two snapshots of a table, read and grouped by Spark. Raises
    HistoryGoneError, and AssumptionBrokenError for an inserted row that breaks the sketch's
    safety."""
    from impctl.spark.snapshots import snapshot_frame

    chain = compiled.chain
    assert chain is not None
    partition = partitions[chain.scan.access]
    removed, added = changed_files(before, after)
    ctx.reporter.step(f"grouping the change of {after.table} with Spark")
    sides = ((after, added), (before, removed))
    for assumption in assumptions:
        if assumption.table == after.table:
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


def refill_rows(
    snapshot: Snapshot, source: Source, keys: Mapping[ColumnName, Vector]
) -> Iterator[pa.Table]:
    """The rows of the files with these values; without keys, all that pass."""
    uris = {file.uri for file in files_by_conditions(snapshot, source)}
    files = [file for file in prune_to_values(snapshot, keys) if file.uri in uris]
    yield from read_batches(snapshot, source.scan.table_columns, files)
