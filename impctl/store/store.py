"""The store: the interface to the files that impctl owns.

Law: sketch, state and version of a query change together or not at all; a file is referenced only
after it is safe on disk and removed only after nothing references it. Commits take the writer's
lock unless the caller holds it; readers never wait.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from msgspec.structs import replace

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
    RealDisk,
    StoreLayout,
    check_store_files,
    is_full,
    suppress_full,
    translate_errors,
)
from impctl.store.health import KEPT_VERSIONS, ScrubResult, collect_sketches, find_leftovers, scrub
from impctl.store.lock import HeldLock, WriterLock
from impctl.store.records import Collected, RunRef

if TYPE_CHECKING:
    import pyarrow as pa

    from impctl.data.pages import StoredTable
    from impctl.forecast import History
    from impctl.store.records import (
        KeptVersion,
        MaintainCommit,
        NewCapture,
        Run,
        RunCost,
        RunRecord,
        StateChoiceBasis,
        StoredQuery,
    )
    from impctl.store.rows import Apply, Partitions
    from impctl.types import QueryName, TableName, TableVersion

_WORTH_TELLING_MS = 20.0
"""Some hundred times the duration of the second, unsynced commit."""

_READ_ATTEMPTS = 3
"""Attempts to read runs whose files a writer may replace meanwhile."""


class Store:
    """An open store; use as a context manager or call `close`."""

    def __init__(
        self, layout: StoreLayout, disk: RealDisk, catalog: Catalog, *, is_absent: bool = False
    ) -> None:
        self.is_absent = is_absent
        """Whether this is a copy in memory, since there is no catalog of the present format."""
        self._layout = layout
        self._disk = disk
        self._catalog = catalog
        self._lock = WriterLock(layout, disk)
        self._is_swept = False
        self._partitions: Partitions = {}
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
    ) -> Iterator[HeldLock]:
        """Hold the writer's lock; LockHeldError after `timeout` seconds. May be nested. Leftovers
        of killed writers are removed first, unless the caller is about to `collect`."""
        if self._lock.is_held:
            yield HeldLock()
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
            yield HeldLock(recovered)
        finally:
            self._lock.release()

    # Reading

    def load(self, query: QueryName) -> StoredQuery | None:
        """The stored query; None if it was never captured."""
        with self._catalog.reading() as tx:
            return rows.load_query(tx, query, self._partitions)

    def queries(self) -> tuple[QueryName, ...]:
        """Names of all captured queries, sorted."""
        with self._catalog.reading() as tx:
            return rows.query_names(tx)

    def history(self, query: QueryName, limit: int = 20) -> tuple[RunRecord, ...]:
        with self._catalog.reading() as tx:
            number = rows.query_id(tx, query)
            return () if number is None else rows.load_records(tx, number, limit)

    def costs(self, query: QueryName) -> tuple[RunCost, ...]:
        with self._catalog.reading() as tx:
            number = rows.query_id(tx, query)
            return () if number is None else rows.load_costs(tx, number)

    def arrivals(self, tables: Iterable[str], *, is_whole: bool = True) -> dict[TableName, History]:
        """The known latest commits of these tables; see `store.rows`."""
        with self._catalog.reading() as tx:
            return rows.load_arrivals(tx, tables, is_whole=is_whole)

    def chosen(self) -> StateChoiceBasis | None:
        with self._catalog.reading() as tx:
            return rows.load_chosen(tx)

    def kept(
        self, query: QueryName, versions: Mapping[TableName, TableVersion] | None = None
    ) -> tuple[KeptVersion, ...]:
        """The commits of the query whose sketches are still stored, newest first: all, or those for
        exactly these versions of all its tables. Commits before format 4 are skipped."""
        with self._catalog.reading() as tx:
            return rows.kept_versions(tx, query, versions)

    def load_kept(self, query: QueryName, generation: int) -> StoredQuery | None:
        """What `load` returned after that commit, its basis as `state_meta`; None if it is gone."""
        with self._catalog.reading() as tx:
            return rows.load_kept(tx, query, generation, self._partitions)

    def run_refs(self, query: QueryName) -> tuple[RunRef, ...]:
        """The runs of the query's state, without reading them."""
        return tuple(
            RunRef(run.arrangement, run.sequence, run.rows, run.size, run.file is not None)
            for run in self._stored_runs(query)[1]
        )

    def load_runs(
        self, query: QueryName, beginning: str = ""
    ) -> dict[str, list[tuple[int, StoredTable]]]:
        """The state of the query: runs by arrangement, ascending by sequence. Only arrangements
        whose name starts with `beginning`. StateCorruptError for missing or altered data: now, or
        when its page is used (`data.pages`)."""
        for attempt in range(_READ_ATTEMPTS):
            generation, stored = self._stored_runs(query)
            runs: dict[str, list[tuple[int, StoredTable]]] = {}
            try:
                for run in stored:
                    if run.arrangement.startswith(beginning):
                        table = states.read_run(run, query, self._layout)
                        runs.setdefault(run.arrangement, []).append((run.sequence, table))
            except StateCorruptError:
                # A writer may have replaced the files meanwhile, with a new generation.
                is_same = self._stored_runs(query)[0] == generation
                if is_same or attempt == _READ_ATTEMPTS - 1:
                    raise
            else:
                return runs
        return {}

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
        """Verify `budget` bytes of the state not verified for longest; see `store.health`."""
        with self.lock(OWN_LOCK_TIMEOUT):
            return scrub(self._catalog, self._layout, budget, time.time())

    def collectable(self, keep: int = KEPT_VERSIONS) -> Collected:
        # A read transaction is rolled back at its end, whatever was done in it.
        with self._catalog.reading() as tx:
            leftovers = find_leftovers(tx, self._layout)
            return replace(collect_sketches(tx, keep), files=leftovers)

    def _stored_runs(self, query: QueryName) -> tuple[int, tuple[states.StoredRun, ...]]:
        with self._catalog.reading() as tx:
            row = rows.find_query(tx, query)
            if row is None:
                return 0, ()
            return row.generation, states.stored_runs(tx, row.id, row.runs)

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
        """One transaction for the commits inside, synced once at the end: all are committed, or it
        raises and none is. A failing one rolls only itself back. The lock must be held."""
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
