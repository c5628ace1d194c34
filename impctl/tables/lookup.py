"""Rows of a table that have one of some values, and how often the keys of a join occur."""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from impctl.data.keys import ascending, key_codes, normalise, starts_in
from impctl.data.schema import Column, Kind
from impctl.data.vector import Bools, Ints, Vector, from_arrow
from impctl.expr.evaluate import Condition
from impctl.expr.nodes import ColumnRef, Expr, walk
from impctl.tables.prune import prune_to_values
from impctl.tables.rows import FileReader, bare_rows, read_batches

if TYPE_CHECKING:
    from impctl.data.schema import SqlType
    from impctl.tables.snapshot import DataFile, Snapshot
    from impctl.types import ColumnName


# Values that rows are looked for by, and which rows of a column have one of them. Law: a row
# whose value equals one that is wanted, as join keys are equal (NaN to NaN, -0.0 to 0.0, NULL to
# NULL where NULL is wanted), is always found; of doubles and wide decimals, which are found by
# the codes of their keys, another may be found too, one in 2^64. Cost: some nanoseconds a row of
# the column.


class WantedValues(Struct, frozen=True):
    """The distinct values of `values`, prepared for comparison with many rows."""

    values: Vector
    distinct: pa.Array
    has_null: bool

    @classmethod
    def of(cls, values: Vector) -> WantedValues:
        valid = values.validity()
        known = values if bool(valid.all()) else values.take(np.flatnonzero(valid))
        return cls(values, pc.unique(_comparable(known)), not bool(valid.all()))

    def may_lie(self, low: int, high: int, *, has_null: bool) -> bool:
        """Whether one lies between two integers or dates, or is NULL where there are NULLs."""
        if self.has_null and has_null:
            return True
        mine = self.distinct.to_numpy(zero_copy_only=False)
        return bool(((mine >= low) & (mine <= high)).any())

    def held_by(self, column: Vector) -> Bools:
        """Which rows have one of the values; shape (n,). The column has the values' type."""
        mine = _comparable(column)
        result = pc.is_in(mine, value_set=self.distinct.cast(mine.type))
        array = result.combine_chunks() if isinstance(result, pa.ChunkedArray) else result
        mask: Bools = array.to_numpy(zero_copy_only=False).astype(np.bool_, copy=False)
        if column.valid is None:
            return mask
        return mask | ~column.valid if self.has_null else mask & column.valid


def _comparable(column: Vector) -> Any:
    """The column in a form Arrow compares correctly: unchanged, or by the codes of its keys."""
    if column.is_textual:
        return column.values
    if column.values.dtype.kind in "iub":
        return pa.array(column.values)
    return pa.array(key_codes([normalise(column)], len(column)))


# The row groups of a data file: rows of each, and the whole numbers that a column lies between.
# Law: bounds are told of integers and dates alone, where the writer told both and how many values
# are NULL; text is cut off by writers, and doubles have a NaN and two zeros that bounds do not
# show. What is told is trusted as a file's own metadata is.

_EPOCH = dt.date(1970, 1, 1).toordinal()


class Bounds(Struct, frozen=True):
    """The least and the greatest value of a column, dates in days since 1970."""

    low: int
    high: int
    has_null: bool


class RowGroup(Struct, frozen=True):
    """Rows of a group, including deleted ones, and known bounds of columns."""

    rows: int
    bounds: Mapping[ColumnName, Bounds]


def row_groups(
    metadata: Any, stored: Mapping[ColumnName, str], columns: tuple[Column, ...]
) -> tuple[RowGroup, ...]:
    """The groups of a file, by its Parquet `metadata`; `stored` are the file's names of columns."""
    result = []
    for at in range(metadata.num_row_groups):
        group = metadata.row_group(at)
        places = {group.column(i).path_in_schema: i for i in range(group.num_columns)}
        bounds = {}
        for column in columns:
            place = places.get(stored.get(column.name, ""))
            known = None if place is None else _bounds(group.column(place).statistics, column)
            if known is not None:
                bounds[column.name] = known
        result.append(RowGroup(group.num_rows, bounds))
    return tuple(result)


def _bounds(stated: Any, column: Column) -> Bounds | None:
    if stated is None or not stated.has_min_max or not stated.has_null_count:
        return None
    low, high = _whole(stated.min, column), _whole(stated.max, column)
    return None if low is None or high is None else Bounds(low, high, stated.null_count > 0)


def _whole(value: object, column: Column) -> int | None:
    if column.type.is_integral and isinstance(value, int) and not isinstance(value, bool):
        return value
    if column.type.kind is Kind.DATE and type(value) is dt.date:
        return value.toordinal() - _EPOCH
    return None


# Columns of row groups that several readers of one run ask for, decoded once. Law: what is given
# is what `FileReader` reads of the same file. Files do not change, but what names mean does
# between versions, so a column is known by its name in files and its type. No more than `most`
# bytes are held: what was asked for longest ago goes first.

MOST_BYTES = 128 << 20
"""Limit of columns that a run holds: the keys of some ten million rows."""

_Columns = tuple[tuple[str, str], ...]
"""Columns by their names in files and their types."""
_Place = tuple[str, str, str, int]
"""A file, a column's name in files, its type, and a row group."""


class ColumnCache:
    """A cache of decoded columns of row groups, and of facts about the groups of files."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._bytes = 0
        self._cache: OrderedDict[_Place, pa.ChunkedArray] = OrderedDict()
        self._groups: dict[tuple[str, _Columns], tuple[RowGroup, ...]] = {}
        self._readers: dict[tuple[str, int, _Columns], FileReader] = {}

    def groups(
        self, snapshot: Snapshot, names: Sequence[ColumnName], file: DataFile
    ) -> tuple[RowGroup, ...]:
        """The row groups of a file, with bounds of these columns."""
        columns = tuple(snapshot.readable(name) for name in names)
        key = (file.uri, tuple(_known_by(snapshot, column) for column in columns))
        if key not in self._groups:
            metadata, stored = self._reader(snapshot, columns).described(file)
            self._groups[key] = row_groups(metadata, stored, columns)
        return self._groups[key]

    def columns(
        self, snapshot: Snapshot, names: Sequence[ColumnName], file: DataFile, group: int, rows: int
    ) -> pa.Table:
        """These columns of a row group of `rows` rows, including deleted ones."""
        if not names:
            return bare_rows(rows)
        wanted = [snapshot.readable(name) for name in names]
        places = {c.name: (file.uri, *_known_by(snapshot, c), group) for c in wanted}
        missing = [column for column in wanted if places[column.name] not in self._cache]
        result = {name: self._cache[at] for name, at in places.items() if at in self._cache}
        if missing:
            table = self._reader(snapshot, missing).read_some(file, lambda _: (group,))
            result |= {column.name: table.column(column.name) for column in missing}
        for name, place in places.items():
            self._hold(place, result[name])
        return pa.table({column.name: result[column.name] for column in wanted})

    def _reader(self, snapshot: Snapshot, columns: Sequence[Column]) -> FileReader:
        known_by = tuple(_known_by(snapshot, column) for column in columns)
        key = (snapshot.table, snapshot.version, known_by)
        if key not in self._readers:
            self._readers[key] = FileReader(snapshot, columns, snapshot.files)
        return self._readers[key]

    def _hold(self, place: _Place, column: pa.ChunkedArray) -> None:
        """Cache as most recently used, unless it exceeds the limit."""
        before = self._cache.pop(place, None)
        if before is not None:
            self._bytes -= before.nbytes
        if column.nbytes > self._most:
            return
        self._cache[place] = column
        self._bytes += column.nbytes
        while self._bytes > self._most:
            _, oldest = self._cache.popitem(last=False)
            self._bytes -= oldest.nbytes


def _known_by(snapshot: Snapshot, column: Column) -> tuple[str, str]:
    """The column's name in files, if they have it, and its type."""
    return snapshot.columns.physical[column.name], str(column.type)


# Rows of a snapshot whose columns have some of the values asked for, from its files. Law: every
# row of the files that has a wanted value in each of the columns asked by is there once, and
# hardly any other; deleted rows are not. Files and row groups are left out by statistics, other
# row groups by the columns asked by, which alone are read of these. Cost: some 10 ns a row for
# each column asked by, and all columns of the row groups that hold one.


def rows_with(
    snapshot: Snapshot,
    columns: Sequence[ColumnName],
    values: Mapping[ColumnName, Sequence[Vector]],
    files: Sequence[DataFile],
    once: ColumnCache,
) -> Iterator[pa.Table]:
    """The rows in these files, exactly these columns, with one value of each of the lists. Raises
    HistoryGoneError for a file that is gone, TableError for a column that cannot be read."""
    wanted = {name: [WantedValues.of(v) for v in lists] for name, lists in values.items()}
    kept_files = {file.uri for file in files}
    for name, lists in values.items():
        for vector in lists:
            kept_files &= {file.uri for file in prune_to_values(snapshot, {name: vector})}
    for file in files:
        if file.uri in kept_files:
            for group, rows, kept in _groups(snapshot, file, wanted, once):
                yield once.columns(snapshot, columns, file, group, rows).filter(pa.array(kept))


def _groups(
    snapshot: Snapshot,
    file: DataFile,
    wanted: Mapping[ColumnName, Sequence[WantedValues]],
    once: ColumnCache,
) -> Iterator[tuple[int, int, Bools]]:
    """The row groups of a file with matching rows, their rows, and a mask of the matches."""
    names = list(wanted)
    start = 0
    for number, group in enumerate(once.groups(snapshot, names, file)):
        first, start = start, start + group.rows
        if not _may_hold(group, wanted):
            continue
        table = once.columns(snapshot, names, file, number, group.rows)
        kept = np.ones(group.rows, dtype=np.bool_)
        for name, lists in wanted.items():
            column = from_arrow(table.column(name), snapshot.readable(name).type)
            for values in lists:
                kept &= values.held_by(column)
        if file.deleted is not None:
            low, high = np.searchsorted(file.deleted, [first, start])
            kept[file.deleted[low:high] - first] = False
        if bool(kept.any()):
            yield number, group.rows, kept


def _may_hold(group: RowGroup, wanted: Mapping[ColumnName, Sequence[WantedValues]]) -> bool:
    """Whether a row may have a value of every list, by the bounds of the group's columns."""
    return all(
        values.may_lie(bounds.low, bounds.high, has_null=bounds.has_null)
        for name, bounds in group.bounds.items()
        for values in wanted[name]
    )


# Fan-outs: how many rows of one table have the key of a row of another, in the mean. Law: over
# all keys k, with r_k rows that change and s_k others, a changed row meets sum r_k * s_k / sum
# r_k others: exactly, where all keys are counted, but that a collision of codes takes two keys
# for one. Where there is a condition on a table's rows only those are counted that may meet it,
# as the engine would let them pass. In a sample, keys are chosen by a hash of their own, the same
# in every table, so a chosen key's rows are there on both sides and the estimate is unbiased.
# NULL meets nothing unless the column is null-safe. Reads the columns of the key and of the
# condition alone, in batches, in one pass; keeps one number per different key.

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
    for whole in batches:
        read += len(whole)
        batch = _filtered(whole, columns.where)
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
    parts = () if where is None else walk(where)
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
