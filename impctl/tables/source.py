"""A Delta table as a source of snapshots and log entries, opened once per run.

Law: the newest version is read once, when the table is opened, and every later answer of the
source is about that version or an older one. A run takes the snapshot of the pinned version once,
and reads and parses an entry once.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from msgspec import Struct, field
from msgspec.structs import replace

from impctl.errors import (
    HistoryGoneError,
    ImpctlError,
    StorageError,
    TableError,
    TableRecreatedError,
)
from impctl.tables.snapshot import Snapshot, take_snapshot
from impctl.tables.storage import (
    READ_FAILURES,
    failure_text,
    feature_named_in,
    is_of_system,
    list_names,
    local_path,
    read_text,
    unknown_feature,
    without_values,
)
from impctl.types import Secrets

if TYPE_CHECKING:
    from impctl.types import TableName, TableVersion

_VERSION = re.compile(r"\bversion: (\d+)")
_LOG_FILE = re.compile(r"(\d{20})\.(json|checkpoint\b.*parquet|checkpoint\b.*json)")


Action = tuple[str, Any]
"""Name and body of an action in the log."""

_OF_SPARK = ("Apache-Spark/", "Databricks-Runtime/")


class LogEntry(Struct, frozen=True, dict=True):
    """The entry of one commit in a table's log; TableError if it is damaged."""

    table: TableName
    version: TableVersion
    text: str

    @cached_property
    def actions(self) -> list[Action]:
        """Its actions, in order."""
        # Not `splitlines`: JSON need not escape U+2028 and the like, which texts may hold.
        lines = [line for line in self.text.split("\n") if line.strip()]
        return [action for line in lines for action in self._parsed(line) if action[1]]

    def _parsed(self, line: str) -> Iterable[Action]:
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise _damaged(self.table, self.version, error) from error
        if not isinstance(entry, dict):
            raise _damaged(self.table, self.version, f"`{line[:40]}` is not a log entry")
        return entry.items()

    def bodies(self, *names: str) -> list[dict[str, Any]]:
        """The bodies of the actions with these names."""
        return [body for name, body in self.actions if name in names]

    @property
    def may_change_metadata(self) -> bool:
        """False only if it has neither new metadata nor a new protocol."""
        return '"metaData"' in self.text or '"protocol"' in self.text

    @property
    def only_moves(self) -> bool:
        """True only if files were changed by OPTIMIZE and its like alone. That the new files hold
        the same rows is its writer's claim (`tables.log`)."""
        return not (self.may_change_metadata or self.fed)

    @cached_property
    def fed(self) -> list[Action]:
        """The actions whose files a change feed reads: the change data alone if there is some; none
        of a commit that only moves rows."""
        change_data: list[Action] = [("cdc", body) for body in self.bodies("cdc")]
        return change_data or list(filter(is_of_rows, self.actions))

    @property
    def is_of_spark(self) -> bool:
        """Whether Spark wrote the commit, by its own statement."""
        writers = [body.get("engineInfo") or "" for body in self.bodies("commitInfo")]
        return bool(writers) and all(writer.startswith(_OF_SPARK) for writer in writers)


def is_of_rows(action: Action) -> bool:
    """Whether the action adds or removes a file with its rows."""
    name, body = action
    return name in ("add", "remove") and body.get("dataChange") is not False


def read_entry(source: DeltaSource, version: TableVersion) -> str:
    """The text of one commit; OSError if it cannot be read, TableError if it is no text."""
    name = f"_delta_log/{version:020}.json"
    try:
        text = read_text(source.path, source.storage_options, name)
    except UnicodeDecodeError as error:
        raise _damaged(source.name, version, error) from error
    if not text.strip():
        # No writer makes one: a crash, or a store that returned nothing.
        raise _damaged(source.name, version, "it is empty")
    return text


def _damaged(table: TableName, version: TableVersion, what: object) -> TableError:
    """The error for a commit that cannot be read, maybe not even opened by deltalake."""
    return TableError(
        f"The log entry of version {version} of table `{table}` is damaged: {what}",
        hint=(
            "restore the entry, or write a checkpoint for a later version and run `impctl capture`"
        ),
        code="table_unreadable",
    )


class DeltaSource(Struct, frozen=True, eq=False, dict=True):
    """An open table; `version` is the newest one when opened, or a requested one."""

    name: TableName
    path: str
    storage_options: Secrets | None
    version: TableVersion
    table_id: str
    delta: DeltaTable
    """deltalake's table at `version`; it must not be moved to another version."""
    clone_of: tuple[str, ...] = ()
    """Folders of other tables whose files the log may name."""
    _entries: dict[TableVersion, LogEntry] = field(default_factory=dict)
    """The entries that `entries` has read."""

    def entry(self, version: TableVersion) -> LogEntry:
        """The entry of one version, not kept; errors as of `read_entry`."""
        known = self._entries.get(version)
        return LogEntry(self.name, version, read_entry(self, version)) if known is None else known

    def entries(self, since: TableVersion, until: TableVersion) -> tuple[LogEntry, ...] | None:
        """The entries after `since` up to `until`, oldest first; None if one is missing, or if
        `until` is before `since`. TableError for one that is no text."""
        if until < since:
            return None
        versions = range(since + 1, until + 1)
        try:
            self._entries.update({version: self.entry(version) for version in versions})
        except OSError:
            return None
        return tuple(self._entries[version] for version in versions)

    def snapshot(self, version: TableVersion | None = None) -> Snapshot:
        """The table at `version` (default: the pinned one). TableRecreatedError for a version it
        never reached or that was another table's, HistoryGoneError for one no longer in the log."""
        if version is None or version == self.version:
            return self._pinned
        return self._taken(self._at(version))

    @cached_property
    def _pinned(self) -> Snapshot:
        return self._taken(self.delta)

    def _taken(self, delta: DeltaTable) -> Snapshot:
        return take_snapshot(delta, self.name, self.storage_options, self.clone_of)

    def for_next_run(self) -> DeltaSource:
        """The same source without its snapshot and the entries that it has read."""
        return replace(self, _entries={})

    def at(self, version: TableVersion) -> DeltaSource:
        """The same table, pinned at `version`; errors as for `snapshot`."""
        if version == self.version:
            return self
        return replace(self, version=version, delta=self._at(version))

    def _at(self, version: TableVersion) -> DeltaTable:
        if version > self.version:
            raise TableRecreatedError(
                f"Table `{self.name}` is at version {self.version} and has no version {version}",
                hint="the path now holds another table; run `impctl capture`",
            )
        try:
            result = _load(self.path, version, self.storage_options)
        except READ_FAILURES as error:
            raise _version_failure(self, version, error) from error
        # The log is read again: another table may have replaced the one opened.
        if str(result.metadata().id) != self.table_id:
            raise recreated(self)
        return result


def open_source(
    name: TableName,
    path: str,
    storage_options: Mapping[str, str] | None = None,
    clone_of: tuple[str, ...] = (),
) -> DeltaSource:
    """Open the Delta table at a local path or URI and pin its newest version."""
    _check_path(name, path)
    try:
        delta = _load(path, None, storage_options)
    except TableNotFoundError as error:
        raise _not_a_table(name, path) from error
    except READ_FAILURES as error:
        raise open_failure(name, path, error) from error
    table_id, roots = str(delta.metadata().id), clone_roots(clone_of)
    secrets = None if storage_options is None else Secrets(storage_options)
    return DeltaSource(name, path, secrets, delta.version(), table_id, delta, roots)


def clone_roots(clone_of: Iterable[str]) -> tuple[str, ...]:
    """Normalize folders and URIs: local ones become paths."""
    paths = ((path, local_path(path)) for path in clone_of)
    return tuple((path if local is None else local).rstrip("/") for path, local in paths)


def recreated(source: DeltaSource, to_do: str = "run `impctl capture`") -> TableRecreatedError:
    """The error for a path that now holds another table."""
    return TableRecreatedError(
        f"Table `{source.name}` was created again at {source.path}",
        hint=f"the path now holds another table; {to_do}",
    )


def other_history(source: DeltaSource) -> TableRecreatedError:
    """The error for a table of the same identity whose log leads from other files than expected."""
    return TableRecreatedError(
        f"The files of table `{source.name}` at {source.path} are not a continuation of those that "
        "the sketch was captured from",
        hint="the path holds a backup that other commits were added to, or the log was altered; "
        "run `impctl capture`",
    )


def refresh(source: DeltaSource) -> DeltaSource:
    """The same table, pinned at the newest version."""
    return open_source(source.name, source.path, source.storage_options, source.clone_of)


def advance(source: DeltaSource) -> DeltaSource:
    """The same table at its newest version, by reading only new log entries. Only where the table
    cannot have been replaced; `source` must not be used any more."""
    try:
        source.delta.update_incremental()
    except READ_FAILURES as error:
        raise open_failure(source.name, source.path, error) from error
    # A table that is replaced by its own log has another identity from that commit on.
    table_id = str(source.delta.metadata().id)
    # Entries are read again: another table may have taken the place of this one.
    return replace(source, version=source.delta.version(), table_id=table_id, _entries={})


def oldest_version(source: DeltaSource) -> TableVersion | None:
    """The oldest version the log can rebuild, for messages; None if unknown."""
    try:
        names = list_names(source.path, source.storage_options, "_delta_log")
    except READ_FAILURES:
        return None
    result = [match for match in map(_LOG_FILE.fullmatch, names) if match is not None]
    starts = [int(match[1]) for match in result if match[2] != "json" or int(match[1]) == 0]
    return min(starts, default=None)


def _load(path: str, version: TableVersion | None, options: Mapping[str, str] | None) -> DeltaTable:
    local = local_path(path)
    try:
        return DeltaTable(
            path if local is None else local,
            version=version,
            storage_options=None if options is None else dict(options),
        )
    except READ_FAILURES as error:
        text = without_values(str(error), options or {})
        if text == str(error) or isinstance(error, TableNotFoundError):
            raise
        # No chain: a trace would show the value.
        raise StorageError(
            "The object store does not accept the storage options: "
            f"{' '.join(text.split()).rstrip('.')}",
            hint="correct `storage_options` of the table; this message does not show the value",
            code="storage_options_refused",
        ) from None


def _check_path(name: TableName, path: str) -> None:
    """Refuse paths that are not UTF-8, and escapes such as `a%20b`, which deltalake misreads."""
    folder = local_path(path)
    if any("\ud800" <= char <= "\udfff" for char in path):  # bytes that Python could not decode
        raise TableError(
            f"Table `{name}` cannot be opened because its path is not UTF-8: {path}",
            hint="rename the folder, or use a symbolic link to it",
            code="table_path_not_utf8",
        )
    if folder is not None and unquote(os.path.abspath(folder)) != os.path.abspath(folder):
        raise TableError(
            f"Table `{name}` cannot be opened safely because its path contains an escape such as "
            f"%20: {path}",
            hint="rename the folder, or use a symbolic link to it",
            code="table_path_escaped",
        )


def _not_a_table(name: TableName, path: str) -> TableError:
    folder = local_path(path)
    if folder is not None and not os.path.exists(folder):
        return TableError(
            f"Table `{name}` does not exist: {path}",
            hint=(
                f"correct `tables.{name}.path`; a relative path starts at the folder of the "
                "workload file"
            ),
            code="table_missing",
        )
    return TableError(
        f"Table `{name}` is not a Delta table: {path}",
        hint="the path must contain a `_delta_log` folder; other formats are not supported",
        code="table_not_delta",
    )


def _without_gap(text: str) -> str:
    """deltalake's message, shortened for a log with a gap, whose ends it prints with all fields."""
    ends = _VERSION.findall(text) if "found gap" in text else []
    if len(ends) != 2:
        return text
    return (
        f"its log goes from version {ends[0]} to {ends[1]}, and the entries between them are "
        "missing"
    )


def _where_to_look(path: str) -> str:
    if path.startswith("uc://"):
        return (
            "give the address and token of Unity Catalog as `databricks_workspace_url` and "
            "`databricks_token` in `storage_options`, and allow it to give credentials to "
            "external engines"
        )
    return f"check the Delta log under `{path}`"


def open_failure(name: TableName, path: str, error: Exception) -> ImpctlError:
    """The error for a table whose log deltalake could not read."""
    text = failure_text(error)
    feature = feature_named_in(text)
    if feature is not None:
        return unknown_feature(name, feature)
    if isinstance(error, DeltaError) and not is_of_system(error):
        folder = local_path(path)
        if folder is not None and os.path.isfile(folder):
            return _not_a_table(name, path)
        return TableError(
            f"Table `{name}` cannot be opened: {_without_gap(text)}",
            hint=_where_to_look(path),
            code="table_unreadable",
        )
    return StorageError(
        f"Table `{name}` cannot be reached: {text}",
        hint=f"check the path, the credentials and the network: {path}",
    )


def _version_failure(source: DeltaSource, version: TableVersion, error: Exception) -> ImpctlError:
    if not isinstance(error, DeltaError) or is_of_system(error):
        return open_failure(source.name, source.path, error)
    feature = feature_named_in(failure_text(error))
    if feature is not None:
        return unknown_feature(source.name, feature)
    oldest = oldest_version(source)
    left = "" if oldest is None else f"; the oldest available version is {oldest}"
    return HistoryGoneError(
        f"Version {version} of table `{source.name}` is no longer in its log{left}",
        hint="run `impctl capture`; to keep more history, raise `delta.logRetentionDuration`",
    )
