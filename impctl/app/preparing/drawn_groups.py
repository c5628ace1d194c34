"""Groups of a sample of windows, as whole as they can be made before a query runs over them.

Law: an estimate, which no answer rests on. A group that lies in one window is taken as it is, one
that a window cuts is left out. Of a group larger than a window, and of one whose rows lie apart,
some rows were drawn: they stand for all that statistics tell of; and groups beside each other are
put together, the more the less they differ, so that what is taken for a group differs from others
as whole groups do (as in small area estimation: Fay and Herriot, 1979).
Out of scope: the draw (`tables.sample`), what is in the provenance (`app.preparing.estimate`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from impctl.data.vector import Ints
from impctl.sketch.likelihood import rate_where_not_zero
from impctl.tables.sample import FileSample
from impctl.tables.snapshot import ColumnBounds
from impctl.types import ColumnName
from impctl.values import dataclass

Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Groups = Mapping[ColumnName, ColumnBounds]

_SEED = 20_261_124
_IN_FILES = 3.0
"""Files that may hold a value whose rows lie together: its own, and those that it reaches into."""
_FEW = 3
_COUNTED = 2.0
"""Rows a group from which on they tell how much the sizes of groups differ."""
_BY_CHANCE = 2.0
"""Deviations by which groups may differ more than rows do, and it may be chance."""
_LEAST_SPARE = 30
"""Rows beyond one a group, from which on they tell how much rows of a group differ."""


@dataclass(frozen=True, slots=True, eq=False)
class DrawnGroups:
    """Rows, the number of each one's group, and how many rows of the files each stands for."""

    rows: pa.Table
    codes: Ints
    weights: Ints
    blurred: float = 0.0
    """The share of the rows whose groups were drawn in part."""

    @property
    def standing(self) -> float:
        """Rows of the files that all of them stand for."""
        return float(self.weights.sum())


def drawn_groups(
    sample: FileSample, groups: Groups, along: ColumnName, measures: Sequence[ColumnName]
) -> DrawnGroups:
    """The groups of a sample, by the columns that all rows of one share, with their bounds.

    `along` is the column that windows were drawn along; `measures` are numbers that are summed up.
    """
    count = len(sample.rows)
    if not groups:
        return DrawnGroups(sample.rows, np.arange(count), np.ones(count, dtype=np.int64))
    by_column = {name: _codes(sample.rows, name) for name in groups}
    codes = _combined(list(by_column.values()))
    kept, weights = _lying_together(sample, along, groups, by_column)
    apart = np.flatnonzero(kept & np.isnan(weights))
    is_part = np.isnan(weights) | (weights > 1.0)
    rows = sample.rows
    if len(apart):
        density = sample.weights(groups)
        taken = _Apart.of(rows, by_column, along, apart, codes, density)
        rows, codes, kept[apart], weights[apart] = taken.put_together(taken.alike(measures))
    whole = np.flatnonzero(kept)
    # A row has a whole number of copies: the next one above as often as makes them right.
    some = np.random.default_rng(_SEED).random(len(whole))
    return DrawnGroups(
        rows.take(pa.array(whole)),
        codes[whole],
        np.floor(weights[whole] + some).astype(np.int64),
        float(is_part[whole].mean()) if len(whole) else 0.0,
    )


def _lying_together(
    sample: FileSample, along: ColumnName, groups: Groups, by_column: Mapping[ColumnName, Ints]
) -> tuple[Flags, Floats]:
    """Rows to keep, and what each stands for: NaN where its group's rows lie apart."""
    count = len(sample.rows)
    kept, weights = np.ones(count, dtype=np.bool_), np.full(count, np.nan)
    held = sample.held(along, groups[along]) if along in groups else None
    if held is None or not count:
        return kept, weights
    runs = _Runs.of(by_column[along], sample.window_of)
    total, files = held
    in_few = np.nan_to_num(files[runs.first], nan=_IN_FILES) <= _IN_FILES
    is_fine = runs.by_window_all(in_few) & runs.are_short
    is_coarse = ~is_fine & (runs.values <= _FEW) & np.isfinite(total[runs.first][runs.starts])
    of_run = runs.window
    whole = np.where(is_fine[of_run], runs.are_whole, True)
    whole &= ~is_coarse[of_run] | runs.are_largest
    with np.errstate(invalid="ignore"):
        stands = np.maximum(total[runs.first] / runs.rows, 1.0)
    stands = np.where(is_fine[of_run], 1.0, np.where(is_coarse[of_run], stands, np.nan))
    return whole[runs.of_row], stands[runs.of_row]


@dataclass(frozen=True, slots=True, eq=False)
class _Runs:
    """Rows of one value in one window: arrays over such runs, in the order of windows."""

    of_row: Ints
    """The run of each row."""
    window: Ints
    first: Ints
    last: Ints
    rows: Ints
    starts: Ints
    """The first run of each window."""
    ends: Ints
    """The row behind each window."""

    @classmethod
    def of(cls, values: Ints, windows: Ints) -> _Runs:
        both = windows * (int(values.max(initial=0)) + 1) + values
        order = np.argsort(both, kind="stable")
        ordered = both[order]
        is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
        begin = np.flatnonzero(is_first)
        end = np.append(begin[1:], len(order))
        of_row = np.empty(len(order), dtype=np.int64)
        of_row[order] = np.cumsum(is_first) - 1
        window = windows[order[begin]]
        starts = np.flatnonzero(np.concatenate([[True], window[1:] != window[:-1]]))
        # Windows without rows have no runs: they are numbered anew.
        dense = np.cumsum(np.concatenate([[True], window[1:] != window[:-1]])) - 1
        ends = np.flatnonzero(np.concatenate([windows[1:] != windows[:-1], [True]])) + 1
        return cls(of_row, dense, order[begin], order[end - 1], end - begin, starts, ends)

    @property
    def values(self) -> Ints:
        """How many values each window has."""
        return np.diff(np.append(self.starts, len(self.window)))

    def by_window_all(self, flags: Flags) -> Flags:
        """Windows of which all runs are so."""
        return np.asarray(np.logical_and.reduceat(flags, self.starts))

    @property
    def spread(self) -> Ints:
        """Rows from the first to the last of each run, others between them included."""
        return self.last - self.first + 1

    @property
    def _reach(self) -> Ints:
        """How far the rows of a value lie apart in each window."""
        return np.asarray(np.maximum.reduceat(self.spread, self.starts))

    @property
    def _sizes(self) -> Ints:
        return np.diff(np.append(0, self.ends))

    @property
    def _is_sorted(self) -> Flags:
        return self.by_window_all(self.spread == self.rows)

    @property
    def are_short(self) -> Flags:
        """Windows in which some values lie between the ends."""
        some = self.values >= _FEW
        return some & (self._is_sorted | (self._reach * 5 <= self._sizes * 2))

    @property
    def are_whole(self) -> Flags:
        """Runs so far from both ends of their window that none of their value lies beyond."""
        missing = self._reach[self.window] - self.spread
        missing = np.where(self._is_sorted[self.window], 0, missing)
        before = self.first - (self.ends - self._sizes)[self.window]
        behind = self.ends[self.window] - 1 - self.last
        return (before > missing) & (behind > missing)

    @property
    def are_largest(self) -> Flags:
        """The run of each window that has the most rows."""
        most = np.maximum.reduceat(self.rows, self.starts)
        return np.asarray(self.rows == most[self.window])


@dataclass(frozen=True, slots=True, eq=False)
class _Apart:
    """Rows whose groups lie apart, in the order of their groups' values."""

    rows: pa.Table
    """All rows drawn."""
    columns: tuple[ColumnName, ...]
    at: Ints
    """Positions of those that lie apart."""
    order: Ints
    """The same positions, in the order of their groups."""
    group: Ints
    """Number of the group of each in that order, ascending by ones."""
    stands: float
    """Groups that each one drawn stands for, on average."""
    codes: Ints

    @classmethod
    def of(
        cls,
        rows: pa.Table,
        by_column: Mapping[ColumnName, Ints],
        along: ColumnName,
        at: Ints,
        codes: Ints,
        density: Floats,
    ) -> _Apart:
        names = sorted(by_column, key=lambda name: name != along)
        ranks = [_ranks(rows, name, by_column[name])[at] for name in names]
        order = np.lexsort(ranks[::-1])
        own = codes[at[order]]
        changes = np.concatenate([[False], own[1:] != own[:-1]])
        group = np.cumsum(changes)
        count = int(group[-1]) + 1
        mean = len(at) / count
        # A group of one row is drawn whole or not at all: that one of twenty rows was drawn says
        # nothing of nineteen others. By rows per group drawn, as a Poisson number not zero.
        again = rate_where_not_zero(mean) / max(mean, 1.0)
        stands = max(float(density[at].mean()) * again, 1.0)
        return cls(rows, tuple(names), at, at[order], group, stands, codes)

    def alike(self, measures: Sequence[ColumnName]) -> float:
        """How many groups are to be put together, so that what comes of it differs from group to
        group as whole groups do: all that make up one where they differ by chance alone, and one
        where rows of a group are alike.

        A mean of `n` rows of `k` groups has a variance of `(b + v / n) / k`, that of a whole group
        of `w n` rows `b + v / (w n)`, for a variance `v` within and `b` between groups; `F` of
        both, `1 + n b / v`, is told by the rows.
        """
        sizes = np.bincount(self.group).astype(np.float64)
        spare = len(self.group) - len(sizes)
        result = [_over_chance(sizes)] if sizes.mean() > _COUNTED else []
        if spare >= _LEAST_SPARE:
            result += [self._differ(name, sizes, spare) for name in measures]
        by_chance = 1.0 + _BY_CHANCE * math.sqrt(2.0 / max(len(sizes), 1))
        most = max(result, default=1.0)
        ratio = 1.0 if most <= by_chance else most
        return max(1.0, ratio / (ratio - 1.0 + 1.0 / self.stands))

    def _differ(self, name: ColumnName, sizes: Floats, spare: int) -> float:
        """Variance between groups beside each other over that within, each by its freedom."""
        column = self.rows.column(name).take(pa.array(self.order))
        values = pc.cast(column, pa.float64(), safe=False).combine_chunks()
        numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False)
        numbers = np.where(np.isfinite(numbers), numbers, 0.0)
        means = np.bincount(self.group, weights=numbers) / sizes
        within = float(((numbers - means[self.group]) ** 2).sum()) / spare
        # What is the same for many neighbours, as a trend, is no difference between two.
        apart = (means[1:] - means[:-1]) ** 2 / (1.0 / sizes[1:] + 1.0 / sizes[:-1])
        return float(apart.mean()) / within if within > 0 and len(apart) else 1.0

    def put_together(self, together: float) -> tuple[pa.Table, Ints, Flags, Floats]:
        """All rows with so many groups taken for one; their groups; which of those apart are kept,
        and the weight of each.

        Each takes the values of the first one of its bucket. The last bucket is not full.
        """
        bucket = np.floor(np.arange(int(self.group[-1]) + 1) / together).astype(np.int64)
        of_row = bucket[self.group]
        begin = np.flatnonzero(np.concatenate([[True], of_row[1:] != of_row[:-1]]))
        dense = np.cumsum(np.concatenate([[False], of_row[1:] != of_row[:-1]]))
        source = np.arange(len(self.rows))
        source[self.order] = self.order[begin][dense]
        rows = self.rows
        for name in self.columns:
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, name, rows.column(name).take(pa.array(source)))
        kept = np.ones(len(self.rows), dtype=np.bool_)
        kept[self.order] = (of_row < of_row[-1]) | (together <= 1.0) | (of_row[-1] == 0)
        weights = np.full(len(self.at), self.stands / together)
        return rows, self.codes[source], kept[self.at], weights


def _over_chance(sizes: Floats) -> float:
    """How much sizes of groups beside each other differ, over what chance makes of them."""
    one, other = sizes[1:], sizes[:-1]
    return float(((one - other) ** 2).mean() / max((one + other).mean(), 1e-9)) if len(one) else 1.0


def _codes(rows: pa.Table, name: ColumnName) -> Ints:
    """A number per value of a column, NULL one of them."""
    result = rows.column(name).combine_chunks().dictionary_encode()
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    return np.asarray(
        result.indices.fill_null(len(result.dictionary)).to_numpy(zero_copy_only=False)
    ).astype(np.int64)


def _ranks(rows: pa.Table, name: ColumnName, codes: Ints) -> Ints:
    """Numbers in the order of a column's values, which codes tell apart."""
    first = np.zeros(int(codes.max(initial=-1)) + 1, dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    order = pc.array_sort_indices(rows.column(name).take(pa.array(first)).combine_chunks())
    ranks = np.empty(len(first), dtype=np.int64)
    ranks[np.asarray(order)] = np.arange(len(first))
    return ranks[codes]


def _combined(columns: Sequence[Ints]) -> Ints:
    """A number per row that tells its values in all columns, from 0 up."""
    result = columns[0]
    for own in columns[1:]:
        both = result * (int(own.max(initial=0)) + 1) + own
        result = np.unique(both, return_inverse=True)[1].astype(np.int64)
    return result
