"""Looking at state files that nobody used: so much at a time, those first that waited longest.

Law: what is found altered is told with the query it belongs to and changes nothing; whoever uses
such a page finds it again. A file is due a day after it was looked at last, or written. A file of a
release before, which has one checksum for all of it, is looked at in full, and gets one per page.
Cost: the bytes that are looked at, which are read past the process's memory; nothing while none is
due but a query of the catalog, and when files were written that nobody looked at yet.
Out of scope: pages that are used (`data.pages`), what becomes of the query (`app.maintaining`).
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from impctl.data import pages
from impctl.errors import StateCorruptError
from impctl.store import queries, states
from impctl.store.catalog import Catalog
from impctl.store.faults import suppress_full
from impctl.store.layout import Layout
from impctl.store.states import StoredRun, WrittenRun
from impctl.store.system import CAREFUL
from impctl.types import QueryName
from impctl.values import dataclass

DUE = 86_400.0
"""Seconds after which a file is looked at again."""
_CHUNK = 1 << 20
_FILES = (
    "SELECT query.name, run.file, run.sums IS NULL, scrub.at, scrub.page"
    " FROM run JOIN query ON query.id = run.query_id LEFT JOIN scrub USING (file)"
    " WHERE run.file IS NOT NULL ORDER BY query.name"
)
_FORGET = "DELETE FROM scrub WHERE file NOT IN (SELECT file FROM run WHERE file IS NOT NULL)"


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """Bytes that were looked at, and what was not as it was written."""

    size: int = 0
    damaged: tuple[tuple[QueryName, StateCorruptError], ...] = ()


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A file that is due: its run, and how far it was looked at already."""

    since: float
    query: QueryName
    run: StoredRun
    page: int


@dataclass(frozen=True, slots=True)
class _LookedAt:
    """So many bytes of a file were right; up to which page, 0 for all, and its new checksums."""

    file: _Waiting
    size: int
    page: int
    sums: bytes | None


def scrub(catalog: Catalog, layout: Layout, budget: int, now: float) -> Scrubbed:
    """Look at `budget` bytes of files that are due; those without checksums per page are in full.

    The lock must be held. `now` is in seconds since 1970.
    """
    with catalog.reading() as connection:
        due = _waiting(connection, catalog.path, layout, now)
    done: list[_LookedAt] = []
    damaged = []
    left = budget
    for one in due if budget else ():
        if left <= 0 and one.run.sums is not None:
            break
        try:
            done.append(_look_at(one, layout, left))
        except StateCorruptError as error:
            damaged.append((one.query, error))
        else:
            left -= done[-1].size
    if done:
        with suppress_full(), catalog.writing_unsynced() as connection:
            for result in done:
                _note(connection, catalog.path, result, now)
            connection.execute(_FORGET)
    return Scrubbed(sum(result.size for result in done), tuple(damaged))


def _waiting(
    connection: sqlite3.Connection, path: Path, layout: Layout, now: float
) -> list[_Waiting]:
    """The files that are due, those first that wait longest."""
    due: dict[QueryName, dict[str, tuple[float, int]]] = {}
    for name, file, is_older, at, page in connection.execute(_FILES).fetchall():
        since = _written(layout.run_file(file)) if at is None else at
        if page or is_older or now - since >= DUE:
            due.setdefault(name, {})[file] = (since, page or 0)
    result = [
        _Waiting(files[run.file][0], name, run, files[run.file][1])
        for name, files in due.items()
        for run in _runs_of(connection, path, name)
        if run.file in files
    ]
    return sorted(result, key=lambda one: (one.run.sums is not None, one.since, one.run.file))


def _runs_of(connection: sqlite3.Connection, path: Path, name: QueryName) -> tuple[StoredRun, ...]:
    """The query's runs; none where its rows are not what was written, which who uses it is told."""
    try:
        held = queries.find_with_progress(connection, path, name)
        if held is None:
            return ()
        return states.stored_runs(connection, path, held[0].id, held[1].runs)
    except StateCorruptError:
        return ()


def _look_at(one: _Waiting, layout: Layout, budget: int) -> _LookedAt:
    """So many bytes of the file; StateCorruptError where they are not what was written."""
    run, place = one.run, layout.run_file(one.run.file or "")
    try:
        if run.sums is None:
            return _LookedAt(one, run.size, 0, _sums_of_whole(run, one.query, place))
        last = -(-run.size // pages.PAGE)
        end = min(last, one.page + max(1, budget // pages.PAGE))
        _check_pages(run, one.query, place, one.page, end)
        return _LookedAt(one, (end - one.page) * pages.PAGE, end if end < last else 0, None)
    except OSError as error:
        raise states.corrupt_run(run, one.query, place, "cannot be read") from error


def _note(connection: sqlite3.Connection, path: Path, done: _LookedAt, now: float) -> None:
    """Remember how far the file was looked at, and its new checksums."""
    one, sums, file = done.file, done.sums, done.file.run.file
    at = one.since if done.page else now
    connection.execute("INSERT OR REPLACE INTO scrub VALUES (?, ?, ?)", (file, at, done.page))
    if sums is None:
        return
    result = queries.find_with_progress(connection, path, one.query)
    assert result is not None, "the lock is held"
    query, progress = result
    run, checksum = one.run, zlib.crc32(sums)
    put = WrittenRun(run.arrangement, run.sequence, run.rows, run.size, checksum, file, None, sums)
    runs, _ = states.move_runs(connection, path, query.id, progress.runs, (), [put])
    queries.save_progress(connection, query.id, replace(progress, runs=runs))


def _written(place: Path) -> float:
    """When the file was written; 0 where nobody can say."""
    try:
        return place.stat().st_mtime
    except OSError:
        return 0.0


def _sums_of_whole(run: StoredRun, query: QueryName, place: Path) -> bytes:
    checksum, sums = 0, pages.PageSums()
    for part in _parts(place, 0, run.size):
        checksum = zlib.crc32(part, checksum)
        sums.add(memoryview(part))
    if checksum != run.checksum:
        raise states.corrupt_run(run, query, place, "does not match its checksum")
    return sums.table()


def _check_pages(run: StoredRun, query: QueryName, place: Path, first: int, last: int) -> None:
    held = run.sums or b""
    sums = pages.PageSums()
    for part in _parts(place, first * pages.PAGE, min(last * pages.PAGE, run.size)):
        sums.add(memoryview(part))
    if zlib.crc32(held) != run.checksum or sums.table() != held[4 * first : 4 * last]:
        raise states.corrupt_run(run, query, place, "does not match its checksums")


def _parts(place: Path, first: int, last: int) -> Iterator[bytes]:
    """The bytes of a file, none of them kept."""
    descriptor = os.open(place, os.O_RDONLY | CAREFUL)
    try:
        os.lseek(descriptor, first, os.SEEK_SET)
        while first < last:
            part = os.read(descriptor, min(_CHUNK, last - first))
            if not part:
                return
            first += len(part)
            yield part
    finally:
        os.close(descriptor)
