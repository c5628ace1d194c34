"""Grouping whose groups are not kept: the rows of those that change are read where they lie.

Identity: that of `engine.operators.aggregate`, whose output this one puts out bit for bit. Rows of
a changed group before the step are those read, which are as after it, less what the step brings;
a grouping made of these alone, and stepped by the change, gives the group's old row and its new
one. State: a filter of the groups' keys. A group that the filter does not know was not there
before, and nothing is read for it. Cost: the reading, and the rows of the changed groups. NULL is a
key. A group whose last row goes gives its old row alone; its key stays in the filter.
What is put out must be a function of the bag of the group's rows, so that what is taken back is
what was put out: `Aggregate.is_told_by_rows` says which groupings are such.
Not to be confused with a side of a join that is read, whose rows are put out themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from impctl.data.schema import SqlType
from impctl.data.vector import Ints
from impctl.engine.batch import Batch, empty_batch
from impctl.engine.distant_rows import DistantRows
from impctl.engine.key_filter import KeyFilter
from impctl.engine.operator import Operator
from impctl.engine.operators.aggregate import Aggregate
from impctl.types import AttributeId


class GroupsRead(Operator):
    """The grouping that `made` makes, over rows with these columns; it has keys."""

    can_rebuild = True

    def __init__(
        self, columns: Sequence[tuple[AttributeId, SqlType]], made: Callable[[], Aggregate]
    ) -> None:
        """`made` gives a new grouping each time, empty, that keeps all values of its extremes."""
        self._made = made
        form = made()
        self.form, self.group_keys, self._accesses = form.form, form.group_keys, form.accesses
        self._can_refill, self._counters = form.can_refill, form.counters()
        self.piece = form.piece
        self._rows = DistantRows(form.piece, columns, self.group_keys, form.accesses)
        self._filling: Aggregate | None = None
        self._filled_bytes = 0

    def fill(self, is_filling: bool) -> None:
        """Keep the groups while the circuit is filled, since all of its rows pass; then forget."""
        if is_filling:
            self._filling = self._made()
        elif self._filling is not None:
            codes = self._filling.group_codes()
            self.know(codes)
            self._rows.filled_rows = len(codes)
            self._filled_bytes = self._filling.group_bytes()
            self._filling = None

    def know(self, codes: Ints) -> None:
        """From now on groups with keys of these codes may be there."""
        self._rows.know(codes)

    def group_bytes(self) -> int:
        return self._filled_bytes

    def step(self, batch: Batch) -> Batch:
        """Minus the old rows, plus the new rows of the changed groups."""
        if self._filling is not None:
            return self._filling.step(batch)
        if len(batch) == 0:
            return empty_batch(self._accesses)
        codes = self._rows.codes_of(batch)
        keys, grouping = batch.grouped_by(self.group_keys)
        self._rows.expect(batch, codes)
        before = self._rows.find(codes[grouping.first], [key.take(grouping.first) for key in keys])
        self._rows.add(batch, codes)
        groups = self._made()
        if len(before.rows):
            groups.step(before.rows)
        return groups.step(batch)

    @property
    def reads(self) -> tuple[DistantRows, ...]:
        return (self._rows,)

    @property
    def can_refill(self) -> bool:
        return self._can_refill

    def output(self) -> Batch:
        """The rows of all groups as after this step. Cost: reading all rows of the input."""
        if self._filling is not None:
            return self._filling.output()
        groups = self._made()
        for rows in self._rows.whole():
            groups.step(rows)
        return groups.output()

    def arrangements(self) -> tuple[KeyFilter, ...]:
        return self._rows.arrangements()

    def counters(self) -> Mapping[str, int]:
        """Where numbering of groups begins once they are kept."""
        return self._counters
