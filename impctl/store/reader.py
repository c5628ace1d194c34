"""The reading half of a store: changes no file and never waits for a writer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from impctl.errors import StateCorruptError
from impctl.store import rows, states
from impctl.store.catalog import Catalog
from impctl.store.disk import RealDisk, StoreLayout
from impctl.store.health import KEPT_VERSIONS, collect_sketches, find_leftovers
from impctl.store.records import Collected, RunRef

if TYPE_CHECKING:
    from impctl.data.pages import StoredTable
    from impctl.forecast import History
    from impctl.store.records import (
        KeptVersion,
        RunCost,
        RunRecord,
        StateChoiceBasis,
        StoredQuery,
    )
    from impctl.store.rows import Partitions
    from impctl.types import QueryName, TableName, TableVersion

_READ_ATTEMPTS = 3
"""Attempts to read runs whose files a writer may replace meanwhile."""


class StoreReader:
    """What an open store has; `store.store` opens it."""

    def __init__(self, layout: StoreLayout, disk: RealDisk, catalog: Catalog) -> None:
        self._layout = layout
        self._disk = disk
        self._catalog = catalog
        self._partitions: Partitions = {}

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
