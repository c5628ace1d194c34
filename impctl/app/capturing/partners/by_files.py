"""Rows that a circuit does not keep, read by the engine from the tables' files, without a JVM.

Law: the rows of a side with the keys asked for are those of its plan at exactly these versions,
with the fragments that the engine's own scan gives them; rows of other keys may come along.
Out of scope: which sides are read so (`compile.flows`), in which order their tables are
(`compile.session`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from impctl.app.preparing.joined_files import Uris
from impctl.app.preparing.wanted_files import files_under, wanted_files
from impctl.app.workbench.workbench import Workbench
from impctl.compile.compile import Compiled
from impctl.compile.fill import Transient
from impctl.compile.flows import Readable, Source
from impctl.compile.session import read_in_turn
from impctl.data.vector import Vector
from impctl.engine.batch import Batch, empty_batch
from impctl.expr.nodes import Expr
from impctl.plan.moved_conditions import MovedConditions
from impctl.plan.nodes import Aggregate, Distinct, Plan, nodes_of
from impctl.sketch.partition import RangePartition
from impctl.tables.lookup import ReadOnce, rows_with
from impctl.tables.rows import read_batches, read_rows
from impctl.tables.snapshot import Snapshot
from impctl.types import AccessId, ColumnName, TableName, TableVersion
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class FilePartners:
    """Reads sides of the joins of one circuit at `versions` (others: pinned)."""

    desk: Workbench
    compiled: Compiled
    partitions: Mapping[AccessId, RangePartition]
    versions: Mapping[TableName, TableVersion]

    def rows(self, side: str, keys: Sequence[Vector]) -> Batch:
        """The rows of a side with these keys.

        Raises HistoryGoneError for a file that is gone.
        """
        self.desk.reporter.step(f"reading rows with {len(keys[0]):,} join keys")
        return self._read(self.compiled.read_side(side), keys)

    def _read(self, wanted: Readable, keys: Sequence[Vector]) -> Batch:
        reading = Transient(wanted, self.partitions)
        snapshots = {access: self._snapshot(one.table) for access, one in reading.sources.items()}
        sizes = {access: snapshot.likely_rows for access, snapshot in snapshots.items()}
        files = wanted_files(wanted.rows, snapshots)

        def read(source: Source, asked: Mapping[ColumnName, Sequence[Vector]]) -> pa.Table:
            return _rows(snapshots[source.access], source, asked, files, self.desk.tables.once)

        tables = read_in_turn(wanted, reading.sources, keys, sizes, read)
        return empty_batch(len(wanted.accesses)) if tables is None else reading.rows(tables)

    def whole(self, side: str) -> Iterator[Batch]:
        """All rows of a side; of one table's in parts, which bound the memory, unless they are
        rows of groups, whose own rows may lie in several parts."""
        wanted = self.compiled.read_side(side)
        sources = Transient(wanted, self.partitions).sources
        if len(sources) > 1 or _has_groups(wanted.rows):
            yield self._read(wanted, ())
            return
        ((access, source),) = sources.items()
        snapshot = self._snapshot(source.table)
        uris = wanted_files(wanted.rows, {access: snapshot})[access]
        chosen = [file for file in snapshot.files if file.uri in uris]
        for rows in read_batches(snapshot, source.scan.table_columns, chosen):
            yield Transient(wanted, self.partitions).rows({access: rows})

    def moved(self, side: str, before: Expr, after: Expr) -> Iterator[Batch]:
        """The rows of a side over one table that meet the one condition and not the other, of files
        that may hold some; in parts."""
        self.desk.reporter.step("reading rows affected by a changed scalar")
        wanted = self.compiled.read_side(side)
        ((access, source),) = Transient(wanted, self.partitions).sources.items()
        snapshot = self._snapshot(source.table)
        moved = MovedConditions((before,), (after,)).rows_that_move
        uris = {uri for parts in moved for uri in files_under(wanted.rows, parts, snapshot)}
        chosen = [file for file in snapshot.files if file.uri in uris]
        for rows in read_batches(snapshot, source.scan.table_columns, chosen):
            yield Transient(wanted, self.partitions).rows({access: rows})

    def _snapshot(self, table: TableName) -> Snapshot:
        return self.desk.tables.snapshot(table, self.versions.get(table))


def _has_groups(plan: Plan) -> bool:
    return any(isinstance(node, Aggregate | Distinct) for node in nodes_of(plan))


def _rows(
    snapshot: Snapshot,
    source: Source,
    asked: Mapping[ColumnName, Sequence[Vector]],
    files: Uris,
    once: ReadOnce,
) -> pa.Table:
    """The rows of the source's files with one of each list's values."""
    columns, uris = source.scan.table_columns, files[source.access]
    chosen = [file for file in snapshot.files if file.uri in uris]
    if not asked:
        return read_rows(snapshot, columns, chosen)
    parts = list(rows_with(snapshot, columns, asked, chosen, once))
    return pa.concat_tables(parts) if parts else read_rows(snapshot, columns, [])
