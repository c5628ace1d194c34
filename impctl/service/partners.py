"""Rows that a circuit does not keep, read by Spark or from files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from impctl.compile.fill import Transient
from impctl.compile.flows import RANGE_COLUMN, Readable, Source, Strategy
from impctl.compile.session import read_in_turn
from impctl.data.keys import group_rows
from impctl.data.schema import INTEGER, Kind
from impctl.data.vector import Vector, from_arrow
from impctl.engine.batch import Batch, empty_batch
from impctl.engine.tags import RowTags
from impctl.plan.lineage import MovedConditions
from impctl.plan.nodes import Aggregate, Distinct
from impctl.rules.pushdown import column_behind
from impctl.service.filters import Uris, files_under, wanted_files
from impctl.spark.render import render_plan
from impctl.stopwatch import Stopwatch
from impctl.store.records import SideRead
from impctl.tables.rows import read_batches, read_rows, rows_with
from impctl.tables.snapshot import DataFile, Snapshot, arrow_type
from impctl.tables.statistics import prune_to_values
from impctl.types import AccessId, ColumnName, TableName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from impctl.compile.compile import Dataflow
    from impctl.expr.nodes import Expr
    from impctl.service.context import Context, Versions
    from impctl.sketch.sketch import RangePartition


# The range of a row is that of the engine's scan.


def tagged_frame(
    ctx: Context,
    snapshot: Snapshot,
    columns: Sequence[ColumnName],
    partition: RangePartition | None,
    files: Sequence[DataFile] | None = None,
) -> DataFrame:
    """Rows of the snapshot, or of some of its files, in at least these columns. With a partition
    also its attribute, and the range as `RANGE_COLUMN`."""
    from impctl.spark.sketches import with_range_id
    from impctl.spark.snapshots import snapshot_frame

    if partition is None:
        return snapshot_frame(ctx.spark(), snapshot, columns, files)
    read = list(dict.fromkeys([*columns, partition.attribute]))
    frame = snapshot_frame(ctx.spark(), snapshot, read, files)
    return with_range_id(frame, partition, partition.attribute, RANGE_COLUMN)


# Law: the rows of a side are those of its plan at the versions that a step leads to, with ranges
# of the engine's scan; from files, rows of other keys may be included. Files that conditions, joins
# or keys exclude are skipped. Reads of files are counted and timed, and start no JVM.

_SLICE_ROWS = 8_000_000
"""Rows of the longest joined table per slice of pairs: some hundred megabytes."""

_MANY_KEYS = 100_000
"""So many keys occur in most files and take longer to sort than a search by them saves."""


class PartnerReader(Struct, frozen=True):
    """Reads sides of a circuit's joins, and whole joins, at `versions` (others: pinned): each side
    as its capture chose, from files or in Spark."""

    ctx: Context
    compiled: Dataflow
    partitions: Mapping[AccessId, RangePartition]
    versions: Versions
    _done: dict[str, SideRead] = field(default_factory=dict)

    def rows(self, side: str, keys: Sequence[Vector]) -> Batch:
        """As `engine.lookups.RowReader`: the rows of a side with these keys; HistoryGoneError for a
        missing file."""
        self.ctx.reporter.step(f"reading rows with {len(keys[0]):,} join keys")
        wanted = self.compiled.read_side(side)
        if side not in self._from_files:
            return self._by_spark(wanted, keys)
        watch = Stopwatch()
        result = self._by_files(wanted, keys)
        ms, count, hits = watch.ms, len(keys[0]), 0
        if len(result):
            # Rows of other keys may be included.
            columns = [result.columns[key] for key in wanted.keys]
            hits = min(count, len(group_rows(columns, len(result)).codes))
        self._note(SideRead(side, count, hits, len(result), ms))
        return result

    def reads(self) -> tuple[SideRead, ...]:
        """What was read of each side that is read from files, even if nothing."""
        return tuple(self._done.get(side, SideRead(side)) for side in sorted(self._from_files))

    @property
    def _from_files(self) -> Collection[str]:
        return self.compiled.sides_by(Strategy.FILES)

    def _note(self, read: SideRead) -> None:
        done = self._done.get(read.side, SideRead(read.side))
        self._done[read.side] = SideRead(
            read.side,
            done.keys + read.keys,
            done.hits + read.hits,
            done.rows + read.rows,
            done.ms + read.ms,
        )

    def _snapshot(self, table: TableName) -> Snapshot:
        return self.ctx.tables.snapshot(table, self.versions.get(table))

    # Read by Spark

    def _by_spark(self, wanted: Readable, keys: Sequence[Vector]) -> Batch:
        from impctl.spark.run import with_keys

        names = [name for name, _ in wanted.columns]
        places = [names.index(key) for key in wanted.keys]
        table = pa.table([_typed(key) for key in keys], [f"k{at}" for at in range(len(keys))])
        spark, files = self.ctx.spark(), self._files(wanted)
        for key, values in zip(wanted.keys, keys, strict=True):
            column = column_behind(wanted.plan, key)
            if column is not None and len(values) <= _MANY_KEYS:
                # Skip files that hold none of the requested values.
                (scan,) = (scan for scan in wanted.plan.scans if scan.access == column.access)
                matching = prune_to_values(
                    self._snapshot(scan.table), {column.attribute.name: values}
                )
                files[column.access] &= {file.uri for file in matching}
        return self._spark_rows(wanted, files, lambda rows: with_keys(spark, rows, places, table))

    def pairs(self, joined: Readable) -> Iterator[Batch]:
        """All rows of a join, slice by slice."""
        from impctl.spark.run import slice_of

        files = self._files(joined)
        longest = max(self._snapshot(scan.table).likely_rows for scan in joined.plan.scans)
        slices = max(1, -(-longest // _SLICE_ROWS))
        for number in range(slices):
            yield self._spark_rows(joined, files, partial(slice_of, number=number, slices=slices))

    def _files(self, wanted: Readable) -> Uris:
        snapshots = {scan.access: self._snapshot(scan.table) for scan in wanted.plan.scans}
        return wanted_files(wanted.plan, snapshots)

    def _spark_rows(
        self, wanted: Readable, files: Uris, chosen: Callable[[DataFrame], DataFrame]
    ) -> Batch:
        from impctl.spark.run import plain_failures, selected

        views = {scan.access: f"impctl_side{index}" for index, scan in enumerate(wanted.plan.scans)}
        frames = {}
        for scan in wanted.plan.scans:
            snapshot, partition = self._snapshot(scan.table), self.partitions.get(scan.access)
            names = [a.name for a in scan.attributes if a.name != RANGE_COLUMN]
            chosen_files = [file for file in snapshot.files if file.uri in files[scan.access]]
            frames[views[scan.access]] = tagged_frame(
                self.ctx, snapshot, names, partition, chosen_files
            )
        spark = self.ctx.spark()
        with plain_failures(self.versions):
            table = chosen(selected(spark, render_plan(wanted.plan, views), frames)).toArrow()
        columns = {
            name: from_arrow(table.column(index), kind)
            for index, (name, kind) in enumerate(wanted.columns)
        }
        first = len(wanted.columns)
        tags = tuple(
            RowTags(from_arrow(table.column(first + position), INTEGER).values.astype(np.int32))
            for position in range(len(wanted.accesses))
        )
        return Batch(columns, np.ones(table.num_rows, dtype=np.int64), tags)

    # Read by the engine

    def _by_files(self, wanted: Readable, keys: Sequence[Vector]) -> Batch:
        reading = Transient(wanted, self.partitions)
        snapshots = {access: self._snapshot(side.table) for access, side in reading.sources.items()}
        sizes = {access: snapshot.likely_rows for access, snapshot in snapshots.items()}
        files = wanted_files(wanted.rows, snapshots)

        def read(source: Source, keys: Mapping[ColumnName, Sequence[Vector]]) -> pa.Table:
            snapshot, columns = snapshots[source.access], source.scan.table_columns
            chosen = [file for file in snapshot.files if file.uri in files[source.access]]
            if not keys:
                return read_rows(snapshot, columns, chosen)
            parts = list(rows_with(snapshot, columns, keys, chosen, self.ctx.tables.once))
            return pa.concat_tables(parts) if parts else read_rows(snapshot, columns, [])

        tables = read_in_turn(wanted, reading.sources, keys, sizes, read)
        return empty_batch(len(wanted.accesses)) if tables is None else reading.rows(tables)

    def whole(self, side: str) -> Iterator[Batch]:
        """As `engine.lookups.RowReader`: all rows of a side that is read from files. A single table
        is read in parts, which bound the memory; rows of groups are not, since a group may lie in
        several parts."""
        assert side in self._from_files
        wanted = self.compiled.read_side(side)
        sources = Transient(wanted, self.partitions).sources
        nodes = wanted.rows.walk()
        if len(sources) > 1 or any(isinstance(node, Aggregate | Distinct) for node in nodes):
            yield self._by_files(wanted, ())
            return
        ((access, source),) = sources.items()
        snapshot = self._snapshot(source.table)
        uris = wanted_files(wanted.rows, {access: snapshot})[access]
        yield from self._batches(wanted, source, uris)

    def moved(self, side: str, before: Expr, after: Expr) -> Iterator[Batch]:
        """As `engine.lookups.RowReader`: the rows of a one-table side that meet exactly one of two
        conditions, in parts."""
        assert side in self._from_files
        watch, rows = Stopwatch(), 0
        self.ctx.reporter.step("reading rows affected by a changed scalar")
        wanted = self.compiled.read_side(side)
        ((_, source),) = Transient(wanted, self.partitions).sources.items()
        snapshot = self._snapshot(source.table)
        moved = MovedConditions((before,), (after,)).rows_that_move
        uris = {uri for parts in moved for uri in files_under(wanted.rows, parts, snapshot)}
        for batch in self._batches(wanted, source, uris):
            rows += len(batch)
            yield batch
        self._note(SideRead(side, 1, 1, rows, watch.ms))

    def _batches(self, wanted: Readable, source: Source, uris: Collection[str]) -> Iterator[Batch]:
        snapshot = self._snapshot(source.table)
        chosen = [file for file in snapshot.files if file.uri in uris]
        for rows in read_batches(snapshot, source.scan.table_columns, chosen):
            yield Transient(wanted, self.partitions).rows({source.access: rows})


def _typed(key: Vector) -> pa.Array:
    """The keys as Spark takes them; the loop over wide numbers is bounded by the keys requested."""
    kind, mask = key.type, None if key.valid is None else ~key.valid
    if key.is_textual:
        return key.to_arrow()
    if kind.kind is Kind.DECIMAL:
        # Made from text, because arithmetic on Decimals rounds to 28 digits.
        values = [
            Decimal(f"{value}e-{kind.scale}") if ok else None
            for value, ok in zip(key.values.tolist(), key.validity().tolist(), strict=True)
        ]
        return pa.array(values, arrow_type(kind))
    if kind.kind is Kind.DATE:
        return pa.array(key.values.astype(np.int32), mask=mask).cast(pa.date32())
    return pa.array(key.values, mask=mask).cast(arrow_type(kind))
