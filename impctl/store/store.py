"""The store: the interface to the files that impctl owns.

Law: sketch, state and version of a query change together or not at all; a file is referenced only
after it is safe on disk and removed only after nothing references it. Commits take the writer's
lock unless the caller holds it; readers never wait.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from msgspec import Struct
from msgspec.structs import replace

from impctl.data import pages
from impctl.errors import StateCorruptError, StorageError
from impctl.store import rows, states
from impctl.store.catalog import (
    OWN_LOCK_TIMEOUT,
    Catalog,
    Transaction,
    copied_catalog,
    created_catalog,
    open_catalog,
)
from impctl.store.disk import (
    CAREFUL,
    RealDisk,
    StoreLayout,
    check_store_files,
    is_full,
    suppress_full,
    translate_errors,
)
from impctl.store.lock import Owner, WriterLock
from impctl.store.reader import KEPT_VERSIONS, StoreReader, collect_sketches, find_leftovers
from impctl.store.records import Collected
from impctl.store.states import StoredRun

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.forecast import History
    from impctl.store.records import MaintainCommit, NewCapture, Run, RunRecord, StateChoiceBasis
    from impctl.store.rows import Apply
    from impctl.types import QueryName, TableName

_WORTH_TELLING_MS = 20.0
"""Some hundred times the duration of the second, unsynced commit."""


class Store(StoreReader):
    """An open store; use as a context manager or call `close`."""

    def __init__(
        self, layout: StoreLayout, disk: RealDisk, catalog: Catalog, *, is_absent: bool = False
    ) -> None:
        super().__init__(layout, disk, catalog)
        self.is_absent = is_absent
        """Whether this is a copy in memory, since there is no catalog of the present format."""
        self._lock = WriterLock(layout, disk)
        self._is_swept = False
        self._unused: list[str] = []
        """Files of runs removed in the open transaction of several commits."""

    @staticmethod
    def exists(path: Path, *, is_shared: bool = False) -> bool:
        """Whether a store was created at `path`."""
        layout = StoreLayout(path)
        with translate_errors(path):
            check_store_files(layout, is_shared=is_shared)
            return layout.catalog.is_file()

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        create: bool = True,
        disk: RealDisk | None = None,
        is_shared: bool = False,
    ) -> Self:
        """Open the store at `path`; UsageError if others may write it, unless `is_shared`. Without
        `create`, a missing store looks empty and cannot be written; one of an older format is read
        as after its upgrade, and stays unchanged."""
        layout = StoreLayout(path)
        used = RealDisk() if disk is None else disk
        with translate_errors(path):
            check_store_files(layout, is_shared=is_shared)
            catalog = open_catalog(layout, used)
            if catalog is None and create:
                catalog = created_catalog(layout, used)
            if catalog is None:
                # A writer has to open it again, to create or upgrade it.
                return cls(layout, used, copied_catalog(layout, used), is_absent=True)
        return cls(layout, used, catalog)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        try:
            self._catalog.close()
        finally:
            self._lock.release()

    @property
    def path(self) -> Path:
        return self._layout.root

    @property
    def is_writable(self) -> bool:
        return self._catalog.is_writable

    # The lock

    @contextmanager
    def lock(
        self, timeout: float, owner: str = "impctl", *, sweep: bool = True
    ) -> Iterator[Owner | None]:
        """Hold the writer's lock; LockHeldError after `timeout` seconds. Yields the owner that died
        holding it before, if any. May be nested. Leftovers of killed writers are removed first,
        unless the caller is about to `collect`."""
        if self._lock.is_held:
            yield None
            return
        refusal = self._catalog.refusal
        if refusal is not None and not is_full(refusal):
            raise refusal
        recovered = self._lock.acquire(timeout, owner)
        try:
            if refusal is not None:
                # The catalog may have changed before the lock was ours.
                self._reopen()
            if sweep:
                self._sweep()
                self._check_room()
            yield recovered
        finally:
            self._lock.release()

    # Writing

    def commit_capture(
        self,
        capture: NewCapture,
        runs: Mapping[str, Sequence[tuple[int, pa.Table]]],
        record: RunRecord,
    ) -> int:
        """Replace everything the query had; returns the new generation. Sketches of earlier
        versions stay usable if query and tables are the same."""
        new = [(name, *run) for name, named in runs.items() for run in named]
        at = time.time()
        return self._publish(
            new, lambda tx, written: rows.apply_capture(tx, capture, written, record, at)
        )

    def commit_maintain(self, change: MaintainCommit) -> int:
        """Move a query forward; returns the new generation. RetryableError if it is not at
        `expected_generation`."""
        return self._publish(
            change.put_runs, lambda tx, written: rows.apply_maintain(tx, change, written)
        )

    def add_record(self, query: QueryName, record: RunRecord) -> None:
        """Record an action that committed nothing else; ignored for an unknown query."""
        with self._writing_unsynced() as tx:
            number = rows.query_id(tx, query)
            if number is not None:
                rows.add_record(tx, number, record)

    def amend_record(self, query: QueryName, record: RunRecord) -> None:
        """Replace the query's latest record once the cost of the commit is known."""
        with self._writing_unsynced() as tx:
            number = rows.query_id(tx, query)
            if number is not None:
                rows.replace_last_record(tx, number, record)

    def add_commit_time(self, query: QueryName, record: RunRecord, commit_ms: float) -> None:
        """Add a long commit to the query's latest record, which is `record`, and to its cost."""
        if commit_ms < _WORTH_TELLING_MS:
            return
        elapsed_ms, cost = record.elapsed_ms + commit_ms, record.cost
        if cost is not None:
            cost = replace(cost, elapsed_ms=cost.elapsed_ms + commit_ms)
        record = replace(record, elapsed_ms=elapsed_ms, commit_ms=commit_ms, cost=cost)
        self.amend_record(query, record)

    def save_arrivals(self, histories: Mapping[TableName, History]) -> None:
        with self._writing_unsynced() as tx:
            rows.save_arrivals(tx, histories)

    def save_chosen(self, basis: StateChoiceBasis | None) -> None:
        """Save the basis of the choice of state; None removes it."""
        with self._writing_unsynced() as tx:
            rows.save_chosen(tx, basis)

    def collect(self, *, keep: int = KEPT_VERSIONS) -> Collected:
        """Remove files without a run and sketch versions before the latest `keep`."""
        with self.lock(OWN_LOCK_TIMEOUT, sweep=False):
            result = self.collectable(keep)
            # Files first: on a full disk they free the space that the catalog's log takes.
            names = [file.path.name for file in result.files]
            removed = states.remove_files(names, self._layout, self._disk)
            self._is_swept = True
            files = [replace(file, removed=file.path.name in removed) for file in result.files]
            result = replace(result, files=tuple(files))
            try:
                if result.versions or result.partitions:
                    self._check_room()
                    with self._catalog.writing() as tx:
                        collect_sketches(tx, keep)
            except StorageError as error:
                if not is_full(error):
                    raise
                return Collected(files=result.files, refusal=error)
            with suppress_full():
                # Best effort: it rewrites the whole catalog.
                self._catalog.shrink()
            return result

    def scrub(self, budget: int) -> ScrubResult:
        """Verify `budget` bytes of the state not verified for longest."""
        with self.lock(OWN_LOCK_TIMEOUT):
            return _scrub(self._catalog, self._layout, budget, time.time())

    @contextmanager
    def _writing_unsynced(self) -> Iterator[Transaction]:
        with self.lock(OWN_LOCK_TIMEOUT), self._catalog.writing_unsynced() as tx:
            yield tx

    def _publish(self, runs: Sequence[Run], apply: Apply) -> int:
        """Write runs, then refer to them in one transaction, then remove what it replaced."""
        with self.lock(OWN_LOCK_TIMEOUT):
            written = states.write_runs(runs, self._layout, self._disk)
            is_applied = False
            try:
                with self._catalog.writing() as tx:
                    generation, unused = apply(tx, written)
                    is_applied = True
            except BaseException:
                if is_applied:
                    # A failed COMMIT may have reached the disk: the next writer finds out.
                    self._is_swept = False
                else:
                    states.discard_runs(written, self._layout, self._disk)
                raise
            self._unused += unused
            if not self._catalog.is_together:
                self._remove_unused()
            return generation

    @contextmanager
    def together(self) -> Iterator[None]:
        """One transaction for the commits inside, synced once at the end, also if an exception
        leaves the block. A failing commit rolls only itself back; if the transaction fails, none is
        committed and this raises. The lock must be held."""
        try:
            with self._catalog.together():
                yield
        except BaseException:
            # It may or may not be committed: files are left to the next sweep.
            self._unused.clear()
            self._is_swept = False
            raise
        self._remove_unused()

    def _remove_unused(self) -> None:
        unused, self._unused = self._unused, []
        states.remove_files(unused, self._layout, self._disk)

    def _reopen(self) -> None:
        """Reopen the catalog after a full disk, to read its present content and to write."""
        catalog = open_catalog(self._layout, self._disk)
        if catalog is not None:
            self._catalog.close()
            self._catalog = catalog

    def _check_room(self) -> None:
        """Raise if the disk is still too full to write the catalog."""
        if self._catalog.refusal is not None:
            self._reopen()
        if self._catalog.refusal is not None:
            raise self._catalog.refusal

    def _sweep(self) -> None:
        """Remove leftovers of a killed writer; once per open store."""
        if self._is_swept:
            return
        with self._catalog.reading() as tx:
            leftovers = find_leftovers(tx, self._layout)
        names = (leftover.path.name for leftover in leftovers)
        states.remove_files(names, self._layout, self._disk)
        self._is_swept = True


# Verification of unused state files, the longest waiting first. Law: damage is reported with its
# query and changes nothing; using such a page reports it again. A file is due a day after it was
# written or last verified. Cost: the verified bytes, which are not kept in memory; if nothing is
# due, one catalog query and the times of files that were never verified.

DUE = 86_400.0
"""Seconds after which a file is verified again."""
_CHUNK = 1 << 20
_FILES = (
    "SELECT query.name, run.file, scrub.at, scrub.page"
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


def _scrub(catalog: Catalog, layout: StoreLayout, budget: int, now: float) -> ScrubResult:
    """Verify `budget` bytes of files that are due. The lock must be held. `now` is in seconds since
    1970."""
    with catalog.reading() as tx:
        due = _waiting(tx, layout, now)
    done: list[tuple[str | None, float, int]] = []
    damaged = []
    size = 0
    for file in due:
        if size >= budget:
            break
        try:
            verified, page = _verify(file, layout, budget - size)
        except StateCorruptError as error:
            damaged.append((file.query, error))
        else:
            done.append((file.run.file, file.since if page else now, page))
            size += verified
    if done:
        with suppress_full(), catalog.writing_unsynced() as tx:
            tx.executemany("INSERT OR REPLACE INTO scrub VALUES (?, ?, ?)", done)
            tx.execute(_FORGET)
    return ScrubResult(size, tuple(damaged))


def _waiting(tx: Transaction, layout: StoreLayout, now: float) -> list[_Waiting]:
    """The files that are due, longest waiting first."""
    due: dict[QueryName, dict[str, tuple[float, int]]] = {}
    for name, file, at, page in tx.execute(_FILES).fetchall():
        since = _written_at(layout.run_file(file)) if at is None else at
        if page or now - since >= DUE:
            due.setdefault(name, {})[file] = (since, page or 0)
    result = [
        _Waiting(files[run.file][0], name, run, files[run.file][1])
        for name, files in due.items()
        for run in _runs_of(tx, name)
        if run.file in files
    ]
    return sorted(result, key=lambda due: (due.since, due.run.file))


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


def _verify(file: _Waiting, layout: StoreLayout, budget: int) -> tuple[int, int]:
    """Verify up to `budget` bytes of the file; StateCorruptError if they are damaged. Returns the
    number of bytes, and the last page, 0 for all."""
    run, path = file.run, layout.run_file(file.run.file or "")
    last, stored = -(-run.size // pages.PAGE), run.sums or b""
    end = min(last, file.page + max(1, budget // pages.PAGE))
    sums = pages.PageSums()
    try:
        for part in _parts(path, file.page * pages.PAGE, min(end * pages.PAGE, run.size)):
            sums.add(memoryview(part))
    except OSError as error:
        raise states.corrupt_run(run, file.query, path, "cannot be read") from error
    is_intact = zlib.crc32(stored) == run.checksum
    if not is_intact or sums.table() != stored[4 * file.page : 4 * end]:
        raise states.corrupt_run(run, file.query, path, "does not match its checksums")
    return (end - file.page) * pages.PAGE, end if end < last else 0


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
