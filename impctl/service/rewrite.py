"""Rewrite: the text or the files by which another reader runs a query through its sketches."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec.structs import replace

from impctl.data.schema import Column, Kind
from impctl.errors import TableError, UnsafeSketchError
from impctl.plan.nodes import Fixpoint
from impctl.safety.direction import Refusal
from impctl.safety.failures import Interval, Sizes, part_failure
from impctl.service.answer import Passthrough, answer_frame, losing_nan, unread_frame
from impctl.service.filters import Pruned, files_in, filters_of, interval_texts
from impctl.service.output import check_output, not_written, write_whole
from impctl.service.prepare import fact_of, facts_of
from impctl.service.resolve import (
    ReadChoice,
    ResolvedSketch,
    chosen_read,
    is_for_others,
    record_use,
    resolved,
    written_query,
)
from impctl.service.results import NO_SKETCH, Outcome, QueryFiles, RewriteResult, TableFiles
from impctl.service.settings import QueryRequest
from impctl.service.stored import sketch_entry
from impctl.spark.predicates import PLAIN_DIALECT, live_condition, plain_filter
from impctl.tables.files import miscopied_columns, why_not_plain
from impctl.tables.rows import partition_literal
from impctl.tables.snapshot import DataFile, Snapshot, arrow_type
from impctl.tables.statistics import column_statistics
from impctl.types import AccessId, AttributeId, ColumnName, TableName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from sqlglot.expressions import Expr as Sql

    from impctl.service.context import Context, Versions
    from impctl.service.pinned import PinnedTables


# Data files as an Arrow table, for engines that read them directly. Law: has all that the log knows
# of a file and its bytes do not: deleted rows, and partition values in the table's types.


def file_listing(snapshot: Snapshot, files: Sequence[DataFile]) -> pa.Table:
    """A row per file: `file`, `size`, `rows`, `deleted`, and `partition_values` if any. TableError
    for a partition value that Arrow cannot read."""
    columns = {
        "file": pa.array([file.uri for file in files], pa.string()),
        "size": pa.array([file.size for file in files], pa.int64()),
        "rows": pa.array([file.rows for file in files], pa.int64()),
        "deleted": pa.array([file.deleted for file in files], pa.list_(pa.int64())),
    }
    if snapshot.partition_columns:
        partition_columns = [snapshot.column(name) for name in snapshot.partition_columns]
        values = [
            _values(column, [file.partition_values for file in files])
            for column in partition_columns
        ]
        names = [column.name for column in partition_columns]
        columns["partition_values"] = pa.StructArray.from_arrays(values, names=names)
    return pa.table(columns)


def _values(column: Column, texts: Sequence[Mapping[str, str | None]]) -> pa.Array:
    """The values of one partition column, each text parsed once."""
    result = [values[column.name] for values in texts]
    distinct = list(dict.fromkeys(result))
    if not distinct:
        return pa.array([], arrow_type(column.type))
    read = pa.concat_arrays([partition_literal(column, text, 1) for text in distinct])
    places = {text: index for index, text in enumerate(distinct)}
    return read.take(pa.array([places[text] for text in result], pa.int64()))


# Spark DataFrames. Law: the frame is the query's answer at the versions pinned when it was made,
# whenever it is computed; a file missing by then is an error, never fewer rows. There is no retry
# without the sketch, so it is not used if the query might fail only because of it.


def dataframe(ctx: Context, request: QueryRequest) -> tuple[DataFrame, tuple[str, ...]]:
    """The frame of one query, and warnings."""
    result = resolved(ctx, request)
    if isinstance(result, Passthrough):
        return unread_frame(ctx, result), result.warnings
    result = _never_failing(ctx.tables, result, required=request.required)
    read = chosen_read(ctx.tables, result, request.sketch)
    frame = answer_frame(ctx, result.prepared, read.pruned)
    record_use(ctx, result, read.pruned, read.plain, command="dataframe")
    return frame, result.warnings


# Files for engines without Delta. Law: what such an engine might not read as Spark does is refused,
# or read without a sketch; over the described rows the query gives its answer (`service.results`).

_DATED = (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ)
_NO_TEXT = "other engines may interpret its boundary values differently"
_NAN = "its files may contain NaN, and engines that read Parquet may skip such rows"


def files(ctx: Context, request: QueryRequest) -> tuple[QueryFiles, tuple[str, ...]]:
    """The files of one query, and warnings."""
    result = resolved(ctx, request)
    if isinstance(result, Passthrough):
        return _verbatim_files(ctx, result)
    choice = chosen_read(ctx.tables, result, request.sketch)
    pruned, predicates, unused_sketches = _left_to_read(ctx.tables, result, choice)
    read: dict[TableName, set[ColumnName]] = {}
    for scan in result.prepared.scans:
        read.setdefault(scan.table, set()).update(a.name for a in scan.attributes)
    tables = {}
    # A table that only an unused WITH entry names is looked up all the same.
    for table in dict.fromkeys((*result.prepared.tables, *result.prepared.query.tables)):
        snapshot = ctx.tables.snapshot(table, result.versions.get(table))
        remaining = pruned.files.get(table, snapshot.files)
        _check(snapshot, read.get(table, ()), remaining)
        tables[table] = _table_files(snapshot, remaining, predicates.get(table))
    listed = QueryFiles(
        query=result.prepared.spec.name,
        sql=result.query.sql,
        tables=tables,
        action=result.action,
        reason=result.reason,
        reuse=result.reuse,
        unused_sketches=unused_sketches,
        moments=result.prepared.moments,
    )
    record_use(ctx, result, pruned, choice.plain, command="files")
    return listed, result.warnings


def _verbatim_files(ctx: Context, result: Passthrough) -> tuple[QueryFiles, tuple[str, ...]]:
    tables = {}
    for table, version in result.versions.items():
        snapshot = ctx.tables.snapshot(table, version)
        # Which columns the query reads is not known.
        _check(snapshot, snapshot.schema.names, snapshot.files)
        tables[table] = _table_files(snapshot, snapshot.files, None)
    listed = QueryFiles(
        query=result.spec.name,
        sql=result.sql,
        tables=tables,
        action=result.action,
        reason=result.reason,
    )
    return listed, result.warnings


def _left_to_read(
    tables: PinnedTables, result: ResolvedSketch, choice: ReadChoice
) -> tuple[Pruned, Mapping[TableName, str], Mapping[TableName, str]]:
    """Matching files and predicates, and why a sketch is not among them."""
    sketches, unused_sketches = choice.used(result.sketches), dict(choice.unused)
    while True:
        pruned = filters_of(tables, result.prepared, sketches, result.versions, by_table=True)
        predicates, refused = _predicates(tables, pruned)
        if not refused:
            break
        # Again: the rest of a table narrows the tables that it is joined with.
        unused_sketches |= refused
        sketches = tuple(sketch for sketch in sketches if sketch.table not in refused)
    for table in dict.fromkeys(sketch.table for sketch in sketches):
        is_narrowed = any(
            sketch.table == table and len(sketch.ranges) < sketch.partition.size
            for sketch in sketches
        )
        if table not in predicates and is_narrowed:
            unused_sketches[table] = "the query reads it several times, with different ranges"
    for table, live in result.query.live:
        # Rows must be live, too.
        predicates[table] = live_condition(live, predicates.get(table), is_plain=True)
    texts = {table: condition.sql(PLAIN_DIALECT) for table, condition in predicates.items()}
    return pruned, texts, unused_sketches


def _predicates(
    tables: PinnedTables, pruned: Pruned
) -> tuple[dict[TableName, Sql], dict[TableName, str]]:
    """The predicate of each filtered table, and why another one has none."""
    result: dict[TableName, Sql] = {}
    refused: dict[TableName, str] = dict.fromkeys(losing_nan(tables, pruned), _NAN)
    for range_filter in pruned.filters.values():
        table = range_filter.partition.table
        snapshot = tables.snapshot(table, pruned.versions.get(table))
        column = snapshot.column(range_filter.partition.attribute)
        condition = plain_filter(range_filter, column.name)
        if condition is None:
            refused[table] = _NO_TEXT
        else:
            result[table] = condition
    return result, refused


def _check(snapshot: Snapshot, names: Iterable[ColumnName], left: Sequence[DataFile]) -> None:
    """TableError for a column that readers of plain files would not read as Spark does."""
    columns = [snapshot.readable(name) for name in names]
    dated = {column.name for column in columns if column.type.kind in _DATED}
    old = miscopied_columns(snapshot, left).in_old_calendar & dated if dated else ()
    if old:
        raise TableError(
            f"Column `{min(old)}` of table `{snapshot.table}` may contain old dates or "
            "times in Spark 2's calendar, which other engines read as different values",
            hint="rewrite the files with Spark 3.1 or newer, or do not use the column",
            code="legacy_calendar",
        )


def _table_files(snapshot: Snapshot, left: Sequence[DataFile], predicate: str | None) -> TableFiles:
    names = snapshot.column_mapping
    return TableFiles(
        table=snapshot.table,
        path=snapshot.path,
        version=snapshot.version,
        files_total=len(snapshot.files),
        listing=file_listing(snapshot, left),
        predicate=predicate,
        names_in_files={} if names is None else dict(names),
    )


# SQL with range predicates. Law: over the named versions the text gives what the query gives and
# fails only where it does. Spark starts only if the sketch must be recaptured first.

BEST_ROWS_ONLY = "best_rows_only"


def rewrite(ctx: Context, request: QueryRequest, files: Path | None = None) -> Outcome:
    """The rewritten SQL of one query. `files`: a JSON file to write, with the data files that the
    text reads by table."""
    if files is not None:
        check_output(files, ctx.reserved)
    match = resolved(ctx, request)
    if isinstance(match, Passthrough):
        return _verbatim(ctx, match, files)
    match = _never_failing(ctx.tables, match, required=request.required)
    choice = chosen_read(ctx.tables, match, request.sketch)
    sketches = choice.used(match.sketches)
    sql, pruned = written_query(
        ctx.tables,
        match.prepared,
        match.query,
        sketches,
        match.versions,
        has_files=files is not None,
    )
    texts = [
        text
        for filter_ in dict.fromkeys(pruned.filters.values())
        for text in interval_texts(filter_)
    ]
    result = RewriteResult(
        query=match.prepared.spec.name,
        sql=sql,
        sketches=tuple(sketch_entry(sketch) for sketch in sketches),
        versions=match.versions,
        files_kept=pruned.files_kept,
        files_total=pruned.files_total,
        intervals=tuple(texts),
        action=match.action,
        reason=match.reason,
        reuse=match.reuse,
        unused_sketches=choice.unused,
        moments=match.prepared.moments,
        runs_on_spark=not is_for_others(match.query),
    )
    if files is not None:
        losing = losing_nan(ctx.tables, pruned)
        if losing:
            raise TableError(
                f"Table `{min(losing)}` cannot be read file by file through its sketch: its files "
                "may contain NaN in the requested range, and Parquet readers may skip such rows",
                hint="omit `--files` and run the text on Spark, or do not use the sketch: "
                "`--sketch never`",
                code="files_not_plain",
            )
        _write_files(ctx, match.versions, pruned.files, files)
    record_use(ctx, match, pruned, choice.plain, command="rewrite")
    best = {
        node.id for node in match.prepared.root.walk() if isinstance(node, Fixpoint) and node.best
    }
    endless = [
        f"recursive `{name}` terminates because impctl keeps only its best rows; elsewhere "
        f"the text may run forever on data with cycles [{BEST_ROWS_ONLY}]"
        for name in sorted(best)
    ]
    return Outcome((result,), (*match.warnings, *endless))


def _verbatim(ctx: Context, match: Passthrough, files: Path | None) -> Outcome:
    read = {t: ctx.tables.snapshot(t, version).files for t, version in match.versions.items()}
    if files is not None:
        _write_files(ctx, match.versions, read, files)
    count = files_in(ctx.tables, match.versions)
    result = RewriteResult(
        query=match.spec.name,
        sql=match.sql,
        sketches=(),
        versions=match.versions,
        files_kept=count,
        files_total=count,
        intervals=(),
        action=match.action,
        reason=match.reason,
    )
    return Outcome((result,), match.warnings)


def _write_files(
    ctx: Context, versions: Versions, files: Mapping[TableName, Sequence[DataFile]], path: Path
) -> None:
    """Write each table's remaining files; TableError unless its rows are simply those of the
    files."""
    for table in files:
        reason = why_not_plain(ctx.tables.snapshot(table, versions.get(table)))
        if reason:
            raise TableError(
                f"Table `{table}` cannot be read file by file: {reason}",
                hint="omit `--files` and run the text with a reader that supports Delta",
                code="files_not_plain",
            )
    listed = {table: [file.uri for file in chosen] for table, chosen in files.items()}
    try:
        write_whole(path, json.dumps(listed, indent=1) + "\n")
    except OSError as error:
        raise not_written("The list of files", path, error, "files_not_written") from error


# Law: what is computed later, with no retry without the sketch (a text, a frame), does not use the
# sketch if the query might fail only because of it.

_HINT = "rewrite the query so that it cannot fail, for instance with `nullif(y, 0)` or `try_divide`"


def _part_failure(tables: PinnedTables, result: ResolvedSketch) -> Refusal | None:
    """What in the query may fail over the rows that its sketches keep; None for nothing."""
    if not result.sketches:
        return None
    sketched = {sketch.access: sketch.attribute for sketch in result.sketches}
    scans = result.query.root.scans
    assumed = [fact_of(assumption) for assumption in result.assumptions]
    if part_failure(result.query, sketched, assumed, Sizes({}, {})) is None:
        return None
    # Only now are statistics worth reading.
    facts = (*assumed, *facts_of(tables, scans))
    return part_failure(result.query, sketched, facts, _sizes(tables, result))


def _never_failing(
    tables: PinnedTables, result: ResolvedSketch, *, required: bool
) -> ResolvedSketch:
    """The query with sketches if it then fails only where it fails without them; else without, and
    with a warning, or UnsafeSketchError if the sketch is `required`."""
    failing = _part_failure(tables, result)
    if failing is None:
        return result
    name = result.prepared.spec.name
    if required:
        raise UnsafeSketchError(
            f"Query `{name}` cannot be rewritten with its sketch: {failing.reason}",
            hint=f"{_HINT}; or run it with `impctl query`, which tries again without the sketch",
            code="fails_in_part",
            location=result.prepared.spec.location,
        )
    warning = f"query `{name}` is rewritten without its sketch: {failing.reason}; {_HINT}"
    warnings = (*result.warnings, f"{warning} [fails_in_part]")
    return replace(result, sketches=(), warnings=warnings, action=NO_SKETCH, reason=failing.reason)


def _sizes(tables: PinnedTables, result: ResolvedSketch) -> Sizes:
    rows: dict[AccessId, int] = {}
    bounds: dict[AttributeId, Interval] = {}
    for scan in result.query.root.scans:
        snapshot = tables.snapshot(scan.table)
        if snapshot.rows is not None:
            rows[scan.access] = snapshot.rows
        for attribute in scan.attributes:
            kind = attribute.type
            if kind is None or not kind.is_numeric or kind.is_fractional:
                continue
            known = column_statistics(snapshot, attribute.name)
            if known.minimum is None or known.maximum is None:
                continue
            assert isinstance(known.minimum, int), "decimals are unscaled"
            assert isinstance(known.maximum, int), "decimals are unscaled"
            unit = 10**kind.scale
            bounds[attribute.id] = Fraction(known.minimum, unit), Fraction(known.maximum, unit)
    return Sizes(rows, bounds)
