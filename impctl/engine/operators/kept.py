"""Kept rows: all rows that pass, for whoever asks for the answer later.

Identity: the output is the input; state: the sum of all rows ever passed, without tags, by a key
that rows are looked up by. Cost: the rows of the change, and merges that each row takes part in a
logarithmic number of times. Rows that cancel are gone when their runs merge.
Bounds of values are not kept: a row that goes has the very values that it came with. A value of
which nothing is known (a sum beyond the greatest double) is none to keep: NotExactError. Who wants
to know what came and went has it noted (`note`), with the bounds.
Not to be confused with `merge`, which counts the fragments of the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.aliases import AttributeId
from impctl.data.schema import SqlType
from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.disagreement import never_held
from impctl.engine.operator import Operator
from impctl.engine.row_index import RowIndex
from impctl.expr.spans import exactly, is_open, unsure_value


class KeptRows(Operator):
    """Keeps `columns` of its input by the columns `keys`; those `bounded` may have bounds."""

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        keys: Sequence[AttributeId],
        bounded: frozenset[AttributeId] = frozenset(),
    ) -> None:
        self.rows = RowIndex(f"{name}.rows", columns, keys, 0)
        self.bounded = bounded
        self._noted: list[Batch] | None = None

    def step(self, batch: Batch) -> Batch:
        """The change itself, after it was counted in."""
        if len(batch):
            columns = {name: exactly(batch.columns[name]) for name, _ in self.rows.columns}
            if any(bool(is_open(batch.columns[name]).any()) for name in self.bounded):
                raise unsure_value("a value of the answer")
            held = Batch(columns, batch.weights, ())
            self.rows.add(held, self.rows.codes_of(held))
            if self._noted is not None:
                with_bounds = {name: batch.columns[name] for name, _ in self.rows.columns}
                self._noted.append(Batch(with_bounds, batch.weights, ()))
        return batch

    def note(self) -> None:
        """Remember from now on what comes and goes."""
        self._noted = []

    def noted(self) -> Batch:
        """What came and went since `note`, row by row; nothing more is remembered then."""
        found, self._noted = self._noted, None
        return stacked_batches(found) if found else empty_batch(0)

    def whole(self) -> Batch:
        """All rows, each once; an error where more of a row went than came."""
        return checked(self.rows.whole())

    def arrangements(self) -> Sequence[RowIndex]:
        return (self.rows,)

    def says_like(self, other: Operator) -> bool:
        return isinstance(other, KeptRows)

    def passes(self, column: AttributeId) -> AttributeId | None:
        return column


def checked(rows: Batch) -> Batch:
    """Rows that may be told as an answer: none was taken away more often than it came."""
    if len(rows) and bool((rows.weights < 0).any()):
        raise never_held("rows of the answer")
    return rows
