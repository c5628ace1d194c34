"""Rewrite: the text or the files by which another reader runs a query through its sketches."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec import Struct

from impctl.data.schema import Column, Kind
from impctl.errors import StorageError, TableError
from impctl.plan.nodes import Fixpoint, nodes_of
from impctl.service.filters import Pruned, filters_of, interval_texts
from impctl.service.output import check_output, write_whole
from impctl.service.query import never_failing
from impctl.service.resolve import (
    AtVersions,
    ResolvedSketch,
    is_for_others,
    record_use,
    resolved,
    what_is_read,
    worth_using,
    written_query,
)
from impctl.service.results import Outcome, QueryFiles, RewriteResult, TableFiles
from impctl.service.spark_answer import Passthrough, answer_frame, losing_nan, unread_frame
from impctl.service.stored import sketch_entry
from impctl.spark.predicates import plain_condition, plain_live
from impctl.tables.files import miscopied_columns, why_not_plain
from impctl.tables.rows import partition_literal
from impctl.tables.snapshot import arrow_type
from impctl.workload.models import SketchPolicy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from impctl.service.context import Context
    from impctl.service.parameters import GivenValues
    from impctl.service.pinned import PinnedTables
    from impctl.tables.snapshot import DataFile, Snapshot
    from impctl.types import ColumnName, TableName, TableVersion


# Data files of a snapshot as an Arrow table, for engines that read them themselves. Law: says all
# that the log knows of a file and its bytes do not: rows that are deleted, and values of
# partition columns, in the types of the table.


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
    places = {text: at for at, text in enumerate(distinct)}
    return read.take(pa.array([places[text] for text in result], pa.int64()))


# Use case: a query through its sketch as a Spark DataFrame, for programs that go on with it. Law:
# the frame stands for the query's answer at the versions that were pinned when it was made,
# whenever it is computed; a data file that is gone by then is an error, never fewer rows. Nobody
# can try again without the sketch, so it is left away where the query might fail only because of
# it.


class Framed(Struct, frozen=True):
    frame: DataFrame
    warnings: tuple[str, ...]


def dataframe(
    ctx: Context,
    query: str | None,
    params: GivenValues = (),
    sql: str | None = None,
    at: AtVersions | None = None,
    use: SketchPolicy = SketchPolicy.AUTO,
    *,
    required: bool = False,
) -> Framed:
    """The frame of one query; arguments as for `service.query`."""
    result = resolved(ctx, query, params, sql, at, use, required=required)
    if isinstance(result, Passthrough):
        return Framed(unread_frame(ctx, result), result.warnings)
    result = never_failing(ctx.tables, result, required=required)
    read = what_is_read(ctx.tables, result, use)
    frame = answer_frame(ctx, result.prepared, result.versions, read.pruned, result.sketches)
    record_use(ctx, result, read.pruned, read.plain, command="dataframe")
    return Framed(frame, result.warnings)


# Use case: the data files that a query's sketches leave, for engines that read them without
# Delta. Law: whatever such an engine would not surely read as Spark does is refused, or read
# without a sketch; over the rows described the query gives its own answer (`service.results`).

_DATED = (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ)
_NO_TEXT = "other engines may interpret its boundary values differently"
_NAN = "its files may contain NaN, and engines that read Parquet may skip such rows"


class Listed(Struct, frozen=True):
    files: QueryFiles
    warnings: tuple[str, ...]


def files(
    ctx: Context,
    query: str | None,
    params: GivenValues = (),
    sql: str | None = None,
    at: AtVersions | None = None,
    use: SketchPolicy = SketchPolicy.ALWAYS,
    *,
    required: bool = False,
) -> Listed:
    """The files of one query; arguments as for `service.rewrite`."""
    result = resolved(ctx, query, params, sql, at, use, required=required)
    if isinstance(result, Passthrough):
        return _as_they_stand(ctx, result)
    pruned, predicates, left_away = _left_to_read(ctx.tables, result, use)
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
        left_away=left_away,
        moments=result.prepared.moments,
    )
    plain = filters_of(ctx.tables, result.prepared, (), result.versions)
    record_use(ctx, result, pruned, plain, command="files")
    return Listed(listed, result.warnings)


def _as_they_stand(ctx: Context, result: Passthrough) -> Listed:
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
    return Listed(listed, result.warnings)


def _left_to_read(
    tables: PinnedTables, result: ResolvedSketch, use: SketchPolicy
) -> tuple[Pruned, Mapping[TableName, str], Mapping[TableName, str]]:
    """Matching files and predicates, and why a sketch is not among them."""
    sketches, reasons = worth_using(tables, result, use)
    left_away = dict(reasons)
    while True:
        pruned = filters_of(tables, result.prepared, sketches, result.versions, by_table=True)
        predicates, refused = _predicates(tables, pruned, result.versions)
        if not refused:
            break
        # Again: the rest of a table narrows the tables that it is joined with.
        left_away |= refused
        sketches = tuple(one for one in sketches if one.table not in refused)
    for table in dict.fromkeys(sketch.table for sketch in sketches):
        is_narrowed = any(
            sketch.table == table and len(sketch.ranges) < sketch.partition.size
            for sketch in sketches
        )
        if table not in predicates and is_narrowed:
            left_away[table] = "the query reads it several times, with different ranges"
    for table, live in result.query.live:
        # Rows must be live, too.
        condition = plain_live(live, live.column, predicates.get(table))
        assert condition is not None, "an expiry ends within what has a text"
        predicates[table] = condition
    return pruned, predicates, left_away


def _predicates(
    tables: PinnedTables, pruned: Pruned, versions: Mapping[TableName, TableVersion]
) -> tuple[dict[TableName, str], dict[TableName, str]]:
    """The predicate of each filtered table, and why another one has none."""
    result: dict[TableName, str] = {}
    refused: dict[TableName, str] = dict.fromkeys(losing_nan(tables, pruned, versions), _NAN)
    for wanted in pruned.filters.values():
        table = wanted.partition.table
        snapshot = tables.snapshot(table, versions.get(table))
        column = snapshot.column(wanted.partition.attribute)
        text = plain_condition(wanted, column.name)
        if text is None:
            refused[table] = _NO_TEXT
        else:
            result[table] = text
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


# Use case: the query's SQL with its sketch as range predicates. Law: the text printed gives, over
# the versions named beside it, what the query gives, and fails only where it does. No Spark is
# started unless the sketch has to be recaptured first.

BEST_ROWS_ONLY = "best_rows_only"


def rewrite(
    ctx: Context,
    query: str | None,
    params: GivenValues = (),
    sql: str | None = None,
    at: AtVersions | None = None,
    files: Path | None = None,
    use: SketchPolicy = SketchPolicy.ALWAYS,
    *,
    required: bool = False,
) -> Outcome:
    """The rewritten SQL of one query; arguments as for `service.query`. `files`: a JSON file to
    write, with the data files that the text reads by table."""
    if files is not None:
        check_output(files, ctx.reserved)
    match = resolved(ctx, query, params, sql, at, use, required=required)
    if isinstance(match, Passthrough):
        return _as_it_stands(ctx, match, files)
    match = never_failing(ctx.tables, match, required=required)
    sketches, left_away = worth_using(ctx.tables, match, use)
    written = written_query(
        ctx.tables,
        match.prepared,
        match.query,
        sketches,
        match.versions,
        has_files=files is not None,
    )
    pruned = written.pruned
    texts = [text for one in dict.fromkeys(pruned.filters.values()) for text in interval_texts(one)]
    result = RewriteResult(
        query=match.prepared.spec.name,
        sql=written.sql,
        sketches=tuple(sketch_entry(sketch) for sketch in sketches),
        versions=match.versions,
        files_kept=pruned.files_kept,
        files_total=pruned.files_total,
        intervals=tuple(texts),
        action=match.action,
        reason=match.reason,
        reuse=match.reuse,
        left_away=left_away,
        moments=match.prepared.moments,
        runs_on_spark=not is_for_others(match.query),
    )
    if files is not None:
        losing = losing_nan(ctx.tables, pruned, match.versions)
        if losing:
            raise TableError(
                f"Table `{min(losing)}` cannot be read file by file through its sketch: its files "
                "may contain NaN in the requested range, and Parquet readers may skip such rows",
                hint="omit `--files` and run the text on Spark, or do not use the sketch: "
                "`--sketch never`",
                code="files_not_plain",
            )
        _write_files(ctx, match.versions, pruned.files, files)
    plain = filters_of(ctx.tables, match.prepared, (), match.versions)
    record_use(ctx, match, pruned, plain, command="rewrite")
    best = {
        node.id
        for node in nodes_of(match.prepared.root)
        if isinstance(node, Fixpoint) and node.best
    }
    endless = [
        f"recursive `{name}` terminates because impctl keeps only its best rows; elsewhere "
        f"the text may run forever on data with cycles [{BEST_ROWS_ONLY}]"
        for name in sorted(best)
    ]
    return Outcome((result,), (*match.warnings, *endless))


def _as_it_stands(ctx: Context, match: Passthrough, files: Path | None) -> Outcome:
    read = {t: ctx.tables.snapshot(t, version).files for t, version in match.versions.items()}
    if files is not None:
        _write_files(ctx, match.versions, read, files)
    count = match.files(ctx)
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
    ctx: Context,
    versions: Mapping[TableName, TableVersion],
    files: Mapping[TableName, Sequence[DataFile]],
    path: Path,
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
        raise StorageError(
            f"The list of files could not be written to `{path}`: {error.strerror}",
            hint="name a file in a folder with write access",
            code="files_not_written",
        ) from error
