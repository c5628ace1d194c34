"""The SQLite catalog: its format and migrations, how it is opened, and what a transaction is."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from impctl.errors import ImpctlError, StorageError, UsageError
from impctl.store.disk import (
    Disk,
    StoreLayout,
    damaged,
    is_full,
    make_lasting_folder,
    read_only,
    translate_errors,
)
from impctl.store.lock import WriterLock

# The first schema. Why it is cut this way: a commit writes in proportion to what changed. What is
# fixed by a capture (`query`, `sketched`, `partition`, `pin_schema`) lies apart from what moves
# with every commit (`progress`, `pin`); a `sketch` row is written only when its bits changed and
# holds until the next one; boundaries are stored once under a hash of their content. Every row
# ends with its seal, and the rows that belong together are held together by a digest of their
# seals: `progress` has one over pins and one over runs, `sketch_version` one over the sketch rows
# that hold for it.

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


# What runs cost, kept apart from what they did. Why: estimates want the latest runs of each kind,
# few of them and at once. History grows without bound and mixes the kinds, so the latest captures
# would have to be searched behind thousands of maintained changes. Nothing is carried over:
# history did not say how large a captured table was, nor what of its time went into starting
# Spark.

_V2_COSTS: tuple[str, ...] = (
    """CREATE TABLE cost (
        query_id INTEGER NOT NULL, kind TEXT NOT NULL, number INTEGER NOT NULL,
        rows INTEGER NOT NULL, bytes INTEGER NOT NULL, elapsed_ms REAL NOT NULL,
        spark INTEGER NOT NULL, start_ms REAL NOT NULL, seal INTEGER NOT NULL,
        PRIMARY KEY (query_id, kind, number)) WITHOUT ROWID""",
)


# Marks of the files that a query's tables had, in the description beside its state. Why a format
# of its own although no table of the catalog changes: the description is checked field by field,
# and an older impctl would take one with the new field for damaged. Nothing is carried over: what
# a table's files were when an older impctl captured is not known any more, so those queries have
# no mark until they are next maintained or captured (decision 0035).

_V3_FILE_MARKS: tuple[str, ...] = ()


# What each sketch version rests on, so that an older one can be used and not only kept. Why: the
# marks of a query's tables, the reading of its SQL and its assumptions were known of the newest
# version alone. A version kept from before a backup took the table's place could not be told from
# one of the table that stands there now (decision 0039). Nothing is carried over: what an older
# impctl kept has no row here, and is never offered.

_V4_SKETCH_BASIS: tuple[str, ...] = (
    """CREATE TABLE sketch_basis (
        query_id INTEGER NOT NULL, generation INTEGER NOT NULL, assumptions TEXT NOT NULL,
        basis TEXT NOT NULL, seal INTEGER NOT NULL,
        PRIMARY KEY (query_id, generation)) WITHOUT ROWID""",
)


# Checksums of state files page by page, so that a run reads what it uses and not all there is.
# Why: every run read the whole state of its queries to compare one checksum per file (2.9 GB for
# fourteen queries of TPC-H, of which a small change uses some megabytes). A file that an older
# impctl wrote has none; it is looked at in full until `store.health` gives it some. An older
# impctl would take such a file for damaged, so it must not open the store.

_V5_PAGE_SUMS: tuple[str, ...] = (
    "ALTER TABLE run ADD COLUMN sums BLOB",
    # When a file was looked at last, and how far since. Nothing rests on it, so it has no seal.
    """CREATE TABLE scrub (
        file TEXT PRIMARY KEY, at REAL NOT NULL, page INTEGER NOT NULL) WITHOUT ROWID""",
)


# Commits of tables as numbers, so that it can be told when the next change comes and how large.
# Why: a table's log says when its commits came, but is cleaned after a month, and reading
# hundreds of entries at each run would cost more than the run. Numbers only: what they feed is a
# forecast. An older impctl would not keep them up, so it must not open the store.

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


# Which tables' changes a run carried on, beside what it cost. Why: a change of one table may ask
# for what another's never does; one line through the runs of a query had an expensive change of
# customers make a cheap one of parts look dear. Empty where a release before wrote the row. An
# older impctl would write rows without it.

_V7_COST_MOVED: tuple[str, ...] = ("ALTER TABLE cost ADD COLUMN moved TEXT NOT NULL DEFAULT ''",)


# What the parts of a run took, and what the choice of state was made by. Why: which state is
# worth keeping is told by what each operator took and what each read of a side took, not by the
# whole of a run (`parts`, empty where a release before wrote the row). And a choice that is made
# must not be made again after each run: it is once rates, budget or bytes have moved from those
# that it was made by (`state_choice`, one row at most).

_V8_PARTS_AND_CHOICE: tuple[str, ...] = (
    "ALTER TABLE cost ADD COLUMN parts TEXT NOT NULL DEFAULT ''",
    """CREATE TABLE state_choice (
        place INTEGER PRIMARY KEY CHECK (place = 1),
        chosen TEXT NOT NULL,
        seal INTEGER NOT NULL
    )""",
)


# The next instant at which a row expires, in the description beside a query's state. Why a format
# of its own although no table of the catalog changes: as with marks of files (format 3), the
# description is checked field by field, and an older impctl would take one with the new field for
# damaged. Nothing is carried over: before, no table had an expiry.

_V9_EXPIRY: tuple[str, ...] = ()


# How the state was kept that a run carried on, beside what the run cost. Why: what runs took
# while sides were read from files stayed in the estimates after these were kept again, and had
# them recapture for good. Of runs before nobody knows the layout, so where a choice of state was
# ever made they are forgotten; elsewhere state is kept as it was captured. An older impctl would
# write rows without it. What the last choice was made by is forgotten too: the next run looks.

_V10_LAYOUTS: tuple[str, ...] = (
    "ALTER TABLE cost ADD COLUMN layout TEXT NOT NULL DEFAULT ''",
    "DELETE FROM cost WHERE EXISTS (SELECT 1 FROM state_choice)",
    "DELETE FROM state_choice",
)


# The format of a store on disk and how an older one becomes the present one. Law: a store written
# by a newer format is refused, never guessed at; an older one is brought up step by step, all
# steps in one transaction.

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
"""`MIGRATIONS[n]` brings a catalog from format n to n + 1."""

FORMAT_VERSION = len(MIGRATIONS)
_APPLICATION_ID = 0x696D7043  # "impC" in the file's header, so that `file` can tell what it is


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
    if result < 0 or (result == 0) != (tables == 0):
        raise damaged(path, f"format {result} with {tables} tables and indexes")
    return result


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Run the missing steps; to be called inside a write transaction."""
    for step in MIGRATIONS[check_format(connection, path) :]:
        for statement in step:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")


# A checksum on every catalog row, because SQLite keeps none on its pages. Law: a row that was
# altered on disk, in any column, is never read as if it were whole.

Value = str | int | float | bytes | None


def seal_of(*values: Value) -> int:
    """Checksum over values of exactly the types that SQLite returns."""
    return zlib.crc32(repr(values).encode("utf-8", "surrogatepass"))


def sealed(*values: Value) -> tuple[Value, ...]:
    return (*values, seal_of(*values))


def digest_of(rows: Iterable[tuple[Any, ...]]) -> int:
    """Checksum over the seals of rows in order: detects rows that are missing or old."""
    return seal_of(*(row[-1] for row in rows))


def opened(row: tuple[Any, ...], path: Path, what: str) -> tuple[Any, ...]:
    """The values of a row whose last column is its seal; StateCorruptError if they do not match."""
    values, held = row[:-1], row[-1]
    if seal_of(*values) != held:
        raise damaged(path, f"a row of `{what}` does not match its checksum")
    return values


# The SQLite connection: how it is opened, and what a transaction is. Law: a write transaction
# holds completely and durably, or nothing of it does (WAL, synchronous FULL); a read transaction
# sees one moment. Readers never wait for the writer.

_BUSY_MS = 5_000
"""Wait for SQLite's own locks; short, because writers take the writer's lock first."""
_CHECKPOINT_PAGES = 1_500
"""About 6 MB of write-ahead log: rare enough for small commits, small enough that the log's pages
stay hot and are overwritten instead of newly allocated."""
_CACHE_KB = 8_192
"""Enough for all pages that change between two checkpoints."""
_STATEMENTS = 256
"""More than this package has, so that no connection prepares one twice."""
_JOURNAL_BYTES = (18, 19)
"""Positions in a SQLite header that say WAL (2) or rollback journal (1)."""
_COPY_ATTEMPTS = 20
"""Attempts to copy a catalog that a writer may change meanwhile."""


class Catalog:
    """An open catalog; `refusal` is what `writing` raises, None if it is writable. On a full disk
    even a reader cannot create SQLite's own files: it reads a copy in memory."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        disk: Disk,
        *,
        refusal: ImpctlError | None = None,
    ) -> None:
        self._connection = connection
        self._disk = disk
        self.path = path
        self.refusal = refusal
        self.is_together = False
        """Whether writes belong to the transaction of `together`."""
        self._is_given_up = False
        """Whether SQLite ended that transaction itself, as it may on a full disk."""

    @property
    def is_writable(self) -> bool:
        return self.refusal is None

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One consistent state of the catalog for all statements inside."""
        with translate_errors(self.path):
            if self._connection.in_transaction:
                with self._part(is_kept=False):
                    yield self._connection
                return
            self._connection.execute("BEGIN")
            try:
                yield self._connection
            finally:
                self._connection.rollback()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: everything inside is committed at the end, or nothing."""
        if self.refusal is not None:
            raise self.refusal
        with translate_errors(self.path):
            if self.is_together:
                self._check_not_given_up()
                if not self._connection.in_transaction:
                    self._disk.begin(self._connection)
                with self._part(is_kept=True):
                    yield self._connection
                return
            self._disk.begin(self._connection)
            try:
                yield self._connection
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
    def writing_unsynced(self) -> Iterator[sqlite3.Connection]:
        """Like `writing`, but may be lost when the machine stops; for statistics only."""
        if self.is_together:
            with self.writing() as connection:
                yield connection
            return
        with translate_errors(self.path):
            self._connection.execute("PRAGMA synchronous = NORMAL")
            try:
                with self.writing() as connection:
                    yield connection
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


def create_catalog(layout: StoreLayout, disk: Disk) -> None:
    """Create or upgrade the catalog; the caller holds the writer's lock."""
    with translate_errors(layout.catalog):
        disk.create_empty(layout.catalog)
        connection = _connect(layout.catalog)
        try:
            _prepare_writer(connection, disk)
            disk.begin(connection)
            migrate(connection, layout.catalog)
            disk.commit(connection)
        finally:
            connection.close()
        disk.sync_folder(layout.root)


def open_catalog(layout: StoreLayout, disk: Disk) -> Catalog | None:
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


def _opened(layout: StoreLayout, disk: Disk, refusal: ImpctlError | None) -> Catalog | None:
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


def empty_catalog(layout: StoreLayout, disk: Disk) -> Catalog:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection, layout.catalog)
    return Catalog(connection, layout.catalog, disk, refusal=read_only(layout.root))


def upgraded_copy(layout: StoreLayout, disk: Disk) -> Catalog | None:
    """A catalog of an older format, upgraded in memory for a reader; None if there is none."""
    if not layout.catalog.is_file():
        return None
    with translate_errors(layout.catalog):
        # Without a log there is nothing to merge, and on a full disk no space for it.
        is_whole = not disk.is_writable(layout.root) or not _has_log(layout)
        original = _connect_unwritable(layout) if is_whole else _connect(layout.catalog)
        try:
            if check_format(original, layout.catalog) == 0:
                return None
            connection = sqlite3.connect(":memory:", isolation_level=None)
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


def _prepare_writer(connection: sqlite3.Connection, disk: Disk) -> None:
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


# A store made where there is none, or brought to the present format. Law: two first commands may
# come at once; one of them makes it. Nothing is committed to a store whose folders a power cut
# could take away.

OWN_LOCK_TIMEOUT = 10.0
"""Seconds that a commit without the lock waits for another writer."""


def created(layout: StoreLayout, disk: Disk) -> Catalog | None:
    """The catalog, created under the writer's lock."""
    make_lasting_folder(layout.root, disk)
    lock = WriterLock(layout, disk)
    lock.acquire(OWN_LOCK_TIMEOUT, "create the store")
    try:
        catalog = open_catalog(layout, disk)
        if catalog is None:
            create_catalog(layout, disk)
            catalog = open_catalog(layout, disk)
        return catalog
    finally:
        lock.release()
