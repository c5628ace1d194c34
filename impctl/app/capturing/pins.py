"""How a stored sketch stands to the workload file and its tables: the same, current, or neither.

Law: told from content hashes, versions and table identities alone, without reading SQL, so that a
run with nothing to do ends at once. `definition` changes whenever the query, its parameters,
the sketch asked for, its candidate partitions or the tables' paths change. Another release of
impctl may read the same SQL otherwise, or capture otherwise; so what it captured is captured anew.
Out of scope: what to do about it (`app.maintain`).
"""

from __future__ import annotations

from collections.abc import Mapping

from impctl.app.workbench.pinned import PinnedTables
from impctl.errors import (
    HistoryGoneError,
    RetryableError,
    TableRecreatedError,
)
from impctl.store.records import KeptVersion, StoredQuery
from impctl.tables.changes import files_mark
from impctl.tables.log import commit_mark
from impctl.tables.schema import schema_mark
from impctl.tables.source import DeltaSource, refresh
from impctl.types import QueryName, TableName, TableVersion


def catch_up(tables: PinnedTables, stored: StoredQuery) -> None:
    """Pin tables again that another process has maintained the sketch past.

    They grew after this run pinned them: without this they would look re-created. To be called
    before anything is computed from the versions pinned.
    """
    for pin in stored.pins:
        source = tables.source(pin.table)
        if source.version < pin.version and source.table_id == pin.table_id:
            tables.repin(pin.table)


def commit_marks(
    tables: PinnedTables, versions: Mapping[TableName, TableVersion]
) -> dict[str, str]:
    """A mark of each table's log entry at a version, for tables whose log can be read.

    A backup put in place of a table keeps identity and version numbers; its log entries differ.
    """
    marks = {}
    for table, version in versions.items():
        mark = commit_mark(tables.source(table), version)
        if mark is not None:
            marks[table] = mark
    return marks


def is_current(stored: StoredQuery, tables: PinnedTables) -> bool:
    """Whether the sketch stands at the pinned versions of the same tables."""
    return all(
        tables.source(pin.table).version == pin.version
        and tables.source(pin.table).table_id == pin.table_id
        and _is_same(stored, tables, pin.table)
        for pin in stored.pins
    )


def moved_meanwhile(query: QueryName) -> RetryableError:
    """The error for a sketch that was brought up to date and no longer is."""
    return RetryableError(
        f"Another process changed the sketch of query `{query}` at the same time",
        code="sketch_moved",
        hint="run the command again",
    )


def are_entries_there(stored: StoredQuery, tables: PinnedTables) -> bool:
    """Whether the log's entries of the stored versions are there to compare, all of them.

    Files alone do not tell what their columns are called.
    """
    marks = _marks(stored)
    return all(
        pin.table in marks and mark_at(tables, pin.table, pin.version) is not None
        for pin in stored.pins
    )


def check_pins(stored: StoredQuery, tables: PinnedTables) -> None:
    """TableRecreatedError where a pinned table was re-created, replaced or went back in time.

    So too where nothing is left that could tell. A table that has moved on past a log entry that is
    gone is held against its files when its change is read (`tables.changes`).
    """
    for pin in stored.pins:
        source = tables.source(pin.table)
        is_other = source.table_id != pin.table_id or source.version < pin.version
        is_same = None if is_other else _is_same(stored, tables, pin.table)
        if is_other or is_same is False:
            raise TableRecreatedError(
                f"Table `{pin.table}` at {source.path} is not the one the sketch was captured from",
                hint="run `impctl capture` to start again from the new table",
            )
        if is_same is None and not (source.version > pin.version and _held(stored, pin.table)):
            raise HistoryGoneError(
                f"The log entry of version {pin.version} of table `{pin.table}` was removed, "
                "and the store has no fingerprint of its files, so the table may be another one",
                code="version_unproven",
                hint="run `impctl capture`; later runs compare the files",
            )


def check_marked(stored: StoredQuery, tables: PinnedTables) -> None:
    """TableRecreatedError where a table, pinned at its version, is not what a kept sketch saw.

    Held against all that was marked with the sketch: the log's entry, and the files as they are
    built from the log now. HistoryGoneError where neither is left to compare.
    """
    for pin in stored.pins:
        source, held = tables.source(pin.table), _held(stored, pin.table)
        mark, now = _marks(stored).get(pin.table), tables.mark(pin.table)
        has_entry = mark is not None and now is not None
        snapshot = tables.snapshot(pin.table)
        is_other = (has_entry and mark != now) or source.table_id != pin.table_id
        if held is not None and not is_other:
            is_other = files_mark(snapshot).digest != held
        if held is not None and not has_entry and not is_other:
            # Files alone do not tell what their columns are called.
            schemas: Mapping[TableName, str] = stored.state_meta.get("schemas", {})
            is_other = schemas.get(pin.table) != schema_mark(snapshot.schema_json)
        if is_other:
            raise TableRecreatedError(
                f"Version {pin.version} of table `{pin.table}` at {source.path} is not the one "
                "that the stored sketch was captured at",
                hint="the table was replaced, or its log was altered",
            )
        if held is None and not has_entry:
            raise HistoryGoneError(
                f"The log entry of version {pin.version} of table `{pin.table}` was removed, "
                "and the store has no fingerprint of its files, so the table may be another one",
                code="version_unproven",
                hint="the store has fingerprints of the last version of each run",
            )


def may_be_marked(kept: KeptVersion, tables: PinnedTables) -> bool:
    """Whether `check_marked` may let a kept version pass, by the log's entries alone."""
    marks: Mapping[TableName, str] = kept.basis.get("marks", {})
    files: Mapping[TableName, object] = kept.basis.get("files", {})
    for table, version in kept.versions.items():
        now = commit_mark(tables.source(table), version)
        is_unmarked = now is None or table not in marks
        if table not in files if is_unmarked else now != marks[table]:
            return False
    return True


def check_not_replaced_meanwhile(stored: StoredQuery, tables: PinnedTables) -> None:
    """RetryableError where another table took a pinned one's place while this run read it.

    To be called when all was read and before anything is written: what was read may be the other
    table's. Where the log's entry of the stored version cannot be marked, the table is opened anew
    and its files are compared.
    """
    for pin in stored.pins:
        source = tables.source(pin.table)
        is_marked = pin.table in _marks(stored) and commit_mark(source, pin.version) is not None
        is_other = _is_same(stored, tables, pin.table) is False
        if is_other or not (is_marked or _is_still(tables, source)):
            raise replaced_meanwhile(pin.table)
        check_pinned_commit(tables, pin.table)


def check_pinned_commit(tables: PinnedTables, table: TableName) -> None:
    """RetryableError where the log's entry of a pinned version is not what it was."""
    mark, source = tables.mark(table), tables.source(table)
    if mark is not None and commit_mark(source, source.version) not in (mark, None):
        raise replaced_meanwhile(table)


def _is_still(tables: PinnedTables, source: DeltaSource) -> bool:
    """Whether what stands at the path now has the pinned version, with the files it had."""
    result = refresh(source)
    if result.table_id != source.table_id or result.version < source.version:
        return False
    now, pinned = result.snapshot(source.version), tables.snapshot(source.name)
    return files_mark(now).digest == files_mark(pinned).digest


def replaced_meanwhile(table: TableName) -> RetryableError:
    """The error for a table that another one took the place of during the run."""
    return RetryableError(
        f"Another table replaced table `{table}` while it was being read",
        code="table_replaced_meanwhile",
        hint="run the command again; it starts with the new table",
    )


def _is_same(stored: StoredQuery, tables: PinnedTables, table: TableName) -> bool | None:
    """Whether the table at the stored version is the one that the sketch stands for.

    By the log's entry of that version, or where it is gone by the files, if the table is still at
    it; None where neither can tell.
    """
    version, mark = stored.versions[table], _marks(stored).get(table)
    now = None if mark is None else mark_at(tables, table, version)
    if now is not None:
        return now == mark
    held = _held(stored, table)
    if held is None or tables.source(table).version != version:
        return None
    return files_mark(tables.snapshot(table)).digest == held


def _marks(stored: StoredQuery) -> Mapping[TableName, str]:
    result: Mapping[TableName, str] = stored.state_meta.get("marks", {})
    return result


def _held(stored: StoredQuery, table: TableName) -> str | None:
    """The digest of the files that the table had; None where nobody took it."""
    result: Mapping[TableName, Mapping[str, str]] = stored.state_meta.get("files", {})
    return result[table]["digest"] if table in result else None


def mark_at(tables: PinnedTables, table: TableName, version: TableVersion) -> str | None:
    """The mark of the table's log entry at a version; of the pinned one as it was pinned.

    Another log may stand there by now, which is not the one that is going to be read.
    """
    source = tables.source(table)
    taken = tables.mark(table) if source.version == version else None
    return commit_mark(source, version) if taken is None else taken
