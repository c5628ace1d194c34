"""The SQLite catalog: its format and migrations, how it is opened, and what a transaction is."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from impctl.errors import ImpctlError, StateCorruptError, StorageError, UsageError
from impctl.store.disk import (
    RealDisk,
    StoreLayout,
    damaged,
    is_full,
    make_lasting_folder,
    read_only,
    translate_errors,
)
from impctl.store.lock import WriterLock

# The format of a store on disk. Law: a newer format is refused, never guessed at, and so is one
# before the first; one in between is upgraded step by step, all steps in one transaction.

_FIRST_FORMAT = 9
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    # The first schema. A commit writes in proportion to what changed: what only a capture writes
    # (`query`, `sketched`, `partition`, `pin_schema`) is separate from what every commit writes
    # (`progress`, `pin`). A `sketch` row is written only when its bits change and is valid until
    # the next one. Boundaries are stored once, under a hash of their content. Every row ends with
    # its seal (later columns follow it), and a digest of seals ties rows together: `progress` has
    # one over pins and one over runs, `sketch_version` one over its valid sketch rows.
    (
        """CREATE TABLE query (
            id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, fingerprint TEXT NOT NULL,
            sql TEXT NOT NULL, mode TEXT NOT NULL, captured INTEGER NOT NULL,
            captured_at REAL NOT NULL, seal INTEGER NOT NULL)""",
        """CREATE TABLE progress (
            query_id INTEGER PRIMARY KEY, generation INTEGER NOT NULL, slack_bound INTEGER NOT NULL,
            assumptions TEXT NOT NULL, state_meta TEXT NOT NULL, has_state INTEGER NOT NULL,
            maintained_at REAL NOT NULL, pins INTEGER NOT NULL,
            runs INTEGER NOT NULL, seal INTEGER NOT NULL)""",
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
        # The basis of each sketch version, by which an older version may be used: without it, a
        # version from before a backup was restored cannot be told from one of the present table
        # (decision 0039).
        """CREATE TABLE sketch_basis (
            query_id INTEGER NOT NULL, generation INTEGER NOT NULL, assumptions TEXT NOT NULL,
            basis TEXT NOT NULL, seal INTEGER NOT NULL,
            PRIMARY KEY (query_id, generation)) WITHOUT ROWID""",
        # With checksums of state files by page, so that a run verifies only what it reads.
        """CREATE TABLE run (
            query_id INTEGER NOT NULL, arrangement TEXT NOT NULL, sequence INTEGER NOT NULL,
            rows INTEGER NOT NULL, bytes INTEGER NOT NULL, checksum INTEGER NOT NULL, file TEXT,
            seal INTEGER NOT NULL, content BLOB, sums BLOB,
            PRIMARY KEY (query_id, arrangement, sequence)) WITHOUT ROWID""",
        "CREATE INDEX run_file ON run (file) WHERE file IS NOT NULL",
        # When a file was verified last, and how far since. Nothing relies on it, so it has no seal.
        """CREATE TABLE scrub (
            file TEXT PRIMARY KEY, at REAL NOT NULL, page INTEGER NOT NULL) WITHOUT ROWID""",
        """CREATE TABLE history (
            query_id INTEGER NOT NULL, number INTEGER NOT NULL, action TEXT NOT NULL,
            reason_code TEXT NOT NULL, reason TEXT NOT NULL, started_at REAL NOT NULL,
            elapsed_ms REAL NOT NULL, read_ms REAL NOT NULL, engine_ms REAL NOT NULL,
            commit_ms REAL NOT NULL, changes INTEGER NOT NULL, added INTEGER NOT NULL,
            removed INTEGER NOT NULL, versions TEXT NOT NULL, seal INTEGER NOT NULL,
            PRIMARY KEY (query_id, number)) WITHOUT ROWID""",
        # What runs cost, apart from `history`, which grows without bound and mixes kinds of runs:
        # estimates need the latest runs of each kind, by the tables whose changes they maintained.
        """CREATE TABLE cost (
            query_id INTEGER NOT NULL, kind TEXT NOT NULL, number INTEGER NOT NULL,
            rows INTEGER NOT NULL, bytes INTEGER NOT NULL, elapsed_ms REAL NOT NULL,
            spark INTEGER NOT NULL, start_ms REAL NOT NULL, seal INTEGER NOT NULL,
            moved TEXT NOT NULL DEFAULT '', parts TEXT NOT NULL DEFAULT '',
            PRIMARY KEY (query_id, kind, number)) WITHOUT ROWID""",
        # How far each table's log was read (a name may later denote another table), and its commits
        # as numbers, for forecasts: a log is cleaned after a month, and reading it at each run
        # would cost more than the run.
        """CREATE TABLE arrival_log (
            table_name TEXT PRIMARY KEY, table_id TEXT NOT NULL, until INTEGER NOT NULL, since REAL,
            has_missed INTEGER NOT NULL, seal INTEGER NOT NULL) WITHOUT ROWID""",
        """CREATE TABLE arrival (
            table_name TEXT NOT NULL, version INTEGER NOT NULL, at REAL, inserted INTEGER,
            deleted INTEGER, files INTEGER NOT NULL, bytes INTEGER NOT NULL,
            operation TEXT NOT NULL, is_after_gap INTEGER NOT NULL, seal INTEGER NOT NULL,
            PRIMARY KEY (table_name, version)) WITHOUT ROWID""",
        # The basis of the last choice of state, at most one row: a choice is repeated only after
        # its basis changed.
        """CREATE TABLE state_choice (
            place INTEGER PRIMARY KEY CHECK (place = 1), chosen TEXT NOT NULL,
            seal INTEGER NOT NULL)""",
    ),
    # The layout of the state that a run maintained, beside its cost: runs of other layouts say
    # nothing about the present one. The layouts of earlier runs are unknown, so these are
    # forgotten where a choice of state was ever made, and the choice is made again.
    (
        "ALTER TABLE cost ADD COLUMN layout TEXT NOT NULL DEFAULT ''",
        "DELETE FROM cost WHERE EXISTS (SELECT 1 FROM state_choice)",
        "DELETE FROM state_choice",
    ),
)
"""The first creates a catalog of the first format; each of the others brings one to the next."""

FORMAT_VERSION = _FIRST_FORMAT + len(MIGRATIONS) - 1
_APPLICATION_ID = 0x696D7043  # "impC" in the file's header


def check_format(connection: sqlite3.Connection, path: Path) -> int:
    result = int(connection.execute("PRAGMA user_version").fetchone()[0])  # 0 for a new catalog
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
    if 0 < result < _FIRST_FORMAT and tables > 0:
        raise UsageError(
            f"Store `{path.parent}` has format {result}, but this version of impctl supports "
            f"formats from {_FIRST_FORMAT}",
            code="store_format_older",
            hint="set `store` to another folder, or remove this one, and capture again",
        )
    if result < 0 or (result == 0) != (tables == 0):
        raise damaged(path, f"format {result} with {tables} tables and indexes")
    return result


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Run the missing steps; to be called inside a write transaction."""
    done = max(0, check_format(connection, path) - _FIRST_FORMAT + 1)
    for step in MIGRATIONS[done:]:
        for statement in step:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")


# Seals: a checksum of every catalog row, because SQLite has none for its pages. Law: a row that was
# altered on disk, in any column, is never read as intact.

Value = str | int | float | bytes | None


def seal_of(*values: Value) -> int:
    """Checksum over values of exactly the types that SQLite returns."""
    return zlib.crc32(repr(values).encode("utf-8", "surrogatepass"))


def sealed(*values: Value) -> tuple[Value, ...]:
    return (*values, seal_of(*values))


def digest_of(rows: Iterable[tuple[Any, ...]]) -> int:
    """Checksum over the seals of rows in order: detects rows that are missing or old."""
    return seal_of(*(row[-1] for row in rows))


class Transaction:
    """The statements of a transaction. Rows that it adds are sealed; rows that it opens must match
    their seals, else StateCorruptError."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.execute = connection.execute
        self.executemany = connection.executemany
        self.path = path

    def add(self, table: str, *values: Value) -> tuple[Any, ...]:
        """Insert a sealed row, which must be new; returns it."""
        return self.insert(table, sealed(*values))

    def put(self, table: str, *values: Value) -> tuple[Any, ...]:
        """Insert or replace a sealed row; returns it."""
        return self.insert(table, sealed(*values), "INSERT OR REPLACE")

    def insert(
        self, table: str, row: tuple[Any, ...], statement: str = "INSERT"
    ) -> tuple[Any, ...]:
        """Insert a row as it is; returns it."""
        self.execute(f"{statement} INTO {table} VALUES ({', '.join('?' * len(row))})", row)
        return row

    def find(self, table: str, **key: Value) -> tuple[Any, ...] | None:
        """The values of the row with this key; None without one."""
        where = " AND ".join(f"{column} = ?" for column in key)
        row = self.execute(f"SELECT * FROM {table} WHERE {where}", (*key.values(),)).fetchone()  # noqa: S608  # our names
        return None if row is None else self.opened(row, table)

    def delete(self, query_id: int, *tables: str) -> None:
        """Delete the query's rows in these tables."""
        for table in tables:
            self.execute(f"DELETE FROM {table} WHERE query_id = ?", (query_id,))  # noqa: S608  # our names

    def opened(self, row: tuple[Any, ...], table: str) -> tuple[Any, ...]:
        """The values of a row whose last column is its seal."""
        values, seal = row[:-1], row[-1]
        if seal_of(*values) != seal:
            raise self.damaged(f"a row of `{table}` does not match its checksum")
        return values

    def damaged(self, detail: str) -> StateCorruptError:
        return damaged(self.path, detail)


# The SQLite connection. Law: a write transaction takes effect completely and durably, or not at all
# (WAL, synchronous FULL); a read transaction sees one moment. Readers never wait for the writer.

_BUSY_MS = 5_000
"""Wait for SQLite's own locks; short, because writers take the writer's lock first."""
_CHECKPOINT_PAGES = 1_500
"""About 6 MB of write-ahead log: rare enough for small commits, small enough that the log's pages
stay hot and are overwritten instead of newly allocated."""
_CACHE_KB = 8_192
"""Enough for all pages that change between two checkpoints."""
_STATEMENTS = 256
"""More than this package uses, so that no connection prepares one twice."""
_JOURNAL_BYTES = (18, 19)
"""Positions in a SQLite header that say WAL (2) or rollback journal (1)."""
OWN_LOCK_TIMEOUT = 10.0
"""Seconds that a commit without the lock waits for another writer."""
_COPY_ATTEMPTS = 20
"""Attempts to copy a catalog that a writer may change meanwhile."""


class Catalog:
    """An open catalog; `refusal` is what `writing` raises, None if it is writable. On a full disk
    even a reader cannot create SQLite's own files: it reads a copy in memory."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        disk: RealDisk,
        *,
        refusal: ImpctlError | None = None,
    ) -> None:
        self._connection = connection
        self._transaction = Transaction(connection, path)
        self._disk = disk
        self.path = path
        self.refusal = refusal
        self.is_together = False
        """Whether writes belong to the transaction of `together`."""
        self._is_given_up = False
        """Whether SQLite ended that transaction, as it may on a full disk."""

    @property
    def is_writable(self) -> bool:
        return self.refusal is None

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """One consistent state of the catalog for all statements inside."""
        with translate_errors(self.path):
            if self._connection.in_transaction:
                with self._part(is_kept=False):
                    yield self._transaction
                return
            self._connection.execute("BEGIN")
            try:
                yield self._transaction
            finally:
                self._connection.rollback()

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        """A transaction: everything inside is committed at the end, or nothing."""
        if self.refusal is not None:
            raise self.refusal
        with translate_errors(self.path):
            if self.is_together:
                self._check_not_given_up()
                if not self._connection.in_transaction:
                    self._disk.begin(self._connection)
                with self._part(is_kept=True):
                    yield self._transaction
                return
            self._disk.begin(self._connection)
            try:
                yield self._transaction
                self._disk.commit(self._connection)
            finally:
                if self._connection.in_transaction:
                    self._connection.rollback()

    @contextmanager
    def together(self) -> Iterator[None]:
        """One transaction around all writes inside, committed at the end even after an exception.
        Each `writing` inside is atomic by itself, so the content is consistent at any moment. If
        SQLite ended the transaction early, nothing is committed and this raises."""
        with translate_errors(self.path):
            self.is_together, self._is_given_up = True, False
            try:
                yield
            finally:
                self.is_together = False
                try:
                    self._check_not_given_up()
                    if self._connection.in_transaction:
                        self._disk.commit(self._connection)
                finally:
                    if self._connection.in_transaction:
                        self._connection.rollback()

    def _check_not_given_up(self) -> None:
        if self._is_given_up:
            raise StorageError(
                f"Catalog `{self.path}` rolled back a write because a commit in the same "
                "transaction failed",
                hint="check the disk that holds the store and run the command again",
            )

    @contextmanager
    def _part(self, *, is_kept: bool) -> Iterator[None]:
        """A savepoint of the open transaction, rolled back if it fails or only reads."""
        self._connection.execute("SAVEPOINT part")
        is_whole = False
        try:
            yield
            is_whole = is_kept
        finally:
            self._is_given_up = not self._connection.in_transaction
            if not self._is_given_up:
                if not is_whole:
                    self._connection.execute("ROLLBACK TO part")
                self._connection.execute("RELEASE part")

    @contextmanager
    def writing_unsynced(self) -> Iterator[Transaction]:
        """Like `writing`, but may be lost when the machine stops; for statistics only."""
        if self.is_together:
            with self.writing() as transaction:
                yield transaction
            return
        with translate_errors(self.path):
            self._connection.execute("PRAGMA synchronous = NORMAL")
            try:
                with self.writing() as transaction:
                    yield transaction
            finally:
                self._connection.execute("PRAGMA synchronous = FULL")

    def shrink(self) -> None:
        """Return free pages to the file system if they are a quarter or more."""
        with translate_errors(self.path):
            free = self._connection.execute("PRAGMA freelist_count").fetchone()[0]
            pages = self._connection.execute("PRAGMA page_count").fetchone()[0]
            if free * 4 >= pages:
                self._disk.vacuum(self._connection)
            self._disk.checkpoint(self._connection)

    def close(self) -> None:
        with translate_errors(self.path):
            self._connection.close()


def created_catalog(layout: StoreLayout, disk: RealDisk) -> Catalog | None:
    """The catalog, created or upgraded under the writer's lock: of two first commands at once, one
    creates it. Nothing is committed to a store whose folders a power cut could remove."""
    make_lasting_folder(layout.root, disk)
    lock = WriterLock(layout, disk)
    lock.acquire(OWN_LOCK_TIMEOUT, "create the store")
    try:
        catalog = open_catalog(layout, disk)
        if catalog is not None:
            return catalog
        with translate_errors(layout.catalog):
            disk.create_empty(layout.catalog)
            with closing(_connect(layout.catalog)) as connection:
                _prepare_writer(connection, disk)
                disk.begin(connection)
                migrate(connection, layout.catalog)
                disk.commit(connection)
            disk.sync_folder(layout.root)
        return open_catalog(layout, disk)
    finally:
        lock.release()


def open_catalog(layout: StoreLayout, disk: RealDisk) -> Catalog | None:
    """Open the catalog; None if there is none, or if an older format needs a writer."""
    if not layout.catalog.is_file():
        return None
    if not disk.is_writable(layout.root):
        return _opened(layout, disk, read_only(layout.root))
    try:
        return _opened(layout, disk, None)
    except StorageError as error:
        if not is_full(error):
            raise
        return _opened(layout, disk, error)


def _opened(layout: StoreLayout, disk: RealDisk, refusal: ImpctlError | None) -> Catalog | None:
    """The catalog, writable if possible; None if its format needs a writer."""
    with translate_errors(layout.catalog):
        connection = _connect(layout.catalog) if refusal is None else _connect_unwritable(layout)
        try:
            if check_format(connection, layout.catalog) < FORMAT_VERSION:
                connection.close()
                return None
            if refusal is None:
                _prepare_writer(connection, disk)
        except BaseException:
            connection.close()
            raise
    return Catalog(connection, layout.catalog, disk, refusal=refusal)


def copied_catalog(layout: StoreLayout, disk: RealDisk) -> Catalog:
    """A catalog in memory for a reader: an older one upgraded, or an empty one without any."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    with translate_errors(layout.catalog):
        if layout.catalog.is_file():
            # Without a log there is nothing to merge, and on a full disk no space for it.
            is_whole = not disk.is_writable(layout.root) or not _has_log(layout)
            original = _connect_unwritable(layout) if is_whole else _connect(layout.catalog)
            try:
                if check_format(original, layout.catalog) > 0:
                    original.backup(connection)
            finally:
                original.close()
        migrate(connection, layout.catalog)
    return Catalog(connection, layout.catalog, disk, refusal=read_only(layout.root))


def catalog_mark(folder: Path) -> tuple[tuple[int, int, int] | None, ...]:
    """A value that changes with every commit to the store in `folder`, without opening it."""
    layout = StoreLayout(folder)
    marks: list[tuple[int, int, int] | None] = []
    for path in (layout.catalog, layout.write_ahead_log):
        try:
            result = path.stat()
        except OSError:
            marks.append(None)
        else:
            marks.append((result.st_ino, result.st_mtime_ns, result.st_size))
    return tuple(marks)


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        path, isolation_level=None, timeout=_BUSY_MS / 1000, cached_statements=_STATEMENTS
    )


def _prepare_writer(connection: sqlite3.Connection, disk: RealDisk) -> None:
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    if mode != "wal":
        mode = disk.use_log(connection)
    if mode != "wal":
        raise UsageError(
            f"The store's file system does not support SQLite's write-ahead log, only `{mode}`",
            code="store_file_system",
            hint="set `store` to a folder on a local disk",
        )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
    connection.execute(f"PRAGMA cache_size = {-_CACHE_KB}")
    connection.execute("PRAGMA secure_delete = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


def _has_log(layout: StoreLayout) -> bool:
    """Whether commits may be in the log only; an empty log holds none."""
    try:
        return layout.write_ahead_log.stat().st_size > 0
    except FileNotFoundError:
        return False


def _connect_unwritable(layout: StoreLayout) -> sqlite3.Connection:
    """A reader in a folder where SQLite may not create the files a WAL catalog needs. With the log
    of a running writer SQLite can read. Without a log the catalog file is complete: it is read
    whole, and again if it changed meanwhile."""
    for _ in range(_COPY_ATTEMPTS):
        if _has_log(layout):
            return sqlite3.connect(f"{layout.catalog.absolute().as_uri()}?mode=ro", uri=True)
        before = layout.catalog.stat()
        content = bytearray(layout.catalog.read_bytes())
        after = layout.catalog.stat()
        if _has_log(layout) or before.st_mtime_ns != after.st_mtime_ns:
            continue
        for position in _JOURNAL_BYTES:
            if position < len(content) and content[position] == 2:
                content[position] = 1
        connection = sqlite3.connect(":memory:", isolation_level=None)
        if content:  # else its creation was cut short
            connection.deserialize(bytes(content))
        return connection
    raise StorageError(
        f"Catalog `{layout.catalog}` keeps changing while it is read",
        code="catalog_busy",
        hint="run the command again later",
    )
