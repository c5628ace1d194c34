"""Tags by a column: each row carries the fragment that its own value lies in.

Identity: d(tagged(R)) = tagged(dR); linear, no state, cost proportional to the change. Rows come in
without tags, as those of a fixpoint do, and go out with one for each of several accesses that share
a partition, all the same: where all that derives a row has its value in this column, that is the
fragment of all of it. A row's tags depend on the row alone, so a deletion carries those of the
insertion it takes back.
Not to be confused with `operators.scan`, which tags rows of a table, nor with `operators.lineage`,
which tells what derives rows whatever becomes of them.
"""

from __future__ import annotations

from impctl.engine.batch import Batch
from impctl.engine.operator import Operator
from impctl.engine.operators.scan import fragments_of
from impctl.engine.tags import RowTags, no_fragments
from impctl.sketch.partition import RangePartition
from impctl.types import AttributeId


class KeyTags(Operator):
    """Tags for `accesses` accesses, by the fragments of `column`; the column has its type."""

    def __init__(self, column: AttributeId, partition: RangePartition, accesses: int) -> None:
        self.column = column
        self.partition = partition
        self.accesses = accesses
        self.form = (column, partition.id, accesses)

    def step(self, batch: Batch) -> Batch:
        """The same rows with tags."""
        if not len(batch):
            none = tuple(no_fragments(0) for _ in range(self.accesses))
            return Batch(batch.columns, batch.weights, none)
        tag = RowTags(fragments_of(self.partition, batch.columns[self.column], batch.shared))
        return Batch(batch.columns, batch.weights, (tag,) * self.accesses)

    @property
    def is_rowwise(self) -> bool:
        return True

    def passes(self, column: AttributeId) -> AttributeId | None:
        return column
