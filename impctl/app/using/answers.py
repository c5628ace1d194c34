"""Running a query over pinned snapshots, with its sketch or without.

Law: both ways read the same versions; with the sketch only files that may hold wanted rows are
read. An answer comes as Arrow, and as plain Python values where two are compared.
Out of scope: which sketch (`app.using.fresh_sketch`), comparing two results (`app.verify`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from impctl.app.preparing.filters import Pruned, guards_of
from impctl.app.preparing.prepared import PreparedQuery
from impctl.app.results.answer import RowValue, rows_of
from impctl.app.workbench.pinned import PinnedTables
from impctl.app.workbench.workbench import Workbench
from impctl.expr.nodes import Span
from impctl.plan.nodes import Join, nodes_of
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import RangeFilter
from impctl.spark.expressions import DIALECT
from impctl.spark.predicates import Guard, filter_condition, local_name, rewrite_sql
from impctl.store.records import StoredSketch
from impctl.tables.snapshot import bytes_of
from impctl.types import ColumnName, TableName, TableVersion
from impctl.values import dataclass

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Answer:
    """Columns and rows of a result."""

    columns: tuple[ColumnName, ...]
    rows: tuple[tuple[RowValue, ...], ...]


def answer(
    desk: Workbench,
    prepared: PreparedQuery,
    versions: Mapping[TableName, TableVersion],
    pruned: Pruned | None = None,
) -> Answer:
    """The query's result at `versions`; `pruned` makes it read through the sketch."""
    return answer_of(answer_table(desk, prepared, versions, pruned))


def answer_table(
    desk: Workbench,
    prepared: PreparedQuery,
    versions: Mapping[TableName, TableVersion],
    pruned: Pruned | None = None,
    sketches: Sequence[StoredSketch] | None = None,
) -> pa.Table:
    """The result as Arrow.

    Given `sketches`, those that it was pruned by, the engine derives its recursive entries; else
    Spark does, which shares nothing with the engine.
    """
    from impctl.spark.run import run_sql
    from impctl.spark.session import shuffles_for

    views, sql = _text(desk, prepared, versions, pruned, sketches)
    if any(isinstance(node, Join) for node in nodes_of(prepared.query.root)):
        # A join may give many more rows than it reads.
        table = run_sql(desk.spark(), sql, views, versions=versions)
    else:
        with shuffles_for(desk.spark(), _bytes(desk.tables, prepared, versions, pruned)):
            table = run_sql(desk.spark(), sql, views, versions=versions)
    return with_one_schema(table, desk.session_zone)


def with_one_schema(table: pa.Table, zone: str) -> pa.Table:
    """Spark's answer with the schema that the engine gives: every column may be NULL, and a
    TIMESTAMP is shown in the session's time zone."""
    import pyarrow as pa

    fields = [
        pa.field(one.name, pa.timestamp("us", tz=zone) if _has_zone(one.type) else one.type)
        for one in table.schema
    ]
    arrays = [column.cast(one.type) for column, one in zip(table.columns, fields, strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _has_zone(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_timestamp(kind)) and kind.tz is not None


def answer_frame(
    desk: Workbench,
    prepared: PreparedQuery,
    versions: Mapping[TableName, TableVersion],
    pruned: Pruned,
    sketches: Sequence[StoredSketch],
) -> DataFrame:
    """The result as a frame that Spark computes when it is asked for rows."""
    from impctl.spark.run import frame_of

    views, sql = _text(desk, prepared, versions, pruned, sketches)
    return frame_of(desk.spark(), sql, views, versions=versions)


def _bytes(
    tables: PinnedTables,
    prepared: PreparedQuery,
    versions: Mapping[TableName, TableVersion],
    pruned: Pruned | None,
) -> int:
    """Bytes of the files that are read."""
    if pruned is None:
        return sum(tables.snapshot(t, versions.get(t)).bytes for t in prepared.tables)
    return sum(map(bytes_of, pruned.files.values()))


def _text(
    desk: Workbench,
    prepared: PreparedQuery,
    versions: Mapping[TableName, TableVersion],
    pruned: Pruned | None,
    sketches: Sequence[StoredSketch] | None,
) -> tuple[dict[str, DataFrame], str]:
    """The text to run, and what it reads by name; its recursive entries are derived for it."""
    from impctl.app.using.derived_entries import derived_entries

    views = _views(desk, prepared, versions, pruned)
    entries = derived_entries(desk, prepared, versions, pruned, sketches)
    views |= {entry.view: entry.rows for entry in entries}
    texts = {entry.span: entry.view for entry in entries}
    return views, _sql(desk.tables, prepared, versions, pruned, texts)


def _sql(
    tables: PinnedTables,
    prepared: PreparedQuery,
    versions: Mapping[TableName, TableVersion],
    pruned: Pruned | None,
    entries: Mapping[Span, str],
) -> str:
    """The text to run: the query's own over guarded views, or one with ranges and guards in it.

    A range must reach the files, so it stands below the guard of its column; what is read in parts
    has its ranges in the views.
    """
    if pruned is None:
        return rewrite_sql(prepared.query, {}, entries=entries, is_local=True)
    guards = guards_of(tables, pruned, versions)
    in_text = {
        access: wanted
        for access, wanted in pruned.filters.items()
        if wanted.partition.table not in pruned.parts
    }
    trusted = [
        access for access, wanted in in_text.items() if not _is_guarded(wanted.partition, guards)
    ]
    return rewrite_sql(
        prepared.query, in_text, nan_free=trusted, guards=guards, entries=entries, is_local=True
    )


def _is_guarded(partition: RangePartition, guards: Mapping[TableName, Guard]) -> bool:
    guard = guards.get(partition.table)
    guarded = frozenset[str]() if guard is None else guard.guarded
    return partition.attribute.lower() in map(str.lower, guarded)


def _views(
    desk: Workbench,
    prepared: PreparedQuery,
    versions: Mapping[TableName, TableVersion],
    pruned: Pruned | None,
) -> dict[str, DataFrame]:
    """The tables by the names that the text has for them."""
    from impctl.spark.snapshots import parted_frame, snapshot_frame

    guards = {} if pruned is None else guards_of(desk.tables, pruned, versions)
    views = {}
    # A table that only an unused WITH entry names is analysed all the same.
    for table in dict.fromkeys((*prepared.tables, *prepared.query.tables)):
        snapshot = desk.tables.snapshot(table, versions.get(table))
        parts = None if pruned is None else pruned.parts.get(table)
        name = local_name(prepared.query, table)
        if parts is not None:
            read = [(part.files, _condition(part.filter, guards)) for part in parts]
            views[name] = parted_frame(desk.spark(), snapshot, read)
        else:
            files = None if pruned is None else pruned.files.get(table)
            views[name] = snapshot_frame(
                desk.spark(), snapshot, files=files, is_guarded=files is None
            )
    return views


def _condition(wanted: RangeFilter | None, guards: Mapping[TableName, Guard]) -> str | None:
    """The filter of one part as SQL."""
    if wanted is None:
        return None
    is_nan_free = not _is_guarded(wanted.partition, guards)
    return filter_condition(wanted, is_nan_free=is_nan_free).sql(DIALECT)


def answer_of(table: pa.Table) -> Answer:
    """An Arrow result as plain rows."""
    return Answer(tuple(table.column_names), rows_of(table))
