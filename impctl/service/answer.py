"""The result of a query by the engine or by Spark, with or without its sketch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from impctl.compile.answers import answer_of_rows
from impctl.compile.compile import Dataflow, compile_answer
from impctl.compile.flows import BlockedError
from impctl.data.vector import Bools, from_arrow
from impctl.errors import (
    EvaluationError,
    ImpctlError,
    NotExactError,
    NotReadError,
    OutOfMemoryError,
    QueryError,
    TableError,
)
from impctl.expr.evaluate import Condition
from impctl.plan.fingerprint import fingerprint
from impctl.plan.nodes import Fixpoint, Join, Plan
from impctl.service.context import Context, Versions, limited, limits_of
from impctl.service.cost_model import rows_of
from impctl.service.filters import Pruned, Slices, guards_of, one_ahead
from impctl.service.memory_limit import MemoryLimit, batch_size, within_memory
from impctl.service.prepare import PreparedQuery, column_like_clock
from impctl.service.result_changes import RowsOf
from impctl.service.results import NOT_USED
from impctl.spark.expressions import DIALECT
from impctl.spark.predicates import filter_condition, local_name, rewrite_sql
from impctl.sql.parameters import bind
from impctl.store.records import StoredSketch
from impctl.tables.files import hiding_columns
from impctl.tables.rows import BATCH_ROWS, read_batches
from impctl.tables.snapshot import bytes_of
from impctl.types import AccessId, TableName

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from impctl.compile.flows import Source
    from impctl.data.schema import Column
    from impctl.engine.batch import Batch
    from impctl.expr.nodes import Expr, Span
    from impctl.service.pinned import PinnedTables
    from impctl.sketch.sketch import RangePartition
    from impctl.spark.predicates import Guard
    from impctl.workload.models import QuerySpec


# By the engine, which runs the plan once over the files. Law: of each table the rows are those that
# the query reads through its sketches: the files left of it, and of these the rows whose range is
# in the sketch, since a group that is seen in part may pass where the whole does not. Nothing is
# stored, and no more memory is taken than `memory` allows. What the engine cannot compute is
# refused before anything is read; a value that it cannot tell for sure, or that fails, is an error.

_FEW_ROWS, _MANY_ROWS = 200_000, 2_000_000
"""Batch sizes. Few rows are read while earlier ones are worked on, and files need not be joined;
for many rows the fewest steps are quickest (decision 0074)."""

Sketches = Mapping[AccessId, StoredSketch]


class ExcludedRows:
    """Rows to ignore, for which a condition on `columns` is true; `rows` counts them."""

    def __init__(self, condition: Expr, columns: Sequence[Column]) -> None:
        self.columns = tuple(column.name for column in columns)
        self.rows = 0
        self._condition = Condition(condition)
        self._types = {column.name: column.type for column in columns}

    def rest(self, rows: pa.Table) -> pa.Table:
        """The other ones of these rows; NotExactError if that is undecided."""
        import pyarrow as pa

        is_excluded = self.excludes(rows)
        self.rows += int(is_excluded.sum())
        return rows.filter(pa.array(~is_excluded))

    def excludes(self, rows: pa.Table) -> Bools:
        values = {name: from_arrow(rows.column(name), kind) for name, kind in self._types.items()}
        truth = self._condition.truth(values, len(rows))
        if bool(truth.is_unsure.any()):
            raise NotExactError(
                "A condition on rows of a table is too close to its limit to evaluate",
                hint="in `--without`, compare doubles with a value that is less close to theirs",
            )
        return truth.sure_true()


def engine_cannot(
    prepared: PreparedQuery, blocked: BlockedError, hint: str, why: str = ""
) -> QueryError:
    """The error where only the engine may answer; `why`, if that needs a word."""
    return QueryError(
        f"The engine cannot run query `{prepared.spec.name}`{why}: {blocked.message}",
        hint=hint,
        code="engine_cannot",
        location=prepared.place(blocked.span),
    )


def engine_answer(
    ctx: Context,
    prepared: PreparedQuery,
    pruned: Pruned,
    where: Expr | None = None,
) -> pa.Table:
    """Compute the answer from what is `pruned`. `where` is a condition on the answer's columns.
    BlockedError if the engine lacks a part of the plan; NotExactError or EvaluationError if a value
    or the memory ends it."""
    with within_memory(ctx) as limit:
        result = engine_rows(ctx, limit, prepared, pruned)
        return answer_of_rows(result.ending, result.rows, ctx.session_zone, where)


def engine_rows(
    ctx: Context,
    limit: MemoryLimit,
    prepared: PreparedQuery,
    pruned: Pruned,
    excluded: Mapping[TableName, ExcludedRows] = MappingProxyType({}),
) -> RowsOf:
    """The answer's rows without `excluded`, within the limit. Raises as `engine_answer`."""
    answer = ctx.memory.answer(prepared.planned)
    compiled = limited(ctx, compile_answer(answer))
    used = {read.access: read for read in pruned.sketches if read.access in pruned.filters}
    compiled.circuit.start()
    # Rows are derived once all their inputs are available.
    compiled.circuit.fill(any(operator.holds_back for operator in compiled.circuit))
    slices = Slices(compiled, limit.bytes, limit.check)
    with ThreadPoolExecutor(1) as reader:
        most = batch_size(limit.bytes)
        read = _read(ctx.tables, compiled, pruned, used, excluded, most)
        for table, rows in one_ahead(read, reader):
            for part in slices.of(rows):
                batches = [
                    _batch(source, part, used) if source.table == table else None
                    for source in compiled.sources
                ]
                compiled.circuit.step(*batches)
    for _ in compiled.circuit.filled():
        limit.check()
    return RowsOf.kept(answer.ending, compiled.kept)


def _read(
    tables: PinnedTables,
    compiled: Dataflow,
    pruned: Pruned,
    used: Sketches,
    excluded: Mapping[TableName, ExcludedRows],
    most: int | None,
) -> Iterator[tuple[TableName, pa.Table]]:
    """Rows in batches of about `most` bytes, smaller tables first: later rows look them up."""
    snapshots = [tables.snapshot(table, pruned.versions.get(table)) for table in compiled.tables]
    for snapshot in sorted(snapshots, key=lambda result: result.likely_rows):
        name = snapshot.table
        columns = list(compiled.columns_of(name))
        columns += [read.attribute for read in used.values() if read.table == name]
        out = excluded.get(name)
        columns += () if out is None else out.columns
        names, files = list(dict.fromkeys(columns)), pruned.files[name]
        least = _FEW_ROWS if rows_of(files) < _MANY_ROWS else BATCH_ROWS
        for rows in read_batches(snapshot, names, files, least, most):
            yield name, rows if out is None else out.rest(rows)


def _batch(source: Source, rows: pa.Table, used: Sketches) -> Batch:
    batch = source.inserted(rows)
    sketch = used.get(source.access)
    if sketch is None or not len(rows):
        return batch
    partition, mask = sketch.partition, sketch.ranges.to_mask()
    values = from_arrow(rows.column(sketch.attribute), partition.type)
    if partition.are_all_in(values, mask):
        return batch
    return batch.keep(mask[partition.range_ids_of(values)])


# By Spark. Law: with and without the sketch the same versions are read; with the sketch, only files
# that may have matching rows.


def answer_table(
    ctx: Context,
    prepared: PreparedQuery,
    versions: Versions,
    pruned: Pruned | None = None,
    *,
    with_engine: bool = False,
) -> pa.Table:
    """The query's result at `versions`; `pruned` makes it read through the sketch. `with_engine`:
    the engine derives its recursive entries; else Spark does, which shares nothing with it."""
    from impctl.spark.run import run_sql
    from impctl.spark.session import shuffles_for

    views, sql = _text(ctx, prepared, versions, pruned, with_engine=with_engine)
    if any(isinstance(node, Join) for node in prepared.query.root.walk()):
        # A join may give many more rows than it reads.
        table = run_sql(ctx.spark(), sql, views, versions=versions)
    else:
        if pruned is None:
            snapshots = (ctx.tables.snapshot(t, versions.get(t)) for t in prepared.tables)
            size = sum(snapshot.bytes for snapshot in snapshots)
        else:
            size = sum(map(bytes_of, pruned.files.values()))
        with shuffles_for(ctx.spark(), size):
            table = run_sql(ctx.spark(), sql, views, versions=versions)
    return with_one_schema(table, ctx.session_zone)


def with_one_schema(table: pa.Table, zone: str) -> pa.Table:
    """Spark's answer in the engine's schema: nullable columns, TIMESTAMP in the session's zone."""
    import pyarrow as pa

    fields = [
        pa.field(
            column.name,
            pa.timestamp("us", tz=zone)
            if pa.types.is_timestamp(column.type) and column.type.tz is not None
            else column.type,
        )
        for column in table.schema
    ]
    arrays = [column.cast(field.type) for column, field in zip(table.columns, fields, strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def answer_frame(ctx: Context, prepared: PreparedQuery, pruned: Pruned) -> DataFrame:
    from impctl.spark.run import frame_of

    views, sql = _text(ctx, prepared, pruned.versions, pruned, with_engine=True)
    return frame_of(ctx.spark(), sql, views, versions=pruned.versions)


def _text(
    ctx: Context,
    prepared: PreparedQuery,
    versions: Versions,
    pruned: Pruned | None,
    *,
    with_engine: bool,
) -> tuple[dict[str, DataFrame], str]:
    """The text to run, and its views: the query's own over guarded views, or one with ranges and
    guards in it. A range must reach the files, so it is placed below the guard of its column; for
    tables read in parts the views have the ranges."""
    query, guards = prepared.query, {} if pruned is None else guards_of(ctx.tables, pruned)
    views = _views(ctx, prepared, versions, pruned, guards)
    derived = derived_entries(ctx, prepared, versions, pruned, with_engine=with_engine)
    views |= dict(derived.values())
    entries = {span: view for span, (view, _) in derived.items()}
    if pruned is None:
        return views, rewrite_sql(query, {}, entries=entries, is_local=True)
    in_text = {a: f for a, f in pruned.filters.items() if f.partition.table not in pruned.parts}
    trusted = [a for a, f in in_text.items() if not _is_guarded(f.partition, guards)]
    return views, rewrite_sql(
        query, in_text, nan_free=trusted, guards=guards, entries=entries, is_local=True
    )


def _is_guarded(partition: RangePartition, guards: Mapping[TableName, Guard]) -> bool:
    guard = guards.get(partition.table)
    guarded = frozenset[str]() if guard is None else guard.guarded
    return partition.attribute.lower() in map(str.lower, guarded)


def _views(
    ctx: Context,
    prepared: PreparedQuery,
    versions: Versions,
    pruned: Pruned | None,
    guards: Mapping[TableName, Guard],
) -> dict[str, DataFrame]:
    from impctl.spark.snapshots import parted_frame, snapshot_frame

    views = {}
    # A table that only an unused WITH entry names is analysed all the same.
    for table in dict.fromkeys((*prepared.tables, *prepared.query.tables)):
        snapshot = ctx.tables.snapshot(table, versions.get(table))
        parts = None if pruned is None else pruned.parts.get(table)
        name = local_name(prepared.query, table)
        if parts is not None:
            read = []
            for part in parts:
                condition = None
                if part.filter is not None:
                    is_nan_free = not _is_guarded(part.filter.partition, guards)
                    tree = filter_condition(part.filter, is_nan_free=is_nan_free)
                    condition = tree.sql(DIALECT)
                read.append((part.files, condition))
            views[name] = parted_frame(ctx.spark(), snapshot, read)
        else:
            files = None if pruned is None else pruned.files.get(table)
            views[name] = snapshot_frame(
                ctx.spark(), snapshot, files=files, is_guarded=files is None
            )
    return views


# Recursive WITH entries, derived for Spark, which does not run them. Law: an entry's rows are those
# over the rows that the query reads: of each access those of its filter, for whole ranges, as in
# the text. Unused entries have no rows.

_VIEW = "impctl_rows_of"


def derived_entries(
    ctx: Context,
    prepared: PreparedQuery,
    versions: Versions,
    pruned: Pruned | None,
    *,
    with_engine: bool = False,
) -> dict[Span, tuple[str, DataFrame]]:
    """The outermost recursive entries by their position in the text: the name of a view, and its
    rows; UnsupportedError (`recursion_limit`) for an unbounded one.
    `with_engine`: the engine derives what it can of a pruned query, as Spark's rounds take seconds
    each."""
    outer, unused = list(_outer(prepared)), _unused(prepared)
    if not outer and not unused:
        return {}
    from impctl.spark.recursion import Rounds
    from impctl.spark.run import plain_failures

    if outer:
        ctx.reporter.step(f"deriving rows of {prepared.spec.name}")
    name = prepared.spec.name

    def tell(line: str) -> None:
        ctx.reporter.step(f"{name}: {line}")

    rounds = Rounds(ctx.spark(), limits_of(ctx), tell)
    result: dict[Span, tuple[str, DataFrame]] = {}
    for number, (span, fixpoint) in enumerate(unused.items()):
        columns = ", ".join(
            f"`{attribute.name.replace('`', '``')}` {attribute.type or 'string'}"
            for attribute in fixpoint.attributes
        )
        rows = ctx.spark().createDataFrame([], columns)
        result[span] = (f"{_VIEW}_unused_{number}", rows)
    for number, (span, fixpoint) in enumerate(outer):
        rows = None
        if with_engine and pruned is not None:
            alone = replace(prepared, planned=replace(prepared.planned, root=fixpoint, cut=None))
            with suppress(
                BlockedError, EvaluationError, NotExactError, OutOfMemoryError, TableError
            ):
                derived = engine_answer(ctx, alone, pruned)
                rows = ctx.spark().createDataFrame(derived)
        if rows is None:
            frames = {
                scan.access: _rows(ctx, scan.table, scan.access, versions, pruned)
                for scan in fixpoint.scans
            }
            with plain_failures(versions):
                rows = rounds.rows(fixpoint, frames)
        names = (attribute.name for attribute in fixpoint.attributes)
        result[span] = (f"{_VIEW}_{number}", rows.toDF(*names))
    return result


def _outer(prepared: PreparedQuery) -> Iterator[tuple[Span, Fixpoint]]:
    """The outermost sets, once each. A set that the text reads once, or in one way, gets the
    filters that were pushed into it, and only its best rows where these alone count: its other rows
    would not pass above."""
    every = _sets(prepared.query.root)
    ruled = _sets(prepared.planned.root)
    for span, copies in every.items():
        around = (entry for entry in every if entry.start <= span.start and span.end <= entry.end)
        if all(span_around == span for span_around in around):
            result = ruled.get(span, [])
            is_one = len(copies) == len(result) and len({fingerprint(node) for node in result}) == 1
            yield span, (result if is_one else copies)[0]


def _unused(prepared: PreparedQuery) -> dict[Span, Fixpoint]:
    """Outermost sets whose rows nothing reads, but without which Spark refuses the text."""
    read = {span for span, _ in _outer(prepared)}
    alone = {
        node.span: node for node in prepared.query.unused if node.is_set and node.span is not None
    }
    every = {*read, *alone}
    return {
        span: one
        for span, one in alone.items()
        if span not in read
        and not any(
            span != other and other.start <= span.start and span.end <= other.end for other in every
        )
    }


def _sets(plan: Plan) -> dict[Span, list[Fixpoint]]:
    result: dict[Span, list[Fixpoint]] = {}
    for node in plan.walk():
        if isinstance(node, Fixpoint) and node.is_set and node.span is not None:
            result.setdefault(node.span, []).append(node)
    return result


def _rows(
    ctx: Context, table: TableName, access: AccessId, versions: Versions, pruned: Pruned | None
) -> DataFrame:
    """What the query reads of an access; columns that hide values are guarded above files."""
    from impctl.spark.snapshots import snapshot_frame

    snapshot = ctx.tables.snapshot(table, versions.get(table))
    if pruned is None:
        return snapshot_frame(ctx.spark(), snapshot)
    rows = snapshot_frame(ctx.spark(), snapshot, files=pruned.files.get(table))
    range_filter = pruned.filters.get(access)
    return rows if range_filter is None else rows.where(filter_condition(range_filter).sql(DIALECT))


# Queries that only Spark can read, run over pinned tables. Law: the text is the user's with
# parameters substituted, and surely one query; its tables are the workload's, at pinned versions,
# read whole.


class Passthrough(Struct, frozen=True, kw_only=True):
    """The text to run, the versions of its tables, and what impctl does not read in it."""

    spec: QuerySpec
    sql: str
    versions: Versions
    refusal: NotReadError
    action: str = NOT_USED
    reason: str = ""
    warnings: tuple[str, ...] = ()


def unread(ctx: Context, spec: QuerySpec, error: ImpctlError) -> Passthrough:
    """The query in its own text; raises `error`, which says what was not read, where that would be
    a guess. Only unsupported constructs go on: for what Spark refuses too impctl's message is
    clearer."""
    from impctl.sql.views import named_tables

    if not isinstance(error, NotReadError):
        raise error
    follows = spec.follows
    bound = bind(spec.sql, spec.params, name=spec.name, clock=ctx.clock, follows=follows)
    try:
        tables = named_tables(bound.sql, ctx.workload.tables, name=spec.name)
    except QueryError:
        raise error from None
    if not tables or column_like_clock(ctx.tables, bound, tables) is not None:
        raise error
    for table in tables:
        if ctx.workload.tables[table].expiry is not None:
            raise error.hinting(
                f"rows of table `{table}` expire, which impctl handles only in queries it "
                "can read; rewrite the query without the unsupported part, or list the "
                "table a second time without `expiry`"
            )
    versions = ctx.tables.versions_of(tables)
    return Passthrough(spec=spec, sql=bound.sql, versions=versions, refusal=error)


def unread_table(ctx: Context, result: Passthrough) -> pa.Table:
    from impctl.spark.run import run_sql

    table = run_sql(ctx.spark(), result.sql, _views_read(ctx, result), versions=result.versions)
    return with_one_schema(table, ctx.session_zone)


def unread_frame(ctx: Context, result: Passthrough) -> DataFrame:
    from impctl.spark.run import frame_of

    return frame_of(ctx.spark(), result.sql, _views_read(ctx, result), versions=result.versions)


def _views_read(ctx: Context, result: Passthrough) -> dict[TableName, DataFrame]:
    from impctl.spark.snapshots import snapshot_frame

    return {
        table: snapshot_frame(ctx.spark(), ctx.tables.snapshot(table, version), is_guarded=True)
        for table, version in result.versions.items()
    }


# Tables of which Parquet readers other than Spark may lose rows with NaN through a sketch. Law: NaN
# exceeds every boundary, so only the highest range holds it. A table not named here has, in the
# files kept, no NaN in that range beyond what minimum and maximum show. DuckDB and pyarrow skip row
# groups by these alone, however the condition is written.


def losing_nan(tables: PinnedTables, pruned: Pruned) -> frozenset[TableName]:
    """The tables whose filter asks for the range of NaN, of files that may hide one."""
    table_names: set[TableName] = set()
    for range_filter in dict.fromkeys(pruned.filters.values()):
        table = range_filter.partition.table
        snapshot = tables.snapshot(table, pruned.versions.get(table))
        column = snapshot.column(range_filter.partition.attribute)
        has_nan_range = any(interval.high is None for interval in range_filter.intervals)
        if not column.type.is_fractional or not has_nan_range:
            continue
        # A partition column is not in the files, and a reader's NaN may not be the greatest value.
        is_outside = column.name in snapshot.partition_columns
        if is_outside or column.name in hiding_columns(
            snapshot, (column.name,), pruned.files[table]
        ):
            table_names.add(table)
    return frozenset(table_names)
