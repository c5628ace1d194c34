"""What changed in a table between two versions, as rows with weights.

Law: the weighted rows are snapshot(until) minus snapshot(since) as a bag. A row that went and came
again in all of the columns that count may be left out. The change feed serves where it is on for
the whole range, nothing the query reads was altered within it, no deletion vector tells rows, and
rows that were copied from file to file are the same rows to Spark; else the two snapshots' files
are compared; else the history is gone, by name.
Out of scope: operators over changes (`engine`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from impctl.data.schema import TEMPORAL, Kind
from impctl.data.vector import Once
from impctl.errors import (
    HistoryGoneError,
    LogDiffersError,
    SchemaChangedError,
    TableError,
    TableRecreatedError,
)
from impctl.tables.arrow_types import arrow_type
from impctl.tables.change.arriving_files import files_come_and_go_once
from impctl.tables.change.copies import has_faithful_copies
from impctl.tables.change.feed import OWN_COLUMNS, is_misread, read_change_feed
from impctl.tables.change.file_diff import read_file_diff, read_net_diff
from impctl.tables.change.files_mark import FilesMark, files_mark, is_reached
from impctl.tables.change.whole_feed import is_fed_whole
from impctl.tables.commits import Commits, read_commits
from impctl.tables.schema import TableSchema, read_schema
from impctl.tables.snapshot import CHANGE_FEED, Snapshot
from impctl.tables.source import DeltaSource, other_history, recreated
from impctl.types import ColumnName, TableVersion
from impctl.values import dataclass

Weights = npt.NDArray[np.int64]

_RECREATED_HINT = "the path now holds another table; run `impctl capture`"


@dataclass(frozen=True, slots=True)
class Changes:
    """Weighted rows: above 0 inserted, below deleted; by the feed a row may be on both sides."""

    table: pa.Table
    weights: Weights
    method: str
    """`change_feed`, `file_diff`, or `none` where rows only moved between files, or nothing did."""
    commit_versions: npt.NDArray[np.int64] | None = None
    """Version of each row's commit, where asked for and known (change feed only)."""
    ending: Snapshot | None = None
    """The columns at the end of the range; its files may still be those of the start."""
    shared: Once = field(default_factory=Once, init=False, compare=False, repr=False)
    """What the queries that read these rows find alike of them."""

    @property
    def rows(self) -> int:
        """Inserted and deleted rows, each as often as it was."""
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
    commits: Commits | None = None,
    held: FilesMark | None = None,
    net_by: Sequence[ColumnName] | None = None,
) -> Changes:
    """The change from version `since` to version `until`, exactly `columns` in this order.

    `known` is the snapshot of `since` if it is at hand: a process that goes on from change to
    change then reads no snapshot at all, as long as no commit touches the metadata. `commits` are
    those of the range (`read_commits`) if they are at hand. `table_id` is the identity the table
    had when `since` was read, `held` its files' mark. `net_by` are all columns whose change counts:
    where files are compared, a row that is the same in these is left out.
    """
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
            told: Changes | None = no_changes(after, wanted)
        else:
            told = _from_change_feed(source, since, after, before, commits, wanted, with_versions)
        if told is not None:
            return _checked(replace(told, ending=after), held)
    return _file_diff(start(), source.snapshot(until), wanted, net_by)


def _file_diff(
    before: Snapshot,
    after: Snapshot,
    columns: Sequence[ColumnName],
    net_by: Sequence[ColumnName] | None,
) -> Changes:
    """The files compared; the net of it where all columns that count are read as they were."""
    if net_by is not None and _are_read_alike(before, after, net_by):
        diff = read_net_diff(before, after, columns, net_by)
    else:
        diff = read_file_diff(before, after, columns)
    return Changes(diff.table, diff.weights, "file_diff", ending=after)


def _are_read_alike(before: Snapshot, after: Snapshot, columns: Sequence[ColumnName]) -> bool:
    """Whether impctl reads these columns, and they are what they were."""
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
    commits: Commits | None,
    after: Snapshot,
    start: Callable[[], Snapshot],
) -> bool:
    """Whether the log's entries are what led from the files `held` to those of `after`.

    False where only the files can be compared, as where an entry was copied or lost a line.
    TableRecreatedError where the log leads to them from other files than these.
    """
    is_told = None if commits is None else is_reached(held, commits, after)
    if is_told:
        return True
    try:
        is_same = files_mark(start()).digest == held.digest
    except HistoryGoneError:
        if is_told is None:
            raise
        is_same = False
    if not is_same:
        raise other_history(source)
    return commits is not None and is_told is None


def _checked(changes: Changes, held: FilesMark | None) -> Changes:
    """The change; LogDiffersError where the tables' statistics count other rows than it has."""
    after = changes.ending
    if held is None or held.rows is None or after is None or after.rows is None:
        return changes
    told, counted = int(changes.weights.sum()), after.rows - held.rows
    if told != counted:
        raise LogDiffersError(
            f"The log of table `{after.table}` contradicts itself: according to its entries up to "
            f"version {after.version}, the number of rows changed by {told}, but according to its "
            f"files by {counted}",
            hint="an entry was altered or damaged; restore it from a copy, or run `impctl capture`",
        )
    return changes


def _may_tell(commits: Commits, after: Snapshot, start: Callable[[], Snapshot]) -> bool:
    """Whether the log or the feed may tell the change; entries are looked at only where one could.

    `start` is the snapshot before them.
    """
    if commits.only_move_rows:
        return has_faithful_copies(commits, after)
    return (
        after.has_change_feed
        and has_faithful_copies(commits, after)
        and files_come_and_go_once(commits, start)
    )


def _ending(
    source: DeltaSource,
    until: TableVersion,
    known: Snapshot | None,
    commits: Commits | None,
    columns: Sequence[ColumnName],
) -> Snapshot:
    """The columns at the end: those of `known` where no commit can have changed them."""
    if known is None or commits is None or commits.may_change_metadata:
        return source.snapshot(until)
    if _has_moments_in_log(known, columns):
        return source.snapshot(until)
    return replace(known, version=until)


def _has_moments_in_log(known: Snapshot, columns: Sequence[ColumnName]) -> bool:
    """Whether a file alone can make a column unreadable: by how the log writes its times."""
    result = [known.column(name) for name in columns]
    return any(c.type.kind is Kind.TIMESTAMP and c.name in known.partition_columns for c in result)


def check_same_columns(
    before: TableSchema, since: TableVersion, after: Snapshot, columns: Sequence[ColumnName]
) -> None:
    """Raise SchemaChangedError for a column that is not what it was; other columns may change.

    `before` are the columns at version `since`.
    """
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
    """Raise SchemaChangedError where these columns stand in another order than they did."""
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
    """What happened to the table's columns, whichever a query reads; None where nothing did.

    `SELECT *` reads a column that was added, and no longer one that was dropped.
    """
    old, new = before.columns, after.columns
    at = {old.physical[column.name]: column for column in old.schema}
    changes = []
    for column in new.schema:
        was = at.pop(new.physical[column.name], None)
        if was is None:
            changes.append(f"column `{column.name}` was added")
            continue
        if was.name != column.name:
            changes.append(f"column `{was.name}` was renamed to `{column.name}`")
        if was.type != column.type:
            changes.append(
                f"the type of column `{column.name}` changed from `{was.type}` to `{column.type}`"
            )
    changes = [*(f"column `{gone.name}` was dropped" for gone in at.values()), *changes]
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
    """No row, in these columns."""
    fields = [(name, arrow_type(after.column(name).type)) for name in columns]
    return Changes(pa.schema(fields).empty_table(), np.zeros(0, dtype=np.int64), "none")


def _from_change_feed(
    source: DeltaSource,
    since: TableVersion,
    after: Snapshot,
    before: Snapshot | None,
    commits: Commits,
    columns: tuple[ColumnName, ...],
    with_versions: bool,
) -> Changes | None:
    """The change feed's rows, or None where it may not or cannot serve."""
    if not after.has_change_feed:
        return None
    if after.column_mapping is not None:
        return None
    if before is not None and not _is_steady(before, after, commits, columns):
        return None
    if commits.is_fed_by_vectors:
        # deltalake takes the rows that a vector names for those that the file has left.
        return None
    if any(name.lower() in OWN_COLUMNS for name in after.schema.names):
        return None
    kinds = {after.column(name).type.kind for name in columns}
    if kinds & TEMPORAL and is_misread(after, commits):
        return None
    if not is_fed_whole(after, commits, columns):
        return None
    feed = read_change_feed(source, since, after, commits, columns, with_versions=with_versions)
    return None if feed is None else Changes(feed.table, feed.weights, "change_feed", feed.versions)


def _is_steady(
    before: Snapshot, after: Snapshot, commits: Commits, columns: tuple[ColumnName, ...]
) -> bool:
    """Whether the feed was on and the columns were the same at every commit of the range."""
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
