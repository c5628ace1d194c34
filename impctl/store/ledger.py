"""The ledger: what each use of a sketch read and skipped, in a file beside the catalog.

Law: a use is written whole or not at all. Writing it never waits for a writer of sketches: if the
ledger is busy, the use is skipped. The latest `KEPT` uses of each query are single rows, earlier
ones sums per day, so that sums stay exact. Answers from a materialized result read no file and are
counted per day. Decisions read only the times of a query's latest answers, by who answered; these
feed estimates, so a missing one changes no answer.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import astuple

from impctl.store.disk import CAREFUL, StoreLayout

if TYPE_CHECKING:
    from impctl.types import QueryName

KEPT = 1000
_PATIENCE = 1.0
"""Seconds to wait for another writer of the ledger."""
_DAY = 86_400
_RUNS, _MOST_RUNS = 8, 64
"""Runs kept per text and answerer, and per query."""

_TABLES = """
CREATE TABLE IF NOT EXISTS use (number INTEGER PRIMARY KEY, query TEXT NOT NULL, at REAL NOT NULL,
  command TEXT NOT NULL, versions TEXT NOT NULL, is_used INTEGER NOT NULL, files INTEGER NOT NULL,
  files_plain INTEGER NOT NULL, rows INTEGER NOT NULL, rows_plain INTEGER NOT NULL,
  bytes INTEGER NOT NULL, bytes_plain INTEGER NOT NULL, elapsed_ms REAL NOT NULL);
CREATE INDEX IF NOT EXISTS use_by_query ON use (query, number);
CREATE TABLE IF NOT EXISTS day (query TEXT NOT NULL, day INTEGER NOT NULL, uses INTEGER NOT NULL,
  used INTEGER NOT NULL, files INTEGER NOT NULL, files_plain INTEGER NOT NULL,
  rows INTEGER NOT NULL, rows_plain INTEGER NOT NULL, bytes INTEGER NOT NULL,
  bytes_plain INTEGER NOT NULL, elapsed_ms REAL NOT NULL, PRIMARY KEY (query, day));
CREATE TABLE IF NOT EXISTS answer (query TEXT NOT NULL, day INTEGER NOT NULL,
  answers INTEGER NOT NULL, last REAL NOT NULL, PRIMARY KEY (query, day));
CREATE TABLE IF NOT EXISTS run (number INTEGER PRIMARY KEY, query TEXT NOT NULL,
  text INTEGER NOT NULL, by TEXT NOT NULL, at REAL NOT NULL, files INTEGER NOT NULL,
  rows INTEGER NOT NULL, bytes INTEGER NOT NULL, elapsed_ms REAL NOT NULL,
  start_ms REAL NOT NULL);
CREATE INDEX IF NOT EXISTS run_by_query ON run (query, number);
"""
_NUMBERS = "files, files_plain, rows, rows_plain, bytes, bytes_plain, elapsed_ms"
_SUMS = ", ".join(f"sum({name})" for name in _NUMBERS.split(", "))
_FOLD = f"""
INSERT INTO day SELECT query, CAST(at / {_DAY} AS INTEGER), count(*), sum(is_used), {_SUMS}
  FROM use WHERE query = :query AND number <= :last GROUP BY 1, 2
ON CONFLICT (query, day) DO UPDATE SET uses = uses + excluded.uses, used = used + excluded.used,
  files = files + excluded.files, files_plain = files_plain + excluded.files_plain,
  rows = rows + excluded.rows, rows_plain = rows_plain + excluded.rows_plain,
  bytes = bytes + excluded.bytes, bytes_plain = bytes_plain + excluded.bytes_plain,
  elapsed_ms = elapsed_ms + excluded.elapsed_ms
"""

_TOTALS = f"""
SELECT sum(uses), sum(used), {_SUMS}, max(last) FROM (
  SELECT uses, used, {_NUMBERS}, day * {_DAY} AS last FROM day WHERE query = ?1 AND day >= ?2
  UNION ALL SELECT 1, is_used, {_NUMBERS}, at FROM use WHERE query = ?1 AND at >= ?3)
"""
_COUNT = """
INSERT INTO answer VALUES (?, ?, ?, ?)
ON CONFLICT (query, day)
DO UPDATE SET answers = answers + excluded.answers, last = max(last, excluded.last)
"""


class Use(Struct, frozen=True):
    """What one use read, and what the query's own conditions would have read. `is_used` is false if
    the sketch was not used. `elapsed_ms` is 0 if unknown: a text or a frame was returned."""

    query: QueryName
    at: float
    command: str
    versions: str
    is_used: bool
    files: int
    files_plain: int
    rows: int
    rows_plain: int
    bytes: int
    bytes_plain: int
    elapsed_ms: float


class AnswerRun(Struct, frozen=True):
    """What one answer read; of a materialized result also its size. `text` identifies the query's
    text, `by` who answered. Starting Spark took `start_ms` beyond `elapsed_ms`, 0 if it was
    running."""

    query: QueryName
    text: int
    by: str
    at: float
    files: int
    rows: int
    bytes: int
    elapsed_ms: float
    start_ms: float = 0.0


class Uses(Struct, frozen=True):
    """Sums over the uses of one query, and the number of answers from a materialized result. `last`
    is the latest of either, None without any."""

    uses: int = 0
    used: int = 0
    files: int = 0
    files_plain: int = 0
    rows: int = 0
    rows_plain: int = 0
    bytes: int = 0
    bytes_plain: int = 0
    elapsed_ms: float = 0.0
    last: float | None = None
    answers: int = 0


class Ledger:
    """The ledger of the store in a folder; it may be missing or unreadable."""

    def __init__(self, folder: Path) -> None:
        self._path = StoreLayout(folder).ledger

    def record(self, use: Use) -> bool:
        """Record one use; false if that was not possible at once."""

        def write(connection: sqlite3.Connection) -> None:
            _insert(connection, "use", use)
            oldest = "SELECT number FROM use WHERE query = ? ORDER BY number DESC LIMIT 1 OFFSET ?"
            row = connection.execute(oldest, (use.query, KEPT)).fetchone()
            if row is not None:
                # The oldest uses of the query go to the sums of their days.
                folded = {"query": use.query, "last": row[0]}
                connection.execute(_FOLD, folded)
                delete = "DELETE FROM use WHERE query = :query AND number <= :last"
                connection.execute(delete, folded)

        return self._written(write)

    def record_answers(self, counts: Mapping[QueryName, int], at: float) -> bool:
        """Count answers from a materialized result; false if that was not possible at once."""

        def write(connection: sqlite3.Connection) -> None:
            rows = [(query, at // _DAY, count, at) for query, count in counts.items()]
            connection.executemany(_COUNT, rows)

        return self._written(write)

    def record_run(self, run: AnswerRun) -> bool:
        """Record what an answer took; false if that was not possible at once."""

        def write(connection: sqlite3.Connection) -> None:
            _insert(connection, "run", run)
            for key, most in (
                ({"query": run.query, "text": run.text, "by": run.by}, _RUNS),
                ({"query": run.query}, _MOST_RUNS),
            ):
                where = " AND ".join(f"{name} = :{name}" for name in key)
                latest = f"SELECT number FROM run WHERE {where} ORDER BY number DESC LIMIT {most}"
                older = f"DELETE FROM run WHERE {where} AND number NOT IN ({latest})"
                connection.execute(older, key)

        return self._written(write)

    def runs(self, query: QueryName, text: int) -> tuple[AnswerRun, ...]:
        """What the latest answers of this text of a query took, newest first."""
        names = ", ".join(AnswerRun.__struct_fields__)
        latest = f"SELECT {names} FROM run WHERE query = ? AND text = ? ORDER BY number DESC"
        return tuple(AnswerRun(*row) for row in self._rows(latest, query, text))

    def uses(self, query: QueryName) -> tuple[Use, ...]:
        """Single uses, newest first; older ones are summed per day."""
        names = ", ".join(Use.__struct_fields__)
        rows = self._rows(f"SELECT {names} FROM use WHERE query = ? ORDER BY number DESC", query)
        return tuple(Use(*(*row[:4], bool(row[4]), *row[5:])) for row in rows)

    def sums(self, query: QueryName, since: float = 0.0) -> Uses:
        """Sums of all uses and materialized answers since then, including the whole first day."""
        rows = self._rows(_TOTALS, query, since // _DAY, since)
        if not rows:
            return Uses()
        *totals, last = rows[0]
        counted = "SELECT sum(answers), max(last) FROM answer WHERE query = ? AND day >= ?"
        # An older ledger has no such table.
        ((answers, latest),) = self._rows(counted, query, since // _DAY) or [(None, None)]
        moments = [moment for moment in (last, latest) if moment is not None]
        values: list[Any] = [*(n or 0 for n in totals), max(moments, default=None), answers or 0]
        return Uses(*values)

    def _written(self, write: Callable[[sqlite3.Connection], None]) -> bool:
        """Run the statements in one transaction; false if that fails."""
        try:
            with self._opened() as result, result:
                result.execute("BEGIN IMMEDIATE")
                write(result)
        except (OSError, sqlite3.Error):
            return False
        return True

    def _rows(self, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
        """Rows; none if there is no readable ledger."""
        if not self._path.is_file():
            return []
        try:
            address = f"{self._path.absolute().as_uri()}?mode=ro"
            with closing(sqlite3.connect(address, uri=True, timeout=_PATIENCE)) as result:
                return result.execute(sql, arguments).fetchall()
        except sqlite3.Error:
            return []

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """The ledger for writing; created with owner-only rights if missing."""
        if not self._path.exists():
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | CAREFUL, 0o600))
        with closing(
            sqlite3.connect(self._path, timeout=_PATIENCE, isolation_level=None)
        ) as result:
            # A power cut may take the latest uses; a use is not worth waiting for a disk.
            result.execute("PRAGMA journal_mode = WAL")
            result.execute("PRAGMA synchronous = NORMAL")
            result.executescript(_TABLES)
            yield result


def _insert(connection: sqlite3.Connection, table: str, row: Use | AnswerRun) -> None:
    """Insert the row under the next number."""
    values = astuple(row)
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO {table} VALUES (NULL, {marks})", values)
