"""The reading half of a store: changes no file and never waits for a writer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from impctl.errors import StateCorruptError
from impctl.store import rows, states
from impctl.store.catalog import Catalog, Transaction
from impctl.store.disk import RUN_SUFFIX, RealDisk, StoreLayout, translate_errors
from impctl.store.records import Collected, Leftover, OldVersions, RunRef

if TYPE_CHECKING:
    from impctl.data.pages import StoredTable
    from impctl.forecast import History
    from impctl.store.records import KeptVersion, RunCost, RunRecord, StateChoiceBasis, StoredQuery
    from impctl.store.rows import Partitions
    from impctl.types import QueryName, TableName, TableVersion

_READ_ATTEMPTS = 3
"""Attempts to read runs whose files a writer may replace meanwhile."""


KEPT_VERSIONS = 32
"""Sketch versions of each query that `collect` leaves."""


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
        exactly these versions of all its tables. Commits without a basis are skipped."""
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


# Removal. Law: only files without a run are removed, and only under the writer's lock; the latest
# `keep` sketch versions of a query stay.

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
