"""Update batches: which ones a table has, and their commits.

Law: a batch commits whole or not at all, and a named batch once. Its rows and values are computed
and tested before it is written (`tables.write.rows`), and keep the columns' exact types. The
table's properties, such as the change feed, stay as they are. A table that deltalake would damage
is refused by name. This is the one module that changes rows of a table.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import CommitProperties, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from msgspec import Struct, field
from msgspec.structs import replace

from impctl.errors import (
    ImpctlError,
    Location,
    RetryableError,
    StorageError,
    TableError,
    UsageError,
)
from impctl.tables.files import miscopied_columns
from impctl.tables.source import (
    DeltaSource,
    LogEntry,
    advance,
    open_failure,
    read_entry,
    recreated,
    refresh,
)
from impctl.tables.storage import READ_FAILURES, failure_text
from impctl.tables.write.rows import (
    MatchedRows,
    check_regular,
    check_rows,
    file_to_insert,
    match_rows,
    not_writable,
    rows_to_insert,
    unreadable_file,
)

if TYPE_CHECKING:
    from impctl.tables.snapshot import DataFile, Snapshot
    from impctl.types import ColumnName, TableName, TableVersion


class UpdateKind(StrEnum):
    INSERT = "insert"
    DELETE = "delete"
    UPDATE = "update"


class UpdateRequest(Struct, frozen=True):
    """One batch: rows or a file to insert, a condition to delete by, or columns to set."""

    table: TableName
    kind: UpdateKind
    rows: tuple[Mapping[ColumnName, object], ...] | None = None
    file: str | None = None
    """Parquet or CSV file to insert, as a resolved path."""
    where: str | None = None
    """SQL condition; None means every row."""
    assignments: Mapping[ColumnName, str] = field(default_factory=dict)
    places: Mapping[ColumnName, Location] = field(default_factory=dict)
    """Positions of assignments, for errors; not part of the batch's identity."""
    name: str | None = None
    """A named batch is committed once; without a name every commit is a new one."""
    again: bool = False
    """Commit the batch even if it is in the table already."""


class AppliedUpdate(Struct, frozen=True):
    """What a batch did; `version` is the table's version afterwards. For a batch that was in the
    table already, only the version that committed it."""

    version: TableVersion
    inserted: int = 0
    deleted: int = 0
    updated: int = 0


class PreparedUpdate(Struct, frozen=True):
    """A batch that may be committed on top of `source`."""

    table: TargetTable
    source: DeltaSource
    """The table before the batch."""
    kind: UpdateKind
    rows: pa.Table | None = None
    """The rows to insert."""
    matched: MatchedRows | None = None
    """The rows to delete or change."""
    identity: str | None = None
    in_version: TableVersion | None = None
    """The version that committed the batch already; then nothing else is set."""


def apply_update(source: DeltaSource, update: UpdateRequest) -> AppliedUpdate:
    """Commit the batch on top of the newest version. A delete or update without a matching row
    commits nothing. Raises as `prepare_batch` does."""
    return commit_update(prepare_batch(TargetTable(refresh(source)), update))


def prepare_batch(table: TargetTable, update: UpdateRequest) -> PreparedUpdate:
    """Prepare a batch on the newest version without writing it. Raises UsageError or QueryError for
    an invalid batch, UnsupportedError for one that impctl does not compute, EvaluationError for one
    that fails on a row."""
    if update.file is not None:
        check_regular(update.file)
    newest, identity = table.renew(), None
    if update.name is not None:
        identity = _identity_of(newest, update)
        version = None if update.again else table.batches.version_with(newest, identity)
        if version is not None:
            return PreparedUpdate(table, newest, update.kind, identity=identity, in_version=version)
    snapshot = table.snapshot()
    check_writable(snapshot)
    if update.kind is UpdateKind.INSERT:
        rows = _rows_to_insert(snapshot, update)
        check_rows(snapshot, rows)
        return PreparedUpdate(table, newest, update.kind, rows, identity=identity)
    if update.kind is UpdateKind.UPDATE and not update.assignments:
        raise UsageError(
            f"An update of table `{newest.name}` sets no column",
            hint="give at least one column in `set`",
        )
    table.check_rewritable()
    assignments = update.assignments if update.kind is UpdateKind.UPDATE else {}
    matched = match_rows(snapshot, update.where, assignments, update.places)
    return PreparedUpdate(table, newest, update.kind, None, matched, identity)


def _rows_to_insert(snapshot: Snapshot, update: UpdateRequest) -> pa.Table:
    if (update.rows is None) == (update.file is None):
        raise UsageError(
            f"An insert into table `{snapshot.table}` needs either `rows` or `file`",
            hint="give one of the two",
        )
    if update.file is not None:
        return file_to_insert(snapshot, update.file)
    return rows_to_insert(snapshot, update.rows or ())


def commit_update(update: PreparedUpdate) -> AppliedUpdate:
    """Commit what was prepared; nothing if there is no row to insert, delete or change."""
    source = update.source
    if update.in_version is not None:
        return AppliedUpdate(update.in_version)
    rows = len(update.rows or ()) if update.matched is None else update.matched.rows
    if not rows:
        return AppliedUpdate(source.version)
    # deltalake does not notice a table created again at the path, and writes into it.
    update.table.check_unmoved()
    stamp = None
    if update.identity is not None:
        stamp = Stamp(update.identity, source.version + 1, time.time_ns() // 1_000_000)
    try:
        with plain_failures(source):
            reported = _commit(update, stamp)
        version = update.table.take_commit(stamp)
    except ImpctlError as error:
        result = _version_despite(update, error)
        if result is None:
            raise
        reported, version = None, result  # the table sees the commit at its next renewal
    is_update = update.kind is UpdateKind.UPDATE
    if reported is not None and reported != rows:
        done = "updated" if is_update else "deleted"
        raise ImpctlError(
            f"The {update.kind} of table `{source.name}` should affect {rows} rows, but deltalake "
            f"{done} {reported}, in version {version}",
            hint=f"restore the table to version {source.version}, and report this bug",
            code="rows_updated_differ" if is_update else "rows_deleted_differ",
        )
    if is_update:
        return AppliedUpdate(version, updated=rows)
    if update.kind is UpdateKind.DELETE:
        return AppliedUpdate(version, deleted=rows)
    return AppliedUpdate(version, inserted=rows)


def _commit(update: PreparedUpdate, stamp: Stamp | None) -> int | None:
    """Commit; returns deltalake's row count, if it reports one."""
    delta, matched = update.source.delta, update.matched
    properties = CommitProperties() if stamp is None else stamp.properties
    if matched is None:
        write_deltalake(delta, update.rows, mode="append", commit_properties=properties)
        return None
    if not matched.keys and not matched.assigned:
        delta.delete(commit_properties=properties)
        return None
    merge = delta.merge(
        matched.values,
        matched.predicate,
        source_alias="source",
        target_alias="target",
        commit_properties=properties,
    )
    if matched.assigned:
        metrics = merge.when_matched_update(matched.updates).execute()
        return int(metrics["num_target_rows_updated"])
    return int(merge.when_matched_delete().execute()["num_target_rows_deleted"])


def _version_despite(update: PreparedUpdate, error: ImpctlError) -> TableVersion | None:
    """The version of a batch that was committed although a later step failed."""
    if update.identity is None or isinstance(error, RetryableError) and error.code == "retryable":
        return None
    try:
        version = version_with(refresh(update.source), update.identity)
    except ImpctlError:
        return None
    return version if version is not None and version > update.source.version else None


_UNREADABLE = ("features required", "unsupported", "schema error", "sql parser error")
"""Of the table, or of one of its constraints."""
_CONSTRAINT_FAILURES = ("constraint", "invariant", "append-only", "validation check")


@contextmanager
def plain_failures(source: DeltaSource) -> Iterator[None]:
    """Translate what deltalake raises while it writes. A failure after which the batch may be in
    the table is never retryable."""
    try:
        yield
    except Exception as error:
        # deltalake raises a bare Exception for a value that does not fit.
        if type(error) is not Exception and not isinstance(error, READ_FAILURES):
            raise
        raise _write_failure(source, error) from error


def _write_failure(source: DeltaSource, error: Exception) -> ImpctlError:
    text = failure_text(error)
    lowered = text.lower()
    moved = None if isinstance(error, CommitFailedError) else _moved_version(source)
    if moved is not None:
        # Not retryable: an insert would be written twice.
        return ImpctlError(
            f"Writing to table `{source.name}` failed, but the table moved from version "
            f"{source.version} to {moved}, so the batch may be in it: {text}",
            hint="check the table's newest version before you run the command again",
            code="batch_maybe_committed",
        )
    if any(phrase in lowered for phrase in _UNREADABLE):
        return TableError(
            f"impctl cannot write to table `{source.name}`: {text}",
            hint="apply the batch with Spark and the Delta JAR",
            code="table_not_writable",
        )
    if any(phrase in lowered for phrase in _CONSTRAINT_FAILURES):
        return UsageError(
            f"Table `{source.name}` does not accept the batch: {text.split(' Preview of')[0]}",
            hint="correct the batch, or the table's constraints",
        )
    if isinstance(error, CommitFailedError):
        return RetryableError(
            f"Another writer changed table `{source.name}` at the same time: {text}",
            hint="run the command again",
        )
    return StorageError(
        f"Writing to table `{source.name}` failed: {text}",
        hint=f"check that `{source.path}` can be written, then run the command again",
    )


def _moved_version(source: DeltaSource) -> TableVersion | None:
    """The table's newest version, if the batch was prepared for another one."""
    try:
        newest = refresh(source).version
    except ImpctlError:
        return None
    return newest if newest != source.version else None


# What deltalake must not write. Law: deltalake writes a table that passes as Spark would. A table
# whose schema, properties or files the two understand differently is refused.

_BOOLEANS = ("true", "false")
_PARTITIONS = {
    "timestamp": "writes times of its partition column `{}` without a time zone",
    "decimal": "writes negative decimals of its partition column `{}` as different text",
    "binary": "writes binary values of its partition column `{}` as different text",
}


def check_writable(snapshot: Snapshot) -> None:
    """Refuse tables into which deltalake would write something other than Spark would."""
    reason = None
    if snapshot.column_mapping is not None:
        reason = "it uses column mapping"
    for key, value in sorted(snapshot.configuration.items()):
        if key.startswith("delta.") and value.lower() in _BOOLEANS and value not in _BOOLEANS:
            reason = f"Spark reads its property `{key}` = `{value}`, but deltalake does not"
    for entry in json.loads(snapshot.schema_json)["fields"]:
        name, metadata = entry["name"], entry["metadata"]
        if "delta.generationExpression" in metadata:
            reason = f"its column `{name}` is generated"
        if any(key.startswith("delta.identity.") for key in metadata):
            reason = f"its column `{name}` is an identity column"
        kind = str(entry["type"]).partition("(")[0]
        if name in snapshot.partition_columns and kind in _PARTITIONS:
            reason = f"deltalake {_PARTITIONS[kind].format(name)}"
    if reason is not None:
        raise not_writable(snapshot, reason)


def check_rewritable(snapshot: Snapshot, files: Sequence[DataFile] | None = None) -> None:
    """Refuse deletes and updates where a copied row of these files (default: all) would change."""
    wrong = miscopied_columns(snapshot, files)
    code = "table_not_writable"
    if wrong.as_int96:
        code = "int96_timestamps"
        reason = (
            f"column `{min(wrong.as_int96)}` is stored as INT96, which deltalake copies incorrectly"
        )
    elif wrong.in_old_calendar:
        code = "legacy_calendar"
        reason = (
            f"column `{min(wrong.in_old_calendar)}` may have old dates or times in the calendar of "
            "Spark 2, which deltalake would change"
        )
    elif wrong.respelled:
        reason = (
            f"a data file writes the name of column `{min(wrong.respelled)}`, or of a field in it, "
            "in different case, and deltalake would replace its values with NULL"
        )
    else:
        return
    raise TableError(
        f"impctl cannot change rows of table `{snapshot.table}`: {reason}",
        hint="apply the batch with Spark and the Delta JAR, or rewrite the table's files",
        code=code,
    )


# The identity of a batch, by which a repeat finds it in the table's log. Law: two batches have one
# identity only where their name, their content (a file's bytes, not its path) and their table are
# the same. The batch's commit has it as an application transaction of Delta: checkpoints keep it,
# and of two such commits at once Delta accepts one.

PREFIX = "impctl/apply/"


def _identity_of(source: DeltaSource, update: UpdateRequest) -> str:
    rows = [sorted(row.items()) for row in update.rows or ()]
    content = (str(update.kind), rows, update.where, sorted(update.assignments.items()))
    named = repr((source.table_id, update.name, content))
    digest = hashlib.sha256(named.encode("utf-8", "replace"))
    if update.file is not None:
        try:
            with open(update.file, "rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
        except OSError as error:
            raise unreadable_file(update.file, error) from error
    return f"{PREFIX}{digest.hexdigest()[:40]}"


class Stamp(Struct, frozen=True):
    """The mark of a named batch's commit."""

    identity: str
    meant: TableVersion
    """The version that the commit should have; another writer may come first."""
    at: int
    """Milliseconds since the epoch."""

    @property
    def properties(self) -> CommitProperties:
        return CommitProperties(app_transactions=[Transaction(self.identity, self.meant, self.at)])

    def is_on(self, entry: LogEntry) -> bool:
        stamp = {"appId": self.identity, "version": self.meant, "lastUpdated": self.at}
        return any(stamp.items() <= body.items() for body in entry.bodies("txn"))


def version_with(source: DeltaSource, identity: str) -> TableVersion | None:
    """The version that committed the batch; None if it is not in the table, or if a RESTORE removed
    it. If the log is cleaned up, the version that the commit should have had. ImpctlError if a
    RESTORE does not say which version it restored."""
    try:
        recorded = source.delta.transaction_version(identity)
    except READ_FAILURES as error:
        raise open_failure(source.name, source.path, error) from error
    if recorded is None:
        return None
    return committed_version(source, identity, int(recorded))


def committed_version(
    source: DeltaSource, identity: str, recorded: TableVersion
) -> TableVersion | None:
    """Like `version_with`; `recorded` is the version of the newest transaction."""
    entries = source.entries(recorded - 1, source.version)
    if entries is None:
        return recorded
    result: TableVersion | None = None
    for entry in entries:
        if any(body.get("appId") == identity for body in entry.bodies("txn")):
            result = entry.version
        elif result is not None and _is_restored_before(entry, result):
            result = None
    return result


def _is_restored_before(entry: LogEntry, batch: TableVersion) -> bool:
    """Whether the commit restores a version before that of the batch."""
    infos = entry.bodies("commitInfo")
    if not any(info.get("operation") == "RESTORE" for info in infos):
        return False
    parameters: Mapping[str, Any] = infos[0].get("operationParameters") or {}
    restored = parameters.get("version")
    if restored is None or not str(restored).isdecimal():
        raise ImpctlError(
            f"The batch was applied to table `{entry.table}` at version {batch}, but version "
            f"{entry.version} restored an unnamed older version, so the batch may or may not be in "
            "it",
            hint="check the table; `apply --again` applies the batch again",
            code="batch_maybe_applied",
        )
    return int(restored) < batch


# The batches in a table, by reading its log once and then only new entries. Law: the answer is
# that of the function `version_with`, which is asked where this reading may miss an identity, or
# know one that Delta has forgotten. Cost: the log, once, unless it is long; then each entry of
# other writers.

_FORGETTING = "delta.setTransactionRetentionDuration"
_MOST_ENTRIES = 100
"""Entries of a log up to which all are read; deltalake reads those after a checkpoint."""


class AppliedBatches:
    """The batches in one history of a table, up to a version."""

    def __init__(self) -> None:
        self._recorded: dict[str, TableVersion] = {}
        """By identity, the version that the newest commit should have had."""
        self._until: TableVersion = -1
        """Commits up to this version are in `_meant`."""

    def version_with(self, source: DeltaSource, identity: str) -> TableVersion | None:
        if not self._read_on(source):
            return version_with(source, identity)
        recorded = self._recorded.get(identity)
        return None if recorded is None else committed_version(source, identity, recorded)

    def add(self, identity: str, recorded: TableVersion, version: TableVersion) -> None:
        """Record a commit of this run."""
        if self._until == version - 1:
            self._recorded[identity] = recorded
            self._until = version

    def _read_on(self, source: DeltaSource) -> bool:
        """Read the log up to the version of `source`; False if identities may be missing then."""
        if _FORGETTING in source.delta.metadata().configuration:
            return False
        if source.version - self._until > _MOST_ENTRIES:
            return False
        try:
            entries = source.entries(self._until, source.version)
            bodies = [body for entry in entries or () for body in entry.bodies("txn")]
        except TableError:
            return False  # of an entry that deltalake may not need
        if entries is None:
            return False
        self._recorded.update({body["appId"]: body["version"] for body in bodies})
        self._until = source.version
        return True


# A table that a run writes batch after batch: opened once, then followed. Law: what it says of the
# table is of the newest version in the log that was opened. The entry of the pinned version proves
# that it is still that log: it has the same content, or the stamp of the run's commit. Another log
# is opened again, or refused if a batch was prepared on the old one. Cost, if nobody else writes:
# one look beyond the log's end and one at its last entry per batch.

_TO_DO = "nothing was written to it; to write to it, run the command again"


class TargetTable:
    """A table during one run. After a commit, nobody else may use sources given to or by it."""

    def __init__(self, source: DeltaSource) -> None:
        """`source` must be opened just now: the entry of a log that replaced the table's later
        would prove the wrong one."""
        self._take(source)

    def _take(self, source: DeltaSource) -> None:
        self.source = source
        self.batches = AppliedBatches()
        self._snapshot: Snapshot | None = None
        self._before: Snapshot | None = None
        """The snapshot before the run's own commit that led to the pinned version."""
        self._sound: set[str] = set()
        """Files that deltalake copies faithfully, by URI."""
        self._take_entry()

    def _take_entry(self) -> None:
        try:
            self._known_entry = self._entry(self.source.version)
        except StorageError:
            self._known_entry = None  # a committed batch does not fail for it
        self._stamp: Stamp | None = None

    def renew(self) -> DeltaSource:
        """Follow the log; the table is opened again unless this is known to be the same log."""
        source = self.source
        moved: DeltaSource | None = source
        if self._entry(source.version + 1) is not None:
            try:
                moved = advance(source)
            except ImpctlError:
                moved = None  # entries in between may have been cleaned away
        # Checked afterwards: this detects a table replaced before or during the reading.
        if moved is None or not self._is_unchanged() or moved.table_id != source.table_id:
            self._take(refresh(source))
        elif moved is not source:
            self.source, self._snapshot, self._before = moved, None, None
            self._take_entry()
        return self.source

    def check_unmoved(self) -> None:
        """TableRecreatedError if another table, or another history, is at the path."""
        is_unchanged = self._is_unchanged()
        if is_unchanged:
            return
        # The entry may have been cleaned up, or never been readable.
        newest = refresh(self.source) if is_unchanged is None else None
        if (
            newest is None
            or newest.table_id != self.source.table_id
            or newest.version < self.source.version
        ):
            raise recreated(self.source, _TO_DO)

    def _is_unchanged(self) -> bool | None:
        """Whether the pinned version has the same log entry; None without one."""
        text = self._entry(self.source.version)
        if text is None:
            return None
        if self._stamp is not None:
            return self._stamp.is_on(LogEntry(self.source.name, self.source.version, text))
        return None if self._known_entry is None else text == self._known_entry

    def _entry(self, version: TableVersion) -> str | None:
        """The log's entry of a version; None if it is missing."""
        try:
            return read_entry(self.source, version)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(
                f"Reading the log of table `{self.source.name}` failed: {failure_text(error)}",
                hint=f"check that `{self.source.path}` can be read, then run the command again",
            ) from error

    def snapshot(self) -> Snapshot:
        if self._snapshot is None:
            self._snapshot = self.source.snapshot()
            if self._before is not None:
                # What deltalake wrote it also reads.
                self._sound |= set(self._snapshot.uris) - set(self._before.uris)
        return self._snapshot

    def check_rewritable(self) -> None:
        """Like the function `check_rewritable`; each file is read once."""
        files = [file for file in self.snapshot().files if file.uri not in self._sound]
        check_rewritable(self.snapshot(), files)
        self._sound.update(file.uri for file in files)

    def take_commit(self, stamp: Stamp | None) -> TableVersion:
        """Continue after a batch was committed through the pinned source; returns its version."""
        version = int(self.source.delta.version())
        is_next = version == self.source.version + 1
        self._before, self._snapshot = self._snapshot if is_next else None, None
        self.source = replace(self.source, version=version)
        if stamp is None:
            self._take_entry()
        else:
            self.batches.add(stamp.identity, stamp.meant, version)
            self._stamp = stamp
        return version
