"""The first rows of an order, of all rows or of each group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from impctl.data.keys import start_of, starts_in
from impctl.data.schema import DOUBLE, INTEGER, LONG, SqlType
from impctl.data.vector import INT64_MAX, INT64_MIN, Bools, Ints, Vector
from impctl.engine.batch import (
    Batch,
    contents_of,
    empty_batch,
    identity_of,
    never_held,
    stacked_batches,
    stacked_or_empty,
)
from impctl.engine.extremes import OrderKey, codes_of, exact_ranks
from impctl.engine.lookups import (
    COMPLETE,
    Refill,
    edge_after,
    no_refill,
    owners_of,
    refill_differs,
    stored_edges,
)
from impctl.engine.operator import Operator
from impctl.engine.trace import Arrangement, RowIndex
from impctl.expr.error_bounds import unsure_value

if TYPE_CHECKING:
    from impctl.types import AttributeId

# The best rows of each group; the rest stays in the table. Law: a group's buffer has every row
# whose code is at most its edge, and no other; an edge only moves down, until the group is
# refilled. Beyond twice `size` rows the edge moves to the best `size`. A buffer with fewer than
# `needed` rows whose edge is not COMPLETE is refilled, and the refill must agree with the buffer.
# All rows that share the edge's code are kept. Cost: the changed rows, and the buffers of their
# groups.

_EDGE = "edge"
_EVERYTHING = 2**62


class RequestedGroups(Struct, frozen=True):
    """Requested groups: codes, ascending, and key columns; shapes (groups,)."""

    codes: Ints
    keys: Sequence[Vector]

    def take(self, positions: Ints) -> RequestedGroups:
        return RequestedGroups(self.codes[positions], [key.take(positions) for key in self.keys])


class BufferSize(Struct, frozen=True):
    """Buffers of `kept` to twice as many rows, of which `needed` are needed; `by_code`: rows of one
    code count as one."""

    kept: int
    needed: int
    by_code: bool


class BufferedRows:
    """The edges of the groups of a RowIndex in the order of its column `code`."""

    def __init__(
        self,
        name: str,
        rows: RowIndex,
        code: AttributeId,
        key_types: Sequence[SqlType],
        size: BufferSize,
        codes_of: Callable[[Batch], Ints],
    ) -> None:
        """`codes_of` computes the codes of rows from a refill, which have none."""
        self.refill: Refill = no_refill
        self.size = size
        self.edges = Arrangement(f"{name}.edges", key_types, _EDGE)
        self._rows = rows
        self._code = code
        self._codes_of = codes_of

    def admitted(self, groups: RequestedGroups, owners: Ints, codes: Ints, weights: Ints) -> Bools:
        """Which rows of a change are in the buffers; an overfull buffer's edge is lowered."""
        edges = self._edges_of(groups)
        new = np.flatnonzero((weights > 0) & (codes <= edges[owners]))
        new = new[np.lexsort((codes[new], owners[new]))]
        limit = 2 * self.size.kept
        counts = self._counts(owners[new], codes[new], weights[new])
        lowered = edge_after(owners[new], codes[new], counts, limit, edges, limit)
        self._move(groups, edges, lowered)
        return codes <= lowered[owners]

    def settle(self, groups: RequestedGroups) -> None:
        """Trim the buffers of these groups, and refill exhausted ones."""
        edges = self._edges_of(groups)
        result = self._rows.leading(groups.codes, groups.keys, _EVERYTHING).found
        owners, rows = result.owners, result.rows
        codes = rows.columns[self._code].values if len(rows) else np.zeros(0, dtype=np.int64)
        counts = self._counts(owners, codes, rows.weights)
        inside = codes <= edges[owners]
        lowered = edge_after(
            owners[inside], codes[inside], counts[inside], self.size.kept, edges, 2 * self.size.kept
        )
        self._move(groups, edges, lowered)
        inside = codes <= lowered[owners]
        self._remove(groups, owners, rows, ~inside)
        totals = np.zeros(len(groups.codes), dtype=np.int64)
        np.add.at(totals, owners[inside], counts[inside])
        lacking = np.flatnonzero((totals < self.size.needed) & (lowered != COMPLETE))
        if len(lacking):
            counted = np.zeros(len(groups.codes), dtype=np.int64)
            np.add.at(counted, owners[inside], rows.weights[inside])
            self._remove(groups, owners, rows, inside & np.isin(owners, lacking))
            self._refilled(groups.take(lacking), lowered[lacking], counted[lacking])

    def _refilled(self, groups: RequestedGroups, edges: Ints, counted: Ints) -> None:
        owners, rows = owners_of(
            groups.keys, len(groups.codes), self.refill(groups.keys), self._rows.keys
        )
        codes = self._codes_of(rows) if len(rows) else np.zeros(0, dtype=np.int64)
        again = np.zeros(len(groups.codes), dtype=np.int64)
        known = codes <= edges[owners]
        np.add.at(again, owners[known], rows.weights[known])
        if bool((again != counted).any()):
            raise refill_differs()
        self.fill(groups, owners, codes, rows)

    def fill(self, groups: RequestedGroups, owners: Ints, codes: Ints, rows: Batch) -> None:
        """Fill the empty buffers of these groups with the best of these rows, which are all."""
        order = np.lexsort((codes, owners))
        owners, codes, rows = owners[order], codes[order], rows.take(order)
        complete = np.full(len(groups.codes), COMPLETE)
        counts = self._counts(owners, codes, rows.weights)
        lowered = edge_after(owners, codes, counts, self.size.kept, complete, self.size.kept)
        self._move(groups, self._edges_of(groups), lowered)
        kept = np.flatnonzero(codes <= lowered[owners])
        if len(kept):
            best = rows.take(kept)
            columns = {**best.columns, self._code: Vector(LONG, codes[kept])}
            self._rows.add(Batch(columns, best.weights, best.tags), groups.codes[owners[kept]])

    def _remove(self, groups: RequestedGroups, owners: Ints, rows: Batch, mask: Bools) -> None:
        removed = np.flatnonzero(mask)
        if len(removed):
            self._rows.add(rows.take(removed).negated(), groups.codes[owners[removed]])

    def _counts(self, owners: Ints, codes: Ints, weights: Ints) -> Ints:
        return starts_in(owners, codes).astype(np.int64) if self.size.by_code else weights

    def _edges_of(self, groups: RequestedGroups) -> Ints:
        located = self.edges.find(groups.codes, groups.keys)
        result: Ints = self.edges.gather(located, _EDGE)
        return stored_edges(result)

    def _move(self, groups: RequestedGroups, before: Ints, after: Ints) -> None:
        moved = np.flatnonzero(before != after)
        if len(moved):
            index = groups.take(moved)
            self.edges.put(index.codes, index.keys, {_EDGE: stored_edges(after[moved])})


# The first rows of an order, of all rows or per group. Identity: for every group whose first rows
# changed, the output's change is minus the old ones plus the new ones; groups whose changed rows
# all lie beyond the border give nothing. State: all rows by group, in the order of a code of their
# first sort key. Cost: the changed rows, and per changed group the first `size` rows and those that
# share the border's code. NULL is a group. Deleting an unknown row is an error. With RANK all ties
# at the border are kept, which the sketch of LIMIT needs; with ROW ties are ordered by their
# contents, so the result does not depend on the state.

_SPARE = 8  # Rows read beyond the wanted ones at once: for ties and deleted rows


class Cut(StrEnum):
    """What `size` counts, which decides about ties at the border."""

    ROW = "row_number"  # Rows, each copy of one: exactly `size` of them
    RANK = "rank"  # Rows, and all that tie with the last one too
    DENSE = "dense_rank"  # Different standings, with all rows that have one of them


class Limit(Struct, frozen=True):
    """How many first rows: `size` as `cut` counts, without the first `offset` (ROW only)."""

    size: int
    cut: Cut
    offset: int = 0


class FirstRowsOfGroups(Struct, frozen=True):
    """First rows with their group, and the code beyond which rows change nothing, per group."""

    owners: Ints
    rows: Batch
    borders: Ints


class Top(Operator):
    """The first rows per group of `partition` columns by `order`, as many as `limit` says."""

    can_output = True

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
        """`rank` is the column to add with each row's rank, as `limit.cut` counts. With `buffer`,
        only this many best rows per group are guaranteed to be kept, or a few more than `limit`."""
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
            else BufferedRows(name, self._rows, self._code, types, size, self._codes)
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
        groups = RequestedGroups(grouping.codes, [key.take(grouping.first) for key in keys])
        self._rows.clear()
        self._buffer.fill(groups, grouping.index(), rows.columns[self._code].values, rows)

    def keep_all(self, rows: Iterable[Batch]) -> None:
        assert self._buffer is None
        self._rows.clear()
        for batch in rows:
            if len(batch) and self.limit.size:
                self._rows.add(self._coded(batch, self._codes(batch)), self._rows.codes_of(batch))

    def _coded(self, batch: Batch, codes: Ints) -> Batch:
        columns = {name: batch.columns[name] for name in self._columns}
        columns[self._code] = Vector(LONG, codes)
        return Batch(columns, batch.weights, batch.tags)

    def _codes(self, batch: Batch) -> Ints:
        key = self.order[0]
        return codes_of(batch.columns[key.column], key)

    def step(self, batch: Batch) -> Batch:
        if len(batch) == 0 or self.limit.size == 0:
            return empty_batch(self._accesses)
        codes = self._codes(batch)
        keys, grouping = batch.grouped_by(self._partition)
        groups = RequestedGroups(grouping.codes, [key.take(grouping.first) for key in keys])
        owners = grouping.index()
        old = self._first(groups)
        least = np.full(grouping.groups, INT64_MAX)
        np.minimum.at(least, owners, codes)
        touched = least <= old.borders
        self._add(self._coded(batch, codes), groups, owners, codes)
        if not bool(touched.any()):
            return empty_batch(self._accesses)
        new = self._first(groups.take(np.flatnonzero(touched)))
        previous = old.rows.keep(touched[old.owners]) if len(old.rows) else old.rows
        return stacked_or_empty((previous.negated(), new.rows), self._accesses)

    def output(self) -> Batch:
        """The first rows of all groups. Cost: the rows kept, sorted."""
        rows = self._rows.whole()
        if not len(rows) or self.limit.size == 0:
            return empty_batch(self._accesses)
        keys, grouping = rows.grouped_by(self._partition)
        leaders = [key.take(grouping.first) for key in keys]
        return self._first(RequestedGroups(grouping.codes, leaders)).rows

    def _add(self, batch: Batch, groups: RequestedGroups, owners: Ints, codes: Ints) -> None:
        if self._buffer is None:
            self._rows.add(batch, groups.codes[owners])
            return
        kept = np.flatnonzero(self._buffer.admitted(groups, owners, codes, batch.weights))
        if len(kept):
            self._rows.add(batch.take(kept), groups.codes[owners[kept]])
            self._buffer.settle(groups.take(np.unique(owners[kept])))

    def _first(self, groups: RequestedGroups) -> FirstRowsOfGroups:
        owners, parts = [], []
        open_ = np.arange(len(groups.codes), dtype=np.int64)
        window = self.limit.size + _SPARE
        # Each round reads twice as far, so there are about log2(rows of a group) of them.
        while len(open_):
            requested = groups.take(open_)
            leading = self._rows.leading(requested.codes, requested.keys, window)
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
            return FirstRowsOfGroups(nothing, empty_batch(self._accesses), borders)
        return self._cut(np.concatenate(owners), stacked_batches(parts), len(groups.codes))

    def _counted(
        self, owners: Ints, rows: Batch, is_sure: Bools, limits: Ints, groups: int
    ) -> Bools:
        """Whether the rows that are surely complete fill their groups' limit. All rows beyond those
        have codes of at least their group's `limits`."""
        codes, weights = rows.columns[self._code].values, rows.weights
        counts = np.zeros(groups, dtype=np.int64)
        owners, codes = owners[is_sure], codes[is_sure]
        if self.limit.cut is not Cut.DENSE:
            np.add.at(counts, owners, weights[is_sure])
        elif len(owners):
            np.add.at(counts, owners[starts_in(owners, codes)], 1)
        return counts >= self.limit.size

    def _cut(self, owners: Ints, rows: Batch, groups: int) -> FirstRowsOfGroups:
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
        return FirstRowsOfGroups(owners, first, borders)

    def _numbered(
        self, owners: Ints, rows: Batch, weights: Ints, numbers: Ints
    ) -> tuple[Ints, Batch]:
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
        """Ranks by the whole contents of a row, in an arbitrary but fixed order."""
        columns = [identity_of(rows.columns[name]) for name in self._columns]
        columns += [contents_of(tag) for tag in rows.tags]
        return [exact_ranks(column, OrderKey("", False, False)) for column in columns]

    def arrangements(self) -> tuple[RowIndex | Arrangement, ...]:
        if self._buffer is None:
            return (self._rows,)
        return (self._rows, self._buffer.edges)


# The rows that may be among the first of an order by a value known within a bound. Identity: as of
# `Top`; the rows are those whose best value is no worse than the `size`-th of all worst values, of
# all rows or per group: `size` rows are surely as good as that border, so no row that may be first
# is missing. Where standings are counted, the border is the `size`-th of worst values picked one
# after the other, each the first among rows whose best value lies beyond the one before: these
# values surely differ. State: all rows by group, in the order of their best values. Cost: the
# changed rows, and per changed group the rows up to the border. A value with a bound that is no
# number may be any value, NaN too; NULL is certain. All ties at the border are kept, whatever later
# sort keys say. Where the result must be exact, too many rows are an error.


class LikelyTop(Top):
    """The best `size` rows, as `cut` counts, and those that may be better than one of them. `bound`
    is the column with the bound of the sort key, None for an exact one; `has_more` says that later
    keys decide among ties. With `is_sure` the result must be exact, else NotExactError: no more
    than `size`, except for certain ties (RANK, DENSE)."""

    unsure_rows = 0

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        key: OrderKey,
        bound: AttributeId | None,
        size: int,
        accesses: int,
        *,
        partition: Sequence[AttributeId] = (),
        cut: Cut = Cut.ROW,
        has_more: bool = False,
        is_sure: bool = False,
    ) -> None:
        self._worst = f"{name}/worst"
        super().__init__(
            name,
            (*columns, (self._worst, LONG)),
            [key],
            Limit(size, Cut.RANK),
            accesses,
            partition=partition,
        )
        self._bound = bound
        self._has_more = has_more
        self._rows_count = cut is not Cut.DENSE
        self._must_end = cut is Cut.ROW
        self._is_sure = is_sure

    def step(self, batch: Batch) -> Batch:
        if len(batch) == 0:
            return empty_batch(self._accesses)
        worst = Vector(LONG, self._reached(batch, is_best=False))
        return super().step(Batch({**batch.columns, self._worst: worst}, batch.weights, batch.tags))

    def _codes(self, batch: Batch) -> Ints:
        return self._reached(batch, is_best=True)

    def _reached(self, batch: Batch, *, is_best: bool) -> Ints:
        """Codes of the best or the worst value within the bound."""
        key = self.order[0]
        value = batch.columns[key.column]
        if self._bound is None:
            return codes_of(value, key)
        error = batch.columns[self._bound].values
        is_open = ~np.isfinite(error)
        # The better end is the greater one where the order descends.
        sign = 1.0 if is_best == key.descending else -1.0
        with np.errstate(invalid="ignore", over="ignore"):
            moved = np.nextafter(value.values + sign * np.where(is_open, 0.0, error), sign * np.inf)
        ends = np.where(error == 0.0, value.values, moved)
        codes = codes_of(Vector(DOUBLE, ends, value.valid), key)
        end = INT64_MIN + 1 if is_best else INT64_MAX - 1
        return np.where(is_open & value.validity(), end, codes)

    def _counted(
        self, owners: Ints, rows: Batch, is_sure: Bools, limits: Ints, groups: int
    ) -> Bools:
        border = self._border(owners[is_sure], rows.take(np.flatnonzero(is_sure)), groups)
        return border < limits

    def _border(self, owners: Ints, rows: Batch, groups: int) -> Ints:
        """The worst code that `size` rows, or standings, of a group surely reach; INT64_MAX for
        fewer."""
        borders = np.full(groups, INT64_MAX)
        if not len(rows):
            return borders
        if not self._rows_count:
            return self._standings_border(owners, rows, groups)
        worst = rows.columns[self._worst].values
        order = np.lexsort((worst, owners))
        owners, worst = owners[order], worst[order]
        reached: Ints = np.cumsum(rows.weights[order])
        starts = starts_in(owners)
        before = (reached - rows.weights[order])[start_of(starts)]
        is_full = reached - before >= self.limit.size
        np.minimum.at(borders, owners[is_full], worst[is_full])
        return borders

    def _standings_border(self, owners: Ints, rows: Batch, groups: int) -> Ints:
        """The `size`-th of surely different values: no other choice finds as many before it."""
        best, worst = rows.columns[self._code].values, rows.columns[self._worst].values
        # A round finds one standing of every group, so there are `size` of them at most.
        for number in range(self.limit.size):
            borders = np.full(groups, INT64_MAX)
            np.minimum.at(borders, owners, worst)
            if number + 1 == self.limit.size:
                return borders
            beyond = np.flatnonzero(best > borders[owners])
            owners, best, worst = owners[beyond], best[beyond], worst[beyond]
            if not len(owners):
                break
        return np.full(groups, INT64_MAX)

    def _standings(self, owners: Ints, rows: Batch, groups: int) -> Ints:
        """An upper bound on the different values of each group's rows. Rows whose bounds overlap in
        sequence may have one value each; a single row and exact rows that tie have one, unless
        later keys distinguish them."""
        best, worst = rows.columns[self._code].values, rows.columns[self._worst].values
        order = np.lexsort((best, owners))
        owners, best, worst = owners[order], best[order], worst[order]
        # By rank within all codes, so that the rows of a group lie beyond those of the one before.
        codes = np.unique(np.concatenate([best, worst]))
        first = owners * np.int64(len(codes)) + np.searchsorted(codes, best)
        last = owners * np.int64(len(codes)) + np.searchsorted(codes, worst)
        reached = np.maximum.accumulate(last)
        starts = np.ones(len(owners), dtype=np.bool_)
        starts[1:] = first[1:] > reached[:-1]
        positions = np.flatnonzero(starts)
        copies = np.add.reduceat(rows.weights[order], positions)
        is_open = np.logical_or.reduceat((best != worst) | self._has_more, positions)
        result = np.zeros(groups, dtype=np.int64)
        np.add.at(result, owners[positions], np.where(is_open, copies, 1))
        return result

    def _cut(self, owners: Ints, rows: Batch, groups: int) -> FirstRowsOfGroups:
        borders = self._border(owners, rows, groups)
        kept = np.flatnonzero(rows.columns[self._code].values <= borders[owners])
        owners, rows = owners[kept], rows.take(kept)
        counts = np.zeros(groups, dtype=np.int64)
        if self._rows_count:
            np.add.at(counts, owners, rows.weights)
        elif len(rows):
            counts = self._standings(owners, rows, groups)
        beyond = np.maximum(counts - self.limit.size, 0)
        # Where bounds are not zero, Spark may distinguish values that seem to tie.
        is_open = self._has_more | (
            rows.columns[self._worst].values != rows.columns[self._code].values
        )
        has_open = np.zeros(groups, dtype=np.bool_)
        has_open[owners[is_open]] = True
        if self._is_sure and beyond[has_open | self._must_end].any():
            raise unsure_value("The choice of the first rows")
        self.unsure_rows += int(beyond[has_open].sum())
        return FirstRowsOfGroups(owners, rows, borders)
