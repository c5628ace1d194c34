"""Update batches: each becomes one new version of a table. The one place that changes a table.

Law: a batch commits whole or not at all, its rows and values keep the columns' exact types, and
the table's properties (the change feed among them) stay as they are. A table that deltalake would
damage is refused by name.
Out of scope: the workload file's spelling of a batch (`workload`), new tables (`tables.create`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, assert_never

import pyarrow as pa
from deltalake import write_deltalake
from deltalake.exceptions import CommitFailedError

from impctl.aliases import ColumnName, TableName, TableVersion
from impctl.errors import (
    EvaluationError,
    ImpctlError,
    RetryableError,
    StorageError,
    TableError,
    UsageError,
)
from impctl.tables.constraints import check_assignments, check_rows
from impctl.tables.failures import READ_FAILURES, failure_text
from impctl.tables.inserted_file import file_to_insert
from impctl.tables.inserted_rows import rows_to_insert
from impctl.tables.snapshot import Snapshot
from impctl.tables.source import DeltaSource, recreated, refresh
from impctl.tables.update_sql import assignment_texts, where_text
from impctl.tables.whole_files import rows_taken
from impctl.tables.writable import check_rewritable, check_writable

_ROW_FAILURES = (
    "cast error",
    "cannot cast",
    "can't cast",
    "out of range",
    "too large to store",
    "too small to store",
    "division by zero",
    "divide by zero",
    "dividebyzero",
    "overflow",
)
_CONSTRAINT_FAILURES = ("constraint", "invariant", "append-only", "validation check")


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


@dataclass(frozen=True, slots=True)
class AppliedUpdate:
    """What a batch did; `version` is the table's version afterwards."""

    version: TableVersion
    inserted: int = 0
    deleted: int = 0
    updated: int = 0


@dataclass(frozen=True, slots=True)
class PreparedUpdate:
    """A batch that may be committed on top of `source`, in the form that deltalake takes."""

    source: DeltaSource
    kind: UpdateKind
    rows: pa.Table | None = None
    predicate: str | None = None
    assignments: Mapping[ColumnName, str] = field(default_factory=dict)
    taken: int | None = None
    """Rows that a delete must delete, where the log tells it."""


def apply_update(source: DeltaSource, update: UpdateRequest) -> AppliedUpdate:
    """Commit the batch on top of the newest version.

    A delete or update that matches no row commits nothing. Raises as `prepare_update` does.
    """
    return commit_update(prepare_update(source, update))


def prepare_update(source: DeltaSource, update: UpdateRequest) -> PreparedUpdate:
    """All that can be known of a batch without writing it.

    Raises UsageError or QueryError for a batch that makes no sense, UnsupportedError for one that
    deltalake cannot be trusted with.
    """
    newest = refresh(source)
    snapshot = newest.snapshot()
    check_writable(snapshot)
    if update.kind is UpdateKind.INSERT:
        rows = _rows(newest, snapshot, update)
        check_rows(snapshot, rows)
        return PreparedUpdate(newest, update.kind, rows)
    assignments: Mapping[ColumnName, str] = {}
    if update.kind is UpdateKind.UPDATE and not update.assignments:
        raise UsageError(
            f"An update of table `{newest.name}` sets no column", hint="give at least one in `set`"
        )
    check_rewritable(snapshot)
    if update.kind is UpdateKind.UPDATE:
        assignments = assignment_texts(snapshot, update.assignments)
        check_assignments(snapshot, update.assignments)
    predicate = None if update.where is None else where_text(snapshot, update.where)
    taken = rows_taken(snapshot, update.where) if update.kind is UpdateKind.DELETE else None
    return PreparedUpdate(newest, update.kind, None, predicate, assignments, taken)


def commit_update(update: PreparedUpdate) -> AppliedUpdate:
    """Commit what was prepared; nothing where there is no row to insert."""
    source = update.source
    match update.kind:
        case UpdateKind.INSERT:
            assert update.rows is not None
            if not len(update.rows):
                return AppliedUpdate(source.version)
            # Rows alone fit a table made anew at the path, too; deltalake writes them there.
            if refresh(source).table_id != source.table_id:
                raise recreated(source)
            with _plain_failures(source):
                write_deltalake(source.delta, update.rows, mode="append")
            return AppliedUpdate(source.delta.version(), inserted=len(update.rows))
        case UpdateKind.DELETE:
            with _plain_failures(source):
                metrics = source.delta.delete(update.predicate)
            deleted = _count(metrics, "num_deleted_rows")
            _check_taken(update, deleted)
            return AppliedUpdate(source.delta.version(), deleted=deleted)
        case UpdateKind.UPDATE:
            with _plain_failures(source):
                metrics = source.delta.update(
                    updates=dict(update.assignments),
                    predicate=update.predicate,
                    error_on_type_mismatch=True,
                )
            updated = _count(metrics, "num_updated_rows")
            return AppliedUpdate(source.delta.version(), updated=updated)
        case _:
            assert_never(update.kind)


def _check_taken(update: PreparedUpdate, deleted: int) -> None:
    """Tell of a delete that took other rows than the log said it would; it can be undone."""
    source = update.source
    if update.taken is None or update.taken == deleted:
        return
    raise ImpctlError(
        f"The delete from table `{source.name}` should take {update.taken} rows, but deltalake"
        f" deleted {deleted}",
        hint=f"restore the table to version {source.version}, and report it",
        code="rows_deleted_differ",
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


def _count(metrics: Mapping[str, Any], name: str) -> int:
    return int(metrics[name])


@contextmanager
def _plain_failures(source: DeltaSource) -> Iterator[None]:
    """Turns what deltalake raises while writing into impctl's errors."""
    try:
        yield
    except Exception as error:
        # deltalake raises bare Exception for a value that does not fit; nothing narrower to name.
        if type(error) is not Exception and not isinstance(error, READ_FAILURES):
            raise
        raise _write_failure(source, error) from error


def _moved_version(source: DeltaSource) -> TableVersion | None:
    """The table's newest version, where it is not the one that the batch was prepared for."""
    try:
        newest = refresh(source).version
    except ImpctlError:
        return None
    return newest if newest != source.version else None


def _write_failure(source: DeltaSource, error: Exception) -> ImpctlError:
    text = failure_text(error)
    lowered = text.lower()
    moved = None if isinstance(error, CommitFailedError) else _moved_version(source)
    if moved is not None:
        # Not to be retried by machines: an insert would be written twice.
        return ImpctlError(
            f"Writing to table `{source.name}` failed, but the table is at version {moved} now,"
            f" after {source.version}, so the batch may be in it: {text}",
            hint="look at the table's newest version before you run the command again",
            code="batch_maybe_committed",
        )
    if "features required" in lowered or "unsupported" in lowered:
        return TableError(
            f"impctl cannot write to table `{source.name}`: {text}",
            hint="apply the batch with Spark and the Delta JAR",
            code="table_not_writable",
        )
    if any(phrase in lowered for phrase in _ROW_FAILURES):
        return EvaluationError(
            f"The update of table `{source.name}` fails on a row: {text}",
            hint="restrict `where` to rows for which the expression can be computed",
        )
    if any(phrase in lowered for phrase in _CONSTRAINT_FAILURES):
        return UsageError(
            f"Table `{source.name}` does not accept the batch: {text.split(' Preview of')[0]}",
            hint="correct the batch, or the table's constraints",
        )
    if isinstance(error, CommitFailedError):
        return RetryableError(
            f"Another writer changed table `{source.name}` meanwhile: {text}",
            hint="run the command again",
        )
    return StorageError(
        f"Writing to table `{source.name}` failed: {text}",
        hint=f"check that `{source.path}` can be written, then run the command again",
    )
