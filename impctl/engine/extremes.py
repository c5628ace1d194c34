"""Least and greatest values per group.

Law: per group every value is counted, so deleting the extreme one brings back the next. Values are
kept as ranks, 64-bit integers in the order of Spark's MIN and MAX: NaN is the greatest double, -0.0
equals 0.0; a maximum is the minimum of reversed ranks. Counting costs the values changed; looking a
changed group up costs the first few of its values, more where many of these were deleted.
Out of scope: strings and decimals beyond 18 digits, which have no rank of 64 bits
(`engine.ordered_values`).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from impctl.data.keys import starts_in
from impctl.data.pages import CheckedPages, StoredTable, check_each, search, table_of
from impctl.data.schema import Kind, SqlType
from impctl.data.vector import Bools, Ints, Vector, slice_positions
from impctl.engine.disagreement import never_held
from impctl.engine.run_log import RunChange, RunLog
from impctl.types import AttributeId
from impctl.values import dataclass

_WINDOW = 8
"""Values per group and run that a look-up starts with."""
_NARROW_DIGITS = 18
_GROUP, _RANK, _COUNT = "group", "rank", "count"


def has_rank(kind: SqlType) -> bool:
    """Whether values of this type have a rank."""
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
    """The values that have these ranks."""
    ranks = ~ranks if reverse else ranks
    if kind.kind is Kind.BOOLEAN:
        return ranks != 0
    if not kind.is_fractional:
        return ranks
    sizes = np.abs(ranks).view(np.float64)
    return np.where(ranks < 0, -sizes, sizes)


@dataclass(frozen=True, slots=True)
class Extreme:
    """MIN, or with `reverse` MAX, of an argument; state is the best rank, 0 without any value.

    With `size`, no more than the best so many values are kept for sure, and the edge of what is.
    """

    argument: AttributeId
    slot: int
    reverse: bool
    size: int | None = None

    @property
    def name(self) -> str:
        return f"{'max' if self.reverse else 'min'}{self.slot}"

    @property
    def columns(self) -> dict[str, Any]:
        """State columns and their NumPy types."""
        edge = {} if self.size is None else {self.edge: np.int64}
        return {self.name: np.int64, **edge}

    @property
    def edge(self) -> str:
        """The state column of the buffer's edge."""
        return f"edge_{self.name}"

    def value(self, state: dict[str, Any], kind: SqlType) -> Vector:
        """The extreme's value; whoever reads it knows where there is none."""
        return Vector(kind, values_of(state[self.name], kind, reverse=self.reverse))


@dataclass(frozen=True, slots=True)
class _Counts:
    """One run: counts by (group, rank), ascending, each pair once."""

    sequence: int
    groups: Ints
    ranks: Ints
    counts: Ints
    pages: CheckedPages | None = None

    def __len__(self) -> int:
        return len(self.groups)

    def slices(self, groups: Ints) -> tuple[Ints, Ints]:
        """Where the values of each of these groups begin and end."""
        first = search(self.pages, self.groups, groups)
        return first, search(self.pages, self.groups, groups, "right")

    def at(self, positions: Ints) -> _Counts:
        """The run, after these of its values were looked at."""
        if self.pages is not None:
            for column in (self.groups, self.ranks, self.counts):
                self.pages.check_rows(column, positions)
        return self


class _Firsts(NamedTuple):
    """The first values of some groups in every run: index of the group, rank and count of each.

    Also, by group, up to which rank they are all there is, and whether nothing was left out.
    """

    owners: Ints
    ranks: Ints
    counts: Ints
    limits: Ints
    is_whole: Bools


class OrderedCounts:
    """How often each rank occurs in each group, as sorted runs whose counts add up."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._log: RunLog[_Counts] = RunLog(lambda runs, _: _merged(runs), _to_arrow)

    @property
    def bytes_held(self) -> int:
        runs = self._log.runs
        return sum(run.groups.nbytes + run.ranks.nbytes + run.counts.nbytes for run in runs)

    def add(self, groups: Ints, ranks: Ints, weights: Ints) -> None:
        """Count a change in."""
        run = _summed(self._log.next_sequence, groups, ranks, weights)
        if len(run):
            self._log.append(run)

    def clear(self) -> None:
        """Forget all values."""
        self._log.clear()

    def best(self, groups: Ints) -> Ints:
        """The least rank of each group, 0 where it has none; shape (n,)."""
        result = np.zeros(len(groups), dtype=np.int64)
        open_ = np.arange(len(groups), dtype=np.int64)
        window = _WINDOW
        # Each round doubles the window, so there are about log2(values of a group) of them.
        while len(open_):
            owners, ranks, counts, limits, is_whole = self._first(groups[open_], window)
            order = np.lexsort((ranks, owners))
            owners, ranks, counts = owners[order], ranks[order], counts[order]
            starts = np.flatnonzero(starts_in(owners, ranks))
            totals = np.add.reduceat(counts, starts) if len(starts) else counts
            if bool(((totals < 0) & (ranks[starts] <= limits[owners[starts]])).any()):
                raise never_held("values")
            alive = starts[totals > 0]
            first = alive[np.unique(owners[alive], return_index=True)[1]] if len(alive) else alive
            sure = is_whole[owners[first]] | (ranks[first] <= limits[owners[first]])
            first = first[sure]
            result[open_[owners[first]]] = ranks[first]
            is_done = is_whole.copy()
            is_done[owners[first]] = True
            open_ = open_[~is_done]
            window *= 2
        return result

    def all_of(self, groups: Ints) -> tuple[Ints, Ints, Ints]:
        """Every value of these groups as (index into `groups`, rank, count), in this order."""
        result = self._first(groups, int(np.iinfo(np.int64).max) // 2)
        owners, ranks, counts = summed_pairs(result.owners, result.ranks, result.counts)
        if bool((counts < 0).any()):
            raise never_held("values")
        return owners, ranks, counts

    def _first(self, groups: Ints, window: int) -> _Firsts:
        """The first values of each group in every run."""
        owners, ranks, counts = [], [], []
        limits = np.full(len(groups), np.iinfo(np.int64).max)
        is_whole = np.ones(len(groups), dtype=np.bool_)
        for run in self._log.runs:
            low, high = run.slices(groups)
            cut = np.minimum(high, low + window)
            is_cut = cut < high
            lasts = cut[is_cut] - 1
            limits[is_cut] = np.minimum(limits[is_cut], run.at(lasts).ranks[lasts])
            is_whole &= ~is_cut
            positions, owner = slice_positions(low, cut)
            result = run.at(positions)
            owners.append(owner)
            ranks.append(result.ranks[positions])
            counts.append(result.counts[positions])
        if not owners:
            none = np.zeros(0, dtype=np.int64)
            return _Firsts(none, none, none, limits, is_whole)
        return _Firsts(
            np.concatenate(owners),
            np.concatenate(ranks),
            np.concatenate(counts),
            limits,
            is_whole,
        )

    def as_it_stands(self) -> Self:
        """The same state, to be read while this one goes on. Cost: its runs, not their values."""
        result = copy(self)
        result._log = self._log.as_it_stands()
        return result

    def compact(self) -> None:
        """Bring all runs into one if that is likely to make the state much smaller."""
        self._log.compact()

    def load(self, tables: Sequence[tuple[int, StoredTable]]) -> None:
        """Take over stored runs; they count as saved."""
        self._log.load(_from_arrow(sequence, table) for sequence, table in tables)

    def changes(self) -> RunChange:
        """What changed since the last `saved`, for the checkpoint to write."""
        return self._log.changes()

    def saved(self) -> None:
        """The last changes are safe now."""
        self._log.saved()


_STORED = pa.schema([(name, pa.int64()) for name in (_GROUP, _RANK, _COUNT)])


def _to_arrow(run: _Counts) -> pa.Table:
    return pa.table({_GROUP: run.groups, _RANK: run.ranks, _COUNT: run.counts})


def _from_arrow(sequence: int, stored: StoredTable) -> _Counts:
    table, pages = table_of(stored)
    if table.schema.remove_metadata() != _STORED:
        raise TypeError(f"columns {table.schema.names} of types {table.schema.types}")
    groups, ranks, counts = (table.column(name).to_numpy() for name in (_GROUP, _RANK, _COUNT))
    return _Counts(sequence, groups, ranks, counts, pages)


def _summed(sequence: int, groups: Ints, ranks: Ints, weights: Ints) -> _Counts:
    return _Counts(sequence, *summed_pairs(groups, ranks, weights))


def summed_pairs(groups: Ints, ranks: Ints, weights: Ints) -> tuple[Ints, Ints, Ints]:
    """These pairs in order, each once with its sum; those that cancel are left out."""
    order = np.lexsort((ranks, groups))
    groups, ranks, weights = groups[order], ranks[order], weights[order]
    starts = np.flatnonzero(starts_in(groups, ranks))
    counts = np.add.reduceat(weights, starts) if len(starts) else weights
    kept = starts[counts != 0]
    return groups[kept], ranks[kept], counts[counts != 0]


def _merged(runs: Sequence[_Counts]) -> _Counts:
    check_each(runs)
    return _summed(
        runs[-1].sequence,
        np.concatenate([run.groups for run in runs]),
        np.concatenate([run.ranks for run in runs]),
        np.concatenate([run.counts for run in runs]),
    )
