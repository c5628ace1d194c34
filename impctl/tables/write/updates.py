"""Update batches: each becomes one new version of a table. The one place that changes a table.

Law: a batch commits whole or not at all, its rows and values keep the columns' exact types, the
rows it takes are known before it is written, and the table's properties (the change feed among
them) stay as they are. A table that deltalake would damage is refused by name.
Out of scope: the workload file's spelling of a batch (`workload`), new tables
(`tables.write.create`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import Any, assert_never

import pyarrow as pa
from deltalake import CommitProperties, write_deltalake

from impctl.errors import ImpctlError, Location, RetryableError, UsageError
from impctl.tables.snapshot import Snapshot
from impctl.tables.source import DeltaSource, refresh
from impctl.tables.write.batch_identity import Stamp, identity_of, stamp_of, version_with
from impctl.tables.write.constraints import check_assignments, check_rows
from impctl.tables.write.failures import plain_failures
from impctl.tables.write.inserted_file import check_regular, file_to_insert
from impctl.tables.write.inserted_rows import rows_to_insert
from impctl.tables.write.matched_rows import MatchedRows, matched_rows
from impctl.tables.write.update_sql import assignment_texts
from impctl.tables.write.writable import check_rewritable, check_writable
from impctl.tables.write.written_table import WrittenTable
from impctl.types import ColumnName, TableName, TableVersion
from impctl.values import dataclass


class UpdateKind(StrEnum):
    """What a batch does."""

    INSERT = "insert"
    DELETE = "delete"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class UpdateRequest:
    """One batch: rows or a file to insert, a condition to delete by, or columns to set."""

    table: TableName
    kind: UpdateKind
    rows: tuple[Mapping[ColumnName, object], ...] | None = None
    file: str | None = None
    """Parquet or CSV file to insert, as a path that needs no further resolving."""
    where: str | None = None
    """SQL condition; None means every row."""
    assignments: Mapping[ColumnName, str] = field(default_factory=dict)
    places: Mapping[ColumnName, Location] = field(default_factory=dict)
    """Where assignments stand, for errors; not part of what the batch is."""
    name: str | None = None
    """Makes the batch one that its table takes once; without a name every commit is a new one."""
    again: bool = False
    """Commit the batch though it is in the table already."""


@dataclass(frozen=True, slots=True)
class AppliedUpdate:
    """What a batch did; `version` is the table's version afterwards.

    Of a batch that is in the table already it is the version that brought it in, and nothing else.
    """

    version: TableVersion
    inserted: int = 0
    deleted: int = 0
    updated: int = 0


@dataclass(frozen=True, slots=True)
class PreparedUpdate:
    """A batch that may be committed on top of `source`, in the form that deltalake takes."""

    table: WrittenTable
    source: DeltaSource
    """The table as it is before the batch."""
    kind: UpdateKind
    rows: pa.Table | None = None
    matched: MatchedRows | None = None
    """The rows that a delete or update takes."""
    assignments: Mapping[ColumnName, str] = field(default_factory=dict)
    identity: str | None = None
    in_version: TableVersion | None = None
    """The version that has brought the batch in already; nothing else is prepared then."""


def apply_update(source: DeltaSource, update: UpdateRequest) -> AppliedUpdate:
    """Commit the batch on top of the newest version.

    A delete or update that matches no row commits nothing. Raises as `prepare_update` does.
    """
    return commit_update(prepare_update(source, update))


def prepare_update(source: DeltaSource, update: UpdateRequest) -> PreparedUpdate:
    """As `prepare_batch`, on the newest version of a table that was opened whenever it was."""
    return prepare_batch(WrittenTable(refresh(source)), update)


def prepare_batch(table: WrittenTable, update: UpdateRequest) -> PreparedUpdate:
    """All that can be known of a batch without writing it.

    Raises UsageError or QueryError for a batch that makes no sense, UnsupportedError for one that
    deltalake cannot be trusted with.
    """
    if update.file is not None:
        check_regular(update.file)
    identity, version = _found(table, table.renew(), update)
    if version is not None and not table.is_proven():
        # Told of a log that was put in this one's place, it would be left out of that one.
        identity, version = _found(table, table.reopen(), update)
    if version is not None:
        newest = table.source
        return PreparedUpdate(table, newest, update.kind, identity=identity, in_version=version)
    return replace(_prepared(table, update), identity=identity)


def _found(
    table: WrittenTable, newest: DeltaSource, update: UpdateRequest
) -> tuple[str | None, TableVersion | None]:
    """The batch's identity, and the version that has brought it in, if it is to be left out."""
    identity = _identity(newest, update)
    if identity is None or update.again:
        return identity, None
    return identity, table.batches.version_with(newest, identity)


def _identity(source: DeltaSource, update: UpdateRequest) -> str | None:
    if update.name is None:
        return None
    rows = [sorted(row.items()) for row in update.rows or ()]
    content = (str(update.kind), rows, update.where, sorted(update.assignments.items()))
    return identity_of(source, update.name, content, update.file)


def _prepared(table: WrittenTable, update: UpdateRequest) -> PreparedUpdate:
    newest, snapshot = table.source, table.snapshot()
    check_writable(snapshot)
    if update.kind is UpdateKind.INSERT:
        rows = _rows(newest, snapshot, update)
        check_rows(snapshot, rows)
        return PreparedUpdate(table, newest, update.kind, rows)
    assignments: Mapping[ColumnName, str] = {}
    if update.kind is UpdateKind.UPDATE and not update.assignments:
        raise UsageError(
            f"An update of table `{newest.name}` sets no column",
            hint="give at least one column in `set`",
        )
    unsure = table.unsure_files()
    check_rewritable(snapshot, unsure)
    table.take_for_sound(unsure)
    if update.kind is UpdateKind.UPDATE:
        assignments = assignment_texts(snapshot, update.assignments, update.places)
        check_assignments(snapshot, update.assignments)
    matched = matched_rows(newest, snapshot, update.where)
    return PreparedUpdate(table, newest, update.kind, None, matched, assignments)


def commit_update(update: PreparedUpdate) -> AppliedUpdate:
    """Commit what was prepared; nothing where no row is to insert, delete or change."""
    source = update.source
    if update.in_version is not None:
        return AppliedUpdate(update.in_version)
    rows = len(update.rows or ()) if update.matched is None else update.matched.rows
    if not rows:
        return AppliedUpdate(source.version)
    # Of a table made anew at the path deltalake tells nothing, and writes into it.
    update.table.check_unmoved()
    has_vectors = bool(update.table.snapshot().deletions)
    stamp = None if update.identity is None else stamp_of(source, update.identity)
    try:
        with plain_failures(source):
            told = _commit(update, stamp)
        version = update.table.take_commit(stamp)
    except ImpctlError as error:
        result = _version_in_spite_of(update, error)
        if result is None:
            raise
        told, version = None, result  # the table sees the commit when it looks for the next one
    # Of files with deletion vectors deltalake counts rows that are gone, too.
    if not has_vectors:
        _check_told(update, rows, told, version)
    match update.kind:
        case UpdateKind.INSERT:
            return AppliedUpdate(version, inserted=rows)
        case UpdateKind.DELETE:
            return AppliedUpdate(version, deleted=rows)
        case UpdateKind.UPDATE:
            return AppliedUpdate(version, updated=rows)
        case _:
            assert_never(update.kind)


def _commit(update: PreparedUpdate, stamp: Stamp | None) -> int | None:
    """Commit; how many rows deltalake says it took, where it says so."""
    delta = update.source.delta
    properties = CommitProperties() if stamp is None else stamp.properties
    if update.rows is not None:
        write_deltalake(delta, update.rows, mode="append", commit_properties=properties)
        return None
    assert update.matched is not None
    metrics: Mapping[str, Any]
    if update.kind is UpdateKind.DELETE:
        metrics = delta.delete(update.matched.predicate, commit_properties=properties)
        told = metrics.get("num_deleted_rows")
    else:
        metrics = delta.update(
            updates=dict(update.assignments),
            predicate=update.matched.predicate,
            error_on_type_mismatch=True,
            commit_properties=properties,
        )
        told = metrics.get("num_updated_rows")
    return None if told is None else int(told)


def _version_in_spite_of(update: PreparedUpdate, error: ImpctlError) -> TableVersion | None:
    """The version of a batch whose commit is in, though what came after it failed."""
    if update.identity is None or isinstance(error, RetryableError) and error.code == "retryable":
        return None
    try:
        newest = refresh(update.source)
        version = version_with(newest, update.identity)
    except ImpctlError:
        return None
    return version if version is not None and version > update.source.version else None


def _check_told(update: PreparedUpdate, rows: int, told: int | None, version: TableVersion) -> None:
    """Tell of a batch that took other rows than it should; it can be undone."""
    source = update.source
    if told is None or told == rows:
        return
    is_delete = update.kind is UpdateKind.DELETE
    done = "deleted" if is_delete else "updated"
    raise ImpctlError(
        f"The {update.kind} of table `{source.name}` should affect {rows} rows, but deltalake "
        f"{done} {told}, in version {version}",
        hint=f"restore the table to version {source.version}, and report this bug",
        code="rows_deleted_differ" if is_delete else "rows_updated_differ",
    )


def _rows(source: DeltaSource, snapshot: Snapshot, update: UpdateRequest) -> pa.Table:
    """The rows of an insert, in the table's types."""
    if (update.rows is None) == (update.file is None):
        raise UsageError(
            f"An insert into table `{source.name}` needs either `rows` or `file`",
            hint="give one of the two",
        )
    if update.file is not None:
        return file_to_insert(snapshot, update.file)
    return rows_to_insert(snapshot, update.rows or ())
