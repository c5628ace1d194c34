"""What changed in a table between two versions, as rows with weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from impctl.data.schema import STRING, Column, Kind
from impctl.data.vector import Once
from impctl.errors import (
    HistoryGoneError,
    LogDiffersError,
    SchemaChangedError,
    TableError,
    TableRecreatedError,
)
from impctl.tables.files import DataFiles
from impctl.tables.log import (
    Action,
    FilesMark,
    LogCommits,
    files_mark,
    has_faithful_copies,
    is_of_rows,
    is_of_spark,
    leads_to,
    read_commits,
)
from impctl.tables.rows import FileReader, bare_rows
from impctl.tables.snapshot import (
    CHANGE_FEED,
    DataFile,
    Positions,
    Snapshot,
    TableSchema,
    arrow_type,
    logged_file,
    read_schema,
)
from impctl.tables.source import DeltaSource, other_history, recreated
from impctl.tables.storage import file_uri

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from impctl.types import ColumnName, TableVersion

# The net change. Law: the sum of the weighted rows stays the same, and no row has both signs. Equal
# rows are equal bit by bit, so -0.0 differs from 0.0, and no expression can tell the difference.
# Cost: one grouping of rows that were just read.

# Law: the weighted rows are snapshot(until) minus snapshot(since) as a bag. A row that was removed
# and added again with the same counted columns may be omitted. The change feed is used if it was on
# for the whole range, the columns did not change, no deletion vector names rows, and copied rows
# are the same rows to Spark. Otherwise the files of both snapshots are compared. Otherwise the
# history is gone, by name.

Weights = npt.NDArray[np.int64]
_Versions = npt.NDArray[np.int64]

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


def has_lone_doubles(footer: pq.FileMetaData, doubles: Iterable[ColumnName]) -> bool:
    """Whether one of these columns has a single value in a row group, by its statistics."""
    wanted = set(doubles)
    return any(
        stated.has_min_max and stated.min == stated.max
        for group in map(footer.row_group, range(footer.num_row_groups))
        for chunk in map(group.column, range(group.num_columns))
        if chunk.path_in_schema in wanted and (stated := chunk.statistics) is not None
    )


def fractional_columns(after: Snapshot, columns: Iterable[ColumnName]) -> list[ColumnName]:
    """The columns that may hold NaN."""
    return [name for name in columns if after.column(name).type.is_fractional]


def may_have_hidden_nan(
    after: Snapshot, removed: Sequence[str], doubles: Sequence[ColumnName]
) -> bool:
    """Whether a removed file may have hidden NaN; an unreadable one may."""
    opened = DataFiles(after)
    footers = (opened.try_footer(logged_file(after.path, path)) for path in removed)
    return bool(doubles) and any(
        footer is None or has_lone_doubles(footer, doubles) for footer in footers
    )


# Whether a feed counts a file twice. Law: without change data, a feed takes every row of an added
# file as inserted and every row of a removed one as deleted. That is right only if the added file
# was not in the table and the removed one was; an entry for a present file replaces the older
# entry. Commits of Spark and operations of deltalake are trusted; for others the files are looked
# up. Cost: the snapshot at the start, if there are others.

_OF_DELTALAKE = "delta-rs:"


def has_distinct_files(commits: LogCommits, start: Callable[[], Snapshot]) -> bool:
    """Whether a feed counts no file of these commits twice; `start` is the snapshot before them."""
    if all(map(_is_sure, commits.by_commit())):
        return True
    before = start()
    live = {file.uri for file in before.files}
    for actions in commits.by_commit():
        added = _uris(before.path, actions, "add")
        removed = _uris(before.path, actions, "remove")
        if not _is_sure(actions) and not _is_plain(before.path, actions, live):
            return False
        live = (live - set(removed)) | set(added)
    return True


def _is_sure(actions: Sequence[Action]) -> bool:
    """Whether a commit has change data, moves no file, or names such an operation as its writer."""
    if any(name == "cdc" for name, _ in actions) or not any(map(is_of_rows, actions)):
        return True
    return is_of_spark(actions) or any(
        name == "commitInfo"
        and str(body.get("engineInfo")).startswith(_OF_DELTALAKE)
        and body.get("operationMetrics")
        for name, body in actions
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


def _uris(path: str, actions: Sequence[Action], wanted: str) -> list[str]:
    return [file_uri(path, body["path"]) for name, body in actions if name == wanted]


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


def has_complete_feed(after: Snapshot, commits: LogCommits, columns: Sequence[ColumnName]) -> bool:
    """Return False if change data by delta-rs may lack rows, or values in these columns."""
    doubles = fractional_columns(after, columns)
    for actions in commits.by_commit():
        paths = [body["path"] for name, body in actions if name == "cdc"]
        info: Mapping[str, Any] = next((body for name, body in actions if name == "commitInfo"), {})
        if not paths or not str(info.get("engineInfo") or "").startswith(_WRITER):
            continue
        removed = [body["path"] for name, body in actions if name == "remove"]
        if may_have_hidden_nan(after, removed, doubles):
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


class DiffRows(Struct, frozen=True):
    """The requested columns and a weight per row."""

    table: pa.Table
    weights: Weights


def read_file_diff(before: Snapshot, after: Snapshot, columns: Sequence[ColumnName]) -> DiffRows:
    """The inserted and deleted rows between two snapshots. HistoryGoneError if a file is gone."""
    old = {file.uri: file for file in before.files}
    new = {file.uri: file for file in after.files}
    columns_after = [after.readable(name) for name in columns]
    reader_before = FileReader(before, [before.readable(name) for name in columns], before.files)
    reader_after = FileReader(after, columns_after, after.files)
    names = [column.name for column in columns_after]
    tables = [reader_after.empty()]
    weights = [np.zeros(0, dtype=np.int64)]

    def add(rows: pa.Table, weight: int) -> None:
        tables.append(rows.rename_columns(names))
        weights.append(np.full(len(rows), weight, dtype=np.int64))

    for uri, file in old.items():
        if uri not in new:
            add(reader_before.read_live(file), -1)
    for uri, file in new.items():
        if uri not in old:
            add(reader_after.read_live(file), 1)
            continue
        gone_before, gone_after = _deleted(old[uri]), _deleted(file)
        if len(removed := np.setdiff1d(gone_after, gone_before)):
            add(reader_before.read_at(old[uri], removed), -1)
        if len(restored := np.setdiff1d(gone_before, gone_after)):
            add(reader_after.read_at(file, restored), 1)
    total = np.concatenate(weights)
    return DiffRows(pa.concat_tables(tables) if names else bare_rows(len(total)), total)


class ChangedFiles(Struct, frozen=True):
    """Files with removed live rows and with added live rows; both may hold the same rows."""

    went: tuple[DataFile, ...]
    came: tuple[DataFile, ...]


def changed_files(before: Snapshot, after: Snapshot) -> ChangedFiles:
    """The files in which two snapshots differ; one with other deletions is on both sides."""
    old = {file.uri: file for file in before.files}
    new = {file.uri: file for file in after.files}

    def alone(files: dict[str, DataFile], others: dict[str, DataFile]) -> tuple[DataFile, ...]:
        return tuple(
            file
            for uri, file in files.items()
            if uri not in others or not np.array_equal(_deleted(file), _deleted(others[uri]))
        )

    return ChangedFiles(alone(old, new), alone(new, old))


def _deleted(file: DataFile) -> Positions:
    return _NONE if file.deleted is None else file.deleted


# The change feed, read from the files that the commits name. Law, by the Delta protocol: if a
# commit has change data, these files are its whole change; otherwise every row of an added file was
# inserted and every row of a removed one deleted. Values of partition columns come from the log.

CHANGE_TYPE = "_change_type"
"""Column of a change data file with the kind of change."""

_WEIGHTS = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}


class FeedRows(Struct, frozen=True):
    """The requested columns, and per row a weight and the version of its commit."""

    table: pa.Table
    weights: Weights
    versions: _Versions


class _FeedPart(Struct, frozen=True):
    """A file with changed rows; `weight` is None if its rows have their own."""

    file: DataFile
    weight: int | None
    version: TableVersion


def read_feed_files(
    commits: LogCommits, since: TableVersion, after: Snapshot, columns: Sequence[ColumnName]
) -> FeedRows | None:
    """The rows inserted and deleted after `since`; None if a file is gone, or if the log or a file
    does not say what a file's rows are."""
    wanted = [after.readable(name) for name in columns]
    parts = _parts(commits, since, after, wanted)
    if parts is None:
        return None
    files = [part.file for part in parts]
    rows = FileReader(after, wanted, files)
    typed = FileReader(after, [*wanted, Column(CHANGE_TYPE, STRING)], files)
    tables = [rows.empty()]
    weights = [np.zeros(0, dtype=np.int64)]
    try:
        for part in parts:
            reader = typed if part.weight is None else rows
            table = reader.read_live(part.file)
            weight = part.weight
            changes = _row_weights(table) if weight is None else np.full(len(table), weight)
            if changes is None:
                return None
            tables.append(table.select(columns))
            weights.append(changes)
    except HistoryGoneError:
        return None
    versions = np.repeat([part.version for part in parts], [len(table) for table in weights[1:]])
    total = np.concatenate(weights)
    table = pa.concat_tables(tables) if columns else bare_rows(len(total))
    return FeedRows(table, total, versions.astype(np.int64))


def _row_weights(table: pa.Table) -> Weights | None:
    """The weights of rows of change data; None if a row has no known kind."""
    kinds = pa.array(list(_WEIGHTS))
    result = pc.index_in(table.column(CHANGE_TYPE).cast(pa.string()), value_set=kinds)
    if result.null_count:
        return None
    weights: Weights = np.array(list(_WEIGHTS.values()), dtype=np.int64)[result.to_numpy()]
    return weights


def _parts(
    commits: LogCommits, since: TableVersion, after: Snapshot, columns: Sequence[Column]
) -> list[_FeedPart] | None:
    partitions = [column.name for column in columns if column.name in after.partition_columns]
    parts: list[_FeedPart] = []
    for version, actions in enumerate(commits.fed(), start=since + 1):
        for name, body in actions:
            # An entry that removes a file need not have its partition.
            values = body.get("partitionValues") or {}
            if body.get("deletionVector") is not None or any(p not in values for p in partitions):
                return None
            weight = {"add": 1, "remove": -1, "cdc": None}[name]
            file = logged_file(after.path, body["path"], body.get("size"))
            # The protocol reads an empty text as NULL.
            texts = {partition: values[partition] or None for partition in partitions}
            parts.append(_FeedPart(replace(file, partition_values=texts), weight, version))
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
    commit_versions: _Versions | None = None
    """Version of each row's commit, if requested and known (change feed only)."""
    ending: Snapshot | None = None
    """The columns at the end of the range; its files may still be those of the start."""

    @cached_property
    def shared(self) -> Once:
        """Results shared by the queries that read these rows."""
        return Once()

    @property
    def rows(self) -> int:
        """Inserted and deleted rows, with multiplicity."""
        return self.shared.of(Changes, lambda: int(np.abs(self.weights).sum()))


def read_changes(
    source: DeltaSource,
    since: TableVersion,
    until: TableVersion,
    columns: Sequence[ColumnName],
    *,
    table_id: str | None = None,
    with_versions: bool = False,
    known: Snapshot | None = None,
    commits: LogCommits | None = None,
    held: FilesMark | None = None,
    net_by: Sequence[ColumnName] | None = None,
) -> Changes:
    """The change from version `since` to version `until`, exactly `columns` in this order. `known`
    is the snapshot of `since`, if available: without metadata changes no snapshot is read then.
    `commits` are those of the range (`read_commits`), if available. `table_id` is the identity of
    the table when `since` was read, `held` the mark of its files. `net_by` are all columns whose
    change counts: when files are compared, rows unchanged in these are dropped."""
    _check_identity(source, since, until, table_id)
    if commits is None and since != until:
        commits = read_commits(source, since, until)
    if known is not None and not (known.version == since and known.table_id == source.table_id):
        known = None
    after = _ending(source, until, known, commits, columns)
    wanted = tuple(after.readable(name).name for name in columns)
    if since == until:
        return no_changes(after, wanted)
    before: Snapshot | None = None

    def start() -> Snapshot:
        # The files of `known` may be those of an older version.
        return source.snapshot(since) if before is None or known is not None else before

    if commits is None or commits.may_change_metadata:
        before = source.snapshot(since) if known is None else known
        if before.table_id != after.table_id:
            raise recreated(source)
        check_same_columns(before.columns, since, after, wanted)
    is_proven = held is None or _is_proven(source, held, commits, after, start)
    if commits is not None and is_proven and _may_tell(commits, after, start):
        if commits.only_move_rows:
            changes: Changes | None = no_changes(after, wanted)
        else:
            changes = _from_change_feed(since, after, before, commits, wanted, with_versions)
        if changes is not None:
            return _checked(replace(changes, ending=after), held)
    return _file_diff(start(), source.snapshot(until), wanted, net_by)


def _file_diff(
    before: Snapshot,
    after: Snapshot,
    columns: Sequence[ColumnName],
    net_by: Sequence[ColumnName] | None,
) -> Changes:
    """The compared files. If all columns that count are read as before, rows that are unchanged in
    these are dropped: a row changed in another column of `net_by` is on both sides. Then the order
    is arbitrary, and weights may exceed 1."""
    if net_by is None or not _are_read_alike(before, after, net_by):
        diff = read_file_diff(before, after, columns)
        return Changes(diff.table, diff.weights, "file_diff", ending=after)
    wanted = {name.lower(): name for name in (*net_by, *columns)}
    diff = read_file_diff(before, after, list(wanted.values()))
    table, weights = netted(diff.table, diff.weights)
    table = table.select([after.readable(name).name for name in columns])
    return Changes(table, weights, "file_diff", ending=after)


def _are_read_alike(before: Snapshot, after: Snapshot, columns: Sequence[ColumnName]) -> bool:
    """Whether impctl can read these columns and they are unchanged."""
    try:
        check_same_columns(before.columns, before.version, after, columns)
        for name in columns:
            after.readable(name)
    except (SchemaChangedError, TableError):
        return False
    return True


def _is_proven(
    source: DeltaSource,
    held: FilesMark,
    commits: LogCommits | None,
    after: Snapshot,
    start: Callable[[], Snapshot],
) -> bool:
    """Whether the log's entries lead from the files `held` to those of `after`. False if the files
    must be compared, such as when an entry was copied or lost a line. TableRecreatedError if the
    log leads to them from other files."""
    leads_there = None if commits is None else leads_to(held, commits, after)
    if leads_there:
        return True
    try:
        is_same = files_mark(start()).digest == held.digest
    except HistoryGoneError:
        if leads_there is None:
            raise
        is_same = False
    if not is_same:
        raise other_history(source)
    return commits is not None and leads_there is None


def _checked(changes: Changes, held: FilesMark | None) -> Changes:
    """The change; LogDiffersError if the tables' statistics count other rows."""
    after = changes.ending
    if held is None or held.rows is None or after is None or after.rows is None:
        return changes
    rows, counted = int(changes.weights.sum()), after.rows - held.rows
    if rows != counted:
        raise LogDiffersError(
            f"The log of table `{after.table}` contradicts itself: according to its entries up to "
            f"version {after.version}, the number of rows changed by {rows}, but according to its "
            f"files by {counted}",
            hint="an entry was altered or damaged; restore it from a copy, or run `impctl capture`",
        )
    return changes


def _may_tell(commits: LogCommits, after: Snapshot, start: Callable[[], Snapshot]) -> bool:
    """Whether the log or the feed may give the change; entries are inspected only where one could.
    `start` is the snapshot before them."""
    if commits.only_move_rows:
        return has_faithful_copies(commits, after)
    return (
        after.has_change_feed
        and has_faithful_copies(commits, after)
        and has_distinct_files(commits, start)
    )


def _ending(
    source: DeltaSource,
    until: TableVersion,
    known: Snapshot | None,
    commits: LogCommits | None,
    columns: Sequence[ColumnName],
) -> Snapshot:
    """The columns at the end: those of `known` if no commit can have changed them."""
    if known is None or commits is None or commits.may_change_metadata:
        return source.snapshot(until)
    # A file alone can make a column unreadable, by the format of times in the log.
    read = [known.column(name) for name in columns]
    if any(c.type.kind is Kind.TIMESTAMP and c.name in known.partition_columns for c in read):
        return source.snapshot(until)
    return replace(known, version=until)


def check_same_columns(
    before: TableSchema, since: TableVersion, after: Snapshot, columns: Sequence[ColumnName]
) -> None:
    """Raise SchemaChangedError if one of these columns changed since `before`, of version
    `since`."""
    hint = "if the query uses the old column, correct it; then run `impctl capture`"
    place = f"of table `{after.table}` between versions {since} and {after.version}"
    for name in columns:
        new = after.column(name)
        old = before.schema.find(name)
        if old is None:
            raise SchemaChangedError(f"Column `{name}` {place} was added or renamed", hint=hint)
        if old.type != new.type:
            raise SchemaChangedError(
                f"The type of column `{name}` {place} changed from `{old.type}` to `{new.type}`",
                hint=hint,
            )
        if before.physical[old.name] != after.columns.physical[new.name]:
            raise SchemaChangedError(f"Column `{name}` {place} was replaced", hint=hint)


def check_same_order(before: Snapshot, after: Snapshot, columns: Sequence[ColumnName]) -> None:
    """Raise SchemaChangedError if the order of these columns has changed."""
    wanted = {name.lower() for name in columns}
    old, new = (
        [name.lower() for name in snapshot.schema.names if name.lower() in wanted]
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
    changes = [*(f"column `{gone.name}` was dropped" for gone in by_name.values()), *changes]
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
    since: TableVersion,
    after: Snapshot,
    before: Snapshot | None,
    commits: LogCommits,
    columns: tuple[ColumnName, ...],
    with_versions: bool,
) -> Changes | None:
    """The rows of the change feed, or None if it cannot be used."""
    if not after.has_change_feed or after.column_mapping is not None:
        return None
    if before is not None and not _is_steady(before, after, commits, columns):
        return None
    if any(name.lower() in OWN_COLUMNS for name in after.schema.names):
        return None
    if not has_complete_feed(after, commits, columns):
        return None
    feed = read_feed_files(commits, since, after, columns)
    if feed is None:
        return None
    versions = feed.versions if with_versions else None
    return Changes(feed.table, feed.weights, "change_feed", versions)


def _is_steady(
    before: Snapshot, after: Snapshot, commits: LogCommits, columns: tuple[ColumnName, ...]
) -> bool:
    """Whether the feed was on and the columns were unchanged at every commit of the range."""
    if not before.has_change_feed or before.column_mapping is not None:
        return False
    if before.partition_columns != after.partition_columns:
        return False
    for action in commits.metadata():
        configuration = action.get("configuration") or {}
        if configuration.get(CHANGE_FEED, "false").lower() != "true":
            return False
        if configuration.get("delta.columnMapping.mode", "none").lower() != "none":
            return False
        if tuple(action["partitionColumns"]) != after.partition_columns:
            return False
        if not _same(read_schema(action["schemaString"], is_mapped=False), after.columns, columns):
            return False
    return True


def _same(one: TableSchema, other: TableSchema, columns: tuple[ColumnName, ...]) -> bool:
    return all(
        (result := one.schema.find(name)) is not None
        and (wanted := other.schema.find(name)) is not None
        and (result.name, result.type) == (wanted.name, wanted.type)
        for name in columns
    )
