"""What keys lead to by a table's rows, each looked for once in a step.

Law: a link is a row of the table as the step leaves it, from its key to its head's, with what it
adds; rows that came and went are held apart, so that the table itself is as it was. Those of one
key lie side by side for as long as the step lasts. Of rows that are equal or cancel one has their
sum as `net`, the others 0. Nothing is taken away from a value: else `NotThisWayError`, as of NULL.
Memory: 56 bytes each. Out of scope: which are followed (`engine.fixpoint.settling`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from impctl.data.keys import starts_in, when_many
from impctl.data.vector import Ints, slice_positions
from impctl.engine.batch import Batch
from impctl.engine.fixpoint.valued_rows import (
    FIRST,
    KEY,
    LAST,
    MOST,
    NotThisWayError,
    ValuedRows,
    numbers,
)
from impctl.engine.fixpoint.valued_step import ValuedStep
from impctl.engine.fixpoint.views import IndexView
from impctl.engine.row_index import IndexRun, check_size
from impctl.engine.tags import Tags

_NOTHING = np.zeros(0, dtype=np.int64)
BODY, HEAD, OFFSET, NET, WEIGHT, SOURCE, PLACE = range(7)


class Links:
    """The table's rows and what changed in them."""

    def __init__(self, step: ValuedStep, rows: ValuedRows, changed: Batch | None) -> None:
        self._step, self._rows = step, rows
        self._changed = changed
        self._linked: list[Ints] = []
        self.count = 0
        self.held: Ints = np.zeros((PLACE + 1, 0), dtype=np.int64)

    @cached_property
    def _runs(self) -> Sequence[IndexRun]:
        """The table's rows, and those that came and went."""
        runs, changed = self._step.table.runs(), self._changed
        self._rows.of_runs(runs)
        if changed is None or not len(changed):
            return runs
        codes = numbers(changed.columns[self._step.table.keys[0]])
        if len(changed) > 1:
            order = np.argsort(codes, kind="stable")
            codes, changed = codes[order], changed.take(order)
        return (*runs, IndexRun(0, codes, changed))

    def tags(self, source: int) -> tuple[Tags, ...]:
        """Those of the rows that such a source has, by place."""
        return self._runs[source].batch.tags

    @property
    def sources(self) -> int:
        """How many there are."""
        return len(self._runs)

    def views(self) -> list[IndexView] | None:
        """The runs as they are looked up one by one: the head, then the column that is added; None
        where they are not to be."""
        columns = [self._step.head, *_column(self._step)]
        return self._rows.table_views.of_index(self._runs, columns, 0)

    @property
    def linked(self) -> Ints:
        """The slots of all keys that were asked for."""
        return np.concatenate(self._linked) if self._linked else _NOTHING

    def offsets(self, rows: Batch) -> Ints:
        """What rows of the table add."""
        offset = self._step.offset
        if offset.column is None:
            return np.full(len(rows), offset.constant, dtype=np.int64)
        result = numbers(rows.columns[offset.column])
        if len(result) and (result.max() >= MOST or result.min() <= -MOST):
            raise NotThisWayError
        return offset.sign * result + offset.constant

    def heads(self, rows: Batch) -> Ints:
        """The keys that they lead to."""
        return numbers(rows.columns[self._step.head])

    def of(self, slots: Ints) -> Ints:
        """Where the links of these keys lie in `held`, each given once."""
        values = self._rows.values
        unknown = slots[values[FIRST, slots] < 0]
        if len(unknown):
            self._linked.append(unknown)
            self._look_up(unknown)
            values = self._rows.values
        first, last = values[FIRST, slots], values[LAST, slots]
        if len(unknown) == len(slots) and len(slots):
            # As they were looked up, one after the other.
            return np.arange(first.min(), last.max(), dtype=np.int64)
        return slice_positions(first, last)[0]

    def _look_up(self, slots: Ints) -> None:
        """Find the rows of these keys."""
        step, rows = self._step, self._rows
        order, codes = when_many(rows.values[KEY, slots])
        slots = slots if order is None else slots[order]
        parts = []
        for source, run in enumerate(self._runs):
            asking, first, last = rows.spans(run, slots, codes)
            pairs = int((last - first).sum())
            if not pairs:
                continue
            check_size(pairs)
            places, owners = slice_positions(first, last)
            owners = asking[owners]
            batch = run.at(places)
            names = {step.head, *step.table.keys, *_column(step)}
            some = {name: batch.columns[name].take(places) for name in names}
            result = Batch(some, batch.weights[places], ())
            # NULL may have the code of a number.
            numbers(result.columns[step.table.keys[0]])
            part = np.empty((PLACE + 1, pairs), dtype=np.int64)
            part[BODY], part[HEAD], part[OFFSET] = owners, self.heads(result), self.offsets(result)
            part[NET] = part[WEIGHT] = result.weights
            part[SOURCE], part[PLACE] = source, places
            parts.append(part)
        self._add(slots, parts)

    def _add(self, slots: Ints, parts: Sequence[Ints]) -> None:
        """Keep what was found, by slot."""
        values = self._rows.values
        if not parts:
            values[FIRST, slots] = values[LAST, slots] = self.count
            return
        result = parts[0]
        if len(parts) > 1:
            result = np.concatenate(parts, axis=1)
            result = result[:, np.argsort(result[BODY], kind="stable")]
        if result[OFFSET].min() < 0:
            raise NotThisWayError
        ends = self.count + np.cumsum(np.bincount(result[BODY], minlength=len(slots)))
        values[LAST, slots] = ends
        values[FIRST, slots[0]] = self.count
        values[FIRST, slots[1:]] = ends[:-1]
        _sum_up(result)
        result[HEAD] = self._rows.slots_of(result[HEAD])
        result[BODY] = slots[result[BODY]]
        start, self.count = self.count, self.count + result.shape[1]
        if not start:
            self.held = result
            return
        if self.count > self.held.shape[1]:
            grown = np.empty((PLACE + 1, 2 * self.count), dtype=np.int64)
            grown[:, :start] = self.held[:, :start]
            self.held = grown
        self.held[:, start : self.count] = result


def _column(step: ValuedStep) -> tuple[str, ...]:
    return () if step.offset.column is None else (step.offset.column,)


def _sum_up(result: Ints) -> None:
    """Count equal rows of one key together, where some go."""
    if result[NET].min() >= 0:
        return
    goes = np.zeros(int(result[BODY].max()) + 1, dtype=np.bool_)
    goes[result[BODY, result[NET] < 0]] = True
    some = goes[result[BODY]].nonzero()[0]
    order = some[np.lexsort((result[OFFSET, some], result[HEAD, some], result[BODY, some]))]
    starts = starts_in(result[BODY, order], result[HEAD, order], result[OFFSET, order]).nonzero()[0]
    sums = np.add.reduceat(result[NET, order], starts)
    if sums.min() < 0:
        raise NotThisWayError
    result[NET, order] = 0
    result[NET, order[starts]] = sums
