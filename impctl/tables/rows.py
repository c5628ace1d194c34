"""Rows of a snapshot's files as Arrow, read without a JVM.

Law: columns are read by physical name, found without regard to case as Spark does, and handed out
by logical name in `tables.arrow_types` form; partition columns come from the log, columns a file
lacks are NULL, deleted rows are left out. Equal, as a bag, to what Spark reads.
Out of scope: which files may be skipped (`tables.prune`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from impctl.data.memory import SMALL, reserve
from impctl.data.schema import Column, Kind
from impctl.errors import TableError, pass_out_of_memory
from impctl.tables.arrow_types import arrow_type, to_arrow_type
from impctl.tables.calendars import check_calendar, hybrid_columns
from impctl.tables.data_files import DataFiles, read_failure
from impctl.tables.failures import READ_FAILURES
from impctl.tables.snapshot import DataFile, Positions, Snapshot
from impctl.types import ColumnName

_SLICES = 2
"""A slice is one of the first so many of its row group: those before it are decoded too."""
_AS_QUICK = 12
"""Slices of a row group that is read as a whole."""
BATCH_ROWS = 1 << 19
"""Measured: half a million rows stay in the caches and are quickest; a million take twice the
memory, and time to zero it, a quarter makes more runs of groups to merge."""

_PART_ROWS, _FEWEST = 1 << 15, 1 << 10
"""Fewer rows take longer to decode, each; so many are decoded together, however wide."""
_BUFFER = 1 << 20
"""Bytes of a column that are read at once; else all of it in a row group, however long."""
_PAGE, _PAGE_ROWS = 1 << 20, 20_000
"""Bytes of a page, and rows where they are wide, as writers make them."""
_WIDE = 1_024
"""Bytes of a wide row."""


def read_rows(
    snapshot: Snapshot, columns: Sequence[ColumnName], files: Sequence[DataFile] | None = None
) -> pa.Table:
    """The rows of these files (default: all), exactly these columns in this order.

    Raises HistoryGoneError for a file that is gone, TableError for a column that cannot be read.
    """
    wanted = [snapshot.readable(name) for name in columns]
    chosen = snapshot.files if files is None else files
    reader = FileReader(snapshot, wanted, chosen)
    tables: list[pa.Table] = []
    for file in chosen:
        # As large as those before it, or as it is on disk.
        reserve(max(file.size, tables[-1].nbytes if tables else 0))
        tables.append(reader.read_live(file))
    if not wanted:
        return bare_rows(sum(len(table) for table in tables))
    return pa.concat_tables([reader.empty(), *tables])


def read_batches(
    snapshot: Snapshot,
    columns: Sequence[ColumnName],
    files: Sequence[DataFile] | None = None,
    least: int = BATCH_ROWS,
    most: int | None = None,
) -> Iterator[pa.Table]:
    """The rows of these files (default: all) in batches, which bound the memory.

    A batch has parts of files until there are `least` rows, or `most` bytes. Raises as `read_rows`
    does.
    """
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
    """So many rows without a column, which Arrow forgets when it concatenates."""
    return pa.table({"": pa.nulls(rows)}).select([])


class FileReader:
    """Reads data files of one snapshot, projected on some columns.

    A column that the table does not have (one of a change data file) goes by its own name. Of
    `files` an object store need not be asked for the size.
    """

    def __init__(
        self, snapshot: Snapshot, columns: Sequence[Column], files: Iterable[DataFile] = ()
    ) -> None:
        self._snapshot = snapshot
        self._columns = columns
        self._arrow_schema = pa.schema([(c.name, arrow_type(c.type)) for c in columns])
        self._files = DataFiles(snapshot, files)

    def empty(self) -> pa.Table:
        """No rows, in the form that `read` returns."""
        return self._arrow_schema.empty_table()

    def read_live(self, file: DataFile) -> pa.Table:
        """The rows of `file` that its deletion vector leaves."""
        table = self._read(file)
        if file.deleted is None or not len(file.deleted):
            return table
        kept = np.ones(len(table), dtype=np.bool_)
        kept[file.deleted] = False
        return table.filter(pa.array(kept))

    def read_groups(self, file: DataFile, most: int | None = None) -> Iterator[pa.Table]:
        """The rows of `file` that its deletion vector leaves, in parts of at most `BATCH_ROWS`, and
        of some `most` bytes: memory does not depend on how long a writer made its row groups."""
        start = 0
        for data, rows, names, old in self._parts(file, most):
            table = self._made(data, rows, names, old, file)
            yield _live(table, file, start)
            start += rows

    def _parts(
        self, file: DataFile, most: int | None
    ) -> Iterator[tuple[Any, int, Mapping[ColumnName, str], Collection[str]]]:
        """What is decoded of a file, part by part, with what `_made` wants to know of it."""
        try:
            with self._files.open(file, buffer=_BUFFER) as parquet:
                names = self._stored_names(parquet.schema_arrow.names, file)
                stored = list(names.values())
                old = hybrid_columns(parquet.metadata, stored)
                if not stored:
                    yield None, parquet.metadata.num_rows, names, old
                    return
                part = (
                    BATCH_ROWS
                    if most is None
                    else min(BATCH_ROWS, _part(file, stored, most, parquet.metadata))
                )
                for data in parquet.iter_batches(part, columns=stored):
                    yield data, len(data), names, old
        except READ_FAILURES as error:
            raise read_failure(self._snapshot, file, error) from error

    def described(self, file: DataFile) -> tuple[Any, Mapping[ColumnName, str]]:
        """The Parquet metadata of `file`, and what it calls each of the columns that it holds."""
        try:
            with self._files.open(file) as parquet:
                return parquet.metadata, self._stored_names(parquet.schema_arrow.names, file)
        except READ_FAILURES as error:
            raise read_failure(self._snapshot, file, error) from error

    def read_at(self, file: DataFile, positions: Positions) -> pa.Table:
        """The rows of `file` at these positions, deleted or not."""
        return (
            self._read(file).take(pa.array(positions))
            if self._columns
            else bare_rows(len(positions))
        )

    def read_some(self, file: DataFile, choose: Callable[[int], Sequence[int]]) -> pa.Table:
        """Some row groups of `file`, deleted rows included; `choose` picks among so many."""
        return self._read(file, choose)

    def read_slice(self, file: DataFile, rows: int, at: int) -> pa.Table:
        """So many rows of `file` in a row, those left of the slice with this number (from 0, as
        often as there are slices); the last one may be short."""

        def sliced(parquet: pq.ParquetFile, stored: Sequence[str]) -> tuple[Any, int, int]:
            groups = parquet.num_row_groups
            group = at % groups
            before = sum(parquet.metadata.row_group(g).num_rows for g in range(group))
            slices = max(1, parquet.metadata.row_group(group).num_rows // rows)
            skipped = at // groups % min(slices, _SLICES)
            if stored and slices <= _AS_QUICK:
                # Of a small group all is read sooner than batches are set up.
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

    def _read(
        self, file: DataFile, choose: Callable[[int], Sequence[int]] | None = None
    ) -> pa.Table:
        def whole(parquet: pq.ParquetFile, stored: Sequence[str]) -> tuple[Any, int, int]:
            groups = range(parquet.num_row_groups)
            chosen = groups if choose is None else choose(len(groups))
            rows = sum(parquet.metadata.row_group(group).num_rows for group in chosen)
            data = parquet.read_row_groups(list(chosen), columns=list(stored)) if stored else None
            return data, rows, 0

        return self._loaded(file, whole)[0]

    def _loaded(
        self, file: DataFile, load: Callable[[pq.ParquetFile, Sequence[str]], tuple[Any, int, int]]
    ) -> tuple[pa.Table, int]:
        """What `load` takes of a file: data, rows and the position of the first one."""
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
        """The columns asked for of so many rows of a file, `old` ones in the calendar of before."""
        arrays = [self._array(c, data, names.get(c.name), file, rows) for c in self._columns]
        for column, values in zip(self._columns, arrays, strict=True):
            if names.get(column.name) in old:
                check_calendar(values, column.type, column.name, file.uri)
        if not self._columns:
            return bare_rows(rows)
        return pa.Table.from_arrays(arrays, schema=self._arrow_schema)

    def _stored_names(self, present: Sequence[str], file: DataFile) -> dict[ColumnName, str]:
        """What the file calls each of the columns that it holds."""
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
    """How many rows of a file may be decoded at once, to come to `most` bytes.

    Beside them, a page of each column is held as it is stored and as it is read: OutOfMemoryError
    where a limit has no room for these.
    """
    rows = max(_PART_ROWS, most // _WIDE)
    if file.size < SMALL:
        return rows
    schema = footer.schema
    places = [at for at in range(len(schema)) if schema.column(at).path.split(".")[0] in columns]
    held = 0
    for group in map(footer.row_group, range(footer.num_row_groups)):
        sizes = [group.column(at).total_uncompressed_size for at in places]
        widths = [size // max(group.num_rows, 1) for size in sizes]
        pages = (max(width * _PAGE_ROWS, _PAGE) for width in widths)
        held = max(held, 2 * sum(map(min, sizes, pages)))
        rows = min(rows, max(_FEWEST, most // max(sum(widths), 1)))
    reserve(held)
    return rows


def _live(table: pa.Table, file: DataFile, start: int) -> pa.Table:
    """Rows of `file` from a position on, without those that its deletion vector removes."""
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
    """A partition column of one file: the same value in every row.

    Raises TableError for a text that Arrow cannot read, such as a year after 9999.
    """
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
