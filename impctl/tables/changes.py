"""What changed in a table between two versions, as rows with weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from impctl.data.schema import STRING, Column
from impctl.data.vector import Once
from impctl.errors import (
    HistoryGoneError,
    LogDiffersError,
    SchemaChangedError,
    TableError,
    TableRecreatedError,
)
from impctl.tables.files import DataFiles
from impctl.tables.log import has_faithful_copies, leads_to
from impctl.tables.rows import FileReader, bare_rows
from impctl.tables.snapshot import (
    CHANGE_FEED,
    DataFile,
    FilesMark,
    Positions,
    Snapshot,
    TableSchema,
    arrow_type,
    logged_file,
    read_schema,
)
from impctl.tables.source import Action, DeltaSource, LogEntry, is_of_rows, other_history, recreated
from impctl.tables.storage import file_uri

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from impctl.types import ColumnName, TableVersion

# The net change. Law: the sum of the weighted rows stays the same, and no row has both signs. Equal
# rows are equal bit by bit, so -0.0 differs from 0.0, and no expression can tell the difference.
# Cost: one grouping of rows that were just read.

Weights = npt.NDArray[np.int64]

_WEIGHT = "weight"


def netted(table: pa.Table, weights: Weights) -> tuple[pa.Table, Weights]:
    """Sum the weights of equal rows; rows of sum 0 are dropped. The order is arbitrary."""
    if not len(weights) or weights.min() > 0 or weights.max() < 0:
        return table, weights
    if not table.num_columns:
        total = int(weights.sum())
        return bare_rows(abs(total)), np.full(abs(total), np.sign(total), dtype=np.int64)
    names = table.column_names
    keys = [str(number) for number in range(len(names))]
    rows = table.rename_columns(keys).append_column(_WEIGHT, pa.array(weights))
    aggregate = rows.group_by(keys).aggregate([(_WEIGHT, "sum")])
    sums: Weights = aggregate.column(f"{_WEIGHT}_sum").to_numpy()
    left = np.flatnonzero(sums)
    kept = aggregate.select(keys).take(pa.array(left)).rename_columns(names)
    return kept.cast(table.schema), sums[left]


# Files with one double in their statistics, which may hide NaN. Law: statistics omit NaN, and
# delta-rs 1.6.6 may give a column whose minimum and maximum are equal that value in every row: when
# it reads the feed, and when a DELETE, UPDATE or MERGE writes change data or copies rows. Such
# files are compared instead.


def _may_have_hidden_nan(after: Snapshot, entry: LogEntry, doubles: Collection[ColumnName]) -> bool:
    """Whether a file that the commit removed may have hidden NaN in one of these columns; an
    unreadable one may."""
    if not doubles:
        return False
    opened = DataFiles(after)
    removed = (logged_file(after.path, body["path"]) for body in entry.bodies("remove"))
    footers = map(opened.try_footer, removed)
    return any(footer is None or _has_lone_doubles(footer, doubles) for footer in footers)


def _has_lone_doubles(footer: pq.FileMetaData, doubles: Collection[ColumnName]) -> bool:
    """Whether one of these columns has a single value in a row group, by its statistics."""
    return any(
        stated.has_min_max and stated.min == stated.max
        for group in map(footer.row_group, range(footer.num_row_groups))
        for chunk in map(group.column, range(group.num_columns))
        if chunk.path_in_schema in doubles and (stated := chunk.statistics) is not None
    )


# Whether a feed counts a file twice. Law: without change data, a feed takes every row of an added
# file as inserted and every row of a removed one as deleted. That is right only if the added file
# was not in the table and the removed one was; an entry for a present file replaces the older
# entry. Commits of Spark and operations of deltalake are trusted; for others the files are looked
# up. Cost: the snapshot at the start, if there are others.

_OF_DELTALAKE = "delta-rs:"


def has_distinct_files(entries: Sequence[LogEntry], start: Callable[[], Snapshot]) -> bool:
    """Whether a feed counts no file of these commits twice; `start` is the snapshot before them."""
    if all(map(_is_sure, entries)):
        return True
    before = start()
    live = set(before.uris)
    for entry in entries:
        added = _uris(before.path, entry.actions, "add")
        removed = _uris(before.path, entry.actions, "remove")
        if not _is_sure(entry) and not _is_plain(before.path, entry.actions, live):
            return False
        live = (live - set(removed)) | set(added)
    return True


def _is_sure(entry: LogEntry) -> bool:
    """Whether a commit has change data, moves no file, or names such an operation as its writer."""
    if entry.bodies("cdc") or not any(map(is_of_rows, entry.actions)):
        return True
    return entry.is_of_spark or any(
        str(body.get("engineInfo")).startswith(_OF_DELTALAKE) and body.get("operationMetrics")
        for body in entry.bodies("commitInfo")
    )


def _is_plain(path: str, actions: Sequence[Action], live: set[str]) -> bool:
    """Whether each file the commit feeds is new to the table, or was in it, by one entry."""
    fed = [action for action in actions if is_of_rows(action)]
    quiet = [action for action in actions if not is_of_rows(action)]
    added, removed = _uris(path, fed, "add"), _uris(path, fed, "remove")
    moved = {*_uris(path, quiet, "add"), *_uris(path, quiet, "remove")}
    return (
        len({*added}) == len(added)
        and len({*removed}) == len(removed)
        and live.issuperset(removed)
        and live.isdisjoint(added)
        and moved.isdisjoint([*added, *removed])
    )


def _uris(path: str, actions: Sequence[Action], kind: str) -> list[str]:
    return [file_uri(path, body["path"]) for name, body in actions if name == kind]


# Whether change data are complete. Law: change data have two images of each updated row. delta-rs
# omits an old image that equals another row's new one, and that new one too, so sums agree but rows
# are missing (seen in 1.6.6). If there are fewer rows than counted, or no count, files are
# compared, and also if a double may have replaced NaN.

_WRITER = "delta-rs"
_IMAGES: Mapping[str, Mapping[str, int]] = {
    "UPDATE": {"num_updated_rows": 2},
    "MERGE": {
        "num_target_rows_inserted": 1,
        "num_target_rows_updated": 2,
        "num_target_rows_deleted": 1,
    },
}
"""Rows of change data for each row that a commit counts."""


def has_complete_feed(
    after: Snapshot, entries: Sequence[LogEntry], columns: Sequence[ColumnName]
) -> bool:
    """Return False if change data by delta-rs may lack rows, or values in these columns."""
    doubles = {name for name in columns if after.column(name).type.is_fractional}
    for entry in entries:
        paths = [body["path"] for body in entry.bodies("cdc")]
        info: Mapping[str, Any] = next(iter(entry.bodies("commitInfo")), {})
        if not paths or not str(info.get("engineInfo") or "").startswith(_WRITER):
            continue
        if _may_have_hidden_nan(after, entry, doubles):
            return False
        images = _IMAGES.get(str(info.get("operation")))
        metrics = info.get("operationMetrics") or {}
        if images is not None and _rows(after, paths) != _counted(metrics, images):
            return False
    return True


def _counted(metrics: Mapping[str, Any], images: Mapping[str, int]) -> int | None:
    """Expected rows; None if the commit does not count them."""
    try:
        return sum(int(metrics[name]) * count for name, count in images.items())
    except (KeyError, TypeError, ValueError):
        return None


def _rows(after: Snapshot, paths: Sequence[str]) -> int:
    """Rows in these files; -1 if one cannot be read, which its reader reports."""
    opened, rows = DataFiles(after), 0
    for path in paths:
        footer = opened.try_footer(logged_file(after.path, path))
        if footer is None:
            return -1
        rows += int(footer.num_rows)
    return rows


# The difference of two snapshots, by their files and deletion vectors. Law: a file in both
# contributes only rows whose deletion changed; a file in one contributes all its rows. The sum is
# snapshot(after) minus snapshot(before), as a bag. Cost: the rows of the differing files.

_NONE: Positions = np.zeros(0, dtype=np.int64)


def read_file_diff(before: Snapshot, after: Snapshot, columns: Sequence[ColumnName]) -> Changes:
    """The inserted and deleted rows between two snapshots. HistoryGoneError if a file is gone."""
    columns_after = [after.readable(name) for name in columns]
    reader_before = FileReader(before, [before.readable(name) for name in columns], before.files)
    reader_after = FileReader(after, columns_after, after.files)
    names = [column.name for column in columns_after]
    tables = [reader_after.empty()]
    weights = [np.zeros(0, dtype=np.int64)]

    def add(
        reader: FileReader, files: Sequence[DataFile], others: Sequence[DataFile], weight: int
    ) -> None:
        """The rows of one side that the other one lacks."""
        beside = {file.uri: file for file in others}
        for file in files:
            if file.uri not in beside:
                rows = reader.read_live(file)
            elif len(deleted := np.setdiff1d(_deleted(beside[file.uri]), _deleted(file))):
                rows = reader.read_at(file, deleted)
            else:
                continue
            tables.append(rows.rename_columns(names))
            weights.append(np.full(len(rows), weight, dtype=np.int64))

    old, new = changed_files(before, after)
    add(reader_before, old, new, -1)
    add(reader_after, new, old, 1)
    total = np.concatenate(weights)
    table = pa.concat_tables(tables) if names else bare_rows(len(total))
    return Changes(table, total, "file_diff")


def changed_files(before: Snapshot, after: Snapshot) -> tuple[list[DataFile], list[DataFile]]:
    """The files of each snapshot in which the two differ. A file with other deletions is on both
    sides, and files of both may hold the same rows."""

    def alone(files: Sequence[DataFile], others: Sequence[DataFile]) -> list[DataFile]:
        deleted = {file.uri: _deleted(file) for file in others}
        return [
            file
            for file in files
            if file.uri not in deleted or not np.array_equal(_deleted(file), deleted[file.uri])
        ]

    return alone(before.files, after.files), alone(after.files, before.files)


def _deleted(file: DataFile) -> Positions:
    return _NONE if file.deleted is None else file.deleted


# The change feed, read from the files that the commits name. Law, by the Delta protocol: if a
# commit has change data, these files are its whole change; otherwise every row of an added file was
# inserted and every row of a removed one deleted. Values of partition columns come from the log.

CHANGE_TYPE = "_change_type"
"""Column of a change data file with the kind of change."""

_WEIGHTS = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}


def read_feed_files(
    entries: Sequence[LogEntry], after: Snapshot, columns: Sequence[ColumnName]
) -> Changes | None:
    """The rows that these commits inserted and deleted; None if a file is gone, or if the log or a
    file does not say what a file's rows are."""
    requested = [after.readable(name) for name in columns]
    parts = _parts(entries, after, requested)
    if parts is None:
        return None
    files = [file for _, file, _ in parts]
    rows = FileReader(after, requested, files)
    typed = FileReader(after, [*requested, Column(CHANGE_TYPE, STRING)], files)
    tables = [rows.empty()]
    weights = [np.zeros(0, dtype=np.int64)]
    ends: dict[TableVersion, int] = {}
    end = 0
    try:
        for version, file, weight in parts:
            table = (typed if weight is None else rows).read_live(file)
            changes = _row_weights(table) if weight is None else np.full(len(table), weight)
            if changes is None:
                return None
            tables.append(table.select(columns))
            weights.append(changes)
            end += len(changes)
            ends[version] = end
    except HistoryGoneError:
        return None
    total = np.concatenate(weights)
    table = pa.concat_tables(tables) if columns else bare_rows(len(total))
    return Changes(table, total, "change_feed", ends)


def _row_weights(table: pa.Table) -> Weights | None:
    """The weights of rows of change data; None if a row has no known kind."""
    kinds = pa.array(list(_WEIGHTS))
    result = pc.index_in(table.column(CHANGE_TYPE).cast(pa.string()), value_set=kinds)
    if result.null_count:
        return None
    weights: Weights = np.array(list(_WEIGHTS.values()), dtype=np.int64)[result.to_numpy()]
    return weights


def _parts(
    entries: Sequence[LogEntry], after: Snapshot, columns: Sequence[Column]
) -> list[tuple[TableVersion, DataFile, int | None]] | None:
    """The files with changed rows, and the weight of their rows; None if these have their own."""
    partitions = [column.name for column in columns if column.name in after.partition_columns]
    parts: list[tuple[TableVersion, DataFile, int | None]] = []
    for entry in entries:
        for name, body in entry.fed:
            # An entry that removes a file need not have its partition.
            values = body.get("partitionValues") or {}
            if body.get("deletionVector") is not None or any(p not in values for p in partitions):
                return None
            weight = {"add": 1, "remove": -1, "cdc": None}[name]
            file = logged_file(after.path, body["path"], body.get("size"))
            # The protocol reads an empty text as NULL.
            texts = {partition: values[partition] or None for partition in partitions}
            parts.append((entry.version, replace(file, partition_values=texts), weight))
    return parts


OWN_COLUMNS = frozenset({CHANGE_TYPE, "_commit_version", "_commit_timestamp"})
"""Columns the feed adds; a table with such a column cannot be read through it."""


_RECREATED_HINT = "the path now holds another table; run `impctl capture`"


class Changes(Struct, frozen=True, dict=True):
    """Weighted rows: above 0 inserted, below deleted; from the feed a row may be on both sides."""

    table: pa.Table
    weights: Weights
    method: str
    """`change_feed`, `file_diff`, or `none` if nothing changed, or rows only moved between
    files."""
    ends: Mapping[TableVersion, int] | None = None
    """The number of rows up to the end of each commit, oldest first, if known (change feed
    only)."""

    @cached_property
    def shared(self) -> Once:
        """Results shared by the queries that read these rows."""
        return Once()

    @property
    def rows(self) -> int:
        """Inserted and deleted rows, with multiplicity."""
        return self.shared.of(Changes, lambda: int(np.abs(self.weights).sum()))


# Law: the weighted rows are snapshot(until) minus snapshot(since) as a bag. A row that was removed
# and added again with the same counted columns may be omitted. The change feed is used if it was on
# for the whole range, the columns did not change, no deletion vector names rows, and copied rows
# are the same rows to Spark. Otherwise the files of both snapshots are compared. Otherwise the
# history is gone, by name.


def read_changes(
    source: DeltaSource,
    since: TableVersion,
    until: TableVersion,
    columns: Sequence[ColumnName],
    *,
    table_id: str | None = None,
    stored_mark: FilesMark | None = None,
    net_by: Sequence[ColumnName] | None = None,
) -> Changes:
    """The change from version `since` to version `until`, exactly `columns` in this order.
    `table_id` is the identity of the table when `since` was read, `stored_mark` that of its files.
    `net_by` are all columns whose change counts: when files are compared, rows unchanged in these
    are dropped."""
    _check_identity(source, since, until, table_id)
    entries = source.entries(since, until)
    may_change_metadata = entries is None or any(entry.may_change_metadata for entry in entries)
    after = source.snapshot(until)
    names = tuple(after.readable(name).name for name in columns)
    if since == until:
        return no_changes(after, names)
    start = cache(partial(source.snapshot, since))
    before = start() if may_change_metadata else None
    if before is not None:
        if before.table_id != after.table_id:
            raise recreated(source)
        check_same_columns(before.columns, since, after, names)
    is_proven = stored_mark is None or _is_proven(source, stored_mark, entries, after, start)
    if entries is not None and is_proven and _may_tell(entries, after, start):
        if all(entry.only_moves for entry in entries):
            changes: Changes | None = no_changes(after, names)
        else:
            changes = _from_change_feed(after, before, entries, names)
        if changes is not None:
            return _checked(changes, after, stored_mark)
    return _file_diff(start(), after, names, net_by)


def _file_diff(
    before: Snapshot,
    after: Snapshot,
    columns: Sequence[ColumnName],
    net_by: Sequence[ColumnName] | None,
) -> Changes:
    """The compared files. If all columns that count are read as before, rows that are unchanged in
    these are dropped: a row changed in another column of `net_by` is on both sides. Then the order
    is arbitrary, and weights may exceed 1."""
    if net_by is None or not _are_read_alike(before.columns, after, net_by):
        return read_file_diff(before, after, columns)
    names = {name.lower(): name for name in (*net_by, *columns)}
    diff = read_file_diff(before, after, list(names.values()))
    table, weights = netted(diff.table, diff.weights)
    table = table.select([after.readable(name).name for name in columns])
    return replace(diff, table=table, weights=weights)


def _are_read_alike(before: TableSchema, after: Snapshot, columns: Sequence[ColumnName]) -> bool:
    """Whether impctl can read these columns and they are those of an earlier schema."""
    try:
        check_same_columns(before, after.version, after, columns)
        for name in columns:
            after.readable(name)
    except (SchemaChangedError, TableError):
        return False
    return True


def _is_proven(
    source: DeltaSource,
    stored_mark: FilesMark,
    entries: Sequence[LogEntry] | None,
    after: Snapshot,
    start: Callable[[], Snapshot],
) -> bool:
    """Whether the log's entries lead from files of `stored_mark` to `after`. False if the files
    must be compared, such as when an entry was copied or lost a line. TableRecreatedError if the
    log leads to them from other files."""
    leads_there = None if entries is None else leads_to(stored_mark, entries, after)
    if leads_there:
        return True
    try:
        is_same = start().mark.digest == stored_mark.digest
    except HistoryGoneError:
        if leads_there is None:
            raise
        is_same = False
    if not is_same:
        raise other_history(source)
    return entries is not None and leads_there is None


def _checked(changes: Changes, after: Snapshot, stored_mark: FilesMark | None) -> Changes:
    """The change; LogDiffersError if the tables' statistics count other rows."""
    if stored_mark is None or stored_mark.rows is None or after.rows is None:
        return changes
    rows, counted = int(changes.weights.sum()), after.rows - stored_mark.rows
    if rows != counted:
        raise LogDiffersError(
            f"The log of table `{after.table}` contradicts itself: according to its entries up to "
            f"version {after.version}, the number of rows changed by {rows}, but according to its "
            f"files by {counted}",
            hint="an entry was altered or damaged; restore it from a copy, or run `impctl capture`",
        )
    return changes


def _may_tell(entries: Sequence[LogEntry], after: Snapshot, start: Callable[[], Snapshot]) -> bool:
    """Whether the log or the feed may give the change; entries are inspected only where one could.
    `start` is the snapshot before them."""
    if all(entry.only_moves for entry in entries):
        return has_faithful_copies(entries, after)
    return (
        after.has_change_feed
        and has_faithful_copies(entries, after)
        and has_distinct_files(entries, start)
    )


def check_same_columns(
    before: TableSchema, since: TableVersion, after: Snapshot, columns: Sequence[ColumnName]
) -> None:
    """Raise SchemaChangedError if one of these columns changed since `before`, of version
    `since`."""
    hint = "if the query uses the old column, correct it; then run `impctl capture`"
    where = f"of table `{after.table}` between versions {since} and {after.version}"
    for name in columns:
        new = after.column(name)
        old = before.schema.find(name)
        if old is None:
            raise SchemaChangedError(f"Column `{name}` {where} was added or renamed", hint=hint)
        if old.type != new.type:
            raise SchemaChangedError(
                f"The type of column `{name}` {where} changed from `{old.type}` to `{new.type}`",
                hint=hint,
            )
        if before.physical[old.name] != after.columns.physical[new.name]:
            raise SchemaChangedError(f"Column `{name}` {where} was replaced", hint=hint)


def check_same_order(before: Snapshot, after: Snapshot, columns: Sequence[ColumnName]) -> None:
    """Raise SchemaChangedError if the order of these columns has changed."""
    names = {name.lower() for name in columns}
    old, new = (
        [name.lower() for name in snapshot.schema.names if name.lower() in names]
        for snapshot in (before, after)
    )
    if old != new:
        raise SchemaChangedError(
            f"The order of columns of table `{after.table}` that the query reads has changed since "
            f"version {before.version}",
            hint="run `impctl capture`",
        )


def schema_change(before: Snapshot, after: Snapshot) -> SchemaChangedError | None:
    """What happened to the table's columns, whichever a query reads; None without change. `SELECT
    *` reads an added column, and no longer a dropped one."""
    old, new = before.columns, after.columns
    by_name = {old.physical[column.name]: column for column in old.schema}
    changes = []
    for column in new.schema:
        was = by_name.pop(new.physical[column.name], None)
        if was is None:
            changes.append(f"column `{column.name}` was added")
            continue
        if was.name != column.name:
            changes.append(f"column `{was.name}` was renamed to `{column.name}`")
        if was.type != column.type:
            changes.append(
                f"the type of column `{column.name}` changed from `{was.type}` to `{column.type}`"
            )
    changes = [*(f"column `{dropped.name}` was dropped" for dropped in by_name.values()), *changes]
    if not changes and old.schema.names != new.schema.names:
        changes = ["the order of columns changed"]
    if not changes:
        return None
    return SchemaChangedError(
        f"The schema of table `{after.table}` has changed since version {before.version}: "
        + ", ".join(changes),
        hint="if the query uses an old column, correct it; then run `impctl capture`",
    )


def _check_identity(
    source: DeltaSource, since: TableVersion, until: TableVersion, table_id: str | None
) -> None:
    if table_id is not None and table_id != source.table_id:
        raise recreated(source)
    newest = max(since, until)
    if newest > source.version:
        raise TableRecreatedError(
            f"Table `{source.name}` is at version {source.version}, which is older than version "
            f"{newest}",
            hint=_RECREATED_HINT,
        )


def no_changes(after: Snapshot, columns: Sequence[ColumnName]) -> Changes:
    """An empty change of these columns."""
    fields = [(name, arrow_type(after.column(name).type)) for name in columns]
    return Changes(pa.schema(fields).empty_table(), np.zeros(0, dtype=np.int64), "none")


def _from_change_feed(
    after: Snapshot,
    before: Snapshot | None,
    entries: Sequence[LogEntry],
    columns: tuple[ColumnName, ...],
) -> Changes | None:
    """The rows of the change feed, or None if it cannot be used."""
    if not after.has_change_feed or after.column_mapping is not None:
        return None
    if before is not None and not _is_steady(before, after, entries, columns):
        return None
    if any(name.lower() in OWN_COLUMNS for name in after.schema.names):
        return None
    if not has_complete_feed(after, entries, columns):
        return None
    return read_feed_files(entries, after, columns)


def _is_steady(
    before: Snapshot, after: Snapshot, entries: Sequence[LogEntry], columns: tuple[ColumnName, ...]
) -> bool:
    """Whether the feed was on and the columns were unchanged at every commit of the range."""
    if not before.has_change_feed or before.column_mapping is not None:
        return False
    if before.partition_columns != after.partition_columns:
        return False
    for action in (body for entry in entries for body in entry.bodies("metaData")):
        configuration = action.get("configuration") or {}
        if configuration.get(CHANGE_FEED, "false").lower() != "true":
            return False
        if configuration.get("delta.columnMapping.mode", "none").lower() != "none":
            return False
        if tuple(action["partitionColumns"]) != after.partition_columns:
            return False
        schema = read_schema(action["schemaString"], is_mapped=False)
        if not _are_read_alike(schema, after, columns):
            return False
    return True
