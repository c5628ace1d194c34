"""Estimates from samples: values of a column, rows of files, and keys of joins."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from impctl.data.keys import ascending, key_codes, starts_in
from impctl.data.vector import Bools, Ints, from_arrow
from impctl.expr.evaluate import Condition
from impctl.expr.nodes import ColumnRef, Expr
from impctl.sketch.boundaries import ValueWeights
from impctl.sketch.sketch import RangeSet, exact_filter
from impctl.tables.rows import FileReader, read_batches
from impctl.tables.snapshot import UNKNOWN, ColumnBounds, DataFile, Snapshot, places_in
from impctl.tables.statistics import Density, Line, file_bounds, line_of, prune
from impctl.tables.storage import local_path

if TYPE_CHECKING:
    from impctl.data.schema import SqlType
    from impctl.sketch.sketch import BoundaryValue, RangePartition
    from impctl.types import ColumnName


# How far files overlap on a column: from each value in one file to each value in all of them. Law:
# statistics alone decide; values are assumed evenly spread between a file's bounds, and a file
# without statistics overlaps all others. Cost: one sort of the files.


def overlap(snapshot: Snapshot, column: ColumnName) -> float:
    """The share of the files that may hold a value, on average over the files' values."""
    bounds = file_bounds(snapshot, column)
    return mean_overlap(bounds) / max(len(bounds), 1)


def mean_overlap(bounds: ColumnBounds) -> float:
    """How many of these files may hold a value, on average: 1 if each is in one file only."""
    line = line_of(bounds)
    if line is None:
        return float(len(bounds))
    lows, ends = line.spans(bounds.filled)
    # How many files lie over each piece of the line, and what that adds up to from the left.
    edges, indexes = np.unique(np.concatenate([lows, ends]), return_inverse=True)
    steps = np.zeros(len(edges))
    np.add.at(steps, indexes[: len(lows)], 1.0)
    np.add.at(steps, indexes[len(lows) :], -1.0)
    files_over = np.cumsum(steps)[:-1]
    summed = np.concatenate([[0.0], np.cumsum(files_over * np.diff(edges))])
    covered = summed[indexes[len(lows) :]] - summed[indexes[: len(lows)]]
    return float((covered / (ends - lows)).mean())


def is_sorted(snapshot: Snapshot, column: ColumnName) -> bool:
    """Whether each file begins where the previous one ends, or later; NULL lies anywhere."""
    bounds = file_bounds(snapshot, column).filled
    if not bounds.is_known or bool(bounds.may_be_nan.any()):
        return False
    spans = sorted(zip(bounds.lows.tolist(), bounds.highs.tolist(), strict=True))
    return all(before[1] <= after[0] for before, after in pairwise(spans))


def clustered_columns(
    snapshot: Snapshot, columns: Sequence[ColumnName], most: float
) -> list[ColumnName]:
    """The columns by which files overlap at most so much, best first."""
    result = [(overlap(snapshot, name), name) for name in columns]
    return [name for share, name in sorted(result, key=lambda pair: pair[0]) if share <= most]


# A sample of a column's values, for choosing boundaries. Law: the same snapshot, column and seed
# give the same sample. Values are canonical, without NULL and NaN. The sample affects how balanced
# ranges are, never soundness. Cost: one column of a few row groups of at most `MAX_FILES` files.

MAX_FILES = 64
_GROUPS_PER_FILE = 4


def sample_values(
    snapshot: Snapshot,
    column: ColumnName,
    rows: int,
    seed: int,
    within: tuple[RangePartition, RangeSet] | None = None,
) -> list[BoundaryValue]:
    """About `rows` values spread over the snapshot's files; all of them if there are fewer.
    `within`: only values of these ranges, from files that may hold some."""
    result = snapshot.readable(column)
    random = np.random.default_rng(seed)
    possible = snapshot.files
    if within is not None:
        partition, ranges = within
        possible = prune(snapshot, [exact_filter(ranges, partition)])
    files = _chosen_files(possible, random)
    reader = FileReader(snapshot, [result], files)
    weights = _weights(files)
    values: list[BoundaryValue] = []
    for file, weight in zip(files, weights, strict=True):
        quota = max(1, round(rows * weight))
        table = reader.read_some(file, lambda groups: _spread(groups, random))
        vector = from_arrow(table.column(0), result.type)
        live = vector.validity()
        if result.type.is_fractional:
            live = live & ~np.isnan(vector.values)
        if within is not None:
            live = live & np.isin(partition.range_ids_of(vector), ranges.ids)
        positions = np.flatnonzero(live)
        if len(positions) > quota:
            positions = np.sort(random.choice(positions, quota, replace=False))
        picked = vector.take(positions)
        values.extend(picked.values.to_pylist() if picked.is_textual else picked.values.tolist())
    return values


def _chosen_files(candidates: Sequence[DataFile], random: np.random.Generator) -> list[DataFile]:
    """At most MAX_FILES, larger ones more likely, in the log's order."""
    files = [file for file in candidates if file.rows != 0]
    if len(files) <= MAX_FILES:
        return files
    chosen = random.choice(len(files), MAX_FILES, replace=False, p=_weights(files))
    return [files[index] for index in sorted(chosen.tolist())]


def _weights(files: list[DataFile]) -> list[float]:
    """Share of the rows per file; of the bytes if a file's rows are unknown."""
    is_known = all(file.rows is not None for file in files)
    sizes = [float((file.rows if is_known else file.size) or 1) for file in files]
    total = sum(sizes)
    return [size / total for size in sizes]


def _spread(groups: int, random: np.random.Generator) -> list[int]:
    if groups <= _GROUPS_PER_FILE:
        return list(range(groups))
    return sorted(random.choice(groups, _GROUPS_PER_FILE, replace=False).tolist())


# Windows of consecutive rows, and the number of rows that each row represents. Law: the same
# snapshot, files and column give the same windows. The weight of a row is the density of all rows
# at its group over the density of the drawn ones: 1 if a window holds whole groups, all rows over
# drawn rows if groups are scattered (Horvitz and Thompson, 1952; statistics give the probability
# that a group's row is drawn). No weight is below 1. A sample makes estimates wide, never an answer
# wrong.

Floats = npt.NDArray[np.float64]

_OF_ALL, _LEAST_ROWS, _MOST_ROWS = 1 / 50, 40_000, 80_000
"""Number of rows drawn: a tenth of a capture's time."""
_WINDOWS, _FEWEST, _MOST_WINDOWS = 48, 20, 56
"""Number of windows: few, so that each holds whole values of the column; more if it cannot."""
_OF_ONE_VALUE = 700
"""Rows that suffice for one value."""
_WHOLE_VALUES, _FEW_VALUES = 10, 2.5
_ENDS = (0.15, 0.85)
_BESIDE = 3
"""Values on either side that determine how many rows one has."""
_AT_ONCE = 4
"""Slices read concurrently: most of the time is waiting and opening the file."""


class FileSample(Struct, frozen=True):
    """The files to draw from, and the rows drawn: windows, each of parts of so many rows."""

    snapshot: Snapshot
    files: tuple[DataFile, ...]
    rows: pa.Table
    windows: tuple[tuple[int, ...], ...]

    @property
    def total(self) -> float:
        """Rows of all files drawn from; 1 for a file without a known count."""
        return float(sum(_rows_of(self.files)))

    @property
    def window_of(self) -> Ints:
        """The number of each row's window; shape (n,)."""
        sizes = [sum(parts) for parts in self.windows]
        return np.repeat(np.arange(len(sizes)), sizes)

    def weights(self, groups: Mapping[ColumnName, ColumnBounds]) -> Floats:
        """Rows that each drawn row represents, by the columns that its group shares, each with its
        bounds in `files`; shape (n,). Without a shared column, all rows over those drawn."""
        result: Floats = np.full(len(self.rows), self.total / max(len(self.rows), 1))
        for name, bounds in groups.items():
            result = np.minimum(result, self._weights_by(name, bounds))
        return np.asarray(np.maximum(result, 1.0))

    def held(self, name: ColumnName, bounds: ColumnBounds) -> tuple[Floats, Floats] | None:
        """For each row, how many rows have its value of a column, and how many files may hold it,
        by statistics; shape (n,) each. None if unknown."""
        line = line_of(bounds)
        if line is None:
            return None
        places = self._places(name, line)
        filled, rows = self._filled(bounds)
        lows, ends = line.spans(filled)
        files = Density.of(lows, ends, ends - lows).at(places)
        # Files that reach into the next value are spread evenly over both: so are their neighbours.
        spread, half = Density.of(lows, ends, rows), _BESIDE * line.unit
        start = np.maximum(places - half, lows.min(initial=0.0))
        end = np.minimum(places + half + line.unit, ends.max(initial=0.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            density = (spread.before(end) - spread.before(start)) / (end - start)
        return density * (line.unit or math.nan), files

    def _filled(self, bounds: ColumnBounds) -> tuple[ColumnBounds, Floats]:
        """Bounds of the files that hold more than NULL, and the rows of these."""
        rows = np.array(_rows_of(self.files), dtype=np.float64)
        return bounds.filled, rows[~bounds.is_all_null]

    def _places(self, name: ColumnName, line: Line) -> Floats:
        kind = self.snapshot.readable(name).type
        return line.places_of(from_arrow(self.rows.column(name), kind))

    def _weights_by(self, name: ColumnName, bounds: ColumnBounds) -> Floats:
        """The density of all rows at each row's value, over that of the drawn ones."""
        line = line_of(bounds)
        if line is None:
            return np.full(len(self.rows), np.inf)
        filled, rows = self._filled(bounds)
        places = self._places(name, line)
        density = Density.of(*line.spans(filled), rows)
        drawn = Density.of(*self._spans(places, line.unit))
        result = density.at(places) / np.maximum(drawn.at(places), 1e-12)
        return np.where(np.isfinite(result), result, np.inf)

    def _spans(self, places: Floats, unit: float) -> tuple[Floats, Floats, Floats]:
        """The first and last value of each part, and its number of values if all of it were as
        dense as its interior: the ends hold parts of adjacent values."""
        lows, ends, rows = [], [], []
        for part in _slices([size for parts in self.windows for size in parts]):
            known = places[part]
            known = known[np.isfinite(known)]
            if len(known):
                lows.append(float(known.min()))
                ends.append(max(float(known.max()) + unit, float(np.nextafter(lows[-1], np.inf))))
                rows.append(_evenly(known, lows[-1], ends[-1], unit))
        return np.array(lows), np.array(ends), np.array(rows)


def _evenly(places: Floats, low: float, end: float, unit: float) -> float:
    """Expected number of values from `low` to `end`, from the interior."""
    first, last = np.quantile(places, _ENDS, method="nearest")
    width = last - first + unit
    if first <= low or last + unit >= end or width <= 0:
        return float(len(places))
    between = np.count_nonzero((places >= first) & (places <= last))
    return float(between / width * (end - low))


def _slices(sizes: Sequence[int]) -> Iterator[slice]:
    """Consecutive runs of this many rows."""
    ends = np.cumsum(sizes)
    return (slice(end - size, end) for end, size in zip(ends, sizes, strict=True))


def file_sample(
    snapshot: Snapshot,
    files: Sequence[DataFile],
    columns: Sequence[ColumnName],
    along: ColumnBounds,
) -> FileSample:
    """Windows at even steps of rows, files ordered by `along`, the bounds of a column. A window
    starts at a file's start and continues in the next files if the file is small."""
    chosen = tuple(files)
    counts = np.array(_rows_of(files), dtype=np.int64)
    order = _ordered(along)
    size = _window_rows(counts, along)
    parts = [part for window in _windows(counts[order], size) for part in window]
    reader = FileReader(snapshot, [snapshot.readable(name) for name in columns], chosen)
    sampled = [chosen[order[index]] for index, _, _ in parts]
    rows_of, numbers = [rows for _, rows, _ in parts], range(len(parts))
    if local_path(snapshot.path) is not None:
        # Nothing to wait for: threads would only delay each other.
        tables = list(map(reader.read_slice, sampled, rows_of, numbers))
    else:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            tables = list(pool.map(reader.read_slice, sampled, rows_of, numbers))
    sizes: dict[int, list[int]] = {}
    for table, (_, _, window) in zip(tables, parts, strict=True):
        sizes.setdefault(window, []).append(len(table))
    rows = pa.concat_tables([reader.empty(), *tables])
    return FileSample(snapshot, chosen, rows, tuple(map(tuple, sizes.values())))


def _drawn_rows(total: int) -> int:
    return min(total, int(min(max(total * _OF_ALL, _LEAST_ROWS), _MOST_ROWS)))


def _window_rows(counts: Ints, along: ColumnBounds) -> int:
    """Rows per window: a few values of the column, if that leaves enough windows."""
    total = int(counts.sum())
    drawn = _drawn_rows(total)
    even, most = drawn // _WINDOWS, drawn // _FEWEST
    line = line_of(along)
    if line is None or not line.unit:
        return max(even, 1)
    lows, ends = line.spans(along.filled)
    per_value = total / max(float(ends.max() - lows.min()), 1.0)
    if _FEW_VALUES * per_value > most:
        # A window is in one value: the more windows, the better.
        return max(min(drawn // _MOST_WINDOWS, _OF_ONE_VALUE), 1)
    return max(1, min(most, max(even, round(_WHOLE_VALUES * per_value))))


def _windows(counts: Ints, size: int) -> Iterator[list[tuple[int, int, int]]]:
    """Windows as parts: the file, its rows, the window's number."""
    before = np.concatenate([[0], np.cumsum(counts)])
    number = max(1, min(_drawn_rows(int(before[-1])) // size, _MOST_WINDOWS))
    lowest = 0
    for window, target in enumerate((np.arange(number) + 0.5) * before[-1] / number):
        index = max(lowest, int(np.searchsorted(before, target, side="right")) - 1)
        result, left = [], size
        while left > 0 and index < len(counts):
            result.append((index, min(left, int(counts[index])), window))
            left -= int(counts[index])
            index += 1
        lowest = index
        yield result


def _ordered(along: ColumnBounds) -> Ints:
    """Positions of files by their least values, those without one last."""
    known, unknown = np.flatnonzero(along.has_low), np.flatnonzero(~along.has_low)
    return np.concatenate([known[np.argsort(along.lows[known], kind="stable")], unknown])


def _rows_of(files: Sequence[DataFile]) -> list[int]:
    return [max(file.rows or 1, 1) for file in files]


# The distribution of a column's values, from statistics of all files and a sample. Law: every file
# counts with its rows, read or not. Its rows are spread over the sampled values between its bounds,
# or evenly between the bounds if these are too few. Cost: one pass over the log's statistics.

_ENOUGH = 8
"""Sampled values between a file's bounds that suffice to know its distribution."""
_POINTS = 4
"""Values that represent the rows of a file with too few sampled ones."""


def with_overlaps(
    boundaries: Sequence[BoundaryValue], files: ColumnBounds
) -> tuple[BoundaryValue, ...]:
    """The boundaries, and one more behind each overlap of files that ends in the next range. A
    value that ends one file and starts the next has its own range, and the others of both are in
    one file."""
    starts, reached = _reached(files.filled)
    boundary_values: list[BoundaryValue] = []
    for low, high in pairwise((*boundaries, None)):
        assert low is not None
        boundary_values.append(low)
        earlier = bisect_left(starts, low) - 1
        last = reached[earlier] if earlier >= 0 else None
        behind = None if last is None or _is_less(last, low) else _next(last)
        if behind is not None and (high is None or _is_less(behind, high)):
            boundary_values.append(behind)
    return tuple(boundary_values)


def value_weights(
    files: ColumnBounds, sample: Sequence[BoundaryValue]
) -> tuple[ValueWeights, float]:
    """The distribution of a column's rows, by all files' bounds and a sample of values; and how
    many files may hold the value of a row, on average: 1 in a table sorted by the column, all files
    if it is not sorted at all."""
    ordered, files = sorted(sample), files.filled
    rows = _rows(files)
    first, end = _between(ordered, files)
    is_sampled = end - first >= _ENOUGH
    added: list[tuple[BoundaryValue, float]] = []
    # Bounded by the files of which too few values are in the sample.
    few = files.keep(~is_sampled)
    for index, low, high in zip(np.flatnonzero(~is_sampled), few.minima, few.maxima, strict=True):
        points = _points(low, high)
        added += [(point, float(rows[index]) / len(points)) for point in points]
        is_sampled[index] = not points
    spread = is_sampled & (end > first)
    per_value = rows[spread] / (end - first)[spread]
    steps = np.zeros(len(ordered) + 1)
    np.add.at(steps, first[spread], per_value)
    np.add.at(steps, end[spread], -per_value)
    drawn = zip(ordered, np.cumsum(steps[:-1]).tolist(), strict=True)
    weights = ValueWeights.of([*drawn, *added])
    if not weights.total:
        return weights, float(len(files))
    first, end = _between(weights.values, files)
    before = np.array(weights.before)
    return weights, float((before[end] - before[first]).sum()) / weights.total


def starts_of(files: ColumnBounds) -> tuple[BoundaryValue, ...]:
    """The least values of files, ascending."""
    return tuple(sorted(set(files.lows[files.has_low].tolist())))


def _reached(
    files: ColumnBounds,
) -> tuple[tuple[BoundaryValue, ...], tuple[BoundaryValue | None, ...]]:
    """Where files start, and how far the files that start there or before reach. Files without
    a least value are unknown and start before all others."""
    if not bool(files.has_low.all()):
        unknown = starts_of(files)
        return unknown, (None,) * len(unknown)
    ends: dict[BoundaryValue, BoundaryValue | None] = {}
    for low, high in zip(files.lows.tolist(), files.maxima, strict=True):
        ends[low] = _later(ends.get(low, low), high)
    starts = sorted(ends)
    return tuple(starts), tuple(accumulate((ends[low] for low in starts), _later))


def _later(one: BoundaryValue | None, other: BoundaryValue | None) -> BoundaryValue | None:
    """The greater of two; None, which is unknown, if one of them is."""
    return None if one is None or other is None else max(one, other)


def _is_less(one: BoundaryValue, other: BoundaryValue) -> bool:
    return one < other  # type: ignore[operator]  # one column, one value type


def _next(value: BoundaryValue) -> BoundaryValue | None:
    """The least value above a number; None for texts, whose next one is not printable."""
    if isinstance(value, float):
        return math.nextafter(value, math.inf) if value < math.inf else None
    return value + 1 if isinstance(value, int) else None


def _rows(files: ColumnBounds) -> Floats:
    """Rows that are not NULL; one if the log does not say."""
    rows = np.where(files.rows == UNKNOWN, 1, files.rows)
    filled = np.maximum(rows - np.maximum(files.null_counts, 0), 0)
    return np.asarray(filled, dtype=np.float64)


def _between(ordered: Sequence[BoundaryValue], files: ColumnBounds) -> tuple[Ints, Ints]:
    """Where the values of each file begin and end among ordered ones."""
    first = np.where(files.has_low, places_in(ordered, files.lows, "left"), 0)
    end = np.where(files.has_high, places_in(ordered, files.highs, "right"), len(ordered))
    return first, end


def _points(low: BoundaryValue | None, high: BoundaryValue | None) -> set[BoundaryValue]:
    """Values from a file's least to its greatest; none if a bound is unknown."""
    if low is None or high is None:
        return set()
    if isinstance(low, int) and isinstance(high, int):
        return {low + (high - low) * step // (_POINTS - 1) for step in range(_POINTS)}
    if isinstance(low, float) and isinstance(high, float) and math.isfinite(high - low):
        return {low + (high - low) * step / (_POINTS - 1) for step in range(_POINTS)}
    return {low, high}


# Fan-outs: the mean number of rows of one table that have the key of a row of another. Law: over
# all keys k, with r_k changed rows and s_k others, a changed row matches sum r_k * s_k / sum r_k
# others. This is exact if all keys are counted, apart from collisions of codes. With a condition,
# only rows that may satisfy it count. A sample chooses keys by their hash, alike in every table, so
# the estimate is unbiased. NULL matches nothing unless the column is null-safe. Cost: one pass over
# the columns of the key and the condition, and one number per distinct key.

MANY_ROWS = 4_000_000
"""Row count of a table from which only a sample of keys is counted."""
ONE_IN = 16
"""One key in this many is sampled."""
_LARGE, _LEFT_OUT = 100_000, 0.01
"""Row count of a table of which small files are skipped, and the limit of rows in these."""
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class KeyColumns(Struct, frozen=True):
    """The columns of a key, with their types and where NULL equals NULL. With `counted`, more
    columns, their distinct combinations count once per key: tuples. None counts rows. With `where`,
    whose columns use their names in the table, only rows that may satisfy it count."""

    key: tuple[tuple[ColumnName, SqlType], ...]
    null_safe: tuple[bool, ...]
    counted: tuple[tuple[ColumnName, SqlType], ...] | None = None
    where: Expr | None = None

    @property
    def names(self) -> tuple[ColumnName, ...]:
        every = (*self.key, *(self.counted or ()), *_read_by(self.where))
        return tuple(dict.fromkeys(name for name, _ in every))


class KeyCounts(Struct, frozen=True):
    """How often keys occur: `codes` ascend, shape (keys,), `counts` are parallel. One in `one_in`
    keys is sampled; `rows` of the table's `read` satisfy the condition, whatever their key."""

    rows: int
    codes: Ints
    counts: Ints
    read: int
    one_in: int = 1

    @property
    def share(self) -> float:
        """The share of the table's rows that satisfy the condition; 1 for an empty table."""
        return self.rows / self.read if self.read else 1.0

    @property
    def keys(self) -> int:
        """Distinct keys, estimated for all."""
        return len(self.codes) * self.one_in

    @property
    def together(self) -> int:
        """The sum of counts, estimated for all keys: rows with a key, or tuples."""
        return int(self.counts.sum()) * self.one_in


def one_in(*rows: int) -> int:
    """The sampling ratio for tables of these sizes that are compared."""
    return ONE_IN if max(rows, default=0) > MANY_ROWS else 1


def fan_out(changed: KeyCounts, other: KeyCounts) -> float:
    """The mean number of matches of a changed row on the other side, by samples with one
    `one_in`."""
    assert changed.one_in == other.one_in, "samples of the same keys"
    if not changed.rows:
        return 0.0
    _, mine, theirs = np.intersect1d(
        changed.codes, other.codes, assume_unique=True, return_indices=True
    )
    # The sum of products may exceed 64 bits; a double is exact enough for an estimate.
    met = changed.counts[mine].astype(np.float64) @ other.counts[theirs].astype(np.float64)
    return float(met) * changed.one_in / changed.rows


def key_counts(snapshot: Snapshot, columns: KeyColumns, one_in: int = 1) -> KeyCounts:
    """The counts of a table's keys at a version; errors as of `tables.rows.read_batches`, and
    EvaluationError if the condition fails on a row."""
    return counted(read_batches(snapshot, columns.names, _large_files(snapshot)), columns, one_in)


def _large_files(snapshot: Snapshot) -> Sequence[DataFile]:
    """The files to count: in a large table without the smallest, which take longer to open than to
    read and together hold hardly any rows."""
    files = sorted(snapshot.files, key=lambda file: file.rows or 0, reverse=True)
    if snapshot.likely_rows < _LARGE or any(file.rows is None for file in files):
        return snapshot.files
    ends = np.cumsum([file.rows for file in files])
    return files[: 1 + int(np.searchsorted(ends, (1.0 - _LEFT_OUT) * float(ends[-1])))]


def counted(batches: Iterable[pa.Table], columns: KeyColumns, one_in: int = 1) -> KeyCounts:
    """The counts of the keys in all batches, whose columns are named as in `key`."""
    rows = read = 0
    result: list[tuple[Ints, Ints]] = []
    for full in batches:
        read += len(full)
        batch = _filtered(full, columns.where)
        rows += len(batch)
        codes, can_match = _codes(batch, columns.key, columns.null_safe)
        chosen = np.flatnonzero(can_match & _is_chosen(codes, one_in))
        keys, counts = codes[chosen], np.ones(len(chosen), dtype=np.int64)
        if columns.counted is not None:
            every = (*columns.key, *columns.counted)
            some = batch if len(chosen) == len(batch) else batch.take(pa.array(chosen))
            counts, _ = _codes(some, every, (True,) * len(every))
        result.append(_united(keys, counts, are_tuples=columns.counted is not None))
    if not result:
        nothing = np.zeros(0, dtype=np.int64)
        return KeyCounts(0, nothing, nothing, 0, one_in)
    keys, counts = (np.concatenate(parts) for parts in zip(*result, strict=True))
    keys, counts = _united(keys, counts, are_tuples=columns.counted is not None)
    if columns.counted is not None:
        keys, counts = _united(keys, np.ones(len(keys), dtype=np.int64), are_tuples=False)
    return KeyCounts(rows, keys, counts, read, one_in)


def _filtered(batch: pa.Table, where: Expr | None) -> pa.Table:
    """The rows that may satisfy the condition."""
    if where is None:
        return batch
    columns = {name: from_arrow(batch.column(name), kind) for name, kind in _read_by(where)}
    return batch.filter(pa.array(Condition(where).truth(columns, len(batch)).may_true))


def _read_by(where: Expr | None) -> Sequence[tuple[ColumnName, SqlType]]:
    parts = () if where is None else where.walk()
    return [(part.id, part.type) for part in parts if isinstance(part, ColumnRef)]


def _codes(
    batch: pa.Table, columns: Sequence[tuple[ColumnName, SqlType]], null_safe: Sequence[bool]
) -> tuple[Ints, Bools]:
    """One code per row, and whether the key can match another."""
    can_match = np.ones(len(batch), dtype=bool)
    vectors = [from_arrow(batch.column(name), kind) for name, kind in columns]
    for vector, is_safe in zip(vectors, null_safe, strict=True):
        if not is_safe:
            can_match &= vector.validity()
    return key_codes(vectors, len(batch)), can_match


def _is_chosen(codes: Ints, one_in: int) -> Bools:
    """Whether the key is in the sample; its code need not be uniform, such as whole numbers."""
    if one_in == 1:
        return np.ones(len(codes), dtype=bool)
    words = codes.view(np.uint64)
    # The upper bits of a product depend on all lower ones and are shifted down.
    spread = ((words ^ (words >> np.uint64(29))) * _SPREAD) >> np.uint64(32)
    chosen: Bools = spread % np.uint64(one_in) == 0
    return chosen


def sampled_counts(every: KeyCounts, one_in: int) -> KeyCounts:
    """The counts that a sample of one key in `one_in` would have."""
    assert every.one_in == 1, "all keys are there"
    chosen = np.flatnonzero(_is_chosen(every.codes, one_in))
    return replace(every, codes=every.codes[chosen], counts=every.counts[chosen], one_in=one_in)


def _united(keys: Ints, counts: Ints, *, are_tuples: bool) -> tuple[Ints, Ints]:
    """Sum the counts of equal keys; count each pair of key and tuple code once. A tuple's code
    includes its key, so one code belongs to one key."""
    order = ascending(counts if are_tuples else keys)
    keys, counts = keys[order], counts[order]
    if are_tuples:
        is_first = starts_in(counts)
        return keys[is_first], counts[is_first]
    starts = np.flatnonzero(starts_in(keys))
    return keys[starts], np.add.reduceat(counts, starts) if len(starts) else counts
