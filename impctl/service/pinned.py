"""The tables of a run, each pinned at the version that was newest when it was first used.

Law: a pinned version stays for the whole run, unless an older one is pinned before anything was
computed from it, or the run itself has changed the table; a snapshot is taken once. These tables
give access to neither store nor Spark, which only resolves the path of a catalog's table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from impctl.errors import ImpctlError
from impctl.sql.names import CATALOG_SCHEME
from impctl.tables.log import FilesMark, PinnedTable, files_mark, open_newest, pin_table
from impctl.tables.source import DeltaSource, advance, clone_roots, open_source
from impctl.workload.sections import require_credentials

if TYPE_CHECKING:
    from impctl.sketch.partition import RangePartition
    from impctl.tables.rows import ColumnCache
    from impctl.tables.sample import KeyColumns, KeyCounts
    from impctl.tables.snapshot import Snapshot
    from impctl.types import ColumnName, TableName, TableVersion
    from impctl.workload.models import TableSpec


class PinnedTables:
    """The workload's tables, opened on first use."""

    def __init__(
        self,
        specs: Mapping[TableName, TableSpec],
        locate: Callable[[str], str] = lambda name: CATALOG_SCHEME + name,
    ) -> None:
        self._specs = specs
        self._locate = locate
        """The path of a table by its catalog name, looked up once per run."""
        self._located: dict[TableName, str] = {}
        self._sources: dict[TableName, DeltaSource] = {}
        self._seen: dict[TableName, PinnedTable] = {}
        self._snapshots: dict[tuple[TableName, int], Snapshot] = {}
        self._files_marks: dict[tuple[TableName, int], FilesMark] = {}
        self._key_counts: dict[tuple[TableName, int, KeyColumns, int], KeyCounts] = {}
        self._partitions: dict[tuple[TableName, int, ColumnName, int], RangePartition] = {}
        self._least_above: dict[tuple[TableName, int, ColumnName, int], int | None] = {}
        self._recalled: dict[TableName, PinnedTable] = {}
        self._once: ColumnCache | None = None

    def recall(self, known: Mapping[TableName, PinnedTable]) -> None:
        """Reuse tables pinned by an earlier, finished run of this process: where that is safe, only
        additions to a table's log are read."""
        self._recalled.update(known)

    @property
    def seen(self) -> Mapping[TableName, PinnedTable]:
        """The tables used so far, as pinned."""
        return self._seen

    def source(self, table: TableName) -> DeltaSource:
        """The table, pinned at the version that was newest when first used."""
        result = self._sources.get(table)
        if result is None:
            result = self._again(table) or self.opened(table)
            self.pin(result)
        return result

    @property
    def once(self) -> ColumnCache:
        """What was decoded of files in this run, shared by all lookups."""
        from impctl.tables.rows import ColumnCache

        if self._once is None:
            self._once = ColumnCache()
        return self._once

    @property
    def unused(self) -> Mapping[TableName, PinnedTable]:
        """Recalled tables that were not used."""
        return self._recalled

    def _again(self, table: TableName) -> DeltaSource | None:
        known, spec = self._recalled.pop(table, None), self._specs[table]
        if (
            known is None
            or known.source.path != self._path(spec)
            or known.source.storage_options != (dict(spec.storage_options) or None)
            or known.source.clone_of != clone_roots(spec.clone_of)
        ):
            return None
        try:
            return open_newest(known)
        except ImpctlError:
            return None

    def opened(self, table: TableName) -> DeltaSource:
        """The table opened now at its newest version and not pinned, for a writer."""
        spec = self._specs[table]
        path = self._path(spec)
        if not spec.ambient:
            for place in (path, *spec.clone_of):
                require_credentials(table, place, spec.storage_options, os.environ)
        return open_source(table, path, dict(spec.storage_options) or None, spec.clone_of)

    def _path(self, spec: TableSpec) -> str:
        if not spec.path.startswith(CATALOG_SCHEME):
            return spec.path
        if spec.name not in self._located:
            name = spec.path.removeprefix(CATALOG_SCHEME)
            self._located[spec.name] = self._locate(name)
        return self._located[spec.name]

    def versions_of(self, tables: Iterable[TableName]) -> dict[TableName, TableVersion]:
        return {table: self.source(table).version for table in tables}

    def pin(self, source: DeltaSource) -> None:
        self._sources[source.name] = source
        self._seen[source.name] = pin_table(source)

    def mark(self, table: TableName) -> str | None:
        """The mark of the table's pinned commit, taken when it was pinned."""
        self.source(table)
        return self._seen[table].mark

    def repin(self, table: TableName) -> DeltaSource:
        """Open the table again after a change: it may have been replaced."""
        self._sources.pop(table, None)
        self.list_anew(table)
        return self.source(table)

    def pin_at(self, table: TableName, version: TableVersion) -> None:
        """Pin an older version, before any other use; errors as of `DeltaSource.snapshot`."""
        self.pin(self.source(table).at(version))

    def advance(self, table: TableName) -> DeltaSource:
        """Pin a table that only this process writes at its newest version."""
        result = self._sources[table] = advance(self.source(table))
        # As in a run of its own, which finds nothing decoded.
        self._once = None
        self._seen[table] = PinnedTable(result, None, None)
        return result

    def snapshot(self, table: TableName, version: TableVersion | None = None) -> Snapshot:
        """The table's snapshot at a version (default: the pinned one)."""
        source = self.source(table)
        key = (table, source.version if version is None else version)
        if key not in self._snapshots:
            self._snapshots[key] = source.snapshot(key[1])
        return self._snapshots[key]

    def list_anew(self, table: TableName) -> None:
        """Forget a table's file list, so that the next measurement pays for listing it."""
        self._snapshots = {key: held for key, held in self._snapshots.items() if key[0] != table}
        self._files_marks = {k: mark for k, mark in self._files_marks.items() if k[0] != table}
        self._key_counts = {k: held for k, held in self._key_counts.items() if k[0] != table}
        self._partitions = {k: held for k, held in self._partitions.items() if k[0] != table}
        self._least_above = {k: held for k, held in self._least_above.items() if k[0] != table}

    def files_mark(self, table: TableName) -> FilesMark:
        """The mark of the snapshot's files, taken once."""
        snapshot = self.snapshot(table)
        key = (table, snapshot.version)
        if key not in self._files_marks:
            self._files_marks[key] = files_mark(snapshot)
        return self._files_marks[key]

    def key_counts(self, table: TableName, columns: KeyColumns, one_in: int) -> KeyCounts:
        """The keys of the table's snapshot, counted once; errors as of `read_batches`."""
        from impctl.tables.sample import MANY_ROWS, key_counts, sampled_counts

        snapshot = self.snapshot(table)
        key = (table, snapshot.version, columns, one_in)
        if key in self._key_counts:
            return self._key_counts[key]
        if one_in > 1 and snapshot.likely_rows <= MANY_ROWS:
            # All keys of such a table are needed too, and it is read once for both.
            result = sampled_counts(self.key_counts(table, columns, 1), one_in)
        else:
            result = key_counts(snapshot, columns, one_in)
        self._key_counts[key] = result
        return result

    def partition(
        self,
        table: TableName,
        column: ColumnName,
        together: int,
        make: Callable[[], RangePartition],
    ) -> RangePartition:
        """Proposed ranges of a column, made once for all queries with the same `together`."""
        key = (table, self.snapshot(table).version, column, together)
        if key not in self._partitions:
            self._partitions[key] = make()
        return self._partitions[key]

    def least_above(
        self, key: tuple[TableName, int, ColumnName, int], make: Callable[[], int | None]
    ) -> int | None:
        """The least value above one, in a column of a table at a version, computed once."""
        if key not in self._least_above:
            self._least_above[key] = make()
        return self._least_above[key]

    def rows_of(self, tables: Sequence[TableName]) -> int:
        """Rows of these tables as pinned, estimated from bytes where the log is silent."""
        return sum(self.snapshot(table).likely_rows for table in tables)
