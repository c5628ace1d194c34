"""The first rows of an order, of all rows or of each group of them.

Identity: the change is, for every group whose first rows changed, minus the old ones plus the new
ones, and nothing for a group of which every changed row lies beyond the border. State: all rows by
group, in the order of a code of their first sort key. Cost: the changed rows, and of the groups
they are in the first `size` rows and those that share the border's code. NULL is a group. A batch
and its negative cancel; a row that is deleted but was never there is an error.
Not to be confused with LIMIT where `cut` is RANK: the sketch needs the ties that LIMIT drops as it
likes. Where `cut` is ROW, ties are taken by their contents, so that state decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

import numpy as np

from impctl.data.keys import start_of, starts_in
from impctl.data.schema import INTEGER, LONG, SqlType
from impctl.data.vector import INT64_MAX, Bools, Ints, Vector
from impctl.engine.arrangement import Arrangement
from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.best_rows import BestRows, BufferSize, Groups
from impctl.engine.consolidate import contents_of, identity_of
from impctl.engine.disagreement import never_held
from impctl.engine.operator import Operator
from impctl.engine.order_codes import OrderKey, codes_of, exact_ranks
from impctl.engine.refill import Refill
from impctl.engine.row_index import RowIndex
from impctl.types import AttributeId
from impctl.values import dataclass

_SPARE = 8
"""Rows read beyond the wanted ones at once: for ties and deleted rows."""


class Cut(StrEnum):
    """What `size` counts, and with it what becomes of ties at the border."""

    ROW = "row_number"
    """Rows, each copy of one: exactly `size` of them."""
    RANK = "rank"
    """Rows, and all that tie with the last one too."""
    DENSE = "dense_rank"
    """Different standings, with all rows that have one of them."""


@dataclass(frozen=True, slots=True)
class Limit:
    """How many first rows: `size` as `cut` counts, without the first `offset` (ROW only)."""

    size: int
    cut: Cut
    offset: int = 0


@dataclass(frozen=True, slots=True)
class First:
    """First rows with their group, and the code beyond which rows change nothing, per group."""

    owners: Ints
    rows: Batch
    borders: Ints


class Top(Operator):
    """The first rows per group of `partition` columns by `order`, as many as `limit` says."""

    can_rebuild = True

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        order: Sequence[OrderKey],
        limit: Limit,
        accesses: int,
        *,
        partition: Sequence[AttributeId] = (),
        rank: AttributeId | None = None,
        buffer: int | None = None,
    ) -> None:
        """`rank` is the column to add with each row's rank, as `limit.cut` counts.

        With `buffer` no more than the best so many rows per group are kept for sure, or than are
        wanted with some to spare.
        """
        self.piece = name
        self.order = tuple(order)
        self.limit = limit
        self._partition = tuple(partition)
        self._rank = rank
        self._accesses = accesses
        self._code = f"{name}/code"
        self._columns = tuple(name for name, _ in columns)
        self._rows = RowIndex(
            f"{name}.rows", (*columns, (self._code, LONG)), partition, accesses, order=self._code
        )
        self.buffered = (self._rows.name,)
        kinds = dict(columns)
        # No deletion after a refill may need the next one at once, however many rows are wanted.
        spare = min(buffer or 0, limit.size)
        kept = max(buffer or 0, limit.size + spare)
        size = BufferSize(kept, limit.size, limit.cut is Cut.DENSE)
        types = [kinds[key] for key in partition]
        self._buffer = (
            None
            if buffer is None
            else BestRows(name, self._rows, self._code, types, size, self._codes)
        )

    @property
    def is_bounded(self) -> bool:
        return self._buffer is not None

    def refill_from(self, refill: Refill) -> None:
        if self._buffer is not None:
            self._buffer.refill = refill

    def buffer_groups(self) -> int:
        return len(np.unique(self._rows.codes()))

    def shed(self) -> None:
        assert self._buffer is not None
        rows = self._rows.whole()
        if not len(rows):
            return
        keys, grouping = rows.grouped_by(self._partition)
        groups = Groups(grouping.codes, [key.take(grouping.first) for key in keys])
        self._rows.clear()
        self._buffer.fill(groups, grouping.index(), rows.columns[self._code].values, rows)

    def keep_all(self, rows: Iterable[Batch]) -> None:
        assert self._buffer is None
        self._rows.clear()
        for batch in rows:
            if len(batch) and self.limit.size:
                self._rows.add(self._coded(batch, self._codes(batch)), self._rows.codes_of(batch))

    def _coded(self, batch: Batch, codes: Ints) -> Batch:
        """The columns that are kept, the code among them."""
        columns = {name: batch.columns[name] for name in self._columns}
        columns[self._code] = Vector(LONG, codes)
        return Batch(columns, batch.weights, batch.tags)

    def _codes(self, batch: Batch) -> Ints:
        key = self.order[0]
        return codes_of(batch.columns[key.column], key)

    def step(self, batch: Batch) -> Batch:
        """What the change does to the first rows."""
        if len(batch) == 0 or self.limit.size == 0:
            return empty_batch(self._accesses)
        codes = self._codes(batch)
        keys, grouping = batch.grouped_by(self._partition)
        groups = Groups(grouping.codes, [key.take(grouping.first) for key in keys])
        owners = grouping.index()
        old = self._first(groups)
        least = np.full(grouping.groups, INT64_MAX)
        np.minimum.at(least, owners, codes)
        touched = least <= old.borders
        self._add(self._coded(batch, codes), groups, owners, codes)
        if not bool(touched.any()):
            return empty_batch(self._accesses)
        new = self._first(groups.take(np.flatnonzero(touched)))
        gone = old.rows.keep(touched[old.owners]) if len(old.rows) else old.rows
        parts = [gone.negated(), new.rows]
        parts = [part for part in parts if len(part)]
        return stacked_batches(parts) if parts else empty_batch(self._accesses)

    @property
    def can_output(self) -> bool:
        return True

    def output(self) -> Batch:
        """The first rows of all groups. Cost: the rows kept, sorted."""
        rows = self._rows.whole()
        if not len(rows) or self.limit.size == 0:
            return empty_batch(self._accesses)
        keys, grouping = rows.grouped_by(self._partition)
        leaders = [key.take(grouping.first) for key in keys]
        return self._first(Groups(grouping.codes, leaders)).rows

    def _add(self, batch: Batch, groups: Groups, owners: Ints, codes: Ints) -> None:
        if self._buffer is None:
            self._rows.add(batch, groups.codes[owners])
            return
        kept = np.flatnonzero(self._buffer.admitted(groups, owners, codes, batch.weights))
        if len(kept):
            self._rows.add(batch.take(kept), groups.codes[owners[kept]])
            self._buffer.settle(groups.take(np.unique(owners[kept])))

    def _first(self, groups: Groups) -> First:
        """The first rows of these groups, by reading on until there are enough."""
        owners, parts = [], []
        open_ = np.arange(len(groups.codes), dtype=np.int64)
        window = self.limit.size + _SPARE
        # Each round reads twice as far, so there are about log2(rows of a group) of them.
        while len(open_):
            asked = groups.take(open_)
            leading = self._rows.leading(asked.codes, asked.keys, window)
            result, rows = leading.found.owners, leading.found.rows
            is_done = leading.is_whole.copy()
            if len(rows):
                codes = rows.columns[self._code].values
                is_sure = leading.is_whole[result] | (codes < leading.limits[result])
                if bool((rows.weights[is_sure] < 0).any()):
                    raise never_held("rows")
                is_done |= self._counted(result, rows, is_sure, leading.limits, len(open_))
                kept = np.flatnonzero(is_sure & is_done[result])
                owners.append(open_[result[kept]])
                parts.append(rows.take(kept))
            open_ = open_[~is_done]
            window *= 2
        parts = [part for part in parts if len(part)]
        if not parts:
            nothing = np.zeros(0, np.int64)
            borders = np.full(len(groups.codes), INT64_MAX)
            return First(nothing, empty_batch(self._accesses), borders)
        return self._cut(np.concatenate(owners), stacked_batches(parts), len(groups.codes))

    def _counted(
        self, owners: Ints, rows: Batch, is_sure: Bools, limits: Ints, groups: int
    ) -> Bools:
        """Whether the rows that are surely all there are fill their groups' limit.

        All rows beyond those have codes of at least their group's `limits`.
        """
        codes, weights = rows.columns[self._code].values, rows.weights
        counts = np.zeros(groups, dtype=np.int64)
        owners, codes = owners[is_sure], codes[is_sure]
        if self.limit.cut is not Cut.DENSE:
            np.add.at(counts, owners, weights[is_sure])
        elif len(owners):
            np.add.at(counts, owners[starts_in(owners, codes)], 1)
        return counts >= self.limit.size

    def _cut(self, owners: Ints, rows: Batch, groups: int) -> First:
        """Exactly the first rows among these, which are enough, with their rank."""
        ranks = [exact_ranks(rows.columns[key.column], key) for key in self.order]
        last = self._contents(rows) if self.limit.cut is Cut.ROW else []
        order = np.lexsort((*last, *ranks[::-1], owners))
        owners, rows = owners[order], rows.take(order)
        starts = starts_in(owners)
        standings = starts_in(owners, *(rank[order] for rank in ranks))
        before: Ints = np.cumsum(rows.weights) - rows.weights
        before -= before[start_of(starts)]
        codes = rows.columns[self._code].values
        numbers: Ints
        weights: Ints
        match self.limit.cut:
            case Cut.DENSE:
                number: Ints = np.cumsum(standings)
                numbers = number - number[start_of(starts)] + 1
                weights = np.where(numbers <= self.limit.size, rows.weights, 0)
            case Cut.RANK:
                numbers = before[start_of(standings)] + 1
                weights = np.where(numbers <= self.limit.size, rows.weights, 0)
            case Cut.ROW:
                low = np.maximum(before, self.limit.offset)
                high = np.minimum(before + rows.weights, self.limit.size)
                numbers, weights = low + 1, np.maximum(high - low, 0)
        reached = before + rows.weights if self.limit.cut is not Cut.DENSE else numbers
        borders = np.full(groups, INT64_MAX)
        is_full = reached >= self.limit.size
        np.minimum.at(borders, owners[is_full], codes[is_full])
        kept = np.flatnonzero(weights)
        owners, weights, numbers = owners[kept], weights[kept], numbers[kept]
        owners, first = self._numbered(owners, rows.take(kept), weights, numbers)
        return First(owners, first, borders)

    def _numbered(
        self, owners: Ints, rows: Batch, weights: Ints, numbers: Ints
    ) -> tuple[Ints, Batch]:
        """The rows with these weights, and their rank where it is asked for."""
        if self._rank is None:
            return owners, Batch(rows.columns, weights, rows.tags)
        if self.limit.cut is Cut.ROW:
            # Copies of a row have a number each; there are `size` rows per group at most.
            copies = np.repeat(np.arange(len(rows)), weights)
            first = np.repeat(np.cumsum(weights) - weights, weights)
            numbers = numbers[copies] + np.arange(len(copies)) - first
            owners, rows, weights = owners[copies], rows.take(copies), np.ones_like(copies)
        columns = {**rows.columns, self._rank: Vector(INTEGER, numbers)}
        return owners, Batch(columns, weights, rows.tags)

    def _contents(self, rows: Batch) -> list[Ints]:
        """Ranks by everything a row is, in whatever order, as long as it is always the same."""
        columns = [identity_of(rows.columns[name]) for name in self._columns]
        columns += [contents_of(tag) for tag in rows.tags]
        return [exact_ranks(column, OrderKey("", False, False)) for column in columns]

    def arrangements(self) -> tuple[RowIndex | Arrangement, ...]:
        if self._buffer is None:
            return (self._rows,)
        return (self._rows, self._buffer.edges)
