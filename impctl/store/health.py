"""Maintenance of a store on disk: remove what nothing refers to, verify what nobody uses."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from impctl.data import pages
from impctl.errors import StateCorruptError
from impctl.store import rows, states
from impctl.store.catalog import Catalog, Transaction
from impctl.store.disk import CAREFUL, RUN_SUFFIX, StoreLayout, suppress_full, translate_errors
from impctl.store.records import Collected, Leftover, OldVersions
from impctl.store.states import StoredRun

if TYPE_CHECKING:
    from impctl.types import QueryName

# Removal. Law: only files without a run are removed, and only under the writer's lock; the latest
# `keep` sketch versions of a query stay.

KEPT_VERSIONS = 32

_PARTITIONS = "FROM partition WHERE id NOT IN (SELECT partition_id FROM sketched)"


def find_leftovers(tx: Transaction, layout: StoreLayout) -> tuple[Leftover, ...]:
    """Files in the folder of runs that no run refers to."""
    known = states.run_files(tx)
    with translate_errors(layout.state):
        try:
            entries = list(os.scandir(layout.state))
        except FileNotFoundError:
            return ()
        result = [
            Leftover(layout.run_file(entry.name), entry.stat().st_size)
            for entry in entries
            if entry.name.endswith(RUN_SUFFIX) and entry.name not in known
        ]
    return tuple(sorted(result, key=lambda leftover: leftover.path))


def collect_sketches(tx: Transaction, keep: int) -> Collected:
    """Remove older sketch versions and unused partitions; returns them."""
    versions = []
    for query_id, name in tx.execute("SELECT id, name FROM query ORDER BY name").fetchall():
        before = _row_bytes(tx, query_id)
        if removed := _trim(tx, query_id, max(1, keep)):
            versions.append(OldVersions(name, removed, before - _row_bytes(tx, query_id)))
    size = tx.execute(f"SELECT {_total('id', 'content')} {_PARTITIONS}").fetchone()[0]
    partitions = tx.execute(f"DELETE {_PARTITIONS}").rowcount
    return Collected(tuple(versions), partitions, int(size))


def _row_bytes(tx: Transaction, query_id: int) -> int:
    parts = (
        (_total("versions"), "sketch_version"),
        (_total("assumptions", "basis"), "sketch_basis"),
        (_total("access", "bits"), "sketch"),
        (_total("access", "table_name", "attribute", "partition_id"), "sketched"),
    )
    sizes = (f"SELECT {total} FROM {table} WHERE query_id = ?" for total, table in parts)
    return sum(int(tx.execute(size, (query_id,)).fetchone()[0]) for size in sizes)


def _total(*columns: str) -> str:
    """Bytes of these columns over all rows, as SQL."""
    lengths = " + ".join(f"length(CAST({column} AS BLOB))" for column in columns)
    return f"coalesce(sum({lengths}), 0)"


def _trim(tx: Transaction, query_id: int, keep: int) -> int:
    oldest = tx.execute(
        "SELECT * FROM sketch_version WHERE query_id = ? ORDER BY generation DESC LIMIT 1 OFFSET ?",
        (query_id, keep - 1),
    ).fetchone()
    if oldest is None:
        return 0
    generation, captured = tx.opened(oldest, "sketch_version")[1:3]
    older = "WHERE query_id = ? AND generation < ?"
    removed = tx.execute(f"DELETE FROM sketch_version {older}", (query_id, generation)).rowcount
    tx.execute(f"DELETE FROM sketch_basis {older}", (query_id, generation))
    tx.execute("DELETE FROM sketched WHERE query_id = ? AND captured < ?", (query_id, captured))
    tx.execute(f"DELETE FROM sketch {older}", (query_id, captured))
    # A row before `generation` is valid for it if the bits have not changed since.
    tx.execute(
        "DELETE FROM sketch WHERE query_id = ?1 AND generation < coalesce((SELECT"
        " max(later.generation) FROM sketch AS later WHERE later.query_id = ?1 AND"
        " later.access = sketch.access AND later.generation <= ?2), 0)",
        (query_id, generation),
    )
    return removed


# Verification of unused state files, the longest waiting first. Law: damage is reported with its
# query and changes nothing; using such a page reports it again. A file is due a day after it was
# written or last verified. A file of an earlier release with a single checksum is verified in full
# and gets one per page. Cost: the verified bytes, which are not kept in memory; if nothing is due,
# one catalog query and the times of files that were never verified.

DUE = 86_400.0
"""Seconds after which a file is verified again."""
_CHUNK = 1 << 20
_FILES = (
    "SELECT query.name, run.file, run.sums IS NULL, scrub.at, scrub.page"
    " FROM run JOIN query ON query.id = run.query_id LEFT JOIN scrub USING (file)"
    " WHERE run.file IS NOT NULL ORDER BY query.name"
)
_FORGET = "DELETE FROM scrub WHERE file NOT IN (SELECT file FROM run WHERE file IS NOT NULL)"


class ScrubResult(Struct, frozen=True):
    """Bytes verified, and what was damaged."""

    size: int = 0
    damaged: tuple[tuple[QueryName, StateCorruptError], ...] = ()


class _Waiting(Struct, frozen=True):
    """A file that is due: its run, and the page up to which it is verified."""

    since: float
    query: QueryName
    run: StoredRun
    page: int


def scrub(catalog: Catalog, layout: StoreLayout, budget: int, now: float) -> ScrubResult:
    """Verify `budget` bytes of files that are due, those without page checksums in full. The lock
    must be held. `now` is in seconds since 1970."""
    with catalog.reading() as tx:
        due = _waiting(tx, layout, now)
    done: list[tuple[_Waiting, int, bytes | None]] = []
    damaged = []
    size = 0
    for file in due if budget else ():
        if size >= budget and file.run.sums is not None:
            break
        try:
            verified, page, sums = _verify(file, layout, budget - size)
        except StateCorruptError as error:
            damaged.append((file.query, error))
        else:
            done.append((file, page, sums))
            size += verified
    if done:
        with suppress_full(), catalog.writing_unsynced() as tx:
            for file, page, sums in done:
                _note(tx, file, page, sums, now)
            tx.execute(_FORGET)
    return ScrubResult(size, tuple(damaged))


def _waiting(tx: Transaction, layout: StoreLayout, now: float) -> list[_Waiting]:
    """The files that are due, longest waiting first."""
    due: dict[QueryName, dict[str, tuple[float, int]]] = {}
    for name, file, is_older, at, page in tx.execute(_FILES).fetchall():
        since = _written_at(layout.run_file(file)) if at is None else at
        if page or is_older or now - since >= DUE:
            due.setdefault(name, {})[file] = (since, page or 0)
    result = [
        _Waiting(files[run.file][0], name, run, files[run.file][1])
        for name, files in due.items()
        for run in _runs_of(tx, name)
        if run.file in files
    ]
    return sorted(result, key=lambda due: (due.run.sums is not None, due.since, due.run.file))


def _written_at(file: Path) -> float:
    """When the file was written; 0 if a writer removed it meanwhile."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _runs_of(tx: Transaction, name: QueryName) -> tuple[StoredRun, ...]:
    """The query's runs; none if its rows are damaged, which is reported on use."""
    try:
        query = rows.find_query(tx, name)
        return () if query is None else states.stored_runs(tx, query.id, query.runs)
    except StateCorruptError:
        return ()


def _verify(file: _Waiting, layout: StoreLayout, budget: int) -> tuple[int, int, bytes | None]:
    """Verify up to `budget` bytes of the file; StateCorruptError if they are damaged. Returns the
    number of bytes, the last page, 0 for all, and new checksums if it had none."""
    run, path = file.run, layout.run_file(file.run.file or "")
    try:
        if run.sums is None:
            return run.size, 0, _sums_of_whole(run, file.query, path)
        last = -(-run.size // pages.PAGE)
        end = min(last, file.page + max(1, budget // pages.PAGE))
        _check_pages(run, file.query, path, file.page, end)
        return (end - file.page) * pages.PAGE, end if end < last else 0, None
    except OSError as error:
        raise states.corrupt_run(run, file.query, path, "cannot be read") from error


def _note(tx: Transaction, file: _Waiting, page: int, sums: bytes | None, now: float) -> None:
    """Record how far the file was verified, and its new checksums."""
    at = file.since if page else now
    tx.insert("scrub", (file.run.file, at, page), "INSERT OR REPLACE")
    if sums is not None:
        query = rows.find_query(tx, file.query)
        assert query is not None, "the lock is held"
        run = replace(file.run, checksum=zlib.crc32(sums), sums=sums)
        runs, _ = states.move_runs(tx, query.id, query.runs, (), [run])
        rows.save_progress(tx, replace(query, runs=runs))


def _sums_of_whole(run: StoredRun, query: QueryName, path: Path) -> bytes:
    checksum, sums = 0, pages.PageSums()
    for part in _parts(path, 0, run.size):
        checksum = zlib.crc32(part, checksum)
        sums.add(memoryview(part))
    if checksum != run.checksum:
        raise states.corrupt_run(run, query, path, "does not match its checksum")
    return sums.table()


def _check_pages(run: StoredRun, query: QueryName, path: Path, first: int, last: int) -> None:
    expected = run.sums or b""
    sums = pages.PageSums()
    for part in _parts(path, first * pages.PAGE, min(last * pages.PAGE, run.size)):
        sums.add(memoryview(part))
    if zlib.crc32(expected) != run.checksum or sums.table() != expected[4 * first : 4 * last]:
        raise states.corrupt_run(run, query, path, "does not match its checksums")


def _parts(path: Path, first: int, last: int) -> Iterator[bytes]:
    """The bytes of a file in parts."""
    descriptor = os.open(path, os.O_RDONLY | CAREFUL)
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
