"""Least and greatest values per group: all of them, or the best that a buffer holds."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from impctl.data.keys import group_rows, key_codes, starts_in
from impctl.data.pages import CheckedPages, StoredTable, check_each, table_of
from impctl.data.schema import DOUBLE, LONG, Kind, SqlType
from impctl.data.vector import INT64_MAX, INT64_MIN, Bools, Ints, Vector, slice_positions
from impctl.engine.batch import Batch, never_held
from impctl.engine.lookups import COMPLETE, edge_after
from impctl.engine.trace import IndexRun, RowIndex
from impctl.errors import NotExactError

if TYPE_CHECKING:
    from impctl.types import AttributeId

# Sort keys as integers: codes to search by, and exact ranks among a few rows. Law: a row that sorts
# before another has a code at most as great. Rows that tie have equal codes; so may others, which
# the exact ranks distinguish. Order as in Spark: NaN is the greatest double, -0.0 equals 0.0,
# strings by their UTF-8 bytes, NULL where the key says.

_PREFIX = 8


class OrderKey(Struct, frozen=True):
    """One ORDER BY term: a column, its direction and the position of NULL."""

    column: AttributeId
    descending: bool
    nulls_first: bool


def codes_of(vector: Vector, key: OrderKey) -> Ints:
    """A 64-bit code per row in the order of one key; shape (rows,)."""
    if vector.is_textual:
        codes = _prefixes(vector.values)
    elif has_rank(vector.type):
        codes = ranks_of(vector, reverse=False)
    else:
        # Wide decimals: rounding to double keeps the order, and merges neighbours at most.
        codes = ranks_of(Vector(DOUBLE, vector.values.astype(np.float64)), reverse=False)
    codes = ~codes if key.descending else codes
    # The ends are for NULL; values there share a code with their neighbours.
    codes = np.clip(codes, INT64_MIN + 1, INT64_MAX - 1)
    if vector.valid is None:
        return codes
    return np.where(vector.valid, codes, INT64_MIN if key.nulls_first else INT64_MAX)


def _prefixes(values: pa.Array) -> Ints:
    """The first eight bytes of each text as a number in byte order."""
    texts = values.cast(pa.large_binary()).fill_null(b"").to_pylist()
    padded = b"".join(text[:_PREFIX].ljust(_PREFIX, b"\0") for text in texts)
    words = np.frombuffer(padded, dtype=">u8").astype(np.uint64)
    return (words ^ np.uint64(1 << 63)).view(np.int64)


def exact_ranks(vector: Vector, key: OrderKey) -> Ints:
    """Ranks by one key among these rows, equal exactly where the values tie."""
    if vector.is_textual:
        ranks = _text_ranks(vector.values)
    elif has_rank(vector.type):
        ranks = ranks_of(vector, reverse=False)
        ranks = np.unique(ranks, return_inverse=True)[1].astype(np.int64)
    else:
        known = vector.to_arrow().to_pylist()
        order = {
            value: rank for rank, value in enumerate(sorted({v for v in known if v is not None}))
        }
        ranks = np.array([order.get(value, 0) for value in known], dtype=np.int64)
    ranks = -ranks if key.descending else ranks
    if vector.valid is None:
        return ranks
    bound = len(ranks) + 1
    return np.where(vector.valid, ranks, -bound if key.nulls_first else bound)


def _text_ranks(values: pa.Array) -> Ints:
    """Ranks in byte order; any rank for NULL."""
    result = values.cast(pa.large_binary()).dictionary_encode()
    order = pc.sort_indices(result.dictionary).to_numpy()
    ranks = np.zeros(max(len(order), 1), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    row_ranks: Ints = ranks[result.indices.fill_null(0).to_numpy(zero_copy_only=False)]
    return row_ranks


# Values in the order of a key, per group: extremes of text, MIN_BY and MAX_BY. Law: `first` gives
# the values of the rows of a group whose key is least (or, reversed, greatest); several where rows
# tie, each once. Rows whose key is NULL do not count. State: rows by group and code of their key,
# and a count per code. Cost: the rows changed; per changed group a lookup, and the rows that share
# the first one's code (text: its first eight bytes).

_ORDERED_GROUP, _CODE, _KEY, _VALUE = "group", "code", "key", "value"
_MOST_TIES = 64  # Different values beside one extreme; each becomes a row that the query may have


class FirstValue(Struct, frozen=True):
    """The value of one argument where another is least, or with `reverse` greatest. MIN and MAX are
    their own key. `slot` is that of the key's count."""

    key: AttributeId
    value: AttributeId
    slot: int
    value_slot: int
    reverse: bool

    @property
    def name(self) -> str:
        return f"{'last' if self.reverse else 'first'}{self.slot}.{self.value_slot}"

    @property
    def is_own_key(self) -> bool:
        return self.key == self.value


class OrderedValues:
    """The state of one `FirstValue`; types are those of its key and its value."""

    def __init__(self, name: str, first: FirstValue, key: SqlType, value: SqlType) -> None:
        self._order = OrderKey(_KEY, first.reverse, nulls_first=False)
        self._has_value = not first.is_own_key
        columns = [(_ORDERED_GROUP, LONG), (_CODE, LONG), (_KEY, key)]
        columns += [(_VALUE, value)] if self._has_value else []
        self._rows = RowIndex(f"{name}.rows", columns, (_ORDERED_GROUP, _CODE), 0)
        self._counts = OrderedCounts(f"{name}.codes")

    def add(self, groups: Ints, keys: Vector, values: Vector, weights: Ints) -> None:
        """Count a change; one entry per row."""
        known = np.flatnonzero(keys.validity())
        if not len(known):
            return
        groups, keys, weights = groups[known], keys.take(known), weights[known]
        codes = codes_of(keys, self._order)
        columns = {_ORDERED_GROUP: Vector(LONG, groups), _CODE: Vector(LONG, codes), _KEY: keys}
        if self._has_value:
            columns[_VALUE] = values.take(known)
        batch = Batch(columns, weights, ())
        self._rows.add(batch, self._rows.codes_of(batch))
        self._counts.change(groups, codes, weights)

    def first(self, groups: Ints) -> tuple[Ints, Vector | None]:
        """(position in `groups`, value), by position; each of the groups has a known key. None for
        no groups. NotExactError where too many values tie."""
        if not len(groups):
            return np.zeros(0, dtype=np.int64), None
        keys = [Vector(LONG, groups), Vector(LONG, self._counts.best(groups))]
        result = self._rows.find(key_codes(keys, len(groups)), keys)
        values = result.rows.columns[_KEY]
        owners = result.owners
        parts = [Vector(LONG, owners), values]
        if self._has_value:
            parts.append(result.rows.columns[_VALUE])
        grouping = group_rows(parts, len(owners))
        weights = np.add.reduceat(result.rows.weights[grouping.order], grouping.starts)
        if bool((weights < 0).any()):
            raise never_held("values")
        alive = grouping.first[weights > 0]
        alive = alive[np.argsort(owners[alive], kind="stable")]
        alive = self._least(owners, values, alive)
        owners = owners[alive]
        if len(owners) and int(np.bincount(owners).max()) > _MOST_TIES:
            raise NotExactError(
                f"More than {_MOST_TIES} values tie in MIN_BY or MAX_BY of one group",
                hint="recapture with `impctl capture`, or break the ties in MIN_BY or MAX_BY",
            )
        return owners, parts[-1].take(alive)

    def _least(self, owners: Ints, keys: Vector, alive: Ints) -> Ints:
        """Of these rows, sorted by owner, those with their owner's least key."""
        if len(alive) == len(np.unique(owners[alive])):
            return alive
        ranks = exact_ranks(keys.take(alive), self._order)
        starts = np.flatnonzero(np.diff(owners[alive], prepend=-1))
        best = np.minimum.reduceat(ranks, starts)
        least: Ints = alive[ranks == np.repeat(best, np.diff(starts, append=len(alive)))]
        return least

    def snapshot_copy(self) -> Self:
        result = copy(self)
        result._rows = self._rows.snapshot_copy()
        result._counts = self._counts.snapshot_copy()
        return result

    @property
    def arrangements(self) -> tuple[RowIndex, OrderedCounts]:
        return (self._rows, self._counts)


# Least and greatest values per group. Law: every value is counted per group, so deleting the
# extreme restores the next. Values are kept as ranks, 64-bit integers in the order of Spark's MIN
# and MAX; a maximum is the minimum of reversed ranks. Cost: the changed values; looking up a
# changed group costs its first few values, more where many of these were deleted.

_WINDOW = 8  # Values per group and run that a lookup starts with
_NARROW_DIGITS = 18
_GROUP, _RANK, _COUNT = "group", "rank", "count"


def has_rank(kind: SqlType) -> bool:
    if kind.kind in (Kind.STRING, Kind.BINARY, Kind.NULL, Kind.OTHER):
        return False
    return kind.kind is not Kind.DECIMAL or kind.precision <= _NARROW_DIGITS


def ranks_of(vector: Vector, *, reverse: bool) -> Ints:
    """The rank of each value; that of a NULL means nothing."""
    ranks: Ints
    if vector.type.is_fractional:
        values = vector.values + 0.0
        values[np.isnan(values)] = np.nan
        bits = np.abs(values).view(np.int64)
        ranks = np.where(np.signbit(values) & ~np.isnan(values), -bits, bits)
    else:
        ranks = vector.values.astype(np.int64, copy=False)
    return ~ranks if reverse else ranks


def values_of(ranks: Ints, kind: SqlType, *, reverse: bool) -> Any:
    ranks = ~ranks if reverse else ranks
    if kind.kind is Kind.BOOLEAN:
        return ranks != 0
    if not kind.is_fractional:
        return ranks
    sizes = np.abs(ranks).view(np.float64)
    return np.where(ranks < 0, -sizes, sizes)


class Extreme(Struct, frozen=True):
    """MIN, or with `reverse` MAX, of an argument; state is the best rank, 0 without any value. With
    `size`, only the best so many values are guaranteed to be kept, and the edge of what is."""

    argument: AttributeId
    slot: int
    reverse: bool
    size: int | None = None

    @property
    def name(self) -> str:
        return f"{'max' if self.reverse else 'min'}{self.slot}"

    @property
    def columns(self) -> dict[str, Any]:
        edge = {} if self.size is None else {self.edge: np.int64}
        return {self.name: np.int64, **edge}

    @property
    def edge(self) -> str:
        return f"edge_{self.name}"

    def value(self, state: dict[str, Any], kind: SqlType) -> Vector:
        """The extreme's value; the caller knows where there is none."""
        return Vector(kind, values_of(state[self.name], kind, reverse=self.reverse))


class OrderedCounts(RowIndex):
    """How often each rank occurs in each group, as sorted runs whose counts add up: rows of ranks,
    by groups in place of key codes, each pair once in a run."""

    def __init__(self, name: str) -> None:
        super().__init__(name, ((_RANK, LONG),), (), 0, order=_RANK)

    def _to_arrow(self, run: IndexRun) -> pa.Table:
        arrays = (run.codes, self._ranks(run.batch), run.batch.weights)
        return pa.table(dict(zip((_GROUP, _RANK, _COUNT), arrays, strict=True)))

    def _from_arrow(self, sequence: int, stored: StoredTable) -> IndexRun:
        table, pages = table_of(stored)
        if table.schema.remove_metadata() != _STORED:
            raise TypeError(f"columns {table.schema.names} of types {table.schema.types}")
        groups, ranks, counts = (table.column(name).to_numpy() for name in (_GROUP, _RANK, _COUNT))
        return _run_of(sequence, groups, ranks, counts, pages)

    def _merge(self, runs: Sequence[IndexRun], *, is_oldest: bool) -> IndexRun:
        return self._summed(runs)

    def _summed(self, runs: Sequence[IndexRun]) -> IndexRun:
        check_each(runs)
        groups = np.concatenate([run.codes for run in runs])
        ranks = np.concatenate([self._ranks(run.batch) for run in runs])
        counts = np.concatenate([run.batch.weights for run in runs])
        return _run_of(runs[-1].sequence, *summed_pairs(groups, ranks, counts))

    def change(self, groups: Ints, ranks: Ints, weights: Ints) -> None:
        run = _run_of(self.next_sequence, *summed_pairs(groups, ranks, weights))
        if len(run):
            self.append(run)

    def best(self, groups: Ints) -> Ints:
        """The least rank of each group, 0 where it has none; shape (n,)."""
        result = np.zeros(len(groups), dtype=np.int64)
        open_ = np.arange(len(groups), dtype=np.int64)
        window = _WINDOW
        # Each round doubles the window, so there are about log2(values of a group) of them.
        while len(open_):
            leading = self.leading(groups[open_], (), window)
            owners, rows = leading.found.owners, leading.found.rows
            is_done = leading.is_whole.copy()
            if len(rows):
                # A run has each pair once, so nothing is missing of the limits' ranks either.
                if bool((rows.weights < 0).any()):
                    raise never_held("values")
                first = np.flatnonzero(starts_in(owners))
                result[open_[owners[first]]] = self._ranks(rows)[first]
                is_done[owners[first]] = True
            open_ = open_[~is_done]
            window *= 2
        return result

    def all_of(self, groups: Ints) -> tuple[Ints, Ints, Ints]:
        """Every value of these groups as (index into `groups`, rank, count), in this order."""
        parts = [_run_of(0, *np.zeros((3, 0), dtype=np.int64))]
        for run in self.runs():
            positions, owners = slice_positions(*run.slices(groups))
            parts.append(IndexRun(run.sequence, owners, run.at(positions).take(positions)))
        every = self._summed(parts)
        if bool((every.batch.weights < 0).any()):
            raise never_held("values")
        return every.codes, self._ranks(every.batch), every.batch.weights


def _run_of(
    sequence: int, groups: Ints, ranks: Ints, counts: Ints, pages: CheckedPages | None = None
) -> IndexRun:
    return IndexRun(sequence, groups, Batch({_RANK: Vector(LONG, ranks)}, counts, ()), pages)


_STORED = pa.schema([(name, pa.int64()) for name in (_GROUP, _RANK, _COUNT)])


def summed_pairs(groups: Ints, ranks: Ints, weights: Ints) -> tuple[Ints, Ints, Ints]:
    """These pairs in order, each once with its sum; those that cancel are dropped."""
    order = np.lexsort((ranks, groups))
    groups, ranks, weights = groups[order], ranks[order], weights[order]
    starts = np.flatnonzero(starts_in(groups, ranks))
    counts = np.add.reduceat(weights, starts) if len(starts) else weights
    kept = starts[counts != 0]
    return groups[kept], ranks[kept], counts[counts != 0]


# Counts of the best values of each group; the rest stays in the table. Law: a group's buffer has
# every value up to its edge, with its count, and nothing beyond; an edge only moves down, until the
# group is refilled or empty. Beyond twice `size` different values the edge moves to the best
# `size`. An empty buffer whose edge is not COMPLETE needs a refill. Cost: the changed values, and
# the buffers of their groups.


class Best(Struct, frozen=True):
    """Per group: the best rank, whether the buffer has one, and the buffer's edge."""

    ranks: Ints
    is_found: Bools
    edges: Ints


class BestValues:
    """Buffers of the best `size` to twice as many ranks per group."""

    def __init__(self, name: str, size: int) -> None:
        self.size = size
        self.counts = OrderedCounts(name)

    def change(self, groups: Ints, edges: Ints, owners: Ints, ranks: Ints, weights: Ints) -> Best:
        """Count a change; `owners` index into `groups`, which have these edges."""
        owners, ranks, weights = summed_pairs(owners, ranks, weights)
        # Edges below which the change alone fills a buffer: so a load keeps no more than that.
        new = np.flatnonzero((weights > 0) & (ranks <= edges[owners]))
        ones = np.ones(len(new), dtype=np.int64)
        edges = edge_after(owners[new], ranks[new], ones, 2 * self.size, edges, 2 * self.size)
        kept = ranks <= edges[owners]
        self.counts.change(groups[owners[kept]], ranks[kept], weights[kept])
        return self._trimmed(groups, edges)

    def refill(self, groups: Ints, owners: Ints, ranks: Ints, weights: Ints) -> Best:
        """Fill the buffers of these groups again, from all their values."""
        positions, old, counts = self.counts.all_of(groups)
        self.counts.change(groups[positions], old, -counts)
        edges = np.full(len(groups), COMPLETE)
        return self.change(groups, edges, owners, ranks, weights)

    def shed(self, groups: Ints) -> Ints:
        """Keep the best `size` of all values of all groups, which `groups` are; the new edges."""
        owners, ranks, counts = self.counts.all_of(groups)
        complete = np.full(len(groups), COMPLETE)
        ones = np.ones(len(owners), dtype=np.int64)
        edges = edge_after(owners, ranks, ones, self.size, complete, self.size)
        kept = np.flatnonzero(ranks <= edges[owners])
        self.counts.clear()
        self.counts.change(groups[owners[kept]], ranks[kept], counts[kept])
        return edges

    def _trimmed(self, groups: Ints, edges: Ints) -> Best:
        owners, ranks, counts = self.counts.all_of(groups)
        inside = ranks <= edges[owners]
        ones = np.ones(int(inside.sum()), dtype=np.int64)
        edges = edge_after(owners[inside], ranks[inside], ones, self.size, edges, 2 * self.size)
        outside = ranks > edges[owners]
        self.counts.change(groups[owners[outside]], ranks[outside], -counts[outside])
        owners, ranks = owners[~outside], ranks[~outside]
        who, first = np.unique(owners, return_index=True)
        best = np.zeros(len(groups), dtype=np.int64)
        best[who] = ranks[first]
        is_found = np.zeros(len(groups), dtype=np.bool_)
        is_found[who] = True
        return Best(best, is_found, edges)
