"""Rows of a snapshot's files as Arrow, read without a JVM."""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from impctl.data.keys import key_codes, normalise
from impctl.data.memory import SMALL, reserve
from impctl.data.schema import Column, Kind
from impctl.data.vector import Bools, Ints, Vector, from_arrow
from impctl.errors import TableError, pass_out_of_memory
from impctl.sketch.sketch import MAX_INTERVALS, RangeFilter, RangeSet, exact_filter, range_filter
from impctl.tables.files import DataFiles, check_calendar, hybrid_columns, read_failure, spellings
from impctl.tables.snapshot import (
    ColumnBounds,
    DataFile,
    Flags,
    Positions,
    Snapshot,
    ValueBounds,
    arrow_type,
    places_in,
    to_arrow_type,
    unmatched_vector,
)
from impctl.tables.statistics import file_bounds, kept_files, prune_to_values
from impctl.tables.storage import READ_FAILURES

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from impctl.sketch.sketch import RangePartition
    from impctl.types import ColumnName


# Law: the rows are those that Spark reads, as a bag. Columns are found by physical name regardless
# of case, and returned by logical name in the types of `tables.snapshot`. Partition columns come
# from the log, columns that a file lacks are NULL, and deleted rows are omitted.

_SLICES = 2
"""Slices of a row group to choose from: those before one are decoded too."""
_AS_QUICK = 12
"""A row group read whole takes as long as this many slices."""
BATCH_ROWS = 1 << 19
"""Measured: half a million rows stay in the caches and are fastest; a million take twice the
memory, and time to zero it, a quarter makes more runs of groups to merge."""

_PART_ROWS, _FEWEST = 1 << 15, 1 << 10
"""Rows decoded together: fewer take longer per row, and at least so many, however wide."""
_BUFFER = 1 << 20
"""Bytes of a column read at once; else all of it in a row group, of any length."""
_PAGE, _PAGE_ROWS = 1 << 20, 20_000
"""Usual bytes of a page, and rows if they are wide."""
_WIDE = 1_024
"""Bytes of a wide row."""


def read_rows(
    snapshot: Snapshot, columns: Sequence[ColumnName], files: Sequence[DataFile] | None = None
) -> pa.Table:
    """The rows of these files (default: all), exactly these columns in this order. Raises
    HistoryGoneError for a missing file, TableError for a column that cannot be read."""
    requested = [snapshot.readable(name) for name in columns]
    chosen = snapshot.files if files is None else files
    reader = FileReader(snapshot, requested, chosen)
    tables: list[pa.Table] = []
    for file in chosen:
        # As large as the previous one, or as it is on disk.
        reserve(max(file.size, tables[-1].nbytes if tables else 0))
        tables.append(reader.read_live(file))
    return _stacked([reader.empty(), *tables], columns)


def read_batches(
    snapshot: Snapshot,
    columns: Sequence[ColumnName],
    files: Sequence[DataFile] | None = None,
    least: int = BATCH_ROWS,
    most: int | None = None,
) -> Iterator[pa.Table]:
    """The rows of these files (default: all) in batches, which bounds the memory. A batch combines
    parts of files up to `least` rows or `most` bytes. Raises as `read_rows` does."""
    chosen = snapshot.files if files is None else files
    reader = FileReader(snapshot, [snapshot.readable(name) for name in columns], chosen)
    pending: list[pa.Table] = []
    rows = size = 0
    for file in chosen:
        for part in reader.read_groups(file, most):
            pending.append(part)
            rows += len(part)
            size += 0 if most is None else part.nbytes
            if rows >= least or (most is not None and size >= most):
                yield _stacked(pending, columns)
                pending, rows, size = [], 0, 0
    if pending:
        yield _stacked(pending, columns)


def _stacked(tables: Sequence[pa.Table], columns: Sequence[ColumnName]) -> pa.Table:
    return pa.concat_tables(tables) if columns else bare_rows(sum(len(t) for t in tables))


def bare_rows(rows: int) -> pa.Table:
    """Rows without a column, whose number Arrow loses in concatenation."""
    return pa.table({"": pa.nulls(rows)}).select([])


class FileReader:
    """Reads data files of one snapshot, projected on some columns. Columns of a change data file
    only are read by their own names. An object store need not be asked for the sizes of `files`."""

    def __init__(
        self, snapshot: Snapshot, columns: Sequence[Column], files: Iterable[DataFile] = ()
    ) -> None:
        self._snapshot = snapshot
        self._columns = columns
        self._arrow_schema = pa.schema([(c.name, arrow_type(c.type)) for c in columns])
        self._files = DataFiles(snapshot, files)

    def empty(self) -> pa.Table:
        return self._arrow_schema.empty_table()

    def read_live(self, file: DataFile) -> pa.Table:
        """The rows of `file` without deleted ones."""
        return _live(self.read_some(file), file, 0)

    def read_groups(self, file: DataFile, most: int | None = None) -> Iterator[pa.Table]:
        """The live rows of `file`, in parts of at most `BATCH_ROWS` rows and some `most` bytes:
        memory is independent of the length of row groups."""
        start = 0
        with self._opened(file, buffer=_BUFFER) as (parquet, names, old):
            stored = list(names.values())
            parts: Iterable[tuple[Any, int]] = [(None, parquet.metadata.num_rows)]
            if stored:
                part = BATCH_ROWS
                if most is not None:
                    part = min(part, _part(file, stored, most, parquet.metadata))
                batches = parquet.iter_batches(part, columns=stored)
                parts = ((data, len(data)) for data in batches)
            for data, rows in parts:
                yield _live(self._made(data, rows, names, old, file), file, start)
                start += rows

    @contextmanager
    def _opened(
        self, file: DataFile, *, buffer: int = 0
    ) -> Iterator[tuple[pq.ParquetFile, dict[ColumnName, str], frozenset[str]]]:
        """The open file, its name for each of the columns that it holds, and which of these names
        are in the hybrid calendar. Failures inside are those of reading the file."""
        try:
            with self._files.open(file, buffer=buffer) as parquet:
                deleted, rows = file.deleted, parquet.metadata.num_rows
                if deleted is not None and len(deleted) and deleted[-1] >= rows:
                    raise unmatched_vector(self._snapshot.table)
                names = self._stored_names(parquet.schema_arrow.names, file)
                yield parquet, names, hybrid_columns(parquet.metadata, names.values())
        except READ_FAILURES as error:
            raise read_failure(self._snapshot, file, error) from error

    def groups(self, file: DataFile) -> tuple[RowGroup, ...]:
        """The row groups of `file`, with known bounds of the columns."""
        with self._opened(file) as (parquet, names, _):
            metadata = parquet.metadata
        result = []
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            places = {
                group.column(index).path_in_schema: index for index in range(group.num_columns)
            }
            bounds = {}
            for column in self._columns:
                position = places.get(names.get(column.name, ""))
                known = None if position is None else _bounds(group.column(position), column)
                if known is not None:
                    bounds[column.name] = known
            result.append(RowGroup(group.num_rows, bounds))
        return tuple(result)

    def read_at(self, file: DataFile, positions: Positions) -> pa.Table:
        """The rows of `file` at these positions, deleted or not."""
        if not self._columns:
            return bare_rows(len(positions))
        return self.read_some(file).take(pa.array(positions))

    def read_slice(self, file: DataFile, rows: int, number: int) -> pa.Table:
        """The live ones of `rows` consecutive rows of `file`: slice `number`, from 0 and modulo the
        number of slices; the last slice may be short."""
        with self._opened(file) as (parquet, names, old):
            stored = list(names.values())
            metadata, groups = parquet.metadata, parquet.num_row_groups
            group = number % groups
            slices = max(1, metadata.row_group(group).num_rows // rows)
            skipped = number // groups % min(slices, _SLICES)
            if stored and slices <= _AS_QUICK:
                # Reading a small group whole is faster than setting up batches.
                full = parquet.read_row_group(group, columns=stored, use_threads=False)
                data = full.slice(skipped * rows, rows)
            else:
                batches = parquet.iter_batches(rows, row_groups=[group], columns=stored)
                nothing = pa.table({name: [] for name in stored})
                data = next(islice(batches, skipped, None), nothing)
            table = self._made(data, len(data), names, old, file)
            start = sum(metadata.row_group(g).num_rows for g in range(group)) + skipped * rows
        return _live(table, file, start)

    def read_some(self, file: DataFile, choose: Callable[[int], Sequence[int]] = range) -> pa.Table:
        """Some row groups of `file` (default: all), with deleted rows; `choose` picks from their
        number."""
        with self._opened(file) as (parquet, names, old):
            chosen, stored = list(choose(parquet.num_row_groups)), list(names.values())
            rows = sum(parquet.metadata.row_group(group).num_rows for group in chosen)
            data = parquet.read_row_groups(chosen, columns=stored) if stored else None
            return self._made(data, rows, names, old, file)

    def _made(
        self,
        data: Any,
        rows: int,
        names: Mapping[ColumnName, str],
        old: Collection[str],
        file: DataFile,
    ) -> pa.Table:
        """The requested columns of `rows` rows of a file; `old` ones are in the hybrid calendar."""
        arrays = [self._array(c, data, names.get(c.name), file, rows) for c in self._columns]
        for column, values in zip(self._columns, arrays, strict=True):
            if names.get(column.name) in old:
                check_calendar(values, column.type, column.name, file.uri)
        if not self._columns:
            return bare_rows(rows)
        return pa.Table.from_arrays(arrays, schema=self._arrow_schema)

    def _stored_names(self, present: Sequence[str], file: DataFile) -> dict[ColumnName, str]:
        """The file's name for each of the columns that it holds."""
        spelled = spellings(present)
        result: dict[ColumnName, str] = {}
        for column in self._columns:
            if column.name in self._snapshot.partition_columns:
                continue
            physical = self._snapshot.columns.physical.get(column.name, column.name)
            names = spelled.get(physical.lower(), [])
            if len(names) > 1:
                raise TableError(
                    f"A data file has several columns for column `{column.name}` of table "
                    f"`{self._snapshot.table}`, {' and '.join(f'`{name}`' for name in names)}: "
                    f"{file.uri}",
                    hint="rewrite the data file; column names are not case-sensitive",
                    code="file_column_ambiguous",
                )
            if names:
                result[column.name] = names[0]
        return result

    def _array(
        self, column: Column, data: Any, stored: str | None, file: DataFile, rows: int
    ) -> Any:
        if column.name in self._snapshot.partition_columns:
            return partition_literal(column, file.partition_values[column.name], rows)
        if stored is None:
            return pa.nulls(rows, arrow_type(column.type))
        values = data.column(stored)
        try:
            return to_arrow_type(values, column.type)
        except pa.ArrowException as error:
            pass_out_of_memory(error)
            raise TableError(
                f"Column `{column.name}` of table `{self._snapshot.table}` is stored as "
                f"`{values.type}`, which does not match `{column.type}`: {file.uri}",
                hint="rewrite the data file",
                code="file_type_differs",
            ) from error


def _part(file: DataFile, columns: Collection[str], most: int, footer: pq.FileMetaData) -> int:
    """How many rows of a file may be decoded at once within `most` bytes. A page of each column is
    held compressed and decompressed, too: OutOfMemoryError if a limit is too small for these."""
    rows = max(_PART_ROWS, most // _WIDE)
    if file.size < SMALL:
        return rows
    schema = footer.schema
    places = [
        index for index in range(len(schema)) if schema.column(index).path.split(".")[0] in columns
    ]
    page_bytes = 0
    for group in map(footer.row_group, range(footer.num_row_groups)):
        sizes = [group.column(index).total_uncompressed_size for index in places]
        widths = [size // max(group.num_rows, 1) for size in sizes]
        pages = (max(width * _PAGE_ROWS, _PAGE) for width in widths)
        page_bytes = max(page_bytes, 2 * sum(map(min, sizes, pages)))
        rows = min(rows, max(_FEWEST, most // max(sum(widths), 1)))
    reserve(page_bytes)
    return rows


def _live(table: pa.Table, file: DataFile, start: int) -> pa.Table:
    """Rows of `file` from a position on, without deleted ones."""
    if file.deleted is None or not len(file.deleted):
        return table
    return table.filter(pa.array(_live_mask(file, start, len(table))))


def _live_mask(file: DataFile, start: int, rows: int) -> Bools:
    """Which of these consecutive rows of `file` are not deleted; shape (rows,)."""
    kept = np.ones(rows, dtype=np.bool_)
    if file.deleted is not None:
        low, high = np.searchsorted(file.deleted, [start, start + rows])
        kept[file.deleted[low:high] - start] = False
    return kept


def partition_literal(column: Column, text: str | None, rows: int) -> pa.Array:
    """A partition column of one file: the same value in every row. Raises TableError for a text
    that Arrow cannot read, such as a year after 9999."""
    value_type = arrow_type(column.type)
    if text is None:
        return pa.nulls(rows, value_type)
    if column.type.kind is Kind.STRING:
        return pa.repeat(pa.scalar(text, value_type), rows)
    try:
        return pa.repeat(pa.scalar(text, pa.string()).cast(value_type), rows)
    except pa.ArrowException as error:
        pass_out_of_memory(error)
        raise TableError(
            f"Partition column `{column.name}` has a value that impctl cannot read as "
            f"`{column.type}`: {text}",
            hint=(
                "remove the column from the query; impctl reads dates and times up to the year 9999"
            ),
            code="column_unreadable",
        ) from error


# What a sketch reads: files in parts, each with the few ranges it needs. Law: the parts return
# exactly the rows of some whole ranges, those of the sketch and perhaps some between them. So every
# group within one range is complete or absent. A file is in at most one part. All rows of a part
# without a filter are in these ranges. No filter has more than `MAX_INTERVALS` intervals and one
# for NaN.

MAX_PARTS = 16
"""Parts with a filter: each is planned by Spark and read by its own tasks."""


class ReadPart(Struct, frozen=True):
    """Files, and the filter that their rows need; None if all their rows are selected."""

    files: tuple[DataFile, ...]
    filter: RangeFilter | None

    def within(self, uris: Collection[str]) -> ReadPart:
        """The part, restricted to these files."""
        return ReadPart(tuple(file for file in self.files if file.uri in uris), self.filter)


class PartedRead(Struct, frozen=True):
    """The parts, and the ranges of which they return all rows."""

    wanted: RangeFilter
    parts: tuple[ReadPart, ...]


def parted_read(snapshot: Snapshot, ranges: RangeSet, partition: RangePartition) -> PartedRead:
    """The parts for a sketch: as few files as `MAX_PARTS` permits. Gaps between its ranges are
    closed, the smallest first, until there are few enough parts."""
    column = snapshot.readable(partition.attribute)
    if column.type != partition.type:
        # No bounds of files are known in the boundaries' type, so parts cannot be separated.
        requested = range_filter(ranges, partition)
        return PartedRead(requested, (ReadPart(snapshot.files, requested),))
    bounds = file_bounds(snapshot, column.name)
    requested = exact_filter(ranges, partition)
    while True:
        result = _parted(snapshot, bounds, requested)
        if result is not None:
            return PartedRead(requested, result)
        limit = max(MAX_INTERVALS, len(requested.intervals) // 2)
        requested = range_filter(ranges, partition, limit=limit)


def _parted(
    snapshot: Snapshot, bounds: ColumnBounds, requested: RangeFilter
) -> tuple[ReadPart, ...] | None:
    """The parts of a filter; None if there are too many, or a file needs too many ranges."""
    if requested.is_everything:
        return (ReadPart(snapshot.files, None),)
    left = np.flatnonzero(kept_files(snapshot, [requested]))
    placed = _FilePlaces.of(bounds.take(left), requested)
    inside = snapshot.files_at(left[placed.is_inside])
    others = np.flatnonzero(~placed.is_inside)
    others = others[np.argsort(placed.first[others], kind="stable")]
    parts = [ReadPart(inside, None)] if inside else []
    if len(requested.intervals) <= MAX_INTERVALS:
        rest = snapshot.files_at(left[others])
        return (*parts, ReadPart(rest, requested)) if rest else tuple(parts)
    for group in placed.grouped(others):
        first, end = int(placed.first[group[0]]), int(placed.end[group].max())
        if end - first > MAX_INTERVALS:
            return None
        intervals = requested.intervals[first:end]
        if end < len(requested.intervals) and bool(placed.may_be_nan[group].any()):
            intervals += requested.intervals[-1:]
        part = RangeFilter(requested.partition, intervals, requested.includes_null)
        parts.append(ReadPart(snapshot.files_at(left[group]), part))
    return tuple(parts) if len(parts) <= MAX_PARTS + bool(inside) else None


class _FilePlaces(Struct, frozen=True):
    """The intervals that each file may hold rows of, from `first` to before `end`; all of shape
    (files,). Only the first interval may be unbounded below, and only the last one above, where NaN
    is."""

    first: Ints
    end: Ints
    is_inside: Flags
    """Whether all rows of the file are selected."""
    may_be_nan: Flags
    """Whether it may hold NaN, and NaN is selected."""

    @classmethod
    def of(cls, bounds: ColumnBounds, requested: RangeFilter) -> _FilePlaces:
        starts = [interval.low for interval in requested.intervals if interval.low is not None]
        ends = [interval.high for interval in requested.intervals if interval.high is not None]
        count = len(requested.intervals)
        wants_nan = len(ends) < count
        # How many intervals have begun, or are over, where a file starts and where it ends.
        begun_at_low = count - len(starts) + places_in(starts, bounds.lows, "right")
        begun_at_high = count - len(starts) + places_in(starts, bounds.highs, "right")
        over_at_low, over_at_high = (
            places_in(ends, values, "right") for values in (bounds.lows, bounds.highs)
        )
        first = np.where(bounds.has_low, over_at_low, 0)
        end = np.maximum(first, np.where(bounds.has_high, begun_at_high, count))
        holds = bounds.has_low & bounds.has_high & (begun_at_low > first) & (over_at_high <= first)
        is_inside = bounds.is_all_null | ((end == first + 1) & holds)
        if not requested.includes_null:
            is_inside = is_inside & ~bounds.may_hold_null
        if not wants_nan:
            is_inside = is_inside & ~bounds.may_be_nan
        return cls(first, end, is_inside, bounds.may_be_nan & wants_nan)

    def grouped(self, others: Ints) -> Iterator[Ints]:
        """Group these files, ascending by first interval, as long as they need few intervals."""
        start, last = 0, 0
        firsts, ends = self.first[others].tolist(), self.end[others].tolist()
        for index, end in enumerate(ends):
            if index > start and max(last, end) - firsts[start] > MAX_INTERVALS:
                yield others[start:index]
                start, last = index, 0
            last = max(last, end)
        if len(others):
            yield others[start:]


# Values that rows are looked up by. Law: every row with a wanted value matches, where values are
# equal as join keys are: NaN to NaN, -0.0 to 0.0, and NULL to NULL if NULL is wanted. Doubles and
# wide decimals are compared by the codes of their keys, so a wrong row matches once in 2^64. Cost:
# some nanoseconds per row.


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

    def may_lie(self, bounds: ValueBounds) -> bool:
        """Whether one lies within bounds of integers or dates, or is NULL and NULLs exist."""
        if self.has_null and bounds.may_hold_null:
            return True
        mine = self.distinct.to_numpy(zero_copy_only=False)
        return bool(((mine >= bounds.minimum) & (mine <= bounds.maximum)).any())

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


# Row groups and their bounds. Law: only integers and dates have bounds, if the writer gives both
# and counts NULLs. Writers cut texts, and bounds of doubles hide NaN and the signs of zero. The
# file's metadata is trusted.

_EPOCH = dt.date(1970, 1, 1).toordinal()


class RowGroup(Struct, frozen=True):
    """Rows of a group, including deleted ones, and known bounds of columns."""

    rows: int
    bounds: Mapping[ColumnName, ValueBounds]


def _bounds(chunk: pq.ColumnChunkMetaData, column: Column) -> ValueBounds | None:
    stated = chunk.statistics
    if stated is None or not stated.has_min_max or not stated.has_null_count:
        return None
    low, high = _whole(stated.min, column), _whole(stated.max, column)
    if low is None or high is None:
        return None
    return ValueBounds(low, high, stated.null_count, chunk.num_values)


def _whole(value: object, column: Column) -> int | None:
    if column.type.is_integral and isinstance(value, int) and not isinstance(value, bool):
        return value
    if column.type.kind is Kind.DATE and type(value) is dt.date:
        return value.toordinal() - _EPOCH
    return None


# Columns of row groups that several readers of a run share. Law: they are what `FileReader` reads.
# Files do not change, but the meaning of names does between versions, so a column is known by its
# name in files and its type. At most `most` bytes are cached; the least recently used go first.

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
            self._groups[key] = self._reader(snapshot, columns).groups(file)
        return self._groups[key]

    def columns(
        self, snapshot: Snapshot, names: Sequence[ColumnName], file: DataFile, group: int, rows: int
    ) -> pa.Table:
        """These columns of a row group of `rows` rows, including deleted ones."""
        if not names:
            return bare_rows(rows)
        requested = [snapshot.readable(name) for name in names]
        places = {c.name: (file.uri, *_known_by(snapshot, c), group) for c in requested}
        missing = [column for column in requested if places[column.name] not in self._cache]
        result = {name: self._cache[k] for name, k in places.items() if k in self._cache}
        if missing:
            table = self._reader(snapshot, missing).read_some(file, lambda _: (group,))
            result |= {column.name: table.column(column.name) for column in missing}
        for name, key in places.items():
            self._hold(key, result[name])
        return pa.table({column.name: result[column.name] for column in requested})

    def _reader(self, snapshot: Snapshot, columns: Sequence[Column]) -> FileReader:
        known_by = tuple(_known_by(snapshot, column) for column in columns)
        key = (snapshot.table, snapshot.version, known_by)
        if key not in self._readers:
            self._readers[key] = FileReader(snapshot, columns, snapshot.files)
        return self._readers[key]

    def _hold(self, key: _Place, column: pa.ChunkedArray) -> None:
        """Cache as most recently used, unless it exceeds the limit."""
        before = self._cache.pop(key, None)
        if before is not None:
            self._bytes -= before.nbytes
        if column.nbytes > self._most:
            return
        self._cache[key] = column
        self._bytes += column.nbytes
        while self._bytes > self._most:
            _, oldest = self._cache.popitem(last=False)
            self._bytes -= oldest.nbytes


def _known_by(snapshot: Snapshot, column: Column) -> tuple[str, str]:
    """The column's name in files, if they have it, and its type."""
    return snapshot.columns.physical[column.name], str(column.type)


# Look-ups. Law: every live row with a wanted value in each of the given columns is returned once,
# and hardly any other row. Statistics skip files and row groups. Of the other row groups the given
# columns are read first. Cost: some 10 ns per row and given column, and all columns of the row
# groups with a match.


def rows_with(
    snapshot: Snapshot,
    columns: Sequence[ColumnName],
    values: Mapping[ColumnName, Sequence[Vector]],
    files: Sequence[DataFile],
    once: ColumnCache,
) -> Iterator[pa.Table]:
    """The rows in these files, exactly these columns, with one value of each of the lists. Raises
    HistoryGoneError for a missing file, TableError for a column that cannot be read."""
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
        kept = _live_mask(file, first, group.rows)
        for name, lists in wanted.items():
            column = from_arrow(table.column(name), snapshot.readable(name).type)
            for values in lists:
                kept &= values.held_by(column)
        if bool(kept.any()):
            yield number, group.rows, kept


def _may_hold(group: RowGroup, wanted: Mapping[ColumnName, Sequence[WantedValues]]) -> bool:
    """Whether a row may have a value of every list, by the bounds of the group's columns."""
    return all(
        values.may_lie(bounds) for name, bounds in group.bounds.items() for values in wanted[name]
    )
