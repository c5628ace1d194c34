"""Rows of a snapshot's files as Arrow, read without a JVM."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from impctl.data.memory import SMALL, reserve
from impctl.data.schema import Column, Kind, SqlType
from impctl.errors import (
    HistoryGoneError,
    ImpctlError,
    StorageError,
    TableError,
    UnsupportedError,
    pass_out_of_memory,
)
from impctl.sketch.sketch import MAX_INTERVALS, RangeFilter, RangeSet, exact_filter, range_filter
from impctl.tables.prune import kept_files
from impctl.tables.schema import arrow_type, to_arrow_type
from impctl.tables.snapshot import (
    ColumnBounds,
    DataFile,
    Flags,
    Positions,
    Snapshot,
    outside_table,
    places_in,
)
from impctl.tables.statistics import file_bounds
from impctl.tables.storage import (
    READ_FAILURES,
    below_root,
    failure_text,
    is_missing,
    local_path,
    object_store,
)

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from impctl.data.vector import Ints
    from impctl.sketch.partition import RangePartition
    from impctl.types import ColumnName

# Data files whose old dates and times Spark reads differently from everybody else. Law: a column
# written in the hybrid calendar (by Spark 2, as INT96 by Spark 3.0, or in the legacy mode of a
# later one) is read here only while no value of it lies before the calendars part; otherwise the
# column is refused.

_FIRST_SAFE_DAY = -141427
"""1582-10-15: since then both calendars name the same days."""
_FIRST_SAFE_MICROSECOND = -2208988800000000
"""1900-01-01: since then zone offsets agree too, as Spark itself assumes."""
_LEGACY_MARKS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_SPARK_VERSION = b"org.apache.spark.version"
_FIRST_PROLEPTIC = b"3.0.0"
_FIRST_PROLEPTIC_INT96 = b"3.1.0"
"""Spark 3.0 still wrote INT96 in the old calendar, and Spark compares the versions as texts."""


def is_hybrid(footer: Mapping[bytes, bytes] | None, *, as_int96: bool = False) -> bool:
    """Whether a Parquet footer declares the file's dates to be in the hybrid calendar. `as_int96`
    is about timestamps of that physical type."""
    if footer is None:
        return False
    first = _FIRST_PROLEPTIC_INT96 if as_int96 else _FIRST_PROLEPTIC
    version = footer.get(_SPARK_VERSION)
    return any(mark in footer for mark in _LEGACY_MARKS) or (
        version is not None and version < first
    )


def hybrid_columns(file: pq.FileMetaData, columns: Iterable[str]) -> frozenset[str]:
    """Those of these columns (leaves) whose dates and times are in the hybrid calendar."""
    if is_hybrid(file.metadata):
        return frozenset(columns)
    if not is_hybrid(file.metadata, as_int96=True):
        return frozenset()
    leaves = (file.schema.column(at) for at in range(len(file.schema)))
    return frozenset(columns) & {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}


def is_surely_modern(file: pq.FileMetaData, at: int) -> bool:
    """Whether the leaf at this index holds no date or time from before the calendars agree. True
    for a leaf of another type; False if a row group lacks its least value."""
    leaf = file.schema.column(at)
    kind = leaf.logical_type
    if leaf.physical_type != "INT96" and kind.type not in ("DATE", "TIMESTAMP"):
        return True
    if kind.type == "TIMESTAMP" and "microseconds" not in kind.to_json():
        return False
    limit = _FIRST_SAFE_DAY if kind.type == "DATE" else _FIRST_SAFE_MICROSECOND
    chunks = (file.row_group(group).column(at) for group in range(file.num_row_groups))
    return all(_starts_at(chunk, limit) for chunk in chunks)


def _starts_at(chunk: Any, limit: int) -> bool:
    """Whether a column chunk's statistics exclude values below this one."""
    if not chunk.is_stats_set:
        return False
    stated = chunk.statistics
    if stated.null_count == chunk.num_values:
        return True
    return stated.has_min_max and isinstance(stated.min_raw, int) and stated.min_raw >= limit


def check_calendar(values: Any, kind: SqlType, column: str, uri: str) -> None:
    """Raise TableError if a value of a hybrid file lies where the calendars differ."""
    if kind.kind is Kind.DATE:
        numbers, limit = values.cast(pa.int32()), _FIRST_SAFE_DAY
    elif kind.kind is Kind.TIMESTAMP:
        numbers, limit = values.cast(pa.int64()), _FIRST_SAFE_MICROSECOND
    else:
        return
    lowest = pc.min(numbers).as_py()
    if lowest is not None and lowest < limit:
        raise TableError(
            f"Column `{column}` has old dates or times in the calendar of Spark 2: {uri}",
            hint="rewrite the file with Spark 3.1 or newer, or remove the column from the query",
            code="legacy_calendar",
        )


# Opening a table's data files, in this one place. Law: the log only chooses among files below the
# table's folder, or below a folder that the workload names as `clone_of`. A name in the log never
# selects a file system, a host or an option, so reading a table on the disk causes no network
# access. FIFOs, devices and links that lead out of the folder are refused before anything opens
# them. Cost: one `lstat` for each local file.


class DataFiles:
    """The data files of one snapshot, including its change data and removed files. An object store
    need not be asked for the sizes of `files`."""

    def __init__(self, snapshot: Snapshot, files: Iterable[DataFile] = ()) -> None:
        self._snapshot = snapshot
        self._known = tuple(files)
        self._stores: dict[str, Any] = {}
        self._folders: dict[str, bool] = {}
        """Whether a local folder, links followed, lies below its root."""

    def open(self, file: DataFile, *, buffer: int = 0) -> pq.ParquetFile:
        """The file, to be closed by the caller; OSError or ArrowException if it is unreadable. With
        a `buffer` columns of a local file are read in pieces of so many bytes; in an object store
        that would be many requests. UnsupportedError for a file that the table must not have."""
        import pyarrow.parquet as pq

        store, name, is_local = self._place(file)
        return pq.ParquetFile(
            name,
            filesystem=store,
            buffer_size=buffer if is_local else 0,
            coerce_int96_timestamp_unit="us",
        )

    def footer(self, file: DataFile) -> pq.FileMetaData:
        """The Parquet metadata of the file; errors as for `open`."""
        import pyarrow.parquet as pq

        store, name, _ = self._place(file)
        return pq.read_metadata(name, filesystem=store)

    def try_footer(self, file: DataFile) -> pq.FileMetaData | None:
        """Like `footer`; None if the file cannot be read."""
        try:
            return self.footer(file)
        except READ_FAILURES:
            return None

    def check(self, files: Iterable[DataFile]) -> None:
        """UnsupportedError if one of these must not be opened; for other readers."""
        for file in files:
            self._check_local(file, self._root(file)[0])

    def _place(self, file: DataFile) -> tuple[Any, str, bool]:
        """The file system of the file, its name there, and whether it is on the local disk."""
        root, name = self._root(file)
        self._check_local(file, root)
        if root not in self._stores:
            self._stores[root] = self._store(root)
        is_local = local_path(root) is not None
        return self._stores[root], file.uri if is_local else name, is_local

    def _root(self, file: DataFile) -> tuple[str, str]:
        """The root that the file lies below, and its path from there."""
        for root in self._snapshot.roots:
            name = below_root(root, file.uri)
            if name is not None:
                return root, name
        raise outside_table(self._snapshot.table, file.uri)

    def _store(self, root: str) -> Any:
        if local_path(root) is not None:
            import pyarrow.fs as pa_fs

            return pa_fs.LocalFileSystem()
        names = ((below_root(root, file.uri), file.size) for file in self._known)
        sizes = {name: size for name, size in names if name and size}
        return object_store(root, self._snapshot.storage_options, sizes)

    def _check_local(self, file: DataFile, root: str) -> None:
        if local_path(root) is None:
            return
        try:
            mode = os.lstat(file.uri).st_mode
        except OSError:
            return  # Its reader reports the error.
        folder = os.path.dirname(file.uri)
        if folder not in self._folders:
            self._folders[folder] = _is_inside(folder, root)
        is_inside = self._folders[folder]
        if stat.S_ISLNK(mode):
            is_inside = is_inside and _is_inside(file.uri, root)
            mode = os.stat(file.uri).st_mode if os.path.exists(file.uri) else stat.S_IFREG
        if not is_inside:
            raise outside_table(self._snapshot.table, file.uri)
        if not stat.S_ISREG(mode):
            raise UnsupportedError(
                f"A data file of table `{self._snapshot.table}` is not a regular file: {file.uri}",
                hint="the table's log lists it; check who writes to the table",
                code="data_file_irregular",
            )


def _is_inside(path: str, root: str) -> bool:
    """Whether a local path lies below the root, or is it, once links are followed."""
    real, top = os.path.realpath(path), os.path.realpath(root)
    return real == top or real.startswith(os.path.join(top, ""))


def read_failure(snapshot: Snapshot, file: DataFile, error: Exception) -> ImpctlError:
    """The error for a data file that could not be read."""
    if is_missing(error):
        return HistoryGoneError(
            f"Version {snapshot.version} of table `{snapshot.table}` can no longer be read:"
            f" data file {file.uri} is gone",
            hint="run `impctl capture`; to keep files longer, raise "
            "`delta.deletedFileRetentionDuration` before the next VACUUM",
        )
    return StorageError(
        f"Reading a data file of table `{snapshot.table}` failed: {failure_text(error)}",
        hint=f"check that the file can be read: {file.uri}",
    )


# Whether the rows of a snapshot are simply those of its files, for readers that know no Delta.
# Law: nothing that such a reader would get wrong is passed over: rows that are deleted but still
# there, columns that are not in the files or have other names there.


def why_not_plain(snapshot: Snapshot, *, reads_folders: bool = False) -> str:
    """Why its rows are not those of its files; empty if they are. A reader that `reads_folders`
    takes the values of partition columns from their names (`day=2026-01-31`)."""
    if snapshot.column_mapping is not None:
        return "it uses column mapping"
    # Delta does not require that the path of a file names its partition.
    folders = [f"/{column}=" for column in snapshot.partition_columns]
    is_in_folders = all(name in file.uri for file in snapshot.files for name in folders)
    if folders and not (reads_folders and is_in_folders):
        return "it has partition columns"
    if any(file.deleted is not None for file in snapshot.files):
        return "it has deletion vectors"
    return ""


# Rows of a snapshot's files as Arrow, read without a JVM. Law: columns are read by physical name,
# found without regard to case as Spark does, and handed out by logical name in `tables.schema`
# form; partition columns come from the log, columns a file lacks are NULL, deleted rows are left
# out. Equal, as a bag, to what Spark reads.

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
    HistoryGoneError for a file that is gone, TableError for a column that cannot be read."""
    wanted = [snapshot.readable(name) for name in columns]
    chosen = snapshot.files if files is None else files
    reader = FileReader(snapshot, wanted, chosen)
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
    held: list[pa.Table] = []
    rows = size = 0
    for file in chosen:
        for part in reader.read_groups(file, most):
            held.append(part)
            rows += len(part)
            size += 0 if most is None else part.nbytes
            if rows >= least or (most is not None and size >= most):
                yield _stacked(held, columns)
                held, rows, size = [], 0, 0
    if held:
        yield _stacked(held, columns)


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
        table = self.read_some(file)
        if file.deleted is None or not len(file.deleted):
            return table
        kept = np.ones(len(table), dtype=np.bool_)
        kept[file.deleted] = False
        return table.filter(pa.array(kept))

    def read_groups(self, file: DataFile, most: int | None = None) -> Iterator[pa.Table]:
        """The live rows of `file`, in parts of at most `BATCH_ROWS` rows and some `most` bytes:
        memory is independent of the length of row groups."""
        start = 0
        for data, rows, names, old in self._parts(file, most):
            table = self._made(data, rows, names, old, file)
            yield _live(table, file, start)
            start += rows

    def _parts(
        self, file: DataFile, most: int | None
    ) -> Iterator[tuple[Any, int, Mapping[ColumnName, str], Collection[str]]]:
        """The decoded parts of a file, with the arguments of `_made`."""
        try:
            with self._files.open(file, buffer=_BUFFER) as parquet:
                names = self._stored_names(parquet.schema_arrow.names, file)
                stored = list(names.values())
                old = hybrid_columns(parquet.metadata, stored)
                if not stored:
                    yield None, parquet.metadata.num_rows, names, old
                    return
                part = BATCH_ROWS
                if most is not None:
                    part = min(part, _part(file, stored, most, parquet.metadata))
                for data in parquet.iter_batches(part, columns=stored):
                    yield data, len(data), names, old
        except READ_FAILURES as error:
            raise read_failure(self._snapshot, file, error) from error

    def described(self, file: DataFile) -> tuple[Any, Mapping[ColumnName, str]]:
        """The Parquet metadata of `file`, and its name for each of the columns that it holds."""
        try:
            with self._files.open(file) as parquet:
                return parquet.metadata, self._stored_names(parquet.schema_arrow.names, file)
        except READ_FAILURES as error:
            raise read_failure(self._snapshot, file, error) from error

    def read_at(self, file: DataFile, positions: Positions) -> pa.Table:
        """The rows of `file` at these positions, deleted or not."""
        if not self._columns:
            return bare_rows(len(positions))
        return self.read_some(file).take(pa.array(positions))

    def read_slice(self, file: DataFile, rows: int, at: int) -> pa.Table:
        """The live ones of `rows` consecutive rows of `file`: slice `at`, from 0 and modulo the
        number of slices; the last slice may be short."""

        def sliced(parquet: pq.ParquetFile, stored: Sequence[str]) -> tuple[Any, int, int]:
            groups = parquet.num_row_groups
            group = at % groups
            before = sum(parquet.metadata.row_group(g).num_rows for g in range(group))
            slices = max(1, parquet.metadata.row_group(group).num_rows // rows)
            skipped = at // groups % min(slices, _SLICES)
            if stored and slices <= _AS_QUICK:
                # Reading a small group whole is faster than setting up batches.
                whole = parquet.read_row_group(group, columns=list(stored), use_threads=False)
                part = whole.slice(skipped * rows, rows)
                return part, len(part), before + skipped * rows
            result = parquet.iter_batches(rows, row_groups=[group], columns=list(stored))
            data = next(islice(result, skipped, None), None)
            if data is None:
                return pa.table({name: [] for name in stored}), 0, before
            return data, len(data), before + skipped * rows

        table, start = self._loaded(file, sliced)
        return _live(table, file, start)

    def read_some(self, file: DataFile, choose: Callable[[int], Sequence[int]] = range) -> pa.Table:
        """Some row groups of `file` (default: all), with deleted rows; `choose` picks from their
        number."""

        def load(parquet: pq.ParquetFile, stored: Sequence[str]) -> tuple[Any, int, int]:
            chosen = choose(parquet.num_row_groups)
            rows = sum(parquet.metadata.row_group(group).num_rows for group in chosen)
            data = parquet.read_row_groups(list(chosen), columns=list(stored)) if stored else None
            return data, rows, 0

        return self._loaded(file, load)[0]

    def _loaded(
        self, file: DataFile, load: Callable[[pq.ParquetFile, Sequence[str]], tuple[Any, int, int]]
    ) -> tuple[pa.Table, int]:
        """The result of `load` on a file: data, rows and the position of the first one."""
        try:
            with self._files.open(file) as parquet:
                names = self._stored_names(parquet.schema_arrow.names, file)
                stored = list(names.values())
                data, rows, start = load(parquet, stored)
                old = hybrid_columns(parquet.metadata, stored)
        except READ_FAILURES as error:
            raise read_failure(self._snapshot, file, error) from error
        return self._made(data, rows, names, old, file), start

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
    places = [at for at in range(len(schema)) if schema.column(at).path.split(".")[0] in columns]
    page_bytes = 0
    for group in map(footer.row_group, range(footer.num_row_groups)):
        sizes = [group.column(at).total_uncompressed_size for at in places]
        widths = [size // max(group.num_rows, 1) for size in sizes]
        pages = (max(width * _PAGE_ROWS, _PAGE) for width in widths)
        page_bytes = max(page_bytes, 2 * sum(map(min, sizes, pages)))
        rows = min(rows, max(_FEWEST, most // max(sum(widths), 1)))
    reserve(page_bytes)
    return rows


def _live(table: pa.Table, file: DataFile, start: int) -> pa.Table:
    """Rows of `file` from a position on, without deleted ones."""
    if file.deleted is None:
        return table
    low, high = np.searchsorted(file.deleted, [start, start + len(table)])
    kept = np.ones(len(table), dtype=np.bool_)
    kept[file.deleted[low:high] - start] = False
    return table.filter(pa.array(kept))


def spellings(present: Iterable[str]) -> dict[str, list[str]]:
    """The names a file has, by their form in lower case."""
    result: dict[str, list[str]] = {}
    for name in present:
        result.setdefault(name.lower(), []).append(name)
    return result


def partition_literal(column: Column, text: str | None, rows: int) -> pa.Array:
    """A partition column of one file: the same value in every row. Raises TableError for a text
    that Arrow cannot read, such as a year after 9999."""
    wanted = arrow_type(column.type)
    if text is None:
        return pa.nulls(rows, wanted)
    if column.type.kind is Kind.STRING:
        return pa.repeat(pa.scalar(text, wanted), rows)
    try:
        return pa.repeat(pa.scalar(text, pa.string()).cast(wanted), rows)
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


# What is read of a snapshot for a sketch: files in parts, each with the few ranges it needs. Law:
# there is a set of whole ranges, the sketch's and perhaps some between them, of which the parts
# give all rows and no others; so every group is seen whole or not at all, if it lies in one
# range. A file is in one part at most; a part without a filter has rows of these ranges alone. No
# filter has more than `MAX_INTERVALS` intervals and one for NaN.

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
        wanted = range_filter(ranges, partition)
        return PartedRead(wanted, (ReadPart(snapshot.files, wanted),))
    bounds = file_bounds(snapshot, column.name)
    wanted = exact_filter(ranges, partition)
    while True:
        result = _parted(snapshot, bounds, wanted)
        if result is not None:
            return PartedRead(wanted, result)
        limit = max(MAX_INTERVALS, len(wanted.intervals) // 2)
        wanted = range_filter(ranges, partition, limit=limit)


def _parted(
    snapshot: Snapshot, bounds: ColumnBounds, wanted: RangeFilter
) -> tuple[ReadPart, ...] | None:
    """The parts of a filter; None if there are too many, or a file needs too many ranges."""
    if wanted.is_everything:
        return (ReadPart(snapshot.files, None),)
    left = np.flatnonzero(kept_files(snapshot, [wanted]))
    placed = _FilePlaces.of(bounds.take(left), wanted)
    inside = snapshot.files_at(left[placed.is_inside])
    others = np.flatnonzero(~placed.is_inside)
    others = others[np.argsort(placed.first[others], kind="stable")]
    parts = [ReadPart(inside, None)] if inside else []
    if len(wanted.intervals) <= MAX_INTERVALS:
        rest = snapshot.files_at(left[others])
        return (*parts, ReadPart(rest, wanted)) if rest else tuple(parts)
    for group in placed.grouped(others):
        first, end = int(placed.first[group[0]]), int(placed.end[group].max())
        if end - first > MAX_INTERVALS:
            return None
        intervals = wanted.intervals[first:end]
        if end < len(wanted.intervals) and bool(placed.may_be_nan[group].any()):
            intervals += wanted.intervals[-1:]
        part = RangeFilter(wanted.partition, intervals, wanted.includes_null)
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
    def of(cls, bounds: ColumnBounds, wanted: RangeFilter) -> _FilePlaces:
        starts = [interval.low for interval in wanted.intervals if interval.low is not None]
        ends = [interval.high for interval in wanted.intervals if interval.high is not None]
        count = len(wanted.intervals)
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
        if not wanted.includes_null:
            is_inside = is_inside & ~bounds.may_hold_null
        if not wants_nan:
            is_inside = is_inside & ~bounds.may_be_nan
        return cls(first, end, is_inside, bounds.may_be_nan & wants_nan)

    def grouped(self, others: Ints) -> Iterator[Ints]:
        """Group these files, ascending by first interval, as long as they need few intervals."""
        start, last = 0, 0
        firsts, ends = self.first[others].tolist(), self.end[others].tolist()
        for at, end in enumerate(ends):
            if at > start and max(last, end) - firsts[start] > MAX_INTERVALS:
                yield others[start:at]
                start, last = at, 0
            last = max(last, end)
        if len(others):
            yield others[start:]
