"""A Delta table as a source of snapshots, opened once per run.

Law: the newest version is read once, when the table is opened, and every later answer of the
source is about that version or an older one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from msgspec import Struct
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
    unknown_feature,
    without_values,
)
from impctl.types import Secrets

if TYPE_CHECKING:
    from impctl.types import TableName, TableVersion

_VERSION = re.compile(r"\bversion: (\d+)")
_LOG_FILE = re.compile(r"(\d{20})\.(json|checkpoint\b.*parquet|checkpoint\b.*json)")


class DeltaSource(Struct, frozen=True, eq=False):
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

    def snapshot(self, version: TableVersion | None = None) -> Snapshot:
        """The table at `version` (default: the pinned one). TableRecreatedError for a version it
        never reached or that was another table's, HistoryGoneError for one no longer in the log."""
        is_pinned = version is None or version == self.version
        delta = self.delta if version is None or is_pinned else self._at(version)
        return take_snapshot(delta, self.name, self.storage_options, self.clone_of)

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
    return replace(source, version=source.delta.version(), table_id=table_id)


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
    if not _is_utf8(path):
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


def _is_utf8(text: str) -> bool:
    """Whether a path, as Python has it, stands for bytes in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
