"""Probe: inner join of inputs that equal columns lead around in a circle, without partial joins.

Identity: d(R1 join .. join Rm) is the sum over i of (R1 + dR1) join .. join dRi join .. join Rm:
inputs before the i-th as they are after the step, those behind it as they were. State: the rows of
every input by each set of columns that they are asked by, once for all inputs that have the same
rows; never a join of some of them. Cost: the changed rows, and for each the rows that the least
frequent of its values has, step by step; a triangle costs the smaller degree. NULL has no partner,
unless all equalities of its class compare it as a value. Weights multiply; rows that go and come in
one step are left out where they cancel. While it fills it only takes rows in; then all joined rows
come out, some at a time. A joined row carries the tags of all its rows.
Not to be confused with `join`, which keeps both its sides and so, one after the other, all partial
joins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.consolidate import consolidated
from impctl.engine.operator import Operator
from impctl.engine.probing.growth import beginning, joined
from impctl.engine.probing.spec import Circle
from impctl.engine.probing.stores import Stores, View
from impctl.engine.row_index import RowIndex


class Probe(Operator):
    """The joined rows of `circle`; its i-th input is that of the operator."""

    def __init__(self, name: str, circle: Circle) -> None:
        self.circle = self.form = circle
        self._stores = Stores(name, circle)
        self._is_filling = False

    def step(self, *batches: Batch | None) -> Batch | None:
        """Joined rows that came or went; None while it fills."""
        arriving = self._stores.arriving(batches)
        if self._is_filling:
            arriving.add()
            return None
        parts: list[Batch] = []
        changed = takes_away = 0
        for at in range(len(self.circle.inputs)):
            rows = arriving.rows_of(at)
            if rows is not None:
                changed += 1
                takes_away += bool((rows.weights < 0).any())
                begun = beginning(self.circle, at, rows)
                parts += joined(begun, View(self._stores, arriving, at))
        arriving.add()
        if not parts:
            return self._nothing()
        result = stacked_batches(parts)
        # Rows that several inputs exchange meet in joined rows that cancel.
        return consolidated(result) if changed > 1 and takes_away else result

    def _nothing(self) -> Batch:
        return empty_batch(sum(one.accesses for one in self.circle.inputs))

    def fill(self, is_filling: bool) -> None:
        self._is_filling = is_filling

    def filled(self) -> Iterator[Batch]:
        """All joined rows, some at a time."""
        rows = self._stores.whole(0)
        if len(rows):
            yield from joined(beginning(self.circle, 0, rows), View(self._stores))

    @property
    def can_output(self) -> bool:
        return True

    def output(self) -> Batch:
        """All joined rows. Cost: the rows of one input, and what they meet."""
        parts = list(self.filled())
        return stacked_batches(parts) if parts else self._nothing()

    def arrangements(self) -> Sequence[RowIndex]:
        return self._stores.keepers()
