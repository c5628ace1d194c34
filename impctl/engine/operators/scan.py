"""Scan: signed rows of a table enter the circuit, tagged with their fragment.

Identity: d(scan(R)) = dR; linear, no state, cost proportional to the change. A row's tag depends
on the row alone, so a deletion carries the same tag as the insertion it takes back.
Not to be confused with reading the table: the rows come from the change feed.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from impctl.data.schema import SqlType
from impctl.data.vector import Ints, Once, Vector, from_arrow, once
from impctl.engine.batch import Batch
from impctl.engine.tags import RowTags
from impctl.sketch.partition import Fragments, RangePartition
from impctl.types import AttributeId, ColumnName


class Scan:
    """Turns rows of one table into batches; `columns` are (identity, table column, type)."""

    def __init__(
        self,
        columns: Sequence[tuple[AttributeId, ColumnName, SqlType]],
        partitions: Sequence[RangePartition],
    ) -> None:
        self.columns = tuple(columns)
        self.partitions = tuple(partitions)

    @property
    def table_columns(self) -> tuple[ColumnName, ...]:
        """The table columns to read: those the query uses and the partition attributes."""
        names = [column for _, column, _ in self.columns]
        names += [partition.attribute for partition in self.partitions]
        return tuple(dict.fromkeys(names))

    def read(self, rows: pa.Table, weights: Ints, shared: Once | None = None) -> Batch:
        """A batch of these rows; `rows` has at least `table_columns`, `weights` shape (n,).

        Of rows that are `shared`, equal scans read one batch.
        """
        if shared is None:
            return self._read(rows, weights, None)
        question = (Scan, self.columns, tuple(partition.id for partition in self.partitions))
        return shared.of(question, lambda: self._read(rows, weights, shared))

    def _read(self, rows: pa.Table, weights: Ints, shared: Once | None) -> Batch:
        vectors = {
            identity: from_arrow(rows.column(column), kind)
            for identity, column, kind in self.columns
        }
        by_column = {column: identity for identity, column, _ in self.columns}
        tags = []
        for partition in self.partitions:
            known = by_column.get(partition.attribute)
            vector = (
                vectors[known]
                if known is not None
                else from_arrow(rows.column(partition.attribute), partition.type)
            )
            tags.append(RowTags(fragments_of(partition, vector, shared)))
        return Batch(vectors, weights, tuple(tags), None if shared is None else Once())


def fragments_of(partition: RangePartition, column: Vector, shared: Once | None) -> Fragments:
    """The fragment of each row by the partition's column, shape (n,); found once of `shared` rows.

    Nobody may write into it.
    """
    return once(shared, (RangePartition, partition.id), lambda: partition.fragments_of(column))
