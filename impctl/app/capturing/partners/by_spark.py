"""Rows that a circuit does not keep, read by Spark at the versions a step leads to.

Law: the rows of a side are those of its plan at exactly these versions, with the fragments that the
engine's own scan would give them. Files are left out that its conditions, its joins and the keys
that are asked for leave no row of.
Out of scope: which sides are read (`compile.flows`), which keys are asked for (`engine`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from impctl.app.capturing.frames import tagged_frame
from impctl.app.preparing.joined_files import Uris
from impctl.app.preparing.wanted_files import wanted_files
from impctl.app.workbench.workbench import Workbench
from impctl.compile.compile import Compiled
from impctl.compile.flows import FRAGMENT_COLUMN, Readable
from impctl.data.schema import INTEGER, Kind, SqlType
from impctl.data.vector import Vector, from_arrow
from impctl.engine.batch import Batch
from impctl.engine.tags import RowTags
from impctl.plan.nodes import Scan, scans_of
from impctl.rules.joined_columns import column_behind
from impctl.sketch.partition import RangePartition
from impctl.spark.render import render_plan
from impctl.tables.prune import prune_to_values
from impctl.tables.schema import arrow_type
from impctl.tables.snapshot import Snapshot
from impctl.types import AccessId, AttributeId, TableName, TableVersion
from impctl.values import dataclass

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SLICE_ROWS = 8_000_000
"""Rows of the longest table behind a join per slice of its pairs: some hundred megabytes."""

_MANY_KEYS = 100_000
"""So many keys are in most files, and take longer to sort than a search by them saves."""


@dataclass(frozen=True, slots=True)
class Partners:
    """Reads sides of the joins of one circuit, and whole joins, at `versions` (others: pinned)."""

    desk: Workbench
    compiled: Compiled
    partitions: Mapping[AccessId, RangePartition]
    versions: Mapping[TableName, TableVersion]

    def rows(self, side: str, keys: Sequence[Vector]) -> Batch:
        """The rows of a side with these keys."""
        from impctl.spark.run import with_keys

        wanted = self.compiled.read_side(side)
        self.desk.reporter.step(f"reading rows with {len(keys[0]):,} join keys")
        names = [name for name, _ in wanted.columns]
        places = [names.index(key) for key in wanted.keys]
        table = pa.table([_typed(key) for key in keys], [f"k{at}" for at in range(len(keys))])
        spark, files = self.desk.spark(), self._files(wanted)
        for key, values in zip(wanted.keys, keys, strict=True):
            self._keep_asked(files, wanted, key, values)
        return self._read(wanted, files, lambda rows: with_keys(spark, rows, places, table))

    def pairs(self, joined: Readable) -> Iterator[Batch]:
        """All rows of a join, slice by slice."""
        from impctl.spark.run import slice_of

        files = self._files(joined)
        longest = max(self._longest(scan) for scan in scans_of(joined.plan))
        slices = max(1, -(-longest // _SLICE_ROWS))
        for number in range(slices):
            yield self._read(joined, files, partial(slice_of, number=number, slices=slices))

    def _longest(self, scan: Scan) -> int:
        return self._snapshot(scan).likely_rows

    def _snapshot(self, scan: Scan) -> Snapshot:
        return self.desk.tables.snapshot(scan.table, self.versions.get(scan.table))

    def _files(self, wanted: Readable) -> Uris:
        """The files that each access of the rows needs."""
        snapshots = {scan.access: self._snapshot(scan) for scan in scans_of(wanted.plan)}
        return wanted_files(wanted.plan, snapshots)

    def _keep_asked(self, files: Uris, wanted: Readable, key: AttributeId, values: Vector) -> None:
        """Leave out files that hold none of the values that a key column is asked for."""
        result = column_behind(wanted.plan, key)
        if result is None or len(values) > _MANY_KEYS:
            return
        (scan,) = (scan for scan in scans_of(wanted.plan) if scan.access == result.access)
        kept = prune_to_values(self._snapshot(scan), {result.attribute.name: values})
        files[result.access] &= {file.uri for file in kept}

    def _read(
        self, wanted: Readable, files: Uris, chosen: Callable[[DataFrame], DataFrame]
    ) -> Batch:
        from impctl.spark.failures import plain_failures
        from impctl.spark.run import selected

        views = {scan.access: f"impctl_side{at}" for at, scan in enumerate(scans_of(wanted.plan))}
        frames = {
            views[scan.access]: self._frame(scan, files[scan.access])
            for scan in scans_of(wanted.plan)
        }
        spark = self.desk.spark()
        with plain_failures(self.versions):
            table = chosen(selected(spark, render_plan(wanted.plan, views).sql, frames)).toArrow()
        columns = {
            name: from_arrow(table.column(at), kind)
            for at, (name, kind) in enumerate(wanted.columns)
        }
        first = len(wanted.columns)
        tags = tuple(
            RowTags(from_arrow(table.column(first + at), INTEGER).values.astype(np.int32))
            for at in range(len(wanted.accesses))
        )
        return Batch(columns, np.ones(table.num_rows, dtype=np.int64), tags)

    def _frame(self, scan: Scan, uris: Collection[str]) -> DataFrame:
        snapshot, partition = self._snapshot(scan), self.partitions.get(scan.access)
        columns = [a.name for a in scan.attributes if a.name != FRAGMENT_COLUMN]
        files = [file for file in snapshot.files if file.uri in uris]
        return tagged_frame(self.desk, snapshot, columns, partition, files)


def _typed(key: Vector) -> pa.Array:
    """The keys as Spark takes them; the loop over wide numbers is bounded by the keys asked for."""
    kind, mask = key.type, None if key.valid is None else ~key.valid
    if key.is_textual:
        return key.to_arrow()
    if kind.kind is Kind.DECIMAL:
        return pa.array(_decimals(key, kind), arrow_type(kind))
    if kind.kind is Kind.DATE:
        return pa.array(key.values.astype(np.int32), mask=mask).cast(pa.date32())
    return pa.array(key.values, mask=mask).cast(arrow_type(kind))


def _decimals(key: Vector, kind: SqlType) -> list[Decimal | None]:
    # Made from text, because arithmetic on Decimals rounds to 28 digits.
    return [
        Decimal(f"{value}e-{kind.scale}") if ok else None
        for value, ok in zip(key.values.tolist(), key.validity().tolist(), strict=True)
    ]
