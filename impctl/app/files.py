"""Use case: the data files that a query's sketches leave, for engines that read them without Delta.

Law: whatever such an engine would not surely read as Spark does is refused, or read without a
sketch; over the rows described the query gives its own answer (`app.results.listed_files`).
Out of scope: reading the files, the text with ranges in it (`app.rewrite`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from impctl.app.preparing.filters import Pruned, filters_of
from impctl.app.preparing.given_values import GivenValues
from impctl.app.results.listed_files import QueryFiles, TableFiles
from impctl.app.using.file_listing import file_listing
from impctl.app.using.fresh_sketch import Fresh
from impctl.app.using.lost_nan import losing_nan
from impctl.app.using.older_versions import AtVersions
from impctl.app.using.recorded import record_use
from impctl.app.using.request import asked
from impctl.app.using.unread import Unread
from impctl.app.using.worth import worth_using
from impctl.app.workbench.pinned import PinnedTables
from impctl.app.workbench.workbench import Workbench
from impctl.data.schema import Kind
from impctl.errors import TableError
from impctl.spark.predicates import plain_condition, plain_live
from impctl.store.records import StoredSketch
from impctl.tables.footers import miscopied_columns
from impctl.tables.snapshot import DataFile, Snapshot
from impctl.types import ColumnName, TableName, TableVersion
from impctl.values import dataclass
from impctl.workload.models import SketchUse

_DATED = (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMP_NTZ)
_NO_TEXT = "other engines may interpret its boundary values differently"
_NAN = "its files may contain NaN, and engines that read Parquet may skip such rows"


@dataclass(frozen=True, slots=True)
class Listed:
    """The files, and what to know about them."""

    files: QueryFiles
    warnings: tuple[str, ...]


def files(
    desk: Workbench,
    query: str | None,
    params: GivenValues = (),
    sql: str | None = None,
    at: AtVersions | None = None,
    use: SketchUse = SketchUse.ALWAYS,
    *,
    required: bool = False,
) -> Listed:
    """The files of one query; arguments as for `app.rewrite`."""
    result = asked(desk, query, params, sql, at, use, required=required)
    if isinstance(result, Unread):
        return _as_they_stand(desk, result)
    pruned, predicates, left_away = _left_to_read(desk.tables, result, use)
    read = _columns_read(result)
    tables = {}
    # A table that only an unused WITH entry names is looked up all the same.
    for table in dict.fromkeys((*result.prepared.tables, *result.prepared.query.tables)):
        snapshot = desk.tables.snapshot(table, result.versions.get(table))
        left = pruned.files.get(table, snapshot.files)
        _check(snapshot, read.get(table, ()), left)
        tables[table] = _table_files(snapshot, left, predicates.get(table))
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
    plain = filters_of(desk.tables, result.prepared, (), result.versions)
    record_use(desk, result, pruned, plain, command="files")
    return Listed(listed, result.warnings)


def _as_they_stand(desk: Workbench, result: Unread) -> Listed:
    """All files of a query that only Spark can read."""
    tables = {}
    for table, version in result.versions.items():
        snapshot = desk.tables.snapshot(table, version)
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
    tables: PinnedTables, result: Fresh, use: SketchUse
) -> tuple[Pruned, Mapping[TableName, str], Mapping[TableName, str]]:
    """Files and predicates that belong together, and why a sketch is not among them."""
    sketches, reasons = worth_using(tables, result, use)
    left_away = dict(reasons)
    while True:
        pruned = filters_of(tables, result.prepared, sketches, result.versions, by_table=True)
        predicates, refused = _predicates(tables, pruned, result.versions)
        if not refused:
            break
        # Anew: what a sketch leaves of its table narrows the tables that it is joined with.
        left_away |= refused
        sketches = tuple(one for one in sketches if one.table not in refused)
    for table in dict.fromkeys(sketch.table for sketch in sketches):
        if table not in predicates and _leaves_out(sketches, table):
            left_away[table] = "the query reads it several times, with different ranges"
    return pruned, _of_live_rows(result, predicates), left_away


def _leaves_out(sketches: Sequence[StoredSketch], table: TableName) -> bool:
    own = [sketch for sketch in sketches if sketch.table == table]
    return any(len(one.fragments) < one.partition.size for one in own)


def _predicates(
    tables: PinnedTables, pruned: Pruned, versions: Mapping[TableName, TableVersion]
) -> tuple[dict[TableName, str], dict[TableName, str]]:
    """The predicate of each filtered table, and why another one can have none."""
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


def _of_live_rows(result: Fresh, predicates: Mapping[TableName, str]) -> Mapping[TableName, str]:
    """The predicates, with what expiries ask of rows beside them."""
    told = dict(predicates)
    for table, live in result.query.live:
        text = plain_live(live, live.column, predicates.get(table))
        assert text is not None, "an expiry ends within what has a text"
        told[table] = text
    return told


def _columns_read(result: Fresh) -> dict[TableName, set[ColumnName]]:
    """The columns of each table that the query reads."""
    columns: dict[TableName, set[ColumnName]] = {}
    for scan in result.prepared.scans:
        columns.setdefault(scan.table, set()).update(one.name for one in scan.attributes)
    return columns


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
