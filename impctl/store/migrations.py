"""The format of a store on disk, and how an older one becomes the present one."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from impctl.errors import UsageError
from impctl.store.disk import damaged

_V1_INITIAL: tuple[str, ...] = (
    """CREATE TABLE query (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, fingerprint TEXT NOT NULL,
        sql TEXT NOT NULL, mode TEXT NOT NULL, captured INTEGER NOT NULL,
        captured_at REAL NOT NULL, seal INTEGER NOT NULL)""",
    """CREATE TABLE progress (
        query_id INTEGER PRIMARY KEY, generation INTEGER NOT NULL, slack_bound INTEGER NOT NULL,
        assumptions TEXT NOT NULL, state_meta TEXT NOT NULL, has_state INTEGER NOT NULL,
        maintained_at REAL NOT NULL, pins INTEGER NOT NULL,
        runs INTEGER NOT NULL, seal INTEGER NOT NULL)""",
    # Stays as it was made: no command forgets a query.
    "CREATE TABLE forgotten (id INTEGER PRIMARY KEY CHECK (id = 1), generation INTEGER NOT NULL)",
    "INSERT INTO forgotten VALUES (1, 0)",
    """CREATE TABLE pin (
        query_id INTEGER NOT NULL, table_name TEXT NOT NULL, path TEXT NOT NULL,
        table_id TEXT NOT NULL, version INTEGER NOT NULL, seal INTEGER NOT NULL,
        PRIMARY KEY (query_id, table_name)) WITHOUT ROWID""",
    """CREATE TABLE pin_schema (
        query_id INTEGER NOT NULL, table_name TEXT NOT NULL, schema_json TEXT NOT NULL,
        seal INTEGER NOT NULL, PRIMARY KEY (query_id, table_name)) WITHOUT ROWID""",
    """CREATE TABLE partition (id TEXT PRIMARY KEY, content TEXT NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE sketched (
        query_id INTEGER NOT NULL, captured INTEGER NOT NULL, access TEXT NOT NULL,
        table_name TEXT NOT NULL, attribute TEXT NOT NULL, partition_id TEXT NOT NULL,
        fragments INTEGER NOT NULL, seal INTEGER NOT NULL,
        PRIMARY KEY (query_id, captured, access)) WITHOUT ROWID""",
    """CREATE TABLE sketch (
        query_id INTEGER NOT NULL, access TEXT NOT NULL, generation INTEGER NOT NULL,
        bits BLOB NOT NULL, seal INTEGER NOT NULL,
        PRIMARY KEY (query_id, access, generation)) WITHOUT ROWID""",
    """CREATE TABLE sketch_version (
        query_id INTEGER NOT NULL, generation INTEGER NOT NULL, captured INTEGER NOT NULL,
        digest INTEGER NOT NULL, versions TEXT NOT NULL, seal INTEGER NOT NULL,
        PRIMARY KEY (query_id, generation)) WITHOUT ROWID""",
    """CREATE TABLE run (
        query_id INTEGER NOT NULL, arrangement TEXT NOT NULL, sequence INTEGER NOT NULL,
        rows INTEGER NOT NULL, bytes INTEGER NOT NULL, checksum INTEGER NOT NULL, file TEXT,
        seal INTEGER NOT NULL, content BLOB,
        PRIMARY KEY (query_id, arrangement, sequence)) WITHOUT ROWID""",
    "CREATE INDEX run_file ON run (file) WHERE file IS NOT NULL",
    """CREATE TABLE history (
        query_id INTEGER NOT NULL, number INTEGER NOT NULL, action TEXT NOT NULL,
        reason_code TEXT NOT NULL, reason TEXT NOT NULL, started_at REAL NOT NULL,
        elapsed_ms REAL NOT NULL, read_ms REAL NOT NULL, engine_ms REAL NOT NULL,
        commit_ms REAL NOT NULL, changes INTEGER NOT NULL, added INTEGER NOT NULL,
        removed INTEGER NOT NULL, versions TEXT NOT NULL, seal INTEGER NOT NULL,
        PRIMARY KEY (query_id, number)) WITHOUT ROWID""",
)


_V2_COSTS: tuple[str, ...] = (
    """CREATE TABLE cost (
        query_id INTEGER NOT NULL, kind TEXT NOT NULL, number INTEGER NOT NULL,
        rows INTEGER NOT NULL, bytes INTEGER NOT NULL, elapsed_ms REAL NOT NULL,
        spark INTEGER NOT NULL, start_ms REAL NOT NULL, seal INTEGER NOT NULL,
        PRIMARY KEY (query_id, kind, number)) WITHOUT ROWID""",
)


_V3_FILE_MARKS: tuple[str, ...] = ()


_V4_SKETCH_BASIS: tuple[str, ...] = (
    """CREATE TABLE sketch_basis (
        query_id INTEGER NOT NULL, generation INTEGER NOT NULL, assumptions TEXT NOT NULL,
        basis TEXT NOT NULL, seal INTEGER NOT NULL,
        PRIMARY KEY (query_id, generation)) WITHOUT ROWID""",
)


_V5_PAGE_SUMS: tuple[str, ...] = (
    "ALTER TABLE run ADD COLUMN sums BLOB",
    # When a file was looked at last, and how far since. Nothing rests on it, so it has no seal.
    """CREATE TABLE scrub (
        file TEXT PRIMARY KEY, at REAL NOT NULL, page INTEGER NOT NULL) WITHOUT ROWID""",
)


_V6_ARRIVALS: tuple[str, ...] = (
    # How far each table's log was looked at; a name may come to stand for another table.
    """CREATE TABLE arrival_log (
        table_name TEXT PRIMARY KEY, table_id TEXT NOT NULL, until INTEGER NOT NULL, since REAL,
        has_missed INTEGER NOT NULL, seal INTEGER NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE arrival (
        table_name TEXT NOT NULL, version INTEGER NOT NULL, at REAL, inserted INTEGER,
        deleted INTEGER, files INTEGER NOT NULL, bytes INTEGER NOT NULL, operation TEXT NOT NULL,
        is_after_gap INTEGER NOT NULL, seal INTEGER NOT NULL,
        PRIMARY KEY (table_name, version)) WITHOUT ROWID""",
)


_V7_COST_MOVED: tuple[str, ...] = ("ALTER TABLE cost ADD COLUMN moved TEXT NOT NULL DEFAULT ''",)


_V8_PARTS_AND_CHOICE: tuple[str, ...] = (
    "ALTER TABLE cost ADD COLUMN parts TEXT NOT NULL DEFAULT ''",
    """CREATE TABLE state_choice (
        place INTEGER PRIMARY KEY CHECK (place = 1),
        chosen TEXT NOT NULL,
        seal INTEGER NOT NULL
    )""",
)


_V9_EXPIRY: tuple[str, ...] = ()


_V10_LAYOUTS: tuple[str, ...] = (
    "ALTER TABLE cost ADD COLUMN layout TEXT NOT NULL DEFAULT ''",
    "DELETE FROM cost WHERE EXISTS (SELECT 1 FROM state_choice)",
    "DELETE FROM state_choice",
)


MIGRATIONS: tuple[tuple[str, ...], ...] = (
    _V1_INITIAL,
    _V2_COSTS,
    _V3_FILE_MARKS,
    _V4_SKETCH_BASIS,
    _V5_PAGE_SUMS,
    _V6_ARRIVALS,
    _V7_COST_MOVED,
    _V8_PARTS_AND_CHOICE,
    _V9_EXPIRY,
    _V10_LAYOUTS,
)
"""Statements that lead from format n to format n + 1, at position n."""

FORMAT_VERSION = len(MIGRATIONS)
_APPLICATION_ID = 0x696D7043  # "impC" in the file's header, so that `file` can tell what it is


def format_of(connection: sqlite3.Connection) -> int:
    """The format of the open catalog; 0 where nothing was created yet."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def check_format(connection: sqlite3.Connection, path: Path) -> int:
    """The catalog's format; raises where this impctl must not touch it."""
    result = format_of(connection)
    application = int(connection.execute("PRAGMA application_id").fetchone()[0])
    tables = int(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    if tables > 0 and application != _APPLICATION_ID:
        raise damaged(path, "it is a SQLite database, but not one that impctl created")
    if result > FORMAT_VERSION:
        raise UsageError(
            f"Store `{path.parent}` has format {result}, but this version of impctl supports "
            f"formats up to {FORMAT_VERSION}",
            code="store_format_newer",
            hint="upgrade impctl, or set `store` to another folder and capture again",
        )
    if result < 0 or (result == 0) != (tables == 0):
        raise damaged(path, f"format {result} with {tables} tables and indexes")
    return result


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Run the missing steps; call inside a write transaction."""
    for step in MIGRATIONS[check_format(connection, path) :]:
        for statement in step:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
